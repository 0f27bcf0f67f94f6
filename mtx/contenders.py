"""What is compared: the test sets that runs have translated, or files of hypotheses. Flow: paths -> `Contest`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtx import files, settings, text_files
from mtx.comparison import System
from mtx.config import Config, differences
from mtx.errors import DataError, UsageError
from mtx.evaluation import comparable
from mtx.paths import HYPOTHESIS_TEXT, REFERENCE_TEXT, RunPaths

_PLACE = {"run_dir", "device"}  # keys that tell where a run was made, not what it is


@dataclass(frozen=True)
class Contest:
    """One test set, and what several systems made of it.

    Attributes:
        name: of the test set.
        tgt: its language, as far as it is known.
    """

    name: str
    systems: list[System]
    references: list[str]
    tgt: str


def of_files(hypotheses: Sequence[Path], reference: Path) -> Contest:
    """Files of hypotheses with one of references, as they are."""
    systems = [System(str(path), _lines(path)) for path in hypotheses]
    return Contest(reference.name, systems, _lines(reference), "")


def of_runs(roots: Sequence[Path], test: str | None) -> list[Contest]:
    """The test sets that all of these runs have translated, or the one that is named.

    Raises:
        UsageError: where a path is no run, or there is no such test set.
        DataError: where the references of two runs differ.
    """
    for root in roots:
        if not RunPaths(root).config.is_file():
            raise UsageError(f"{root}: is not a run directory", "files of hypotheses are compared with --ref FILE")
    names = [_translated(root) for root in roots]
    common = [name for name in names[0] if all(name in others for others in names[1:])]
    if test is not None and test not in common:
        raise UsageError(f"--test {test}: not all of these runs have translated it; they have {', '.join(common)}")
    if not common:
        raise UsageError("these runs have no test set in common", "mtx evaluate RUN translates a run's test sets")
    return [_contest(roots, name) for name in ([test] if test else common)]


def _translated(root: Path) -> list[str]:
    directory = RunPaths(root).evaluation
    return (
        sorted(path.name for path in directory.iterdir() if (path / HYPOTHESIS_TEXT).is_file())
        if directory.is_dir()
        else []
    )


def _contest(roots: Sequence[Path], name: str) -> Contest:
    directories = [RunPaths(root).evaluation / name for root in roots]
    for directory in directories:
        files.verify(directory, (HYPOTHESIS_TEXT, REFERENCE_TEXT))
    references = [_lines(directory / REFERENCE_TEXT) for directory in directories]
    for directory, lines in zip(directories[1:], references[1:], strict=True):
        if lines != references[0]:
            raise DataError(f"{directory / REFERENCE_TEXT}: is not that of {directories[0]}")
    systems = [System(str(r), _lines(d / HYPOTHESIS_TEXT)) for r, d in zip(roots, directories, strict=True)]
    return Contest(name, systems, references[0], settings.load(RunPaths(roots[0]).config).data.tgt)


def _lines(path: Path) -> list[str]:
    return comparable(list(text_files.read_lines(path)), "none")


def differing_keys(roots: Sequence[Path]) -> dict[str, list[object]]:
    """The keys in which runs differ, each with its value in every run; where they lie and on what is left out."""
    configs = _configs(roots)
    keys = sorted(
        {key for config in configs[1:] for key, _, _ in differences(configs[0], config)} - {"run_dir", "device"}
    )
    return {key: [_value(config, key) for config in configs] for key in keys}


def same_but_for_seed(roots: Sequence[Path]) -> list[list[int]]:
    """The numbers of the runs, in groups of those that differ in nothing but the seed."""
    configs = _configs(roots)
    groups: list[list[int]] = []
    for number, config in enumerate(configs):
        for group in groups:
            if {key for key, _, _ in differences(configs[group[0]], config)} <= _PLACE | {"seed"}:
                group.append(number)
                break
        else:
            groups.append([number])
    return groups


def _configs(roots: Sequence[Path]) -> list[Config]:
    return [settings.load(RunPaths(root).config) for root in roots]


def _value(config: Config, key: str) -> object:
    value: object = config.model_dump()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
