"""The command line itself: its version, its help, and completion for shells."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from mtx import cli
from mtx.cli import EXAMPLES
from mtx.machine import package_version

ROOT = Path(__file__).parent.parent.parent


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"mtx {package_version() or '(not installed, from a checkout)'}\n"


@pytest.mark.parametrize(
    ("option", "help"),
    [
        ("--lr", "settings are written key=value: training.learning_rate=VALUE"),
        ("--layers", "settings are written key=value: model.num_encoder_layers=VALUE model.num_decoder_layers=VALUE"),
        ("--wandb", "training.tensorboard=true writes metrics for TensorBoard"),
        ("--zzz", "mtx train --help"),
    ],
)
def test_a_setting_written_as_an_option_is_answered_with_its_key(
    option: str, help: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["train", "own-text", option, "1"]) == 2
    assert capsys.readouterr().err.strip().endswith(help)


def test_the_command_line_is_there_without_the_libraries_of_a_configuration() -> None:
    """They take as long to import as the rest of `mtx --help`."""
    heavy = "print({'pydantic', 'yaml', 'torch', 'numpy', 'rich'} & set(sys.modules))"
    for shown in ("[]", "['--help']"):
        code = f"import sys, mtx.cli; mtx.cli.run({shown}); {heavy}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.endswith("\nset()\n") and "Usage: mtx" in done.stdout


def test_the_help_has_groups_with_whole_summaries_and_says_where_mtx_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    assert sorted(name for group in EXAMPLES.values() for name in group) == sorted(commands)
    assert re.findall(r"^(\w.*):$", text, re.MULTILINE) == ["Options", *EXAMPLES]
    assert "..." not in text.partition("Options:")[2] and "\x1b" not in text
    words = " ".join(text.split())
    for name, command in commands.items():
        assert f"{name} {' '.join(command.help.split()).partition('. ')[0].rstrip('.')}" in words
    assert "Windows in WSL" in words and "docs/planned.md" in words and (ROOT / "docs/planned.md").is_file()


@pytest.mark.parametrize("name", [name for group in EXAMPLES.values() for name in group])
def test_the_help_of_a_command_ends_with_its_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    start = next(number for number, line in enumerate(lines) if line == "Examples:")
    examples = [line.removeprefix("  ") for line in lines[start + 1 :]]
    assert examples in [group.get(name) for group in EXAMPLES.values()]
    assert all(re.match(r"(echo .* \| )?mtx ", line) and f"mtx {name}" in line for line in examples)
    assert max(map(len, examples)) <= 78


@pytest.mark.parametrize(
    ("words", "expected"), [("mtx tra", ["train", "translate"]), ("mtx translate --len", ["--length-penalty"])]
)
def test_a_shell_completes_commands_and_options_without_torch(words: str, expected: list[str]) -> None:
    """Typer's protocol for bash: the words so far come in the environment, the completions go to stdout."""
    code = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); from mtx.cli import main; main()"
    )
    number = str(len(words.split()) - 1)
    protocol = {"_MTX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": number}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **protocol}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [*expected, "False"], done.stderr
