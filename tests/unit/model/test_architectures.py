"""The table of architectures is lazy: what is not asked for is not imported, and may be missing."""

import subprocess
import sys

import pytest
import torch

from mtx.errors import UsageError
from mtx.model.architectures import ARCHITECTURES, new_model, num_parameters
from tests.models import OTHERS, tiny_config


@pytest.mark.parametrize("changes", OTHERS)
def test_parameters_are_counted_without_memory(changes: dict[str, object]) -> None:
    config = tiny_config(**changes)
    assert num_parameters(config, 13) == sum(parameter.numel() for parameter in new_model(config, 13).parameters())
    assert torch.empty(0).device.type == "cpu"


@pytest.mark.seconds
def test_a_transformer_needs_no_other_architecture() -> None:
    code = (
        "import sys; from mtx.config.schema import ModelConfig; from mtx.model.architectures import *; "
        "new_search_model(new_model(ModelConfig.model_validate({'preset': 'tiny'}), 9), torch.float32); "
        "print([name for name in sys.modules if name.startswith('mtx.architectures')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_missing_folder_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "rnn", ("mtx.architectures.missing:Model", ""))
    with pytest.raises(UsageError, match="model.architecture=rnn: not available"):
        new_model(tiny_config(architecture="rnn"), 13)
