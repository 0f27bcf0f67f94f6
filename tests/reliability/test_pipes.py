"""Standard streams as shells leave them: closed, full, without a reader, and what else may not change an exit code."""

import json
import os
import resource
import select
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests.integration.commands import ENVIRONMENT, MTX, check_error, hears_signals, spawn
from tests.rig import PATIENCE_S

EXTENDED = pytest.mark.extended
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(b"one two\n" * 6000)
    return path


def shell(script: str, run: Path, text: Path, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a line of bash in which `mtx` is the command, $RUN a run and $TEXT a text of 6,000 lines."""
    values = {**ENVIRONMENT, "PYTHON": MTX[0], "RUN": str(run), "TEXT": str(text), **environment}
    script = f'mtx() {{ "$PYTHON" -m mtx "$@"; }}; {script}'
    return subprocess.run(["bash", "-c", script], env=values, capture_output=True, check=False, timeout=PATIENCE_S)


@pytest.mark.parametrize("command", [
    "mtx translate $RUN $TEXT --max-length 3",
    "mtx translate $RUN --max-length 3 --json < $TEXT",
    pytest.param("mtx logprob $RUN $TEXT $TEXT", marks=EXTENDED),
])  # fmt: skip
def test_a_reader_that_has_seen_enough(command: str, trained: Path, text: Path) -> None:
    result = shell(f'{command} | head -1 | wc -l; echo "${{PIPESTATUS[0]}}"', trained, text)
    assert (result.stdout.split(), result.stderr) == ([b"1", b"141"], b"")


@needs_full
@pytest.mark.parametrize("command", [
    "mtx translate $RUN $TEXT --max-length 3 > /dev/full",
    pytest.param("mtx translate $RUN $TEXT --max-length 3 -o /dev/full", marks=EXTENDED),
    pytest.param("mtx logprob $RUN $TEXT $TEXT > /dev/full", marks=EXTENDED),
    pytest.param("mtx evaluate $RUN > /dev/full", marks=EXTENDED),
    "mtx status $RUN > /dev/full",
    "mtx config demo > /dev/full",
    "mtx --help > /dev/full",
    pytest.param("mtx --version > /dev/full", marks=EXTENDED),
    pytest.param(
        "mtx compare <(head -9 $TEXT) <(yes no | head -9) --ref <(head -9 $TEXT) --fail-if-worse > /dev/full",
        marks=EXTENDED,
    ),
])  # fmt: skip
def test_a_full_disk_is_one_line_and_no_success(command: str, trained: Path, text: Path) -> None:
    result = shell(command, trained, text, PYTHONUNBUFFERED="")
    check_error(result.returncode, result.stderr.decode(), 1, "No space left")
    name = b"/dev/full" if "-o" in command else b"standard output"
    assert b"error: " + name + b": No space left" in result.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_disk_that_fills_while_it_is_written_is_an_error(unbuffered: str, trained: Path, tmp_path: Path) -> None:
    """Unbuffered, Python itself counts what a full disk refused as written."""
    out, limit = tmp_path / "out", partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1024, 1024))
    with out.open("wb") as file:
        result = subprocess.run(
            [*MTX, "config", str(trained)], env={**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}, stdout=file,
            stderr=subprocess.PIPE, preexec_fn=limit, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
    assert out.stat().st_size == 1024
    check_error(result.returncode, result.stderr.decode(), 1, "standard output: File too large")


@pytest.mark.extended
@pytest.mark.seconds
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_every_line(
    unbuffered: str, trained: Path, text: Path
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    command = [*MTX, "translate", str(trained), str(text), "--max-length", "3", "--json"]
    process = subprocess.Popen(command, env=environment, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    received = b""
    while data := os.read(reader, 8000):
        received += data
        time.sleep(0.002)
    os.close(reader)
    assert process.stderr and (process.wait(PATIENCE_S), process.stderr.read()) == (0, b"")
    lines = received.split(b"\n")
    assert (len(lines), lines[-1]) == (6001, b"") and all(
        json.loads(line).keys() == {"text", "score"} for line in lines[:-1]
    )


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_mtx_that_waits_for_a_reader(
    number: signal.Signals, code: int, trained: Path, text: Path
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [*MTX, "translate", str(trained), str(text), "--max-length", "3", "--json"]
    process = subprocess.Popen(
        command, env=ENVIRONMENT, stdout=writer, stderr=subprocess.PIPE, preexec_fn=hears_signals
    )
    os.read(reader, 1) if select.select([reader], [], [], 60)[0] else None
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    os.close(reader)
    os.close(writer)
    check_error(process.returncode, err.decode(), code)


@pytest.mark.extended
@pytest.mark.seconds
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_pause_of_a_pipe_that_does_not_block_is_not_the_end(engine: str, run_copy: Path) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    process = spawn("translate", run_copy, "--engine", engine, stdin=reader)
    assert process.stdout and process.stderr
    for _ in range(3):
        os.write(writer, b"one two\n")
        assert process.stdout.readline()  # it waits for the next line now
    os.close(writer)
    assert (process.stdout.read(), process.wait(PATIENCE_S)) == (b"", 0), process.stderr.read()
    os.close(reader)


@pytest.mark.parametrize("command", ["mtx config demo", "mtx translate $RUN $TEXT", "mtx train $RUN", "mtx --help"])
def test_a_closed_stdout_is_refused(command: str, trained: Path, text: Path) -> None:
    result = shell(f"{command} >&-", trained, text)
    check_error(result.returncode, result.stderr.decode(), 2, "error: stdout is closed")
    assert result.stderr.startswith(b"error: "), "nothing is done before"


@pytest.mark.extended
@needs_full
@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-", "2> >(exec true)"])
def test_an_error_that_nobody_can_read_keeps_its_code(stream: str, trained: Path, text: Path) -> None:
    script = f"mtx translate $RUN nowhere {stream}; echo $?; mtx translate $RUN < $TEXT >&- {stream}; echo $?"
    assert shell(script, trained, text).stdout.split() == [b"2", b"2"]


def test_a_signal_that_ends_the_reader_of_messages_too_keeps_its_code(trained: Path) -> None:
    """Ctrl-C in `mtx ... 2>&1 | tee log` ends `tee` first."""
    process = spawn("translate", trained, stdin=subprocess.PIPE)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.stderr.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 143


def test_warnings_that_nobody_can_read_are_no_failure(trained: Path, text: Path) -> None:
    result = shell(r"printf '\xff\n' | mtx translate $RUN 2> >(exec true); echo ${PIPESTATUS[1]}", trained, text)
    assert result.stdout.split(b"\n")[1:] == [b"0", b""]


@pytest.mark.extended
def test_no_input_at_all(trained: Path, text: Path) -> None:
    result = shell("mtx translate $RUN < /dev/null && mtx logprob $RUN /dev/null /dev/null", trained, text)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_stdout_holds_translations_alone_whatever_is_told_on_stderr(trained: Path, text: Path) -> None:
    script = r"{ printf '\xff two\n\n'; head -5 $TEXT; } | mtx translate $RUN"
    plain, debug = shell(script, trained, text), shell(script, trained, text, MTX_DEBUG="1", PYTHONWARNINGS="always")
    assert plain.returncode == debug.returncode == 0
    assert plain.stdout == debug.stdout and plain.stdout.count(b"\n") == 7 and b"invalid UTF-8" in debug.stderr
