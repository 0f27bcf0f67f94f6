"""A run of today's format works (README.md says how it was made); one of an earlier format is refused in one line."""

import shutil
from pathlib import Path

import pytest

from mtx.storage import durable
from mtx.training.checkpoint import load_state
from tests.integration.commands import check_error, events, mtx, tree

RUN = Path(__file__).parent / "format-2" / "run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def test_a_run_translates_and_resumes(run: Path) -> None:
    for manifest in run.rglob(durable.MANIFEST):
        durable.verify(manifest.parent)
    for model in (run, run / "model"):
        result = mtx("translate", model, stdin=b"red dog\nnew hat\n")
        assert (result.returncode, result.stdout) == (0, b"rot Hund\nneu Hut\n"), result.stderr.decode()
    state = load_state(run / "checkpoints" / "step-00000160" / "state.json")
    assert state.best_score == 100.0, "its name was best_bleu"
    result = mtx("train", run, "training.max_steps=162")
    assert result.returncode == 0, result.stderr.decode()
    assert [event["step"] for event in events(run) if event["event"] in ("start", "end")] == [0, 160, 160, 162]
    losses = [event["loss"] for event in events(run) if event["event"] == "train"]
    assert len(losses) == 2 and max(losses) < 0.1, "it has forgotten nothing"


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
