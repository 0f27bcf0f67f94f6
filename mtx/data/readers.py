"""Which function reads a file of pairs? The interface for formats: `Reader`, and the list of all readers.

`sources` finds the files, and also reads the splits of a dataset on the hub. `tables` reads two parallel files.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from mtx.data.bilingual import BilingualReader
from mtx.data.languages import Languages
from mtx.data.tables import Columns, PairBlock, read_bars, read_csv, read_jsonl, read_parquet, read_tsv
from mtx.data.translation_memories import read_po, read_tmx, read_xliff
from mtx.errors import UsageError
from mtx.formatting import mtx_command, shell_command
from mtx.storage.text_files import kind_of_file, read_lines, require_content


class Reader(Protocol):
    """Reads the pairs of a file; each call starts from the first pair.

    A new format is a module with such a function, which imports nothing from this one, and a line in `READERS` with
    its file extension in lower case, without the dot. This one reads lines such as `dog = Hund`:

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

    `read_lines` also opens gzip files. `in_blocks` numbers the pairs 1, 2, 3. A format with more than one line per pair
    yields `PairBlock`s itself, of `BLOCK_PAIRS` pairs (`mtx.data.tables`), with the first line of each pair. A format
    whose units name their languages is a `BilingualReader` instead.
    """

    def __call__(self, path: Path, languages: Languages, columns: Columns = ()) -> Iterator[PairBlock]:
        """Yield all pairs in the order of the file, in blocks of a few thousand, each pair with its line.

        No text contains a line feed. A byte that is not UTF-8 becomes a lone surrogate, which cleaning finds.

        Args:
            languages: source and target, for a file that names its sides by languages.
            columns: data.columns, for a file with more than two columns; other readers ignore it. With several
                directions it is `languages`: columns or units must name both.

        Raises:
            DataError: with `path:line: got, expected`, at anything that is not a pair.
        """


# By file extension, in lower case. A translation memory is also recognised by its content (`kind_of_file`).
READERS: dict[str, Reader] = {
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "tmx": BilingualReader(read_tmx),
    **dict.fromkeys(["xliff", "xlf", "sdlxliff", "mqxliff", "mxliff"], BilingualReader(read_xliff)),
    **dict.fromkeys(["po", "pot"], BilingualReader(read_po)),
}
_JSON = re.compile(r"\s*(?:\{\s*\S|\[\s*(?:[\[{\"]|$))")
# A local name with such an extension is one file; any other name is the prefix of two files, one for each language.
FILE_ENDING = re.compile(rf"\.({'|'.join(READERS)})(\.gz)?$", re.IGNORECASE)


def reader_of(path: Path) -> Reader:
    """The reader of a file of pairs, see `find_reader`.

    Raises:
        UsageError: if there is no such file, or it has other content.
    """
    if reader := find_reader(path):
        return reader
    raise no_pairs(path)


def find_reader(path: Path) -> Reader | None:
    """The reader of a file: by its content, else its extension, else its first line; None for single sentences.

    Raises:
        UsageError: if there is no such file, or it has no text.
    """
    require_content(path)
    if path.name.lower().endswith(".parquet"):  # its reader reports problems
        return read_parquet
    kind = kind_of_file(path)
    if kind and kind.form in READERS:
        return READERS[kind.form]
    if ending := FILE_ENDING.search(path.name):
        return READERS[ending[1].lower()]
    line = next(read_lines(path), "")  # of a file with another extension, such as the .txt that spreadsheets write
    if _JSON.match(line):
        return read_jsonl
    if "|||" in line:
        return read_bars
    return read_tsv if "\t" in line else None


def no_pairs(path: Path, tgt: Path = Path("OTHER")) -> UsageError:
    """The error for a file without pairs; its hint joins it to `tgt`, whatever TABs are in the lines."""
    if kind := kind_of_file(path):
        return UsageError(f"{path}: expected sentence pairs, got {kind.name}", kind.hint)
    hint = (
        "write one pair per line, as source TAB target; use the extension .csv for commas or semicolons; name both of "
        "two files, NAME.en NAME.de (with data.src=en data.tgt=de if mtx does not know a language), or join any two: "
        f"paste -d '|' {shell_command(path, '/dev/null', '/dev/null', tgt)} > pairs.txt, "
        f"and {mtx_command('train', 'pairs.txt')}"
    )
    return UsageError(f"{path}: expected sentence pairs, got single sentences", hint)
