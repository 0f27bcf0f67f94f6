"""Figures of a prepared text: unknown words, and how far its two sides belong together and are in order.

They are of the pieces in the token stores, and `mtx.report.checks` judges them.
Flow: prepared data -> `TextFigures` by set.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtx.data.token_store import PreparedData, Side, TokenStore
from mtx.data.tokenizer import UNK_ID, Tokenizer

_MAX_PAIRS = 20_000  # a larger set is judged by this number of its pairs, evenly spread
_SPREAD = 1.0  # pieces; if the lengths of a side vary less, their correlation tells nothing
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class TextFigures:
    """Both languages of a set.

    Attributes:
        unknown: of source and target, the share of the words with a piece that is `<unk>` or a single byte.
        alike: correlation of the two sides' lengths in pieces; 1 if the lengths of a side hardly vary.
    """

    pairs: int
    unknown: list[float]
    alike: float


def stores_of(data: PreparedData) -> dict[str, TokenStore]:
    """The store of each set, by the name that warnings use: train, valid, test.NAME."""
    return {"train": data.train, "valid": data.valid, **{f"test.{name}": store for name, store in data.tests.items()}}


def text_figures(data: PreparedData) -> dict[str, TextFigures]:
    """The figures of each set, by the names of `stores_of`."""
    return {name: _figures(store, data.tokenizer) for name, store in stores_of(data).items()}


def _figures(store: TokenStore, tokenizer: Tokenizer) -> TextFigures:
    rows = spread(store.num_pairs, _MAX_PAIRS)
    unknown = [_unknown_words(side, rows, tokenizer) for side in (store.src, store.tgt)]
    src_lengths, tgt_lengths = (side.lengths[rows].astype(np.float64) for side in (store.src, store.tgt))
    is_even = min(src_lengths.std(), tgt_lengths.std()) < _SPREAD
    alike = 1.0 if is_even else float(np.corrcoef(src_lengths, tgt_lengths)[0, 1])
    return TextFigures(store.num_pairs, unknown, alike)


def spread(number: int, most: int) -> NDArray[np.int64]:
    """At most `most` of the numbers 0 to `number` - 1, evenly spread."""
    size = min(number, most)
    return np.arange(size) * number // max(size, 1)


def _unknown_words(side: Side, rows: NDArray[np.int64], tokenizer: Tokenizer) -> float:
    """The share of unknown words in these sentences of a side; words are separated by spaces."""
    pieces = tokenizer.vocabulary()
    begins_word = np.array([piece.startswith("▁") for piece in pieces])
    is_unknown = np.array([bool(_BYTE_PIECE.fullmatch(piece)) for piece in pieces])
    is_unknown[UNK_ID] = True
    ids, first = _ids(side, rows)
    is_text = ids < tokenizer.num_pieces  # without tags
    ids, first = ids[is_text], first[is_text]
    word = (begins_word[ids] | first).cumsum()
    num_words = max(1, int(word[-1]) if len(word) else 0)
    return len(np.unique(word[is_unknown[ids]])) / num_words


def _ids(side: Side, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The ids of these sentences end to end, without `</s>`, and for each id whether a sentence begins with it."""
    lengths = side.lengths[rows].astype(np.int64) - 1
    starts = lengths.cumsum() - lengths
    index = (side.starts[rows] - starts).repeat(lengths) + np.arange(lengths.sum())
    first = np.zeros(len(index), np.bool_)
    first[starts[lengths > 0]] = True
    return side.tokens[index].astype(np.int64), first
