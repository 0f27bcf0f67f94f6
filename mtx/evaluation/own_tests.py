"""The test sets of a run: `mtx evaluate RUN` scores its model on them, and a hook the model that it starts from."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtx.config.schema import Config
from mtx.data.token_store import PreparedData, load_prepared
from mtx.decoding.metrics import Scores
from mtx.decoding.translator import Translator
from mtx.evaluation.evaluate import translate_and_score
from mtx.evaluation.gains import measure_gains
from mtx.evaluation.protocols import Protocol
from mtx.evaluation.test_sets import TestSet
from mtx.storage import durable
from mtx.storage.run_contents import load_config
from mtx.storage.run_directory import hold_lock, refuse_foreign, write_owner
from mtx.storage.run_files import RunLayout
from mtx.training import init_from
from mtx.training.hooks import Hook
from mtx.training.trainer import Trainer

logger = logging.getLogger(__name__)


class ScoresBefore(Hook):
    """Scores the model that a run starts from, before it is trained, into before/NAME; at the end, what has changed."""

    def on_start(self, trainer: Trainer) -> None:
        config = trainer.config
        if trainer.state.init_sha256 and not trainer.state.step:
            logger.info("scoring %s before it is trained", config.training.init_from)
            before = init_from.translator(config, trainer.runtime.device)
            evaluate_tests(before, trainer.data, config, trainer.paths.before)

    def on_scores(self, trainer: Trainer, scores: dict[str, Any], files: dict[str, str]) -> None:
        if trainer.state.init_sha256:
            gains = measure_gains(trainer.paths, trainer.data.report["tests"], trainer.config.data.tgt)
            scores["run"]["gains"] = [asdict(gain) for gain in gains]


def evaluate_tests(
    translator: Translator, data: PreparedData, config: Config, directory: Path, protocol: Protocol | None = None
) -> dict[str, Scores]:
    """Translate and score every test set of a run, into `directory` if the search is the run's own."""
    scores = {}
    options, own = translator.options, config.decoding
    is_own = (options.beam_size, options.length_penalty) == (own.beam_size, own.length_penalty)
    if not is_own:
        logger.info("%s stays as it is: this search is not the run's own", directory)
    for name, store in data.tests.items():
        logger.info("translating %s: %s sentences, beam size %d", name, f"{store.num_pairs:,}", options.beam_size)
        test_set = TestSet(name, config.data.tgt, store.src_texts(), store.tgt_texts())
        scores[name] = translate_and_score(translator, test_set, directory / name if is_own else None, protocol)
    return scores


def evaluate_run(translator: Translator, root: Path, protocol: Protocol | None = None) -> dict[str, Scores]:
    """`evaluate_tests` for a run directory; its model directory does not change.

    Raises:
        MtxError: if another process works on the run.
    """
    paths = RunLayout(root)
    config = load_config(paths)
    refuse_foreign(paths)
    with hold_lock(paths):
        write_owner(paths.lock)
        durable.remove_temporaries(paths.evaluation)
        data = load_prepared(paths.data)
        return evaluate_tests(translator, data, config, paths.evaluation, protocol)
