"""What a `Hook` is called with: the `Run` in training, and the result of a `Validation` with its `Sample` sentences."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtx.config.schema import Config
from mtx.errors import DeferredErrors
from mtx.runs.run_directory import quality
from mtx.storage import durable
from mtx.storage.run_files import RunLayout

if TYPE_CHECKING:  # a command that only knows hooks of its folder needs no torch
    from mtx.data.token_store import PreparedData, TokenStore
    from mtx.training.checkpoint import State
    from mtx.training.micro_batch import RuntimeChoices
    from mtx.training.schedule import Schedule

Values = Mapping[str, Any]  # of an event, by name
EventListener = Callable[["Run", str, Values], None]  # with the name of the event and its values

# How much less or more time a validation may later take: it does more than search, and lengths settle at those of the
# references.
_MIN_FACTOR = 0.1
_MAX_FACTOR = 2.0


@dataclass(kw_only=True)
class Run:
    """A run in training, which is its `Trainer`, or what is left of it afterwards: without a model.

    Attributes:
        training_text: what it learns from.
        state: the progress; replaced, never changed.
        start_s: on the monotonic clock, when its training would have begun without breaks.
        event_listeners: the `on_event` of each hook; they are on rank 0 alone.
        cleanup: closes what hooks have opened when the loop ends, however it ends.
    """

    config: Config
    runtime: "RuntimeChoices"
    data: "PreparedData"
    paths: RunLayout
    deferred_errors: DeferredErrors
    training_text: "TokenStore"
    state: "State"
    schedule: "Schedule"
    start_s: float
    event_listeners: Sequence[EventListener] = ()
    cleanup: ExitStack = field(default_factory=ExitStack)

    def elapsed_s(self) -> float:
        """Seconds of training so far, over all starts."""
        return time.monotonic() - self.start_s

    def record(self, name: str, **values: Any) -> None:
        """Record an event of the run, which metrics.jsonl will have."""
        for notify in self.event_listeners:
            notify(self, name, values)


@dataclass(frozen=True)
class Sample:
    """One sentence with its reference and the model's translation."""

    src: str
    ref: str
    hyp: str


@dataclass(frozen=True)
class Validation:
    """The result of one validation.

    Attributes:
        nll: unsmoothed, per target token, `</s>` included.
        chrf: None unless it decides.
        deciding_metric: see the function in `mtx.training.validation`.
        samples: the same few sentences each time.
        length_ratio: characters of the references for each character of the hypotheses.
        by_direction: the BLEU, or chrF2 where it decides, of each direction, such as en-de.
    """

    nll: float
    bleu: float
    chrf: float | None
    seconds: float
    hypotheses: list[str]
    samples: list[Sample]
    length_ratio: float = 1.0
    deciding_metric: str = "bleu"
    by_direction: dict[str, float] = field(default_factory=dict)

    @property
    def ppl(self) -> float:
        return math.exp(min(self.nll, 700.0))

    def figures(self) -> durable.Json:
        """The event of a validation for metrics.jsonl."""
        figures = {
            "nll": self.nll,
            "ppl": self.ppl,
            "seconds": round(self.seconds, 2),
            "samples": [vars(sample) for sample in self.samples],
            "decides": self.deciding_metric,
            "bleu": self.bleu,
        }
        if len(self.by_direction) > 1:
            figures["by_direction"] = self.by_direction
        return figures if self.chrf is None else {**figures, "chrf": self.chrf}

    @property
    def score(self) -> float:
        """The value that selects the best validation, larger for a better one."""
        return quality(vars(self), self.deciding_metric)

    def later_seconds(self, share: float) -> float:
        """The seconds that a validation at the end of training will take.

        At first, a model repeats words up to the maximum length, or writes little; later its translations are as long
        as the references. The less time is left, the less of that is expected.

        Args:
            share: the part of the time limit that has passed, at most 1.
        """
        settled = min(_MAX_FACTOR, max(_MIN_FACTOR, self.length_ratio))
        return self.seconds * (share + (1 - share) * settled)
