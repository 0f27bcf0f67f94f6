"""What a search is asked for, and what it gives: the words that all engines share. No torch here."""

from dataclasses import dataclass

EXTRA_LENGTH = 50  # 6.1: maximum output length is source length + 50


@dataclass(frozen=True)
class Sampling:
    """Draw translations from the model instead of searching for the best.

    Attributes:
        num_samples: translations drawn for each source.
        temperature: logits are divided by it; below 1 sharper, above 1 flatter.
        top_k: only the so many most probable tokens are drawn from; 0 means all.
        top_p: only the fewest tokens that hold this probability together are drawn from (nucleus sampling, Holtzman
            et al. 2020); after `top_k`.
        seed: what is drawn depends on it, on the source and on the number of the sample, and on nothing else.
    """

    num_samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1


@dataclass(frozen=True)
class SearchOptions:
    """How to search.

    Attributes:
        beam_size: 1 is greedy search.
        length_penalty: alpha of ((5 + |Y|) / 6)^alpha.
        max_length: target tokens with `</s>`; None means those of the source + 50.
        sampling: None means beam search.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    max_length: int | None = None
    sampling: Sampling | None = None

    def limit(self, source: list[int], prefix: list[int]) -> int:
        """The most target tokens, `</s>` included, that the translation of `source` may have: room for the prefix."""
        limit = len(source) + EXTRA_LENGTH if self.max_length is None else self.max_length
        return max(limit, len(prefix) + 1)


@dataclass(frozen=True)
class Candidate:
    """One finished hypothesis: its tokens, `</s>` included, and its penalised score."""

    ids: list[int]
    score: float


def penalty(length: int, alpha: float) -> float:
    """((5 + |Y|) / 6)^alpha (Wu et al. 2016, as 6.1 uses it)."""
    return float(((5 + length) / 6) ** alpha)
