"""Runs one `mtx` command in a forked child that is watched: what it opens, what it executes, its memory and its end.

The parent imports torch and mtx once; a trial costs a fork. The child may read the folder of its trial and what Python
itself consists of. Anything else ends it with `CAUGHT`, and so does whatever could run a stranger's code.
"""

import ctypes
import os
import resource
import signal
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

CAUGHT = 99
SECONDS = 200
_MEMORY = 1 << 30  # of address space, above what the parent has
_FORBIDDEN = {
    "pickle.find_class", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile",
    "subprocess.Popen", "socket.connect", "socket.bind", "socket.getaddrinfo", "code.__new__",
}  # fmt: skip
_ROOT = Path(__file__).parents[2]
_CODE = tuple(
    f"{os.path.realpath(path)}/"
    for path in {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), str(_ROOT / "mtx"), str(_ROOT / "tests")}
)
_GENERATING = ("/typing.py", "/dataclasses.py", "/collections/__init__.py", "/ast.py")  # compile text of their own
_SYSTEM = ("/proc/", "/sys/", "/dev/null", "/etc/localtime", "/usr/share/zoneinfo/")


@dataclass(frozen=True)
class Ended:
    """How a trial ended.

    Attributes:
        code: the exit code, or minus the signal that killed it.
        caught: what the child was caught at, or nothing.
        memory: most bytes that it had in memory beyond those of the parent.
    """

    code: int
    out: bytes
    err: str
    caught: str
    memory: int
    seconds: float


def run(arguments: list[str], folder: Path, text: bytes = b"ab cde\n") -> Ended:
    """Run `mtx ARGUMENTS` in `folder` with `text` as stdin."""
    streams = [folder.parent / f"{folder.name}.{name}" for name in ("in", "out", "err", "caught")]
    fds = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600) for path in streams]
    os.pwrite(fds[0], text, 0)
    before, start = _resting(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            _child(arguments, folder, fds)
        finally:
            os._exit(98)
    _, status, used = os.wait4(pid, 0)
    for fd in fds:
        os.close(fd)
    _, out, err, caught = (path.read_bytes() for path in streams)
    code = os.waitstatus_to_exitcode(status)
    memory = (used.ru_maxrss - before) * 1024
    return Ended(code, out, err.decode(), caught.decode(), memory, time.monotonic() - start)


def _resting() -> int:
    """What a child that does nothing has in memory."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.wait4(pid, 0)[2].ru_maxrss


def _child(arguments: list[str], folder: Path, fds: list[int]) -> None:
    from mtx import cli

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    sys.stdin = os.fdopen(0, newline="\n")
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]  # as in Python itself, they stay open
    sys.argv = ["mtx", *arguments]
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = str(folder / ".cache")
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY,) * 2)
    sys.addaudithook(_watcher(fds[3], f"{os.path.realpath(folder)}/"))
    try:
        cli.main()
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else 97)


def _watcher(report: int, folder: str) -> Any:
    """An audit hook that ends the process at what a model must never bring about."""

    def watch(event: str, values: tuple[Any, ...]) -> None:
        if problem := _problem(event, values, folder):
            os.write(report, f"{event} {problem}\n".encode(errors="backslashreplace"))
            os._exit(CAUGHT)

    return watch


def _problem(event: str, values: tuple[Any, ...], folder: str) -> str:
    if event in _FORBIDDEN:
        return repr(values)[:200]
    if event == "open" and isinstance(values[0], str | bytes | os.PathLike):
        path = os.path.realpath(os.fsdecode(values[0]))
        return "" if f"{path}/".startswith((folder, *_CODE, *_SYSTEM)) else path
    if event == "exec" and isinstance(values[0], CodeType):
        return _foreign(values[0].co_filename)
    if event == "compile":
        return _foreign(os.fsdecode(values[1])) if values[1] is not None else repr(values[0])[:200]
    if event == "ctypes.dlopen" and values[0]:
        return _foreign(os.fsdecode(values[0]))
    return ""


def _foreign(name: str) -> str:
    """The file that code comes from where that is not Python, a package or mtx."""
    caller = sys._getframe(3).f_code.co_filename  # of compile, exec or eval
    if name.startswith("<") and caller.endswith(_GENERATING):
        return ""
    return "" if name.startswith("<frozen ") or os.path.realpath(name).startswith(_CODE) else f"{name} from {caller}"


ctypes.CDLL(None)  # loads ctypes itself before anything is watched
