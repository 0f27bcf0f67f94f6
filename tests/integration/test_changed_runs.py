"""Settings and text that were changed behind a run's back are noticed by every command that reads them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mtx.storage import durable
from tests.integration.commands import mtx, set_settings, tree, write_tsv

Refused = Callable[..., None]
READERS = [("train",), ("prepare",), ("config",), ("evaluate",), ("report",), ("status",), ("train", "--dry-run")]


def edit(run: Path, old: str, new: str) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    assert text.count(old) == 1
    config.write_text(text.replace(old, new))


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_an_edited_configuration_is_refused(command: tuple[str, ...], run_copy: Path, refused: Refused) -> None:
    edit(run_copy, "num_heads: 2", "num_heads: 8")
    before = tree(run_copy)
    words = ["config.yaml: model.num_heads is 8, it was 2", "mtx train COPY.yaml run_dir=NEW"]
    refused(2, words, *command, run_copy)
    assert tree(run_copy) == before


def test_an_edit_before_the_first_checkpoint_is_refused(settings: list[str], tmp_path: Path, refused: Refused) -> None:
    run = tmp_path / "run"
    assert mtx("prepare", *settings, f"run_dir={run}").returncode == 0
    edit(run, "num_heads: 2", "num_heads: 8")
    refused(2, ["config.yaml: model.num_heads is 8, it was 2"], "train", run)
    assert not (run / "checkpoints").exists()


def test_an_edit_of_what_may_change_applies(run_copy: Path) -> None:
    edit(run_copy, "max_steps: 40", "max_steps: 42  # longer")
    assert mtx("train", run_copy).returncode == 0
    assert b"step:      42 of 42" in mtx("status", run_copy).stdout


def test_a_comparison_refuses_it(trained: Path, run_copy: Path, refused: Refused) -> None:
    edit(run_copy, "seed: 1", "seed: 2")
    refused(2, ["seed is 2, it was 1"], "compare", trained, run_copy)


def test_a_configuration_of_another_run_is_refused(trained: Path, run_copy: Path, refused: Refused) -> None:
    other = shutil.copytree(trained, run_copy.with_name("other"))
    set_settings(other, model__dropout=0.3)
    shutil.copy(other / "config.yaml", run_copy)
    refused(2, ["model.dropout is 0.3, it was 0.1"], "train", run_copy, "training.max_steps=50")


def test_an_edited_configuration_starts_a_new_run(run_copy: Path, tmp_path: Path) -> None:
    edit(run_copy, "num_heads: 2", "num_heads: 4")
    shutil.copy(run_copy / "config.yaml", tmp_path / "COPY.yaml")  # as the help says
    result = mtx("prepare", tmp_path / "COPY.yaml", f"run_dir={tmp_path / 'new'}")
    assert result.returncode == 0, result.stderr.decode()
    assert "num_heads: 4" in (tmp_path / "new" / "config.yaml").read_text()


def test_the_command_that_started_a_run_writes_an_edited_configuration_anew(
    run_copy: Path, settings: list[str], refused: Refused
) -> None:
    edit(run_copy, "num_heads: 2", "num_heads: 8")
    command = ["train", *settings, f"run_dir={run_copy}"]
    refused(2, ["config.yaml: model.num_heads is 8"], "train", run_copy / "config.yaml", command[-1])
    refused(2, ["seed is 7, it was 1"], *command, "seed=7")
    assert "num_heads: 8" in (run_copy / "config.yaml").read_text()
    result = mtx(*command)
    assert result.returncode == 0, result.stderr.decode()
    assert b"this run is finished" in result.stderr and "num_heads: 2" in (run_copy / "config.yaml").read_text()
    assert mtx("status", run_copy).returncode == 0


@pytest.mark.parametrize("key, value", [
    ("precision", "bf17"), ("kernel", "nonsense"), ("micro_batch_tokens", -1), ("micro_batch_tokens", 1e9),
    ("threads", "x"), ("threads", -1), ("compile", 3), ("device", "tpu"), ("device", 3), ("kernel", []),
])  # fmt: skip
def test_an_impossible_choice_is_refused(key: str, value: object, run_copy: Path, refused: Refused) -> None:
    path = run_copy / "chosen.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    refused(1, [f"chosen.json: {key}: "], "train", run_copy, "training.max_steps=41")


def test_text_that_changed_after_preparation_is_told(tmp_path: Path, settings: list[str]) -> None:
    text = write_tsv(tmp_path / "own.tsv", range(1000, 1200))
    command = ["prepare", *settings, f"data.train={text}", f"run_dir={tmp_path / 'run'}"]
    assert b"has changed" not in mtx(*command).stderr and b"has changed" not in mtx(*command).stderr
    write_tsv(text, range(3000, 3200))
    told = mtx(*command).stderr.decode()
    assert f"warning: {text} has changed since this run prepared its data; the run keeps its prepared text" in told
    assert told.count("warning: ") == 1 and "use a new run_dir=DIR to train on the new text" in told
    text.unlink()
    again = mtx(*command)
    assert again.returncode == 0 and b"has changed" not in again.stderr


def test_a_finished_run_tells_that_its_text_changed(run_copy: Path, corpus: Path) -> None:
    durable.write_json(run_copy / "sources.json", {"files": [{"path": str(corpus), "bytes": 7}]})
    told = mtx("train", run_copy).stderr.decode()
    assert "this run is finished" in told and f"{corpus} has changed since this run" in told
    assert "the run keeps its prepared text" in told


def test_no_path_of_the_text_is_published(trained: Path, corpus: Path) -> None:
    recorded = [file["path"] for file in durable.read_json(trained / "sources.json")["files"]]
    assert recorded == [str(corpus)]
    for path in filter(Path.is_file, (trained / "model").rglob("*")):
        assert str(corpus.parent).encode() not in path.read_bytes(), path


def test_fewer_steps_than_are_done(run_copy: Path) -> None:
    result = mtx("train", run_copy, "training.max_steps=10")
    assert result.returncode == 2 and b"training.max_steps is less than the number of steps" in result.stderr
    assert b"step:      40 of 40\n" in mtx("status", run_copy).stdout
    result = mtx("train", run_copy, "training.max_steps=40")
    assert result.returncode == 0 and result.stdout.startswith(b"heldout BLEU ")


def test_a_run_that_goes_on_keeps_what_its_user_put_there(run_copy: Path) -> None:
    mine = [
        run_copy / name
        for name in ("notes/file", ".tmp-mine/file", "model/notes", "evaluation/heldout/notes/file", "model/kept/file",
                     "checkpoints/step-00000040/notes", "checkpoints/notes", "evaluation/other/hyp.log")
    ]  # fmt: skip
    for path in mine:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(f"mine {path.name}")
    old = (run_copy / "model" / "model.safetensors").read_bytes()
    result = mtx("train", run_copy, "training.max_steps=52")
    assert result.returncode == 0, result.stderr.decode()
    assert mtx("evaluate", run_copy).returncode == 0
    assert (run_copy / "model" / "model.safetensors").read_bytes() != old
    for path in mine:
        places = [path, *run_copy.rglob(f"kept-*/{path.name}"), *run_copy.rglob(f"kept-*/*/{path.name}")]
        assert f"mine {path.name}" in [place.read_text() for place in places if place.is_file()], path


def test_a_model_without_a_manifest_is_set_aside(run_copy: Path) -> None:
    shutil.rmtree(run_copy / "model")
    (run_copy / "model").mkdir()
    (run_copy / "model" / "thesis").write_text("mine")
    result = mtx("train", run_copy)
    assert result.returncode == 0 and b"kept-model: kept, because it contains files" in result.stderr
    assert (run_copy / "kept-model" / "thesis").read_text() == "mine"
    assert (run_copy / "model" / "model.safetensors").exists()
