"""`mtx report`: a page about one run, or a page that compares several runs."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtx.commands.command_line import default_page, open_output
from mtx.errors import DamagedFileError, UsageError
from mtx.storage.run_files import RunLayout, checkpoint_steps, find_model, require_run

if TYPE_CHECKING:
    from mtx.decoding.translator import Translator

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
        file.write(report_page(runs, _translator(runs[0]) if len(runs) == 1 else None).encode())
    logger.info("report: %s", output)


def _translator(run: Path) -> "Translator | None":
    """A translator with the run's model or best checkpoint; None if the run has neither, or if they are damaged."""
    if find_model(run) == run and not checkpoint_steps(RunLayout(run)):
        return None
    from mtx.decoding.translator import Translator

    try:
        return Translator.load(run, engine="torch", device="cpu", split_sentences=False)
    except (DamagedFileError, UsageError) as error:
        logger.warning("%s; the report shows no attention", error)
        return None
