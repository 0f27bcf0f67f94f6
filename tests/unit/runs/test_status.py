"""The state of a run is read from its lock, its files and its events, whatever they hold."""

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import mtx.runs.run_directory
from mtx.config import settings
from mtx.config.limits import MAX_COUNT
from mtx.config.schema import Config
from mtx.report.run_history import training_history
from mtx.runs.run_directory import KILLED, RunState, is_finished, read_events, read_status, run_state
from mtx.storage import durable
from mtx.storage.run_files import (
    RunLayout,
    stored_scores,
)

END: list[dict[str, Any]] = [{"event": "train", "step": 9}, {"event": "end", "step": 9}]


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


def test_the_state_of_a_run(run: RunLayout) -> None:
    assert run_state(run, []) == RunState("new")
    run.data.mkdir()
    durable.write_json(run.status, {"state": "failed", "reason": "no text"})
    assert run_state(run, []) == RunState("prepared", "failed", "no text")
    durable.write_json(run.status, {"state": "running", "reason": ""})
    assert run_state(run, END) == RunState("stopped", "stopped", KILLED), "it is not scored"
    run.model.mkdir()
    durable.write_json(
        run.model / "scores.json", {"t": {"bleu": {"score": 30.0}, "chrf": {"score": 60.0}}, "run": {"seed": 1}}
    )
    assert stored_scores(run) == {"t": {"bleu": {"score": 30.0}, "chrf": {"score": 60.0}}}
    assert is_finished(run, END) and run_state(run, END) == RunState("finished")
    assert not is_finished(run, [*END, {"event": "start", "step": 9}]), "it is trained on"
    with FileLock(run.lock):
        assert run_state(run, END) == RunState("running") and is_finished(run, END)


@pytest.mark.parametrize("line", [
    '{"event": "validation"}', '{"event": "validation", "step": 5}', '{"event": "validation", "step": "x", "bleu": 1}',
    '{"event": "validation", "step": 5, "bleu": NaN}', '{"event": "train", "step": null}', '{"event": ["x"]}', "3",
    '{"event": "train", "step": 1, "left_s": "x"}', '{"event": "end", "step": [], "time": {}}', "[]", "{",
    '{"event": "train", "step": 1' + "0" * 400 + "}",
])  # fmt: skip
def test_a_line_that_is_no_event_is_skipped_and_the_status_is_told(line: str, run: RunLayout) -> None:
    run.config.write_text(settings.dump(Config()))
    good = '{"event": "validation", "step": 4, "bleu": 2.5, "left_s": null, "time": 1.5}'
    run.metrics.write_text(f"{line}\n{good}\n{line}\n")
    assert [event["step"] for event in read_events(run.metrics)] == [4]
    assert "best:      2.50 at step 4" in "\n".join(read_status(run.root).lines())


def test_a_long_run_is_read_in_pieces_of_bounded_size(run: RunLayout) -> None:
    event = b'{"event": "train", "step": 4}\n'
    with run.metrics.open("wb") as file:
        file.truncate(40 << 20)  # a hole, which has no end of a line
        file.seek(0)
        file.write(event)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + event)
    tracemalloc.start()
    try:
        assert [event["step"] for event in read_events(run.metrics)] == [4, 4]
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert mtx.runs.run_directory._MAX_BYTES >= 500 * MAX_COUNT, "a step has about 300 bytes"


def test_the_events_of_a_long_run_take_little_memory_and_its_status_few_of_them(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.config.write_text(settings.dump(Config()))
    step = {"event": "train", "time": 1.0, "nll": 2.0, "left_s": 7.0, "text": "x" * 150}
    with run.metrics.open("w") as file:
        file.writelines(json.dumps({**step, "step": number}) + "\n" for number in range(1, 20_001))
    tracemalloc.start()
    try:
        history = training_history(read_events(run.metrics))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20, "200 bytes a step"
    finally:
        tracemalloc.stop()
    assert len(history.curve("train", "nll").steps) == 400
    read, loads = list[str](), json.loads
    monkeypatch.setattr("json.loads", lambda text: (read.append(text), loads(text))[1])
    status = read_status(run.root)
    assert (status.step, status.left_s) == (20_000, 7.0) and len(read) < 5000
