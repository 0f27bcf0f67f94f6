"""The configuration tree: its sections, the default of each key, and the presets.

Defaults live here and nowhere else. YAML files and the command line give every value as text; the type of the key's
field reads it. `settings` handles files and overrides, `messages` the error messages. No torch, and no file is opened.
"""

import os
import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic.fields import FieldInfo

from mtx.config import limits

NULL = ("null", "~", "")  # text that means null
HELD_OUT_TEST = "heldout"  # in data.test: the test set that is held out of the training text, also its name


_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"  # with an exponent, as Python writes 1e+16 and 1e-05
_DURATION = re.compile(rf"(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?")


def _read_seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(f"{value}s" if re.fullmatch(_NUMBER, value) else value)  # a bare number is in seconds
    if not value or match is None:
        raise ValueError("expected a duration such as 2h, 90m, 1h30m or 600s")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


def matching(pattern: str, expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


def _read_path(value: str) -> str:
    """A path with a leading ~ or ~USER replaced by the home directory, which few shells do after a `=`."""
    try:
        is_possible = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise ValueError("expected a path that this system can have")
    return os.path.expanduser(value)  # noqa: PTH111  # Path would normalise the text


def two_columns(value: tuple[str, ...]) -> tuple[str, ...]:
    if value and (len(value) != 2 or value[0] == value[1] or not all(value)):
        raise ValueError("expected two different columns, SRC,TGT")
    return value


LANGUAGE = re.compile(r"[^/\\\x00-\x1f\x7f-\x9f]{1,100}")  # languages become endings of file names
TAG = re.compile("[A-Za-z0-9_]+")
Language = Annotated[str, matching(LANGUAGE.pattern, "1 to 100 characters without /")]
Licence = Annotated[str, matching(r"[^\x00-\x1f\x7f-\x9f]{1,200}", "1 to 200 characters on one line")]
PathText = Annotated[str, AfterValidator(_read_path)]
Seconds = Annotated[float, BeforeValidator(_read_seconds)]
Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1, le=limits.MAX_COUNT)]
BatchTokens = Annotated[int, Field(ge=1, le=limits.MAX_BATCH_TOKENS)]
PositiveFloat = Annotated[float, Field(gt=0)]
NumLayers = Annotated[int, Field(ge=1, le=1000)]  # the deepest Transformers trained for translation have 1000
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]


Values = Mapping[str, Any]  # of a section, not read yet


class Section(BaseModel):
    """A frozen part of the configuration. It refuses unknown keys and reads text by the type of the field."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
        str_min_length=0,  # with any limit, pydantic refuses text that is not UTF-8, which could not be written back
    )

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, values: Any) -> Any:
        if values == "":  # an empty section of a YAML file
            values = {}
        if not isinstance(values, Mapping):
            raise ValueError("expected a section with keys")
        return {name: cls._read_value(name, value) for name, value in cls._fill(values).items()}

    @classmethod
    def _fill(cls, values: Values) -> Values:
        """The values with what follows from them for other keys."""
        return values

    @classmethod
    def _read_value(cls, name: str, value: Any) -> Any:
        field = cls.model_fields.get(name)
        if field is None or not isinstance(value, str):
            return value
        is_null = value in NULL
        if get_origin(field.annotation) is tuple:
            items = value[1:-1] if value.startswith("[") and value.endswith("]") else value
            return () if is_null or not items.strip() else tuple(item.strip() for item in items.split(","))
        return None if is_null and NoneType in get_args(field.annotation) else value


class HubConfig(Section):
    """A dataset on the Hugging Face hub and its splits."""

    name: str
    """id of a dataset that consists of plain files (no loading script)"""
    subset: str | None = None
    """configuration of the dataset, such as de-en"""
    revision: str | None = None
    """commit, tag or branch, such as refs/convert/parquet"""
    train: str = "train"
    """split for training, in the notation of `datasets`, such as train[:100000]"""
    valid: str | None = None
    """split for validation"""
    test: tuple[str, ...] = ()
    """splits for testing"""


class TrainText(Section):
    """One part of the training text."""

    name: PathText
    """local name or file, as in data.train"""
    weight: PositiveFloat | None = 1.0
    """how often each pair is used per epoch; null, as for a name alone: 1, but with training.init_from text beside the
    first is used no more often than the first"""
    tag: Annotated[str, matching(TAG.pattern, "letters, digits and _")] | None = None
    """mark before each source sentence, such as BT for back-translated text; of text with a tag nothing is held out"""


def _form_of_train(value: object) -> str:
    return NAME_ONLY if isinstance(value, str) else WITH_KEYS


# The two forms of an item of data.train. pydantic puts these labels into error locations; `messages` drops them.
NAME_ONLY, WITH_KEYS = "<name>", "<keys>"
TrainItem = Annotated[
    Annotated[PathText, Tag(NAME_ONLY)] | Annotated[TrainText, Tag(WITH_KEYS)], Discriminator(_form_of_train)
]


class DataConfig(Section):
    """The text and where it comes from."""

    src: Language = "src"
    """source language; the ending of local file names"""
    tgt: Language = "tgt"
    """target language"""
    dir: PathText | None = None
    """directory of local names; null: the current directory"""
    hub: HubConfig | None = None
    """dataset on the hub, used if data.dir is null"""
    generator: Literal["grammar"] | None = None
    """grammar: the demo's synthetic text"""
    train: tuple[TrainItem, ...] = ()
    """local names or files of training text; with training.init_from the first is the text to adapt to: of it alone a
    part is held out, and the others are used no more often, unless they have a weight"""
    valid: PathText | None = None
    """local name or file; null: a part of the training text"""
    test: tuple[PathText, ...] = ()
    """local names or files; heldout: a part of the training text, also beside others; none: heldout alone"""
    columns: Annotated[tuple[str, ...], AfterValidator(two_columns)] = ()
    """the columns of source and target, SRC,TGT: by number from 1 or by name in a .tsv or .csv file, by name in .jsonl
    and .parquet; none: found by a header or the names of the languages"""
    duplicates: Auto | Literal["newest", "all"] = "auto"
    """newest: of the training pairs with one source, the one that was changed last; all: every pair; auto: newest in
    translation memories and bilingual files, all in other text"""
    terms: Auto | None = None
    """auto: learn to use a glossary (mtx translate --glossary) from words of the training text that translate each
    other; null: no terms"""
    max_tokens: int = Field(256, ge=8, le=limits.MAX_TOKENS)
    """longest sentence in tokens, </s> included"""
    max_length_ratio: float = Field(4.0, gt=1)
    """longer side over shorter, in UTF-8 bytes plus 10"""
    licence: Licence | None = None
    """licence of the training text, for the model card: an SPDX name such as CC-BY-4.0, or words"""

    @property
    def direction(self) -> str:
        """The languages in short, such as en-de."""
        return f"{self.src}-{self.tgt}"

    @property
    def languages(self) -> tuple[str, str]:
        """What a model reads and what it writes."""
        return self.src, self.tgt


class TokenizerConfig(Section):
    """How text becomes tokens (SentencePiece pieces)."""

    model: tuple[PathText, ...] = Field((), max_length=2)
    """a SentencePiece model to use as it is, or one for each side: SOURCE,TARGET; none: learn one from the training
    text"""
    vocab_size: Auto | Annotated[int, Field(ge=270, le=limits.MAX_PIECES)] = "auto"
    """number of pieces; auto: by corpus size, or that of tokenizer.model or training.init_from"""
    normalization: Literal["nfc", "nmt_nfkc", "none"] = "nfc"
    """Unicode normalization before splitting; with tokenizer.model none but its own"""

    @classmethod
    def _fill(cls, values: Values) -> Values:
        """Given models have their own pieces and normalization, whatever the other keys say."""
        given = cls._read_value("model", values.get("model"))
        return {**values, "vocab_size": "auto", "normalization": "none"} if given else values


# tiny is from Wu et al. 2021 (Multi30k), base and big from table 3 of "Attention Is All You Need". student has sizes
# of browsermt, the smallest there, and student-small is for less text (docs/results.md).
_PRESET_KEYS = ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads", "dropout")


def _presets(rows: Mapping[str, tuple[float, ...]]) -> dict[str, dict[str, Any]]:
    return {name: dict(zip(_PRESET_KEYS, row, strict=True)) for name, row in rows.items()}


PRESETS = _presets(
    {
        "tiny": (4, 4, 128, 256, 4, 0.3),
        "small": (3, 3, 256, 1024, 4, 0.2),
        "base": (6, 6, 512, 2048, 8, 0.1),
        "big": (6, 6, 1024, 4096, 16, 0.3),
        "student": (6, 2, 256, 1536, 8, 0.1),
        "student-small": (4, 2, 128, 256, 4, 0.1),
    }
)
# Those of the recurrent model have about as many parameters; it has neither heads nor feed-forward layers.
_RNN_PRESETS = _presets(
    {
        "tiny": (1, 1, 256, 1, 1, 0.3),
        "small": (2, 2, 384, 1, 1, 0.2),
        "base": (2, 2, 1024, 1, 1, 0.2),
        "big": (4, 4, 1536, 1, 1, 0.3),
        "student": (2, 1, 600, 1, 1, 0.1),
        "student-small": (1, 1, 224, 1, 1, 0.1),
    }
)
# A decoder alone with about as many parameters; it has no encoder layers.
_DECODER_PRESETS = {
    name: {**PRESETS[name], "num_encoder_layers": 1, "num_decoder_layers": num_layers}
    for name, num_layers in {"tiny": 10, "small": 7, "base": 14, "big": 14, "student": 8, "student-small": 7}.items()
}
_OF_ARCHITECTURE = {"decoder": _DECODER_PRESETS, "rnn": _RNN_PRESETS}


class ModelConfig(Section):
    """The architecture. The six keys without a default take it from the preset."""

    architecture: Literal["transformer", "decoder", "rnn"] = "transformer"
    """transformer: encoder and decoder, as in the paper; decoder: a decoder alone, which reads the source and goes on
    with the target; rnn: a recurrent encoder-decoder with attention"""
    preset: Literal["tiny", "small", "base", "big", "student", "student-small"] = "base"
    """sets num_encoder_layers, num_decoder_layers, d_model, d_ff, num_heads, dropout, where they are not given"""
    num_encoder_layers: NumLayers
    """number of encoder layers; not decoder"""
    num_decoder_layers: NumLayers
    """number of decoder layers"""
    d_model: int = Field(ge=1, le=1 << 16)
    """size of embeddings and hidden states"""
    d_ff: int = Field(ge=1, le=1 << 18)
    """inner size of the feed-forward layers; not rnn"""
    num_heads: PositiveInt
    """number of attention heads; not rnn"""
    dropout: Probability
    """rate on sub-layer outputs and embedding sums (paper 5.4)"""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after each residual sum (the paper) or before; not rnn"""
    activation: Literal["relu", "swish", "gelu"] = "relu"
    """of the feed-forward layers; not rnn"""
    tie: Literal["all", "target", "none"] = "all"
    """embeddings with the weights of the output layer"""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """position encoding (paper 3.5); not rnn"""
    cell: Literal["lstm", "gru"] = "lstm"
    """of the recurrences; rnn only"""
    score: Literal["additive", "scaled_dot_product", "multiplicative"] = "additive"
    """how attention compares a state with the encoder's outputs; rnn only"""
    output_bias: bool = False
    """add a bias to the output layer"""
    licence: Licence | None = None
    """licence of the trained model, for its card: an SPDX name such as CC-BY-4.0, or words"""

    @classmethod
    def _fill(cls, values: Values) -> Values:
        presets = _OF_ARCHITECTURE.get(str(values.get("architecture")), PRESETS)
        return {**presets.get(str(values.get("preset")), presets["base"]), **values}

    def stored(self) -> dict[str, Any]:
        """The values that a model directory stores; the licence, which may change, is in its scores.json."""
        return self.model_dump(exclude={"licence"})

    @model_validator(mode="after")
    def _check_together(self) -> "ModelConfig":
        for name in ("cell", "score"):
            if self.architecture != "rnn" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"model.{name} {getattr(self, name)} is of model.architecture=rnn")
        if self.d_model % 2:
            raise ValueError(f"model.d_model {self.d_model} is odd; positions need an even number")
        if self.architecture != "rnn" and self.d_model % self.num_heads:
            raise ValueError(f"model.d_model {self.d_model} cannot be divided by model.num_heads {self.num_heads}")
        return self


class TrainingConfig(Section):
    """How a model is trained."""

    init_from: PathText | None = Field(None, min_length=1)
    """model or run directory to start from, with its tokenizer and architecture; use a smaller training.learning_rate
    than for a new model, such as 0.0002"""
    max_steps: PositiveInt | None = 100_000
    """number of optimizer updates; null: only training.max_epochs counts"""
    max_epochs: PositiveInt | None = None
    """passes over all training pairs after which training ends; null: only training.max_steps counts. With both,
    training ends at the first. A command line that gives one of the two drops the recipe's other"""
    time_limit: Seconds | None = Field(None, gt=0)
    """all starts of the run end within it, scored, if scoring takes at most half of it: 2h, 90m, 600s"""
    batch_tokens: BatchTokens = 25_000
    """target tokens per optimizer update (paper 5.1)"""
    micro_batch_tokens: Auto | BatchTokens = "auto"
    """target tokens per forward and backward pass; auto: what memory allows"""
    learning_rate: PositiveFloat | None = None
    """the highest, at step warmup_steps; null: (d_model * warmup_steps)^-0.5, as in Eq. 3"""
    warmup_steps: PositiveInt = 4000
    """steps of linear warmup (paper 5.3); with a time_limit at most a tenth of its steps"""
    cooldown: float = Field(0.0, ge=0, le=0.9)
    """share of the steps at the end, in which the learning rate falls linearly to zero; it also follows when
    training.patience has run out"""
    label_smoothing: Probability = 0.1
    """label smoothing (paper 5.4)"""
    bpe_dropout: Probability = 0.0
    """probability with which BPE-dropout skips a merge, such as 0.1: each epoch cuts the words into other pieces;
    0: always the same pieces"""
    upper_case: Share = 0.0
    """share of the training pairs that are in capital letters in an epoch, other pairs in each, such as 0.07, so that
    such text is translated too"""
    title_case: Share = 0.0
    """share of the training pairs With A Capital Letter In Each Word in an epoch, such as 0.05"""
    no_end_punctuation: Share = 0.0
    """share of the training pairs without their last punctuation in an epoch, such as 0.2"""
    typing_errors: Share = 0.0
    """share of the training pairs with typing errors in their sources in an epoch, in a tenth of the longer words, such
    as 0.05"""
    copied_target_ratio: Share = 0.0
    """copied corpus: share of the training pairs that each epoch repeats with the target text on both sides, such as
    0.5 for little text, whose models otherwise make little use of the source; 0: none"""
    rdrop_alpha: float = Field(0.0, ge=0)
    """R-Drop: weight of the divergence between two passes with different dropout, such as 2; a step takes twice as
    long; 0: one pass"""
    clip_norm: PositiveFloat | None = None
    """largest gradient norm; null: no clipping"""
    shard: bool = False
    """divide weights, gradients and Adam's state among several devices, for a model that does not fit one"""
    deterministic: bool = False
    """on CUDA: the same bits on the same GPU and torch, but slower"""
    compile: Auto | bool = "auto"
    """on CUDA: compile the step at the start, in a minute or two; auto: if the run is long enough. What cannot be
    compiled here runs without"""
    best_metric: Literal["auto", "bleu", "chrf", "nll"] = "auto"
    """what decides which validation is the best; auto: bleu, or chrf if BLEU says nothing about the validation text"""
    validate_every: PositiveInt = 1000
    """steps between validations"""
    checkpoint_every: PositiveInt = 1500
    """steps between checkpoints"""
    average_last: PositiveInt = 5
    """checkpoints that are averaged at the end (paper 6.1), of those in the last quarter of the steps. The model is
    this mean, that of their later half, the last or the best checkpoint: what translates the validation set best"""
    patience: PositiveInt | None = None
    """validations without a better score before training stops"""
    tensorboard: bool = False
    """write metrics for TensorBoard (needs the package tensorboard)"""

    @classmethod
    def _fill(cls, values: Values) -> Values:
        """Without max_steps, max_epochs is the only bound; the default of max_steps would end most runs before it."""
        return values if values.get("max_epochs") in (None, *NULL) else {"max_steps": None, **values}


class DecodingConfig(Section):
    """How a model translates."""

    beam_size: int = Field(4, ge=1, le=limits.MAX_BEAM_SIZE)
    """beam size; 1 is greedy search"""
    length_penalty: float = Field(0.6, ge=0, le=limits.MAX_LENGTH_PENALTY)
    """alpha of the divisor ((5+|Y|)/6)^alpha (paper 6.1)"""
    batch_tokens: BatchTokens | None = None
    """source tokens that are translated at once; null: 4,096, on CUDA 32,768, halved if memory runs out"""


class Config(Section):
    """The whole configuration of a run."""

    run_dir: PathText = ""
    """directory of the run, new or empty; by default runs/ and the recipe's name; a leading ~ means the home directory,
    as in every path of a setting"""
    sizes: Literal["given", "corpus"] = "given"
    """corpus: the sizes of the model and its regularisation are those for so much training text, where neither the
    recipe nor the command line sets them"""
    seed: int = Field(1, ge=0, lt=2**31)
    """seed of all random numbers"""
    device: Annotated[str, matching(r"auto|cpu|cuda(:[0-9]+)?|mps", "auto, cpu, cuda, cuda:1 or mps")] = "auto"
    """cpu, cuda, cuda:1 or mps; auto: cuda if there is a GPU"""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """of matrix products in training"""
    data: DataConfig = DataConfig.model_validate({})
    tokenizer: TokenizerConfig = TokenizerConfig.model_validate({})
    model: ModelConfig = ModelConfig.model_validate({})
    training: TrainingConfig = TrainingConfig.model_validate({})
    decoding: DecodingConfig = DecodingConfig.model_validate({})

    @model_validator(mode="after")
    def _check_together(self) -> "Config":
        data, training = self.data, self.training
        if training.max_steps is None and training.max_epochs is None:
            raise ValueError("training.max_steps and training.max_epochs are both null, expected a number for one")
        if self.tokenizer.model and training.init_from is not None:
            raise ValueError("tokenizer.model: the model of training.init_from has its own tokenizer; drop one of them")
        for name in ("batch_tokens", "micro_batch_tokens"):
            if (size := getattr(training, name)) != "auto" and size < data.max_tokens:
                raise ValueError(f"training.{name} {size} is below data.max_tokens {data.max_tokens}")
        if self.model.positions == "learned" and data.max_tokens > limits.MAX_LEARNED_POSITIONS:
            raise ValueError(
                f"data.max_tokens {data.max_tokens} is above the {limits.MAX_LEARNED_POSITIONS} positions of "
                "model.positions=learned"
            )
        architecture = self.model.architecture
        for name, wish in (("shard", training.shard), ("compile", training.compile)):
            if wish is True and architecture != "transformer":
                raise ValueError(f"training.{name}: only a Transformer has it, not {architecture}")
        return self


def fields(section: type[Section] = Config, prefix: str = "") -> dict[str, FieldInfo]:
    """Every key, in dotted form, with its field."""
    by_key: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))  # a section may be null
        inner = next((t for t in types if isinstance(t, type) and issubclass(t, Section)), None)
        by_key |= fields(inner, f"{prefix}{name}.") if inner else {prefix + name: field}
    return by_key


def key_names() -> list[str]:
    """Every key, in dotted form."""
    return list(fields())


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of nested dictionaries, with their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
