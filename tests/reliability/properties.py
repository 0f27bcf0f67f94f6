"""How a law is tried on generated examples, and how many of them held."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.reliability.conftest import NIGHTLY, size

Tally = Callable[[str, int, int], None]


def hold(
    tally: Tally,
    what: str,
    check: Callable[..., None],
    *strategies: st.SearchStrategy[Any],
    push: int = 120,
    nightly: int = 5000,
) -> None:
    """Try a law on many examples; the table has a row with their number.

    Args:
        check: raises where the law does not hold for its arguments, which are one example of each strategy.
    """
    tried = 0

    @settings(
        max_examples=size(push, nightly), deadline=None, derandomize=not NIGHTLY, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(st.tuples(*strategies))
    def run(example: tuple[Any, ...]) -> None:
        nonlocal tried
        check(*example)
        tried += 1  # not counted where the check found nothing to check

    run()
    tally(what, tried, tried)
