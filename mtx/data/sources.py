"""Finds the parallel text that the configuration names: local files, a dataset on the hub, or the demo's file.

Everything is found before any work starts. Reading is the work of `readers` and `hub`, filtering that of `cleaning`.
Flow: files, hub or demo -> `PairBlock` -> cleaning -> tokenizer -> token store.
"""

import stat
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from mtx.config.schema import DataConfig, TrainText
from mtx.config.value_types import HELD_OUT_TEST
from mtx.data.bilingual import BilingualReader
from mtx.data.corpora import Corpora, Corpus, PairBlock, name_test_sets
from mtx.data.hub import find_hub_corpora
from mtx.data.readers import FILE_ENDING, reader_of
from mtx.data.tables import in_blocks, read_text
from mtx.errors import UsageError
from mtx.storage.text_files import read_lines

_VALID_NAMES = ("valid", "val", "validation", "dev")  # each is also found under the other names
DEMO = Path(__file__).with_name("demo.tsv.gz")  # lines of part TAB source TAB target; scripts/demo_grammar writes it


def find_corpora(data: DataConfig) -> Corpora:
    """Find all text that the configuration names. Downloads a dataset of the hub.

    Raises:
        UsageError: if no training text is configured, or a file is missing or of another kind.
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
    if data.dir is not None and not stat.S_ISDIR(_mode(Path(data.dir))):
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
        raise UsageError("data.columns: none of these files is a table")
    return corpora


def _find(data: DataConfig, name: str, key: str) -> Corpus:
    """The text of `name`, an entry of data.train, data.valid or data.test (the `key`).

    Without one of the usual endings it is two files, or else a single file whose form its first line shows.

    Raises:
        UsageError: if there is no such file, or it holds something else than text.
    """
    candidates = [Path(name)] if data.dir is None else [Path(data.dir, name), Path(name)]
    missing = " or ".join(map(str, candidates))
    if not FILE_ENDING.search(name):
        names = _VALID_NAMES if key == "valid" and name in _VALID_NAMES else ()
        absent = []
        for stem in (name, *names):
            sides = [Path(data.dir or ".", f"{stem}.{language}") for language in data.languages]
            src, tgt = (next(filter(_is_file, (side, Path(f"{side}.gz"))), None) for side in sides)
            if src and tgt and src == tgt:
                raise UsageError(f"data.src and data.tgt are both {data.src!r}: {src} would be both sides of each pair")
            if src and tgt:
                return Corpus(name, 1.0, None, partial(read_text, src, tgt), (src, tgt))
            absent.append([f"{side}[.gz]" for side, file in zip(sides, (src, tgt), strict=True) if not file])
        missing = " and no ".join(absent[0])
        candidates = [path for path in candidates if not stat.S_ISDIR(_mode(path))]
    path = next(filter(_is_file, candidates), None)
    if path is None:
        help = "a name means DIR/NAME.LANG[.gz] of data.dir, data.src, data.tgt, or a file with its path and its ending"
        if key != "train":
            help = f"without data.{key} a part of the training text is held out (data.valid=null); {help}"
        raise UsageError(f"data.{key}: {name!r} was not found: there is no {missing}", help)
    reader = reader_of(path)
    read = partial(reader, path, data.languages, data.columns)
    return Corpus(name, 1.0, None, read, (path,), isinstance(reader, BilingualReader))


def _mode(path: Path) -> int:
    """The mode of a file; 0 if there is none."""
    try:
        return path.stat().st_mode
    except PermissionError:
        raise UsageError(f"{path}: cannot be read: Permission denied") from None
    except (OSError, ValueError):  # missing, or not a possible path: too long, or with a NUL
        return 0


def _is_file(path: Path) -> bool:
    """Whether the file exists; raises an error if it is not a regular file."""
    mode = _mode(path)
    if mode and not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device (a corpus is read more than once)"
        raise UsageError(f"{path}: expected a file, this is {kind}")
    return mode > 0


def _read_demo(part: str) -> Iterator[PairBlock]:
    rows = (line.split("\t") for line in read_lines(DEMO))
    return in_blocks((src, tgt) for name, src, tgt in rows if name == part)
