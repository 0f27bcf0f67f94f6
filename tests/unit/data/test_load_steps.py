"""The loader's thread delivers what the sampler planned, its errors reach the consumer, and it ends."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtx.data import packing
from mtx.data.packing import SLICES, LoadedStep, assign, load_steps, micro_batch_shape, pack, slices, to_device
from mtx.data.sampler import BatchSampler, SamplerState, Step, steps
from mtx.data.token_store import TokenStore, store_batch, write_store
from tests.models import random_batch, random_ids

BATCH_TOKENS, MAX_TOKENS, NUM_IDS = 120, 20, 50


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    rng = np.random.default_rng(1)
    src, tgt = (random_ids(rng.integers(1, MAX_TOKENS, 80).tolist(), NUM_IDS, seed) for seed in (1, 2))
    write_store(
        tmp_path / "train.arrow",
        NUM_IDS,
        [1.0],
        [store_batch(NUM_IDS, src, tgt, np.arange(80), np.zeros(80), [""] * 80, [""] * 80)],
    )
    return TokenStore.load(tmp_path / "train.arrow")


def sampler(store: TokenStore) -> BatchSampler:
    return BatchSampler(store.epoch_order(1), BATCH_TOKENS, 4096)


def load(store: TokenStore, plan: BatchSampler, position: SamplerState, num_steps: int, k: int) -> Iterator[LoadedStep]:
    _, shape = micro_batch_shape(BATCH_TOKENS, BATCH_TOKENS // k, plan.ratio, MAX_TOKENS, plan.tokens_per_sentence)
    return load_steps(store, steps(plan, position, num_steps), k, shape)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("mtx-loader")]


@pytest.mark.parametrize("k", [1, 2])
def test_loaded_steps_are_the_planned_ones_in_order(store: TokenStore, k: int) -> None:
    plan, start = sampler(store), SamplerState(2, 7)
    _, shape = micro_batch_shape(BATCH_TOKENS, BATCH_TOKENS // k, plan.ratio, MAX_TOKENS, plan.tokens_per_sentence)
    loaded = list(load(store, plan, start, 15, k))
    planned = list(steps(sampler(store), start, 15))
    assert [step.position_after for step in loaded] == [step.position_after for step in planned]
    for got, step in zip(loaded, planned, strict=True):
        assert (got.num_src_tokens, got.num_tgt_tokens) == (step.src_lengths.sum(), step.tgt_lengths.sum())
        groups = assign(store.src.lengths[step.pairs], store.tgt.lengths[step.pairs], k, shape)
        for batch, group in zip(got.micro_batches, groups, strict=True):
            expected = pack(store.src, store.tgt, step.pairs[group], shape, store.num_ids)
            for name in SLICES:
                assert torch.equal(getattr(batch, name), getattr(expected, name))
            assert (batch.num_sentences, batch.max_tokens) == (len(group), MAX_TOKENS)
    assert not loader_threads()


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_take_the_micro_batches_in_turn_and_empty_ones_fill_up(
    store: TokenStore, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = 2 * num_ranks

    def one_too_many(*arguments: Any) -> list[Any]:
        groups = assign(*arguments)
        return [*groups[:-1], groups[-1][:1], groups[-1][1:]]

    monkeypatch.setattr(packing, "assign", one_too_many)
    _, shape = micro_batch_shape(BATCH_TOKENS, BATCH_TOKENS // k, sampler(store).ratio, MAX_TOKENS, None)
    alone, *by_rank = (
        [s.micro_batches for s in load_steps(store, steps(sampler(store), SamplerState(), 9), k, shape, False, *each)]
        for each in [(0, 1), *((rank, num_ranks) for rank in range(num_ranks))]
    )
    for step, expected in enumerate(alone):
        turns = [batch for turn in zip(*(found[step] for found in by_rank), strict=True) for batch in turn]
        assert len(expected) > k and len(turns) == -(-len(expected) // num_ranks) * num_ranks
        for got, wanted in zip(turns, expected, strict=False):
            assert all(torch.equal(getattr(got, name), getattr(wanted, name)) for name in SLICES)
        for empty in turns[len(expected) :]:
            assert empty.num_sentences == empty.num_tgt_tokens == 0
            assert (empty.tgt_out_ids == store.num_ids).all() and len(empty.src_ids) == shape.num_src


def test_no_steps_are_no_steps(store: TokenStore) -> None:
    assert list(load(store, sampler(store), SamplerState(), 0, 1)) == []


def test_an_error_in_the_thread_is_raised_where_steps_are_consumed(store: TokenStore) -> None:
    plan = sampler(store)
    good, calls = plan.step, []

    def failing(position: SamplerState) -> Step:
        calls.append(position)
        if len(calls) == 3:
            raise OSError("the disk is gone")
        return good(position)

    plan.step = failing  # type: ignore[method-assign]
    loaded = load(store, plan, SamplerState(), 9, 1)
    positions = [next(loaded).position_after, next(loaded).position_after]
    with pytest.raises(OSError, match="the disk is gone"):
        next(loaded)
    assert positions == calls[1:3]
    assert not loader_threads()


def test_closing_early_ends_the_thread(store: TokenStore) -> None:
    with closing(load(store, sampler(store), SamplerState(), 1_000_000, 1)) as loaded:  # type: ignore[type-var]
        next(loaded)
        assert len(loader_threads()) == 1
    assert not loader_threads()


def test_one_copy_of_the_buffer_is_the_whole_batch() -> None:
    batch = random_batch([5, 3, 7], [4, 6, 2], tail=9)
    sizes = len(batch.src_ids), len(batch.tgt_out_ids), len(batch.src_offsets)
    copied = slices(batch.buffer.clone(), *sizes)
    assert copied.keys() == set(SLICES)
    for name, tensor in copied.items():
        assert tensor.dtype == getattr(batch, name).dtype == (torch.int32 if "offsets" in name else torch.int64)
        assert torch.equal(tensor, getattr(batch, name))


def test_a_batch_on_a_device_that_is_not_cuda_keeps_its_offsets_in_host_memory() -> None:
    batch = random_batch([5, 3, 7], [4, 6, 2], tail=9)
    moved = to_device(batch, torch.device("meta"))  # as for MPS
    for name in SLICES:
        assert getattr(moved, name).shape == getattr(batch, name).shape
        assert getattr(moved, name).device.type == ("cpu" if "offsets" in name else "meta")
    assert to_device(batch, torch.device("cpu")) is batch


def test_page_locked_memory_belongs_to_the_callers_device(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = list[tuple[str, int]]()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda n: devices.append((threading.current_thread().name, n)))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    plan = sampler(store)
    _, shape = micro_batch_shape(BATCH_TOKENS, BATCH_TOKENS, plan.ratio, MAX_TOKENS, None)
    loaded = list(load_steps(store, steps(plan, SamplerState(), 2), 1, shape, pin=True))
    assert len(loaded) == 2 and devices == [("mtx-loader_0", 3)]
