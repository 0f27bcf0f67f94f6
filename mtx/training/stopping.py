"""When training ends: after its steps or epochs, when it no longer improves, or early enough for scoring."""

import math
import time

from mtx.config.schema import Config
from mtx.data.preprocess import PreparedData
from mtx.training.checkpoint import State

# Seconds of beam search for a line and a beam, by those of a validation for a line. On six runs of Multi30k (beam 6,
# one busy core) averaging, search and scoring took 1.6 to 5.1 times as long as the last validation: 0.27 to 0.85.
_SEARCH_COST = 0.75
_MOST_RESERVED = 0.5  # of a time limit; beyond it, a limit is too short to be kept, and training matters more


class StoppingCriteria:
    """Measures the time of a run over all its starts, and knows the reasons to stop.

    Args:
        started: when the command was given, on the monotonic clock; a time limit counts from there.
        elapsed_s: seconds of training in earlier starts.

    Attributes:
        agreed_s: the seconds of training that all ranks decide by; None for one process alone, which asks its clock.
    """

    def __init__(self, config: Config, data: PreparedData, started: float, elapsed_s: float):
        self._training, self._beam_size = config.training, config.decoding.beam_size
        self._num_test_lines = sum(store.num_pairs for store in data.tests.values())
        self._num_valid_lines = max(1, data.valid.num_pairs)
        self._began = started - elapsed_s
        self.agreed_s: float | None = None

    def elapsed_s(self) -> float:
        """Seconds of training so far, over all starts."""
        return time.monotonic() - self._began

    def _decisive_s(self) -> float:
        """The seconds that decide when to end."""
        return self.elapsed_s() if self.agreed_s is None else self.agreed_s

    def reason(self, state: State) -> str | None:
        """The key in the section `training` that ends the run in this state, such as "max_steps"; None to continue."""
        training = self._training
        if training.max_steps is not None and state.step >= training.max_steps:
            return "max_steps"
        if training.max_epochs is not None and state.position.epoch >= training.max_epochs:
            return "max_epochs"
        if training.patience is not None and state.bad_validations >= training.patience:
            return "patience"
        limit = training.time_limit
        if limit is not None and state.step and self._decisive_s() > limit - self.reserve_s(limit, state.validation_s):
            return "time_limit"
        return None

    def ends_at(self, state: State) -> float:
        """When the time limit ends training, on the monotonic clock; infinity without a limit."""
        limit = self._training.time_limit
        return math.inf if limit is None else self._began + limit - self.reserve_s(limit, state.validation_s)

    def needs_decoding_time(self, state: State) -> bool:
        """Whether a time limit is set and no validation has measured yet how long decoding takes."""
        limit = self._training.time_limit
        return limit is not None and not state.validation_s and self._decisive_s() > 0.2 * limit

    def reserve_s(self, limit: float, validation_s: float) -> float:
        """Seconds of a time limit that saving, averaging and scoring with beam search will need; half of it at most."""
        per_line = validation_s / self._num_valid_lines
        scoring_s = _SEARCH_COST * self._beam_size * per_line * self._num_test_lines
        return min(0.03 * limit + 10 + validation_s + scoring_s, _MOST_RESERVED * limit)
