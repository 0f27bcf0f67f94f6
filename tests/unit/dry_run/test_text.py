"""The figures of text, by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx.data.token_store import StoreWriter, TokenStore, store_batch
from mtx.dry_run.text import length_counts, length_labels, side_figures, spread, swapped_share, text_figures

# </s> 0, <unk> 1, pieces from 2 on, a tag that is no piece
PIECES = ["</s>", "<unk>", "▁a", "b", "▁", "<0xE1>", "▁c", "<BT>"]
TOKENIZER: Any = SimpleNamespace(vocabulary=lambda: PIECES, num_pieces=7)


def store(path: Path, src: list[list[int]], tgt: list[list[int]]) -> TokenStore:
    with StoreWriter(path, len(PIECES), [1.0]) as writer:
        texts = ["s"] * len(src), ["t"] * len(src)
        writer.add(store_batch(len(PIECES), src, tgt, np.arange(len(src)), np.zeros(len(src)), *texts))
    return TokenStore.open(path)


def test_words_pieces_and_what_has_none(tmp_path: Path) -> None:
    src = [
        [7, 2, 3, 6, 0],  # tag, ab c: two words of three pieces
        [4, 5, 5, 2, 0],  # bytes, a: two words of four pieces, one in bytes
        [3, 1, 0],  # goes on without a space, and is unknown: one word of two pieces
        [0],
    ]
    side = store(tmp_path / "a.arrow", src, src).src
    found = side_figures(side, np.arange(4), TOKENIZER)
    assert found.pieces_per_word == pytest.approx(9 / 5)
    assert found.unknown_words == pytest.approx(2 / 5)
    assert found.lengths == [2, 2]  # 3 and 1; 5 and 5
    nothing = side_figures(side, np.array([3]), TOKENIZER)
    assert (nothing.pieces_per_word, nothing.unknown_words) == (0, 0)


def test_lengths_are_counted_in_doubling_bins() -> None:
    assert length_counts(np.array([1, 4, 5, 8, 9, 16, 17, 33], np.int32)) == [2, 2, 2, 1, 1]
    assert length_labels(3) == ["1-4", "5-8", "9-16"]


def test_spread_is_even_and_without_repetition() -> None:
    assert spread(10, 5).tolist() == [0, 2, 4, 6, 8]
    assert spread(3, 5).tolist() == [0, 1, 2] and spread(0, 5).tolist() == []


def test_exchanged_sides_are_found_and_doubtful_ones_are_not(tmp_path: Path) -> None:
    train = store(tmp_path / "train.arrow", [[2, 2, 2, 0]] * 100, [[6, 6, 6, 0]] * 100)
    rows = [([6, 6, 0], [2, 2, 0]), ([2, 2, 0], [6, 6, 0]), ([6, 6, 0], [6, 6, 0]), ([5, 0], [5, 0])]
    mixed = store(tmp_path / "mixed.arrow", [src for src, _ in rows], [tgt for _, tgt in rows])
    assert swapped_share(train, mixed, np.arange(4)) == 0.25
    assert swapped_share(train, train, np.arange(100)) == 0


def test_lengths_of_pairs_that_belong_together_go_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(3, 40, 600)
    src = [[2] * n + [0] for n in lengths]
    tgt = [[6] * max(1, n + int(rng.integers(-2, 3))) + [0] for n in lengths]
    aligned = store(tmp_path / "aligned", src, tgt)
    shifted = store(tmp_path / "shifted", src[1:], tgt[:-1])
    equal = store(tmp_path / "equal", [[2, 0]] * 600, tgt)
    found = [text_figures(each, TOKENIZER, aligned).alike for each in (aligned, shifted, equal)]
    assert found[0] > 0.9 and abs(found[1]) < 0.2 and found[2] == 1
