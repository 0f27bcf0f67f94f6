"""Runs `mtx` of a checkout and samples its processes, for benchmarks: their memory and CPU time, from Linux's /proc."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_S = 0.1
LIMIT_S = 12 * 3600  # of a command
END_S = 60  # in which a command ends after SIGTERM
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """What a process uses at one moment, in MB of 10^6 bytes and seconds.

    Attributes:
        anon_mb: memory that holds no pages of files (RssAnon).
        mapped_mb: pages of files (RssFile).
        pss_mb: all its memory; what n processes share counts 1/n.
        cpu_s: CPU time since its start.
    """

    anon_mb: float
    mapped_mb: float
    pss_mb: float
    cpu_s: float


def find_processes(root: int) -> dict[int, Process]:
    """Returns a process and all its descendants by their ids, without those that have just started or ended."""
    processes = dict[int, Process]()
    pids = [root]
    for pid in pids:
        path = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):  # it has ended
            for children in path.glob("task/*/children"):
                pids += map(int, children.read_text().split())
            if pid != root and (path / "cmdline").read_bytes() == Path(f"/proc/{root}/cmdline").read_bytes():
                continue  # just forked: it still has the command and the memory of its parent
            text = (path / "status").read_text() + (path / "smaps_rollup").read_text()
            mb = {name: int(kb) * 1024 / 1e6 for name, kb in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
            user, system = (path / "stat").read_text().rpartition(")")[2].split()[11:13]
            cpu_s = (int(user) + int(system)) / TICKS_PER_S
            processes[pid] = Process(mb["RssAnon"], mb["RssFile"], mb["Pss"], cpu_s)
    return processes


@dataclass(frozen=True)
class Command:
    """A running `mtx`.

    Attributes:
        log: the lines that it has logged, and the seconds from its start to each.
    """

    process: "subprocess.Popen[str]"
    started: float
    log: list[tuple[float, str]] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        """Seconds since its start."""
        return time.perf_counter() - self.started

    def read_log(self) -> None:
        """Adds lines to the log until it ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append((self.elapsed_s, line.strip()))

    def watch(self) -> Iterator[dict[int, Process]]:
        """Yields its processes every SAMPLE_S seconds until it ends."""
        while self.process.poll() is None:
            processes = find_processes(self.process.pid)
            if self.process.pid in processes:
                yield processes
            time.sleep(SAMPLE_S)
            if self.elapsed_s > LIMIT_S:
                self.process.kill()

    def fail(self) -> None:
        """Ends this program with the command's log and exit code."""
        lines = [line for _, line in self.log]
        code = self.process.returncode
        sys.exit("\n".join([*lines, f"error: {' '.join(map(str, self.process.args))} ended with exit code {code}"]))


@contextlib.contextmanager
def run_mtx(tree: Path, *arguments: str) -> Iterator[Command]:
    """Runs `mtx` of a checkout, which ends with the block."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}  # not the mtx of the current directory
    words = [sys.executable, "-m", "mtx", *arguments]
    started = time.perf_counter()
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    command = Command(process, started)
    reader = threading.Thread(target=command.read_log)
    reader.start()
    try:
        yield command
    finally:  # also if this program is interrupted
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
        reader.join()
