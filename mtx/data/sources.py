"""Finds the parallel text that the configuration names: local files, a dataset on the hub, or the demo's file.

Everything is found before any work starts. Also sources.json, by which a later start tells that a file has changed.
Reading is the work of `readers` and `hub`, filtering that of `cleaning`.
Flow: files, hub or demo -> `PairBlock` -> cleaning -> tokenizer -> token store.
"""

import contextlib
import stat
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mtx.config.schema import HELD_OUT_TEST, DataConfig, TokenizerConfig, TrainText
from mtx.data.bilingual import BilingualReader
from mtx.data.corpora import Corpora, Corpus, PairBlock, name_test_sets
from mtx.data.hub import find_hub_corpora
from mtx.data.readers import FILE_ENDING, reader_of
from mtx.data.tables import in_blocks, read_text
from mtx.data.tokenizer import given_models
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.storage import durable
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
        train, valid, test = (Corpus("grammar", partial(_read_demo, part)) for part in parts)
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
                return Corpus(name, partial(read_text, src, tgt), (src, tgt))
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
    return Corpus(name, read, (path,), isinstance(reader, BilingualReader))


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


def describe_files(data: DataConfig, tokenizer: TokenizerConfig | None = None) -> dict[str, Any]:
    """The content of sources.json: path, size, time and sha256 of each local file that the data is made from.

    They are the files of text and the SentencePiece models of `tokenizer.model`. It lies
    beside the prepared data, not in it: the hash of the data tells what a run learns from, wherever its files were.

    Raises:
        UsageError: if one is missing.
    """
    files = list[dict[str, Any]]()
    for path in _local_files(data, tokenizer):
        about = path.stat()
        times = {"bytes": about.st_size, "mtime_ns": about.st_mtime_ns}
        files.append({"path": str(path.absolute()), **times, "sha256": durable.sha256(path)})
    return {"files": files}


def find_changed_files(record: Path, data: DataConfig, tokenizer: TokenizerConfig | None = None) -> list[Path]:
    """The files that differ from those in a sources.json; missing ones do not count, nor does a missing record.

    A record that cannot be read counts as one that differs.
    """
    entries = _read_record(record)
    if entries is None:
        return [record]
    paths = [Path(entry["path"]) for entry in entries]
    with contextlib.suppress(MtxError):  # one is missing
        now = _local_files(data, tokenizer)
        paths = now if len(now) == len(paths) else paths
    return [path for path, entry in zip(paths, entries, strict=True) if _differs(path, entry)]


def recorded_text(record: Path) -> list[tuple[str, str]]:
    """Name and sha256 of each file in a sources.json; empty if it is missing or damaged."""
    return [(Path(entry["path"]).name, str(entry.get("sha256"))) for entry in _read_record(record) or []]


def _read_record(record: Path) -> list[dict[str, Any]] | None:
    """The files in a sources.json, of which there are none without it; None if it cannot be read."""
    try:
        stored = durable.read_json(record)["files"] if record.exists() else []
        return [{**entry, "path": str(entry["path"])} for entry in stored]
    except (DamagedFileError, KeyError, TypeError):
        return None


def _local_files(data: DataConfig, tokenizer: TokenizerConfig | None) -> list[Path]:
    others = given_models(tokenizer) if tokenizer else []
    if data.generator is not None or (data.hub is not None and data.dir is None):
        return others
    return [*(path for corpus in find_corpora(data).all() for path in corpus.files), *others]


def _differs(path: Path, entry: dict[str, Any]) -> bool:
    """Whether a file differs; its content is read only if its time has changed and its size has not."""
    try:
        about = path.stat()
        same_size, same_time = about.st_size == entry.get("bytes"), about.st_mtime_ns == entry.get("mtime_ns")
        return not (same_size and (same_time or durable.sha256(path) == entry.get("sha256")))
    except (OSError, ValueError):  # missing, or no possible path
        return False
