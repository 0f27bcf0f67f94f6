"""One tiny run that the tests share, those that change it take a copy; the table of the reliability tests."""

import gc
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from mtx import cli
from mtx.errors import STOPPING_SIGNALS
from tests.integration.commands import TINY, check_error, mtx, write_tsv


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test changes what later ones meet: the signals of the process, which new processes inherit, and the logs.

    Another number of threads than the one of `ENVIRONMENT`, which `mtx translate --threads` leaves, gives other bits.
    """
    numbers = [*STOPPING_SIGNALS, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
    torch.set_num_threads(1)
    logging.disable(logging.NOTSET)
    logging.getLogger("mtx").setLevel(logging.NOTSET)
    logging.getLogger("mtx").propagate = True
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def reports_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training in this process writes a report without content, as those do that are forked."""
    monkeypatch.setattr("mtx.report.live_report.report_page", lambda *_: '<meta name="generator" content="mtx">')


def made_once(name: str, make: Callable[[Path], object], factory: pytest.TempPathFactory) -> Path:
    """A directory that one of all test processes makes and fills, and all use; nobody changes what is in it."""
    base = factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    done = directory.with_name(f"{name}.done")
    with FileLock(directory.with_name(f"{name}.lock")):
        if not done.exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            make(directory)
            done.touch()
    return directory


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(directory: Path) -> None:
        write_tsv(directory / "digits.tsv", range(1000, 1400))

    return made_once("corpus", make, tmp_path_factory) / "digits.tsv"


@pytest.fixture(scope="session")
def settings(corpus: Path) -> list[str]:
    return [f"data.train={corpus}", *TINY]


@pytest.fixture(scope="session")
def trained(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in the precision that `auto` chooses, with what the command printed in `stdout` and `stderr`."""

    def make(directory: Path) -> None:
        result = mtx("train", *settings, f"run_dir={directory / 'run'}", draws=True)
        assert result.returncode == 0, result.stderr.decode()
        (directory / "stdout").write_bytes(result.stdout)
        (directory / "stderr").write_bytes(result.stderr)

    return made_once("trained", make, tmp_path_factory) / "run"


@pytest.fixture
def run_copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a command in this process, on the CPU, that must end with an error and print no result."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def run(code: int, words: list[str], *arguments: object) -> None:
        returned = cli.run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        check_error(returned, err, code, *words)
        assert out == ""

    return run


def pytest_collection_finish() -> None:
    """What is imported by now stays, and no collection of garbage looks through it again: each would take 0.3 s."""
    gc.collect()
    gc.freeze()


ROWS: list[tuple[str, int, int]] = []  # what was tried, how often, and how often it held


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where the tests run in several processes, hand the rows to the one that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["rows"] = ROWS


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    ROWS.extend(tuple(row) for row in getattr(node, "workeroutput", {}).get("rows", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    sums: dict[str, tuple[int, int]] = {}
    for what, tried, held in ROWS:
        before = sums.get(what, (0, 0))
        sums[what] = before[0] + tried, before[1] + held
    if sums:
        width = max(map(len, sums))
        terminalreporter.section("what was tried, and what held")
        for what, (tried, held) in sorted(sums.items()):
            terminalreporter.write_line(f"{what:{width}}  {tried:>9,} tried  {held:>9,} held")
