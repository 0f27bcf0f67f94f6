"""Runs a trial in a process of its own, which may raise, crash or hang without harm to this one.

A trial is a generator: it yields each `Stage` before it begins, and returns its result. This process waits for each
stage as long as the stage may take, and then kills the other one.
"""

import faulthandler
import os
import signal
import subprocess
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from mtx.data.workers import start_interpreter
from mtx.errors import STOPPING_SIGNALS

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_TEXT = 300  # characters of an error's message; those of compilers have pages
_KILL_S = 10.0  # a process that waits for a broken driver cannot be killed, and nothing is gained by waiting for it


@dataclass(frozen=True)
class Stage:
    """A part of a trial, and the seconds within which it ends unless it hangs."""

    name: str
    limit_s: float


Trial = Callable[[Item], Generator[Stage, None, Result]]
START = Stage("its start", 120.0)  # the new process loads torch and opens the device


class TrialError(Exception):
    """A trial that raised, crashed or hung: the text says how.

    Attributes:
        stage: the name of the stage in which it happened.
    """

    def __init__(self, stage: str, text: str):
        super().__init__(text)
        self.stage = stage


def run_trial(trial: Trial[Item, Result], item: Item) -> Result:
    """The result of `trial(item)`.

    Args:
        trial: a function of a module; it and the item must be picklable.

    Raises:
        TrialError: it raised, crashed or hung.
    """
    if os.name != "posix":  # other systems cannot pass a connection this way
        return _run_here(trial, item)
    connection, process = start_interpreter(__name__, dict(os.environ), subprocess.DEVNULL)
    stage = START
    try:
        connection.send((trial, item))
        while True:
            if not connection.poll(stage.limit_s):
                raise TrialError(stage.name, f"no answer in {stage.limit_s:.0f} s")
            answer = connection.recv()
            if not isinstance(answer, Stage):
                break
            stage = answer
    except (EOFError, OSError):
        raise TrialError(stage.name, f"its process {_how_ended(process)}") from None
    finally:
        connection.close()
        _kill(process)
    result, error = answer
    if error is not None:
        raise TrialError(stage.name, error)
    return result  # type: ignore[no-any-return]


def _run_here(trial: Trial[Item, Result], item: Item) -> Result:
    stage, steps = START, trial(item)
    try:
        while True:
            stage = next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except Exception as error:
        raise TrialError(stage.name, _text(error)) from error


def _text(error: Exception) -> str:
    """The first paragraph of its message; compilers add advice."""
    text = str(error).strip().split("\n\n")[0]
    return " ".join(f"{type(error).__name__}: {text}".split())[:_MAX_TEXT]


def _how_ended(process: "subprocess.Popen[bytes]") -> str:
    try:
        code = process.wait(_KILL_S)
    except subprocess.TimeoutExpired:
        return "stopped answering"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End the process and those that it started to compile."""
    try:
        os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
        process.wait(_KILL_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass


def serve(fd: int) -> None:
    """Be the other process: run one trial from the connection with file descriptor `fd`, and send what happens."""
    for number in STOPPING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(fd)
    trial, item = connection.recv()
    steps = trial(item)
    while True:
        answer: Any
        try:
            answer = next(steps)
        except StopIteration as end:
            answer = end.value, None
        except Exception as error:
            answer = None, _text(error)
        connection.send(answer)
        if not isinstance(answer, Stage):
            return
        faulthandler.dump_traceback_later(answer.limit_s + _KILL_S, exit=True)  # if the first process was killed
