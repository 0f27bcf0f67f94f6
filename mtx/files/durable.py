"""The only place that makes things durable, and the reader of JSON and manifests.

A file or a directory appears under its name whole or not at all: it is written beside its place, synced, and renamed;
a directory that is replaced steps aside first, and `remove_temporaries` mends what an interruption left of that.
A directory that must be trusted later carries `manifest.json` (sizes and sha256, written last); `verify` refuses it
by file name when a byte differs.
"""

import contextlib
import errno
import hashlib
import json
import os
import reprlib
import secrets
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mtx.errors import DamagedFileError
from mtx.files import disk

FORMAT = 1
MANIFEST = "manifest.json"  # lists the files of a directory with their sizes and sha256
TEMPORARY_PREFIX = ".tmp-"
_MAX_JSON_BYTES = 1 << 24  # vocabularies of 60,000 pieces have about 1.5 MB; of nothing but braces it takes 400 MB
_OLD_PREFIX = f"{TEMPORARY_PREFIX}old-"  # of a directory that steps aside until its replacement has its name
_SPACE_LEFT = 1_000_000  # bytes, for what else is written while a checkpoint is
_REMOVED_PREFIX = f"{TEMPORARY_PREFIX}removed-"


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears as `path` when the block ends well: `path` holds the old content or the new, whole."""
    temporary = _temporary(path.parent)
    try:
        with disk.create(temporary) as file:
            yield file
        disk.sync(temporary)
        disk.rename(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        name_destination(error, temporary, path)
        raise
    disk.sync(path.parent)


def _temporary(directory: Path) -> Path:
    return directory / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"


def name_destination(error: BaseException, temporary: Path, path: Path) -> None:
    """Let an OSError name what was to become `path`, not the temporary, which is removed."""
    if isinstance(error, OSError) and error.filename is not None:
        error.filename = str(error.filename).replace(str(temporary), str(path))


def make_directories(path: Path) -> None:
    """Make a directory, and those above it that are missing, so that they outlive a power cut."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was quicker
            disk.make_directory(directory)
        disk.sync(directory.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with new_file(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write `value` with the format number, as every JSON file of mtx carries it."""
    write_text(path, json.dumps({"format": FORMAT, **value}, ensure_ascii=False, indent=2) + "\n")


def require_file(path: Path) -> None:
    """Refuse what is no regular file, or a link that leads out of its directory.

    The snapshots of a Hugging Face cache consist of links to the `blobs` beside them; those are read.
    """
    if not path.is_file():
        raise DamagedFileError(f"{path}: is missing")
    home = path.parent.resolve()
    if path.is_symlink() and path.resolve().parent not in (home, home.parent.parent / "blobs"):
        help = "cp -rL makes a copy without links"
        raise DamagedFileError(f"{path}: is a link that leads out of its directory", help)


def parse_json(data: bytes) -> Any:
    """The value of JSON text; raises ValueError where it is none, is nested too deeply, or names a key twice."""
    try:
        return json.loads(data, object_pairs_hook=_with_each_key_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {reprlib.repr(twice)} stands twice")
    return values


def read_foreign_json(path: Path) -> Any:
    """The value of a JSON file that need not be mtx's own; a damaged or a huge one is refused by name."""
    require_file(path)
    if (size := path.stat().st_size) > _MAX_JSON_BYTES:
        raise DamagedFileError(f"{path}: {size:,} bytes are too many for this file")
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise DamagedFileError(f"{path}: is not JSON ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote; refuses other formats and damaged files by name."""
    value = read_foreign_json(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = reprlib.repr(value.get("format")) if isinstance(value, dict) else None
        raise DamagedFileError(f"{path}: format {found}, this version of mtx reads format {FORMAT}")
    return value


@contextmanager
def new_directory(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary directory that becomes `path` at the end, with a manifest, synced and read back, by one rename.

    On any error the temporary directory is removed and `path` is as it was. With `replace` an existing `path` is
    replaced by two renames; where the process is killed between them, `remove_temporaries` mends it at the next start.
    """
    make_directories(path.parent)
    temporary, old = _temporary(path.parent), path.with_name(f"{_OLD_PREFIX}{path.name}")
    try:
        disk.make_directory(temporary)
        yield temporary
        write_manifest(temporary)
        _read_back(temporary)
        if replace and path.exists():
            _remove_tree(old)
            disk.rename(path, old)
        disk.rename(temporary, path)
        disk.sync(path.parent)
        if replace:
            _remove_tree(old)
    except BaseException as error:
        _remove_tree(temporary)
        if replace:
            _put_back(old)
        name_destination(error, temporary, path)
        raise


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory among the system's temporary ones, which is gone after the block, however it ends.

    Windows removes no file that is still memory-mapped; there it may stay.
    """
    with tempfile.TemporaryDirectory(prefix="mtx-", ignore_cleanup_errors=os.name == "nt") as name:
        yield Path(name)


def _read_back(directory: Path) -> None:
    """Verify a directory that was synced by what lies on the disk, before it takes the place of anything."""
    for path in directory.iterdir():
        disk.drop_from_cache(path)
    verify(directory)


def _remove_tree(path: Path) -> None:
    """Remove what is left of a temporary, as far as it can be; a file or a directory, or nothing."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            for directory, inner, names in os.walk(path, topdown=False):
                for name in names:
                    disk.unlink(Path(directory, name))
                for name in inner:
                    sub = Path(directory, name)
                    disk.unlink(sub) if sub.is_symlink() else disk.remove_directory(sub)
            disk.remove_directory(path)
        elif path.exists() or path.is_symlink():
            disk.unlink(path)


def _put_back(old: Path) -> None:
    """Give a directory that stepped aside its name again, where nothing has taken it."""
    path = old.with_name(old.name.removeprefix(_OLD_PREFIX))
    if old.exists() and not path.exists():
        disk.rename(old, path)


def remove_temporaries(directory: Path) -> None:
    """Undo what an interrupted write left in `directory`; the caller must own the run."""
    for path in directory.glob(f"{_OLD_PREFIX}*"):
        _put_back(path)
    for path in directory.glob(f"{TEMPORARY_PREFIX}*"):
        _remove_tree(path)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path) -> None:
    """Sync every file of `directory` and list it with size and sha256 in its manifest, which is written last."""
    entries = {}
    for path in sorted(p for p in directory.iterdir() if p.is_file() and p.name != MANIFEST):
        if path.name.startswith(TEMPORARY_PREFIX):
            continue
        disk.sync(path)
        entries[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    write_json(directory / MANIFEST, {"files": entries})


def read_manifest(directory: Path) -> dict[str, Any]:
    """What the manifest of `directory` lists: file name to size and sha256."""
    entries = read_json(directory / MANIFEST).get("files")
    if not (directory / MANIFEST).read_bytes().endswith(b"\n"):
        raise DamagedFileError(f"{directory / MANIFEST}: is cut short")
    if not isinstance(entries, dict):
        raise DamagedFileError(f"{directory / MANIFEST}: lists no files")
    return entries


def verify(directory: Path, needed: Collection[str] = (), only_needed: bool = False) -> None:
    """Check that the manifest of `directory` lists `needed`, and every file that it lists, or those alone.

    Raises:
        DamagedFileError: naming the first file that is missing or differs.
    """
    manifest, entries = directory / MANIFEST, read_manifest(directory)
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
            raise DamagedFileError(
                f"{path}: {path.stat().st_size} bytes, its manifest says {reprlib.repr(entry.get('bytes'))}"
            )
        if sha256(path) != entry.get("sha256"):
            raise DamagedFileError(f"{path}: sha256 differs from its manifest; the file is damaged")


def remove_directory(path: Path) -> None:
    """Remove a directory that mtx wrote: renamed first, so that no half of it is ever found under its name."""
    doomed = path.with_name(f"{_REMOVED_PREFIX}{path.name}")
    _remove_tree(doomed)
    disk.rename(path, doomed)
    _remove_tree(doomed)


def set_aside(path: Path) -> Path:
    """Give a directory that must not be used a name under which nothing looks for it; returns that path."""
    aside = path.with_name(f"damaged-{path.name}")
    _remove_tree(aside)
    disk.rename(path, aside)
    return aside


def check_space(path: Path, num_bytes: int) -> None:
    """Refuse to begin to write `num_bytes` for `path` where its disk has no room for them, and a little more.

    Raises:
        OSError: ENOSPC, as if it had been tried.
    """
    directory = next(parent for parent in path.parents if parent.exists())
    needed, free = num_bytes + _SPACE_LEFT, disk.free_bytes(directory)
    if free < needed:
        reason = f"{os.strerror(errno.ENOSPC)}: {free / 1e6:,.0f} MB are free, {needed / 1e6:,.0f} MB needed"
        raise OSError(errno.ENOSPC, reason, str(path))


def remove_member(directory: Path, name: str) -> None:
    """Take a file out of a directory and of its manifest, the manifest first."""
    entries = read_manifest(directory)
    entries.pop(name, None)
    write_json(directory / MANIFEST, {"files": entries})
    _remove_tree(directory / name)
