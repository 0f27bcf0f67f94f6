"""Finds the parallel text that the configuration names: local files, a dataset on the hub, or the demo's file.

Everything is found before any work starts. Reading is the work of `readers` and `hub`, filtering that of `cleaning`.
Flow: files, hub or demo -> `PairBlock` -> cleaning -> tokenizer -> token store.
"""

import stat
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from mtx.config.schema import DataConfig, TrainText
from mtx.config.value_types import FILE_ENDING, HELD_OUT_TEST
from mtx.data.bilingual import Reader, read_bilingual
from mtx.data.corpora import Corpora, Corpus, PairBlock, name_test_sets
from mtx.data.hub import find_hub_corpora
from mtx.data.po import read_po
from mtx.data.readers import in_blocks, read_csv, read_jsonl, read_parquet, read_text, read_tsv
from mtx.data.tmx import TmxReader
from mtx.data.xliff import XliffReader
from mtx.errors import UsageError
from mtx.files.text_files import bilingual_form, read_lines

VALID_NAMES = ("val", "validation", "valid", "dev")
DEMO = Path(__file__).with_name("demo.tsv.gz")  # lines of part TAB source TAB target; scripts/demo_grammar writes it

_READERS = {"tsv": read_tsv, "csv": read_csv, "jsonl": read_jsonl, "parquet": read_parquet}
BILINGUAL: dict[str, Reader] = {"tmx": TmxReader, "xliff": XliffReader, "po": read_po}


def find_corpora(data: DataConfig) -> Corpora:
    """Find all text that the configuration names. Downloads a dataset of the hub; opens every local file once.

    Raises:
        UsageError: if no training text is configured, or a file is missing or cannot be read.
        MtxError: if the hub's dataset cannot be loaded.
    """
    if data.generator == "grammar":
        parts = ("train", "valid", "test")
        train, valid, test = (Corpus("grammar", 1.0, None, partial(_read_demo, part)) for part in parts)
        return Corpora([train], valid, {"grammar": test})
    if data.hub is not None and data.dir is None:
        return find_hub_corpora(data, data.hub)
    if not data.train:
        raise UsageError(
            "nothing to train on: data.train is not set",
            "mtx train own-text data.train=my.tsv data.src=en data.tgt=de, "
            "or data.train=train data.dir=DIR for DIR/train.en and DIR/train.de",
        )
    if data.dir is not None and not stat.S_ISDIR(_mode(Path(data.dir)) or 0):
        raise UsageError(f"data.dir: {data.dir} is not a directory")
    texts = [
        text if isinstance(text, TrainText) else TrainText.model_validate({"name": text, "weight": None})
        for text in data.train
    ]
    corpora = Corpora(
        train=[replace(_find(data, text.name, "train"), weight=text.weight, tag=text.tag) for text in texts],
        valid=None if data.valid is None else _find(data, data.valid, "valid"),
        tests={
            key: None if name == HELD_OUT_TEST else _find(data, name, "test") for key, name in name_test_sets(data.test)
        },
    )
    if data.columns and not any(len(corpus.files) == 1 and not corpus.is_memory for corpus in corpora.all()):
        what = "each language is a file of its own" if len(corpora.train[0].files) == 2 else "no file is a table"
        raise UsageError(f"data.columns: {what} here, and these have no columns")
    return corpora


def form_of(path: Path, languages: tuple[str | None, ...] = ()) -> str:
    """The form of a file of pairs: what it holds, whatever its name ends in, or else the ending, or its first line.

    Args:
        languages: data.src and data.tgt, if they are known, by which half of a pair of files is recognised.

    Raises:
        UsageError: if there is no such file, or it holds something else.
    """
    if not _is_parquet(path) and (held := bilingual_form(path)):
        return held
    ending = FILE_ENDING.search(path.name)
    form = ending[1].lower() if ending else _form_of_lines(path, languages)
    if form not in _READERS:
        help = "the name of a table ends in .tsv, .csv or .jsonl"
        raise UsageError(f"{path}: its name ends in .{form}, but it does not begin as such a file", help)
    return form


def _is_parquet(path: Path) -> bool:
    return path.name.lower().endswith(".parquet")  # no text; its reader says what is wrong with it


def _find(data: DataConfig, name: str, key: str) -> Corpus:
    """The text of `name`, an entry of data.train, data.valid or data.test (the `key`).

    Without one of the usual endings it is two files, or else a single file whose form its first line shows.

    Raises:
        UsageError: if there is no such file, or it holds something else than text.
        DataError: if a text file is in UTF-16 or UTF-32, or its lines end in CR.
    """
    ending = FILE_ENDING.search(name)
    sides, missing = (None, "") if ending else _find_sides(data, name, key)
    if sides:
        _check_beginnings(sides)
        return Corpus(name, 1.0, None, partial(read_text, *sides), sides)
    candidates = [Path(name)] if data.dir is None else [Path(data.dir, name), Path(name)]
    if ending is None:
        candidates = [path for path in candidates if not stat.S_ISDIR(_mode(path) or 0)]
    path = next((path for path in candidates if _is_file(path)), None)
    path = path or _refuse(key, name, missing or " or ".join(map(str, candidates)))
    form = form_of(path, data.languages)
    if form in BILINGUAL:
        read = partial(read_bilingual, path, data.languages, reader=BILINGUAL[form])
        return Corpus(name, 1.0, None, read, (path,), is_memory=True)
    if form != "parquet":
        _check_beginnings((path,))
    return Corpus(name, 1.0, None, partial(_READERS[form], path, data.languages, data.columns), (path,))


def _check_beginnings(files: tuple[Path, ...]) -> None:
    for file in files:
        next(read_lines(file), None)


def _form_of_lines(path: Path, languages: tuple[str | None, ...]) -> str:
    """The form of a text file with another ending, such as the .txt that spreadsheets write: by its first line."""
    line = next(read_lines(path), "")
    if "\t" in line or not line:
        return "tsv"
    if line.startswith("{"):
        return "jsonl"
    base = path.with_suffix("") if path.suffix == ".gz" else path
    help = (
        "pairs are source TAB target, one a line; if a comma or a semicolon separates them, the name must end in .csv"
    )
    if line.startswith("["):
        help = "JSON is read with one object a line (.jsonl)"
    elif base.suffix in {f".{language}" for language in languages}:
        names = " and ".join(f"{base.with_suffix('')}.{language}" for language in languages)
        help = f"two files are named by their common part: {base.with_suffix('')} for {names}"
    raise UsageError(f"{path}: its first line is no pair: it has no TAB", help)


def _find_sides(data: DataConfig, name: str, key: str) -> tuple[tuple[Path, Path] | None, str]:
    """The two files of a local name, or else which are missing.

    A validation set with one of VALID_NAMES is also found under the other ones.
    """
    path = Path(data.dir or ".", name)
    aliases = [alias for alias in VALID_NAMES if key == "valid" and path.name in VALID_NAMES and alias != path.name]
    missing = []
    for stem in (path.name, *aliases):
        plain = [path.parent / f"{stem}.{language}" for language in (data.src, data.tgt)]
        src, tgt = (next((p for p in (side, Path(f"{side}.gz")) if _is_file(p)), None) for side in plain)
        if src and tgt:
            return (src, tgt), ""
        missing.append([f"{side}[.gz]" for side, file in zip(plain, (src, tgt), strict=True) if file is None])
    return None, " and no ".join(missing[0]) + (f" (nor as {', '.join(aliases)})" if aliases else "")


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except PermissionError:
        raise UsageError(f"{path}: cannot be read: Permission denied") from None
    except (OSError, ValueError):  # missing, or not a possible path: too long, or with a NUL
        return None


def _is_file(path: Path) -> bool:
    """Whether the file exists; raises an error if it is not a regular file or cannot be read."""
    mode = _mode(path)
    if mode is None:
        return False
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device (a corpus is read more than once)"
        raise UsageError(f"{path}: expected a file, this is {kind}")
    if not _is_parquet(path):
        bilingual_form(path)
    return True


def _refuse(key: str, name: str, missing: str) -> NoReturn:
    help = (
        "a name means DIR/NAME.LANG[.gz] of data.dir, data.src, data.tgt; "
        "a single file ends in .tsv, .csv, .jsonl, .parquet, .tmx, .xliff, .po"
    )
    if FILE_ENDING.search(name):
        help = "a file of the current folder or of data.dir, or one with its path"
    if key != "train":
        help = f"without data.{key} a part of the training text is held out (data.valid=null); {help}"
    raise UsageError(f"data.{key}: {name!r} was not found: there is no {missing}", help)


def _read_demo(part: str) -> Iterator[PairBlock]:
    rows = (line.split("\t") for line in read_lines(DEMO))
    return in_blocks((src, tgt) for name, src, tgt in rows if name == part)
