"""The stages of `mtx train` in order: open the run, prepare, train, average, score. A stage that is done is skipped.

Each stage leaves a directory that appears whole (data/, checkpoints/step-*, model/, evaluation/NAME/), so the same command
goes on where it was interrupted.
"""

import contextlib
import ctypes
import hashlib
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from mtx import bundle, config, evaluation, files
from mtx.config import Config
from mtx.data import prepare
from mtx.data.prepare import PreparedData
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.evaluation import Scores
from mtx.model.device import attention_kernel, fast_precision, find_device
from mtx.paths import MANIFEST, SCORES, RunPaths
from mtx.training import checkpoint
from mtx.training.trainer import Chosen, Trainer

logger = logging.getLogger(__name__)

_CPU_MICRO_BATCH = 4096  # target tokens that go through the model at once where nothing was said
_CUDA_MICRO_BATCH = 32_768


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
    device = find_device(wanted.device)
    with open_run(wanted) as paths:
        if _is_finished(paths, wanted):
            logger.info("this run is finished; a larger training.max_steps trains on")
            return finished(paths)
        data = _prepared(wanted, paths)
        chosen = _choose(paths, wanted, device)
        _tune_cpu(chosen)
        trainer = Trainer(wanted, chosen, data, paths)
        trainer.resume()
        _announce(wanted, chosen, trainer, data)
        trainer.run()
        _write_model(wanted, paths, data)
        _score(wanted, chosen, paths, data)
        return finished(paths)


def prepare_only(wanted: Config) -> RunPaths:
    """The first stage alone: text to token ids."""
    with open_run(wanted) as paths:
        _prepared(wanted, paths)
        return paths


@contextlib.contextmanager
def open_run(wanted: Config) -> Iterator[RunPaths]:
    """Own the run directory of `wanted` while the context lasts.

    Raises:
        UsageError: where the directory holds a run with other fixed settings.
        MtxError: where another process works on it.
    """
    paths = RunPaths(Path(wanted.run_dir))
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"run_dir {paths.root}: cannot be made: {error.strerror}") from None
    try:
        lock = FileLock(paths.lock, timeout=0)
        lock.acquire()
    except Timeout:
        raise MtxError(
            f"{paths.root}: another process works on this run", "wait for it, or use another run_dir"
        ) from None
    with lock:
        _settle_config(paths, wanted)
        try:
            files.remove_temporaries(paths.root)
            yield paths
        except BaseException:
            if not prepare.is_prepared(paths.data):  # nothing was made: leave nothing that a corrected call trips over
                paths.config.unlink(missing_ok=True)
                if set(paths.root.iterdir()) <= {paths.lock}:
                    paths.lock.unlink(missing_ok=True)
                    paths.root.rmdir()
            raise


def _settle_config(paths: RunPaths, wanted: Config) -> None:
    """Keep the configuration of a new run; for one whose data is prepared allow only what may change."""
    if paths.config.exists() and prepare.is_prepared(paths.data):
        fixed = [d for d in config.differences(config.load(paths.config), wanted) if not config.may_change(d[0])]
        if fixed:
            listed = "; ".join(f"{key} is {old!r} there, {new!r} was asked for" for key, old, new in fixed)
            raise UsageError(
                f"{paths.root} holds a run with another configuration: {listed}",
                f"mtx train {paths.root} goes on with it as it is; another run_dir=DIR starts anew",
            )
    files.write_text(paths.config, config.dump(wanted))


def _prepared(wanted: Config, paths: RunPaths) -> PreparedData:
    if not prepare.is_prepared(paths.data):
        prepare.prepare(wanted, paths.data)
    return prepare.load_prepared(paths.data)


def _choose(paths: RunPaths, wanted: Config, device: torch.device) -> Chosen:
    """What `auto` means for this run: as recorded at its first start, or decided and recorded now."""
    if paths.chosen.exists():
        values = files.read_json(paths.chosen)
        chosen = Chosen(**{field.name: values[field.name] for field in fields(Chosen)})
        if wanted.device == "auto" and torch.device(chosen.device).type != device.type:
            raise UsageError(
                f"{paths.chosen}: this run was started on {chosen.device}, which is not here",
                f"device={device.type} goes on without it, not bit for bit",
            )
        kernel = attention_kernel(device, chosen.precision)
        return Chosen(**{**asdict(chosen), "device": str(device), "kernel": kernel})
    precision = fast_precision(device) if wanted.precision == "auto" else wanted.precision
    micro = wanted.training.micro_batch_tokens
    if micro == "auto":
        micro = max(_CPU_MICRO_BATCH if device.type == "cpu" else _CUDA_MICRO_BATCH, wanted.data.max_tokens)
    chosen = Chosen(str(device), precision, micro, attention_kernel(device, precision), torch.get_num_threads(), False)
    files.write_json(paths.chosen, asdict(chosen))
    return chosen


def _tune_cpu(chosen: Chosen) -> None:
    """Set threads, and let glibc keep freed memory: mapping it anew costs a CPU step up to a quarter."""
    torch.set_num_threads(chosen.threads)
    if chosen.device == "cpu" and sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION"):
        libc = ctypes.CDLL(None)
        for option, value in ((-3, 1 << 30), (-1, (1 << 31) - 1)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(option, value)


def _announce(wanted: Config, chosen: Chosen, trainer: Trainer, data: PreparedData) -> None:
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    steps = wanted.training.max_steps - trainer.state.step
    epochs = steps * wanted.training.batch_tokens / max(1, int(data.train.tgt.lengths.sum()))
    logger.info(
        "training %s on %s in %s, %d threads: %s parameters, %s pairs, %s steps (about %.1f epochs) of %s target tokens",
        paths_name(wanted), chosen.device, chosen.precision, chosen.threads, f"{size:,}", f"{data.train.num_pairs:,}",
        f"{max(0, steps):,}", epochs, f"{wanted.training.batch_tokens:,}",
    )  # fmt: skip


def paths_name(wanted: Config) -> str:
    """How messages call a run."""
    return f"{wanted.data.src}-{wanted.data.tgt} into {wanted.run_dir}"


def _info(wanted: Config) -> dict[str, Any]:
    """What a model directory says of itself beside its weights."""
    return {
        "src": wanted.data.src,
        "tgt": wanted.data.tgt,
        "max_tokens": wanted.data.max_tokens,
        "beam_size": wanted.decoding.beam_size,
        "length_penalty": wanted.decoding.length_penalty,
    }


def _write_model(wanted: Config, paths: RunPaths, data: PreparedData) -> None:
    """Average the last checkpoints into model/."""
    steps = checkpoint.averaged_steps(paths, wanted.training.checkpoint_every, wanted.training.average_last)
    logger.info("averaging the weights of steps %s", ", ".join(map(str, steps)))
    bundle.write(paths.model, checkpoint.average(paths, steps), wanted.model, data.tokenizer, _info(wanted))


def _score(wanted: Config, chosen: Chosen, paths: RunPaths, data: PreparedData) -> None:
    """Translate and score the test sets with the model as it was written, and put the scores beside it."""
    translator = Translator.load(paths.model, device=chosen.device, batch_tokens=wanted.decoding.batch_tokens)
    scores = {name: s.as_dict() for name, s in evaluate_tests(translator, paths, data, wanted.data.tgt).items()}
    run = {
        "precision": "fp32", "training_precision": chosen.precision, "device": chosen.device, "torch": torch.__version__,
        "seed": wanted.seed, "config": _fingerprint(wanted), "data": files.sha256(paths.data / MANIFEST),
        "code": _code_hash(),
    }  # fmt: skip
    bundle.add_scores(paths.model, {**scores, "run": run})


def evaluate_tests(translator: Translator, paths: RunPaths, data: PreparedData, tgt: str) -> dict[str, Scores]:
    """Translate and score every test set of a run into evaluation/NAME/."""
    scores = {}
    for name, store in data.tests.items():
        logger.info("translating %s: %s sentences, beam size %d", name, f"{store.num_pairs:,}", translator.beam_size)
        scores[name] = evaluation.evaluate(
            translator, name, store.src_texts(), store.tgt_texts(), paths.evaluation / name, tgt
        )
    return scores


def evaluate_run(translator: Translator, root: Path) -> dict[str, Scores]:
    """`evaluate_tests` for a run directory."""
    paths = RunPaths(root)
    wanted = config.load(paths.config)
    return evaluate_tests(translator, paths, prepare.load_prepared(paths.data), wanted.data.tgt)


def _fingerprint(wanted: Config) -> str:
    """A hash of all that the finished model depends on."""
    values = wanted.model_dump(mode="json", exclude={"run_dir": True, "device": True, "data": {"dir"}})
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _code_hash() -> str:
    """A hash of mtx's own source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_finished(paths: RunPaths, wanted: Config) -> bool:
    try:
        return bool(files.read_json(paths.model / SCORES).get("run", {}).get("config") == _fingerprint(wanted))
    except DamagedFileError:
        return False


def finished(paths: RunPaths) -> Result:
    """The scores and five test translations of a finished run, as they lie on the disk."""
    stored = files.read_json(paths.model / SCORES)
    scores = {name: Scores.from_dict(value) for name, value in stored.items() if name not in ("run", "format")}
    samples = []
    for name in list(scores)[:1]:
        texts = [list(files.read_lines(paths.evaluation / name / f"{file}.txt")) for file in ("src", "ref", "hyp")]
        rows = list(zip(*texts, strict=True))
        samples = [Sample(*rows[len(rows) * i // 5]) for i in range(min(5, len(rows)))]
    return Result(paths, scores, samples)
