"""The training loop: batches in, hooks out. `mtx.training.build` makes a `Trainer`, `mtx.training.run` calls it.

The random numbers of a micro-step are seeded from (seed, step, micro-step), so a checkpoint holds only tensors and
`State`, and a resumed run equals an uninterrupted one bit for bit. Training never waits for the device within a step:
the figures of an update are read when they have arrived.
With several ranks each runs its share of the micro-batches, and their `Strategy` adds up the gradients. All translate a
part of the validation text; rank 0 alone scores, saves and has hooks, and the others wait for it.
"""

import logging
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mtx.config.limits import MAX_COUNT
from mtx.data.packing import LoadedStep, load_steps
from mtx.data.sampler import BatchSampler, SamplerState, steps
from mtx.errors import MtxError, StoppedError, first_line, is_out_of_memory
from mtx.formatting import divide_up
from mtx.model.cuda_graphs import HostCopy
from mtx.model.device import free_unused_memory, machine
from mtx.model.translation_model import TranslationModel
from mtx.runs.run_directory import write_status
from mtx.storage.durable import Json, read_json, write_json, write_text
from mtx.storage.run_files import checkpoint_steps
from mtx.training.checkpoint import AsyncCheckpointer, State
from mtx.training.events import Run, Validation
from mtx.training.hooks import Hook
from mtx.training.micro_batch import new_micro_step, seed_micro_step, step_shape
from mtx.training.ranks import InterruptedTrainingError, Ranks, Signals, handle_signals, handled_signals
from mtx.training.schedule import count_validation
from mtx.training.strategy import Strategy, WeightUpdate

logger = logging.getLogger(__name__)

_MAX_UNREAD = 8  # steps that CUDA may lag behind the host
_RATE_STEPS = 10  # steps that a speed is averaged over: a GPU's figures come several steps at a time


class Update(NamedTuple):
    """An update whose figures (see `WeightUpdate`) the host has not read yet.

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
    """The speed of one start of a run.

    Args:
        num_earlier: steps of earlier starts.

    Attributes:
        unread: updates that the device may still be working on.
    """

    def __init__(self, num_earlier: int):
        self._num_earlier = num_earlier
        self._started = math.inf
        self._tokens = 0  # target tokens of this start
        self._window = deque[tuple[float, int]](maxlen=_RATE_STEPS + 1)  # time, and `_tokens` at that time
        self.unread = deque[Update]()

    def restart(self) -> None:
        """Start a new window of the speed, which excludes the time of validating and saving."""
        now = time.monotonic()
        self._started = min(self._started, now)
        self._window.clear()
        self._window.append((now, self._tokens))

    def pop_arrived(self, wait: bool) -> Iterator[tuple[Update, list[float]]]:
        """The updates whose figures have arrived, in order; waits while more than `_MAX_UNREAD` have not, or for all.

        Args:
            wait: for all.
        """
        max_unread = 0 if wait else _MAX_UNREAD
        while self.unread and (len(self.unread) > max_unread or self.unread[0].figures.is_ready()):
            update = self.unread.popleft()
            yield update, update.figures.tensor().tolist()

    def measure(self, update: Update, figures: list[float], last_step: int, most_s: float) -> Json:
        """The event of an update for metrics.jsonl, with the speed and the remaining time.

        Args:
            figures: see `WeightUpdate`.
            last_step: the one at which training will end.
            most_s: the seconds that a time limit leaves.
        """
        loss, nll, norm = figures
        self._tokens += update.num_tgt_tokens
        now = time.monotonic()
        window_start, tokens = self._window[0]
        self._window.append((now, self._tokens))
        step_s = (now - self._started) / (update.step - self._num_earlier)  # validations included
        return {
            "step": update.step,
            "loss": round(loss, 5),
            "nll": round(nll / update.num_tgt_tokens, 5),
            "learning_rate": update.learning_rate,
            "grad_norm": round(norm, 5),
            "tgt_tokens_per_s": round((self._tokens - tokens) / (now - window_start), 1),
            "left_s": round(max(0.0, min(step_s * (last_step - update.step), most_s)), 1),
            "epochs": round(update.epochs, 6),
        }


@dataclass(kw_only=True)
class Trainer(Run):
    """Trains the model of a run: `train` takes steps until there is a reason to stop.

    Attributes:
        validate_part, validation_of: see `mtx.training.validation`.
        hooks: on rank 0; none on the others.
    """

    ranks: Ranks
    sampler: BatchSampler
    strategy: Strategy
    checkpointer: AsyncCheckpointer
    validate_part: Callable[[TranslationModel, int, int], Json]
    validation_of: Callable[[Sequence[Json], float], Validation]
    hooks: Sequence[Hook] = ()

    def __post_init__(self) -> None:
        self.device = torch.device(self.runtime.device)
        self.model = self.strategy.model
        self.optimizer = self.strategy.optimizer
        self.progress = Progress(self.state.step)
        self._signals = Signals(self.paths.status, self.ranks.size > 1)
        self._has_halved = False
        self._divide_steps()

    def _divide_steps(self) -> None:
        """Divide a step into micro-batches of the size in `runtime`, and make what runs one and what ends a step."""
        config = self.config
        self.num_micro_steps, self.shape = step_shape(config, self.runtime, self.sampler, self.ranks.size)
        self.micro_step = new_micro_step(config.training, self.runtime, self.model)
        self.update_weights = WeightUpdate(
            self.optimizer,
            self.micro_step.sums,
            self.strategy.gradient_norm,
            config.training.clip_norm,
            self.micro_step.is_recorded,
        )

    def train(self, hooks: Sequence[Hook] = ()) -> Run:
        """Train until max_steps, max_epochs, the time limit or early stopping. All ranks call this together.

        Returns:
            The run without the model, which is freed with this trainer: a small GPU has no room for it next to a model
            to score.

        Raises:
            StoppedError: after SIGTERM, SIGINT or SIGHUP, when the state is saved.
            MtxError: if a loss or gradient is not finite; the weights keep their values.
        """
        ranks = self.ranks
        reason = ""
        with self.cleanup:
            self.cleanup.enter_context(self.checkpointer.thread)
            if ranks.is_rank_zero:
                self.hooks = hooks
                self.event_listeners = [hook.on_event for hook in hooks]
            ranks.run_on_rank_zero(self._start)
            with handle_signals(self._signals.handle, handled_signals()):
                with suppress(InterruptedTrainingError):
                    reason = self._take_steps()
                self._save()
                stop = int(ranks.maximum(self._signals.stop)[0])
                if ranks.is_rank_zero:
                    self.checkpointer.finish()
                    if not stop:
                        logger.info(f"training ends at step {self.state.step} ({reason})")
                        self.record("end", step=self.state.step, reason=reason)
        ranks.begin_step(0)
        if stop:
            raise StoppedError(
                f"stopped by {signal.Signals(stop).name} after step {self.state.step}; the state is saved",
                stop,
                "rerun the same command to resume",
            )
        return Run(**{field.name: getattr(self, field.name) for field in fields(Run)})

    def _start(self) -> None:
        for hook in self.hooks:
            hook.on_start(self)
        choices = {**vars(self.runtime), **machine(self.device)}
        self.record("start", step=self.state.step, **choices, ranks=self.ranks.size, data=self.data.sha256)
        write_status(self.paths, self.deferred_errors, state="running", stage="training", step=self.state.step)
        self.progress.restart()

    def _take_steps(self) -> str:
        """Take steps until there is a reason to stop, and return it; the first out-of-memory halves the micro-batch."""
        while True:
            with closing(self.load(MAX_COUNT)) as loaded:
                try:
                    while (reason := self._do_what_is_due()) is None:
                        self._step(next(loaded))
                    return reason
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    shortage = first_line(error)
            self._halve(shortage)

    def _halve(self, shortage: str) -> None:
        """Continue with half the micro-batch; the step keeps its sentences and its normalisation.

        Raises:
            MtxError: the second time, and on one of several ranks, which then all end: the next start takes the half.
        """
        size = self.runtime.micro_batch_tokens
        longest = self.config.data.max_tokens
        half = max(longest, divide_up(size, 2))
        text = f"step {self.state.step + 1}: out of memory with micro-batches of {size} target tokens: {shortage}"
        if self._has_halved or size <= longest:
            raise MtxError(text, f"training.micro_batch_tokens={half} in a new run_dir, or a smaller model.preset")
        self._has_halved = True
        self.runtime = replace(self.runtime, micro_batch_tokens=half)
        # Any rank may be the one that runs out of memory; device and threads stay those that rank 0 recorded.
        write_json(self.paths.chosen, {**read_json(self.paths.chosen), "micro_batch_tokens": half})
        if self.ranks.size > 1:
            raise MtxError(text, f"rerun the same command to resume with micro-batches of {half}")
        logger.warning(f"{text}; halving micro-batches")
        self.optimizer.zero_grad()
        del self.micro_step, self.update_weights  # recorded graphs hold memory
        free_unused_memory(self.device)
        self._divide_steps()

    def load(self, num_steps: int) -> Generator[LoadedStep, None, None]:
        """The batches of the next steps, prepared ahead in host memory; the caller closes the generator."""
        return load_steps(
            self.training_text,
            steps(self.sampler, self.state.position, num_steps),
            self.num_micro_steps,
            self.shape,
            self.device.type == "cuda",
            self.ranks.rank,
            self.ranks.size,
            self.model.start_id,
        )

    def _step(self, loaded: LoadedStep) -> None:
        """Take one step, and report the earlier steps whose figures have arrived."""
        state = self.state
        step = state.step + 1
        self.ranks.begin_step(step)
        rate = self.schedule.learning_rate(state, step)
        figures = self.update(loaded, step, rate)
        self.state = replace(state, step=step, position=loaded.position_after)
        if self.ranks.is_rank_zero:
            epochs = self.sampler.epochs(loaded.position_after)
            self.progress.unread.append(
                Update(step, state.position, rate, loaded.num_tgt_tokens, HostCopy(figures), epochs)
            )
        self._report_updates()

    def update(self, loaded: LoadedStep, step: int, rate: float) -> Tensor:
        """One optimizer update from k micro-batches; on CUDA it returns before the work is done.

        Returns:
            see `WeightUpdate`.

        Raises:
            InterruptedTrainingError: in a process alone, if a signal to stop arrived.
        """
        ranks = self.ranks
        for number, batch in enumerate(loaded.micro_batches):
            self.strategy.begin_micro_step(is_last=number == len(loaded.micro_batches) - 1)
            if ranks.size == 1 and self._signals.stop:
                raise InterruptedTrainingError
            seed_micro_step(self.device, self.config.seed, step, ranks.rank + number * ranks.size)
            self.micro_step(batch, 1 / loaded.num_tgt_tokens, number == 0)
        self.strategy.reduce_gradients(self.micro_step.sums)
        return self.update_weights(rate)

    def _report_updates(self, wait: bool = False) -> None:
        """Report the updates whose figures have arrived; raises MtxError if those of one are not finite."""
        for update, numbers in self.progress.pop_arrived(wait):
            if not all(map(math.isfinite, numbers)):
                raise self._refuse(update, numbers)
            last_step, _ = self.schedule.end(self.state)
            now_s = self.elapsed_s()
            figures = self.progress.measure(update, numbers, last_step, self.schedule.usable_s(self.state) - now_s)
            figures |= {"max_steps": self.schedule.known_end(self.state), "elapsed_s": round(now_s, 3)}
            self.record("train", **figures)
            for hook in self.hooks:
                hook.on_step(self, figures)

    def _refuse(self, update: Update, numbers: list[float]) -> MtxError:
        """The error of an update whose figures are not finite; refused.tsv then has its pairs."""
        loss, _, norm = numbers
        place = update.position
        pairs = self.sampler.step(place).pairs
        lines = self.training_text.lines(pairs)
        rows = zip(lines, *self.training_text.texts(pairs), strict=True)
        with suppress(OSError):  # the error itself matters more
            write_text(self.paths.refused, "".join(f"{line}\t{src}\t{tgt}\n" for line, src, tgt in rows))
        checkpoint_note = "the last checkpoint is intact; " if checkpoint_steps(self.paths) else ""
        return MtxError(
            f"step {update.step}: loss {loss}, gradient norm {norm}; nothing was updated. The step has {len(pairs)} "
            f"pairs from position {place.index} of epoch {place.epoch}, "
            f"lines {', '.join(map(str, lines[:10]))}, … of the training text, see {self.paths.refused}",
            f"{checkpoint_note}use a lower training.learning_rate or clip_norm=1.0 in a new run_dir",
        )

    def _do_what_is_due(self) -> str | None:
        """Before a step, agree with the other ranks on signals and the time; plan the end, validate and save when due.

        Returns:
            the key of `training` that ends training here, if there is one.

        Raises:
            InterruptedTrainingError: on all ranks if a signal asked one of them to stop.
        """
        training = self.config.training
        signals = self._signals
        step = self.state.step
        self.checkpointer.settle()
        is_save_requested = signals.save_requested
        signals.save_requested = False
        # A small model on a GPU would wait for every save. On a CPU, what is averaged must not depend on time.
        may_skip_save = self.device.type == "cuda" and not training.deterministic
        skips_save = may_skip_save and self.checkpointer.writing is not None
        # The largest value of all ranks: the number of a signal or 0, two answers as 1 or 0, and seconds
        stop_signal, any_request, any_skip, now_s = self.ranks.maximum(
            signals.stop, float(is_save_requested), float(skips_save), self.elapsed_s()
        )
        if stop_signal > 0:
            raise InterruptedTrainingError
        self._plan(now_s)
        reason = self.schedule.reason_to_stop(self.state, now_s)
        is_due = reason or self.schedule.is_validation_due(self.state, now_s)
        if is_due and self.state.validated_step != step:
            now_s = self._validate(now_s)
            self._plan(now_s)  # training.patience may have run out
        is_regular = step % training.checkpoint_every == 0 and any_skip == 0
        if step > 0 and (any_request > 0 or is_regular or self.state.best_step == step):
            self._save()
        return reason or self.schedule.reason_to_stop(self.state, now_s)

    def _plan(self, now_s: float) -> None:
        if plan := self.schedule.plan_cooldown(self.state, now_s):
            self.state = replace(self.state, cooldown=plan)
            logger.info(f"the learning rate falls to zero from step {plan.first} to step {plan.last} ({plan.reason})")
            self.record("cooldown", first=plan.first, last=plan.last, reason=plan.reason)

    def _validate(self, now_s: float) -> float:
        """Validate, and return the time after it; a signal to stop interrupts it and leaves the state unchanged."""
        model = self.strategy.whole_model()
        ranks = self.ranks
        self._report_updates(wait=True)
        started = time.monotonic()

        def work() -> Json | None:
            with suppress(InterruptedTrainingError), self._signals.interrupt():
                return self.validate_part(model, ranks.rank, ranks.size)
            return None

        parts = [part for part in ranks.gather(work) if part is not None]
        if len(parts) < ranks.size:
            raise InterruptedTrainingError

        def report() -> tuple[State, float]:
            validation = self.validation_of(parts, started)
            time_limit = self.config.training.time_limit or math.inf
            share = min(1.0, now_s / time_limit)
            self.state = count_validation(self.state, validation.score, validation.later_seconds(share))
            self.record("validation", step=self.state.step, **validation.figures())
            for hook in self.hooks:
                hook.on_validation(self, validation, model)
            self.progress.restart()
            return self.state, self.elapsed_s()

        self.state, after_s = ranks.run_on_rank_zero(report)
        self.schedule.skip_validation(after_s - now_s)
        return after_s

    def _save(self) -> None:
        """Start to write the checkpoint of this step, unless it is written already."""
        self._report_updates(wait=True)
        started = time.monotonic()
        ranks = self.ranks

        def is_due() -> bool:
            self.checkpointer.require_few_losses()
            return self.checkpointer.is_due(self.state)

        if not ranks.run_on_rank_zero(is_due):
            return
        copies = self.strategy.snapshot()

        def write() -> None:
            self.state = replace(self.state, elapsed_s=round(self.elapsed_s(), 3))
            self.checkpointer.save(copies, self.state)
            self.record("checkpoint", step=self.state.step, stall_s=round(time.monotonic() - started, 4))
            self.progress.restart()

        ranks.run_on_rank_zero(write)
