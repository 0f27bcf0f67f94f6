"""Killed, stopped and interrupted runs go on by the same command, to the same bits on the CPU."""

import json
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.integration.commands import check_error, end_at_step, events, mtx, start, tree, wait_until, write_tsv
from tests.rig import PATIENCE_S

WEIGHTS = Path("model", "model.safetensors")


@pytest.fixture(scope="module")
def uninterrupted_fp32(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("fp32") / "run"
    assert mtx("train", *settings, "precision=fp32", f"run_dir={run}").returncode == 0
    return run


def _position(run: Path, step: int) -> dict[str, int]:
    state = json.loads((run / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())
    return dict(state["position"])


@pytest.mark.parametrize("precision", ["auto", pytest.param("fp32", marks=pytest.mark.extended)])
def test_killed_twice_within_an_epoch_gives_the_same_bits(
    precision: str, trained: Path, settings: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = trained if precision == "auto" else request.getfixturevalue("uninterrupted_fp32")
    run, arguments = tmp_path / "run", [*settings, f"precision={precision}"]
    epochs = []
    for step in (4, 8):
        assert end_at_step(run, step, signal.SIGKILL, *arguments)[0] == -signal.SIGKILL
        epochs.append(_position(run, step)["epoch"])
    assert epochs == [0, 0]
    long_ago = json.dumps({"event": "train", "time": time.time(), "step": 9, "elapsed_s": 5000.0})
    with (run / "metrics.jsonl").open("a") as file:  # the killed process went on after its last checkpoint
        file.write(f"{long_ago}\n")
    last = mtx("train", *arguments, f"run_dir={run}")
    assert last.returncode == 0, last.stderr.decode()
    assert (run / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    name = Path("checkpoints", "step-00000040", "optimizer.safetensors")
    assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert last.stdout == (trained.parent / "stdout").read_bytes() or precision == "fp32"
    assert not [name for name in tree(run) if ".tmp-" in name]
    assert len([event for event in events(run) if event["event"] == "start"]) == 3
    elapsed = [event["elapsed_s"] for event in events(run) if event["event"] == "train"]
    assert elapsed == sorted(elapsed) and elapsed[-1] > 5000, "a time limit counts the time that a kill has lost"


def test_stopped_by_signals_saves_and_goes_on_to_the_same_bits(
    trained: Path, settings: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    code, err = end_at_step(run, 4, signal.SIGTERM, *settings)
    check_error(code, err, 143, "the state is saved", "same command")
    newest = max((run / "checkpoints").iterdir())
    assert (newest / "optimizer.safetensors").exists()
    stopped_at = int(newest.name.removeprefix("step-"))
    assert f"after step {stopped_at};" in err
    code, err = end_at_step(run, 16, signal.SIGINT, *settings)
    check_error(code, err, 130, "the state is saved")
    assert mtx("train", *settings, f"run_dir={run}").returncode == 0
    assert (run / WEIGHTS).read_bytes() == (trained / WEIGHTS).read_bytes()


@pytest.mark.extended
def test_epochs_end_at_the_first_step_after_them_however_often_training_stops(
    run_copy: Path, settings: list[str], tmp_path: Path
) -> None:
    """A run of 40 steps goes on to the end of its next epoch: at once, and killed on the way."""
    killed = Path(shutil.copytree(run_copy, tmp_path / "killed"))
    epochs = _position(run_copy, 40)["epoch"] + 2
    whole = mtx("train", run_copy, f"training.max_epochs={epochs}")
    assert whole.returncode == 0, whole.stderr.decode()
    steps = [event for event in events(run_copy) if event["event"] == "train"]
    assert [event["epochs"] >= epochs for event in steps[-2:]] == [False, True]
    assert steps[-1]["max_steps"] == steps[-1]["step"] and abs(steps[41]["max_steps"] - steps[-1]["step"]) <= 3
    assert events(run_copy)[-1] | {"time": 0} == {"event": "end", "time": 0, "step": steps[-1]["step"],
                                                  "reason": "max_epochs"}  # fmt: skip
    assert end_at_step(killed, 44, signal.SIGKILL, killed, f"training.max_epochs={epochs}")[0] == -signal.SIGKILL
    stopped = json.loads(mtx("status", killed, "--json").stdout)
    assert (stopped["state"], stopped["max_epochs"]) == ("stopped", epochs) and stopped["epochs"] < epochs
    again = mtx("train", killed)
    assert again.returncode == 0 and again.stdout == whole.stdout, again.stderr.decode()
    assert (killed / WEIGHTS).read_bytes() == (run_copy / WEIGHTS).read_bytes()
    told = mtx("train", killed).stderr.decode()
    assert "this run is finished; increase training.max_epochs to train further" in told
    assert f"(epoch {epochs}.0 of {epochs})" in mtx("status", killed).stdout.decode()


MEANS = [
    "training.bpe_dropout=0.2", "training.copied_target_ratio=0.5", "training.rdrop_alpha=3", "training.cooldown=0.4",
    "training.best_metric=nll", "training.upper_case=0.2", "training.title_case=0.1", "training.no_end_punctuation=0.2",
    "training.typing_errors=0.3",
]  # fmt: skip


@pytest.mark.extended
def test_with_all_that_helps_small_corpora_a_killed_run_has_the_same_bits(settings: list[str], tmp_path: Path) -> None:
    """It is killed before the cooldown and in it; which text the epochs have, and when it ends, stays the same."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert mtx("train", *settings, *MEANS, f"run_dir={whole}").returncode == 0
    for step in (8, 32):
        assert end_at_step(killed, step, signal.SIGKILL, *settings, *MEANS)[0] == -signal.SIGKILL
    last = mtx("train", *settings, *MEANS, f"run_dir={killed}")
    assert last.returncode == 0, last.stderr.decode()
    for name in ("model.safetensors", "optimizer.safetensors"):
        path = Path("checkpoints", "step-00000040", name)
        assert (killed / path).read_bytes() == (whole / path).read_bytes()
    assert (killed / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    plan = {"event": "cooldown", "first": 25, "last": 40, "reason": "max_steps"}
    assert [event | {"time": 0} for event in events(whole) if event["event"] == "cooldown"] == [plan | {"time": 0}]
    rates = {event["step"]: event["learning_rate"] for event in events(whole) if event["event"] == "train"}
    assert rates[40] < 0.1 * rates[24] and rates[25] < rates[24]
    validations = [event for event in events(whole) if event["event"] == "validation"]
    best = min(validations, key=lambda event: float(event["nll"]))
    status = json.loads(mtx("status", whole, "--json").stdout)
    assert (status["best_metric"], status["best_score"]) == ("nll", best["nll"])


def test_killed_while_scoring_scores_again(run_copy: Path, trained: Path, settings: list[str]) -> None:
    shutil.rmtree(run_copy / "evaluation")
    (run_copy / "model" / "scores.json").unlink()  # it is written last, into the manifest too
    again = mtx("train", *settings, f"run_dir={run_copy}")
    assert again.returncode == 0, again.stderr.decode()
    assert again.stdout == (trained.parent / "stdout").read_bytes()
    assert (run_copy / WEIGHTS).read_bytes() == (trained / WEIGHTS).read_bytes()


def wait_before(name: str, gate: Path) -> None:
    """In a new process: what the module of the stages calls by this name waits, and tells so by a file."""
    from mtx.training import run

    def wait(*arguments: object) -> None:
        gate.touch()
        time.sleep(PATIENCE_S)

    setattr(run, name, wait)


@pytest.mark.parametrize("number, stage", [(signal.SIGTERM, "_write_model"), (signal.SIGINT, "_translate")])
def test_interrupted_scoring_resumes_to_the_same_scores(
    number: signal.Signals, stage: str, trained: Path, settings: list[str], tmp_path: Path
) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate"
    process = start("train", *settings, f"run_dir={run}", first=partial(wait_before, stage, gate))
    wait_until(gate.exists, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    check_error(process.returncode, err.decode(), 128 + number, number.name, "rerun the same command to resume")
    status = json.loads(mtx("status", run, "--json").stdout)
    assert (status["state"], status["step"], status["reason"]) == ("stopped", 40, f"interrupted by {number.name}")
    again = mtx("train", *settings, f"run_dir={run}")
    assert again.returncode == 0 and again.stdout == (trained.parent / "stdout").read_bytes(), again.stderr.decode()
    assert (run / WEIGHTS).read_bytes() == (trained / WEIGHTS).read_bytes()


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_interrupted_preparation_leaves_nothing(number: signal.Signals, code: int, tmp_path: Path) -> None:
    corpus = write_tsv(tmp_path / "large.tsv", range(10**6, 10**6 + 60_000))
    run = tmp_path / "runs" / "run"
    process = start("prepare", f"data.train={corpus}", "data.src=en", "data.tgt=de", f"run_dir={run}")
    wait_until(lambda: any(run.glob(".tmp-*/.tmp-cleaned.arrow")), process)
    time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    check_error(process.returncode, err.decode(), code, "rerun the same command to prepare the text from the start")
    assert out == b"" and not (tmp_path / "runs").exists()


def test_interrupted_translation_ends_with_one_line(trained: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one two three\n" * 20_000)
    out = tmp_path / "out"
    process = start("translate", trained, text, "-o", out)
    wait_until(lambda: (tmp_path / "out.part").exists(), process)
    process.send_signal(signal.SIGINT)
    stdout, err = process.communicate(timeout=PATIENCE_S)
    check_error(process.returncode, err.decode(), 130, "interrupted by SIGINT", "rerun the same command to resume")
    assert stdout == b"" and {path.name for path in tmp_path.iterdir()} == {"text", "out.part"}, "it can go on"


def test_a_half_written_event_does_not_spoil_the_next(run_copy: Path, settings: list[str]) -> None:
    with (run_copy / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "st')
    assert mtx("train", *settings, f"run_dir={run_copy}", "training.max_steps=41").returncode == 0
    bad = []
    for line in (run_copy / "metrics.jsonl").read_text().split("\n")[:-1]:
        try:
            json.loads(line)
        except ValueError:
            bad.append(line)
    assert bad == ['{"event": "train", "st']
