"""Commands, numbers, sizes and tables as users see them."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mtx.formatting import format_size, install_command, mtx_command, program_name, shell_command

WORDS = [
    "runs/mine", "with a space", "it's", 'a "quoted" one', "back\\slash", "$HOME", "`ls`", "!!", "*",
    "data.train=my file.tsv", "über/ü", "", "~root", "-x", "a;b", "#",
]  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell")
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
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mtx_command("train", Path("-x")) == f"{shlex.quote(sys.executable)} -m mtx train ./-x"
    (tmp_path / "mtx").touch(mode=0o755)
    assert program_name() != "mtx", "it is another program"
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert program_name() == "mtx"


def test_a_missing_package_is_installed_for_this_python() -> None:
    assert install_command("ctranslate2") == f"{shlex.quote(sys.executable)} -m pip install ctranslate2"


def test_sizes_are_in_mb() -> None:
    assert format_size(1_400_000) == "1 MB" and format_size(7_400_000_000) == "7,400 MB"
