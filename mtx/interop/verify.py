"""Compares an export with mtx: both translate the same lines, and the results may differ by `TOLERANCES`.

If two scores are equal up to rounding, another program's search may choose the other hypothesis. In fp32 this
changes one or two lines of a hundred, in fp16 a few more. int8 changes scores by far more than rounding: every tenth
line differs, and neither translation is better. So int8 is judged by BLEU alone, on enough lines that no single line
moves BLEU more than int8 does.
"""

import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mtx.data.cleaning import clean_text
from mtx.data.tokenizer import normalize
from mtx.decoding import metrics
from mtx.decoding.options import EXTRA_LENGTH
from mtx.decoding.translator import Translator
from mtx.errors import MtxError
from mtx.formatting import install_command
from mtx.interop.argos import translate_as_argos

logger = logging.getLogger(__name__)

_LINES_FOR_BLEU = 100  # with fewer, a single line moves BLEU by more than int8 does


class Tolerance(NamedTuple):
    """The largest differences allowed between an export and mtx."""

    identical: float  # smallest share of identical lines
    bleu: float  # largest difference of BLEU against the references
    apart: float  # without references: 100 minus the BLEU of one against the other, at most


TOLERANCES = {
    "fp32": Tolerance(0.98, 0.1, 2.0),
    "fp16": Tolerance(0.95, 0.2, 5.0),
    "int8": Tolerance(0.0, 1.0, 20.0),
}


class Text(NamedTuple):
    """Lines to translate, and their references if there are any."""

    sources: list[str]
    references: list[str]


@dataclass(frozen=True)
class Comparison:
    """How the translations of an export compare with those of mtx.

    Attributes:
        identical: share of identical lines.
        bleu_difference: difference in BLEU; without references, 100 - BLEU of one against the other.
    """

    num_lines: int
    identical: float
    has_references: bool
    bleu_difference: float

    def line(self) -> str:
        bleu = f"BLEU {self.bleu_difference:+.2f}" if self.has_references else f"{self.bleu_difference:.2f} BLEU apart"
        return f"{self.num_lines} lines: {self.identical:.1%} identical, {bleu}"


def compare_export(root: Path, to: str, new: Path, text: Text) -> Comparison | None:
    """Translate the text with the model `root` and with its export `new`; None if that is not possible."""
    logger.info("comparing the translations of %d lines", len(text.sources))
    if to == "huggingface":
        return _compare_huggingface(root, new, text)
    ours = Translator.load(root, engine="torch", device="cpu", split_sentences=False)
    if to == "argos":
        theirs = translate_as_argos(new, text.sources)
    else:
        theirs = Translator.load(new, device="cpu", split_sentences=False).translate(text.sources)
    return compare_translations(ours.translate(text.sources), theirs, text.references, ours.tgt)


def compare_translations(ours: Sequence[str], theirs: Sequence[str], references: Sequence[str], tgt: str) -> Comparison:
    """Compare two lists of translations."""
    identical = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
    if identical == 1:
        difference = 0.0  # lines shorter than four words have BLEU 0 even against themselves
    elif references:
        difference = metrics.bleu(theirs, references, tgt) - metrics.bleu(ours, references, tgt)
    else:
        difference = 100 - metrics.bleu(theirs, ours, tgt)
    return Comparison(len(ours), identical, bool(references), difference)


def check_tolerances(comparison: Comparison, precision: str) -> None:
    """Raise MtxError if the translations of an export differ by more than `TOLERANCES`."""
    tolerance = TOLERANCES[precision]
    if comparison.identical < tolerance.identical:
        raise MtxError(
            f"the export translates {1 - comparison.identical:.1%} of {comparison.num_lines} lines differently from "
            f"mtx, more than the {1 - tolerance.identical:.0%} allowed in {precision}; nothing is written"
        )
    limit = tolerance.bleu if comparison.has_references else tolerance.apart
    is_judged = precision != "int8" or comparison.num_lines >= _LINES_FOR_BLEU
    if is_judged and abs(comparison.bleu_difference) > limit:
        raise MtxError(
            f"the export differs from mtx by {abs(comparison.bleu_difference):.2f} BLEU on {comparison.num_lines} "
            f"lines, more than the {limit} allowed in {precision}; nothing is written",
            None if precision == "fp32" else "--precision fp32",
        )


def _compare_huggingface(root: Path, new: Path, text: Text) -> Comparison | None:
    """Compare greedy searches, because transformers' beam search has another length penalty."""
    try:
        transformers: Any = importlib.import_module("transformers")  # untyped in parts
    except ImportError:
        install = install_command("transformers")
        logger.warning("transformers is not installed, so translations were not compared\n  help: %s", install)
        return None
    ours = Translator.load(root, engine="torch", device="cpu", beam_size=1, split_sentences=False)
    max_length = ours.max_tokens + EXTRA_LENGTH
    ours.options = replace(ours.options, max_length=max_length)
    lines = [normalize(clean_text(line), ours.tokenizer.normalization) for line in text.sources]
    split = ours.split(lines)  # what is too long, in capitals or in title case mtx translates in its own way
    rows = [row for row, parts in enumerate(split) if len(parts) == 1 and parts[0].case is None]
    if not rows:
        logger.warning("every line is too long for the model or in capitals, so translations were not compared")
        return None
    inputs = [lines[row] for row in rows]
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.MarianTokenizer.from_pretrained(new)
    model = transformers.MarianMTModel.from_pretrained(new).eval()
    with torch.inference_mode():
        ids = model.generate(
            **tokenizer(inputs, return_tensors="pt", padding=True),
            num_beams=1,
            do_sample=False,
            max_length=max_length + 1,  # it counts the start token
        )
    theirs = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    references = [text.references[row] for row in rows] if text.references else []
    return compare_translations(ours.translate(inputs), theirs, references, ours.tgt)
