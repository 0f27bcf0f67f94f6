"""`mtx train`, its first part alone (prepare), and `mtx config` and `mtx status`, which only show.

`resolve` makes the configuration of a run from CONFIG or files of text, and from settings.
"""

import importlib
import itertools
import logging
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtx.commands.command_line import AsJson, argument, complete_runs, last_change, option, runs
from mtx.errors import MtxError, UsageError
from mtx.formatting import counted, format_duration, mtx_command, shell_command
from mtx.storage import text_files
from mtx.storage.run_files import RunLayout
from mtx.storage.streams import print_json, print_lines

if TYPE_CHECKING:
    from mtx.config.schema import Config
    from mtx.config.settings import Resolved
    from mtx.storage.run_directory import Status
    from mtx.training.hooks import Hook
    from mtx.training.ranks import Ranks

logger = logging.getLogger("mtx")

_ADAPT = "adapt"  # the recipe that starts from a model
_PLAN = "mtx.yaml"  # what a command takes that is given no text
_YAML = (".yaml", ".yml")
_CONFIG_LINE = re.compile(r"\s*(?:#.*|---|\w+:(?: \S+)?)?")


def _complete_config() -> list[str]:
    from mtx.config.settings import recipe_names

    return [*recipe_names(), *complete_runs()]


def _complete_key() -> list[str]:
    from mtx.config.schema import key_names

    return sorted({*key_names(), *(key.partition(".")[0] for key in key_names())})


def _complete_settings(context: typer.Context, incomplete: str) -> list[str]:
    """What a shell may complete a word to; without a letter of it, keys follow a configuration."""
    names = [] if context.params.get("settings") else _complete_config()
    return [*names, *(f"{key}=" for key in _complete_key() if incomplete or not names)]


Settings = Annotated[
    list[str] | None,
    argument(
        "[CONFIG | FILE...] [KEY=VALUE]...",
        "Recipe, configuration, run directory, or files of text; then settings.",
        _complete_settings,
    ),
]

# What happens around the training loop, in this order (see `mtx.training.hooks`): modules and their classes. A hook
# whose folder has been taken away is skipped.
HOOKS = (
    ("mtx.evaluation.test_set_scores", "ScoresBefore"),
    ("mtx.training.hooks", "EventLog"),
    ("mtx.training.tensorboard", "TensorBoard"),
    ("mtx.training.hooks", "Console"),
    ("mtx.report.training_hooks", "Hints"),
    ("mtx.interop.huggingface", "ExportNote"),
    ("mtx.interop.cards", "ModelCard"),
    ("mtx.report.training_hooks", "ReportWriter"),
)


def resolve(arguments: list[str] | None) -> "Resolved":
    """The configuration that CONFIG and the overrides give, with what `training.init_from` and `sizes` bring."""
    from mtx.config import settings
    from mtx.config.schema import key_names
    from mtx.data.readers import FILE_ENDING
    from mtx.storage.run_files import load_config

    words = arguments or []
    names = list(itertools.takewhile(lambda word: not settings.is_override(word), words))
    overrides = words[len(names) :]
    if not names and settings.exists(_PLAN) and not any(word.startswith("data.") for word in words):
        names = [_PLAN]
        logger.info("no CONFIG is given: using %s in this directory", _PLAN)
    files = names if all(map(_is_text, names)) else []
    if files:
        names, overrides = ["own-text"], [*_settings_for(files, overrides), *overrides]
    for name in names:
        if name in key_names():
            raise UsageError(f"{name}: a setting needs its value after =", f"{name}=VALUE, without spaces")
        if FILE_ENDING.search(name) and not settings.exists(name):
            raise UsageError(f"{name}: no such file")
    if len(names) in (1, 2) and all(map(_is_side, names)):
        raise UsageError(
            f"{names[0]}: expected sentence pairs, but its first line has no TAB", _help_with_sides(*names)
        )
    if len(names) > 1:
        raise UsageError(
            f"expected one CONFIG, got {' and '.join(names)}", "settings are written key=value, without spaces"
        )
    config_name = names[0] if names else None
    resolved = settings.resolve(config_name, overrides)
    if names == [_ADAPT] and resolved.config.training.init_from is None:
        help = mtx_command("train", _ADAPT, "training.init_from=MODEL", "data.train=my.tsv")
        raise UsageError(f"{_ADAPT}: training.init_from must name the model to adapt", help)
    for paths in map(RunLayout, map(Path, {names[0], resolved.config.run_dir} if names else ())):
        if settings.exists(paths.config) and settings.find_config(names[0]).samefile(paths.config):
            load_config(paths)  # raises if the run's own configuration was changed
    if found := _find_languages(resolved):
        overrides[1:1] = found  # after data.train
        resolved = settings.resolve(config_name, overrides)
    if files:
        logger.info("this is short for: %s", mtx_command("train", "own-text", *overrides))
    if resolved.config.training.init_from is not None:
        from mtx.training.init_from import inherit

        resolved = inherit(resolved)
    if resolved.config.sizes != "given":
        from mtx.data.corpus_sizes import choose_sizes

        resolved = choose_sizes(resolved)
    return resolved


def _is_text(name: str) -> bool:
    """Whether the argument in the place of a configuration is a file of pairs."""
    from mtx.config.settings import exists, recipe_names
    from mtx.data.readers import FILE_ENDING

    path = Path(name)
    if name in recipe_names() or not exists(path) or not path.is_file():
        return False
    if FILE_ENDING.search(name) or text_files.bilingual_form(path) is not None:
        return True
    return path.suffix not in _YAML and "\t" in next(text_files.read_lines(path), "")


def _is_side(name: str) -> bool:
    """Whether it is a file of lines that are not pairs and, by the first line, not a configuration."""
    from mtx.config.settings import exists, recipe_names

    path = Path(name)
    if not exists(path) or not path.is_file() or name in recipe_names() or _is_text(name):
        return False
    return path.suffix not in _YAML and _CONFIG_LINE.fullmatch(next(text_files.read_lines(path), "")) is None


def _help_with_sides(src: str, tgt: str = "") -> str:
    """How to train on one or two files of lines: as NAME.LANG, or pasted together."""
    if not tgt:
        return "write one pair a line, source TAB target; or name two files, one for each language"
    one, other = Path(src), Path(tgt)
    if one.with_suffix("") == other.with_suffix("") and one.suffix and other.suffix:
        languages = f"data.src={one.suffix[1:]}", f"data.tgt={other.suffix[1:]}"
        return mtx_command("train", "own-text", f"data.train={one.stem}", f"data.dir={one.parent}", *languages)
    return f"paste {shell_command(one, other)} > pairs.tsv, and {mtx_command('train', 'pairs.tsv')}"


def _settings_for(files: list[str], overrides: list[str]) -> list[str]:
    """The settings with which `own-text` trains on such files, without their languages."""
    from mtx.data.readers import FILE_ENDING

    given = dict(override.partition("=")[::2] for override in overrides)
    if "data.train" in given:
        raise UsageError(f"{files[0]} and data.train: expected one of them", f"data.train={','.join(files)},OTHER")
    settings = [f"data.train={','.join(files)}"]
    if "run_dir" not in given:
        settings.append(f"run_dir=runs/{FILE_ENDING.sub('', Path(files[0]).name).removesuffix('.gz')}")
    return settings


def _find_languages(resolved: "Resolved") -> list[str]:
    """The settings data.src and data.tgt that the first training text implies, except the ones that are given."""
    from mtx.data.bilingual import match_rank
    from mtx.data.language_detection import find_languages
    from mtx.data.languages import tag_of
    from mtx.data.sources import find_corpora

    data = resolved.config.data
    named = {"data.src": data.src, "data.tgt": data.tgt}
    given = {key: name for key, name in named.items() if resolved.is_explicit(key)}
    for key, name in given.items():
        if (code := tag_of(name)) != name:
            raise UsageError(f"{key}={name}: expected the code of a language", f"{key}={code}")
    if len(given) == 2 or not data.train or resolved.config.training.init_from is not None:
        return []
    files = find_corpora(data).train[0].files
    if len(files) != 1:
        return []
    first, second, origin = find_languages(files[0], data.columns)
    for languages in ({"data.src": first, "data.tgt": second}, {"data.src": second, "data.tgt": first}):
        if all(match_rank(languages[key], name) is not None for key, name in given.items()):
            break
    else:
        [(key, name)] = given.items()
        help = "name both data.src and data.tgt, or data.columns=SRC,TGT"
        raise UsageError(f"{key}={name}: {files[0]} has {first} and {second} (from {origin})", help)
    src, tgt = (languages | given).values()
    direction = f"{src} to {tgt} (from {origin})"
    logger.info("%s: %s; for the opposite direction: data.src=%s data.tgt=%s", files[0], direction, tgt, src)
    return [f"{key}={name}" for key, name in languages.items() if key not in given]


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
        bool, typer.Option("--dry-run", help="Show what the run would do and how long it would take; write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
    device: Annotated[
        str | None,
        option(
            "DEVICE",
            "auto, cpu, cuda, cuda:1 or mps; or a number of devices, or all.  [default: the setting device]",
        ),
    ] = None,
) -> None:
    """Train a model, from raw text to a scored translator.

    This cleans the text, builds the tokenizer, trains, averages checkpoints, and scores the test sets. Running the same
    command again resumes the run.
    """
    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", "mtx status RUN --json shows the state of a run")
    from mtx.training.signals import ignore_save

    ignore_save()  # before torch is loaded, which takes seconds
    is_rank = os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ
    is_number = device is not None and (device == "all" or device.isdecimal())
    if is_rank + dry_run + is_number > 1:
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
    if device is not None and is_number:
        from mtx.model.device import num_devices
        from mtx.training.ranks import launch

        if (size := num_devices(device, config.device)) > 1:
            level = {logging.DEBUG: ["-v"], logging.WARNING: ["-q"]}.get(logger.level, [])
            raise typer.Exit(launch(size, [*level, "train", *(settings or [])]))
    if dry_run:
        from mtx.report.dry_run import lines, rehearse

        report = rehearse(config)
        print_json(report) if as_json else print_lines(lines(report))
    else:
        train_run(config)


def train_run(config: "Config", ranks: "Ranks | None" = None, prints_scores: bool = True) -> None:
    """Train a run to its end, and report its scores and whether the model is usable."""
    from mtx.decoding.metrics import score_line
    from mtx.training import run

    if config.data.generator:
        logger.info("the corpus is synthetic: a small grammar generates it, to show how mtx works")
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
    """Prepare the text of a run without training.

    This cleans the text, builds the tokenizer, and encodes the text.
    """
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
        argument(
            "[KEY | SECTION | CONFIG | FILE]",
            "Setting, section, recipe, configuration, run directory or file of text.",
            lambda: [*_complete_config(), *_complete_key()],
        ),
    ] = None,
    settings: Annotated[list[str] | None, argument("[KEY=VALUE]...", "Settings of CONFIG or FILE.")] = None,
) -> None:
    """List the recipes, explain settings, or print a configuration.

    A configuration is printed with the origin of each value.
    """
    from mtx.config import settings as configuration
    from mtx.config.schema import key_names

    if name is None:
        head = ["recipe", "what it learns", "machine", "time", "BLEU"]
        _print_table(head, *([recipe, *configuration.recipe_facts(recipe)] for recipe in configuration.recipe_names()))
        print_lines(["", "Published scores are BLEU of tokenised text, which differs from sacreBLEU."])
        return
    keys = [key for key in key_names() if key == name or key.startswith(f"{name}.")]
    if not keys and not configuration.exists(name):
        keys = [key for key in key_names() if key.endswith(f".{name}")]
    if keys and settings:
        raise UsageError(f"{settings[0]}: settings need CONFIG, and {name} is a key", mtx_command("config", name))
    for key in keys:
        description, default = configuration.describe_key(key)
        print_lines([f"{key}: {description}", f"default: {default}"])
    if not keys:
        print_lines(configuration.dump_with_origins(resolve([name, *(settings or [])])).split("\n"))


def _age(seconds: float) -> str:
    days = seconds / 86400
    return f"{format_duration(seconds) if days < 2 else counted(int(days), 'day')} ago"


def _print_table(*rows: list[str]) -> None:
    """Print rows in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print_lines("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def status(
    run: Annotated[Path | None, argument("[RUN]", "Run directory.", complete_runs)] = None,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a run, or list all runs in runs/."""
    from mtx.storage.run_directory import read_status

    if run is not None:
        state = read_status(run)
        print_json(vars(state)) if as_json else print_lines(state.lines())
        return
    found = list["tuple[Status, float]"]()
    for each in runs():
        try:
            found.append((read_status(each), time.time() - last_change(each)))
        except MtxError as error:
            logger.warning("%s", error)
    if as_json:
        print_json([{**vars(state), "age_s": round(age, 3)} for state, age in found])
    elif found:
        rows = [[state.run, state.state, state.progress(), state.best(), _age(age)] for state, age in found]
        _print_table(["run", "state", "step", "best validation", "last change"], *rows)
    else:
        logger.info("there are no runs in runs/; to start one: %s", mtx_command("train", "demo"))
