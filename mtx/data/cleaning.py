"""Pure filters: a pair becomes a cleaned pair, or the reason why it is dropped; and the hashes that find duplicates.

For: training text, pair by pair, tens of millions of them. Not for: validation and test text, which is used as given
(`clean_pair` may only count there). Flow: sources -> cleaning -> tokenizer -> store; `prepare` drives it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

EMPTY, TOO_LONG, RATIO, IDENTICAL, CONTROL, DUPLICATE = REASONS = (
    "empty",
    "too long",
    "length ratio",
    "identical",
    "control characters",
    "duplicate",
)

MAX_PIECE_CHARS = 16  # SentencePiece's own default, max_sentencepiece_length

# What some program takes for the end of a line, and TAB and US: white space that is no text.
_SEPARATORS = re.compile("[\t-\r\x1c-\x1f\x85\u2028\u2029]")
# What `_SEPARATORS` leaves of Unicode's Cc, lone surrogates, and what invalid UTF-8 was read as.
_DAMAGE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")
# Any character but white space, controls, and Unicode's Default_Ignorable_Code_Point; U+2800 is the empty Braille cell.
_VISIBLE = re.compile(
    "[^\\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True)
class Limits:
    """What a training pair may be: `max_tokens` pieces a side, and `max_length_ratio` (see `clean_pair`)."""

    max_tokens: int
    max_length_ratio: float


def clean_text(text: str) -> str:
    """The text with line separators and control white space as spaces, and no spaces at its ends.

    Everything else is text and stays: joiners, no-break spaces, bidi marks, emoji, and damage for `clean_pair` to find.
    """
    if not text.isprintable():  # a printable text has no separators: several times faster than searching for them
        text = _SEPARATORS.sub(" ", text)
    return text.strip(" ")


def clean_pair(src: str, tgt: str, limits: Limits) -> tuple[str, str] | str:
    """The cleaned pair, or the one of `REASONS` for which it is dropped: the first that holds, in this order.

    empty: a side has no visible character. control characters: a side holds a control, a lone surrogate or U+FFFD.
    too long: a side has so many characters that it exceeds `max_tokens` pieces however it is cut. identical: both sides
    are equal. length ratio: (longer + 10) / (shorter + 10) in UTF-8 bytes exceeds `max_length_ratio`.
    """
    src, tgt = clean_text(src), clean_text(tgt)
    if not (_VISIBLE.search(src) and _VISIBLE.search(tgt)):
        return EMPTY
    if _is_damaged(src) or _is_damaged(tgt):
        return CONTROL
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
    if text.isprintable():  # which U+FFFD is
        return "\ufffd" in text
    return _DAMAGE.search(text) is not None


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """A 64-bit BLAKE2b hash of each text, the same on every machine and in every run."""
    return _hashes(map(_utf8, texts))


def pair_hashes(src: Iterable[str], tgt: Iterable[str]) -> NDArray[np.uint64]:
    """A 64-bit BLAKE2b hash of each pair; the byte between the sides never occurs in UTF-8.

    Raises:
        ValueError: where the sides have different lengths.
    """
    return _hashes(_utf8(a) + b"\xff" + _utf8(b) for a, b in zip(src, tgt, strict=True))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hashes(texts: Iterable[bytes]) -> NDArray[np.uint64]:
    digests = b"".join([blake2b(text, digest_size=8).digest() for text in texts])
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


class SeenHashes:
    """A growing set of 64-bit hashes: 8 bytes each, 16 while the largest arrays are merged.

    The hashes lie in sorted arrays, each at least twice as long as the next. What is added becomes the last array and
    swallows those before it that are too short: as in a binary counter, a hash is moved about log2(n) times.
    """

    def __init__(self) -> None:
        self._levels: list[NDArray[np.uint64]] = []

    def __len__(self) -> int:
        return sum(level.size for level in self._levels)

    def contains(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each hash is in the set."""
        found = np.zeros(hashes.shape, np.bool_)
        for level in self._levels:
            index = np.searchsorted(level, hashes)
            index[index == level.size] = 0
            found |= level[index] == hashes
        return found

    def add(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Add hashes; True where one was not in the set before and is the first of its kind within `hashes`."""
        distinct, first = np.unique(hashes, return_index=True)
        is_new = ~self.contains(distinct)
        added = np.zeros(hashes.shape, np.bool_)
        added[first[is_new]] = True
        self._insert(distinct[is_new])
        return added

    def _insert(self, new: NDArray[np.uint64]) -> None:
        if not new.size:
            return
        runs, size = [new], new.size
        while self._levels and self._levels[-1].size < 2 * size:
            runs.append(self._levels.pop())
            size += runs[-1].size
        merged = np.concatenate(runs) if len(runs) > 1 else new
        del runs  # before sorting, which takes memory of its own
        merged.sort(kind="stable")  # timsort: merges sorted runs in linear time
        self._levels.append(merged)
