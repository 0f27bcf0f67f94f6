"""Prints the names that a version of mtx has for its users, one a line: `python tests/compat/names.py`.

They are commands with their options, settings, what Python imports from `mtx`, fields of JSON, and exit codes.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import mtx
from mtx import cli
from mtx.config import settings
from mtx.config.schema import key_names

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def names() -> list[str]:
    """Each name after its kind, sorted."""
    return sorted({*_commands(), *_settings(), *_python(), *_json_fields(), *_exit_codes()})


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(cli.app)
    yield from (f"command mtx {option}" for parameter in group.params for option in parameter.opts)
    for name, command in group.commands.items():
        yield f"command mtx {name}"
        for parameter in command.params:
            if parameter.param_type_name == "option":
                options = (*parameter.opts, *parameter.secondary_opts)
                yield from (f"command mtx {name} {option}" for option in options)


def _settings() -> Iterator[str]:
    yield from (f"setting {key}" for key in key_names())
    yield from (f"recipe {name}" for name in settings.recipe_names())


def _python() -> Iterator[str]:
    """What python.md names: the rest may change."""
    page = (REFERENCE / "python.md").read_text(encoding="utf-8")
    for name in mtx.__all__:
        value = getattr(mtx, name)
        yield f"python mtx.{name}"
        is_record = inspect.isclass(value) and name != "Translator"
        parts = [*dir(value), *getattr(value, "__dataclass_fields__", ())] if is_record else []
        yield from (f"python mtx.{name}.{part}" for part in parts if re.search(rf"`{part}\b|[( ]{part}=", page))
    yield from (f"python mtx.Translator.{name}" for name in ("directions", "max_tokens", "src", "tgt"))
    yield from (f"python mtx.Translator.load({name})" for name in re.findall(r"^\| `(\w+)` \| [^|]* \| `", page, re.M))
    for method, arguments in re.findall(r"^`(\w+)\(([^)]*)\) -> ", page, re.MULTILINE):
        for argument in arguments.split(", "):
            yield f"python mtx.Translator.{method}({argument.partition('=')[0]})"


def _json_fields() -> Iterator[str]:
    page = (REFERENCE / "json.md").read_text(encoding="utf-8")
    for section, text in re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL):
        for cell in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE):
            yield from (f"json {section}: {field}" for field in re.findall(r"`([^`]+)`", cell))


def _exit_codes() -> Iterator[str]:
    page = (REFERENCE / "exit-codes.md").read_text(encoding="utf-8")
    yield from (f"exit code {code}" for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE))


if __name__ == "__main__":
    print("\n".join(names()))
