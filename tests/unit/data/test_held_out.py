"""The sources that are held out have the smallest and the largest hashes of the own text."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mtx.config.schema import DataConfig
from mtx.data import held_out
from mtx.data.cleaning import hash_texts
from mtx.data.held_out import EvalSet, hold_out
from mtx.data.prepare import Tally, _clean, _count_cleaned
from mtx.data.sources import Corpora, Corpus
from mtx.data.tables import PairBlock
from mtx.storage.run_files import VALID_STORE


def held_out_sets(src: list[str], directory: Path) -> list[EvalSet]:
    """The validation set and two test sets, of which the second is given, of a text with these sources."""
    block = PairBlock(range(len(src)), src, [f"target {number}" for number in range(len(src))])
    corpora = Corpora([Corpus("own", partial(iter, [block]))], [], {})
    blocks = _clean(corpora.train, DataConfig(), directory / "cleaned.arrow")
    cleaned = _count_cleaned(blocks, [Tally(corpora.train[0], True, 1.0)], DataConfig())
    valid, test, given = (
        EvalSet(name, store, is_held_out, [("src", "tgt")])
        for name, store, is_held_out in (("valid", VALID_STORE, True), ("a", "a.arrow", True), ("b", "b", False))
    )
    hold_out([valid, test, given], corpora, DataConfig(), cleaned, np.zeros(len(src), np.uint8))
    return [valid, test, given]


def by_hash(num_sources: int) -> list[str]:
    different = np.array([f"source {number}" for number in range(num_sources)])
    return list(different[np.argsort(hash_texts(different.tolist()))])


@pytest.mark.parametrize("num_sources", [1, 19, 40, 59, 60, 61, 500])
def test_a_twentieth_of_the_different_sources_is_held_out(
    num_sources: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_out, "MAX_HELD_OUT", 3)
    sources = by_hash(num_sources)
    valid, test, given = held_out_sets(
        np.random.default_rng(num_sources).permutation(np.repeat(sources, 3)).tolist(), tmp_path
    )
    size = min(3, max(1, num_sources // 20))
    assert sorted(valid.blocks[0][1].src) == sorted(sources[-size:] * 3)
    assert sorted(test.blocks[0][1].src) == sorted(sources[:size] * 3)
    assert not given.blocks


@pytest.mark.parametrize(
    ("num_sources", "size"),
    [(999, 49), (1000, 120), (1999, 120), (2399, 120), (2400, 120), (2420, 121), (30_000, 1000)],
)
def test_a_memory_of_a_thousand_sources_holds_out_enough_for_an_estimate(
    num_sources: int, size: int, tmp_path: Path
) -> None:
    """More than the 100 lines that it needs, and with them all that an earlier version held out: a twentieth."""
    sources = by_hash(num_sources)
    valid, test, _ = held_out_sets(sources, tmp_path)
    before = min(1000, num_sources // 20)
    held = [set(each.blocks[0][1].src) for each in (valid, test)]
    assert list(map(len, held)) == [size, size] and not held[0] & held[1]
    assert {*sources[-before:]} <= held[0] and {*sources[:before]} <= held[1]
