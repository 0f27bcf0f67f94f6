"""A decoder alone computes what GPT-2 of transformers computes; its invariants are tested with the Transformer's."""

from typing import Any

import pytest
import torch

from tests.models import batch_of, random_ids, tiny_model

transformers = pytest.importorskip("transformers")
NUM_IDS = 13


def gpt2_of(model: Any) -> Any:
    """GPT-2 with the weights of a model with pre-norm, GELU and learned positions."""
    config = model.config
    gpt2 = transformers.GPT2Model(transformers.GPT2Config(
        vocab_size=NUM_IDS + 1, n_positions=2048, n_embd=config.d_model, n_layer=config.num_decoder_layers,
        n_head=config.num_heads, n_inner=config.d_ff, activation_function="gelu", layer_norm_epsilon=1e-5,
    )).double().eval()  # fmt: skip
    weights = {"wte.weight": model.embedding * config.d_model**0.5, "wpe.weight": model.positions}
    for number, layer in enumerate(model.decoder):
        attention = layer.self_attention
        projections = attention.query, attention.key, attention.value
        weights |= {
            f"h.{number}.attn.c_attn.weight": torch.cat([part.weight for part in projections]).T,
            f"h.{number}.attn.c_attn.bias": torch.cat([part.bias for part in projections]),
        }
        parts = {
            "attn.c_proj": attention.output, "mlp.c_fc": layer.inner, "mlp.c_proj": layer.outer,
            "ln_1": layer.self_attention_norm, "ln_2": layer.feed_forward_norm,
        }  # fmt: skip
        weights |= {f"h.{number}.{name}.weight": part.weight.t() for name, part in parts.items()}
        weights |= {f"h.{number}.{name}.bias": part.bias for name, part in parts.items()}
    weights |= {"ln_f.weight": model.decoder_norm.weight, "ln_f.bias": model.decoder_norm.bias}
    gpt2.load_state_dict(weights, strict=True)
    return gpt2


@torch.no_grad()
def test_it_is_gpt2() -> None:
    model = tiny_model(NUM_IDS, architecture="decoder", norm="pre", activation="gelu", positions="learned")
    gpt2 = gpt2_of(model)
    src, tgt = random_ids([5, 9, 2], NUM_IDS, 1), random_ids([6, 3, 8], NUM_IDS, 2)
    batch = batch_of(src, tgt, NUM_IDS, tail=3)
    ours = model.decode(batch, model.encode(batch)).split([6, 3, 8, len(batch.tgt_in_ids) - 17])
    for source, target, states in zip(src, tgt, ours, strict=False):
        sequence = torch.tensor([[*source, NUM_IDS, *target[:-1]]])
        theirs = gpt2(sequence).last_hidden_state[0, len(source) :]
        torch.testing.assert_close(states, theirs, rtol=0, atol=1e-9)


@torch.no_grad()
def test_positions_count_through_both_sides() -> None:
    model = tiny_model(NUM_IDS, architecture="decoder", positions="learned")
    before, (src,), tgt = [], random_ids([5], NUM_IDS, 1), random_ids([4], NUM_IDS, 2)
    for changed in (None, 4, 5, 8, 9):
        if changed is not None:
            model.positions[changed] += 1
        batch = batch_of([src], tgt, NUM_IDS)
        before.append(model.decode(batch, model.encode(batch)))
    assert [not torch.equal(a, b) for a, b in zip(before, before[1:], strict=False)] == [True, True, True, False]
