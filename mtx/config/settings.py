"""Finds a configuration, applies `key=value` overrides, validates it, and prints it with the origin of each value.

Recipes and the command line both give text, which the type of each field reads, so the same text means the same in
both. One error reports all problems. `schema` defines the keys, `messages` words the problems. No torch here.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import ValidationError

from mtx.config.messages import about_unknown, describe_problems, did_you_mean, nearest, unknown_key
from mtx.config.schema import MODELS_DECIDE, PRESETS, Config, DataConfig, fields, key_names, leaves, section_of
from mtx.config.value_types import NULL
from mtx.config.yaml_text import read_yaml
from mtx.errors import UsageError
from mtx.files.shell import mtx_command
from mtx.files.text_files import open_binary, printable, read_lines
from mtx.files.untrusted import require_file

_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
_FEW_KEYS = 3  # of a section, which a message can name
_OVERRIDE = re.compile(r"([A-Za-z_][\w-]*(?:\.[\w-]+)*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Resolved:
    """A configuration with the origin of each value: a recipe, a file, the command line, a preset or the default."""

    config: Config
    origins: dict[str, str]

    def is_explicit(self, key: str) -> bool:
        """Whether a recipe, a file or the command line sets a key, rather than a default or the preset."""
        return self.origins[key] not in ("default", f"preset {self.config.model.preset}")


def is_override(argument: str) -> bool:
    """Whether a command-line argument is `key=value` and not the name of a file."""
    match = _OVERRIDE.fullmatch(argument)
    return match is not None and (match[1] in key_names() or not exists(Path(argument)))


def resolve(name: str | None, overrides: list[str]) -> Resolved:
    """Read the configuration `name` (see `find_config`) and apply `key=value` overrides.

    Raises:
        UsageError: naming every unknown key, with the most similar one, and every wrong value.
    """
    path = find_config(name) if name else None
    is_run = path is not None and path.name == "config.yaml" and path.parent == Path(name or "")
    values, lines = read_yaml(path) if path else ({}, {})
    settings = dict(_split_override(argument) for argument in overrides)
    _replace_other_bound(values, settings)
    file_keys = {key for key, _ in leaves(values)}
    problems = [problem for key, value in settings.items() if (problem := _set(values, key, value))]
    file_keys -= {*_give_way_to_models(values, settings)}
    if is_run and "run_dir" not in settings:
        values["run_dir"] = name  # a run directory may have been moved
    # If a setting overrides a value, or the problem concerns several keys, the file is not to blame
    lines = {key: at for key, at in lines.items() if key.partition("[")[0] not in settings and (key or not settings)}
    config = _validate(values, problems, lines)
    _refuse_unread_text(config.data, settings)
    if not config.run_dir:
        stem = path.stem if path else config.data.direction
        config = _validate({**values, "run_dir": f"runs/{stem}"}, [], {})
    file_origin = f"recipe {name}" if name in recipe_names() else str(path)
    origins = {}
    for key, _ in leaves(config.model_dump()):
        in_preset = key.startswith("model.") and key.removeprefix("model.") in PRESETS["base"]
        default = f"preset {config.model.preset}" if in_preset else "default"
        origins[key] = "command line" if key in settings else file_origin if key in file_keys else default
    return Resolved(config, origins)


def _give_way_to_models(values: dict[str, Any], settings: dict[str, str]) -> list[str]:
    """Take out, and return, the keys of a file that the models of `tokenizer.model` on the command line decide."""
    if settings.get("tokenizer.model", "") in ("", "null", "~", "[]"):
        return []
    own = [name for name in MODELS_DECIDE if name in values["tokenizer"] and f"tokenizer.{name}" not in settings]
    for name in own:
        del values["tokenizer"][name]
    return [f"tokenizer.{name}" for name in own]


def replace_values(resolved: Resolved, values: Mapping[str, Any], origin: str) -> Resolved:
    """The configuration with new `values` for some keys, which come from `origin`.

    Raises:
        UsageError: if they do not fit the other values.
    """
    tree = resolved.config.model_dump()
    for key, value in values.items():
        _set(tree, key, value)
    return Resolved(_validate(tree, [], {}), {**resolved.origins, **dict.fromkeys(values, origin)})


def load(path: Path) -> Config:
    """Read the config.yaml of a run directory as it is; see `mtx.run.configuration`."""
    require_file(path)
    values, lines = read_yaml(path)
    return _validate(values, [], lines)


def dump(config: Config) -> str:
    """The configuration as YAML that `load` reads back as an equal one."""
    return _to_yaml(config.model_dump(mode="json"))


def _to_yaml(value: Any, default_flow_style: bool = False) -> str:
    style: dict[str, Any] = {"default_flow_style": default_flow_style, "sort_keys": False, "width": math.inf}
    text: str = yaml.safe_dump(value, allow_unicode=True, **style)
    # PyYAML writes U+0085, U+2028 and U+2029 unescaped, but reads them as line ends.
    return str(yaml.safe_dump(value, **style)) if _LINE_ENDS.search(text) else text


def _on_one_line(value: Any) -> str:
    """A value as one line of YAML that can be shown on a terminal as it is."""
    line = _to_yaml(value, default_flow_style=True).removesuffix("...\n").strip("\n")
    if line == printable(line):
        return line
    return str(yaml.safe_dump(value, default_flow_style=True, width=math.inf)).removesuffix("...\n").strip("\n")


def dump_with_origins(resolved: Resolved) -> str:
    """The configuration as YAML, with a comment behind each value that tells its origin."""
    return "\n".join(_lines_with_origins(resolved.config.model_dump(mode="json"), resolved.origins))


def _lines_with_origins(tree: Mapping[str, Any], origins: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines_with_origins(value, origins, f"{prefix}{name}.")
        else:
            yield f"{indent}{name}: {_on_one_line(value)}".ljust(44) + f"  # {printable(origins[prefix + name])}"


def describe_key(key: str) -> tuple[str, str]:
    """The description of a key, and its default as YAML.

    Raises:
        UsageError: if there is no such key.
    """
    field = fields().get(key)
    if field is None:
        raise UsageError(unknown_key(key), "mtx config RECIPE lists all keys")
    if not field.is_required():
        default = _on_one_line(field.default)
    elif key.startswith("model."):
        default = _on_one_line(PRESETS["base"][key.removeprefix("model.")])
    else:
        default = "none, it must be set"
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    words = [
        *([field.description] if field.description else []),
        *([f"one of {', '.join(choices)}"] if choices else []),
    ]
    return "; ".join(words), default


def recipe_dir() -> Path:
    """The directory of the shipped recipes, in an installed package or in a checkout."""
    package = Path(__file__).parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def recipe_names() -> list[str]:
    """The names of the shipped recipes, sorted."""
    return sorted(path.stem for path in recipe_dir().glob("*.yaml"))


def recipe_facts(name: str) -> list[str]:
    """The task of a recipe, its machine, time and score, from the comments in its file; "" for a missing one."""
    facts = dict.fromkeys(("learns", "machine", "time", "score"), "")
    for line in read_lines(recipe_dir() / f"{name}.yaml"):
        fact, _, text = line.removeprefix("# ").partition(": ")
        if fact in facts and line.startswith("# "):
            facts[fact] = text
    return list(facts.values())


def find_config(name: str) -> Path:
    """The file of a configuration: `name` is a shipped recipe, a run directory, or a path.

    A recipe takes precedence over a directory of the same name in the current directory, which is `./NAME`.

    Raises:
        UsageError: if there is none, with the most similar recipe or key.
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
    if exists(path) and path.is_file():
        with open_binary(path):  # refuses what is no text, and says how to get from it to text
            help = mtx_command("train", "own-text", f"data.train={name}", "data.src=en", "data.tgt=de")
        help = f"if it is your text: {help}"
        raise UsageError(f"{name}: is no configuration, whose name ends in .yaml or has a /", help)
    if "." in name:
        raise UsageError(unknown_key(name), "mtx config lists the recipes; the name of a file ends in .yaml or has a /")
    if inner := section_of(Config.model_fields[name].annotation) if name in Config.model_fields else None:
        raise UsageError(
            f"{name}: a section, not a recipe or a key", f"its keys: {', '.join(fields(inner, f'{name}.'))}"
        )
    near = nearest(name, recipe_names())
    about = did_you_mean(near) if near else about_unknown(name, key_names())
    raise UsageError(f"no recipe named {name!r}{about}", "mtx config lists the recipes")


def exists(path: Path) -> bool:
    """Whether a path exists; False for a name that no path can have."""
    with contextlib.suppress(OSError, ValueError):  # too long, or contains NUL
        return path.exists()
    return False


def _split_override(argument: str) -> tuple[str, str]:
    match = _OVERRIDE.fullmatch(argument)
    if match is None:
        help = "settings are written key=value, such as training.max_steps=1000"
        raise UsageError(f"{argument!r} is not a setting", help)
    return match[1], match[2]


def _set(values: dict[str, Any], key: str, value: Any) -> str | None:
    """Put a value into nested dictionaries; returns the problem if the key is wrong."""
    if any(name.startswith(f"{key}.") for name in key_names()):
        if not (key == "data.hub" and value in NULL):  # the one section that may be null
            keys = [name for name in key_names() if name.startswith(f"{key}.")]
            which = f": {', '.join(keys)}" if len(keys) <= _FEW_KEYS else ""
            return f"{key}: is a section, expected {key}.KEY=VALUE{which}"
    elif key not in key_names():
        return unknown_key(key)
    *sections, last = key.split(".")
    for section in sections:
        if not isinstance(values.get(section), dict):
            values[section] = {}
        values = values[section]
    values[last] = value
    return None


def _replace_other_bound(values: dict[str, Any], settings: dict[str, str]) -> None:
    """If the command line sets one of max_steps and max_epochs, the file's value of the other no longer counts."""
    bounds = {name: settings.get(f"training.{name}") for name in ("max_steps", "max_epochs")}
    for name, other in (("max_steps", "max_epochs"), ("max_epochs", "max_steps")):
        if bounds[name] not in (None, *NULL) and bounds[other] is None and isinstance(values.get("training"), dict):
            values["training"].pop(other, None)


def _refuse_unread_text(data: DataConfig, settings: dict[str, str]) -> None:
    """Refuse overrides that name local text which nothing would read; a configuration file may name both sources."""
    if data.generator is not None:
        source, help = "data.generator", "data.generator=null reads local text"
    elif data.hub is not None and data.dir is None:
        source, help = "data.hub", "data.hub=null reads local text only, or data.dir=DIR"
    else:
        return
    for name in ("train", "valid", "test", "dir"):
        if f"data.{name}" in settings and getattr(data, name):
            raise UsageError(f"data.{name}: names local text, but this recipe takes its text from {source}", help)


def _validate(values: dict[str, Any], problems: list[str], lines: dict[str, str]) -> Config:
    """The configuration, or one error with all of its problems and, from `lines`, where they stand."""
    config = None
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems = [*problems, *describe_problems(error, lines)]
    if config is None or problems:
        is_unknown = any("unknown key" in problem for problem in problems)
        raise UsageError(
            "; ".join(problems), "mtx config RECIPE lists all keys" if is_unknown else "mtx config KEY explains a key"
        )
    return config
