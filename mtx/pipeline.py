"""The stages of `mtx train` in order: open the run, prepare, train, average, score. A stage that is done is skipped.

Each stage leaves a directory that appears whole (data/, checkpoints/step-*, model/, evaluation/NAME/), so the same
command goes on where it was interrupted.
"""

import hashlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mtx.config import settings
from mtx.config.schema import Config
from mtx.data import preprocess
from mtx.data.preprocess import PreparedData
from mtx.decoding.text_translator import TextTranslator
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, MtxError
from mtx.evaluation import metrics
from mtx.evaluation.metrics import Scores
from mtx.evaluation.protocols import Protocol
from mtx.files import durable, text_files
from mtx.files.durations import format_duration
from mtx.interop.limits import export_note
from mtx.interop.model_card import run_card
from mtx.model.device import find_device, keep_freed_memory, make_deterministic
from mtx.model_directory import storage
from mtx.model_directory.storage import LoadedModel
from mtx.run.contents import checkpoint_steps, full_checkpoint_steps, is_prepared, stored_scores
from mtx.run.deferred_errors import DeferredErrors
from mtx.run.directory import open_run, owned, sign
from mtx.run.events import read_events
from mtx.run.layout import HYPOTHESIS_TEXT, REFERENCE_TEXT, SCORES, SOURCE_TEXT, WEIGHTS, RunLayout
from mtx.run.status import reporting
from mtx.training import checkpoint, init_from
from mtx.training.metrics import require_tensorboard
from mtx.training.report_writer import ReportFile
from mtx.training.runtime import choose
from mtx.training.trainer import Trainer
from mtx.training.validation import Sample, spread

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What a finished run shows, and what could not be written on the way."""

    paths: RunLayout
    scores: dict[str, Scores]
    samples: list[Sample]
    lost: DeferredErrors


def train(wanted: Config) -> Result:
    """Everything from text to a scored model, or what of it is not done yet."""
    started = time.monotonic()
    device = find_device(wanted.device)
    if wanted.training.tensorboard:
        require_tensorboard()
    lost = DeferredErrors()
    with open_run(wanted) as paths:
        if _is_finished(paths, wanted):
            ended_by = ["max_steps", *(event["reason"] for event in read_events(paths.metrics) if "reason" in event)]
            logger.info("this run is finished; a larger training.%s trains on", ended_by[-1])
            _report_again(wanted, paths, lost)
            return finished(paths, lost)
        with reporting(paths.status, lost) as status:
            trainer = _trainer(wanted, paths, device, lost)
            trainer.run(started)
            status.write("running", "scoring", trainer.state.step)
            _write_model(wanted, paths, trainer.data)
            _score(wanted, paths, trainer)
        return finished(paths, lost)


def _trainer(wanted: Config, paths: RunLayout, device: torch.device, lost: DeferredErrors) -> Trainer:
    """All that comes before the first step, or the next one."""
    initial = initial_of(wanted, paths)
    data = prepared_data(wanted, paths, initial)
    trainer = new_trainer(wanted, paths, paths, device, data, lost)
    trainer.resume(initial)
    checkpoint.check_space(paths, trainer.space_needed())
    _announce(trainer)
    return trainer


def new_trainer(
    wanted: Config, paths: RunLayout, records: RunLayout, device: torch.device, data: PreparedData, lost: DeferredErrors
) -> Trainer:
    """A trainer before its first step, on a device that is made ready for it.

    Args:
        records: where chosen.json is, or is written to.
    """
    if device.type == "cuda" and wanted.training.deterministic:
        make_deterministic()
    chosen = choose(records, wanted, device, data)
    torch.set_num_threads(chosen.threads)
    if device.type == "cpu":
        keep_freed_memory()
    return Trainer(wanted, chosen, data, paths, lost)


def prepare_only(wanted: Config) -> RunLayout:
    """The first stage alone: text to token ids."""
    with open_run(wanted) as paths:
        prepared_data(wanted, paths, initial_of(wanted, paths))
    return paths


def initial_of(wanted: Config, paths: RunLayout) -> LoadedModel | None:
    """The model that the first step starts from; a run with a checkpoint needs it no more."""
    return None if full_checkpoint_steps(paths) else init_from.load(wanted)


def prepared_data(wanted: Config, paths: RunLayout, initial: LoadedModel | None) -> PreparedData:
    """The token ids of a run, prepared where they are not yet.

    Raises:
        DamagedFileError: where they are damaged, or gone from a run with checkpoints.
    """
    if not is_prepared(paths.data):
        if checkpoint_steps(paths):  # of other token ids, perhaps
            raise DamagedFileError(
                f"{paths.data}: the prepared data of this run is gone", "another run_dir=DIR starts anew"
            )
        preprocess.prepare(wanted, paths.data, tokenizer=initial.tokenizer if initial else None)
    data = preprocess.load_prepared(paths.data)
    if initial:
        init_from.check_tokenizer(wanted, initial.tokenizer, data.tokenizer)
    return data


def _announce(trainer: Trainer) -> None:
    config, chosen, train = trainer.config, trainer.runtime, trainer.data.train
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    steps, tokens = config.training.max_steps - trainer.state.step, config.training.batch_tokens
    epochs = steps * tokens / max(1, int(train.tgt.lengths.sum()))
    logger.info(
        "training %s on %s in %s, %d threads: %s parameters, %s pairs, %s steps (%.1f epochs) of %s target tokens",
        f"{config.data.src}-{config.data.tgt} into {config.run_dir}", chosen.device, chosen.precision, chosen.threads,
        f"{size:,}", f"{train.num_pairs:,}", f"{max(0, steps):,}", epochs, f"{tokens:,}",
    )  # fmt: skip
    if note := export_note(config.model):
        logger.info("note: %s", note)


def _write_model(wanted: Config, paths: RunLayout, data: PreparedData) -> None:
    """Average the last checkpoints into model/."""
    steps = checkpoint.averaged_steps(paths, wanted.training.checkpoint_every, wanted.training.average_last)
    if not steps:
        raise MtxError(f"{paths.root}: there is no checkpoint to average", "a larger training.time_limit")
    logger.info("averaging the weights of steps %s", ", ".join(map(str, steps)))
    storage.write(paths.model, checkpoint.average(paths, steps), wanted.model, data.tokenizer, storage.describe(wanted))


def _score(wanted: Config, paths: RunLayout, trainer: Trainer) -> None:
    """Translate and score the test sets with the model as it was written, and put the scores beside it."""
    chosen, data = trainer.runtime, trainer.data
    translator = Translator.load(paths.model, device=chosen.device, batch_tokens=wanted.decoding.batch_tokens)
    scores = {name: s.as_dict() for name, s in evaluate_tests(translator, paths, data, wanted.data.tgt).items()}
    run: dict[str, Any] = {
        "precision": "fp32", "training_precision": chosen.precision, "device": chosen.device,
        "torch": torch.__version__, "seed": wanted.seed, "config": _fingerprint(wanted), "data": data.sha256,
        "code": _code_hash(),
    }  # fmt: skip
    state = trainer.state
    if state.init_sha256:
        run["init_from"] = {"path": wanted.training.init_from, "sha256": state.init_sha256}
    card = run_card(wanted, data.report, scores, run, state.step, format_duration(state.elapsed_s))
    storage.add_scores(paths.model, {**scores, "run": run}, card)
    ReportFile(paths, wanted, data.tokenizer, trainer.lost).finish(translator)


def _report_again(wanted: Config, paths: RunLayout, lost: DeferredErrors) -> None:
    """Write the report where the process that scored a run ended before it did."""
    if not paths.report.is_file() or paths.report.stat().st_mtime < (paths.model / SCORES).stat().st_mtime:
        translator = Translator.load(paths.model)
        ReportFile(paths, wanted, translator.tokenizer, lost).finish(translator)


def evaluate_tests(
    translator: TextTranslator, paths: RunLayout, data: PreparedData, tgt: str, protocol: Protocol | None = None
) -> dict[str, Scores]:
    """Translate and score every test set of a run into evaluation/NAME/."""
    scores = {}
    for name, store in data.tests.items():
        beam_size = translator.options.beam_size
        logger.info("translating %s: %s sentences, beam size %d", name, f"{store.num_pairs:,}", beam_size)
        test_set = metrics.NamedTestSet(name, tgt, store.src_texts(), store.tgt_texts())
        scores[name] = metrics.evaluate(translator, test_set, paths.evaluation / name, protocol)
    return scores


def evaluate_run(translator: TextTranslator, root: Path, protocol: Protocol | None = None) -> dict[str, Scores]:
    """`evaluate_tests` for a run directory; what is in its model directory stays as it is.

    Raises:
        MtxError: where another process works on the run.
    """
    paths = RunLayout(root)
    wanted = settings.load(paths.config)
    with owned(paths):
        sign(paths.lock)
        durable.remove_temporaries(paths.evaluation)
        return evaluate_tests(translator, paths, preprocess.load_prepared(paths.data), wanted.data.tgt, protocol)


def _fingerprint(wanted: Config) -> str:
    """A hash of all settings that the finished model depends on; of a model to start from, it is the weights."""
    exclude: Any = {"run_dir": True, "device": True, "data": {"dir"}, "training": {"init_from", "tensorboard"}}
    values = wanted.model_dump(mode="json", exclude=exclude)
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _code_hash() -> str:
    """A hash of mtx's own source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_finished(paths: RunLayout, wanted: Config) -> bool:
    try:
        if durable.read_json(paths.model / SCORES).get("run", {}).get("config") != _fingerprint(wanted):
            return False
        durable.verify(paths.model, (WEIGHTS, SCORES))
    except DamagedFileError as error:  # no model yet, or one that can be made again from the checkpoints
        if paths.model.exists():
            logger.info("%s; the model is written again", error)
        return False
    return True


def finished(paths: RunLayout, lost: DeferredErrors) -> Result:
    """The scores and five test translations of a finished run, as they lie on the disk."""
    scores = {name: Scores.from_dict(value) for name, value in stored_scores(paths).items()}
    return Result(paths, scores, _samples(paths.evaluation / next(iter(scores), "")), lost)


def _samples(directory: Path) -> list[Sample]:
    """Five translations of a test set, evenly spread; none where its files were removed."""
    texts = [directory / name for name in (SOURCE_TEXT, REFERENCE_TEXT, HYPOTHESIS_TEXT)]
    if not all(path.is_file() for path in texts):
        return []
    return spread(*(list(text_files.read_lines(path)) for path in texts))
