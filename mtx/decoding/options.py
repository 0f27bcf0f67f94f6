"""The seam of decoding: what a search is, where it runs, what it finds, and the `Engine` that searches. No torch here.

`mtx.decoding.translator` is the text layer, `open_engine` in load.py opens an engine. Engines: `TorchEngine` in
torch_engine.py (a model, or the ensemble of several), and `CTranslate2Engine` in ctranslate2_engine.py. A new one is a
class with the names of `Engine`, and a case in `open_engine`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, get_args

from mtx.config.limits import (
    MAX_BATCH_TOKENS,
    MAX_BEAM_SIZE,
    MAX_LENGTH,
    MAX_LENGTH_PENALTY,
    MAX_SAMPLES,
    MAX_TEMPERATURE,
)
from mtx.errors import UsageError

if TYPE_CHECKING:  # the command line starts without numpy
    import numpy as np
    import numpy.typing as npt

Sentences = Sequence[list[int]]  # as token ids
NO_SCORES = "the model gives no numbers as scores: its weights are damaged or far too large"
EXTRA_LENGTH = 50  # 6.1: the maximum output length is the source length + 50
MBR_EPSILON = 0.02  # the epsilon that Freitag et al. 2023 draw samples for Minimum Bayes risk decoding with
EngineName = Literal["auto", "torch", "ctranslate2"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "int8"]
PRECISIONS: dict[str, tuple[str, ...]] = {
    "auto": get_args(Precision),
    "torch": ("fp32", "tf32", "bf16"),
    "ctranslate2": ("fp32", "fp16", "int8"),
}


@dataclass(frozen=True)
class Sampling:
    """Options for drawing translations at random instead of searching for the best.

    Attributes:
        num_samples: number of translations of each source.
        temperature: logits are divided by it; below 1 the distribution is sharper, above 1 flatter.
        top_k: draw only from this number of the most probable tokens; 0 means all.
        top_p: after `top_k`, draw only from the smallest set of tokens whose probabilities sum to at least this
            (nucleus sampling, Holtzman et al. 2020).
        seed: a sample depends only on the seed, the source, its prefix and the number of the sample.
        epsilon: draw only tokens of at least this probability after temperature and `top_k`, and the most probable one
            (epsilon sampling, Hewitt et al. 2022); 0 means all.
        mbr: instead of all samples, only the one with the highest mean chrF against all of them is the translation
            (Minimum Bayes risk decoding), and that mean is its score; see `mtx.decoding.translator`.

    Raises:
        TypeError, ValueError: for a value that is no number, or one that no distribution has.
    """

    num_samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    epsilon: float = 0.0
    mbr: bool = False

    def __post_init__(self) -> None:
        check_number("num_samples", self.num_samples, 1, MAX_SAMPLES)
        check_number("temperature", self.temperature, 0.01, MAX_TEMPERATURE, kind=Real)
        check_number("top_k", self.top_k, 0)
        check_number("top_p", self.top_p, 0.01, 1.0, kind=Real)
        check_number("seed", self.seed, -inf)
        check_number("epsilon", self.epsilon, 0, 1, kind=Real)


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search.

    Attributes:
        beam_size: 1 is greedy search; None: the model's own, which `with_model_defaults` fills in, or else 4.
        length_penalty: alpha of ((5 + |Y|) / 6)^alpha; None: the model's own, or else 0.6.
        max_length: maximum number of target tokens, with `</s>`; None: the source's number of tokens + 50.
        sampling: None: beam search.
        split_sentences: whether to translate the sentences of a line one by one; None: if the model was trained on
            single sentences.
        n_best: number of hypotheses of a line; all samples are returned.
        has_scores: whether scores are needed. Without them, CTranslate2 is faster in greedy search on a CPU.

    Raises:
        TypeError, ValueError: for a value of another type, or out of its range.
    """

    beam_size: int | None = None
    length_penalty: float | None = None
    max_length: int | None = None
    sampling: Sampling | None = None
    split_sentences: bool | None = None
    n_best: int = 1
    has_scores: bool = True

    def __post_init__(self) -> None:
        check_number("beam_size", self.num_beams, 1, MAX_BEAM_SIZE)
        check_number("length_penalty", self.alpha, 0, MAX_LENGTH_PENALTY, kind=Real)
        if self.max_length is not None:
            check_number("max_length", self.max_length, 1, MAX_LENGTH)

    @property
    def num_beams(self) -> int:
        """The beam size as a number."""
        return 4 if self.beam_size is None else self.beam_size

    @property
    def alpha(self) -> float:
        """The length penalty as a number."""
        return 0.6 if self.length_penalty is None else self.length_penalty

    def with_model_defaults(self, info: Mapping[str, Any]) -> "SearchOptions":
        """These options with what they leave to the model, by the `info` of its directory."""
        names = "beam_size", "length_penalty"
        unset: dict[str, Any] = {name: info.get(name) for name in names if getattr(self, name) is None}
        return replace(self, **unset)


@dataclass(frozen=True)
class Placement:
    """Where and how a model computes.

    Attributes:
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: None: fp32, or the precision of an export; on a GPU that is fast in it, torch searches in bf16.
            tf32: fp32 with products in TF32 on CUDA, for scores.
        threads: CPU threads, at most the cores of this process; None: all of them.
        batch_tokens: source tokens decoded together; None: a fast size for the engine and the device.
        engine: auto: see `choose_engine`.

    Raises:
        UsageError: there is no such engine, or it lacks the precision.
        TypeError, ValueError: another value is of another type, or out of its range.
    """

    device: str = "auto"
    precision: Precision | None = None
    threads: int | None = None
    batch_tokens: int | None = None
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        if self.engine not in PRECISIONS:
            raise UsageError(f"engine {self.engine}: expected {', '.join(PRECISIONS)}")
        names = PRECISIONS[self.engine]
        if self.precision is not None and self.precision not in names:
            raise UsageError(f"precision {self.precision}: the engine {self.engine} has {', '.join(names)}")
        if self.threads is not None:
            check_number("threads", self.threads, 1)
        if self.batch_tokens is not None:
            check_number("batch_tokens", self.batch_tokens, 1, MAX_BATCH_TOKENS)


class Request(NamedTuple):
    """One sentence to translate.

    Attributes:
        number: the key of its hypotheses in the results.
        source: token ids.
        limit: most target tokens, `</s>` included, at least 1.
        prefix: target ids that its translations must begin with.
        sample: the number of the sample, if samples are drawn.
        source_number: the number of the source, which has a request for each sample.
    """

    number: int
    source: Any
    limit: int
    prefix: list[int]
    sample: int = 0
    source_number: int = 0


class Candidate(NamedTuple):
    """A finished hypothesis: its token ids, `</s>` included, and its score after the length penalty."""

    ids: list[int]
    score: float


Results = dict[int, list[Candidate]]  # by the number of the request, best first


def check_number(name: str, value: Any, minimum: float, maximum: float = inf, kind: type = Integral) -> None:
    """Checks that an argument is a number from `minimum` to `maximum`, a whole one unless `kind` is Real.

    Raises:
        TypeError, ValueError: it is not; the message is one line with the value and what is expected.
    """
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not minimum <= value <= maximum:
        bounds = "" if minimum == -inf else f" from {minimum}"
        if minimum != -inf and maximum != inf:
            bounds += f" to {maximum}"
        shown = " ".join(repr(value).split())[:100]
        kind_of_number = "whole number" if kind is Integral else "number"
        message = f"{name}={shown}: expected a {kind_of_number}{bounds}"
        raise ValueError(message) if is_number else TypeError(message)


def penalty(length: Any, alpha: float) -> Any:
    """Returns the length penalty ((5 + |Y|) / 6)^alpha (Wu et al. 2016, as used in 6.1) of a number or a tensor."""
    return ((5 + length) / 6) ** alpha


Attention: TypeAlias = "npt.NDArray[np.float32]"  # [T, S]


class Engine(Protocol):
    """Finds translations of token ids, without access to text. Thread-safe.

    Attributes:
        name: its name in `--engine`.
        precision: that of the search, such as "fp32".
        num_tgt_positions: maximum number of tokens in a translation, with `</s>`; `sys.maxsize`: unlimited.
        num_calls: number of concurrent calls that are faster than consecutive ones.
    """

    name: ClassVar[EngineName]
    precision: str
    num_tgt_positions: int
    num_calls: int

    def search(self, sources: Sentences, prefixes: Sentences, options: SearchOptions) -> list[list[Candidate]]:
        """Returns the hypotheses of each source, at least one, best first; samples are in the order of drawing.

        Args:
            sources: token ids, each ending in `</s>`, at most as many as the model reads.
            prefixes: for each source the target ids that its translations must begin with, without `</s>`.
            options: what is searched for; `new_requests` applies its limit of length to each source.
        """

    def cross_attention(self, sources: Sentences, targets: Sentences) -> list[Attention]:
        """Returns for each pair of ids, both ending in `</s>`, from which source tokens each target token comes.

        Each row is a distribution: the attention of the last layer, averaged over its heads. Rows and columns of
        `</s>` may be missing. The caller passes sources that the model reads, and targets that it can write.
        """


def new_requests(
    sources: Sentences, prefixes: Sentences, options: SearchOptions, num_tgt_positions: int
) -> list[Request]:
    """Returns a request for each source, or for each of its samples."""
    num_samples = options.sampling.num_samples if options.sampling else 1
    requests = list[Request]()
    for source_number, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
        limit = options.max_length or len(source) + EXTRA_LENGTH
        limit = min(max(limit, len(prefix) + 1), num_tgt_positions)  # the prefix always fits
        for sample in range(num_samples):
            requests.append(Request(len(requests), source, limit, prefix, sample, source_number))
    return requests
