"""The architectures that there are: for each the model of training and that of search.

Another architecture is another module beside these and a row here; `mtx.model.architecture` lists its parameters and
says what it is, `mtx.model.recorded_weights` shows its attention.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mtx.architectures import decoder_only, rnn
from mtx.architectures.decoder_only_inference import DecoderSearchModel
from mtx.architectures.rnn_inference import RecurrentSearchModel
from mtx.config.schema import ModelConfig
from mtx.model import recorded_weights, transformer
from mtx.model.inference import IncrementalModel
from mtx.model.recorded_weights import Weights
from mtx.model.translation_model import Batch, TranslationModel


@dataclass(frozen=True)
class Architecture:
    """A row of the table.

    Attributes:
        model: the model of training and scoring.
        search: makes the model that search calls, in a precision.
        attention: see `mtx.model.recorded_weights`.
    """

    model: type[TranslationModel]
    search: Callable[[Any, torch.dtype], Any]
    attention: Callable[[Any, Batch], Iterator[Sequence[Weights]]]


ARCHITECTURES = {
    "transformer": Architecture(transformer.Transformer, IncrementalModel, recorded_weights.of_transformer),
    "decoder": Architecture(decoder_only.DecoderModel, DecoderSearchModel, recorded_weights.of_decoder),
    "rnn": Architecture(rnn.RecurrentModel, RecurrentSearchModel, recorded_weights.of_recurrent),
}


def new_model(config: ModelConfig, num_ids: int) -> TranslationModel:
    """A model with random weights whose output layer has `num_ids` rows."""
    return ARCHITECTURES[config.architecture].model(config, num_ids)


def search_model(model: TranslationModel, dtype: torch.dtype) -> Any:
    """The model as search calls it, a `mtx.decoding.beam_search.Model`."""
    return ARCHITECTURES[model.config.architecture].search(model, dtype)
