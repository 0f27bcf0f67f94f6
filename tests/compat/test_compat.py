"""What earlier versions wrote works, and what they named is there (README.md says how the files were made).

One of an earlier format than the first release is refused in one line.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mtx.storage import durable
from mtx.training.checkpoint import load_state
from tests.compat.names import names
from tests.integration.commands import check_error, events, mtx, tree

FILES = Path(__file__).parent
RUN = FILES / "format-2" / "run"
VERSIONS = sorted(path.parent.name for path in FILES.glob("*/names.txt"))
TEXT, TRANSLATION = "red dog\nnew hat\n", "rot Hund\nneu Hut\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def translation(model: Path) -> str:
    result = mtx("translate", model, stdin=TEXT.encode())
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


@pytest.mark.parametrize("version", ["format-2", *VERSIONS])
def test_a_run_translates_and_resumes(version: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(FILES / version / "run", tmp_path / "run"))
    for manifest in run.rglob(durable.MANIFEST):
        durable.verify(manifest.parent)
    for model in (run, run / "model"):
        assert translation(model) == TRANSLATION
    [checkpoint] = (run / "checkpoints").iterdir()
    state = load_state(checkpoint / "state.json")
    if version == "format-2":
        assert state.best_score == 100.0, "its name was best_bleu"
    last = state.step + 2
    result = mtx("train", run, f"training.max_steps={last}")
    assert result.returncode == 0, result.stderr.decode()
    ends = [event["step"] for event in events(run) if event["event"] in ("start", "end")]
    assert ends == [0, state.step, state.step, last]
    losses = [event["loss"] for event in events(run) if event["event"] == "train"]
    assert len(losses) == 2 and max(losses) < 0.1, "it has forgotten nothing"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_is_evaluated_exported_and_a_start_for_another(version: str, tmp_path: Path) -> None:
    run = FILES / version / "run"
    shutil.copytree(run, tmp_path / "run")
    for command in (
        ("evaluate", tmp_path / "run"),
        ("export", run / "model", "--to", "ctranslate2", "-o", tmp_path / "exported"),
        ("train", "adapt", f"training.init_from={run}", f"run_dir={tmp_path / 'adapted'}", "training.max_steps=2",
         f"data.train={_write_pairs(tmp_path / 'more.tsv')}"),
    ):  # fmt: skip
        result = mtx(*command)
        assert result.returncode == 0, result.stderr.decode()
    assert translation(tmp_path / "exported") == TRANSLATION


def _write_pairs(path: Path) -> Path:
    lines = (FILES / VERSIONS[0] / "run" / "evaluation" / "test" / name for name in ("src.txt", "ref.txt"))
    src, tgt = (file.read_text(encoding="utf-8").splitlines() for file in lines)
    path.write_text("".join(f"{a}\t{b}\n" for a, b in zip(src, tgt, strict=True)), encoding="utf-8")
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_a_ctranslate2_export_translates(version: str) -> None:
    durable.verify(FILES / version / "ctranslate2")
    assert translation(FILES / version / "ctranslate2") == TRANSLATION


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hugging_face_export_translates_there_and_here(version: str, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    exported = FILES / version / "huggingface"
    durable.verify(exported)
    tokenizer = transformers.MarianTokenizer.from_pretrained(exported)
    model = transformers.MarianMTModel.from_pretrained(exported)
    ids = model.generate(**tokenizer(TEXT.splitlines(), return_tensors="pt", padding=True))
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == TRANSLATION.splitlines()
    result = mtx("import", exported, "-o", tmp_path / "imported")
    assert result.returncode == 0, result.stderr.decode()
    assert translation(tmp_path / "imported") == TRANSLATION


@pytest.mark.parametrize("version", VERSIONS)
def test_all_names_of_a_version_are_there(version: str) -> None:
    listed = (FILES / version / "names.txt").read_text(encoding="utf-8").splitlines()
    assert len(listed) > 300
    assert sorted({*listed} - {*names()}) == [], "a later version of the same major number keeps these names"


def test_a_run_whose_time_limit_has_no_unit_resumes(run: Path) -> None:
    """Versions before 2026-11-27 wrote seconds like this."""
    config = run / "config.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("time_limit: null", "time_limit: 240.0"), encoding="utf-8")
    for command in ("status", "config"):
        result = mtx(command, run)
        assert result.returncode == 0, result.stderr.decode()
    assert b"time_limit: 240s" in result.stdout
    result = mtx("train", run, "training.max_steps=162")
    assert result.returncode == 0, result.stderr.decode()
    assert b", at most 2 more steps (" in result.stderr
    assert "  time_limit: 240s\n" in config.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [("train",), ("train", "--dry-run"), ("translate",), ("status",), ("evaluate",)])
def test_a_run_of_an_earlier_format_is_refused(run: Path, command: tuple[str, ...]) -> None:
    for path in run.rglob("*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace('"format": 2', '"format": 1'), encoding="utf-8")
    before = tree(run)
    result = mtx(*command, run)
    check_error(
        result.returncode, result.stderr.decode(), 2, "made by an earlier version of mtx", "train again", "2bb7301"
    )
    assert tree(run) == before
