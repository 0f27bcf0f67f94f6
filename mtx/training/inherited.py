"""The settings of a run that starts from a model (`training.init_from`): architecture, pieces, languages.

The model's own go before those of a recipe or a file; what the command line says against them is refused. A run that
is begun has them in its config.yaml and needs the model no more. Flow: `Resolved` -> `Resolved`. Not for the weights,
which are `initial`'s: this module imports no torch.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtx import bundle_info, files, settings
from mtx.config import Config, ModelConfig, leaves
from mtx.data.tokenizer import Tokenizer
from mtx.errors import UsageError
from mtx.paths import MANIFEST, WEIGHTS, RunPaths
from mtx.run_layout import checkpoint_steps, is_begun, is_run, model_directory
from mtx.settings import Resolved

logger = logging.getLogger(__name__)

ORIGIN = "init_from"
_FIXED = (
    *(f"model.{name}" for name in ModelConfig.model_fields if name != "dropout"),
    "tokenizer.vocab_size",
    "tokenizer.normalization",
)
_FREE = ("model.dropout", "data.src", "data.tgt")  # the model's only where no recipe, file or command line gives them
_MIN_VOCAB_SIZE = 270  # that tokenizer.vocab_size can be


def inherit(wanted: Resolved) -> Resolved:
    """Put what comes with the model of `training.init_from` into a configuration that has one.

    Raises:
        UsageError: where there is no such model, or the command line contradicts it.
        DamagedFileError: naming the file of the model that is not what it was.
    """
    name, run = wanted.config.training.init_from, RunPaths(Path(wanted.config.run_dir))
    assert name is not None
    if settings.exists(run.config) and is_begun(run) and (own := settings.load(run.config)).training.init_from == name:
        return _with(wanted, _settings_of(own))
    values = describe(name)
    _compare(wanted, values, name)
    resolved = _with(wanted, values)
    data, theirs = resolved.config.data, (values["data.src"], values["data.tgt"])
    if (data.src, data.tgt) != theirs:
        logger.warning("%s translates %s, this run %s-%s", name, "-".join(theirs), data.src, data.tgt)
    return resolved


def model_to_start_from(name: str) -> Path:
    """What `bundle.load` takes for MODEL: a model directory, that of a run, or the run where it has none yet.

    Raises:
        UsageError: where there is none.
    """
    directory = model_directory(Path(name)) if settings.exists(Path(name)) else None
    if directory is None or not ((directory / MANIFEST).is_file() or is_run(directory)):
        raise UsageError(
            f"training.init_from {name}: is not a model directory or a run directory",
            "mtx import DIR makes a model directory of a published model",
        )
    return directory


def describe(name: str) -> dict[str, Any]:
    """The settings that a model brings, by their keys; its files are verified."""
    directory = model_to_start_from(name)
    if is_run(directory):
        return _describe_run(RunPaths(directory))
    found = bundle_info.read(directory, (WEIGHTS,))
    return _values(found.config, found.tokenizer, found.info["src"], found.info["tgt"])


def _describe_run(run: RunPaths) -> dict[str, Any]:
    """`describe` for a run that has no model directory yet."""
    if not checkpoint_steps(run):
        raise UsageError(
            f"training.init_from {run.root}: this run has no model yet", f"mtx train {run.root} goes on with it"
        )
    files.verify(run.data, Tokenizer.file_names_in(run.data), only_needed=True)
    own = settings.load(run.config)
    return _values(own.model, Tokenizer.load(run.data), own.data.src, own.data.tgt)


def _values(model: ModelConfig, tokenizer: Tokenizer, src: str, tgt: str) -> dict[str, Any]:
    size = tokenizer.num_pieces
    return {
        **{f"model.{name}": value for name, value in model.model_dump().items()},
        "tokenizer.vocab_size": size if size >= _MIN_VOCAB_SIZE else "auto",
        "tokenizer.normalization": tokenizer.normalization,
        "data.src": src,
        "data.tgt": tgt,
    }


def _settings_of(config: Config) -> dict[str, Any]:
    values = dict(leaves(config.model_dump()))
    return {key: values[key] for key in (*_FIXED, *_FREE)}


def _is_typed(wanted: Resolved, key: str) -> bool:
    return wanted.origins[key] == "command line"


def _with(wanted: Resolved, values: Mapping[str, Any]) -> Resolved:
    """A configuration with the values of a model where it has none that stay."""
    stay = {key for key in values if _is_typed(wanted, key) or (key in _FREE and wanted.is_given(key))}
    taken = {key: value for key, value in values.items() if key not in stay}
    return settings.replaced(wanted, taken, ORIGIN)


def _compare(wanted: Resolved, values: Mapping[str, Any], name: str) -> None:
    """Refuse what the command line says against the model; tell what of a file gives way."""
    asked = dict(leaves(wanted.config.model_dump()))
    different = [key for key in _FIXED if asked[key] != values[key] and wanted.is_given(key)]
    refused = [f"{key} is {asked[key]}, the model's is {values[key]}" for key in different if _is_typed(wanted, key)]
    if refused:
        raise UsageError(
            f"training.init_from {name} has its own tokenizer and architecture: {'; '.join(refused)}",
            "leave these settings out",
        )
    if different:
        keys, origin = ", ".join(different), wanted.origins[different[0]]
        logger.info("tokenizer and architecture are those of %s; what %s says of %s gives way", name, origin, keys)
