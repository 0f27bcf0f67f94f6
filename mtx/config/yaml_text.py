"""Reads YAML with every scalar as text, and records the line of each key.

YAML's own rules turn `no` into False and 12:30 into 750, but leave 1e-4 as text. Here every scalar stays text, and the
type of the configuration key reads it. No objects are constructed; duplicate keys and aliases are refused.
"""

import io
import stat
from pathlib import Path
from typing import Any

import yaml

from mtx.errors import UsageError
from mtx.files import text_files

_MAX_BYTES = 1 << 19  # a recipe has about 1 kB; PyYAML needs 10 s for a megabyte


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a YAML file, and the path:line of each key; the key `""` stands for the whole file.

    Raises:
        UsageError: if the file is too large or not YAML, has a key twice, or uses an alias; with path:line.
    """
    lines: dict[str, str] = {}
    try:
        root = yaml.compose("\n".join(read_config_lines(path)), Loader=yaml.SafeLoader)
        values = _text_of(root, "", str(path), lines, set()) if root is not None else {}
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}:{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UsageError(f"{path}: is nested too deeply") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path}: expected sections with keys, got {kind_of(values)}")
    return values, {**lines, "": str(path)}


def read_config_lines(path: Path) -> list[str]:
    """The lines of a configuration: a regular file of bounded size that is not compressed, else UsageError."""
    try:
        mode, size = path.stat().st_mode, path.stat().st_size
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
            raise UsageError(f"{path}: expected a configuration file, this is {kind}")
        if size > _MAX_BYTES:
            raise UsageError(f"{path}: a configuration of {size:,} bytes, expected at most {_MAX_BYTES:,}")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if data.startswith(b"\x1f\x8b"):
        raise UsageError(f"{path}: is compressed by gzip, expected a configuration in YAML")
    text_files.refuse_other_formats(path, data)
    return list(text_files.decoded_lines(io.BufferedReader(io.BytesIO(data)), path))


def _text_of(node: yaml.Node, key: str, path: str, lines: dict[str, str], seen: set[int]) -> Any:
    """A YAML node as text, list or dictionary; adds the path:line of each key to `lines`."""
    where = f"{path}:{node.start_mark.line + 1}"
    if id(node) in seen:  # aliases could put a node inside itself, or grow it a thousandfold
        raise UsageError(f"{where}: an alias (*name), which mtx does not read")
    seen.add(id(node))
    lines.setdefault(key, where)
    if isinstance(node, yaml.SequenceNode):
        return [_text_of(item, f"{key}[{number}]", path, lines, seen) for number, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return node.value
    values: dict[str, Any] = {}
    for name, value in node.value:
        at = f"{path}:{name.start_mark.line + 1}"
        if not isinstance(name, yaml.ScalarNode):
            raise UsageError(f"{at}: expected a key, got {kind_of(name.value)}")
        if name.value in values:
            raise UsageError(f"{at}: the key {name.value!r} stands twice")
        inner = f"{key}.{name.value}" if key else name.value
        lines[inner] = at
        values[name.value] = _text_of(value, inner, path, lines, seen)
    return values


def kind_of(value: object) -> str:
    """A value in a message: a section, a list, or the text itself in quotes."""
    return "a section" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
