"""Sizes of the reliability tests, and the table of what was tried and what held.

`make test-all` runs a share of each test, and `make test` of some; `make test-reliability` sets MTX_RELIABILITY=nightly
and runs all of it.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import ROWS, made_once
from tests.integration import commands
from tests.reliability import tiny
from tests.rig import NIGHTLY as NIGHTLY
from tests.rig import Rig


def size(push: int, nightly: int) -> int:
    """How many of something to try: a few by day, all of them at night."""
    return nightly if NIGHTLY else push


@pytest.fixture(scope="session")
def rig() -> Rig:
    return commands.rig()


@pytest.fixture(scope="session")
def whole(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> tiny.Whole:
    """A run to compare with."""

    def make(directory: Path) -> None:
        settings, run, log = tiny.write_text(directory), directory / "run", directory / "log"
        started = rig.run("train", *settings, f"run_dir={run}", first=partial(tiny.log_steps, log))
        assert started.code == 0, started.err()
        duration_s, steps = time.monotonic() - started.began, tiny.steps_done(log)
        tiny.check_lineage(log, run)
        ends, epochs = [s.time - started.began for s in steps], [s.epoch for s in steps]
        (directory / "whole").write_text(json.dumps([settings, ends, epochs, duration_s]))

    directory = made_once("whole", make, tmp_path_factory)
    return tiny.Whole(directory / "run", *json.loads((directory / "whole").read_text()))


@pytest.fixture
def tally() -> Callable[[str, int, int], None]:
    """Puts a row into the table: what was tried, how often, and how often it held; it fails where that is less."""

    def add(what: str, tried: int, held: int) -> None:
        ROWS.append((what, tried, held))
        assert tried > 0 and held == tried, f"{what}: {held} of {tried} held"

    return add
