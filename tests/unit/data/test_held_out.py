"""The sources that are held out have the smallest and the largest hashes of the own text."""

import numpy as np
import pyarrow as pa
import pytest

from mtx.config.schema import DataConfig
from mtx.data import held_out
from mtx.data.cleaning import hash_texts
from mtx.data.held_out import EvalSet, hold_out
from mtx.data.sources import Corpora, Corpus
from mtx.storage.run_files import VALID_STORE


@pytest.mark.parametrize("num_sources", [1, 19, 40, 59, 60, 61, 500])
def test_a_twentieth_of_the_different_sources_is_held_out(num_sources: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "MAX_HELD_OUT", 3)
    rng = np.random.default_rng(num_sources)
    different = np.array([f"source {number}" for number in range(num_sources)])
    by_hash = different[np.argsort(hash_texts(different.tolist()))].tolist()
    src = rng.permutation(np.repeat(different, 3)).tolist()
    tgt = [f"target {number}" for number in range(len(src))]
    columns = {
        "line": range(len(src)),
        "corpus": [0] * len(src),
        "src": src,
        "tgt": tgt,
        "src_hash": hash_texts(src),
        "tgt_hash": hash_texts(tgt),
    }
    valid, test, given = (
        EvalSet(name, store, is_held_out, [("src", "tgt")])
        for name, store, is_held_out in (("valid", VALID_STORE, True), ("a", "a.arrow", True), ("b", "b", False))
    )
    corpora, all_pairs = Corpora([Corpus("own", lambda: iter(()))], [], {}), np.ones(len(src), np.bool_)
    hold_out(
        [valid, test, given],
        corpora,
        DataConfig(),
        pa.table(columns),
        np.zeros(len(src), np.int64),
        all_pairs,
        all_pairs,
    )
    size = min(3, max(1, num_sources // 20))
    assert sorted(valid.blocks[0][1].src) == sorted(by_hash[-size:] * 3)
    assert sorted(test.blocks[0][1].src) == sorted(by_hash[:size] * 3)
    assert not given.blocks
