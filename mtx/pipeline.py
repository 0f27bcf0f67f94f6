"""The stages of `mtx train` in order: open the run, prepare, train, average, score. A stage that is done is skipped.

Each stage leaves a directory that appears whole (data/, checkpoints/step-*, model/, evaluation/NAME/), so the same
command goes on where it was interrupted.
"""

import contextlib
import hashlib
import logging
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from mtx import bundle, evaluation, files, settings
from mtx.config import Config, ModelConfig, differences, may_change
from mtx.data import prepare
from mtx.data.prepare import PreparedData
from mtx.decoding.lines import LineTranslator
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.evaluation import Scores
from mtx.exchange.limits import ctranslate2_obstacles, huggingface_obstacles
from mtx.model.device import attention_kernel, fast_precision, find_device, keep_freed_memory, repays_compiling
from mtx.model.transformer import training_flops
from mtx.paths import (
    HYPOTHESIS_TEXT,
    MANIFEST,
    REFERENCE_TEXT,
    SCORES,
    SOURCE_TEXT,
    WEIGHTS,
    RunPaths,
    checkpoint_step,
)
from mtx.training import checkpoint, probe
from mtx.training import initial as initial_model
from mtx.training.initial import Initial, check_tokenizer
from mtx.training.trainer import Chosen, Trainer

logger = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 0.5  # `mtx status` may hold the lock for a moment


@dataclass(frozen=True)
class Sample:
    """One test sentence with its reference and the model's translation."""

    src: str
    ref: str
    hyp: str


@dataclass(frozen=True)
class Result:
    """What a finished run shows."""

    paths: RunPaths
    scores: dict[str, Scores]
    samples: list[Sample]


def train(wanted: Config) -> Result:
    """Everything from text to a scored model, or what of it is not done yet."""
    started = time.monotonic()
    device = find_device(wanted.device)
    with open_run(wanted) as paths:
        if _is_finished(paths, wanted):
            logger.info("this run is finished; a larger %s trains on", _ended_by(paths.metrics))
            return finished(paths)
        trainer = _trainer(wanted, paths, device)
        trainer.run(started)
        _write_model(wanted, paths, trainer.data)
        _score(wanted, paths, trainer)
        return finished(paths)


def _trainer(wanted: Config, paths: RunPaths, device: torch.device) -> Trainer:
    """All that comes before the first step, or the next one."""
    initial = _initial(wanted, paths)
    data = _prepared(wanted, paths, initial)
    chosen = choose(paths, wanted, device, data)
    torch.set_num_threads(chosen.threads)
    if device.type == "cpu":
        keep_freed_memory()
    trainer = Trainer(wanted, chosen, data, paths)
    trainer.resume(initial)
    _announce(wanted, chosen, trainer, data)
    return trainer


def prepare_only(wanted: Config) -> RunPaths:
    """The first stage alone: text to token ids."""
    with open_run(wanted) as paths:
        _prepared(wanted, paths, _initial(wanted, paths))
        return paths


@contextlib.contextmanager
def open_run(wanted: Config) -> Iterator[RunPaths]:
    """Own the run directory of `wanted` while the context lasts.

    Raises:
        UsageError: where the directory holds a run with other fixed settings.
        MtxError: where another process works on it.
    """
    paths = RunPaths(Path(wanted.run_dir))
    new = [path for path in (paths.lock, paths.root, *paths.root.parents) if not path.exists()]
    if paths.config.exists() and not paths.lock.exists() and not _is_begun(paths):
        raise UsageError(
            f"{paths.config}: is not of a run, and would be overwritten", "run_dir=DIR names another place"
        )
    with _owned(paths):
        try:
            _settle_config(paths, wanted)
            files.remove_temporaries(paths.root)
            files.remove_temporaries(paths.evaluation)
            yield paths
        except BaseException:
            if not _is_begun(paths):
                _leave_nothing(paths, new)
            raise


def _owned(paths: RunPaths) -> AbstractContextManager[object]:
    """The lock of a run, whose directory is made where there is none; see `open_run` for what it raises."""
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        return FileLock(paths.lock).acquire(timeout=_LOCK_TIMEOUT_S)
    except Timeout:
        raise MtxError(
            f"{paths.root}: another process works on this run", "wait for it, or use another run_dir"
        ) from None
    except OSError as error:
        raise UsageError(f"run_dir {paths.root}: cannot be made or written: {error.strerror}") from None


def _is_begun(paths: RunPaths) -> bool:
    """Whether a run holds what was made with its configuration, which it is then bound to."""
    return prepare.is_prepared(paths.data) or paths.chosen.exists() or _has_checkpoints(paths)


def _has_checkpoints(paths: RunPaths) -> bool:
    return paths.checkpoints.is_dir() and any(checkpoint_step(path) is not None for path in paths.checkpoints.iterdir())


def _leave_nothing(paths: RunPaths, new: list[Path]) -> None:
    """Remove what a start that made nothing has left, so that a corrected call does not trip over it.

    Args:
        new: the lock and the directories that were not there before, innermost first.
    """
    paths.config.unlink(missing_ok=True)
    if paths.lock in new or set(paths.root.iterdir()) <= {paths.lock}:
        paths.lock.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody else put something there
        for path in new:
            if path != paths.lock:
                path.rmdir()


def _settle_config(paths: RunPaths, wanted: Config) -> None:
    """Keep the configuration of a new run; for one that is begun allow only what may change."""
    if paths.config.exists() and _is_begun(paths):
        fixed = [d for d in differences(settings.load(paths.config), wanted) if not may_change(d[0])]
        if fixed:
            listed = "; ".join(f"{key} is {old!r} there, {new!r} was asked for" for key, old, new in fixed)
            raise UsageError(
                f"{paths.root} holds a run with another configuration: {listed}",
                f"mtx train {paths.root} goes on with it as it is; another run_dir=DIR starts anew",
            )
    files.write_text(paths.config, settings.dump(wanted))


def _initial(wanted: Config, paths: RunPaths) -> Initial | None:
    """The model that the first step starts from; a run with a checkpoint needs it no more."""
    return None if checkpoint.full_steps(paths.checkpoints) else initial_model.load(wanted)


def _prepared(wanted: Config, paths: RunPaths, initial: Initial | None) -> PreparedData:
    if not prepare.is_prepared(paths.data):
        if _has_checkpoints(paths):  # of other token ids, perhaps
            raise DamagedFileError(
                f"{paths.data}: the prepared data of this run is gone", "another run_dir=DIR starts anew"
            )
        prepare.prepare(wanted, paths.data, tokenizer=initial.loaded.tokenizer if initial else None)
    data = prepare.load_prepared(paths.data)
    if initial:
        check_tokenizer(initial, data.tokenizer)
    return data


def choose(paths: RunPaths, wanted: Config, device: torch.device, data: PreparedData) -> Chosen:
    """What `auto` means for this run: as recorded at its first start, or decided and recorded now."""
    head_size = wanted.model.d_model // wanted.model.num_heads
    if paths.chosen.exists():
        chosen = _read_chosen(paths.chosen)
        if wanted.device == "auto" and torch.device(chosen.device).type != device.type:
            raise UsageError(
                f"{paths.chosen}: this run was started on {chosen.device}, which is not here",
                f"device={device.type} goes on without it, not bit for bit",
            )
        kernel = attention_kernel(device, chosen.precision, head_size)
        return Chosen(**{**asdict(chosen), "device": str(device), "kernel": kernel})
    precision = fast_precision(device) if wanted.precision == "auto" else wanted.precision
    kernel = attention_kernel(device, precision, head_size)
    micro = wanted.training.micro_batch_tokens
    num_ids, ratio = data.tokenizer.num_ids, data.report["src_tgt_ratio"]
    if micro == "auto":
        micro = probe.micro_batch_tokens(wanted, num_ids, ratio, device, precision, kernel)
    num_tokens = wanted.training.max_steps * wanted.training.batch_tokens
    compiled = kernel == "varlen" and repays_compiling(num_tokens * training_flops(wanted.model, num_ids, ratio))
    chosen = Chosen(str(device), precision, micro, kernel, torch.get_num_threads(), compiled)
    files.write_json(paths.chosen, asdict(chosen))
    return chosen


def _read_chosen(path: Path) -> Chosen:
    values = files.read_json(path)
    if lacking := [field.name for field in fields(Chosen) if field.name not in values]:
        raise DamagedFileError(f"{path}: lacks {', '.join(lacking)}")
    return Chosen(**{field.name: values[field.name] for field in fields(Chosen)})


def _announce(wanted: Config, chosen: Chosen, trainer: Trainer, data: PreparedData) -> None:
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    steps = wanted.training.max_steps - trainer.state.step
    epochs = steps * wanted.training.batch_tokens / max(1, int(data.train.tgt.lengths.sum()))
    logger.info(
        "training %s on %s in %s, %d threads: %s parameters, %s pairs, %s steps (%.1f epochs) of %s target tokens",
        f"{wanted.data.src}-{wanted.data.tgt} into {wanted.run_dir}", chosen.device, chosen.precision, chosen.threads,
        f"{size:,}", f"{data.train.num_pairs:,}", f"{max(0, steps):,}", epochs, f"{wanted.training.batch_tokens:,}",
    )  # fmt: skip
    if note := export_note(wanted.model):
        logger.info("note: %s", note)


def export_note(config: ModelConfig) -> str | None:
    """Which formats this architecture cannot be exported to, and why; None where there is none such."""
    obstacles = {"ctranslate2": ctranslate2_obstacles(config), "huggingface": huggingface_obstacles(config)}
    possible = [name for name, reasons in obstacles.items() if not reasons]
    if len(possible) == len(obstacles):
        return None
    to = f"to {', '.join(possible)}, not to" if possible else "neither to"
    refused = " nor to ".join(f"{name} ({'; '.join(reasons)})" for name, reasons in obstacles.items() if reasons)
    return f"this model can be exported {to} {refused}"


def _write_model(wanted: Config, paths: RunPaths, data: PreparedData) -> None:
    """Average the last checkpoints into model/."""
    steps = checkpoint.averaged_steps(paths, wanted.training.checkpoint_every, wanted.training.average_last)
    if not steps:
        raise MtxError(f"{paths.root}: there is no checkpoint to average", "a larger training.time_limit")
    logger.info("averaging the weights of steps %s", ", ".join(map(str, steps)))
    bundle.write(paths.model, checkpoint.average(paths, steps), wanted.model, data.tokenizer, bundle.describe(wanted))


def _score(wanted: Config, paths: RunPaths, trainer: Trainer) -> None:
    """Translate and score the test sets with the model as it was written, and put the scores beside it."""
    chosen, data = trainer.chosen, trainer.data
    translator = Translator.load(paths.model, device=chosen.device, batch_tokens=wanted.decoding.batch_tokens)
    scores = {name: s.as_dict() for name, s in evaluate_tests(translator, paths, data, wanted.data.tgt).items()}
    run: dict[str, Any] = {
        "precision": "fp32", "training_precision": chosen.precision, "device": chosen.device,
        "torch": torch.__version__, "seed": wanted.seed, "config": _fingerprint(wanted),
        "data": files.sha256(paths.data / MANIFEST), "code": _code_hash(),
    }  # fmt: skip
    if sha256 := trainer.state.init_sha256:
        run["init_from"] = {"path": wanted.training.init_from, "sha256": sha256}
    bundle.add_scores(paths.model, {**scores, "run": run})


def evaluate_tests(translator: LineTranslator, paths: RunPaths, data: PreparedData, tgt: str) -> dict[str, Scores]:
    """Translate and score every test set of a run into evaluation/NAME/."""
    scores = {}
    for name, store in data.tests.items():
        logger.info(
            "translating %s: %s sentences, beam size %d", name, f"{store.num_pairs:,}", translator.options.beam_size
        )
        scores[name] = evaluation.evaluate(
            translator, name, store.src_texts(), store.tgt_texts(), paths.evaluation / name, tgt
        )
    return scores


def require_run(root: Path) -> None:
    """Refuse what holds no test sets of its own.

    Raises:
        UsageError: where `root` is not a run directory.
    """
    if root.is_dir() and not RunPaths(root).config.is_file():
        raise UsageError(
            f"{root}: is not a run directory, so it has no test sets",
            f"mtx evaluate {root} --src FILE --ref FILE, or --testset NAME",
        )


def evaluate_run(translator: LineTranslator, root: Path) -> dict[str, Scores]:
    """`evaluate_tests` for a run directory; what is in its model directory stays as it is.

    Raises:
        MtxError: where another process works on the run.
    """
    paths = RunPaths(root)
    wanted = settings.load(paths.config)
    with _owned(paths):
        files.remove_temporaries(paths.evaluation)
        return evaluate_tests(translator, paths, prepare.load_prepared(paths.data), wanted.data.tgt)


def _fingerprint(wanted: Config) -> str:
    """A hash of all settings that the finished model depends on; of a model to start from, it is the weights."""
    exclude: Any = {"run_dir": True, "device": True, "data": {"dir"}, "training": {"init_from"}}
    values = wanted.model_dump(mode="json", exclude=exclude)
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _code_hash() -> str:
    """A hash of mtx's own source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_finished(paths: RunPaths, wanted: Config) -> bool:
    try:
        if files.read_json(paths.model / SCORES).get("run", {}).get("config") != _fingerprint(wanted):
            return False
        files.verify(paths.model, (WEIGHTS, SCORES))
    except DamagedFileError as error:  # no model yet, or one that can be made again from the checkpoints
        if paths.model.exists():
            logger.info("%s; the model is written again", error)
        return False
    return True


def _ended_by(metrics: Path) -> str:
    """The key whose value ended the training of a finished run, as its last event tells."""
    events = list(files.read_lines(metrics)) if metrics.is_file() else []
    reason = re.search(r'"reason": "(\w+)"', events[-1]) if events else None
    return f"training.{reason[1] if reason else 'max_steps'}"


def finished(paths: RunPaths) -> Result:
    """The scores and five test translations of a finished run, as they lie on the disk."""
    stored = files.read_json(paths.model / SCORES)
    scores = {name: Scores.from_dict(value) for name, value in stored.items() if name not in ("run", "format")}
    return Result(paths, scores, _samples(paths.evaluation / next(iter(scores), "")))


def _samples(directory: Path) -> list[Sample]:
    """Five translations of a test set, evenly spread; none where its files were removed."""
    texts = [directory / name for name in (SOURCE_TEXT, REFERENCE_TEXT, HYPOTHESIS_TEXT)]
    if not all(path.is_file() for path in texts):
        return []
    rows = list(zip(*map(files.read_lines, texts), strict=False))
    return [Sample(*rows[len(rows) * i // 5]) for i in range(min(5, len(rows)))]
