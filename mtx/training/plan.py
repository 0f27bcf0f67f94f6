"""Chooses what a run trains by its text, the speed of the machine and the time limit, once, at its first start.

The row of the text (`mtx.data.model_sizes`) needs a number of target tokens before it is worth its size. Where the
time has no room for them, a smaller row is better. Flow: prepared data -> `measure` rows -> `choose` -> `Plan`, in
chosen.json; a resumed run reads it there.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import torch

from mtx.config.schema import Config
from mtx.config.settings import with_values
from mtx.data.model_sizes import row_values, smaller_rows
from mtx.data.token_store import PreparedData
from mtx.formatting import format_duration
from mtx.model.device import num_threads, prepare_device
from mtx.storage.run_files import RunLayout
from mtx.training.build import first_choices, first_step, read_runtime
from mtx.training.ranks import Ranks
from mtx.training.schedule import steps_per_epoch

logger = logging.getLogger(__name__)

_CPU_MEASURED_TOKENS = 1024  # of a micro-step, at most
_GPU_MEASURED_TOKENS = 8192  # fewer would not keep it busy
_REPEATS = 3
_MEASURED_SHARE = 0.005  # of a time limit: afterwards no further micro-step of a row begins
_USED_SHARE = 0.85  # of a time limit; the rest is for validations and scoring
_NEEDED_WARMUPS = 4  # steps that a row needs, by those of its warmup
_ENOUGH = 0.75  # of the best row's share of the tokens that it needs, which is then at most a third larger
# docs/archive/decisions-2026.md (2026-11-27) has the measurements of these two.
_FEW_UPDATES = 500  # with fewer, the tokens of a step are halved
_RDROP_EPOCHS = 20  # that the time must have room for without R-Drop; with it, half as many take as long
_RDROP = "training.rdrop_alpha"
_NOISE = 1.15  # by which a measured speed may be wrong


class Plan(NamedTuple):
    """What a run trains: a row, its values and why, and the seconds for a target token of each measured row."""

    row: int
    values: dict[str, Any]
    reason: str
    seconds_per_token: list[tuple[int, float]]  # JSON has no numbers as keys


def choose(seconds_per_token: Mapping[int, float], limit_s: float, epoch_tokens: float, min_tokens: int = 1) -> Plan:
    """The plan for a text: its row, or a smaller one that would get a much larger share of its tokens.

    Args:
        seconds_per_token: of training without R-Drop, for a target token, by row: that of the text, and smaller ones.
        limit_s: seconds for steps; infinity without a limit.
        epoch_tokens: the target tokens of an epoch.
        min_tokens: the least target tokens of a step.
    """
    shares = {row: _affordable_share(row, seconds, limit_s) for row, seconds in seconds_per_token.items()}
    best_share = max(shares.values())
    text_row = max(shares)
    row = max(row for row, share in shares.items() if share >= _ENOUGH * best_share)
    reason = "the measured size nearest to the text"
    if row != text_row:
        reason = f"the time has room for {shares[text_row]:.0%} of what the sizes for {text_row:,} pairs need"
    values = row_values(row)
    values[_RDROP] = _rdrop_alpha(row, limit_s / seconds_per_token[row], epoch_tokens)
    tokens = values["training.batch_tokens"]
    while tokens >= 2 * min_tokens and limit_s / seconds_per_token[row] < _FEW_UPDATES * tokens:
        tokens //= 2
    values["training.batch_tokens"] = max(tokens, min_tokens)
    return Plan(row, values, reason, [*seconds_per_token.items()])


def needed_tokens(row: int) -> float:
    """The target tokens that a row needs before it is worth its size."""
    values = row_values(row)
    return float(_NEEDED_WARMUPS * values["training.warmup_steps"] * values["training.batch_tokens"])


def _rdrop_alpha(row: int, num_tokens: float, epoch_tokens: float) -> float:
    """That of a row, or 0 where the time has room for too few tokens to repay the second pass."""
    return float(row_values(row)[_RDROP]) if num_tokens >= _RDROP_EPOCHS * epoch_tokens else 0.0


def _affordable_share(row: int, seconds_per_token: float, limit_s: float) -> float:
    """The share of the tokens that a row needs for which a time has room, at most 1."""
    return min(1.0, limit_s / seconds_per_token / needed_tokens(row))


def measure(row: int, config: Config, data: PreparedData, device: torch.device, most_s: float) -> float:
    """The seconds for a target token with a row, without R-Drop: the fastest of some micro-steps after a first one.

    On a CPU they are of this process, since another one may be busy for a moment.
    """
    started = time.monotonic()
    if device.type == "cpu":
        clock = time.process_time
        num_clocks = num_threads()
        most_tokens = _CPU_MEASURED_TOKENS
        fewest_steps = 1
    else:
        clock = time.monotonic
        num_clocks = 1
        most_tokens = _GPU_MEASURED_TOKENS
        fewest_steps = 2  # the first one is recorded
    config = _with(config, row_values(row) | {_RDROP: 0})
    tokens = max(config.data.max_tokens, min(most_tokens, config.training.batch_tokens))
    config = with_values(config, {"training.batch_tokens": tokens})
    runtime = replace(first_choices(config, device, data, Ranks()), micro_batch_tokens=tokens, compile=False)
    take_step, num_tokens = first_step(config, runtime, data)
    seconds = list[float]()
    while len(seconds) <= _REPEATS and (len(seconds) < fewest_steps or time.monotonic() < started + most_s):
        step_start = clock()
        take_step()  # waits for the device
        seconds.append((clock() - step_start) / num_clocks)
    return min(seconds[1:] or seconds) / num_tokens


def describe(plan: Mapping[str, Any], config: Config, data: PreparedData) -> Iterator[str]:
    """The plan of `decide` in words: its row and why, and for each row that was measured what the time allows."""
    limit = config.training.time_limit
    usable_s = inf if limit is None else _USED_SHARE * limit
    epoch_tokens = _epoch_tokens(config, data)
    yield f"sizes for about {plan['row']:,} pairs: {plan['reason']}"
    for row, seconds_per_token in plan["seconds_per_token"]:
        max_epochs = row_values(row)["training.max_epochs"]
        epoch_s = epoch_tokens * seconds_per_token
        if _rdrop_alpha(row, usable_s / seconds_per_token, epoch_tokens):
            epoch_s *= 2
        if limit is None:
            whole_time = format_duration(max_epochs * epoch_s)
            half_time = format_duration(0.5 * max_epochs * epoch_s)
            yield (
                f"  sizes={row}: {max_epochs} epochs take about {whole_time}; "
                f"a limit of {half_time} allows half of them"
            )
        else:
            epochs = min(max_epochs, usable_s / epoch_s)
            yield f"  sizes={row}: about {epochs:.1f} epochs in {format_duration(limit)}"


def decide(
    config: Config,
    paths: RunLayout,
    data: PreparedData,
    device: torch.device,
    started: float,
    ranks: Ranks,
    num_rows: int = 1,
) -> tuple[Config, dict[str, Any] | None]:
    """Decide what is undecided, at the first start of a run. All ranks call this together.

    The row of the text is measured, and smaller ones while the time has no room for them.

    Args:
        started: when the command was given, on the monotonic clock.
        num_rows: that are measured at least, where there are as many.

    Returns:
        The configuration with nothing undecided, and the content of chosen.json about the plan, if there is one.
    """
    runtime = ranks.run_on_rank_zero(read_runtime, paths.chosen)
    recorded = runtime.plan if runtime else None
    limit = config.training.time_limit or inf
    if config.undecided and not recorded:
        prepare_device(device, config.training.deterministic)
        text_row = int(config.sizes)
        limit_s = ranks.run_on_rank_zero(lambda: max(1.0, _USED_SHARE * limit - (time.monotonic() - started)))
        seconds_per_token = {}
        for row in [text_row, *smaller_rows(text_row)]:
            seconds_by_rank = ranks.gather(measure, row, config, data, device, _MEASURED_SHARE * limit)
            seconds_per_token[row] = 1 / sum(1 / seconds for seconds in seconds_by_rank)
            share = _affordable_share(row, seconds_per_token[row], limit_s)
            if len(seconds_per_token) >= num_rows and share == 1:
                break
        epoch_tokens = _epoch_tokens(config, data)
        min_tokens = config.data.max_tokens
        plan = choose(seconds_per_token, limit_s, epoch_tokens, min_tokens)
        noise = (1 / _NOISE, _NOISE)
        rows = {choose(seconds_per_token, factor * limit_s, epoch_tokens, min_tokens).row for factor in noise}
        reason = "; nearly ".join([plan.reason, *(f"sizes={row}" for row in rows - {plan.row})])
        recorded = {**plan._asdict(), "reason": reason, "keys": config.undecided}
    elif recorded and ranks.is_rank_zero:
        new_row = choose(dict(recorded["seconds_per_token"]), _USED_SHARE * limit, _epoch_tokens(config, data)).row
        if new_row != recorded["row"]:
            logger.info(f"the run keeps its sizes; a new run would have sizes={new_row}")
    if recorded and config.undecided:
        config = with_values(_with(config, recorded["values"]), {"sizes": recorded["row"], "undecided": ()})
    return config, recorded


def _epoch_tokens(config: Config, data: PreparedData) -> float:
    return steps_per_epoch(data.train, config.training) * config.training.batch_tokens


def _with(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with the values of a row for its undecided keys."""
    values = {**values, "training.batch_tokens": max(values["training.batch_tokens"], config.data.max_tokens)}
    return with_values(config, {key: value for key, value in values.items() if key in config.undecided})
