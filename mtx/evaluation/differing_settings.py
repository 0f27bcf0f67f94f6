"""How runs differ in their settings: the table of differing keys, and the groups that differ only in the seed.

Flow: paths of systems -> config.yaml and sources.json of the runs among them -> values for `mtx compare` and the
report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mtx.config.schema import leaves
from mtx.data.source_record import recorded_text
from mtx.run.configuration import load_config
from mtx.run.contents import is_run
from mtx.run.layout import RunLayout

# these change neither what a run learns nor how
LOCATION_KEYS = {"run_dir", "device", "training.tensorboard", "training.compile", "data.licence", "model.licence"}
TEXT = "text"  # stands among the keys for the files that runs were prepared from
_PLACES = {"data.dir", "data.train", "data.valid", "data.test", "tokenizer.model"}  # where these files are
_LABEL_KEYS = 3  # settings in the label of a group


@dataclass(frozen=True)
class Group:
    """Systems that are compared as one: runs of the same settings with different seeds, or a single system.

    Attributes:
        label: the settings in which the group differs from the others, or the name of its first system.
        members: indices of systems.
    """

    label: str
    members: list[int]


def differing_settings(systems: Sequence[Path]) -> dict[str, list[object]]:
    """The keys in which the runs among `systems` differ, without `LOCATION_KEYS`, each with its value in every run.

    Where the recorded files of two runs have other contents, the key `text` has the name and the first digits of the
    sha256 of those that differ; None for a run without a record. Where all contents are equal, their places are not
    compared.
    """
    return _differing_keys([_load(path) for path in systems if is_run(path)])


def _differing_keys(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[object]]:
    texts = [run[TEXT] for run in runs]
    contents = [tuple(sha256 for _, sha256 in text) for text in texts]
    has_one_text = all(contents) and len({*contents}) == 1
    keys = sorted({key for run in runs for key in run} - LOCATION_KEYS - {TEXT})
    rows: dict[str, list[object]] = {key: [run.get(key) for run in runs] for key in keys}
    if len({*filter(None, contents)}) > 1:
        rows[TEXT] = _differing_files(texts)

    def differs(key: str, first: object, other: object) -> bool:
        return _role(key, first) != _role(key, other) if has_one_text and key in _PLACES else first != other

    return {key: row for key, row in rows.items() if any(differs(key, row[0], value) for value in row)}


def _differing_files(texts: Sequence[list[tuple[str, str]]]) -> list[object]:
    """Of each run the files that not all runs with a record have in this place."""
    places = zip_longest(*(text for text in texts if text), fillvalue=("", ""))
    differs = [len({sha256 for _, sha256 in place}) > 1 for place in places]
    return [
        tuple(f"{name} {sha256[:8]}" for (name, sha256), is_other in zip(text, differs, strict=False) if is_other)
        if text
        else None
        for text in texts
    ]


def _role(key: str, value: Any) -> object:
    """What one of `_PLACES` says beside the place: how a file is used."""
    match key:
        case "data.train":
            return [(part["weight"], part["tag"]) if isinstance(part, dict) else (1.0, None) for part in value]
        case "data.test":
            return len(value)
        case "data.dir":
            return None
    return value is not None


def groups_by_seed(systems: Sequence[Path]) -> list[list[int]]:
    """The indices of the runs among `systems`, in groups of runs that differ in the seed and in nothing else."""
    groups: list[list[tuple[int, dict[str, Any]]]] = []
    for index, run in ((index, _load(path)) for index, path in enumerate(systems) if is_run(path)):
        for group in groups:
            members = [member for _, member in group]
            is_new_seed = run["seed"] not in {member["seed"] for member in members}
            if is_new_seed and _differing_keys([*members, run]).keys() == {"seed"}:
                group.append((index, run))
                break
        else:
            groups.append([(index, run)])
    return [[index for index, _ in group] for group in groups]


def groups_of(systems: Sequence[Path], names: Sequence[str]) -> list[Group]:
    """All systems in the groups in which they are compared, in the order of their first members.

    Args:
        names: what the systems are called where a label names no settings.
    """
    of_runs = groups_by_seed(systems)
    labels = {members[0]: _name(names[members[0]], len(members)) for members in of_runs}
    if any(len(members) > 1 for members in of_runs):
        differing = _differing_keys([_load(systems[members[0]]) for members in of_runs])
        differing.pop("seed", None)
        if differing.keys() & _PLACES:  # which tell the texts apart
            differing.pop(TEXT, None)
        by_settings = [
            ", ".join(f"{key}={setting_text(row[i])}" for key, row in differing.items()) for i in range(len(of_runs))
        ]
        if TEXT not in differing and 0 < len(differing) <= _LABEL_KEYS and len({*by_settings}) == len(of_runs):
            labels = {members[0]: label for members, label in zip(of_runs, by_settings, strict=True)}
    others = [[index] for index, path in enumerate(systems) if not is_run(path)]
    return [Group(labels.get(members[0], names[members[0]]), members) for members in sorted([*of_runs, *others])]


def _name(first: str, number: int) -> str:
    more = "" if number == 1 else f" and {number - 1} more seed{'s' * (number > 2)}"
    return first + more


def setting_text(value: object) -> str:
    """A value as it is written in a setting."""
    if isinstance(value, tuple | list):
        return ",".join(map(setting_text, value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _load(run: Path) -> dict[str, Any]:
    """The settings of a run by their dotted keys, and under `TEXT` its recorded files."""
    paths = RunLayout(run)
    return {**dict(leaves(load_config(paths).model_dump())), TEXT: recorded_text(paths.sources)}
