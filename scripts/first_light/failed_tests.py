"""A plugin of pytest: each failed test is a row at once, also where pytest itself is killed before its summary."""

import os

from turns import report as report_row


def pytest_runtest_logreport(report: object) -> None:
    """Writes a row of a test that failed or whose worker died."""
    _write(report)


def pytest_collectreport(report: object) -> None:
    """Writes a row of a file that could not be collected."""
    _write(report)


def _write(result) -> None:
    if result.failed and "PYTEST_XDIST_WORKER" not in os.environ:  # which reports to the process that started it
        crash = getattr(result.longrepr, "reprcrash", None)
        message = crash.message[:300] if crash else str(result.longrepr)[-300:]
        seconds = round(getattr(result, "duration", 0.0), 1)
        report_row("failed test", test=result.nodeid, seconds=seconds, message=" ".join(message.split()))
