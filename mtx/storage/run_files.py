"""The files of a run and of a model directory: every name, which of them are there, and the record of a run's text.

Each question has one function; none needs torch. `mtx.runs` opens and locks a run, and reads its settings and status.
"""

import contextlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mtx.errors import DamagedFileError, UsageError
from mtx.formatting import did_you_mean, mtx_command
from mtx.storage import durable
from mtx.storage.durable import MANIFEST

# In a model directory; a checkpoint has the first three, a data directory the tokenizer's
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MODEL_CONFIG = "config.json"
TOKENIZER_MODEL = "tokenizer.model"
TOKENIZER_SRC_MODEL = "tokenizer.src.model"
TOKENIZER_TGT_MODEL = "tokenizer.tgt.model"
TOKENIZER_JSON = "tokenizer.json"
SCORES = "scores.json"
QUALITY = "quality.json"
CARD = "README.md"
# In a data directory
TRAIN_STORE = "train.arrow"
VALID_STORE = "valid.arrow"
REPORT = "report.json"
SETTINGS = "settings.json"  # the fixed settings of the run
TERMS = "terms.tsv"  # with data.terms
# In evaluation/NAME
SOURCE_TEXT = "src.txt"
HYPOTHESIS_TEXT = "hyp.txt"
REFERENCE_TEXT = "ref.txt"
# In an export to CTranslate2
EXPORT_CONFIG = "mtx.json"
EXPORT_EXAMPLE = "example.py"
CTRANSLATE2_WEIGHTS = "model.bin"
CTRANSLATE2_CONFIG = "config.json"
CTRANSLATE2_VOCABULARY = "shared_vocabulary.json"

# In a MarianMT directory, as transformers has it and an export to Hugging Face is
MARIAN_SOURCE_MODEL = "source.spm"
FAIRSEQ_PIECES = "sentencepiece.bpe.model"  # of M2M-100 and NLLB


def test_store(name: str) -> str:
    """The file name of the token store of the test set `name`, inside a data directory."""
    return f"test.{name}.arrow"


def _entry(name: str) -> cached_property[Path]:
    """The path of a file or directory directly inside a run directory."""

    def path(layout: "RunLayout") -> Path:
        return layout.root / name

    return cached_property(path)


@dataclass(frozen=True)
class RunLayout:
    """The paths inside the run directory `root`."""

    root: Path

    config = _entry("config.yaml")
    chosen = _entry("chosen.json")  # the values of `auto` settings on this machine
    lock = _entry("run.lock")
    status = _entry("status.json")
    refused = _entry("refused.tsv")  # sentence pairs of a step whose loss was not finite
    metrics = _entry("metrics.jsonl")
    tensorboard = _entry("tensorboard")
    report = _entry("report.html")
    sources = _entry("sources.json")  # the text files of data/
    data = _entry("data")
    shards = _entry("shards")  # of the text, until they are joined into data/
    checkpoints = _entry("checkpoints")
    model = _entry("model")
    evaluation = _entry("evaluation")
    distilled = _entry("distilled")  # the training text of a student: its teacher's text and translations
    before = _entry("before")  # like evaluation/, by the model of training.init_from

    def checkpoint(self, step: int) -> Path:
        """The directory of the checkpoint of `step`."""
        return self.checkpoints / f"step-{step:08d}"


def checkpoint_step(path: Path) -> int | None:
    """The step of a checkpoint directory; None if the directory has another name."""
    prefix, _, digits = path.name.partition("-")
    return int(digits) if prefix == "step" and digits.isdecimal() else None


def is_run(root: Path) -> bool:
    """Whether a directory is a run directory."""
    return RunLayout(root).config.is_file()


def is_model(argument: str) -> bool:
    """Whether an argument of a command names a run or a model directory, or an ensemble A+B with one."""
    folders = map(Path, filter(os.path.isdir, argument.split("+")))
    return any(is_run(folder) or (folder / MODEL_CONFIG).is_file() for folder in folders)


def require_run(root: Path) -> RunLayout:
    """The paths inside a run directory.

    Raises:
        UsageError: if `root` is not a run directory.
    """
    if not is_run(root):
        raise UsageError(f"{root}: not a run directory{did_you_mean(root)}")
    return RunLayout(root)


def is_prepared(data_dir: Path) -> bool:
    """Whether a data or model directory is complete; loading it checks its files."""
    return (data_dir / MANIFEST).is_file()


def has_begun(paths: RunLayout) -> bool:
    """Whether a run holds anything made with its configuration; from then on most settings are fixed."""
    return is_prepared(paths.data) or paths.chosen.exists() or bool(checkpoint_steps(paths))


def checkpoint_steps(paths: RunLayout) -> list[int]:
    """The steps of all checkpoints, with or without optimizer state, in ascending order."""
    steps = map(checkpoint_step, paths.checkpoints.glob("step-*"))
    return sorted(step for step in steps if step is not None)


def full_checkpoint_steps(paths: RunLayout) -> list[int]:
    """The steps of checkpoints that training can resume from, in ascending order; the files are not verified."""
    return [step for step in checkpoint_steps(paths) if is_full_checkpoint(paths.checkpoint(step))]


def is_full_checkpoint(path: Path) -> bool:
    """Whether a checkpoint has the optimizer's state. Also True for a damaged manifest, which loading reports."""
    try:
        return OPTIMIZER in durable.read_manifest(path)
    except DamagedFileError:
        return True


def find_model(model: Path) -> Path:
    """The model directory of a MODEL argument: `model/` of a run directory, else the argument itself.

    Raises:
        UsageError: if the argument is a part of a run or a MarianMT directory.
    """
    model = durable.find_directory(model)
    inner = durable.find_directory(RunLayout(model).model)
    if inner.is_dir():
        return inner
    if is_run(model):
        return model
    if (model / MARIAN_SOURCE_MODEL).is_file():
        hint = f"convert it with {mtx_command('import', model, '-o', 'MODEL')}"
        raise UsageError(f"{model}: a MarianMT directory of transformers, not a model directory of mtx", hint)
    is_part = any((model / name).is_file() for name in (STATE, REPORT))
    if is_part and not (model / MODEL_CONFIG).is_file():
        hint = "MODEL is a run directory or a model directory"
        raise UsageError(f"{model}: a part of a run, not a model directory", hint)
    return model


def find_run(model: Path) -> Path | None:
    """The run of a MODEL argument, which is the run itself or its `model/`; None if it is another model."""
    root = find_model(model).resolve()
    runs = filter(is_run, (model, model.resolve().parent))
    return next((run for run in runs if find_model(run).resolve() == root), None)


def require_models(model: str | Path) -> list[Path]:
    """The directories of a MODEL argument: one, or several of an ensemble A+B.

    Raises:
        UsageError: if one of them is not a directory.
    """
    names = [model] if Path(model).is_dir() else str(model).split("+")
    names = [name or "+" for name in names]  # of an empty name, as in A++B: its path would be the current directory
    paths = [durable.find_directory(Path(name)) for name in names]
    if missing := next((path for path in paths if not path.is_dir()), None):
        raise UsageError(
            f"{missing}: no such model directory or run directory{did_you_mean(missing)}",
            "mtx status lists your runs; the model comes before the text",
        )
    return paths


def model_identity(model: str | Path) -> str:
    """The identity of the model of a MODEL argument: the hash of its manifest or of its checkpoints."""
    hashes = []
    for root in map(find_model, require_models(model)):
        run = RunLayout(root)
        directories = [root] if (root / MANIFEST).is_file() else map(run.checkpoint, checkpoint_steps(run))
        hashes.append(" ".join(durable.sha256(directory / MANIFEST) for directory in directories))
    return "+".join(hashes)


def translated_tests(paths: RunLayout) -> list[str]:
    """The names of the test sets that a run has translated, sorted."""
    names = (path.parent.name for path in paths.evaluation.glob(f"*/{HYPOTHESIS_TEXT}"))
    return sorted(name for name in names if not name.startswith(durable.SET_ASIDE))


def stored_scores(paths: RunLayout) -> durable.Json:
    """The scores of a run's model by test set, as in `scores.json`; empty before the model is scored.

    Raises:
        DamagedFileError: if a test set has no BLEU or no chrF2.
    """
    path = paths.model / SCORES
    stored = durable.read_json(path) if path.exists() else {}
    scores = {name: value for name, value in stored.items() if name not in ("run", "format")}
    with contextlib.suppress(KeyError, TypeError):
        if all(math.isfinite(value[key]["score"]) for value in scores.values() for key in ("bleu", "chrf")):
            return scores
    raise DamagedFileError(f"{path}: no BLEU scores")


def describe_sources(paths: Iterable[Path]) -> durable.Json:
    """The content of sources.json: path, size, time and sha256 of each local file that the data is prepared from.

    It is next to the data, not in it, so that the hash of the data depends only on what a run learns from, wherever its
    files were.
    """
    files = [
        {"path": str(path.absolute()), **size_and_time(path), "sha256": durable.sha256(path)}
        for path in dict.fromkeys(paths)
    ]
    return {"files": files}


def find_changed_files(record: Path) -> list[Path]:
    """The files that differ from those in a sources.json; missing files and records are ignored.

    An unreadable record counts as different.
    """
    return [path for path, entry in _read_record(record) if _differs(path, entry)]


def recorded_text(record: Path) -> list[tuple[str, str]]:
    """Name and sha256 of each file in a sources.json; empty if it is missing or damaged."""
    return [(path.name, str(entry["sha256"])) for path, entry in _read_record(record) if "sha256" in entry]


def _read_record(record: Path) -> list[tuple[Path, durable.Json]]:
    """The files in a sources.json; none if it is missing, and only itself, without values, if it cannot be read."""
    try:
        stored = durable.read_json(record)["files"] if record.exists() else []
        return [(Path(entry["path"]), entry) for entry in stored]
    except (DamagedFileError, KeyError, TypeError):
        return [(record, {})]


def size_and_time(path: Path) -> dict[str, int]:
    """The size of a file, and when it was changed: equal as long as nobody writes it."""
    status = path.stat()
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _differs(path: Path, entry: durable.Json) -> bool:
    """Whether a file differs; its content is read only if its size or its time has changed."""
    try:
        if size_and_time(path).items() <= entry.items():
            return False
        return durable.sha256(path) != entry.get("sha256")
    except (OSError, ValueError):  # missing, or no possible path
        return False
