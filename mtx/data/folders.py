"""Finds the parallel text in a folder: the files that the readers know, and pairs of files such as NAME.en and NAME.de.

Flow: a folder -> the names of its texts, as in data.train, with their directions -> one corpus, in `sources`.
"""

import logging
import re
from collections import Counter, defaultdict
from contextlib import suppress
from functools import cache
from itertools import combinations, islice
from pathlib import Path

from mtx.data.language_detection import languages_of
from mtx.data.languages import Languages, code_of
from mtx.data.readers import FILE_ENDING, no_pairs, reader_of
from mtx.data.tables import PLAIN_NAMES, Columns, language_of_column, log_once
from mtx.errors import DataError, UsageError
from mtx.formatting import counted
from mtx.storage.text_files import read_lines

log = logging.getLogger(__name__)

Text = Path | tuple[Path, Path]  # a file of pairs, or two files of lines
Directions = Counter[Languages]  # and their numbers of pairs; a language that nothing shows is empty
# install.sh and install.pl are programs, train.sh and train.pl Serbo-Croatian and Polish: most programs have three such
# lines in ten, and news in 128 languages at most one in eight
_PROGRAM_LINE = re.compile(r"\s{0,99}(?:#|//|/\*)|.*(?:[{}\\]$|[\"')\]];$|\$\w|\w\(|\w ?= ?\S|->|=>|::)")


def find_texts(folder: Path, languages: Languages, columns: Columns) -> dict[Text, Directions]:
    """The texts in a folder and in those below, sorted by name, with their directions by code.

    Two files of lines are a text if their endings are languages and their lines are equally many. Hidden files and
    those of runs/ are skipped, and other files are counted. A file that has pairs or languages and cannot be read is
    skipped with a warning.

    Args:
        languages: those of files of lines, in addition to common ones.
    """
    texts, others = dict[Text, Directions](), list[Path]()
    sides = defaultdict[str, dict[str, Path]](dict)
    codes = {*map(code_of, languages)}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part == "runs" or part[0] == "." for part in parts) or not path.is_file():
            continue
        ending = ending_of(path)
        if (FILE_ENDING.search(path.name) or ending == "json") and (counts := _count_pairs(path, columns)):
            texts[path] = counts
        elif code_of(ending) in codes or language_of_column(ending):
            sides[str(path).removesuffix(".gz").removesuffix(ending)].setdefault(ending, path)
        elif ending == "txt" and _begins_with_table(path):
            log_once(f"skipping {path}, which looks like a table: name the file itself to train on it", logging.WARNING)
        else:
            others.append(path)
    for files in sides.values():
        before = len(texts)
        for src, tgt in combinations(sorted(files, key=lambda ending: (code_of(ending) != "en", ending)), 2):
            num_src, num_tgt = _count_lines(files[src]), _count_lines(files[tgt])
            if num_src and num_src == num_tgt:
                texts[files[src], files[tgt]] = Counter({language_codes(src, tgt): num_src})
            elif num_src and num_tgt:
                log_once(
                    f"skipping {files[src]}: it has {num_src:,} lines, {files[tgt]} has {num_tgt:,}", logging.WARNING
                )
        if len(texts) == before:
            others += files.values()
    if others:
        log_once(f"{folder}: {counted(len(others), 'other file')} skipped, such as {others[0].name}")
        if not texts:
            problem = no_pairs(*others[:2])
            log.warning("skipping %s\n  help: %s", problem, problem.help)
    return texts


def ending_of(path: Path) -> str:
    """The ending of a name without that of gzip: the language of a file of lines."""
    return Path(path.name.removesuffix(".gz")).suffix[1:]


def language_codes(src: str, tgt: str) -> Languages:
    """Two languages by code; two varieties of a language keep their regions."""
    codes = code_of(src), code_of(tgt)
    return (src, tgt) if codes[0] == codes[1] else codes


@cache
def _count_pairs(path: Path, columns: Columns) -> Directions:
    """The directions of a file; none if it cannot be read, or is JSON of something else."""
    counts = Directions()
    try:
        if ending_of(path) == "json" and not _begins_with_pair(path, columns):
            return counts
        (src, *others), _ = languages_of(path, columns)
        for tgt in others:
            blocks = reader_of(path)(path, (src or PLAIN_NAMES[0], tgt or PLAIN_NAMES[1]), columns)
            counts[language_codes(src or "", tgt or "")] += sum(len(block.src) for block in blocks)
    except (UsageError, DataError) as error:
        log.warning("skipping %s", error)
    return counts


def _begins_with_pair(path: Path, columns: Columns) -> bool:
    """Whether the first lines of JSON have the keys of a pair with texts, even if the file is damaged further on."""
    keys = {*re.findall(r'"([\w-]{1,40})" ?: ?(?:"|null)', "\n".join(islice(read_lines(path), 20)))}
    if keys >= {*(columns or PLAIN_NAMES)} or keys >= {"source", "target"}:
        return True
    num_known = len([*filter(language_of_column, keys)])
    return num_known > 1 or (num_known == 1 and len(keys) == 2 and "id" not in keys)  # such as en and luo


def _begins_with_table(path: Path) -> bool:
    """Whether each of the first lines has cells, as `find_reader` knows them; False if it cannot be read."""
    lines = list[str]()
    with suppress(UsageError, DataError):
        lines += islice(read_lines(path), 20)
    return bool(lines) and all("\t" in line.strip() or "|||" in line for line in lines)


@cache
def _count_lines(path: Path) -> int:
    """The lines of a file of text; 0 for a program, or, with a warning, if it cannot be read."""
    try:
        lines = read_lines(path)
        sample = [*islice(lines, 500)]
        if sum(1 for line in sample if _PROGRAM_LINE.match(line)) > 0.15 * len(sample):
            return 0
        return len(sample) + sum(1 for _ in lines)
    except (UsageError, DataError) as error:
        log.warning("skipping %s", error)
        return 0
