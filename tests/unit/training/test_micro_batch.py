"""The micro-batch is what fits, and only its size depends on that; an epoch has the pairs and their copies."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from mtx import machine
from mtx.config import settings
from mtx.config.schema import Config, ModelConfig
from mtx.data.packing import assign, micro_batch_shape, pack
from mtx.data.sampler import SamplerState
from mtx.data.token_store import TokenStore, store_batch, write_store
from mtx.errors import MtxError
from mtx.model.attention import BlockLayout
from mtx.training import build, micro_batch
from mtx.training.loss import smoothed_loss
from mtx.training.micro_batch import MicroStep, RuntimeChoices
from tests.fast_steps import GRADIENT_LIMIT, LOSS_LIMIT, make_steps, worst_gradient
from tests.models import dense, random_batch, random_ids, side, tiny_model
from tests.samplers import sampler_of

NUM_IDS, MAX_TOKENS = 64, 40
LENGTHS = [([5, 3, 8], [4, 6, 2]), ([6, 6, 4], [2, 3, 7]), ([7, 5, 4], [6, 4, 2])]  # the same sums: one shape


def dense_varlen_attn(
    q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor, max_q: int, max_k: int, *,
    window_size: tuple[int, int],
) -> Tensor:  # fmt: skip
    """What torch's varlen_attn computes, with a mask over everything."""
    rows, columns = torch.arange(len(q)), torch.arange(len(k))
    of_row, of_column = (
        torch.searchsorted(o[1:], x.int(), right=True) for o, x in ((q_offsets, rows), (k_offsets, columns))
    )
    seen = of_row[:, None] == of_column
    if window_size == (-1, 0):
        seen = seen & (rows[:, None] >= columns)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype), v)


@pytest.fixture
def varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the kernel that needs CUDA."""
    module: Any = ModuleType("torch.nn.attention.varlen")
    module.varlen_attn = dense_varlen_attn
    monkeypatch.setitem(sys.modules, module.__name__, module)


def batches() -> list[Any]:
    made = [random_batch(src, tgt, NUM_IDS, seed=i, tail=4) for i, (src, tgt) in enumerate(LENGTHS)]
    return [replace(batch, num_sentences=0, num_src_tokens=0, num_tgt_tokens=0, max_tokens=8) for batch in made]


@pytest.mark.extended
@pytest.mark.seconds
def test_the_step_has_no_graph_break_and_is_compiled_once(varlen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(NUM_IDS, dtype=torch.float32).train()
    model.kernel = "varlen"
    monkeypatch.setattr(BlockLayout, "attend_joint", dense)
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", lambda f, **options: _compile(f, backend=counter, **options))
    compiled = MicroStep(model, 0.1, "bf16", compiled=True)
    monkeypatch.setattr(torch, "compile", lambda f, **options: f)
    eager = MicroStep(model, 0.1, "bf16", compiled=True)
    for batch in batches():
        results = []
        for micro_step in (compiled, eager):
            micro_step(batch, 0.1, is_first=True)
            results.append([micro_step.sums.clone(), *(p.grad for p in model.parameters())])
        for got, expected in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert counter.frame_count == 1


_compile = torch.compile


def test_micro_batches_add_up_and_a_new_step_starts_from_nothing() -> None:
    model = tiny_model(NUM_IDS, dtype=torch.float32).train()
    micro_step = MicroStep(model, 0.1, "fp32")
    parts = [random_batch(src, tgt, NUM_IDS, seed=i, tail=4) for i, (src, tgt) in enumerate(LENGTHS)]
    micro_step(parts[2], 1.0, is_first=True)
    for number, batch in enumerate(parts[:2]):
        micro_step(batch, 0.05, number == 0)
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    loss, nll = torch.zeros(()), torch.zeros(())
    for batch in parts[:2]:
        hidden = model.decode(batch, model.encode(batch))
        sums = smoothed_loss(hidden, model.output_weight, None, batch.tgt_out_ids, 0.1, 0.05)
        loss, nll = loss + sums.loss, nll + sums.nll
    loss.backward()
    torch.testing.assert_close(micro_step.sums, torch.stack([loss, nll]).detach())
    for a, b in zip(got, [p.grad for p in model.parameters() if p.grad is not None], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("src, tgt, tail", [(*LENGTHS[0], 4), (*LENGTHS[1], 0), ([], [], 4)])
def test_two_passes_without_dropout_are_one(src: list[int], tgt: list[int], tail: int) -> None:
    """Also beside dummies, and where there is nothing else, as on a rank that a step leaves without sentences."""
    model, batch = tiny_model(NUM_IDS, dropout=0.0).train(), random_batch(src, tgt, NUM_IDS, tail=tail)
    results = []
    for rdrop_alpha in (0.0, 5.0):
        micro_step = MicroStep(model, 0.1, "fp32", rdrop_alpha=rdrop_alpha)
        micro_step(batch, 0.5, is_first=True)
        results.append([micro_step.sums, *(p.grad for p in model.parameters())])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-6)


def test_two_passes_have_masks_of_their_own() -> None:
    model, batch = tiny_model(NUM_IDS, dtype=torch.float32, dropout=0.3).train(), random_batch(*LENGTHS[0], NUM_IDS)
    losses = []
    for rdrop_alpha in (1e-9, 5.0):
        micro_step = MicroStep(model, 0.1, "fp32", rdrop_alpha=rdrop_alpha)
        torch.manual_seed(1)
        micro_step(batch, 1.0, is_first=True)
        losses.append(float(micro_step.sums[0]))
    assert losses[1] > 1.01 * losses[0], "two equal passes would have no divergence"


def step_gradients(lengths: list[int], batch_tokens: int, micro_batch_tokens: int) -> tuple[int, dict[str, Tensor]]:
    """The number of micro-batches of the first step, and its loss and gradients."""
    model = tiny_model(NUM_IDS, d_ff=24)
    src, tgt = (side(random_ids(lengths, NUM_IDS, seed)) for seed in (1, 2))
    sampler = sampler_of(src.lengths, tgt.lengths, None, 1, batch_tokens)
    k, shape = micro_batch_shape(batch_tokens, micro_batch_tokens, sampler.ratio, MAX_TOKENS, None)
    step = sampler.step(SamplerState())
    groups = assign(src.lengths[step.pairs], tgt.lengths[step.pairs], k, shape)
    total = torch.zeros(())
    for group in groups:
        batch = pack(src, tgt, step.pairs[group], shape, NUM_IDS)
        hidden = model.decode(batch, model.encode(batch))
        sums = smoothed_loss(hidden, model.output_weight, None, batch.tgt_out_ids, 0.1, 1 / int(step.tgt_lengths.sum()))
        sums.loss.backward()  # type: ignore[no-untyped-call]
        total += sums.loss.detach()
    return len(groups), {"loss": total, **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("micro_batch_tokens", [150, 100, 40])
def test_cutting_a_step_changes_nothing(micro_batch_tokens: int) -> None:
    lengths = np.random.default_rng(1).integers(1, MAX_TOKENS, 60).tolist()
    num_whole, expected = step_gradients(lengths, 300, 300)
    num_parts, got = step_gradients(lengths, 300, micro_batch_tokens)
    assert (num_whole, num_parts) == (1, -(-300 // micro_batch_tokens))
    assert got.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-7, msg=name)


def test_a_step_of_fewer_sentences_than_micro_batches() -> None:
    _, expected = step_gradients([40] * 9, 100, 100)  # two sentences
    _, got = step_gradients([40] * 9, 100, 20)  # in five micro-batches
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-7, msg=name)


SAMPLER = sampler_of(np.array([30, 30], np.int32), np.array([20, 40], np.int32), None, 1, 25_000)
CUDA = RuntimeChoices("cuda", "bf16", 25_000, "varlen", 1, False)


def config_of(*overrides: str) -> Config:
    return settings.resolve(None, ["training.batch_tokens=25000", *overrides]).config


def largest(config: Config, initial: RuntimeChoices = CUDA) -> int:
    return build.micro_batch_tokens(config, initial, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit, expected", [(30_000, 25_000), (12_500, 12_500), (4_000, 3_125), (300, 256)])
def test_a_step_is_halved_until_it_fits(monkeypatch: pytest.MonkeyPatch, limit: int, expected: int) -> None:
    monkeypatch.setattr(build, "_fits", lambda config, tried, *rest: tried.micro_batch_tokens <= limit)
    assert largest(config_of()) == expected


def test_what_cannot_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_fits", lambda *rest: False)
    with pytest.raises(MtxError, match="not enough memory for a micro-batch of 256 target tokens"):
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

    monkeypatch.setattr(build, "_try_step", fail)
    monkeypatch.setattr(build, "free_unused_memory", lambda device: None)
    assert not build._fits(config_of(), CUDA, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens, expected", [(25_000, 4096), (1024, 1024), (300, 300)])
def test_a_cpu_takes_what_is_fast_there(tokens: int, expected: int) -> None:
    assert build.cpu_micro_batch(config_of(f"training.batch_tokens={tokens}")) == expected


@pytest.mark.parametrize("size", [25_000, 3_125, 256])
def test_the_longest_sentences_fill_the_shape(size: int) -> None:
    _, shape = micro_batch_shape(25_000, size, 1.1, 256, 27.0)
    batch = build.longest_sentences(shape, 100)
    assert len(batch.src_ids) == shape.num_src and len(batch.tgt_in_ids) == shape.num_tgt
    assert batch.num_tgt_tokens == batch.num_sentences * 256 > shape.num_tgt - 600


def test_other_errors_of_a_trial_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(build, "_try_step", fail)
    monkeypatch.setattr(build, "free_unused_memory", lambda device: None)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        build._fits(config_of(), CUDA, None)  # type: ignore[arg-type]


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
    needed = 20 * num_weights
    monkeypatch.setattr(machine, "available_bytes", lambda: needed)
    build.check_memory(config, torch.device("cpu"), 100)
    monkeypatch.setattr(machine, "available_bytes", lambda: needed - 1)
    with pytest.raises(MtxError, match=f"^training {num_weights:,} parameters needs at least "):
        build.check_memory(config, torch.device("cpu"), 100)
    build.check_memory(config, torch.device("cuda"), 100)
    monkeypatch.setattr(machine, "available_bytes", lambda: None)
    build.check_memory(config, torch.device("cpu"), 100)


@pytest.mark.parametrize("copies, num_pairs", [(0, 100), (0.5, 150), (1, 200)])
def test_an_epoch_has_copies_of_a_share_of_the_pairs(tmp_path: Path, copies: float, num_pairs: int) -> None:
    ids = [[number, 0] for number in range(1, 101)]
    write_store(
        tmp_path / "train.arrow",
        200,
        [1.0],
        [store_batch(200, [[150, 150, 150, 0]] * 100, ids, range(100), [0] * 100, [""] * 100, [""] * 100)],
    )
    data: Any = SimpleNamespace(train=TokenStore.load(tmp_path / "train.arrow"), tokenizer=None, terms=None)
    config = config_of(f"training.copied_target_ratio={copies}", "training.batch_tokens=1000")
    text, sampler = build.text_and_sampler(config, data)
    assert sampler.ratio == pytest.approx((4 + copies * 2) / (2 + copies * 2))
    size = round(1 / sampler.epochs(SamplerState(0, 1)))
    assert abs(size - num_pairs) <= (20 if copies == 0.5 else 0)
    drawn = sampler.step(SamplerState()).pairs[:size]
    sources, targets = (side.tokens[side.locate(drawn)[0]] for side in (text.src, text.tgt))
    is_copy = sources == targets
    assert sorted(targets[~is_copy]) == list(range(1, 101)) and set(sources[~is_copy]) == {150}
    assert len(set(targets[is_copy])) == is_copy.sum() == size - 100


@pytest.mark.seconds
@pytest.mark.parametrize(
    "model",
    [{"preset": "tiny"}, {"preset": "small"}, {"preset": "tiny", "norm": "pre", "positions": "learned", "tie": "none"},
     {"preset": "tiny", "d_model": 16, "d_ff": 32}],
)  # fmt: skip
def test_the_fast_step_differs_from_the_plain_one_by_rounding_alone(
    model: dict[str, Any], varlen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockLayout, "attend_joint", dense)
    plain, fast = make_steps(ModelConfig.model_validate(model), 100, torch.device("cpu"), False)
    expected, found = plain(), fast()
    assert abs(found.loss / expected.loss - 1) <= LOSS_LIMIT
    assert 0 < worst_gradient(found, expected) <= GRADIENT_LIMIT
