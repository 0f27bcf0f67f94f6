"""What is done with one block of training pairs, in whichever process: cleaning, hashing, encoding.

For: all that needs nothing but the block. Not for: duplicates, held-out pairs and counts, which need the whole text and
are `prepare`'s. Flow: `PairBlock` -> `clean_block` -> temporary text -> `encode_block` -> store.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mtx.data.cleaning import Limits, clean_pair, pair_hashes, text_hashes
from mtx.data.corpora import PairBlock
from mtx.data.text_batches import text_batch
from mtx.data.token_store import store_batch
from mtx.data.tokenizer import Tokenizer


@dataclass
class Dropped:
    """How many pairs were dropped for one reason, and the first of them."""

    count: int
    line: int
    src: str
    tgt: str


@dataclass(frozen=True)
class CleanBlock:
    """The pairs of a block that pass every filter; `text` and both arrays of hashes have one item each."""

    corpus: int
    num_read: int
    text: Any
    pair_hashes: NDArray[np.uint64]
    src_hashes: NDArray[np.uint64]
    dropped: dict[str, Dropped]


def clean_block(block: tuple[int, PairBlock], limits: Limits) -> CleanBlock:
    """Clean the pairs of a corpus, given by its number."""
    corpus, pairs = block
    lines, src, tgt = [], [], []
    dropped: dict[str, Dropped] = {}
    for line, (src_text, tgt_text) in enumerate(zip(pairs.src, pairs.tgt, strict=True), pairs.first_line):
        cleaned = clean_pair(src_text, tgt_text, limits)
        if isinstance(cleaned, str):
            dropped.setdefault(cleaned, Dropped(0, line, src_text, tgt_text)).count += 1
        else:
            lines.append(line)
            src.append(cleaned[0])
            tgt.append(cleaned[1])
    text = text_batch(lines, src, tgt, corpus)
    return CleanBlock(corpus, len(pairs.src), text, pair_hashes(src, tgt), text_hashes(src), dropped)


def source_hashes(block: PairBlock, limits: Limits) -> tuple[int, NDArray[np.uint64]]:
    """The number of pairs, and the hashes of the sources of those that pass every filter."""
    pairs = (clean_pair(*pair, limits) for pair in zip(block.src, block.tgt, strict=True))
    return len(block.src), text_hashes([pair[0] for pair in pairs if not isinstance(pair, str)])


@dataclass(frozen=True)
class EncodedBlock:
    """The pairs of a batch that are not too long, as `store_batch` gives them, with the number of their corpus."""

    corpus: int
    num_read: int
    pairs: Any
    too_long: Dropped | None
    num_src_tokens: int
    num_tgt_tokens: int


def encode_block(
    text: Any, tokenizer: Tokenizer, tags: list[str | None], max_tokens: int, num_threads: int
) -> EncodedBlock:
    """Encode a batch of cleaned text, all of one corpus.

    Args:
        text: a record batch of `TEXT`.
        tokenizer: what encodes it.
        tags: each corpus's, or None.
        max_tokens: the most ids that a side may have.
        num_threads: see `Tokenizer.encode`.
    """
    lines, src, tgt, corpora = (column.to_pylist() for column in text.columns)
    corpus = corpora[0]
    src_ids = tokenizer.encode(src, tags[corpus], num_threads)
    tgt_ids = tokenizer.encode(tgt, num_threads=num_threads, target=True)
    lengths = np.array([[len(ids) for ids in src_ids], [len(ids) for ids in tgt_ids]])
    fits = lengths.max(axis=0) <= max_tokens
    pairs = store_batch(tokenizer.num_ids, src_ids, tgt_ids, *(text[name] for name in ("line", "corpus", "src", "tgt")))
    too_long = np.flatnonzero(~fits)
    first = Dropped(len(too_long), *(column[too_long[0]] for column in (lines, src, tgt))) if len(too_long) else None
    num_src_tokens, num_tgt_tokens = lengths[:, fits].sum(axis=1).tolist()
    kept = pairs.filter(pa.array(fits)) if first else pairs
    return EncodedBlock(corpus, len(src), kept, first, num_src_tokens, num_tgt_tokens)
