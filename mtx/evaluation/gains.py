"""What a training that started from a model has changed: the scores of each test set before and after it.

Flow: before/NAME, evaluation/NAME of a run -> `measure_gains` -> `Gain` -> scores.json -> `stored_gains` -> `advice`.
This module translates nothing; `own_tests.py` and `mtx.training.run` do, with the same search.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from mtx.decoding.metrics import too_short_for_bleu
from mtx.errors import Advice, DamagedFileError
from mtx.evaluation.comparison import p_text
from mtx.evaluation.significance import SIGNIFICANCE_LEVEL, System, significance_tests
from mtx.storage import durable, text_files
from mtx.storage.run_files import HYPOTHESIS_TEXT, REFERENCE_TEXT, SCORES, RunLayout

logger = logging.getLogger(__name__)

_MOST_LOST = 1.0  # points of the deciding metric by which a test set may fall without a word about it
_GENTLER = "keep the model of before, or try a third of training.learning_rate or fewer epochs"
_KEEP = "mix more general text into data.train, or try a third of training.learning_rate or fewer epochs"
_MORE = "take more epochs, a higher training.learning_rate or more text"


@dataclass(frozen=True)
class Change:
    """The score of a test set by one metric before and after, and the p-value of the difference (paired bootstrap)."""

    metric: str
    before: float
    after: float
    p_value: float

    @property
    def points(self) -> float:
        """By how much the score has risen."""
        return self.after - self.before

    def text(self) -> str:
        """The change as `mtx train` prints it."""
        p = p_text(self.p_value, "p = ", "p < ")
        return f"{self.metric} {self.before:.1f} before, {self.after:.1f} after: {self.points:+.1f} ({p})"


@dataclass(frozen=True)
class Gain:
    """What a training has changed on one test set.

    Attributes:
        is_own: whether it is text to adapt to: held out of the own text, or without such a set the first test set.
        changes: in BLEU and in chrF2; the first decides, which is chrF2 where BLEU says nothing.
    """

    test: str
    is_own: bool
    changes: Annotated[list[Change], Field(min_length=1)]

    def line(self) -> str:
        """The line that `mtx train` prints after the scores."""
        return f"{self.test} {'; '.join(change.text() for change in self.changes)}"


def lines(paths: RunLayout) -> list[str]:
    """What `mtx train` prints after the scores of a run that started from a model, read from its scores.json."""
    gains = stored_gains(durable.read_json(paths.model / SCORES)["run"], paths.model / SCORES)
    return [*(gain.line() for gain in gains), *map(str, advice(gains))]


def advice(gains: Sequence[Gain]) -> list[Advice]:
    """What to change: own text should gain significantly, and no test set should fall by more than a point."""
    problems = []
    for gain in gains:
        change = gain.changes[0]
        if change.points < -_MOST_LOST:
            text = f"{gain.test} falls by {-change.points:.1f} {change.metric}"
            problems.append(Advice(text, _GENTLER if gain.is_own else _KEEP))
        elif gain.is_own and not (change.points > 0 and change.p_value < SIGNIFICANCE_LEVEL):
            problems.append(Advice(f"{gain.test} gains nothing beyond chance", _MORE))
    return problems


def measure_gains(paths: RunLayout, tests: Mapping[str, Any], tgt: str) -> list[Gain]:
    """The gains of all test sets that a run has translated before and after its training.

    Args:
        tests: the entries of the test sets in report.json.
    """
    held_out = [name for name, entry in tests.items() if entry["held_out"]]
    own = held_out or list(tests)[:1]
    gains = []
    for name in tests:
        try:
            before, after = (_lines(path / name, HYPOTHESIS_TEXT) for path in (paths.before, paths.evaluation))
        except DamagedFileError as error:
            logger.warning("%s; what training has changed on %s is not known", error, name)
            continue
        references = _lines(paths.evaluation / name, REFERENCE_TEXT)
        systems = [System("before", before), System("after", after)]
        measured = significance_tests(systems, references, ("bleu", "chrf"), tgt, None, [[0], [1]])
        changes = []
        for metric in measured:
            first, second = metric.groups
            assert second.p_value is not None
            changes.append(Change(metric.name, first.mean, second.mean, second.p_value))
        gains.append(Gain(name, name in own, changes[::-1] if too_short_for_bleu(references, tgt) else changes))
    return gains


def _lines(directory: Path, name: str) -> list[str]:
    durable.verify(directory, [name])
    return list(text_files.read_lines(directory / name))


def stored_gains(run: Mapping[str, Any], path: Path) -> list[Gain]:
    """The gains in the entry `run` of a scores.json; empty for a run that started from no model.

    Raises:
        DamagedFileError: naming `path`, if they are not what mtx writes.
    """
    try:
        return TypeAdapter(list[Gain]).validate_python(run.get("gains", []))
    except ValidationError:
        raise DamagedFileError(f"{path}: run.gains: does not hold the gains of a training") from None
