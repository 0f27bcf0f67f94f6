"""What mtx does to the disk, recorded at its one seam, and the disks that a crash or a power cut can leave of it.

A killed process leaves what it did so far. A power cut also loses what was not synced: of a file's content any part, of
the names in a directory any of the changes, until that file or that directory is synced.
"""

import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mtx.files import disk


@dataclass(frozen=True)
class Op:
    """One operation on paths below the recorded root; `site` is the function that asked for it."""

    kind: str
    path: Path
    other: Path = Path()
    data: bytes = b""
    site: str = ""


class Recorder:
    """Records every operation of `mtx.files.disk` below `root` into `ops` and carries it out."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        self.root, self.ops = root, list[Op]()
        self._paths: dict[int, Path] = {}
        for name in ("make_directory", "sync", "rename", "unlink", "remove_directory", "write", "create"):
            monkeypatch.setattr(disk, name, getattr(self, name)(getattr(disk, name)))

    def mark(self, kind: str, step: int) -> None:
        """Note what the test does."""
        self.ops.append(Op(kind, Path(str(step))))

    def _add(self, kind: str, path: Path, other: Path | None = None, data: bytes = b"") -> None:
        other = Path() if other is None else other.relative_to(self.root)
        frame = sys._getframe(2)
        self.ops.append(Op(kind, path.relative_to(self.root), other, data, f"{frame.f_code.co_name}:{frame.f_lineno}"))

    def make_directory(self, real: Any) -> Any:
        return lambda path: (real(path), self._add("mkdir", path))

    def sync(self, real: Any) -> Any:
        return lambda path: (real(path), self._add("sync", path))

    def rename(self, real: Any) -> Any:
        return lambda old, new: (real(old, new), self._add("rename", old, new))

    def unlink(self, real: Any) -> Any:
        return lambda path: (real(path), self._add("unlink", path))

    def remove_directory(self, real: Any) -> Any:
        return lambda path: (real(path), self._add("unlink", path))

    def create(self, real: Any) -> Any:
        def call(path: Path) -> Any:
            file = real(path)
            self._paths[file.fileno()] = path
            self._add("create", path)
            return file

        return call

    def write(self, real: Any) -> Any:
        def call(fd: int, data: memoryview) -> int:
            num_written: int = real(fd, data)
            self._add("write", self._paths[fd], data=bytes(data[:num_written]))
            return num_written

        return call


@dataclass
class File:
    data: bytes = b""
    synced: bytes = b""

    def after_power_cut(self) -> list[bytes]:
        """What may be left of its content."""
        if self.data == self.synced:
            return [self.data]
        return [self.data, self.synced, self.data[: len(self.data) // 2], bytes(len(self.data))]


@dataclass
class Directory:
    """Names now, names that are safe, and the changes between the two: (name that goes, name that comes, what)."""

    names: dict[str, "File | Directory"] = field(default_factory=dict)
    synced: dict[str, "File | Directory"] = field(default_factory=dict)
    changes: list[tuple[str | None, str | None, Any]] = field(default_factory=list)

    def change(self, goes: str | None, comes: str | None, what: Any) -> None:
        self.changes.append((goes, comes, what))
        _apply(self.names, goes, comes, what)

    def after_power_cut(self, kept: tuple[bool, ...]) -> dict[str, "File | Directory"]:
        names = dict(self.synced)
        for (goes, comes, what), is_kept in zip(self.changes, kept, strict=True):
            if is_kept:
                _apply(names, goes, comes, what)
        return names

    def everything(self) -> Iterator["File | Directory"]:
        """Itself and all below it that now or safely has a name."""
        yield self
        below = {id(x): x for x in (*self.names.values(), *self.synced.values(), *(c[2] for c in self.changes))}
        for inner in below.values():
            yield from inner.everything() if isinstance(inner, Directory) else [inner]


def _apply(names: dict[str, Any], goes: str | None, comes: str | None, what: Any) -> None:
    if goes is not None and names.get(goes) is what:
        del names[goes]
    if comes is not None:
        names[comes] = what


def replayed(ops: list[Op]) -> Directory:
    """The disk after these operations."""
    root = Directory()
    for op in ops:
        parent = _at(root, op.path.parent) if op.kind not in ("begin", "done") else root
        match op.kind:
            case "mkdir":
                parent.change(None, op.path.name, Directory())
            case "create":
                old = parent.names.get(op.path.name)
                if isinstance(old, File):
                    old.data = b""
                else:
                    parent.change(None, op.path.name, File())
            case "write":
                file = _at(root, op.path)
                file.data += op.data
            case "sync":
                what = _at(root, op.path)
                if isinstance(what, Directory):
                    what.synced, what.changes = dict(what.names), []
                else:
                    what.synced = what.data
            case "rename":
                assert op.path.parent == op.other.parent, "a rename within one directory is one change"
                parent.change(op.path.name, op.other.name, parent.names[op.path.name])
            case "unlink":
                parent.change(op.path.name, None, parent.names[op.path.name])
    return root


def _at(root: Directory, path: Path) -> Any:
    found: Any = root
    for name in path.parts:
        found = found.names[name]
    return found


def killed(ops: list[Op]) -> Iterator[Directory]:
    """The disks that a kill after the last of these operations leaves, or in its middle."""
    yield replayed(ops)
    if ops and ops[-1].kind == "write":
        half = ops[-1].data[: len(ops[-1].data) // 2]
        yield replayed([*ops[:-1], Op("write", ops[-1].path, data=half)])


def write_out(directory: Directory, path: Path) -> None:
    """Make a disk that a kill leaves."""
    _write(directory.names, path, lambda inner: inner.names, lambda file: file.data)


def cut(ops: list[Op], most: int, rng: random.Random) -> Iterator[Any]:
    """The disks that a power cut after these operations can leave, all or `most`; each writes itself to a path."""
    root = replayed(ops)
    parts = list(root.everything())
    directories = [p for p in parts if isinstance(p, Directory)]
    files = [p for p in parts if isinstance(p, File)]
    choices: list[list[Any]] = [list(range(len(f.after_power_cut()))) for f in files]
    choices += [[True, False] for d in directories for _ in d.changes]
    total = 1
    for choice in choices:
        total *= len(choice)
    drawn: Any = itertools.product(*choices)
    if total > most:
        first, last = [c[0] for c in choices], [c[-1] for c in choices]
        drawn = [first, last, *([rng.choice(c) for c in choices] for _ in range(most - 2))]
    for chosen in drawn:
        data = {id(f): f.after_power_cut()[i] for f, i in zip(files, chosen, strict=False)}
        kept, at = {}, len(files)
        for directory in directories:
            kept[id(directory)] = directory.after_power_cut(tuple(chosen[at : at + len(directory.changes)]))
            at += len(directory.changes)
        yield lambda path, kept=kept, data=data: _write(
            kept[id(root)], path, lambda inner: kept[id(inner)], lambda file: data[id(file)]
        )


def _write(names: dict[str, Any], path: Path, names_of: Any, data_of: Any) -> None:
    path.mkdir()
    for name, what in names.items():
        if isinstance(what, Directory):
            _write(names_of(what), path / name, names_of, data_of)
        else:
            (path / name).write_bytes(data_of(what))
