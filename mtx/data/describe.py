"""What a file of text is: whether it holds pairs, and the settings that follow from its name and its text.

Flow: files -> `describe` -> settings of `own-text`; any configuration -> `describe_languages` -> data.src and data.tgt.
"""

import logging
import re
from pathlib import Path

from mtx.config.settings import Resolved, exists, recipe_names
from mtx.data.bilingual import match_rank
from mtx.data.language_detection import find_languages
from mtx.data.languages import tag_of
from mtx.data.readers import FILE_ENDING
from mtx.data.sources import find_corpora
from mtx.errors import UsageError
from mtx.formatting import mtx_command, shell_command
from mtx.storage.text_files import bilingual_form, read_lines

logger = logging.getLogger("mtx")

_CONFIG_LINE = re.compile(r"\s*(?:#.*|---|\w+:(?: \S+)?)?")


def _holds_pairs(name: str) -> bool | None:
    """Whether a file holds pairs, by its extension, its content or a TAB in its first line.

    None for a recipe, for what may be a configuration, and where there is no such file.
    """
    path = Path(name)
    if name in recipe_names() or not (exists(name) and path.is_file()):
        return None
    if FILE_ENDING.search(name) or bilingual_form(path):
        return True
    if path.suffix in (".yaml", ".yml"):
        return None
    line = next(read_lines(path), "")
    return "\t" in line or (None if _CONFIG_LINE.fullmatch(line) else False)


def describe(names: list[str], overrides: list[str]) -> list[str]:
    """The settings with which `own-text` trains on files, without their languages; none for other names.

    Raises:
        UsageError: if a file is missing, they hold no pairs, or the overrides have other training text.
    """
    if missing := [name for name in names if FILE_ENDING.search(name) and not exists(name)]:
        raise UsageError(f"{missing[0]}: no such file")
    kinds = {*map(_holds_pairs, names)}
    if kinds == {False}:
        help = "write one pair a line, source TAB target; or name two files, one for each language"
        if len(names) == 2:
            paste = shell_command("paste", *map(Path, names))
            help = f"{paste} > pairs.tsv, and {mtx_command('train', 'pairs.tsv')}"
        raise UsageError(f"{names[0]}: expected sentence pairs, but its first line has no TAB", help)
    if kinds != {True}:
        return []
    files, keys = ",".join(names), {override.partition("=")[0] for override in overrides}
    if "data.train" in keys:
        raise UsageError(f"{names[0]} and data.train: expected one of them", f"data.train={files},OTHER")
    run_dir = f"run_dir=runs/{FILE_ENDING.sub('', Path(names[0]).name).removesuffix('.gz')}"
    return [f"data.train={files}", *([] if "run_dir" in keys else [run_dir])]


def describe_languages(resolved: Resolved) -> list[str]:
    """The settings data.src and data.tgt that the first training text implies, except the ones that are given.

    Raises:
        UsageError: if a given one is not a language of the text, or not a code; or the languages are unclear.
    """
    data = resolved.config.data
    sides = ("data.src", data.src), ("data.tgt", data.tgt)
    explicit = {key: language for key, language in sides if resolved.is_explicit(key)}
    for key, language in explicit.items():
        if (code := tag_of(language)) != language:
            raise UsageError(f"{key}={language}: expected the code of a language", f"{key}={code}")
    if len(explicit) == 2 or not data.train or resolved.config.training.init_from:
        return []
    files = find_corpora(data).train[0].files
    if len(files) != 1:
        return []
    *pair, origin = find_languages(files[0], data.columns)
    for src, tgt in (pair, pair[::-1]):
        languages = {"data.src": src, "data.tgt": tgt}
        if all(match_rank(languages[key], language) is not None for key, language in explicit.items()):
            src, tgt = (languages | explicit).values()
            text = "%s: %s to %s (from %s); for the opposite direction: data.src=%s data.tgt=%s"
            logger.info(text, files[0], src, tgt, origin, tgt, src)
            return [f"{key}={language}" for key, language in languages.items() if key not in explicit]
    [(key, language)] = explicit.items()
    help = "name both data.src and data.tgt, or data.columns=SRC,TGT"
    raise UsageError(f"{key}={language}: {files[0]} has {' and '.join(pair)} (from {origin})", help)
