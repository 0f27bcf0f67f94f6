"""Traits of translations that need no metric: how many are empty, copied, repeating, or equal to the reference.

They tell a model that has learned little from one that translates. Flow: sources, hypotheses, references -> `Traits`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mtx.decoding.metrics import suspicion

ALIKE = 0.2  # share of distinct translations below which a model does not look at its source


@dataclass(frozen=True)
class Traits:
    """Numbers of hypotheses of one system.

    Attributes:
        lines: number of hypotheses.
        exact: hypotheses that are equal to the reference.
        empty: empty hypotheses of references with text.
        repeating, copied: hypotheses that repeat themselves or copy the source, as `mtx translate` counts them.
        faulty: hypotheses with one of the last three that are not exact.
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
    def of(cls, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> "Traits":
        """The traits of hypotheses; the three lists have the same length.

        Args:
            sources: empty if they are not known; then nothing counts as copied.
        """
        counts = Counter[str]()
        for src, hyp, ref in zip(sources or [""] * len(hypotheses), hypotheses, references, strict=True):
            fault = suspicion(src, hyp) or ("empty" if ref.strip() and not hyp.strip() else "")
            counts.update({fault: 1, "exact": hyp == ref, "faulty": bool(fault) and hyp != ref})
        return cls(
            lines=len(hypotheses),
            exact=counts["exact"],
            empty=counts["empty"],
            repeating=counts["repetition"],
            copied=counts["copy"],
            faulty=counts["faulty"],
            distinct=len({*hypotheses}),
            length_ratio=sum(map(len, hypotheses)) / max(1, sum(map(len, references))),
        )
