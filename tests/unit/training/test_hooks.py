import contextlib
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from mtx.config import settings
from mtx.errors import DamagedFileError, DeferredErrors, UsageError
from mtx.formatting import format_duration
from mtx.runs.run_directory import is_locked, read_status
from mtx.storage.run_files import RunLayout
from mtx.training.checkpoint import State
from mtx.training.events import Validation
from mtx.training.hooks import Console, EventLog, Hook
from mtx.training.trainer import Progress


@pytest.fixture
def run(tmp_path: Path) -> Path:
    resolved = settings.resolve(None, [f"run_dir={tmp_path}", "training.max_steps=100"])
    (tmp_path / "config.yaml").write_text(settings.dump(resolved.config), encoding="utf-8")
    return tmp_path


def _write(run: Path, *events: dict[str, Any]) -> None:
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


class Trained:
    """What hooks see of a trainer, which takes steps of 100 tokens."""

    def __init__(self, root: Path, last: int | None, *hooks: Hook):
        self.paths, self.deferred_errors, self.cleanup = RunLayout(root), DeferredErrors(), contextlib.ExitStack()
        self.state, self.schedule, self.last, self.hooks = State(), self, last, hooks
        self.progress = Progress(0)
        self.progress.restart()
        for hook in hooks:
            hook.on_start(self)  # type: ignore[arg-type]

    def known_end(self, state: State) -> int | None:
        return self.last

    def elapsed_s(self) -> float:
        return 30.0

    def step(self, step: int) -> None:
        update: Any = SimpleNamespace(step=step, num_tgt_tokens=100, learning_rate=0.1, epochs=0.0)
        figures = self.progress.measure(update, [2.0, 150.0, 1.0], self.last or 600, math.inf)
        figures["max_steps"] = self.known_end(self.state)
        for hook in self.hooks:
            hook.on_event(self, "train", figures)  # type: ignore[arg-type]
            hook.on_step(self, figures)  # type: ignore[arg-type]


def test_events_are_lines_and_follow_a_half_written_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "start"}\n{"event": "tr')
    run = Trained(tmp_path, 20, EventLog())
    for step in range(1, 21):
        run.step(step)
    run.cleanup.close()
    lines = path.read_text().split("\n")
    assert lines[1] == '{"event": "tr' and lines[-1] == ""
    events = [json.loads(line) for line in lines[2:-1]]
    assert [(event["event"], event["step"]) for event in events] == [("train", step) for step in range(1, 21)]
    assert events[-1]["left_s"] == 0 and events[0]["tgt_tokens_per_s"] > 0


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_events_do_not_go_through_a_link_that_no_reader_follows(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    path, other = tmp_path / "run" / "metrics.jsonl", tmp_path / "thesis.txt"
    other.write_text("mine")
    path.symlink_to(other)
    with pytest.raises(DamagedFileError, match="a link to another directory"):
        Trained(tmp_path / "run", 20, EventLog())
    assert other.read_text() == "mine"


def test_speed_is_taken_over_several_steps_whose_figures_come_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    path = tmp_path / "metrics.jsonl"
    run = Trained(tmp_path, 40, EventLog())
    for step in range(1, 41):
        now += 4.0 if step % 4 == 1 else 1e-6
        run.step(step)
    rates = [json.loads(line)["tgt_tokens_per_s"] for line in path.read_text().splitlines()]
    assert all(50 < rate < 200 for rate in rates[8:])


def test_status_of_a_new_and_a_stopped_run(run: Path) -> None:
    assert read_status(run).state == "new" and not (run / "run.lock").exists()
    _write(
        run,
        {"event": "train", "step": 30, "left_s": 7.5},
        {"event": "validation", "step": 40, "bleu": 21.5},
        {"event": "validation", "step": 60, "bleu": 20.5},
    )
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "st')
    status = read_status(run)
    assert (status.state, status.step, status.max_steps) == ("stopped", 60, 100)
    assert (status.best_step, status.left_s) == (40, 7.5)
    assert (status.best_metric, status.best_score) == ("BLEU", 21.5)
    assert "best:      21.50 at step 40 (validation BLEU)" in status.lines()


def test_status_names_the_metric_that_decided(run: Path) -> None:
    """A validation without a figure by that metric is no part of the choice."""
    figures = [(20, 3.0, None), (40, 0.0, 61.5), (60, 2.0, 60.0)]
    values: list[dict[str, Any]] = [{"event": "validation", "step": step, "bleu": bleu} for step, bleu, _ in figures]
    _write(
        run,
        values[0],
        *(value | {"chrf": chrf, "decides": "chrf"} for value, (*_, chrf) in zip(values[1:], figures[1:], strict=True)),
    )
    status = read_status(run)
    assert (status.best_metric, status.best_score, status.best_step) == ("chrF2", 61.5, 40)
    assert "best:      61.50 at step 40 (validation chrF2)" in status.lines()


def test_status_of_a_running_run_does_not_disturb_it(run: Path) -> None:
    _write(run, {"event": "start", "step": 0})
    with FileLock(run / "run.lock"):
        assert read_status(run).state == "running"


def test_finished_means_scored_and_ended(run: Path) -> None:
    scores = {"format": 2, "t": {"bleu": {"score": 30.0, "signature": ""}, "chrf": {"score": 60.0}}, "run": {}}
    (run / "model").mkdir()
    (run / "model" / "scores.json").write_text(json.dumps(scores) + "\n")
    _write(run, {"event": "end", "step": 100, "reason": "max_steps"})
    assert read_status(run).state == "finished" and read_status(run).scores == {"t": 30.0}
    _write(run, {"event": "end", "step": 100}, {"event": "start", "step": 100})
    assert read_status(run).state == "stopped"
    (run / "model" / "scores.json").write_text('{"format": 2, "t": 3}' + "\n")
    with pytest.raises(DamagedFileError, match=r"scores\.json"):
        read_status(run)


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run directory"):
        read_status(tmp_path)


@pytest.mark.parametrize("seconds, text", [(0, "0 s"), (89, "89 s"), (600, "10 min"), (12000, "3 h 20 min")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_line_shows_the_speed_and_the_time_left_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    caplog.set_level("INFO")
    run = Trained(tmp_path, 600, EventLog(), Console())
    for step in range(1, 51):
        now += 1.0
        run.step(step)
    speed = "loss 2.000, lr 1.00e-01, 100 target tokens/s"
    lines = [record.message for record in caplog.records]
    assert lines == [f"step 10 of 600: {speed}, 10 min left", f"step 40 of 600: {speed}, 9 min left"]


def test_a_line_has_no_total_that_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    caplog.set_level("INFO")
    console = Console()
    run: Any = Trained(tmp_path, None, console)
    for step in range(1, 41):
        now += 1.0
        run.last = 500 if step > 20 else None
        run.step(step)
        if step == 20:
            run.last = 700  # which the validation may change
            run.state = State(20)
            console.on_validation(run, Validation(3.0, 0.0, None, 1.0, [], [], 1.0), run)
    starts = [record.message.partition(":")[0] for record in caplog.records]
    assert starts == ["step 10", "step 20", "step 40 of 500"]


def test_status_has_the_total_that_training_has_estimated(run: Path) -> None:
    limited = settings.resolve(str(run), ["training.time_limit=30m"]).config
    (run / "config.yaml").write_text(settings.dump(limited), encoding="utf-8")
    shown = []
    for last in ((), (None,), (None, 90), (90, None)):
        events = ({"event": "train", "step": step, "max_steps": end} for step, end in enumerate(last, 1))
        _write(run, *events, {"event": "validation", "step": 9, "bleu": 1.0})
        shown.append(read_status(run).progress())
    assert shown == ["9", "9", "9 of 90", "9"]


@pytest.mark.skipif(not hasattr(os, "fork") or os.geteuid() != 0, reason="becomes another user")
def test_who_may_only_read_a_run_sees_that_it_runs(run: Path) -> None:
    _write(run, {"event": "start", "step": 0})
    for path in (run, *run.parents):
        if path.owner() == "root" and str(path).startswith("/tmp/"):
            path.chmod(0o755)
    with FileLock(run / "run.lock"):
        (run / "run.lock").chmod(0o644)
        child = os.fork()
        if not child:
            os.setgid(65534)
            os.setuid(65534)
            os._exit(0 if is_locked(run / "run.lock") else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    child = os.fork()
    if not child:
        os.setuid(65534)
        os._exit(1 if is_locked(run / "run.lock") else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
