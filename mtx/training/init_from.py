"""A run that starts from a model (`training.init_from`): the settings that it takes from there, and the weights.

The model's own architecture, pieces and languages go before those of a recipe or a file; what the command line says
against them is refused. A run that is begun has them in its config.yaml. The weights are loaded once, for the first
step. Only `load` needs torch, which `mtx config` does without.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtx.config import settings
from mtx.config.schema import Config, ModelConfig, leaves
from mtx.config.settings import Resolved
from mtx.data.tokenizer import Tokenizer
from mtx.errors import UsageError
from mtx.files import durable
from mtx.files.durable import MANIFEST
from mtx.model_directory import description
from mtx.run.contents import checkpoint_steps, has_begun, is_run, model_directory
from mtx.run.layout import WEIGHTS, RunLayout

if TYPE_CHECKING:
    from mtx.model_directory.storage import LoadedModel

logger = logging.getLogger(__name__)

_FIXED = tuple(f"model.{name}" for name in ModelConfig.model_fields if name != "dropout")
_FIXED += ("tokenizer.vocab_size", "tokenizer.normalization")
_FREE = ("model.dropout", "data.src", "data.tgt")  # the model's only where no recipe, file or command line gives them
_MIN_VOCAB_SIZE = 270  # that tokenizer.vocab_size can be
_ANEW = "another run_dir=DIR starts anew from it"


def inherit(resolved: Resolved) -> Resolved:
    """Put what comes with the model of `training.init_from` into a configuration that has one.

    Raises:
        UsageError: where there is no such model, or the command line contradicts it.
        DamagedFileError: naming the file of the model that is not what it was.
    """
    name, run = resolved.config.training.init_from, RunLayout(Path(resolved.config.run_dir))
    assert name is not None
    if settings.exists(run.config) and has_begun(run) and (own := settings.load(run.config)).training.init_from == name:
        values = dict(leaves(own.model_dump()))
        return _with(resolved, {key: values[key] for key in (*_FIXED, *_FREE)})
    values = describe(name)
    _compare(resolved, values, name)
    resolved = _with(resolved, values)
    data, theirs = resolved.config.data, (values["data.src"], values["data.tgt"])
    if (data.src, data.tgt) != theirs:
        logger.warning("%s translates %s, this run %s-%s", name, "-".join(theirs), data.src, data.tgt)
    return resolved


def _find(name: str) -> Path:
    """The model directory, or the run without one, that `training.init_from` names.

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
    directory = _find(name)
    if not is_run(directory):
        model = description.read(directory, (WEIGHTS,))
        return _values(model.config, model.tokenizer, model.info["src"], model.info["tgt"])
    run = RunLayout(directory)
    if not checkpoint_steps(run):
        raise UsageError(
            f"training.init_from {directory}: this run has no model yet", f"mtx train {directory} goes on with it"
        )
    durable.verify(run.data, Tokenizer.file_names_in(run.data), only_needed=True)
    own = settings.load(run.config)
    return _values(own.model, Tokenizer.load(run.data), own.data.src, own.data.tgt)


def _values(model: ModelConfig, tokenizer: Tokenizer, src: str, tgt: str) -> dict[str, Any]:
    size = tokenizer.num_pieces
    return {
        **{f"model.{name}": value for name, value in model.model_dump().items()},
        "tokenizer.vocab_size": size if size >= _MIN_VOCAB_SIZE else "auto",
        "tokenizer.normalization": tokenizer.normalization, "data.src": src, "data.tgt": tgt,
    }  # fmt: skip


def _is_typed(resolved: Resolved, key: str) -> bool:
    return resolved.origins[key] == "command line"


def _with(resolved: Resolved, values: Mapping[str, Any]) -> Resolved:
    """A configuration with the values of a model where it has none that stay."""
    stay = {key for key in values if _is_typed(resolved, key) or (key in _FREE and resolved.is_explicit(key))}
    return settings.replace_values(
        resolved, {key: value for key, value in values.items() if key not in stay}, "init_from"
    )


def _compare(resolved: Resolved, values: Mapping[str, Any], name: str) -> None:
    """Refuse what the command line says against the model; tell what of a file gives way."""
    asked = dict(leaves(resolved.config.model_dump()))
    different = [key for key in _FIXED if asked[key] != values[key] and resolved.is_explicit(key)]
    refused = [f"{key} is {asked[key]}, the model's is {values[key]}" for key in different if _is_typed(resolved, key)]
    if refused:
        raise UsageError(
            f"training.init_from {name} has its own tokenizer and architecture: {'; '.join(refused)}",
            "leave these settings out",
        )
    if different:
        keys, origin = ", ".join(different), resolved.origins[different[0]]
        logger.info("tokenizer and architecture are those of %s; what %s says of %s gives way", name, origin, keys)


def load(config: Config) -> "LoadedModel | None":
    """The model of `training.init_from`, on the CPU; None where there is none.

    Raises:
        UsageError: where it is not there, or its architecture is not that of `config`.
        DamagedFileError: naming the file that is damaged.
    """
    name = config.training.init_from
    if name is None:
        return None
    from mtx.model_directory import storage

    loaded = storage.load(_find(name))
    ignored = {"preset", "dropout"}  # models with the same weights may differ in these
    if loaded.model.config.model_dump(exclude=ignored) != config.model.model_dump(exclude=ignored):
        raise UsageError(f"training.init_from {name}: its architecture is not that of this run", _ANEW)
    return loaded


def check_tokenizer(config: Config, own: Tokenizer, prepared: Tokenizer) -> None:
    """Refuse a model with another tokenizer than the one that the data of a run was prepared with.

    Raises:
        UsageError: where they differ.
    """
    same_ids = own.vocabulary() == prepared.vocabulary() and own.normalization == prepared.normalization
    if not same_ids or own.models.files != prepared.models.files:
        text = "its tokenizer is not the one that the data of this run has"
        raise UsageError(f"training.init_from {config.training.init_from}: {text}", _ANEW)
