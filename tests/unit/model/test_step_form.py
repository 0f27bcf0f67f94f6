"""The form of the model for a training step gives the numbers of the plain one; the ranges of its layouts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mtx.model import transformer
from mtx.model.attention import BlockLayout, Kernel, TileLayout
from mtx.model.transformer import Transformer
from mtx.training.loss import smoothed_loss
from mtx.training.micro_batch import MicroStep
from tests.models import dense, random_batch, tiny_model

SRC, TGT = [7, 1, 12, 3, 2], [5, 2, 3, 14, 1]


def test_the_ranges_of_self_attention_are_the_sentences() -> None:
    offsets = torch.tensor([0, 2, 3, 6, 6, 6], dtype=torch.int32)
    layout = BlockLayout.of(offsets, offsets, 6, 6, causal=False)
    expected = torch.tensor([[0, 0, 2, 3, 3, 3], [2, 2, 3, 6, 6, 6]], dtype=torch.int32)
    assert torch.equal(layout.key_ranges, expected) and torch.equal(layout.query_ranges, expected)


def test_in_causal_ranges_a_query_sees_no_later_key() -> None:
    offsets = torch.tensor([0, 2, 3, 6, 6], dtype=torch.int32)
    layout = BlockLayout.of(offsets, offsets, 6, 6, causal=True)
    assert layout.key_ranges.tolist() == [[0, 0, 2, 3, 3, 3], [1, 2, 3, 4, 5, 6]]
    assert layout.query_ranges.tolist() == [[0, 1, 2, 3, 4, 5], [2, 2, 3, 6, 6, 6]]
    assert layout.key_ranges.dtype == layout.query_ranges.dtype == torch.int32


def test_the_ranges_of_cross_attention_lie_on_the_other_side() -> None:
    queries, keys = torch.tensor([0, 2, 3, 3], dtype=torch.int32), torch.tensor([0, 1, 4, 4], dtype=torch.int32)
    layout = BlockLayout.of(queries, keys, 3, 4, causal=False)
    assert layout.key_ranges.tolist() == [[0, 0, 1], [1, 1, 4]]
    assert layout.query_ranges.tolist() == [[0, 2, 2, 2], [2, 3, 3, 3]]


def loss_and_gradients(model: Transformer, hidden: Tensor, targets: Tensor) -> dict[str, Tensor]:
    loss = smoothed_loss(hidden, model.output_weight, model.output_bias, targets, 0.1).loss
    named = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {"loss": loss.detach(), **{n: g for n, g in zip(named, gradients, strict=True) if g is not None}}


@pytest.mark.parametrize("kernel", ["varlen", "padded"])
@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "activation": "gelu", "positions": "learned"}])
def test_the_form_of_a_step_gives_the_loss_and_gradients_of_the_plain_one(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], kernel: Kernel
) -> None:
    monkeypatch.setattr(BlockLayout, "attend_joint", dense)
    model = tiny_model(50, num_encoder_layers=2, num_decoder_layers=2, num_heads=2, **changes).train()
    model.prepare_positions(64)
    batch = random_batch(SRC, TGT, num_ids=50, tail=9)
    plain = loss_and_gradients(model, model.decode(batch, model.encode(batch)), batch.tgt_out_ids)
    model.kernel = kernel
    got = loss_and_gradients(model, transformer.hidden_states(model, batch), batch.tgt_out_ids)
    assert got.keys() == plain.keys() and len(got) > 50
    for name, expected in plain.items():
        torch.testing.assert_close(
            got[name], expected, rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(("kernel", "has_onednn"), [("varlen", False), ("padded", False), ("padded", True)])
def test_under_autocast_the_residual_sums_are_bf16(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, has_onednn: bool
) -> None:
    inputs: list[Tensor] = []

    def watched(layout: Any, queries: Tensor, keys_values: Tensor | None) -> Tensor:
        inputs.append(queries)
        return attend(layout, queries, keys_values)

    kind = TileLayout if kernel == "padded" else BlockLayout
    attend = TileLayout.attend_joint if kernel == "padded" else dense
    monkeypatch.setattr(kind, "attend_joint", watched)
    if not has_onednn:
        monkeypatch.setattr(transformer, "_is_for_onednn", lambda _: False)
    model = tiny_model(50, dtype=torch.float32, num_heads=2).train()
    model.prepare_positions(64)
    model.kernel = kernel
    batch = random_batch(SRC, TGT, num_ids=50, tail=9)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = transformer.hidden_states(model, batch)
        model.kernel = "padded"
        plain = model.decode(batch, model.encode(batch))
    assert hidden.dtype == torch.bfloat16 and all(x.dtype == torch.bfloat16 for x in inputs)
    real = batch.num_tgt_tokens
    assert float((hidden[:real] - plain[:real]).detach().norm() / plain[:real].norm()) < 0.02


class Sharded(Transformer):
    """FSDP makes a class of its own of a sharded model."""


def test_a_step_on_a_cpu_and_a_compiled_one_use_that_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockLayout, "attend_joint", dense)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    called: list[bool] = []
    original = transformer.hidden_states
    monkeypatch.setattr(
        "mtx.training.micro_batch.hidden_states", lambda *given: (called.append(True), original(*given))[1]
    )
    model = tiny_model(50, dtype=torch.float32, num_heads=2, dropout=0.0).train()
    model.prepare_positions(64)
    sums = []
    for kind, kernel, compiled, is_used in (
        (Sharded, "padded", False, False), (Transformer, "padded", False, True), (Transformer, "varlen", True, True),
    ):  # fmt: skip
        model.__class__, model.kernel = kind, kernel
        step = MicroStep(model, 0.1, "fp32", compiled)
        step(random_batch(SRC, TGT, num_ids=50, tail=9), 0.01, is_first=True)
        sums.append(step.sums)
        assert bool(called) == is_used
        called.clear()
    for other in sums[1:]:
        torch.testing.assert_close(sums[0], other)
