"""`mtx train --dry-run`: does all that training does before its first step, takes some steps, and leaves nothing.

The run directory is read and never changed; files that it does not hold yet are made in a temporary directory.
Flow: configuration -> data, trainer (by functions of `mtx.pipeline`) -> checks, real steps -> report, as JSON or lines.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mtx import checks, pipeline
from mtx.config.schema import Config
from mtx.data.text_figures import text_figures
from mtx.errors import Advice
from mtx.files import disk
from mtx.files.durable import nearest_directory
from mtx.files.durations import format_duration
from mtx.files.sizes import readable
from mtx.interop.limits import export_note
from mtx.model.device import find_device
from mtx.run.contents import checkpoint_steps, full_checkpoint_steps, is_prepared
from mtx.run.deferred_errors import DeferredErrors
from mtx.run.directory import check_settings, refuse_foreign
from mtx.run.layout import STATE, RunLayout
from mtx.run.lock import check_writable
from mtx.training import checkpoint
from mtx.training.metrics import require_tensorboard
from mtx.training.schedule import learning_rate
from mtx.training.stopping import StoppingCriteria
from mtx.training.trainer import Trainer

_OF_DATA = ("read", "kept", "held_out", "dropped", "corpora", "valid", "tests")  # keys of report.json
_LONG_S = 3 * 86_400.0
_FEW_STEPS = 500
_WARM_UP = 2  # steps in which memory is first touched, or a graph recorded
_TIMED_STEPS, _TIMED_S = 60, 6.0  # timing ends after this many steps or seconds


def rehearse(config: Config) -> dict[str, Any]:
    """A report on the run that `config` describes, and on the time that it takes on this machine, in seconds.

    Raises:
        MtxError: as training would before its first step, except for a full disk, which the report mentions.
    """
    paths = RunLayout(Path(config.run_dir))
    if config.training.tensorboard:
        require_tensorboard()
    refuse_foreign(paths)
    check_writable(paths)
    check_settings(paths, config)
    with tempfile.TemporaryDirectory(prefix="mtx-dry-run-") as directory:  # only its owner may read it
        scratch, started = RunLayout(Path(directory)), time.monotonic()
        was_prepared = is_prepared(paths.data) or bool(checkpoint_steps(paths))
        initial = pipeline.initial_of(config, paths)
        data = pipeline.load_or_prepare(config, paths if was_prepared else scratch, initial)
        num_data = 0 if was_prepared else sum(path.stat().st_size for path in scratch.data.iterdir())
        prepare_s = time.monotonic() - started
        records = paths if paths.chosen.exists() else scratch
        trainer = pipeline.new_trainer(config, paths, records, find_device(config.device), data, DeferredErrors())
        if full_steps := full_checkpoint_steps(paths):
            trainer.load_state(checkpoint.load_state(paths.checkpoint(full_steps[-1]) / STATE))
        run, num_bytes = _run(trainer), trainer.space_needed() + num_data
        left = {"prepare_s": prepare_s, **_time_left(trainer, started)}
        last = trainer.state.step + left["steps"]
        report = {
            "src": config.data.src, "tgt": config.data.tgt, "was_prepared": was_prepared,
            "data": {key: data.report[key] for key in _OF_DATA},
            "text": {name: asdict(figures) for name, figures in text_figures(data).items()},
            "run": {**run, "epochs": last / run["steps_per_epoch"]},
            "disk": {"needed": num_bytes, "free": disk.free_bytes(nearest_directory(paths.root))}, "time": left,
        }  # fmt: skip
        changed = checks.changed_text(paths.sources, config, not left["steps"]) if was_prepared else []
        advice = [
            *changed, *checks.warnings(data, config, last if left["steps"] else None), *_warnings(report, config),
        ]  # fmt: skip
    return {**report, "warnings": [asdict(each) for each in advice]}


def _run(trainer: Trainer) -> dict[str, Any]:
    """The model, the device and its settings, and the number of steps."""
    training, runtime, data = trainer.config.training, trainer.runtime, trainer.data
    return {
        "device": runtime.device, "precision": runtime.precision, "threads": runtime.threads,
        "micro_steps": trainer.num_micro_steps, "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "pieces": data.tokenizer.num_pieces, "exports": export_note(trainer.config.model),
        "batch_tokens": training.batch_tokens, "steps_done": trainer.state.step, "max_steps": trainer.planned_end()[0],
        "max_epochs": training.max_epochs,
        "steps_per_epoch": checks.steps_per_epoch(data.train, training),
    }  # fmt: skip


def _time_left(trainer: Trainer, started: float) -> dict[str, Any]:
    """Take a few steps from the state of the run, and tell from them when training will end.

    Args:
        started: when the dry run began, on the monotonic clock.

    Returns:
        step_s: the seconds of a step; tgt_tokens_per_s: the speed; steps: those that are left; total_s: the seconds to
        the end, without validations and scoring; ends_by: the key that ends training; may_end_sooner: by
        training.patience.
    """
    training, state, ends, tokens = trainer.config.training, trainer.state, list[float](), list[int]()
    with contextlib.closing(trainer.load(_WARM_UP + _TIMED_STEPS)) as steps:
        for step, loaded in enumerate(steps, state.step + 1):
            rate = learning_rate(step, training.warmup_steps, trainer.config.model.d_model, training.learning_rate)
            figures = trainer.update(loaded, step, rate)
            figures.tolist()  # waits for the device
            tokens.append(loaded.num_tgt_tokens)
            ends.append(time.monotonic())
            if len(ends) > _WARM_UP and ends[-1] - ends[_WARM_UP - 1] > _TIMED_S:
                break
    step_s = (ends[-1] - ends[_WARM_UP - 1]) / (len(ends) - _WARM_UP)
    begun_s = ends[_WARM_UP - 1] - started
    last, ends_by = trainer.planned_end()
    stopping = StoppingCriteria(trainer.config, trainer.data, time.monotonic(), state.elapsed_s)
    if state.step and (reason := stopping.reason(state)) is not None:
        last, ends_by = state.step, reason
    elif training.time_limit is not None:
        in_time = state.step + max(1, int((training.time_limit - state.elapsed_s - begun_s) / step_s))
        if in_time < last:
            last, ends_by = in_time, "time_limit"
    num_steps = max(0, last - state.step)
    return {
        "step_s": step_s, "tgt_tokens_per_s": float(np.mean(tokens)) / step_s, "steps": num_steps,
        "total_s": begun_s + num_steps * step_s, "ends_by": ends_by, "may_end_sooner": training.patience is not None,
    }  # fmt: skip


def _warnings(report: dict[str, Any], config: Config) -> Iterator[Advice]:
    """The warnings that follow from what was measured."""
    run, left, space = (report[key] for key in ("run", "time", "disk"))
    if not left["steps"]:
        text = f"this run has ended at step {run['steps_done']:,}"
        yield Advice(text, f"a larger training.{left['ends_by']} trains on")
    elif left["ends_by"] == "time_limit" and (last := run["steps_done"] + left["steps"]) < _FEW_STEPS:
        help = "a longer training.time_limit; most models need more than a thousand steps to be of use"
        yield Advice(f"the time limit ends training at step {last:,}, after {run['epochs']:.1f} epochs", help)
    if left["steps"] and left["total_s"] > _LONG_S:
        help = "a machine with a GPU, a smaller model.preset, or training.time_limit=12h"
        yield Advice(f"this run takes {left['total_s'] / 86_400:,.0f} days on {run['device']}", help)
    if space["needed"] > space["free"]:
        help = "free some, or take a run_dir on a larger disk; a smaller training.average_last needs less"
        yield Advice(f"{config.run_dir}: its disk has too little room, training would not start", help)


def lines(report: dict[str, Any]) -> list[str]:
    """The lines of the report as text."""
    parts = (_data, _words, _model, _resources, _advice)
    return [line for part in parts for line in part(report)]


def _data(report: dict[str, Any]) -> Iterator[str]:
    data = report["data"]
    how = "as this run has prepared them" if report["was_prepared"] else f"in {_duration(report, 'prepare_s')}"
    num_dropped = sum(dropped["pairs"] for dropped in data["dropped"].values())
    counts = f"{data['kept']:,} kept, {num_dropped:,} dropped, {data['held_out']:,} held out"
    yield f"pairs:    {data['read']:,} read, {counts} ({how})"
    for reason, dropped in data["dropped"].items():
        yield f"  {dropped['pairs']:,} {reason}, such as {checks.example(dropped['example'])}"
    for name, held in checks.sets_of(data).items():
        yield f"  {name}: {held['pairs']:,} pairs{', held out' * held['held_out']}; {checks.leaks(held)}"


def _words(report: dict[str, Any]) -> Iterator[str]:
    yield f"{'words:':27} pieces a word   in bytes or unknown   pieces a sentence   at most"
    for name, text in report["text"].items():
        for side in ("src", "tgt"):
            per_word, unknown, mean, longest = text[side].values()
            yield f"  {f'{name} {report[side]}':25} {per_word:13.2f} {unknown:21.2%} {mean:19.1f} {longest:9,}"


def _model(report: dict[str, Any]) -> Iterator[str]:
    run, left = report["run"], report["time"]
    trained = f"trained on {run['device']} in {run['precision']}"
    yield f"model:    {run['parameters']:,} parameters, {run['pieces']:,} pieces, {trained}"
    if run["exports"]:
        yield f"  note: {run['exports']}"
    done = f" ({run['steps_done']:,} are done)" if run["steps_done"] else ""
    end = f"; the time limit allows only {left['steps']:,} more" if left["ends_by"] == "time_limit" else ""
    about = f"about {run['max_steps']:,}" if left["ends_by"] == "max_epochs" else f"{run['max_steps']:,}"
    yield f"steps:    {about}{done}, with {run['batch_tokens']:,} target tokens each{end}"
    most = "at most " if left["may_end_sooner"] else ""
    epochs = f"the run sees the training text {most}{run['epochs']:,.1f} times"
    yield f"  an epoch is {run['steps_per_epoch']:,.1f} steps; {epochs}"


def _resources(report: dict[str, Any]) -> Iterator[str]:
    left = report["time"]
    needed, free = readable(report["disk"]["needed"], report["disk"]["free"])
    yield f"disk:     {needed} of {free} that are free"
    sooner = ", or sooner by training.patience" if left["may_end_sooner"] else ""
    speed = f"{left['step_s']:.3g} s ({left['tgt_tokens_per_s']:,.0f} target tokens/s)"
    yield f"time:     about {_duration(report, 'total_s')} to the end{sooner}: {left['steps']:,} steps of {speed}"
    yield "  validations and scoring come on top"


def _duration(report: dict[str, Any], key: str) -> str:
    return format_duration(report["time"][key])


def _advice(report: dict[str, Any]) -> Iterator[str]:
    for advice in report["warnings"]:
        yield f"warning: {advice['text']}"
        yield f"  help: {advice['help']}"
