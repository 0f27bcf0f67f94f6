"""Single calls to be timed: each kernel of the candidates, next to torch's own operations for the same job."""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PROBABILITY = 0.1
SMOOTHING = 0.1
EPS = 1e-5
ALIGNMENT = 64  # of the outputs, as in `mtx.training.loss`


@dataclass(frozen=True)
class Case:
    """A call, and the bytes of the tensors that its job reads and writes, each once; torch may do more."""

    name: str
    call: Callable[[], Any]
    num_bytes: int


def cases(device: torch.device, num_tokens: int, width: int, num_ids: int) -> list[Case]:
    """Returns the calls for hidden states [num_tokens, width] and logits [num_tokens, num_ids], in bf16.

    On a CPU, and without triton, these are torch's own only.
    """
    has_candidates = device.type != "cpu" and importlib.util.find_spec("triton") is not None
    with torch.device(device):
        shape = num_tokens, width
        x, y, grad, residual_grad = (torch.randn(shape).bfloat16() for _ in range(4))
        y_bias, weight, bias = torch.randn(3, width)
        targets = torch.randint(num_ids, (num_tokens,))
        logits = torch.randn(num_tokens, num_ids + -num_ids % ALIGNMENT).bfloat16()
        made = list(_of_torch(x, y, grad, residual_grad, y_bias, weight, bias))
        made.append(_softmax_of_torch(logits, targets, num_ids))
        if has_candidates:
            made += _of_norm(x, y, grad, residual_grad, y_bias, weight, bias)
            made.append(_softmax(logits, targets, num_ids))
    return made


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _of_norm(
    x: Tensor, y: Tensor, grad: Tensor, residual_grad: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor
) -> Iterator[Case]:
    from scripts.first_light.candidates import norm  # imported here: it needs triton

    threshold = norm.threshold_of(torch.tensor(PROBABILITY))
    seed = torch.randint(1 << 62, (1,))
    words = norm._new_words(seed, threshold, *x.shape)
    yield Case("dropout words, candidate", lambda: norm.draw_words(seed, threshold, *x.shape), _bytes(words))
    inputs = x, y, y_bias, words.zero_(), threshold, weight, bias
    results = norm._new_results(x)
    yield Case("norm forward, candidate", lambda: norm.add_norm(*inputs, EPS), _bytes(*inputs, *results))
    total, _, means, rstds = results
    total.copy_(x)
    means.zero_()
    rstds.fill_(1)
    inputs = grad, residual_grad, total, words, threshold, weight, means, rstds
    sums = weight.new_empty(-(-len(x) // norm.ROWS), 3, x.shape[1])  # written, and read to add them up
    num_bytes = _bytes(*inputs, *norm._new_gradients(*inputs), sums, sums)
    yield Case("norm backward, candidate", lambda: norm.add_norm_backward(*inputs), num_bytes)


def _of_torch(
    x: Tensor, y: Tensor, grad: Tensor, residual_grad: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor
) -> Iterator[Case]:
    y_bias, weight, bias = (tensor.bfloat16() for tensor in (y_bias, weight, bias))
    mask = torch.empty_like(x, dtype=torch.bool)
    yield Case("dropout words, torch", lambda: mask.bernoulli_(1 - PROBABILITY), mask.nbytes)

    def forward() -> Tensor:
        return F.layer_norm(x + F.dropout(y + y_bias, PROBABILITY), x.shape[1:], weight, bias, EPS)

    total, means, rstds = torch.native_layer_norm(x, x.shape[1:], weight, bias, EPS)
    num_bytes = _bytes(x, y, y_bias, weight, bias, mask, total, total, means, rstds)
    yield Case("norm forward, torch", forward, num_bytes)

    def backward() -> tuple[Tensor, ...]:
        g = grad + residual_grad
        outputs = [True] * 3
        dx, *sums = torch.ops.aten.native_layer_norm_backward(
            g, total, x.shape[1:], means, rstds, weight, bias, outputs
        )
        dy = torch.ops.aten.native_dropout_backward(dx, mask, 1 / (1 - PROBABILITY))
        return dx, dy, *sums, dy.sum(0)

    num_bytes = _bytes(grad, residual_grad, total, mask, weight, means, rstds, x, y, y_bias, weight, bias)
    yield Case("norm backward, torch", backward, num_bytes)


def _softmax(logits: Tensor, targets: Tensor, num_ids: int) -> Case:
    from scripts.first_light.candidates.loss import subtract_target_

    def call() -> Tensor:
        return subtract_target_(logits, targets, num_ids, 1 - SMOOTHING)

    return Case("softmax and target, candidate", call, _bytes(logits, logits, targets))


def _softmax_of_torch(logits: Tensor, targets: Tensor, num_ids: int) -> Case:
    """The lines of `mtx.training.loss._chunk` between its products."""
    rows = torch.arange(len(logits))[:, None]
    ys = targets[:, None]

    def call() -> tuple[Tensor, ...]:
        logits[:, num_ids:] = torch.finfo(logits.dtype).min
        p = torch.softmax(logits, -1)
        z_y = logits.gather(1, ys).float()
        p_y = p.gather(1, ys).float()
        p[rows, ys] = (p_y - (1 - SMOOTHING)).to(p.dtype)
        return p, z_y, -p_y.clamp_min(torch.finfo(torch.float32).tiny).log()

    return Case("softmax and target, torch", call, _bytes(logits, logits, targets))
