"""The micro-batch is what fits, and only its size depends on that; an epoch has the pairs and their copies."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mtx import machine
from mtx.config import settings
from mtx.config.schema import Config
from mtx.data.batches import micro_batch_shape
from mtx.data.sampler import BatchSampler, SamplerState
from mtx.data.token_store import TokenStore, store_batch, write_store
from mtx.errors import MtxError
from mtx.training import micro_batch, runtime
from mtx.training.runtime import RuntimeChoices

SAMPLER = BatchSampler(np.array([30, 30], np.int32), np.array([20, 40], np.int32), None, 1, 25_000)
CUDA = RuntimeChoices("cuda", "bf16", 25_000, "varlen", 1, False)


def config_of(*overrides: str) -> Config:
    return settings.resolve(None, ["training.batch_tokens=25000", *overrides]).config


def largest(config: Config, initial: RuntimeChoices = CUDA) -> int:
    return micro_batch.largest_micro_batch(config, initial, 100, SAMPLER)


@pytest.mark.parametrize("limit, expected", [(30_000, 25_000), (12_500, 12_500), (4_000, 3_125), (300, 256)])
def test_a_step_is_halved_until_it_fits(monkeypatch: pytest.MonkeyPatch, limit: int, expected: int) -> None:
    monkeypatch.setattr(micro_batch, "_fits", lambda config, tried, *rest: tried.micro_batch_tokens <= limit)
    assert largest(config_of()) == expected


def test_what_cannot_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "_fits", lambda *rest: False)
    with pytest.raises(MtxError, match="256 target tokens does not fit"):
        largest(config_of())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        RuntimeError("CUDA error: invalid configuration argument"),  # a kernel's grid has more blocks than CUDA allows
    ],
)
def test_what_is_too_large_is_no_fit(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(micro_batch, "_run_micro_step", fail)
    monkeypatch.setattr(micro_batch, "free_unused_memory", lambda device: None)
    assert not micro_batch._fits(config_of(), CUDA, 100, SAMPLER)


@pytest.mark.parametrize("tokens, expected", [(25_000, 4096), (1024, 1024), (300, 300)])
def test_a_cpu_takes_what_is_fast_there(tokens: int, expected: int) -> None:
    assert largest(config_of(f"training.batch_tokens={tokens}"), replace(CUDA, device="cpu")) == expected


@pytest.mark.parametrize("size", [25_000, 3_125, 256])
def test_the_longest_sentences_fill_the_shape(size: int) -> None:
    _, shape = micro_batch_shape(25_000, size, 1.1, 256, 27.0)
    batch = micro_batch.longest_sentences(shape, 100)
    assert len(batch.src_ids) == shape.num_src and len(batch.tgt_in_ids) == shape.num_tgt
    assert batch.num_tgt_tokens == batch.num_sentences * 256 > shape.num_tgt - 600


def test_other_errors_of_a_trial_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(micro_batch, "_run_micro_step", fail)
    monkeypatch.setattr(micro_batch, "free_unused_memory", lambda device: None)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        micro_batch._fits(config_of(), CUDA, 100, SAMPLER)


def test_only_the_varlen_kernel_has_little_room_for_sentences() -> None:
    rooms = [
        micro_batch.step_shape(config_of(), replace(CUDA, kernel=kernel), SAMPLER)[1].max_sentences
        for kernel in ("varlen", "padded")
    ]
    # 25,216 positions and 100 dummies, 30 tokens a sentence: 1,051 and a spare 16 and 100; 25,216 / 3
    assert rooms == [1167, 8405]


def test_a_model_that_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.d_model=64", "model.d_ff=128")
    num_weights = 101 * 64 + (64 * 128 * 2 + 128 + 64) * 2 + (64 * 64 + 64) * 12 + 5 * 128  # layers, attention, norms
    needed = 16 * num_weights
    monkeypatch.setattr(machine, "available_bytes", lambda: needed)
    micro_batch.check_memory(config, torch.device("cpu"), 100)
    monkeypatch.setattr(machine, "available_bytes", lambda: needed - 1)
    with pytest.raises(MtxError, match=f"^training {num_weights:,} parameters needs at least "):
        micro_batch.check_memory(config, torch.device("cpu"), 100)
    micro_batch.check_memory(config, torch.device("cuda"), 100)
    monkeypatch.setattr(machine, "available_bytes", lambda: None)
    micro_batch.check_memory(config, torch.device("cpu"), 100)


@pytest.mark.parametrize("copies, num_pairs", [(0, 100), (0.5, 150), (1, 200)])
def test_an_epoch_has_copies_of_a_share_of_the_pairs(tmp_path: Path, copies: float, num_pairs: int) -> None:
    ids = [[number, 0] for number in range(1, 101)]
    write_store(
        tmp_path / "train.arrow",
        200,
        [1.0],
        [store_batch(200, [[150, 150, 150, 0]] * 100, ids, range(100), [0] * 100, [""] * 100, [""] * 100)],
    )
    data: Any = SimpleNamespace(train=TokenStore.open(tmp_path / "train.arrow"), tokenizer=None)
    config = config_of(f"training.copied_target_ratio={copies}", "training.batch_tokens=1000")
    text = runtime.training_text(config, data)
    sampler = runtime.new_sampler(config, text, data.tokenizer)
    assert sampler.ratio == pytest.approx((4 + copies * 2) / (2 + copies * 2))
    size = round(1 / sampler.epochs(SamplerState(0, 1)))
    assert abs(size - num_pairs) <= (20 if copies == 0.5 else 0)
    drawn = sampler.step(SamplerState()).pairs[:size]
    sources, targets = (side.tokens[side.starts[drawn]] for side in (text.src, text.tgt))
    is_copy = sources == targets
    assert sorted(targets[~is_copy]) == list(range(1, 101)) and set(sources[~is_copy]) == {150}
    assert len(set(targets[is_copy])) == is_copy.sum() == size - 100
