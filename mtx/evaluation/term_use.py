"""How often a model uses the terms of a glossary, and what that does to BLEU.

Each line with a term is translated without the glossary and with it. A term counts as used if its translation stands in
the output, as whole words and as the glossary writes it, or with a capital at its beginning.
Flow: `TestSet`, translator and `Glossary` -> two translations -> `Scores` of both, and `TermUse`.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from mtx.data.cleaning import clean_text
from mtx.data.glossary import Glossary, num_used
from mtx.decoding.metrics import Scores, normalize_lines
from mtx.decoding.translator import Translator
from mtx.evaluation.evaluate import score_translations
from mtx.evaluation.protocols import Protocol
from mtx.evaluation.significance import SIGNIFICANCE_LEVEL, System, significance_tests
from mtx.evaluation.test_sets import TestSet


@dataclass(frozen=True)
class TermUse:
    """The terms in the sources of a test set, how many of them the translations use, and the change of BLEU.

    Attributes:
        bleu_gain: BLEU with the glossary less BLEU without it.
        p_value: of this difference, by paired bootstrap resampling.
    """

    num_terms: int
    used: int
    used_without: int
    bleu_gain: float
    p_value: float

    def line(self) -> str:
        """What `mtx evaluate` prints after the scores."""
        if not self.num_terms:
            return "no term of the glossary occurs"
        share, share_without = (used / self.num_terms for used in (self.used, self.used_without))
        is_clear = "" if self.p_value < SIGNIFICANCE_LEVEL else ", not significant"
        return (
            f"{share:.1%} of {self.num_terms:,} terms used, {share_without:.1%} without the glossary; "
            f"BLEU {self.bleu_gain:+.2f} (p = {self.p_value:.3f}{is_clear})"
        )


@dataclass(frozen=True, kw_only=True)
class GlossaryScores(Scores):
    """The scores of a test set that was translated with a glossary, and how its terms were used."""

    terms: TermUse

    def lines(self, name: str) -> list[str]:
        """As those of `Scores`, and a line about the terms."""
        return [*super().lines(name), f"{name}: {self.terms.line()}"]


def score_with_glossary(
    translator: Translator, test_set: TestSet, glossary: Glossary, protocol: Protocol | None = None
) -> tuple[Scores, GlossaryScores]:
    """Translate a test set without a glossary and with it, and score both.

    Raises:
        UsageError: if the model did not learn terms.
    """
    normalization, sources = translator.tokenizer.normalization, test_set.sources
    rows = [row for row, line in enumerate(sources) if glossary.matches(_normal(line))]
    translator.use_glossary(glossary)
    try:
        changed = translator.translate([sources[row] for row in rows])
    finally:
        translator.use_glossary(None)
    plain = normalize_lines(translator.translate(sources), normalization)
    guided = list(plain)
    for row, line in zip(rows, normalize_lines(changed, normalization), strict=True):
        guided[row] = line
    before, after = (score_translations(lines, test_set, normalization, protocol) for lines in (plain, guided))
    num_terms, used = count_used(glossary, sources, guided)
    _, used_without = count_used(glossary, sources, plain)
    references = normalize_lines(test_set.references, normalization)
    systems = [System("without", plain), System("with", guided)]
    [bleu] = significance_tests(systems, references, "bs", ["bleu"], test_set.tgt, None, [[0], [1]])
    p_value = bleu.groups[1].p_value
    assert p_value is not None
    use = TermUse(num_terms, used, used_without, after.bleu.score - before.bleu.score, p_value)
    return before, GlossaryScores(**vars(after), terms=use)


def count_used(glossary: Glossary, sources: Sequence[str], translations: Sequence[str]) -> tuple[int, int]:
    """The number of terms in the sources, and of those whose translation stands in that of their line, each once."""
    num_terms = used = 0
    for source, translation in zip(sources, translations, strict=True):
        expected = [match.tgt for match in glossary.matches(_normal(source))]
        num_terms += len(expected)
        used += num_used(expected, _normal(translation))
    return num_terms, used


def _normal(line: str) -> str:
    return unicodedata.normalize("NFC", clean_text(line))
