"""Commands, numbers, sizes and tables as users see them."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mtx.formatting import draw_table, format_size, install_command, mtx_command, program_name, shell_command

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


HEAD, ROWS = ["", "BLEU"], [["a_1 & b", "30.12 ± 0.31"], ["x|y", "9.00"]]


def test_text_is_aligned() -> None:
    assert draw_table(HEAD, ROWS, "text") == ["                 BLEU", "a_1 & b  30.12 ± 0.31", "x|y              9.00"]


def test_markdown_escapes_the_bars_of_cells() -> None:
    assert draw_table(HEAD, ROWS, "markdown") == [
        "|         |         BLEU |",
        "| :--     |          --: |",
        "| a_1 & b | 30.12 ± 0.31 |",
        r"| x\|y    |         9.00 |",
    ]


def test_latex_escapes_and_needs_no_package() -> None:
    lines = draw_table(HEAD, [*ROWS, ["{50%}~^\\<$#>", ""]], "latex")
    assert lines[:2] == [r"\begin{tabular}{lr}", r"\hline"] and lines[-2:] == [r"\hline", r"\end{tabular}"]
    cells = [
        [cell.strip() for cell in line.removesuffix(r" \\").split(" & ")] for line in lines if line.endswith(r"\\")
    ]
    assert cells[0] == ["", "BLEU"] and cells[1] == [r"a\_1 \& b", r"30.12 $\pm$ 0.31"]
    escaped = r"\{50\%\}\textasciitilde{}\textasciicircum{}\textbackslash{}\textless{}\$\#\textgreater{}"
    assert cells[2] == [r"x\textbar{}y", "9.00"] and cells[3] == [escaped, ""]
