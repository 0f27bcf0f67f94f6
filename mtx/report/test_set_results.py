"""The data of a report on test sets: scores, and sentences with marks, the most informative ones first.

Flow: run directories -> `test_set_values` -> values of report.html; texts -> `word_diff` -> marked parts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from mtx.data.languages import tokenizer_of
from mtx.evaluation.comparison import compare, groups_of, words
from mtx.evaluation.test_set_scores import system_outputs
from mtx.evaluation.test_sets import TestSet, test_sets_of_runs
from mtx.storage.run_files import RunLayout, translated_tests

_MAX_TEXTS = 2000  # of a test set in a page, references and translations
_TOKEN, _CHARACTER = re.compile(r"\s*(?:\w+|[^\w\s])\s*"), re.compile(r"\s*\S\s*")
Marked = list[tuple[str, bool]]  # parts of a text; True: the other text lacks this part here


def test_set_values(roots: Sequence[Path], names: Sequence[str]) -> list[dict[str, Any]]:
    """The results on the test sets that all runs have translated; empty if there are none.

    Args:
        names: the names of the runs in the report.
    """
    if not set.intersection(*({*translated_tests(RunLayout(root))} for root in roots)):
        return []
    values, groups = [], groups_of(roots, names)
    for test_set in test_sets_of_runs(roots):
        outputs, references = system_outputs(test_set, roots, {})
        systems = [replace(system, name=name) for system, name in zip(outputs, names, strict=True)]
        comparison = compare(systems, references, tgt=test_set.tgt, groups=groups)
        sentences = telling_sentences(test_set, [system.hypotheses for system in systems], references)
        values.append(
            {
                "name": test_set.name,
                "comparison": comparison,
                "sentences": sentences[: _MAX_TEXTS // (1 + len(systems))],
                "typical": sentences[len(sentences) // 2],
            }
        )
    return values


@dataclass(frozen=True)
class Sentence:
    """One sentence of a test set.

    Attributes:
        length: words or characters of the reference.
        translations: the sentence-level chrF (0 to 100) and the hypothesis of each system.
    """

    line: int
    length: int
    src: str
    ref: str
    translations: list[tuple[float, str]]

    def merit(self) -> tuple[float, float, int]:
        """A key by which the most informative sentences come first."""
        chrf = [score for score, _ in self.translations]
        return round(min(chrf) - max(chrf), 1), round(chrf[0], 1), len(self.src)


def telling_sentences(test_set: TestSet, systems: list[list[str]], references: list[str]) -> list[Sentence]:
    """All sentences with the hypotheses of all systems, the most informative ones first.

    With one system these are the worst by chrF, with several the ones whose chrF differs most.
    """
    from sacrebleu.metrics import CHRF

    metric, tokenizer, sentences = CHRF(), tokenizer_of(test_set.tgt, references), list[Sentence]()
    for line, (src, ref, *hyps) in enumerate(zip(test_set.sources, references, *systems, strict=True), 1):
        translations = [(metric.sentence_score(hyp, [ref]).score, hyp) for hyp in hyps]
        sentences.append(Sentence(line, len(words(ref, tokenizer)), src, ref, translations))
    return sorted(sentences, key=Sentence.merit)


def word_diff(hyp: str, ref: str, by_character: bool = False) -> tuple[Marked, Marked]:
    """Compare two texts word by word, or character by character; the spaces around a word belong to it."""
    texts = [(_CHARACTER if by_character else _TOKEN).findall(text) for text in (hyp, ref)]
    hyp_words, ref_words = ([word.strip() for word in text] for text in texts)
    marked: tuple[Marked, Marked] = [], []
    for tag, *bounds in SequenceMatcher(None, hyp_words, ref_words, autojunk=False).get_opcodes():
        for parts, text, begin, end in zip(marked, texts, bounds[::2], bounds[1::2], strict=True):
            if begin < end:
                parts.append(("".join(text[begin:end]), tag != "equal"))
    return marked
