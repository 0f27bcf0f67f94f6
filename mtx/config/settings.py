"""Finds a configuration, applies `key=value` overrides, validates it, and prints it with the origin of each value.

Recipes and the command line both give text, which the type of each field parses, so the same text means the same in
both. (YAML's own rules would turn `no` into False and 12:30 into 750, but leave 1e-4 as text.) One error reports all
problems. `schema` defines the keys, `messages` the error texts. No torch here.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import yaml
from pydantic import ValidationError

from mtx.config.messages import about_unknown, describe_problems, nearest, shown
from mtx.config.schema import (
    NULL,
    PRESETS,
    Config,
    DataConfig,
    Scope,
    Tree,
    Values,
    fields,
    key_names,
    leaves,
    write_list,
)
from mtx.errors import UsageError
from mtx.formatting import did_you_mean, mtx_command

# Unlike those of `Path`, False for a name that no file can have
exists = os.path.exists
is_dir = os.path.isdir
_MAX_YAML_BYTES = 1 << 19  # a recipe has about 1 kB; PyYAML needs 10 s for a megabyte
_OVERRIDE = re.compile(r"([A-Za-z_][\w-]*(?:\.[\w-]+)*)=(.*)", re.DOTALL)


class Resolved(NamedTuple):
    """A configuration with the origin of each value: a recipe, a file, the command line, a preset or the default."""

    config: Config
    origins: dict[str, str]

    def is_explicit(self, key: str) -> bool:
        """Whether a recipe, a file or the command line sets a key, and not a default or the preset."""
        return self.origins[key] not in ("default", f"preset {self.config.model.preset}")


def is_override(argument: str) -> bool:
    """Whether a command-line argument is `key=value` and not the name of a file."""
    match = _OVERRIDE.fullmatch(argument)
    return match is not None and (match[1] in key_names() or not exists(argument))


def is_name(argument: str) -> bool:
    """Whether a command-line argument is a recipe, or a file or folder that is there."""
    return argument in recipe_names() or (exists(argument) and not is_override(argument))


def default_run_dir(name: str) -> str:
    """The run directory where `run_dir` is not set, by the name of a configuration or of a text."""
    return f"runs/{name}"


def resolve(name: str | None, overrides: list[str]) -> Resolved:
    """Read the configuration `name` (see `find_config`) and apply `key=value` overrides.

    Raises:
        UsageError: with every unknown key, the most similar key, and every wrong value.
    """
    path = find_config(name) if name else None
    values, lines = read_yaml(path) if path else ({}, {})
    settings = dict(map(_split_override, overrides))
    training = values.get("training")
    for bound, other_bound in (("max_steps", "max_epochs"), ("max_epochs", "max_steps")):
        if isinstance(training, dict) and settings.get(f"training.{bound}", "") not in NULL:
            training.pop(other_bound, None)  # a bound on the command line replaces the other one of a file
    file_keys = {key for key, _ in leaves(values)}
    problems = [problem for key, value in settings.items() if (problem := _set(values, key, value))]
    if name and path == Path(name, "config.yaml") and "run_dir" not in settings:
        values["run_dir"] = name  # a run directory may have been moved
    # If a setting overrides a value, or the problem concerns several keys, the file is not the cause
    lines = {
        key: place for key, place in lines.items() if key.partition("[")[0] not in settings and (key or not settings)
    }
    config = _validate(values, lines, problems, values.get("sizes", "given"))
    if config.tokenizer.model and settings.get("tokenizer.vocab_size", "auto") != "auto":
        raise UsageError("tokenizer.vocab_size: tokenizer.model has its own subwords", "omit one of them")
    _refuse_unread_text(config.data, settings)
    if not config.run_dir:
        run_dir = default_run_dir(path.stem if path else config.data.direction)
        config = _validate({**values, "run_dir": run_dir}, {}, sizes=config.sizes)
    origins = dict.fromkeys((f"model.{key}" for key in PRESETS["base"]), f"preset {config.model.preset}")
    origins |= dict.fromkeys(file_keys, f"recipe {name}" if name in recipe_names() else str(path))
    origins |= dict.fromkeys(settings, "command line")
    return Resolved(config, {key: origins.get(key, "default") for key, _ in leaves(config.model_dump())})


def replace_values(resolved: Resolved, values: Values, origin: str) -> Resolved:
    """The configuration with new `values` for some keys, which come from `origin`.

    Raises:
        UsageError: if they do not fit the other values.
    """
    return Resolved(with_values(resolved.config, values), {**resolved.origins, **dict.fromkeys(values, origin)})


def with_values(config: Config, values: Values) -> Config:
    """A configuration with new `values` for some keys; raises UsageError if they do not fit the others."""
    tree = config.model_dump()
    for key, value in values.items():
        _set(tree, key, value)
    return _validate(tree, {})


def load(path: Path) -> Config:
    """Read the config.yaml of a run directory unchanged; see `mtx.runs.run_directory.load_config`."""
    return _validate(*read_yaml(path))


def read_yaml(path: Path) -> tuple[Tree, dict[str, str]]:
    """The values of a YAML file as text, and the path:line of each key; the key `""` is the whole file.

    Raises:
        UsageError: with path:line, if the file is too large or not YAML, has a duplicate key, or uses an alias.
    """
    lines = dict[str, str]()
    node_ids = set[int]()

    def read_node(node: yaml.Node, key: str) -> Any:
        place = f"{path}:{node.start_mark.line + 1}"
        if id(node) in node_ids:  # aliases could put a node inside itself, or grow it a thousandfold
            raise UsageError(f"{place}: YAML aliases (*name) are not supported")
        node_ids.add(id(node))
        lines.setdefault(key, place)
        if isinstance(node, yaml.SequenceNode):
            return [read_node(item, f"{key}[{number}]") for number, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            is_bare = key == "training.time_limit" and node.tag.endswith(":float")  # in a run of an earlier version
            return f"{node.value}s" if is_bare and exists(path.with_name("chosen.json")) else node.value
        values: Tree = {}
        for name, value in node.value:
            key_place = f"{path}:{name.start_mark.line + 1}"
            if not isinstance(name, yaml.ScalarNode):
                raise UsageError(f"{key_place}: expected a key, got {shown(name.value)}")
            if name.value in values:
                raise UsageError(f"{key_place}: duplicate key {name.value!r}")
            inner = f"{key}.{name.value}" if key else name.value
            lines[inner] = key_place
            values[name.value] = read_node(value, inner)
        return values

    if not (exists(path) and path.is_file()):  # reading a pipe would block
        hint = "mtx status lists the runs, mtx config the recipes; a model directory is for training.init_from=DIR"
        raise UsageError(f"{path}: no such text, configuration or run directory{did_you_mean(path)}", hint)
    try:
        if path.stat().st_size > _MAX_YAML_BYTES:
            raise UsageError(f"{path}: too large for a configuration file (at most {_MAX_YAML_BYTES:,} bytes)")
        root = yaml.compose(path.read_bytes().rstrip(), Loader=yaml.SafeLoader)
        values = read_node(root, "") if root else {}
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}:{line}: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{path}: invalid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path}: expected sections with keys, got {shown(values)}")
    return values, {**lines, "": str(path)}


def dump(config: Config) -> str:
    """The configuration as YAML that `load` reads back as an equal one."""
    return _to_yaml(config.model_dump())


def _to_yaml(value: Any, **style: Any) -> str:
    style |= {"sort_keys": False, "width": math.inf}
    text: str = yaml.safe_dump(value, allow_unicode=True, **style)
    # PyYAML reads some characters as line ends that it writes unescaped, and others would act on a terminal.
    return text if all(map(str.isprintable, text.split("\n"))) else str(yaml.safe_dump(value, **style))


def _on_one_line(value: Any) -> str:
    return _to_yaml(value, default_flow_style=True).removesuffix("...\n").strip("\n")


def dump_with_origins(resolved: Resolved) -> str:
    """The configuration as YAML, each value followed by its origin in a comment."""

    def lines(tree: Values, prefix: str) -> Iterator[str]:
        indent = "  " * prefix.count(".")
        for name, value in tree.items():
            if isinstance(value, Mapping):
                yield f"{indent}{name}:"
                yield from lines(value, f"{prefix}{name}.")
            else:
                origin = resolved.origins[prefix + name].replace("\n", r"\n")
                yield f"{indent}{name}: {_on_one_line(value)}".ljust(44) + f"  # {origin}"

    return "\n".join(lines(resolved.config.model_dump(), ""))


def describe_key(key: str) -> tuple[str, str]:
    """The description of a key, and its default as YAML."""
    field = fields()[key]
    default = PRESETS["base"].get(key.removeprefix("model.")) if field.is_required() else field.default
    text = " ".join((field.description or "").split())
    if get_origin(field.annotation) is Literal:
        text += f"; one of {', '.join(get_args(field.annotation))}"
    is_needed = field.is_required() and default is None
    return text, "none (required)" if is_needed else _on_one_line(default)


def recipe_dir() -> Path:
    """The directory of the shipped recipes, in an installed package or in a checkout."""
    package = Path(__file__).parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def recipe_names() -> list[str]:
    """The names of the shipped recipes, sorted."""
    return sorted(path.stem for path in recipe_dir().glob("*.yaml"))


def recipe_facts(name: str) -> list[str]:
    """The task of a recipe, its machine, time and score, from the comments in its file; "" for a missing one."""
    text = (recipe_dir() / f"{name}.yaml").read_text(encoding="utf-8")
    facts = dict(re.findall(r"^# (\w+): (.+)$", text, re.MULTILINE))
    return [facts.get(fact, "") for fact in ("learns", "machine", "time", "score")]


def find_config(name: str) -> Path:
    """The file of a configuration, which may be missing: `name` is a shipped recipe, a run directory, or a path.

    A recipe takes precedence over a directory of the same name; write `./NAME` for the directory.

    Raises:
        UsageError: if it is none of them, with the most similar recipe or key.
    """
    if name in recipe_names():
        return recipe_dir() / f"{name}.yaml"
    path = Path(name)
    if exists(path / "config.yaml"):
        return path / "config.yaml"
    if "/" in name or path.suffix in (".yaml", ".yml"):
        return path
    if exists(path) and not path.is_dir():
        hint = mtx_command("train", "own-text", f"data.train={write_list([name])}", "data.src=en", "data.tgt=de")
        raise UsageError(f"{name}: not a configuration (expected *.yaml or a path)", f"to train on this text: {hint}")
    recipe = nearest(name, recipe_names())
    suggestion = f", did you mean {recipe}?" if recipe else about_unknown(name, [*Config.model_fields, *key_names()])
    suggestion = suggestion or did_you_mean(path)
    kind = "recipe" if recipe or "." not in name else "recipe, setting or file"
    hint = "mtx config lists the recipes, and mtx config training the settings of that section"
    raise UsageError(f"no {kind} named {name!r}{suggestion}", hint)


def _split_override(argument: str) -> tuple[str, str]:
    match = _OVERRIDE.fullmatch(argument)
    if match is None:
        hint = "settings are written key=value, without spaces; quote a value with spaces"
        raise UsageError(f"{argument!r} is not a setting{did_you_mean(Path(argument))}", hint)
    return match[1], match[2]


def _set(values: Tree, key: str, value: Any) -> str | None:
    """Put a value into nested dictionaries; returns the problem if the key is wrong."""
    if not any(f"{name}.".startswith(f"{key}.") for name in key_names()):  # neither a key nor a section
        return f"{key}: unknown key{about_unknown(key, key_names())}"
    *sections, leaf = key.split(".")
    for section in sections:
        if not isinstance(values.get(section), dict):
            values[section] = {}
        values = values[section]
    values[leaf] = value
    return None


def _refuse_unread_text(data: DataConfig, settings: dict[str, str]) -> None:
    """Refuse overrides with local text that nothing would read; a configuration file may name both sources."""
    if data.generator:
        source = "data.generator"
    elif data.hub and data.dir is None:
        source = "data.hub"
    else:
        return
    for name in ("train", "valid", "test", "dir"):
        if f"data.{name}" in settings and getattr(data, name):
            problem = f"data.{name}: this recipe reads its text from {source}, not from local files"
            raise UsageError(problem, f"use {source}=null to read local text")


def _validate(values: Tree, lines: dict[str, str], problems: Sequence[str] = (), sizes: object = None) -> Config:
    """The configuration, or one error with all of its problems and their places from `lines`.

    Args:
        sizes: the setting; with "corpus", sizes that `choose_sizes` may still replace need not fit each other.
    """
    try:
        config = Config.model_validate(values, context=sizes)
        if not problems:
            return config
    except ValidationError as error:
        problems = [*problems, *describe_problems(error, lines)]
    text = "; ".join(problems)
    keys = [word for word in re.findall(r"[\w.]+", text) if word in key_names()]
    raise UsageError(text, f"mtx config {keys[0]} explains it" if keys else "mtx config RECIPE lists all keys")


Change = tuple[str, Any, Any]  # a key with its old and its new value
_MAY_CHANGE = (Scope.RESUMABLE, Scope.UNTIL_FINISHED, Scope.LOCAL)  # when a run is resumed


def differences(old: Config, new: Config) -> list[Change]:
    """The keys in which two configurations differ, each with its old and its new value."""
    old_values = dict(leaves(old.model_dump()))
    new_values = dict(leaves(new.model_dump()))
    changes = [(key, old_values.get(key), new_values.get(key)) for key in sorted({*old_values, *new_values})]
    return [(key, old_value, new_value) for key, old_value, new_value in changes if old_value != new_value]


def fixed_differences(old: Config, new: Config) -> list[Change]:
    """The differences in fixed keys, those that may not change when a run is resumed."""
    return [change for change in differences(old, new) if change[0] not in key_names(*_MAY_CHANGE)]


def fixed_settings(config: Config) -> Tree:
    """The fixed settings as nested values for JSON; `Config.model_validate` fills in the defaults of the rest."""
    return _without(_MAY_CHANGE, config.model_dump(mode="json"))


def model_settings(config: Config) -> Tree:
    """The settings that a finished model depends on, if they are not their defaults, as nested values for JSON."""
    scopes = (Scope.UNTIL_FINISHED, Scope.LOCAL, Scope.PLACE)
    return _without(scopes, config.model_dump(mode="json", exclude_defaults=True))


def _without(scopes: Iterable[Scope], tree: Values) -> Tree:
    values: Tree = {}
    keys = key_names(*scopes)
    for key, value in leaves(tree):
        if key not in keys:
            _set(values, key, value)
    return values
