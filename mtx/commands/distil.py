"""`mtx distil`: a small, fast student of one teacher or several."""

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtx.commands.options import AsJson, resolve
from mtx.commands.train import train_run
from mtx.commands.translator_options import load_translator, takes
from mtx.decoding.options import Placement, SearchOptions
from mtx.errors import UsageError
from mtx.formatting import draw_table
from mtx.storage.run_contents import find_model, is_prepared, is_run, require_models
from mtx.storage.run_files import RunLayout
from mtx.storage.streams import print_json, print_lines

if TYPE_CHECKING:
    from mtx.decoding.translator import Translator
    from mtx.synthesis import distil as distillation

logger = logging.getLogger("mtx")

_RECIPE = "student"
_MONO = "data.mono="
_MANY_PAIRS = 100_000  # from so many on the larger preset is taken; only student-small was measured, on 29,000


@takes("engine", "threads", "device", "batch_tokens")
def distil(
    teacher: Annotated[str, typer.Argument(metavar="TEACHER", help="A model, or several as A+B, for torch.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value]...", help="data.mono=FILE adds source text; others are the student's."),
    ] = None,
    as_json: AsJson = False,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Train a small student on a teacher's translations, and compare the two; the same command resumes if stopped."""
    mono, text, others = _sorted(settings or [])
    run_dir = dict(setting.partition("=")[::2] for setting in others).get("run_dir") or f"{_name(teacher)}-student"
    from mtx.commands.translator_options import progress
    from mtx.storage.run_directory import refuse_foreign
    from mtx.synthesis import distil as distillation

    paths = RunLayout(Path(run_dir))
    refuse_foreign(paths)
    if not text and not is_prepared(RunLayout(first := require_models(teacher)[0]).data):
        help = "data.train=FILE, and data.mono=FILE for more"
        raise UsageError(f"{first}: is no run with its text, so the text must be named", help)
    translator = load_translator(teacher, search, place)
    paths.distilled.mkdir(parents=True, exist_ok=True)
    about = distillation.check_teacher(paths.distilled, teacher, mono, text)
    own = [*_own_text(teacher, translator, paths, text, others), *others]
    resolve([_RECIPE, f"data.train={distillation.TRAIN}", *own])  # wrong settings are refused before the teacher works
    total = sum(1 for _ in distillation.source_lines(paths.distilled, mono))
    with progress(total) as bar:
        distillation.translate_text(translator, paths.distilled, mono, about, bar.update)
    config = resolve([_RECIPE, f"data.train={distillation.TRAIN},{distillation.DISTILLED}", *own]).config
    train_run(config, prints_scores=not as_json)
    load = partial(load_translator, search=search, place=replace(place, engine="auto"))
    systems = _compare(teacher, translator, paths, load)
    rows = [system.cells() for system in systems]
    print_json({s.name: asdict(s) for s in systems}) if as_json else print_lines(
        draw_table(distillation.HEAD, rows, "text")
    )


def _sorted(settings: list[str]) -> tuple[Path | None, list[str], list[str]]:
    """The file of `data.mono`, the settings that name text, and the others."""
    mono = [setting.removeprefix(_MONO) for setting in settings if setting.startswith(_MONO)]
    text = [setting for setting in settings if setting.startswith("data.") and not setting.startswith(_MONO)]
    if mono and not Path(mono[-1]).is_file():
        raise UsageError(f"{_MONO}{mono[-1]}: is no file; it is read several times", "one sentence a line")
    if text and not any(setting.startswith("data.train=") for setting in text):
        raise UsageError(f"{text[0]}: goes with data.train; without it, all text is that of TEACHER", f"{_MONO}FILE")
    others = [setting for setting in settings if not setting.startswith("data.")]
    return (Path(mono[-1]) if mono else None), text, others


def _name(teacher: str) -> str:
    """The teacher's name for that of its student: the run's, of several the first one's."""
    first = require_models(teacher)[0]
    return str(first.parent if first.name == "model" and is_run(first.parent) else first)


def _own_text(
    teacher: str, translator: "Translator", paths: RunLayout, text: list[str], others: list[str]
) -> list[str]:
    """Write the text of the teacher's run, or that of `text`, for the student; returns the settings that follow."""
    from mtx.data import prepare, token_store
    from mtx.synthesis import distil as distillation

    first = require_models(teacher)[0]
    tokenizer = [find_model(first) / name for name in translator.tokenizer.models.files]
    fixed = [
        f"run_dir={paths.root}",
        f"data.src={translator.src}",
        f"data.tgt={translator.tgt}",
        f"tokenizer.model={','.join(map(str, tokenizer))}",
    ]
    data_dir = RunLayout(paths.distilled if text else first).data
    if text and not is_prepared(data_dir):
        prepare.prepare(resolve([_RECIPE, *fixed, *text, *others]).config, data_dir)
    data = token_store.load_prepared(data_dir)
    tests = distillation.write_text(data, paths.distilled)
    preset = "student" if data.train.num_pairs >= _MANY_PAIRS else "student-small"
    return [
        *fixed,
        f"model.preset={preset}",
        f"data.dir={paths.distilled}",
        f"data.valid={distillation.VALID}",
        f"data.test={','.join(tests)}",
    ]


def _compare(
    teacher: str, translator: "Translator", paths: RunLayout, load: "Callable[[str], Translator]"
) -> "list[distillation.System]":
    from mtx.evaluation.test_sets import test_sets_of_runs
    from mtx.interop.export import default_directory, export
    from mtx.synthesis import distil as distillation

    directory = default_directory(paths.root, "ctranslate2", "int8")
    logger.info(export(paths.root, "ctranslate2", directory, "int8").line())
    (test_set, *_) = test_sets_of_runs([paths.root])
    models = {"teacher": teacher, "student": str(paths.root), "student in int8": str(directory)}
    return [
        distillation.measure(
            name,
            translator if model == teacher else load(model),
            distillation.weight_bytes(model),
            test_set,
        )
        for name, model in models.items()
    ]
