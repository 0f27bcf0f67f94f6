"""The configuration tree: its sections, the default of each key, the presets, and which keys may change on resume.

Defaults live here and nowhere else. A value may be text, as YAML and the command line give it: its field's type reads
it. Not for: files, overrides and error messages, which are `settings`. This module imports no torch and opens no file.
"""

import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

# A local name that ends so is one file; any other means two files, one a language.
FILE_ENDING = re.compile(r"\.(tsv|jsonl|parquet)(\.gz)?$", re.IGNORECASE)


def _read_bool(value: object) -> object:
    if isinstance(value, str):
        if value not in ("true", "false"):
            raise ValueError("expected true or false")
        return value == "true"
    return value


_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"  # with an exponent, as Python writes 1e+16 and 1e-05
_DURATION = re.compile(rf"(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?")


def _read_seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(f"{value}s" if re.fullmatch(_NUMBER, value) else value)  # seconds only where alone
    if not value or match is None:
        raise ValueError("expected a duration such as 2h, 90m, 1h30m or 600s")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


def _matching(pattern: str, expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


MAX_TOKENS = 4096  # of a sentence
MAX_BEAM_SIZE = 1000
MAX_LENGTH_PENALTY = 50.0  # with more, the penalty of a long sentence is no number any more
LANGUAGE = re.compile(r"[^/\\\x00-\x1f\x7f-\x9f]{1,100}")  # it becomes the ending of file names
TAG = re.compile("[A-Za-z0-9_]+")
Language = Annotated[str, _matching(LANGUAGE.pattern, "1 to 100 characters without /")]
Bool = Annotated[bool, BeforeValidator(_read_bool)]
Seconds = Annotated[float, BeforeValidator(_read_seconds)]
Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1)]
NumLayers = Annotated[int, Field(ge=1, le=1000)]  # as deep as Transformers for translation have been trained
Probability = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys and reads text values by the field's type."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(),
        str_min_length=0,  # text with any limit has to be UTF-8: a name that is not could not be recorded
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, values: Any) -> Any:
        if values == "":  # a section of a YAML file with nothing in it
            return {}
        if not isinstance(values, Mapping):
            raise ValueError("expected a section with keys")
        return {name: cls._read_value(name, value) for name, value in values.items()}

    @classmethod
    def _read_value(cls, name: str, value: Any) -> Any:
        field = cls.model_fields.get(name)
        if field is None or not isinstance(value, str):
            return value
        is_null = value in ("null", "~", "")
        if get_origin(field.annotation) is tuple:
            items = value[1:-1] if value.startswith("[") and value.endswith("]") else value
            return () if is_null or not items.strip() else tuple(item.strip() for item in items.split(","))
        return None if is_null and NoneType in get_args(field.annotation) else value


class HubConfig(Section):
    """A dataset on the Hugging Face hub and its splits."""

    name: str = Field(description="dataset id, a dataset that holds plain files (no loading script)")
    subset: str | None = Field(None, description="the dataset's configuration, such as de-en")
    revision: str | None = Field(None, description="commit, tag or branch, such as refs/convert/parquet")
    train: str = Field("train", description="split, in the notation of `datasets` (train[:100000] works)")
    valid: str | None = Field(None, description="split for validation")
    test: tuple[str, ...] = Field((), description="splits for testing")


class TrainText(Section):
    """One part of the training text."""

    name: str = Field(description="local name or file")
    weight: Annotated[float, Field(gt=0)] = Field(1.0, description="how often each pair is seen per epoch")
    tag: Annotated[str, _matching(TAG.pattern, "letters, digits and _")] | None = Field(
        None, description="a mark put before each source sentence, such as BT"
    )


def _form_of_train(value: object) -> str:
    return NAME_ONLY if isinstance(value, str) else WITH_KEYS


# One part of data.train. The labels of the two forms stand in pydantic's locations, from which `settings` drops them.
NAME_ONLY, WITH_KEYS = "<name>", "<keys>"
TrainItem = Annotated[
    Annotated[str, Tag(NAME_ONLY)] | Annotated[TrainText, Tag(WITH_KEYS)], Discriminator(_form_of_train)
]


class DataConfig(Section):
    """What the text is and where it comes from."""

    src: Language = Field("src", description="source language; the ending of local file names")
    tgt: Language = Field("tgt", description="target language")
    dir: str | None = Field(None, description="where local names are looked up; null means the current folder")
    hub: HubConfig | None = Field(None, description="dataset on the hub, used when data.dir is not given")
    generator: Literal["grammar"] | None = Field(None, description="the demo's synthetic text, which is in the package")
    train: tuple[TrainItem, ...] = Field((), description="local names or files of training text")
    valid: str | None = Field(None, description="local name or file; none holds out a part of the training text")
    test: tuple[str, ...] = Field((), description="local names or files; none holds out a part of the training text")
    max_tokens: Annotated[int, Field(ge=8, le=MAX_TOKENS)] = Field(
        256, description="longest sentence, in pieces, </s> included"
    )
    max_length_ratio: Annotated[float, Field(gt=1)] = Field(
        4.0, description="longest side over shortest, in UTF-8 bytes plus 10"
    )

    @model_validator(mode="after")
    def _check_languages(self) -> "DataConfig":
        is_local = self.generator is None and (self.hub is None or self.dir is not None)
        train = [text.name if isinstance(text, TrainText) else text for text in self.train]
        names = [name for name in (*train, self.valid, *self.test) if name and not FILE_ENDING.search(name)]
        if self.src == self.tgt and is_local and names:
            raise ValueError(
                f"data.src and data.tgt are both {self.src!r}: {names[0]}.{self.src} would be both sides of each pair"
            )
        return self


class TokenizerConfig(Section):
    """How text becomes pieces."""

    vocab_size: Auto | Annotated[int, Field(ge=270)] = Field(
        "auto", description="SentencePiece pieces; auto: by corpus size, or the model's with training.init_from"
    )
    normalization: Literal["nfc", "nmt_nfkc", "none"] = Field(
        "nfc", description="Unicode form of the text the model sees"
    )


# Layers, width, heads and dropout: tiny from Wu et al. 2021 (Multi30k), base and big from table 3 of the paper.
_PRESET_KEYS = ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads", "dropout")
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(zip(_PRESET_KEYS, (4, 4, 128, 256, 4, 0.3), strict=True)),
    "small": dict(zip(_PRESET_KEYS, (3, 3, 256, 1024, 4, 0.2), strict=True)),
    "base": dict(zip(_PRESET_KEYS, (6, 6, 512, 2048, 8, 0.1), strict=True)),
    "big": dict(zip(_PRESET_KEYS, (6, 6, 1024, 4096, 16, 0.3), strict=True)),
}

MAX_LEARNED_POSITIONS = 1024  # rows of the tables of model.positions=learned


class ModelConfig(Section):
    """The architecture; the keys without a default get theirs from the preset."""

    preset: Literal["tiny", "small", "base", "big"] = Field("base", description="fills the six keys below it")
    num_encoder_layers: NumLayers = Field(description="layers of the encoder")
    num_decoder_layers: NumLayers = Field(description="layers of the decoder")
    d_model: Annotated[int, Field(ge=1, le=1 << 16)] = Field(description="width of the model")
    d_ff: Annotated[int, Field(ge=1, le=1 << 18)] = Field(description="inner width of the feed-forward layers")
    num_heads: PositiveInt = Field(description="attention heads")
    dropout: Probability = Field(description="on sub-layer outputs and embedding sums (5.4)")
    norm: Literal["post", "pre"] = Field("post", description="LayerNorm after each residual sum (the paper) or before")
    activation: Literal["relu", "swish", "gelu"] = Field("relu", description="in the feed-forward layers")
    tie: Literal["all", "target", "none"] = Field("all", description="which embedding matrices are one")
    positions: Literal["sinusoidal", "learned"] = Field("sinusoidal", description="position encoding (3.5)")
    output_bias: Bool = Field(False, description="a bias on the output layer")

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        if values == "":  # as in `_read_text`, which comes later
            values = {}
        if not isinstance(values, Mapping):
            return values
        return {**PRESETS.get(str(values.get("preset")), PRESETS["base"]), **values}

    @model_validator(mode="after")
    def _check_heads(self) -> "ModelConfig":
        if self.d_model % self.num_heads or self.d_model % 2:
            raise ValueError(
                f"model.d_model {self.d_model} is not even and divisible by model.num_heads {self.num_heads}"
            )
        return self


class TrainingConfig(Section):
    """How a model learns."""

    init_from: str | None = Field(
        None,
        min_length=1,
        description="model or run directory to train on from, with its tokenizer and architecture; wants a smaller "
        "training.learning_rate than a new model, such as 0.0002",
    )
    max_steps: PositiveInt = Field(100_000, description="optimizer updates")
    time_limit: Seconds | None = Field(None, gt=0, description="ends within it, averaged and scored: 2h, 90m, 600s")
    batch_tokens: PositiveInt = Field(25_000, description="target tokens that one step learns from (5.1)")
    micro_batch_tokens: Auto | PositiveInt = Field(
        "auto", description="target tokens that go through the model at once"
    )
    learning_rate: Annotated[float, Field(gt=0)] | None = Field(
        None, description="peak, at warmup_steps; null: d_model^-0.5 * warmup_steps^-0.5 (Eq. 3)"
    )
    warmup_steps: PositiveInt = Field(4000, description="steps of linear warmup (5.3)")
    label_smoothing: Probability = Field(0.1, description="5.4")
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        None, description="largest gradient norm; null: no clipping"
    )
    deterministic: Bool = Field(False, description="on CUDA: the same bits on the same GPU and torch, more slowly")
    validate_every: PositiveInt = Field(1000, description="steps between validations")
    checkpoint_every: PositiveInt = Field(1500, description="steps between checkpoints")
    average_last: PositiveInt = Field(5, description="checkpoints that are averaged at the end (6.1)")
    patience: PositiveInt | None = Field(None, description="validations without a better BLEU after which to stop")
    tensorboard: Bool = Field(False, description="write the figures for TensorBoard too (extra tensorboard)")


class DecodingConfig(Section):
    """How a model translates."""

    beam_size: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] = Field(4, description="1 is greedy search")
    length_penalty: Annotated[float, Field(ge=0, le=MAX_LENGTH_PENALTY)] = Field(
        0.6, description="alpha of ((5+|Y|)/6)^alpha (6.1)"
    )
    batch_tokens: PositiveInt = Field(4096, description="source tokens that are decoded at once")


class Config(Section):
    """All that a run is."""

    run_dir: str = Field("", description="where everything goes; by default runs/ and the recipe's name")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(1, description="of everything random")
    device: Annotated[str, _matching(r"auto|cpu|cuda(:\d+)?|mps", "auto, cpu, cuda, cuda:1 or mps")] = Field(
        "auto", description="auto, cpu, cuda, cuda:1 or mps"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="of the products while training")
    data: DataConfig = Field(default_factory=lambda: DataConfig.model_validate({}))
    tokenizer: TokenizerConfig = Field(default_factory=lambda: TokenizerConfig.model_validate({}))
    model: ModelConfig = Field(default_factory=lambda: ModelConfig.model_validate({}))
    training: TrainingConfig = Field(default_factory=lambda: TrainingConfig.model_validate({}))
    decoding: DecodingConfig = Field(default_factory=lambda: DecodingConfig.model_validate({}))

    @model_validator(mode="after")
    def _check_budget(self) -> "Config":
        if self.training.batch_tokens < self.data.max_tokens:
            raise ValueError(
                f"training.batch_tokens {self.training.batch_tokens} is below data.max_tokens {self.data.max_tokens}"
            )
        micro = self.training.micro_batch_tokens
        if micro != "auto" and micro < self.data.max_tokens:
            raise ValueError(f"training.micro_batch_tokens {micro} is below data.max_tokens {self.data.max_tokens}")
        return self

    @model_validator(mode="after")
    def _check_positions(self) -> "Config":
        if self.model.positions == "learned" and self.data.max_tokens > MAX_LEARNED_POSITIONS:
            raise ValueError(
                f"data.max_tokens {self.data.max_tokens} is above the {MAX_LEARNED_POSITIONS} positions that a model "
                "with model.positions=learned knows"
            )
        return self


MAY_CHANGE = ("run_dir", "device", "data.dir", "training.max_steps", "training.time_limit", "training.validate_every",
              "training.checkpoint_every", "training.average_last", "training.patience", "training.tensorboard",
              "decoding")  # fmt: skip


def may_change(key: str) -> bool:
    """Whether `key` may differ when a run is gone on with; every other key is fixed."""
    return key in MAY_CHANGE or key.split(".")[0] in MAY_CHANGE


def key_names(section: type[Section] = Config, prefix: str = "") -> list[str]:
    """Every key, dotted."""
    names = []
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        names += key_names(inner, f"{prefix}{name}.") if inner else [prefix + name]
    return names


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a field holds, also where it may be null; None for a field that is a key."""
    types = (annotation, *get_args(annotation))
    return next((t for t in types if isinstance(t, type) and issubclass(t, Section)), None)


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of nested dictionaries, dotted, with their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """The keys with their two values in which two configurations differ."""
    a, b = dict(leaves(old.model_dump())), dict(leaves(new.model_dump()))
    return [(key, a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)]
