"""`mtx train`, its first part alone (prepare), and `mtx config` and `mtx status`, which only show."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtx.commands.options import AsJson, Settings, print_scores, resolve
from mtx.errors import UsageError
from mtx.formatting import mtx_command
from mtx.storage.run_files import RunLayout
from mtx.storage.streams import print_json, print_lines
from mtx.training.world import World, this_world

if TYPE_CHECKING:
    from mtx.config.schema import Config
    from mtx.training.ranks import Ranks

logger = logging.getLogger("mtx")


def train(
    settings: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what the run would do and cost; leave nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
    devices: Annotated[
        str | None, typer.Option(help="Train on so many devices of this machine, a number or all.")
    ] = None,
) -> None:
    """Everything: download, clean, tokenizer, encode, train, average, score. The same command continues a run."""
    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", "mtx status RUN --json shows the state of a run")
    from mtx.training.signals import ignore_save

    ignore_save()  # before torch is loaded, which takes seconds
    world = this_world()
    if devices is not None:
        _launch(settings, devices, world, dry_run)
    elif dry_run:
        _rehearse(settings, world, as_json)
    elif world.size == 1:
        train_run(resolve(settings).config)
    else:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a lost connection torch tells a page of addresses
        from mtx.training.ranks import join

        with join(world) as ranks:
            train_run(ranks.run_on_rank_zero(lambda: resolve(settings).config), ranks)


def _launch(settings: list[str] | None, devices: str, world: World, dry_run: bool) -> None:
    """Train with a process for each device."""
    if world.size > 1 or dry_run:
        raise UsageError(f"--devices {devices}: works neither with --dry-run nor with torchrun", "drop one of them")
    config = resolve(settings).config
    from mtx.model.device import num_devices
    from mtx.training.launcher import launch

    if (size := num_devices(devices, config.device)) == 1:
        train_run(config)
    elif code := launch(size, ["train", *(settings or [])]):
        raise typer.Exit(code)


def _rehearse(settings: list[str] | None, world: World, as_json: bool) -> None:
    if world.size > 1:
        raise UsageError("--dry-run rehearses on one device", "mtx train --dry-run, without torchrun")
    config = resolve(settings).config
    from mtx.report import dry_run

    report = dry_run.rehearse(config)
    print_json(report) if as_json else print_lines(dry_run.lines(report))


def train_run(config: "Config", ranks: "Ranks | None" = None, prints_scores: bool = True) -> None:
    """Train a run to its end, and say what has come of it."""
    from mtx import pipeline
    from mtx.evaluation.gains import advice
    from mtx.report.run_history import read_run
    from mtx.report.verdict import usability

    if config.data.generator:
        logger.info("the corpus is synthetic: a small grammar generated it, and it is good only for seeing mtx work")
    if (result := pipeline.train(config, ranks)) is None:
        return
    logger.info("")
    for sample in result.samples:
        logger.info("  %s\n    -> %s\n    reference: %s", sample.src, sample.hyp, sample.ref)
    logger.info("")
    if prints_scores:
        print_scores(result.scores, False)
        if result.gains:
            print_lines([*(gain.line() for gain in result.gains), *map(str, advice(result.gains))])
    logger.info("model: %s\nreport: %s", result.paths.model, result.paths.report)
    if verdict := usability(read_run(result.paths.root)):
        logger.info("verdict: %s", verdict.text)
        if verdict.help:
            logger.info("advice: %s", verdict.help)
    logger.info('next:\n  echo "…" | %s', mtx_command("translate", result.paths.root))
    logger.info("  %s", mtx_command("evaluate", result.paths.root))
    result.deferred_errors.check()


def prepare(
    settings: Settings = None,
    download_only: Annotated[bool, typer.Option("--download-only", help="Only find or download the corpora.")] = False,
) -> None:
    """The first part of train alone: text to token ids, with a report."""
    config = resolve(settings).config
    if download_only:
        from mtx.data.sources import find_corpora

        names = [corpus.name for corpus in find_corpora(config.data).all()]
        logger.info("all corpora are available: %s", ", ".join(names))
        return
    from mtx import pipeline

    paths = pipeline.prepare_only(config)
    logger.info("prepared: %s", paths.data)


def config(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[KEY | SECTION | CONFIG]", help="Key or section, else recipe, file or run directory."),
    ] = None,
    settings: Annotated[list[str] | None, typer.Argument(metavar="[key=value]...")] = None,
) -> None:
    """List the recipes, explain a key or a section, or print a configuration with where each value comes from."""
    from mtx.config import settings as configuration
    from mtx.config.schema import key_names

    if name is None:
        head = ["recipe", "what it learns", "machine", "time", "BLEU"]
        rows = [head, *([recipe, *configuration.recipe_facts(recipe)] for recipe in configuration.recipe_names())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        print_lines("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        print_lines(["", "Published scores are of tokenised text, on which BLEU differs from sacreBLEU's."])
        return
    keys = [key for key in key_names() if key == name or key.startswith(f"{name}.")]
    path = Path(name)
    is_here = path.is_file() or RunLayout(path).config.is_file()
    if is_here and (keys or name in configuration.recipe_names()):
        help = f"{mtx_command('config', path)} shows the file or run"
        raise UsageError(f"{name}: is a name of mtx, and a file or a run here", help)
    if keys and settings:
        raise UsageError(f"{settings[0]}: {name} is explained, not set", f"{mtx_command('config', name)}")
    for key in keys:
        description, default = configuration.describe_key(key)
        print_lines([f"{key}: {description}", f"default: {default}"])
    if not keys:
        print_lines(configuration.dump_with_origins(resolve([name, *(settings or [])])).split("\n"))


def status(run: Annotated[Path, typer.Argument(help="Run directory.")], as_json: AsJson = False) -> None:
    """Show a run's state, step, best score and time left."""
    from mtx.storage.run_status import read_status

    state = read_status(run)
    print_json(vars(state)) if as_json else print_lines(state.lines())
