"""The training loop: steps, validations, checkpoints, and the reasons to stop. Flow: data + model -> checkpoints.

The step fits one screen (`update`). Random numbers of a micro-step are seeded from (seed, step, micro-step), so
nothing but tensors and `State` has to be saved, and a resumed run is the uninterrupted one. The device is never waited
for within a step: its figures are read when they are there.
"""

import contextlib
import logging
import math
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from mtx import files
from mtx.config import Config
from mtx.data.loader import LoadedStep, load_steps
from mtx.data.packing import Position, StepPlanner, micro_batch_shape
from mtx.data.prepare import PreparedData
from mtx.errors import MtxError, StoppedError
from mtx.model.device import peak_flops
from mtx.model.transformer import Transformer, training_flops
from mtx.paths import RunPaths
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from mtx.training.initial import Initial
from mtx.training.micro_step import MicroStep
from mtx.training.monitor import Monitor, format_duration
from mtx.training.schedule import learning_rate
from mtx.training.validation import validate

logger = logging.getLogger(__name__)

_MAX_UNREAD = 8  # steps that CUDA may be behind


@dataclass(frozen=True)
class Chosen:
    """What `auto` became at the first start, kept in chosen.json and reused."""

    device: str
    precision: str
    micro_batch_tokens: int
    kernel: str
    threads: int
    compile: bool


class Stop:
    """Turns SIGTERM and SIGINT into a request that is polled between micro-steps; a second signal acts at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.signal_number = number
        logger.info("signal %d: saving, then stopping (a second one stops at once)", number)

    def is_asked(self) -> bool:
        """Whether a signal came."""
        return self.signal_number is not None

    @contextlib.contextmanager
    def listening(self) -> Iterator["Stop"]:
        old = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


class Trainer:
    """Trains one model from `state` on. `run` returns when training is over and its last checkpoint is written."""

    def __init__(self, config: Config, chosen: Chosen, data: PreparedData, paths: RunPaths):
        self.config, self.chosen, self.data, self.paths = config, chosen, data, paths
        self.device = torch.device(chosen.device)
        torch.manual_seed(config.seed)
        self.model = Transformer(config.model, data.tokenizer.num_ids).to(self.device)
        self.model.kernel = chosen.kernel  # type: ignore[assignment]
        self.model.prepare_positions(config.data.max_tokens)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
        train = data.train
        weights = train.weights[train.corpus] if (train.weights != 1).any() else None
        tokens = config.training.batch_tokens
        self.planner = StepPlanner(train.src.lengths, train.tgt.lengths, weights, config.seed, tokens)
        self.num_micro_steps, self.shape = micro_batch_shape(
            tokens, chosen.micro_batch_tokens, self.planner.ratio, config.data.max_tokens
        )
        self.micro_step = MicroStep(self.model, config.training.label_smoothing, chosen.precision, chosen.compile)
        self._refused = torch.zeros((), device=self.device)  # 1 once a loss or gradient was not finite
        self._unread: deque[_Update] = deque()
        self._writer = checkpoint.Writer()
        self.state = self._saved = State()
        self._stop = Stop()

    def resume(self, initial: Initial | None = None) -> None:
        """Go on from the newest full checkpoint, or start from `initial`, or from random weights."""
        files.remove_temporaries(self.paths.checkpoints)
        steps = checkpoint.full_steps(self.paths.checkpoints)
        assert steps or (initial is None) == (self.config.training.init_from is None)
        if steps:
            self.state = self._saved = checkpoint.load(self.paths.checkpoint(steps[-1]), self.model, self.optimizer)
            logger.info("going on from step %d", self.state.step)
        elif initial is not None:
            logger.info("starting from the weights of %s", initial.name)
            self.model.load_state_dict(initial.loaded.model.state_dict())
            self.state = self._saved = State(validated_step=-1, init_sha256=initial.sha256)  # it is validated first

    def run(self, started: float) -> None:
        """Train until max_steps, the time limit or early stopping.

        Args:
            started: when the command was given, on the monotonic clock; a time limit counts from there.

        Raises:
            StoppedError: after SIGTERM or SIGINT, when the state is saved.
            MtxError: where a loss or gradient is not finite; nothing was updated by it.
        """
        max_steps = self.config.training.max_steps
        self._clock = started - self.state.elapsed_s
        num_steps, pin = max(0, max_steps - self.state.step), self.device.type == "cuda"
        loaded = load_steps(
            self.data.train, self.planner, self.state.position, num_steps, self.num_micro_steps, self.shape, pin
        )
        ends_at = self._clock + (self.config.training.time_limit or math.inf)
        monitor = Monitor(self.paths.metrics, self.state.step, max_steps, ends_at, self._utilisation_per_rate())
        with self._stop.listening(), monitor, contextlib.closing(self._writer):
            monitor.event("start", step=self.state.step, **vars(self.chosen))
            with contextlib.closing(loaded):
                while (reason := self._after_step(monitor)) is None:
                    self._step(next(loaded), monitor)
            if self._stop.is_asked():
                self._leave(monitor)
            self._save(monitor)
            self._writer.wait()
            monitor.event("end", step=self.state.step, reason=reason)
            logger.info("training ends at step %d (%s)", self.state.step, reason)
        if self.state.init_sha256 and not self.state.best_step and self.state.best_bleu > 0:
            logger.warning(
                "no validation was better than that of the model to start from, BLEU %.2f; a smaller "
                "training.learning_rate may be", self.state.best_bleu,
            )  # fmt: skip

    def _utilisation_per_rate(self) -> float | None:
        """The share of the device's peak that one target token a second is; None where the peak is not known."""
        peak = peak_flops(self.device, self.chosen.precision)
        num_ids, ratio = self.data.tokenizer.num_ids, self.planner.ratio
        return None if peak is None else training_flops(self.config.model, num_ids, ratio) / peak

    def _after_step(self, monitor: Monitor) -> str | None:
        """Validate and save where that is due; the reason to end, if there is one."""
        training, step = self.config.training, self.state.step
        self._writer.check()
        reason = self._reason_to_end()
        due = reason or step % training.validate_every == 0 or self._needs_measure()
        if due and self.state.validated_step != step:
            self._validate(monitor)
        if step and (step % training.checkpoint_every == 0 or self.state.best_step == step):
            self._save(monitor)
        return reason or self._reason_to_end()

    def _reason_to_end(self) -> str | None:
        training, state = self.config.training, self.state
        if state.step >= training.max_steps:
            return "max_steps"
        if training.patience is not None and state.bad_validations >= training.patience:
            return "patience"
        limit = training.time_limit
        if limit is not None and state.step and self._elapsed_s() > limit - self._reserve_s(limit):
            return "time_limit"
        return None

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._clock

    def _needs_measure(self) -> bool:
        """Whether a time limit is set and nobody knows yet how long decoding takes."""
        limit = self.config.training.time_limit
        return limit is not None and not self.state.validation_s and self._elapsed_s() > 0.2 * limit

    def _reserve_s(self, limit: float) -> float:
        """Seconds of a time limit that saving, averaging and scoring with beam search will need."""
        num_lines = sum(store.num_pairs for store in self.data.tests.values())
        validation_s = self.state.validation_s
        per_line = validation_s / max(1, self.data.valid.num_pairs)
        return 0.03 * limit + 10 + validation_s + 2 * self.config.decoding.beam_size * per_line * num_lines

    def _step(self, loaded: LoadedStep, monitor: Monitor) -> None:
        training, step = self.config.training, self.state.step + 1
        rate = learning_rate(step, training.warmup_steps, self.config.model.d_model, training.learning_rate)
        figures = self.update(loaded, step, rate)
        if figures is None:
            self.optimizer.zero_grad()
            self._leave(monitor)
        ready = None
        if self.device.type == "cuda":
            figures = torch.empty(3, pin_memory=True).copy_(figures, non_blocking=True)
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        self._unread.append(_Update(step, self.state.position, rate, loaded.num_tgt_tokens, figures, ready))
        self.state = replace(self.state, step=step, position=loaded.after)
        self._read(monitor, _MAX_UNREAD)

    def _read(self, monitor: Monitor, max_unread: int = 0) -> None:
        """Report the updates whose figures are there, and wait for the oldest while more than `max_unread` are not.

        Raises:
            MtxError: where one was refused.
        """
        unread = self._unread
        while unread and (len(unread) > max_unread or unread[0].ready is None or unread[0].ready.query()):
            update = unread.popleft()
            if update.ready is not None:
                update.ready.synchronize()
            loss, nll, norm = update.figures.tolist()
            if not all(map(math.isfinite, (loss, nll, norm))):
                self._refuse(update, loss, norm)
            tokens = update.num_tgt_tokens
            monitor.step(update.step, loss, nll / tokens, update.learning_rate, norm, tokens)

    def _leave(self, monitor: Monitor) -> NoReturn:
        """Save and leave, as a signal asked."""
        self._save(monitor)
        self._writer.wait()
        number = self._stop.signal_number
        assert number is not None
        text = f"stopped by signal {number} after step {self.state.step}; everything is saved"
        raise StoppedError(text, number, "the same command goes on from there")

    def update(self, loaded: LoadedStep, step: int, rate: float) -> Tensor | None:
        """One optimizer update from k micro-batches; on CUDA it returns before it is done.

        Where the loss or the gradient is not finite, the weights stay as they are from then on, without the host.

        Returns:
            fp32 [3] on the device: mean loss, summed nll, gradient norm before clipping; None where a signal came.
        """
        self.model.train()
        self.micro_step.start_step()
        for micro_step, batch in enumerate(loaded.micro_batches):
            if self._stop.is_asked():
                return None
            _seed_all(self.config.seed, step, micro_step)
            self.micro_step(batch, 1 / loaded.num_tgt_tokens)
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        figures = torch.cat([self.micro_step.sums, norm.float().view(1)])
        self._refused = torch.maximum(self._refused, (~figures.isfinite().all()).float())
        if (clip := self.config.training.clip_norm) is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.found_inf = self._refused  # type: ignore[attr-defined]  # fused Adam then changes nothing
        self.optimizer.step()
        return figures

    def _refuse(self, update: "_Update", loss: float, norm: float) -> NoReturn:
        pairs = self.planner.step(update.position).pairs
        lines = ", ".join(str(line) for line in self.data.train.lines()[pairs[:10]])
        raise MtxError(
            f"step {update.step}: loss {loss}, gradient norm {norm}; nothing was updated. The step holds {len(pairs)} "
            f"pairs of the training text, lines {lines}, …",
            "the last checkpoint stands; a lower training.learning_rate or training.clip_norm=1.0 needs a new run_dir",
        )

    def _validate(self, monitor: Monitor) -> None:
        """Validate, and keep count of the best; after a signal save and leave instead."""
        self._read(monitor)
        data = self.config.data
        found = validate(self.model, self.data, data.max_tokens, data.tgt, self._stop.is_asked)
        if found is None:
            self._leave(monitor)
        state, step = self.state, self.state.step
        better = found.bleu > state.best_bleu
        self.state = replace(
            state, validated_step=step, validation_s=round(found.seconds, 3),
            bad_validations=0 if better else state.bad_validations + 1,
            best_bleu=found.bleu if better else state.best_bleu, best_step=step if better else state.best_step,
        )  # fmt: skip
        seconds = round(found.seconds, 2)
        monitor.event("validation", step=step, nll=found.nll, ppl=found.ppl, bleu=found.bleu, seconds=seconds)
        monitor.restart_window()
        logger.info(
            "step %d of %d: validation nll %.3f, ppl %.2f, BLEU %.2f%s (%s)", step, self.config.training.max_steps,
            found.nll, found.ppl, found.bleu, " (best)" if better else "",
            format_duration(self._elapsed_s()),
        )  # fmt: skip

    def _save(self, monitor: Monitor) -> None:
        """Have the checkpoint of this step written, and what is no longer needed removed."""
        self._read(monitor)
        if not self.state.step or self.state == self._saved:
            return
        started = time.monotonic()
        self.state = self._saved = replace(self.state, elapsed_s=round(started - self._clock, 3))
        training = self.config.training
        self._writer.write(
            partial(checkpoint.save, self.paths, checkpoint.snapshot(self.model, self.optimizer), self.state),
            partial(checkpoint.prune, self.paths, self.state, training.checkpoint_every, training.average_last),
        )
        monitor.event("checkpoint", step=self.state.step, stall_s=round(time.monotonic() - started, 4))


@dataclass(frozen=True)
class _Update:
    """An update whose figures may still be on the device.

    Attributes:
        position: of its data.
        figures: in host memory, see `Trainer.update`; there once `ready` has happened.
    """

    step: int
    position: Position
    learning_rate: float
    num_tgt_tokens: int
    figures: Tensor
    ready: Any


def _seed_all(seed: int, step: int, micro_step: int) -> None:
    """Seed every generator from the place of a micro-step in the run."""
    torch.manual_seed(
        int(np.random.SeedSequence((seed, step, micro_step)).generate_state(1, np.uint64)[0] >> np.uint64(1))
    )
