"""`mtx train --dry-run`: does everything before the first step of training, times some steps, and keeps nothing.

The run directory is read and never changed; files that are missing in it are made in a temporary directory.
Flow: configuration -> data and trainer, as `mtx.training.run` makes them -> checks, real steps -> report.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mtx.config.schema import Config
from mtx.errors import Advice
from mtx.formatting import format_duration
from mtx.model.device import find_device
from mtx.report import checks
from mtx.storage.run_directory import check_settings, refuse_foreign
from mtx.storage.run_files import STATE, RunLayout, checkpoint_steps, full_checkpoint_steps, is_prepared
from mtx.training import checkpoint
from mtx.training.build import build, choose_runtime
from mtx.training.hooks import Validation
from mtx.training.plan import decide, describe
from mtx.training.ranks import Ranks
from mtx.training.run import load_initial, prepare
from mtx.training.schedule import drop_outdated_cooldown
from mtx.training.tensorboard import require_tensorboard
from mtx.training.trainer import Trainer
from mtx.training.validation import validate_part

_NUM_ROWS = 3  # of sizes that are measured
_VALIDATED = 64  # lines of a validation that are timed
_WARM_UP = 2  # steps that touch memory first, or record a graph
_TIMED_STEPS, _TIMED_S = 60, 6.0  # timing ends after this many steps or seconds


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
        scratch, started = RunLayout(Path(directory)), time.monotonic()
        was_prepared = is_prepared(paths.data) or bool(checkpoint_steps(paths))
        data = prepare(config, paths if was_prepared else scratch, load_initial(config, paths))
        prepare_s = time.monotonic() - started
        records = paths if paths.chosen.exists() else scratch
        device = find_device(config.device)
        config, plan = decide(config, records, data, device, started, Ranks(), _NUM_ROWS)
        runtime = choose_runtime(records, config, device, data)
        trainer = build(config, runtime, data, scratch)
        if full_steps := full_checkpoint_steps(paths):
            state = checkpoint.load_state(paths.checkpoint(full_steps[-1]) / STATE)
            trainer.state = drop_outdated_cooldown(state, config.training)
        run: dict[str, Any] = {
            "device": runtime.device,
            "precision": runtime.precision,
            "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
            "pieces": data.tokenizer.num_pieces,
            "batch_tokens": config.training.batch_tokens,
            "steps_done": trainer.state.step,
            "max_steps": trainer.schedule.end(trainer.state)[0],
            "steps_per_epoch": trainer.schedule.steps_per_epoch,
            "sizes": list(describe(plan, config, data)) if plan else [],
        }
        left = {"prepare_s": prepare_s, **_time_left(trainer, started)}
        last = run["steps_done"] + left["steps"]
        run["epochs"] = last / run["steps_per_epoch"]
        advice = checks.changed_text(paths.sources, config) if was_prepared else []
        advice += checks.warnings(data, config, last if left["steps"] else None)
        if not left["steps"]:
            help = f"increase training.{left['ends_by']} to train further"
            advice.append(Advice(f"this run is finished at step {last:,}", help))
    return {
        "was_prepared": was_prepared,
        "data": data.report,
        "run": run,
        "time": left,
        "warnings": [asdict(each) for each in advice],
    }


def _time_left(trainer: Trainer, started: float) -> dict[str, Any]:
    """Take a few steps from the state of the run, and estimate when training will end.

    Args:
        started: when the dry run began, on the monotonic clock.

    Returns:
        step_s: the seconds of a step; tgt_tokens_per_s: the speed; steps: the remaining steps; total_s: the seconds to
        the end, with validations and scoring; ends_by: the key that ends training; may_end_sooner: by
        training.patience.
    """
    training = trainer.config.training
    state = trainer.state = replace(trainer.state, validation_s=_validation_s(trainer))
    ends, tokens = list[float](), 0
    with contextlib.closing(trainer.load(_WARM_UP + _TIMED_STEPS)) as steps:
        for step, loaded in enumerate(steps, state.step + 1):
            trainer.update(loaded, step, trainer.schedule.learning_rate(state, step)).tolist()  # waits for the device
            ends.append(time.monotonic())
            tokens += loaded.num_tgt_tokens
            if len(ends) > _WARM_UP and ends[-1] - ends[_WARM_UP - 1] > _TIMED_S:
                break
    begun_s = ends[_WARM_UP - 1] - started
    step_s = (ends[-1] - ends[_WARM_UP - 1]) / (len(ends) - _WARM_UP)
    all_s = step_s + state.validation_s / training.validate_every
    end = trainer.schedule.end(state)
    if state.step and (reason := trainer.schedule.reason_to_stop(state, state.elapsed_s)) is not None:
        end = state.step, reason
    elif training.time_limit is not None:
        end = min(end, (trainer.schedule.step_in_time(state, state.elapsed_s + begun_s, step_s), "time_limit"))
    num_steps = max(0, end[0] - state.step)
    after_s = trainer.schedule.scoring_s(state) if num_steps else 0.0
    return {
        "step_s": step_s,
        "tgt_tokens_per_s": tokens / len(ends) / step_s,
        "steps": num_steps,
        "total_s": begun_s + num_steps * all_s + after_s,
        "ends_by": end[1],
        "may_end_sooner": training.patience is not None,
    }


def _validation_s(trainer: Trainer) -> float:
    """The seconds of a validation, by some of its lines; see `Validation.later_seconds`."""
    data, started = trainer.data, time.monotonic()
    size = max(1, data.valid.num_pairs // _VALIDATED)
    hypotheses = validate_part(trainer.model.eval(), data, trainer.config, 0, size)["hypotheses"]
    seconds = size * (time.monotonic() - started)
    trainer.model.train()
    ratio = sum(map(len, data.valid.tgt_texts()[::size])) / max(1, sum(map(len, hypotheses)))
    return Validation(0.0, 0.0, None, seconds, [], [], ratio).later_seconds


def lines(report: dict[str, Any]) -> Iterator[str]:
    """The lines of the report as text."""
    data, run, left = (report[key] for key in ("data", "run", "time"))
    how = "already prepared" if report["was_prepared"] else f"in {format_duration(left['prepare_s'])}"
    num_dropped = sum(dropped["pairs"] for dropped in data["dropped"].values())
    counts = f"{data['kept']:,} kept, {num_dropped:,} dropped, {data['held_out']:,} held out"
    yield f"pairs:    {data['read']:,} read, {counts} ({how})"
    for reason, dropped in data["dropped"].items():
        yield f"  {dropped['pairs']:,} {reason}, such as {checks.example(dropped['example'])}"
    yield from (f"  {line}" for line in checks.set_lines(data))
    trained = f"trained on {run['device']} in {run['precision']}"
    yield f"model:    {run['parameters']:,} parameters, {run['pieces']:,} subwords, {trained}"
    yield from (f"  {line}" for line in run["sizes"])
    done = f" ({run['steps_done']:,} done)" if run["steps_done"] else ""
    end = f"; the time limit allows only {left['steps']:,} more" if left["ends_by"] == "time_limit" else ""
    yield f"steps:    {run['max_steps']:,}{done}, with {run['batch_tokens']:,} target tokens each{end}"
    epochs = f"the run sees the training text {run['epochs']:,.1f} times"
    yield f"  an epoch is {run['steps_per_epoch']:,.1f} steps; {epochs}"
    speed = f"{left['step_s']:.3g} s ({left['tgt_tokens_per_s']:,.0f} target tokens/s)"
    sooner = ", or less with early stopping" if left["may_end_sooner"] else ""
    total = f"about {format_duration(left['total_s'])} to the end{sooner}"
    yield f"time:     {total}, with validations and scoring: {left['steps']:,} steps of {speed}"
    for advice in report["warnings"]:
        yield from (f"warning: {advice['text']}", f"  help: {advice['help']}")
