"""The order of an epoch: one window is that of mtx 1.0; several share the blocks, and pairs occur by their weights."""

import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtx.config.schema import TokenizerConfig
from mtx.config.settings import resolve
from mtx.data import sampler as module
from mtx.data.augmentation import epoch_text
from mtx.data.packing import load_steps, micro_batch_shape
from mtx.data.sampler import BatchSampler, SamplerState, steps
from mtx.data.token_store import TokenStore, store_batch, write_store
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from tests.samplers import order_of
from tests.unit.data.test_bpe_dropout import texts
from tests.unit.data.test_packing import unpack

BLOCK = 4
WINDOW = 64
NUM_PAIRS = 318  # 80 blocks, the last of 2 pairs; 5 windows


def order(weights: Any = None, window: int = WINDOW, num_pairs: int = NUM_PAIRS, seed: int = 7) -> Any:
    lengths = np.arange(1, num_pairs + 1, dtype=np.int32)
    return order_of(lengths, lengths[::-1], weights, seed, window, BLOCK)


def epoch_of(drawn: Any, epoch: int) -> Any:
    return drawn.rows(epoch, 0, 1 << 40)


def test_every_pair_occurs_once_with_its_lengths() -> None:
    epochs = [epoch_of(order(), epoch) for epoch in range(3)]
    for rows in epochs:
        assert sorted(rows["pair"].tolist()) == list(range(NUM_PAIRS))
        assert (rows["src"] == rows["pair"] + 1).all() and (rows["tgt"] == NUM_PAIRS - rows["pair"]).all()
    assert len({rows["pair"].tobytes() for rows in epochs}) == 3


def test_each_window_has_one_of_as_many_neighbouring_blocks() -> None:
    for epoch in range(3):
        pairs = epoch_of(order(), epoch)["pair"]
        sizes, start = [], 0
        for number in range(5):
            blocks = sorted(block for block, _ in zip(*order()._deal(epoch)[number], strict=True))
            assert [block // 5 for block in blocks] == list(range(16))
            stop = start + sum(4 if block < 79 else 2 for block in blocks)
            assert {*(pairs[start:stop] // BLOCK)} == {*blocks}
            sizes.append(stop - start)
            start = stop
        assert sorted(sizes) == [62, 64, 64, 64, 64] and start == NUM_PAIRS


def test_a_window_is_not_in_the_order_of_its_blocks() -> None:
    pairs = epoch_of(order(num_pairs=6400, window=3200), 0)["pair"][:3200]
    assert abs(np.corrcoef(pairs, np.arange(3200))[0, 1]) < 0.1
    assert (np.abs(np.diff(pairs)) < BLOCK).mean() < 0.02, "pairs of a block are not neighbours"


@pytest.mark.parametrize("window", [WINDOW, NUM_PAIRS * 10])
def test_weights_are_kept_in_every_epoch_and_on_average(window: int) -> None:
    weights = np.tile([1.0, 2.0, 0.25, 0.0, 1.5], 16)  # of blocks
    drawn = order(weights, window)
    counts = np.stack([np.bincount(epoch_of(drawn, epoch)["pair"], minlength=NUM_PAIRS) for epoch in range(400)])
    by_pair = weights.repeat(BLOCK)[:NUM_PAIRS]
    assert (counts >= np.floor(by_pair)).all() and (counts <= np.ceil(by_pair)).all()
    np.testing.assert_allclose(counts.mean(axis=0), by_pair, atol=0.1)  # 4 standard errors of 0.5 / sqrt(400)


def test_a_small_text_with_a_large_weight_is_in_many_windows() -> None:
    weights = np.ones(80)
    weights[40] = 6.0  # as often as there are windows
    for epoch in range(10):
        counts = [(blocks == 40).sum() for blocks, _ in order(weights)._deal(epoch)]
        assert len(counts) == sum(counts) == 6 and max(counts) <= 2  # of two rounds of neighbours


@pytest.mark.parametrize("weights", [None, np.tile([0.4, 1.7], 40)])
@pytest.mark.parametrize("window", [WINDOW, 10_000])
def test_any_part_of_an_epoch_is_that_of_the_whole(weights: Any, window: int) -> None:
    whole = epoch_of(order(weights, window), 2)
    for start in range(len(whole)):
        part = order(weights, window).rows(2, start, start + 70)
        assert part.tobytes() == whole[start : start + 70].tobytes()
    assert order(weights, window).num_pairs(2) == len(whole)


def test_an_epoch_without_pairs_in_most_windows() -> None:
    weights = np.zeros(80)
    weights[3] = 17.0
    drawn = order(weights, window=8)
    assert np.bincount(epoch_of(drawn, 0)["pair"]).tolist() == [0] * 12 + [17] * 4


@pytest.mark.parametrize(
    "weights, expected", [(None, "1cdd371b27125fea"), (np.tile([0.4, 1.7], 40), "d1e43b801f530143")]
)
def test_the_order_of_windows_is_that_of_earlier_versions(weights: Any, expected: str) -> None:
    """A run that resumes under another version must see the sentences that it has not seen."""
    assert sha256(epoch_of(order(weights), 3)["pair"].tobytes()).hexdigest()[:16] == expected


# Stores

SRC = texts(1)[:48]
TGT = texts(2)[:48]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([*SRC, *TGT], TokenizerConfig.model_validate({"vocab_size": 330}), len(SRC), [])


def write(path: Path, tokenizer: Tokenizer, window: int | None = WINDOW, weights: Any = (1.0, 1.0)) -> TokenStore:
    """Pairs in blocks of 4, which belong to two corpora by turns."""
    ids = tokenizer.encode(SRC), tokenizer.encode(TGT)
    blocks = []
    for number, start in enumerate(range(0, len(SRC), BLOCK)):
        part = slice(start, start + BLOCK)
        size = len(SRC[part])
        columns = *(side[part] for side in ids), np.arange(size), [number % 2] * size, SRC[part], TGT[part]
        blocks.append(store_batch(tokenizer.num_ids, *columns))
    write_store(path, tokenizer.num_ids, [*weights], blocks, window)
    return TokenStore.load(path)


def collect(
    store: TokenStore, plan: BatchSampler, position: SamplerState, num_steps: int, num_ranks: int
) -> Iterator[tuple[list[Any], SamplerState]]:
    """The pairs of ids of each step on all ranks, and the position after it."""
    k, shape = micro_batch_shape(100, 100, plan.ratio, 64, plan.tokens_per_sentence, num_ranks)
    loaded = [
        load_steps(store, steps(plan, position, num_steps), k, shape, rank=rank, num_ranks=num_ranks)
        for rank in range(num_ranks)
    ]
    for parts in zip(*loaded, strict=True):
        pairs = sorted(pair for part in parts for batch in part.micro_batches for pair in unpack(batch))
        yield pairs, parts[0].position_after
    for rank in loaded:
        rank.close()


@pytest.mark.parametrize("copies", [0.0, 0.5])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.6, 2.3)])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_resuming_and_more_ranks_give_the_steps_of_the_whole(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, copies: float, weights: Any, rate: float
) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    store = write(tmp_path / "a.arrow", tokenizer, 16, weights)
    if copies:
        store = store.with_copies(copies)
    config = resolve(None, [f"training.bpe_dropout={rate}", "seed=7", "data.max_tokens=64"]).config

    def plan() -> BatchSampler:
        return BatchSampler(store.epoch_order(7), 100, 64, epoch_text(config, store, tokenizer, None))

    num_steps = 22
    whole = list(collect(store, plan(), SamplerState(), num_steps, 1))
    assert whole[-1][1].epoch >= 1 and plan()._order._num_windows > 1
    for num_ranks in (2, 8):
        assert list(collect(store, plan(), SamplerState(), num_steps, num_ranks)) == whole
    for done in range(num_steps - 1):
        assert next(collect(store, plan(), whole[done][1], 1, 1)) == whole[done + 1]


@pytest.mark.parametrize(
    "weights, copies, expected",
    [
        ((1.0, 1.0), 0.0, "8c895272f85e7e1e"),
        ((1.0, 1.0), 0.5, "1fa8efbe4742ffe0"),
        ((0.6, 2.3), 0.0, "f0f0214f8ed6eb63"),
        ((0.6, 2.3), 0.5, "9531f61245de542d"),
    ],
)
def test_the_order_of_a_store_is_that_of_version_1_0(
    tmp_path: Path, weights: Any, copies: float, expected: str
) -> None:
    sizes = [*[70] * 14, 20]
    blocks = []
    for number, size in enumerate(sizes):
        columns = np.zeros(size), [number % 2] * size, [""] * size, [""] * size
        blocks.append(store_batch(300, [[1, 0]] * size, [[2, 2, 0]] * size, *columns))
    write_store(tmp_path / "a.arrow", 300, [*weights], blocks)
    store = TokenStore.load(tmp_path / "a.arrow")
    if copies:
        store = store.with_copies(copies)
    pairs = epoch_of(store.epoch_order(3), 1)["pair"]
    assert sha256(pairs.tobytes()).hexdigest()[:16] == expected


def test_a_store_without_a_window_has_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    old = write(tmp_path / "old.arrow", tokenizer, None)
    new = write(tmp_path / "new.arrow", tokenizer, 16)
    assert b"window" not in (tmp_path / "old.arrow").read_bytes() and new.window == 16
    pairs = epoch_of(old.epoch_order(3), 1)["pair"]
    expected = np.arange(old.num_pairs)
    np.random.default_rng((3, 1, 0)).shuffle(expected)
    assert pairs.tolist() == expected.tolist()
    assert epoch_of(new.epoch_order(3), 1)["pair"].tolist() != expected.tolist()


OPEN = """
import re, sys
from pathlib import Path
from mtx.data.token_store import TokenStore
def anonymous_kb():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
TokenStore.load(Path(sys.argv[1], "small.arrow")).epoch_order(1)
before = anonymous_kb()
store = TokenStore.load(Path(sys.argv[1], "large.arrow"))
order = store.epoch_order(1)
store.tgt.block_tokens.sum()
print(store.num_pairs, anonymous_kb() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_open_store_takes_no_memory_for_each_pair(tmp_path: Path) -> None:
    size = 1 << 14
    batch = store_batch(9, [[1, 0]] * size, [[2, 0]] * size, np.zeros(size), np.zeros(size), [""] * size, [""] * size)
    write_store(tmp_path / "small.arrow", 9, [1.0], [batch])
    write_store(tmp_path / "large.arrow", 9, [1.0], [batch] * 64, WINDOW)
    opened = subprocess.run([sys.executable, "-c", OPEN, tmp_path], capture_output=True, text=True, check=True)
    num_pairs, kb = map(int, opened.stdout.split())
    assert num_pairs == 64 * size and kb < 2_000  # arrays of starts and lengths would take 24 bytes a pair: 25,000 kB
