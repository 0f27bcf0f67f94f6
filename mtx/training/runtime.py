"""How a run uses its device: the choices that chosen.json records, and the model and the samplers that follow them.

`mtx.training.build` makes the choices at the first start of a run.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, TypeAdapter, ValidationError

from mtx.config.schema import Config
from mtx.data.augmentation import epoch_text
from mtx.data.glossary import Glossary
from mtx.data.sampler import BatchSampler
from mtx.data.token_store import PreparedData, TokenStore
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.options import EXTRA_LENGTH
from mtx.errors import DamagedFileError
from mtx.model import architectures
from mtx.model.attention import Kernel
from mtx.model.translation_model import TranslationModel
from mtx.storage import durable

NOT_CHOSEN = 0  # threads of a run that only ranks have trained which shared a machine


@dataclass(frozen=True)
class RuntimeChoices:
    """The content of chosen.json. With the `varlen` kernel the step of a run is recorded once."""

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?|mps)$")]
    precision: Literal["fp32", "bf16"]
    micro_batch_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    kernel: Kernel
    threads: Annotated[int, Field(ge=NOT_CHOSEN, le=4096)]
    compile: bool


def write_runtime(path: Path, runtime: RuntimeChoices) -> None:
    """Record choices for later starts."""
    durable.write_json(path, asdict(runtime))


def read_runtime(path: Path) -> RuntimeChoices:
    """Read the choices of an earlier start; raises DamagedFileError if one is missing or impossible."""
    try:
        return TypeAdapter(RuntimeChoices).validate_json(json.dumps(durable.read_json(path)), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DamagedFileError(
            f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}", "use another run_dir=DIR to start again"
        ) from None


def new_model(config: Config, runtime: RuntimeChoices, num_ids: int, device: Any = None) -> TranslationModel:
    """A model with the random weights of the seed, which are drawn on the CPU; else on the device of `runtime`."""
    torch.manual_seed(config.seed)
    model = architectures.new_model(config.model, num_ids).to(device or runtime.device)
    model.kernel = runtime.kernel
    model.source_loss = config.training.source_loss
    model.prepare_positions(config.data.max_tokens + EXTRA_LENGTH)  # of the translations in a report too
    return model


def training_text(config: Config, data: PreparedData) -> TokenStore:
    """What a run learns from: the training pairs, perhaps with copies of their targets."""
    ratio = config.training.copied_target_ratio
    return data.train.with_copies(ratio) if ratio else data.train


def new_sampler(config: Config, text: TokenStore, tokenizer: Tokenizer, terms: Glossary | None = None) -> BatchSampler:
    """The sampler of a run, which decides what its steps learn from.

    Args:
        text: its `training_text`.
        terms: those of its data.
    """
    training, encode = config.training, epoch_text(config, text, tokenizer, terms)
    weights = text.weights[text.corpus] if (text.weights != 1).any() else None
    src, tgt = text.src.lengths, text.tgt.lengths
    longest = config.data.max_tokens if encode else None
    return BatchSampler(src, tgt, weights, config.seed, training.batch_tokens, encode, longest)
