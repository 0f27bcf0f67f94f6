"""Every command in the README, the guides and the help is one that mtx has; every file that a document names exists."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from mtx import cli
from mtx.cli import EXAMPLES
from mtx.config import settings
from mtx.config.schema import key_names
from mtx.data.readers import FILE_ENDING

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parent.parent.parent


def _commands() -> list[str]:
    found = []
    for name in ("README.md", "docs/guide.md", "docs/translators.md"):
        for block in re.findall(
            r"^```\n(.*?)^```", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            lines = [line.rpartition(" | ")[2] for line in block.split("\n")]
            found += [line for line in lines if re.match(r"mtx [a-z]", line) and not re.search(r"\[|MODEL|  ", line)]
    examples = [line for group in EXAMPLES.values() for lines in group.values() for line in lines]
    return sorted({*found, *(line.rpartition(" | ")[2] for line in examples)})


def test_there_are_some() -> None:
    assert len(_commands()) > 15


@pytest.mark.parametrize("line", _commands())
def test_a_command_is_understood(line: str) -> None:
    words = shlex.split(re.split(" [<>] ", line)[0])[1:]
    group = typer.main.get_command(cli.app)
    command = group.get_command(typer.Context(group), words[0])  # type: ignore[attr-defined]
    assert command is not None, words[0]
    given = command.make_context(words[0], words[1:]).params.get("settings") or []
    for setting in (word for word in given if "=" in word):
        keys = [*key_names(), *(["data.mono"] if words[0] == "distil" else [])]
        assert settings.is_override(setting) and setting.partition("=")[0] in keys, setting
    for name in (word for word in given if "=" not in word and "/" not in word):
        assert name in settings.recipe_names() or FILE_ENDING.search(name), name


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_every_file_that_a_document_names_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:mtx|tests|scripts|configs|docs)/[\w./-]+)`", text)
    assert paths or name == "README.md"
    assert [path for path in paths if not (ROOT / path).exists()] == []
