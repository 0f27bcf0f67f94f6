"""What is wrong with a fast step is found, and honest rounding is no fault."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from mtx.config.schema import ModelConfig
from mtx.model.fused import BlockLayout
from mtx.report.fast_path import compare, make_steps
from mtx.training.micro_batch import StepResult
from tests.models import dense
from tests.unit.training.test_micro_batch import dense_varlen_attn


@pytest.mark.seconds
@pytest.mark.parametrize(
    "model",
    [{"preset": "tiny"}, {"preset": "small"}, {"preset": "tiny", "norm": "pre", "positions": "learned", "tie": "none"},
     {"preset": "tiny", "d_model": 16, "d_ff": 32}],
)  # fmt: skip
def test_honest_rounding_is_no_fault(model: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Any = ModuleType("torch.nn.attention.varlen")
    kernels.varlen_attn = dense_varlen_attn
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    monkeypatch.setattr(BlockLayout, "attend_joint", dense)
    found = compare(*make_steps(ModelConfig.model_validate(model), 100, torch.device("cpu"), False))
    assert found.fault is None and 0 < found.gradients < 0.12 and found.fast_s > 0


def steps(changes: dict[str, Any]) -> tuple[Callable[[], StepResult], Callable[[], StepResult]]:
    """The plain and the fast step, each of one gradient."""
    right = StepResult(10.0, [torch.ones(8), torch.full((8,), 1e-5)])
    return changes.get("plain", lambda: right), changes.get("fast", lambda: right)


def in_turn(*values: Any) -> Callable[..., Any]:
    left = list(values)
    return lambda *_: left.pop(0) if len(left) > 1 else left[0]


def result(loss: float, factor: float, second: float = 1e-5) -> StepResult:
    return StepResult(loss, [torch.full((8,), factor), torch.full((8,), second)])


@pytest.mark.parametrize(
    "changes, fault",
    [
        ({}, None),
        ({"fast": lambda: result(10.0, 1.11)}, None),
        ({"fast": lambda: result(10.0, 1.13)}, "a gradient by 13%"),
        ({"fast": lambda: result(10.01, 1.0)}, None),
        ({"fast": lambda: result(10.03, 1.0)}, "loss differs by 0.30%"),
        ({"fast": lambda: result(10.0, 1.0, 1.0)}, None),  # tiny beside the other one
        ({"fast": in_turn(result(10.0, 1.0), result(10.0, 1.01))}, "taken twice"),
        ({"fast": in_turn(result(10.0, 1.0), result(10.0, 1.001))}, None),
        ({"plain": lambda: result(10.0, float("inf"))}, "differs"),
        ({"plain": lambda: result(float("nan"), 1.0)}, "differs"),
        ({"fast": lambda: result(float("inf"), 1.0)}, "differs"),
    ],
)  # fmt: skip
def test_what_is_compared(changes: dict[str, Any], fault: str | None) -> None:
    found = compare(*steps(changes))
    assert (found.fault is None) == (fault is None), found
    assert fault is None or fault in str(found.fault)


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_is_a_fault(number: float) -> None:
    broken: list[Tensor] = [torch.tensor([number] + 7 * [1.0]), torch.ones(8)]
    assert "differs" in str(compare(*steps({"fast": lambda: StepResult(10.0, broken)})).fault)
