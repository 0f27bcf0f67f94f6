"""What a worker does with a block of pairs: it cleans them, and encodes them.

Flow: `sources` -> `clean_block` -> `choosing` -> `encode_kept` -> token store, driven by `prepare`. In a shard they do
both at once (`shards`).
"""

from dataclasses import replace
from itertools import repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtx.config.schema import DataConfig
from mtx.data.bilingual import UNREAD_DATE
from mtx.data.choosing import CLEANED
from mtx.data.cleaning import Mask, clean_pair, hash_texts, is_missing_value
from mtx.data.markup import strip_codes
from mtx.data.tables import PairBlock, PairGroup
from mtx.data.token_store import Batch, store_batch
from mtx.data.tokenizer import Frame, Tokenizer

Place = tuple[int, int]  # of a block in a text: the number of its file, and its own number there
MISSING_VALUES = "missing_values"
UNREAD_DATES = "unread_dates"
NOTICED = (MISSING_VALUES, UNREAD_DATES)  # no reasons to drop a pair


def clean_block(
    block: tuple[Place, int, PairBlock], data: DataConfig
) -> tuple[Place, int, dict[str, PairGroup], Batch]:
    """Clean a block of pairs, given with its place and the number of its corpus.

    Returns:
        Its place and corpus number, the dropped pairs by reason and those with one of `NOTICED`, and a batch of
        `CLEANED` with all that are not dropped.
    """
    place, number, pairs = block
    rows = list[tuple[int, str, str, int]]()
    groups = {reason: replace(group, file=pairs.file) for reason, group in pairs.skipped.items()}
    for line, src, tgt, date in zip(pairs.lines, pairs.src, pairs.tgt, pairs.dates or repeat(0), strict=False):
        reasons = list[str]()
        if is_missing_value(src) or is_missing_value(tgt):
            reasons.append(MISSING_VALUES)
        if date == UNREAD_DATE:
            reasons.append(UNREAD_DATES)
            date = 1
        cleaned = clean_pair(src, tgt, data)
        if isinstance(cleaned, str):
            reasons.append(cleaned)
        else:
            rows.append((line, *cleaned, date))
        for reason in reasons:
            groups.setdefault(reason, PairGroup(0, line, src, tgt, pairs.file)).count += 1
    lines, sources, targets, dates = zip(*rows, strict=True) if rows else ((), (), (), ())
    corpora = [number] * len(rows)
    files = [pairs.file] * len(rows)
    columns = [lines, corpora, files, sources, targets, dates, hash_texts(sources), hash_texts(targets)]
    return place, number, groups, pa.RecordBatch.from_arrays(columns, schema=CLEANED)


def encode_block(batch: Batch, tokenizer: Tokenizer, frame: Frame, num_threads: int = 1) -> Batch:
    """Encode a batch of `CLEANED`; returns a `store_batch`.

    Args:
        frame: of its corpus.
        num_threads: see `Tokenizer.encode`.
    """
    src, tgt = texts_of(batch)
    src_ids = tokenizer.encode(src, frame, num_threads)
    tgt_ids = tokenizer.encode(tgt, frame, num_threads, target=True)
    return store_batch(tokenizer.num_ids, src_ids, tgt_ids, batch["line"], batch["corpus"], src, tgt)


def find_long(encoded: Batch, max_tokens: int) -> Mask:
    """Whether a side of each pair has more than `max_tokens` ids."""
    lengths = [pc.list_value_length(encoded[name]).to_numpy() for name in ("src_ids", "tgt_ids")]
    is_long: Mask = np.maximum(*lengths) > max_tokens
    return is_long


def encode_kept(
    batch: Batch, tokenizer: Tokenizer, frames: list[Frame], max_tokens: int, num_threads: int
) -> tuple[int, Batch, PairGroup]:
    """Encode a batch that is not empty, without the pairs that are too long; see `encode_block` and `find_long`.

    Args:
        frames: the frame of each corpus.

    Returns:
        The number of the corpus, the encoded pairs that are left, and those that are too long.
    """
    corpus = batch["corpus"][0].as_py()
    encoded = encode_block(batch, tokenizer, frames[corpus], num_threads)
    is_long = find_long(encoded, max_tokens)
    return corpus, encoded.filter(pa.array(~is_long)), PairGroup.of(batch, is_long)


def clean_and_encode(
    block: tuple[Place, int, PairBlock], data: DataConfig, tokenizer: Tokenizer, frames: list[Frame]
) -> tuple[Place, int, dict[str, PairGroup], Batch, Batch]:
    """Clean a block of `read_blocks`, and encode what is left; see `clean_block` and `encode_block`.

    Returns:
        What `clean_block` returns, and its encoded pairs.
    """
    place, number, groups, batch = clean_block(block, data)
    return place, number, groups, batch, encode_block(batch, tokenizer, frames[number])


def texts_of(batch: Batch) -> tuple[list[str], list[str]]:
    """The source and the target texts of pairs as a model learns them."""
    src, tgt = (list(map(learned_text, batch[side].to_pylist())) for side in ("src", "tgt"))
    return src, tgt


def learned_text(text: str) -> str:
    """A cleaned text as a model learns it, without elements and entities."""
    return strip_codes(text).strip() or text
