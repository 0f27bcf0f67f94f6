"""The training loop: steps, validations, checkpoints, and the reasons to stop. Flow: data + model -> checkpoints.

The step fits one screen (`update`). The random numbers of a micro-step are seeded from (seed, step, micro-step), so a
checkpoint holds only tensors and `State`, and a resumed run equals an uninterrupted one bit for bit. Training never
waits for the device within a step: it reads the loss and the gradient norm of a step when they have arrived.

With several ranks (`mtx.training.ranks`) each runs its share of a step's micro-batches. Then they sum the gradients and
update their equal weights equally. A signal to one of them reaches all a step later (`_exchange`). All translate a part
of the validation text; rank 0 alone scores, saves and reports, and the others wait for it.
"""

import contextlib
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mtx.checks import steps_per_epoch
from mtx.config.fixed import fixed_settings
from mtx.config.limits import MAX_COUNT
from mtx.config.schema import Config
from mtx.data.preprocess import PreparedData
from mtx.errors import DamagedFileError, MtxError, StoppedError, first_line, is_out_of_memory
from mtx.model.architectures import training_flops
from mtx.model.cuda_graphs import HostCopy
from mtx.model.device import free_unused_memory, machine, peak_flops
from mtx.model.transformer import Transformer
from mtx.model.translation_model import TranslationModel
from mtx.model_directory.storage import LoadedModel
from mtx.run.contents import full_checkpoint_steps
from mtx.run.deferred_errors import DeferredErrors
from mtx.run.events import DECIDING_METRICS
from mtx.run.layout import RunLayout
from mtx.run.planned_end import planned_end
from mtx.training import checkpoint
from mtx.training.async_checkpoint import AsyncCheckpointer
from mtx.training.checkpoint import Snapshot, State
from mtx.training.hints import Hints
from mtx.training.loader import LoadedStep, load_steps
from mtx.training.metrics import MetricsLogger
from mtx.training.micro_step import Update, non_finite_error, seed_all
from mtx.training.ranks import MaxReduction, Ranks
from mtx.training.report_writer import ReportWriter
from mtx.training.runtime import (
    RuntimeChoices,
    new_micro_step,
    new_model,
    new_optimizer,
    new_sampler,
    record_micro_batch,
    step_shape,
    training_text,
)  # fmt: skip
from mtx.training.schedule import highest_rate, learning_rate
from mtx.training.sharding import Sharding, is_sharded
from mtx.training.signals import InterruptedTrainingError, Signals
from mtx.training.stopping import StoppingCriteria
from mtx.training.validation import deciding_metric, validate_part, validation_of

logger = logging.getLogger(__name__)

_WARMUP_SHARE = 0.1  # of the steps of a run with a time limit, at most
_MAX_UNREAD = 8  # steps that CUDA may lag behind the host


class Trainer:
    """Trains one model: `resume` restores the state, and `run` takes steps until there is a reason to stop.

    Attributes:
        text: what it learns from.
        model, optimizer, micro_step, num_micro_steps, shape: exist after `resume` or `begin`.
        metrics: receives each step and validation; exists on rank 0 after `run` was called.
    """

    def __init__(
        self, config: Config, runtime: RuntimeChoices, data: PreparedData, paths: RunLayout,
        deferred_errors: DeferredErrors | None = None, ranks: Ranks | None = None,
    ):  # fmt: skip
        self.config, self.runtime, self.data, self.paths = config, runtime, data, paths
        self.ranks = ranks or Ranks()
        self.deferred_errors = deferred_errors or DeferredErrors()
        self.device = torch.device(runtime.device)
        self.state = State(data_sha256=data.sha256, settings=fixed_settings(config))
        self.text = training_text(config, data)
        self.sampler = new_sampler(config, self.text, data.tokenizer, data.terms)
        self._unread: deque[Update] = deque()
        self._report = ReportWriter(paths, config, data.tokenizer, self.deferred_errors)
        self._signals = Signals(self.ranks.size > 1)
        self._is_save_requested, self._is_first_step = False, True
        self._told: MaxReduction | None = None  # what the ranks told each other after the step before

    def resume(self, initial: LoadedModel | None = None) -> None:
        """Continue from the newest intact checkpoint; without one, start from `initial` or from random weights.

        Rank 0 alone reads files, and the others get what it has read.

        Raises:
            DamagedFileError: if no checkpoint is intact, or the data is not what the run was trained on.
        """
        self.begin()

        model, optimizer = self.model, self.optimizer
        if self.sharding is not None and self.ranks.is_rank_zero:  # it reads what it then divides
            torch.manual_seed(self.config.seed)
            model = new_model(self.config, replace(self.runtime, device="cpu"), self.data.tokenizer.num_ids)
            optimizer = torch.optim.Adam(model.parameters())

        def restored() -> State:
            self._restore(model, optimizer, initial)
            return self.state

        self.go_on_from(self.ranks.run_on_rank_zero(restored))
        if self.sharding is None:
            self.ranks.broadcast(checkpoint.tensors(model, optimizer))
        else:
            whole = checkpoint.snapshot(model, optimizer) if self.ranks.is_rank_zero else Snapshot({}, {})
            self.sharding.scatter(whole.weights, whole.moments, self.optimizer)

    def go_on_from(self, state: State) -> None:
        """Take this state. A cooldown whose limit has changed since it was planned will be planned anew."""
        cooldown = state.cooldown
        is_outdated = cooldown is not None and getattr(self.config.training, cooldown.reason) != cooldown.limit
        self.state = replace(state, cooldown=None) if is_outdated else state

    def _parameters(self) -> list[Tensor]:
        """What the optimizer of this rank updates."""
        return list(self.model.parameters() if self.sharding is None else self.sharding.local.values())

    def _restore(self, model: TranslationModel, optimizer: torch.optim.Optimizer, initial: LoadedModel | None) -> None:
        if full_checkpoint_steps(self.paths):
            self.state = checkpoint.load_newest(self.paths, model, optimizer)
            if self.state.data_sha256 != self.data.sha256:
                raise DamagedFileError(
                    f"{self.paths.data}: is not the data that step {self.state.step} of this run was trained on",
                    "put back what was there; another run_dir=DIR starts anew",
                )
            logger.info("going on from step %d", self.state.step)
            return
        assert (initial is None) == (self.config.training.init_from is None)
        if initial is not None:
            logger.info("starting from the weights of %s", self.config.training.init_from)
            model.load_state_dict(initial.model.state_dict())
            self.state = replace(self.state, validated_step=-1, init_sha256=initial.sha256)  # validate before step 1

    def begin(self) -> None:
        """Make the model, with the random weights of the seed, and its optimizer, without reading a checkpoint."""
        torch.manual_seed(self.config.seed)
        self.model = new_model(self.config, self.runtime, self.data.tokenizer.num_ids)
        self.sharding = None
        if is_sharded(self.config, self.device, self.data.tokenizer.num_ids, self.ranks):
            assert isinstance(self.model, Transformer)
            self.sharding = Sharding(self.model, self.device, self.ranks)
        self.optimizer = new_optimizer(self._parameters())
        self._non_finite = torch.zeros((), device=self.device)  # 1 once a loss or gradient was not finite
        self._prepare_micro_step()

    def _prepare_micro_step(self) -> None:
        """Divide a step into micro-batches of the size in `runtime`, and make the `MicroStep` that runs one."""
        self.num_micro_steps, self.shape = step_shape(self.config, self.runtime, self.sampler, self.ranks.size)
        is_flat, root = self.ranks.size > 1 and self.sharding is None, self.sharding and self.sharding.root
        self.micro_step = new_micro_step(self.config, self.runtime, self.model, is_flat, root)

    def planned_end(self) -> tuple[int, str]:
        """The step at which this run will end if nothing ends it sooner, and the key that ends it there."""
        state = self.state
        if state.cooldown is not None:
            return state.cooldown.last, state.cooldown.reason
        return planned_end(self.config.training, self._steps_per_epoch, state.step, self.sampler.epochs(state.position))

    @functools.cached_property
    def _steps_per_epoch(self) -> float:
        return steps_per_epoch(self.data.train, self.config.training)

    def space_needed(self) -> int:
        """The largest number of further bytes that this run will occupy at once."""
        training = self.config.training
        steps_left = max(0, self.planned_end()[0] - self.state.step)
        num_saves = -(-steps_left // min(training.checkpoint_every, training.validate_every)) + 1
        return checkpoint.space_needed(self.paths, self.model, num_saves, training.average_last)

    def run(self, started: float) -> None:
        """Train until max_steps, max_epochs, the time limit or early stopping.

        Args:
            started: when the command was given, on the monotonic clock; a time limit counts from there.

        Raises:
            StoppedError: after SIGTERM, SIGINT or SIGHUP, when the state is saved.
            MtxError: if a loss or gradient is not finite; the weights keep their values.
        """
        self._stopping = StoppingCriteria(self.config, self.data, started, self.state.elapsed_s, self.ranks.size)
        reason, ranks = "", self.ranks
        with self._signals.listening(), contextlib.ExitStack() as stack:
            if ranks.is_rank_zero:
                self._begin_records(stack)
            if ranks.size > 1:
                self._stopping.agreed_s = ranks.broadcast_object(self._stopping.elapsed_s())
            with contextlib.suppress(InterruptedTrainingError):
                if self.state.step and self._stopping.reason(self.state) == "time_limit":
                    text = "training.time_limit was used up by earlier starts: no step follows; a larger one trains on"
                    logger.info(text)
                reason = self._steps()
            self._save()
            self._signals.stop = max(ranks.all_gather_object(self._signals.stop or 0)) or None
            if ranks.is_rank_zero:
                self._checkpointer.finish(self.state)
                if self._signals.stop is None:
                    self.metrics.end(self.state.step, reason)
        ranks.begin_step(0)
        if (number := self._signals.stop) is not None:
            text = f"stopped by signal {number} after step {self.state.step}; everything is saved"
            raise StoppedError(text, number, "the same command goes on from there")
        if self.state.init_sha256 and not self.state.best_step and abs(self.state.best_bleu) > 0:
            logger.warning(
                "no validation was better than that of the model to start from, %s %.2f; a smaller "
                "training.learning_rate may be", DECIDING_METRICS[self._metric], abs(self.state.best_bleu),
            )  # fmt: skip

    def _begin_records(self, stack: contextlib.ExitStack) -> None:
        """Open the metrics and what writes checkpoints; `stack` closes them."""
        self.metrics = stack.enter_context(self._new_metrics())
        writer = AsyncCheckpointer(self.paths, self.config.training, self.deferred_errors, self.state)
        self._checkpointer = stack.enter_context(contextlib.closing(writer))
        about = {**vars(self.runtime), **machine(self.device), "ranks": self.ranks.size, "data": self.data.sha256}
        self.metrics.event("start", step=self.state.step, **about)
        self._checkpointer.status.write("running", "training", self.state.step)

    @functools.cached_property
    def _metric(self) -> str:
        return deciding_metric(self.data, self.config)

    def _new_metrics(self) -> MetricsLogger:
        training, state = self.config.training, self.state
        peak = peak_flops(self.device, self.runtime.precision)
        flops = training_flops(self.config.model, self.data.tokenizer.num_ids, self.sampler.ratio) * training.num_passes
        return MetricsLogger(
            self.paths.metrics, state.step, self.planned_end()[0], self.deferred_errors, self._stopping.ends_at(state),
            None if peak is None else flops / (peak * self.ranks.size),
            Hints(training.patience),
            self.paths.tensorboard if training.tensorboard else None,
        )  # fmt: skip

    def _steps(self) -> str:
        """Take steps until there is a reason to stop, and return it. The first out-of-memory halves the micro-batches.

        Raises:
            InterruptedTrainingError: if a signal asked to stop.
        """
        has_halved = False
        while True:
            with contextlib.closing(
                self.load((self.config.training.max_steps or MAX_COUNT) - self.state.step)
            ) as loaded:
                shortage: str | None = None
                while shortage is None:
                    if (reason := self._after_step()) is not None:
                        return reason
                    shortage = self._step_or_shortage(next(loaded))
            self._halve_micro_batches(has_halved, shortage)
            has_halved = True

    def release(self) -> None:
        """Free the model, Adam's moments and a recorded step: a small GPU has no room to score a model beside them."""
        del self.model, self.optimizer, self.micro_step
        free_unused_memory(self.device)

    def load(self, num_steps: int) -> Generator[LoadedStep, None, None]:
        """The batches of the next steps, prepared ahead in host memory; the caller closes the generator."""
        pin = self.device.type == "cuda"
        return load_steps(
            self.text, self.sampler, self.state.position, num_steps, self.num_micro_steps, self.shape, pin,
            self.ranks.rank, self.ranks.size,
        )  # fmt: skip

    def _step_or_shortage(self, loaded: LoadedStep) -> str | None:
        """Take one step. On out-of-memory, returns torch's message; the state is unchanged.

        Raises:
            MtxError: on one of several ranks, which then all end.
        """
        try:
            self._step(loaded)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if self.ranks.size > 1:
                raise self._ended_by_shortage(first_line(error)) from error
            return first_line(error)
        return None

    def _halve_micro_batches(self, has_halved: bool, shortage: str) -> None:
        """Continue with half the micro-batch; the step keeps its sentences and its normalisation."""
        size, longest, step = self.runtime.micro_batch_tokens, self.config.data.max_tokens, self.state.step + 1
        if has_halved or size <= longest:
            raise self._out_of_memory(shortage)
        logger.warning("step %d: out of memory; micro-batches are halved from now on (%s)", step, shortage)
        self.optimizer.zero_grad()
        del self.micro_step  # a recorded graph holds memory
        free_unused_memory(self.device)
        self.runtime = replace(self.runtime, micro_batch_tokens=self._half_size())
        self._prepare_micro_step()
        record_micro_batch(self.paths.chosen, self.runtime.micro_batch_tokens)

    def _half_size(self) -> int:
        return max(self.config.data.max_tokens, -(-self.runtime.micro_batch_tokens // 2))

    def _ended_by_shortage(self, shortage: str) -> MtxError:
        """The error that ends several ranks, after which the next start takes half the micro-batch."""
        if self.runtime.micro_batch_tokens <= self.config.data.max_tokens:
            return self._out_of_memory(shortage)
        record_micro_batch(self.paths.chosen, self._half_size())
        return self._out_of_memory(shortage, f"the same command resumes with micro-batches of {self._half_size()}")

    def _out_of_memory(self, shortage: str, help: str | None = None) -> MtxError:
        return MtxError(
            f"step {self.state.step + 1}: out of memory with micro-batches of {self.runtime.micro_batch_tokens} target "
            f"tokens: {shortage}",
            help or f"training.micro_batch_tokens={self._half_size()} in a new run_dir, or a smaller model.preset",
        )

    def _after_step(self) -> str | None:
        """Validate and save when due; returns the key of `training` that ends training here, if there is one."""
        training, step = self.config.training, self.state.step
        if self.ranks.is_rank_zero:
            self._checkpointer.settle()
        self._exchange()
        self._plan_warmup()
        self._plan_cooldown()
        reason = self._stopping.reason(self.state)
        is_due = reason or step % training.validate_every == 0 or self._stopping.needs_decoding_time(self.state)
        if is_due and self.state.validated_step != step:
            self._validate()
            self._plan_cooldown()  # training.patience may have run out
        is_requested = self._is_save_requested if self.ranks.size > 1 else self._signals.pop_save_request()
        if step and (is_requested or step % training.checkpoint_every == 0 or self.state.best_step == step):
            self._save()
        return reason or self._stopping.reason(self.state)

    def _plan_warmup(self) -> None:
        """Let the warmup take at most a tenth of the steps for which a time limit has room, for the rest of the run."""
        training, state = self.config.training, self.state
        last = self._stopping.end_by_time_limit(state) if state.warmup_steps is None else None
        if last is None:
            return
        last = min(last, self.planned_end()[0])
        steps = min(training.warmup_steps, max(1, round(_WARMUP_SHARE * last)))
        self.state = replace(state, warmup_steps=steps)
        if steps < training.warmup_steps:
            logger.warning(
                "training.time_limit has room for about %s steps, which see the text %.1f times; the learning rate "
                "rises for %d of them, not for training.warmup_steps=%d\n  help: a longer training.time_limit, or a "
                "smaller training.batch_tokens or model.preset",
                f"{last:,}", last / self._steps_per_epoch, steps, training.warmup_steps,
            )  # fmt: skip

    def _learning_rate(self, step: int) -> float:
        """That of a step; a warmup that is shorter than planned leads to the same highest rate."""
        training, state, d_model = self.config.training, self.state, self.config.model.d_model
        peak = training.learning_rate
        if peak is None:
            peak = highest_rate(d_model, training.warmup_steps)
        return learning_rate(step, state.warmup_steps or training.warmup_steps, d_model, peak, state.cooldown)

    def _plan_cooldown(self) -> None:
        """Plan the cooldown when it is time for it."""
        if not self.config.training.cooldown:
            return
        planned = self._stopping.plan_cooldown(self.state, self.planned_end())
        if planned is not None and self.state.cooldown is None and self.ranks.is_rank_zero:
            self.metrics.cooldown(planned)
        self.state = replace(self.state, cooldown=planned)

    def _step(self, loaded: LoadedStep) -> None:
        """Take one step, and report the earlier steps whose figures have arrived."""
        step = self.state.step + 1
        self.ranks.begin_step(step)
        rate = self._learning_rate(step)
        figures = self.update(loaded, step, rate)
        if figures is None:
            raise InterruptedTrainingError
        position, tokens, epochs = self.state.position, loaded.num_tgt_tokens, self.sampler.epochs(loaded.after)
        if self.ranks.is_rank_zero:
            self._unread.append(Update(step, position, rate, tokens, HostCopy(figures), epochs))
        self.state = replace(self.state, step=step, position=loaded.after)
        self._report_updates(_MAX_UNREAD)

    def update(self, loaded: LoadedStep, step: int, rate: float) -> Tensor | None:
        """One optimizer update from k micro-batches; on CUDA it returns before the work is done.

        If the loss or the gradient is not finite, the device itself skips this update and all later ones.

        Returns:
            fp32 [3] on the device: mean loss, summed nll, gradient norm before clipping; None if a signal arrived.
        """
        self.model.train()
        self.micro_step.start_step()
        if not self._run_micro_batches(loaded, step):
            return None
        if self.micro_step.flat is not None:
            self.ranks.all_reduce(self.micro_step.flat)
        if self.sharding is not None:
            self.sharding.take_gradients()
        parameters, sums = self._parameters(), self.micro_step.sums
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if self.sharding is not None:
            sums, norm = self.sharding.sum(sums, norm)
        figures = torch.cat([sums, norm.float().view(1)])
        self._non_finite = torch.maximum(self._non_finite, (~figures.isfinite().all()).float())
        if (clip := self.config.training.clip_norm) is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.found_inf = self._non_finite  # type: ignore[attr-defined]  # if 1, fused Adam skips the update
        self.optimizer.step()
        return figures

    def _run_micro_batches(self, loaded: LoadedStep, step: int) -> bool:
        """Run this rank's micro-batches; returns False if a signal interrupted those of a process alone."""
        ranks = self.ranks
        for number, batch in enumerate(loaded.micro_batches):
            if self.sharding is not None:
                self.sharding.sum_gradients_after(number == len(loaded.micro_batches) - 1)
            if ranks.size == 1 and self._signals.stop is not None:
                return False
            seed_all(self.config.seed, step, ranks.rank + number * ranks.size)
            self.micro_step(batch, 1 / loaded.num_tgt_tokens)
        if self._is_first_step:  # it compiles, on one rank perhaps for minutes longer than on another
            ranks.wait_for_all()
            self._is_first_step = False
        return True

    def _exchange(self) -> None:
        """Tell the other ranks of signals and of the time, and take what all told after the step before.

        Raises:
            InterruptedTrainingError: on all ranks if a signal asked one of them to stop.
        """
        if self.ranks.size == 1:
            return
        signals, told = self._signals, self._told
        elapsed_s = self._stopping.elapsed_s() if self.ranks.is_rank_zero else 0.0
        self._told = self.ranks.all_reduce_max([signals.stop or 0, signals.pop_save_request(), elapsed_s])
        if told is None:
            return
        stop, save, self._stopping.agreed_s = told.values()
        self._is_save_requested = bool(save)
        if stop:
            signals.stop = int(stop)
            raise InterruptedTrainingError

    def _report_updates(self, max_unread: int = 0) -> None:
        """Report the updates whose figures have arrived; waits while more than `max_unread` have not.

        Raises:
            MtxError: if the figures of one are not finite.
        """
        while self._unread and (len(self._unread) > max_unread or self._unread[0].figures.is_ready()):
            update = self._unread.popleft()
            loss, nll, norm = update.figures.tensor().tolist()
            if not all(map(math.isfinite, (loss, nll, norm))):
                raise non_finite_error(update, loss, norm, self.sampler, self.text, self.paths)
            tokens, epochs = update.num_tgt_tokens, update.epochs
            by_epochs = self.config.training.max_epochs is not None and self.state.cooldown is None
            last = planned_end(self.config.training, 0.0, update.step, epochs)[0] if by_epochs else None
            self.metrics.step(update.step, loss, nll / tokens, update.learning_rate, norm, tokens, epochs, last)

    def _validate(self) -> None:
        """Validate and keep track of the best; a signal to stop interrupts it and leaves the state unchanged."""
        model = self._whole_model()
        self._report_updates()
        started = time.monotonic()
        parts = self.ranks.gather(lambda: self._validation_part(model))
        stop, self.state = self.ranks.run_on_rank_zero(lambda: self._validation_outcome(model, parts, started))
        if stop is not None:
            self._signals.stop = stop
            raise InterruptedTrainingError

    def _whole_model(self) -> TranslationModel:
        """The model to validate; if it is divided, a copy. All ranks call this together."""
        if self.sharding is None:
            return self.model
        weights = self.sharding.snapshot().weights
        model = new_model(self.config, self.runtime, self.data.tokenizer.num_ids)
        if self.ranks.is_rank_zero:
            model.load_state_dict(weights)
        self.ranks.broadcast(parameter.detach() for parameter in model.parameters())
        return model

    def _validation_part(self, model: TranslationModel) -> dict[str, Any]:
        """What this rank does of a validation, or the signal that stopped it."""
        try:
            with self._signals.interrupting():
                max_tokens, ranks = self.config.data.max_tokens, self.ranks
                return validate_part(model, self.data, max_tokens, ranks.rank, ranks.size)
        except InterruptedTrainingError:
            return {"stop": self._signals.stop}

    def _validation_outcome(
        self, model: TranslationModel, parts: list[dict[str, Any]], started: float
    ) -> tuple[int | None, State]:
        """On rank 0: the signal that stopped a rank, and the state after the validation if none did."""
        stop = max(part.get("stop", 0) for part in parts) or None
        if stop is None:
            try:
                self._take_validation(model, parts, started)
            except InterruptedTrainingError:
                stop = self._signals.stop
        return stop, self.state

    def _take_validation(self, model: TranslationModel, parts: list[dict[str, Any]], started: float) -> None:
        with self._signals.interrupting():
            validation = validation_of(parts, self.data, self.config.data.tgt, self._metric, started)
        state, step = self.state, self.state.step
        is_best = validation.score > state.best_bleu
        self.state = replace(
            state, validated_step=step, validation_s=round(validation.later_seconds, 3),
            bad_validations=0 if is_best else state.bad_validations + 1,
            best_bleu=validation.score if is_best else state.best_bleu, best_step=step if is_best else state.best_step,
        )  # fmt: skip
        self.metrics.ends_at = self._stopping.ends_at(self.state)
        self.metrics.validation(step, validation, is_best, self._stopping.elapsed_s())
        with contextlib.suppress(InterruptedTrainingError), self._signals.interrupting():
            self._report.update(model)
        self.metrics.restart_window()

    def _save(self) -> None:
        """Start to write the checkpoint of this step, unless it is written already."""
        self._report_updates()
        started, ranks = time.monotonic(), self.ranks
        if not ranks.run_on_rank_zero(lambda: self._checkpointer.is_due(self.state)):
            return
        copies = Snapshot({}, {})
        if self.sharding is not None:
            copies = self.sharding.snapshot(self.optimizer)
        elif ranks.is_rank_zero:
            copies = checkpoint.snapshot(self.model, self.optimizer)

        def write() -> None:
            self.state = replace(self.state, elapsed_s=round(self._stopping.elapsed_s(), 3))
            self._checkpointer.save(copies, self.state)
            self.metrics.event("checkpoint", step=self.state.step, stall_s=round(time.monotonic() - started, 4))
            self.metrics.restart_window()

        ranks.run_on_rank_zero(write)
