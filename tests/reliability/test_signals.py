"""SIGTERM, SIGINT, SIGHUP and SIGUSR1 anywhere in a run do what they promise, and the run ends with the same bits.

While it prepares, nothing but the text is worth keeping, and the same command starts again; from the first step on a
checkpoint of the last step is there when the process has gone.
"""

import json
import random
import shutil
import time
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1, Signals
from typing import Any

import pytest

from tests.integration.commands import check_error, events, write_sides
from tests.reliability import tiny
from tests.reliability.conftest import size
from tests.reliability.marks import held, mark_calls, mark_times, num_marks, slow, slow_within, together
from tests.rig import Rig, Start

SEED = 11
UPDATE, VALIDATE = "mtx.training.trainer:Trainer.update", "mtx.training.build:validate_part"
LEAVE = "mtx.runs.run_directory:_remove"
PREPARE, SAVE, END = "mtx.data.prepare:prepare", "mtx.training.checkpoint:save", "mtx.training.run:stored_scores"
# where a signal is sent: after so many calls of a function (or one of these), and how long it may take from there
PHASES: list[tuple[str, range, float]] = [
    (PREPARE, range(1, 2), 0.15), (UPDATE, range(1, 2), 0.03), (UPDATE, range(2, 60), 0.03),
    (VALIDATE, range(1, 4), 0.1), (SAVE, range(1, 19), 0.03), ("mtx.training.run:_score", range(1, 2), 0.1),
    (UPDATE, range(60, 61), 0.15),
]  # fmt: skip
NUMBERS = [SIGTERM, SIGINT, SIGUSR1, SIGHUP]
SOON_S = 60.0  # even where the machine is busy with something else
CODES = {SIGTERM: 143, SIGINT: 130, SIGHUP: 129, SIGUSR1: 0}
MARKED = sorted({*(name for name, _, _ in PHASES), END})


@pytest.fixture(scope="module")
def settings(whole: tiny.Whole) -> list[str]:
    return whole.settings


class Trial:
    """One run that is sent one kind of signal in one phase."""

    def __init__(self, rig: Rig, settings: list[str], directory: Path, seed: int):
        self.rig, self.run, self.seed = rig, directory / "run", seed
        self.log, self.marks = directory / "log", directory / "marks"
        directory.mkdir()
        self.arguments = ["train", *settings, f"run_dir={self.run}"]
        self.number: Signals = NUMBERS[seed % len(NUMBERS)]
        self.phase, calls, longest_s = PHASES[seed % len(PHASES)]
        draw = random.Random(SEED * 1000 + seed)
        self.calls, self.delay_s = draw.choice(calls), draw.uniform(0, longest_s)

    def __str__(self) -> str:
        return f"{self.number.name} {self.delay_s:.3f} s after call {self.calls} of {self.phase} (seed {self.seed})"

    def start(self) -> Start:
        first = together, partial(tiny.log_steps, self.log), partial(mark_calls, self.marks, *MARKED)
        return self.rig.start(*self.arguments, first=partial(*first))

    def send(self) -> Start:
        """Start, send the signal, and check how the process ends; SIGUSR1 is sent once more while it prepares."""
        started = self.start()
        if self.number == SIGUSR1:
            assert started.wait_until(lambda: num_marks(self.marks, PREPARE))
            started.send(SIGUSR1)
        assert started.wait_until(lambda: num_marks(self.marks, self.phase) >= self.calls), started.err()
        time.sleep(self.delay_s)
        self.step_sent = len(tiny.steps_done(self.log))
        started.send(self.number)
        self.sent = sent = time.monotonic()
        self.step_after = len(tiny.steps_done(self.log))  # on a busy machine there can be steps between the two
        code = started.wait()
        ended = mark_times(self.marks, END)
        self.was_over = code == 0 and ended[0] < sent + 0.02  # it came as all was done
        assert self.was_over or code == CODES[self.number], f"code {code}: {started.err()}"
        assert time.monotonic() - sent < SOON_S or code == 0
        return started

    def check_stopped(self, err: str) -> None:
        """What is there when a signal has ended the process."""
        done, saved = [s.step for s in tiny.steps_done(self.log)], _saved_steps(self.run)
        check_error(CODES[self.number], err, CODES[self.number])
        if not (self.run / "data").exists():
            assert not done and not saved and not self.run.exists()
            return
        assert max(saved, default=0) >= max(done, default=0) - 1, f"{done[-1:]} was done, {saved[-1:]} is saved"
        later = [s.step for s in tiny.steps_done(self.log) if s.time > self.sent]
        assert len(later) <= 1, f"went on with steps {later}"
        status = json.loads((self.run / "status.json").read_text())
        found = status["state"], status["step"], status["exit_code"]
        assert found == ("stopped", max(saved, default=0), CODES[self.number]), status
        assert status["reason"]

    def check_went_on(self) -> None:
        """SIGUSR1 saves while there are steps, and changes nothing else."""
        status = json.loads((self.run / "status.json").read_text())
        assert (status["state"], status["step"], status["exit_code"]) == ("finished", tiny.MAX_STEPS, 0), status
        saved = {event["step"] for event in events(self.run) if event["event"] == "checkpoint"}
        near = {*range(self.step_sent, self.step_after + 2)}
        assert not 0 < self.step_sent < tiny.MAX_STEPS - 1 or saved & near, f"sent in {self.step_sent}, {saved}"


def _saved_steps(run: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in run.glob("checkpoints/step-*") if (path / "state.json").exists())


@pytest.mark.extended
def test_signals_anywhere_in_a_run(
    rig: Rig, settings: list[str], whole: tiny.Whole, tmp_path: Path, tally: Any
) -> None:
    tried, failures = size(4, 50), []
    for seed in range(tried):
        trial = Trial(rig, settings, tmp_path / str(seed), seed)
        try:
            started = trial.send()
            if trial.number == SIGUSR1 or trial.was_over:
                trial.check_went_on()
            else:
                trial.check_stopped(started.err())
                again = trial.start()
                assert again.wait() == 0, again.err()
            tiny.check_lineage(trial.log, trial.run)
            assert not tiny.same_bits(trial.run, whole.run) and not tiny.left_over(trial.run)
            shutil.rmtree(trial.run)
        except AssertionError as error:
            failures.append(f"{trial}: {error}")
        print(f"{trial}: {failures[-1] if failures and failures[-1].startswith(str(trial)) else 'held'}")
    tally("signals anywhere in a run: the exit code, what is saved, the bits", tried, tried - len(failures))
    assert not failures


@pytest.mark.parametrize("number", NUMBERS[: size(1, 2)])
def test_a_long_validation_ends_at_once(rig: Rig, settings: list[str], tmp_path: Path, number: Signals) -> None:
    write_sides(tmp_path, "long", range(10**25, 10**25 + size(1500, 6000)))
    run, marks = tmp_path / "run", tmp_path / "marks"
    arguments = [*settings, f"data.valid={tmp_path / 'long'}", "data.max_tokens=64", f"run_dir={run}"]
    started = rig.start("train", *arguments, first=partial(mark_calls, marks, VALIDATE))
    assert started.wait_until(lambda: num_marks(marks, VALIDATE)), started.err()
    time.sleep(0.5 if number == SIGTERM else 0.05)
    assert not started.ended()
    started.send(number)
    assert started.wait() == CODES[number], started.err()
    assert _saved_steps(run)[-1] == 15 and "validation" not in {event["event"] for event in events(run)}


@pytest.mark.parametrize("number", NUMBERS[: size(1, 2)])
def test_a_second_signal_leaves_at_once_though_a_save_is_slow(
    rig: Rig, settings: list[str], whole: tiny.Whole, tmp_path: Path, number: Signals
) -> None:
    run, log = tmp_path / "run", tmp_path / "slow"
    slow_save = partial(slow_within, log, SAVE, "mtx.storage.disk:write", 10 * SOON_S)
    started = rig.start("train", *settings, f"run_dir={run}", first=slow_save)
    assert started.wait_until(lambda: num_marks(log, "mtx.storage.disk:write"))
    started.send(number)
    time.sleep(0.4)
    assert not started.ended(), "the first signal waits for the save"
    started.send(number)
    sent = time.monotonic()
    assert started.wait() == CODES[number]
    assert time.monotonic() - sent < SOON_S
    assert not (run / "status.json").exists(), "it is not running"
    assert rig.run("train", *settings, f"run_dir={run}").code == 0
    assert not tiny.same_bits(run, whole.run) and not tiny.left_over(run)


def test_sigusr1_while_torch_is_loaded_does_not_end_the_command(rig: Rig, settings: list[str], tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    resolve = "mtx.commands.train:resolve"
    first = partial(together, partial(slow, resolve, 0.3), partial(mark_calls, marks, resolve))
    started = rig.start("train", *settings, f"run_dir={tmp_path / 'run'}", "training.max_steps=1", first=first)
    assert started.wait_until(lambda: num_marks(marks, resolve))
    started.send(SIGUSR1)
    assert started.wait() == 0, started.err()


def test_a_signal_in_the_last_save_stops_before_the_scoring(rig: Rig, settings: list[str], tmp_path: Path) -> None:
    run, marks, gate = tmp_path / "run", tmp_path / "marks", tmp_path / "gate"
    arguments = [*settings, f"run_dir={run}", "training.max_steps=2"]
    first = partial(together, partial(held, SAVE, gate), partial(mark_calls, marks, SAVE))
    started = rig.start("train", *arguments, first=first)
    assert started.wait_until(lambda: num_marks(marks, SAVE))
    started.send(SIGTERM)
    gate.touch()
    assert started.wait() == 143, started.err()
    assert _saved_steps(run) == [2] and not (run / "model").exists()
    check_error(143, started.err(), 143, "SIGTERM", "step 2")


@pytest.mark.parametrize("place", [LEAVE, "mtx.cli:_report_error"])
def test_the_same_signal_twice_while_it_prepares(
    rig: Rig, settings: list[str], tmp_path: Path, tally: Any, place: str
) -> None:
    """Ctrl-C is often pressed twice: the second one may meet the tidying up after the first, or its message."""
    tried, failures, draw = size(2, 20), [], random.Random(SEED)
    for number in range(tried):
        run, marks, signal = tmp_path / f"run{number}", tmp_path / f"marks{number}", NUMBERS[number % 2]
        parts = partial(slow, place, 0.02), partial(slow, PREPARE, 0.3), partial(mark_calls, marks, PREPARE, place)
        first = partial(together, *parts)
        started = rig.start("train", *settings, f"run_dir={run}", first=first)
        assert started.wait_until(lambda log=marks: num_marks(log, PREPARE))
        started.send(signal)
        assert started.wait_until(lambda log=marks: num_marks(log, place))
        time.sleep(draw.uniform(0, 0.02))
        started.send(signal)
        if started.wait() != CODES[signal] or "Traceback" in started.err():
            failures.append(f"{number}: code {started.code}, {started.err()}")
    print(failures)
    again = rig.run("train", *settings, f"run_dir={run}", "training.max_steps=1")
    assert again.code == 0 and not tiny.left_over(run), again.err()
    tally(f"a signal twice, the second in {place}: the exit code", tried, tried - len(failures))
