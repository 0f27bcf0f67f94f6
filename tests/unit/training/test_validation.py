"""Sentences that ranks translate in turns come back in order."""

import pytest

from mtx.training.validation import interleave


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_every_nth_line_of_each_rank_makes_up_the_text(size: int) -> None:
    lines = [str(number) for number in range(7)]
    assert interleave([lines[number::size] for number in range(size)]) == lines
