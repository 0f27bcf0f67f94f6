"""`mtx report`: what a run learned, how well and from what, as one page; several runs laid over each other."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from mtx.commands.common import open_output
from mtx.errors import DamagedFileError, UsageError
from mtx.paths import RunPaths

logger = logging.getLogger("mtx")


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; the first is the baseline.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="By default report.html in the run, or here for several runs."),
    ] = None,
) -> None:
    """Write the report of a run again, or one that lays several runs over each other."""
    for run in runs:
        if not RunPaths(run).config.is_file():
            raise UsageError(f"{run}: is not a run directory")
    from mtx.report import run_page

    output = output or (RunPaths(runs[0]).report if len(runs) == 1 else Path("report.html"))
    with open_output(output) as file:
        maps = []
        if len(runs) == 1 and _has_model(runs[0]):
            from mtx.commands.translate import load_translator
            from mtx.decoding.translator import Translator

            try:
                translator = load_translator(str(runs[0]), device="cpu")
            except (DamagedFileError, UsageError) as error:
                logger.warning("%s; the report shows no attention", error)
            else:
                assert isinstance(translator, Translator)
                maps = run_page.chosen_maps(runs[0], translator)
        file.write(run_page.report(runs, maps).encode())
    logger.info("report: %s", output)


def _has_model(run: Path) -> bool:
    paths = RunPaths(run)
    return paths.model.is_dir() or any(paths.checkpoints.glob("step-*"))
