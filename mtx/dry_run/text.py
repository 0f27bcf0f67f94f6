"""What prepared text looks like: pieces, words without a piece of their own, lengths, sides that are exchanged.

For: figures that tell a person whether the text is what it should be. Not for: dropping any of it, which is
`mtx.data.cleaning`'s. Flow: stores + tokenizer -> `TextFigures` -> report and advice.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtx.data.token_store import Side, TokenStore
from mtx.data.tokenizer import UNK_ID, Tokenizer

_MAX_PAIRS = 100_000  # so many, evenly spread, stand for a larger set
_SHORTEST_BIN = 4
_SPREAD = 1.0  # pieces by which lengths must differ for them to tell anything
_MARGIN = 5.0  # nats by which each side of a pair is likelier the other language
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class SideFigures:
    """One language of a set.

    Attributes:
        pieces_per_word: `</s>` not counted; a word is what stands between spaces.
        unknown_words: share of the words with a piece that is `<unk>` or a single byte.
        lengths: pairs by the pieces of this side, `</s>` included: at most 4, 8, 16 and so on up to the longest.
    """

    pieces_per_word: float
    unknown_words: float
    lengths: list[int]


@dataclass(frozen=True)
class TextFigures:
    """Both languages of a set.

    Attributes:
        swapped: share of the pairs whose sides look exchanged, by the pieces of the training text's sides.
        alike: correlation of the two sides' lengths in pieces; 1 where all of a side are as long as each other.
    """

    pairs: int
    src: SideFigures
    tgt: SideFigures
    swapped: float
    alike: float


def text_figures(store: TokenStore, tokenizer: Tokenizer, train: TokenStore) -> TextFigures:
    """The figures of a set; `train` is the training text, which tells what each side's pieces are."""
    rows = spread(store.num_pairs, _MAX_PAIRS)
    src, tgt = (side_figures(side, rows, tokenizer) for side in (store.src, store.tgt))
    return TextFigures(store.num_pairs, src, tgt, swapped_share(train, store, rows), _alike(store, rows))


def _alike(store: TokenStore, rows: NDArray[np.int64]) -> float:
    src, tgt = (side.lengths[rows].astype(np.float64) for side in (store.src, store.tgt))
    return 1.0 if min(src.std(), tgt.std()) < _SPREAD else float(np.corrcoef(src, tgt)[0, 1])


def spread(number: int, most: int) -> NDArray[np.int64]:
    """At most so many of the places 0 to `number` - 1, evenly."""
    size = min(number, most)
    return np.arange(size) * number // max(size, 1)


def side_figures(side: Side, rows: NDArray[np.int64], tokenizer: Tokenizer) -> SideFigures:
    """The figures of one side; `rows` stand for all in what is told of words."""
    pieces = tokenizer.vocabulary()
    begins_word = np.array([piece.startswith("▁") for piece in pieces])
    is_unknown = np.array([bool(_BYTE_PIECE.fullmatch(piece)) for piece in pieces])
    is_unknown[UNK_ID] = True
    ids, first = _ids(side, rows)
    is_text = ids < tokenizer.num_pieces  # a tag is no text
    ids, first = ids[is_text], first[is_text]
    word = (begins_word[ids] | first).cumsum()
    num_words = int(word[-1]) if len(word) else 0
    num_unknown = len(np.unique(word[is_unknown[ids]]))
    share = num_unknown / max(num_words, 1)
    return SideFigures(len(ids) / max(num_words, 1), share, length_counts(side.lengths))


def length_counts(lengths: NDArray[np.int32]) -> list[int]:
    """How many are at most 4, 8, 16 and so on, each counted once, up to the longest."""
    bins = np.ceil(np.log2(np.maximum(lengths, _SHORTEST_BIN) / _SHORTEST_BIN)).astype(np.int64)
    return [int(count) for count in np.bincount(bins)]


def length_labels(number: int) -> list[str]:
    """What the counts of `length_counts` are of: 1-4, 5-8, 9-16."""
    ends = [_SHORTEST_BIN << place for place in range(number)]
    return [f"{1 if place == 0 else ends[place - 1] + 1}-{end}" for place, end in enumerate(ends)]


def _ids(side: Side, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The ids of these sentences end to end, without `</s>`, and where each sentence begins."""
    lengths = side.lengths[rows].astype(np.int64) - 1
    starts = lengths.cumsum() - lengths
    index = (side.starts[rows] - starts).repeat(lengths) + np.arange(lengths.sum())
    first = np.zeros(len(index), np.bool_)
    first[starts[lengths > 0]] = True
    return side.tokens[index].astype(np.int64), first


def swapped_share(train: TokenStore, store: TokenStore, rows: NDArray[np.int64]) -> float:
    """The share of these pairs in which each side is likelier the other language, by far.

    Likely means the product of the frequencies that a sentence's pieces have in each side of the training text.
    """
    of_src, of_tgt = (_log_frequencies(side, train) for side in (train.src, train.tgt))
    log_odds = of_tgt - of_src
    src, tgt = (_sums(side, rows, log_odds) for side in (store.src, store.tgt))
    return float(((src > _MARGIN) & (tgt < -_MARGIN)).mean())


def _log_frequencies(side: Side, train: TokenStore) -> NDArray[np.float64]:
    """The log of the share that each id has in a side of the training text, with one more of each."""
    counts = np.bincount(_ids(side, spread(train.num_pairs, _MAX_PAIRS))[0], minlength=train.num_ids) + 1
    found: NDArray[np.float64] = np.log(counts / counts.sum())
    return found


def _sums(side: Side, rows: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of the values of each sentence's ids."""
    ids, first = _ids(side, rows)
    sentence = np.arange(len(rows)).repeat(side.lengths[rows] - 1)
    return np.bincount(sentence, values[ids], minlength=len(rows)).astype(np.float64)
