"""`mtx report`: a page about one run, or a page that compares several runs."""

import logging
from pathlib import Path
from typing import Annotated

from mtx.commands.command_line import argument, complete_runs, default_page, open_output, option
from mtx.storage.run_files import RunLayout, require_run

logger = logging.getLogger("mtx")


def report(
    runs: Annotated[
        list[Path],
        argument("RUN...", "Run directories; the first is the baseline.", complete_runs),
    ],
    output: Annotated[
        Path | None,
        option(
            "FILE",
            "HTML page to write.  [default: report.html in RUN; for several runs, in this directory]",
            "-o",
            "--output",
        ),
    ] = None,
) -> None:
    """Write the HTML report of one or several runs."""
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
