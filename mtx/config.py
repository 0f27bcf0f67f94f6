"""The configuration: typed sections, YAML, `key=value` overrides, and where each value came from.

Defaults live here and nowhere else. Every value is text until its field's type reads it, whether it comes from a
recipe or from the command line, so that both mean the same. This module imports no torch and opens no corpus.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mtx.errors import UsageError
from mtx.files import read_lines


def _read_bool(value: object) -> object:
    if isinstance(value, str):
        if value not in ("true", "false"):
            raise ValueError("expected true or false")
        return value == "true"
    return value


_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def _read_seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value)
    if not value or match is None:
        raise ValueError("expected a duration such as 2h, 90m, 1h30m or 600s")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


Bool = Annotated[bool, BeforeValidator(_read_bool)]
Seconds = Annotated[float, BeforeValidator(_read_seconds)]
Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys and reads text values by the field's type."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            raise ValueError("expected a section with keys")
        return {name: cls._read_value(name, value) for name, value in values.items()}

    @classmethod
    def _read_value(cls, name: str, value: Any) -> Any:
        field = cls.model_fields.get(name)
        if field is None or not isinstance(value, str):
            return value
        if value in ("null", "~", "") and NoneType in get_args(field.annotation):
            return None
        is_list = "tuple" in str(field.annotation)
        return tuple(part.strip() for part in value.split(",")) if is_list and value else value


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
    tag: str | None = Field(None, description="a mark put before each source sentence, such as BT")


class DataConfig(Section):
    src: str = Field("src", min_length=1, description="source language; the ending of local file names")
    tgt: str = Field("tgt", min_length=1, description="target language")
    dir: str | None = Field(None, description="where local names are looked up; null means the current folder")
    hub: HubConfig | None = Field(None, description="dataset on the hub, used when data.dir is not given")
    generator: Literal["grammar"] | None = Field(None, description="text that mtx makes itself (the demo)")
    train: tuple[str | TrainText, ...] = Field((), description="local names or files of training text")
    valid: str | None = Field(None, description="local name or file; none holds out a part of the training text")
    test: tuple[str, ...] = Field((), description="local names or files; none holds out a part of the training text")
    max_tokens: Annotated[int, Field(ge=8, le=4096)] = Field(
        256, description="longest sentence, in pieces, </s> included"
    )
    max_length_ratio: Annotated[float, Field(gt=1)] = Field(
        4.0, description="longest side over shortest, in UTF-8 bytes plus 10"
    )


class TokenizerConfig(Section):
    vocab_size: Auto | Annotated[int, Field(ge=270)] = Field(
        "auto", description="SentencePiece pieces; auto: by corpus size"
    )
    normalization: Literal["nfc", "nmt_nfkc", "none"] = Field(
        "nfc", description="Unicode form of the text the model sees"
    )


# Layers, width, heads and dropout: tiny from Wu et al. 2021 (Multi30k), base and big from table 3 of the paper.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"num_encoder_layers": 4, "num_decoder_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4, "dropout": 0.3},
    "small": {"num_encoder_layers": 3, "num_decoder_layers": 3, "d_model": 256, "d_ff": 1024, "num_heads": 4, "dropout": 0.2},
    "base": {"num_encoder_layers": 6, "num_decoder_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "dropout": 0.1},
    "big": {"num_encoder_layers": 6, "num_decoder_layers": 6, "d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
}  # fmt: skip


class ModelConfig(Section):
    preset: Literal["tiny", "small", "base", "big"] = Field("base", description="fills the six keys below it")
    num_encoder_layers: PositiveInt = Field(description="layers of the encoder")
    num_decoder_layers: PositiveInt = Field(description="layers of the decoder")
    d_model: PositiveInt = Field(description="width of the model")
    d_ff: PositiveInt = Field(description="inner width of the feed-forward layers")
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
        return (
            {**PRESETS.get(str(values.get("preset", "base")), {}), **values} if isinstance(values, Mapping) else values
        )

    @model_validator(mode="after")
    def _check_heads(self) -> "ModelConfig":
        if self.d_model % self.num_heads or self.d_model % 2:
            raise ValueError(f"d_model {self.d_model} must be even and divisible by num_heads {self.num_heads}")
        return self


class TrainingConfig(Section):
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
    validate_every: PositiveInt = Field(1000, description="steps between validations")
    checkpoint_every: PositiveInt = Field(1500, description="steps between checkpoints")
    average_last: PositiveInt = Field(5, description="checkpoints that are averaged at the end (6.1)")
    patience: PositiveInt | None = Field(None, description="validations without a better BLEU after which to stop")


class DecodingConfig(Section):
    beam_size: PositiveInt = Field(4, description="1 is greedy search")
    length_penalty: Annotated[float, Field(ge=0)] = Field(0.6, description="alpha of ((5+|Y|)/6)^alpha (6.1)")
    batch_tokens: PositiveInt = Field(4096, description="source tokens that are decoded at once")


class Config(Section):
    """All that a run is."""

    run_dir: str = Field("", description="where everything goes; by default runs/ and the recipe's name")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(1, description="of everything random")
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$")] = Field(
        "auto", description="auto, cpu, cuda, cuda:1 or mps"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="of the products while training")
    data: DataConfig = Field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    model: ModelConfig = Field(default_factory=lambda: ModelConfig.model_validate({}))
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    decoding: DecodingConfig = Field(default_factory=DecodingConfig)

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


MAY_CHANGE = ("run_dir", "device", "data.dir", "training.max_steps", "training.time_limit", "training.validate_every",
              "training.checkpoint_every", "training.average_last", "training.patience", "decoding")  # fmt: skip


def may_change(key: str) -> bool:
    """Whether `key` may differ when a run is gone on with; every other key is fixed."""
    return key in MAY_CHANGE or key.split(".")[0] in MAY_CHANGE


@dataclass(frozen=True)
class Resolved:
    """A configuration and, for each of its keys, where the value comes from."""

    config: Config
    origins: dict[str, str]


class _TextLoader(yaml.BaseLoader):
    """Reads every scalar as text (YAML's own rules turn `no` into False and 12:30 into 750); refuses equal keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore[no-untyped-call]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} stands twice", problem_mark=node.value[number][0].start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file as nested dictionaries of text."""
    try:
        values = yaml.load("\n".join(read_lines(path)), Loader=_TextLoader)  # noqa: S506 - it builds text only
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}:{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    if values in (None, ""):
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{path}: expected sections with keys, got {type(values).__name__}")
    return values


def recipe_dir() -> Path:
    """The folder of the shipped recipes, in an installed package or in a checkout."""
    installed = Path(__file__).parent / "configs"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "configs"


def recipe_names() -> list[str]:
    return sorted(path.stem for path in recipe_dir().glob("*.yaml"))


def find_config(name: str) -> Path:
    """The file that CONFIG means: a path, a run directory, or the name of a shipped recipe."""
    path = Path(name)
    if path.is_dir() and (path / "config.yaml").is_file():
        return path / "config.yaml"
    if "/" in name or "\\" in name or path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UsageError(f"{name}: no such configuration file or run directory")
        return path
    if name not in recipe_names():
        near = nearest(name, recipe_names())
        raise UsageError(
            f"no recipe named {name!r}" + (f", did you mean {near}?" if near else ""), "mtx config lists the recipes"
        )
    return recipe_dir() / f"{name}.yaml"


def nearest(name: str, names: list[str]) -> str | None:
    """The most similar of `names`, compared whole and by the part after the last dot."""
    short = {other.rpartition(".")[2]: other for other in names}
    close = difflib.get_close_matches(name, names, 1, 0.6) or [
        short[match] for match in difflib.get_close_matches(name.rpartition(".")[2], list(short), 1, 0.75)
    ]
    return close[0] if close else None


def key_names(section: type[Section] = Config, prefix: str = "") -> list[str]:
    """Every key, dotted."""
    names = []
    for name, field in section.model_fields.items():
        inner = [
            t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type) and issubclass(t, Section)
        ]
        names += key_names(inner[0], f"{prefix}{name}.") if inner else [prefix + name]
    return names


_OVERRIDE = re.compile(r"([A-Za-z_][\w-]*(?:\.[\w-]+)*)=(.*)", re.DOTALL)


def is_override(argument: str) -> bool:
    """Whether a command-line argument is `key=value` rather than the name of a file."""
    match = _OVERRIDE.fullmatch(argument)
    return match is not None and (match[1] in key_names() or not Path(argument).exists())


def resolve(name: str | None, overrides: list[str]) -> Resolved:
    """Read CONFIG and apply `key=value` overrides.

    Raises:
        UsageError: one error that names every unknown key (with the nearest known one) and every wrong value.
    """
    path = find_config(name) if name else None
    values = read_yaml(path) if path else {}
    file_keys = set(_leaves(values))
    given: dict[str, str] = {}
    for argument in overrides:
        match = _OVERRIDE.fullmatch(argument)
        if match is None:
            raise UsageError(
                f"{argument!r} is not a setting", "settings are written key=value, such as training.max_steps=1000"
            )
        given[match[1]] = match[2]
    problems = [problem for key, value in given.items() if (problem := _set(values, key, value))]
    if name and path and path.name == "config.yaml" and path.parent == Path(name):
        values.setdefault("run_dir", name)
        if "run_dir" not in given:
            values["run_dir"] = name
    config = _validate(values, problems, str(path) if path else "the command line")
    if not config.run_dir:
        stem = path.stem if path else f"{config.data.src}-{config.data.tgt}"
        config = config.model_copy(update={"run_dir": f"runs/{stem}"})
    origins = {}
    for key in _leaves(config.model_dump()):
        in_preset = key.startswith("model.") and key.removeprefix("model.") in PRESETS["base"]
        default = f"preset {config.model.preset}" if in_preset else "default"
        origins[key] = "command line" if key in given else str(path) if key in file_keys else default
    return Resolved(config, origins)


def load(path: Path) -> Config:
    """Read a `config.yaml` that `dump` wrote."""
    return _validate(read_yaml(path), [], str(path))


def dump(config: Config) -> str:
    """The configuration as YAML that `load` reads back as an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """The keys with their two values in which two configurations differ."""
    a, b = dict(_items(old.model_dump())), dict(_items(new.model_dump()))
    return [(key, a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)]


def _set(values: dict[str, Any], key: str, value: str) -> str | None:
    *sections, last = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            inner = values[section] = {}
        values = inner
    if isinstance(values.get(last), dict):
        return f"{key} is a section, not a key"
    values[last] = value
    return None


def _items(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _items(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _leaves(values: Mapping[str, Any]) -> list[str]:
    return [key for key, _ in _items(values)]


def _validate(values: dict[str, Any], problems: list[str], where: str) -> Config:
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        messages: dict[str, list[str]] = {}
        for item in error.errors():
            key, text = _describe(item)
            messages.setdefault(key, [])
            if text not in messages[key]:
                messages[key].append(text)
        for key, texts in messages.items():
            got = texts[-1].rpartition(", got ")[2]
            parts = [text.removesuffix(f", got {got}") for text in texts]
            merged = texts[0] if len(texts) == 1 else f"{' or '.join(parts).replace(' or expected', ' or')}, got {got}"
            problems = [*problems, f"{key}: {merged}" if key else merged]
    if problems:
        raise UsageError(f"{where}: " + "; ".join(problems), "mtx config KEY explains a key")
    return config


def _describe(item: Any) -> tuple[str, str]:
    """A pydantic error as the key and what is wrong with it."""
    keys = key_names()
    key = ""
    for part in item["loc"]:  # beyond the key stand the members of a union
        longer = f"{key}.{part}" if key else str(part)
        if key in keys and not any(other.startswith(f"{longer}.") or other == longer for other in keys):
            break
        key = longer
    if item["type"] == "extra_forbidden":
        near = nearest(key, keys + list(Config.model_fields))
        return key, "unknown key" + (f", did you mean {near}?" if near else "")
    if item["type"] == "value_error":
        return key, f"{item['msg'].removeprefix('Value error, ')}" + (f", got {item['input']!r}" if key in keys else "")
    expected = item["msg"].split(",")[0].replace("Input should be", "expected").replace("a valid ", "a ")
    shown = item["input"] if isinstance(item["input"], str | int | float) else type(item["input"]).__name__
    return key, f"{expected.replace('a integer', 'a whole number')}, got {shown!r}"


def describe_key(key: str) -> tuple[str, Any]:
    """The description and the default of a key.

    Raises:
        UsageError: where there is no such key.
    """
    if key not in key_names():
        near = nearest(key, key_names())
        raise UsageError(
            f"{key}: unknown key" + (f", did you mean {near}?" if near else ""), "mtx config lists the recipes"
        )
    section: type[Section] = Config
    *sections, last = key.split(".")
    for name in sections:
        annotation = section.model_fields[name].annotation
        section = next(t for t in (annotation, *get_args(annotation)) if isinstance(t, type) and issubclass(t, Section))
    field = section.model_fields[last]
    default = PRESETS["base"].get(last) if section is ModelConfig and field.is_required() else field.default
    return field.description or "", default


def explain(resolved: Resolved) -> str:
    """The resolved configuration as YAML, with where each value comes from behind it."""
    lines, above = [], []  # type: ignore[var-annotated]
    for key, origin in resolved.origins.items():
        *sections, last = key.split(".")
        for depth, section in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                lines.append(f"{'  ' * depth}{section}:")
                above = sections[: depth + 1]
        above = sections
        value: Any = resolved.config.model_dump(mode="json")
        for part in key.split("."):
            value = value[part]
        text = (
            yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
            .removesuffix("...\n")
            .strip()
        )
        lines.append(f"{'  ' * len(sections)}{last}: {text}".ljust(44) + f"  # {origin}")
    return "\n".join(lines)


def recipe_notes(name: str) -> tuple[str, str]:
    """Cost and score of a shipped recipe, from the head of its file."""
    notes = {"cost": "", "score": ""}
    for line in read_lines(recipe_dir() / f"{name}.yaml"):
        kind, _, text = line.removeprefix("# ").partition(": ")
        if kind in notes and line.startswith("#"):
            notes[kind] = text
    return notes["cost"], notes["score"]


def format_duration(seconds: float) -> str:
    """Seconds as people say them: 45 s, 12 min, 3 h 20 min."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
