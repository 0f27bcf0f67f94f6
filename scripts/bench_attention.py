"""Measures the time and the error of kernels for attention over packed sentences, forward and backward, on one device.

    python scripts/bench_attention.py --device cuda
    python scripts/bench_attention.py --device cpu --tokens 512      (tries the script without a GPU)

The candidates are mtx's own kernels in blocks, torch's varlen_attn, compiled FlexAttention with a document mask, and
mtx's own padded tiles. The mask is built once per batch, and its cost is printed separately. The time of the blocks
includes a copy of queries, keys and values into one tensor, which the compiled step has anyway. Only the tiles run on a
CPU. The error of each candidate is its difference from the tiles in fp32.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtx.data.packing import micro_batch_shape
from mtx.model.attention import BlockLayout, make_layout

HEADS, HEAD_SIZE, MAX_TOKENS = 8, 64, 256
REPEATS = 20


def lengths_of(num_tokens: int, mean: float) -> list[int]:
    """Draws sentence lengths from a log-normal distribution until they fill `num_tokens` positions."""
    rng, lengths = np.random.default_rng(1), []
    while (left := num_tokens - sum(lengths)) > 0:
        lengths.append(min(left, MAX_TOKENS, max(1, round(rng.lognormal(np.log(mean) - 0.18, 0.6)))))
    return lengths


def candidates(offsets: Tensor, number: int, causal: bool, device: torch.device) -> dict[str, Callable[..., Tensor]]:
    """Returns the attention functions by name; each takes packed [N, H, K] queries, keys and values.

    Args:
        offsets: where each sentence starts, [M+1].
        number: how many of them have tokens.
    """
    padded = make_layout(offsets, offsets, number, MAX_TOKENS, HEADS, causal, "padded", device)
    kernels: dict[str, Callable[..., Tensor]] = {"padded": padded.attend}
    if device.type == "cuda":
        varlen = make_layout(offsets, offsets, number, MAX_TOKENS, HEADS, causal, "varlen", device)
        kernels["varlen"] = varlen.attend
        kernels["blocks"] = in_blocks(offsets.to(device), causal)
        kernels["flex"] = flex(offsets, causal, device)
    return kernels


def in_blocks(offsets: Tensor, causal: bool) -> Callable[..., Tensor]:
    """Returns attention in blocks, for offsets on the device."""
    num_tokens = int(offsets[-1])
    layout = BlockLayout.of(offsets, offsets, num_tokens, num_tokens, causal)
    return lambda q, k, v: layout.attend_joint(torch.stack([q, k, v], 1), None)


def flex(offsets: Tensor, causal: bool, device: torch.device) -> Callable[..., Tensor]:
    """Returns FlexAttention with a document mask, and prints the time that the mask takes to build."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    num_tokens = int(offsets[-1])
    document = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.long().diff()).to(device)

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        same = document[q] == document[k]
        return same & (q >= k) if causal else same

    def block_mask_of() -> Any:  # compiled: otherwise it needs 6 GB for 25,000 tokens
        return create_block_mask(mask, None, None, num_tokens, num_tokens, device=str(device), _compile=True)

    seconds = timed(block_mask_of, device)
    print(f"{'flex mask' + (', causal' if causal else ''):24} {seconds * 1e3:8.2f} ms")
    block_mask = block_mask_of()
    kernel = torch.compile(flex_attention, dynamic=False)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
        return kernel(*heads_first, block_mask=block_mask)[0].transpose(0, 1)

    return run


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Returns the median time of a call in seconds, after three calls that are not counted."""
    seconds = []
    for _ in range(3 + REPEATS):
        wait(device)
        started = time.perf_counter()
        call()
        wait(device)
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds[3:]))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gradients(run: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Returns the output, and the gradients of its dot product with a fixed tensor."""
    out = run(*inputs)
    direction = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad((out * direction).sum(), inputs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--tokens", type=int, default=25_088, help="tokens in the batch")
    parser.add_argument("--mean", type=float, default=27.0, help="mean number of tokens in a sentence")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    lengths = lengths_of(arguments.tokens, arguments.mean)
    print(f"{name}, torch {torch.__version__}, {arguments.tokens:,} tokens, {len(lengths)} sentences, bf16, "
          f"{HEADS} heads of {HEAD_SIZE}; forward and backward")  # fmt: skip
    _, shape = micro_batch_shape(arguments.tokens, arguments.tokens, 1.0, MAX_TOKENS, float(np.mean(lengths)))
    # As in training, where the kernel gets offsets for more sentences than there are: these have no tokens.
    offsets = torch.tensor([0, *lengths] + [0] * (shape.max_sentences - len(lengths))).cumsum(0).int()
    torch.manual_seed(1)
    exact = [torch.randn(arguments.tokens, HEADS, HEAD_SIZE, device=device).requires_grad_() for _ in range(3)]
    rounded = [x.detach().bfloat16().requires_grad_() for x in exact]
    for causal in (False, True):
        kernels = candidates(offsets, len(lengths), causal, device)
        expected = gradients(kernels["padded"], [x.detach().float().requires_grad_() for x in rounded])
        for kernel, run in kernels.items():
            error = max(
                float((a.float() - b).detach().abs().max() / b.detach().abs().max())
                for a, b in zip(gradients(run, rounded), expected, strict=True)
            )
            seconds = timed(lambda run=run: gradients(run, rounded), device)
            label = kernel + (", causal" if causal else "")
            print(f"{label:24} {seconds * 1e3:8.2f} ms   largest error {error:.4f}, relative to the largest element")


if __name__ == "__main__":
    main()
