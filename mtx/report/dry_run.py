"""`mtx train --dry-run`: does everything before the first step of training, times some steps, and keeps nothing.

The run directory is read and never changed; files that are missing in it are made in a temporary directory.
Flow: configuration -> data and trainer, as `mtx.training.run` makes them -> checks, real steps -> report.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mtx.config.schema import Config
from mtx.data.sources import show_example
from mtx.formatting import format_duration
from mtx.model.device import find_device
from mtx.report.advice import Advice, changed_text, explain_short_limit, set_lines, warnings
from mtx.runs.run_directory import check_settings, refuse_foreign
from mtx.storage.run_files import STATE, RunLayout, checkpoint_steps, full_checkpoint_steps, is_prepared
from mtx.training import checkpoint
from mtx.training.build import build, choose_runtime
from mtx.training.events import Validation
from mtx.training.hooks import require_tensorboard
from mtx.training.plan import decide, describe
from mtx.training.ranks import Ranks
from mtx.training.run import prepare
from mtx.training.schedule import drop_outdated_cooldown
from mtx.training.trainer import Trainer
from mtx.training.validation import validate_part

_NUM_ROWS = 3  # of sizes that are measured
_WARM_UP = 2  # steps that touch memory first, or record a graph
_TIMED_STEPS = 60  # timing ends after this many steps
_TIMED_S = 6.0  # or after this many seconds


def rehearse(config: Config) -> dict[str, Any]:
    """A report on the run of `config` and its duration on this machine, in seconds.

    Raises:
        MtxError: as training would before its first step, except for disk space, which is not checked.
    """
    paths = RunLayout(Path(config.run_dir))
    require_tensorboard(config)
    refuse_foreign(paths)
    check_settings(paths, config)
    with tempfile.TemporaryDirectory(prefix="mtx-dry-run-") as directory:  # only its owner may read it
        scratch = RunLayout(Path(directory))
        started = time.monotonic()
        was_prepared = is_prepared(paths.data) or bool(checkpoint_steps(paths))
        data, _ = prepare(config, paths if was_prepared else scratch)
        prepare_s = time.monotonic() - started
        records = paths if paths.chosen.exists() else scratch
        device = find_device(config.device)
        config, plan = decide(config, records, data, device, started, Ranks(), _NUM_ROWS)
        trainer = build(config, choose_runtime(records, config, device, data), data, scratch)
        if full_steps := full_checkpoint_steps(paths):
            state = checkpoint.load_state(paths.checkpoint(full_steps[-1]) / STATE)
            trainer.state = drop_outdated_cooldown(state, config.training)
        steps_done = trainer.state.step
        max_steps = trainer.schedule.end(trainer.state)[0]
        forecast = _forecast(trainer, started)
        last = steps_done + forecast["steps"]
        epoch = trainer.schedule.steps_per_epoch
        advice = changed_text(paths.sources) if was_prepared else []
        advice += warnings(data, config, last if forecast["steps"] else None)
        if forecast["least_limit_s"]:
            advice.append(explain_short_limit(config.training, forecast["least_limit_s"]))
        elif not forecast["steps"]:
            hint = f"increase training.{forecast['ends_by']} to train further"
            advice.append(Advice(f"this run is finished at step {last:,}", hint))
        return {
            "was_prepared": was_prepared,
            "data": data.report,
            "run": {
                "device": trainer.runtime.device,
                "precision": trainer.runtime.precision,
                "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
                "pieces": data.tokenizer.num_pieces,
                "batch_tokens": config.training.batch_tokens,
                "steps_done": steps_done,
                "max_steps": max_steps,
                "steps_per_epoch": epoch,
                "sizes": [*describe(plan, config, data)] if plan else [],
                "epochs": last / epoch,
            },
            "time": {"prepare_s": prepare_s, **forecast},
            "warnings": [{"text": problem.text, "help": problem.hint} for problem in advice],
        }


def _forecast(trainer: Trainer, started: float) -> dict[str, Any]:
    """Take a few steps from the state of the run, and estimate when training will end.

    Args:
        started: when the dry run began, on the monotonic clock.

    Returns:
        step_s: the seconds of a step; tgt_tokens_per_s: the speed; steps: the remaining steps; total_s: the seconds to
        the end, with validations and scoring; ends_by: the key that ends training; may_end_sooner: by
        training.patience; least_limit_s: the least training.time_limit that works, if this one does not.
    """
    training = trainer.config.training
    schedule = trainer.schedule
    data = trainer.data
    validation_started = time.monotonic()
    stride = max(1, data.valid.num_pairs // 64)  # one of this many lines of a validation is translated
    hypotheses = validate_part(trainer.config, data, trainer.model.eval(), 0, stride)["hypotheses"]
    ratio = sum(map(len, data.valid.tgt_texts()[::stride])) / max(1, sum(map(len, hypotheses)))
    validation = Validation(0.0, 0.0, None, stride * (time.monotonic() - validation_started), [], [], ratio)
    state = replace(trainer.state, validation_s=validation.later_seconds(0.0))
    trainer.state = state
    trainer.model.train()
    end_times = list[float]()
    tokens = 0
    with contextlib.closing(trainer.load(_WARM_UP + _TIMED_STEPS)) as steps:
        for step, loaded in enumerate(steps, state.step + 1):
            trainer.update(loaded, step, schedule.learning_rate(state, step)).tolist()  # waits for the device
            end_times.append(time.monotonic())
            tokens += loaded.num_tgt_tokens
            if end_times[-1] - end_times[:_WARM_UP][-1] > _TIMED_S:
                break
    timed_ends = end_times[_WARM_UP - 1 :]
    begun_s = timed_ends[0] - started
    step_s = (timed_ends[-1] - timed_ends[0]) / (len(timed_ends) - 1)
    end_step, ends_by = schedule.end(state)
    if reason := schedule.reason_to_stop(state, state.elapsed_s):
        end_step = state.step
        ends_by = reason
    elif training.time_limit is not None:
        step_in_time = schedule.step_in_time(state, state.elapsed_s + begun_s, step_s)
        end_step, ends_by = min((end_step, ends_by), (step_in_time, "time_limit"))
    num_steps = max(0, end_step - state.step)
    steps_s = num_steps * (step_s + state.validation_s / training.validate_every)
    return {
        "step_s": step_s,
        "tgt_tokens_per_s": tokens / len(end_times) / step_s,
        "steps": num_steps,
        "total_s": begun_s + steps_s + (schedule.scoring_s(state) if num_steps else 0),
        "ends_by": ends_by,
        "may_end_sooner": training.patience is not None,
        "least_limit_s": None if reason else schedule.least_limit_s(state, begun_s),
    }


def lines(report: dict[str, Any]) -> Iterator[str]:
    """The lines of the report as text."""
    data = report["data"]
    run = report["run"]
    forecast = report["time"]
    preparation = "already prepared" if report["was_prepared"] else f"in {format_duration(forecast['prepare_s'])}"
    num_dropped = sum(dropped["pairs"] for dropped in data["dropped"].values())
    yield (
        f"pairs:    {data['read']:,} read, {data['kept']:,} kept, {num_dropped:,} dropped, "
        f"{data['held_out']:,} held out ({preparation})"
    )
    for reason, dropped in data["dropped"].items():
        yield f"  {dropped['pairs']:,} {reason}, such as {show_example(dropped['example'])}"
    yield from (f"  {line}" for line in set_lines(data))
    yield (
        f"model:    {run['parameters']:,} parameters, {run['pieces']:,} subwords, trained on {run['device']} in "
        f"{run['precision']}"
    )
    yield from (f"  {line}" for line in run["sizes"] if len(run["sizes"]) > 2)  # else the lines below say it better
    steps_done = f" ({run['steps_done']:,} done)" if run["steps_done"] else ""
    time_note = (
        f"; the time limit allows only {forecast['steps']:,} more" if forecast["ends_by"] == "time_limit" else ""
    )
    yield f"steps:    {run['max_steps']:,}{steps_done}, with {run['batch_tokens']:,} target tokens each{time_note}"
    yield (
        f"  an epoch is {run['steps_per_epoch']:,.1f} steps; the run sees the training text {run['epochs']:,.1f} times"
    )
    patience_note = ", or less with early stopping" if forecast["may_end_sooner"] else ""
    yield (
        f"time:     about {format_duration(forecast['total_s'])} to the end{patience_note}, "
        f"with validations and scoring: {forecast['steps']:,} steps of {forecast['step_s']:.3g} s "
        f"({forecast['tgt_tokens_per_s']:,.0f} target tokens/s)"
    )
    for advice in report["warnings"]:
        yield f"warning: {advice['text']}"
        yield f"  help: {advice['help']}"
