"""Damaged translation memories, bilingual files and catalogues: each is read, or refused in one line that names it."""

import gzip
import random
import re
from pathlib import Path

import pytest

from mtx.config.schema import DataConfig
from mtx.data.sources import find_corpora
from mtx.errors import DataError, UsageError
from tests.reliability.conftest import size
from tests.reliability.properties import Tally
from tests.unit.data.test_po import CATALOGUE
from tests.unit.data.test_tmx import MEMORY
from tests.unit.data.test_xliff import VERSION_1, VERSION_2

FILES = {"tmx": MEMORY, "xlf": VERSION_1, "xliff": VERSION_2, "po": CATALOGUE}
PARTS = [
    "<",
    ">",
    "&",
    "&#0;",
    "]]>",
    "<!--",
    "<!DOCTYPE a [",
    "<seg>",
    "</seg>",
    "<tu>",
    '"',
    "\\",
    "\n",
    "\0",
    "\ufffe",
    "é",
]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The data with some bytes changed, left out, repeated or put in, in another encoding, or cut."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        start = rng.randrange(len(changed))
        stop = start + rng.choice((0, 1, 1, 10, 200))
        part = rng.choice(PARTS).encode() if rng.random() < 0.5 else rng.randbytes(rng.choice((0, 1, 3)))
        changed[start:stop] = changed[start:stop] * 2 if rng.random() < 0.2 else part
    match rng.randrange(8):
        case 0:
            return (
                bytes(changed)
                .decode("utf-8", "replace")
                .encode(rng.choice(("utf-16", "utf-16-be", "latin-1", "utf-32")), "replace")
            )
        case 1:
            return gzip.compress(bytes(changed))[: rng.choice((50, None))]
    return bytes(changed)


@pytest.mark.parametrize("ending", FILES)
def test_a_damaged_file_is_read_or_refused(ending: str, tmp_path: Path, tally: Tally) -> None:
    rng, held, path = random.Random(ending), 0, tmp_path / f"file.{ending}"
    num_files = size(300, 5000)
    for _ in range(num_files):
        path.write_bytes(damaged(FILES[ending].encode(), rng))
        try:
            (corpus,) = find_corpora(DataConfig(src="en", tgt="de", train=(str(path),))).train
            texts = [text for block in corpus.blocks() for text in (*block.src, *block.tgt)]
            assert not any("\n" in text for text in texts)
        except (DataError, UsageError) as error:
            assert re.match(r"[^\n]*file\.[a-z]+(:\d+)?: [^\n]+$", str(error)), str(error)
        held += 1
    tally(f"damaged files, .{ending}", num_files, held)
