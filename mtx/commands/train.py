"""`mtx train`, its first part alone (prepare), and `mtx config` and `mtx status`, which only show.

`resolve` makes the configuration of a run from CONFIG or files of text, and from settings.
"""

import importlib
import logging
import os
import signal
import time
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mtx.commands.command_line import (
    AS_JSON,
    argument,
    complete_runs,
    flag,
    last_change,
    logger,
    option,
    print_result,
    runs,
    table,
)
from mtx.errors import MtxError, UsageError
from mtx.formatting import counted, format_duration, mtx_command
from mtx.storage.run_files import RunLayout
from mtx.storage.streams import print_lines

if TYPE_CHECKING:
    from mtx.config.schema import Config
    from mtx.config.settings import Resolved
    from mtx.training.hooks import Hook
    from mtx.training.ranks import Ranks


def _complete_config() -> list[str]:
    from mtx.config.settings import recipe_names

    return [*recipe_names(), *complete_runs()]


def _complete_key() -> list[str]:
    from mtx.config.schema import key_names

    return sorted({name for key in key_names() for name in (key, key.partition(".")[0])})


def _complete_settings(context: typer.Context, incomplete: str) -> list[str]:
    """What a shell may complete a word to; without a letter of it, keys follow a configuration."""
    names = [] if context.params.get("settings") else _complete_config()
    return [*names, *(f"{key}=" for key in _complete_key() if incomplete or not names)]


SETTINGS = argument(
    "[CONFIG | FILE...] [KEY=VALUE]...",
    "Recipe, configuration, run directory, or files or folders of text; then settings.",
    _complete_settings,
)

# What happens around the training loop, in this order (see `mtx.training.hooks`): modules and their classes. A hook
# whose folder has been taken away is skipped.
HOOKS = (
    ("mtx.evaluation.test_set_scores", "ScoresBefore", "training.init_from"),
    ("mtx.training.hooks", "EventLog"),
    ("mtx.training.hooks", "TensorBoard"),
    ("mtx.training.hooks", "Console"),
    ("mtx.report.advice", "Hints"),
    ("mtx.evaluation.quality_fit", "FitQuality"),
    ("mtx.interop.huggingface", "ExportNote"),
    ("mtx.interop.cards", "ModelCard"),
    ("mtx.report.live_report", "ReportWriter"),
)


def resolve(arguments: list[str] | None) -> "Resolved":
    """The configuration that CONFIG and the overrides give, with what `training.init_from` and `sizes` bring."""
    from mtx.config import settings
    from mtx.config.schema import key_names
    from mtx.data.text_arguments import describe, describe_languages, holds_pairs

    def is_name(word: str) -> bool:
        return settings.is_name(word) or (not settings.is_override(word) and bool(holds_pairs(word)))

    names = list[str]()  # in any place of the command line
    overrides = list[str]()
    for word in arguments or []:
        if is_name(word):
            names.append(word)
        else:
            overrides.append(word)
    while overrides and not settings.is_override(overrides[0]):
        names.append(overrides.pop(0))  # of nothing that exists: the errors below show it
    if not names and settings.exists("mtx.yaml") and not any(word.startswith("data.") for word in overrides):
        names = ["mtx.yaml"]
        logger.info("no CONFIG is given: using mtx.yaml in this directory")
    typed_names = names
    if files := describe(names, overrides):
        names = ["own-text"]
        overrides = [*files, *overrides]
    if keys := [name for name in names if name in key_names()]:
        raise UsageError(f"{keys[0]}: a setting needs its value after =", f"{keys[0]}=VALUE, without spaces")
    if len(names) > 1:
        raise UsageError(
            f"expected one CONFIG, got {' and '.join(names)}", "settings are written key=value, without spaces"
        )
    name = names[0] if names else None
    resolved = settings.resolve(name, overrides)
    if name == "adapt" and not resolved.config.training.init_from:
        raise UsageError(
            "adapt: training.init_from must name the model to adapt",
            mtx_command("train", "adapt", "training.init_from=MODEL", "data.train=my.tsv"),
        )
    paths = RunLayout(Path(resolved.config.run_dir))
    if name and settings.exists(paths.config) and settings.find_config(name).samefile(paths.config):
        from mtx.runs.run_directory import load_config

        load_config(paths)  # raises if the run's own configuration was changed
    if languages := describe_languages(resolved, typed_names):
        overrides = [*overrides[:1], *languages, *overrides[1:]]  # after data.train
        resolved = settings.resolve(name, overrides)
    if files:
        logger.info("this is short for: %s", mtx_command("train", "own-text", *overrides))
    if resolved.config.training.init_from:
        from mtx.training.init_from import inherit

        resolved = inherit(resolved)
    if resolved.config.sizes != "given":
        from mtx.data.model_sizes import choose_sizes

        resolved = choose_sizes(resolved)
    return resolved


def load_around(module: str) -> Any:
    """A module; None if its folder has been taken away, or one that it needs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("mtx."):
            raise
        return None


def make_hooks(config: "Config") -> "list[Hook]":
    """The hooks of a start: those that have no key, and those whose key is set."""
    classes = [(path, name) for path, name, *keys in HOOKS if all(attrgetter(key)(config) for key in keys)]
    return [getattr(module, name)() for path, name in classes if (module := load_around(path))]


def train(
    settings: list[str] | None = SETTINGS,
    dry_run: bool = flag("--dry-run", "Show what the run would do and how long it would take; write nothing."),
    as_json: bool = flag("--json", "With --dry-run: print JSON."),
    device: str | None = option(
        "DEVICE", "auto, cpu, cuda, cuda:1 or mps; or a number of devices, or all.  [default: the setting device]"
    ),
) -> None:
    """Train a model, from raw text to a scored translator.

    This cleans the text, builds the tokenizer, trains, averages checkpoints, and scores the test sets. Running the same
    command again resumes the run.
    """
    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", "mtx status RUN --json shows the state of a run")
    save_signal = getattr(signal, "SIGUSR1", None)
    # by default the signal ends the process; it is ignored until training handles it
    if save_signal and signal.getsignal(save_signal) == signal.SIG_DFL:
        signal.signal(save_signal, signal.SIG_IGN)
    is_rank = os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ
    is_number = device == "all" or str(device).isdecimal()
    if [is_rank, dry_run, is_number].count(True) > 1:
        raise UsageError("--dry-run, --device N and torchrun do not go together", "drop all but one of them")
    if device is not None and not is_number:
        settings = [*(settings or []), f"device={device}"]
    if is_rank:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch prints a page of addresses for a lost connection
        from mtx.training.ranks import join

        with join() as ranks:
            train_run(ranks.run_on_rank_zero(lambda: resolve(settings).config), ranks)
        return
    config = resolve(settings).config
    if is_number:
        from mtx.model.device import num_devices
        from mtx.training.ranks import launch

        if (num_ranks := num_devices(str(device), config.device)) > 1:
            level = {logging.DEBUG: ["-v"], logging.WARNING: ["-q"]}.get(logger.level, [])
            raise typer.Exit(launch(num_ranks, [*level, "train", *(settings or [])]))
    if dry_run:
        from mtx.report.dry_run import lines, rehearse

        report = rehearse(config)
        print_result(report, lines(report), as_json)
    else:
        train_run(config)


def train_run(config: "Config", ranks: "Ranks | None" = None, prints_scores: bool = True) -> None:
    """Train a run to its end, and report its scores and whether the model is usable."""
    from mtx.scoring.metrics import score_line
    from mtx.training import run

    if config.data.generator:
        logger.info("the corpus is synthetic: a small grammar generates it, to show how mtx works")
    if not (result := run.train(config, ranks, make_hooks(config))):
        return
    lines = [score_line(name, scores) for name, scores in result.scores.items()]
    history, advice = map(load_around, ("mtx.report.run_history", "mtx.report.advice"))
    summary = advice and history.read_run(result.paths.root)
    if summary:
        lines += [*(gain.line() for gain in summary.gains), *map(str, advice.advise_on_gains(summary.gains))]
    if prints_scores and lines:
        print_lines(lines)
    logger.info("model: %s\nreport: %s", result.paths.model, result.paths.report)
    if summary:
        if verdict := advice.usability(summary):
            logger.info("verdict: %s", verdict.text)
            if verdict.hint:
                logger.info("advice: %s", verdict.hint)
        for line in advice.count_by_quality(result.scores):
            logger.info("translations to use, to look at and to redo, by their estimated quality: %s", line)
    src, tgt = config.data.language_pairs[0]
    direction = ["--from", src, "--to", tgt] if config.data.directions else []
    translate = mtx_command("translate", result.paths.root, *direction)
    logger.info('next:\n  echo "…" | %s\n  %s', translate, mtx_command("evaluate", result.paths.root))
    result.deferred_errors.check()


def prepare(
    settings: list[str] | None = SETTINGS,
    download_only: bool = flag("--download-only", "Only find or download the corpora."),
    shard: str | None = option(
        "K/N", "Prepare only the Kth of N parts; once all are made, run without it to join them."
    ),
) -> None:
    """Prepare the text of a run without training.

    This cleans the text, builds the tokenizer, and encodes the text.
    """
    config = resolve(settings).config
    if download_only:
        from mtx.data.sources import find_corpora

        names = (corpus.name for corpus in find_corpora(config.data).all_corpora())
        logger.info("all corpora are available: %s", ", ".join(names))
        return
    from mtx.training.run import prepare_only, prepare_shard

    if shard is not None:
        logger.info("prepared: %s", prepare_shard(config, shard))
        return
    paths = prepare_only(config, make_hooks(config))
    logger.info("prepared: %s", paths.data)


def show_config(
    name: str | None = argument(
        "[KEY | SECTION | CONFIG | FILE...]",
        "Setting, section, recipe, configuration, run directory, or files or folders of text.",
        lambda: [*_complete_config(), *_complete_key()],
    ),
    settings: list[str] | None = argument("[KEY=VALUE]...", "Settings of CONFIG or FILE."),
) -> None:
    """List the recipes, explain settings, or print a configuration.

    A configuration is printed with the origin of each value.
    """
    from mtx.config import settings as configuration
    from mtx.config.schema import key_names
    from mtx.data.text_arguments import holds_pairs

    if not name:
        recipes = ([recipe, *configuration.recipe_facts(recipe)] for recipe in configuration.recipe_names())
        print_lines(table(["recipe", "what it learns", "machine", "time", "BLEU"], *recipes))
        print_lines(["", "Published scores are BLEU of tokenised text, which differs from sacreBLEU."])
        return
    keys = [key for key in key_names() if f"{key}.".startswith(f"{name}.")]
    if not (keys or settings or configuration.exists(name) or holds_pairs(name)):
        keys = [key for key in key_names() if key.endswith(f".{name}")]
    for key in keys:
        description, default = configuration.describe_key(key)
        print_lines([f"{key}: {description}", f"default: {default}"])
    if not keys:
        print_lines(configuration.dump_with_origins(resolve([name, *(settings or [])])).split("\n"))


def status(
    run: Path | None = argument("[RUN]", "Run directory.", complete_runs),
    as_json: bool = AS_JSON,
) -> None:
    """Show the progress of a run, or list all runs in runs/."""
    from mtx.runs.run_directory import read_status

    if run:
        state = read_status(run)
        print_result(vars(state), state.lines(), as_json)
        return
    states = []
    for path in runs():
        try:
            states.append((read_status(path), time.time() - last_change(path)))
        except MtxError as error:
            logger.warning(str(error))
    if states or as_json:
        rows = (
            [
                state.run,
                state.state,
                state.progress(),
                state.best(),
                f"{format_duration(age) if age < 172_800 else counted(int(age / 86_400), 'day')} ago",
            ]
            for state, age in states
        )
        values = [{**vars(state), "age_s": round(age, 3)} for state, age in states]
        print_result(values, table(["run", "state", "step", "best validation", "last change"], *rows), as_json)
    else:
        logger.info("there are no runs in runs/; to start one: %s", mtx_command("train", "demo"))
