"""Signals to a training process. The trainer checks for them between micro-steps; a validation is interrupted at once.

SIGTERM, SIGINT and SIGHUP save and stop; a second one stops at once. SIGUSR1 only saves.
"""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from mtx.errors import STOPPING_SIGNALS
from mtx.storage import disk

logger = logging.getLogger(__name__)

SAVE = signal.SIGUSR1
_DOUBLED_S = 3.0  # between a signal and its double from a launcher


class InterruptedTrainingError(KeyboardInterrupt):
    """Interrupts a step or a validation after a signal to stop; the state that would be saved is unchanged."""


@dataclass
class Signals:
    """What signals have requested, if `handle` handles them.

    Attributes:
        status: status.json, which a second signal removes: nobody is left who could write that the run has ended.
        may_double: a launcher forwards the signals that it gets, and this process may get the same ones itself. A
            signal soon after another one then does not stop at once.
        stop: the number of the signal that asked to stop, or 0.
    """

    status: Path
    may_double: bool
    stop: int = 0
    save_requested: bool = False
    _may_raise: bool = False
    _single_until: float = 0.0

    @contextlib.contextmanager
    def interrupt(self) -> Iterator[None]:
        """A signal to stop raises `InterruptedTrainingError` in the block, also one that arrived before it."""
        try:
            self._may_raise = True
            if self.stop:
                raise InterruptedTrainingError
            yield
        finally:
            self._may_raise = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal to stop or to save."""
        if number == SAVE:
            self.save_requested = True
            logger.info(f"signal {number}: saving after this step")
            return
        now = time.monotonic()
        if self.stop:
            if now < self._single_until:
                return
            with contextlib.suppress(OSError):
                disk.unlink(self.status)
            os._exit(128 + number)
        self.stop = number
        self._single_until = now + _DOUBLED_S * self.may_double
        logger.info(f"signal {number}: saving, then stopping (a second one stops at once)")
        if self._may_raise:
            self._may_raise = False
            raise InterruptedTrainingError


@contextlib.contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object], numbers: Iterable[int]) -> Iterator[None]:
    """In the block, `handler` handles these signals."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def handled_signals() -> list[int]:
    """The signals that stop or save a training, without an ignored SIGHUP: `nohup` started this process."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [SAVE, *(number for number in STOPPING_SIGNALS if number != signal.SIGHUP or not is_ignored)]


def ignore_save() -> None:
    """Ignore SIGUSR1 outside of training, where it would otherwise end the process."""
    if signal.getsignal(SAVE) == signal.SIG_DFL:
        signal.signal(SAVE, signal.SIG_IGN)
