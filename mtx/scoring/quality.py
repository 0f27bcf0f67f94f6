"""The expected quality of a translation, by what its search knows of it: the `quality.json` of a model directory.

A linear model of `FEATURES` and a monotonic map predict the sentence chrF2 of a translation.
`mtx.evaluation.quality_fit` fits them on validation text, translated with the search settings of the model. They hold
for text like that: below what the validation text has, the estimate falls with the linear model, and far from it there
is none.
"""

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from mtx.config.limits import MAX_BEAM_SIZE, MAX_LENGTH_PENALTY
from mtx.errors import DamagedFileError
from mtx.scoring.metrics import Scores, score
from mtx.storage import durable
from mtx.storage.durable import MAX_JSON_BYTES
from mtx.storage.model_description import first_problem
from mtx.storage.run_files import QUALITY
from mtx.storage.text_files import Lines

Advice = Literal["use", "look", "redo"]
FEATURES = (
    "log_prob",  # of a target token, on average
    "length",  # logarithm of the number of source tokens
    "ratio",  # logarithm of the number of target tokens for each source token
    "distance",  # absolute value of `ratio`
    "fertility",  # source tokens for each word of the source
    "letters",  # share of target tokens of one character
    "variety",  # share of different target tokens
)
# Fitting a map, for `mtx.evaluation.quality_fit`, and for the schedule of training, which reserves the time for it.
FEWEST_FIT_LINES = 100  # of validation text
MOST_FIT_LINES = 1000
FIT_TIME_SHARE = 0.04  # of a time limit, at most, for the maps of all directions
_MAX_KNOTS = 100
_Score = Annotated[float, Field(ge=0, le=100)]
_STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
Floats = npt.NDArray[np.float64]


def features(source: str, num_src: int, pieces: Sequence[str], log_prob: float) -> list[float]:
    """Returns the `FEATURES` of one search.

    Args:
        source: its text.
        num_src: number of its tokens, at least 1.
        pieces: the tokens of the translation, `</s>` included.
        log_prob: of all of them.
    """
    num_tgt = len(pieces)
    ratio = log(num_tgt / num_src)
    return [
        log_prob / num_tgt,
        log(num_src),
        ratio,
        abs(ratio),
        num_src / max(1, len(source.split())),
        sum(len(piece) == 1 for piece in pieces) / num_tgt,
        len({*pieces}) / num_tgt,
    ]


class FeatureRegion(BaseModel):
    """Where the features of the validation text lie: outside of it a map has learned nothing.

    Attributes:
        means, deviations: the mean and the standard deviation of each of `FEATURES`.
        max_distance: the largest distance from the mean that lies inside, in standard deviations.
    """

    model_config = _STRICT

    means: list[float] = Field(min_length=len(FEATURES), max_length=len(FEATURES))
    deviations: list[Annotated[float, Field(gt=0)]] = Field(min_length=len(FEATURES), max_length=len(FEATURES))
    max_distance: float = Field(ge=0)

    def is_outside(self, values: Floats) -> bool:
        """Whether values of the features [F] lie outside."""
        return bool(np.linalg.norm((values - self.means) / self.deviations) > self.max_distance)


class QualityMap(BaseModel):
    """From the features of a translation to its expected chrF2, for one direction and one way to search.

    Attributes:
        bias, weights: the linear model of `FEATURES`, which predicts chrF2.
        knots, values: the map from its result to chrF2, linear between the knots and constant above them; below them
            it falls as the linear model does.
        redo_below, look_below: the first quartile and the median of the quality of the validation text, at most 70 and
            90; or 100 if the model is not usable, or hardly usable, there.
        region: what the map is for; None in maps of mtx 1.0.0.
    """

    model_config = _STRICT

    beam_size: int = Field(ge=1, le=MAX_BEAM_SIZE)
    length_penalty: float = Field(ge=0, le=MAX_LENGTH_PENALTY)
    bias: float
    weights: list[float] = Field(min_length=len(FEATURES), max_length=len(FEATURES))
    knots: list[float] = Field(min_length=1, max_length=_MAX_KNOTS)
    values: list[_Score] = Field(max_length=_MAX_KNOTS)
    redo_below: _Score
    look_below: _Score
    region: FeatureRegion | None = None

    @model_validator(mode="after")
    def _is_monotonic(self) -> Self:
        is_map = len(self.values) == len(self.knots) == len({*self.knots})
        if not is_map or sorted(self.knots) != self.knots or sorted(self.values) != self.values:
            raise ValueError("the map is not monotonic")
        return self

    def estimate(self, parts: Sequence[tuple[int, Sequence[float]]]) -> tuple[float | None, Advice]:
        """Returns the quality of a line, 0 to 100, and the advice what to do with it.

        The quality is None, and the advice at best look, if the line is unlike the validation text.

        Args:
            parts: the number of target tokens and the features of each part, at least one. The quality of a line is
                that of the mean of its parts by length; the worst part decides the advice.
        """
        sizes, rows = zip(*parts, strict=True)
        shares = np.array(sizes) / sum(sizes)
        predicted = np.array(rows) @ self.weights + self.bias
        quality, worst = self._scores(np.array([shares @ predicted, predicted.min()]))
        is_outside = self.region is not None and self.region.is_outside(shares @ rows)
        if worst < self.redo_below:
            advice: Advice = "redo"
        elif worst < self.look_below or is_outside:
            advice = "look"
        else:
            advice = "use"
        return None if is_outside else round(float(quality), 1), advice

    def _scores(self, predicted: Floats) -> Floats:
        """The chrF2 to expect where the linear model predicts this."""
        distance_below_knots = np.minimum(predicted - self.knots[0], 0)
        scores: Floats = np.maximum(np.interp(predicted, self.knots, self.values) + distance_below_knots, 0)
        return scores

    def with_look_below(self, quality: float) -> Self:
        """The map whose advice is to look at translations below this quality."""
        return self.model_copy(update={"look_below": quality, "redo_below": min(quality, self.redo_below)})


_MAPS = TypeAdapter(dict[str, QualityMap])  # by direction, such as en-de


def load(directory: Path) -> dict[str, QualityMap]:
    """Verifies and reads the maps of a model directory by direction; empty if it has none.

    Raises:
        DamagedFileError: if the file differs from its manifest, or has no such maps.
    """
    path = directory / QUALITY
    if not path.is_file() or QUALITY not in durable.read_manifest(directory):
        return {}
    durable.verify(directory, {QUALITY: MAX_JSON_BYTES}, only_needed=True)
    maps = durable.read_json(path)
    del maps["format"]
    try:
        return _MAPS.validate_python(maps)
    except ValidationError as error:
        raise DamagedFileError(f"{path}: {first_problem(error)}") from None


def score_by_advice(hypotheses: Lines, references: Lines, advice: Sequence[Advice | None]) -> Scores:
    """Returns the number and the chrF2 of the lines with each advice, as the entry "advice" if there is any."""
    by_advice = {}
    for kind in get_args(Advice):
        lines = zip(hypotheses, references, advice, strict=True)
        advised = [(hypothesis, reference) for hypothesis, reference, line_advice in lines if line_advice == kind]
        if advised:
            texts, their_references = zip(*advised, strict=True)
            chrf = score(texts, their_references, metrics=["chrf"])["chrf"]
            by_advice[kind] = {"lines": len(advised), **chrf}
    return {"advice": by_advice} if by_advice else {}
