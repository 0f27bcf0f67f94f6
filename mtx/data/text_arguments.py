"""What the names on a command line are: texts to train on, and the settings that follow from them.

Flow: names -> `describe` -> settings of the recipe own-text -> `describe_languages` -> data.src and data.tgt.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mtx.config.schema import key_names, write_list
from mtx.config.settings import Resolved, default_run_dir, exists, is_dir, recipe_names
from mtx.data.bilingual import match_rank
from mtx.data.folders import ending_of, find_sides, language_codes, pair_sides, prefix_of
from mtx.data.languages import Languages, tag_of
from mtx.data.readers import FILE_ENDING, no_pairs, open_pairs
from mtx.data.sources import find_corpora, find_two_files
from mtx.data.tables import PLAIN_NAMES, language_of_column
from mtx.errors import UsageError
from mtx.formatting import did_you_mean
from mtx.storage.run_files import is_run
from mtx.storage.text_files import read_lines

log = logging.getLogger(__name__)

_CONFIG_LINE = re.compile(r"\s*(?:#(?:[ #].*)?|---|\w+:(?: \S+)?)?")  # of a file that may be a configuration


def holds_pairs(name: str, languages: Iterable[str] = PLAIN_NAMES) -> bool | None:
    """Whether a file holds pairs, by its extension, its content or a TAB in its first line; a folder may hold some.

    So does the NAME of files such as NAME.en and NAME.de. None for a recipe or a run directory, for what may be a
    configuration, and where there is no such file.

    Args:
        languages: endings of such files, in addition to common ones.
    """
    path = Path(name)
    if name in recipe_names():
        return None
    if is_dir(name):
        return None if is_run(path) else True
    if not exists(name):
        return True if find_sides(Path(f"{name}.*"), languages) else None
    if not path.is_file() or path.suffix in (".yaml", ".yml"):
        return None
    if open_pairs(path):
        return True
    return None if _CONFIG_LINE.fullmatch(next(read_lines(path), "")) else False


def named_sides(names: Sequence[str], languages: Languages) -> Languages | None:
    """The languages of two files NAME.LANG of one NAME, in the order in which they are named; None for other names.

    Raises:
        UsageError: if mtx would read other files of NAME: plain ones instead of gzip, or in other `languages`.
    """
    paths = tuple(map(Path, names))
    if len(paths) != 2 or not pair_sides(paths, languages):
        return None
    src, tgt = map(ending_of, paths)
    are_given = {*languages}.isdisjoint(PLAIN_NAMES)
    choices = [languages] if are_given else [language_codes(src, tgt), (tag_of(src), tag_of(tgt))]
    other_files = list[str]()
    for choice in choices:
        corpus = find_two_files(".", names[0], [prefix_of(paths[0])], "train", choice)
        if corpus and {*corpus.files} == {*paths}:
            return choice
        if corpus:
            other_files = [str(file) for file in corpus.files if file not in paths]
    problem = f"{' and '.join(names)}: no text in {' and '.join(choices[0])}"
    if other_files:
        problem += f", which is in {' and '.join(other_files)}"
    raise UsageError(problem, "name these files, or other languages: data.src=en data.tgt=de")


def describe(names: list[str], overrides: list[str]) -> list[str]:
    """The settings with which `own-text` trains on files, without their languages; none for other names.

    Raises:
        UsageError: if a file is missing, they hold no pairs, or the overrides have other training text.
    """
    values = {key: value for key, _, value in (override.partition("=") for override in overrides)}
    languages = values.get("data.src", "src"), values.get("data.tgt", "tgt")
    kinds = set[bool | None]()
    for name in names:
        kind = holds_pairs(name, languages)
        kinds.add(kind)
        is_one_of_files = len(names) > 1 and Path(name).suffix and name not in key_names()
        if kind is None and (FILE_ENDING.search(name) or is_one_of_files) and not exists(name):
            raise UsageError(f"{name}: no such file{did_you_mean(Path(name))}")
    sides = named_sides(names, languages)
    if sides:
        names = [prefix_of(Path(names[0]))]
        kinds = {True}
    if False in kinds and None not in kinds:
        codes = {language_of_column(ending_of(Path(name))) for name in names}
        if len(names) > 1 and len(codes) == 1 and None not in codes:
            problem = f"{' and '.join(names)} are in one language, {codes.pop()}"
            raise UsageError(problem, "name two files, NAME.en NAME.de, of which one is the translation of the other")
        raise no_pairs(*map(Path, names[:2]))
    if kinds != {True}:
        return []
    files = write_list(f"{Path(name)}/" if is_dir(name) and not sides else name for name in names)
    if "data.train" in values:
        raise UsageError(f"{names[0]} and data.train: expected one of them", f"data.train={files},OTHER")
    path = Path(names[0])
    text_name = FILE_ENDING.sub("", (path if path.is_file() else path.resolve()).name).removesuffix(".gz")
    settings = [f"data.train={files}"]
    if "run_dir" not in values:
        settings.append(f"run_dir={default_run_dir(text_name)}")
    return settings


def describe_languages(resolved: Resolved, names: Sequence[str] = ()) -> list[str]:
    """The settings data.src and data.tgt that the first training text implies, except the ones that are given.

    Args:
        names: as in `describe`; two files are source and target in this order.

    Raises:
        UsageError: if a given one is not a language of the text, or not a code; or the languages are unclear.
    """
    data = resolved.config.data
    sides = ("data.src", data.src), ("data.tgt", data.tgt)
    explicit = {key: language for key, language in sides if resolved.is_explicit(key)}
    for key, language in explicit.items():
        if (code := tag_of(language)) != language:
            raise UsageError(f"{key}={language}: expected the code of a language", f"{key}={code}")
    is_given = resolved.is_explicit("data.directions") or resolved.config.training.init_from
    if len(explicit) == 2 or is_given or not data.train:
        return []
    src, tgt = named_sides(names, data.languages) or data.languages
    corpus = find_corpora(data.model_copy(update={"src": src, "tgt": tgt, "valid": None, "test": ()})).train[0]
    place = corpus.name
    pair = [*corpus.languages]
    origin = "most of its text" if corpus.is_folder else "the names of its files"
    if corpus.pair_file:
        place = str(corpus.pair_file.path)
        *pair, origin = corpus.pair_file.find_languages(data.columns)
    elif not corpus.is_folder and corpus.languages == data.languages:
        return []
    for src, tgt in (pair, pair[::-1]):
        languages = {"data.src": src, "data.tgt": tgt}
        if all(match_rank(languages[key], language) is not None for key, language in explicit.items()):
            src, tgt = (languages | explicit).values()
            text = "%s: %s to %s (from %s); for the opposite direction: data.src=%s data.tgt=%s"
            log.info(text, place, src, tgt, origin, tgt, src)
            return [f"{key}={language}" for key, language in languages.items() if key not in explicit]
    [(key, language)] = explicit.items()
    hint = "name both data.src and data.tgt, or data.columns=SRC,TGT"
    raise UsageError(f"{key}={language}: {place} has {' and '.join(pair)} (from {origin})", hint)
