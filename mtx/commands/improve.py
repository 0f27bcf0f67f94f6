"""`mtx back-translate` and `mtx distil`: what a model translates becomes training text for another one."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtx.commands.command_line import (
    AS_JSON,
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

if TYPE_CHECKING:
    from mtx.synthesis.teachers import ExternalTeacher


TEACHER_COMMAND = option(
    "CMD", "Instead of a model: a program that reads lines from stdin and writes the translation of each."
)


@takes(*DIRECTION, *BEAM, *SAMPLES, *PLACE, "threads", "batch_tokens")
def back_translate(
    model: str | None = argument("[MODEL]", "Run or model directory, or the address of a server.", complete_runs),
    mono: Path | None = argument("[FILE]", "Text in the source language of MODEL, one sentence a line."),
    output: Path = option("FILE", "TSV file for the pairs.", "-o", "--output", default=...),
    forward: str | None = option(
        "MODEL", "Drop the 5% of pairs that this model of the opposite direction rates worst."
    ),
    teacher_command: str | None = TEACHER_COMMAND,
    shard: str | None = SHARD,
    *,
    options: LoadOptions,
) -> None:
    """Turn monolingual text into synthetic training pairs.

    The pairs train a model of the opposite direction: their target side is your text, their source side the translation
    by MODEL. Running the same command again resumes an interrupted one.

    MODEL can also be the address of a server with LibreTranslate's interface (http://127.0.0.1:5000), or with OpenAI's
    and the name of a model (https://HOST/v1#NAME).
    """
    if teacher_command is not None:
        words = [word for word in (model, mono and str(mono)) if word]
        model = None
        mono = Path(words[0]) if len(words) == 1 else None
    if not mono or (model is None and teacher_command is None):
        raise UsageError(
            "expected MODEL FILE, or FILE and --teacher-command CMD",
            'mtx back-translate runs/de-en more.de -o bt.tsv, or in place of MODEL --teacher-command "python x.py"',
        )
    from mtx.data.language_detection import Profile
    from mtx.data.markup import clean_text
    from mtx.storage import durable
    from mtx.storage.resumable import ResumableRows, Shard
    from mtx.storage.text_files import read_lines
    from mtx.synthesis.synthetic_text import read_parts, write_pairs
    from mtx.synthesis.teachers import ModelTeacher, Teacher

    _require_file(mono)
    lines = Shard(partial(read_parts, mono), shard)
    output = resolve_output(output, mono) or output
    src = options.get("src", "")
    tgt = options.get("to", "")
    identity = {"text": durable.sha256(mono), **resumed_with(options), "shard": lines.bounds}
    external = _find_external_teacher(model, teacher_command, src, tgt, "--from de --to en")
    if external:
        if output.is_file():
            raise UsageError(f"-o {output}: is there already", "remove it to ask the teacher again")
        if search := options.keys() & {"beam_size", "length_penalty", "sampling", "batch_tokens", "threads"}:
            raise UsageError(f"{external.name}: does not accept search options, got {', '.join(sorted(search))}")
        teacher: Teacher = external
        identity |= external.identity
        models = [forward]
    else:
        translator = load_translator(model or "", **options)
        src = translator.src
        tgt = translator.tgt
        teacher = ModelTeacher(translator)
        identity["search"] = repr(translator.options)
        models = [model, forward]
    identity["models"] = [model_identity(name) for name in models if name]
    if actual_language := Profile.of(read_lines(mono)).other_language(src):
        logger.warning("%s is in %s; %s translates from %s", mono, actual_language, model or teacher_command, src)
    scorer: Any = forward and load_translator(
        forward, **EXACT, device=options["device"], threads=options.get("threads")
    )
    if scorer and scorer.is_multilingual:
        scorer = scorer.to(src, tgt)

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

    if external:
        external.announce(line for (line,) in lines)
    rows = ResumableRows(output, identity, teacher.block_lines)
    write_pairs(teacher, lines, rows, open_output(output), score=score if scorer else None)
    logger.info(
        "to train on these pairs, write a configuration as in the recipe back-translation: "
        "data: {train: [MINE, {name: %s, tag: BT, weight: W}]}",
        output,
    )


def _find_external_teacher(
    model: str | None, command: str | None, src: str, tgt: str, example: str
) -> "ExternalTeacher | None":
    """The teacher that a command line names, if it is not an mtx model.

    Args:
        example: how a command line names the languages, of which such a teacher has none of its own.
    """
    from mtx.synthesis.teachers import CommandTeacher, ServerTeacher

    is_address = model is not None and model.lower().startswith(("http://", "https://"))
    if not (is_address or command is not None):
        return None
    if not (src and tgt):
        raise UsageError("an external teacher needs both languages", example)
    return CommandTeacher(command, tgt) if command is not None else ServerTeacher(model or "", src, tgt)


def _require_file(path: Path, setting: str = "") -> None:
    if not path.is_file():
        raise UsageError(
            f"{setting}{path}: no such file, or a pipe{did_you_mean(path)}",
            "a file with one sentence a line, which is read several times",
        )


@takes(*DIRECTION, "engine", "threads", "device", "batch_tokens")
def distil(
    teacher: str | None = argument(
        "[TEACHER]", "Run or model directory, several as A+B, or the address of a server.", complete_runs
    ),
    settings: list[str] | None = argument(
        "[KEY=VALUE]...", "Settings of the student; data.mono=FILE adds monolingual source text."
    ),
    teacher_command: str | None = TEACHER_COMMAND,
    as_json: bool = AS_JSON,
    *,
    options: LoadOptions,
) -> None:
    """Train a small student model on a teacher's translations.

    It compares quality, speed and size of both. Running the same command again resumes an interrupted one.

    TEACHER can also be the address of a server with LibreTranslate's interface (http://127.0.0.1:5000), or with
    OpenAI's and the name of a model (https://HOST/v1#NAME). It needs data.src, data.tgt, and data.mono or data.train.
    """
    from mtx.config.settings import default_run_dir
    from mtx.config.settings import resolve as resolve_settings

    name, values = _read_words([word for word in (teacher, *(settings or [])) if word], teacher_command)
    values.setdefault("device", options["device"])
    mono = Path(values.pop("data.mono")) if "data.mono" in values else None
    text_settings = [f"{key}={value}" for key, value in values.items() if key.startswith("data.")]
    other_settings = [f"{key}={value}" for key, value in values.items() if not key.startswith("data.")]
    src = values.get("data.src", "")
    tgt = values.get("data.tgt", "")
    external = _find_external_teacher(name, teacher_command, src, tgt, "data.src=en data.tgt=de")
    default_dir = default_run_dir(f"{src}-{tgt}-student")
    has_text = False
    if not external:
        first_teacher = require_models(name)[0]
        has_text = is_prepared(RunLayout(first_teacher).data)
        default_dir = f"{find_run(first_teacher) or first_teacher}-student"
    _check_text(name, values, has_text, mono)
    from mtx.config.schema import TEACHER_TEST, write_list
    from mtx.data import prepare, token_store
    from mtx.data.text_arguments import describe_languages
    from mtx.evaluation.test_sets import test_sets_of_runs
    from mtx.interop.export import export
    from mtx.runs.run_directory import refuse_foreign
    from mtx.synthesis import synthetic_text
    from mtx.synthesis.teachers import ModelTeacher, Teacher
    from mtx.training.init_from import inherit

    paths = RunLayout(Path(values.get("run_dir") or default_dir))
    refuse_foreign(paths)
    fixed_settings = ["student", f"run_dir={paths.root}"]
    direction = list[str]()
    if external:
        text_teacher: Teacher = external
        identity: object = external.identity
    else:
        translator = load_translator(name, **options)
        if has_text and "data.train" not in values and translator.is_multilingual:
            raise UsageError(
                f"{first_teacher}: its text has several directions, so data.train must name text of one",
                "data.train=FILE",
            )
        src = translator.src
        tgt = translator.tgt
        direction = [f"--{option} {options[option]}" for option in ("to", "src") if option in options]
        tokenizer_files = translator.tokenizer.models.files
        model_dir = find_model(first_teacher)
        fixed_settings.append(f"tokenizer.model={write_list(str(model_dir / file) for file in tokenizer_files)}")
        text_teacher = ModelTeacher(translator)
        identity = model_identity(name)
    fixed_settings += [f"data.src={src}", f"data.tgt={tgt}"]
    distilled = paths.distilled
    text_identity = text_settings + direction if "data.train" in values else direction
    origin = synthetic_text.check_teacher(distilled, identity, mono, text_identity)
    if mono and not has_text and "data.train" not in values:
        text = synthetic_text.divide_lines(mono, distilled)
        fixed_settings += text_settings
    else:
        data_dir = RunLayout(distilled if text_settings else first_teacher).data
        if text_settings and not is_prepared(data_dir):
            prepare.prepare(resolve([*fixed_settings, *text_settings, *other_settings]).config, data_dir)
        text = synthetic_text.write_text(token_store.load_prepared(data_dir), distilled, mono)
    student_settings = [
        *fixed_settings,
        # only student-small was measured, on 29,000 pairs
        f"model.preset={'student' if text.num_pairs >= 100_000 else 'student-small'}",
        f"data.dir={distilled}",
        f"data.valid={synthetic_text.VALID}",
        f"data.test={','.join(text.tests)}",
        *other_settings,
    ]
    # Wrong settings are refused before the teacher works; its text is not there yet.
    resolved = resolve_settings(student_settings[0], [*student_settings[1:], f"data.train={text.train[0]}"])
    describe_languages(resolved)
    if resolved.config.training.init_from:
        inherit(resolved)
    missing = {file: lines for file, lines in text.lines.items() if not (distilled / file).exists()}
    if external and missing:
        external.announce(line for lines in missing.values() for line, *_ in lines)
    for file, lines in missing.items():
        synthetic_text.translate_text(text_teacher, lines, distilled / file, origin)
    student_settings.append(f"data.train={','.join(text.train)}")
    train_run(resolve(student_settings).config, prints_scores=not as_json)
    int8 = export(paths.root, "ctranslate2", None, "int8")
    logger.info(int8.line())
    test_set = test_sets_of_runs([paths.root])[0]
    if external:
        systems = {"teacher": synthetic_text.measure_teacher(external, test_set, distilled)}
    else:
        systems = {"teacher": synthetic_text.measure(translator, name, test_set)}
    if test_set.name == TEACHER_TEST:  # the references are its own
        for metric in ("bleu", "chrf"):
            systems["teacher"].pop(metric, None)
    for system, model in {"student": str(paths.root), "student in int8": int8.directory}.items():
        translator = load_translator(model, **options | {"engine": "auto"})
        systems[system] = synthetic_text.measure(translator, model, test_set)
    print_result(systems, synthetic_text.table(systems, test_set.name), as_json)


def _read_words(words: Sequence[str], command: str | None) -> tuple[str, dict[str, str]]:
    """The name of the teacher, which may come after settings, and the settings by their keys."""
    from mtx.config.settings import is_override

    names = [word for word in words if not is_override(word)]
    if command is not None:
        names.insert(0, command)
    if len(names) != 1:
        raise UsageError(
            f"expected one TEACHER or --teacher-command CMD, got {' '.join(names) or 'none'}",
            'mtx distil runs/my, mtx distil http://HOST ..., or mtx distil --teacher-command "python x.py" ...',
        )
    values = {}
    for setting in filter(is_override, words):
        key, _, value = setting.partition("=")
        values[key] = value
    return names[0], values


def _check_text(teacher: str, values: Mapping[str, str], has_text: bool, mono: Path | None) -> None:
    """Refuse settings of a student that name too little text, or text that it would not learn from.

    Args:
        values: the settings, without data.mono.
        has_text: whether the teacher has prepared text.
        mono: the file of data.mono.
    """
    if mono:
        _require_file(mono, "data.mono=")
    if "data.train" in values:
        return
    text_setting = next((f"{key}={value}" for key, value in values.items() if key.startswith("data.")), None)
    if has_text:
        if text_setting:
            raise UsageError(
                f"{text_setting}: needs data.train; without it, the text of TEACHER is used", "data.mono=FILE"
            )
    elif not mono:
        raise UsageError(
            f"{teacher}: is not a run with prepared text, so data.train or data.mono must name the text",
            "data.mono=FILE has lines to translate, and data.train=FILE true pairs",
        )
    elif values.keys() & {"data.valid", "data.test"}:
        raise UsageError(
            "data.valid and data.test need data.train; without it, lines of data.mono are held out",
            "mtx evaluate RUN --src FILE --ref FILE scores the student on true translations",
        )
