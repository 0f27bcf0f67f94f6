"""When training ends: after its steps or epochs, when it no longer improves, or early enough for scoring."""

import math
import time

from mtx.config.schema import Config
from mtx.data.token_store import PreparedData
from mtx.training.averaging import NUM_MEANS
from mtx.training.checkpoint import State
from mtx.training.schedule import Cooldown

# Seconds of beam search for a line and a beam, by those of a validation for a line. On six runs of Multi30k (beam 6,
# one busy core) averaging, search and scoring took 1.6 to 5.1 times as long as the last validation: 0.27 to 0.85.
_SEARCH_COST = 0.75
_MARGIN = 0.97  # of the steps that a time limit has room for, so that a cooldown ends before it
_TIMED_SHARE, _TIMED_STEPS = 0.01, 3  # of a time limit, and steps, that show the speed of a start
_MOST_RESERVED = 0.5  # of a time limit; beyond it, a limit is too short to be kept, and training matters more


class StoppingCriteria:
    """Measures the time of a run over all its starts, and knows the reasons to stop.

    Args:
        started: when the command was given, on the monotonic clock; a time limit counts from there.
        elapsed_s: seconds of training in earlier starts.
        num_ranks: how many share a validation; the final weights are chosen by one.

    Attributes:
        agreed_s: the seconds of training that all ranks decide by; None for one process alone, which asks its clock.
    """

    def __init__(self, config: Config, data: PreparedData, started: float, elapsed_s: float, num_ranks: int = 1):
        self._training = config.training
        search = _SEARCH_COST * config.decoding.beam_size * sum(store.num_pairs for store in data.tests.values())
        # What follows the last step: a validation, those of `averaging`, and the translation of the test sets.
        self._validations_at_end = 1 + NUM_MEANS * num_ranks + search / max(1, data.valid.num_pairs)
        self._began = started - elapsed_s
        self.agreed_s: float | None = None
        self._timed_from: tuple[float, int] | None = None  # seconds of training at a step of this start

    def elapsed_s(self) -> float:
        """Seconds of training so far, over all starts."""
        return time.monotonic() - self._began

    def _decisive_s(self) -> float:
        """The seconds that decide when to end."""
        return self.elapsed_s() if self.agreed_s is None else self.agreed_s

    def reason(self, state: State) -> str | None:
        """The key in the section `training` that ends the run in this state, such as "max_steps"; None to continue."""
        training, cooldown = self._training, state.cooldown
        if training.max_steps is not None and state.step >= training.max_steps:
            return "max_steps"
        if cooldown is not None and state.step >= cooldown.last:
            return cooldown.reason
        if state.step and self._decisive_s() > self._usable_s(state):
            return "time_limit"
        if cooldown is not None:  # it was planned for one of these, and follows its plan
            return None
        if training.max_epochs is not None and state.position.epoch >= training.max_epochs:
            return "max_epochs"
        if training.patience is not None and state.bad_validations >= training.patience:
            return "patience"
        return None

    def plan_cooldown(self, state: State, planned: tuple[int, str]) -> Cooldown | None:
        """The cooldown that begins after `state`, if it is time for one.

        Its share of the steps is `training.cooldown`. It begins early enough for what will end the training, or when
        training.patience has run out.

        Args:
            planned: the step at which training ends by max_steps or max_epochs, and which of the two ends it.
        """
        training = self._training
        step = state.step
        share = training.cooldown
        if not share or state.cooldown is not None or not step:
            return state.cooldown
        elapsed_s = self._decisive_s()
        usable_s = self._usable_s(state)
        self._timed_from = self._timed_from or (elapsed_s, step)
        ends = []
        if step >= planned[0] - round(share * planned[0]):
            ends.append(planned)
        if elapsed_s >= (1 - share) * usable_s:
            ends.append((self._last_step(step, elapsed_s, usable_s), "time_limit"))
        if training.patience is not None and state.bad_validations >= training.patience:
            ends.append((step + math.ceil(step * share / (1 - share)), "patience"))
        if not ends:
            return None
        last, reason = min([*ends, planned])
        return Cooldown(step + 1, last, reason, float(getattr(training, reason)))

    def end_by_time_limit(self, state: State) -> int | None:
        """The step at which the time limit will end training, once a few steps of this start have shown its speed."""
        step = state.step
        elapsed_s = self._decisive_s()
        usable_s = self._usable_s(state)
        if usable_s == math.inf or not step:
            return None
        first_s, first_step = self._timed_from = self._timed_from or (elapsed_s, step)
        if step < first_step + _TIMED_STEPS or elapsed_s < first_s + _TIMED_SHARE * usable_s:
            return None
        return self._last_step(step, elapsed_s, usable_s)

    def _last_step(self, step: int, elapsed_s: float, usable_s: float) -> int:
        """The last step that the time has room for, if the next ones take as long as before; one more at least."""
        assert self._timed_from is not None
        first_s, first_step = self._timed_from if self._timed_from[1] < step else (0.0, 0)
        left = _MARGIN * max(0.0, usable_s - elapsed_s)
        return step + max(1, int(left * (step - first_step) / max(1e-6, elapsed_s - first_s)))

    def ends_at(self, state: State) -> float:
        """When the time limit ends training, on the monotonic clock; infinity without a limit."""
        return self._began + self._usable_s(state)

    def needs_decoding_time(self, state: State) -> bool:
        """Whether a time limit is set and no validation has measured yet how long decoding takes."""
        limit = self._training.time_limit
        return limit is not None and not state.validation_s and self._decisive_s() > 0.2 * limit

    def _usable_s(self, state: State) -> float:
        """The seconds of the time limit in which steps can be taken; infinity without a limit.

        The rest, at most half of it, is for saving, averaging and scoring with beam search.
        """
        limit = self._training.time_limit
        if limit is None:
            return math.inf
        reserve_s = 0.03 * limit + 10 + self._validations_at_end * state.validation_s
        return limit - min(reserve_s, _MOST_RESERVED * limit)
