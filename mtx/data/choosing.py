"""The choice among the cleaned pairs: each is used for training, or has a reason why it is not.

The pairs are read batch by batch, and mostly only their 64-bit hashes, so memory hardly grows with their number. A file
has one byte for each pair: the number of its reason in `REASONS`, USED or HELD_OUT. Only pairs with the same source are
compared, so `mark_repeated` cuts the pairs into parts by the hash of the source, and decides each part alone.
Flow: cleaned pairs -> `mark_repeated` -> `held_out` -> `prepare`, which counts the reasons and learns from the rest.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mtx.data.cleaning import Hashes, Mask, choose_translations, find_first, hash_pairs
from mtx.data.token_store import Batch
from mtx.storage import disk

# Line, number of the corpus and of the file in a folder, text, date (0 without units), and the hashes of source and
# target. Large strings, because a batch may hold more than 2 GiB.
CLEANED = pa.schema(
    {
        "line": pa.int64(),
        "corpus": pa.uint16(),
        "file": pa.uint32(),
        "src": pa.large_string(),
        "tgt": pa.large_string(),
        "date": pa.uint64(),
        "src_hash": pa.uint64(),
        "tgt_hash": pa.uint64(),
    }
)
_TEXT = CLEANED.names[:5]
# Why a pair is not used; the others are USED, or HELD_OUT: in a set
REASONS = {1: "older translation", 2: "duplicate", 3: "other translation", 5: "source held out", 6: "target held out"}
USED = 0
HELD_OUT = 4
SIDES = {"src": 5, "tgt": 6}  # and the reason of a pair that shares it with a held-out one
Reasons = NDArray[np.uint8]

_PART_PAIRS = 1 << 18  # whose comparison takes up to 200 bytes each
_MAX_PARTS = 200  # which are open files, of which macOS allows 256; of a billion pairs, each has five million


@dataclass(frozen=True)
class CleanedBatch:
    """Where a batch of `CLEANED` is. A list of them, in the order of the text, stands for all cleaned pairs.

    Attributes:
        number: its index in the Arrow file `path`.
        corpus, direction: the numbers of the corpus and the direction of its pairs.
        rows: the places of its pairs among all cleaned pairs.
    """

    path: Path
    number: int
    corpus: int
    direction: int
    rows: slice

    def read(self, columns: list[str] = _TEXT) -> Batch:
        """Read some columns."""
        options = pa.ipc.IpcReadOptions(included_fields=[CLEANED.get_field_index(name) for name in columns])
        # Not memory-mapped: the pages of such a file would stay in memory
        with pa.OSFile(os.fsencode(self.path)) as file:
            return pa.ipc.open_file(file, options=options).get_batch(self.number)

    def hashes(self, side: str) -> Any:
        """Read the hashes of a side, as an Arrow array."""
        return self.read([f"{side}_hash"])[0]


def are_in(values: Any, hashes: Hashes) -> Mask:
    """Whether each value of an Arrow array is one of these hashes."""
    return np.asarray(pc.is_in(values, pa.array(hashes)))


def mark_repeated(cleaned: list[CleanedBatch], duplicates: str, path: Path) -> Reasons:
    """Find the older and other translations, and the duplicates.

    Args:
        duplicates: `data.duplicates`.
        path: of a new file with a byte a pair.

    Returns:
        The reason of each pair, so far: the mapped file, in which `held_out` sets the other reasons.
    """
    num_pairs = cleaned[-1].rows.stop if cleaned else 0
    num_parts = min(_MAX_PARTS, 1 + num_pairs // _PART_PAIRS)
    parts = [path.with_name(f"{path.name}-{number}") for number in range(num_parts)]
    with ExitStack() as stack:
        reasons_file, *part_files = [stack.enter_context(disk.create(each)) for each in (path, *parts)]
        for batch in cleaned:
            columns = batch.read(["file", "date", "src_hash", "tgt_hash"])
            src = columns["src_hash"].to_numpy() + np.uint64(batch.direction)  # other ones in each direction
            files = columns["file"].to_numpy() + np.uint64(batch.corpus << 32)
            rows = np.arange(batch.rows.start, batch.rows.stop, dtype=np.uint64)
            pairs = np.column_stack([rows, src, columns["tgt_hash"], columns["date"], files])
            part_numbers = src % np.uint64(num_parts)
            for number, part_file in enumerate(part_files):
                part_file.write(pairs[part_numbers == number].tobytes())
            reasons_file.write(bytes(rows.size))  # on a full disk this is an error; writing to a mapped file crashes
        reasons_file.write(b"\0")  # numpy 2.0 cannot map an empty file
    reasons = np.memmap(path, mode="r+")
    for part in parts:
        rows, src, tgt, dates, files = np.fromfile(part, np.uint64).reshape(-1, 5).T
        reasons[rows] = _find_repeated(src, tgt, dates, files, duplicates)
        disk.unlink(part)
    return reasons


def _find_repeated(src: Hashes, tgt: Hashes, dates: Hashes, files: Hashes, duplicates: str) -> Any:
    """The reason of each pair, or 0.

    Args:
        src, tgt: the hashes of the sides; equal sources of two directions differ.
        files: a number for each file of each corpus.
    """
    all_rows = np.arange(src.size)
    if duplicates == "newest":
        compared_rows = all_rows
    elif duplicates == "auto":
        compared_rows = np.flatnonzero(dates > 0)  # units of memories and bilingual files
    else:
        compared_rows = all_rows[:0]
    chosen_rows = all_rows.copy()  # for each pair, the one with its source to learn from
    choices = choose_translations(src[compared_rows], tgt[compared_rows], dates[compared_rows], files[compared_rows])
    chosen_rows[compared_rows] = compared_rows[choices]
    is_chosen_translation = chosen_rows == all_rows
    is_first_copy = is_chosen_translation.copy()
    is_first_copy[is_chosen_translation] = find_first(hash_pairs(src, tgt)[is_chosen_translation])
    is_in_chosen_file = files == files[chosen_rows]
    is_older = dates < dates[chosen_rows]
    has_chosen_target = tgt == tgt[chosen_rows]
    masks = [
        ~is_chosen_translation & (is_in_chosen_file | (is_older & ~has_chosen_target)),
        ~is_first_copy & has_chosen_target,
        ~is_chosen_translation,
    ]
    return np.select(masks, [1, 2, 3])  # of REASONS; the first counts
