"""Text between its source and the store: Arrow record batches of pairs, and how pairs and progress are shown."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from mtx.files.text_files import printable

_EXAMPLE_CHARS = 80
# A pair with its line and the number of its corpus; large strings, for a batch may hold more than 2 GiB.
TEXT = pa.schema(
    [("line", pa.int64()), ("src", pa.large_string()), ("tgt", pa.large_string()), ("corpus", pa.uint16())]
)


def example_of(corpus: str, line: int, src: str, tgt: str) -> dict[str, Any]:
    """A pair as report.json shows it, safe for a terminal."""
    src, tgt = printable(src[:_EXAMPLE_CHARS]), printable(tgt[:_EXAMPLE_CHARS])
    return {"corpus": corpus, "line": line, "src": src, "tgt": tgt}


def text_batch(lines: Any, src: list[str], tgt: list[str], corpus: int) -> Any:
    """Pairs with their line numbers, all of the corpus of that number, as a record batch of `TEXT`."""
    columns = zip((lines, src, tgt, np.full(len(src), corpus)), TEXT.types, strict=True)
    return pa.record_batch([pa.array(column, type) for column, type in columns], schema=TEXT)


def read_batches(path: Path) -> Iterator[Any]:
    """The record batches of an Arrow file, one after the other."""
    with pa.OSFile(str(path)) as file:  # a mapped file's pages would stay in memory
        reader = pa.ipc.open_file(file)
        yield from map(reader.get_batch, range(reader.num_record_batches))


def progress_bar(what: str, total: int | None = None) -> Any:
    """A bar that counts pairs, on a terminal only."""
    return tqdm(desc=what, total=total, unit=" pairs", unit_scale=True, disable=None, leave=False)
