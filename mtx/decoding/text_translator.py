"""Translates lines of text with any engine: clean, encode, search, decode, in the order of the input.

Each input line gives exactly one output line: line breaks inside a line become spaces, an empty line stays empty, and a
source that is longer than the model's limit is translated in parts. This module does not need torch; the engines are
`mtx.decoding.translator` (torch) and `mtx.decoding.ctranslate2_engine`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtx.data.cleaning import clean_text
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.options import Candidate, SearchOptions
from mtx.errors import DataError

_FEW_SENTENCES = 64  # for fewer, starting threads takes longer than it saves

Splitter = Callable[[str], list[str]]


@dataclass(frozen=True)
class Hypothesis:
    """One translation: text without line breaks, score after the length penalty, and pieces."""

    text: str
    score: float
    pieces: list[str]


class TextTranslator(ABC):
    """Translates lines of text; a subclass, the engine, implements `decode` on token ids.

    Args:
        max_tokens: the longest source, in pieces with `</s>`, that is translated as a whole.
        src, tgt: the languages, for messages and scores.
        num_tgt_positions: the most tokens of a translation, `</s>` included; None means any number.
        splitter: splits a line into sentences, whose translations are joined again; None leaves lines whole.

    Attributes:
        is_checked: whether a search that needs more memory than is free is refused; see `mtx.decoding.memory_check`.
    """

    is_checked = False

    def __init__(
        self, tokenizer: Tokenizer, max_tokens: int, options: SearchOptions, *, num_tgt_positions: int | None,
        src: str = "src", tgt: str = "tgt", splitter: Splitter | None = None,
    ):  # fmt: skip
        self.tokenizer, self.max_tokens, self.options = tokenizer, max_tokens, options
        self.num_tgt_positions = num_tgt_positions
        self.src, self.tgt, self.splitter = src, tgt, splitter

    @abstractmethod
    def decode(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> list[list[Candidate]]:
        """Returns the hypotheses of each source, at least one, best first; samples are in the order of drawing.

        Args:
            sources: token ids, each ending in `</s>`, at most max_tokens.
            prefixes: for each source the target ids that its translations must begin with, without `</s>`.
        """

    def translate(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[str]:
        """Returns one translation per line, in order; an empty line gives an empty line."""
        return [hypotheses[0].text for hypotheses in self.hypotheses(lines, prefixes)]

    def hypotheses(
        self, lines: Sequence[str], prefixes: Sequence[str] | None = None, first: int = 1, name: str = "prefix"
    ) -> list[list[Hypothesis]]:
        """Returns the finished hypotheses of each line: one to beam_size, best first.

        A line translated in parts has one hypothesis: the best of each part joined, with the sum of their scores.

        Args:
            prefixes: for each line the text that its translations must begin with.
            first: number of the first line, for messages.
            name: how messages call a prefix, before its number.

        Raises:
            DataError: the model has no positions for a prefix and a token after it; nothing was translated.
        """
        parts = self.split(lines)
        prefix_ids = self._prefix_ids(parts, prefixes, first, name)
        by_part = iter(self._decode_parts([ids for line_parts in parts for ids in line_parts], prefix_ids))
        results = []
        for line_parts in parts:
            hypotheses = [next(by_part) for _ in line_parts]
            results.append(hypotheses[0] if len(hypotheses) == 1 else [_join([part[0] for part in hypotheses])])
        return results

    def split(self, lines: Sequence[str]) -> list[list[list[int]]]:
        """Returns the ids of each line, in parts of at most max_tokens; an empty line has no parts."""
        texts = [clean_text(line) for line in lines]
        sentences = [self.splitter(text) if self.splitter and text else [text] for text in texts]
        flat = [sentence for line_sentences in sentences for sentence in line_sentences]
        ids = iter(self.tokenizer.encode(flat, num_threads=-1 if len(flat) > _FEW_SENTENCES else 1))
        return [[part for _ in line_sentences for part in self._parts(next(ids))] for line_sentences in sentences]

    def _parts(self, ids: list[int]) -> list[list[int]]:
        body, end, width = ids[:-1], ids[-1:], self.max_tokens - 1
        return [body[i : i + width] + end for i in range(0, len(body), width)]

    def _prefix_ids(
        self, parts: list[list[list[int]]], prefixes: Sequence[str] | None, first: int, name: str
    ) -> list[list[int]]:
        """Returns the prefix of every part in target ids: only the first part of a line has one."""
        texts = ["" for _ in parts] if prefixes is None else [clean_text(prefix) for prefix in prefixes]
        ids = self.tokenizer.encode(texts, target=True, num_threads=1) if any(texts) else [[] for _ in texts]
        check_lengths(ids, self.num_tgt_positions, name, first)
        return [
            line_ids[:-1] if number == 0 else []
            for line_parts, line_ids in zip(parts, ids, strict=True)
            for number in range(len(line_parts))
        ]

    def _decode_parts(self, sources: list[list[int]], prefixes: list[list[int]]) -> list[list[Hypothesis]]:
        decoded = self.decode(sources, prefixes)
        texts = iter(self.tokenizer.decode([candidate.ids for candidates in decoded for candidate in candidates]))
        return [
            [Hypothesis(next(texts), c.score, self.tokenizer.pieces(c.ids)) for c in candidates]
            for candidates in decoded
        ]


def check_lengths(sentences: Sequence[list[int]], limit: int | None, name: str, first: int = 1) -> None:
    """Raises a DataError that names the first sentence of more than `limit` pieces; `first` is the first number."""
    for number, ids in enumerate(sentences, start=first):
        if limit is not None and len(ids) > limit:
            raise DataError(f"{name} {number} has {len(ids)} pieces, the model takes {limit}")


def _join(parts: list[Hypothesis]) -> Hypothesis:
    text = " ".join(part.text for part in parts if part.text)
    return Hypothesis(text, sum(part.score for part in parts), [piece for part in parts for piece in part.pieces])
