"""The stages of `mtx train` in order: open the run, prepare, train, average, score. Finished stages are skipped.

Each stage leaves a directory that appears whole (data/, checkpoints/step-*, model/, evaluation/NAME/), so the same
command resumes an interrupted run. With several ranks all run this program, and rank 0 alone does what writes. What is
around the spine joins by hooks (`mtx.training.hooks`).
"""

import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from mtx.config import settings
from mtx.config.schema import Config
from mtx.data import prepare as preparation
from mtx.data.shards import remove_shards, shard_path
from mtx.data.token_store import PreparedData, load_prepared
from mtx.decoding import model_directory
from mtx.decoding.model_directory import LoadedModel
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, DeferredErrors, MtxError, UsageError
from mtx.formatting import counted, divide_up, format_duration
from mtx.model.device import free_unused_memory
from mtx.runs.run_directory import open_run, read_events, refuse_foreign, track_status, write_status
from mtx.scoring.metrics import (
    LONGEST_TER_S,
    Scores,
    TestSet,
    mean_scores,
    score,
    warn_about_bleu,
    write_test_set,
)
from mtx.scoring.quality import Advice, score_by_advice
from mtx.storage import durable
from mtx.storage.model_description import info_of
from mtx.storage.resumable import parse_shard
from mtx.storage.run_files import (
    MODEL_CONFIG,
    SCORES,
    TRAIN_STORE,
    WEIGHTS,
    RunLayout,
    checkpoint_steps,
    full_checkpoint_steps,
    is_prepared,
    stored_scores,
)
from mtx.training import averaging, checkpoint, init_from
from mtx.training.build import build, choose_runtime
from mtx.training.events import Run
from mtx.training.hooks import Hook, require_tensorboard
from mtx.training.plan import decide, describe
from mtx.training.ranks import Ranks, find_rank_device
from mtx.training.trainer import Trainer
from mtx.training.validation import interleave, pick_samples, tests_of

logger = logging.getLogger(__name__)

_TER_SHARE = 0.02  # of a time limit: TER of a thousand long lines takes longer than their translation
Translations = list[tuple[str, Advice | None]]  # of the lines of a test set


class Result(NamedTuple):
    """What a finished run has, and the errors that it deferred to the end."""

    paths: RunLayout
    scores: dict[str, Scores]
    deferred_errors: DeferredErrors


def train(config: Config, ranks: Ranks | None = None, hooks: Sequence[Hook] = ()) -> Result | None:
    """Do everything from text to a scored model; finished stages are skipped. All ranks of a run call this.

    Returns:
        None on all ranks but the first.
    """
    started = time.monotonic()
    ranks = ranks or Ranks()
    paths = RunLayout(Path(config.run_dir))
    deferred_errors = DeferredErrors()
    device = find_rank_device(config.device, ranks)
    require_tensorboard(config)
    with contextlib.ExitStack() as stack:

        def open_own_run() -> bool:
            """Open the run, and return whether it is finished."""
            stack.enter_context(open_run(config))
            if not _is_finished(paths, config):
                stack.enter_context(track_status(paths, deferred_errors))
                return False
            logger.info(f"this run is finished; increase training.{_end_reason(paths)} to train further")
            for hook in hooks:
                hook.on_prepared(config, paths, None)
            return True

        if not ranks.run_on_rank_zero(open_own_run):
            data, initial = _prepare_together(config, paths, ranks, hooks)
            undecided = config.undecided
            config, plan = decide(config, paths, data, device, started, ranks)
            runtime = choose_runtime(paths, config, device, data, ranks, plan)
            if plan and undecided and ranks.is_rank_zero:
                durable.write_text(paths.config, settings.dump(config))
                for line in describe(plan, config, data):
                    logger.info(line)
            trainer = build(config, runtime, data, paths, ranks, deferred_errors, initial, started)
            del initial  # training needs its memory
            ranks.run_on_rank_zero(_announce, trainer)
            run = trainer.train(hooks)
            del trainer  # a small GPU has no room for its model and moments next to a model to score
            free_unused_memory(device)
            ranks.run_on_rank_zero(_write_model, run, hooks)
            _score(run, ranks, hooks)
        return Result(paths, stored_scores(paths), deferred_errors) if ranks.is_rank_zero else None


def _prepare_together(
    config: Config, paths: RunLayout, ranks: Ranks, hooks: Sequence[Hook]
) -> tuple[PreparedData, LoadedModel | None]:
    """The data, which rank 0 prepares and all ranks then load, and on rank 0 the model of `training.init_from`.

    The first rank that sees a copy of the data verifies its content; the others compare sizes.
    """
    prepared = list[tuple[PreparedData, LoadedModel | None]]()

    def work() -> str:
        prepared.append(prepare(config, paths, hooks))
        return prepared[0][0].sha256

    def load() -> None:
        if prepared:
            return
        try:
            data = load_prepared(paths.data, check_content=verifies_copy)
            if data.sha256 != sha256:
                raise DamagedFileError(f"{paths.data.absolute()}: different data")
        except (OSError, DamagedFileError) as error:
            raise MtxError(
                f"{error}; rank 0 prepared it",
                "run_dir must be on a disk that all machines of the run share; if data/ is a copy, copy it again",
            ) from None
        prepared.append((data, None))

    sha256 = ranks.run_on_rank_zero(work)
    copies = ranks.gather(_identify_copy, paths)
    verifies_copy = copies.index(copies[ranks.rank]) == ranks.rank
    ranks.gather(load)
    return prepared[0]


def _identify_copy(paths: RunLayout) -> tuple[int, int] | None:
    """What distinguishes the copy of the data that this rank sees; None if it sees none, which loading reports.

    A file on a shared disk has the same inode and change time on every machine, and no copy of it has both. A clone of
    a disk image does, so that such a copy is taken for the original.
    """
    try:
        status = (paths.data / TRAIN_STORE).stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def prepare_only(config: Config, hooks: Sequence[Hook] = ()) -> RunLayout:
    """The first stage alone: from text to token ids."""
    with open_run(config) as paths:
        prepare(config, paths, hooks)
    return paths


def prepare_shard(config: Config, name: str) -> Path:
    """Make a shard of a run's text, unless there is one already; returns its directory.

    Args:
        name: such as 3/16.
    """
    paths = RunLayout(Path(config.run_dir))
    refuse_foreign(paths)
    number, num_shards = parse_shard(name)
    path = shard_path(paths.shards, number, num_shards)
    if is_prepared(paths.data):
        raise UsageError(f"{paths.data}: the text of this run is prepared already", "use another run_dir=DIR")
    initial = load_initial(config, paths)
    preparation.prepare_shard(config, paths.shards, number, num_shards, initial.tokenizer if initial else None)
    return path


def load_initial(config: Config, paths: RunLayout) -> LoadedModel | None:
    """The model of `training.init_from` if the run has no checkpoint yet; else None."""
    return init_from.load(config) if config.training.init_from and not full_checkpoint_steps(paths) else None


def prepare(config: Config, paths: RunLayout, hooks: Sequence[Hook] = ()) -> tuple[PreparedData, LoadedModel | None]:
    """The token ids of a run, which are prepared first if they do not exist yet, and `load_initial`.

    Raises:
        DamagedFileError: if they are damaged, or missing from a run that has checkpoints.
    """
    initial = load_initial(config, paths)
    is_new = not is_prepared(paths.data)
    if is_new:
        # A checkpoint's model may have been trained on other token ids. A link leads to a copy that this machine lacks.
        if checkpoint_steps(paths) or paths.data.is_symlink():
            raise DamagedFileError(
                f"{paths.data}: the prepared data of this run is missing",
                "restore it, or use another run_dir=DIR to start again",
            )
        shards = paths.shards if paths.shards.exists() else None
        tokenizer = initial.tokenizer if initial else None
        durable.write_json(paths.sources, preparation.prepare(config, paths.data, tokenizer, shards))
    data = load_prepared(paths.data)
    if is_new and paths.shards.exists():
        remove_shards(paths.shards)
    if initial:
        init_from.check_tokenizer(config.training, initial.tokenizer, data.tokenizer)
    for hook in hooks:
        hook.on_prepared(config, paths, data if is_new else None)
    return data, initial


def _announce(trainer: Trainer) -> None:
    """Check that the disk has room for the run, and log what will be trained."""
    config = trainer.config
    runtime = trainer.runtime
    training = trainer.config.training
    num_ranks = trainer.ranks.size
    last_step, _ = trainer.schedule.end(trainer.state)
    steps = max(0, last_step - trainer.state.step)
    num_saves = divide_up(steps, min(training.checkpoint_every, training.validate_every)) + 1
    checkpoint.check_space(trainer.paths, trainer.model, num_saves, training)
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    in_each_rank = f" in each of {num_ranks} ranks" if num_ranks > 1 else ""
    at_most = "at most " if training.time_limit else ""
    more = "more " if trainer.state.step else ""
    logger.info(
        f"training {config.data.direction} into {config.run_dir} on {runtime.device} in {runtime.precision}, "
        f"{counted(runtime.threads, 'thread')}{in_each_rank}: "
        f"{size:,} parameters, {trainer.data.train.num_pairs:,} pairs, "
        f"{at_most}{steps:,} {more}steps "
        f"({steps / trainer.schedule.steps_per_epoch:.1f} epochs) of "
        f"{training.batch_tokens:,} target tokens"
    )


def _write_model(run: Run, hooks: Sequence[Hook]) -> None:
    """Write the best candidate into model/."""
    config = run.config
    data = run.data
    paths = run.paths
    write_status(paths, run.deferred_errors, state="running", stage="scoring", step=run.state.step)
    steps = averaging.choose(run)
    info = {**info_of(config, data.report), "weights": averaging.in_words(steps)}
    model_directory.write(paths.model, averaging.average(paths, steps), config.model, data.tokenizer, info)
    for hook in hooks:
        hook.on_model(run)


def _score(run: Run, ranks: Ranks, hooks: Sequence[Hook]) -> None:
    """Translate the test sets with the written model, on all ranks; rank 0 scores them."""
    tests = list[tuple[TestSet, Translations]]()
    translator = Translator.load(
        run.paths.model,
        device=run.runtime.device,
        threads=run.runtime.threads,
        batch_tokens=run.config.decoding.batch_tokens,
    )
    for test_set in tests_of(run.data, run.config, translator.options.beam_size):
        view = translator.to(test_set.tgt, test_set.src)
        sources = test_set.sources[ranks.rank :: ranks.size]
        tests.append((test_set, interleave(ranks.gather(_translate, view, sources))))
    ranks.run_on_rank_zero(_finish, run, hooks, translator, tests)


def _translate(translator: Translator, lines: list[str]) -> Translations:
    return [(best.text, best.advice) for [best, *_] in translator.hypotheses(lines, n_best=1)]


def _finish(
    run: Run, hooks: Sequence[Hook], translator: Translator, tests: Sequence[tuple[TestSet, Translations]]
) -> None:
    """Score the translations of the test sets, and store the scores next to the model."""
    config = run.config
    paths = run.paths
    data = run.data
    state = run.state
    scores = durable.Json()
    files = dict[str, str]()
    time_limit = config.training.time_limit or math.inf
    longest_ter_s = min(LONGEST_TER_S, _TER_SHARE * time_limit)
    for test_set, translations in tests:
        texts, advice = zip(*translations, strict=True)
        test_set = test_set.translated(texts, data.tokenizer.normalization)
        name = test_set.name
        hypotheses = test_set.translations
        references = test_set.references
        warn_about_bleu(name, references, test_set.tgt)
        if not scores:
            for sample in pick_samples(test_set.sources, references, hypotheses):
                logger.info(f"  {sample.src}\n    -> {sample.hyp}\n    reference: {sample.ref}")
        scores[name] = score(hypotheses, references, test_set.tgt, longest_ter_s=longest_ter_s)
        scores[name] |= score_by_advice(hypotheses, references, advice)
        write_test_set(paths.evaluation / name, test_set, scores[name])
    scores |= mean_scores(scores, config.data.language_pairs)
    scores["run"] = {
        "precision": translator.engine.precision,
        "training_precision": run.runtime.precision,
        "device": run.runtime.device,
        "torch": torch.__version__,
        "seed": config.seed,
        "steps": state.step,
        "elapsed": format_duration(state.elapsed_s),
        "config": _fingerprint(config, _end_reason(paths)),
        "data": data.sha256,
        "weights": durable.read_json(paths.model / MODEL_CONFIG)["weights"],
        "code": _hash_code(),
    }
    if state.init_sha256:
        scores["run"]["init_from"] = {"path": config.training.init_from, "sha256": state.init_sha256}
    for hook in hooks:
        hook.on_scores(run, scores, files)
    model_directory.add_scores(paths.model, scores, files)
    for hook in hooks:
        hook.on_end(run)


def _fingerprint(config: Config, reason: str) -> str:
    """A hash of the settings that the finished model depends on; `reason` is the one that ended training."""
    values = settings.model_settings(config)
    if reason == "patience":  # a larger one trains further
        values[reason] = config.training.patience
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _end_reason(paths: RunLayout) -> str:
    """The setting in the section `training` that ended a run."""
    reasons = [event["reason"] for event in read_events(paths.metrics, all_steps=False) if "reason" in event]
    return str(reasons[-1]) if reasons else "max_steps"


def _hash_code() -> str:
    """A hash of mtx's own source."""
    modules = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join(map(Path.read_bytes, modules))).hexdigest()


def _is_finished(paths: RunLayout, config: Config) -> bool:
    try:
        fingerprint = durable.read_json(paths.model / SCORES).get("run", {}).get("config")
        if fingerprint not in (_fingerprint(config, ""), _fingerprint(config, "patience")):
            return False
        durable.verify(paths.model, (WEIGHTS, SCORES))
    except DamagedFileError as error:  # no model yet, or a damaged one, which the checkpoints can make again
        if paths.model.exists():
            logger.info(f"{error}; writing the model again")
        return False
    return True
