"""The stages of `mtx train` in order: open the run, prepare, train, average, score. Finished stages are skipped.

Each stage leaves a directory that appears whole (data/, checkpoints/step-*, model/, evaluation/NAME/), so the same
command continues an interrupted run. A run that starts from a model also scores that one, before training, into
before/NAME/. With several ranks all run this program, and rank 0 alone does what writes.
"""

import contextlib
import functools
import hashlib
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mtx.config.schema import Config
from mtx.data import prepare, token_store
from mtx.data.token_store import PreparedData
from mtx.decoding import model_directory
from mtx.decoding.load import export_note, fill_cache
from mtx.decoding.model_directory import LoadedModel
from mtx.decoding.translator import Translator
from mtx.errors import Advice, DamagedFileError, DeferredErrors, MtxError, UsageError
from mtx.evaluation.evaluate import translate_and_score
from mtx.evaluation.gains import Gain, measure_gains, stored_gains
from mtx.evaluation.protocols import Protocol
from mtx.evaluation.scores import Scores
from mtx.evaluation.test_sets import TestSet
from mtx.formatting import counted, format_duration
from mtx.interop.cards import licences_of, run_card
from mtx.model.device import keep_freed_memory, make_deterministic
from mtx.report import checks
from mtx.storage import durable, text_files
from mtx.storage.model_description import info_of
from mtx.storage.run_contents import checkpoint_steps, full_checkpoint_steps, is_prepared, load_config, stored_scores
from mtx.storage.run_directory import hold_lock, open_run, refuse_foreign, write_owner
from mtx.storage.run_files import (
    HYPOTHESIS_TEXT,
    MODEL_CONFIG,
    REFERENCE_TEXT,
    REPORT,
    SCORES,
    SOURCE_TEXT,
    WEIGHTS,
    RunLayout,
)
from mtx.storage.run_status import StatusFile, read_events, track_status
from mtx.training import averaging, checkpoint, init_from
from mtx.training.metrics import require_tensorboard
from mtx.training.ranks import Ranks, rank_device
from mtx.training.report_writer import ReportWriter
from mtx.training.runtime import check_memory, choose_runtime
from mtx.training.trainer import Trainer
from mtx.training.validation import Sample, evenly_spaced_samples, interleaved

logger = logging.getLogger(__name__)

_SHARED_DISK = "run_dir must be on a disk that all machines of the run share"


@dataclass(frozen=True)
class Result:
    """What `mtx train` shows of a finished run, and the errors that it deferred to the end."""

    paths: RunLayout
    scores: dict[str, Scores]
    gains: list[Gain]
    samples: list[Sample]
    deferred_errors: DeferredErrors


def train(config: Config, ranks: Ranks | None = None) -> Result | None:
    """Do everything from text to a scored model; finished stages are skipped. All ranks of a run call this.

    Returns:
        None on all ranks but the first.
    """
    started = time.monotonic()
    ranks = ranks or Ranks()
    paths = RunLayout(Path(config.run_dir))
    deferred_errors = DeferredErrors()
    devices = ranks.gather(lambda: str(rank_device(config.device, ranks.world)))
    if config.training.tensorboard:
        require_tensorboard()
    with contextlib.ExitStack() as stack:
        if not ranks.run_on_rank_zero(lambda: _open(config, paths, stack, deferred_errors)):
            trainer = _trainer(config, paths, devices, deferred_errors, ranks)
            trainer.run(started)
            trainer.release()
            ranks.run_on_rank_zero(lambda: _write_model(trainer))
            _score(trainer)
        return finished(paths, deferred_errors) if ranks.is_rank_zero else None


def _open(config: Config, paths: RunLayout, stack: contextlib.ExitStack, deferred_errors: DeferredErrors) -> bool:
    """Own the run directory until `stack` closes; returns whether nothing is left to do, after what may be renewed."""
    stack.enter_context(open_run(config))
    if not _is_finished(paths, config):
        stack.enter_context(track_status(paths.status, deferred_errors))
        return False
    ended_by = ["max_steps", *(event["reason"] for event in read_events(paths.metrics) if "reason" in event)]
    logger.info("this run is finished; a larger training.%s trains on", ended_by[-1])
    _warn(checks.changed_text(paths.sources, config, is_finished=True))
    _renew_card(config, paths)
    return True


def _trainer(
    config: Config, paths: RunLayout, devices: list[str], deferred_errors: DeferredErrors, ranks: Ranks
) -> Trainer:
    """A trainer that is ready for the next step: the data is prepared and the state is restored.

    Args:
        devices: those of all ranks.
    """
    initial: LoadedModel | None = None
    data: PreparedData | None = None

    def prepare() -> str:
        nonlocal initial, data
        if len({torch.device(device).type for device in devices}) > 1:
            raise UsageError(f"device={config.device} is {', '.join(devices)} on the ranks of this run", "mtx doctor")
        initial = initial_of(config, paths)
        data = prepared_data(config, paths, initial)
        return data.sha256

    def load() -> None:
        nonlocal data
        try:
            data = data or token_store.load_prepared(paths.data)
        except (OSError, DamagedFileError) as error:
            raise MtxError(f"{error}; rank 0 has prepared it", _SHARED_DISK) from None
        if data.sha256 != sha256:
            raise MtxError(f"{paths.data.absolute()}: is not what rank 0 has prepared", _SHARED_DISK)

    sha256 = ranks.run_on_rank_zero(prepare)
    ranks.gather(load)
    assert data is not None
    trainer = new_trainer(config, paths, paths, torch.device(devices[ranks.rank]), data, deferred_errors, ranks)
    trainer.resume(initial)

    def begin() -> None:
        checkpoint.check_space(paths, trainer.space_needed())
        _announce(trainer)
        if initial is not None:
            logger.info("scoring %s before it is trained", config.training.init_from)
            before = init_from.translator(config, trainer.runtime.device)
            evaluate_tests(before, paths, trainer.data, config, directory=paths.before)

    ranks.run_on_rank_zero(begin)
    return trainer


def new_trainer(
    config: Config,
    paths: RunLayout,
    records: RunLayout,
    device: torch.device,
    data: PreparedData,
    deferred_errors: DeferredErrors,
    ranks: Ranks | None = None,
) -> Trainer:
    """A trainer before its first step; the device is set up for it.

    Args:
        records: the run whose chosen.json is read or written.
    """
    if device.type == "cuda" and config.training.deterministic:
        make_deterministic()
    check_memory(config, device, data.tokenizer.num_ids)
    runtime = choose_runtime(records, config, device, data, ranks)
    torch.set_num_threads(runtime.threads)
    if device.type == "cpu":
        keep_freed_memory()
    return Trainer(config, runtime, data, paths, deferred_errors, ranks)


def prepare_only(config: Config) -> RunLayout:
    """The first stage alone: from text to token ids."""
    with open_run(config) as paths:
        prepared_data(config, paths, initial_of(config, paths))
    return paths


def initial_of(config: Config, paths: RunLayout) -> LoadedModel | None:
    """The model of `training.init_from` if the run has no checkpoint yet; else None."""
    return None if full_checkpoint_steps(paths) else init_from.load(config)


def prepared_data(config: Config, paths: RunLayout, initial: LoadedModel | None) -> PreparedData:
    """Like `load_or_prepare`, but if it prepares the data, it also logs warnings about the text and the plan."""
    was_prepared = is_prepared(paths.data)
    data = load_or_prepare(config, paths, initial)
    if was_prepared:
        _warn(checks.changed_text(paths.sources, config, False))
    else:
        _warn(checks.warnings(data, config))
    return data


def _warn(advice: list[Advice]) -> None:
    for warning in advice:
        logger.warning("%s\n  help: %s", warning.text, warning.help)


def load_or_prepare(config: Config, paths: RunLayout, initial: LoadedModel | None) -> PreparedData:
    """The token ids of a run; they are prepared first if they do not exist yet.

    Raises:
        DamagedFileError: if they are damaged, or missing from a run that has checkpoints.
    """
    if not is_prepared(paths.data):
        if checkpoint_steps(paths):  # whose model may have been trained on other token ids
            raise DamagedFileError(
                f"{paths.data}: the prepared data of this run is gone", "use another run_dir=DIR to start again"
            )
        sources = prepare.prepare(config, paths.data, tokenizer=initial.tokenizer if initial else None)
        durable.write_json(paths.sources, sources)
    data = token_store.load_prepared(paths.data)
    if initial:
        init_from.check_tokenizer(config, initial.tokenizer, data.tokenizer)
    return data


def _announce(trainer: Trainer) -> None:
    config = trainer.config
    runtime = trainer.runtime
    train = trainer.data.train
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    (last, ends_by), done = trainer.planned_end(), trainer.state.step
    steps = max(0, last - done)
    if ends_by == "max_steps" and done > last:
        logger.info("%d steps are done, more than training.max_steps=%d: nothing to do", done, last)
    threads, epochs = counted(runtime.threads, "thread"), steps / checks.steps_per_epoch(train, config.training)
    logger.info(
        f"training {config.data.direction} into {config.run_dir} on {runtime.device} in {runtime.precision}, "
        f"{threads}: {size:,} parameters, {train.num_pairs:,} pairs, {steps:,} steps ({epochs:.1f} epochs) of "
        f"{config.training.batch_tokens:,} target tokens"
    )
    if note := export_note(config.model):
        logger.info("note: %s", note)


def _write_model(trainer: Trainer) -> None:
    """Write the best candidate into model/."""
    config = trainer.config
    data = trainer.data
    paths = trainer.paths
    StatusFile(paths.status, trainer.deferred_errors).write("running", "scoring", trainer.state.step)
    steps = averaging.choose(config, trainer.runtime, data, paths, trainer.state)
    info = {**info_of(config, data.report), "weights": averaging.in_words(steps)}
    model_directory.write(paths.model, averaging.average(paths, steps), config.model, data.tokenizer, info)


def _score(trainer: Trainer) -> None:
    """Translate the test sets with the written model, on all ranks; rank 0 scores them."""
    ranks, translations = trainer.ranks, dict[str, list[str]]()
    batch_tokens = trainer.config.decoding.batch_tokens
    translator = Translator.load(
        trainer.paths.model,
        engine="torch",
        device=trainer.runtime.device,
        batch_tokens=batch_tokens,
        split_sentences=False,
    )
    for name, store in trainer.data.tests.items():
        _announce_translation(translator, name, store.num_pairs)
        own = store.src_texts()[ranks.rank :: ranks.size]
        translations[name] = interleaved(ranks.gather(functools.partial(translator.translate, own)))
    ranks.run_on_rank_zero(lambda: _store_all_scores(trainer, translator, translations))


def _announce_translation(translator: Translator, name: str, num_sources: int) -> None:
    logger.info("translating %s: %s sentences, beam size %d", name, f"{num_sources:,}", translator.options.beam_size)


def _store_all_scores(trainer: Trainer, translator: Translator, translations: dict[str, list[str]]) -> None:
    """Score the translations of the test sets, and store the scores next to the model."""
    config = trainer.config
    paths = trainer.paths
    data = trainer.data
    state = trainer.state
    by_test = evaluate_tests(translator, paths, data, config, translations=translations)
    scores = {name: s.as_dict() for name, s in by_test.items()}
    run: dict[str, Any] = {
        "precision": "fp32",
        "training_precision": trainer.runtime.precision,
        "device": trainer.runtime.device,
        "torch": torch.__version__,
        "seed": config.seed,
        "steps": state.step,
        "elapsed": format_duration(state.elapsed_s),
        "config": _fingerprint(config),
        "data": data.sha256,
        "weights": durable.read_json(paths.model / MODEL_CONFIG)["weights"],
        "code": _code_hash(),
        **licences_of(config),
    }
    if state.init_sha256:
        run["init_from"] = {"path": config.training.init_from, "sha256": state.init_sha256}
        gains = measure_gains(paths, data.report["tests"], config.data.tgt)
        run["gains"] = [asdict(gain) for gain in gains]
    model_directory.add_scores(paths.model, {**scores, "run": run}, run_card(config, data.report, scores, run))
    fill_cache(paths.model)
    ReportWriter(paths, config, data.tokenizer, trainer.deferred_errors).write(translator)


def _renew_card(config: Config, paths: RunLayout) -> None:
    """Write the card of a finished run again if its licences have changed, which are only words."""
    before = durable.read_json(paths.model / SCORES)["run"]
    run = {**{key: value for key, value in before.items() if "licence" not in key}, **licences_of(config)}
    if run == before:
        return
    report, scores = durable.read_json(paths.data / REPORT), stored_scores(paths)
    model_directory.add_scores(paths.model, {**scores, "run": run}, run_card(config, report, scores, run))
    logger.info("%s: its model card gives the licences of today", paths.model)


def evaluate_tests(
    translator: Translator,
    paths: RunLayout,
    data: PreparedData,
    config: Config,
    protocol: Protocol | None = None,
    translations: dict[str, list[str]] | None = None,
    directory: Path | None = None,
) -> dict[str, Scores]:
    """Translate and score every test set of a run, into evaluation/NAME/ if the search is the run's own.

    Args:
        directory: takes the place of evaluation/.
        protocol: see `translate_and_score`.
        translations: by test set, if they are made already.
    """
    scores = {}
    options = translator.options
    own = config.decoding
    is_own = (options.beam_size, options.length_penalty) == (own.beam_size, own.length_penalty)
    if not is_own:
        logger.info("%s stays as it is: this search is not the run's own", paths.evaluation)
    directory = directory or paths.evaluation
    for name, store in data.tests.items():
        if translations is None:
            _announce_translation(translator, name, store.num_pairs)
        hypotheses = None if translations is None else translations[name]
        test_set = TestSet(name, config.data.tgt, store.src_texts(), store.tgt_texts())
        new = directory / name if is_own else None
        scores[name] = translate_and_score(translator, test_set, new, protocol, hypotheses)
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
        return evaluate_tests(translator, paths, token_store.load_prepared(paths.data), config, protocol)


def _fingerprint(config: Config) -> str:
    """A hash of the settings that the finished model depends on, without paths and licences."""
    exclude: Any = {
        "run_dir": True,
        "sizes": True,
        "device": True,
        "data": {"dir", "licence"},
        "model": {"licence"},
        "tokenizer": {"model"},
        "training": {"init_from", "tensorboard", "compile", "shard"},
    }
    values = config.model_dump(mode="json", exclude=exclude, exclude_defaults=True)
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _code_hash() -> str:
    """A hash of mtx's own source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_finished(paths: RunLayout, config: Config) -> bool:
    try:
        if durable.read_json(paths.model / SCORES).get("run", {}).get("config") != _fingerprint(config):
            return False
        durable.verify(paths.model, (WEIGHTS, SCORES))
    except DamagedFileError as error:  # no model yet, or a damaged one, which the checkpoints can make again
        if paths.model.exists():
            logger.info("%s; the model is written again", error)
        return False
    return True


def finished(paths: RunLayout, deferred_errors: DeferredErrors) -> Result:
    """The scores, the gains and five sample translations of a finished run, read from its files."""
    scores = {name: Scores.from_dict(value) for name, value in stored_scores(paths).items()}
    gains = stored_gains(durable.read_json(paths.model / SCORES)["run"], paths.model / SCORES)
    return Result(paths, scores, gains, _samples(paths.evaluation / next(iter(scores), "")), deferred_errors)


def _samples(directory: Path) -> list[Sample]:
    """Five translations of a test set, evenly spread; none if its files were removed."""
    texts = [directory / name for name in (SOURCE_TEXT, REFERENCE_TEXT, HYPOTHESIS_TEXT)]
    if not all(path.is_file() for path in texts):
        return []
    return evenly_spaced_samples(*(list(text_files.read_lines(path)) for path in texts))
