"""Which local files a run was prepared from (sources.json), so that a later start can tell that one has changed.

They are the files of text, the glossary of `data.terms` and the SentencePiece models of `tokenizer.model`.

The record lies beside the prepared data, not in it: the hash of the data tells what a run learns from, wherever and
however old its files were.
"""

from pathlib import Path
from typing import Any

from mtx.config.schema import DataConfig, TokenizerConfig
from mtx.data.glossary import glossary_file
from mtx.data.sources import find_corpora
from mtx.data.tokenizer import given_models
from mtx.errors import DamagedFileError, MtxError
from mtx.storage import durable


def describe(data: DataConfig, tokenizer: TokenizerConfig | None = None) -> dict[str, Any]:
    """The content of sources.json: path, size, time and sha256 of each local file that is there now.

    Raises:
        UsageError: if one is missing.
    """
    return {"files": [_describe(path) for path in _local_files(data, tokenizer)]}


def changed_files(record: Path, data: DataConfig, tokenizer: TokenizerConfig | None = None) -> list[Path]:
    """The files that differ from those in a record; missing ones do not count, nor does a missing record.

    A record that cannot be read counts as one that differs.
    """
    recorded = _entries(record)
    if recorded is None:
        return [record]
    try:
        now = _local_files(data, tokenizer)
    except MtxError:  # one is missing
        now = []
    paths = now if len(now) == len(recorded) else [path for path, _ in recorded]
    return [path for path, (_, entry) in zip(paths, recorded, strict=True) if _differs(path, entry)]


def recorded_text(record: Path) -> list[tuple[str, str]]:
    """Name and sha256 of each file in a record, in its order; empty without a record, or with one that is damaged."""
    return [(path.name, str(entry.get("sha256"))) for path, entry in _entries(record) or []]


def _entries(record: Path) -> list[tuple[Path, dict[str, Any]]] | None:
    """The files in a record, of which there are none without it; None if it cannot be read."""
    try:
        stored = durable.read_json(record)["files"] if record.exists() else []
        return [(Path(entry["path"]), dict(entry)) for entry in stored]
    except (DamagedFileError, KeyError, TypeError, ValueError):
        return None


def _local_files(data: DataConfig, tokenizer: TokenizerConfig | None) -> list[Path]:
    models = given_models(tokenizer) if tokenizer else []
    models += [path] if (path := glossary_file(data)) else []
    if data.generator is not None or (data.hub is not None and data.dir is None):
        return models
    return [*(path for corpus in find_corpora(data).all() for path in corpus.files), *models]


def _describe(path: Path) -> dict[str, Any]:
    about = path.stat()
    return {
        "path": str(path.absolute()),
        "bytes": about.st_size,
        "mtime_ns": about.st_mtime_ns,
        "sha256": durable.sha256(path),
    }


def _differs(path: Path, entry: dict[str, Any]) -> bool:
    """Whether a file differs; its content is read only if size and time do not tell."""
    try:
        about = path.stat()
        if not path.is_file():
            return False
        if about.st_size != entry.get("bytes"):
            return True
        return about.st_mtime_ns != entry.get("mtime_ns") and durable.sha256(path) != entry.get("sha256")
    except (OSError, ValueError):  # missing, or no possible path
        return False
