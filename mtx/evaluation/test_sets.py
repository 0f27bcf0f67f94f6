"""Test sets: source texts with reference translations, from runs, from files, or from sacreBLEU's collection.

Flow: paths or a name -> `TestSet` -> `test_set_scores.py`. This module loads no model and writes nothing.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mtx.data.augmentation import AUGMENTATIONS
from mtx.errors import DataError, MtxError, UsageError
from mtx.runs.run_directory import load_config
from mtx.scoring.metrics import TestSet
from mtx.storage import durable, text_files
from mtx.storage.run_files import HYPOTHESIS_TEXT, REFERENCE_TEXT, SOURCE_TEXT, RunLayout, is_run, translated_tests


def changed_copies(test_set: TestSet) -> list[TestSet]:
    """Copies of a test set for each of `AUGMENTATIONS`, the same in every call."""
    copies = []
    for name, augment in AUGMENTATIONS.items():
        rng = random.Random(name)
        pairs = [augment(*pair, rng) for pair in zip(test_set.sources, test_set.references, strict=True)]
        sources, references = map(list, zip(*pairs, strict=True))
        more_references = [[augment("", line, rng)[1] for line in lines] for lines in test_set.more_references]
        name_of_copy = f"{test_set.name}, {name.replace('_', ' ')}"
        copies.append(
            replace(
                test_set, name=name_of_copy, sources=sources, references=references, more_references=more_references
            )
        )
    return copies


def parallel_lines(*paths: Path) -> list[list[str]]:
    """The lines of each of some text files, which must be UTF-8 and have the same number of lines."""
    texts = list(map(_read_lines, paths))
    for path, lines in zip(paths, texts, strict=True):
        if len(lines) != len(texts[0]):
            raise DataError(f"{paths[0]} has {len(texts[0])} lines, {path} has {len(lines)}")
    return texts


def target_language(direction: str | None) -> str:
    """The target language of a direction such as en-de; empty if there is no direction.

    Raises:
        UsageError: if the direction does not name two languages.
    """
    if direction is None:
        return ""
    src, _, tgt = direction.partition("-")
    if not (src and tgt):
        raise UsageError(f"--direction: expected two languages such as en-de, got {direction!r}")
    return tgt


def sacrebleu_test_set(name: str, direction: str) -> TestSet:
    """A test set of sacreBLEU's collection with all of its references; sacreBLEU downloads it.

    Args:
        name: sacreBLEU's name, such as wmt14/full.
        direction: source and target language, such as en-de.

    Raises:
        UsageError: if sacreBLEU does not know the name or the direction.
        MtxError: if the download fails.
    """
    import sacrebleu

    tgt = target_language(direction)
    directions = sacrebleu.get_langpairs_for_testset(name)  # none if there is no such test set
    if direction not in directions:
        hint = f"it has {', '.join(directions)}" if directions else "sacrebleu --list prints the test sets"
        raise UsageError(f"sacreBLEU has no test set {name} for the direction {direction}", hint)
    try:
        paths = [sacrebleu.get_source_file(name, direction), *sacrebleu.get_reference_files(name, direction)]
    except (OSError, SystemExit) as error:
        hint = f"if the same command fails again, remove {sacrebleu.utils.SACREBLEU_DIR}/{name} first"
        raise MtxError(f"cannot download the test set {name}: {error}", hint) from None
    sources, references, *more_references = (_read_lines(Path(path)) for path in paths)
    return TestSet(name.replace("/", "-"), tgt, sources, references, more_references, src=direction.partition("-")[0])


def test_set_of_files(systems: Sequence[Path], src: Path | None, refs: Sequence[Path], tgt: str) -> TestSet:
    """The test set for comparing `systems` on files of references; it has the name of the first file.

    Args:
        systems: files of hypotheses, and model directories, which will translate `src`.

    Raises:
        UsageError: if there is a model and no `src`.
    """
    models = list(filter(Path.is_dir, systems))
    if models and src is None:
        raise UsageError(f"{models[0]}: this model needs the source text", "--src FILE --ref FILE")
    sources, references, *more_references = parallel_lines(src, *refs) if src else ([], *parallel_lines(*refs))
    hypotheses = {path: _read_lines(path) for path in systems if path not in models}
    return TestSet((src or refs[0]).name, tgt, sources, references, more_references, hypotheses)


def test_sets_of_runs(systems: Sequence[Path], name: str | None = None) -> list[TestSet]:
    """The test sets that all runs among `systems` have translated.

    Args:
        systems: at least one run; model directories, which will translate the sources; files of hypotheses, which
            belong to a single test set.
        name: selects one test set.

    Raises:
        UsageError: if there is no run, no such test set, or more than one for files of hypotheses.
        DataError: if the references of two runs differ.
    """
    runs = list(filter(is_run, systems))
    files = [path for path in systems if not path.is_dir()]
    if not runs:
        raise UsageError(
            f"{systems[0]}: not a run directory; without --ref at least one system must be a run",
            "compare files with --ref FILE, models with --src FILE --ref FILE",
        )
    common_tests = sorted(set.intersection(*({*translated_tests(RunLayout(run))} for run in runs)))
    if not common_tests:
        raise UsageError(
            "these runs have no common test set",
            "use --src FILE --ref FILE, or mtx evaluate RUN, which translates its test sets",
        )
    names = [name] if name else common_tests
    if names[0] not in common_tests:
        raise UsageError(f"--test {name}: not translated by all of these runs; they have {', '.join(common_tests)}")
    if files and len(names) > 1:
        raise UsageError(f"{files[0]}: ambiguous; choose the test set of {', '.join(names)}", f"--test {names[0]}")
    test_sets = []
    data = load_config(RunLayout(runs[0])).data
    for test in names:
        src, tgt = data.language_pair(test)
        hypotheses = {path: _read_lines(path) for path in files}
        first_directory = RunLayout(runs[0]).evaluation / test
        sources, references = load_lines(first_directory, SOURCE_TEXT, REFERENCE_TEXT)
        for run in runs:
            directory = RunLayout(run).evaluation / test
            hypotheses[run], run_references = load_lines(directory, HYPOTHESIS_TEXT, REFERENCE_TEXT)
            if run_references != references:
                raise DataError(f"{directory / REFERENCE_TEXT}: differs from the references of {first_directory}")
        test_sets.append(TestSet(test, tgt, sources, references, hypotheses=hypotheses, src=src))
    return test_sets


def load_lines(directory: Path, *names: str) -> list[list[str]]:
    """The lines of some files of a translated test set, which are verified."""
    durable.verify(directory, dict.fromkeys(names, 1 << 29))  # bytes at most
    return [_read_lines(directory / name) for name in names]


def _read_lines(path: Path) -> list[str]:
    return list(text_files.read_lines(path, "strict"))
