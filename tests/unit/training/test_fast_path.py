"""What is wrong with a fast path is found and switched off, whether it is wrong, raises, crashes or hangs.

The trials run in other processes, on the CPU: its steps are right, and `tests.unit.training.trials` puts faults in.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mtx.config.schema import ModelConfig
from mtx.training import fast_path, trial_process
from mtx.training.fast_path import Numbers, Outcome, Parts, Steps, Task, find_sound_parts
from tests.models import tiny_config
from tests.unit.training.trials import FaultyTrial

ALL = ("compile", "graph", "varlen", "bf16")
SMALL: dict[str, Any] = {"d_model": 64, "num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.1}
FAULTS = {
    "wrong": "its loss differs by 0.0",
    "raises": "the fast step: RuntimeError: Failed to find C compiler. Please specify via CC environment variable",
    "hangs": "the fast step: no answer in 1 s",
    "crashes": "the fast step: its process was killed by SIGABRT",
    "not finite": "its loss or gradient is not finite",
}


def task_of(parts: Parts = ALL, model: ModelConfig | None = None) -> Task:
    return Task(model or tiny_config(**SMALL), 100, 64, 0.1, "cpu", False, parts)


@pytest.fixture
def put_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    return lambda faults: monkeypatch.setattr(fast_path, "trial", FaultyTrial(faults))


def without_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "run_trial", trial_process._run_here)


@pytest.mark.seconds
@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_in_its_process_is_told(fault: str, put_in: Any) -> None:
    put_in({"compile": fault})
    finding = find_sound_parts(task_of())
    assert finding.parts == ("graph", "varlen", "bf16")
    assert list(finding.faults) == ["compile"]
    assert finding.faults["compile"].startswith(FAULTS[fault])
    assert "LOGS" not in finding.faults["compile"], "advice to developers"
    assert finding.outcome is not None and 0 < finding.outcome.gradients < 0.12


@pytest.mark.parametrize(
    "faulty, sound",
    [
        ([], ALL), (["compile"], ("graph", "varlen", "bf16")), (["graph"], ("compile", "varlen", "bf16")),
        (["compile", "graph"], ("varlen", "bf16")), (["varlen"], ("bf16",)), (["bf16"], ()),
        (["compile", "bf16"], ()), (["graph", "varlen"], ("bf16",)),
    ],
)  # fmt: skip
def test_only_what_is_faulty_is_switched_off(
    faulty: list[str], sound: Parts, put_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_process(monkeypatch)
    put_in(dict.fromkeys(faulty, "wrong"))
    finding = find_sound_parts(task_of())
    assert finding.parts == sound
    assert set(finding.faults) == set(faulty[-1:] if faulty[-1:] in (["varlen"], ["bf16"]) else faulty)


def test_each_part_is_told_with_its_own_fault(put_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without_process(monkeypatch)
    put_in({"compile": "wrong", "graph": "raises"})
    finding = find_sound_parts(task_of())
    assert finding.parts == ("varlen", "bf16")
    assert finding.faults["compile"].startswith(FAULTS["wrong"])
    assert finding.faults["graph"].startswith(FAULTS["raises"])


@pytest.mark.parametrize("fault", ["raises", "not finite"])
def test_a_plain_step_that_fails_leaves_nothing_to_compare_with(
    fault: str, put_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_process(monkeypatch)
    tried = list[Parts]()
    run = fast_path.run_trial
    monkeypatch.setattr(fast_path, "run_trial", lambda trial, task: (tried.append(task.parts), run(trial, task))[1])
    put_in({"plain": fault})
    finding = find_sound_parts(task_of())
    assert finding.parts == () and list(finding.faults) == ["bf16"]
    assert "the plain step" in finding.faults["bf16"]
    assert tried == [ALL], "further trials would fail in the same way"


@pytest.mark.parametrize(
    "model",
    [{"preset": "tiny"}, {"preset": "small"}, {"preset": "tiny", "norm": "pre", "positions": "learned", "tie": "none"},
     {"preset": "tiny", "d_model": 16, "d_ff": 32}],
)  # fmt: skip
def test_honest_rounding_is_no_fault(model: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    without_process(monkeypatch)
    finding = find_sound_parts(task_of(("bf16",), ModelConfig.model_validate(model)))
    assert finding.parts == ("bf16",) and finding.faults == {}


def steps(changes: dict[str, Any]) -> Steps:
    """Steps of one gradient; dropout takes it apart by seed."""
    plain = Numbers(10.0, [torch.ones(8), torch.full((8,), 1e-5)])
    right = Steps(
        lambda: plain, lambda: plain, None, lambda seed: Numbers(10.0, [torch.full((8,), float(seed))] * 2), list
    )
    return replace(right, **changes)


def outcome(**changes: Any) -> Outcome:
    compared = fast_path.compare(lambda: steps(changes))
    try:
        while True:
            next(compared)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def in_turn(*values: Any) -> Callable[..., Any]:
    left = list(values)
    return lambda *_: left.pop(0) if len(left) > 1 else left[0]


def numbers(loss: float, factor: float, second: float = 1e-5) -> Numbers:
    return Numbers(loss, [torch.full((8,), factor), torch.full((8,), second)])


@pytest.mark.parametrize(
    "changes, fault",
    [
        ({}, None),
        ({"seeded": None}, None),
        ({"fast": lambda: numbers(10.0, 1.11)}, None),
        ({"fast": lambda: numbers(10.0, 1.13)}, "a gradient by 13%"),
        ({"fast": lambda: numbers(10.01, 1.0)}, None),
        ({"fast": lambda: numbers(10.03, 1.0)}, "loss differs by 0.30%"),
        ({"fast": lambda: numbers(10.0, 1.0, 1.0)}, None),  # tiny beside the other one
        ({"fast": in_turn(numbers(10.0, 1.0), numbers(10.0, 1.01))}, "taken twice"),
        ({"fast": in_turn(numbers(10.0, 1.0), numbers(10.0, 1.001))}, None),
        ({"addresses": in_turn([1, 2], [1, 3])}, "moved in memory"),
        ({"seeded": in_turn(numbers(9.0, 1.0), numbers(9.0, 2.0), numbers(9.0, 2.0))}, "the same seed gives different"),
        ({"seeded": lambda seed: numbers(9.0, 1.0)}, "another seed gives the same"),
        ({"plain": lambda: numbers(10.0, 0.0, 0.0)}, "the plain step itself"),
        ({"plain": lambda: numbers(0.0, 1.0)}, "the plain step itself"),
    ],
)  # fmt: skip
def test_what_is_compared(changes: dict[str, Any], fault: str | None) -> None:
    found = outcome(**changes)
    assert (found.fault is None) == (fault is None), found
    assert fault is None or fault in str(found.fault)


def test_a_gradient_that_is_not_finite_is_a_fault() -> None:
    broken: list[Tensor] = [torch.tensor([float("inf")] + 7 * [1.0]), torch.ones(8)]
    assert outcome(fast=lambda: Numbers(10.0, broken)).fault == "its loss or gradient is not finite"


def test_what_compiles_is_compiled_before_the_fast_step_is_timed() -> None:
    done = list[str]()
    compared = fast_path.compare(lambda: steps({"compile": lambda: done.append("compiled")}))
    names = [(stage.name, list(done)) for stage in compared]
    assert names == [("the plain step", []), ("compiling", []), ("the fast step", ["compiled"])]
