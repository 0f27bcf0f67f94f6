"""The translations of a run's test sets, with their scores: one directory for each test set. No torch here."""

import logging
from collections.abc import Sequence
from pathlib import Path

from mtx.data.cleaning import clean_text
from mtx.decoding.metrics import TOO_SHORT, Scores, too_short_for_bleu
from mtx.storage import durable
from mtx.storage.run_files import HYPOTHESIS_TEXT, REFERENCE_TEXT, SCORES, SOURCE_TEXT

logger = logging.getLogger(__name__)


def warn_if_too_short(name: str, references: Sequence[str], tgt: str) -> None:
    """Warn if BLEU says nothing about a test set; chrF2 does."""
    if too_short_for_bleu(references, tgt):
        logger.warning("%s: %s; chrF2 is the score to go by", name, TOO_SHORT)


def write_test_set(
    directory: Path, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], scores: Scores
) -> None:
    """Write src.txt, hyp.txt, ref.txt and scores.json; a directory that is there is replaced."""
    texts = {SOURCE_TEXT: map(clean_text, sources), HYPOTHESIS_TEXT: hypotheses, REFERENCE_TEXT: references}
    with durable.new_directory(directory, replace=True) as new:
        for name, lines in texts.items():
            durable.write_text(new / name, "".join(f"{line}\n" for line in lines))
        durable.write_json(new / SCORES, {directory.name: scores.as_dict()})
