"""How runs differ in their settings: the table of differing keys, and the groups that differ only in the seed.

Flow: paths of systems -> config.yaml of the runs among them -> values for `mtx compare` and the report.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtx.config.schema import Config, leaves
from mtx.run.configuration import load_config
from mtx.run.contents import is_run
from mtx.run.layout import RunLayout

# these change neither what a run learns nor how
LOCATION_KEYS = {"run_dir", "device", "training.tensorboard", "data.licence", "model.licence"}
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
    """The keys in which the runs among `systems` differ, without `LOCATION_KEYS`, each with its value in every run."""
    return _differing_keys([_load(path) for path in systems if is_run(path)])


def _differing_keys(configs: Sequence[Config]) -> dict[str, list[object]]:
    settings_of_runs = [dict(leaves(config.model_dump())) for config in configs]
    keys = sorted({key for values in settings_of_runs for key in values} - LOCATION_KEYS)
    rows = {key: [values.get(key) for values in settings_of_runs] for key in keys}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def groups_by_seed(systems: Sequence[Path]) -> list[list[int]]:
    """The indices of the runs among `systems`, in groups of runs that differ in the seed and in nothing else."""
    groups: list[list[tuple[int, Config]]] = []
    for index, config in ((index, _load(path)) for index, path in enumerate(systems) if is_run(path)):
        for group in groups:
            is_new_seed = config.seed not in {member.seed for _, member in group}
            if is_new_seed and _differing_keys([group[0][1], config]).keys() == {"seed"}:
                group.append((index, config))
                break
        else:
            groups.append([(index, config)])
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
        by_settings = [
            ", ".join(f"{key}={_text(row[i])}" for key, row in differing.items()) for i in range(len(of_runs))
        ]
        if 0 < len(differing) <= _LABEL_KEYS and len({*by_settings}) == len(of_runs):
            labels = {members[0]: label for members, label in zip(of_runs, by_settings, strict=True)}
    others = [[index] for index, path in enumerate(systems) if not is_run(path)]
    return [Group(labels.get(members[0], names[members[0]]), members) for members in sorted([*of_runs, *others])]


def _name(first: str, number: int) -> str:
    more = "" if number == 1 else f" and {number - 1} more seed{'s' * (number > 2)}"
    return first + more


def _text(value: object) -> str:
    """A value as it is written in a setting."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _load(run: Path) -> Config:
    return load_config(RunLayout(run))
