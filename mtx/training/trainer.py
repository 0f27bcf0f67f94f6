"""The training loop: steps, validations, checkpoints, and the reasons to stop. Flow: data + model -> checkpoints.

The step fits one screen (`_update`). Random numbers of a micro-step are seeded from (seed, step, micro-step), so
nothing but tensors and `State` has to be saved, and a resumed run is the uninterrupted one.
"""

import contextlib
import logging
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch

from mtx import files
from mtx.config import Config
from mtx.data.loader import LoadedStep, load_steps, to_device
from mtx.data.packing import StepPlanner, micro_batch_shape
from mtx.data.prepare import PreparedData
from mtx.errors import MtxError, StoppedError
from mtx.model.transformer import Transformer
from mtx.paths import RunPaths
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from mtx.training.monitor import Monitor, format_duration
from mtx.training.objective import LossSums, smoothed_loss
from mtx.training.schedule import learning_rate
from mtx.training.validation import validate

logger = logging.getLogger(__name__)


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
        self.state = self._saved = State()
        self._stop = Stop()

    def resume(self) -> None:
        """Go on from the newest full checkpoint, if there is one."""
        files.remove_temporaries(self.paths.checkpoints)
        steps = checkpoint.full_steps(self.paths.checkpoints)
        if steps:
            self.state = self._saved = checkpoint.load(self.paths.checkpoint(steps[-1]), self.model, self.optimizer)
            logger.info("going on from step %d", self.state.step)

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
        with self._stop.listening(), Monitor(self.paths.metrics, self.state.step, max_steps, ends_at) as monitor:
            monitor.event("start", step=self.state.step, **vars(self.chosen))
            with contextlib.closing(loaded):
                while (reason := self._after_step(monitor)) is None:
                    self._step(next(loaded), monitor)
            if self._stop.is_asked():
                self._leave(monitor)
            self._save(monitor)
            monitor.event("end", step=self.state.step, reason=reason)
            logger.info("training ends at step %d (%s)", self.state.step, reason)

    def _after_step(self, monitor: Monitor) -> str | None:
        """Validate and save where that is due; the reason to end, if there is one."""
        training, step = self.config.training, self.state.step
        reason = self._reason_to_end()
        due = reason or step % training.validate_every == 0 or self._needs_measure()
        if step and due and self.state.validated_step != step:
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
        result = self._update(loaded, step, rate)
        if result is None:
            self.optimizer.zero_grad()
            self._leave(monitor)
        self.state = replace(self.state, step=step, position=loaded.after)
        monitor.step(step, result.loss, result.nll, rate, result.grad_norm, loaded.num_tgt_tokens)

    def _leave(self, monitor: Monitor) -> NoReturn:
        """Save and leave, as a signal asked."""
        self._save(monitor)
        number = self._stop.signal_number
        assert number is not None
        text = f"stopped by signal {number} after step {self.state.step}; everything is saved"
        raise StoppedError(text, number, "the same command goes on from there")

    def _update(self, loaded: LoadedStep, step: int, rate: float) -> "StepResult | None":
        """One optimizer update from k micro-batches; None where a signal came first."""
        self.model.train()
        sums: list[LossSums] = []
        smoothing = self.config.training.label_smoothing
        for micro_step, batch in enumerate(loaded.micro_batches):
            if self._stop.is_asked():
                return None
            _seed_all(self.config.seed, step, micro_step)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.chosen.precision == "bf16"):
                loss_sums = self._forward(to_device(batch, self.device), smoothing, 1 / loaded.num_tgt_tokens)
            loss_sums.loss.backward()  # type: ignore[no-untyped-call]
            sums.append(loss_sums)
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        loss = sum(float(s.loss.detach()) for s in sums)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._refuse(step, loss, float(norm))
        if (clip := self.config.training.clip_norm) is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        nll = sum(float(s.nll.detach()) for s in sums) / loaded.num_tgt_tokens
        return StepResult(loss, nll, float(norm))

    def _forward(self, batch: Any, smoothing: float, scale: float) -> LossSums:
        model = self.model
        hidden = model.decode(batch, model.encode(batch))
        return smoothed_loss(hidden, model.output_weight, model.output_bias, batch.tgt_out_ids, smoothing, scale)

    def _refuse(self, step: int, loss: float, norm: float) -> None:
        pairs = self.planner.step(self.state.position).pairs
        lines = ", ".join(str(line) for line in self.data.train.lines()[pairs[:10]])
        raise MtxError(
            f"step {step}: loss {loss}, gradient norm {norm}; nothing was updated. The step holds {len(pairs)} pairs "
            f"of the training text, lines {lines}, …",
            "the last checkpoint stands; a lower training.learning_rate or training.clip_norm=1.0 needs a new run_dir",
        )

    def _validate(self, monitor: Monitor) -> None:
        """Validate, and keep count of the best; after a signal save and leave instead."""
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
        """Write the checkpoint of this step and remove what is no longer needed."""
        if self.state == self._saved:
            return
        started = time.monotonic()
        self.state = self._saved = replace(self.state, elapsed_s=round(started - self._clock, 3))
        checkpoint.save(self.paths, self.model, self.optimizer, self.state)
        training = self.config.training
        checkpoint.prune(self.paths, self.state, training.checkpoint_every, training.average_last)
        monitor.event("checkpoint", step=self.state.step, seconds=round(time.monotonic() - started, 3))
        monitor.restart_window()


@dataclass(frozen=True)
class StepResult:
    """Means per target token of one update, and the gradient's norm before clipping."""

    loss: float
    nll: float
    grad_norm: float


def _seed_all(seed: int, step: int, micro_step: int) -> None:
    """Seed every generator from the place of a micro-step in the run."""
    torch.manual_seed(
        int(np.random.SeedSequence((seed, step, micro_step)).generate_state(1, np.uint64)[0] >> np.uint64(1))
    )
