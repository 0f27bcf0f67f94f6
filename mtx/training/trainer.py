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
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mtx.config.fixed import fixed_settings
from mtx.config.limits import MAX_COUNT
from mtx.config.schema import Config
from mtx.data.batches import LoadedStep, load_steps
from mtx.data.sampler import SamplerState, steps
from mtx.data.token_store import PreparedData
from mtx.decoding.model_directory import LoadedModel
from mtx.errors import DamagedFileError, DeferredErrors, MtxError, StoppedError, first_line, is_out_of_memory
from mtx.model.cuda_graphs import HostCopy
from mtx.model.device import free_unused_memory, machine, peak_flops
from mtx.model.transformer import Transformer, training_flops
from mtx.model.translation_model import TranslationModel
from mtx.report.checks import steps_per_epoch
from mtx.storage import durable
from mtx.storage.run_contents import full_checkpoint_steps
from mtx.storage.run_files import RunLayout
from mtx.training import checkpoint
from mtx.training.checkpoint import AsyncCheckpointer, Snapshot, State
from mtx.training.metrics import MetricsLogger
from mtx.training.micro_step import seed_all
from mtx.training.planned_end import planned_end
from mtx.training.ranks import Ranks
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
)
from mtx.training.schedule import highest_rate, learning_rate
from mtx.training.sharding import Sharding, is_sharded
from mtx.training.signals import InterruptedTrainingError, Signals
from mtx.training.stopping import StoppingCriteria
from mtx.training.validation import deciding_metric, validate_part, validation_of

logger = logging.getLogger(__name__)

_WARMUP_SHARE = 0.1  # of the steps of a run with a time limit, at most
_MAX_UNREAD = 8  # steps that CUDA may lag behind the host


@dataclass(frozen=True)
class Update:
    """An update whose figures (see `Trainer.update`) the host has not read yet.

    Attributes:
        position: where its data begins.
        epochs: how many are done after it.
        last: the step at which training will then end by training.max_epochs, if that is set.
    """

    step: int
    position: SamplerState
    learning_rate: float
    num_tgt_tokens: int
    figures: HostCopy
    epochs: float
    last: int | None


class Trainer:
    """Trains one model: `resume` restores the state, and `run` takes steps until there is a reason to stop.

    It begins with the random weights of the seed. All ranks make theirs together.

    Attributes:
        text: what it learns from.
        metrics: receives each step and validation; on rank 0, within `run`.
    """

    metrics: MetricsLogger
    _checkpointer: AsyncCheckpointer

    def __init__(
        self,
        config: Config,
        runtime: RuntimeChoices,
        data: PreparedData,
        paths: RunLayout,
        deferred_errors: DeferredErrors | None = None,
        ranks: Ranks | None = None,
    ):
        self.config = config
        self.runtime = runtime
        self.data = data
        self.paths = paths
        self.ranks = ranks or Ranks()
        self.deferred_errors = deferred_errors or DeferredErrors()
        self.device = torch.device(runtime.device)
        self.state = State(data_sha256=data.sha256, settings=fixed_settings(config))
        self.text = training_text(config, data)
        self.sampler = new_sampler(config, self.text, data.tokenizer, data.terms)
        self._steps_per_epoch = steps_per_epoch(data.train, config.training)
        self._report = ReportWriter(paths, config, data.tokenizer, self.deferred_errors)
        self._signals = Signals(self.ranks.size > 1)
        self._is_save_requested = False
        self._is_first_step = True
        self._has_halved = False
        self._told: Callable[[], list[float]] | None = None  # what the ranks told each other after the step before
        self._unread: deque[Update] = deque()
        self._non_finite = torch.zeros((), device=self.device)  # 1 once a loss or gradient was not finite
        torch.manual_seed(config.seed)
        self.model = new_model(config, runtime, data.tokenizer.num_ids)
        self.sharding: Sharding | None = None
        if is_sharded(config, self.device, data.tokenizer.num_ids, self.ranks):
            assert isinstance(self.model, Transformer)
            self.sharding = Sharding(self.model, self.device, self.ranks)
        self.optimizer = new_optimizer(self._parameters())
        self._prepare_micro_step()

    def _parameters(self) -> list[Tensor]:
        """What the optimizer of this rank updates."""
        return list(self.model.parameters() if self.sharding is None else self.sharding.local.values())

    def _prepare_micro_step(self) -> None:
        """Divide a step into micro-batches of the size in `runtime`, and make the `MicroStep` that runs one."""
        self.num_micro_steps, self.shape = step_shape(self.config, self.runtime, self.sampler, self.ranks.size)
        root = self.sharding and self.sharding.root
        self.micro_step = new_micro_step(self.config, self.runtime, self.model, root)

    def resume(self, initial: LoadedModel | None = None) -> None:
        """Continue from the newest intact checkpoint; without one, start from `initial` or from random weights.

        Rank 0 alone reads files, and the others get what it has read.

        Raises:
            DamagedFileError: if no checkpoint is intact, or the data is not what the run was trained on.
        """
        model, optimizer = self.model, self.optimizer
        if self.sharding is not None and self.ranks.is_rank_zero:  # it reads what it then divides
            torch.manual_seed(self.config.seed)
            model = new_model(self.config, replace(self.runtime, device="cpu"), self.data.tokenizer.num_ids)
            optimizer = new_optimizer(list(model.parameters()))
        self.load_state(self.ranks.run_on_rank_zero(lambda: self._restored(model, optimizer, initial)))
        if self.sharding is None:
            self.ranks.broadcast(checkpoint.tensors(model, optimizer))
        else:
            whole = checkpoint.snapshot(model, optimizer) if self.ranks.is_rank_zero else Snapshot({}, {})
            self.sharding.scatter(whole, self.optimizer)

    def load_state(self, state: State) -> None:
        """Take this state. A cooldown whose limit has changed since it was planned will be planned again."""
        cooldown = state.cooldown
        is_outdated = cooldown is not None and getattr(self.config.training, cooldown.reason) != cooldown.limit
        self.state = replace(state, cooldown=None) if is_outdated else state

    def _restored(
        self, model: TranslationModel, optimizer: torch.optim.Optimizer, initial: LoadedModel | None
    ) -> State:
        """The state to continue from; reads the weights and moments that belong to it."""
        if full_checkpoint_steps(self.paths):
            state = checkpoint.load_newest(self.paths, model, optimizer)
            if state.data_sha256 != self.data.sha256:
                raise DamagedFileError(
                    f"{self.paths.data}: is not the data that step {state.step} of this run was trained on",
                    "restore the original data, or use another run_dir=DIR",
                )
            logger.info("resuming from step %d", state.step)
            return state
        if initial is None:
            return self.state
        logger.info("starting from the weights of %s", self.config.training.init_from)
        model.load_state_dict(initial.model.state_dict())
        return replace(self.state, validated_step=-1, init_sha256=initial.sha256)  # validate before step 1

    def planned_end(self) -> tuple[int, str]:
        """The step at which this run will end if nothing ends it sooner, and the key that ends it there."""
        state = self.state
        if state.cooldown is not None:
            return state.cooldown.last, state.cooldown.reason
        return planned_end(self.config.training, self._steps_per_epoch, state.step, self.sampler.epochs(state.position))

    @functools.cached_property
    def _metric(self) -> str:
        return deciding_metric(self.data, self.config)

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
                self._stopping.agreed_s = ranks.all_gather_object(self._stopping.elapsed_s())[0]
            with contextlib.suppress(InterruptedTrainingError):
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
            raise StoppedError(text, number, "rerun the same command to resume")

    def _begin_records(self, stack: contextlib.ExitStack) -> None:
        """Open the metrics and what writes checkpoints; `stack` closes them."""
        training, state = self.config.training, self.state
        is_known = isinstance(self.model, Transformer)
        peak = peak_flops(self.device, self.runtime.precision) if is_known else None
        flops = training_flops(self.config.model, self.data.tokenizer.num_ids, self.sampler.ratio) * training.num_passes
        metrics = MetricsLogger(
            self.paths.metrics,
            state.step,
            self.planned_end()[0],
            self.deferred_errors,
            self._stopping.ends_at(state),
            None if peak is None else flops / (peak * self.ranks.size),
            self.paths.tensorboard if training.tensorboard else None,
        )
        self.metrics = stack.enter_context(metrics)
        self._checkpointer = AsyncCheckpointer(self.paths, training, self.deferred_errors, state)
        stack.callback(self._checkpointer.close)
        about = {**vars(self.runtime), **machine(self.device), "ranks": self.ranks.size, "data": self.data.sha256}
        self.metrics.event("start", step=state.step, **about)
        self._checkpointer.status.write("running", "training", state.step)

    def _steps(self) -> str:
        """Take steps until there is a reason to stop, and return it. The first out-of-memory halves the micro-batches.

        Raises:
            InterruptedTrainingError: if a signal asked to stop.
        """
        while True:
            shortage: str | None = None
            with contextlib.closing(self.load(MAX_COUNT)) as steps:
                while shortage is None:
                    if (reason := self._after_step()) is not None:
                        return reason
                    try:
                        self._step(next(steps))
                    except (RuntimeError, MemoryError) as error:
                        if not is_out_of_memory(error):
                            raise
                        shortage = first_line(error)
            self._halve_micro_batches(shortage)

    def release(self) -> None:
        """Free the model, Adam's moments and a recorded step: a small GPU has no room for them and a model to score."""
        del self.model, self.optimizer, self.micro_step
        free_unused_memory(self.device)

    def load(self, num_steps: int) -> Generator[LoadedStep, None, None]:
        """The batches of the next steps, prepared ahead in host memory; the caller closes the generator."""
        position, pin = self.state.position, self.device.type == "cuda"
        rank, size = self.ranks.rank, self.ranks.size
        return load_steps(
            self.text, steps(self.sampler, position, num_steps), self.num_micro_steps, self.shape, pin, rank, size
        )

    def _halve_micro_batches(self, shortage: str) -> None:
        """Continue with half the micro-batch; the step keeps its sentences and its normalisation.

        Raises:
            MtxError: the second time, and on one of several ranks, which then all end: the next start takes the half.
        """
        step = self.state.step + 1
        size = self.runtime.micro_batch_tokens
        longest = self.config.data.max_tokens
        half = max(longest, -(-size // 2))
        text = f"step {step}: out of memory with micro-batches of {size} target tokens: {shortage}"
        if self._has_halved or size <= longest:
            raise MtxError(text, f"training.micro_batch_tokens={half} in a new run_dir, or a smaller model.preset")
        record_micro_batch(self.paths.chosen, half)
        if self.ranks.size > 1:
            raise MtxError(text, f"the same command resumes with micro-batches of {half}")
        logger.warning("step %d: out of memory; micro-batches are halved from now on (%s)", step, shortage)
        self._has_halved = True
        self.optimizer.zero_grad()
        del self.micro_step  # a recorded graph holds memory
        free_unused_memory(self.device)
        self.runtime = replace(self.runtime, micro_batch_tokens=half)
        self._prepare_micro_step()

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
        if step and (self._is_save_requested or step % training.checkpoint_every == 0 or self.state.best_step == step):
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
                f"training.time_limit has room for about {last:,} steps, which see the text "
                f"{last / self._steps_per_epoch:.1f} times; the learning rate rises for {steps} of them, not for "
                f"training.warmup_steps={training.warmup_steps}\n  help: a longer training.time_limit, or a smaller "
                "training.batch_tokens or model.preset"
            )

    def _learning_rate(self, step: int) -> float:
        """That of a step; a warmup that is shorter than planned leads to the same highest rate."""
        training, d_model = self.config.training, self.config.model.d_model
        peak = training.learning_rate or highest_rate(d_model, training.warmup_steps)
        warmup_steps = self.state.warmup_steps or training.warmup_steps
        return learning_rate(step, warmup_steps, d_model, peak, self.state.cooldown)

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
        position = self.state.position
        self.state = replace(self.state, step=step, position=loaded.after)
        if self.ranks.is_rank_zero:
            last = None if self.config.training.max_epochs is None else self.planned_end()[0]
            epochs = self.sampler.epochs(loaded.after)
            self._unread.append(Update(step, position, rate, loaded.num_tgt_tokens, HostCopy(figures), epochs, last))
        self._report_updates(_MAX_UNREAD)

    def update(self, loaded: LoadedStep, step: int, rate: float) -> Tensor:
        """One optimizer update from k micro-batches; on CUDA it returns before the work is done.

        If the loss or the gradient is not finite, the device itself skips this update and all later ones.

        Returns:
            fp32 [3] on the device: mean loss, summed nll, gradient norm before clipping.

        Raises:
            InterruptedTrainingError: in a process alone, if a signal to stop arrived.
        """
        ranks, sharding = self.ranks, self.sharding
        self.model.train()
        self.micro_step.start_step()
        for number, batch in enumerate(loaded.micro_batches):
            if sharding is not None:
                sharding.sum_gradients_after(number == len(loaded.micro_batches) - 1)
            if ranks.size == 1 and self._signals.stop is not None:
                raise InterruptedTrainingError
            seed_all(self.config.seed, step, ranks.rank + number * ranks.size)
            self.micro_step(batch, 1 / loaded.num_tgt_tokens)
        if self._is_first_step:  # it compiles, on one rank perhaps for minutes longer than on another
            ranks.all_gather_object(None)
            self._is_first_step = False
        parameters = self._parameters()
        sums, norm = (sharding or ranks).reduce_gradients(parameters, self.micro_step.sums)
        figures = torch.cat([sums, norm.float().view(1)])
        self._non_finite = torch.maximum(self._non_finite, (~figures.isfinite().all()).float())
        if (clip := self.config.training.clip_norm) is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.found_inf = self._non_finite  # type: ignore[attr-defined]  # if 1, fused Adam skips the update
        self.optimizer.step()
        return figures

    def _exchange(self) -> None:
        """Tell the other ranks of signals and of the time, and take what all told after the step before.

        Raises:
            InterruptedTrainingError: on all ranks if a signal asked one of them to stop.
        """
        signals, told = self._signals, self._told
        if self.ranks.size == 1:
            self._is_save_requested = signals.pop_save_request()
            return
        elapsed_s = self._stopping.elapsed_s() if self.ranks.is_rank_zero else 0.0
        self._told = self.ranks.all_reduce_max([signals.stop or 0, signals.pop_save_request(), elapsed_s])
        if told is None:
            return
        stop, save, self._stopping.agreed_s = told()
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
                raise self._non_finite_error(update, loss, norm)
            tokens = update.num_tgt_tokens
            rate, epochs = update.learning_rate, update.epochs
            self.metrics.step(update.step, loss, nll / tokens, rate, norm, tokens, epochs, update.last)

    def _non_finite_error(self, update: Update, loss: float, norm: float) -> MtxError:
        """The error of an update whose loss or gradient norm is not finite; writes its pairs to refused.tsv."""
        position, refused = update.position, self.paths.refused
        pairs = self.sampler.step(position).pairs
        lines = self.text.lines()[pairs]
        rows = zip(lines, *self.text.texts(pairs), strict=True)
        with contextlib.suppress(OSError):  # the error itself matters more
            durable.write_text(refused, "".join(f"{line}\t{src}\t{tgt}\n" for line, src, tgt in rows))
        first = ", ".join(map(str, lines[:10]))
        return MtxError(
            f"step {update.step}: loss {loss}, gradient norm {norm}; nothing was updated. The step takes {len(pairs)} "
            f"pairs from place {position.index} of epoch {position.epoch} on, "
            f"lines {first}, … of the training text, see {refused}",
            "the last checkpoint is intact; a lower training.learning_rate or clip_norm=1.0 needs a new run_dir",
        )

    def _validate(self) -> None:
        """Validate and keep track of the best; a signal to stop interrupts it and leaves the state unchanged."""
        model = self._whole_model()
        self._report_updates()
        started = time.monotonic()
        parts = self.ranks.gather(lambda: self._validation_part(model))
        if stop := max(part.get("stop", 0) for part in parts):
            self._signals.stop = stop
            raise InterruptedTrainingError
        self.state = self.ranks.run_on_rank_zero(lambda: self._validated(model, parts, started))

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

    def _validated(self, model: TranslationModel, parts: list[dict[str, Any]], started: float) -> State:
        """The state after a validation that all ranks have done their part of; reports it."""
        validation = validation_of(parts, self.data, self.config.data.tgt, self._metric, started)
        state = replace(
            self.state,
            validated_step=self.state.step,
            validation_s=round(validation.later_seconds, 3),
            bad_validations=self.state.bad_validations + 1,
        )
        if is_best := state.best_bleu is None or validation.score > state.best_bleu:
            state = replace(state, bad_validations=0, best_bleu=validation.score, best_step=state.step)
        self.metrics.ends_at = self._stopping.ends_at(state)
        self.metrics.validation(state.step, validation, is_best, self._stopping.elapsed_s())
        self._report.update(model)
        self.metrics.restart_window()
        return state

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
