"""`mtx back-translate` and `mtx distil`: what a model translates becomes training text for another one."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from mtx.commands.command_line import (
    AS_JSON,
    MODEL,
    SHARD,
    argument,
    complete_runs,
    logger,
    open_output,
    option,
    print_result,
    resolve_output,
)
from mtx.commands.train import resolve, train_run
from mtx.commands.translator_options import (
    BEAM,
    DIRECTION,
    EXACT,
    PLACE,
    SAMPLES,
    LoadOptions,
    load_translator,
    resumed_with,
    takes,
)
from mtx.errors import UsageError
from mtx.formatting import did_you_mean
from mtx.storage.run_files import RunLayout, find_model, find_run, is_prepared, model_identity, require_models


@takes(*DIRECTION, *BEAM, *SAMPLES, *PLACE, "threads", "batch_tokens")
def back_translate(
    model: str = MODEL,
    mono: Path = argument("FILE", "Text in the source language of MODEL, one sentence a line."),
    output: Path = option("FILE", "TSV file for the pairs.", "-o", "--output", default=...),
    forward: str | None = option(
        "MODEL", "Drop the 5% of pairs that this model of the opposite direction rates worst."
    ),
    shard: str | None = SHARD,
    *,
    options: LoadOptions,
) -> None:
    """Turn monolingual text into synthetic training pairs.

    The pairs train a model of the opposite direction: their target side is your text, their source side the translation
    by MODEL. Running the same command again resumes an interrupted one.
    """
    from mtx.data.language_detection import Profile
    from mtx.data.markup import clean_text
    from mtx.storage import durable
    from mtx.storage.resumable import ResumableRows, Shard
    from mtx.storage.text_files import LineParts, read_lines
    from mtx.synthesis.synthetic_text import BLOCK_LINES, Row, write_pairs

    _require_file(mono)
    lines = Shard(lambda: ((line,) for line in read_lines(mono)), shard)
    output = resolve_output(output, mono) or output
    translator = load_translator(model, **options)
    if actual_language := Profile.of(islice(read_lines(mono), BLOCK_LINES)).other_language(translator.src):
        logger.warning("%s is in %s; %s translates from %s", mono, actual_language, model, translator.src)
    scorer: Any = forward and load_translator(
        forward, **EXACT, device=options["device"], threads=options.get("threads")
    )
    if scorer and scorer.is_multilingual:
        scorer = scorer.to(translator.src, translator.tgt)

    def translate(block: list[LineParts]) -> Iterable[Row]:
        texts = [line for (line,) in block]
        translations = translator.translate(texts)
        scores = score(translations, texts) if scorer else [None] * len(block)
        return zip(translations, scores, strict=True)

    def score(translations: list[str], lines: list[str]) -> list[float | None]:
        """The log-probability per token of each line; None for one that the model cannot score."""
        src = scorer.tokenizer.encode(list(map(clean_text, translations)), scorer.frame)
        tgt = scorer.tokenizer.encode(list(map(clean_text, lines)), scorer.frame, target=True)
        fit = [
            row
            for row, (src_ids, tgt_ids) in enumerate(zip(src, tgt, strict=True))
            if 1 < len(src_ids) <= scorer.max_tokens and 1 < len(tgt_ids) <= scorer.engine.num_tgt_positions
        ]
        scores = scorer.torch.log_probs([src[row] for row in fit], [tgt[row] for row in fit], scorer.options.alpha)
        log_probs: list[float | None] = [None] * len(lines)
        for row, pair in zip(fit, scores, strict=True):
            log_probs[row] = pair.log_prob / pair.num_tokens
        return log_probs

    identity = {
        "text": durable.sha256(mono),
        "search": repr(translator.options),
        **resumed_with(options),
        "shard": lines.bounds,
        "models": [model_identity(name) for name in (model, forward) if name],
    }
    write_pairs(lines, ResumableRows(output, identity, BLOCK_LINES), translate, open_output(output))
    logger.info(
        "to train on these pairs, write a configuration as in the recipe back-translation: "
        "data: {train: [MINE, {name: %s, tag: BT, weight: W}]}",
        output,
    )


def _require_file(path: Path, setting: str = "") -> None:
    if not path.is_file():
        raise UsageError(
            f"{setting}{path}: no such file, or a pipe{did_you_mean(path)}",
            "a file with one sentence a line, which is read several times",
        )


@takes(*DIRECTION, "engine", "threads", "device", "batch_tokens")
def distil(
    teacher: str = argument("TEACHER", "Run or model directory, or several as A+B.", complete_runs),
    settings: list[str] | None = argument(
        "[KEY=VALUE]...", "Settings of the student; data.mono=FILE adds monolingual source text."
    ),
    as_json: bool = AS_JSON,
    *,
    options: LoadOptions,
) -> None:
    """Train a small student model on a teacher's translations.

    It compares quality, speed and size of both. Running the same command again resumes an interrupted one.
    """
    from mtx.config.settings import is_override

    words = [teacher, *(settings or [])]
    names = [word for word in words if not is_override(word)]
    overrides = [word for word in words if is_override(word)]
    teacher, *settings = names + overrides  # the teacher may come after settings
    values = {"device": options["device"]}
    for setting in settings:
        key, _, value = setting.partition("=")
        values[key] = value
    mono = Path(values.pop("data.mono")) if "data.mono" in values else None
    text_settings = [f"{key}={value}" for key, value in values.items() if key.startswith("data.")]
    other_settings = [f"{key}={value}" for key, value in values.items() if not key.startswith("data.")]
    if mono:
        _require_file(mono, "data.mono=")
    if text_settings and "data.train" not in values:
        raise UsageError(
            f"{text_settings[0]}: needs data.train; without it, the text of TEACHER is used", "data.mono=FILE"
        )
    first_teacher = require_models(teacher)[0]
    teacher_dir = find_run(first_teacher) or first_teacher
    from mtx.config.schema import write_list
    from mtx.data import prepare, token_store
    from mtx.evaluation.test_sets import test_sets_of_runs
    from mtx.interop.export import export
    from mtx.runs.run_directory import refuse_foreign
    from mtx.synthesis import synthetic_text

    paths = RunLayout(Path(values.get("run_dir") or f"{teacher_dir}-student"))
    refuse_foreign(paths)
    if not text_settings and not is_prepared(RunLayout(first_teacher).data):
        raise UsageError(
            f"{first_teacher}: is not a run with prepared text, so data.train must name the text",
            "data.train=FILE, and data.mono=FILE for more",
        )
    translator = load_translator(teacher, **options)
    if not text_settings and translator.is_multilingual:
        raise UsageError(
            f"{first_teacher}: its text has several directions, so data.train must name text of one", "data.train=FILE"
        )
    distilled = paths.distilled
    distilled.mkdir(parents=True, exist_ok=True)
    direction = [f"--{name} {options[name]}" for name in ("to", "src") if name in options]
    identity = synthetic_text.check_teacher(distilled, teacher, mono, text_settings + direction)
    model_dir = find_model(first_teacher)
    fixed_settings = [
        "student",
        f"run_dir={paths.root}",
        f"data.src={translator.src}",
        f"data.tgt={translator.tgt}",
        f"tokenizer.model={write_list(str(model_dir / name) for name in translator.tokenizer.models.files)}",
    ]
    data_dir = RunLayout(distilled if text_settings else first_teacher).data
    if text_settings and not is_prepared(data_dir):
        prepare.prepare(resolve([*fixed_settings, *text_settings, *other_settings]).config, data_dir)
    data = token_store.load_prepared(data_dir)
    tests = synthetic_text.write_text(data, distilled)
    student_settings = [
        *fixed_settings,
        # only student-small was measured, on 29,000 pairs
        f"model.preset={'student' if data.train.num_pairs >= 100_000 else 'student-small'}",
        f"data.dir={distilled}",
        f"data.valid={synthetic_text.VALID}",
        f"data.test={','.join(tests)}",
        *other_settings,
    ]
    # Wrong settings are refused before the teacher works.
    resolve([*student_settings, f"data.train={synthetic_text.TRAIN}"])
    synthetic_text.translate_text(translator, distilled, mono, identity)
    student_settings.append(f"data.train={synthetic_text.TRAIN},{synthetic_text.DISTILLED}")
    train_run(resolve(student_settings).config, prints_scores=not as_json)
    int8 = export(paths.root, "ctranslate2", None, "int8")
    logger.info(int8.line())
    test_set = test_sets_of_runs([paths.root])[0]
    systems = {"teacher": synthetic_text.measure(translator, teacher, test_set)}
    for name, model in {"student": str(paths.root), "student in int8": int8.directory}.items():
        translator = load_translator(model, **options | {"engine": "auto"})
        systems[name] = synthetic_text.measure(translator, model, test_set)
    print_result(systems, synthetic_text.table(systems), as_json)
