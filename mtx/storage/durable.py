"""Durable files and directories: whole-or-nothing writes, manifests, and the reader of mtx's own JSON files.

A file or a directory appears under its name whole or not at all: it is written under a temporary name beside its
place, synced, and renamed. A directory that is replaced is renamed first; `remove_temporaries` repairs what an
interruption left. Every directory that mtx reads again has a `manifest.json` (sizes and sha256, written last); `verify`
compares the files with it and names the first that differs. mtx wrote what a manifest lists and what has a temporary
name; a directory that holds anything else is never removed but renamed to `kept-NAME`.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import re
import reprlib
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mtx.errors import DamagedFileError, UsageError
from mtx.storage import disk
from mtx.storage.untrusted import read_untrusted_json, require_file, require_size

logger = logging.getLogger(__name__)

FORMAT = 2  # of every file of mtx; versions of mtx with another number refuse it
MANIFEST = "manifest.json"  # lists the files of a directory with their sizes and sha256
TEMPORARY_PREFIX = ".tmp-"
SET_ASIDE = ("damaged-", "kept-")  # what begins so is read by nothing
_OLD_PREFIX = f"{TEMPORARY_PREFIX}old-"  # an old directory, until the new one has its name
_TEMPORARY = re.compile(r"\.tmp-([0-9a-f]{16}|old-.+)", re.DOTALL)
_MAX_UNNEEDED_BYTES = 1 << 26


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block ends without an error; until then the old `path` stays.

    It has the permissions of the old one from its first byte on.
    """
    temporary = _temporary(path.parent)
    try:
        with disk.create(temporary, permissions(path)) as file:
            yield file
            file.flush()
            disk.sync(temporary, file)  # its permissions may not let mtx open it again
        disk.rename(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        name_destination(error, temporary, path)
        raise
    disk.sync(path.parent)


def permissions(path: Path) -> int | None:
    """The permission bits of a file; None if there is no such file."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


def _temporary(directory: Path) -> Path:
    return directory / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"


def name_destination(error: BaseException, temporary: Path, path: Path) -> None:
    """Let an OSError name the destination `path` instead of the temporary file or directory, which is removed."""
    if isinstance(error, OSError) and error.filename is not None:
        error.filename = str(error.filename).replace(str(temporary), str(path))


def make_directories(path: Path) -> None:
    """Make a directory and its missing parents, so that they survive a power cut."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process made it first
            disk.make_directory(directory)
        disk.sync(directory.parent)


def nearest_directory(path: Path) -> Path:
    """The path itself if it exists, otherwise the nearest of its parents that does."""
    absolute = path.absolute()
    return next(candidate for candidate in (absolute, *absolute.parents) if candidate.exists())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with new_file(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object with the format number, which every JSON file of mtx carries.

    A lone surrogate, Python's form of a byte of a path that is not UTF-8, is escaped, and JSON reads it back.
    """
    text = json.dumps({"format": FORMAT, **value}, ensure_ascii=False, indent=2) + "\n"
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote.

    Raises:
        UsageError: if an earlier version of mtx wrote it.
        DamagedFileError: if it is damaged or of another format.
    """
    value = read_untrusted_json(path)
    if isinstance(value, dict) and value.get("format") == 1:
        raise UsageError(f"{path}: made by an earlier version of mtx", "train again, or use commit 2bb7301")
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        version = reprlib.repr(value.get("format")) if isinstance(value, dict) else None
        raise DamagedFileError(f"{path}: format {version}, this version of mtx reads format {FORMAT}")
    return value


@contextmanager
def new_directory(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary directory that becomes `path` at the end, with a manifest, synced and read back, by one rename.

    On any error the temporary directory is removed and `path` is as it was. With `replace`, an existing `path` is
    replaced by two renames; if the process is killed between them, `remove_temporaries` puts the old one back.
    """
    make_directories(path.parent)
    temporary, old = _temporary(path.parent), path.with_name(f"{_OLD_PREFIX}{path.name}")
    try:
        disk.make_directory(temporary)
        yield temporary
        write_manifest(temporary)
        for file in temporary.iterdir():
            disk.drop_from_cache(file)
        verify(temporary)  # reads back what the disk holds, before the old directory goes
        _settle(old)
        if replace and os.path.lexists(path):
            disk.rename(path, old)
        disk.rename(temporary, path)
        disk.sync(path.parent)
        _settle(old)
    except BaseException as error:
        _remove_tree(temporary)
        if not os.path.lexists(path):
            _settle(old)
        name_destination(error, temporary, path)
        raise


def _remove_tree(path: Path) -> None:
    """Remove a file or a directory, as far as possible; a missing one is fine."""
    with contextlib.suppress(OSError):
        if not path.is_dir() or path.is_symlink():
            disk.unlink(path)
            return
        for inner in path.iterdir():
            _remove_tree(inner)
        disk.remove_directory(path)


def _settle(old: Path) -> None:
    """Complete the replacement that has renamed a directory to `old`, or undo it if nothing has its name."""
    path = old.with_name(old.name.removeprefix(_OLD_PREFIX))
    if os.path.lexists(old):
        remove_directory(old) if os.path.lexists(path) else disk.rename(old, path)


def is_temporary(name: str) -> bool:
    """Whether mtx gives such names to temporary files and directories."""
    return _TEMPORARY.fullmatch(name) is not None


def is_written(directory: Path) -> bool:
    """Whether mtx wrote a directory: it has a manifest."""
    try:
        read_manifest(directory)
    except (DamagedFileError, OSError):
        return False
    return True


def foreign_entries(directory: Path) -> list[Path]:
    """What is in a directory with a manifest and was not written by mtx there."""
    own = {MANIFEST, *read_manifest(directory)}
    return [path for path in directory.iterdir() if path.name not in own and not is_temporary(path.name)]


def free_name(path: Path) -> Path:
    """The path itself if nothing has it, otherwise the first free one of NAME-2, NAME-3, ..."""
    names = itertools.chain([path.name], (f"{path.name}-{number}" for number in itertools.count(2)))
    return next(free for name in names if not os.path.lexists(free := path.with_name(name)))


def remove_temporaries(directory: Path) -> None:
    """Undo what an interrupted write left in `directory`; the caller must hold the lock of the run."""
    for path in [path for path in directory.glob(f"{TEMPORARY_PREFIX}*") if is_temporary(path.name)]:
        _settle(path) if path.name.startswith(_OLD_PREFIX) else _remove_tree(path)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, added: Collection[str] | None = None) -> None:
    """Sync every file of `directory`, then write its manifest, which lists them with size and sha256.

    Args:
        added: if given, the manifest that is there lists these files as well now, or their new content.
    """
    entries = {} if added is None else read_manifest(directory)
    for path in sorted(directory.iterdir() if added is None else (directory / name for name in added)):
        if not path.is_file() or path.name == MANIFEST or path.name.startswith(TEMPORARY_PREFIX):
            continue
        disk.sync(path)
        entries[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    write_json(directory / MANIFEST, {"files": entries})


def read_manifest(directory: Path) -> dict[str, Any]:
    """The entries of the manifest of `directory`: file name to size and sha256."""
    path = directory / MANIFEST
    entries = read_json(path).get("files")
    if not path.read_bytes().endswith(b"\n"):
        raise DamagedFileError(f"{path}: is cut short")
    if not isinstance(entries, dict):
        raise DamagedFileError(f"{path}: lists no files")
    return entries


def verify(
    directory: Path, needed: Collection[str] = (), only_needed: bool = False, limits: Mapping[str, int] | None = None
) -> None:
    """Compare the files of `directory` with its manifest.

    Args:
        needed: file names that the manifest must list.
        only_needed: compare these alone, not every file that the manifest lists.
        limits: for a directory that may be a stranger's, the most bytes that each needed file may have. Then the
            content of the other files is compared up to `_MAX_UNNEEDED_BYTES` of all.

    Raises:
        DamagedFileError: naming the first file that is missing or differs, or is larger than its limit.
    """
    manifest = directory / MANIFEST
    entries = read_manifest(directory)
    num_unneeded = 0
    for name in needed:
        if name not in entries:
            raise DamagedFileError(f"{manifest}: does not list {name}")
    for name, entry in entries.items():
        if only_needed and name not in needed:
            continue
        path = directory / name
        if Path(name).name != name or not isinstance(entry, dict):
            raise DamagedFileError(f"{manifest}: {reprlib.repr(name)} is not the name of a file in this directory")
        require_file(path)
        if path.stat().st_size != entry.get("bytes"):
            size = reprlib.repr(entry.get("bytes"))
            raise DamagedFileError(f"{path}: {path.stat().st_size} bytes, its manifest says {size}")
        if limits is not None and name in needed:
            require_size(path, limits[name])
        elif limits is not None:
            num_unneeded += path.stat().st_size
            if num_unneeded > _MAX_UNNEEDED_BYTES:
                continue
        if sha256(path) != entry.get("sha256"):
            raise DamagedFileError(f"{path}: sha256 differs from its manifest; the file is damaged")


def remove_directory(path: Path) -> None:
    """Remove a directory, unless it holds anything that mtx did not write: then it is renamed to `kept-NAME`.

    It is renamed first, so that nothing finds half a directory under its name.
    """
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.is_symlink() or not (is_empty or (is_written(path) and not foreign_entries(path))):
        logger.warning("%s: kept, because it holds something that mtx did not write", set_aside(path, "kept"))
        return
    removed = _temporary(path.parent)
    disk.rename(path, removed)
    _remove_tree(removed)


def set_aside(path: Path, word: str = "damaged") -> Path:
    """Rename a directory to `damaged-NAME`, or `damaged-NAME-2`, which nothing reads; returns the new path."""
    aside = free_name(path.with_name(f"{word}-{path.name.removeprefix(_OLD_PREFIX)}"))
    disk.rename(path, aside)
    return aside


def remove_member(directory: Path, name: str) -> None:
    """Remove a file from a directory and from its manifest, from the manifest first; a removed one is fine."""
    entries = read_manifest(directory)
    if entries.pop(name, None):
        write_json(directory / MANIFEST, {"files": entries})
    _remove_tree(directory / name)
