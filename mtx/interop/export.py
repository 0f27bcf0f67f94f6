"""`mtx export`: writes a model in another program's format and compares the translations (`mtx.interop.verify`).

The export gets its final name only after the comparison, on a part of the run's validation text, has succeeded.
"""

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mtx.data.token_store import load_valid
from mtx.decoding import model_directory
from mtx.decoding.ctranslate2_engine import library
from mtx.decoding.ctranslate2_writer import write_ctranslate2
from mtx.decoding.load import check_is_transformer
from mtx.errors import UsageError
from mtx.interop.argos import ENDING, is_package, write_argos
from mtx.interop.cards import ctranslate2_card, marian_card
from mtx.interop.huggingface import export_huggingface
from mtx.interop.verify import TOLERANCES, Comparison, Text, check_tolerances, compare_export
from mtx.storage import durable, text_files
from mtx.storage.run_contents import find_model, is_prepared, is_run
from mtx.storage.run_files import CARD, EXPORT_CONFIG, MARIAN_SOURCE_MODEL, SCORES, RunLayout

logger = logging.getLogger(__name__)

_NUM_LINES = 200
_PRECISIONS = {"ctranslate2": [*TOLERANCES], "huggingface": ["fp32"], "argos": [*TOLERANCES]}


@dataclass(frozen=True)
class ExportResult:
    """What was written, and its comparison with mtx; None if nothing could be compared."""

    directory: str
    to: str
    precision: str
    proof: Comparison | None

    def line(self) -> str:
        """What `mtx export` prints."""
        comparison = "not compared with mtx" if self.proof is None else self.proof.line()
        return f"{self.directory}  {self.to} {self.precision}  {comparison}"


def export(model: Path, to: str, output: Path, precision: str = "fp32", text: Path | None = None) -> ExportResult:
    """Write MODEL in another program's format, provided that the export translates like mtx.

    Args:
        model: run directory or model directory.
        to: `ctranslate2`, `huggingface`, or `argos`, which is a file.
        output: an earlier export there is replaced.
        text: lines to compare translations of; None means the run's validation text.

    Raises:
        UsageError: if `model` is not a model, the format lacks the precision, or `output` holds something else.
        MtxError: if the translations differ by more than `TOLERANCES`; nothing is left behind.
    """
    if to not in _PRECISIONS:
        raise UsageError(f"--to {to}: expected {', '.join(_PRECISIONS)}")
    if precision not in _PRECISIONS[to]:
        raise UsageError(f"--precision {precision}: {to} exports have {', '.join(_PRECISIONS[to])}")
    if to != "argos":
        check_replaceable(output, {EXPORT_CONFIG} if to == "ctranslate2" else {MARIAN_SOURCE_MODEL})
    elif output.exists() and not is_package(output):
        raise UsageError(f"{output}: is no earlier package, so it is not replaced", "-o FILE names another file")
    if to != "huggingface":
        library()
    root, run = _model_and_run(model)
    lines = _comparison_text(run, text)
    if lines is None:
        logger.warning("there is no validation text to compare translations on; --text FILE gives some")
    loaded = model_directory.load(root)
    check_is_transformer(loaded.model.config)
    scores = durable.read_json(root / SCORES) if (root / SCORES).is_file() else {}
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=durable.TEMPORARY_PREFIX) as temporary:
        new = Path(temporary) / output.name
        try:
            if to == "ctranslate2":
                write_ctranslate2(loaded, new, precision)
            elif to == "huggingface":
                export_huggingface(loaded, new)
            else:
                write_argos(loaded, new, precision, ctranslate2_card(loaded.info, precision, scores))
        except OSError as error:
            durable.name_destination(error, new, output)
            raise
        comparison = None if lines is None else compare_export(root, to, new, lines)
        if comparison is not None:  # Argos Translate searches differently: BLEU alone counts
            check_tolerances(comparison, "int8" if to == "argos" else precision)
        if to == "ctranslate2":
            _note(comparison, new)
            durable.write_text(new / CARD, ctranslate2_card(loaded.info, precision, scores, comparison))
        elif to == "huggingface":
            durable.write_text(new / CARD, marian_card(loaded, scores, comparison))
        if new.is_dir():
            durable.write_manifest(new, (CARD,))
        if output.is_dir():
            durable.remove_directory(output)
        new.replace(output)
    return ExportResult(str(output), to, precision, comparison)


def check_replaceable(directory: Path, marks: set[str]) -> None:
    """Raise UsageError if an export or import would replace anything but an earlier one, which has these files.

    mtx wrote what the manifest lists, and temporary files of an interruption.
    """
    if not directory.exists() and not directory.is_symlink():
        return
    if not directory.is_dir():
        raise UsageError(f"{directory}: is not a directory")
    has_manifest = (directory / durable.MANIFEST).exists()
    others = sorted(durable.foreign_entries(directory) if has_manifest else directory.iterdir())
    if others:
        problem = f"holds {others[0].name}, which mtx did not write there and would replace"
    elif RunLayout(run := directory.resolve().parent).model == directory.resolve() and is_run(run):
        problem = "is the model of a run, so it is not replaced"
    elif has_manifest and not marks <= durable.read_manifest(directory).keys():
        problem = "is another directory of mtx, so it is not replaced"
    else:
        return
    raise UsageError(f"{directory}: {problem}", "name a new directory")


def _note(comparison: Comparison | None, directory: Path) -> None:
    if comparison is not None:
        described = {**durable.read_json(directory / EXPORT_CONFIG), "comparison": comparison.line()}
        durable.write_json(directory / EXPORT_CONFIG, described)
        durable.write_manifest(directory, (EXPORT_CONFIG,))


def default_directory(model: Path, to: str, precision: str) -> Path:
    """The directory beside the run or the lone model directory, such as `runs/NAME-ctranslate2-int8`."""
    beside = (_model_and_run(model)[1] or model).resolve()
    ending = {"argos": ENDING, "ctranslate2": f"-{to}-{precision}"}
    return beside.with_name(beside.name + ending.get(to, f"-{to}"))


def _model_and_run(model: Path) -> tuple[Path, Path | None]:
    """The directory to load MODEL from, and the run that it belongs to."""
    if not model.is_dir():
        raise UsageError(f"{model}: no such model directory or run directory")
    root = find_model(model)
    run = model if is_run(model) else model.resolve().parent
    is_part = is_run(run) and find_model(run).resolve() == root.resolve()
    return root, run if is_part else None


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
