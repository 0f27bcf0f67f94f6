"""A run compares its fast step with the plain one at its first start on a GPU, and takes the fastest without a fault.

A CPU plays the GPU: its kernel computes what the varlen kernel does, nothing is recorded, and the faults are put in.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from mtx.config import settings
from mtx.config.schema import Config
from mtx.data.token_store import PreparedData, load_prepared
from mtx.errors import MtxError
from mtx.model.attention import BlockLayout, _TileAttention
from mtx.storage import durable
from mtx.storage.run_files import RunLayout
from mtx.training import build
from mtx.training.build import check_fast_step, choose_runtime, read_runtime
from mtx.training.micro_batch import MicroStep, RuntimeChoices, StepResult
from mtx.training.run import prepare_only, train
from tests.integration.commands import TINY, write_tsv
from tests.models import dense
from tests.unit.training.test_micro_batch import dense_varlen_attn

GPU_SETTINGS = [
    "precision=bf16",
    "training.micro_batch_tokens=256",
    "training.max_steps=3",
    "training.validate_every=3",
]
CUDA = torch.device("cuda")
COMPILED = RuntimeChoices("cpu", "bf16", 256, "varlen", 1, True)
RECORDED = replace(COMPILED, compile=False)
EAGER = replace(RECORDED, kernel="padded")
PLAIN = replace(EAGER, precision="fp32")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is only prepared."""
    directory = tmp_path_factory.mktemp("prepared")
    corpus = write_tsv(directory / "digits.tsv", range(1000, 1200))
    wanted = settings.resolve(None, [f"data.train={corpus}", *TINY, *GPU_SETTINGS, f"run_dir={directory / 'run'}"])
    return prepare_only(wanted.config).root


@pytest.fixture
def own(prepared: Path) -> tuple[Config, PreparedData]:
    return settings.load(RunLayout(prepared).config), load_prepared(RunLayout(prepared).data)


@pytest.fixture
def varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Any = ModuleType("torch.nn.attention.varlen")
    kernels.varlen_attn = dense_varlen_attn
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    monkeypatch.setattr(BlockLayout, "attend_joint", dense)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # the real one takes a minute


def wrong(result: StepResult) -> StepResult:
    return StepResult(result.loss, [gradient * 1.1 for gradient in result.gradients])


def raises(result: StepResult) -> StepResult:
    raise RuntimeError("Failed to find C compiler\nSet LOGS=1 for more")


def not_finite(result: StepResult) -> StepResult:
    return StepResult(float("nan"), result.gradients)


def no_memory(result: StepResult) -> StepResult:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


IS: dict[str, Callable[[MicroStep], bool]] = {
    "compiled": lambda step: step.compiled, "varlen": lambda step: step.model.kernel == "varlen",
    "bf16": lambda step: step.precision == "bf16", "nothing": lambda step: False, "all": lambda step: True,
}  # fmt: skip


def put_in(fault: Any, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = build.take_step

    def faulty(step: MicroStep, *rest: Any) -> StepResult:
        found = original(step, *rest)
        return fault(found) if IS[part](step) else found  # type: ignore[no-any-return]

    monkeypatch.setattr(build, "take_step", faulty)


@pytest.mark.parametrize(
    "fault", [wrong, *(pytest.param(fault, marks=pytest.mark.extended) for fault in (raises, not_finite))]
)
@pytest.mark.parametrize(
    "part, sound, how",
    [
        ("compiled", RECORDED, "without compiling it"), ("varlen", EAGER, "one operation after the other, in bf16"),
        ("bf16", PLAIN, "one operation after the other, in fp32"),
    ],
)  # fmt: skip
def test_the_fastest_step_without_a_fault_is_taken_and_one_warning_says_so(
    fault: Any, part: str, sound: RuntimeChoices, how: str, own: tuple[Config, PreparedData], varlen: None,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    put_in(fault, part, monkeypatch)
    assert check_fast_step(COMPILED, *own) == sound
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    words = {
        wrong: "its gradient by 10.0%",
        raises: "RuntimeError: Failed to find C compiler",
        not_finite: "its loss differs by nan%",
    }[fault]
    assert words in warning and how in warning and "LOGS" not in warning


def test_a_step_without_a_fault_stays(
    own: tuple[Config, PreparedData], varlen: None, caplog: pytest.LogCaptureFixture
) -> None:
    planned = replace(COMPILED, plan={"row": 29_000})  # of a run whose sizes mtx has chosen
    for choices in (COMPILED, planned, RECORDED, EAGER, PLAIN):
        assert check_fast_step(choices, *own) == choices
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_kernel_that_sees_later_tokens_is_found(
    own: tuple[Config, PreparedData], varlen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_mask(*tensors: Any, window_size: tuple[int, int]) -> torch.Tensor:
        return dense_varlen_attn(*tensors, window_size=(-1, -1))

    monkeypatch.setattr(sys.modules["torch.nn.attention.varlen"], "varlen_attn", without_mask)
    assert check_fast_step(RECORDED, *own) == EAGER


def change_queries_and_keys(grads: list[torch.Tensor], queries: float, keys: float) -> None:
    """Of joint self-attention [N, 3, H, K], or of queries [N, 1, H, K] and of keys and values [N, 2, H, K]."""
    if len(grads) == 2:
        grads[0].mul_(queries)
        grads[1][:, 0].mul_(keys)
    else:
        grads[0][:, 0].mul_(queries)
        grads[0][:, 1].mul_(keys)


ATTENTION_FAULTS = [("cross", 0, 0), ("self", 0, 0), ("", 0.5, 0.5), ("", 1, 0), ("", 0, 1), ("cross", 1.2, 1)]


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(("attention", "queries", "keys"), ATTENTION_FAULTS)
def test_a_wrong_gradient_of_queries_or_keys_is_found(
    norm: str, attention: str, queries: float, keys: float, own: tuple[Config, PreparedData],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """They have a few per cent of the norm of all gradients."""
    backward = _TileAttention.backward

    def faulty(context: Any, grad: torch.Tensor) -> Any:
        none, *grads = backward(context, grad)
        if grad.dtype == torch.bfloat16 and attention in ("", "cross" if len(grads) == 2 else "self"):
            change_queries_and_keys(grads, queries, keys)
        return none, *grads

    monkeypatch.setattr(_TileAttention, "backward", staticmethod(faulty))
    config, data = own
    assert check_fast_step(EAGER, settings.with_values(config, {"model.norm": norm}), data) == PLAIN


MODELS: list[dict[str, Any]] = [
    {}, {"model.norm": "pre"}, {"model.tie": "none", "model.positions": "learned"},
    {"model.architecture": "decoder"}, {"model.architecture": "rnn"},
    {"model.architecture": "rnn", "model.cell": "gru", "model.score": "scaled_dot_product"},
]  # fmt: skip


@pytest.mark.parametrize("values", MODELS)
def test_a_correct_step_of_any_model_has_no_fault(
    values: dict[str, Any], own: tuple[Config, PreparedData], caplog: pytest.LogCaptureFixture
) -> None:
    """The gradients of keys' biases, and those of embeddings without a token in the batch, would be zero."""
    config, data = own
    assert check_fast_step(EAGER, settings.with_values(config, values), data) == EAGER, caplog.text


def test_a_parameter_without_a_gradient_is_a_fault_only_if_the_plain_step_has_one(
    own: tuple[Config, PreparedData], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(result: StepResult) -> StepResult:
        smallest = min((gradient for gradient in result.gradients if gradient.norm() > 1e-3), key=torch.Tensor.norm)
        return StepResult(result.loss, [g.zero_() if g is smallest else g for g in result.gradients])

    for part, expected in (("bf16", PLAIN), ("all", EAGER)):
        with monkeypatch.context() as patch:
            put_in(without, part, patch)
            assert check_fast_step(EAGER, *own) == expected


def test_too_little_memory_is_no_fault_of_the_step(
    own: tuple[Config, PreparedData], varlen: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_in(no_memory, "bf16", monkeypatch)
    assert check_fast_step(COMPILED, *own) == COMPILED
    assert "not enough memory to compare the fast step" in caplog.text


@pytest.mark.parametrize(
    ("wanted", "form", "hint"),
    [
        (COMPILED, "varlen kernel, compiled", "training.compile=false"),
        (RECORDED, "varlen kernel", "precision=fp32"),
    ],
)
def test_after_a_lasting_error_of_the_device_the_form_is_named(
    wanted: RuntimeChoices, form: str, hint: str, own: tuple[Config, PreparedData], varlen: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """After an illegal address every call of CUDA fails, also those of the plain step."""
    original, is_broken = build.take_step, False

    def breaks(step: MicroStep, *rest: Any) -> StepResult:
        nonlocal is_broken
        is_broken = is_broken or step.model.kernel == "varlen"
        if is_broken:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with ...")
        return original(step, *rest)

    def fails_to_free(device: torch.device) -> None:
        assert not is_broken

    monkeypatch.setattr(build, "take_step", breaks)
    text = f"cpu: unusable after the fast step: {form}: AcceleratorError: CUDA error: an illegal memory access was"
    for fails in (False, True):  # also where giving memory back is the first call that fails
        if fails:
            monkeypatch.setattr(build, "free_unused_memory", fails_to_free)
        is_broken = False
        with pytest.raises(MtxError, match=text) as caught:
            check_fast_step(wanted, *own)
        assert caught.value.help == hint


class Choosing:
    """Starts a run's choices on a GPU again and again, and counts the checks, which find `sound`."""

    def __init__(self, root: Path, own: tuple[Config, PreparedData], monkeypatch: pytest.MonkeyPatch):
        self.paths, (self.config, self.data) = RunLayout(root), own
        self.sound: Callable[[RuntimeChoices], RuntimeChoices] = lambda wished: wished
        self.num_checks, self.kernel = 0, "varlen"
        monkeypatch.setattr(build, "attention_kernel", lambda *_: self.kernel)
        monkeypatch.setattr(build, "prepare_device", lambda *_: None)
        monkeypatch.setattr(build, "check_fast_step", self.check)

    def check(self, wished: RuntimeChoices, *_: Any) -> RuntimeChoices:
        self.num_checks += 1
        return self.sound(wished)

    def __call__(self, compiled: Any = "auto", device: torch.device = CUDA, name: str = "auto") -> RuntimeChoices:
        training = self.config.training.model_copy(update={"compile": compiled})
        config = self.config.model_copy(update={"training": training, "device": name})
        return choose_runtime(self.paths, config, device, self.data)


@pytest.fixture
def choose(tmp_path: Path, own: tuple[Config, PreparedData], monkeypatch: pytest.MonkeyPatch) -> Choosing:
    return Choosing(tmp_path, own, monkeypatch)


def test_what_the_first_start_found_holds_for_later_ones(choose: Choosing) -> None:
    choose.sound = lambda wished: replace(wished, kernel="padded", compile=False, precision="fp32")
    first = choose(compiled=True)
    assert (first.device, first.kernel, first.precision, first.micro_batch_tokens) == ("cuda", "padded", "fp32", 256)
    assert choose(compiled=True) == choose() == first == read_runtime(choose.paths.chosen) and choose.num_checks == 1


def test_the_key_decides_about_compiling_at_each_start(choose: Choosing) -> None:
    assert not choose(compiled=False).compile
    assert not choose().compile, "auto is what was chosen first"
    assert choose.num_checks == 1
    assert choose(compiled=True).compile and choose.num_checks == 2, "what was not chosen first is compared"
    assert not choose(compiled=False).compile and choose.num_checks == 2


def test_the_kernel_of_today_decides_what_is_compiled_and_recorded(choose: Choosing) -> None:
    first = choose(compiled=True)
    before = choose.paths.chosen.read_text()
    choose.kernel = "padded"  # another GPU, without the kernel
    assert choose(compiled=True) == replace(first, kernel="padded", compile=False)
    on_cpu = choose(device=torch.device("cpu"), name="cpu")
    assert (on_cpu.device, on_cpu.kernel, on_cpu.compile) == ("cpu", "padded", False)
    assert choose.paths.chosen.read_text() == before and choose.num_checks == 2, "of the kernel, then of compiling it"
    choose.kernel = "varlen"
    assert choose() == first, "where the GPU is again, the run continues as before"


def test_a_run_of_a_cpu_is_checked_where_it_continues_on_a_gpu(choose: Choosing) -> None:
    choose.kernel = "padded"
    assert choose(device=torch.device("cpu"), name="cpu").device == "cpu" and choose.num_checks == 0
    choose.kernel = "varlen"
    assert choose(name="cuda").kernel == "varlen" and choose.num_checks == 1


def test_a_compiled_run_continues_on_the_cpu(prepared: Path, tmp_path: Path) -> None:
    config = settings.load(RunLayout(prepared).config).model_copy(update={"run_dir": str(tmp_path / "run")})
    result = train(config.model_copy(update={"training": config.training.model_copy(update={"max_steps": 2})}))
    chosen = read_runtime(result.paths.chosen)
    on_gpu = replace(chosen, device="cuda", kernel="varlen", compile=True)
    durable.write_json(result.paths.chosen, asdict(on_gpu))
    assert train(config.model_copy(update={"device": "cpu"})).scores
