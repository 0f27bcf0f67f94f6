"""`mtx export` and `mtx import`: another program's format, with the comparison that it translates as mtx does."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mtx.decoding.translator import Translator
from mtx.interop import export
from mtx.storage import durable
from tests.integration.commands import mtx, tree

pytest.importorskip("ctranslate2")


def test_a_run_is_exported_beside_itself_and_proved(run_copy: Path) -> None:
    before = tree(run_copy)
    result = mtx("export", run_copy, "--to", "ctranslate2")
    assert result.returncode == 0, result.stderr.decode()
    export = run_copy.with_name("copy-ctranslate2-fp32")
    assert result.stdout.decode().startswith(f"{export}  ctranslate2 fp32  ")
    assert "100.0% identical, BLEU +0.00" in result.stdout.decode()
    durable.verify(export, ("model.bin", "mtx.json", "tokenizer.model", "example.py"))
    assert tree(run_copy) == before
    assert {path.name for path in run_copy.parent.iterdir()} == {"copy", export.name}


def test_precisions_replace_each_other_and_json_says_what_was_done(run_copy: Path, tmp_path: Path) -> None:
    for precision in ("fp16", "int8"):
        result = mtx(
            "export",
            run_copy / "model",
            "--to",
            "ctranslate2",
            "-o",
            tmp_path / "out",
            "--precision",
            precision,
            "--json",
        )
        assert result.returncode == 0, result.stderr.decode()
        done = json.loads(result.stdout)
        assert {key: done[key] for key in ("directory", "to", "precision")} == {
            "directory": str(tmp_path / "out"), "to": "ctranslate2", "precision": precision,
        }  # fmt: skip
        assert done["proof"]["num_lines"] > 10
        assert durable.read_json(tmp_path / "out" / "mtx.json")["precision"] == precision
        card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
        assert f"in {precision}." in card and f"On {done['proof']['num_lines']} lines, " in card
        durable.verify(tmp_path / "out", ("README.md",))


def test_an_export_that_is_killed_leaves_the_earlier_one(
    run_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    output, rename = tmp_path / "out", Path.replace
    export.export(run_copy / "model", "ctranslate2", output=output)
    expected = Translator.load(output).translate(["one two"])
    is_killed = False

    def until_killed(old: Path, new: Path) -> None:
        nonlocal is_killed
        is_killed = is_killed or (new == output and old.name == output.name)
        if is_killed:
            raise Killed
        rename(old, new)

    monkeypatch.setattr(Path, "replace", until_killed)
    with pytest.raises(Killed):
        export.export(run_copy / "model", "ctranslate2", output=output)
    assert is_killed and not output.exists()
    monkeypatch.undo()
    assert Translator.load(output).translate(["one two"]) == expected
    export.export(run_copy / "model", "ctranslate2", output=output)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".tmp", "kept", "out"))] == ["out"]


def test_a_model_alone_has_no_text_for_the_proof(run_copy: Path, tmp_path: Path) -> None:
    model = Path(shutil.move(run_copy / "model", tmp_path / "alone"))
    without = mtx("export", model, "--to", "ctranslate2")
    assert without.returncode == 0 and b"not compared with mtx" in without.stdout
    assert b"alone-ctranslate2-fp32" in without.stdout and b"warning: " in without.stderr


def test_an_unfinished_run_exports_its_best_checkpoint(run_copy: Path, tmp_path: Path) -> None:
    shutil.rmtree(run_copy / "model")
    result = mtx("export", run_copy, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert result.returncode == 0 and b"using its checkpoint of step" in result.stderr, result.stderr.decode()


def test_there_and_back_as_transformers_has_it(run_copy: Path, tmp_path: Path) -> None:
    out = mtx("export", run_copy, "--to", "huggingface", "-o", tmp_path / "hub")
    assert out.returncode == 0, out.stderr.decode()
    card = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    assert ("Both used greedy search" in card) == (b"translations were not compared" not in out.stderr)
    back = mtx("import", tmp_path / "hub", "-o", tmp_path / "model")
    assert back.returncode == 0, back.stderr.decode()
    before, after = (mtx("translate", path, stdin=b"one two\nthree\n") for path in (run_copy, tmp_path / "model"))
    assert after.returncode == 0 and after.stdout == before.stdout


def test_an_export_that_translates_otherwise_is_not_left_behind(
    run_copy: Path, tmp_path: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    translate = export.Translator.translate

    def differently(self: export.Translator, lines: list[str]) -> list[str]:
        return ["x"] * len(lines) if self.engine.name == "ctranslate2" else translate(self, lines)

    monkeypatch.setattr(export.Translator, "translate", differently)
    before = tree(tmp_path)
    refused(1, ["0.0% identical", "was written"], "export", run_copy, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert tree(tmp_path) == before and not any((tmp_path / "out").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"copy", "out"}


def test_asked_wrongly(run_copy: Path, tmp_path: Path, refused: Callable[..., None]) -> None:
    before = tree(tmp_path)
    export, out = ["export", run_copy, "--to"], ["-o", tmp_path / "out"]
    refused(2, ["no such"], "export", tmp_path / "nowhere", "--to", "ctranslate2", *out)
    refused(2, ["--to onnx", "ctranslate2"], *export, "onnx", *out)
    refused(2, ["--precision int4", "int8"], *export, "ctranslate2", *out, "--precision", "int4")
    refused(2, ["--precision int8", "huggingface"], *export, "huggingface", *out, "--precision", "int8")
    refused(2, ["model", "not an earlier export or import"], *export, "ctranslate2", "-o", run_copy / "model")
    refused(2, ["copy", "not an earlier export or import"], *export, "ctranslate2", "-o", run_copy)
    refused(2, ["no such"], "import", tmp_path / "nowhere", *out)
    assert tree(tmp_path) == before


def test_a_missing_library_is_one_line(
    run_copy: Path, tmp_path: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2", None)
    words = ["not installed", "pip install ctranslate2"]
    refused(1, words, "export", run_copy, "--to", "ctranslate2", "-o", tmp_path / "out")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_path_that_is_not_utf_8(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, os.fsdecode(bytes(tmp_path / "caf") + b"\xe9")))
    text = b"one two\nthree\n"
    for engine in ("torch", "ctranslate2"):
        result = mtx("translate", run, "--engine", engine, stdin=text)
        assert (result.returncode, result.stdout.count(b"\n")) == (0, 2), result.stderr.decode()
    result = mtx("export", run, "--to", "ctranslate2")
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().startswith(rf"{tmp_path}/caf\udce9-ctranslate2")
