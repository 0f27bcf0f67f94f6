"""Attention over a packed batch in blocks, as Triton kernels: for the compiled training step on CUDA.

A block takes neighbouring positions of one head, across the borders of sentences, and goes over those positions of the
other side that its rows see. With sentences of 27 tokens these are two blocks; a kernel with separate blocks for each
sentence computes mostly padding. What a row sees is a range, and a mask hides the rest. Softmax is computed as in
FlashAttention: all that is kept of a row's scores is the logarithm of the sum of their powers of two. Each result is
written by one block, so equal inputs give equal bits.

`attend` and `attend_backward` are operations of torch, so a compiler sees nothing of them but their shapes. Triton's
interpreter runs them on a CPU in fp32: with the environment variable TRITON_INTERPRET=1.

Shapes: N packed positions, H heads, K head size.
"""

import math
from typing import Any

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _load(x, first_row, end_row, stride, ROWS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Loads ROWS rows of one head from `first_row` on, [ROWS, WIDTH]; zero from `end_row` and column SIZE on."""
    rows = first_row + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    return tl.load(x + rows * stride + columns, mask=(rows < end_row) & (columns < SIZE), other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _store(x, value, first_row, end_row, stride, ROWS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = first_row + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    tl.store(x + rows * stride + columns, value.to(x.dtype.element_ty), mask=(rows < end_row) & (columns < SIZE))


@triton.jit  # type: ignore[untyped-decorator]
def _visible(ranges, first_row, num_rows, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns the range that each row sees, and the range that all of them together see."""
    rows = first_row + tl.arange(0, ROWS)
    row_begins = tl.load(ranges + rows, mask=rows < num_rows, other=0)
    row_ends = tl.load(ranges + num_rows + rows, mask=rows < num_rows, other=0)
    begin = tl.load(ranges + first_row).to(tl.int64)
    end = tl.load(ranges + num_rows + tl.minimum(first_row + ROWS, num_rows) - 1).to(tl.int64)
    return row_begins, row_ends, begin, end


@triton.jit  # type: ignore[untyped-decorator]
def _scores(rows, columns, first_column, row_begins, row_ends, scale, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns scale rows columns^T; -inf where a row does not see a column. The first has position `first_column`."""
    positions = first_column + tl.arange(0, COLUMNS)[None, :]
    scores = tl.dot(rows, tl.trans(columns)) * scale
    return tl.where((positions >= row_begins[:, None]) & (positions < row_ends[:, None]), scores, float("-inf"))


@triton.jit
def _load_per_query(x, head, queries, num_queries):  # type: ignore[no-untyped-def]
    """Loads the numbers of these queries of a head from x, [H, N_q]."""
    return tl.load(x + head * num_queries + queries, mask=queries < num_queries, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    log_sums,
    ranges,
    scale,
    num_queries,
    num_keys,
    q_stride,
    k_stride,
    v_stride,
    out_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    head = tl.program_id(1)
    queries = first_row + tl.arange(0, ROWS)
    at = head * SIZE
    row_begins, row_ends, begin, end = _visible(ranges, first_row, num_queries, ROWS)
    q_rows = _load(q + at, first_row, num_queries, q_stride, ROWS, SIZE, WIDTH)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for key in range(begin, end, COLUMNS):
        k_rows = _load(k + at, key, num_keys, k_stride, COLUMNS, SIZE, WIDTH)
        scores = _scores(q_rows, k_rows, key, row_begins, row_ends, scale, COLUMNS)
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # of a row without a key yet
        weights = tl.exp2(scores - shift[:, None])
        shrink = tl.exp2(largest - shift)
        v_rows = _load(v + at, key, num_keys, v_stride, COLUMNS, SIZE, WIDTH)
        sums = sums * shrink[:, None] + tl.dot(weights.to(v_rows.dtype), v_rows)
        total = total * shrink + tl.sum(weights, 1)
        largest = new_largest
    total = tl.where(total > 0, total, 1.0)  # of rows after the last one
    _store(out + at, sums / total[:, None], first_row, num_queries, out_stride, ROWS, SIZE, WIDTH)
    tl.store(log_sums + head * num_queries + queries, largest + tl.log2(total), mask=queries < num_queries)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_of_queries(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    grad,
    dq,
    log_sums,
    deltas,
    ranges,
    scale,
    d_scale,
    num_queries,
    num_keys,
    q_stride,
    k_stride,
    v_stride,
    out_stride,
    grad_stride,
    dq_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    head = tl.program_id(1)
    queries = first_row + tl.arange(0, ROWS)
    at = head * SIZE
    row_begins, row_ends, begin, end = _visible(ranges, first_row, num_queries, ROWS)
    q_rows = _load(q + at, first_row, num_queries, q_stride, ROWS, SIZE, WIDTH)
    out_rows = _load(out + at, first_row, num_queries, out_stride, ROWS, SIZE, WIDTH)
    grad_rows = _load(grad + at, first_row, num_queries, grad_stride, ROWS, SIZE, WIDTH)
    delta = tl.sum(grad_rows.to(tl.float32) * out_rows.to(tl.float32), 1)
    tl.store(deltas + head * num_queries + queries, delta, mask=queries < num_queries)
    log_sum = _load_per_query(log_sums, head, queries, num_queries)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for key in range(begin, end, COLUMNS):
        k_rows = _load(k + at, key, num_keys, k_stride, COLUMNS, SIZE, WIDTH)
        weights = tl.exp2(_scores(q_rows, k_rows, key, row_begins, row_ends, scale, COLUMNS) - log_sum[:, None])
        d_weights = tl.dot(grad_rows, tl.trans(_load(v + at, key, num_keys, v_stride, COLUMNS, SIZE, WIDTH)))
        sums += tl.dot((weights * (d_weights - delta[:, None])).to(k_rows.dtype), k_rows)
    _store(dq + at, sums * d_scale, first_row, num_queries, dq_stride, ROWS, SIZE, WIDTH)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_of_keys(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    grad,
    dk,
    dv,
    log_sums,
    deltas,
    ranges,
    scale,
    d_scale,
    num_queries,
    num_keys,
    q_stride,
    k_stride,
    v_stride,
    grad_stride,
    dk_stride,
    dv_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    head = tl.program_id(1)
    at = head * SIZE
    row_begins, row_ends, begin, end = _visible(ranges, first_row, num_keys, ROWS)
    k_rows = _load(k + at, first_row, num_keys, k_stride, ROWS, SIZE, WIDTH)
    v_rows = _load(v + at, first_row, num_keys, v_stride, ROWS, SIZE, WIDTH)
    dk_sums = tl.zeros([ROWS, WIDTH], tl.float32)
    dv_sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for query in range(begin, end, COLUMNS):  # products are transposed here: [keys, queries]
        queries = query + tl.arange(0, COLUMNS)
        q_rows = _load(q + at, query, num_queries, q_stride, COLUMNS, SIZE, WIDTH)
        grad_rows = _load(grad + at, query, num_queries, grad_stride, COLUMNS, SIZE, WIDTH)
        log_sum = _load_per_query(log_sums, head, queries, num_queries)
        delta = _load_per_query(deltas, head, queries, num_queries)
        weights = tl.exp2(_scores(k_rows, q_rows, query, row_begins, row_ends, scale, COLUMNS) - log_sum[None, :])
        dv_sums += tl.dot(weights.to(grad_rows.dtype), grad_rows)
        d_weights = tl.dot(v_rows, tl.trans(grad_rows))
        dk_sums += tl.dot((weights * (d_weights - delta[None, :])).to(q_rows.dtype), q_rows)
    _store(dk + at, dk_sums * d_scale, first_row, num_keys, dk_stride, ROWS, SIZE, WIDTH)
    _store(dv + at, dv_sums, first_row, num_keys, dv_stride, ROWS, SIZE, WIDTH)


def _constants(head_size: int) -> dict[str, int]:
    """Returns the sizes of a block: small enough for the shared memory of every GPU from compute capability 8.0 on."""
    width = max(16, triton.next_power_of_2(head_size))
    rows = 64 if width <= 64 else 32
    return {"ROWS": rows, "COLUMNS": rows, "SIZE": head_size, "WIDTH": width, "num_warps": 4, "num_stages": 2}


def _launch(kernel: Any, num_rows: int, q: Tensor, tensors: list[Tensor], numbers: list[float], num_keys: int) -> None:
    """Starts a block for every few of `num_rows` rows of each head; a kernel also takes the strides of the rows."""
    constants = _constants(q.shape[2])
    strides = [x.stride(0) for x in tensors if x.dim() == 3]
    grid = (triton.cdiv(num_rows, constants["ROWS"]), q.shape[1])
    kernel[grid](*tensors, *numbers, len(q), num_keys, *strides, **constants)


@torch.library.custom_op("mtx::packed_attention", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, key_ranges: Tensor) -> tuple[Tensor, Tensor]:
    """Returns softmax(q k^T / sqrt(K)) v, [N_q, H, K], and what the backward pass needs of the scores, fp32 [H, N_q].

    Args:
        q, k, v: [N, H, K], where the heads of a row lie side by side; rows may have gaps between them.
        key_ranges: first and last + 1 of the keys that each query sees, int32 [2, N_q]; neither ever decreases.
    """
    out, log_sums = _results(q)
    scale = math.log2(math.e) * q.shape[2] ** -0.5
    _launch(_forward, len(q), q, [q, k, v, out, log_sums, key_ranges], [scale], len(k))
    return out, log_sums


@attend.register_fake
def _results(q: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    """Returns memory for the results of `attend`."""
    return q.new_empty(q.shape), q.new_empty(q.shape[1], len(q), dtype=torch.float32)


@torch.library.custom_op("mtx::packed_attention_backward", mutates_args=())
def attend_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    grad: Tensor,
    key_ranges: Tensor,
    query_ranges: Tensor,
    is_joint: bool,
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of q, k and v, given that of the output.

    Args:
        query_ranges: first and last + 1 of the queries that see each key, int32 [2, N_k]; neither ever decreases.
        is_joint: whether q, k and v are parts of one tensor [N, 3, H, K].

    Returns:
        The gradient of that tensor and an empty one, or those of q and of keys and values together, [N_k, 2, H, K].
    """
    d_queries, d_keys_values = _gradients(q, k, is_joint)
    dq, dk, dv = d_queries.unbind(1) if is_joint else (d_queries, *d_keys_values.unbind(1))
    deltas = torch.empty_like(log_sums)
    scale = q.shape[2] ** -0.5
    scales = [math.log2(math.e) * scale, scale]
    _launch(_backward_of_queries, len(q), q, [q, k, v, out, grad, dq, log_sums, deltas, key_ranges], scales, len(k))
    _launch(_backward_of_keys, len(k), q, [q, k, v, grad, dk, dv, log_sums, deltas, query_ranges], scales, len(k))
    return d_queries, d_keys_values


@attend_backward.register_fake
def _gradients(q: Tensor, k: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Returns memory for the results of `attend_backward`; the last argument is `is_joint`."""
    num_rows, *heads = q.shape
    if arguments[-1]:  # is_joint
        return q.new_empty(num_rows, 3, *heads), q.new_empty(0)
    return q.new_empty(num_rows, *heads), q.new_empty(len(k), 2, *heads)
