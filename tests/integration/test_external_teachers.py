"""`mtx distil` and `mtx back-translate` with an external teacher: a server of mtx, and a program."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mtx.synthesis.teachers import ServerTeacher
from tests.integration.commands import MTX, mtx, pairs, write_tsv
from tests.integration.test_distil import SMALL, rows
from tests.integration.test_serve import serving

LANGUAGES = ["data.src=en", "data.tgt=de"]


@pytest.fixture(scope="module")
def mono(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of which the last hundred are repeated, and two are empty."""
    path = tmp_path_factory.mktemp("mono") / "mono.en"
    lines = [src for src, _ in pairs(range(3000, 4500))]
    path.write_text("".join(f"{line}\n" for line in ["", *lines, *lines[-100:], ""]), encoding="utf-8")
    return path


def program(model: Path) -> str:
    return shlex.join([*MTX, "translate", str(model), "--device", "cpu", "--threads", "1"])


def die_after_lines() -> None:
    """Ends the process in the middle of the text."""
    translate = ServerTeacher._translate_lines
    num_lines = 0

    def translate_or_die(teacher: ServerTeacher, lines: Sequence[str]) -> list[str]:
        nonlocal num_lines
        num_lines += len(lines)
        if num_lines > 500:
            os._exit(9)
        return translate(teacher, lines)

    ServerTeacher._translate_lines = translate_or_die  # type: ignore[method-assign]


def test_synthetic_pairs_of_a_server_and_of_a_program_are_those_of_the_model(
    trained: Path, mono: Path, tmp_path: Path
) -> None:
    languages = ["--from", "en", "--to", "de"]
    expected = tmp_path / "model.tsv"
    assert mtx("back-translate", trained, mono, "-o", expected, "--device", "cpu").returncode == 0
    with serving(trained) as (_, port):
        address = f"http://127.0.0.1:{port}"
        result = mtx("back-translate", address, mono, "-o", tmp_path / "server.tsv", *languages)
    assert result.returncode == 0, result.stderr.decode()
    assert b"1,602 lines" in result.stderr and f"go to 127.0.0.1:{port};".encode() in result.stderr
    command = [
        "back-translate",
        "--teacher-command",
        program(trained),
        mono,
        "-o",
        tmp_path / "program.tsv",
        *languages,
    ]
    result = mtx(*command)
    assert result.returncode == 0, result.stderr.decode()
    for name in ("server.tsv", "program.tsv"):
        assert (tmp_path / name).read_bytes() == expected.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.tsv", "program.tsv", "server.tsv"]


@pytest.mark.seconds
def test_the_student_of_text_in_one_language(trained: Path, mono: Path, tmp_path: Path) -> None:
    settings = [f"data.mono={mono}", *SMALL, "--device", "cpu"]
    run = tmp_path / "student"
    with serving(trained) as (_, port):
        command = ["distil", f"http://127.0.0.1:{port}", *LANGUAGES, *settings, f"run_dir={run}"]
        assert mtx(*command, first=die_after_lines).returncode == 9
        result = mtx(*command)
    assert result.returncode == 0, result.stderr.decode()
    assert b"are translated; resuming" in result.stderr
    by_path = tmp_path / "by-path"
    assert mtx("distil", trained / "model", *settings, f"run_dir={by_path}").returncode == 0
    for name in ("valid.tsv", "tests/teacher-text.tsv", "distilled.tsv"):
        assert (run / "distilled" / name).read_bytes() == (by_path / "distilled" / name).read_bytes()
    text = (run / "distilled" / "distilled.tsv").read_text(encoding="utf-8").splitlines()
    assert len(text) == len({*text})
    own, teacher = ((path / "data" / "tokenizer.model").read_bytes() for path in (run, trained))
    assert own != teacher, "the student has learned its own subwords"

    table = result.stdout.decode()
    [teacher_row, *student_rows] = [row for row in rows(result.stdout) if row[0] in ("teacher", "student")]
    assert len(teacher_row) == 2 and len(student_rows) == 2, "of the teacher, only the speed is known"
    assert "teacher-text: the references are the teacher's" in table
    assert b"teacher-text BLEU" in mtx("evaluate", run, "--device", "cpu").stdout
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "are translations by the teacher of this model" in card
    assert not (run / "model" / "quality.json").exists()
    again = mtx(*command, "--json")  # without the server, which has nothing more to do
    assert [*json.loads(again.stdout)["teacher"]] == ["rate"], again.stderr.decode()


@pytest.mark.seconds
def test_true_pairs_next_to_a_program(trained: Path, tmp_path: Path, mono: Path) -> None:
    true_pairs = write_tsv(tmp_path / "true.tsv", range(2000))
    run = tmp_path / "student"
    result = mtx(
        "distil", "--teacher-command", program(trained), *LANGUAGES, f"data.train={true_pairs}", f"data.mono={mono}",
        *SMALL, "--device", "cpu", f"run_dir={run}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr.decode()
    assert len(rows(result.stdout)[0]) == 4, "of the teacher, scores and speed are known"
    assert b"teacher-text" not in result.stdout
    report = json.loads((run / "data" / "report.json").read_text())
    assert [corpus["name"] for corpus in report["corpora"]] == ["train.tsv", "distilled.tsv"]


def test_what_is_refused(trained: Path, mono: Path, tmp_path: Path, refused: Any) -> None:
    out = ["-o", tmp_path / "out.tsv"]
    url = "http://127.0.0.1:1"
    refused(2, ["needs both languages"], "back-translate", url, mono, *out)
    refused(2, ["expected MODEL FILE"], "back-translate", mono, *out)
    refused(2, ["expected MODEL FILE"], "back-translate", trained, mono, *out, "--teacher-command", "cat")
    refused(
        2, ["does not accept search options, got beam_size"], "back-translate", url, mono, *out, "--beam", 2, "--from",
        "en", "--to", "de",
    )  # fmt: skip
    refused(
        2,
        ["No closing quotation"],
        "back-translate",
        "--teacher-command",
        "'cat",
        mono,
        *out,
        "--from",
        "en",
        "--to",
        "de",
    )
    refused(2, ["needs both languages"], "distil", url, f"data.mono={mono}")
    refused(2, ["data.train or data.mono must name the text"], "distil", url, *LANGUAGES)
    refused(2, ["data.train or data.mono must name the text"], "distil", trained / "model")
    refused(2, ["expected one TEACHER"], "distil", f"data.mono={mono}")
    refused(2, ["expected one TEACHER"], "distil", url, trained)
    refused(2, ["expected one TEACHER"], "distil", url, "--teacher-command", "cat")
    refused(
        2, ["data.valid and data.test need data.train"], "distil", url, *LANGUAGES, f"data.mono={mono}", "data.test=x"
    )
    refused(2, ["unencrypted"], "distil", "http://example.org", *LANGUAGES, f"data.mono={mono}")
    names = ["data.src=English", "data.tgt=German"]
    new = f"run_dir={tmp_path / 'new'}"
    refused(2, ["data.src=English: expected the code of a language"], "distil", url, *names, f"data.mono={mono}", new)
    refused(2, ["nowhere"], "distil", url, *LANGUAGES, f"data.mono={mono}", new, "training.init_from=nowhere")
    there = tmp_path / "there.tsv"
    there.write_text("paid")
    refused(2, ["is there already"], "back-translate", url, mono, "-o", there, "--from", "en", "--to", "de")
    assert there.read_text() == "paid"
    few = tmp_path / "few.en"
    few.write_text("one\ntwo\none\n")
    refused(1, ["has 2 different lines"], "distil", url, *LANGUAGES, f"data.mono={few}", f"run_dir={tmp_path / 'few'}")
    refused(
        2, ["model.layers"], "distil", url, *LANGUAGES, f"data.mono={mono}", f"run_dir={tmp_path / 'new'}",
        "model.layers=3",
    )  # fmt: skip
