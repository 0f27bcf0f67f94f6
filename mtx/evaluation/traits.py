"""Traits of translations that need no metric: how many are empty, copied, repeating, or equal to the reference.

They tell a model that has learned little from one that translates. Flow: sources, hypotheses, references -> `Traits`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mtx.decoding.suspicious import suspicion

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
        sources = sources or [""] * len(hypotheses)
        noted = [suspicion(src, hyp) for src, hyp in zip(sources, hypotheses, strict=True)]
        exact = [hyp == ref for hyp, ref in zip(hypotheses, references, strict=True)]
        empty = [not hyp.strip() and bool(ref.strip()) for hyp, ref in zip(hypotheses, references, strict=True)]
        return cls(
            lines=len(hypotheses), exact=sum(exact), empty=sum(empty), repeating=noted.count("repetition"),
            copied=noted.count("copy"),
            faulty=sum(bool(n or e) and not x for n, e, x in zip(noted, empty, exact, strict=True)),
            distinct=len({*hypotheses}), length_ratio=sum(map(len, hypotheses)) / max(1, sum(map(len, references))),
        )  # fmt: skip
