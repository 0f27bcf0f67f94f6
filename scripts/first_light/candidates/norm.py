"""Residual sum, dropout by bits and LayerNorm as one Triton kernel, with a backward pass that is one kernel too.

A word of 32 bits says which of 32 neighbouring columns are dropped. `draw_words` draws the words of a whole step; the
forward and the backward pass read the same ones, so no mask in bytes is stored. `y`, the last product of a sub-layer,
comes without its bias: the bias is added here, and so its gradient is a sum that the backward pass makes on the way.

The kernels are operations of torch, which a compiler does not look into. Triton's interpreter runs them on a CPU.

Shapes: N rows, D columns, a multiple of 32 and at most `MAX_WIDTH`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_WIDTH = 1024
LEVELS = 256  # dropout is rounded to 1/256, as on a CPU
ROWS = 16  # of a program, one after the other: 25,088 rows are 12 programs for each of 132 multiprocessors
WORDS_AT_ONCE = 512  # that a program draws
BITS = tl.constexpr(32)  # of a word


@triton.jit
def _take_bit(less, random, threshold, BIT: tl.constexpr):
    """Compares one more bit of the random bytes with that of the threshold, and returns which bytes are less."""
    random = random.to(tl.int32, bitcast=True)
    is_set = -((threshold >> BIT) & 1)  # all bits of a word, or none
    return (is_set & (less | ~random)) | (~is_set & less & ~random)


@triton.jit
def draw(seed, threshold, words, num_words, WORDS: tl.constexpr):
    """Draws a byte for each bit of a word, as eight words of one bit each; the bit is set if its byte is less."""
    places = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    level = tl.load(threshold)
    key = tl.load(seed)
    bit0, bit1, bit2, bit3 = tl.randint4x(key, 2 * places)
    bit4, bit5, bit6, bit7 = tl.randint4x(key, 2 * places + 1)
    less = tl.zeros([WORDS], tl.int32)
    less = _take_bit(less, bit0, level, 0)
    less = _take_bit(less, bit1, level, 1)
    less = _take_bit(less, bit2, level, 2)
    less = _take_bit(less, bit3, level, 3)
    less = _take_bit(less, bit4, level, 4)
    less = _take_bit(less, bit5, level, 5)
    less = _take_bit(less, bit6, level, 6)
    less = _take_bit(less, bit7, level, 7)
    tl.store(words + places, less, mask=places < num_words)


@triton.jit
def _load(x, places, is_column):
    return tl.load(x + places, mask=is_column, other=0.0).to(tl.float32)


@triton.jit
def _is_kept(words, row, WIDTH: tl.constexpr, WORDS: tl.constexpr):
    """Returns which columns of a row are kept, [WORDS, 32]."""
    word = tl.arange(0, WORDS)[:, None]
    bits = tl.load(words + row * (WIDTH // BITS) + word, mask=word < WIDTH // BITS, other=0)
    return ((bits >> tl.arange(0, BITS)[None, :]) & 1) == 0


@triton.jit
def forward(
    x,
    y,
    y_bias,
    words,
    threshold,
    weight,
    bias,
    total,
    out,
    means,
    rstds,
    eps,
    num_rows,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
):
    columns = BITS * tl.arange(0, WORDS)[:, None] + tl.arange(0, BITS)[None, :]
    is_column = columns < WIDTH
    y_biases = _load(y_bias, columns, is_column)
    weights = _load(weight, columns, is_column)
    biases = _load(bias, columns, is_column)
    scale = 256.0 / (256 - tl.load(threshold))
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    for row in range(first_row, tl.minimum(first_row + ROWS, num_rows)):
        at = row * WIDTH + columns
        y_row = (_load(y, at, is_column) + y_biases) * scale
        t = _load(x, at, is_column) + tl.where(_is_kept(words, row, WIDTH, WORDS), y_row, 0.0)
        t = t.to(total.dtype.element_ty)
        tl.store(total + at, t, mask=is_column)
        t = t.to(tl.float32)  # as the backward pass reads it
        mean = tl.sum(t) / WIDTH
        centred = tl.where(is_column, t - mean, 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(centred * centred) / WIDTH + eps)
        tl.store(out + at, centred * rstd * weights + biases, mask=is_column)
        tl.store(means + row, mean)
        tl.store(rstds + row, rstd)


@triton.jit
def backward(
    grad,
    residual_grad,
    total,
    words,
    threshold,
    weight,
    means,
    rstds,
    dx,
    dy,
    sums,
    num_rows,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
):
    columns = BITS * tl.arange(0, WORDS)[:, None] + tl.arange(0, BITS)[None, :]
    is_column = columns < WIDTH
    weights = _load(weight, columns, is_column)
    scale = 256.0 / (256 - tl.load(threshold))
    d_weight = tl.zeros([WORDS, BITS], tl.float32)
    d_bias = tl.zeros([WORDS, BITS], tl.float32)
    d_y_bias = tl.zeros([WORDS, BITS], tl.float32)
    program = tl.program_id(0).to(tl.int64)
    for row in range(program * ROWS, tl.minimum(program * ROWS + ROWS, num_rows)):
        at = row * WIDTH + columns
        g = _load(grad, at, is_column) + _load(residual_grad, at, is_column)
        rstd = tl.load(rstds + row)
        normal = (_load(total, at, is_column) - tl.load(means + row)) * rstd
        d_normal = g * weights
        mean_d = tl.sum(d_normal) / WIDTH
        mean_product = tl.sum(d_normal * normal) / WIDTH
        d_total = rstd * (d_normal - mean_d - normal * mean_product)
        d_y = tl.where(_is_kept(words, row, WIDTH, WORDS), d_total * scale, 0.0)
        tl.store(dx + at, d_total, mask=is_column)
        tl.store(dy + at, d_y, mask=is_column)
        d_weight += g * normal
        d_bias += g
        d_y_bias += d_y
    at = sums + program * (3 * WIDTH) + columns
    tl.store(at, d_weight, mask=is_column)
    tl.store(at + WIDTH, d_bias, mask=is_column)
    tl.store(at + 2 * WIDTH, d_y_bias, mask=is_column)


def constants(width: int) -> dict[str, int]:
    """Returns the sizes of the kernels for rows of this width: so many columns that a thread's registers suffice."""
    words = triton.next_power_of_2(width // BITS.value)
    return {"ROWS": ROWS, "WIDTH": width, "WORDS": words, "num_warps": 1 if width <= 512 else 2}


def threshold_of(probability: Tensor) -> Tensor:
    """Returns the number of the 256 values of a byte by which an element is dropped, int32, on the same device."""
    return (LEVELS * probability).round().clamp(max=LEVELS - 1).int()


@torch.library.custom_op("candidates::draw_words", mutates_args=())
def draw_words(seed: Tensor, threshold: Tensor, num_rows: int, width: int) -> Tensor:
    """Returns words whose bits are 1 with probability threshold / 256, int32 [num_rows, width / 32].

    Args:
        seed: int64 [1]. threshold: int32 [], from 0 to 255. Both are on the device and may differ in a replayed graph.
    """
    words = _new_words(seed, threshold, num_rows, width)
    grid = (triton.cdiv(words.numel(), WORDS_AT_ONCE),)
    draw[grid](seed, threshold, words, words.numel(), WORDS_AT_ONCE)
    return words


@draw_words.register_fake
def _new_words(seed: Tensor, threshold: Tensor, num_rows: int, width: int) -> Tensor:
    return seed.new_empty(num_rows, width // BITS.value, dtype=torch.int32)


@torch.library.custom_op("candidates::add_norm", mutates_args=())
def add_norm(
    x: Tensor, y: Tensor, y_bias: Tensor, words: Tensor, threshold: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns total = x + dropout(y + y_bias), LayerNorm(total), and the means and 1 / deviations of its rows.

    Args:
        x, y: bf16 or fp32 [N, D], without gaps between rows.
        y_bias, weight, bias: fp32 [D].
        words, threshold: see `draw_words`.

    Returns:
        Two tensors [N, D] in the type of x, and two of fp32 [N].
    """
    results = _new_results(x)
    tensors = x, y, y_bias, words, threshold, weight, bias, *results
    forward[(triton.cdiv(len(x), ROWS),)](*tensors, eps, len(x), **constants(x.shape[1]))
    return results


@add_norm.register_fake
def _new_results(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    per_row = (x.new_empty(len(x), dtype=torch.float32) for _ in range(2))
    return torch.empty_like(x), torch.empty_like(x), *per_row


@torch.library.custom_op("candidates::add_norm_backward", mutates_args=())
def add_norm_backward(
    grad: Tensor,
    residual_grad: Tensor,
    total: Tensor,
    words: Tensor,
    threshold: Tensor,
    weight: Tensor,
    means: Tensor,
    rstds: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of x and of y, [N, D], and those of weight, bias and y_bias, fp32 [3, D].

    Args:
        grad, residual_grad: of the output of LayerNorm, from the next product and from the next residual sum.
    """
    dx, dy, _ = _new_gradients(grad, residual_grad, total)
    num_programs = triton.cdiv(len(total), ROWS)
    sums = total.new_empty(num_programs, 3, total.shape[1], dtype=torch.float32)
    tensors = grad, residual_grad, total, words, threshold, weight, means, rstds, dx, dy, sums
    backward[(num_programs,)](*tensors, len(total), **constants(total.shape[1]))
    return dx, dy, sums.sum(0)


@add_norm_backward.register_fake
def _new_gradients(grad: Tensor, residual_grad: Tensor, total: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(total), torch.empty_like(total), total.new_empty(3, total.shape[1], dtype=torch.float32)


class AddNorm(torch.autograd.Function):
    """LayerNorm(x + dropout(y + y_bias)), twice: for the next product and for the next residual sum.

    The two gradients thus arrive apart, and the backward kernel adds them up. The arguments are those of `add_norm`.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        _, _, _, words, threshold, weight, _, _ = arguments
        total, out, means, rstds = add_norm(*arguments)
        ctx.save_for_backward(total, words, threshold, weight, means, rstds)
        return out, out.view(out.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, residual_grad: Tensor) -> tuple[Tensor | None, ...]:
        dx, dy, sums = add_norm_backward(grad.contiguous(), residual_grad.contiguous(), *ctx.saved_tensors)
        d_weight, d_bias, d_y_bias = sums
        return dx, dy, d_y_bias, None, None, d_weight, d_bias, None


def drop(x: Tensor, words: Tensor, threshold: Tensor) -> Tensor:
    """Applies dropout by words to x [N, D], by operations that a compiler fuses with those around them."""
    bits = words[:, :, None] >> torch.arange(BITS.value, dtype=torch.int32, device=x.device)
    return torch.where((bits & 1).view(x.shape) != 0, 0, x * (LEVELS / (LEVELS - threshold)))
