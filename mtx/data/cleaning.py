"""Filters for training pairs: a pair is cleaned, or dropped for a reason. Also the hashes that find duplicates.

These functions are pure and run on tens of millions of pairs, one by one. Validation and test text is not filtered;
there, pairs that `clean_pair` would drop are only counted.
Flow: sources -> cleaning -> tokenizer -> token store, driven by `preprocess`.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from mtx.config.schema import DataConfig
from mtx.files.text_files import is_utf8

EMPTY = "empty"
TOO_LONG = "too long"
RATIO = "length ratio"
IDENTICAL = "identical"
CONTROL = "control characters"
NOT_UTF8 = "not UTF-8"
DUPLICATE = "duplicate"
OLDER = "older translation"
HELD_OUT = "source held out"  # pairs of other text with a source that is held out of the own text

MAX_PIECE_CHARS = 16  # SentencePiece's own default, max_sentencepiece_length

# White space that is not text: all characters that some program takes as the end of a line, TAB and US.
_SEPARATORS = re.compile("[\t-\r\x1c-\x1f\x85\u2028\u2029]")
# The rest of Unicode's control characters (Cc), lone surrogates, and U+FFFD, which other programs write for bytes that
# they could not read.
_DAMAGE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")
# Any character except white space, controls, Unicode's Default_Ignorable_Code_Point and the empty Braille cell, U+2800.
_VISIBLE = re.compile(
    "[^\\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True)
class Limits:
    """Limits for a training pair: `max_tokens` pieces a side, and `max_length_ratio` (see `clean_pair`)."""

    max_tokens: int
    max_length_ratio: float

    @classmethod
    def of(cls, data: DataConfig) -> "Limits":
        """The limits of a configuration."""
        return cls(data.max_tokens, data.max_length_ratio)


def clean_text(text: str) -> str:
    """Replace line separators and control white space by spaces, and strip spaces from both ends.

    All other characters stay: joiners, no-break spaces, direction marks, emoji, and the damage that `clean_pair` finds.
    """
    if not text.isprintable():  # printable text has no separators; this test is several times faster
        text = _SEPARATORS.sub(" ", text)
    return text.strip(" ")


def clean_pair(src: str, tgt: str, limits: Limits) -> tuple[str, str] | str:
    """The cleaned pair, or the reason to drop it: the first that holds, in this order.

    empty: a side has no visible character. not UTF-8: a side has bytes that are not UTF-8, which the readers escape.
    control characters: a side has a control, another lone surrogate or U+FFFD. too long: a side has too many characters
    for `max_tokens` pieces of the largest size. identical: both sides are equal. length ratio: (longer + 10) /
    (shorter + 10) in UTF-8 bytes exceeds `max_length_ratio`.
    """
    src, tgt = clean_text(src), clean_text(tgt)
    if not (_VISIBLE.search(src) and _VISIBLE.search(tgt)):
        return EMPTY
    if _is_damaged(src) or _is_damaged(tgt):
        return CONTROL if is_utf8(src) and is_utf8(tgt) else NOT_UTF8
    max_chars = MAX_PIECE_CHARS * limits.max_tokens
    if len(src) > max_chars or len(tgt) > max_chars:
        return TOO_LONG
    if src == tgt:
        return IDENTICAL
    src_size, tgt_size = _num_bytes(src) + 10, _num_bytes(tgt) + 10
    if src_size > limits.max_length_ratio * tgt_size or tgt_size > limits.max_length_ratio * src_size:
        return RATIO
    return src, tgt


def _is_damaged(text: str) -> bool:
    if text.isprintable():  # U+FFFD is printable too
        return "\ufffd" in text
    return _DAMAGE.search(text) is not None


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """A 64-bit BLAKE2b hash of each text in NFC, the same on every machine, in every run and in every spelling."""
    return _hashes(map(_hashed_bytes, texts))


def pair_hashes(src: Iterable[str], tgt: Iterable[str]) -> NDArray[np.uint64]:
    """A 64-bit BLAKE2b hash of each pair in NFC; the byte between the sides never occurs in UTF-8."""
    return _hashes(_hashed_bytes(a) + b"\xff" + _hashed_bytes(b) for a, b in zip(src, tgt, strict=True))


def _hashed_bytes(text: str) -> bytes:
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)  # returns at once what a quick check finds to be in NFC
    return text.encode("utf-8", "surrogatepass")


def _hashes(texts: Iterable[bytes]) -> NDArray[np.uint64]:
    digests = b"".join([blake2b(text, digest_size=8).digest() for text in texts])
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def newest(hashes: NDArray[np.uint64], dates: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each pair whether its date is the latest of the pairs with its source; of equal dates the last pair's is.

    Args:
        hashes: those of the sources.
    """
    order = np.lexsort((dates, hashes))  # stable, so that of equal dates the last pair is last
    in_order = hashes[order]
    is_last = np.append(in_order[1:] != in_order[:-1], True)[: hashes.size]
    are_newest = np.empty(hashes.size, np.bool_)
    are_newest[order] = is_last
    return are_newest


class SeenHashes:
    """A growing set of 64-bit hashes, in 8 bytes each (16 while the largest arrays are merged).

    The hashes are in sorted arrays, each at least twice as long as the next. New hashes become the last array, merged
    with the arrays before it that are then too short. As in a binary counter, a hash moves about log2(n) times.
    """

    def __init__(self) -> None:
        self._levels: list[NDArray[np.uint64]] = []

    def __len__(self) -> int:
        return sum(level.size for level in self._levels)

    def contains(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each hash is in the set."""
        is_member = np.zeros(hashes.shape, np.bool_)
        for level in self._levels:
            index = np.searchsorted(level, hashes)
            index[index == level.size] = 0
            is_member |= level[index] == hashes
        return is_member

    def add(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Add hashes; for each, whether it is new: neither in the set before nor earlier in `hashes`."""
        distinct, first = np.unique(hashes, return_index=True)
        is_new = ~self.contains(distinct)
        added = np.zeros(hashes.shape, np.bool_)
        added[first[is_new]] = True
        self._insert(distinct[is_new])
        return added

    def extremes(self, size: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The `size` smallest and the `size` largest hashes, in order."""
        ends = [np.empty(0, np.uint64)]
        for level in self._levels:
            ends += [level[:size], level[-size:]]
        in_order = np.unique(np.concatenate(ends))
        return in_order[:size], in_order[-size:]

    def _insert(self, new: NDArray[np.uint64]) -> None:
        if not new.size:
            return
        runs, size = [new], new.size
        while self._levels and self._levels[-1].size < 2 * size:
            runs.append(self._levels.pop())
            size += runs[-1].size
        merged = np.concatenate(runs) if len(runs) > 1 else new
        del runs  # before the sort, which needs memory of its own
        merged.sort(kind="stable")  # timsort: merges sorted runs in linear time
        self._levels.append(merged)
