"""The model directory that users ship: weights, configuration, tokenizer, scores, and a manifest of all of them.

It is written whole or not at all. Loading verifies the hashes and the names, shapes and types of the weights, and runs
no code from the directory.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from mtx.config.schema import ModelConfig
from mtx.data.tokenizer import Tokenizer
from mtx.errors import DamagedFileError, UsageError
from mtx.formatting import mtx_command
from mtx.model.architectures import new_model
from mtx.model.translation_model import TranslationModel
from mtx.storage import disk, durable, model_description
from mtx.storage.model_description import ModelDescription
from mtx.storage.run_files import (
    EXPORT_CONFIG,
    MODEL_CONFIG,
    SCORES,
    STATE,
    WEIGHTS,
    RunLayout,
    checkpoint_steps,
    is_run,
)

Tensors = Mapping[str, torch.Tensor]  # by name
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model directory.

    Attributes:
        info: see `ModelDescription`.
    """

    model: TranslationModel
    tokenizer: Tokenizer
    info: durable.Json

    @property
    def sha256(self) -> str:
        """The hash of the weights as a safetensors file, which equals that of the file they were loaded from."""
        hashed = hashlib.sha256()
        for part in serialize(self.model.state_dict()):
            hashed.update(part)
        return hashed.hexdigest()


def save_tensors(path: Path, tensors: Tensors) -> None:
    """Write tensors to a new safetensors file; the caller syncs it with its directory."""
    with disk.create(path) as file:
        file.writelines(serialize(tensors))


def serialize(tensors: Tensors) -> Iterator[Any]:
    """Yields the bytes of a safetensors file, a tensor at a time: the library would copy all of them at once."""
    empty = {name: tensor.new_empty(0) for name, tensor in tensors.items()}
    header = json.loads(safetensors.torch.save(empty)[8:])  # in the order of the library
    offset = 0
    for name, entry in header.items():
        next_offset = offset + tensors[name].nbytes
        entry |= {"shape": list(tensors[name].shape), "data_offsets": [offset, next_offset]}
        offset = next_offset
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in map(tensors.__getitem__, header):
        yield tensor.detach().cpu().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def load_tensors(path: Path, expected: Tensors | None = None) -> dict[str, torch.Tensor]:
    """Read a safetensors file.

    Args:
        expected: tensors with the names, shapes and types that the file must have; its numbers must be finite.

    Raises:
        DamagedFileError: the file is missing, damaged, or not as expected.
    """
    durable.require_file(path)
    try:
        with path.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > model_description.MAX_HEADER_BYTES:
                raise ValueError(f"a header of {size:,} bytes")
            durable.parse_json(opened.read(size))  # the library would accept a repeated name
            with safe_open(f"/dev/fd/{opened.fileno()}", "pt") as file:  # maps it into memory; PATH may not be UTF-8
                tensors = {name: file.get_tensor(name).clone() for name in sorted(file.keys())}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:  # the last: odd shapes
        raise DamagedFileError(f"{path}: cannot read it: {error}") from None
    if expected is None:
        return tensors
    for name in sorted({*tensors, *expected}):
        if name not in tensors or name not in expected:
            raise DamagedFileError(f"{path}: {'missing' if name in expected else 'unknown'} tensor {name}")
        stored_form = f"{tensors[name].dtype} {list(tensors[name].shape)}"
        expected_form = f"{expected[name].dtype} {list(expected[name].shape)}"
        if stored_form != expected_form:
            raise DamagedFileError(f"{path}: {name} is {stored_form}, expected {expected_form}")
        if not tensors[name].isfinite().all():
            raise DamagedFileError(f"{path}: {name} has numbers that are not finite")
    return tensors


def write(
    directory: Path,
    weights: Tensors,
    config: ModelConfig,
    tokenizer: Tokenizer,
    info: durable.Json,
) -> None:
    """Write a model directory; an existing one is replaced."""
    with durable.new_directory(directory) as new:
        save_tensors(new / WEIGHTS, weights)
        durable.write_json(new / MODEL_CONFIG, {"model": config.stored(), "num_ids": tokenizer.num_ids, **info})
        tokenizer.save(new)


def add_scores(directory: Path, scores: durable.Json, files: Mapping[str, str]) -> None:
    """Add the scores and text files, such as the model card, to a model directory and its manifest."""
    contents = {name: text.encode() for name, text in files.items()}
    durable.replace_files(directory, {**contents, SCORES: durable.json_bytes(scores)})


def load(directory: Path) -> LoadedModel:
    """Verify and load a model directory, or the best checkpoint of a run directory, on the CPU in fp32.

    Raises:
        UsageError: if it is neither, or a run without a checkpoint.
        DamagedFileError: if a file is missing, differs from its manifest, or does not fit.
    """
    if is_run(directory):
        described, tokenizer, path = _best_checkpoint(RunLayout(directory))
    elif (directory / EXPORT_CONFIG).is_file():
        hint = f"name the run or model that was exported; {mtx_command('translate', directory)} reads exports"
        raise UsageError(f"{directory}: an export for CTranslate2", hint)
    else:
        described = model_description.read(directory, (WEIGHTS,))
        tokenizer = Tokenizer.load(directory)
        if (stored := described.info["num_ids"]) != tokenizer.num_ids:
            raise DamagedFileError(f"{directory}: the model has {stored} outputs, the tokenizer {tokenizer.num_ids}")
        path = directory / WEIGHTS
    with torch.device("meta"):  # a model takes no memory before the file is known to fit it
        model = new_model(described.config, tokenizer.num_ids)
    model.load_state_dict(load_tensors(path, model.state_dict()), assign=True)
    return LoadedModel(model.eval(), tokenizer, described.info)


def _best_checkpoint(paths: RunLayout) -> tuple[ModelDescription, Tokenizer, Path]:
    """The best checkpoint of a run that has no model directory yet: what it is, its tokenizer, and its weights."""
    from mtx.runs.run_directory import load_config  # a model directory needs no settings of a run

    described = model_description.read_run(paths, load_config)
    tokenizer = Tokenizer.load(paths.data)
    steps = checkpoint_steps(paths)
    best_step = durable.read_json(paths.checkpoint(steps[-1]) / STATE).get("best_step")
    step = best_step if best_step in steps else steps[-1]
    limits = {WEIGHTS: model_description.max_weight_bytes(described.config, tokenizer.num_ids)}
    durable.verify(paths.checkpoint(step), limits, only_needed=True)
    logger.info("%s has no model yet: using its checkpoint of step %d", paths.root, step)
    return described, tokenizer, paths.checkpoint(step) / WEIGHTS
