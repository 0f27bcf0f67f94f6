"""`mtx distil`: from a trained run to a student, its export and the table, with one command that goes on."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mtx.synthesis.teachers import ModelTeacher
from tests.integration.commands import TINY, mtx, pairs, start
from tests.rig import PATIENCE_S

pytest.importorskip("ctranslate2")

SMALL = ["model.preset=tiny", "model.num_encoder_layers=1", "model.num_decoder_layers=1", *TINY[7:]]


def rows(out: bytes) -> list[list[str]]:
    return [line.split() for line in out.decode().split("\n") if line.startswith(("teacher", "student"))]


@pytest.mark.seconds
def test_a_student_of_a_run(trained: Path, tmp_path: Path) -> None:
    run, mono = tmp_path / "student", tmp_path / "more.en"
    mono.write_text("".join(f"{src}\n" for src, _ in pairs(range(2000, 7000))), encoding="utf-8")
    command = ["distil", trained, "--device", "cpu", f"run_dir={run}", f"data.mono={mono}", *SMALL]
    process, part = start(*command), run / "distilled" / "distilled.tsv.part"
    end = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < end:
        if part.exists() and part.read_bytes().count(b"\n") > ModelTeacher.block_lines:
            break
        time.sleep(0.01)
    process.kill()
    process.wait()
    result = mtx(*command)
    assert result.returncode == 0, result.stderr.decode()
    assert b"are translated; resuming" in result.stderr
    assert "device: cpu\n" in (run / "config.yaml").read_text(encoding="utf-8")
    names = [row[0] if row[1][0].isdigit() else " ".join(row[:3]) for row in rows(result.stdout)]
    assert names == ["teacher", "student", "student in int8"]
    own, teacher = ((path / "data" / "tokenizer.model").read_bytes() for path in (run, trained))
    assert own == teacher
    for part_of_text in ("valid.arrow", "test.heldout.arrow"):
        assert (run / "data" / part_of_text).stat().st_size == (trained / "data" / part_of_text).stat().st_size
    text = (run / "distilled" / "distilled.tsv").read_text(encoding="utf-8").split("\n")
    sources = {line.partition("\t")[0] for line in text[:-1]}
    assert {src for src, _ in pairs(range(2000, 7000))} & sources and len(sources) > 3000
    report = json.loads((run / "data" / "report.json").read_text())
    assert [corpus["name"] for corpus in report["corpora"]] == ["train.tsv", "distilled.tsv"]
    assert json.loads((run / "data" / "tokenizer.json").read_text())["normalization"] == "nfc"
    again = mtx(*command, "--json")
    table = json.loads(again.stdout)
    assert again.returncode == 0 and [*table] == ["teacher", "student", "student in int8"]
    assert table["student in int8"]["megabytes"] < table["student"]["megabytes"]


def test_what_is_refused(trained: Path, tmp_path: Path, refused: Any) -> None:
    refused(2, ["data.mono=nothing: no such file"], "distil", trained, "data.mono=nothing")
    refused(2, ["data.valid=v: needs data.train"], "distil", trained, "data.valid=v")
    refused(2, ["nowhere: no such model directory"], "distil", tmp_path / "nowhere")
    refused(2, ["is not a run with prepared text"], "distil", trained / "model", f"run_dir={tmp_path / 'none'}")
    assert not (tmp_path / "none").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("mine")
    refused(2, ["not a run directory, and not empty (letter)"], "distil", trained, f"run_dir={tmp_path / 'full'}")
    refused(2, ["model.layers"], "distil", trained, f"run_dir={tmp_path / 'new'}", "model.layers=3")
