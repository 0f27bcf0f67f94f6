"""What a run will cost on this machine, measured on its trainer: real steps, a checkpoint, validation, scoring.

An untrained model would end its translations at random lengths. So `</s>` is made impossible, and each search ends at
the mean length of the references. The search of a trained model takes about as many search steps in all.
Flow: a trainer, which cannot be used afterwards -> `measure` -> `forecast` and `memory`.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtx.config.schema import TrainingConfig
from mtx.data.text_figures import spread
from mtx.data.token_store import TokenStore
from mtx.data.tokenizer import EOS_ID
from mtx.decoding.options import SearchOptions
from mtx.decoding.torch_engine import TorchTranslator
from mtx.evaluation import metrics
from mtx.files import text_files
from mtx.model.device import total_bytes
from mtx.model.translation_model import TranslationModel
from mtx.run.layout import RunLayout
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from mtx.training.final_weights import NUM_MEANS
from mtx.training.schedule import learning_rate
from mtx.training.stopping import StoppingCriteria
from mtx.training.trainer import Trainer
from mtx.training.validation import BATCH_TOKENS, summed_nll

_WARM_UP = 2  # steps in which memory is first touched, or a graph recorded
_TIMED_STEPS, _TIMED_S = 60, 6.0  # timing ends after this many steps or seconds
_SAMPLE = {"cpu": 256, "mps": 256, "cuda": 4096}  # sentences that represent a set: four times those decoded at once
_PROCESS = Path("/proc/self/status")
_NEVER = -1e4  # added to the logit of `</s>`
# Memory that a process on a CPU will use later, as a share of its peak: drawing the report takes 25 MB, and a
# validation cannot always reuse the memory that an earlier one freed (docs/decisions.md has the figures).
_LATER_SHARE = 0.13


def measure(trainer: Trainer, scratch: RunLayout, started: float) -> dict[str, Any]:
    """Time each repeated part of training once, in about ten seconds.

    Args:
        scratch: the run directory to write a checkpoint to.
        started: when the construction of the trainer began, on the monotonic clock.

    Returns:
        start_s: seconds until the warm-up steps were done, and to score the model that the run starts from.
        step_s, validation_s: seconds of one of them.
        save_s: seconds by which one checkpoint delays training.
        scoring_s: seconds to choose the final weights and to score all test sets.
        reserve_s: seconds of a time limit that training leaves for the end. tgt_tokens_per_s: the speed.
        ended_by: the key that has ended training already, or None.
    """
    config, state = trainer.config, trainer.state
    if trainer.device.type == "cuda":  # choosing the micro-batch has filled the memory
        torch.cuda.reset_peak_memory_stats(trainer.device)
    ends, tgt_tokens, snapshot = _steps(trainer)
    step_s = (ends[-1] - ends[_WARM_UP - 1]) / (len(ends) - _WARM_UP)
    save_s = 0.0
    if trainer.device.type == "cpu":  # where writing a checkpoint occupies a core
        save_s = _seconds(lambda: checkpoint.save(scratch, snapshot, State(step=1))) / trainer.runtime.threads
    validation_s, tests = _nll_s(trainer), trainer.data.tests.values()
    forbid_end(trainer.model)
    metrics.bleu(["a"], ["a"])  # imports sacreBLEU before the timing
    validation_s += _translation_s(trainer, trainer.data.valid, 1, None, metrics.bleu)
    search = config.decoding.beam_size, config.decoding.batch_tokens
    scoring_s = sum(_translation_s(trainer, store, *search, metrics.score) for store in tests)
    stopping = StoppingCriteria(config, trainer.data, time.monotonic(), state.elapsed_s)
    before_s = scoring_s if config.training.init_from and not state.step else 0.0
    return {
        "start_s": ends[_WARM_UP - 1] - started + before_s, "step_s": step_s, "tgt_tokens_per_s": tgt_tokens / step_s,
        "save_s": save_s, "validation_s": validation_s,
        "scoring_s": NUM_MEANS * validation_s + scoring_s,
        "reserve_s": stopping.reserve_s(config.training.time_limit or 0.0, validation_s),
        "ended_by": stopping.reason(state) if state.step else None,
    }  # fmt: skip


def _steps(trainer: Trainer) -> tuple[list[float], float, checkpoint.Snapshot]:
    """Take steps from the state of the run, with a checkpoint's copy in memory, as in training.

    Returns:
        The time at which each step was done, the mean of their target tokens, and the copy. The caller keeps the copy
        to the end, because in training a checkpoint's copy cannot always reuse the memory that a validation freed.
    """
    training, ends, tokens = trainer.config.training, list[float](), list[int]()
    with contextlib.closing(trainer.load(_WARM_UP + _TIMED_STEPS)) as steps:
        for step, loaded in enumerate(steps, trainer.state.step + 1):
            d_model, peak = trainer.config.model.d_model, training.learning_rate
            figures = trainer.update(loaded, step, learning_rate(step, training.warmup_steps, d_model, peak))
            assert figures is not None, "no signal handler is installed"
            figures.tolist()  # waits for the device
            tokens.append(loaded.num_tgt_tokens)
            if len(tokens) == _WARM_UP:
                snapshot = checkpoint.snapshot(trainer.model, trainer.optimizer)
            ends.append(time.monotonic())
            if len(ends) > _WARM_UP and ends[-1] - ends[_WARM_UP - 1] > _TIMED_S:
                break
    return ends, float(np.mean(tokens)), snapshot


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _nll_s(trainer: Trainer) -> float:
    """Estimate the seconds of a validation's nll; the sample fills a batch, so that the peak of memory is right."""
    valid, pad_id = trainer.data.valid, trainer.data.tokenizer.pad_id
    number = max(_SAMPLE[trainer.device.type], round(BATCH_TOKENS / valid.tgt.lengths.mean()))
    sample = valid.take(spread(valid.num_pairs, number))
    return _seconds(lambda: summed_nll(trainer.model, sample, pad_id)) * _num_tokens(valid) / _num_tokens(sample)


def forbid_end(model: TranslationModel) -> None:
    """Make `</s>` impossible, so that the model ends no translation by itself."""
    bias = torch.zeros(len(model.output_weight), device=model.output_weight.device)
    bias[EOS_ID] = _NEVER
    model.output_bias = torch.nn.Parameter(bias)


def _translation_s(
    trainer: Trainer, store: TokenStore, beam_size: int, batch_tokens: int | None, score: Callable[..., object]
) -> float:
    """Estimate the seconds to translate and score a set from sentences of all lengths; call `forbid_end` first."""
    by_length = np.argsort(store.src.lengths, kind="stable")
    sample = store.take(by_length[spread(store.num_pairs, _SAMPLE[trainer.device.type])])
    references, rows = sample.tgt_texts(), zip(sample.src.starts, sample.src.lengths, strict=True)
    sources = [sample.src.tokens[start : start + length].tolist() for start, length in rows]
    options = SearchOptions(beam_size, max_length=max(1, round(sample.tgt.lengths.mean())))
    trainer.model.train()  # as training leaves it
    tokenizer, max_tokens = trainer.data.tokenizer, trainer.config.data.max_tokens
    translator = TorchTranslator(trainer.model, tokenizer, max_tokens, options, batch_tokens=batch_tokens)
    decoding_s = _seconds(lambda: translator.decode(sources, [[] for _ in sources]))
    scoring_s = _seconds(lambda: score(references, references, trainer.config.data.tgt))
    return (decoding_s + scoring_s) * _num_tokens(store) / _num_tokens(sample)


def _num_tokens(store: TokenStore) -> int:
    return int(store.src.lengths.sum()) + int(store.tgt.lengths.sum())


def forecast(
    training: TrainingConfig, state: State, measured: dict[str, Any], planned: tuple[int, str]
) -> dict[str, Any]:  # fmt: skip
    """Forecast the rest of a run from `state`.

    Args:
        measured: the result of `measure`, with prepare_s.
        planned: the step at which training ends by max_steps or max_epochs, and which of the two ends it.

    Returns:
        What was measured; the numbers of steps, saves and validations that are left, with the seconds of each kind and
        of all together; ends_by (max_steps, max_epochs, time_limit, patience); may_end_sooner: by training.patience.
    """
    step_s, save_s, validation_s = (measured[key] for key in ("step_s", "save_s", "validation_s"))
    before_s = measured["prepare_s"] + measured["start_s"]
    done, every, saved_every = state.step, training.validate_every, training.checkpoint_every
    last, ends_by = max(done, planned[0]), planned[1]
    if measured["ended_by"] is not None:
        last, ends_by = done, measured["ended_by"]
    elif training.time_limit is not None:
        left_s = training.time_limit - measured["reserve_s"] - state.elapsed_s - before_s
        in_time = done + max(1, int(left_s / (step_s + save_s / saved_every + validation_s / every)))
        if in_time < last:
            last, ends_by = in_time, "time_limit"
    steps = last - done
    saves, validations = (-(-last // n) - done // n if steps else 0 for n in (saved_every, every))
    validations += training.init_from is not None and not done  # the initial model is validated before step 1
    seconds = {"steps_s": steps * step_s, "saves_s": saves * save_s, "validations_s": validations * validation_s}
    return {
        **measured, "steps": steps, "saves": saves, "validations": validations, **seconds,
        "total_s": before_s + sum(seconds.values()) + measured["scoring_s"],
        "ends_by": ends_by, "may_end_sooner": training.patience is not None,
    }  # fmt: skip


def memory(device: torch.device, num_parameters: int) -> dict[str, int | None]:
    """The memory that the run measured in this process needs, in bytes.

    Returns:
        weights, gradients, adam; checkpoint_copy: while a checkpoint is written; other: the program, activations,
        decoding and the report, None if unknown; needed: the sum; device: the memory of the device, None if unknown.
    """
    weights = 4 * num_parameters
    if device.type == "cuda":
        peak: int | None = torch.cuda.max_memory_reserved(device)
    else:
        peak = _process_peak() if device.type == "cpu" and _PROCESS.is_file() else None
    other = None if peak is None else max(0, peak - 7 * weights)
    return {
        "needed": 7 * weights + (other or 0), "weights": weights, "gradients": weights, "adam": 2 * weights,
        "checkpoint_copy": 3 * weights, "other": other, "device": total_bytes(device),
    }  # fmt: skip


def _process_peak() -> int | None:
    """The peak memory of this process, plus `_LATER_SHARE`; None if the system does not report it."""
    for line in text_files.read_lines(_PROCESS):
        if line.startswith("VmHWM:"):
            return round((1 + _LATER_SHARE) * 1024 * int(line.split()[1]))
    return None
