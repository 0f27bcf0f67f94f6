"""Lines to lines with any engine: clean text, ids, search, detokenised lines in the order they came.

One line in, one line out, whatever the line holds: line breaks inside become spaces, an empty line stays empty, a
source longer than the model's limit is translated in parts. No torch here: an engine brings its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtx.data.cleaning import clean_text
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.options import Candidate, SearchOptions

_FEW_SENTENCES = 64  # for which starting threads takes longer than it saves

Splitter = Callable[[str], list[str]]


@dataclass(frozen=True)
class Hypothesis:
    """One translation: text without line breaks, penalised score, and its pieces."""

    text: str
    score: float
    pieces: list[str]


class TextTranslator(ABC):
    """Translates lines of text; an engine says how token ids are decoded.

    Args:
        max_tokens: longest source, in pieces with `</s>`, that goes through the model in one piece.
        src, tgt: the languages, for messages and scores.
        splitter: cuts a line into sentences that are translated one by one and joined again; None leaves lines whole.

    Attributes:
        is_checked: a search for which memory would be short is refused, see `mtx.decoding.memory_check`.
    """

    is_checked = False

    def __init__(
        self, tokenizer: Tokenizer, max_tokens: int, options: SearchOptions, *, src: str = "src", tgt: str = "tgt",
        splitter: Splitter | None = None,
    ):  # fmt: skip
        self.tokenizer, self.max_tokens, self.options = tokenizer, max_tokens, options
        self.src, self.tgt, self.splitter = src, tgt, splitter

    @abstractmethod
    def decode(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> list[list[Candidate]]:
        """The hypotheses of each source, best first (of samples: as drawn), at least one.

        Args:
            sources: token ids, each ending in `</s>`, at most max_tokens.
            prefixes: for each source the target ids that its translations begin with, without `</s>`; often none.
        """

    def translate(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[str]:
        """One translation per line, in order; an empty line gives an empty line."""
        return [hypotheses[0].text for hypotheses in self.hypotheses(lines, prefixes)]

    def hypotheses(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[list[Hypothesis]]:
        """The finished hypotheses of each line, at most beam_size, best first, always at least one.

        A line that had to be translated in parts has one, the parts' best joined, with the sum of their scores.

        Args:
            prefixes: for each line the text that its translations begin with.
        """
        parts = self._split(lines)
        forced = self._forced(parts, prefixes)
        found = iter(self._found([ids for line_parts in parts for ids in line_parts], forced))
        results = []
        for line_parts in parts:
            candidates = [next(found) for _ in line_parts]
            results.append(candidates[0] if len(candidates) == 1 else [_join([c[0] for c in candidates])])
        return results

    def split(self, line: str) -> list[list[int]]:
        """The ids of a line, in parts of at most max_tokens; none for a line with nothing to say."""
        return self._split([line])[0]

    def _split(self, lines: Sequence[str]) -> list[list[list[int]]]:
        """The parts of each line; all are encoded in one call."""
        texts = [clean_text(line) for line in lines]
        sentences = [self.splitter(text) if self.splitter and text else [text] for text in texts]
        flat = [sentence for of_line in sentences for sentence in of_line]
        ids = iter(self.tokenizer.encode(flat, num_threads=-1 if len(flat) > _FEW_SENTENCES else 1))
        return [[part for _ in of_line for part in self._parts(next(ids))] for of_line in sentences]

    def _parts(self, ids: list[int]) -> list[list[int]]:
        body, end, width = ids[:-1], ids[-1:], self.max_tokens - 1
        return [body[i : i + width] + end for i in range(0, len(body), width)]

    def _forced(self, parts: list[list[list[int]]], prefixes: Sequence[str] | None) -> list[list[int]]:
        """The forced target ids of every part: those of its line for the first, none for the others."""
        texts = ["" for _ in parts] if prefixes is None else [clean_text(prefix) for prefix in prefixes]
        ids = self.tokenizer.encode(texts, target=True, num_threads=1) if any(texts) else [[] for _ in texts]
        return [
            line_ids[:-1] if number == 0 else []
            for line_parts, line_ids in zip(parts, ids, strict=True)
            for number in range(len(line_parts))
        ]

    def _found(self, sources: list[list[int]], prefixes: list[list[int]]) -> list[list[Hypothesis]]:
        found = self.decode(sources, prefixes)
        texts = iter(self.tokenizer.decode([candidate.ids for sentence in found for candidate in sentence]))
        return [
            [Hypothesis(next(texts), c.score, self.tokenizer.pieces(c.ids)) for c in sentence] for sentence in found
        ]


def _join(parts: list[Hypothesis]) -> Hypothesis:
    text = " ".join(part.text for part in parts if part.text)
    return Hypothesis(text, sum(part.score for part in parts), [piece for part in parts for piece in part.pieces])
