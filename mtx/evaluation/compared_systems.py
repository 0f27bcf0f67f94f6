"""What is compared: runs, model directories and files of hypotheses, on the same test sets.

Flow: paths -> `TestSet`, with the translations that exist -> `contest`, in which models translate -> `SystemOutputs`.
Nothing is written, and no model is loaded here.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtx.config import settings
from mtx.config.schema import Config, differences
from mtx.decoding.text_translator import TextTranslator
from mtx.errors import DataError, UsageError
from mtx.evaluation.comparison import System
from mtx.evaluation.metrics import comparable, parallel_lines
from mtx.files import durable, text_files
from mtx.run.contents import is_run, translated_tests
from mtx.run.layout import HYPOTHESIS_TEXT, REFERENCE_TEXT, SOURCE_TEXT, RunLayout

logger = logging.getLogger(__name__)

PLACE = {"run_dir", "device", "training.tensorboard"}  # keys that tell where a run was made, not what it is


@dataclass(frozen=True)
class TestSet:
    """One test set, and the translations of it that are there.

    Attributes:
        tgt: its language; empty where files do not tell.
        hypotheses: of runs and files; who is missing has a model that is to translate `sources`.
    """

    name: str
    tgt: str
    sources: list[str]
    references: list[str]
    hypotheses: dict[Path, list[str]]


@dataclass(frozen=True)
class SystemOutputs:
    """What several systems made of one test set."""

    systems: list[System]
    references: list[str]


def of_files(paths: Sequence[Path], src: Path | None, ref: Path, tgt: str) -> TestSet:
    """The text of a file of references; directories among `paths` are to translate that of `src`.

    Raises:
        UsageError: where there is something to translate and no `src`, or the other way round.
    """
    models = [path for path in paths if path.is_dir()]
    if models and src is None:
        raise UsageError(f"{models[0]}: is a directory, whose model needs the source text", "--src FILE --ref FILE")
    if src is not None and not models:
        raise UsageError("--src is what models translate, and these are files of hypotheses")
    sources, references = ([], _lines(ref)) if src is None else parallel_lines(src, ref)
    return TestSet(ref.name, tgt, sources, references, {path: _lines(path) for path in paths if path not in models})


def of_runs(paths: Sequence[Path], test: str | None) -> list[TestSet]:
    """The test sets that all runs among `paths` have translated, or the one that is named; files are of a single one.

    Raises:
        UsageError: where there is no run, no such test set, or more than one and files.
        DataError: where the references of two runs differ.
    """
    roots, plain = [path for path in paths if is_run(path)], [path for path in paths if not path.is_dir()]
    if not roots:
        raise UsageError(
            f"{paths[0]}: is not a run directory, and no other is one, whose test sets could be compared on",
            "files are compared with --ref FILE, models with --src FILE --ref FILE",
        )
    names = [translated_tests(RunLayout(root)) for root in roots]
    common = [name for name in names[0] if all(name in others for others in names[1:])]
    if test is not None and test not in common:
        raise UsageError(f"--test {test}: not all of these runs have translated it; they have {', '.join(common)}")
    if not common:
        raise UsageError("these runs have no test set in common", "mtx evaluate RUN translates a run's test sets")
    chosen = [test] if test else common
    if plain and len(chosen) > 1:
        raise UsageError(f"{plain[0]}: of which test set? These runs have {', '.join(chosen)}", f"--test {chosen[0]}")
    return [_text_of_runs(roots, plain, name) for name in chosen]


def _text_of_runs(roots: Sequence[Path], plain: Sequence[Path], name: str) -> TestSet:
    directories = [RunLayout(root).evaluation / name for root in roots]
    for directory in directories:
        durable.verify(directory, (SOURCE_TEXT, HYPOTHESIS_TEXT, REFERENCE_TEXT))
    references = [_lines(directory / REFERENCE_TEXT) for directory in directories]
    for directory, lines in zip(directories[1:], references[1:], strict=True):
        if lines != references[0]:
            raise DataError(f"{directory / REFERENCE_TEXT}: is not that of {directories[0]}")
    hypotheses = {root: _lines(d / HYPOTHESIS_TEXT) for root, d in zip(roots, directories, strict=True)}
    hypotheses.update({path: _lines(path) for path in plain})
    sources = list(text_files.read_lines(directories[0] / SOURCE_TEXT))
    return TestSet(name, settings.load(RunLayout(roots[0]).config).data.tgt, sources, references[0], hypotheses)


def contest(text: TestSet, paths: Sequence[Path], translators: Mapping[Path, TextTranslator]) -> SystemOutputs:
    """All systems on one test set, in the order of `paths`; in NFC where one of the models works in NFC."""
    hypotheses = dict(text.hypotheses)
    for path, translator in translators.items():
        logger.info("translating %s by %s: %s sentences", text.name, path, f"{len(text.sources):,}")
        hypotheses[path] = translator.translate(text.sources)
    form = "nfc" if any(t.tokenizer.normalization == "nfc" for t in translators.values()) else "none"
    systems = [System(str(path), comparable(hypotheses[path], form)) for path in paths]
    return SystemOutputs(systems, comparable(text.references, form))


def _lines(path: Path) -> list[str]:
    return comparable(list(text_files.read_lines(path)), "none")


def runs(paths: Sequence[Path]) -> list[Path]:
    """Those of some systems that have settings: the runs."""
    return [path for path in paths if is_run(path)]


def differing_keys(paths: Sequence[Path]) -> dict[str, list[object]]:
    """The keys in which the runs among `paths` differ, each with its value in every run, but for where they lie."""
    configs = _configs(runs(paths))
    keys = sorted({key for config in configs[1:] for key, _, _ in differences(configs[0], config)} - PLACE)
    return {key: [_value(config, key) for config in configs] for key in keys}


def same_but_for_seed(paths: Sequence[Path]) -> list[list[int]]:
    """The numbers of the runs among `paths`, in groups of those that differ in nothing but the seed."""
    numbers = [number for number, path in enumerate(paths) if is_run(path)]
    groups: list[list[tuple[int, Config]]] = []
    for number, config in zip(numbers, _configs(runs(paths)), strict=True):
        for group in groups:
            is_new = config.seed not in {each.seed for _, each in group}
            if is_new and {key for key, _, _ in differences(group[0][1], config)} <= PLACE | {"seed"}:
                group.append((number, config))
                break
        else:
            groups.append([(number, config)])
    return [[number for number, _ in group] for group in groups]


def _configs(roots: Sequence[Path]) -> list[Config]:
    return [settings.load(RunLayout(root).config) for root in roots]


def _value(config: Config, key: str) -> object:
    value: object = config.model_dump()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
