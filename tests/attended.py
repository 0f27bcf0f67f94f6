"""What each attention of a model got and gave while it ran, to hold attention weights against."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mtx.model.transformer import Transformer

KINDS = ("encoder", "decoder", "cross")
Calls = dict[str, list[tuple[Any, Tensor, Tensor]]]


@contextmanager
def recorded(model: Transformer) -> Iterator[Calls]:
    """Of each kind the module, memory and output of every layer's attention, of the last run."""
    calls: Calls = {kind: [] for kind in KINDS}
    modules = {
        "encoder": [layer.self_attention for layer in model.encoder],
        "decoder": [layer.self_attention for layer in model.decoder],
        "cross": [layer.cross_attention for layer in model.decoder],
    }
    hooks = [
        module.register_forward_hook(lambda m, inputs, out, kind=kind: calls[kind].append((m, inputs[1], out)))
        for kind, of_kind in modules.items()
        for module in of_kind
    ]
    yield calls
    for hook in hooks:
        hook.remove()


@torch.inference_mode()
def largest_error(weights: npt.NDArray[np.float32], calls: list[tuple[Any, Tensor, Tensor]]) -> float:
    """The largest difference between weights [L, H, T, S] @ values -> output projection and what the layers gave."""
    errors = []
    for layer, (module, memory, out) in zip(weights, calls, strict=True):
        values = module.split(module.value(memory))
        mixed = torch.einsum("hts,shk->thk", torch.from_numpy(layer).to(values), values)
        errors.append(float((module.output(mixed.flatten(1)) - out).abs().max()))
    return max(errors)
