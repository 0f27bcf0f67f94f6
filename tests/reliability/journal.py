"""Records every disk operation of mtx, and builds the disks that a crash or a power cut can leave.

A killed process leaves everything it did so far. A power cut can also lose what was not synced: any part of the content
of a file, and any change of the names in a directory, until that file or directory is synced.
"""

import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mtx.storage import disk


@dataclass(frozen=True)
class Op:
    """One operation on paths below the recorded root; `site` is the function and line that called it."""

    kind: str
    path: Path
    other: Path = Path()
    data: bytes = b""
    site: str = ""


class Recorder:
    """Records every operation of `mtx.storage.disk` below `root` in `ops`, and carries it out."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        self.root, self.ops = root, list[Op]()
        self._paths: dict[int, Path] = {}
        for name in ("make_directory", "sync", "rename", "unlink", "remove_directory", "write", "create", "append"):
            monkeypatch.setattr(disk, name, getattr(self, name)(getattr(disk, name)))

    def mark(self, kind: str, step: int) -> None:
        """Record a step of the test itself."""
        self.ops.append(Op(kind, Path(str(step))))

    def _add(self, kind: str, path: Path, other: Path | None = None, data: bytes = b"") -> None:
        other = Path() if other is None else other.relative_to(self.root)
        frame = sys._getframe(2)
        self.ops.append(Op(kind, path.relative_to(self.root), other, data, f"{frame.f_code.co_name}:{frame.f_lineno}"))

    def make_directory(self, real: Any) -> Any:
        return lambda path: (real(path), self._add("mkdir", path))

    def sync(self, real: Any) -> Any:
        return lambda path, *file: (real(path, *file), self._add("sync", path))

    def rename(self, real: Any) -> Any:
        return lambda old, new: (real(old, new), self._add("rename", old, new))

    def unlink(self, real: Any) -> Any:
        return lambda path: (real(path), self._add("unlink", path))

    def remove_directory(self, real: Any) -> Any:
        return lambda path: (real(path), self._add("unlink", path))

    def create(self, real: Any) -> Any:
        def call(path: Path, *mode: Any) -> Any:
            file = real(path, *mode)
            self._paths[file.fileno()] = path
            self._add("create", path)
            return file

        return call

    def append(self, real: Any) -> Any:
        def call(path: Path) -> Any:
            is_new = not path.exists()
            file = real(path)
            self._paths[file.fileno()] = path
            if is_new:
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
        """The contents that a power cut can leave."""
        if self.data == self.synced:
            return [self.data]
        return [self.data, self.synced, self.data[: len(self.data) // 2], bytes(len(self.data))]


@dataclass
class Directory:
    """Its names now, its synced names, and the changes between: (old name, new name, file or directory)."""

    names: dict[str, "File | Directory"] = field(default_factory=dict)
    synced: dict[str, "File | Directory"] = field(default_factory=dict)
    changes: list[tuple[str | None, str | None, Any]] = field(default_factory=list)

    def change(self, old: str | None, new: str | None, what: Any) -> None:
        self.changes.append((old, new, what))
        _apply(self.names, old, new, what)

    def after_power_cut(self, is_kept: tuple[bool, ...]) -> dict[str, "File | Directory"]:
        names = dict(self.synced)
        for (old, new, what), keep in zip(self.changes, is_kept, strict=True):
            if keep:
                _apply(names, old, new, what)
        return names

    def everything(self) -> Iterator["File | Directory"]:
        """Itself and everything below it that has a name, now or when it was synced."""
        yield self
        below = {id(x): x for x in (*self.names.values(), *self.synced.values(), *(c[2] for c in self.changes))}
        for inner in below.values():
            yield from inner.everything() if isinstance(inner, Directory) else [inner]


def _apply(names: dict[str, Any], old: str | None, new: str | None, what: Any) -> None:
    if old is not None and names.get(old) is what:
        del names[old]
    if new is not None:
        names[new] = what


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
    node: Any = root
    for name in path.parts:
        node = node.names[name]
    return node


def killed(ops: list[Op]) -> Iterator[Directory]:
    """The disks that a kill leaves after the last of these operations, or in the middle of it."""
    yield replayed(ops)
    if ops and ops[-1].kind == "write":
        half = ops[-1].data[: len(ops[-1].data) // 2]
        yield replayed([*ops[:-1], Op("write", ops[-1].path, data=half)])


def content_of(path: Path) -> frozenset[tuple[Path, bytes | None]]:
    """All below a directory: the names with the bytes of files. Equal disks have one outcome, so one is tried."""
    return frozenset((inner, inner.read_bytes() if inner.is_file() else None) for inner in path.rglob("*"))


def write_out(directory: Directory, path: Path) -> None:
    """Write a disk that a kill leaves to `path`."""
    _write(directory.names, path, lambda inner: inner.names, lambda file: file.data)


def cut(ops: list[Op], most: int, rng: random.Random) -> Iterator[Any]:
    """Writers of the disks that a power cut after these operations can leave: all, or `most` drawn at random."""
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
    for indices in drawn:
        data = {id(f): f.after_power_cut()[i] for f, i in zip(files, indices, strict=False)}
        names, at = {}, len(files)
        for directory in directories:
            names[id(directory)] = directory.after_power_cut(tuple(indices[at : at + len(directory.changes)]))
            at += len(directory.changes)
        yield lambda path, names=names, data=data: _write(
            names[id(root)], path, lambda inner: names[id(inner)], lambda file: data[id(file)]
        )


def _write(names: dict[str, Any], path: Path, names_of: Any, data_of: Any) -> None:
    path.mkdir()
    for name, what in names.items():
        if isinstance(what, Directory):
            _write(names_of(what), path / name, names_of, data_of)
        else:
            (path / name).write_bytes(data_of(what))
