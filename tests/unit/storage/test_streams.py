"""The standard streams: nothing is lost on them, and nothing that they show can act on a terminal."""

import ast
import errno
import io
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tqdm import tqdm

from mtx import cli
from mtx.storage import streams

LARGE = bytes(range(256)) * 2000  # eight times what a pipe holds
MTX = Path(cli.__file__).parent
SPACES = " \u200c\u200d\u00a0\u202f\u3000"  # not printable by Python's word, and harmless


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe, which do not block."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    yield ends
    for end in ends:
        os.close(end)


def opened(fd: int, is_unbuffered: bool) -> Any:
    """A stream as Python opens a standard one, with -u or without."""
    if is_unbuffered:
        return io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "ascii", write_through=True)  # type: ignore[arg-type]
    return open(fd, "w", encoding="ascii", closefd=False)  # noqa: PTH123


@pytest.fixture(params=[False, True], ids=["buffered", "-u"])
def is_unbuffered(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_every_byte(
    is_unbuffered: bool, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pipe
    monkeypatch.setattr(sys, "stdout", opened(writer, is_unbuffered))
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdin", None)
    streams.set_up()
    received = bytearray()

    def read() -> None:
        while not received.endswith(b"the end \\u2192\n"):
            time.sleep(0.001)
            try:
                received.extend(os.read(reader, 60_000))
            except BlockingIOError:
                continue

    thread = threading.Thread(target=read)
    thread.start()
    sys.stdout.buffer.write(LARGE)
    sys.stdout.buffer.write(b"\n")
    print("the end →", flush=True)  # noqa: T201
    thread.join(30)
    assert bytes(received) == LARGE + b"\nthe end \\u2192\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_names_the_stream_and_is_told_once(is_unbuffered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    for name in ("stdin", "stderr"):
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(sys, "stdout", opened(full, is_unbuffered))
    streams.set_up()
    with pytest.raises(OSError, match="standard output") as caught:
        print("text", flush=True)  # noqa: T201
    assert caught.value.errno == errno.ENOSPC
    streams.finish(sys.stdout)
    sys.stdout.flush()  # as the interpreter does at its end
    os.close(full)


def is_safe(text: str) -> bool:
    return all(char.isprintable() or char in SPACES for char in text)


HOSTILE = st.text() | st.text(
    st.sampled_from("\x1b\x07\x9b\u202e\u2066\u200f\x85\u2028\n\r\t\x7f\ud800a]0;%"), min_size=1
)


@settings(max_examples=40)
@given(HOSTILE)
def test_any_name_is_shown_without_control_and_direction_characters(name: str) -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    logger = logging.Logger("mtx.anything")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "stderr", stderr)
        handler = logging.StreamHandler(stderr)
        handler.setFormatter(cli._LogFormat())
        logger.addHandler(handler)
        streams.print_lines([f"{name} BLEU 1", name])
        streams.print_json({name: name})
        streams.show([name])
        logger.warning("%s: %d, %s", name, 3, ValueError(name))
        logger.info("%s\n  help: %.1f", Path(name), 0.5)
    assert all(map(is_safe, (stdout.getvalue() + stderr.getvalue()).split("\n")))
    assert (stdout.getvalue().count("\n"), stderr.getvalue().count("\n")) == (3, 4), "no name begins a line of its own"


def test_a_message_of_a_stranger_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    streams.show(["x" * 1_000_000])
    assert len(capsys.readouterr().err) < 6000


# What writes to a standard stream by itself, with the reason
_EXCEPTIONS = {
    "storage/streams.py": "the one place that prints",
    "interop/ctranslate2_example.py": "a program that users get with an export",
    "evaluation/comet_metric.py": "a program for the Python of COMET, whose numbers mtx reads",
    "commands/command_line.py": "translations are data, `sys.stdout.buffer` gets them as they are",
}


def test_a_message_clears_the_line_of_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with tqdm(total=3, file=sys.stderr, ncols=60) as bar:
        bar.update(1)
        bar.refresh()
        streams.show(["shown"])
        cli._LogHandler(sys.stderr).emit(logging.makeLogRecord({"msg": "logged"}))
    before, between, after = re.split("shown\n|logged\n", capsys.readouterr().err)
    assert all(re.search(r"1/3 .*\r +\r$", text) for text in (before, between)) and "1/3" in after


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(streams.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_a_line_now_and_then_says_how_far_a_work_is(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """A second for each ten lines; 400 of them were done by an earlier command."""
    caplog.set_level(logging.INFO, "mtx")
    with streams.progress("translating", 1400) as update:
        update(400)
        for _ in range(100):
            clock[0] += 1
            update(10)
    assert caplog.messages == [
        "translating: 500 of 1,400 lines, about 2 min left",
        "translating: 800 of 1,400 lines, about 60 s left",
        "translating: 1,100 of 1,400 lines, about 30 s left",
    ]


def test_what_takes_seconds_needs_no_line(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mtx")
    with streams.progress("translating", 10) as update:
        for _ in range(10):
            clock[0] += 0.9
            update(1)
    assert not caplog.messages


def test_of_two_works_the_outer_one_is_shown(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mtx")
    with streams.progress("cleaning", unit="pairs") as outer:
        outer(5)
        for _ in range(2):
            clock[0] += 11
            with streams.progress("translating", 10) as inner:
                inner(1)
                inner(9)
            outer(7)
    with streams.progress("translating", 10) as inner:
        inner(1)
        clock[0] += 11
        inner(4)
    assert caplog.messages == ["cleaning: 12 pairs", "translating: 5 of 10 lines, about 14 s left"]


def test_on_a_terminal_a_bar_is_shown(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(logging.getLogger("mtx"), "level", logging.INFO)
    with streams.progress("translating", 20) as update:
        clock[0] += 40
        update(5)
        clock[0] += 40
        update(5)
    assert "translating:" in sys.stderr.getvalue() and "/20" in sys.stderr.getvalue()
    assert "left" not in sys.stderr.getvalue()


def test_nothing_else_prints() -> None:
    found = set()
    for path in sorted(MTX.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            prints = isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "print",
                "input",
                "typer.echo",
                "click.echo",
            )
            writes = isinstance(node, ast.Attribute) and node.attr in ("write", "writelines", "buffer")
            if prints or (writes and ast.unparse(node.value) in ("sys.stdout", "sys.stderr", "sys.stdout.buffer")):
                found.add(path.relative_to(MTX).as_posix())
    assert found == set(_EXCEPTIONS)


@pytest.mark.parametrize(
    ("level", "is_terminal", "expected"),
    [
        (logging.INFO, True, True),
        (logging.DEBUG, True, True),
        (logging.WARNING, True, False),
        (logging.INFO, False, False),
    ],
)
def test_bars_are_drawn_on_a_terminal_unless_mtx_is_quiet(
    level: int, is_terminal: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    logger = logging.getLogger("mtx")
    before = logger.level
    logger.setLevel(level)
    try:
        assert streams.shows_progress() == expected
    finally:
        logger.setLevel(before)
