"""How runs differ in their settings: the table of differing keys, and the groups that differ only in the seed.

Flow: paths of systems -> config.yaml and sources.json of the runs among them -> values for `mtx compare` and the
report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.config.schema import leaves
from mtx.data.sources import recorded_text
from mtx.storage.run_contents import is_run, load_config
from mtx.storage.run_files import RunLayout

# these change neither what a run learns nor how
LOCATION_KEYS = {"run_dir", "device", "training.tensorboard", "training.compile", "data.licence", "model.licence"}
TEXT = "text"  # the key for the files that runs were prepared from
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

    The key `text` has the name and the first digits of the sha256 of each file that a run was prepared from.
    """
    return _differing([_load(path) for path in systems if is_run(path)])


def _differing(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[object]]:
    rows = {key: [run.get(key) for run in runs] for key in sorted({key for run in runs for key in run})}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def groups_by_seed(systems: Sequence[Path]) -> list[list[int]]:
    """The indices of the runs among `systems`, in groups of runs that differ in the seed and in nothing else."""
    runs = {index: _load(path) for index, path in enumerate(systems) if is_run(path)}
    groups: list[list[int]] = []
    for index, run in runs.items():
        for group in groups:
            members = [runs[member] for member in group]
            is_new_seed = run["seed"] not in [member["seed"] for member in members]
            if is_new_seed and _differing([*members, run]).keys() == {"seed"}:
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


def groups_of(systems: Sequence[Path], names: Sequence[str]) -> list[Group]:
    """All systems in the groups in which they are compared, in the order of their first members.

    Args:
        names: what the systems are called where a label names no settings.
    """
    groups = groups_by_seed(systems)
    labels = dict(enumerate(names))
    for first, *more in groups:
        if more:
            labels[first] += f" and {len(more)} more seed{'s' * (len(more) > 1)}"
    if any(len(group) > 1 for group in groups):
        differing = _differing([_load(systems[first]) for first, *_ in groups])
        differing.pop("seed", None)
        if differing.keys() & _PLACES:  # which tell the texts apart
            differing.pop(TEXT, None)
        settings = [[f"{key}={setting_text(value)}" for value in values] for key, values in differing.items()]
        by_settings = [", ".join(of_group) for of_group in zip(*settings, strict=True)]
        if TEXT not in differing and len(settings) <= _LABEL_KEYS and len({*by_settings}) == len(groups):
            labels |= {first: label for (first, *_), label in zip(groups, by_settings, strict=True)}
    others = [[index] for index, path in enumerate(systems) if not is_run(path)]
    return [Group(labels[members[0]], members) for members in sorted([*groups, *others])]


def setting_text(value: object) -> str:
    """A value as it is written in a setting."""
    if isinstance(value, tuple | list):
        return ",".join(map(setting_text, value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _load(run: Path) -> dict[str, Any]:
    """What is compared of a run: its settings by their dotted keys, and under `TEXT` its recorded files."""
    paths = RunLayout(run)
    values = {key: value for key, value in leaves(load_config(paths).model_dump()) if key not in LOCATION_KEYS}
    return {**values, TEXT: [f"{name} {sha256[:8]}" for name, sha256 in recorded_text(paths.sources)]}
