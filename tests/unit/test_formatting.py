"""Commands, numbers, sizes and tables as users see them."""

import io
import os
import shlex
import shutil
import subprocess
import sys
from fractions import Fraction
from math import ceil
from pathlib import Path

import pytest

from mtx.formatting import (
    color_labels,
    did_you_mean,
    divide_up,
    format_size,
    in_color,
    install_command,
    mtx_command,
    program_name,
    shell_command,
)

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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


@pytest.mark.parametrize(
    ("label", "number"), [("error", 31), ("warning", 33), ("help", 36), ("advice", 36), ("hint", 36), ("verdict", 35)]
)
def test_a_label_at_the_beginning_of_a_line_is_coloured(label: str, number: int, plain: pytest.MonkeyPatch) -> None:
    text = f"{label}: no {label}: twice"
    assert color_labels(text, Terminal()) == f"\x1b[1;{number}m{label}:\x1b[0m no {label}: twice"
    assert color_labels(f"first\n{text}", Terminal()).startswith("first\n\x1b[1;")
    assert color_labels(f"  {text}", Terminal()) == f"\x1b[1;{number}m  {label}:\x1b[0m no {label}: twice"
    assert color_labels(f"no {text}", Terminal()) == f"no {text}"
    assert color_labels(text, io.StringIO()) == text


def test_the_environment_decides_about_colours(plain: pytest.MonkeyPatch) -> None:
    colored = "\x1b[1;32mtext\x1b[0m"
    assert in_color("text", Terminal()) == colored and in_color("text", io.StringIO()) == "text"
    plain.setenv("TERM", "dumb")
    assert in_color("text", Terminal()) == "text"
    plain.setenv("FORCE_COLOR", "1")
    assert in_color("text", io.StringIO()) == colored
    plain.setenv("NO_COLOR", "1")
    assert in_color("text", Terminal()) == "text"
    plain.setenv("NO_COLOR", "")
    assert in_color("text", Terminal()) == colored


@pytest.mark.parametrize(
    ("missing", "present", "meant"),
    [
        ("m.tsw", ["my.sw", "m.tsv"], "m.tsv"),
        ("my.tsw", ["my.tsv", "notes.md"], "my.tsv"),
        ("mz", ["my", "second"], "my"),
        ("x.tsv", ["pipe.tsv"], None),
    ],
)
def test_a_missing_file_is_answered_with_the_most_similar_name(
    missing: str, present: list[str], meant: str | None, tmp_path: Path
) -> None:
    for name in present:
        (tmp_path / name).touch()
    expected = f", did you mean {tmp_path / meant}?" if meant else ""
    assert did_you_mean(tmp_path / missing) == expected


def test_divide_up_rounds_every_quotient_up() -> None:
    for dividend in range(-20, 21):
        for divisor in range(1, 8):
            assert divide_up(dividend, divisor) == ceil(Fraction(dividend, divisor))
    assert divide_up(10**30 + 1, 10) == 10**29 + 1  # a float would be less exact
