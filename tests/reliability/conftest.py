"""Sizes of the reliability tests, and the table of what was tried and what held.

`make test` runs a share of each test; `make test-reliability` sets MTX_RELIABILITY=nightly and runs all of it.
"""

import os
from collections.abc import Callable

import pytest

NIGHTLY = os.environ.get("MTX_RELIABILITY") == "nightly"
_ROWS: list[tuple[str, int, int]] = []


def size(push: int, nightly: int) -> int:
    """How many of something to try: a few in `make test`, all of them at night."""
    return nightly if NIGHTLY else push


@pytest.fixture
def tally() -> Callable[[str, int, int], None]:
    """Puts a row into the table: what was tried, how often, and how often it held; it fails where that is less."""

    def add(what: str, tried: int, held: int) -> None:
        _ROWS.append((what, tried, held))
        assert tried > 0 and held == tried, f"{what}: {held} of {tried} held"

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _ROWS:
        width = max(len(what) for what, _, _ in _ROWS)
        terminalreporter.section("what was tried, and what held")
        for what, tried, held in _ROWS:
            terminalreporter.write_line(f"{what:{width}}  {tried:>9,} tried  {held:>9,} held")
