"""What a run directory holds is read from its files alone."""

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import mtx.storage.run_directory
from mtx.config import settings
from mtx.config.limits import MAX_COUNT
from mtx.config.schema import Config
from mtx.errors import DamagedFileError, UsageError
from mtx.report.run_history import training_history
from mtx.storage import durable
from mtx.storage.run_directory import KILLED, RunState, is_finished, read_events, read_status, run_state
from mtx.storage.run_files import (
    MARIAN_SOURCE_MODEL,
    MODEL_CONFIG,
    OPTIMIZER,
    REPORT,
    STATE,
    WEIGHTS,
    RunLayout,
    checkpoint_steps,
    find_model,
    full_checkpoint_steps,
    has_begun,
    require_run,
    stored_scores,
    translated_tests,
)

END: list[dict[str, Any]] = [{"event": "train", "step": 9}, {"event": "end", "step": 9}]


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


def test_checkpoints_are_recognised_by_name_and_manifest(run: RunLayout) -> None:
    assert checkpoint_steps(run) == [] and not has_begun(run)
    for step, names in ((100, (WEIGHTS, OPTIMIZER)), (20, (WEIGHTS,)), (3, (WEIGHTS, OPTIMIZER))):
        with durable.new_directory(run.checkpoint(step)) as new:
            for name in names:
                (new / name).touch()
    for name in ("step-new", "damaged-step-00000050", ".tmp-1"):
        (run.checkpoints / name).mkdir()
    (run.checkpoint(3) / "manifest.json").write_text("{")  # loading it reports the damage
    assert checkpoint_steps(run) == [3, 20, 100] and full_checkpoint_steps(run) == [3, 100] and has_begun(run)


def test_a_run_directory_means_its_model_directory_if_it_has_one(run: RunLayout) -> None:
    assert find_model(run.root) == run.root
    run.model.mkdir()
    assert find_model(run.root) == run.model and find_model(run.model) == run.model
    with pytest.raises(UsageError, match="not a run directory"):
        require_run(run.root)


def test_what_is_no_model_directory_is_told_with_the_path_to_give(run: RunLayout) -> None:
    checkpoint, marian = run.checkpoint(600), run.root / "huggingface"
    for file in (
        run.config,
        checkpoint / STATE,
        run.data / REPORT,
        marian / MODEL_CONFIG,
        marian / MARIAN_SOURCE_MODEL,
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for path, what, hint in (
        (checkpoint, "a part of a run", "MODEL is a run directory or a model directory"),
        (run.data, "a part of a run", "MODEL is a run directory or a model directory"),
        (marian, "a MarianMT directory", f"import {marian} -o MODEL"),
    ):
        with pytest.raises(UsageError, match=what) as caught:
            find_model(path)
        assert hint in (caught.value.help or "")


def test_a_test_set_is_translated_if_it_has_hypotheses(run: RunLayout) -> None:
    assert translated_tests(run) == []
    for name in ("b", "a", "half", "kept-a", "damaged-b"):
        (run.evaluation / name).mkdir(parents=True)
        (run.evaluation / name / ("src.txt" if name == "half" else "hyp.txt")).touch()
    assert translated_tests(run) == ["a", "b"]


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
    assert mtx.storage.run_directory._MAX_BYTES >= 500 * MAX_COUNT, "a step has about 300 bytes"


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


@pytest.mark.parametrize("scores", [{"test": 3}, {"test": {"bleu": {"score": "x"}}}, {"test": {"bleu": 1}}])
def test_scores_that_are_none_are_told_by_their_file(scores: dict[str, Any], run: RunLayout) -> None:
    run.config.write_text(settings.dump(Config()))
    run.model.mkdir()
    durable.write_json(run.model / "scores.json", scores)
    with pytest.raises(DamagedFileError, match="scores.json: no BLEU scores"):
        read_status(run.root)
