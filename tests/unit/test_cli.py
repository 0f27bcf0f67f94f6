"""The command line itself: its version, and completion for shells."""

import os
import subprocess
import sys

import pytest

from mtx import cli
from mtx.run.machine import package_version


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"mtx {package_version() or '(not installed, from a checkout)'}\n"


@pytest.mark.parametrize(
    ("option", "help"),
    [
        ("--lr", "settings are written key=value: training.learning_rate=VALUE"),
        ("--layers", "settings are written key=value: model.num_encoder_layers=VALUE model.num_decoder_layers=VALUE"),
        ("--wandb", "training.tensorboard=true writes its figures for TensorBoard"),
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
    code = "import sys, mtx.cli; print({'pydantic', 'yaml', 'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


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
