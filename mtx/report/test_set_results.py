"""What a report shows of the test sets: scores, traits of the translations, and sentences to look at.

Flow: run directories -> `test_set_values` -> values of report.html.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mtx.evaluation.comparison import compare
from mtx.evaluation.comparison_output import mean_and_p
from mtx.evaluation.differing_settings import groups_of
from mtx.evaluation.evaluate import system_outputs
from mtx.evaluation.significance import MetricComparison
from mtx.evaluation.test_sets import TestSet, test_sets_of_runs
from mtx.evaluation.traits import Traits
from mtx.report.sentences import telling_sentences
from mtx.storage.run_contents import translated_tests
from mtx.storage.run_files import RunLayout

_MAX_BYTES = 1_300_000  # of a page, for the sentences of all test sets together


def test_set_values(roots: Sequence[Path], names: Sequence[str], metric: str) -> list[dict[str, Any]]:
    """The results on the test sets that all runs have translated; empty if there are none.

    Args:
        names: what the report calls the runs.
        metric: the name of the metric that comes first, if it was computed.
    """
    if not set.intersection(*({*translated_tests(RunLayout(root))} for root in roots)):
        return []
    test_sets = test_sets_of_runs(roots)
    return [_values(test_set, roots, names, metric, _MAX_BYTES // len(test_sets)) for test_set in test_sets]


def _values(
    test_set: TestSet, roots: Sequence[Path], names: Sequence[str], metric: str, max_bytes: int
) -> dict[str, Any]:
    outputs, references = system_outputs(test_set, roots, {})
    systems = [replace(system, name=name) for system, name in zip(outputs, names, strict=True)]
    hypotheses = [system.hypotheses for system in systems]
    comparison = compare(systems, references, tgt=test_set.tgt, groups=groups_of(roots, names))
    sentences = telling_sentences(test_set, hypotheses, references, max_bytes)
    headline = comparison.headline()
    decider = next(each for each in comparison.metrics if each.name == comparison.decided_by)
    traits = [Traits.of(test_set.sources, lines, references) for lines in hypotheses]
    return {
        "name": test_set.name,
        "comparison": comparison,
        "verdicts": headline,
        "other_verdicts": [verdict for verdict in comparison.verdicts() if verdict not in headline],
        "metrics": [_metric(each) for each in sorted(comparison.metrics, key=lambda each: each.name != metric)],
        "groups": [
            (group.label, len(group.members), *mean_and_p(score))
            for group, score in zip(comparison.groups, decider.groups, strict=True)
            if comparison.has_seeds()
        ],
        "traits": [
            (name, each.exact, each.empty, each.repeating, f"{each.length_ratio:.2f}")
            for name, each in zip(names, traits, strict=True)
        ],
        "lengths": [(bin.length, bin.count, *(f"{bleu:.2f}" for bleu in bin.bleu)) for bin in comparison.lengths],
        "sentences": sentences,
        "typical": sorted(sentences, key=lambda each: each.translations[0][0])[len(sentences) // 2],
    }


def _metric(metric: MetricComparison) -> dict[str, Any]:
    """The scores of all systems by one metric, with intervals as numbers and as percentages of their common scale."""
    ranges = [system.interval or (system.score, system.score) for system in metric.systems]
    low = math.floor(min(low for low, _ in ranges))
    high = max(math.ceil(max(high for _, high in ranges)), low + 1)

    def place(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.1f}"

    p_values = [mean_and_p(group)[1] for group in metric.groups]
    if len(p_values) < len(ranges):
        p_values = [""] * len(ranges)  # of the groups alone
    rows = [
        {
            "score": f"{system.score:.2f}",
            "p": p_value,
            "interval": system.interval_text,
            "from": place(start),
            "to": place(end),
            "at": place(system.score),
        }
        for system, (start, end), p_value in zip(metric.systems, ranges, p_values, strict=True)
    ]
    return {"name": metric.name, "is_error": metric.is_error, "low": low, "high": high, "rows": rows}
