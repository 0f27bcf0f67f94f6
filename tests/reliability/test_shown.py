"""What a stranger's file or a careless name can put on a terminal: nothing that acts there."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from mtx.storage import durable
from tests.integration.commands import mtx, pairs, write_sides

HOSTILE = "e\x1b]0;owned\x07\u202ev\nerror: il"
ESCAPED = r"e\x1b]0;owned\x07\u202ev\nerror: il"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")


@pytest.fixture(scope="module")
def run(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a directory with a hostile name."""
    return Path(shutil.copytree(trained, tmp_path_factory.mktemp("hostile") / HOSTILE))


def shown(*arguments: Any, code: int = 0, **options: Any) -> str:
    """All that a command shows; nothing of it may act on a terminal or look like a line of mtx."""
    result = mtx(*arguments, **options)
    text = (result.stdout + result.stderr).decode()
    assert result.returncode == code, text
    assert all(line.isprintable() for line in text.split("\n")), text
    assert "\nerror: il" not in text
    return text


@pytest.mark.parametrize("command", [
    ["status"], ["report"], ["prepare"], ["train"], ["config"], ["evaluate"],
    ["export", "--to", "huggingface"], ["export", "--to", "ctranslate2"], ["translate", "--precision", "int8"],
])  # fmt: skip
def test_the_name_of_a_run_directory(command: list[str], run: Path) -> None:
    if "ctranslate2" in command:
        pytest.importorskip("ctranslate2")
    text = shown(command[0], run, *command[1:])
    assert (ESCAPED in text) == (command[0] not in ("status", "evaluate", "translate"))


def test_the_name_of_a_file_as_the_origin_of_a_value(run: Path, tmp_path: Path) -> None:
    path = shutil.copy(run / "config.yaml", tmp_path / f"{HOSTILE}.yaml")
    assert f"# {tmp_path}/{ESCAPED}.yaml" in shown("config", path)


def test_what_status_quotes(run_copy: Path) -> None:
    scores = durable.read_json(run_copy / "model" / "scores.json")
    scores[HOSTILE] = scores["heldout"]
    scores.pop("format")
    durable.write_json(run_copy / "model" / "scores.json", scores)
    state = durable.read_json(run_copy / "status.json")
    durable.write_json(run_copy / "status.json", {**state, "state": "stopped", "reason": HOSTILE, "format": 2})
    (run_copy / "metrics.jsonl").write_text("".join(
        line for line in (run_copy / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        if '"end"' not in line and '"finished"' not in line
    ), encoding="utf-8")  # fmt: skip
    text = shown("status", run_copy)
    assert f"test:      {ESCAPED} BLEU" in text
    shown("status", run_copy, "--json")


def test_names_of_files_that_are_scored(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / HOSTILE
    path.write_text("".join(f"{src}\n" for src, _ in pairs(range(1000, 1010))), encoding="utf-8")
    assert shown("evaluate", "--hyp", path, "--ref", path).startswith(f"{ESCAPED} BLEU 100.00")
    assert f"{ESCAPED} BLEU" in shown("evaluate", trained, "--src", path, "--ref", path)
    assert ESCAPED in shown("compare", path, path, "--ref", path)
    shown("compare", path, path, "--ref", path, "--json")
    assert "owned" in shown("translate", trained, path, "-o", path / "x", code=2)


def test_names_of_corpora(tmp_path: Path) -> None:
    write_sides(tmp_path, HOSTILE, range(1000, 1010))
    settings = [f"data.dir={tmp_path}", f"data.train={HOSTILE}", "data.src=en", "data.tgt=de"]
    text = shown("prepare", "--download-only", *settings)
    assert ESCAPED in text


def test_names_in_a_folder(tmp_path: Path) -> None:
    """Of the folder, a damaged file, one that is skipped, and a table as the text of a run."""
    folder = tmp_path / HOSTILE
    folder.mkdir()
    lines = [f"{src}\t{tgt}\n" for src, tgt in pairs(range(1000, 1010))]
    (folder / f"{HOSTILE}.tsv").write_text("en\tde\n" + "".join(lines), encoding="utf-8")
    (folder / f"{HOSTILE}.tmx").write_text("<tmx", encoding="utf-8")
    (folder / f"{HOSTILE}.docx").write_bytes(b"")
    for text in (folder, folder / f"{HOSTILE}.tsv"):
        assert ESCAPED in shown("config", text)


def rewritten(model: Path, **changes: Any) -> Path:
    """A model directory with other values in its configuration, and a tensor with a hostile name; all is consistent."""
    config = durable.read_json(model / "config.json")
    config.pop("format")
    durable.write_json(model / "config.json", {**config, **changes})
    if not changes:
        tensors = load_file(model / "model.safetensors")
        save_file({**tensors, HOSTILE: next(iter(tensors.values()))}, model / "model.safetensors")
    durable.write_manifest(model)
    return model


def test_the_name_of_a_tensor(run_copy: Path, corpus: Path, settings: list[str], tmp_path: Path) -> None:
    model = rewritten(run_copy / "model")
    shown("report", run_copy)
    text = shown("train", *settings, f"training.init_from={model}", f"run_dir={tmp_path / 'new'}", code=1)
    assert "owned" in text
    assert "owned" in shown("translate", model, code=1)
