"""Files and directories that survive a power cut: atomic writes, manifests, JSON, and untrusted files.

A file or a directory appears under its name completely or not at all: it is written under a temporary name next to its
place, synced, and renamed. A replaced directory is renamed first; `remove_temporaries` repairs interrupted writes.
Every directory that mtx reads again has a `manifest.json` (sizes and sha256, written last); `verify` compares the
files with it and names the first that differs. mtx wrote the files that a manifest lists; a directory with anything
else is not removed but renamed to `kept-NAME`. Untrusted files are read only if they are regular files of bounded size.
"""

import contextlib
import hashlib
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

from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.formatting import format_size
from mtx.storage import disk

logger = logging.getLogger(__name__)

Json = dict[str, Any]  # an object

FORMAT = 2  # of every file of mtx; versions of mtx with another number refuse it
MANIFEST = "manifest.json"  # lists the files of a directory with their sizes and sha256
TEMPORARY_PREFIX = ".tmp-"
SET_ASIDE = ("damaged-", "kept-")  # prefixes of files and directories that are never read
_OLD_PREFIX = f"{TEMPORARY_PREFIX}old-"  # an old directory, until the new one has its name
_TEMPORARY = re.compile(r"\.tmp-([0-9a-f]{16}|old-.+)", re.DOTALL)
MAX_JSON_BYTES = 1 << 24  # a vocabulary of 60,000 pieces has 1.5 MB; 16 MB of braces need 400 MB of memory
_MAX_OTHER_BYTES = 1 << 26  # of an optional file of a model directory, such as its card


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block ends without an error; until then the old `path` remains.

    It has the permissions of the old file from its first byte.
    """
    with _temporary_of(path) as temporary:
        with disk.create(temporary, permissions(path)) as file:
            yield file
            file.flush()
            disk.sync(temporary, file)  # its permissions may not let mtx open it again
        disk.rename(temporary, path)
        disk.sync(path.parent)


@contextmanager
def _temporary_of(path: Path, name: str = "") -> Iterator[Path]:
    """Yield a temporary name next to `path`. On an error what has it is removed, and an OSError names `path`.

    Args:
        name: the name; what an interrupted call has left there is removed. Empty: a random one.
    """
    temporary = path.with_name(name) if name else _temporary(path)
    remove_tree(temporary)
    try:
        yield temporary
    except BaseException as error:
        remove_tree(temporary)
        name_destination(error, temporary, path)
        raise


def permissions(path: Path) -> int | None:
    """The permission bits of a file; None if there is no such file."""
    return path.stat().st_mode & 0o777 if path.exists() else None


def _temporary(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")


def name_destination(error: BaseException, temporary: Path, path: Path) -> None:
    """Put the destination `path` into an OSError that names the temporary file or directory."""
    if isinstance(error, OSError) and error.filename is not None:
        error.filename = str(error.filename).replace(str(temporary), str(path))


def make_directories(path: Path) -> None:
    """Make a directory and its missing parents, so that they survive a power cut."""
    if not path.exists():
        make_directories(path.parent)
        with contextlib.suppress(FileExistsError):  # another process made it first
            disk.make_directory(path)
        disk.sync(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    with new_file(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Json) -> None:
    """Write a JSON object with the format number, as in every JSON file of mtx.

    A lone surrogate (Python's form of a byte of a path that is not UTF-8) is escaped, and JSON reads it back.
    """
    write_bytes(path, json_bytes(value))


def json_bytes(value: Json) -> bytes:
    """The content of the file that `write_json` writes."""
    text = json.dumps({"format": FORMAT, **value}, ensure_ascii=False, indent=2)
    return f"{text}\n".encode("utf-8", "backslashreplace")


def read_json(path: Path) -> Json:
    """Read a JSON object that `write_json` wrote.

    Raises:
        UsageError: if an earlier version of mtx wrote it.
        DamagedFileError: if it is damaged or of another format.
    """
    value = read_untrusted_json(path)
    version = value.get("format") if isinstance(value, dict) else None
    if version == 1:
        raise UsageError(f"{path}: made by an earlier version of mtx", "train again, or use commit 2bb7301")
    if version != FORMAT:
        raise DamagedFileError(f"{path}: expected format {FORMAT}, got {reprlib.repr(version)}")
    return dict(value)


def require_file(path: Path) -> None:
    """Check that `path` is a regular file, or a link to one in its own directory.

    Links into the `blobs` of a Hugging Face cache are also accepted, because a snapshot consists of such links.

    Raises:
        DamagedFileError: if it is not.
    """
    if not path.is_file():
        raise DamagedFileError(f"{path}: missing file")
    home = path.parent.resolve()
    if path.is_symlink() and path.resolve().parent not in (home, home.parent.parent / "blobs"):
        raise DamagedFileError(f"{path}: a link to another directory", "cp -rL copies without links")


def require_size(path: Path, limit: int) -> None:
    """Raise DamagedFileError if a file has more than `limit` bytes, before it is read."""
    if (size := path.stat().st_size) > limit:
        raise DamagedFileError(f"{path}: {size:,} bytes, expected at most {limit:,}")


def require_space(directory: Path, needed: int, user: str, hint: str) -> None:
    """Refuse to begin what would fill a disk.

    Args:
        needed: the bytes that `user`, such as "this run", will write to the directory.

    Raises:
        MtxError: if its disk has less free; `hint` is what to do.
    """
    free = disk.free_bytes(directory)
    if free < needed:
        problem = f"its disk has {format_size(free)} free, but {user} needs {format_size(needed)}"
        raise MtxError(f"{directory}: {problem}", hint)


def parse_json(data: bytes) -> Any:
    """The value of JSON text. Raises ValueError if it is not JSON, is nested too deeply, or has a key twice."""
    try:
        return json.loads(data, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> Json:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("duplicate key")
    return values


def read_untrusted_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The value of a JSON file of any program. Raises DamagedFileError if the file is damaged or huge."""
    require_file(path)
    require_size(path, max_bytes)
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise DamagedFileError(f"{path}: invalid JSON ({error})") from None


@contextmanager
def new_directory(path: Path, temporary_name: str = "") -> Iterator[Path]:
    """Yield a temporary directory that becomes `path` at the end, with a manifest and synced, by one rename.

    On any error the temporary directory is removed and `path` is unchanged. An existing `path` is replaced.

    Args:
        temporary_name: the name of the temporary directory, where nobody calls `remove_temporaries`; see
            `_temporary_of`.
    """
    make_directories(path.parent)
    with _temporary_of(path, temporary_name) as temporary:
        disk.make_directory(temporary)
        yield temporary
        write_manifest(temporary)
        replace_directory(temporary, path)


def replace_directory(new: Path, path: Path) -> None:
    """Rename the directory `new` to `path`; an existing one is renamed before and removed afterwards.

    If the process is killed between the two renames, `find_directory` finds the old one, and `remove_temporaries`
    restores it.
    """
    old = _old_name(path)
    _settle(old)
    if os.path.lexists(path):
        disk.rename(path, old)
    try:
        disk.rename(new, path)
        disk.sync(path.parent)
    finally:
        _settle(old)


def find_directory(path: Path) -> Path:
    """`path`, or where its old content is if `replace_directory` was killed between its renames."""
    old = _old_name(path)
    return old if os.path.lexists(old) and not os.path.lexists(path) else path


def _old_name(path: Path) -> Path:
    return path.with_name(f"{_OLD_PREFIX}{path.name}")


def remove_tree(path: Path) -> None:
    """Remove a file or a directory, as far as possible; a missing one is fine."""
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            disk.unlink(path)
        else:
            for inner in path.iterdir():
                remove_tree(inner)
            disk.remove_directory(path)


def _settle(old: Path) -> None:
    """Complete the replacement that has renamed a directory to `old`, or undo it if nothing has its name."""
    path = old.with_name(old.name.removeprefix(_OLD_PREFIX))
    if os.path.lexists(old):
        if os.path.lexists(path):
            remove_directory(old)
        else:
            disk.rename(old, path)


def is_temporary(name: str) -> bool:
    """Whether a name is one of mtx's names for temporary files and directories."""
    return _TEMPORARY.fullmatch(name) is not None


def has_manifest(directory: Path) -> bool:
    """Whether a directory has a manifest, so that mtx wrote it."""
    try:
        read_manifest(directory)
    except (DamagedFileError, OSError):
        return False
    return True


def foreign_entries(directory: Path) -> list[Path]:
    """The content of a directory that mtx did not write; without a manifest, everything."""
    listed = {MANIFEST, *read_manifest(directory)} if has_manifest(directory) else set[str]()
    return [path for path in directory.iterdir() if path.name not in listed and not is_temporary(path.name)]


def remove_temporaries(directory: Path) -> None:
    """Undo interrupted writes in `directory`; the caller must hold the lock of the run."""
    for path in [path for path in directory.glob(f"{TEMPORARY_PREFIX}*") if is_temporary(path.name)]:
        if path.name.startswith(_OLD_PREFIX):
            _settle(path)
        else:
            remove_tree(path)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path) -> None:
    """Sync every file of `directory`, then write its manifest, which lists them with size and sha256."""
    entries = {}
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.name != MANIFEST:
            disk.sync(path)
            entries[path.name] = _entry(path)
    write_json(directory / MANIFEST, {"files": entries})


def replace_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a directory with a manifest; after a kill each of them is the old or the new one.

    Until all are written, the manifest has a list of entries for each: what was there, None for nothing, and the new.
    """
    listed = read_manifest(directory)
    new_entries = Json()
    accepted_entries = Json()
    for name, data in files.items():
        path = directory / name
        old_entry = listed.get(name) or (_entry(path) if path.is_file() else None)
        new_entries[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        accepted_entries[name] = [*_accepted(old_entry), new_entries[name]]
    write_json(directory / MANIFEST, {"files": listed | accepted_entries})
    for name, data in files.items():
        write_bytes(directory / name, data)
    write_json(directory / MANIFEST, {"files": listed | new_entries})


def _accepted(entry: Any) -> list[Any]:
    """What a file may be by its entry in a manifest, see `replace_files`."""
    return entry if isinstance(entry, list) else [entry]


def read_manifest(directory: Path) -> Json:
    """The entries of the manifest of `directory`: file name to size and sha256, or to a list, see `replace_files`."""
    path = directory / MANIFEST
    entries = read_json(path).get("files")
    if not path.read_bytes().endswith(b"\n"):
        raise DamagedFileError(f"{path}: truncated file")
    if not isinstance(entries, dict):
        raise DamagedFileError(f"{path}: lists no files")
    return entries


def verify(
    directory: Path,
    needed: Collection[str] | Mapping[str, int] = (),
    only_needed: bool = False,
    only_sizes: bool = False,
) -> None:
    """Compare the files of `directory` with its manifest.

    Args:
        needed: file names that the manifest must list; for an untrusted directory with their maximum sizes in bytes.
        only_needed: compare only these, not every file in the manifest.
        only_sizes: compare only the sizes, and read no file but the manifest.

    Raises:
        DamagedFileError: with the first file that is missing, differs, or is larger than its limit.
    """
    manifest = directory / MANIFEST
    entries = read_manifest(directory)
    names = [*needed] if only_needed else [*needed, *entries]
    for name in dict.fromkeys(names):
        path = directory / name
        if name not in entries:
            raise DamagedFileError(f"{manifest}: does not list {name}")
        if path.name != name:
            raise DamagedFileError(f"{manifest}: {reprlib.repr(name)} is not the name of a file in this directory")
        accepted = _accepted(entries[name])
        if None in accepted and name not in needed and not os.path.lexists(path):
            continue
        require_file(path)
        if isinstance(needed, Mapping):
            if name not in needed and path.stat().st_size > _MAX_OTHER_BYTES:
                continue  # not needed
            require_size(path, needed.get(name, _MAX_OTHER_BYTES))
        if only_sizes:
            is_accepted = any(entry["bytes"] == path.stat().st_size for entry in accepted if entry)
        else:
            is_accepted = _entry(path) in accepted
        if not is_accepted:
            raise DamagedFileError(f"{path}: damaged file (it differs from the manifest)")


def _entry(path: Path) -> Json:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def remove_directory(path: Path) -> None:
    """Remove a directory; if it contains anything that mtx did not write, rename it to `kept-NAME` instead.

    It is renamed first, so that no one finds half a directory under its name.
    """
    if path.is_symlink() or not path.is_dir() or foreign_entries(path):
        logger.warning(f"{set_aside(path, 'kept')}: kept, because it contains files that mtx did not write")
        return
    removed = _temporary(path)
    disk.rename(path, removed)
    remove_tree(removed)


def set_aside(path: Path, word: str = "damaged") -> Path:
    """Rename a directory to `damaged-NAME` or `damaged-NAME-2`, which is never read; returns the new path."""
    name = f"{word}-{path.name.removeprefix(_OLD_PREFIX)}"
    number = 1
    while os.path.lexists(aside := path.with_name(name if number == 1 else f"{name}-{number}")):
        number += 1
    disk.rename(path, aside)
    return aside


def remove_member(directory: Path, name: str) -> None:
    """Remove a file from a manifest and then from its directory; a missing file is fine."""
    entries = read_manifest(directory)
    if entries.pop(name, None):
        write_json(directory / MANIFEST, {"files": entries})
    remove_tree(directory / name)
