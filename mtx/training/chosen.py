"""What `auto` became at the first start of a run: decided once, kept in chosen.json, and used again."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from mtx import files
from mtx.config import Config
from mtx.data.prepare import PreparedData
from mtx.errors import DamagedFileError, UsageError
from mtx.model.device import attention_kernel, fast_precision, num_threads, repays_compiling
from mtx.model.transformer import training_flops
from mtx.paths import RunPaths
from mtx.training import probe


@dataclass(frozen=True)
class Chosen:
    """What `auto` became at the first start, kept in chosen.json and reused."""

    device: str
    precision: str
    micro_batch_tokens: int
    kernel: str
    threads: int
    compile: bool


def choose(paths: RunPaths, wanted: Config, device: torch.device, data: PreparedData) -> Chosen:
    """What `auto` means for this run: as recorded at its first start, or decided and recorded now."""
    head_size = wanted.model.d_model // wanted.model.num_heads
    if paths.chosen.exists():
        chosen = read_chosen(paths.chosen)
        if wanted.device == "auto" and torch.device(chosen.device).type != device.type:
            raise UsageError(
                f"{paths.chosen}: this run was started on {chosen.device}, which is not here",
                f"device={device.type} goes on without it, not bit for bit",
            )
        kernel = attention_kernel(device, chosen.precision, head_size, wanted.training.deterministic)
        return Chosen(**{**asdict(chosen), "device": str(device), "kernel": kernel})
    precision = fast_precision(device) if wanted.precision == "auto" else wanted.precision
    kernel = attention_kernel(device, precision, head_size, wanted.training.deterministic)
    micro = wanted.training.micro_batch_tokens
    num_ids, ratio = data.tokenizer.num_ids, data.report["src_tgt_ratio"]
    if micro == "auto":
        micro = probe.micro_batch_tokens(wanted, num_ids, ratio, device, precision, kernel)
    num_tokens = wanted.training.max_steps * wanted.training.batch_tokens
    compiled = kernel == "varlen" and repays_compiling(num_tokens * training_flops(wanted.model, num_ids, ratio))
    chosen = Chosen(str(device), precision, micro, kernel, num_threads(), compiled)
    files.write_json(paths.chosen, asdict(chosen))
    return chosen


def read_chosen(path: Path) -> Chosen:
    values = files.read_json(path)
    if lacking := [field.name for field in fields(Chosen) if field.name not in values]:
        raise DamagedFileError(f"{path}: lacks {', '.join(lacking)}")
    return Chosen(**{field.name: values[field.name] for field in fields(Chosen)})
