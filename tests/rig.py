"""Starts of the `mtx` command that cost milliseconds: forks of a process that holds torch and mtx already.

    a test -> `Rig.start` -> the server, a process of its own with one thread -> fork -> what `mtx` does -> os._exit

A start is a process like any other: it can be sent signals by its id, writes to files, and installs the handlers that
the command installs. What a test wants to see or to slow down inside it is a function that runs there first. The tests
keep a `Rig` for a module; it ends, and what it started with it, when its connection closes.
"""

import contextlib
import faulthandler
import gc
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Prepare = Callable[[], object]
PATIENCE_S = 300.0  # how long a start may take on a machine that is busy with something else
NIGHTLY = os.environ.get("MTX_RELIABILITY") == "nightly"
ROOT = Path(__file__).parents[1]
_STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name))
_LATE = ("ctranslate2", "pandas", "tensorboard.summary.writer.event_file_writer")


class Start:
    """One start of the command; `code` is None until `wait` saw its end, negative where a signal killed it."""

    def __init__(self, rig: "Rig", pid: int, directory: Path):
        self._rig, self.pid, self._directory = rig, pid, directory
        self.began = time.monotonic()
        self.code: int | None = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; it is never sent to another process, for the server keeps this one's id until `wait`."""
        if self.code is None:
            os.kill(self.pid, number)

    def ended(self) -> bool:
        """Whether it has ended by now."""
        if self.code is None:
            self.code = self._rig.ask("wait", self.pid, 0.0)
        return self.code is not None

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code; it is killed where it takes too long."""
        if self.code is None:
            self.code = self._rig.ask("wait", self.pid, timeout_s)
        if self.code is None:
            self.send(signal.SIGKILL)
            self.code = self._rig.ask("wait", self.pid, 10.0)
            raise AssertionError(f"no end within {timeout_s} s: {self.err()}")
        return self.code

    def kill_at(self, moment: float) -> bool:
        """Send SIGKILL at a moment of the monotonic clock; False where it had ended by itself before."""
        while (left := moment - time.monotonic()) > 0:
            time.sleep(min(left, 0.01))
            if left > 0.02 and self.ended():
                return False
        if self.ended():
            return False
        self.send(signal.SIGKILL)
        return self.wait() == -signal.SIGKILL

    def wait_until(self, done: Callable[[], object], timeout_s: float = PATIENCE_S) -> bool:
        """Return when `done()` is true; False where it ended before."""
        ends = time.monotonic() + timeout_s
        while not done():
            if self.ended():
                return bool(done())
            assert time.monotonic() < ends, f"it never came: {self.err()}"
            time.sleep(0.002)
        return True

    def printed(self, name: str) -> bytes:
        """All that went to `stdout` or `stderr` so far."""
        return (self._directory / name).read_bytes()

    def out(self) -> str:
        return self.printed("stdout").decode()

    def err(self) -> str:
        return self.printed("stderr").decode()

    # What a `subprocess.Popen` has, for tests that take either of the two.

    @property
    def returncode(self) -> int | None:
        return self.code

    def poll(self) -> int | None:
        self.ended()
        return self.code

    def send_signal(self, number: signal.Signals) -> None:
        self.send(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def communicate(self, timeout: float = PATIENCE_S) -> tuple[bytes, bytes]:
        self.wait(timeout)
        return self.printed("stdout"), self.printed("stderr")


class Rig:
    """The server and what it started. A context manager.

    Args:
        directory: where each start gets a directory of its own for what it prints.
        environment: of the server and of each start.
    """

    def __init__(self, directory: Path, environment: dict[str, str]):
        self._directory, self._num_starts = directory, 0
        self._connection, theirs = multiprocessing.Pipe()
        code = f"from tests.rig import serve; serve({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], env=environment, cwd=ROOT, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.wait(timeout=30)

    def ask(self, *request: Any) -> Any:
        self._connection.send(request)
        return self._connection.recv()

    def start(
        self, *arguments: Any, first: Prepare | None = None, cwd: Path = ROOT, stdin: bytes | None = None,
        draws: bool = False,
    ) -> Start:  # fmt: skip
        """Start `mtx ARGUMENTS` and do not wait.

        Args:
            first: called in the new process before the command; a function of a module, or a `partial` of one.
            stdin: what comes through a pipe; None leaves stdin at its end.
            draws: whether a training draws its report, which is half of a tiny training; else, but for nights, it is
                a page without content.
        """
        self._num_starts += 1
        directory = self._directory / f"{self._num_starts:04d}"
        directory.mkdir(parents=True)
        if stdin is not None:
            (directory / "stdin").write_bytes(stdin)
        words = [str(argument) for argument in arguments]
        return Start(self, self.ask("start", words, directory, cwd, first, draws or NIGHTLY), directory)

    def run(self, *arguments: Any, timeout_s: float = PATIENCE_S, **options: Any) -> Start:
        """Start `mtx ARGUMENTS` and wait for its end."""
        started = self.start(*arguments, **options)
        started.wait(timeout_s)
        return started


def serve(fd: int) -> None:
    """Be the server: start what is asked for, and tell how it ended, until the connection is closed."""
    _import_all()
    connection: Connection[Any, Any] = Connection(fd)
    running: set[int] = set()
    with contextlib.suppress(EOFError):
        while True:
            match connection.recv():
                case ("start", arguments, directory, cwd, first, draws):
                    pid = os.fork()
                    if pid == 0:
                        connection.close()
                        _be_mtx(arguments, directory, cwd, first, draws)
                    running.add(pid)
                    connection.send(pid)
                case ("wait", pid, timeout_s):
                    code = _wait(pid, timeout_s)
                    running -= {pid} if code is not None else set()
                    connection.send(code)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _import_all() -> None:
    """What a command would import; with one thread torch makes no pool of them, which a fork would lose."""
    import dateutil.parser  # noqa: F401  # pyarrow would
    import sacrebleu  # noqa: F401
    import torch
    import torch._dynamo  # noqa: F401  # an optimizer would

    import mtx.cli
    import mtx.commands.train
    import mtx.decoding.torch_engine
    import mtx.training.run  # noqa: F401
    from mtx.data.language_detection import language_of

    torch.set_num_threads(1)
    for name in _LATE:  # what mtx imports where it is needed
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    language_of([])  # loads the detector
    gc.freeze()  # what is here stays; no start looks through it again


def _wait(pid: int, timeout_s: float) -> int | None:
    ends = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= ends:
            return None
        time.sleep(0.002)


def _feed(data: bytes) -> None:
    """Have another process write to what becomes stdin here."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "wb") as file:
            file.write(data)
        os._exit(0)
    os.close(writer)
    os.dup2(reader, 0)
    os.close(reader)


def _be_mtx(arguments: list[str], directory: Path, cwd: Path, first: Prepare | None, draws: bool) -> None:
    """In a new process: run the command and leave with its exit code, without the interpreter's own end."""
    code: Any = 99
    try:
        for number in _STOPPING:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if (directory / "stdin").exists():
            _feed((directory / "stdin").read_bytes())
        for fd, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
        faulthandler.enable(file=2)  # a crash in a library says where it was
        os.chdir(cwd)
        sys.argv = ["mtx", *arguments]
        if not draws:
            import mtx.report.live_report

            mtx.report.live_report.report_page = lambda *_: '<meta name="generator" content="mtx">'
        if first is not None:
            first()
        from mtx import cli

        cli.main()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
