"""Single calls to be timed: each kernel of the candidates, next to torch's own operations for the same job."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

PROBABILITY = 0.1  # of dropout
SMOOTHING = 0.1
EPS = 1e-5


@dataclass(frozen=True)
class Case:
    """A call, and the bytes that its job reads and writes, each matrix once; torch's own may pass more often."""

    name: str
    call: Callable[[], Any]
    num_bytes: int


def cases(device: torch.device, num_tokens: int, width: int, num_ids: int) -> list[Case]:
    """Returns the calls for hidden states [num_tokens, width] and logits [num_tokens, num_ids], in bf16.

    On a CPU, and without triton, these are torch's own only.
    """
    with torch.device(device):
        x, y, grad, residual_grad = torch.randn(4, num_tokens, width).bfloat16()
        vectors = torch.randn(3, width)
        logits = torch.randn(num_tokens, num_ids + -num_ids % 64).bfloat16()
        targets = torch.randint(num_ids, (num_tokens,))
        rows = torch.arange(num_tokens)
        mask = torch.ones_like(x, dtype=torch.bool)
    y_bias, weight, bias = vectors.bfloat16()
    affine = x.shape[1:], weight, bias, EPS
    total, means, rstds = torch.native_layer_norm(x, *affine)

    def forward() -> Any:
        return F.layer_norm(x + F.dropout(y + y_bias, PROBABILITY), *affine)

    def backward() -> Any:
        d_out = grad + residual_grad
        inputs = d_out, total, x.shape[1:], means, rstds, weight, bias
        dx, *sums = torch.ops.aten.native_layer_norm_backward(*inputs, [True] * 3)
        dy = torch.ops.aten.native_dropout_backward(dx, mask, 1 / (1 - PROBABILITY))
        return dx, dy, *sums, dy.sum(0)

    def softmax() -> Any:  # as in `mtx.training.loss._chunk`
        logits[:, num_ids:] = torch.finfo(logits.dtype).min
        p = torch.softmax(logits, -1)
        p_y = p[rows, targets].float()
        p[rows, targets] = (p_y - (1 - SMOOTHING)).to(p.dtype)
        return p, logits[rows, targets].float(), -p_y.clamp_min(torch.finfo(torch.float32).tiny).log()

    softmax_bytes = 2 * logits.nbytes
    made = [
        Case("dropout, torch", lambda: mask.bernoulli_(1 - PROBABILITY), mask.nbytes),
        Case("norm forward, torch", forward, 4 * x.nbytes + mask.nbytes),
        Case("norm backward, torch", backward, 5 * x.nbytes + mask.nbytes),
        Case("softmax, torch", softmax, softmax_bytes),
    ]
    if device.type == "cpu" or importlib.util.find_spec("triton") is None:
        return made
    from scripts.first_light.candidates import loss, norm

    threshold = norm.threshold_of(torch.tensor(PROBABILITY, device=device))
    seed = torch.zeros(1, dtype=torch.int64, device=device)
    words = norm._new_words(seed, threshold, *x.shape).zero_()
    sums_bytes = 3 * 4 * width * -(-num_tokens // norm.ROWS)  # written, and read to be added up
    exact_y_bias, exact_weight, exact_bias = vectors
    saved = total, words, threshold, exact_weight, means.float().view(-1), rstds.float().view(-1)
    return [
        *made,
        Case("dropout, candidate", lambda: norm.draw_words(seed, threshold, *x.shape), words.nbytes),
        Case(
            "norm forward, candidate",
            lambda: norm.add_norm(x, y, exact_y_bias, words, threshold, exact_weight, exact_bias, EPS),
            4 * x.nbytes + words.nbytes,
        ),
        Case(
            "norm backward, candidate",
            lambda: norm.add_norm_backward(grad, residual_grad, *saved),
            5 * x.nbytes + words.nbytes + 2 * sums_bytes,
        ),
        Case(
            "softmax, candidate", lambda: loss.subtract_target_(logits, targets, num_ids, 1 - SMOOTHING), softmax_bytes
        ),
    ]
