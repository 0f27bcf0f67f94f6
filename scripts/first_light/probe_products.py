"""What a device does alone, by calls of the step's and the search's shapes.

Copies, products in bf16 and fp8, attention by the size of its tiles, the loss by the rows of its chunks, the search's
probabilities, and Adam. With --autotuned, the products for which inductor chooses the kernels, next to cuBLAS's.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from turns import errors_reported, report, wait_for_turn

from mtx.config import settings
from mtx.config.schema import ModelConfig
from mtx.decoding.beam_search import top_continuations
from mtx.model.attention import BlockLayout
from mtx.model.device import find_device, use_device
from mtx.model.parameter_names import parameters
from mtx.training import loss
from mtx.training.strategy import new_optimizer
from scripts.benchmarks.train_worker import synchronize

COPIED = 1 << 28  # numbers in fp32, 1 GB
NUM_SETS = 3  # operands of a product, used in turn, so that they do not stay in the cache
LOGITS_ROWS = 3584  # positions whose logits are computed at once
LOSS_ROWS = (448, 896, 1792, LOGITS_ROWS, 3622, 7168)  # 3,622 is what 2^28 bytes of logits hold, and no round number
TILES = ((64, 64), (64, 32), (32, 32))  # rows of a block, and how many of the other side it takes at a time
SEARCH_ROWS = 4096
BEAMS = 4
MAX_TOKENS = 256  # of a sentence
MEAN_TOKENS = 27.0


class Products:
    """Reports the times of calls on a device. At toy size all dimensions are a sixteenth."""

    def __init__(self, device: torch.device, tokens: int, ids: int, toy: bool):
        self.device = device
        self.tokens = tokens
        self.ids = ids
        self.factor = 16 if toy else 1

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).bfloat16()

    def ms(self, call: Callable[[], Any], repeats: int = 20) -> float:
        """Returns the mean milliseconds of a call after some others."""
        for _ in range(max(2, repeats // 4)):
            call()
        synchronize(self.device)
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        synchronize(self.device)
        return 1e3 * (time.perf_counter() - begun) / repeats

    def report(self, name: str, measured: Callable[..., dict[str, Any]], *shape: Any) -> None:
        with errors_reported("product", name=name, shape=shape):
            report("product", name=name, shape=shape, **measured(*shape))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def copy(self) -> dict[str, Any]:
        source, target = (torch.empty(COPIED // self.factor**2, device=self.device) for _ in range(2))
        ms = self.ms(lambda: target.copy_(source), 10)
        return {"ms": round(ms, 3), "tb_per_s": round(2 * source.nbytes / ms / 1e9, 2)}

    def product(self, rows: int, inner: int, columns: int) -> dict[str, Any]:
        sets = itertools.cycle((self.random(rows, inner), self.random(columns, inner).T) for _ in range(NUM_SETS))
        return self._rate(self.ms(lambda: torch.mm(*next(sets))), rows, inner, columns)

    def weight_gradient(self, rows: int, inner: int, columns: int) -> dict[str, Any]:
        x = self.random(rows, inner)
        gradient = self.random(rows, columns)
        return self._rate(self.ms(lambda: torch.mm(gradient.T, x)), rows, inner, columns)

    def weight_gradient_to_fp32(self, rows: int, inner: int, columns: int) -> dict[str, Any]:
        x = self.random(rows, inner)
        gradient = self.random(rows, columns)
        ms = self.ms(lambda: torch.mm(gradient.T, x, out_dtype=torch.float32))
        return self._rate(ms, rows, inner, columns)

    def fp8(self, rows: int, inner: int, columns: int) -> dict[str, Any]:
        x, weight = (self.random(n, inner).to(torch.float8_e4m3fn) for n in (rows, columns))
        unit_scale = torch.ones((), device=self.device)
        by_row, by_column = (torch.ones(size, device=self.device) for size in ((rows, 1), (1, columns)))
        scaled = [
            self.ms(lambda a=a, b=b: torch._scaled_mm(x, weight.T, a, b, out_dtype=torch.bfloat16, use_fast_accum=True))
            for a, b in ((unit_scale, unit_scale), (by_row, by_column))
        ]
        rate = self._rate(scaled[0], rows, inner, columns)
        return rate | {"rowwise_tflops": self._rate(scaled[1], rows, inner, columns)["tflops"]}

    def relu(self, rows: int, inner: int, columns: int) -> dict[str, Any]:
        x = self.random(rows, inner)
        weight = self.random(columns, inner)
        bias = self.random(columns)
        epilogue = self.ms(lambda: torch._addmm_activation(bias, x, weight.T))
        separate_ms = self.ms(lambda: torch.relu(F.linear(x, weight, bias)))
        return {"ms": round(epilogue, 4), "apart_ms": round(separate_ms, 4)}

    def attention(self, heads: int, size: int, rows: int, columns: int) -> dict[str, Any]:
        """Causal self-attention in mtx's own kernels, forward and backward."""
        from mtx.model import block_kernels  # imported here: it needs triton

        constants = block_kernels._constants
        block_kernels._constants = lambda size: {**constants(size), "ROWS": rows, "COLUMNS": columns}
        try:
            offsets = torch.tensor([0, *draw_lengths(self.tokens)], device=self.device).cumsum(0).int()
            layout = BlockLayout.of(offsets, offsets, self.tokens, self.tokens, True)
            joint = self.random(self.tokens, 3, heads, size).requires_grad_()
            gradient = self.random(self.tokens, heads, size)
            forward = self.ms(lambda: layout.attend_joint(joint, None))

            def run_both() -> None:
                layout.attend_joint(joint, None).backward(gradient)
                joint.grad = None

            return {"ms": round(self.ms(run_both), 4), "forward_ms": round(forward, 4)}
        finally:
            block_kernels._constants = constants

    def probabilities(self, width: int) -> dict[str, Any]:
        """The best continuations of a step of the search: by log_softmax in fp32, as today, or by bf16 logits."""
        rows = SEARCH_ROWS // self.factor
        slots = rows // BEAMS
        outputs = -(-self.ids // 64) * 64
        logits = (self.random(rows, width) @ self.random(outputs, width).T * width**-0.5).view(slots, BEAMS, -1)
        scores = torch.zeros(slots, BEAMS, device=self.device)

        def in_fp32() -> Any:
            return top_continuations(scores, torch.log_softmax(logits, -1, dtype=torch.float), 2 * BEAMS)

        def in_bf16() -> Any:
            sums = torch.logsumexp(logits, -1)
            return top_continuations(scores - sums, logits, 2 * BEAMS)

        (exact, *_) = in_fp32()
        (rounded, *_) = in_bf16()
        return {
            "ms": round(self.ms(in_fp32), 4), "bf16_ms": round(self.ms(in_bf16), 4),
            "bf16_error": round(float((exact - rounded).abs().max()), 4),
        }  # fmt: skip

    def autotuned(self, rows: int, inner: int, columns: int) -> dict[str, Any]:
        """A product and a weight gradient by the fastest kernels that inductor finds, and by cuBLAS."""
        x = self.random(rows, inner)
        weight = self.random(columns, inner)
        gradient = self.random(rows, columns)

        def calls(x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
            return x @ weight.T, gradient.T @ x

        tuned = torch.compile(calls, mode="max-autotune-no-cudagraphs", dynamic=False)
        ms, tuned_ms = (self.ms(partial(function, x, weight, gradient)) for function in (calls, tuned))
        return self._rate(tuned_ms, 2 * rows, inner, columns) | {"cublas_ms": round(ms, 4)}

    def loss(self, width: int, chunk_rows: int) -> dict[str, Any]:
        hidden, weight, targets = self._output(width)
        outputs = -(-self.ids // loss._ALIGNMENT) * loss._ALIGNMENT
        loss._CHUNK_BYTES = chunk_rows * outputs * torch.bfloat16.itemsize

        def step() -> None:
            with torch.autocast(self.device.type, torch.bfloat16):
                sums = loss.smoothed_loss(hidden, weight, None, targets, 0.1, 1 / self.tokens)
            sums.loss.backward()
            hidden.grad = weight.grad = None

        ms = self.ms(step, 5)
        return self._rate(ms, 3 * self.tokens, width, self.ids)

    def linear_cross_entropy(self, width: int) -> dict[str, Any]:
        """torch's own fused loss, which torch 2.11 does not have."""
        hidden, weight, targets = self._output(width)
        weight = weight.detach().bfloat16().requires_grad_()

        def step() -> None:
            F.linear_cross_entropy(hidden, weight, targets, label_smoothing=0.1).backward()
            hidden.grad = weight.grad = None

        return self._rate(self.ms(step, 5), 3 * self.tokens, width, self.ids)

    def update(self, config: ModelConfig) -> dict[str, Any]:
        """The update of a step apart from its gradients."""
        shapes = [parameter.shape for parameter in parameters(config, self.ids)]
        tensors = [torch.randn(shape, device=self.device).requires_grad_() for shape in shapes]
        for tensor in tensors:
            tensor.grad = torch.randn_like(tensor)
        gradients = [tensor.grad for tensor in tensors]
        optimizer = new_optimizer(tensors)
        optimizer.found_inf = torch.zeros((), device=self.device)
        return {
            "tensors": len(tensors), "ms": round(self.ms(optimizer.step, 10), 3),
            "norm_ms": round(self.ms(lambda: torch.nn.utils.get_total_norm(gradients), 10), 3),
            "zero_ms": round(self.ms(lambda: torch._foreach_zero_(gradients), 10), 3),
        }  # fmt: skip

    def _output(self, width: int) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.random(self.tokens, width).requires_grad_()
        weight = (torch.randn(self.ids, width, device=self.device) * width**-0.5).requires_grad_()
        return hidden, weight, torch.randint(self.ids, (self.tokens,), device=self.device)

    def _rate(self, ms: float, rows: int, inner: int, columns: int) -> dict[str, Any]:
        return {"ms": round(ms, 4), "tflops": round(2 * rows * inner * columns / ms / 1e9, 1)}


def draw_lengths(num_tokens: int) -> list[int]:
    """Draws sentence lengths from a log-normal distribution until they fill `num_tokens` positions."""
    rng = np.random.default_rng(1)
    lengths: list[int] = []
    while (num_left := num_tokens - sum(lengths)) > 0:
        length = round(rng.lognormal(np.log(MEAN_TOKENS) - 0.18, 0.6))
        lengths.append(min(num_left, MAX_TOKENS, max(1, length)))
    return lengths


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--presets", default="base,big")
    parser.add_argument("--tokens", type=int, default=25_088)
    parser.add_argument("--ids", type=int, default=37_000)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--autotuned", action="store_true")
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    use_device(device)
    do = Products(device, options.tokens, options.ids, options.toy)
    rows = options.tokens
    configs = {
        name: settings.resolve(None, [f"model.preset={name}"]).config.model for name in options.presets.split(",")
    }
    if options.autotuned:
        shapes = {f"{name} autotuned": (rows, config.d_model, config.d_ff) for name, config in configs.items()}
        for is_turn in (False, True):
            if is_turn:
                wait_for_turn(device)
            for name, shape in shapes.items():
                do.report(name if is_turn else f"{name}, next to others", do.autotuned, *shape)
        return
    if device.type == "cuda":  # Triton compiles
        for tiles, config in itertools.product(TILES, configs.values()):
            with errors_reported("product", name="attention", shape=tiles):
                do.attention(config.num_heads, config.d_model // config.num_heads, *tiles)
    wait_for_turn(device)
    do.report("copy", do.copy)
    do.report("large", do.product, *[8192 // do.factor] * 3)
    for preset, config in configs.items():
        d = config.d_model
        ff = config.d_ff
        outputs = -(-options.ids // 64) * 64
        layers = config.num_decoder_layers
        for name, inner, columns in (
            ("q", d, d), ("qkv", d, 3 * d), ("inner", d, ff), ("outer", ff, d), ("cross kv", d, 2 * d * layers),
        ):  # fmt: skip
            do.report(f"{preset} {name}", do.product, rows, inner, columns)
            do.report(f"{preset} {name} weight gradient", do.weight_gradient, rows, inner, columns)
        logits = LOGITS_ROWS // do.factor, d, outputs
        do.report(f"{preset} logits", do.product, *logits)
        do.report(f"{preset} logits weight gradient", do.weight_gradient, *logits)
        for name, shape in (("inner", (rows, d, ff)), ("logits", logits)):
            if device.type == "cuda":  # torch has this on no CPU
                do.report(f"{preset} {name} weight gradient to fp32", do.weight_gradient_to_fp32, *shape)
            do.report(f"{preset} {name} fp8", do.fp8, *shape)
        do.report(f"{preset} relu epilogue", do.relu, rows, d, ff)
        for tiles in TILES if device.type == "cuda" else ():
            do.report(f"{preset} attention", do.attention, config.num_heads, d // config.num_heads, *tiles)
        do.report(f"{preset} probabilities", do.probabilities, d)
        for chunk_rows in LOSS_ROWS:
            do.report(f"{preset} loss", do.loss, d, chunk_rows)
        do.report(f"{preset} linear_cross_entropy", do.linear_cross_entropy, d)
        do.report(f"{preset} update", partial(do.update, config))


if __name__ == "__main__":
    main(sys.argv[1:])
