"""How runs differ in their settings: the table of differing keys, and the groups that differ only in the seed.

Flow: paths of systems -> config.yaml of the runs among them -> values for `mtx compare` and the report.
"""

from collections.abc import Sequence
from pathlib import Path

from mtx.config.schema import Config, leaves
from mtx.run.configuration import load_config
from mtx.run.contents import is_run
from mtx.run.layout import RunLayout

LOCATION_KEYS = {
    "run_dir",
    "device",
    "training.tensorboard",
    "data.licence",
    "model.licence",
}  # these change neither what a run learns nor how


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


def _load(run: Path) -> Config:
    return load_config(RunLayout(run))
