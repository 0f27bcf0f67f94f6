"""Finds the parallel text in a folder: the files that the readers know, and pairs of files such as NAME.en and NAME.de.

Flow: a folder -> the names of its texts, as in data.train, with their directions -> one corpus, in `sources`.
"""

import logging
from collections import Counter, defaultdict
from functools import cache
from itertools import combinations
from pathlib import Path

from mtx.data.language_detection import languages_of
from mtx.data.languages import Languages, code_of
from mtx.data.readers import FILE_ENDING, no_pairs, reader_of
from mtx.data.tables import PLAIN_NAMES, Columns, language_of_column, log_once
from mtx.errors import DataError, UsageError
from mtx.formatting import counted
from mtx.storage.text_files import read_lines

log = logging.getLogger(__name__)

Directions = Counter[Languages]  # and their numbers of pairs; a language that nothing shows is empty


def find_texts(folder: Path, languages: Languages, columns: Columns) -> dict[str, Directions]:
    """The texts in a folder and in those below, sorted by name, with their directions by code.

    Hidden files and those of runs/ are skipped, and other files are counted. So is, with a warning, a file that cannot
    be read.

    Args:
        languages: those of files of lines, in addition to common ones.
    """
    texts, sides, others = dict[str, Directions](), defaultdict[str, dict[str, Path]](dict), list[Path]()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part == "runs" or part[0] == "." for part in parts) or not path.is_file():
            continue
        stem, _, language = str(path).removesuffix(".gz").rpartition(".")
        if FILE_ENDING.search(path.name) and (counts := _count_pairs(path, columns)):
            texts[str(path)] = counts
        elif language in languages or language_of_column(language):
            sides[stem][language] = path
        else:
            others.append(path)
    for stem, files in sides.items():
        for src, tgt in combinations(sorted(files, key=lambda name: (name != "en", name)), 2):
            texts.setdefault(stem, Counter())[src, tgt] = sum(1 for _ in read_lines(files[src]))
        if stem not in texts:
            others += files.values()
    if others:
        log_once(f"{folder}: {counted(len(others), 'other file')} skipped, such as {others[0].name}")
        if not texts:
            problem = no_pairs(*others[:2])
            log.warning("skipping %s\n  help: %s", problem, problem.help)
    return texts


@cache
def _count_pairs(path: Path, columns: Columns) -> Directions:
    """The directions of a file; none if it cannot be read. Two varieties of a language keep their regions."""
    counts = Directions()
    try:
        (src, *others), _ = languages_of(path, columns)
        for tgt in others:
            blocks = reader_of(path)(path, (src or PLAIN_NAMES[0], tgt or PLAIN_NAMES[1]), columns)
            names = src or "", tgt or ""
            src_code, tgt_code = map(code_of, names)
            counts[names if src_code == tgt_code else (src_code, tgt_code)] += sum(len(block.src) for block in blocks)
    except (UsageError, DataError) as error:
        log.warning("skipping %s", error)
    return counts
