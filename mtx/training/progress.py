"""The progress of a training: the figures of its updates, read when they have arrived, its speed, and the time left."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mtx.data.sampler import BatchSampler, SamplerState
from mtx.data.token_store import TokenStore
from mtx.errors import MtxError
from mtx.model.cuda_graphs import HostCopy
from mtx.storage import durable
from mtx.storage.run_files import RunLayout

_MAX_UNREAD = 8  # steps that CUDA may lag behind the host
_RATE_STEPS = 10  # steps that a speed is averaged over: a GPU's figures come several steps at a time


@dataclass(frozen=True)
class Update:
    """An update whose figures (see `Trainer.update`) the host has not read yet.

    Attributes:
        position: where its data begins.
        epochs: how many are done after it.
    """

    step: int
    position: SamplerState
    learning_rate: float
    num_tgt_tokens: int
    figures: HostCopy
    epochs: float


class Progress:
    """The progress of one start of a run.

    Args:
        done: steps of earlier starts.
        utilisation_per_rate: the share of the device's peak that one target token per second uses, if it is known.
    """

    def __init__(self, done: int, utilisation_per_rate: float | None = None):
        self._done, self._utilisation_per_rate = done, utilisation_per_rate
        self._started = math.inf
        self._tokens = 0  # target tokens of this start
        self._window: deque[tuple[float, int]] = deque(maxlen=_RATE_STEPS + 1)  # time, and `_tokens` at that time
        self._unread: deque[Update] = deque()

    def restart(self) -> None:
        """Start a new window of the speed, so that it leaves out the time of validating and saving."""
        now = time.monotonic()
        self._started = min(self._started, now)
        self._window.clear()
        self._window.append((now, self._tokens))

    def add(self, update: Update) -> None:
        """Add an update that the device may still be working on."""
        self._unread.append(update)

    def arrived(self, wait: bool) -> Iterator[tuple[Update, list[float]]]:
        """The updates whose figures have arrived, in order; waits while more than `_MAX_UNREAD` have not, or for all.

        Args:
            wait: for all.
        """
        most = 0 if wait else _MAX_UNREAD
        while self._unread and (len(self._unread) > most or self._unread[0].figures.is_ready()):
            update = self._unread.popleft()
            yield update, update.figures.tensor().tolist()

    def measure(self, update: Update, numbers: list[float], last: int, ends_at: float) -> dict[str, Any]:
        """What metrics.jsonl has of an update, with the speed, the time left, and the share of the peak if it is known.

        Args:
            numbers: see `Trainer.update`.
            last: the step at which training will end.
            ends_at: when a time limit ends it, on the monotonic clock.
        """
        loss, nll, norm = numbers
        self._tokens += update.num_tgt_tokens
        now = time.monotonic()
        since, tokens = self._window[0]
        self._window.append((now, self._tokens))
        rate = (self._tokens - tokens) / (now - since)
        step_s = (now - self._started) / (update.step - self._done)  # validations included
        left = max(0.0, min(step_s * (last - update.step), ends_at - now))
        figures = {
            "step": update.step,
            "loss": round(loss, 5),
            "nll": round(nll / update.num_tgt_tokens, 5),
            "learning_rate": update.learning_rate,
            "grad_norm": round(norm, 5),
            "tgt_tokens_per_s": round(rate, 1),
            "left_s": round(left, 1),
            "epochs": round(update.epochs, 6),
        }
        if self._utilisation_per_rate is not None:
            figures["utilisation"] = round(rate * self._utilisation_per_rate, 4)
        return figures


def check_finite(
    update: Update, figures: list[float], sampler: BatchSampler, text: TokenStore, paths: RunLayout
) -> None:
    """Raise MtxError if the loss or the gradient norm of an update is not finite; refused.tsv then has its pairs."""
    if all(map(math.isfinite, figures)):
        return
    loss, _, norm = figures
    position, refused = update.position, paths.refused
    pairs = sampler.step(position).pairs
    lines = text.lines()[pairs]
    rows = zip(lines, *text.texts(pairs), strict=True)
    with contextlib.suppress(OSError):  # the error itself matters more
        durable.write_text(refused, "".join(f"{line}\t{src}\t{tgt}\n" for line, src, tgt in rows))
    first = ", ".join(map(str, lines[:10]))
    raise MtxError(
        f"step {update.step}: loss {loss}, gradient norm {norm}; nothing was updated. The step takes {len(pairs)} "
        f"pairs from place {position.index} of epoch {position.epoch} on, "
        f"lines {first}, … of the training text, see {refused}",
        "the last checkpoint is intact; a lower training.learning_rate or clip_norm=1.0 needs a new run_dir",
    )
