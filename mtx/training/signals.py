"""What signals ask of a run that trains. They are looked at between micro-steps, and end a validation at once.

SIGTERM and SIGINT: save and leave; a second one leaves at once. SIGUSR1 (where there is one): save and go on.
"""

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from types import FrameType

logger = logging.getLogger(__name__)

_SAVE = getattr(signal, "SIGUSR1", None)


class InterruptedTrainingError(KeyboardInterrupt):
    """Ends a step or a validation in the middle, where a signal asks to leave; nothing that is saved is changed."""


class Signals:
    """Use `listening` while training; then `stop` is the number of the signal that asked to leave, or None."""

    def __init__(self) -> None:
        self.stop: int | None = None
        self._save_asked = self._may_raise = False

    def pop_save_request(self) -> bool:
        """Whether saving was asked for since the last time this was called."""
        asked, self._save_asked = self._save_asked, False
        return asked

    @contextlib.contextmanager
    def listening(self) -> Iterator["Signals"]:
        numbers = [signal.SIGTERM, signal.SIGINT, *([_SAVE] if _SAVE else [])]
        old = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """A signal that asks to leave raises `InterruptedTrainingError` in the block, also one that came before."""
        try:
            self._may_raise = True
            if self.stop is not None:
                raise InterruptedTrainingError
            yield
        finally:
            self._may_raise = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == _SAVE:
            self._save_asked = True
            logger.info("signal %d: saving after this step", number)
            return
        if self.stop is not None:
            os._exit(128 + number)
        self.stop = number
        logger.info("signal %d: saving, then stopping (a second one stops at once)", number)
        if self._may_raise:
            self._may_raise = False
            raise InterruptedTrainingError


def ignore_save() -> None:
    """Outside of training there is nothing to save; without this SIGUSR1 would end the process."""
    if _SAVE and signal.getsignal(_SAVE) == signal.SIG_DFL:
        signal.signal(_SAVE, signal.SIG_IGN)
