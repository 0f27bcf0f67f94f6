"""The options and results of a search, shared by the torch engine and the CTranslate2 engine. No torch here."""

from dataclasses import dataclass

EXTRA_LENGTH = 50  # 6.1: the maximum output length is the source length + 50


@dataclass(frozen=True)
class Sampling:
    """Options for drawing translations at random instead of searching for the best.

    Attributes:
        num_samples: number of translations of each source.
        temperature: logits are divided by it; below 1 the distribution is sharper, above 1 flatter.
        top_k: draw only from this number of the most probable tokens; 0 means all.
        top_p: after `top_k`, draw only from the smallest set of tokens whose probabilities sum to at least this
            (nucleus sampling, Holtzman et al. 2020).
        seed: a sample depends only on the seed, the source and the number of the sample.
    """

    num_samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        beam_size: 1 is greedy search.
        length_penalty: alpha of ((5 + |Y|) / 6)^alpha.
        max_length: most target tokens, `</s>` included; None means the source's number of tokens + 50.
        sampling: None means beam search.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    max_length: int | None = None
    sampling: Sampling | None = None

    def limit(self, source: list[int], prefix: list[int]) -> int:
        """Returns the most target tokens, `</s>` included, of a translation of `source`; the prefix always fits."""
        limit = len(source) + EXTRA_LENGTH if self.max_length is None else self.max_length
        return max(limit, len(prefix) + 1)


@dataclass(frozen=True)
class Candidate:
    """A finished hypothesis: its token ids, `</s>` included, and its score after the length penalty."""

    ids: list[int]
    score: float


def penalty(length: int, alpha: float) -> float:
    """Returns the length penalty ((5 + |Y|) / 6)^alpha (Wu et al. 2016, as used in 6.1)."""
    return float(((5 + length) / 6) ** alpha)
