"""The samples of a report: the same validation sentences as training goes on, of one run or of several.

Flow: `RunSummary` -> its validations with samples -> `samples` -> values for report.html.
"""

from collections.abc import Sequence
from typing import Any

from mtx.data.writing_systems import writes_spaces
from mtx.report.run_summary import RunSummary
from mtx.report.word_diff import Words, joined, word_diff

_MAX_SAMPLED, _MAX_SAMPLED_OF_MANY = 8, 3  # validations of up to three runs, and of more, whose samples are shown


def samples(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """For each sample sentence source, reference, and for each step the translation of every run.

    Each translation has marks on the words that the reference lacks; it is None if the run has none at that step.
    """
    hyps: dict[tuple[str, str], dict[int, list[Words | None]]] = {}
    for number, run in enumerate(runs):
        events = run.validations_with_samples()
        by_character = not writes_spaces(
            run.config.data.tgt, [s["ref"] for s in events[0]["samples"]] if events else []
        )
        count = min(_MAX_SAMPLED if len(runs) <= 3 else _MAX_SAMPLED_OF_MANY, len(events))
        for event in [events[round(index * (len(events) - 1) / max(1, count - 1))] for index in range(count)]:
            for sample in event["samples"]:
                steps = hyps.setdefault((sample["src"], sample["ref"]), {})
                of_runs = steps.setdefault(event["step"], [None] * len(runs))
                of_runs[number] = joined(word_diff(sample["hyp"], sample["ref"], by_character)[0])
    return [{"src": src, "ref": ref, "steps": sorted(steps.items())} for (src, ref), steps in hyps.items()]
