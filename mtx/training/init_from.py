"""A run that starts from a model (`training.init_from`): the settings that it inherits, and the initial weights.

The model's architecture, vocabulary and languages override those of a recipe or a file; contradicting settings on the
command line are refused. A run that has begun has the settings in its config.yaml. The weights are loaded only for the
first step. Only `load` and `translator` import torch, so that `mtx config` works without it.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from mtx.config import settings
from mtx.config.schema import Config, ModelConfig, TrainingConfig, leaves
from mtx.config.settings import Resolved
from mtx.data.tokenizer import Tokenizer
from mtx.errors import UsageError
from mtx.runs.run_directory import load_config
from mtx.storage import model_description
from mtx.storage.durable import MANIFEST, Json, read_json
from mtx.storage.run_files import SCORES, WEIGHTS, RunLayout, find_model, has_begun, is_run

if TYPE_CHECKING:
    from mtx.decoding.model_directory import LoadedModel
    from mtx.decoding.translator import Translator

logger = logging.getLogger(__name__)

_FIXED = [f"model.{name}" for name in ModelConfig.model_fields if name not in ("dropout", "licence")]
_FIXED += ["tokenizer.vocab_size", "tokenizer.normalization"]
_DIRECTIONS = {"data.directions", "data.src", "data.tgt"}
# Inherited only if no recipe, file or command line sets them.
_FREE = [
    "model.dropout",
    "model.licence",
    *_DIRECTIONS,
    "data.terms",
    "decoding.beam_size",
    "decoding.length_penalty",
]
_COMMAND_LINE = "command line"
_MIN_VOCAB_SIZE = 270  # the smallest tokenizer.vocab_size
_HELP = "use another run_dir=DIR to start from it"


def inherit(resolved: Resolved) -> Resolved:
    """Put the settings of the model of `training.init_from` into a configuration.

    Raises:
        UsageError: if there is no such model, or the command line contradicts it.
        DamagedFileError: if a file of the model is damaged.
    """
    name = resolved.config.training.init_from
    run = RunLayout(Path(resolved.config.run_dir))
    assert name is not None
    recorded = settings.load(run.config) if settings.exists(run.config) and has_begun(run) else None
    if recorded and recorded.training.init_from == name:
        values = {key: value for key, value in leaves(recorded.model_dump()) if key in _FIXED + _FREE}
        tokenizer = None
    else:
        values, tokenizer = describe(name)
        _check_overrides(resolved, values, name)
    explicit_keys = {key for key in _FREE if resolved.is_explicit(key)}
    if "data.directions" in explicit_keys or (values["data.directions"] and explicit_keys & _DIRECTIONS):
        explicit_keys |= _DIRECTIONS
    inherited = {
        key: value
        for key, value in values.items()
        if resolved.origins[key] != _COMMAND_LINE and key not in explicit_keys
    }
    resolved = settings.replace_values(resolved, inherited, "init_from")
    data = resolved.config.data
    if tokenizer:
        for languages in data.language_pairs:
            tokenizer.frame(*languages)  # raises for one that the model lacks
    model_directions = values["data.directions"] or [f"{values['data.src']}-{values['data.tgt']}"]
    if {*data.direction.split("+")} - {*model_directions}:
        logger.warning(f"{name} translates {'+'.join(model_directions)}, this run {data.direction}")
    return resolved


def _model_directory(name: str | None) -> Path:
    """The model directory, or the run without one, that `training.init_from` names; else raises UsageError."""
    directory = find_model(Path(name)) if name and settings.exists(Path(name)) else None
    if not directory or not ((directory / MANIFEST).is_file() or is_run(directory)):
        raise UsageError(
            f"training.init_from {name}: not a model directory or a run directory",
            "mtx import makes a model directory of a published one: DIR or hf:USER/MODEL",
        )
    return directory


def describe(name: str) -> tuple[Json, Tokenizer]:
    """The settings of a model, by their keys, and its tokenizer; verifies its files."""
    directory = _model_directory(name)
    if is_run(directory):
        model = model_description.read_run(RunLayout(directory), load_config)
    else:
        model = model_description.read(directory, (WEIGHTS,))
    tokenizer = Tokenizer.load(model.tokenizer_dir)
    scored = read_json(directory / SCORES).get("run") if (directory / SCORES).is_file() else None
    num_pieces = tokenizer.num_pieces
    src, tgt = model_description.language_pairs(model.info)[0]
    values = {
        **{f"model.{name}": value for name, value in model.config.model_dump(exclude={"licence"}).items()},
        "tokenizer.vocab_size": num_pieces if num_pieces >= _MIN_VOCAB_SIZE else "auto",
        "tokenizer.normalization": tokenizer.normalization,
        "model.licence": scored.get("licence") if isinstance(scored, dict) else None,
        "data.directions": tuple(model.info.get("directions", ())),
        "data.src": src,
        "data.tgt": tgt,
        "data.terms": "auto" if tokenizer.marks else None,  # it would forget to follow a glossary
        "decoding.beam_size": model.info["beam_size"],
        "decoding.length_penalty": model.info["length_penalty"],
    }
    return values, tokenizer


def _check_overrides(resolved: Resolved, values: Json, name: str) -> None:
    """Refuse settings of the command line that contradict the model; log those of a file that it overrides."""
    configured = dict(leaves(resolved.config.model_dump()))
    different = [key for key in _FIXED if configured[key] != values[key] and resolved.is_explicit(key)]
    on_line = [key for key in different if resolved.origins[key] == _COMMAND_LINE]
    refused = [f"{key} is {configured[key]}, the model's is {values[key]}" for key in on_line]
    if refused:
        raise UsageError(
            f"training.init_from {name} has its own tokenizer and architecture: {'; '.join(refused)}",
            "leave these settings out",
        )
    if different:
        logger.info(
            f"using tokenizer and architecture of {name}, which override {', '.join(different)} of "
            f"{resolved.origins[different[0]]}"
        )


def load(config: Config) -> "LoadedModel":
    """Load the model of `training.init_from` on the CPU.

    Raises:
        UsageError: if it does not exist, or its architecture is not that of `config`.
        DamagedFileError: if a file of it is damaged.
    """
    from mtx.decoding import model_directory

    name = config.training.init_from
    loaded = model_directory.load(_model_directory(name))
    free = {"preset", "dropout", "licence"}  # models with the same weights may differ in these
    if loaded.model.config.model_dump(exclude=free) != config.model.model_dump(exclude=free):
        raise UsageError(f"training.init_from {name}: its architecture differs from this run's", _HELP)
    return loaded


def translator(config: Config, device: str) -> "Translator":
    """The model of `training.init_from` with the search of the run; `load` has checked that it can be used."""
    from mtx.decoding.translator import Translator

    decoding = config.decoding
    loaded = Translator.load(
        _model_directory(config.training.init_from),
        device=device,
        beam_size=decoding.beam_size,
        length_penalty=decoding.length_penalty,
        batch_tokens=decoding.batch_tokens,
    )
    if loaded.tokenizer.languages:
        loaded.directions = config.data.language_pairs
    return loaded


def check_tokenizer(training: TrainingConfig, tokenizer: Tokenizer, prepared: Tokenizer) -> None:
    """Raise UsageError if the model's tokenizer is not the one that the data of the run was prepared with."""
    if not tokenizer.is_same(prepared):
        raise UsageError(
            f"training.init_from {training.init_from}: its tokenizer differs from the one of this run's data",
            _HELP,
        )
