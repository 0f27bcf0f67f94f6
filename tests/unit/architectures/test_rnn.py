"""The recurrent model is made of torch's recurrences and of attention as published; its invariants are tested with the
Transformer's, in test_transformer.py and test_inference.py."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mtx.architectures import rnn
from mtx.architectures.rnn import Score, advance_state
from tests.models import OTHERS, random_batch, tiny_config, tiny_model

NUM_IDS = 13
RECURRENT = [changes for changes in OTHERS if changes["architecture"] == "rnn"]


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@torch.no_grad()
def test_a_step_is_that_of_torch_with_copied_weights(cell: type[nn.LSTM] | type[nn.GRU]) -> None:
    torch.manual_seed(1)
    recurrence = cell(6, 4, num_layers=2).double()
    x, first = torch.randn(5, 3, 6, dtype=torch.float64), torch.randn(2, 2, 3, 4, dtype=torch.float64)
    is_lstm = cell is nn.LSTM
    expected, _ = recurrence(x, (first[0], first[1]) if is_lstm else first[0])
    states = [first[:, number] if is_lstm else first[:1, number] for number in (0, 1)]
    for place in range(5):
        inner = advance_state(x[place], states[0], recurrence.all_weights[0])
        outer = advance_state(inner, states[1], recurrence.all_weights[1])
        torch.testing.assert_close(outer, expected[place], rtol=0, atol=1e-12)


@torch.no_grad()
def test_scores_are_a_table_by_hand() -> None:
    torch.manual_seed(2)
    q, k = torch.randn(1, 2, 4), torch.randn(1, 3, 4)
    additive, dot, multiplicative = (Score(k, 4) for k in ("additive", "scaled_dot_product", "multiplicative"))
    assert additive.weight is not None
    nn.init.normal_(additive.weight)
    for row, column in product(range(2), range(3)):
        query, key = q[0, row].tolist(), k[0, column].tolist()
        w_q, b_q, w_k = additive.query.weight.tolist(), additive.query.bias.tolist(), additive.key.weight.tolist()
        by_hand = sum(
            v * math.tanh(sum(a * x for a, x in zip(w_k[i], key, strict=True))
                          + sum(a * x for a, x in zip(w_q[i], query, strict=True)) + b_q[i])
            for i, v in enumerate(additive.weight.tolist())
        )  # fmt: skip
        assert of(additive, q, k)[row, column] == pytest.approx(by_hand, abs=1e-6)
        by_hand = sum(a * b for a, b in zip(query, key, strict=True)) / 2
        assert of(dot, q, k)[row, column] == pytest.approx(by_hand, abs=1e-6)
        w = multiplicative.key.weight.tolist()
        by_hand = sum(query[i] * w[i][j] * key[j] for i in range(4) for j in range(4))
        assert of(multiplicative, q, k)[row, column] == pytest.approx(by_hand, abs=1e-6)


def of(score: Score, queries: Tensor, keys: Tensor) -> Any:
    return score(score.query(queries), score.key(keys))[0]


@pytest.mark.parametrize("changes", RECURRENT)
def test_attention_in_small_groups_is_that_in_one(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = tiny_model(**changes), random_batch([5, 9, 2, 1, 7], [6, 3, 8, 4, 1], tail=3)
    with torch.no_grad():
        whole = model.decode(batch, model.encode(batch))
        monkeypatch.setattr(rnn, "_GROUP", 2)
        torch.testing.assert_close(model.decode(batch, model.encode(batch)), whole, rtol=0, atol=1e-12)
    assert (whole[-1] == 0).all(), "that of a dummy"


@pytest.mark.parametrize("changes", RECURRENT)
@torch.no_grad()
def test_its_attention_is_a_distribution_over_the_source(changes: dict[str, Any]) -> None:
    found = tiny_model(**changes).attention_weights(random_batch([5, 9, 2], [6, 3, 8]))
    weights = [cross for _, _, cross in found]
    assert [pair.shape for pair in weights] == [(1, 1, 6, 5), (1, 1, 3, 9), (1, 1, 8, 2)]
    assert all(np.allclose(pair.sum(-1), 1) for pair in weights)


@torch.no_grad()
def test_initial_weights() -> None:
    torch.manual_seed(1)
    model = tiny_model(seed=1, d_model=64, architecture="rnn")
    recurrence = type(model)(tiny_config(architecture="rnn", d_model=64), NUM_IDS).first_layer
    gates = recurrence.weight_hh_l0.split(64)
    assert all(torch.allclose(gate @ gate.T, torch.eye(64), atol=1e-5) for gate in gates)
    assert recurrence.bias_ih_l0.tolist() == [0.0] * 64 + [1.0] * 64 + [0.0] * 128
