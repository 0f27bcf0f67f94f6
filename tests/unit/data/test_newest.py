"""Of several translations of one source the newest is learned from, and the others are counted."""

from collections.abc import Iterator

import pytest

from mtx.data.cleaning import Limits
from mtx.data.corpora import Corpus, PairBlock, PairGroup
from mtx.data.newest import OLDER, Newest

LIMITS = Limits(64, 4.0)


def corpus(*blocks: PairBlock) -> Corpus:
    def read() -> Iterator[PairBlock]:
        yield from blocks

    return Corpus("memory", 1.0, None, read)


def test_the_latest_date_counts_and_of_equal_dates_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    first = corpus(
        PairBlock([1, 2, 5], ["a", "b", "c"], ["new", "old", "only"], [30, 10, 0], {"x": PairGroup(1, 3, "", "")}),
        PairBlock([6, 7], [" a ", "d"], ["old", "1"], [20, 5]),
        PairBlock([], [], []),
    )
    second = corpus(PairBlock(range(1, 4), ["b", "d", "e"], ["new", "2", "1"]), PairBlock(range(4, 5), ["e"], ["2"]))
    one, other = Newest([first, second], LIMITS).apply()
    assert [(block.lines, block.tgt) for block in one.blocks()] == [
        ([1, 2, 5], ["new", "old", "only"]),
        ([7], ["1"]),
        ([], []),
    ]
    assert [(list(block.lines), block.tgt) for block in other.blocks()] == [([], []), ([4], ["2"])]
    assert list(one.blocks())[0].left_out == {"x": PairGroup(1, 3, "", "")}
    assert list(one.blocks())[1].left_out == {OLDER: PairGroup(1, 6, " a ", "old")}
    assert list(other.blocks())[0].left_out == {OLDER: PairGroup(3, 1, "b", "new")}


def test_without_corpora_there_is_nothing_to_choose() -> None:
    assert Newest([], LIMITS).apply() == []


def test_a_pair_that_cleaning_drops_displaces_no_other() -> None:
    copied = corpus(PairBlock([1, 2, 3], ["dog", "dog", "dog"], ["Hund", "dog", ""], [1, 2, 3]))
    (chosen,) = Newest([copied], LIMITS).apply()
    assert [block.tgt for block in chosen.blocks()] == [["Hund", "dog", ""]]
