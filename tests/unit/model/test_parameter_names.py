"""The table of parameters matches the model."""

import math
from collections import Counter
from typing import Any

import pytest

from mtx.config.schema import PRESETS, ModelConfig
from mtx.model.architectures import num_parameters
from mtx.model.parameter_names import parameters
from tests.models import tiny_config, tiny_model

NUM_IDS = 13


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "positions": "learned"},
        {"tie": "target", "num_encoder_layers": 1, "num_decoder_layers": 3},
        {"tie": "none", "output_bias": True, "d_ff": 24},
    ],
)
def test_the_table_has_every_parameter_once_with_its_shape(changes: dict[str, Any]) -> None:
    config = tiny_config(**changes)
    table = list(parameters(config, NUM_IDS))
    expected = {name: tuple(tensor.shape) for name, tensor in tiny_model(NUM_IDS, **changes).state_dict().items()}
    assert {parameter.name: parameter.shape for parameter in table} == expected
    assert len(table) == len(expected)
    numbers = sum(math.prod(shape) for shape in expected.values())
    assert num_parameters(config, NUM_IDS) == numbers


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_every_parameter_has_a_name_of_its_own_in_other_formats(tie: str) -> None:
    table = list(parameters(tiny_config(tie=tie, output_bias=True), NUM_IDS))
    assert all(parameter.ctranslate2 and parameter.huggingface for parameter in table)
    marian = Counter(name for parameter in table for name in parameter.huggingface)
    assert max(marian.values()) == 1
    tables = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"}
    assert tables <= {*marian}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_about_as_many_parameters_in_every_architecture(preset: str) -> None:
    """Beside those of the tokens, which depend on the width."""
    sizes = {}
    for architecture in ("transformer", "decoder", "rnn"):
        config = ModelConfig.model_validate({"architecture": architecture, "preset": preset})
        sizes[architecture] = num_parameters(config, 8000) - 8001 * config.d_model
    for architecture, size in sizes.items():
        assert 0.8 < size / sizes["transformer"] < 1.25, (architecture, sizes)
