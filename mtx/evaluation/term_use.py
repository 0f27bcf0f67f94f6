"""How often a model uses the terms of a glossary.

Each line with a term is translated without the glossary and with it. A term counts as used if its translation occurs in
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
from mtx.evaluation.test_sets import TestSet


@dataclass(frozen=True)
class TermUse:
    """The terms in the sources of a test set, and how many of them are used, with the glossary and without it."""

    num_terms: int
    used: int
    used_without: int


@dataclass(frozen=True, kw_only=True)
class GlossaryScores(Scores):
    """The scores of a test set that was translated with a glossary, and how its terms were used."""

    terms: TermUse

    def lines(self, name: str) -> list[str]:
        """As those of `Scores`, and a line about the terms."""
        num_terms = self.terms.num_terms
        text = "no term of the glossary occurs"
        if num_terms:
            share, share_without = self.terms.used / num_terms, self.terms.used_without / num_terms
            text = f"{share:.1%} of {num_terms:,} terms used, {share_without:.1%} without the glossary"
        return [*super().lines(name), f"{name}: {text}"]


def score_with_glossary(
    translator: Translator, test_set: TestSet, glossary: Glossary, protocol: Protocol | None = None
) -> tuple[Scores, GlossaryScores]:
    """Translate a test set without a glossary and with it, and score both.

    Raises:
        UsageError: if the model did not learn terms.
    """
    normalization, sources = translator.tokenizer.normalization, test_set.sources
    translator.use_glossary(glossary)
    try:
        guided = normalize_lines(translator.translate(sources), normalization)
    finally:
        translator.use_glossary(None)
    plain = normalize_lines(translator.translate(sources), normalization)
    before, after = (score_translations(lines, test_set, normalization, protocol) for lines in (plain, guided))
    (num_terms, used), (_, used_without) = (count_used(glossary, sources, lines) for lines in (guided, plain))
    return before, GlossaryScores(**vars(after), terms=TermUse(num_terms, used, used_without))


def count_used(glossary: Glossary, sources: Sequence[str], translations: Sequence[str]) -> tuple[int, int]:
    """The number of terms in the sources, and of those whose translation occurs in that of their line, each once."""
    num_terms = used = 0
    for source, translation in zip(sources, translations, strict=True):
        expected = [match.tgt for match in glossary.matches(_normal(source))]
        num_terms += len(expected)
        used += num_used(expected, _normal(translation))
    return num_terms, used


def _normal(line: str) -> str:
    return unicodedata.normalize("NFC", clean_text(line))
