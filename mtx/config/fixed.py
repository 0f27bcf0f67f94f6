"""Which settings are fixed once a run has begun, and in which of them two configurations differ."""

from typing import Any

from mtx.config.schema import Config, leaves

MAY_CHANGE = (
    "run_dir",
    "sizes",
    "device",
    "data.dir",
    "data.licence",
    "model.licence",
    "training.max_steps",
    "training.max_epochs",
    "training.time_limit",
    "training.validate_every",
    "training.checkpoint_every",
    "training.average_last",
    "training.patience",
    "training.tensorboard",
    "training.compile",
    "training.shard",
    "decoding",
)


def may_change(key: str) -> bool:
    """Whether a key may change between two starts of a run; every other key is fixed."""
    return key in MAY_CHANGE or key.split(".")[0] in MAY_CHANGE


def differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """The keys in which two configurations differ, each with its old and its new value."""
    a, b = dict(leaves(old.model_dump())), dict(leaves(new.model_dump()))
    return [(key, a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)]


def fixed_differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """The differences in fixed keys."""
    return [difference for difference in differences(old, new) if not may_change(difference[0])]


def fixed_settings(config: Config) -> dict[str, Any]:
    """The fixed settings as nested values for JSON, which `Config.model_validate` reads with defaults for the rest."""
    values = config.model_dump(mode="json")
    for key in MAY_CHANGE:
        section, _, name = key.rpartition(".")
        del (values[section] if section else values)[name]
    return values
