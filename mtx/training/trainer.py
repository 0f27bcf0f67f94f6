"""The training loop: batches in, hooks out. `mtx.training.build` makes a `Trainer`, `mtx.training.run` calls it.

The random numbers of a micro-step are seeded from (seed, step, micro-step), so a checkpoint holds only tensors and
`State`, and a resumed run equals an uninterrupted one bit for bit. Training never waits for the device within a step.
With several ranks each runs its share of the micro-batches, and their `Strategy` adds up the gradients. All translate a
part of the validation text; rank 0 alone scores, saves and has hooks, and the others wait for it.
"""

import contextlib
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mtx.config.limits import MAX_COUNT
from mtx.config.schema import Config
from mtx.data.packing import LoadedStep, load_steps
from mtx.data.sampler import BatchSampler, steps
from mtx.data.token_store import PreparedData, TokenStore
from mtx.errors import DeferredErrors, StoppedError, first_line, is_out_of_memory
from mtx.model.cuda_graphs import HostCopy
from mtx.model.device import free_unused_memory, machine
from mtx.storage.run_directory import write_status
from mtx.storage.run_files import RunLayout
from mtx.training.checkpoint import AsyncCheckpointer, State
from mtx.training.hooks import Hook, Progress, Update, check_finite
from mtx.training.micro_batch import RuntimeChoices, halve, new_micro_step, seed_micro_step, step_shape
from mtx.training.optimizer import WeightUpdate
from mtx.training.ranks import Ranks
from mtx.training.schedule import Schedule
from mtx.training.signals import InterruptedTrainingError, Signals, handle_signals, handled_signals
from mtx.training.strategy import Strategy
from mtx.training.validation import deciding_metric, validate_part, validation_of


@dataclass(eq=False, repr=False)
class Trainer:
    """Trains one model: `train` takes steps until there is a reason to stop.

    Attributes:
        text: what it learns from.
        state: the progress; replaced, never changed.
        cleanup: closes what hooks have opened when the loop ends, however it ends.
    """

    config: Config
    runtime: RuntimeChoices
    data: PreparedData
    paths: RunLayout
    ranks: Ranks
    deferred_errors: DeferredErrors
    text: TokenStore
    sampler: BatchSampler
    strategy: Strategy
    state: State
    schedule: Schedule
    checkpointer: AsyncCheckpointer
    progress: Progress
    hooks: Sequence[Hook] = ()
    has_halved: bool = False
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.device = torch.device(self.runtime.device)
        self.model, self.optimizer = self.strategy.model, self.strategy.optimizer
        self._signals = Signals(self.paths.status, self.ranks.size > 1)
        self.divide_steps()

    def divide_steps(self) -> None:
        """Divide a step into micro-batches of the size in `runtime`, and make what runs one and what ends a step."""
        strategy, clip_norm = self.strategy, self.config.training.clip_norm
        self.num_micro_steps, self.shape = step_shape(self.config, self.runtime, self.sampler, self.ranks.size)
        self.micro_step = run = new_micro_step(self.config, self.runtime, self.model, strategy.root)
        self.update_weights = WeightUpdate(self.optimizer, run.sums, strategy.gradient_norm, clip_norm, run.is_static)

    def train(self, hooks: Sequence[Hook] = ()) -> None:
        """Train until max_steps, max_epochs, the time limit or early stopping. All ranks call this together.

        Raises:
            StoppedError: after SIGTERM, SIGINT or SIGHUP, when the state is saved.
            MtxError: if a loss or gradient is not finite; the weights keep their values.
        """
        ranks, reason = self.ranks, ""
        with self.cleanup:
            self.cleanup.callback(self.checkpointer.close)
            if ranks.is_rank_zero:
                self.hooks = hooks
            ranks.run_on_rank_zero(self._start)
            with handle_signals(self._signals.handle, handled_signals()):
                with contextlib.suppress(InterruptedTrainingError):
                    reason = self._take_steps()
                self._save()
                stop = int(*ranks.maximum(self._signals.stop))
                if ranks.is_rank_zero:
                    self.checkpointer.finish(self.state)
                    if not stop:
                        self.record("end", step=self.state.step, reason=reason)
        ranks.begin_step(0)
        if stop:
            text = f"stopped by signal {stop} after step {self.state.step}; the state is saved"
            raise StoppedError(text, stop, "rerun the same command to resume")

    def _start(self) -> None:
        for hook in self.hooks:
            hook.on_start(self)
        about = {**vars(self.runtime), **machine(self.device), "ranks": self.ranks.size, "data": self.data.sha256}
        self.record("start", step=self.state.step, **about)
        write_status(self.paths, self.deferred_errors, state="running", stage="training", step=self.state.step)
        self.progress.restart()

    def record(self, name: str, **values: Any) -> None:
        """Record an event of the run, which metrics.jsonl will have."""
        for hook in self.hooks:
            hook.on_event(self, name, values)

    def _take_steps(self) -> str:
        """Take steps until there is a reason to stop, and return it; the first out-of-memory halves the micro-batch."""
        while True:
            shortage: str | None = None
            with contextlib.closing(self.load(MAX_COUNT)) as loaded:
                while shortage is None:
                    try:
                        if (reason := self._finish_step()) is not None:
                            return reason
                        self._step(next(loaded))
                    except (RuntimeError, MemoryError) as error:
                        if not is_out_of_memory(error):
                            raise
                        shortage = first_line(error)
            halve(self, shortage)

    def load(self, num_steps: int) -> Generator[LoadedStep, None, None]:
        """The batches of the next steps, prepared ahead in host memory; the caller closes the generator."""
        position, pin, ranks = self.state.position, self.device.type == "cuda", self.ranks
        planned = steps(self.sampler, position, num_steps)
        return load_steps(
            self.text, planned, self.num_micro_steps, self.shape, pin, ranks.rank, ranks.size, self.model.start_id
        )

    def _step(self, loaded: LoadedStep) -> None:
        """Take one step, and report the earlier steps whose figures have arrived."""
        state, step = self.state, self.state.step + 1
        self.ranks.begin_step(step)
        rate = self.schedule.learning_rate(state, step)
        figures = self.update(loaded, step, rate)
        self.state = replace(state, step=step, position=loaded.after)
        if self.ranks.is_rank_zero:
            copy, epochs = HostCopy(figures), self.sampler.epochs(loaded.after)
            self.progress.unread.append(Update(step, state.position, rate, loaded.num_tgt_tokens, copy, epochs))
        self._report_updates()

    def update(self, loaded: LoadedStep, step: int, rate: float) -> Tensor:
        """One optimizer update from k micro-batches; on CUDA it returns before the work is done.

        Returns:
            see `WeightUpdate`.

        Raises:
            InterruptedTrainingError: in a process alone, if a signal to stop arrived.
        """
        ranks = self.ranks
        self.micro_step.start_step()
        for number, batch in enumerate(loaded.micro_batches):
            self.strategy.begin_micro_step(is_last=number == len(loaded.micro_batches) - 1)
            if ranks.size == 1 and self._signals.stop:
                raise InterruptedTrainingError
            seed_micro_step(self.device, self.config.seed, step, ranks.rank + number * ranks.size)
            self.micro_step(batch, 1 / loaded.num_tgt_tokens)
        self.strategy.reduce_gradients(self.micro_step.sums)
        return self.update_weights(rate)

    def _report_updates(self, wait: bool = False) -> None:
        """Report the updates whose figures have arrived; raises MtxError if those of one are not finite."""
        for update, numbers in self.progress.pop_arrived(wait):
            check_finite(update, numbers, self.sampler, self.text, self.paths)
            last, _ = self.schedule.end(self.state)
            figures = self.progress.measure(update, numbers, last, self.schedule.ends_at(self.state))
            figures["max_steps"] = self.schedule.known_end(self.state)
            figures["elapsed_s"] = round(self.schedule.now_s, 3)
            self.record("train", **figures)
            for hook in self.hooks:
                hook.on_step(self, figures)

    def _finish_step(self) -> str | None:
        """Agree with the other ranks on signals and the time, and validate and save when due.

        Returns:
            the key of `training` that ends training here, if there is one.

        Raises:
            InterruptedTrainingError: on all ranks if a signal asked one of them to stop.
        """
        training, signals, step = self.config.training, self._signals, self.state.step
        self.checkpointer.settle()
        requested, signals.save_requested = signals.save_requested, False
        # A small model on a GPU would wait for every save. On a CPU, what is averaged must not depend on time.
        may_skip = self.device.type == "cuda" and not training.deterministic
        skip = may_skip and self.checkpointer.is_writing
        stop, save, skips, self.schedule.now_s = self.ranks.maximum(
            signals.stop, requested, skip, self.schedule.elapsed_s()
        )
        if stop:
            raise InterruptedTrainingError
        self._plan()
        reason = self.schedule.reason_to_stop(self.state)
        is_due = reason or step % training.validate_every == 0 or self.schedule.needs_decoding_time(self.state)
        if is_due and self.state.validated_step != step:
            self._validate()
            self._plan()  # training.patience may have run out
        is_regular = step % training.checkpoint_every == 0 and not skips
        if step and (save or is_regular or self.state.best_step == step):
            self._save()
        return reason or self.schedule.reason_to_stop(self.state)

    def _plan(self) -> None:
        plan = self.schedule.plan_cooldown(self.state)
        if self.state.cooldown is None and plan is not None:
            self.state = replace(self.state, cooldown=plan)
            self.record("cooldown", first=plan.first, last=plan.last, reason=plan.reason)

    def _validate(self) -> None:
        """Validate and keep track of the best; a signal to stop interrupts it and leaves the state unchanged."""
        model, ranks = self.strategy.whole_model(), self.ranks
        self._report_updates(wait=True)
        started = time.monotonic()

        def work() -> dict[str, Any] | None:
            with contextlib.suppress(InterruptedTrainingError), self._signals.interrupt():
                return validate_part(model, self.data, self.config, ranks.rank, ranks.size)
            return None

        parts = [part for part in ranks.gather(work) if part is not None]
        if len(parts) < ranks.size:
            raise InterruptedTrainingError

        def report() -> tuple[State, float]:
            metric = deciding_metric(self.data, self.config)
            validation = validation_of(parts, self.data, self.config.data.tgt, metric, started)
            state = replace(
                self.state,
                validated_step=self.state.step,
                validation_s=round(validation.later_seconds, 3),
                bad_validations=self.state.bad_validations + 1,
            )
            if state.best_bleu is None or validation.score > state.best_bleu:
                state = replace(state, bad_validations=0, best_bleu=validation.score, best_step=state.step)
            self.state = state
            self.record("validation", step=state.step, **validation.figures())
            for hook in self.hooks:
                hook.on_validation(self, validation, model)
            self.progress.restart()
            return state, self.schedule.elapsed_s()

        self.state, now_s = ranks.run_on_rank_zero(report)
        self.schedule.skip_validation(now_s)

    def _save(self) -> None:
        """Start to write the checkpoint of this step, unless it is written already."""
        self._report_updates(wait=True)
        started, ranks = time.monotonic(), self.ranks
        if not ranks.run_on_rank_zero(lambda: self.checkpointer.is_due(self.state)):
            return
        copies = self.strategy.snapshot()

        def write() -> None:
            self.state = replace(self.state, elapsed_s=round(self.schedule.elapsed_s(), 3))
            self.checkpointer.save(copies, self.state)
            self.record("checkpoint", step=self.state.step, stall_s=round(time.monotonic() - started, 4))
            for hook in self.hooks:
                hook.on_checkpoint(self)
            self.progress.restart()

        ranks.run_on_rank_zero(write)

    def release(self) -> None:
        """Free the model, Adam's moments and a recorded step: a small GPU has no room for them and a model to score."""
        del self.model, self.optimizer, self.micro_step, self.update_weights, self.strategy
        free_unused_memory(self.device)
