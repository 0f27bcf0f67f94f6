"""`mtx report`: a page about one run, or a page that compares several runs."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from mtx.commands.command_line import default_page, open_output
from mtx.storage.run_files import RunLayout, require_run

logger = logging.getLogger("mtx")


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; the first is the baseline.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Default: report.html in the run; for several runs, in this folder."),
    ] = None,
) -> None:
    """Write the report of a run again, or one report of several runs."""
    for run in runs:
        require_run(run)
    if output is None and len(runs) == 1:
        from mtx.storage.run_directory import refuse_foreign

        refuse_foreign(RunLayout(runs[0]))  # a report.html there may be another one
    from mtx.report.report_page import report_page

    output = output or (RunLayout(runs[0]).report if len(runs) == 1 else default_page("report.html"))
    with open_output(output) as file:
        file.write(report_page(runs).encode())
    logger.info("report: %s", output)
