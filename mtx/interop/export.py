"""`mtx export`: writes a model in another program's format, and compares the translations of both.

The export gets its final name only after a successful comparison on a part of the run's validation set. If two scores
are equal up to rounding, another program's search may choose the other hypothesis. In fp32 this changes one or two
lines of a hundred, in fp16 a few more. int8 changes scores by far more than rounding: every tenth line differs, and
neither translation is better. So int8 is judged by BLEU alone, on enough lines that no single line changes BLEU by
more than int8 does.
"""

import importlib
import logging
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtx.data.markup import clean_text
from mtx.data.token_store import load_valid
from mtx.data.tokenizer import normalize
from mtx.decoding import model_directory
from mtx.decoding.ctranslate2_writer import write_ctranslate2
from mtx.decoding.load import check_is_transformer
from mtx.decoding.options import EXTRA_LENGTH
from mtx.decoding.translator import Translator
from mtx.errors import MtxError, UsageError
from mtx.formatting import did_you_mean, divide_up, install_command
from mtx.interop.argos import ENDING, is_package, translate_as_argos, write_argos
from mtx.interop.cards import Comparison, export_card
from mtx.interop.huggingface import TOKENIZER_CONFIG, check_replaceable, export_huggingface, is_m2m_100
from mtx.interop.m2m100 import export_m2m100
from mtx.scoring import metrics
from mtx.storage import durable
from mtx.storage.model_description import language_pairs
from mtx.storage.run_files import (
    CARD,
    EXPORT_CONFIG,
    EXPORT_EXAMPLE,
    QUALITY,
    SCORES,
    RunLayout,
    find_model,
    find_run,
    is_prepared,
)
from mtx.storage.text_files import Lines

logger = logging.getLogger(__name__)

_EXAMPLE = Path(__file__).with_name("ctranslate2_example.py")  # translates with the export and needs no mtx
_NUM_LINES = 200
Texts = dict[tuple[str, str], tuple[list[str], list[str]]]  # by the direction: sources and references


# The minimum share of identical lines, and the maximum BLEU difference, between an export and mtx.
TOLERANCES = {"fp32": (0.98, 0.1), "fp16": (0.95, 0.2), "int8": (0.0, 1.0)}
# Of each format: what a name ends in after that of the model, a file of each earlier export, and the precisions.
_FORMATS = {
    "ctranslate2": ("-ctranslate2-{}", EXPORT_CONFIG, [*TOLERANCES]),
    "huggingface": ("-huggingface", TOKENIZER_CONFIG, ["fp32"]),
    "argos": (ENDING, None, [*TOLERANCES]),
}


@dataclass(frozen=True)
class ExportResult:
    """A written export and its comparison with mtx; None if nothing could be compared."""

    directory: str
    to: str
    precision: str
    proof: Comparison | None

    def line(self) -> str:
        """The output of `mtx export`."""
        comparison = self.proof.line() if self.proof else "not compared with mtx"
        return f"{self.directory}  {self.to} {self.precision}  {comparison}"


def export(model: Path, to: str, output: Path | None, precision: str = "fp32") -> ExportResult:
    """Write MODEL in another program's format, if the export translates the run's validation set like mtx.

    Args:
        model: run directory or model directory.
        to: `ctranslate2`, `huggingface`, or `argos`, which is a file.
        output: an earlier export there is replaced; None: next to the run or the lone model directory, such as
            `runs/NAME-ctranslate2-int8`.

    Raises:
        UsageError: if `model` is not a model, the format lacks the precision, or `output` has other content.
        MtxError: if the translations differ by more than `TOLERANCES`; nothing is left behind.
    """
    if to not in _FORMATS:
        raise UsageError(f"--to {to}: expected {', '.join(_FORMATS)}")
    ending, marking_file, precisions = _FORMATS[to]
    if precision not in precisions:
        raise UsageError(f"--precision {precision}: {to} exports have {', '.join(precisions)}")
    if not model.is_dir():
        similar = did_you_mean(model)
        raise UsageError(f"{model}: no such model directory or run directory{similar}", "mtx status lists your runs")
    root = find_model(model)
    run = find_run(model)
    original = (run or model).resolve()
    output = output or original.with_name(original.name + ending.format(precision))
    if marking_file:
        check_replaceable(output, {marking_file})
    elif output.exists() and not is_package(output):
        raise UsageError(f"{output}: not an earlier package, so it is not replaced", "use another -o FILE")
    loaded = model_directory.load(root)
    check_is_transformer(loaded.model.config)
    pairs = language_pairs(loaded.info)
    texts = Texts()
    if run and is_prepared(RunLayout(run).data):
        valid = load_valid(RunLayout(run).data)
        lines_per_pair = divide_up(_NUM_LINES, len(pairs))
        for number, pair in enumerate(pairs):
            part = valid.take_corpora([number])
            texts[pair] = part.texts(np.arange(min(part.num_pairs, lines_per_pair)))
    else:
        logger.warning("no validation set to compare translations on; use mtx compare with any text")
    kind = to
    if to == "huggingface":
        kind = "m2m_100" if is_m2m_100(loaded.model.config) else "marian"
    scores = durable.read_json(root / SCORES) if (root / SCORES).is_file() else {}
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=durable.TEMPORARY_PREFIX) as temporary:
        export_path = Path(temporary) / output.name
        try:
            if to == "ctranslate2":
                write_ctranslate2(loaded, export_path, precision)
            elif kind == "m2m_100":
                export_m2m100(loaded, export_path)
            elif to == "huggingface":
                export_huggingface(loaded, export_path)
            else:
                write_argos(loaded, export_path, precision, export_card("ctranslate2", loaded, precision, scores))
        except OSError as error:
            durable.name_destination(error, export_path, output)
            raise
        comparison = compare_export(root, to, export_path, texts) if texts else None
        if comparison:  # Argos Translate searches differently: only BLEU counts
            check_tolerances(comparison, "int8" if to == "argos" else precision)
        if export_path.is_dir():
            files = {CARD: export_card(kind, loaded, precision, scores, comparison)}
            if to == "ctranslate2":
                files[EXPORT_EXAMPLE] = _EXAMPLE.read_text(encoding="utf-8")
            if (root / QUALITY).is_file():
                files[QUALITY] = (root / QUALITY).read_text(encoding="utf-8")
            durable.replace_files(export_path, {name: text.encode() for name, text in files.items()})
            durable.replace_directory(export_path, output)
        else:
            export_path.replace(output)
    return ExportResult(str(output), to, precision, comparison)


def compare_export(root: Path, to: str, export_path: Path, texts: Texts) -> Comparison | None:
    """Translate each direction's text with the model `root` and its export; None if that is not possible."""
    lines_of_both = list[tuple[str, str, str]]()  # by mtx, by the export, and the reference
    beam_size = 1 if to == "huggingface" else None  # transformers' beam search has another length penalty
    model = Translator.load(root, engine="torch", device="cpu", beam_size=beam_size, split_sentences=False)
    for (src, tgt), (sources, references) in texts.items():
        logger.info("comparing the translations of %d lines", len(sources))
        ours = model.to(tgt, src)
        if to == "ctranslate2":
            theirs = Translator.load(export_path, device="cpu", split_sentences=False).to(tgt, src).translate(sources)
        else:
            lines = [normalize(clean_text(line), ours.tokenizer.normalization) for line in sources]
            split = enumerate(zip(ours.split(lines), ours.tokenizer.encode(lines, ours.frame), strict=True))
            # mtx treats long lines, capitals, title case and codes specially
            rows = [
                row
                for row, (parts, ids) in split
                if [part.ids for part in parts if not part.fixed_translation] == [ids]
            ]
            if not rows:
                continue
            sources = [lines[row] for row in rows]
            references = [references[row] for row in rows]
            if to == "argos":
                theirs = translate_as_argos(export_path, sources)
            else:
                theirs = _translate_with_transformers(ours, export_path, sources)
        if theirs is None:
            return None
        lines_of_both += zip(ours.translate(sources), theirs, references, strict=True)
    if not lines_of_both:
        logger.warning("all lines are too long for the model, in capitals or codes: translations were not compared")
        return None
    our_lines, their_lines, compared_references = zip(*lines_of_both, strict=True)
    return compare_translations(our_lines, their_lines, compared_references, tgt)


def compare_translations(ours: Lines, theirs: Lines, references: Lines, tgt: str) -> Comparison:
    """Compare two lists of translations."""
    num_identical = sum(1 for our_line, their_line in zip(ours, theirs, strict=True) if our_line == their_line)
    difference = metrics.bleu(theirs, references, tgt) - metrics.bleu(ours, references, tgt)
    return Comparison(len(ours), num_identical / len(ours), difference)


def check_tolerances(comparison: Comparison, precision: str) -> None:
    """Raise MtxError if the translations of an export differ by more than `TOLERANCES`."""
    identical, bleu = TOLERANCES[precision]
    # with fewer lines, a single one changes BLEU by more than int8 does
    has_bleu = precision != "int8" or comparison.num_lines >= 100
    is_apart = has_bleu and abs(comparison.bleu_difference) > bleu
    if is_apart or comparison.identical < identical:
        raise MtxError(
            f"the export differs from mtx by more than {precision} allows ({identical:.0%} identical, {bleu} BLEU): "
            f"{comparison.line()}; nothing was written",
            None if precision == "fp32" else "--precision fp32",
        )


def _translate_with_transformers(ours: Translator, export_path: Path, sources: Lines) -> Any:
    """The translations of an export by transformers; None if it is not installed."""
    try:
        transformers: Any = importlib.import_module("transformers")  # untyped in parts
    except ImportError:
        logger.warning(
            "transformers is not installed, so translations were not compared\n  help: %s",
            install_command("transformers"),
        )
        return None
    max_length = ours.max_tokens + EXTRA_LENGTH
    ours.options = replace(ours.options, max_length=max_length)
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(export_path)
    start_tokens = ours.tokenizer.pieces(ours.frame.before_src)
    forced_tokens = ours.tokenizer.pieces(ours.frame.before_tgt)
    if hasattr(tokenizer, "src_lang"):
        (tokenizer.src_lang,) = start_tokens
    else:
        sources = ["".join([*start_tokens, line]) for line in sources]
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(export_path).eval()
    with torch.inference_mode():
        ids = model.generate(
            **tokenizer(sources, return_tensors="pt", padding=True),
            num_beams=1,
            do_sample=False,
            max_length=max_length + 1,  # transformers counts the start token
            forced_eos_token_id=tokenizer.eos_token_id,
            forced_bos_token_id=tokenizer.convert_tokens_to_ids(forced_tokens[0]) if forced_tokens else None,
        )
    return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
