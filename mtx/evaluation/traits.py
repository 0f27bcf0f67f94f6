"""Traits of translations that need no metric: how many are empty, copied, repeating, or equal to the reference.

They tell a model that has learned little from one that translates. Flow: sources, hypotheses, references -> `Traits`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mtx.data.writing_systems import counts_words, tokenizer_of
from mtx.evaluation.metrics import words

ALIKE = 0.2  # share of distinct translations below which a model does not look at its source
_LOOP = re.compile(r"([^\W\d_]{1,8}?)\1{4}")  # letters five times in a row, as in "Tänzerzerzerzerzer"


@dataclass(frozen=True)
class Traits:
    """Numbers of hypotheses of one system; a trait that the reference has too does not count as a fault.

    Attributes:
        lines: number of hypotheses.
        exact: hypotheses that are equal to the reference.
        empty: empty hypotheses.
        repeating: hypotheses with a phrase three times in a row, of 1 to 4 words, or of 2 to 16 characters in a
            language that writes no spaces; or with letters five times in a row.
        copied: hypotheses of two words or more that are the source.
        faulty: hypotheses with one of the last three.
        distinct: different hypotheses; far fewer than lines if the model does not look at its source.
        length_ratio: characters of all hypotheses, divided by those of all references.
    """

    lines: int
    exact: int
    empty: int
    repeating: int
    copied: int
    faulty: int
    distinct: int
    length_ratio: float

    @classmethod
    def of(
        cls, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], tgt: str
    ) -> "Traits":  # fmt: skip
        """The traits of hypotheses; the three lists have the same length.

        Args:
            sources: empty if they are not known; then nothing counts as copied.
        """
        tokenizer = tokenizer_of(tgt, references)
        sizes = range(1, 5) if counts_words(tokenizer) else range(2, 17)

        def repeats(text: str) -> bool:
            return bool(_LOOP.search(text)) or _repeats(words(text, tokenizer), sizes)

        rows = list(zip(sources or [""] * len(hypotheses), hypotheses, references, strict=True))
        empty = [not hyp.strip() and bool(ref.strip()) for _, hyp, ref in rows]
        copied = [hyp == src != ref and len(words(hyp, tokenizer)) > 1 for src, hyp, ref in rows]
        repeating = [repeats(hyp) and not repeats(ref) for _, hyp, ref in rows]
        return cls(
            lines=len(rows), exact=sum(hyp == ref for _, hyp, ref in rows), empty=sum(empty), repeating=sum(repeating),
            copied=sum(copied), faulty=sum(map(any, zip(empty, copied, repeating, strict=True))),
            distinct=len({*hypotheses}), length_ratio=sum(map(len, hypotheses)) / max(1, sum(map(len, references))),
        )  # fmt: skip


def _repeats(units: list[str], sizes: range) -> bool:
    return any(
        units[i : i + n] == units[i + n : i + 2 * n] == units[i + 2 * n : i + 3 * n]
        for n in sizes
        for i in range(len(units) - 3 * n + 1)
    )
