"""What a device does alone: copies, products of the step's shapes in bf16 and fp8, the loss by chunk size, and Adam."""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from bench_worker import synchronize
from torch import Tensor
from turns import errors_reported, report, wait_for_turn

from mtx.config import settings
from mtx.config.schema import ModelConfig
from mtx.model.device import find_device, use_device
from mtx.model.parameters import parameters
from mtx.training import loss
from mtx.training.optimizer import new_optimizer

COPIED = 1 << 28  # numbers in fp32, 1 GB
NUM_SETS = 3  # operands of a product, used in turn, so that they do not stay in the cache
LOGITS_ROWS = 3584  # positions whose logits are computed at once
CHUNKS_MB = (32, 64, 128, 256, 512)


class Products:
    """Reports the times of calls on a device. At toy size all dimensions are a sixteenth."""

    def __init__(self, device: torch.device, tokens: int, ids: int, toy: bool):
        self.device, self.tokens, self.ids, self.factor = device, tokens, ids, 16 if toy else 1

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
        x, gradient = self.random(rows, inner), self.random(rows, columns)
        return self._rate(self.ms(lambda: torch.mm(gradient.T, x)), rows, inner, columns)

    def weight_gradient_to_fp32(self, rows: int, inner: int, columns: int) -> dict[str, Any]:
        x, gradient = self.random(rows, inner), self.random(rows, columns)
        ms = self.ms(lambda: torch.mm(gradient.T, x, out_dtype=torch.float32))
        return self._rate(ms, rows, inner, columns)

    def fp8(self, rows: int, inner: int, columns: int) -> dict[str, Any]:
        x, weight = (self.random(n, inner).to(torch.float8_e4m3fn) for n in (rows, columns))
        one = torch.ones((), device=self.device)
        by_row, by_column = (torch.ones(size, device=self.device) for size in ((rows, 1), (1, columns)))
        scaled = [
            self.ms(lambda a=a, b=b: torch._scaled_mm(x, weight.T, a, b, out_dtype=torch.bfloat16, use_fast_accum=True))
            for a, b in ((one, one), (by_row, by_column))
        ]
        rate = self._rate(scaled[0], rows, inner, columns)
        return rate | {"rowwise_tflops": self._rate(scaled[1], rows, inner, columns)["tflops"]}

    def relu(self, rows: int, inner: int, columns: int) -> dict[str, Any]:
        x, weight, bias = self.random(rows, inner), self.random(columns, inner), self.random(columns)
        epilogue = self.ms(lambda: torch._addmm_activation(bias, x, weight.T))
        apart = self.ms(lambda: torch.relu(F.linear(x, weight, bias)))
        return {"ms": round(epilogue, 4), "apart_ms": round(apart, 4)}

    def loss(self, width: int, chunk_mb: int) -> dict[str, Any]:
        loss._CHUNK_BYTES = chunk_mb << 20
        hidden, weight, targets = self._output(width)

        def step() -> None:
            with torch.autocast(self.device.type, torch.bfloat16):
                sums = loss.smoothed_loss(hidden, weight, None, targets, 0.1, 1 / self.tokens)
            sums.loss.backward()
            hidden.grad = weight.grad = None

        ms = self.ms(step, 5)
        return self._rate(ms, 3 * self.tokens, width, self.ids) | {"rows": loss._rows_at_once(weight.bfloat16())}

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
        tensors = [
            torch.randn(each.shape, device=self.device).requires_grad_() for each in parameters(config, self.ids)
        ]
        for tensor in tensors:
            tensor.grad = torch.randn_like(tensor)
        gradients, optimizer = [tensor.grad for tensor in tensors], new_optimizer(tensors)
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


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--presets", default="base,big")
    parser.add_argument("--tokens", type=int, default=25_088)
    parser.add_argument("--ids", type=int, default=37_000)
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    use_device(device)
    do, rows = Products(device, options.tokens, options.ids, options.toy), options.tokens
    wait_for_turn()
    do.report("copy", do.copy)
    do.report("large", do.product, *[8192 // do.factor] * 3)
    for preset in options.presets.split(","):
        config = settings.resolve(None, [f"model.preset={preset}"]).config.model
        d, ff, outputs = config.d_model, config.d_ff, -(-options.ids // 64) * 64
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
        for chunk_mb in CHUNKS_MB:
            do.report(f"{preset} loss", do.loss, d, chunk_mb)
        do.report(f"{preset} linear_cross_entropy", do.linear_cross_entropy, d)
        do.report(f"{preset} update", partial(do.update, config))


if __name__ == "__main__":
    main(sys.argv[1:])
