"""Every command in README, the pages of docs/ and the help is one that mtx has, with settings that it takes."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer

from mtx import cli
from mtx.commands.help import EXAMPLES
from mtx.config import settings
from mtx.config.schema import key_names
from mtx.data.folders import ending_of
from mtx.data.languages import is_code
from mtx.data.readers import FILE_ENDING

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if path.name != "results-log.md" and path.parent.name != "archive"  # run then, with the names of then
    ),
]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHELL = ("", "bash", "sh", "shell", "console")
COMMAND = re.compile(r"(?:^|[|;&(] *|torchrun .* -m )(?:\$ )?(?:[A-Z_]+=\S* )*(?:\S*/bin/)?(mtx [a-z][^|;&)]*)")
USAGE = re.compile(r" \[[A-Z]|MODEL|\.\.\.|key=value|  [^#]")  # a form, not a command


def _commands(page: Path) -> list[str]:
    found = []
    for _, language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in map(str.strip, re.sub(r" *\\\n *", " ", block).splitlines()):
            if language in SHELL or line.startswith("$ "):  # the rest is what a command prints
                found += [command.strip() for command in COMMAND.findall(line) if not USAGE.search(command)]
    return found


IN_HELP = [line for group in EXAMPLES.values() for lines in group.values() for line in lines]
COMMANDS = sorted(
    {*(command for page in PAGES for command in _commands(page)), *(COMMAND.findall(line)[0] for line in IN_HELP)}
)


def test_there_are_some() -> None:
    assert len(COMMANDS) > 60


def test_commands_are_found_in_blocks() -> None:
    text = "```\n$ mtx train demo  # comment\nA=1 mtx status x\necho a | mtx translate runs/a \\\n  --beam 1 > b\n```\n"
    page = type("Page", (), {"read_text": lambda self, encoding: text})()
    assert _commands(page) == ["mtx train demo  # comment", "mtx status x", "mtx translate runs/a --beam 1 > b"]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(line: str) -> None:
    words = shlex.split(re.split(r" \d?[<>] ", line)[0], comments=True)[1:]
    group = typer.main.get_command(cli.app)
    command = group.get_command(typer.Context(group), words[0])  # type: ignore[attr-defined]
    assert command is not None, words[0]
    given = command.make_context(words[0], words[1:]).params.get("settings") or []
    for setting in (word for word in given if "=" in word):
        keys = [*key_names(), *(["data.mono"] if words[0] == "distil" else [])]
        assert settings.is_override(setting) and setting.partition("=")[0] in keys, setting
    for name in (word for word in given if "=" not in word and "/" not in word):
        is_text = FILE_ENDING.search(name) or is_code(ending_of(Path(name)))
        assert name in settings.recipe_names() or is_text or name.endswith(".yaml"), name
    if words[0] in ("train", "prepare") and given and given[0] in settings.recipe_names():
        settings.resolve(given[0], [word for word in given[1:] if "$" not in word])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_in_the_text_exist(page: Path) -> None:
    """Those between backticks, which often lack an argument."""
    group = typer.main.get_command(cli.app)
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for line in re.findall(r"`mtx ([a-z][a-z-]*(?: [^`\n]+)?)`", text):
        command = group.get_command(typer.Context(group), line.split()[0])  # type: ignore[attr-defined]
        assert command is not None, line
        options = {name for one in [*command.params, *group.params] for name in (*one.opts, *one.secondary_opts)}
        assert {*re.findall(r"(?<= )--?[a-z][a-z-]*", line)} <= {*options, "--help", "-h"}, line


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_every_file_that_a_document_names_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:mtx|tests|scripts|configs|docs)/[\w./-]+)`", text)
    assert paths or name == "README.md"
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_function_that_the_architecture_names_is_in_its_file() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("## Where is ...?")[1].split("\n## ")[0]
    places = re.findall(r"`(mtx/[\w/]+\.py)`((?:,? `[\w.]+`)+)", section)
    assert len(places) >= section.count("\n| ") - 1  # without the head of the table
    missing = [
        f"{path}: {name}"
        for path, names in places
        for name in re.findall(r"`([\w.]+)`", names)
        if name not in _definitions(ROOT / path)
    ]
    assert missing == []


def _definitions(path: Path) -> set[str]:
    """The functions, classes and methods of a module."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in module.body if isinstance(node, kinds)}
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{method.name}" for method in node.body if isinstance(method, kinds)}
    return names
