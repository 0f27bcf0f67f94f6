"""A command that mtx prints is read by a shell as the words that were meant, whatever a path holds."""

import os
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from mtx.files import shell
from mtx.files.shell import install_command, mtx_command, program_name, requirement, shell_command

WORDS = [
    "runs/mine", "with a space", "it's", 'a "quoted" one', "a\nb", "\ttab", "back\\slash", "back\\slash\n", "it's\n",
    "$HOME", "`ls`", "!!", "*", "data.train=my file.tsv", "über/ü", "\u202emarks", os.fsdecode(b"caf\xe9"), "", "~root",
    "-x", "a;b", "#",
]  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell with ANSI-C quoting")
def test_a_shell_reads_the_words_that_were_meant() -> None:
    line = shell_command(*WORDS)
    assert line.isprintable()
    script = f"printf '%s\\0' {line}".encode()
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in WORDS]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("runs/mine", "runs/mine"), ("/tmp/x", "/tmp/x"), ("../runs", "../runs"), ("runs/-x", "runs/-x"),
        ("-x", "./-x"), ("-x/y", "./-x/y"), ("~x/y", "'./~x/y'"), ("seed=1/x", "./seed=1/x"), ("demo", "./demo"),
        ("./-x", "./-x"), ("my run", "'./my run'"), ("/tmp/my run", "'/tmp/my run'"),
    ],
)  # fmt: skip
def test_a_path_is_no_option_setting_recipe_or_home(path: str, expected: str) -> None:
    assert shell_command(Path(path)) == expected


def test_a_command_of_mtx_begins_as_this_user_calls_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["a notebook"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mtx_command("train", Path("-x")) == f"{shlex.quote(sys.executable)} -m mtx train ./-x"
    script = tmp_path / "my venv" / "mtx"
    script.parent.mkdir()
    script.touch()
    monkeypatch.setattr("sys.argv", [str(script)])
    assert program_name() == f"'{script}'"


def test_what_a_missing_package_needs_is_what_the_extra_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["torch>=2.11", 'ctranslate2-x>=9; extra == "x"', 'ctranslate2>=4.8 ; extra == "export"', "plain"]
    monkeypatch.setattr(metadata, "requires", lambda name: lines if name == "mtx-translate" else None)
    assert [requirement(name) for name in ("ctranslate2", "plain", "torch", "other")] == [
        "ctranslate2>=4.8", "plain", "torch>=2.11", "other",
    ]  # fmt: skip
    assert install_command("ctranslate2").endswith("pip install 'ctranslate2>=4.8'")


def test_in_a_checkout_that_was_not_installed_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    monkeypatch.setattr(shell.shutil, "which", lambda _: None)
    assert install_command("ctranslate2") == f"{shlex.quote(sys.executable)} -m pip install ctranslate2"
