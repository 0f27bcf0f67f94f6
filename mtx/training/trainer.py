"""The training loop: steps, validations, checkpoints, and the reasons to stop. Flow: data + model -> checkpoints.

The step fits one screen (`update`). Random numbers of a micro-step are seeded from (seed, step, micro-step), so
nothing but tensors and `State` has to be saved, and a resumed run is the uninterrupted one. The device is never waited
for within a step: its figures are read when they are there.
"""

import contextlib
import gc
import logging
import math
import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from mtx import files
from mtx.config import Config
from mtx.data.loader import LoadedStep, load_steps
from mtx.data.packing import Position, StepPlanner, micro_batch_shape
from mtx.data.prepare import PreparedData
from mtx.errors import DamagedFileError, MtxError, StoppedError, is_out_of_memory
from mtx.model.device import machine, peak_flops
from mtx.model.transformer import training_flops
from mtx.paths import RunPaths
from mtx.run_layout import full_checkpoint_steps
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from mtx.training.chosen import Chosen, new_model
from mtx.training.ending import Ending
from mtx.training.hints import Hints
from mtx.training.init_from import Initial
from mtx.training.lost import Lost
from mtx.training.micro_step import MicroStep
from mtx.training.monitor import Monitor
from mtx.training.refusal import refusal
from mtx.training.report_file import ReportFile
from mtx.training.saving import Saver
from mtx.training.schedule import learning_rate
from mtx.training.signals import InterruptedValidationError, Signals
from mtx.training.validation import validate

logger = logging.getLogger(__name__)

_MAX_UNREAD = 8  # steps that CUDA may be behind


class Trainer:
    """Trains one model from `state` on. `run` returns when training is over and its last checkpoint is written."""

    def __init__(self, config: Config, chosen: Chosen, data: PreparedData, paths: RunPaths, lost: Lost | None = None):
        self.config, self.chosen, self.data, self.paths = config, chosen, data, paths
        self.lost = lost or Lost()
        self.device = torch.device(chosen.device)
        torch.manual_seed(config.seed)
        self.model = new_model(config, chosen, data.tokenizer.num_ids)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
        train = data.train
        weights = train.weights[train.corpus] if (train.weights != 1).any() else None
        tokens = config.training.batch_tokens
        self.planner = StepPlanner(train.src.lengths, train.tgt.lengths, weights, config.seed, tokens)
        self._cut(chosen)
        self._refused = torch.zeros((), device=self.device)  # 1 once a loss or gradient was not finite
        self._unread: deque[_Update] = deque()
        self.report = ReportFile(paths, config, data.tokenizer, self.lost)
        self._saver = Saver(paths, config.training, self.lost)
        self.state = State(data_sha256=data.sha256)
        self._signals = Signals()

    def _cut(self, chosen: Chosen) -> None:
        """Decide how a step is cut into micro-batches, and make ready what runs one."""
        training, longest = self.config.training, self.config.data.max_tokens
        self.chosen = chosen
        self.num_micro_steps, self.shape = micro_batch_shape(
            training.batch_tokens, chosen.micro_batch_tokens, self.planner.ratio, longest
        )
        self.micro_step = MicroStep(self.model, training.label_smoothing, chosen.precision, chosen.compile)

    def resume(self, initial: Initial | None = None) -> None:
        """Go on from the newest whole checkpoint, or start from `initial`, or from random weights.

        Raises:
            DamagedFileError: where no checkpoint is whole, or the data is not what the run was trained on.
        """
        has_checkpoint = bool(full_checkpoint_steps(self.paths))
        assert has_checkpoint or (initial is None) == (self.config.training.init_from is None)
        if has_checkpoint:
            self.state = self._saver.saved = checkpoint.load_newest(self.paths, self.model, self.optimizer)
            if self.state.data_sha256 not in (None, self.data.sha256):
                raise DamagedFileError(
                    f"{self.paths.data}: is not the data that step {self.state.step} of this run was trained on",
                    "put back what was there; another run_dir=DIR starts anew",
                )
            logger.info("going on from step %d", self.state.step)
        elif initial is not None:
            logger.info("starting from the weights of %s", initial.name)
            self.model.load_state_dict(initial.loaded.model.state_dict())
            self.state = replace(self.state, validated_step=-1, init_sha256=initial.sha256)  # it is validated first

    def check_space(self) -> None:
        """Refuse to begin where the disk has no room for what this run will keep.

        Raises:
            MtxError: saying how much is needed and how much is free.
        """
        checkpoint.check_space(self.paths, self.model, self._num_saves(), self.config.training.average_last)

    def space_needed(self) -> int:
        """The most bytes that this run will still write and keep at once."""
        return checkpoint.space_needed(self.paths, self.model, self._num_saves(), self.config.training.average_last)

    def _num_saves(self) -> int:
        training = self.config.training
        steps_left = max(0, training.max_steps - self.state.step)
        return -(-steps_left // min(training.checkpoint_every, training.validate_every)) + 1

    def run(self, started: float) -> None:
        """Train until max_steps, the time limit or early stopping.

        Args:
            started: when the command was given, on the monotonic clock; a time limit counts from there.

        Raises:
            StoppedError: after SIGTERM or SIGINT, when the state is saved.
            MtxError: where a loss or gradient is not finite; nothing was updated by it.
        """
        max_steps = self.config.training.max_steps
        self._ending = Ending(self.config, self.data, started, self.state.elapsed_s)
        known = self._utilisation_per_rate()
        monitor = Monitor(
            self.paths.metrics, self.state.step, max_steps, self.lost, self._ending.at, known,
            Hints(self.config.training.patience, self.state.best_bleu if self.state.best_step else None),
            self.paths.tensorboard if self.config.training.tensorboard else None,
        )  # fmt: skip
        with self._signals.listening(), monitor, contextlib.closing(self._saver):
            about = {**vars(self.chosen), **machine(self.device), "data": self.data.sha256}
            monitor.event("start", step=self.state.step, **about)
            self._saver.status.write("running", "training", self.state.step)
            reason = self._steps(monitor)
            self._save(monitor)
            self._saver.finish(self.state)
            if self._signals.stop is None:
                monitor.end(self.state.step, reason)
        if self._signals.stop is not None:
            raise self._stopped(self._signals.stop)
        if self.state.init_sha256 and not self.state.best_step and self.state.best_bleu > 0:
            logger.warning(
                "no validation was better than that of the model to start from, BLEU %.2f; a smaller "
                "training.learning_rate may be", self.state.best_bleu,
            )  # fmt: skip

    def _steps(self, monitor: Monitor) -> str:
        """Take steps until there is a reason to end; where memory is short, once, with halved micro-batches."""
        halved = False
        while True:
            with contextlib.closing(self.load(self.config.training.max_steps - self.state.step)) as loaded:
                short: str | None = None
                while short is None:
                    if (reason := self._after_step(monitor)) is not None:
                        return reason
                    short = self._step_or_shortage(next(loaded), monitor)
            self._halve(halved, short)
            halved = True

    def _step_or_shortage(self, loaded: LoadedStep, monitor: Monitor) -> str | None:
        """Take one step; where memory is short for it, what torch said, and nothing is changed."""
        try:
            self._step(loaded, monitor)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                return str(error).split("\n")[0][:200] or type(error).__name__
            raise
        return None

    def load(self, num_steps: int) -> Generator[LoadedStep, None, None]:
        """The next steps, in host memory, prepared ahead of the device; to be closed."""
        pin = self.device.type == "cuda"
        return load_steps(
            self.data.train, self.planner, self.state.position, num_steps, self.num_micro_steps, self.shape, pin
        )

    def _halve(self, halved: bool, text: str) -> None:
        """Go on with half the micro-batch; what a step learns from, and its normalisation, stay the same."""
        size, longest = self.chosen.micro_batch_tokens, self.config.data.max_tokens
        if halved or size <= longest:
            smaller = (
                f"training.micro_batch_tokens={max(longest, size // 2)} in a new run_dir, or a smaller model.preset"
            )
            raise MtxError(
                f"step {self.state.step + 1}: out of memory with micro-batches of {size} target tokens: {text}", smaller
            )
        logger.warning("step %d: out of memory; micro-batches are halved from now on (%s)", self.state.step + 1, text)
        self.optimizer.zero_grad()
        del self.micro_step  # a recorded graph holds memory
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._cut(replace(self.chosen, micro_batch_tokens=max(longest, -(-size // 2))))
        files.write_json(self.paths.chosen, vars(self.chosen))

    def _utilisation_per_rate(self) -> float | None:
        """The share of the device's peak that one target token a second is; None where the peak is not known."""
        peak = peak_flops(self.device, self.chosen.precision)
        num_ids, ratio = self.data.tokenizer.num_ids, self.planner.ratio
        return None if peak is None else training_flops(self.config.model, num_ids, ratio) / peak

    def _after_step(self, monitor: Monitor) -> str | None:
        """Validate and save where that is due; the reason to end, if there is one."""
        training, step = self.config.training, self.state.step
        self._saver.settle()
        reason = self._ending.reason(self.state)
        due = reason or step % training.validate_every == 0 or self._ending.needs_measure(self.state)
        if due and self.state.validated_step != step:
            self._validate(monitor)
        asked = self._signals.takes_save()
        if step and (asked or step % training.checkpoint_every == 0 or self.state.best_step == step):
            self._save(monitor)
        return reason or self._ending.reason(self.state)

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
                raise refusal(update.step, loss, norm, update.position, self.planner, self.data.train, self.paths)
            tokens = update.num_tgt_tokens
            monitor.step(update.step, loss, nll / tokens, update.learning_rate, norm, tokens)

    def _leave(self, monitor: Monitor) -> NoReturn:
        """Save and leave, as a signal asked."""
        self._save(monitor)
        self._saver.finish(self.state)
        assert self._signals.stop is not None
        raise self._stopped(self._signals.stop)

    def _stopped(self, number: int) -> StoppedError:
        text = f"stopped by signal {number} after step {self.state.step}; everything is saved"
        return StoppedError(text, number, "the same command goes on from there")

    def update(self, loaded: LoadedStep, step: int, rate: float) -> Tensor | None:
        """One optimizer update from k micro-batches; on CUDA it returns before it is done.

        Where the loss or the gradient is not finite, the weights stay as they are from then on, without the host.

        Returns:
            fp32 [3] on the device: mean loss, summed nll, gradient norm before clipping; None where a signal came.
        """
        self.model.train()
        self.micro_step.start_step()
        for micro_step, batch in enumerate(loaded.micro_batches):
            if self._signals.stop is not None:
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

    def _validate(self, monitor: Monitor) -> None:
        """Validate, and keep count of the best; after a signal save and leave instead."""
        self._read(monitor)
        data = self.config.data
        try:
            with self._signals.interrupting():
                found = validate(self.model, self.data, data.max_tokens, data.tgt)
        except InterruptedValidationError:
            self._leave(monitor)
        state, step = self.state, self.state.step
        better = found.bleu > state.best_bleu
        self.state = replace(
            state, validated_step=step, validation_s=round(found.seconds, 3),
            bad_validations=0 if better else state.bad_validations + 1,
            best_bleu=found.bleu if better else state.best_bleu, best_step=step if better else state.best_step,
        )  # fmt: skip
        monitor.validation(step, found, better, self._ending.elapsed_s())
        with contextlib.suppress(InterruptedValidationError), self._signals.interrupting():
            self.report.renew(self.model)
        monitor.restart_window()

    def _save(self, monitor: Monitor) -> None:
        """Have the checkpoint of this step written, unless it is."""
        self._read(monitor)
        started = time.monotonic()
        state = replace(self.state, elapsed_s=round(self._ending.elapsed_s(), 3))
        if self._saver.save(self.model, self.optimizer, self.state, state):
            self.state = state
            monitor.event("checkpoint", step=state.step, stall_s=round(time.monotonic() - started, 4))
            monitor.restart_window()


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
