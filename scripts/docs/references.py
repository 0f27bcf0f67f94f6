"""Writes the generated part of the references: settings of the schema, commands of the Typer app, recipes of configs/.

    python -m scripts.docs.references

A page of docs/reference has a generated part between `<!-- generated: NAME -->` and `<!-- /generated -->`. The rest of
the page is written by hand and stays. A test compares the pages with what this would write.
"""

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from mtx import cli
from mtx.commands.help import EXAMPLES, GROUP_OF
from mtx.config import limits, schema, settings

DOCS = Path(__file__).parents[2] / "docs"
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- /generated -->\n)", re.DOTALL)


def main() -> None:
    """Write the pages that are not as they would be generated now, and print their names."""
    for path, text in references().items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(DOCS.parent)}")


def references() -> dict[Path, str]:
    """Each page with a generated part, and what its text should be."""
    paths = [DOCS / "reference" / f"{name}.md" for name in PARTS]
    return {path: filled_in(path.read_text(encoding="utf-8")) for path in paths}


def filled_in(page: str) -> str:
    """The text of a page with its generated part as it would be now."""

    def fill(part: re.Match[str]) -> str:
        text = re.sub(r"\n{3,}", "\n\n", PARTS[part[2]]().rstrip())
        return f"{part[1]}\n{text}\n\n{part[3]}"

    return _PART.sub(fill, page)


def settings_reference() -> str:
    """A section for each group of settings, with a row for each key."""
    groups: dict[str, list[str]] = {}
    for key, field in schema.fields().items():
        description, default = settings.describe_key(key)
        row = _setting(key, field, re.sub(r"; one of [^;]*$", "", description), f"`{default}`")
        groups.setdefault(key.rpartition(".")[0], []).append(row)
    for key, field in schema.fields(schema.TrainText, "data.train.").items():
        groups.setdefault("Parts of data.train", []).append(_setting(key, field, field.description or "", ""))
    head = "| key | type | default | meaning |\n|---|---|---|---|\n"
    return "\n".join(f"## {name or 'The run'}\n\n{head}{''.join(rows)}" for name, rows in groups.items())


def _setting(key: str, field: Any, description: str, default: str) -> str:
    kind = _kind(field.annotation, field.metadata)
    return f'| <a id="{key}"></a>`{key}` | {kind} | {default} | {_cell(" ".join(description.split()))} |\n'


def _kind(annotation: Any, metadata: list[Any]) -> str:
    """The type of a setting in words, with its choices and its range."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _kind(inner, [*more, *metadata])
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        kinds = [("`null`" if kind is NoneType else _kind(kind, metadata)) for kind in get_args(annotation)]
        return " or ".join(dict.fromkeys(kinds))
    if get_origin(annotation) is tuple:
        return "list of texts"
    if any(getattr(part, "func", None) is schema._read_seconds for part in metadata):
        return "duration"
    words = {bool: "`true` or `false`", int: "integer", float: "number"}
    return " ".join(filter(None, [words.get(annotation, "text"), _range(metadata)]))


def _range(metadata: list[Any]) -> str:
    bounds: dict[str, Any] = {}
    for part in [inner for outer in metadata for inner in (outer, *getattr(outer, "metadata", []))]:
        for name in ("ge", "gt", "le", "lt"):
            if getattr(part, name, None) is not None:
                bounds[name] = getattr(part, name)
    low = bounds.get("ge", bounds.get("gt"))
    high = bounds.get("le", bounds.get("lt"))
    if low is None:
        return ""
    start = f"from {low:,}" if "ge" in bounds else f"above {low:,}"
    if high is None or high >= limits.MAX_COUNT:
        return start
    return f"{start} {'to' if 'le' in bounds else 'to below'} {high:,}"


def command_reference() -> str:
    """A section for each command: what it does, its usage, arguments, options and examples."""
    group: Any = typer.main.get_command(cli.app)
    context = group.make_context("mtx", [], resilient_parsing=True)
    global_options = _parameters([parameter for parameter in group.params if parameter.name != "help"], context)
    parts = ["## Options of `mtx` itself\n", global_options]
    for title, names in EXAMPLES.items():
        parts += [f"## {title}\n", *(_command(group.commands[name], context, title) for name in names)]
    return "\n".join(parts)


def _command(command: Any, parent: Any, title: str) -> str:
    context = command.make_context(command.name, [], parent=parent, resilient_parsing=True)
    usage = context.get_usage().removeprefix("Usage: ").strip()
    hidden = " This command does not appear in `mtx --help`." if command.hidden else ""
    paragraphs = re.split(r"\n\s*\n", (command.help or "").split("\f")[0].strip())
    parts = [f"### mtx {command.name}\n", *(f"{' '.join(text.split())}\n" for text in paragraphs)]
    parts += [hidden.strip() + "\n"] if hidden else []
    parts += [f"```\n{' '.join(usage.split())}\n```\n", _parameters(command.params, context)]
    return "\n".join([*parts, "Examples:\n", "```", *EXAMPLES[title][command.name], "```", ""])


# What `--help` adds to the text of an option, and what this page says instead.
_NOTES = {
    r" *\[required\]$": "",
    r" *\[default: ([^\];]*)(?:; ([^\]]*))?\]": r" Default: \1. [\2]",
    r" *\[\]": "",
    r" *\[([\d.]+)<=x<=([\d.]+)\]": r" From \1 to \2.",
    r" *\[x>=([\d.]+)\]": r" At least \1.",
}


def _parameters(parameters: list[Any], context: Any) -> str:
    """A table for each group of arguments and options of `--help`, and in it also those that `--help` does not show."""
    groups = GROUP_OF if len(parameters) > 9 else {}
    tables: dict[str, list[str]] = {}
    for parameter in parameters:
        if "--help" not in parameter.opts:
            name, meaning = _parameter(parameter, context)
            row = f"| {_code(name)} | {_cell(meaning)} |\n"
            tables.setdefault(groups.get(parameter.name, ""), []).append(row)
    head = "| argument or option | meaning |\n|---|---|\n"
    return "".join(f"{name and f'{name}:'}\n\n{head}{''.join(rows)}\n" for name, rows in tables.items()).lstrip()


def _parameter(parameter: Any, context: Any) -> tuple[str, str]:
    """The name of an argument or option with its values, and its meaning."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name, parameter.help or ""
    is_hidden = parameter.hidden
    parameter.hidden = False  # a hidden one has no record
    name, meaning = parameter.get_help_record(context)
    parameter.hidden = is_hidden
    for pattern, text in _NOTES.items():
        meaning = re.sub(pattern, text, meaning)
    return name, " ".join(meaning.split()) + (" Not in `--help`." if is_hidden else "")


def recipe_reference() -> str:
    """A table of all recipes, and a section for each with its comments and its file."""
    facts = {name: settings.recipe_facts(name) for name in settings.recipe_names()}
    rows = [
        f"| [`{name}`](#{name}) | {' | '.join(map(_cell, [learns, machine, time, score]))} |"
        for name, (learns, machine, time, score) in facts.items()
    ]
    head = ["| recipe | learns | machine | time | score |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, "", *(part for name in facts for part in _recipe(name))])


def _recipe(name: str) -> Iterator[str]:
    lines = (settings.recipe_dir() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    header = [line[2:] for line in lines if line.startswith("#")]
    words = [line for line in header if not re.match(r"(learns|machine|time|score): ", line)]
    body = [line for line in lines if not line.startswith("#")]
    about = " ".join(words).removeprefix(f"{name}: ")
    about = re.sub(r"\bdocs/(\S+\.md)", lambda page: _page_link(page[1]), _cell(about[:1].upper() + about[1:]))
    yield f"## {name}\n\n{about}\n\n```yaml"
    yield "\n".join(body)
    yield "```\n"


def _page_link(name: str) -> str:
    """A link from docs/reference to a page of docs/, by its title."""
    [title, *_] = re.findall(r"^# (.+)", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE)
    return f"[{title}](../{name})"


def _cell(text: str) -> str:
    """Text in a cell of a table: marks of Markdown and HTML in it are text."""
    parts = re.split(r"`([^`]*)`", text)
    marked = [re.sub(r"([*\[\]|])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    code = [*map(_code, parts[1::2]), ""]
    return "".join(map("".join, zip(marked, code, strict=True)))


def _code(text: str) -> str:
    """Code in a cell of a table, without a `|`: GitHub needs a backslash before it, which mkdocs would show."""
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings_reference,
    "commands": command_reference,
    "recipes": recipe_reference,
}

if __name__ == "__main__":
    main()
