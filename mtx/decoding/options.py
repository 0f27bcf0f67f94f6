"""The options and results of a search, shared by the torch engine and the CTranslate2 engine. No torch here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from mtx.config.limits import MAX_BEAM_SIZE, MAX_LENGTH, MAX_LENGTH_PENALTY, MAX_SAMPLES, MAX_TEMPERATURE

NO_SCORES = "the model gives no numbers as scores: its weights are damaged or far too large"
EXTRA_LENGTH = 50  # 6.1: the maximum output length is the source length + 50
MBR_EPSILON = 0.02  # the epsilon that Freitag et al. 2023 draw samples for Minimum Bayes risk decoding with


@dataclass(frozen=True)
class Sampling:
    """Options for drawing translations at random instead of searching for the best.

    Attributes:
        num_samples: number of translations of each source.
        temperature: logits are divided by it; below 1 the distribution is sharper, above 1 flatter.
        top_k: draw only from this number of the most probable tokens; 0 means all.
        top_p: after `top_k`, draw only from the smallest set of tokens whose probabilities sum to at least this
            (nucleus sampling, Holtzman et al. 2020).
        seed: a sample depends only on the seed, the source, its prefix and the number of the sample.
        epsilon: draw only tokens of at least this probability after temperature and `top_k`, and the most probable one
            (epsilon sampling, Hewitt et al. 2022); 0 means all.
        mbr: instead of all samples, only the one with the highest mean chrF against all of them is the translation
            (Minimum Bayes risk decoding), and that mean is its score; see `mtx.decoding.minimum_bayes_risk`.

    Raises:
        TypeError, ValueError: for a value that is no number, or one that no distribution has.
    """

    num_samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    epsilon: float = 0.0
    mbr: bool = False

    def __post_init__(self) -> None:
        check_number("num_samples", self.num_samples, 1, MAX_SAMPLES)
        check_number("temperature", self.temperature, 0.01, MAX_TEMPERATURE, kind=Real)
        check_number("top_k", self.top_k, 0)
        check_number("top_p", self.top_p, 0.01, 1.0, kind=Real)
        check_number("seed", self.seed, -math.inf)
        check_number("epsilon", self.epsilon, 0, 1, kind=Real)
        if not isinstance(self.mbr, bool):
            raise TypeError(f"mbr={_shown(self.mbr)}: expected True or False")


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        beam_size: 1 is greedy search.
        length_penalty: alpha of ((5 + |Y|) / 6)^alpha.
        max_length: most target tokens, `</s>` included; None means the source's number of tokens + 50.
        sampling: None means beam search.

    Raises:
        TypeError, ValueError: for a value of another type, or out of its range.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    max_length: int | None = None
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check_number("beam_size", self.beam_size, 1, MAX_BEAM_SIZE)
        check_number("length_penalty", self.length_penalty, 0, MAX_LENGTH_PENALTY, kind=Real)
        if self.max_length is not None:
            check_number("max_length", self.max_length, 1, MAX_LENGTH)
        if not isinstance(self.sampling, Sampling | None):
            raise TypeError(f"sampling={_shown(self.sampling)}: expected a Sampling or None")

    @classmethod
    def of_model(
        cls, info: Mapping[str, Any], beam_size: int | None, length_penalty: float | None, max_length: int | None,
        sampling: Sampling | None,
    ) -> "SearchOptions":  # fmt: skip
        """The options of a model with this `info` of its directory; None means the model's own."""
        return cls(
            int(info["beam_size"]) if beam_size is None else beam_size,
            float(info["length_penalty"]) if length_penalty is None else length_penalty, max_length, sampling,
        )  # fmt: skip

    def limit(self, source: list[int], prefix: list[int]) -> int:
        """Returns the most target tokens, `</s>` included, of a translation of `source`; the prefix always fits."""
        limit = len(source) + EXTRA_LENGTH if self.max_length is None else self.max_length
        return max(limit, len(prefix) + 1)


@dataclass(frozen=True)
class Candidate:
    """A finished hypothesis: its token ids, `</s>` included, and its score after the length penalty."""

    ids: list[int]
    score: float


def check_number(name: str, value: Any, least: float, most: float = math.inf, kind: type = Integral) -> None:
    """Checks that an argument is a number from `least` to `most`, a whole one unless `kind` is Real.

    Raises:
        TypeError, ValueError: it is not; the message is one line with the value and what is expected.
    """
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        bounds = "" if least == -math.inf else f" from {least}" + ("" if most == math.inf else f" to {most}")
        message = f"{name}={_shown(value)}: expected a {'whole ' if kind is Integral else ''}number{bounds}"
        raise ValueError(message) if is_number else TypeError(message)


def _shown(value: object) -> str:
    return " ".join(repr(value).split())[:100]


def penalty(length: int, alpha: float) -> float:
    """Returns the length penalty ((5 + |Y|) / 6)^alpha (Wu et al. 2016, as used in 6.1)."""
    return float(((5 + length) / 6) ** alpha)
