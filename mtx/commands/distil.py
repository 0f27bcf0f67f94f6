"""`mtx distil`: a small, fast student of one teacher or several."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mtx.commands.command_line import AsJson, argument, complete_runs
from mtx.commands.train import resolve, train_run
from mtx.commands.translator_options import load_translator, progress, takes
from mtx.decoding.options import Placement, SearchOptions
from mtx.errors import UsageError
from mtx.storage.run_files import RunLayout, find_model, is_prepared, is_run, require_models
from mtx.storage.streams import print_json, print_lines

if TYPE_CHECKING:
    from mtx.decoding.translator import Translator

logger = logging.getLogger("mtx")

_RECIPE = "student"
_MONO = "data.mono="
_MANY_PAIRS = 100_000  # from here on the larger preset is used; only student-small was measured, on 29,000


@takes("engine", "threads", "device", "batch_tokens")
def distil(
    teacher: Annotated[
        str,
        argument("TEACHER", "Run or model directory, or several as A+B.", complete_runs),
    ],
    settings: Annotated[
        list[str] | None,
        argument("[KEY=VALUE]...", "Settings of the student; data.mono=FILE adds monolingual source text."),
    ] = None,
    as_json: AsJson = False,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Train a small student model on a teacher's translations.

    It compares quality, speed and size of both. Running the same command again resumes an interrupted one.
    """
    given = dict(setting.partition("=")[::2] for setting in settings or [])
    mono = Path(given.pop("data.mono")) if "data.mono" in given else None
    text = [f"{key}={value}" for key, value in given.items() if key.startswith("data.")]
    others = [f"{key}={value}" for key, value in given.items() if not key.startswith("data.")]
    others.insert(0, f"device={place.device}")  # which a setting overrides
    if mono and not mono.is_file():
        raise UsageError(
            f"{_MONO}{mono}: no such file, or a pipe", "a file with one sentence a line, which is read several times"
        )
    if text and "data.train" not in given:
        raise UsageError(f"{text[0]}: needs data.train; without it, the text of TEACHER is used", f"{_MONO}FILE")
    first = require_models(teacher)[0]
    named = first.parent if first.name == "model" and is_run(first.parent) else first
    run_dir = given.get("run_dir") or f"{named}-student"
    from mtx.evaluation.test_sets import test_sets_of_runs
    from mtx.interop.export import default_directory, export
    from mtx.storage.run_directory import refuse_foreign
    from mtx.synthesis import synthetic_text

    paths = RunLayout(Path(run_dir))
    refuse_foreign(paths)
    if not text and not is_prepared(RunLayout(first).data):
        help = "data.train=FILE, and data.mono=FILE for more"
        raise UsageError(f"{first}: is not a run with prepared text, so data.train must name the text", help)
    translator = load_translator(teacher, search, place)
    paths.distilled.mkdir(parents=True, exist_ok=True)
    about = synthetic_text.check_teacher(paths.distilled, teacher, mono, text)
    own = [*_own_text(first, translator, paths, text, others), *others]
    resolve([_RECIPE, f"data.train={synthetic_text.TRAIN}", *own])  # refuses wrong settings before the teacher works
    total = sum(1 for _ in synthetic_text.source_lines(paths.distilled, mono))
    with progress(total) as bar:
        synthetic_text.translate_text(translator, paths.distilled, mono, about, bar.update)
    config = resolve([_RECIPE, f"data.train={synthetic_text.TRAIN},{synthetic_text.DISTILLED}", *own]).config
    train_run(config, prints_scores=not as_json)
    int8 = default_directory(paths.root, "ctranslate2", "int8")
    logger.info(export(paths.root, "ctranslate2", int8, "int8").line())
    test_set = test_sets_of_runs([paths.root])[0]
    systems = {}
    for name, model in {"teacher": teacher, "student": str(paths.root), "student in int8": str(int8)}.items():
        if name != "teacher":
            translator = load_translator(model, search, replace(place, engine="auto"))
        systems[name] = synthetic_text.measure(translator, model, test_set)
    print_json(systems) if as_json else print_lines(synthetic_text.table(systems))


def _own_text(first: Path, translator: "Translator", paths: RunLayout, text: list[str], others: list[str]) -> list[str]:
    """Write the text of the teacher's run, or of `text`, for the student; returns the settings that follow."""
    from mtx.data import prepare, token_store
    from mtx.synthesis import synthetic_text

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
    tests = synthetic_text.write_text(data, paths.distilled)
    preset = "student" if data.train.num_pairs >= _MANY_PAIRS else "student-small"
    return [
        *fixed,
        f"model.preset={preset}",
        f"data.dir={paths.distilled}",
        f"data.valid={synthetic_text.VALID}",
        f"data.test={','.join(tests)}",
    ]
