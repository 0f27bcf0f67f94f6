"""The candidates for the compiled step: their numbers in triton's interpreter, and their machine code."""

import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.exc import MissingOperatorWithoutDecomp

from mtx.model import transformer
from mtx.model.attention import BlockLayout
from mtx.training import loss, micro_batch
from mtx.training.micro_batch import MicroStep, take_step
from tests.interpreted import (
    interpreted,
    not_interpreted,
    run_interpreted,
    scalars_of_new_numpy,  # noqa: F401
)
from tests.models import dense, random_batch, tiny_model

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton, without a GPU", allow_module_level=True)

from scripts.first_light.candidates import norm  # noqa: E402
from scripts.first_light.candidates import transformer as replacement  # noqa: E402
from scripts.first_light.candidates.cases import cases  # noqa: E402
from scripts.first_light.candidates.loss import BLOCK, loss_chunk  # noqa: E402
from scripts.first_light.candidates.step import replaced  # noqa: E402
from scripts.first_light.candidates.transformer import hidden_states  # noqa: E402


@not_interpreted
@pytest.mark.seconds
def test_the_numbers_in_the_interpreter() -> None:
    run_interpreted(__file__)


def draw(threshold: int, num_rows: int, width: int = 512, seed: int = 1 << 40) -> Tensor:
    return norm.draw_words(torch.tensor([seed]), torch.tensor(threshold, dtype=torch.int32), num_rows, width)


def bits_of(words: Tensor) -> Tensor:
    """The bits of each word, lowest first, [..., 32]."""
    return words[..., None] >> torch.arange(32) & 1


NUM_WORDS = 30_011


@interpreted
@pytest.mark.parametrize("threshold", [1, 26, 128, 255])
def test_each_bit_of_a_word_is_set_with_its_probability(threshold: int) -> None:
    bits = bits_of(draw(threshold, NUM_WORDS, 32)[:, 0]).double()
    p = threshold / 256
    deviation = (p * (1 - p)) ** 0.5
    assert abs(float(bits.mean()) - p) < 5 * deviation / bits.numel() ** 0.5
    assert float((bits.mean(0) - p).abs().max()) < 5 * deviation / NUM_WORDS**0.5


@interpreted
@pytest.mark.parametrize("threshold", [26, 128])
def test_bits_are_independent_within_a_word_and_between_words(threshold: int) -> None:
    p = threshold / 256
    deviations = bits_of(draw(threshold, NUM_WORDS, 32)[:, 0]).double() - p
    for distance in (0, 1, 512):
        covariances = deviations.T @ deviations.roll(distance, 0) / NUM_WORDS
        if distance == 0:
            covariances.fill_diagonal_(0)
        assert float(covariances.abs().max()) < 6 * p * (1 - p) / NUM_WORDS**0.5


@interpreted
def test_words_depend_on_the_seed_and_none_is_set_without_dropout() -> None:
    assert not draw(0, 3).any() and draw(0, 3).shape == (3, 16)
    assert torch.equal(draw(26, 70), draw(26, 70)) and torch.equal(draw(26, 70), draw(26, 90)[:70])
    assert draw(26, 70).ne(draw(26, 70, seed=(1 << 40) + 1)).any(1).all()
    assert draw(26, 70).ne(draw(26, 70, seed=1 << 41)).any(1).all()
    probabilities = torch.tensor([0.0, 0.001, 0.1, 0.3, 0.999])
    assert norm.threshold_of(probabilities).tolist() == [0, 0, 26, 77, 255]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def masked(y: Tensor, words: Tensor, threshold: int) -> Tensor:
    return torch.where(bits_of(words).view(y.shape) != 0, 0, y * (256 / (256 - threshold)))


@interpreted
@pytest.mark.parametrize(("width", "num_rows"), [(512, 1), (512, 37), (1024, 33), (32, 5), (96, 16), (992, 3), (64, 0)])
@pytest.mark.parametrize("threshold", [0, 26, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_add_norm_gives_the_numbers_of_autograd(width: int, num_rows: int, threshold: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, y = (random(num_rows, width, dtype=dtype) for _ in range(2))
    vectors = [random(width) for _ in range(3)]
    words = draw(threshold, num_rows, width)
    directions = [random(num_rows, width, dtype=dtype).detach() for _ in range(2)]
    y_bias, *affine = vectors
    results = norm.AddNorm.apply(x, y, y_bias, words, torch.tensor(threshold, dtype=torch.int32), *affine, 1e-3)
    (results[0] * directions[0] + results[1] * directions[1]).sum().backward()
    got = [*results, *(tensor.grad for tensor in (x, y, *vectors))]
    inputs = [tensor.detach().double().requires_grad_() for tensor in (x, y, *vectors)]
    x, y, y_bias, *affine = inputs
    expected = F.layer_norm(x + masked(y + y_bias, words, threshold), (width,), *affine, 1e-3)
    (expected * (directions[0].double() + directions[1].double())).sum().backward()
    limit = 2e-6 if dtype == torch.float32 else 2**-7
    for a, b in zip(got, [expected, expected, *(tensor.grad for tensor in inputs)], strict=True):
        assert a is not None and b is not None and a.shape == b.shape
        assert float((a.double() - b).detach().norm()) <= limit * float(b.detach().norm())


@interpreted
def test_dropout_of_the_embeddings_has_the_same_bits() -> None:
    words = draw(77, 9, 96)
    x = random(9, 96)
    out = norm.drop(x, words, torch.tensor(77, dtype=torch.int32))
    torch.testing.assert_close(out, masked(x, words, 77))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, masked(torch.ones_like(x), words, 77))


@interpreted
@pytest.mark.parametrize("num_outputs", [37, 64, 100, BLOCK + 65])
@pytest.mark.parametrize(("num_passes", "alpha"), [(1, 0.0), (2, 0.0), (2, 5.0)])
@pytest.mark.parametrize(("smoothing", "has_bias"), [(0.0, False), (0.1, True)])
def test_the_loss_is_that_of_a_chunk(
    num_outputs: int, num_passes: int, alpha: float, smoothing: float, has_bias: bool
) -> None:
    torch.manual_seed(1)
    targets = torch.tensor([num_outputs - 1, 0, num_outputs, 17, 36, num_outputs])  # two have none
    h = torch.randn(num_passes, len(targets), 16)
    h[:, 3] *= 40  # its target has less than the smallest probability
    w = F.pad(torch.randn(num_outputs, 16), (0, 0, 0, -num_outputs % 64))
    bias = torch.randn(num_outputs) if has_bias else None
    arguments = h, w, bias, targets, num_outputs, smoothing, alpha
    expected = loss._chunk(*arguments)
    got = loss_chunk(*arguments)
    assert alpha or float(expected[3][0]) > 87
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


WIDE = {"d_model": 64, "num_heads": 2, "dropout": 0.0}


def step_and_gradients(names: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[float, list[Tensor]]:
    """Takes a step with such candidates; nothing is compiled, but the step takes itself for compiled."""
    monkeypatch.setattr(BlockLayout, "attend_joint", dense)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    model = tiny_model(50, dtype=torch.float32, **WIDE).train()
    model.kernel = "varlen"
    with replaced(names):
        return take_step(
            MicroStep(model, 0.1, "fp32", compiled=True), [random_batch([7, 1, 12], [5, 2, 3], 50, tail=9)], 1
        )


@interpreted
@pytest.mark.parametrize("names", [["norm"], ["loss"], ["norm", "loss"]])
def test_a_replaced_step_without_dropout_gives_the_numbers_of_its_own(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = step_and_gradients([], monkeypatch)
    got = step_and_gradients(names, monkeypatch)
    assert got[0] == pytest.approx(plain[0], rel=1e-5)
    for a, b in zip(got[1], plain[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@interpreted
def test_each_sublayer_of_a_replaced_step_has_words_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list[Tensor]()
    monkeypatch.setattr(replacement, "draw_words", lambda *given: (drawn.append(norm.draw_words(*given)), drawn[-1])[1])
    monkeypatch.setattr(BlockLayout, "attend_joint", dense)
    model = tiny_model(50, dtype=torch.float32, **WIDE).train()
    model.kernel = "varlen"
    model.dropout = torch.tensor(0.3)
    batch = random_batch([7, 1, 12], [5, 2, 3], 50, tail=9)
    got = hidden_states(model, batch)
    num_src, num_tgt = len(batch.src_ids), len(batch.tgt_in_ids)
    src_words, tgt_words, *words = drawn[0].split([num_src, num_tgt, *4 * [num_src], *6 * [num_tgt]])
    rest = iter([src_words, *words[:4], tgt_words, *words[4:]])
    monkeypatch.setattr(transformer, "dropout", lambda y, *_: masked(y, next(rest), 77))
    expected = transformer.hidden_states(model, batch)
    assert next(rest, None) is None and len(drawn) == 1
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    direction = torch.randn_like(got)
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad((out * direction).sum(), parameters, allow_unused=True) for out in (got, expected)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "changes", [{"norm": "pre"}, {"activation": "gelu"}, {"d_model": 16}, {"d_model": 1088}, {"architecture": "rnn"}]
)
def test_a_model_that_the_norm_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    model = tiny_model(50, **{**WIDE, **changes})
    with pytest.raises(ValueError, match="the candidate norm needs architecture=transformer, norm=post"):
        hidden_states(model, random_batch([7], [5], 50))


def test_only_within_the_context_is_anything_replaced() -> None:
    own = micro_batch.hidden_states, loss._compiled_chunk
    with replaced(["norm", "loss"]):
        assert (micro_batch.hidden_states, loss._compiled_chunk) == (hidden_states, loss_chunk)
    assert (micro_batch.hidden_states, loss._compiled_chunk) == own
    with pytest.raises(ValueError, match="no candidate attention: expected norm, loss"), replaced(["attention"]):
        pass


def test_the_compiler_does_not_write_out_what_a_norm_reads() -> None:
    """With six layers on each side, that would take it for ever."""

    class Text:
        def __str__(self) -> str:
            raise AssertionError

    with replaced(["norm"]):
        assert MissingOperatorWithoutDecomp.operator_str("op", [Text()], {}) == "op"


@not_interpreted
def test_a_case_of_each_kernel_has_one_of_torch() -> None:
    names = [case.name.split(", ") for case in cases(torch.device("meta"), 64, 512, 100)]
    jobs = ["dropout", "norm forward", "norm backward", "softmax"]
    assert sorted(names) == sorted([job, by] for job in jobs for by in ("candidate", "torch"))
    on_cpu = cases(torch.device("cpu"), 64, 32, 100)
    assert len(on_cpu) == 4
    for case in on_cpu:
        case.call()
        assert case.num_bytes > 0


@not_interpreted
@pytest.mark.seconds
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_need_neither_spills_nor_much_shared_memory(capability: int) -> None:
    from scripts.first_light.candidates.count import Code, compile_kernel, kernels

    for width in (512, 992, 1024):
        for kernel, constants, _ in kernels(width).values():
            code = Code.of(compile_kernel(kernel, constants, capability))
            assert code.spilled == 0 and code.registers <= 168 and code.shared <= 4096
            if width == 512:
                assert code.barriers == 0
