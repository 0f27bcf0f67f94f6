"""The proof of an export: the same lines through mtx and through the other program, and how far they may differ.

Searches by other programs agree with mtx's except where two scores lie within rounding, so in float32 one or two lines
of a hundred may differ, in float16 a few more. int8 changes scores by far more than rounding: every tenth line differs
and neither is the better one, so there only BLEU is held to, where there are lines enough for it to mean something.
"""

import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mtx import evaluation
from mtx.data.cleaning import clean_text
from mtx.data.tokenizer import normalize
from mtx.decoding.ctranslate2_engine import CTranslate2Translator
from mtx.decoding.options import EXTRA_LENGTH
from mtx.decoding.translator import Translator
from mtx.errors import MtxError

logger = logging.getLogger(__name__)

_LINES_FOR_BLEU = 100  # below, one line moves BLEU by more than int8 does


@dataclass(frozen=True)
class Tolerance:
    """How far an export may be from mtx.

    Attributes:
        identical: least share of lines that are the same.
        bleu: most that BLEU against the references may move.
        apart: most that the BLEU of one against the other may lack to 100, where there are no references.
    """

    identical: float
    bleu: float
    apart: float


TOLERANCES = {
    "float32": Tolerance(0.98, 0.1, 2.0), "float16": Tolerance(0.95, 0.2, 5.0), "int8": Tolerance(0.0, 1.0, 20.0),
}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """Lines to compare, with references or without."""

    sources: list[str]
    references: list[str]


@dataclass(frozen=True)
class Proof:
    """How the export's translations compare with mtx's.

    Attributes:
        identical: share of equal lines.
        bleu_difference: of BLEU against the references; without them what the BLEU of one against the other lacks.
    """

    num_lines: int
    identical: float
    has_references: bool
    bleu_difference: float

    def line(self) -> str:
        difference = (
            f"BLEU {self.bleu_difference:+.2f}" if self.has_references else f"{self.bleu_difference:.2f} BLEU apart"
        )
        return f"{self.num_lines} lines: {self.identical:.1%} identical, {difference}"


def prove(root: Path, to: str, new: Path, text: Text) -> Proof | None:
    """Translate the lines both ways; None where what the other way needs is not installed.

    Args:
        root: the model.
        new: its export.
    """
    logger.info("comparing the translations of %d lines", len(text.sources))
    if to == "huggingface":
        return _prove_huggingface(root, new, text)
    ours, theirs = Translator.load(root), CTranslate2Translator.load(new)
    return compare(ours.translate(text.sources), theirs.translate(text.sources), text.references, ours.tgt)


def compare(ours: Sequence[str], theirs: Sequence[str], references: Sequence[str], tgt: str) -> Proof:
    """The proof that two lists of translations give."""
    identical = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
    if identical == 1:
        difference = 0.0  # BLEU of lines that are all shorter than four words is 0, even against themselves
    elif references:
        difference = evaluation.bleu(theirs, references, tgt) - evaluation.bleu(ours, references, tgt)
    else:
        difference = 100 - evaluation.bleu(theirs, ours, tgt)
    return Proof(len(ours), identical, bool(references), difference)


def check(proof: Proof, precision: str) -> None:
    """Refuse an export that translates otherwise than mtx.

    Raises:
        MtxError: saying by how much.
    """
    allowed = TOLERANCES[precision]
    if proof.identical < allowed.identical:
        raise MtxError(
            f"the export translates {1 - proof.identical:.1%} of {proof.num_lines} lines otherwise than mtx, more than "
            f"the {1 - allowed.identical:.0%} that {precision} may; nothing is written"
        )
    most = allowed.bleu if proof.has_references else allowed.apart
    is_judged = precision != "int8" or proof.num_lines >= _LINES_FOR_BLEU
    if is_judged and abs(proof.bleu_difference) > most:
        raise MtxError(
            f"the export differs from mtx by {abs(proof.bleu_difference):.2f} BLEU on {proof.num_lines} lines, more "
            f"than the {most} that {precision} may; nothing is written",
            None if precision == "float32" else "--precision float32",
        )


def _prove_huggingface(root: Path, new: Path, text: Text) -> Proof | None:
    """Greedy search both ways, for transformers' beam search has another length penalty."""
    try:
        transformers: Any = importlib.import_module("transformers")  # untyped in parts
    except ImportError:
        logger.warning("transformers is not installed, so translations were not compared; pip install transformers")
        return None
    ours = Translator.load(root, beam_size=1)
    limit = ours.max_tokens + EXTRA_LENGTH
    ours = Translator.load(root, beam_size=1, max_length=limit)
    lines = [normalize(clean_text(line), ours.tokenizer.normalization) for line in text.sources]
    rows = [row for row, line in enumerate(lines) if line and len(ours.split(line)) == 1]  # others take several calls
    transformers.utils.logging.disable_progress_bar()
    model, tokenizer = (
        getattr(transformers, f"Marian{part}").from_pretrained(new) for part in ("MTModel", "Tokenizer")
    )
    inputs = tokenizer([lines[row] for row in rows], return_tensors="pt", padding=True)
    with torch.inference_mode():
        found = model.eval().generate(
            **inputs, num_beams=1, do_sample=False, max_length=limit + 1
        )  # it counts the start
    theirs = tokenizer.batch_decode(found, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    references = [text.references[row] for row in rows] if text.references else []
    return compare(ours.translate([lines[row] for row in rows]), theirs, references, ours.tgt)
