"""The model follows the paper, and a sentence does not depend on the other sentences of its batch."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mtx.config.schema import ModelConfig
from mtx.data.packing import PackedBatch
from mtx.model.transformer import Transformer, sinusoidal_positions
from mtx.model.translation_model import TranslationModel
from mtx.training.loss import smoothed_loss
from tests.models import OTHERS, batch_of, random_batch, random_ids, tiny_config, tiny_model

NUM_IDS = 13
SRC, TGT = [5, 9, 2, 1, 7], [6, 3, 8, 4, 1]
NORMS = pytest.mark.parametrize("norm", ["post", "pre"])
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"positions": "learned", "activation": "swish"},
    {"tie": "none", "output_bias": True},
]


def hidden(model: TranslationModel, batch: PackedBatch) -> Tensor:
    with torch.no_grad():
        return model.decode(batch, model.encode(batch))


def sentences(model: TranslationModel, batch: PackedBatch) -> list[Tensor]:
    """Decoder output of each sentence, [T, D]."""
    starts = batch.tgt_offsets[: batch.num_sentences + 1].tolist()
    states = hidden(model, batch)
    return [states[a:b] for a, b in zip(starts, starts[1:], strict=False)]


# --- 3.5: positions ---


def test_sinusoids_by_hand() -> None:
    table = sinusoidal_positions(4, 4)  # frequencies 1 and 10000^(-2/4) = 0.01; [sin | cos]
    assert table.dtype == torch.float32
    assert table[0].tolist() == [0, 0, 1, 1]
    expected = [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)]
    torch.testing.assert_close(table[1], torch.tensor(expected), rtol=0, atol=1e-7)
    expected = [math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)]
    torch.testing.assert_close(table[3], torch.tensor(expected), rtol=0, atol=1e-7)


def test_the_embedding_is_scaled_and_positions_are_added() -> None:
    model = tiny_model()
    out = model.embed(torch.tensor([3, 3]), torch.tensor([0, 5]), source=True)
    table = sinusoidal_positions(6, 16)
    torch.testing.assert_close(out, model.embedding[3] * 4 + table[[0, 5]], rtol=0, atol=1e-12)  # sqrt(16) = 4


def test_a_longer_table_of_positions_begins_like_the_shorter() -> None:
    model = tiny_model()
    before = hidden(model, random_batch(SRC, TGT))
    model.prepare_positions(500)
    assert torch.equal(before, hidden(model, random_batch(SRC, TGT)))


# --- what a sentence depends on ---


@pytest.mark.parametrize("changes", [*VARIANTS, *OTHERS])
def test_batch_mates_and_dummies_do_not_change_a_sentence(changes: dict[str, Any]) -> None:
    model = tiny_model(**changes)
    src, tgt = random_ids(SRC, NUM_IDS, 1), random_ids(TGT, NUM_IDS, 2)
    together = sentences(model, batch_of(src, tgt, NUM_IDS, tail=6))
    for i, states in enumerate(together):
        (alone,) = sentences(model, batch_of([src[i]], [tgt[i]], NUM_IDS))
        torch.testing.assert_close(states, alone, rtol=0, atol=1e-11)


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, *OTHERS])
def test_future_tokens_do_not_change_the_past(changes: dict[str, Any]) -> None:
    model = tiny_model(**changes)
    src, tgt = random_ids(SRC, NUM_IDS, 1), random_ids([6] * 5, NUM_IDS, 2)
    before = sentences(model, batch_of(src, tgt, NUM_IDS))
    for place in range(5):
        changed = [[*ids[:place], 1 + ids[place] % (NUM_IDS - 1), *ids[place + 1 :]] for ids in tgt]
        for old, new in zip(before, sentences(model, batch_of(src, changed, NUM_IDS)), strict=True):
            torch.testing.assert_close(new[: place + 1], old[: place + 1], rtol=0, atol=1e-12)
            assert (new[place + 1] - old[place + 1]).abs().max() > 1e-3


@pytest.mark.parametrize("changes", [{}, *OTHERS])
def test_every_source_token_reaches_every_target_position(changes: dict[str, Any]) -> None:
    model = tiny_model(**changes)
    src, tgt = random_ids([6], NUM_IDS, 1), random_ids([4], NUM_IDS, 2)
    before = hidden(model, batch_of(src, tgt, NUM_IDS))
    for place in range(5):
        changed = [[*src[0][:place], 1 + src[0][place] % (NUM_IDS - 1), *src[0][place + 1 :]]]
        assert (hidden(model, batch_of(changed, tgt, NUM_IDS)) - before).abs().amax(1).min() > 1e-6


# --- parameters ---


def count(**values: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(ModelConfig.model_validate(values), 37_000).parameters())


def test_parameter_counts_by_hand() -> None:
    """Table 3 gives 65M and 213M for a shared vocabulary of about 37,000."""
    attention = 4 * (512 * 512 + 512)
    feed_forward = 2 * 512 * 2048 + 2048 + 512
    encoder, decoder = attention + feed_forward + 2 * 1024, 2 * attention + feed_forward + 3 * 1024
    assert count(preset="base") == 37_001 * 512 + 6 * (encoder + decoder) == 63_083_008
    assert count(preset="big") == 214_246_400
    assert count(preset="base", norm="pre") - count(preset="base") == 2 * 1024  # the final norms
    assert count(preset="base", output_bias=True) - count(preset="base") == 37_000
    assert count(preset="base", tie="target") - count(preset="base") == 37_001 * 512
    assert count(preset="base", tie="none") - count(preset="base") == 37_001 * 512 + 37_000 * 512
    assert count(preset="base", positions="learned") - count(preset="base") == 2 * 1024 * 512


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_tied_matrices_change_together(tie: str) -> None:
    model = tiny_model(tie=tie)
    ids, positions = torch.tensor([3]), torch.tensor([0])
    with torch.no_grad():
        before = [
            *(model.embed(ids, positions, source).clone() for source in (True, False)),
            model.output_weight.clone(),
        ]
        model.embedding[3] += 1
        after = [*(model.embed(ids, positions, source) for source in (True, False)), model.output_weight]
    changed = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert changed == {"all": [True, True, True], "target": [False, True, True], "none": [False, True, False]}[tie]
    assert model.output_weight.shape == (NUM_IDS, 16)


@torch.no_grad()
def test_initial_weights() -> None:
    torch.manual_seed(1)
    model = Transformer(tiny_config(d_model=128, d_ff=512, tie="none", output_bias=True), 4000)
    assert model.src_embedding is not None and model.projection is not None
    for table in (model.embedding[:-1], model.src_embedding[:-1], model.projection):
        assert float(table.std()) == pytest.approx(128**-0.5, rel=0.01)
        assert abs(float(table.mean())) < 5 * 128**-0.5 / table.numel() ** 0.5
    matrices = [(n, p) for n, p in model.named_parameters() if n.endswith(".weight") and p.dim() == 2]
    assert len(matrices) == 2 * (4 + 2) + 2 * (8 + 2)
    for name, weight in matrices:  # uniform within sqrt(6 / (in + out)), a variance of 2 / (in + out)
        gain = 0.25 if name.endswith(("outer.weight", "attention.output.weight")) else 1.0  # feeds a residual sum
        bound = gain * math.sqrt(6 / sum(weight.shape))
        assert 0.99 * bound < float(weight.abs().max()) < 1.0001 * bound, name
        assert float(weight.var()) == pytest.approx(gain**2 * 2 / sum(weight.shape), rel=0.05), name
    assert all((p == 0).all() for n, p in model.named_parameters() if n.endswith("bias"))


@pytest.mark.parametrize("changes", [{}, {"tie": "target"}, {"tie": "none"}, *OTHERS])
def test_pad_stays_zero_and_is_never_scored(changes: dict[str, Any]) -> None:
    model = tiny_model(**changes, dtype=torch.float32).train()
    tables = [table for table in (model.embedding, model.src_embedding) if table is not None]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.9, 0.98), eps=1e-9)
    batch = random_batch(SRC, TGT, tail=5)  # pad in the tail, and before every sentence
    for _ in range(3):
        states = model.decode(batch, model.encode(batch))
        smoothed_loss(states, model.output_weight, None, batch.tgt_out_ids, 0.1).loss.backward()  # type: ignore[no-untyped-call]
        for table in tables:
            assert table.grad is not None
            assert (table.grad[model.pad_id] == 0).all()
            assert (table.grad != 0).any()
        optimizer.step()
        optimizer.zero_grad()
        assert all((table[model.pad_id] == 0).all() for table in tables)
    assert len(model.output_weight) == NUM_IDS == model.pad_id


@pytest.mark.parametrize("changes", [{}, *OTHERS])
def test_dropout_is_on_in_training_only_and_follows_the_seed(changes: dict[str, Any]) -> None:
    model, batch = tiny_model(**changes, dropout=0.3), random_batch(SRC, TGT)
    assert torch.equal(hidden(model, batch), hidden(model, batch))
    model.train()
    torch.manual_seed(1)
    first, second = hidden(model, batch), hidden(model, batch)
    torch.manual_seed(1)
    assert torch.equal(hidden(model, batch), first)
    assert not torch.equal(first, second)


def test_dropout_is_applied_where_the_paper_applies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """5.4: on both embedding sums, and on each sub-layer's output: 2 a layer of the encoder, 3 of the decoder."""
    seen: list[Tensor] = []

    def recording(x: Tensor, probability: float, training: bool) -> Tensor:
        assert (probability, training) == (0.3, True)
        seen.append(x)
        return x

    monkeypatch.setattr("mtx.model.transformer.dropout", recording)
    hidden(tiny_model(dropout=0.3).train(), random_batch(SRC, TGT))
    assert len(seen) == 2 + 2 * 2 + 2 * 3
