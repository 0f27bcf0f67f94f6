"""The table of architectures. Each is imported when a model of it is asked for.

Another architecture is a file in `mtx.architectures` with a `TranslationModel` and the form of it that search calls,
and a row here. Only the Transformer is needed: without the folder `mtx.architectures`, the others are refused.
"""

import pkgutil
from typing import Any

import torch

from mtx.config.schema import ModelConfig
from mtx.errors import UsageError
from mtx.model.translation_model import TranslationModel

# Of each its model, of training and scoring, and that of search.
ARCHITECTURES = {
    "transformer": ("mtx.model.transformer:Transformer", "mtx.model.inference:IncrementalModel"),
    "decoder": ("mtx.architectures.decoder_only:DecoderModel", "mtx.architectures.decoder_only:DecoderSearchModel"),
    "rnn": ("mtx.architectures.rnn:RecurrentModel", "mtx.architectures.rnn:RecurrentSearchModel"),
}


def new_model(config: ModelConfig, num_ids: int) -> TranslationModel:
    """A model with random weights whose output layer has `num_ids` rows; UsageError if this installation lacks it."""
    try:
        kind = pkgutil.resolve_name(ARCHITECTURES[config.architecture][0])
    except ModuleNotFoundError as error:
        raise UsageError(f"model.architecture={config.architecture}: not available ({error})") from None
    return kind(config, num_ids)  # type: ignore[no-any-return]


def new_search_model(model: TranslationModel, dtype: torch.dtype) -> Any:
    """A copy of a model as search calls it, with the methods of `mtx.model.inference.IncrementalModel`."""
    return pkgutil.resolve_name(ARCHITECTURES[model.config.architecture][1])(model, dtype)


def num_parameters(config: ModelConfig, num_ids: int) -> int:
    """The number of parameters of a model, its embeddings included, each matrix once."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in new_model(config, num_ids).parameters())
