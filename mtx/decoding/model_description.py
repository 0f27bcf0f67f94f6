"""A model directory without its weights: architecture, tokenizer, languages and search settings. It needs no torch.

`storage` adds the weights; engines that have weights of their own need only this.
"""

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtx.config.limits import MAX_BEAM_SIZE, MAX_LENGTH_PENALTY, MAX_TOKENS
from mtx.config.schema import Config, ModelConfig
from mtx.config.value_types import Language
from mtx.data.sentencepiece_models import MAX_TOKENIZER_BYTES
from mtx.data.tokenizer import Tokenizer
from mtx.errors import DamagedFileError, UsageError
from mtx.formatting import mtx_command
from mtx.machine import total_bytes
from mtx.model.parameters import parameters
from mtx.storage import durable
from mtx.storage.durable import MANIFEST
from mtx.storage.run_configuration import load_config
from mtx.storage.run_contents import checkpoint_steps
from mtx.storage.run_files import CTRANSLATE2_WEIGHTS, MODEL_CONFIG, REPORT, WEIGHTS, RunLayout
from mtx.storage.untrusted import MAX_JSON_BYTES

MAX_HEADER_BYTES = 1 << 24  # of the weights; that of 2,000 layers with Adam's state has 14 MB
_MAX_POSITIONS = 3 * MAX_TOKENS  # an export has a position for each token of the longest translation
_WEIGHTS = (WEIGHTS, CTRANSLATE2_WEIGHTS)
_Form = TypeVar("_Form", bound=BaseModel)


class _Info(BaseModel):
    """What a model directory tells of a model, apart from its architecture."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    src: Language
    tgt: Language
    max_tokens: int = Field(ge=2, le=MAX_TOKENS)
    beam_size: int = Field(ge=1, le=MAX_BEAM_SIZE)
    length_penalty: float = Field(ge=0, le=MAX_LENGTH_PENALTY)
    multi_sentence_share: float = Field(0.0, ge=0, le=1)  # imported models have no record of it


class _Stored(_Info):
    """The configuration file of a model directory."""

    model: ModelConfig
    num_ids: int


def _check(path: Path, form: type[_Form], value: Mapping[str, Any]) -> _Form:
    """A value of the file `path` in a form; DamagedFileError with the first key that is wrong."""
    try:
        return form.model_validate(value)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DamagedFileError(f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None


@dataclass(frozen=True)
class ModelDescription:
    """A model directory without its weights.

    Attributes:
        info: src, tgt, max_tokens, the run's beam_size and length_penalty, and perhaps multi_sentence_share.
    """

    config: ModelConfig
    tokenizer: Tokenizer
    info: Mapping[str, Any]


def read(directory: Path, needed: Collection[str] = (), name: str = MODEL_CONFIG) -> ModelDescription:
    """Verify a model directory and read its description.

    Args:
        needed: files that its manifest must list in addition to the configuration and the tokenizer.
        name: the file with the configuration.

    Raises:
        UsageError: if it is not a model directory.
        DamagedFileError: if a file is missing, differs from its manifest, or does not fit.
    """
    if not (directory / MANIFEST).is_file():
        raise UsageError(f"{directory}: is not a model directory or a run directory")
    path, small = directory / name, (name, *Tokenizer.file_names_in(directory))
    durable.verify(directory, small, only_needed=True, limits=_limits(small))
    info = durable.read_json(path)
    tokenizer = Tokenizer.load(directory)
    stored = _check(path, _Stored, info)
    if stored.num_ids != tokenizer.num_ids:
        raise DamagedFileError(
            f"{directory}: the model has {stored.num_ids} outputs, the tokenizer {tokenizer.num_ids}"
        )
    weight_bytes = max_weight_bytes(stored.model, stored.num_ids)
    limits = {**_limits((*small, *needed)), **dict.fromkeys(_WEIGHTS, weight_bytes)}
    durable.verify(directory, (*needed, *small), limits=limits)
    return ModelDescription(stored.model, tokenizer, info)


def read_run(paths: RunLayout) -> ModelDescription:
    """The description of the model of a run that has no model directory yet.

    Raises:
        UsageError: if the run has no checkpoint.
        DamagedFileError: if a file of the tokenizer or the report on the data is damaged.
    """
    if not checkpoint_steps(paths):
        raise UsageError(
            f"{paths.root}: this run has no model yet", f"to continue it: {mtx_command('train', paths.root)}"
        )
    report, files = paths.data / REPORT, (*Tokenizer.file_names_in(paths.data), REPORT)
    durable.verify(paths.data, files, only_needed=True, limits=_limits(files))
    config = load_config(paths)
    info = info_of(config, durable.read_json(report))
    _check(report, _Info, info)
    return ModelDescription(config.model, Tokenizer.load(paths.data), info)


def max_weight_bytes(config: ModelConfig, num_ids: int) -> int:
    """The most bytes that a file with the weights of this architecture can have and this machine can load."""
    numbers = sum(math.prod(parameter.shape) for parameter in parameters(config, num_ids))
    numbers *= 1 if config.architecture == "transformer" else 4  # more than any other has with this width and depth
    positions = 0 if config.positions == "learned" else 2 * _MAX_POSITIONS * config.d_model  # exports have tables
    return min(4 * (numbers + positions) + 2 * MAX_HEADER_BYTES, total_bytes() or sys.maxsize)


def _limits(names: Collection[str]) -> dict[str, int]:
    """The most bytes that the files of a tokenizer and a description can have."""
    return {name: MAX_TOKENIZER_BYTES if name.endswith(".model") else MAX_JSON_BYTES for name in names}


def info_of(config: Config, report: Mapping[str, Any]) -> dict[str, Any]:
    """The languages and search settings that a model directory stores, and which lines the model was trained on.

    Args:
        report: the report.json of the run's data.
    """
    known = {**report, **config.data.model_dump(), **config.decoding.model_dump()}
    return {key: known[key] for key in _Info.model_fields if key in known}
