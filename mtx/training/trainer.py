"""The training loop: steps, validations, checkpoints, and the reasons to stop. Flow: data + model -> checkpoints.

The step fits one screen (`update`). The random numbers of a micro-step are seeded from (seed, step, micro-step), so a
checkpoint holds only tensors and `State`, and a resumed run equals an uninterrupted one bit for bit. Training never
waits for the device within a step: it reads the loss and the gradient norm of a step when they have arrived.

With several ranks (`mtx.training.ranks`) each runs its share of a step's micro-batches. Then they agree on what one of
them may have met alone (`_agree`), sum the gradients, and update their equal weights equally. All translate a part of
the validation text; rank 0 alone scores, saves and reports, and the others wait for it.
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
from mtx.training.micro_step import MicroStep, Update, non_finite_error, seed_all
from mtx.training.ranks import Ranks
from mtx.training.report_writer import ReportWriter
from mtx.training.runtime import (
    RuntimeChoices,
    new_model,
    new_optimizer,
    new_sampler,
    record_micro_batch,
    step_shape,
    training_text,
)  # fmt: skip
from mtx.training.schedule import learning_rate
from mtx.training.sharding import Sharding, is_sharded
from mtx.training.signals import InterruptedTrainingError, Signals
from mtx.training.stopping import StoppingCriteria
from mtx.training.validation import deciding_metric, validate_part, validation_of

logger = logging.getLogger(__name__)

_MAX_UNREAD = 8  # steps that CUDA may lag behind the host


class _CommonShortageError(MemoryError):
    """A rank is out of memory, and all ranks know it."""


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
        self._is_save_requested = False

    def resume(self, initial: LoadedModel | None = None) -> None:
        """Continue from the newest intact checkpoint; without one, start from `initial` or from random weights.

        Rank 0 alone reads files, and the others get what it has read.

        Raises:
            DamagedFileError: if no checkpoint is intact, or the data is not what the run was trained on.
        """
        self.begin()

        model, optimizer = self.model, self.optimizer
        if self.sharding is not None and self.ranks.is_first:  # it reads what it then divides
            torch.manual_seed(self.config.seed)
            model = new_model(self.config, replace(self.runtime, device="cpu"), self.data.tokenizer.num_ids)
            optimizer = torch.optim.Adam(model.parameters())

        def restored() -> dict[str, Any]:
            self._restore(model, optimizer, initial)
            return self.state.as_dict()

        self.go_on_from(State.from_dict(self.ranks.share("reads the checkpoint", restored)))
        if self.sharding is None:
            self.ranks.copy_from_first(checkpoint.tensors(model, optimizer))
        else:
            whole = checkpoint.snapshot(model, optimizer) if self.ranks.is_first else Snapshot({}, {})
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
            if self.state.data_sha256 not in (None, self.data.sha256):
                raise DamagedFileError(
                    f"{self.paths.data}: is not the data that step {self.state.step} of this run was trained on",
                    "put back what was there; another run_dir=DIR starts anew",
                )
            self.state = replace(self.state, settings=fixed_settings(self.config))  # older runs do not have them
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
        training, runtime = self.config.training, self.runtime
        self.num_micro_steps, self.shape = step_shape(self.config, runtime, self.sampler, self.ranks.size)
        is_sharded = self.sharding is not None
        self.micro_step = MicroStep(
            self.model, training.label_smoothing, runtime.precision, runtime.compile and not is_sharded, runtime.graph,
            is_flat=self.ranks.size > 1 and not is_sharded, root=self.sharding and self.sharding.root,
            consistency=training.consistency, source_loss=training.source_loss,
        )  # fmt: skip

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
        reason = ""
        with self._signals.listening(), self.ranks.training(), contextlib.ExitStack() as stack:
            if self.ranks.is_first:
                self._begin_records(stack)
            with contextlib.suppress(InterruptedTrainingError):
                self._agree()
                if self.state.step and self._stopping.reason(self.state) == "time_limit":
                    text = "training.time_limit was used up by earlier starts: no step follows; a larger one trains on"
                    logger.info(text)
                reason = self._steps()
            self._save()
            if self.ranks.is_first:
                self._checkpointer.finish(self.state)
                if self._signals.stop is None:
                    self.metrics.end(self.state.step, reason)
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
            self.ranks.number, self.ranks.size,
        )  # fmt: skip

    def _step_or_shortage(self, loaded: LoadedStep) -> str | None:
        """Take one step. On out-of-memory, returns torch's message; the state is unchanged.

        Raises:
            MtxError: on one of several ranks, if it ran out of memory where the others do not hear of it.
        """
        try:
            self._step(loaded)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if self.ranks.size > 1 and not isinstance(error, _CommonShortageError):
                raise self._out_of_memory(first_line(error)) from error
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
        self.runtime = replace(self.runtime, micro_batch_tokens=max(longest, -(-size // 2)))
        self._prepare_micro_step()
        if self.ranks.is_first:
            record_micro_batch(self.paths.chosen, self.runtime.micro_batch_tokens)

    def _out_of_memory(self, shortage: str) -> MtxError:
        size, longest = self.runtime.micro_batch_tokens, self.config.data.max_tokens
        return MtxError(
            f"step {self.state.step + 1}: out of memory with micro-batches of {size} target tokens: {shortage}",
            f"training.micro_batch_tokens={max(longest, size // 2)} in a new run_dir, or a smaller model.preset",
        )

    def _after_step(self) -> str | None:
        """Validate and save when due; returns the key of `training` that ends training here, if there is one."""
        training, step = self.config.training, self.state.step
        if self.ranks.is_first:
            self._checkpointer.settle()
        self._plan_cooldown()
        reason = self._stopping.reason(self.state)
        is_due = reason or step % training.validate_every == 0 or self._stopping.needs_decoding_time(self.state)
        if is_due and self.state.validated_step != step:
            self._validate()
            self._plan_cooldown()  # training.patience may have run out
        is_requested = self._pop_save_request()
        if step and (is_requested or step % training.checkpoint_every == 0 or self.state.best_step == step):
            self._save()
        return reason or self._stopping.reason(self.state)

    def _plan_cooldown(self) -> None:
        """Plan the cooldown when it is time for it."""
        if not self.config.training.cooldown:
            return
        planned = self._stopping.plan_cooldown(self.state, self.planned_end())
        if planned is not None and self.state.cooldown is None and self.ranks.is_first:
            self.metrics.cooldown(planned)
        self.state = replace(self.state, cooldown=planned)

    def _step(self, loaded: LoadedStep) -> None:
        """Take one step, and report the earlier steps whose figures have arrived."""
        training, step = self.config.training, self.state.step + 1
        self.ranks.progress.step = step
        model, cooldown = self.config.model, self.state.cooldown
        rate = learning_rate(step, training.warmup_steps, model.d_model, training.learning_rate, cooldown)
        figures = self.update(loaded, step, rate)
        if figures is None:
            raise InterruptedTrainingError
        position, tokens, epochs = self.state.position, loaded.num_tgt_tokens, self.sampler.epochs(loaded.after)
        if self.ranks.is_first:
            self._unread.append(Update(step, position, rate, tokens, HostCopy(figures), epochs))
        self.state = replace(self.state, step=step, position=loaded.after)
        self._report_updates(_MAX_UNREAD)

    def update(self, loaded: LoadedStep, step: int, rate: float) -> Tensor | None:
        """One optimizer update from k micro-batches; on CUDA it returns before the work is done.

        If the loss or the gradient is not finite, the device itself skips this update and all later ones.

        Returns:
            fp32 [3] on the device: mean loss, summed nll, gradient norm before clipping; None if a signal arrived.

        Raises:
            MemoryError: on all ranks if one of several has too little memory.
        """
        self.model.train()
        self.micro_step.start_step()
        if not self._run_micro_batches(loaded, step):
            return None
        if self.micro_step.flat is not None:
            self.ranks.sum(self.micro_step.flat)
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
        """Run this rank's micro-batches; returns False if a signal to this process alone interrupted them.

        Raises:
            MemoryError: see `_agree`.
            InterruptedTrainingError: see `_agree`.
        """
        shortage, is_whole, ranks = "", False, self.ranks
        try:
            for number, batch in enumerate(loaded.micro_batches):
                if self.sharding is not None:  # whose ranks need each other in every layer
                    self.sharding.sum_gradients_after(number == len(loaded.micro_batches) - 1)
                elif self._signals.stop is not None:
                    break
                seed_all(self.config.seed, step, ranks.number + number * ranks.size)
                self.micro_step(batch, 1 / loaded.num_tgt_tokens)
            else:
                is_whole = True
        except (RuntimeError, MemoryError) as error:
            if ranks.size == 1 or self.sharding is not None or not is_out_of_memory(error):
                raise
            shortage = first_line(error)
        self._agree(shortage)
        return is_whole

    def _agree(self, shortage: str = "") -> None:
        """Agree with the other ranks on what one of them may have met alone; for one process alone this does nothing.

        Args:
            shortage: what this rank says if it is out of memory.

        Raises:
            _CommonShortageError: on all ranks if one of them is out of memory.
            InterruptedTrainingError: on all ranks if a signal asked one of them to stop.
        """
        ranks, signals = self.ranks, self._signals
        if ranks.size == 1:
            return
        elapsed_s = self._stopping.elapsed_s() if ranks.is_first else 0.0
        is_short, is_requested = (ranks.number + 1) * bool(shortage), signals.pop_save_request()
        short, stop, save, self._stopping.agreed_s = ranks.agree([is_short, signals.stop or 0, is_requested, elapsed_s])
        self._is_save_requested = self._is_save_requested or bool(save)
        if stop:
            signals.stop = int(stop)
            raise InterruptedTrainingError
        if short:
            raise _CommonShortageError(shortage or f"{ranks.name_of(int(short) - 1)} is out of memory")

    def _pop_save_request(self) -> bool:
        """Whether a signal has requested a save since the last call; all ranks get the same answer."""
        if self.ranks.size == 1:
            return self._signals.pop_save_request()
        is_requested, self._is_save_requested = self._is_save_requested, False
        return is_requested

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
        with self.ranks.doing("validates"):
            part = self._validation_part(model)
        parts = self.ranks.gather("validate", part)
        outcome = self.ranks.share("validates", lambda: self._validation_outcome(model, parts, started))
        if outcome["stop"] is not None:
            self._signals.stop = outcome["stop"]
            raise InterruptedTrainingError
        self.state = State.from_dict(outcome["state"])
        if self.ranks.size > 1:
            self._stopping.agreed_s = outcome["elapsed_s"]

    def _whole_model(self) -> TranslationModel:
        """The model to validate; if it is divided, a copy. All ranks call this together."""
        if self.sharding is None:
            return self.model
        weights = self.sharding.snapshot().weights
        model = new_model(self.config, self.runtime, self.data.tokenizer.num_ids)
        if self.ranks.is_first:
            model.load_state_dict(weights)
        self.ranks.copy_from_first(parameter.detach() for parameter in model.parameters())
        return model

    def _validation_part(self, model: TranslationModel) -> dict[str, Any]:
        """What this rank does of a validation, or the signal that stopped it."""
        try:
            with self._signals.interrupting():
                max_tokens, ranks = self.config.data.max_tokens, self.ranks
                return validate_part(model, self.data, max_tokens, ranks.number, ranks.size)
        except InterruptedTrainingError:
            return {"stop": self._signals.stop}

    def _validation_outcome(
        self, model: TranslationModel, parts: list[dict[str, Any]], started: float
    ) -> dict[str, Any]:
        """On rank 0: the state after a validation, or the signal that stopped a rank, for all ranks."""
        stop = max(part.get("stop", 0) for part in parts) or None
        if stop is None:
            try:
                self._take_validation(model, parts, started)
            except InterruptedTrainingError:
                stop = self._signals.stop
        return {"stop": stop, "state": self.state.as_dict(), "elapsed_s": self._stopping.elapsed_s()}

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
        started = time.monotonic()
        with self.ranks.doing("saves"):
            copies = self._copies_to_save()
        if copies is not None and self.ranks.is_first:
            self.state = replace(self.state, elapsed_s=round(self._stopping.elapsed_s(), 3))
            self._checkpointer.save(copies, self.state)
            self.metrics.event("checkpoint", step=self.state.step, stall_s=round(time.monotonic() - started, 4))
            self.metrics.restart_window()

    def _copies_to_save(self) -> Snapshot | None:
        """What rank 0 will write; None where nothing is to be written, and on other ranks."""
        if self.sharding is None:
            is_due = self.ranks.is_first and self._checkpointer.is_due(self.state)
            return checkpoint.snapshot(self.model, self.optimizer) if is_due else None
        is_due = self.ranks.share("writes the last checkpoint", lambda: self._checkpointer.is_due(self.state))
        return self.sharding.snapshot(self.optimizer) if is_due else None
