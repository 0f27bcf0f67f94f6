"""The work on one block of training pairs, in this process or in a worker: cleaning, hashing, encoding.

Between cleaning and encoding, pairs are Arrow record batches of the schema `TEXT`. Older translations, duplicates,
held-out pairs and totals need the whole text and are left to `preprocess`. Flow: `PairBlock` -> `clean_block` ->
temporary file -> `preprocess` -> temporary file -> `encode_block` -> store.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tqdm import tqdm

from mtx.data.cleaning import Limits, clean_pair, pair_hashes, text_hashes
from mtx.data.corpora import PairBlock, PairGroup
from mtx.data.token_store import store_batch
from mtx.data.tokenizer import Tokenizer

# A pair with its line and the number of its corpus. Large strings, because a batch may hold more than 2 GiB.
TEXT = pa.schema(
    [("line", pa.int64()), ("src", pa.large_string()), ("tgt", pa.large_string()), ("corpus", pa.uint16())]
)


def text_batch(lines: Any, src: list[str], tgt: list[str], corpus: int) -> Any:
    """A record batch of `TEXT`: pairs with their line numbers, all of the corpus with the number `corpus`."""
    columns = zip((lines, src, tgt, np.full(len(src), corpus)), TEXT.types, strict=True)
    return pa.record_batch([pa.array(column, type) for column, type in columns], schema=TEXT)


def read_batches(path: Path) -> Iterator[Any]:
    """The record batches of an Arrow file, one after the other."""
    with pa.OSFile(os.fsencode(path)) as file:  # the pages of a memory-mapped file would stay in memory
        reader = pa.ipc.open_file(file)
        yield from map(reader.get_batch, range(reader.num_record_batches))


def progress_bar(description: str, total: int | None = None) -> Any:
    """A bar that counts pairs, shown on a terminal only."""
    return tqdm(desc=description, total=total, unit=" pairs", unit_scale=True, disable=None, leave=False)


def group_of(text: Any, rows: NDArray[np.int64]) -> PairGroup:
    """The group of the pairs at `rows` (at least one) of a batch of `TEXT`."""
    line, src, tgt, _ = (column[rows[0]].as_py() for column in text.columns)
    return PairGroup(rows.size, line, src, tgt)


@dataclass(frozen=True)
class CleanBlock:
    """What cleaning made of a block, without the text.

    Attributes:
        num_read: pairs of the block, with those that the reader left out.
        dates: of the pairs that pass every filter; 0 if they have none.
        src_hashes, pair_hashes: of their sources, and of both sides.
    """

    corpus: int
    num_read: int
    dropped: dict[str, PairGroup]
    dates: NDArray[np.uint64]
    src_hashes: NDArray[np.uint64]
    pair_hashes: NDArray[np.uint64]


def clean_block(block: tuple[int, PairBlock], limits: Limits) -> tuple[CleanBlock, Any]:
    """Clean a block of pairs, which comes with the number of its corpus; what is left is a batch of `TEXT`."""
    corpus, pairs = block
    lines = list[int]()
    src = list[str]()
    tgt = list[str]()
    dates = list[int]()
    dropped = dict(pairs.left_out)
    rows = zip(pairs.lines, pairs.src, pairs.tgt, pairs.dates or [0] * len(pairs.src), strict=True)
    for line, src_text, tgt_text, date in rows:
        cleaned = clean_pair(src_text, tgt_text, limits)
        if isinstance(cleaned, str):
            dropped.setdefault(cleaned, PairGroup(0, line, src_text, tgt_text)).count += 1
        else:
            lines.append(line)
            src.append(cleaned[0])
            tgt.append(cleaned[1])
            dates.append(date)
    num_read = len(pairs.src) + sum(group.count for group in pairs.left_out.values())
    hashes = text_hashes(src), pair_hashes(src, tgt)
    return CleanBlock(corpus, num_read, dropped, np.array(dates, np.uint64), *hashes), text_batch(
        lines, src, tgt, corpus
    )


@dataclass(frozen=True)
class EncodedBlock:
    """The pairs of a batch that are short enough, as a `store_batch`, with the number of their corpus."""

    corpus: int
    num_read: int
    pairs: Any
    too_long: PairGroup | None
    num_src_tokens: int
    num_tgt_tokens: int


def encode_block(
    text: Any, tokenizer: Tokenizer, tags: list[str | None], max_tokens: int, num_threads: int
) -> EncodedBlock:
    """Encode a batch of `TEXT`, all of one corpus.

    Args:
        tags: the tag of each corpus, or None.
        max_tokens: the largest number of ids on a side; longer pairs are dropped.
        num_threads: see `Tokenizer.encode`.
    """
    corpus = text["corpus"][0].as_py()
    src_ids = tokenizer.encode(text["src"].to_pylist(), tags[corpus], num_threads)
    tgt_ids = tokenizer.encode(text["tgt"].to_pylist(), num_threads=num_threads, target=True)
    lengths = np.array([[len(ids) for ids in src_ids], [len(ids) for ids in tgt_ids]])
    fits = lengths.max(axis=0) <= max_tokens
    pairs = store_batch(tokenizer.num_ids, src_ids, tgt_ids, *(text[name] for name in ("line", "corpus", "src", "tgt")))
    too_long = None
    if not fits.all():
        pairs, too_long = pairs.filter(pa.array(fits)), group_of(text, np.flatnonzero(~fits))
    return EncodedBlock(corpus, text.num_rows, pairs, too_long, *lengths[:, fits].sum(axis=1).tolist())
