"""`mtx export`: writes a model in another program's format and compares the translations (`mtx.interop.verify`).

The export gets its final name only after the comparison, on a part of the run's validation text, has succeeded.
"""

import logging
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtx.data.preprocess import load_valid
from mtx.decoding.ctranslate2_engine import library
from mtx.decoding.torch_engine import TorchTranslator
from mtx.errors import MtxError, UsageError
from mtx.files import durable, text_files
from mtx.interop.argos import ENDING, check_argos, translate_as_argos, write_argos
from mtx.interop.cards import ctranslate2_card, marian_card
from mtx.interop.ctranslate2 import write_ctranslate2
from mtx.interop.huggingface import export_huggingface
from mtx.interop.limits import check_is_transformer, check_replaceable
from mtx.interop.marian import SOURCE_MODEL
from mtx.interop.verify import TOLERANCES, Comparison, Text, check_tolerances, compare_export, compare_translations
from mtx.model_directory import storage
from mtx.model_directory.storage import LoadedModel
from mtx.run.contents import is_prepared, is_run, model_directory
from mtx.run.layout import CARD, EXPORT_CONFIG, SCORES, RunLayout

logger = logging.getLogger(__name__)

_NUM_LINES = 200


@dataclass(frozen=True)
class ExportResult:
    """What was written, and its comparison with mtx; None if nothing could be compared."""

    directory: str
    to: str
    precision: str
    comparison: Comparison | None

    def as_dict(self) -> dict[str, Any]:
        """What `mtx export --json` prints; programs read the comparison as `proof`."""
        values = asdict(self)
        return {**values, "proof": values.pop("comparison")}

    def line(self) -> str:
        """What `mtx export` prints."""
        comparison = "not compared with mtx" if self.comparison is None else self.comparison.line()
        return f"{self.directory}  {self.to} {self.precision}  {comparison}"


def export(model: Path, to: str, directory: Path, precision: str = "fp32", text: Path | None = None) -> ExportResult:
    """Write MODEL in another program's format, provided that the export translates like mtx.

    Args:
        model: run directory or model directory.
        to: `ctranslate2`, `huggingface`, or `argos`, which is a file.
        directory: an earlier export in it is replaced.
        text: lines to compare translations of; None means the run's validation text.

    Raises:
        UsageError: if `model` is not a model, the format lacks the precision, or `directory` holds something else.
        MtxError: if the translations differ by more than `TOLERANCES`; nothing is left behind.
    """
    _check_request(to, precision, directory)
    if to != "huggingface":
        library()
    root, run = _model_and_run(model)
    lines = _comparison_text(run, text)
    if lines is None:
        logger.warning("there is no validation text to compare translations on; --text FILE gives some")
    loaded = storage.load(root)
    check_is_transformer(loaded.model.config.architecture)
    scores = durable.read_json(root / SCORES) if (root / SCORES).is_file() else None
    directory.parent.mkdir(parents=True, exist_ok=True)
    if to == "argos":
        return _export_argos(root, loaded, directory, precision, lines, scores)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=durable.TEMPORARY_PREFIX) as temporary:
        new = Path(temporary) / directory.name
        try:
            if to == "ctranslate2":
                write_ctranslate2(loaded, new, precision, scores)
            else:
                export_huggingface(loaded, new, scores)
        except OSError as error:
            durable.name_destination(error, new, directory)
            raise
        comparison = None if lines is None else compare_export(root, to, new, lines)
        if comparison is not None:
            check_tolerances(comparison, precision)
            if to == "ctranslate2":
                card = ctranslate2_card(loaded.info, precision, scores, comparison)
                _note(comparison, new)
            else:
                card = marian_card(loaded, scores, comparison)
            durable.write_text(new / CARD, card)
            durable.write_manifest(new, (CARD,))
        if directory.exists():
            durable.remove_directory(directory)
        new.rename(directory)
    return ExportResult(str(directory), to, precision, comparison)


def _export_argos(
    root: Path, loaded: LoadedModel, file: Path, precision: str, lines: Text | None, scores: Any
) -> ExportResult:
    """The package is checked before it gets its name, by BLEU alone, because Argos Translate searches differently."""
    check_argos(loaded, file)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=durable.TEMPORARY_PREFIX) as temporary:
        new = Path(temporary) / file.name
        write_argos(loaded, new, precision, scores)
        comparison = None
        if lines is not None:
            ours = TorchTranslator.load(root, device="cpu", split_sentences=False)
            pairs = ours.translate(lines.sources), translate_as_argos(new, lines.sources)
            comparison = compare_translations(*pairs, lines.references, ours.tgt)
            check_tolerances(comparison, "int8")
        new.replace(file)
    return ExportResult(str(file), "argos", precision, comparison)


def measure_cost(root: Path, kept: Path) -> None:
    """Compare a conversion for CTranslate2 with its model, if there is text for it, and note the result in it."""
    try:
        text = _comparison_text(_model_and_run(root)[1], None)
        if text is not None and (comparison := compare_export(root, "ctranslate2", kept, text)):
            _note(comparison, kept)
    except MtxError as error:
        logger.warning("%s; what the conversion costs is not known", error)


def _note(comparison: Comparison, directory: Path) -> None:
    described = {**durable.read_json(directory / EXPORT_CONFIG), "comparison": comparison.line()}
    durable.write_json(directory / EXPORT_CONFIG, described)
    durable.write_manifest(directory, (EXPORT_CONFIG,))


def default_directory(model: Path, to: str, precision: str) -> Path:
    """The directory beside the run or the lone model directory, such as `runs/NAME-ctranslate2-int8`."""
    beside = (_model_and_run(model)[1] or model).resolve()
    if to == "argos":
        return beside.with_name(f"{beside.name}{ENDING}")
    return beside.with_name("-".join([beside.name, to, *([precision] if to == "ctranslate2" else [])]))


def _check_request(to: str, precision: str, directory: Path) -> None:
    if to not in ("ctranslate2", "huggingface", "argos"):
        raise UsageError(f"--to {to}: expected ctranslate2, huggingface or argos")
    precisions = ["fp32"] if to == "huggingface" else list(TOLERANCES)
    if precision not in precisions:
        raise UsageError(f"--precision {precision}: {to} exports have {', '.join(precisions)}")
    if to == "argos":
        return
    check_replaceable(directory)
    is_export = any((directory / name).is_file() for name in (EXPORT_CONFIG, SOURCE_MODEL))
    if directory.exists() and any(directory.iterdir()) and not is_export:
        raise UsageError(f"{directory}: is no earlier export, so it is not replaced", "-o DIR names another directory")


def _model_and_run(model: Path) -> tuple[Path, Path | None]:
    """The directory to load MODEL from, and the run that it belongs to."""
    if not model.is_dir():
        raise UsageError(f"{model}: no such model directory or run directory")
    root = model_directory(model)
    if is_run(model):
        return root, model
    parent = model.resolve().parent
    return model, parent if is_run(parent) and model_directory(parent) == model.resolve() else None


def _comparison_text(run: Path | None, file: Path | None) -> Text | None:
    """The first lines of the file, or else of the run's validation text."""
    if file is not None:
        lines = [line for line in text_files.read_lines(file, "strict") if line.strip()][:_NUM_LINES]
        if not lines:
            raise UsageError(f"--text {file}: holds no text")
        return Text(lines, [])
    if run is not None and is_prepared(RunLayout(run).data):
        valid = load_valid(RunLayout(run).data)
        return Text(valid.src_texts()[:_NUM_LINES], valid.tgt_texts()[:_NUM_LINES])
    return None
