"""The recipe `adapt` on a tiny model: own and general text, scores before and after, the same result after a kill."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtx.data.token_store import load_prepared
from tests.integration.commands import check_error, mtx, pairs, start, tree, wait_until, write_tsv

Refused = Callable[..., None]
QUICK = [
    "data.max_tokens=32", "training.batch_tokens=256", "training.warmup_steps=2", "training.learning_rate=0.005",
    "training.max_steps=8", "training.checkpoint_every=4", "training.validate_every=4",
]  # fmt: skip


@pytest.fixture
def adaptation(trained: Path, tmp_path: Path) -> list[str]:
    """Own text that spells digits in capitals, ten times as much general text, and a general test set."""
    source = shutil.copytree(trained / "model", tmp_path / "source")
    own = write_tsv(tmp_path / "own.tsv", range(2000, 2200))
    own.write_text("".join(f"{src}\t{tgt.upper()}\n" for src, tgt in pairs(range(2000, 2200))), encoding="utf-8")
    general = write_tsv(tmp_path / "general.tsv", range(3000, 5000))
    test = write_tsv(tmp_path / "general-test.tsv", range(6000, 6030))
    return ["adapt", f"training.init_from={source}", f"data.train={own},{general}", f"data.test=heldout,{test}", *QUICK]


def stored(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "model" / "scores.json").read_text(encoding="utf-8")))


def test_a_model_is_adapted_and_compared_with_itself(adaptation: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    rehearsed = mtx("train", *adaptation, f"run_dir={run}", "--dry-run")
    assert rehearsed.returncode == 0 and not run.exists(), rehearsed.stderr.decode()
    result = mtx("train", *adaptation, f"run_dir={run}", draws=True)
    out, err = result.stdout.decode().splitlines(), result.stderr.decode()
    assert result.returncode == 0, err
    assert "general.tsv: its 2,000 pairs get the weight 0.09, so that they are used at most as often as the 180" in err
    report = json.loads((run / "data" / "report.json").read_text())
    assert [corpus["weight"] for corpus in report["corpora"]] == [1.0, 0.09]
    assert [line.split()[0] for line in out[:4]] == ["heldout", "general-test", "heldout", "general-test"] and all(out)
    scores = stored(run)
    assert list(scores)[1:] == ["heldout", "general-test", "run"]
    own, general = scores["run"]["gains"]
    assert (own["is_own"], general["is_own"]) == (True, False)
    for gain, line in ((own, out[2]), (general, out[3])):
        name, (bleu, chrf) = gain["test"], gain["changes"]
        before = json.loads((run / "before" / name / "scores.json").read_text())[name]
        assert (bleu["metric"], chrf["metric"]) == ("BLEU", "chrF2")
        assert (bleu["before"], bleu["after"]) == (before["bleu"]["score"], scores[name]["bleu"]["score"])
        assert (chrf["before"], chrf["after"]) == (before["chrf"]["score"], scores[name]["chrf"]["score"])
        points = bleu["after"] - bleu["before"]
        assert f"{name} BLEU {bleu['before']:.1f} before, {bleu['after']:.1f} after: {points:+.1f} (p " in line
        assert (run / "before" / name / "ref.txt").read_bytes() == (run / "evaluation" / name / "ref.txt").read_bytes()
    assert all(line == line.upper() for line in load_prepared(run / "data").tests["heldout"].tgt_texts())
    assert "What did this training change?" in (run / "report.html").read_text(encoding="utf-8")
    again = mtx("train", *adaptation, f"run_dir={run}")
    assert b"this run is finished" in again.stderr and again.stdout == result.stdout


@pytest.mark.extended
def test_a_killed_run_gives_the_same(adaptation: list[str], tmp_path: Path) -> None:
    """Killed while the model is scored before training, and again when a checkpoint is written."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert mtx("train", *adaptation, f"run_dir={whole}").returncode == 0
    for place in (killed / "before" / "heldout", killed / "checkpoints" / "step-00000004"):
        process = start("train", *adaptation, f"run_dir={killed}")
        wait_until(place.is_dir, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    before = tree(killed / "before")
    shutil.rmtree(tmp_path / "source")
    result = mtx("train", killed)
    assert result.returncode == 0 and b"resuming from step " in result.stderr, result.stderr.decode()
    assert tree(killed / "before") == before == tree(whole / "before")
    assert stored(killed)["run"]["gains"] == stored(whole)["run"]["gains"] != []


@pytest.mark.extended
@pytest.mark.seconds
def test_two_devices_score_the_model_before_as_one_does(adaptation: list[str], tmp_path: Path) -> None:
    runs = [tmp_path / "one", tmp_path / "two"]
    for run, options in zip(runs, ([], ["--device", 2]), strict=True):
        result = mtx("train", *adaptation, "precision=fp32", f"run_dir={run}", *options, timeout=120)
        assert result.returncode == 0 and len(result.stdout.splitlines()) >= 4, result.stderr.decode()
    assert tree(runs[0] / "before") == tree(runs[1] / "before")


@pytest.mark.extended
def test_a_model_that_forgets_is_told(adaptation: list[str], tmp_path: Path) -> None:
    """A learning rate that ruins the model: what is lost, and what to change, stands in the scores and the verdict."""
    run = tmp_path / "run"
    result = mtx(
        "train", *adaptation, "training.learning_rate=10", "training.average_last=1", f"run_dir={run}", draws=True
    )
    assert result.returncode == 0
    lost = "general-test falls by "
    assert any(
        line.startswith(lost) and "add more general text" in line for line in result.stdout.decode().splitlines()
    )
    verdict, advice = (
        next(line for line in result.stderr.decode().splitlines() if line.startswith(word))
        for word in ("verdict: ", "advice: ")
    )
    assert lost in verdict and "a third of training.learning_rate" in advice
    assert "add more general text" in (run / "report.html").read_text(encoding="utf-8").partition("What did this")[2]


def test_scores_that_a_stranger_wrote(adaptation: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert mtx("train", *adaptation, f"run_dir={run}", "training.max_steps=1").returncode == 0
    scores = stored(run)
    scores["run"]["gains"] = [{"test": "heldout", "is_own": True, "changes": []}]
    (run / "model" / "scores.json").write_text(json.dumps(scores))
    result = mtx("report", run)
    check_error(result.returncode, result.stderr.decode(), 1, "scores.json: run.gains")


def test_the_recipe_needs_a_model(adaptation: list[str], refused: Refused) -> None:
    words = ["adapt: training.init_from must name the model to adapt", "mtx train adapt training.init_from=MODEL"]
    refused(2, words, "train", *(word for word in adaptation if "init_from" not in word))
