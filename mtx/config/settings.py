"""From recipes, files and `key=value` to a `Config`, and back; where each value comes from.

Every value is text until its field's type reads it, whether a recipe or the command line gives it, so that both mean
the same. All problems are told in one error. Not for: the keys themselves (`config`) and what is said of a wrong one
(`config_problems`). This module imports no torch and opens no corpus.
"""

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mtx.config.messages import describe_problems, did_you_mean, nearest, unknown_key
from mtx.config.schema import PRESETS, Config, DataConfig, ModelConfig, Section, key_names, leaves, section_of
from mtx.config.yaml_text import read_yaml
from mtx.errors import UsageError
from mtx.files.durable import require_file
from mtx.files.text_files import read_lines

_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
_OVERRIDE = re.compile(r"([A-Za-z_][\w-]*(?:\.[\w-]+)*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Resolved:
    """A configuration and, for each of its keys, where the value comes from."""

    config: Config
    origins: dict[str, str]

    def is_explicit(self, key: str) -> bool:
        """Whether a recipe, a file or the command line gives a key, and not a default or the preset."""
        return self.origins[key] not in ("default", f"preset {self.config.model.preset}")


def is_override(argument: str) -> bool:
    """Whether a command-line argument is `key=value` rather than the name of a file."""
    match = _OVERRIDE.fullmatch(argument)
    return match is not None and (match[1] in key_names() or not exists(Path(argument)))


def resolve(name: str | None, overrides: list[str]) -> Resolved:
    """Read CONFIG and apply `key=value` overrides.

    Raises:
        UsageError: one error that names every unknown key (with the nearest known one) and every wrong value.
    """
    path = find_config(name) if name else None
    values, lines = read_yaml(path) if path else ({}, {})
    file_keys = {key for key, _ in leaves(values)}
    given = dict(_split_override(argument) for argument in overrides)
    problems = [problem for key, value in given.items() if (problem := _set(values, key, value))]
    if name and path and path.name == "config.yaml" and path.parent == Path(name) and "run_dir" not in given:
        values["run_dir"] = name
    config = _validate(values, problems, _without(lines, given))
    _refuse_unread_text(config.data, given)
    if not config.run_dir:
        stem = path.stem if path else f"{config.data.src}-{config.data.tgt}"
        config = _validate({**values, "run_dir": f"runs/{stem}"}, [], {})
    file_origin = f"recipe {name}" if name in recipe_names() else str(path)
    origins = {}
    for key, _ in leaves(config.model_dump()):
        in_preset = key.startswith("model.") and key.removeprefix("model.") in PRESETS["base"]
        default = f"preset {config.model.preset}" if in_preset else "default"
        origins[key] = "command line" if key in given else file_origin if key in file_keys else default
    return Resolved(config, origins)


def replace_values(resolved: Resolved, values: Mapping[str, Any], origin: str) -> Resolved:
    """The configuration with other values of some keys, which come from `origin`.

    Raises:
        UsageError: where the others do not go with them.
    """
    tree = resolved.config.model_dump()
    for key, value in values.items():
        _set(tree, key, value)
    return Resolved(_validate(tree, [], {}), {**resolved.origins, **dict.fromkeys(values, origin)})


def load(path: Path) -> Config:
    """Read a `config.yaml` that `dump` wrote."""
    require_file(path)
    values, lines = read_yaml(path)
    return _validate(values, [], lines)


def dump(config: Config) -> str:
    """The configuration as YAML that `load` reads back as an equal one."""
    return _to_yaml(config.model_dump(mode="json"))


def _to_yaml(value: Any, default_flow_style: bool = False) -> str:
    style: dict[str, Any] = {"default_flow_style": default_flow_style, "sort_keys": False, "width": math.inf}
    text: str = yaml.safe_dump(value, allow_unicode=True, **style)
    # PyYAML writes U+0085, U+2028 and U+2029 as they are, and reads them as ends of lines.
    return str(yaml.safe_dump(value, **style)) if _LINE_ENDS.search(text) else text


def _on_one_line(value: Any) -> str:
    """A single value as YAML."""
    return _to_yaml(value, default_flow_style=True).removesuffix("...\n").strip("\n")


def dump_with_origins(resolved: Resolved) -> str:
    """The resolved configuration as YAML, with where each value comes from behind it."""
    values = dict(leaves(resolved.config.model_dump(mode="json")))
    lines: list[str] = []
    above: list[str] = []
    for key, origin in resolved.origins.items():
        *sections, last = key.split(".")
        for depth, section in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                lines.append(f"{'  ' * depth}{section}:")
                above = sections[: depth + 1]
        above = sections
        lines.append(f"{'  ' * len(sections)}{last}: {_on_one_line(values[key])}".ljust(44) + f"  # {origin}")
    return "\n".join(lines)


def describe_key(key: str) -> tuple[str, str]:
    """The description and the default of a key, as YAML.

    Raises:
        UsageError: where there is no such key.
    """
    if key not in key_names():
        raise UsageError(unknown_key(key), "mtx config RECIPE lists all keys")
    section: type[Section] = Config
    *sections, last = key.split(".")
    for name in sections:
        section = section_of(section.model_fields[name].annotation) or section
    field = section.model_fields[last]
    description = field.description or ""
    if not field.is_required():
        return description, _on_one_line(field.default)
    if section is ModelConfig:
        return description, _on_one_line(PRESETS["base"][last])
    return description, "none, it must be set"


# Recipes and files


def recipe_dir() -> Path:
    """The folder of the shipped recipes, in an installed package or in a checkout."""
    package = Path(__file__).parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def recipe_names() -> list[str]:
    """The shipped recipes, in the order of their names."""
    return sorted(path.stem for path in recipe_dir().glob("*.yaml"))


def recipe_facts(name: str) -> list[str]:
    """What a shipped recipe learns, machine, time and score, from the head of its file; empty where it was not run."""
    facts = dict.fromkeys(("learns", "machine", "time", "score"), "")
    for line in read_lines(recipe_dir() / f"{name}.yaml"):
        fact, _, text = line.removeprefix("# ").partition(": ")
        if fact in facts and line.startswith("# "):
            facts[fact] = text
    return list(facts.values())


def find_config(name: str) -> Path:
    """The file that CONFIG means: the name of a shipped recipe, a run directory, or a path.

    A recipe goes before a directory of its name in the current folder, which is `./NAME`.

    Raises:
        UsageError: where there is none; what looks like a key is answered with the nearest key.
    """
    if name in recipe_names():
        return recipe_dir() / f"{name}.yaml"
    path = Path(name)
    if exists(path / "config.yaml"):
        return path / "config.yaml"
    if "/" in name or "\\" in name or path.suffix in (".yaml", ".yml"):
        if not exists(path) or path.is_dir():
            raise UsageError(f"{name}: no such configuration file or run directory")
        return path
    if "." in name:
        raise UsageError(unknown_key(name), "mtx config lists the recipes; the name of a file ends in .yaml or has a /")
    if inner := section_of(Config.model_fields[name].annotation) if name in Config.model_fields else None:
        raise UsageError(
            f"{name}: a section, not a recipe or a key", f"its keys: {', '.join(key_names(inner, f'{name}.'))}"
        )
    near = nearest(name, recipe_names()) or nearest(name, key_names())
    raise UsageError(f"no recipe named {name!r}{did_you_mean(near)}", "mtx config lists the recipes")


def exists(path: Path) -> bool:
    """Whether there is something of this name, which may be no possible path."""
    with contextlib.suppress(OSError, ValueError):  # too long, or with a NUL
        return path.exists()
    return False


# Overrides


def _split_override(argument: str) -> tuple[str, str]:
    match = _OVERRIDE.fullmatch(argument)
    if match is None:
        help = "settings are written key=value, such as training.max_steps=1000"
        raise UsageError(f"{argument!r} is not a setting", help)
    return match[1], match[2]


def _set(values: dict[str, Any], key: str, value: Any) -> str | None:
    """Put a value into nested dictionaries, or tell what is wrong with its key."""
    if any(name.startswith(f"{key}.") for name in key_names()):
        if not (key == "data.hub" and value in ("null", "~", "")):  # the one section that may be null
            return f"{key}: is a section, expected {key}.KEY=VALUE"
    elif key not in key_names():
        return unknown_key(key)
    *sections, last = key.split(".")
    for section in sections:
        if not isinstance(values.get(section), dict):
            values[section] = {}
        values = values[section]
    values[last] = value
    return None


def _refuse_unread_text(data: DataConfig, given: dict[str, str]) -> None:
    """Refuse local text on the command line that would go unread; a file may hold both, for use with data.dir."""
    if data.generator is not None:
        source, help = "data.generator", "data.generator=null reads local text"
    elif data.hub is not None and data.dir is None:
        source, help = "data.hub", "data.hub=null reads local text only, or data.dir=DIR"
    else:
        return
    for name in ("train", "valid", "test", "dir"):
        if f"data.{name}" in given and getattr(data, name):
            raise UsageError(f"data.{name}: names local text, but this recipe takes its text from {source}", help)


def _without(lines: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """The places of the keys that only a file gives; what concerns several keys is the file's fault only alone."""
    return {key: at for key, at in lines.items() if key.partition("[")[0] not in given and not (given and not key)}


def _validate(values: dict[str, Any], problems: list[str], lines: dict[str, str]) -> Config:
    """The configuration, or all of its problems in one error; `lines` are the places to name."""
    config = None
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems = [*problems, *describe_problems(error, lines)]
    if config is None or problems:
        raise UsageError("; ".join(problems), "mtx config KEY explains a key")
    return config
