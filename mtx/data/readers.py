"""A file of pairs: its reader and its two languages. The interface for formats: `Reader`, and the list of readers.

Its languages are those that it names (in the first line of a table, the keys of JSON, the columns of Parquet, the
attributes of XML, or the header of PO), or else those of its text. Flow: path -> `open_pairs` -> languages -> pairs.
`sources` finds the files, and also reads the splits of a dataset on the hub. `tables` reads two parallel files.
"""

import contextlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain, islice, repeat, tee
from pathlib import Path
from typing import Protocol

from mtx.data.bilingual import UNKNOWN, BilingualReader, Unit, match_rank
from mtx.data.language_detection import SAMPLE, language_of
from mtx.data.languages import Languages, code_of, is_code
from mtx.data.tables import (
    PLAIN_NAMES,
    Columns,
    ItemReader,
    PairBlock,
    TableReader,
    language_of_column,
    open_parquet,
    read_bars,
    read_csv,
    read_jsonl,
    read_parquet,
    read_tsv,
)
from mtx.data.translation_memories import read_po, read_tmx, read_xliff
from mtx.errors import UsageError
from mtx.formatting import mtx_command, shell_command
from mtx.storage.text_files import kind_of_file, printable, read_lines, require_content


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


# Perhaps languages in the name of a file: en-yo.tsv and yoruba.tsv, unlike my.tsv
_IN_NAME = re.compile(r"[^\W\d_]{3,}|(?<![^\W\d_])[a-z]{2}(?=[-_])|(?<=[-_])[a-z]{2}(?![^\W\d_])")
ITS_TEXT = "its text"  # which shows the languages of a file that does not name them
_ALSO_OTHER_WORDS = ("id", "no")  # Indonesian and Norwegian; with two other languages, an identifier and a number


Reading = Callable[[Languages, Columns], Iterator[PairBlock]]


class PairFile:
    """A file of pairs. The rows or units that a search for its languages reads are kept for the next reading.

    Attributes:
        is_table: whether it has columns; else its units name their languages.
    """

    def __init__(self, path: Path, reader: Reader):
        self.path = path
        self.is_table = not isinstance(reader, BilingualReader)
        self._reader = reader
        self._version = _version(path)
        self._begin: Reading = partial(reader, path)
        self._continue: Reading | None = None

    def pairs(self, languages: Languages, columns: Columns) -> Iterator[PairBlock]:
        """All pairs, see `Reader`."""
        read = self._begin
        if self._continue and _version(self.path) == self._version:
            read = self._continue
        self._continue = None
        return read(languages, columns)

    def languages(self, columns: Columns = ()) -> tuple[list[str | None], str]:
        """Its languages, the source first and None for an unclear one, and what names them.

        In a table these are column names: those of data.columns, or all.
        """
        read = self._begin
        if isinstance(self._reader, ItemReader):
            items, unread = tee(self._reader.items(self.path))
            read = partial(self._reader.pairs, self.path, unread)
            if self.is_table:
                names: list[str] = next(items, [])
                pairs = self._reader.pairs(self.path, chain([names], items), PLAIN_NAMES, columns)
                result = self._languages_of_columns(names, pairs, columns)
            else:
                result = _languages_of_units(items)
        else:
            result = self._languages_of_columns(self._read_names(), read(PLAIN_NAMES, columns), columns)
        self._continue = read  # not after an error, which ends the reading
        return result

    def _languages_of_columns(
        self, names: list[str], pairs: Iterator[PairBlock], columns: Columns
    ) -> tuple[list[str | None], str]:
        if columns:
            numbers = {str(number): name for number, name in enumerate(names, 1)}
            names = [numbers.get(column, column) for column in columns]
        column_of = {language: name for name in names if (language := language_of_column(name))}
        if len(column_of) > 2:
            column_of = {key: name for key, name in column_of.items() if name.casefold() not in _ALSO_OTHER_WORDS}
        are_cells = isinstance(self._reader, TableReader)
        if len(column_of) == 1 and len(names) == 2 and not are_cells and all(map(is_code, names)):
            return [*map(code_of, names)], "its header"  # one of them may be an unknown language
        if len(column_of) >= 2:
            return [*column_of], "its header"
        block = next(pairs, PairBlock((), [], []))
        return [language_of(side) for side in (block.src, block.tgt)], ITS_TEXT

    def _read_names(self) -> list[str]:
        """The keys of the first object, or the columns of Parquet; those inside `translation`, if there are any."""
        if self._reader is read_parquet:
            with open_parquet(self.path) as file:
                inner_names = [column.name for column in file.schema if column.path.startswith("translation.")]
                return inner_names or list(file.schema.names)
        with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):  # the reader reports it
            row = json.loads(next(read_lines(self.path), "{}"))
            translation = row.get("translation")
            return [*translation] if isinstance(translation, dict) else [*row]
        return []

    def find_languages(self, columns: Columns = ()) -> tuple[str, str, str]:
        """Its source and target language, and what names them: "its header" and the like.

        Raises:
            UsageError: if they are unknown; the hint has the command that names them.
            DataError: if the file cannot be read, or is not UTF-8 and so unclear.
        """
        languages, origin = self.languages(columns)
        match languages:
            case [str(src), str(tgt)] if src != tgt:
                return src, tgt, origin
        if isinstance(self._reader, TableReader):
            deque(read_lines(self.path, "strict"), 0)  # text in another encoding is not clear: the error names that
        elif not any(languages):
            deque(self.pairs(PLAIN_NAMES, columns), 0)  # if its units have no text, the error names that
        names = ", ".join(filter(None, languages)) or "no header with languages, and its text is not clear"
        in_name = map(language_of_column, _IN_NAME.findall(self.path.name))
        candidates = chain((name for name in in_name if name and name not in languages), repeat("CODE"))
        sides = [*dict.fromkeys(languages), None, None][:2]
        src, tgt = (language or next(candidates) for language in sides)
        settings = [f"data.columns={','.join(columns)}"] if columns else []
        settings += [f"data.src={src}", f"data.tgt={tgt}"]
        raise UsageError(
            f"{self.path}: cannot tell its two languages: found {printable(names[:200])}",
            mtx_command("train", self.path, *settings),
        )


def open_pairs(path: Path) -> PairFile | None:
    """A file of pairs, the same object until the file changes; None for single sentences.

    Raises:
        UsageError: if there is no such file, or it has no text.
    """
    return _open_pairs(path, _version(path))


@lru_cache(maxsize=8)  # each may be open
def _open_pairs(path: Path, _: tuple[int, ...]) -> PairFile | None:
    reader = find_reader(path)
    return PairFile(path, reader) if reader else None


def _version(path: Path) -> tuple[int, ...]:
    """What changes when a file is written again or replaced."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _languages_of_units(units: Iterable[Unit]) -> tuple[list[str | None], str]:
    """The languages of units, the source first: without regions if two still differ; by their text if unnamed.

    An unnamed source that is not clear is in the language of its format: English in PO.
    """
    sample = list(islice(units, SAMPLE))
    present = dict.fromkeys(variant.language for unit in sample for variant in unit.variants)
    if UNKNOWN in present:
        sides = zip(*(unit.variants for unit in sample if len(unit.variants) == 2), strict=True)
        src, *tgt = [side[0].language or language_of(variant.text for variant in side) for side in sides] or [None]
        return [src or sample[0].src_language or None, *tgt], ITS_TEXT
    codes = dict.fromkeys(map(code_of, present))
    tags = [*codes] if len(codes) > 1 else [*present]
    sources = [tag for tag in tags if match_rank(tag, sample[0].src_language) is not None]
    return [*dict.fromkeys(sources + tags)] or [None], "its header" if sources else "its first unit"
