"""Which function reads a file of pairs? The seam for formats: `Reader`, and the list of those that there are.

Files are found by `sources`, which also reads the splits of a dataset of the hub. `tables` reads two parallel files.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from mtx.data.bilingual import BilingualReader
from mtx.data.languages import Languages
from mtx.data.tables import Columns, PairBlock, read_csv, read_jsonl, read_parquet, read_tsv
from mtx.data.translation_memories import read_po, read_tmx, read_xliff
from mtx.errors import UsageError
from mtx.storage.text_files import bilingual_form, read_lines


class Reader(Protocol):
    """Reads the pairs of a file; each call starts from the first pair.

    A new format is a module with such a function, which imports nothing of this one, and a line in `READERS` with the
    ending of its files, in small letters and without the dot. This one reads lines such as `dog = Hund`:

        from mtx.data.languages import Languages
        from mtx.data.tables import ESCAPE, Columns, Pair, PairBlock, in_blocks
        from mtx.errors import DataError
        from mtx.storage.text_files import read_lines

        def read_dictionary(path: Path, languages: Languages, columns: Columns = ()) -> Iterator[PairBlock]:
            lines = enumerate(read_lines(path, ESCAPE), 1)
            return in_blocks(_pair(f"{path}:{number}", line) for number, line in lines)

        def _pair(where: str, line: str) -> Pair:
            src, sign, tgt = line.partition(" = ")
            if not sign:
                raise DataError(f"{where}: no ' = ', expected SOURCE = TARGET")
            return src, tgt

    `read_lines` opens gzip, too. `in_blocks` numbers the pairs 1, 2, 3: a format with more than one line a pair yields
    `PairBlock`s itself, of `BLOCK_PAIRS` pairs (`mtx.data.tables`), with the line at which each pair begins. A format
    whose units name their languages is a `BilingualReader` instead.
    """

    def __call__(self, path: Path, languages: Languages, columns: Columns = ()) -> Iterator[PairBlock]:
        """Yield all pairs in the order of the file, in blocks of some thousands, each pair with its line.

        No text has a line feed in it. A byte that is not UTF-8 is a lone surrogate, which cleaning finds.

        Args:
            languages: source and target, for a file that names its sides by languages.
            columns: data.columns, for a file with more than two columns; others ignore it.

        Raises:
            DataError: at something that is not a pair; the message is `path:line: got, expected`.
        """


# By the ending of a file's name, in small letters. A memory may also be known by what it holds (`bilingual_form`).
READERS: dict[str, Reader] = {
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "tmx": BilingualReader(read_tmx, "tmx"),
    **dict.fromkeys(["xliff", "xlf", "sdlxliff", "mqxliff", "mxliff"], BilingualReader(read_xliff, "xliff")),
    **dict.fromkeys(["po", "pot"], BilingualReader(read_po, "po")),
}
# A local name with such an ending is one file; any other name means two files, one for each language.
FILE_ENDING = re.compile(rf"\.({'|'.join(READERS)})(\.gz)?$", re.IGNORECASE)


def reader_of(path: Path) -> Reader:
    """The reader of a file of pairs: by what it holds, whatever its name is, or else its ending, or its first line.

    Raises:
        UsageError: if there is no such file, or it holds something else.
    """
    if path.name.lower().endswith(".parquet"):  # its reader says what is wrong with it
        return read_parquet
    if held := bilingual_form(path):
        return READERS[held]
    if ending := FILE_ENDING.search(path.name):
        return READERS[ending[1].lower()]
    line = next(read_lines(path), "")  # of a file with another ending, such as the .txt that spreadsheets write
    if line.startswith("{"):
        return read_jsonl
    if line and "\t" not in line:
        help = (
            "pairs are source TAB target, one a line; with commas or semicolons the name must end in .csv; JSON is one "
            "object a line; two files NAME.en and NAME.de are named NAME"
        )
        raise UsageError(f"{path}: its first line is no pair: it has no TAB", help)
    return read_tsv
