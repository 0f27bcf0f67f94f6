"""A model directory without its weights: architecture, languages, search settings, and the files of its tokenizer.

A directory is untrusted: every file is compared with the manifest, and its size is bounded. No torch;
`mtx.decoding.model_directory` adds the tokenizer and the weights.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mtx.config.limits import MAX_BEAM_SIZE, MAX_LENGTH_PENALTY, MAX_PIECES, MAX_TOKENS
from mtx.config.schema import Config, Direction, Language, ModelConfig, pairs_of
from mtx.errors import DamagedFileError, UsageError
from mtx.formatting import mtx_command
from mtx.machine import total_bytes
from mtx.storage import durable
from mtx.storage.durable import MANIFEST, MAX_JSON_BYTES, Json
from mtx.storage.run_files import (
    CTRANSLATE2_WEIGHTS,
    MODEL_CONFIG,
    REPORT,
    TOKENIZER_JSON,
    TOKENIZER_MODEL,
    TOKENIZER_SRC_MODEL,
    TOKENIZER_TGT_MODEL,
    WEIGHTS,
    RunLayout,
    checkpoint_steps,
)

MAX_HEADER_BYTES = 1 << 24  # of the weights; that of 2,000 layers with Adam's state has 14 MB
MAX_TOKENIZER_BYTES = 1 << 25  # published models have about 800 kB
_MAX_POSITIONS = 3 * MAX_TOKENS  # an export has a position for each token of the longest translation


class _Info(BaseModel):
    """What a model directory records of a model, apart from its architecture."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    src: Language | None = None
    tgt: Language | None = None
    directions: list[Direction] = []  # in place of src and tgt: an earlier mtx would translate without a token
    max_tokens: int = Field(ge=4, le=MAX_TOKENS)  # a language token, two pieces and `</s>`
    beam_size: int = Field(ge=1, le=MAX_BEAM_SIZE)
    length_penalty: float = Field(ge=0, le=MAX_LENGTH_PENALTY)
    multi_sentence_share: float = Field(0.0, ge=0, le=1)  # imported models have no record of it
    codes: list[str] = []  # of the training text, which the model writes like words

    @model_validator(mode="after")
    def _has_languages(self) -> Self:
        if not (self.directions or (self.src and self.tgt)):
            raise ValueError("neither src and tgt nor directions")
        return self


class _Stored(_Info):
    """The configuration file of a model directory."""

    model: ModelConfig
    num_ids: int = Field(ge=1, le=2 * MAX_PIECES)


class ModelDescription(NamedTuple):
    """A model directory without its weights.

    Attributes:
        info: src and tgt, or directions, max_tokens, the run's beam_size and length_penalty, and perhaps
            multi_sentence_share and codes.
        tokenizer_dir: the directory with the files of the tokenizer.
    """

    config: ModelConfig
    info: Json
    tokenizer_dir: Path


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
        hint = f"if it is a published model: {mtx_command('import', directory, '-o', 'MODEL')}"
        raise UsageError(f"{directory}: not a model directory or a run directory", hint)
    path = directory / name
    durable.verify(directory, {name: MAX_JSON_BYTES}, only_needed=True)
    info = durable.read_json(path)
    stored = _check(path, _Stored, info)
    limits = dict.fromkeys((*needed, *tokenizer_files(directory)), MAX_TOKENIZER_BYTES)
    is_weights = limits.keys() & {WEIGHTS, CTRANSLATE2_WEIGHTS}
    limits |= dict.fromkeys(is_weights, max_weight_bytes(stored.model, stored.num_ids))
    durable.verify(directory, limits)
    return ModelDescription(stored.model, info, directory)


def read_run(paths: RunLayout, load_config: Callable[[RunLayout], Config]) -> ModelDescription:
    """The description of the model of a run without a model directory.

    Args:
        load_config: from `mtx.runs.run_directory`.

    Raises:
        UsageError: if the run has no checkpoint.
        DamagedFileError: if a file of the tokenizer or the report on the data is damaged.
    """
    if not checkpoint_steps(paths):
        raise UsageError(
            f"{paths.root}: this run has no model yet", f"to resume training: {mtx_command('train', paths.root)}"
        )
    report = paths.data / REPORT
    files = (*tokenizer_files(paths.data), REPORT)
    durable.verify(paths.data, dict.fromkeys(files, MAX_TOKENIZER_BYTES), only_needed=True)
    config = load_config(paths)
    info = info_of(config, durable.read_json(report))
    _check(report, _Info, info)
    return ModelDescription(config.model, info, paths.data)


def _check(path: Path, form: type[BaseModel], value: Json) -> Any:
    """A value of the file `path`, validated; DamagedFileError with the first wrong key."""
    try:
        return form.model_validate(value)
    except ValidationError as error:
        raise DamagedFileError(f"{path}: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """The first wrong key of a value that was validated, and what is wrong."""
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def tokenizer_files(directory: Path) -> tuple[str, ...]:
    """The files that the tokenizer in `directory` must have, inferred from the existing files."""
    split = (TOKENIZER_SRC_MODEL, TOKENIZER_TGT_MODEL)
    is_split = any((directory / name).is_file() for name in split) and not (directory / TOKENIZER_MODEL).is_file()
    return (*split, TOKENIZER_JSON) if is_split else (TOKENIZER_MODEL, TOKENIZER_JSON)


def max_weight_bytes(config: ModelConfig, num_ids: int) -> int:
    """The maximum size in bytes of a file with the weights of this architecture that this machine can load.

    No layer of any architecture has more than 16 square matrices of its width; exports have tables of positions.
    """
    num_layers = config.num_encoder_layers + config.num_decoder_layers + 1
    numbers = 16 * num_layers * config.d_model * max(config.d_model, config.d_ff)
    numbers += 4 * (num_ids + _MAX_POSITIONS) * config.d_model
    return min(4 * numbers + 2 * MAX_HEADER_BYTES, total_bytes() or sys.maxsize)


def info_of(config: Config, report: Json) -> Json:
    """The languages, search settings and kind of training lines that a model directory stores.

    Args:
        report: the report.json of the run's data.
    """
    unused = {"src", "tgt"} if config.data.directions else {"directions"}
    values = {**report, **config.data.model_dump(mode="json", exclude=unused), **config.decoding.model_dump()}
    return {key: values[key] for key in _Info.model_fields if key in values}


def language_pairs(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Source and target of each direction of a model, by the `info` of its directory."""
    return pairs_of(info.get("directions", ())) or [(info["src"], info["tgt"])]
