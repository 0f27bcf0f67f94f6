"""The data of a report on test sets: scores, and sentences with marks, the most informative ones first.

Flow: run directories -> `test_set_values` -> values of report.html; texts -> `word_diff` -> marked parts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from mtx.data.languages import tokenizer_of, writes_spaces
from mtx.evaluation.comparison import compare, groups_of, length_table, score_table, words
from mtx.evaluation.test_set_scores import system_outputs
from mtx.evaluation.test_sets import TestSet, test_sets_of_runs
from mtx.report.run_history import RunSummary
from mtx.storage.run_files import RunLayout, translated_tests

_MAX_TEXTS = 2000  # of a test set in a page, references and translations
_MAX_SAMPLED = 8  # validations whose samples are shown
_TOKEN, _CHARACTER = re.compile(r"\s*(?:\w+|[^\w\s])\s*"), re.compile(r"\s*\S\s*")
Marked = list[tuple[str, bool]]  # parts of a text; True: the other text lacks this part here


def test_set_values(roots: Sequence[Path], names: Sequence[str]) -> list[dict[str, Any]]:
    """The results on the test sets that all runs have translated; empty if there are none.

    Args:
        names: the names of the runs in the report.
    """
    if not set.intersection(*({*translated_tests(RunLayout(root))} for root in roots)):
        return []
    return [_values(test_set, roots, names) for test_set in test_sets_of_runs(roots)]


def _values(test_set: TestSet, roots: Sequence[Path], names: Sequence[str]) -> dict[str, Any]:
    outputs, references = system_outputs(test_set, roots, {})
    systems = [replace(system, name=name) for system, name in zip(outputs, names, strict=True)]
    comparison = compare(systems, references, tgt=test_set.tgt, groups=groups_of(roots, names))
    sentences = telling_sentences(test_set, [system.hypotheses for system in systems], references)
    decider_first = sorted(comparison.metrics, key=lambda metric: metric.name != comparison.decided_by)
    of_first = [(metric.name, metric.systems[0]) for metric in decider_first]
    return {
        "name": test_set.name,
        "comparison": comparison,
        "figures": [(name, f"{system.score:.2f}", system.interval_text) for name, system in of_first],
        "scores": score_table(comparison),
        "lengths": length_table(comparison),
        "sentences": sentences[: _MAX_TEXTS // (1 + len(systems))],
        "typical": sentences[len(sentences) // 2],
    }


@dataclass(frozen=True)
class Sentence:
    """One sentence of a test set.

    Attributes:
        length: words or characters of the reference.
        ref: with one system, parts that are missing in its translation are marked.
        translations: the sentence-level chrF (0 to 100) and the hypothesis of each system.
    """

    line: int
    length: int
    src: str
    ref: Marked
    translations: list[tuple[float, Marked]]


def telling_sentences(test_set: TestSet, systems: list[list[str]], references: list[str]) -> list[Sentence]:
    """All sentences with the hypotheses of all systems, the most informative ones first.

    With one system these are the worst by chrF, with several the ones whose chrF differs most.
    """
    from sacrebleu.metrics import CHRF

    metric, by_character = CHRF(), not writes_spaces(test_set.tgt, references)
    tokenizer, sentences = tokenizer_of(test_set.tgt, references), list[Sentence]()
    for line, (src, ref, *hyps) in enumerate(zip(test_set.sources, references, *systems, strict=True), 1):
        diffs = [word_diff(hyp, ref, by_character) for hyp in hyps]
        scores = [float(metric.sentence_score(hyp, [ref]).score) for hyp in hyps]
        translations = [(score, marked) for score, (marked, _) in zip(scores, diffs, strict=True)]
        marked_ref = diffs[0][1] if len(hyps) == 1 else [(ref, False)]
        sentences.append(Sentence(line, len(words(ref, tokenizer)), src, marked_ref, translations))

    def merit(sentence: Sentence) -> tuple[float, float, int]:
        chrf = [score for score, _ in sentence.translations]
        return round(min(chrf) - max(chrf), 1), round(chrf[0], 1), len(sentence.src)

    return sorted(sentences, key=merit)


def samples(run: RunSummary) -> list[dict[str, Any]]:
    """Source, reference and translations of each sample sentence, by the steps of evenly chosen validations.

    Words that the reference lacks are marked.
    """
    events = run.validations_with_samples()
    every = -(-len(events) // _MAX_SAMPLED)
    steps: dict[tuple[str, str], list[tuple[int, Marked]]] = {}
    for event in events[:: -every or -1][::-1]:  # including the last one
        by_character = not writes_spaces(run.config.data.tgt, [sample["ref"] for sample in event["samples"]])
        for sample in event["samples"]:
            marked, _ = word_diff(sample["hyp"], sample["ref"], by_character)
            steps.setdefault((sample["src"], sample["ref"]), []).append((event["step"], marked))
    return [{"src": src, "ref": ref, "steps": of_sample} for (src, ref), of_sample in steps.items()]


def word_diff(hyp: str, ref: str, by_character: bool = False) -> tuple[Marked, Marked]:
    """Compare two texts word by word, or character by character; the spaces around a word belong to it."""
    pattern = _CHARACTER if by_character else _TOKEN
    hyp_words, ref_words = pattern.findall(hyp), pattern.findall(ref)
    a, b = ([word.strip() for word in text] for text in (hyp_words, ref_words))
    marked_hyp, marked_ref = list[tuple[str, bool]](), list[tuple[str, bool]]()
    for tag, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if i < j:
            marked_hyp.append(("".join(hyp_words[i:j]), tag != "equal"))
        if k < m:
            marked_ref.append(("".join(ref_words[k:m]), tag != "equal"))
    return marked_hyp, marked_ref
