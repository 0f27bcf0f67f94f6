"""The tensors of a MarianMT directory as mtx's: every name, shape, type and number is checked, and nothing is guessed.

transformers leaves out what follows from other tensors (tied matrices, the computed positions); older files hold
copies of them. A copy must agree with its original.
"""

from pathlib import Path

import torch
from torch import Tensor

from mtx import bundle
from mtx.config import ModelConfig
from mtx.errors import DamagedFileError, UsageError
from mtx.exchange import marian
from mtx.model.transformer import sinusoidal_positions

_MAX_BYTES = 1 << 34
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_POSITION_TOLERANCE = 1e-2  # above bfloat16's rounding of a sine, far below any other table


def read_weights(path: Path, config: ModelConfig, num_ids: int) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The weights in fp32 under mtx's names.

    Args:
        config: with `output_bias`; what is returned has none where the file's bias is all zero.

    Raises:
        DamagedFileError: naming the tensor that is missing, unknown, of another shape, or not finite.
        UsageError: where the pad row of an embedding is not zero, or the positions are not sinusoids.
    """
    if path.stat().st_size > _MAX_BYTES:
        raise UsageError(f"{path}: {path.stat().st_size:,} bytes are more than mtx reads")
    tensors = bundle.load_tensors(path)
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise UsageError(f"{path}: {name} is {tensor.dtype}, mtx reads float32, float16 and bfloat16")
        if not bool(tensor.isfinite().all()):
            raise DamagedFileError(f"{path}: {name} holds numbers that are not finite")
    _drop_copies(path, tensors, config)
    bias = tensors.pop(marian.OUTPUT_BIAS, torch.zeros(1, num_ids + 1))
    _check_shape(path, marian.OUTPUT_BIAS, bias, [1, num_ids + 1])
    bias = bias[0, :num_ids].float()
    if not bool(bias.any()):
        config = config.model_copy(update={"output_bias": False})
    ours = _ours(path, tensors, config, num_ids)
    return config, {**ours, "output_bias": bias} if config.output_bias else ours


def _check_shape(path: Path, name: str, tensor: Tensor, expected: list[int]) -> None:
    if list(tensor.shape) != expected:
        raise DamagedFileError(f"{path}: {name} is {list(tensor.shape)}, expected {expected}")


def _drop_copies(path: Path, tensors: dict[str, Tensor], config: ModelConfig) -> None:
    """Remove what follows from other tensors, after a look at whether it does; any one of equals will do."""
    copies = {
        "all": dict.fromkeys((marian.SOURCE_TABLE, marian.TARGET_TABLE, marian.LM_HEAD), marian.SHARED),
        "target": {marian.LM_HEAD: marian.TARGET_TABLE},
        "none": dict[str, str](),
    }[config.tie]
    for name, original in copies.items():
        copy = tensors.pop(name, None)
        if copy is not None and not torch.equal(copy, tensors.setdefault(original, copy)):
            raise DamagedFileError(f"{path}: {name} differs from {original}, which {marian.CONFIG} calls the same")
    for name in marian.POSITION_TABLES:
        table = tensors.pop(name, None)
        if table is not None and not _is_sinusoidal(table, config.d_model):
            raise UsageError(f"{path}: {name} is not the table of sinusoids that mtx computes")


def _is_sinusoidal(table: Tensor, d_model: int) -> bool:
    if table.dim() != 2 or table.shape[1] != d_model:
        return False
    expected = sinusoidal_positions(len(table), d_model)
    return torch.allclose(table.float(), expected, rtol=0, atol=_POSITION_TOLERANCE)


def _ours(path: Path, tensors: dict[str, Tensor], config: ModelConfig, num_ids: int) -> dict[str, Tensor]:
    """Every tensor of mtx's model but the output bias, and no other in the file."""
    shapes = marian.shapes(config.model_copy(update={"output_bias": False}), num_ids)
    names = marian.names(config, shapes)
    if unknown := sorted({*tensors} - {*names.values()}):
        raise DamagedFileError(f"{path}: holds an unknown tensor {unknown[0]}")
    ours = {}
    for name, shape in shapes.items():
        theirs = names[name]
        if theirs not in tensors:
            raise DamagedFileError(f"{path}: lacks {theirs}")
        is_projection = name == "projection"  # MarianMT's has a row for pad
        _check_shape(path, theirs, tensors[theirs], [shape[0] + is_projection, *shape[1:]])
        ours[name] = tensors[theirs].float()[: shape[0]]
        if name in ("embedding", "src_embedding") and bool(ours[name][num_ids].any()):
            raise UsageError(f"{path}: row {num_ids} of {theirs}, which is <pad>, is not zero as mtx needs it")
    return ours
