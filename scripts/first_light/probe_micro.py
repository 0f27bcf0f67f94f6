"""What a device does alone, by single calls of the step's and the search's shapes, without a compiler.

Copies and a large product as a yardstick, the candidate kernels next to torch's own, gradients of weights whole and in
parts, the loss by the rows of its chunks, and the search's probabilities.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from turns import errors_reported, report

from mtx.config import settings
from mtx.decoding.beam_search import find_reduction, top_continuations
from mtx.model.cuda_graphs import CudaGraph
from mtx.model.device import find_device, use_device
from mtx.training import loss
from scripts.benchmarks.train_worker import synchronize
from scripts.first_light.candidates.cases import Case, cases

COPIED = 1 << 28  # numbers in fp32, 1 GB
NUM_SETS = 3  # operands of a product, used in turn, so that they do not stay in the cache
PARTS = (1, 4, 8, 16)  # of the positions, whose products are added up
LOSS_ROWS = (3584, 7168, 25_216)  # the last holds all positions
SEARCH_ROWS = 4096
BEAMS = 4


class Calls:
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

        def run() -> None:
            for _ in range(repeats):
                call()

        for _ in range(max(2, repeats // 4)):
            call()
        synchronize(self.device)
        begun = time.perf_counter()
        run()
        synchronize(self.device)
        return 1e3 * (time.perf_counter() - begun) / repeats

    def recorded_ms(self, call: Callable[[], Any], repeats: int = 20) -> float:
        """The same on CUDA by a graph, as in a step, since the host starts a kernel of Triton's in 0.1 ms."""
        if self.device.type != "cuda":
            return self.ms(call, repeats)
        graph = CudaGraph(torch.cuda.Stream(self.device))

        def run() -> None:
            for _ in range(repeats):
                call()

        graph.replay(run)
        return self.ms(lambda: graph.replay(run), 2) / repeats

    def report(self, name: str, measured: Callable[..., dict[str, Any]], *shape: Any) -> None:
        with errors_reported("call", name=name, shape=shape):
            report("call", name=name, shape=shape, **measured(*shape))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def copy(self) -> dict[str, Any]:
        source, target = (torch.empty(COPIED // self.factor**2, device=self.device) for _ in range(2))
        return self._bytes(self.ms(lambda: target.copy_(source), 10), 2 * source.nbytes)

    def product(self, rows: int, inner: int, columns: int) -> dict[str, Any]:
        sets = itertools.cycle((self.random(rows, inner), self.random(columns, inner).T) for _ in range(NUM_SETS))
        return self._flops(self.ms(lambda: torch.mm(*next(sets))), rows, inner, columns)

    def candidates(self, width: int) -> None:
        """Reports each candidate kernel, and torch's own operations for the same work."""
        with errors_reported("call", name="candidates", shape=[width]):
            for case in cases(self.device, self.tokens, width, self.ids):
                self.report(case.name, partial(self.case, case), width)

    def case(self, case: Case, width: int) -> dict[str, Any]:
        return self._bytes(self.recorded_ms(case.call), case.num_bytes)

    def weight_gradient(self, inner: int, columns: int, num_parts: int) -> dict[str, Any]:
        """A product over all positions, or the fp32 sum of the products over equal parts of them ("split K")."""
        x = self.random(num_parts, self.tokens // num_parts, inner)
        gradient = self.random(num_parts, self.tokens // num_parts, columns)

        def multiply() -> Tensor:
            if num_parts == 1:
                return torch.mm(gradient[0].T, x[0]).float()
            return torch.bmm(gradient.transpose(1, 2), x).sum(0, dtype=torch.float)

        return self._flops(self.ms(multiply), self.tokens, inner, columns)

    def loss(self, width: int, chunk_rows: int) -> dict[str, Any]:
        hidden = self.random(self.tokens, width).requires_grad_()
        weight = (torch.randn(self.ids, width, device=self.device) * width**-0.5).requires_grad_()
        targets = torch.randint(self.ids, (self.tokens,), device=self.device)

        def step() -> None:
            with torch.autocast(self.device.type, torch.bfloat16):
                sums = loss.smoothed_loss(hidden, weight, None, targets, 0.1, 1 / self.tokens)
            sums.loss.backward()
            hidden.grad = weight.grad = None

        with mock.patch.object(loss, "_rows_at_once", lambda *_: chunk_rows):
            return self._flops(self.ms(step, 5), 3 * self.tokens, width, self.ids)

    def probabilities(self, width: int) -> dict[str, Any]:
        """The best continuations of a step of the search, by torch's operations and by the kernel of the search."""
        slots = SEARCH_ROWS // self.factor // BEAMS
        logits = self.random(slots * BEAMS, width) @ self.random(-(-self.ids // 64) * 64, width).T * width**-0.5
        logits = logits.view(slots, BEAMS, -1)
        scores = torch.zeros(slots, BEAMS, device=self.device)

        def choose() -> Any:
            return top_continuations(scores, torch.log_softmax(logits, -1, dtype=torch.float), 2 * BEAMS)

        times = {"ms": round(self.recorded_ms(choose), 4)}
        if reduce_logits := find_reduction(self.device):

            def choose_by_kernel() -> Any:
                log_sums, maxima = reduce_logits(logits, 64)
                return top_continuations(scores - log_sums, logits, 2 * BEAMS, maxima)

            times["kernel_ms"] = round(self.recorded_ms(choose_by_kernel), 4)
        return times

    def _flops(self, ms: float, rows: int, inner: int, columns: int) -> dict[str, Any]:
        return {"ms": round(ms, 4), "tflops": round(2 * rows * inner * columns / ms / 1e9, 1)}

    def _bytes(self, ms: float, num_bytes: int) -> dict[str, Any]:
        return {"ms": round(ms, 4), "tb_per_s": round(num_bytes / ms / 1e9, 2)}


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
    do = Calls(device, options.tokens, options.ids, options.toy)
    do.report("copy", do.copy)
    do.report("large product", do.product, *[8192 // do.factor] * 3)
    for preset in options.presets.split(","):
        config = settings.resolve(None, [f"model.preset={preset}"]).config.model
        d = config.d_model
        do.candidates(d)
        for chunk_rows in LOSS_ROWS:
            do.report(f"{preset} loss", do.loss, d, chunk_rows)
        do.report(f"{preset} probabilities", do.probabilities, d)
        for name, inner, columns in (("q", d, d), ("qkv", d, 3 * d), ("inner", d, config.d_ff)):
            for num_parts in PARTS:
                do.report(f"{preset} {name} weight gradient", do.weight_gradient, inner, columns, num_parts)


if __name__ == "__main__":
    main(sys.argv[1:])
