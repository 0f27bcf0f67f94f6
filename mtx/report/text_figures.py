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
_MARGIN = 5.0  # nats by which each side looks more like the other language
_SPREAD = 1.0  # pieces; if the lengths of a side vary less, their correlation tells nothing
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class TextFigures:
    """Both languages of a set.

    Attributes:
        unknown: of source and target, the share of the words with a piece that is `<unk>` or a single byte.
        swapped: share of the pairs whose sides look exchanged, by the pieces of the training text's sides.
        alike: correlation of the two sides' lengths in pieces; 1 if the lengths of a side hardly vary.
    """

    pairs: int
    unknown: list[float]
    swapped: float
    alike: float


def stores_of(data: PreparedData) -> dict[str, TokenStore]:
    """The store of each set, by the name that warnings use: train, valid, test.NAME."""
    return {"train": data.train, "valid": data.valid, **{f"test.{name}": store for name, store in data.tests.items()}}


def text_figures(data: PreparedData) -> dict[str, TextFigures]:
    """The figures of each set, by the names of `stores_of`."""
    src_log, tgt_log = (_log_frequencies(side, data.train) for side in (data.train.src, data.train.tgt))
    return {name: _figures(store, data.tokenizer, tgt_log - src_log) for name, store in stores_of(data).items()}


def _figures(store: TokenStore, tokenizer: Tokenizer, log_odds: NDArray[np.float64]) -> TextFigures:
    """The figures of a set.

    Args:
        log_odds: for each id, the log of how much likelier it is in the target than in the source of the training text.
    """
    rows = spread(store.num_pairs, _MAX_PAIRS)
    unknown = [_unknown_words(side, rows, tokenizer) for side in (store.src, store.tgt)]
    src_odds, tgt_odds = (_sums(side, rows, log_odds) for side in (store.src, store.tgt))
    swapped = float(((src_odds > _MARGIN) & (tgt_odds < -_MARGIN)).mean())
    src_lengths, tgt_lengths = (side.lengths[rows].astype(np.float64) for side in (store.src, store.tgt))
    is_even = min(src_lengths.std(), tgt_lengths.std()) < _SPREAD
    alike = 1.0 if is_even else float(np.corrcoef(src_lengths, tgt_lengths)[0, 1])
    return TextFigures(store.num_pairs, unknown, swapped, alike)


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


def _log_frequencies(side: Side, train: TokenStore) -> NDArray[np.float64]:
    """The log of each id's share of a side of the training text; each id counts once more, so that no share is zero."""
    counts = np.bincount(_ids(side, spread(train.num_pairs, _MAX_PAIRS))[0], minlength=train.num_ids) + 1
    shares: NDArray[np.float64] = np.log(counts / counts.sum())
    return shares


def _sums(side: Side, rows: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each sentence, the sum of the values of its ids."""
    ids, _ = _ids(side, rows)
    sentence = np.arange(len(rows)).repeat(side.lengths[rows] - 1)
    return np.bincount(sentence, values[ids], minlength=len(rows)).astype(np.float64)
