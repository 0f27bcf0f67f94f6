"""`mtx train`, its first part alone (prepare), and `mtx config` and `mtx status`, which only show."""

import importlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtx.commands.command_line import AsJson, Settings, resolve
from mtx.errors import UsageError
from mtx.formatting import mtx_command
from mtx.storage.streams import print_json, print_lines

if TYPE_CHECKING:
    from mtx.config.schema import Config
    from mtx.training.hooks import Hook
    from mtx.training.ranks import Ranks

logger = logging.getLogger("mtx")

# What happens around the training loop, in this order (see `mtx.training.hooks`): modules and their classes. A hook
# whose folder has been taken away is skipped.
HOOKS = (
    ("mtx.evaluation.test_set_scores", "ScoresBefore"),
    ("mtx.training.hooks", "EventLog"),
    ("mtx.training.hooks", "TensorBoard"),
    ("mtx.training.hooks", "Console"),
    ("mtx.report.training_hooks", "Hints"),
    ("mtx.interop.huggingface", "ExportNote"),
    ("mtx.interop.cards", "ModelCard"),
    ("mtx.report.training_hooks", "ReportWriter"),
)


def load_around(module: str) -> Any:
    """A module; None if its folder has been taken away, or one that it needs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("mtx."):
            raise
        return None


def make_hooks() -> "list[Hook]":
    """The hooks of a start."""
    return [getattr(module, name)() for path, name in HOOKS if (module := load_around(path)) is not None]


def train(
    settings: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what the run would do and cost; leave nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
    devices: Annotated[str | None, typer.Option(help="Train on N devices of this machine, or on all.")] = None,
) -> None:
    """Everything: download, clean, tokenizer, encode, train, average, score. The same command resumes a run."""
    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", "mtx status RUN --json shows the state of a run")
    from mtx.training.signals import ignore_save

    ignore_save()  # before torch is loaded, which takes seconds
    is_rank = os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ
    if is_rank + dry_run + (devices is not None) > 1:
        raise UsageError("--dry-run, --devices and torchrun do not go together", "drop all but one of them")
    if is_rank:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a lost connection torch tells a page of addresses
        from mtx.training.ranks import join

        with join() as ranks:
            train_run(ranks.run_on_rank_zero(lambda: resolve(settings).config), ranks)
        return
    config = resolve(settings).config
    if devices is not None:
        from mtx.model.device import num_devices
        from mtx.training.ranks import launch

        if (size := num_devices(devices, config.device)) > 1:
            raise typer.Exit(launch(size, ["train", *(settings or [])]))
    if dry_run:
        from mtx.report.dry_run import lines, rehearse

        report = rehearse(config)
        print_json(report) if as_json else print_lines(lines(report))
    else:
        train_run(config)


def train_run(config: "Config", ranks: "Ranks | None" = None, prints_scores: bool = True) -> None:
    """Train a run to its end, and say what has come of it."""
    from mtx.decoding.metrics import score_line
    from mtx.training import run

    if config.data.generator:
        logger.info("the corpus is synthetic: a small grammar generated it, and it is good only for seeing mtx work")
    if (result := run.train(config, ranks, make_hooks())) is None:
        return
    if prints_scores:
        if result.scores:
            print_lines(score_line(name, scores) for name, scores in result.scores.items())
        if (gains := load_around("mtx.evaluation.test_set_scores")) and (changes := gains.gain_lines(result.paths)):
            print_lines(changes)
    logger.info("model: %s\nreport: %s", result.paths.model, result.paths.report)
    summary, verdict = load_around("mtx.report.run_history"), load_around("mtx.report.verdict")
    if verdict and (found := verdict.usability(summary.read_run(result.paths.root))):
        logger.info("verdict: %s", found.text)
        if found.help:
            logger.info("advice: %s", found.help)
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
    from mtx.training.run import prepare_only

    paths = prepare_only(config, make_hooks())
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
    if keys and settings:
        raise UsageError(f"{settings[0]}: {name} is explained, not set", f"{mtx_command('config', name)}")
    for key in keys:
        description, default = configuration.describe_key(key)
        print_lines([f"{key}: {description}", f"default: {default}"])
    if not keys:
        print_lines(configuration.dump_with_origins(resolve([name, *(settings or [])])).split("\n"))


def status(run: Annotated[Path, typer.Argument(help="Run directory.")], as_json: AsJson = False) -> None:
    """Show a run's state, step, best score and time left."""
    from mtx.storage.run_directory import read_status

    state = read_status(run)
    print_json(vars(state)) if as_json else print_lines(state.lines())
