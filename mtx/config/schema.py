"""The configuration tree: its sections, the default of each key, and the presets.

Defaults live here and nowhere else. YAML files and the command line give every value as text; the type of the key's
field reads it. `settings` handles files and overrides, `messages` the error messages. No torch, and no file is opened.
"""

import enum
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo

from mtx.config import limits

NULL = ("null", "~", "")  # text that means null
HELD_OUT_TEST = "heldout"  # in data.test: the test set that is held out of the training text, also its name
TEACHER_TEST = "teacher-text"  # the test set of a student whose references are translations by its teacher


_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"  # with an exponent, as Python writes 1e+16 and 1e-05
_ITEM = re.compile(r'\s*"([^"]+)"\s*(?:,|$)|([^,]+)')  # of a list
_DURATION = re.compile(rf"(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?")


def _read_seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    if re.fullmatch(_NUMBER, value):
        raise ValueError(f"{value} has no unit; {value}s, {value}m or {value}h?")
    match = _DURATION.fullmatch(value)
    if match is None:
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
    if "\0" in value:
        raise ValueError("expected a valid path")
    return os.path.expanduser(value)  # noqa: PTH111  # Path would normalise the text


def write_list(items: Iterable[str]) -> str:
    """The text of a setting with these items: commas between them, and double quotes around one that has a comma."""
    return ",".join(f'"{item}"' if "," in item else item for item in items)


def _read_list(text: str) -> tuple[str, ...]:
    """The items in the text of a setting, see `write_list`; it may have brackets, as in YAML."""
    text = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return tuple(filter(None, (quoted or plain.strip() for quoted, plain in _ITEM.findall(text))))


def pairs_of(directions: Iterable[str]) -> list[tuple[str, str]]:
    """Source and target of directions, without names that are not SRC-TGT."""
    return [(match[1], match[2]) for match in map(DIRECTION.fullmatch, directions) if match]


def two_columns(value: tuple[str, ...]) -> tuple[str, ...]:
    if value and (len(value) != 2 or value[0] == value[1] or not all(value)):
        raise ValueError("expected two different columns, SRC,TGT")
    return value


TAG = re.compile("[A-Za-z0-9_]+")
# Languages become file extensions
DIRECTION = re.compile(r"([A-Za-z0-9_]+)-(?!\1$)([A-Za-z0-9_]+)")
Direction = Annotated[str, matching(DIRECTION.pattern, "two languages and one hyphen, such as en-de or en-zh_Hans")]
Language = Annotated[str, matching(r"[^/\\\x00-\x1f\x7f-\x9f]{1,100}", "1 to 100 characters without /")]
Licence = Annotated[str, matching(r"[^\x00-\x1f\x7f-\x9f]{1,200}", "1 to 200 characters on one line")]
PathText = Annotated[str, AfterValidator(_read_path)]
Seconds = Annotated[
    float,
    BeforeValidator(_read_seconds),
    # in YAML and messages the text that is read, in JSON a number
    PlainSerializer(lambda value, info: value if info.mode == "json" else f"{value}s".replace(".0s", "s")),
]
Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1, le=limits.MAX_COUNT)]
BatchTokens = Annotated[int, Field(ge=1, le=limits.MAX_BATCH_TOKENS)]
PositiveFloat = Annotated[float, Field(gt=0)]
NumLayers = Annotated[int, Field(ge=1, le=1000)]  # the deepest Transformers trained for translation have 1000
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Scope(enum.Enum):
    """What a setting is for. Without a scope it is fixed once a run has begun, and the finished model depends on it."""

    RESUMABLE = 1
    """may change when a run is resumed"""
    UNTIL_FINISHED = 2
    """may change when a run is resumed, and a finished run does not depend on it"""
    LOCAL = 3
    """may change when a run is resumed, and no result depends on it"""
    PLACE = 4
    """a path; what the model depends on is the content, which has a hash"""


_T = TypeVar("_T")
Resumable = Annotated[_T, Scope.RESUMABLE]
UntilFinished = Annotated[_T, Scope.UNTIL_FINISHED]
Local = Annotated[_T, Scope.LOCAL]
Place = Annotated[_T, Scope.PLACE]


Values = Mapping[str, Any]  # of a section, not read yet, or of nested sections
Tree = dict[str, Any]  # nested values that are being built


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
        """The values, completed with those that follow from them."""
        return values

    @classmethod
    def _read_value(cls, name: str, value: Any) -> Any:
        field = cls.model_fields.get(name)
        if field is None or not isinstance(value, str):
            return value
        is_null = value in NULL
        if get_origin(field.annotation) is tuple:
            return () if is_null else _read_list(value)
        return None if is_null and NoneType in get_args(field.annotation) else value


class HubConfig(Section):
    """A dataset on the Hugging Face hub and its splits."""

    name: str
    """id of a dataset of plain files (without a loading script)"""
    subset: str | None = None
    """configuration of the dataset, such as de-en"""
    revision: str | None = None
    """commit, tag or branch, such as refs/convert/parquet"""
    train: str = "train"
    """split for training, in the notation of the `datasets` library, such as train[:100000]"""
    valid: str | None = None
    """split for validation"""
    test: tuple[str, ...] = ()
    """splits for testing"""


class TrainText(Section):
    """One corpus of the training text."""

    name: PathText
    """local name or file, as in data.train"""
    weight: Annotated[float, Field(gt=0, le=limits.MAX_WEIGHT)] | None = 1.0
    """how often each pair is used per epoch; null (as for a name alone): 1, but with training.init_from the other
    corpora are used at most as often as the first"""
    tag: Annotated[str, matching(TAG.pattern, "letters, digits and _")] | None = None
    """mark before each source sentence, such as BT for back-translated text; no pairs are held out of a tagged
    corpus"""
    src: Language | None = None
    """source language of this text, where data.directions has several; null: each that the text has"""
    tgt: Language | None = None
    """target language of this text, where data.directions has several; null: each that the text has"""

    @classmethod
    def _fill(cls, values: Values) -> Values:
        """A text with languages of its own gets the weight of its direction, like a name alone."""
        return {"weight": None, **values} if {"src", "tgt"} & values.keys() else values


# The two forms of an item of data.train. pydantic puts these labels into error locations; `messages` drops them.
NAME_ONLY = "<name>"
WITH_KEYS = "<keys>"
TrainItem = Annotated[
    Annotated[PathText, Tag(NAME_ONLY)] | Annotated[TrainText, Tag(WITH_KEYS)],
    Discriminator(lambda value: NAME_ONLY if isinstance(value, str) else WITH_KEYS),
]


class DataConfig(Section):
    """The text: where it comes from and how it is cleaned."""

    src: Language = "src"
    """source language by its code, also the extension of local files"""
    tgt: Language = "tgt"
    """target language by its code, also the extension of local files"""
    directions: tuple[Direction, ...] = ()
    """directions of one model for several languages, such as en-de,en-fr,de-en, instead of data.src and data.tgt; each
    text is read in every direction that it has"""
    temperature: float = Field(5.0, ge=1)
    """with several directions: small ones are drawn more often, in proportion to the root of this degree of their
    pairs, but no pair more than 10 times per epoch; 1: all pairs once"""
    dir: Place[Resumable[PathText | None]] = None
    """directory of the local files; null: the current directory"""
    hub: HubConfig | None = None
    """dataset on the hub, used if data.dir is null"""
    generator: Literal["grammar"] | None = None
    """source of synthetic text; grammar: the text of the demo"""
    train: Place[tuple[TrainItem, ...]] = ()
    """training corpora: local files, prefixes of file pairs, or folders. With training.init_from the first is the text
    to adapt to: held-out pairs come from it only, and each other corpus is down-weighted to its size unless it has a
    weight"""
    valid: Place[PathText | None] = None
    """validation set: local file or prefix; null: held out of the training text"""
    test: Place[tuple[PathText, ...]] = ()
    """test sets: local files or prefixes; heldout: a test set held out of the training text, which can be listed with
    others; none: heldout only"""
    columns: Annotated[tuple[str, ...], AfterValidator(two_columns)] = ()
    """columns of source and target, SRC,TGT: by number (from 1) or name in .tsv and .csv files, by name in .jsonl and
    .parquet files; none: found by the header or the language names"""
    duplicates: Auto | Literal["newest", "all"] = "auto"
    """training pairs with the same source and other targets; newest: keep the one that was changed last, or without
    dates the one that most files have; all: keep all; auto: newest in translation memories and bilingual files, all in
    other text. A pair that is there several times is used once"""
    terms: Auto | None = None
    """auto: learn to use a glossary (mtx translate --glossary) from word pairs found in the training text; null: do not
    learn it"""
    max_tokens: int = Field(256, ge=8, le=limits.MAX_TOKENS)
    """maximum sentence length in tokens, including </s>"""
    max_length_ratio: float = Field(4.0, gt=1)
    """maximum length ratio of source and target, in UTF-8 bytes plus 10"""
    licence: Local[Licence | None] = None
    """licence of the training text, for the model card: an SPDX name such as CC-BY-4.0, or free text"""

    @classmethod
    def _fill(cls, values: Values) -> Values:
        """`src` and `tgt` are those of the first direction; a single direction is only these."""
        names = [*map(str, cls._read_value("directions", values.get("directions", ())))]
        if len({*names}) < len(names):
            raise ValueError(f"data.directions: {','.join(names)} has a direction twice")
        directions = names if len(names) > 1 else []
        for src, tgt in pairs_of(names[:1]):
            values = {**values, "src": src, "tgt": tgt, "directions": directions}
        return values

    @property
    def direction(self) -> str:
        """The languages in short, such as en-de, or en-de+en-fr."""
        return "+".join(self.directions) or f"{self.src}-{self.tgt}"

    @property
    def language_pairs(self) -> list[tuple[str, str]]:
        """Source and target of each direction; the number of a direction is its place in this list."""
        return pairs_of(self.directions) or [self.languages]

    def language_pair(self, test: str) -> tuple[str, str]:
        """Source and target of a test set; with several directions, its name ends in its own."""
        return pairs_of([test.rpartition(".")[2]])[0] if self.directions else self.languages

    @property
    def languages(self) -> tuple[str, str]:
        """The languages that a model reads and writes."""
        return self.src, self.tgt


class TokenizerConfig(Section):
    """How text is split into subword tokens (SentencePiece)."""

    model: Place[tuple[PathText, ...]] = Field((), max_length=2)
    """existing SentencePiece model to use unchanged, or one for each language: SOURCE,TARGET; none: train one on the
    training text"""
    vocab_size: Auto | Annotated[int, Field(ge=270, le=limits.MAX_PIECES)] = "auto"
    """number of subwords; auto: by corpus size, or the size of tokenizer.model or training.init_from"""
    normalization: Literal["nfc", "nmt_nfkc", "none"] = "nfc"
    """Unicode normalization before splitting; tokenizer.model always uses its own"""

    @classmethod
    def _fill(cls, values: Values) -> Values:
        """Given models have their own subwords and normalization, whatever the other keys are set to."""
        models = cls._read_value("model", values.get("model"))
        return {**values, "vocab_size": "auto", "normalization": "none"} if models else values


# tiny is from Wu et al. 2021 (Multi30k), base and big from table 3 of "Attention Is All You Need". student has the
# smallest sizes of browsermt, and student-small is for less text (docs/results.md).
_PRESET_KEYS = ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads", "dropout")
_TRANSFORMER_ROWS = {
    "tiny": (4, 4, 128, 256, 4, 0.3),
    "small": (3, 3, 256, 1024, 4, 0.2),
    "base": (6, 6, 512, 2048, 8, 0.1),
    "big": (6, 6, 1024, 4096, 16, 0.3),
    "student": (6, 2, 256, 1536, 8, 0.1),
    "student-small": (4, 2, 128, 256, 4, 0.1),
}
# The recurrent model, with about as many parameters; it has neither heads nor feed-forward layers.
_RNN_ROWS = {
    "tiny": (1, 1, 256, 1, 1, 0.3),
    "small": (2, 2, 384, 1, 1, 0.2),
    "base": (2, 2, 1024, 1, 1, 0.2),
    "big": (4, 4, 1536, 1, 1, 0.3),
    "student": (2, 1, 600, 1, 1, 0.1),
    "student-small": (1, 1, 224, 1, 1, 0.1),
}
PRESETS = {name: dict(zip(_PRESET_KEYS, row, strict=True)) for name, row in _TRANSFORMER_ROWS.items()}
_RNN_PRESETS = {name: dict(zip(_PRESET_KEYS, row, strict=True)) for name, row in _RNN_ROWS.items()}
# Presets of the decoder-only model, with about as many parameters; it has no encoder layers.
_DECODER_PRESETS = {
    name: {**PRESETS[name], "num_encoder_layers": 1, "num_decoder_layers": num_layers}
    for name, num_layers in {"tiny": 10, "small": 7, "base": 14, "big": 14, "student": 8, "student-small": 7}.items()
}


class ModelConfig(Section):
    """The architecture. The preset sets the six keys without a default."""

    architecture: Literal["transformer", "decoder", "rnn"] = "transformer"
    """transformer: encoder-decoder, as in the paper; decoder: decoder-only, which reads the source and continues with
    the target; rnn: recurrent encoder-decoder with attention"""
    preset: Literal["tiny", "small", "base", "big", "student", "student-small"] = "base"
    """sets num_encoder_layers, num_decoder_layers, d_model, d_ff, num_heads and dropout, unless they are given"""
    num_encoder_layers: NumLayers
    """number of encoder layers; unused by decoder"""
    num_decoder_layers: NumLayers
    """number of decoder layers"""
    d_model: int = Field(ge=1, le=1 << 16)
    """size of embeddings and hidden states"""
    d_ff: int = Field(ge=1, le=1 << 18)
    """inner size of the feed-forward layers; unused by rnn"""
    num_heads: PositiveInt
    """number of attention heads; unused by rnn"""
    dropout: Probability
    """dropout rate on sub-layer outputs and embedding sums (paper 5.4)"""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after (post, as in the paper) or before (pre) each sub-layer; unused by rnn"""
    activation: Literal["relu", "swish", "gelu"] = "relu"
    """activation function of the feed-forward layers; unused by rnn"""
    tie: Literal["all", "target", "none"] = "all"
    """embeddings that share the weights of the output layer"""
    positions: Literal["sinusoidal", "learned", "fairseq"] = "sinusoidal"
    """position encoding (paper 3.5); fairseq: the sinusoids of M2M-100 and NLLB; unused by rnn"""
    start: Literal["pad", "eos"] = "pad"
    """what the decoder starts from: zeros (pad) or the embedding of </s> (eos, as in M2M-100 and NLLB)"""
    cell: Literal["lstm", "gru"] = "lstm"
    """recurrent cell; rnn only"""
    score: Literal["additive", "scaled_dot_product", "multiplicative"] = "additive"
    """attention score between a decoder state and the encoder outputs; rnn only"""
    output_bias: bool = False
    """add a bias to the output layer"""
    licence: Local[Licence | None] = None
    """licence of the trained model, for its model card: an SPDX name such as CC-BY-4.0, or free text"""

    @classmethod
    def _fill(cls, values: Values) -> Values:
        other_architectures = {"decoder": _DECODER_PRESETS, "rnn": _RNN_PRESETS}
        presets = other_architectures.get(str(values.get("architecture")), PRESETS)
        return {**presets.get(str(values.get("preset")), presets["base"]), **values}

    def stored(self) -> Tree:
        """The values stored in a model directory; the licence may change and is in its scores.json."""
        # an earlier mtx does not know `start`
        return self.model_dump(exclude={"licence", "start"} if self.start == "pad" else {"licence"})

    @model_validator(mode="after")
    def _check_together(self, info: ValidationInfo) -> "ModelConfig":
        for name in ("cell", "score"):
            if self.architecture != "rnn" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"model.{name} {getattr(self, name)} requires model.architecture=rnn")
        if self.d_model % 2:
            raise ValueError(f"model.d_model {self.d_model} is odd; the position encoding needs an even number")
        if self.architecture != "rnn" and self.d_model % self.num_heads and info.context in (None, "given"):
            raise ValueError(f"model.d_model {self.d_model} is not divisible by model.num_heads {self.num_heads}")
        return self


class TrainingConfig(Section):
    """How a model is trained."""

    init_from: PathText | None = Field(None, min_length=1)
    """model or run directory to start from, with its tokenizer and architecture; use a lower training.learning_rate
    than for a new model, such as 0.0002"""
    max_steps: Resumable[PositiveInt | None] = 100_000
    """maximum number of optimizer updates; null: limited by training.max_epochs only"""
    max_epochs: Resumable[PositiveInt | None] = None
    """maximum number of passes over the training pairs; null: limited by training.max_steps only. If both are set,
    training ends at the first. Either of them on the command line replaces the other one of a recipe"""
    time_limit: Resumable[Seconds | None] = Field(None, gt=0)
    """total time of the run over all its starts, such as 2h, 90m or 600s; includes scoring, if scoring takes at most
    half of it"""
    batch_tokens: BatchTokens = 25_000
    """target tokens per optimizer update (paper 5.1)"""
    micro_batch_tokens: Auto | BatchTokens = "auto"
    """target tokens per forward and backward pass; auto: as many as fit in memory"""
    learning_rate: PositiveFloat | None = None
    """peak learning rate, reached at step warmup_steps; null: (d_model * warmup_steps)^-0.5, as in Eq. 3"""
    warmup_steps: PositiveInt = 4000
    """steps of linear warmup (paper 5.3)"""
    cooldown: float = Field(0.0, ge=0, le=0.9)
    """last part of the steps, as a fraction, in which the learning rate falls linearly to zero; early stopping
    (training.patience) also ends with a cooldown"""
    label_smoothing: Probability = 0.1
    """label smoothing (paper 5.4): the share of the target probability that is spread over all subwords"""
    bpe_dropout: Probability = 0.0
    """probability that BPE-dropout skips a merge, such as 0.1, so that words are split differently in each epoch;
    0: always the same subwords"""
    upper_case: Share = 0.0
    """fraction of the training pairs changed to upper case, such as 0.07, so that the model can translate such text;
    each epoch changes other pairs"""
    title_case: Share = 0.0
    """fraction of the training pairs changed to title case (A Capital Letter In Each Word) in an epoch, such as 0.05"""
    no_end_punctuation: Share = 0.0
    """fraction of the training pairs without final punctuation in an epoch, such as 0.2"""
    typing_errors: Share = 0.0
    """fraction of the training pairs whose sources get typing errors in an epoch, in a tenth of the longer words, such
    as 0.05"""
    copied_target_ratio: Share = 0.0
    """copied corpus: fraction of the training pairs that each epoch repeats with the target text as source and target,
    such as 0.5 for little text, where models otherwise make little use of the source; 0: none"""
    rdrop_alpha: float = Field(0.0, ge=0)
    """R-Drop: weight of the divergence between two passes with different dropout, such as 2; doubles the time of a
    step; 0: one pass"""
    clip_norm: PositiveFloat | None = None
    """maximum gradient norm; null: no clipping"""
    shard: UntilFinished[bool] = False
    """shard weights, gradients and Adam's state over the devices, for a model that cannot be trained on one. Each
    device still needs room for the whole model, and twice in a validation: 8 bytes for each parameter"""
    deterministic: bool = False
    """on CUDA: bitwise reproducible on the same GPU and torch version, but slower"""
    compile: Local[Auto | bool] = "auto"
    """on CUDA: compile the training step at the start, which takes a minute or two; auto: if the run is long enough.
    If compilation fails, training runs without it"""
    best_metric: Literal["auto", "bleu", "chrf", "nll"] = "auto"
    """metric that selects the best validation; auto: bleu, or chrf if BLEU is not informative on the validation set"""
    validate_every: UntilFinished[PositiveInt] = 1000
    """steps between validations"""
    checkpoint_every: Resumable[PositiveInt] = 1500
    """steps between checkpoints"""
    average_last: Resumable[PositiveInt] = 5
    """number of checkpoints for checkpoint averaging at the end (paper 6.1), from the last quarter of the steps. The
    model is this average, the average of the later half of them, the last checkpoint or the best one: whichever
    translates the validation set best"""
    patience: UntilFinished[PositiveInt | None] = None
    """early stopping: validations without a better score before training stops; null: no early stopping"""
    tensorboard: Local[bool] = False
    """write metrics for TensorBoard (needs the package tensorboard)"""

    @classmethod
    def _fill(cls, values: Values) -> Values:
        """With max_epochs alone, max_steps is null: its default would end most runs earlier."""
        return values if values.get("max_epochs") in (None, *NULL) else {"max_steps": None, **values}


class DecodingConfig(Section):
    """How a model translates."""

    beam_size: Resumable[int] = Field(4, ge=1, le=limits.MAX_BEAM_SIZE)
    """beam size; 1: greedy search"""
    length_penalty: Resumable[float] = Field(0.6, ge=0, le=limits.MAX_LENGTH_PENALTY)
    """alpha of the divisor ((5+|Y|)/6)^alpha (paper 6.1)"""
    batch_tokens: UntilFinished[BatchTokens | None] = None
    """source tokens translated at once; null: 4,096, or 32,768 on CUDA; halved if memory runs out"""


class Config(Section):
    """The whole configuration of a run."""

    run_dir: Local[PathText] = ""
    """directory of the run, new or empty; by default runs/ and the recipe's name; a leading ~ is the home directory, as
    in every path of a setting"""
    sizes: UntilFinished[Literal["given", "corpus"] | PositiveInt] = "given"
    """corpus: choose model sizes and regularisation by the amount of training text, the speed of the machine and
    training.time_limit, unless the recipe or the command line sets them; a number: those for about that many pairs"""
    undecided: UntilFinished[tuple[str, ...]] = ()
    """the keys that sizes=corpus chooses when training starts; mtx sets it"""
    seed: int = Field(1, ge=0, lt=2**31)
    """seed of all random numbers"""
    device: Local[Annotated[str, matching(r"auto|cpu|cuda(:[0-9]+)?|mps", "auto, cpu, cuda, cuda:1 or mps")]] = "auto"
    """cpu, cuda, cuda:1 or mps; auto: cuda if there is a GPU"""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """precision of matrix products in training"""
    data: DataConfig = DataConfig.model_validate({})
    tokenizer: TokenizerConfig = TokenizerConfig.model_validate({})
    model: ModelConfig = ModelConfig.model_validate({})
    training: TrainingConfig = TrainingConfig.model_validate({})
    decoding: DecodingConfig = DecodingConfig.model_validate({})

    @model_validator(mode="after")
    def _check_together(self) -> "Config":
        data = self.data
        training = self.training
        if training.max_steps is None and training.max_epochs is None:
            raise ValueError("training.max_steps and training.max_epochs are both null; set one of them")
        if data.directions and training.copied_target_ratio:
            raise ValueError("training.copied_target_ratio is for one direction, and data.directions has several")
        if self.tokenizer.model and training.init_from is not None:
            raise ValueError("tokenizer.model: the model of training.init_from has its own tokenizer; set only one")
        for name in ("batch_tokens", "micro_batch_tokens"):
            if (size := getattr(training, name)) != "auto" and size < data.max_tokens:
                raise ValueError(f"training.{name} {size} is below data.max_tokens {data.max_tokens}")
        if self.model.positions == "learned" and data.max_tokens > limits.MAX_LEARNED_POSITIONS:
            raise ValueError(
                f"data.max_tokens {data.max_tokens} is above the {limits.MAX_LEARNED_POSITIONS} positions of "
                "model.positions=learned"
            )
        architecture = self.model.architecture
        for name, value in (("shard", training.shard), ("compile", training.compile)):
            if value is True and architecture != "transformer":
                raise ValueError(f"training.{name} requires model.architecture=transformer, not {architecture}")
        return self


@functools.cache
def fields(section: type[Section] = Config, prefix: str = "") -> dict[str, FieldInfo]:
    """Every key, in dotted form, with its field."""
    by_key: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))  # a section may be null
        inner = next((t for t in types if isinstance(t, type) and issubclass(t, Section)), None)
        by_key |= fields(inner, f"{prefix}{name}.") if inner else {prefix + name: field}
    return by_key


def key_names(*scopes: Scope) -> list[str]:
    """Every key, in dotted form, or those with one of the `scopes`."""
    return [key for key, field in fields().items() if not scopes or any(scope in field.metadata for scope in scopes)]


def leaves(values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of nested dictionaries, with their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
