"""The sizes that are checked before a file of a model is read."""

from typing import Any

import pytest

from mtx.config.schema import ModelConfig
from mtx.model.architectures import num_parameters
from mtx.storage import model_description

LARGE = {"num_encoder_layers": 20, "num_decoder_layers": 20, "d_model": 2048, "num_heads": 8}


@pytest.mark.parametrize("values", [
    {"preset": "tiny"}, {"preset": "base"}, {"preset": "big"}, {**LARGE, "d_ff": 16}, {**LARGE, "d_ff": 16384},
    {**LARGE, "tie": "none", "output_bias": True, "positions": "learned", "norm": "pre"},
    {**LARGE, "architecture": "decoder", "positions": "learned"},
    {**LARGE, "architecture": "rnn", "cell": "lstm", "score": "additive", "tie": "none"},
    {"architecture": "rnn", "num_encoder_layers": 1, "num_decoder_layers": 1, "score": "additive", "d_model": 2048},
    {"architecture": "rnn", "num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8},
])  # fmt: skip
@pytest.mark.parametrize("num_ids", [10, 60_000])
def test_no_model_has_more_weights_than_its_limit(
    values: dict[str, Any], num_ids: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_description, "total_bytes", lambda: None)
    config = ModelConfig.model_validate(values)
    limit = model_description.max_weight_bytes(config, num_ids)
    assert 4 * num_parameters(config, num_ids) + model_description.MAX_HEADER_BYTES <= limit
