"""Hints about unusual figures of a training, each with what to try. Flow: losses, validations -> hints.

A hint is not an error: training continues. Each kind of hint is given once per start of a run.
"""

import statistics
from dataclasses import dataclass, field

from mtx.errors import Advice
from mtx.evaluation.traits import ALIKE

_WINDOW = 50  # steps whose nll is averaged to one value
_JUMP = 0.3  # nats per token by which a window's mean exceeds the lowest before it
_FLAT, _FLAT_STEPS = 0.01, 1000  # nats per token, and the number of steps in which the mean fell by no more
_RISE, _RISING = 0.02, 3  # nats per token above the lowest validation, and validations in a row
_HIGH = 4.0  # nats per token; no useful model has a higher training nll


@dataclass
class Hints:
    """Watches the figures of one start of a run; each method returns a hint or None."""

    _given_kinds: set[str] = field(default_factory=set)
    _window: list[float] = field(default_factory=list)
    _means: list[tuple[int, float]] = field(default_factory=list)
    _lowest_valid: tuple[float, float | None] | None = None  # validation nll, and the training mean at that time
    _num_rising: int = 0

    def step(self, step: int, nll: float, learning_rate: float) -> Advice | None:
        """After each update; `nll` is its mean per target token."""
        self._window.append(nll)
        if len(self._window) < _WINDOW:
            return None
        mean = statistics.fmean(self._window)
        self._window.clear()
        self._means.append((step, mean))
        lowest_step, lowest = min(self._means, key=lambda pair: pair[1])
        if mean > lowest + _JUMP:
            text = (
                f"the training nll rose from {lowest:.2f} (step {lowest_step:,}) to {mean:.2f}: the learning rate, now "
                f"{learning_rate:.1e}, may be too high"
            )
            return self._once("jump", text, "try half the training.learning_rate, or more warmup_steps")
        since = next(earlier for earlier, value in self._means if value < mean + _FLAT)
        if step - since >= max(_FLAT_STEPS, step / 3):
            text = f"the training nll is flat at {mean:.2f} since step {since:,}"
            help = "it has learned what it can; more text or a larger model.preset would go further"
            if mean > _HIGH:
                help = "do the two sides belong together, line by line? Else try another training.learning_rate"
            return self._once("flat", text, help)
        return None

    def validation(self, nll: float, is_best: bool, hypotheses: list[str]) -> Advice | None:
        """After each validation; `is_best` tells whether its score is the best so far."""
        if self._means and len(hypotheses) > 20 and len(set(hypotheses)) < ALIKE * len(hypotheses):
            text = "most translations are the same, so the model does not look at its source yet"
            return self._once("alike", text, "it may need more steps")
        trained = self._means[-1][1] if self._means else None
        if self._lowest_valid is None or nll < self._lowest_valid[0]:
            self._lowest_valid, self._num_rising = (nll, trained), 0
            return None
        lowest, trained_then = self._lowest_valid
        self._num_rising = 0 if is_best or nll < lowest + _RISE else self._num_rising + 1
        if self._num_rising < _RISING or trained_then is None or trained is None or trained >= trained_then:
            return None
        return self._once(
            "overfits",
            f"the validation nll rises ({lowest:.2f} to {nll:.2f}) while that of training falls, so the model learns "
            "its text by heart",
            "a larger model.dropout, a smaller model.preset or more text helps",
        )

    def _once(self, kind: str, text: str, help: str) -> Advice | None:
        if kind in self._given_kinds:
            return None
        self._given_kinds.add(kind)
        return Advice(text, help)
