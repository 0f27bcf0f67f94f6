"""A term counts as used if its translation stands in the output of its line, and the scores say what that costs."""

from collections.abc import Sequence
from typing import Any

import pytest

from mtx.data.glossary import Glossary
from mtx.decoding.metrics import CorpusScore
from mtx.evaluation.term_use import GlossaryScores, TermUse, count_used, score_with_glossary
from mtx.evaluation.test_sets import TestSet

GLOSSARY = Glossary({"house": "Haus", "river": "der Fluss", "old house": "Altbau"})


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("a house", "ein Haus", (1, 1)),
        ("a house", "ein Hausboot", (1, 0)),
        ("a house", "ein haus", (1, 0)),
        ("house and house", "Haus und Boot", (2, 1)),
        ("a house", "Haus, Haus", (1, 1)),
        ("river", "Der Fluss", (1, 1)),
        ("an old house", "ein Haus", (1, 0)),
        ("a tree", "ein Haus", (0, 0)),
    ],
)
def test_terms_are_counted(source: str, translation: str, expected: tuple[int, int]) -> None:
    assert count_used(GLOSSARY, [source], [translation]) == expected


def test_a_line_about_the_terms_follows_the_scores() -> None:
    bleu = CorpusScore(30.0, "signature")

    def line(terms: TermUse) -> str:
        return GlossaryScores(bleu=bleu, chrf=bleu, terms=terms).lines("t")[-1]

    assert line(TermUse(10, 9, 5)) == "t: 90.0% of 10 terms used, 50.0% without the glossary"
    assert line(TermUse(0, 0, 0)) == "t: no term of the glossary occurs"


class Fake:
    """Writes Haus for house only with a glossary."""

    tokenizer: Any = type("T", (), {"normalization": "nfc"})
    glossary: Glossary | None = None

    def use_glossary(self, glossary: Glossary | None) -> None:
        self.glossary = glossary

    def translate(self, lines: Sequence[str]) -> list[str]:
        return [line.replace("house", "Haus" if self.glossary else "Heim") for line in lines]


def test_both_translations_are_scored() -> None:
    fake: Any = Fake()
    sources = [f"this is the {word} of {number} men" for number in range(20) for word in ("house", "tree")]
    references = [line.replace("house", "Haus") for line in sources]
    plain, guided = score_with_glossary(fake, TestSet("t", "de", sources, references), GLOSSARY)
    assert guided.bleu.score == pytest.approx(100) and plain.bleu.score < 90
    assert (guided.terms.num_terms, guided.terms.used, guided.terms.used_without) == (20, 20, 0)
    assert guided.as_dict()["terms"]["used"] == 20 and guided.lines("t")[-1].startswith("t: 100.0% of 20 terms")
    assert fake.glossary is None, "the translator is as it was"
