"""The sources that are held out have the smallest and the largest hashes of the own text."""

import numpy as np
import pytest

from mtx.data import held_out
from mtx.data.held_out import EvalSet, choose_sources
from mtx.data.sources import Corpora, Corpus
from mtx.storage.run_files import VALID_STORE


@pytest.mark.parametrize("num_sources", [1, 19, 40, 59, 60, 61, 500])
def test_a_twentieth_of_the_different_sources_is_held_out(num_sources: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "MAX_HELD_OUT", 3)
    rng = np.random.default_rng(num_sources)
    different = np.unique(rng.integers(2**64, size=num_sources, dtype=np.uint64))
    hashes = rng.permutation(np.repeat(different, 3))
    valid, test, given = EvalSet("valid", VALID_STORE, True), EvalSet("a", "a.arrow", True), EvalSet("b", "b", False)
    choose_sources([valid, test, given], Corpora([Corpus("own", lambda: iter(()))], None, {}), hashes)
    size = min(3, max(1, num_sources // 20))
    assert valid.src_hashes.tolist() == different[-size:].tolist()
    assert test.src_hashes.tolist() == different[:size].tolist()
    assert given.src_hashes.size == 0
