"""Signals that arrive while a rank exchanges objects with the others wait until the exchange is over."""

import signal
from collections.abc import Iterator

import pytest

from mtx.errors import TerminatedError
from mtx.training.ranks import _hold_signals


@pytest.fixture(autouse=True)
def stops() -> Iterator[None]:
    def stop(number: int, _: object) -> None:
        raise TerminatedError(number)

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_signal_waits_for_the_end_of_the_block() -> None:
    done = False
    with pytest.raises(TerminatedError), _hold_signals(), _hold_signals():
        signal.raise_signal(signal.SIGTERM)
        done = True
    assert done
    with pytest.raises(TerminatedError):
        signal.raise_signal(signal.SIGTERM)


def test_an_error_takes_the_place_of_the_signal() -> None:
    with pytest.raises(ValueError, match="first"), _hold_signals():
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("first")
