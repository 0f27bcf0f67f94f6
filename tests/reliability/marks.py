"""Runs first in a new mtx process: marks calls in a file, so that a test sees progress, or slows functions down."""

import functools
import importlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


def mark_calls(log: Path, *names: str) -> None:
    """In a new process: append a line to `log` when a function, `module:name` or `module:Class.name`, is called."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for name in names:
        _wrap(name, partial(_note, fd, name))


def _note(fd: int, name: str, call: Callable[[], Any]) -> Any:
    os.write(fd, f"{name} {time.monotonic()}\n".encode())
    return call()


def slow_within(log: Path, outer: str, inner: str, seconds: float) -> None:
    """In a new process: from the first call of `outer` on, each call of `inner` is marked in `log` and takes longer."""
    fd, begun = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), threading.Event()

    def begin(call: Callable[[], Any]) -> Any:
        begun.set()
        return call()

    def slow_call(call: Callable[[], Any]) -> Any:
        if begun.is_set():
            _note(fd, inner, partial(time.sleep, seconds))
        return call()

    _wrap(outer, begin)
    _wrap(inner, slow_call)


def slow(name: str, seconds: float) -> None:
    """In a new process: a function sleeps before it begins."""

    def after_a_while(call: Callable[[], Any]) -> Any:
        time.sleep(seconds)
        return call()

    _wrap(name, after_a_while)


def held(name: str, gate: Path) -> None:
    """In a new process: a function does not begin before the file `gate` is there."""

    def when_open(call: Callable[[], Any]) -> Any:
        while not gate.exists():
            time.sleep(0.002)
        return call()

    _wrap(name, when_open)


def together(*parts: Callable[[], object]) -> None:
    """Run several of these functions in one process."""
    for part in parts:
        part()


def _wrap(name: str, around: Callable[[Callable[[], Any]], Any]) -> None:
    module_name, _, path = name.partition(":")
    place: Any = importlib.import_module(module_name)
    *classes, last = path.split(".")
    for part in classes:
        place = getattr(place, part)
    original = getattr(place, last)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        return around(partial(original, *arguments, **options))

    setattr(place, last, wrapped)


def num_marks(log: Path, name: str) -> int:
    """The number of calls of a function so far."""
    return len(mark_times(log, name))


def mark_times(log: Path, name: str) -> list[float]:
    """The times of the calls of a function, on the monotonic clock."""
    lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.exists() else []
    return [float(line.split()[1]) for line in lines if line.split()[0] == name]


def confine(temporary: Path, free_bytes: int) -> None:
    """In a new process: temporary files go to `temporary`, and no more than `free_bytes` of memory count as free."""
    from mtx import machine

    os.environ["TMPDIR"] = str(temporary)
    tempfile.tempdir = None
    original = machine.available_bytes
    machine.available_bytes = lambda: min(original() or free_bytes, free_bytes)
