"""Vectors of lines: what the encoder of a model gives for each piece of a line, or the mean of that.

Flow: lines -> the parts that `TextTranslator.split` makes -> `TorchTranslator.source_states` -> numpy. Nothing else is
known of a model, so that every architecture has vectors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from mtx.data.tokenizer import EOS_ID
from mtx.decoding.text_translator import Part
from mtx.decoding.torch_engine import TorchTranslator

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class PieceVectors:
    """The pieces of a line as the model reads them, `</s>` included, and a vector for each, [S, D]."""

    pieces: list[str]
    vectors: Floats


class SentenceEncoder:
    """Gives the vectors of lines.

    A line is encoded as a whole. One with more than max_tokens pieces is encoded in parts, which count by their pieces;
    a line without text has no pieces, and zeros as its mean.

    Args:
        translator: one that leaves lines whole (`split_sentences=False`).
    """

    def __init__(self, translator: TorchTranslator):
        self.translator = translator

    @cached_property
    def size(self) -> int:
        """The number of elements of a vector, D."""
        return len(self.translator.source_states([[EOS_ID]], is_summed=True)[0])

    def of_pieces(self, lines: Sequence[str]) -> list[PieceVectors]:
        """Returns the vectors of the pieces of each line."""
        by_line = self.translator.split(lines)
        states = iter(self.translator.source_states(_ids(by_line)))
        names = self.translator.tokenizer.pieces
        return [
            PieceVectors(
                [piece for part in parts for piece in names(part.ids)],
                np.concatenate([np.empty((0, self.size), np.float32), *islice(states, len(parts))]),
            )
            for parts in by_line
        ]

    def means(self, lines: Sequence[str]) -> Floats:
        """Returns the mean vector of each line over its pieces, [L, D]."""
        by_line = self.translator.split(lines)
        sums = iter(self.translator.source_states(_ids(by_line), is_summed=True))
        means = np.zeros((len(lines), self.size), np.float32)
        for mean, parts in zip(means, by_line, strict=True):
            for _ in parts:
                mean += next(sums)
            mean /= max(1, sum(len(part.ids) for part in parts))
        return means


def _ids(by_line: Iterable[Sequence[Part]]) -> list[list[int]]:
    return [part.ids for parts in by_line for part in parts]
