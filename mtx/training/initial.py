"""The model that a run starts from (`training.init_from`): loaded once, at the first start, and checked to fit the run.

What of it belongs into the configuration is `inherited`'s. Flow: bundle -> the tokenizer of `prepare`, the weights that
the first step changes.
"""

import hashlib
from dataclasses import dataclass

import safetensors.torch

from mtx import bundle
from mtx.bundle import Bundle
from mtx.config import Config, ModelConfig
from mtx.data.tokenizer import Tokenizer
from mtx.errors import UsageError
from mtx.training.inherited import model_to_start_from


@dataclass(frozen=True)
class Initial:
    """A model to train on from.

    Attributes:
        sha256: of its weights as a safetensors file, which is that of its `model.safetensors`.
    """

    name: str
    loaded: Bundle
    sha256: str


def load(config: Config) -> Initial | None:
    """The model of `training.init_from`, on the CPU; None where there is none.

    Raises:
        UsageError: where it is not there, or its architecture is not that of `config`.
        DamagedFileError: naming the file that is damaged.
    """
    name = config.training.init_from
    if name is None:
        return None
    loaded = bundle.load(model_to_start_from(name))
    if _shape(loaded.model.config) != _shape(config.model):
        raise UsageError(f"training.init_from {name}: its architecture is not that of this run", _ANEW)
    weights = safetensors.torch.save(loaded.model.state_dict())
    return Initial(name, loaded, hashlib.sha256(weights).hexdigest())


def check_tokenizer(initial: Initial, prepared: Tokenizer) -> None:
    """Refuse a model with another tokenizer than the one that the data of a run was prepared with.

    Raises:
        UsageError: where they differ.
    """
    own = initial.loaded.tokenizer
    same_ids = own.vocabulary() == prepared.vocabulary() and own.normalization == prepared.normalization
    if not same_ids or own.models.files != prepared.models.files:
        raise UsageError(
            f"training.init_from {initial.name}: its tokenizer is not the one that the data of this run has", _ANEW
        )


_ANEW = "another run_dir=DIR starts anew from it"


def _shape(model: ModelConfig) -> dict[str, object]:
    """What two models with the same weights have in common."""
    return model.model_dump(exclude={"preset", "dropout"})
