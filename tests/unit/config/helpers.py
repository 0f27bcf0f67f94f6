"""What the tests of the configuration share."""

from pathlib import Path
from typing import Any

import pytest

from mtx.config.schema import Config
from mtx.config.settings import resolve
from mtx.errors import UsageError


def value_of(config: Config, key: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def problems(name: str | Path | None, *overrides: str) -> str:
    """The message with which a configuration is refused."""
    with pytest.raises(UsageError) as error:
        resolve(None if name is None else str(name), list(overrides))
    assert "\n" not in str(error.value)
    return str(error.value)
