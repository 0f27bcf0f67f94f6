"""Finds the parallel text in a folder: the files that the readers know, and pairs of files such as NAME.en and NAME.de.

Such files are found by the same rule if they are named themselves, or their NAME is.
Flow: a folder -> the names of its texts, as in data.train, with their directions -> one corpus, in `sources`.
"""

import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from glob import escape
from itertools import combinations, islice
from pathlib import Path

from mtx.data.bilingual import match_rank
from mtx.data.languages import Languages, code_of, is_code
from mtx.data.readers import FILE_ENDING, READERS, no_pairs, open_pairs
from mtx.data.tables import PLAIN_NAMES, Columns, language_of_column, log_once
from mtx.errors import DataError, UsageError
from mtx.formatting import counted, shell_command
from mtx.storage.text_files import kind_of_file, read_lines

log = logging.getLogger(__name__)

Text = Path | tuple[Path, Path]  # a file of pairs, or two files of lines
Directions = Counter[Languages]  # and their numbers of pairs; a language that nothing shows is empty
# Codes of languages that are endings of programs, too: install.sh and install.pl are programs, train.sh and train.pl
# Serbo-Croatian and Polish. Most programs have three such lines in ten, and news in 128 languages at most one in eight.
_PROGRAM_ENDINGS = frozenset(["am", "as", "cs", "el", "la", "mk", "ml", "pl", "sh", "so", "st", "sv", "ts"])
_PROGRAM_LINE = re.compile(r"\s{0,99}(?:#|//|/\*)|.*(?:[{}\\]$|[\"')\]];$|\$\w|\w\(|\w ?= ?\S|->|=>|::)")

EXPECTED = f"expected .{', .'.join(READERS)}, or lines of text in NAME.en and NAME.de (not NAME-en.txt)"


def find_texts(folder: Path, languages: Languages, columns: Columns) -> dict[Text, Directions]:
    """The texts in a folder and in those below, sorted by name, with their directions by code.

    Two files of lines are a text if their endings are languages, see `pair_sides`, and they have equally many lines.
    Hidden files and those of runs/ are skipped, and other files are counted. A file that has pairs or languages and
    cannot be read is skipped with a warning.

    Args:
        languages: those of files of lines, in addition to common ones.

    Raises:
        UsageError: if there are no texts, for a reason that `_explain` finds.
    """
    texts = dict[Text, Directions]()
    other_files = list[Path]()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part == "runs" or part[0] == "." for part in parts) or not path.is_file():
            continue
        ending = ending_of(path)
        may_hold_pairs = FILE_ENDING.search(path.name) or ending.lower() == "json"
        if may_hold_pairs and (counts := _count_pairs(path, columns)):
            texts[path] = counts
        elif ending == "txt" and _begins_with_table(path):
            log_once(f"skipping {path}, which looks like a table: name the file itself to train on it", logging.WARNING)
        else:
            other_files.append(path)
    sides = set[Path]()
    for src, tgt in pair_sides(other_files, languages):
        endings = ending_of(src), ending_of(tgt)
        if {*endings} <= _PROGRAM_ENDINGS and _is_program(src) and _is_program(tgt):
            continue
        if _have_equal_lines(src, tgt):
            texts[src, tgt] = Counter({language_codes(*endings): count_lines(src)})
            sides |= {src, tgt}
    other_files = [path for path in other_files if path not in sides]
    if not texts:
        _explain(folder, other_files)
    elif other_files:
        log_once(f"{folder}: {counted(len(other_files), 'other file')} skipped, such as {other_files[0].name}")
    return texts


def files_of(text: Text) -> tuple[Path, ...]:
    """The one or two files of a text."""
    return (text,) if isinstance(text, Path) else text


def find_sides(name: Path, languages: Iterable[str]) -> list[tuple[Path, Path]]:
    """The pairs of files that match a `name` NAME.*, or it with .gz, see `pair_sides`."""
    pairs = pair_sides(name.parent.glob(f"{escape(name.stem)}.*"), languages)
    return [pair for pair in pairs if prefix_of(pair[0]) == prefix_of(name)]


def pair_sides(paths: Iterable[Path], languages: Iterable[str]) -> list[tuple[Path, Path]]:
    """All pairs of files NAME.LANG of one NAME in two languages, the English file first.

    Endings are those of common languages and of `languages`. If only one file of a NAME has such an ending, and not
    both `languages` are known, every other file is in a language for which `_is_other_side` is true.
    """
    codes = {*map(code_of, languages)}
    texts = defaultdict[str, dict[str, Path]](dict)
    for path in sorted(paths):
        texts[prefix_of(path)].setdefault(ending_of(path), path)
    pairs = list[tuple[Path, Path]]()
    for files in texts.values():
        endings = [ending for ending in files if code_of(ending) in codes or language_of_column(ending)]
        if len(endings) == 1 and len(codes - {*PLAIN_NAMES}) < 2:
            side = files[endings[0]]
            endings += [ending for ending, path in files.items() if path != side and _is_other_side(path, side)]
        endings.sort(key=lambda ending: (code_of(ending) != "en", ending))
        pairs += [(files[src], files[tgt]) for src, tgt in combinations(endings, 2) if match_rank(src, tgt) != 0]
    return pairs


def _is_other_side(path: Path, side: Path) -> bool:
    """Whether a file is the other side of a text, in a language that mtx does not know, and logs it.

    Its ending must be a code, it must have as many lines as the other `side`, and it must not be of another kind.
    """
    ending = ending_of(path)
    if not is_code(ending) or kind_of_file(path) or not _have_equal_lines(path, side):
        return False
    refusal = shell_command("mv", path, Path(f"{path}.txt"))
    log_once(f"{path}: taken for text in the language {ending!r}; if it is not: {refusal}")
    return True


def _have_equal_lines(src: Path, tgt: Path) -> bool:
    """Whether two files have the same number of lines; warns if both have some, but not equally many."""
    num_src = count_lines(src)
    num_tgt = count_lines(tgt)
    if num_src and num_tgt and num_src != num_tgt:
        log_once(f"skipping {src}: it has {num_src:,} lines, {tgt} has {num_tgt:,}", logging.WARNING)
    return num_src > 0 and num_src == num_tgt


def _explain(folder: Path, paths: list[Path]) -> None:
    """Warn why the files of a folder are no text.

    Raises:
        UsageError: if they are pictures and the like, or may be text in a language that mtx does not know.
    """
    shown = f"{counted(len(paths), 'other file')}, such as {paths[0].name}" if paths else "it is empty"
    files = list(filter(_is_text, paths))
    if not files:
        raise UsageError(f"{folder}: no file of text ({shown})", EXPECTED)
    texts = defaultdict[str, set[str]](set)
    for path in files:
        if is_code(ending_of(path)) and not kind_of_file(path):
            texts[prefix_of(path)].add(ending_of(path))
    for endings in texts.values():
        languages = sorted(endings, key=lambda ending: (language_of_column(ending) is None, ending))
        if len(languages) > 1 and not language_of_column(languages[1]):
            problem = f"the languages of .{', .'.join(languages)} are not all known"
            hint = f"if they are languages: data.src={languages[0]} data.tgt={languages[1]}"
            raise UsageError(f"{folder}: {problem}", hint)
    log_once(f"{folder}: {shown} skipped")
    refused = no_pairs(*files[:2])
    log.warning("skipping %s\n  help: %s", refused, refused.help)


def _is_text(path: Path) -> bool:
    """Whether a file is text of any kind; False for pictures and the like."""
    with suppress(UsageError):
        return bool(kind_of_file(path)) or "\0" not in next(read_lines(path), "")
    return False


def ending_of(path: Path) -> str:
    """The ending of a name without that of gzip: the language of a file of lines."""
    return Path(path.name.removesuffix(".gz")).suffix[1:]


def prefix_of(path: Path) -> str:
    """The NAME of a file NAME.LANG or NAME.LANG.gz, with its folder."""
    return str(path).removesuffix(".gz").removesuffix(f".{ending_of(path)}")


def language_codes(src: str, tgt: str) -> Languages:
    """Two languages by code; two varieties of a language keep their regions."""
    codes = code_of(src), code_of(tgt)
    return (src, tgt) if codes[0] == codes[1] else codes


@cache
def _count_pairs(path: Path, columns: Columns) -> Directions:
    """The directions of a file; none if it cannot be read, or is JSON of something else."""
    counts = Directions()
    try:
        if ending_of(path).lower() == "json" and not _begins_with_pair(path, columns):
            return counts
        if file := open_pairs(path):
            (src, *targets), _ = file.languages(columns)
            for tgt in targets:
                blocks = file.pairs((src or PLAIN_NAMES[0], tgt or PLAIN_NAMES[1]), columns)
                counts[language_codes(src or "", tgt or "")] += sum(len(block.src) for block in blocks)
    except (UsageError, DataError) as error:
        log.warning("skipping %s", error)
    return counts


def _begins_with_pair(path: Path, columns: Columns) -> bool:
    """Whether JSON begins with several objects, of which the first is a pair, even if it is damaged further on."""
    head = "\n".join(islice(read_lines(path), 20)).lstrip(" \r\n[")  # of lines, or of an array
    try:
        row, row_end = json.JSONDecoder().raw_decode(head)
    except (ValueError, RecursionError):
        return False
    if not isinstance(row, dict) or not head[row_end:].lstrip(" \r\n,").startswith("{"):
        return False
    if {*(columns or PLAIN_NAMES)} <= {*row} or {*row} == {"source", "target"}:
        return True
    if isinstance(row.get("translation"), dict):
        return True
    texts = [key for key, value in row.items() if isinstance(value, str) and any(map(str.isalpha, value))]
    return sum(1 for key in texts if language_of_column(key)) > 1


def _begins_with_table(path: Path) -> bool:
    """Whether each of the first lines has cells, as `find_reader` knows them; False if it cannot be read."""
    lines = list[str]()
    with suppress(UsageError, DataError):
        lines += islice(read_lines(path), 20)
    return bool(lines) and all("\t" in line.strip() or "|||" in line for line in lines)


def _is_program(path: Path) -> bool:
    """Whether the lines of a file look like those of a program; False for a file that cannot be read."""
    try:
        lines = [*islice(read_lines(path), 500)]
    except (UsageError, DataError):
        return False
    return sum(1 for line in lines if _PROGRAM_LINE.match(line)) > 0.15 * len(lines)


@cache
def count_lines(path: Path) -> int:
    """The lines of a file of text; 0, with a warning, if it cannot be read."""
    try:
        return sum(1 for _ in read_lines(path))
    except (UsageError, DataError) as error:
        log.warning("skipping %s", error)
        return 0
