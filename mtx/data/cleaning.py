"""Filters for training pairs: a pair is cleaned, or dropped for a reason. Also the hashes that find duplicates.

These functions are pure and run on tens of millions of pairs, one by one. Validation and test sets are not filtered;
pairs that `clean_pair` would drop there are only counted.
Flow: sources -> cleaning -> tokenizer -> token store, driven by `prepare`.
"""

import re
import unicodedata
from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mtx.config.schema import DataConfig
from mtx.data.markup import clean_text
from mtx.storage.text_files import is_utf8

Hashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]  # of pairs

TOO_LONG = "too long"
NOT_UTF8 = "not UTF-8"

# Two digits or more; decades and ordinals are often written as words. It begins nowhere else, to be linear in time.
_NUMBER = re.compile(r"(?<!\d)(?<!\d[.,])\d(?:[.,]?\d)++(?!s|nd|rd|th)")

# What pandas and spreadsheets write into a cell whose value is missing or an error: 1.#IND, Err:502, #DIV/0!
_MISSING = frozenset(
    ["nan", "-nan", "nat", "<na>", "n/a", "null", "(null)", "\\n", "none", "#n/a", "#n/a n/a", "#na", "#nv", "#n/d"]
)
_ERROR_VALUE = re.compile(r"-?1\.#\w{1,9}|[Ee]rr:\d{3}|#[^\sa-z]{2,12}[!?]")

MAX_PIECE_CHARS = 16  # SentencePiece's own default, max_sentencepiece_length

# Control characters of Unicode (Cc), lone surrogates, and U+FFFD, which programs write for unreadable bytes.
_DAMAGE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")
# Any character except white space, controls, Unicode's Default_Ignorable_Code_Point and the empty Braille cell, U+2800.
_VISIBLE = re.compile(
    "[^\\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def clean_pair(src: str, tgt: str, data: DataConfig) -> tuple[str, str] | str:
    """The cleaned pair, or the first reason to drop it, in this order.

    empty: a side has no visible character. not UTF-8: a side has bytes that are not UTF-8, which the readers escape.
    control characters: a side has a control, another lone surrogate or U+FFFD. too long: a side has too many characters
    for `max_tokens` pieces of the largest size. identical: both sides are equal. length ratio: (longer + 10) /
    (shorter + 10) in UTF-8 bytes exceeds `max_length_ratio`.
    """
    src = clean_text(src)
    tgt = clean_text(tgt)
    if not (_VISIBLE.search(src) and _VISIBLE.search(tgt)):
        return "empty"
    if _is_damaged(src) or _is_damaged(tgt):
        return "control characters" if is_utf8(src) and is_utf8(tgt) else NOT_UTF8
    if max(len(src), len(tgt)) > MAX_PIECE_CHARS * data.max_tokens:
        return TOO_LONG
    if src == tgt:
        return "identical"
    sizes = len(src.encode()) + 10, len(tgt.encode()) + 10
    if max(sizes) > data.max_length_ratio * min(sizes):
        return "length ratio"
    return src, tgt


def is_missing_value(text: str) -> bool:
    """Whether a text is all that a program writes into a cell for a missing value; a None may be a translation."""
    if len(text) > 16:
        return False
    text = text.strip()
    return text == "NA" or text.casefold() in _MISSING or _ERROR_VALUE.fullmatch(text) is not None


def omission(src: str, tgt: str) -> Literal["short", "numbers"] | None:
    """What the target of a pair probably omits; None for nothing. No training pair is dropped for it.

    short: it has a few characters for a whole sentence. numbers: the source has a number of at least two digits that it
    lacks, in digits of any script and with any separators.
    """
    if len(src) > 8 * len(tgt) + 16:
        return "short"
    digits = _digits(tgt)
    return None if all(number in digits for number in map(_digits, _NUMBER.findall(src))) else "numbers"


def _digits(text: str) -> str:
    return "".join(str(int(c)) for c in text if c.isdecimal())


def _is_damaged(text: str) -> bool:
    if text.isprintable():  # U+FFFD is printable too
        return "\ufffd" in text
    return _DAMAGE.search(text) is not None


def hash_texts(texts: Iterable[str]) -> Hashes:
    """A 64-bit BLAKE2b hash of each text in NFC, the same on every machine, in every run and in every spelling."""
    spellings = (unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass") for text in texts)
    digests = b"".join([blake2b(spelling, digest_size=8).digest() for spelling in spellings])
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def hash_pairs(src: Hashes, tgt: Hashes) -> Hashes:
    """A 64-bit hash of each pair, from the hashes of its sides; the factor tells them apart."""
    return src * np.uint64(0x9E3779B97F4A7C15) + tgt


def choose_translations(src: Hashes, tgt: Hashes, dates: Hashes, files: Hashes) -> NDArray[np.intp]:
    """For each pair, the number of the pair with its source to learn from.

    It is the latest one; of equal dates the one that most files have; and of those the last.

    Args:
        src, tgt: the hashes of the sides.
        files: the number or hash of the file of each.
    """
    _, pairs = np.unique(hash_pairs(src, tgt), return_inverse=True)
    # Numbered, not hashed: `hash_pairs` uses one factor for both, and different pairs would collide
    file_values, file_numbers = np.unique(files, return_inverse=True)
    pairs_in_files = np.unique(pairs * file_values.size + file_numbers)  # a number for a pair and one of its files
    num_files_by_pair = np.bincount(pairs_in_files // file_values.size)
    # `lexsort` sorts by its last key, then by the others, and keeps the order of equal ones; then all is reversed
    best_first = np.lexsort((num_files_by_pair[pairs], dates))[::-1]
    _, first_places, sources = np.unique(src[best_first], return_index=True, return_inverse=True)
    choices = np.empty(src.size, np.intp)
    choices[best_first] = best_first[first_places[sources]]
    return choices


def find_first(hashes: Hashes) -> Mask:
    """Whether each hash is the first of its value."""
    is_first = np.zeros(hashes.size, np.bool_)
    is_first[np.unique(hashes, return_index=True)[1]] = True
    return is_first
