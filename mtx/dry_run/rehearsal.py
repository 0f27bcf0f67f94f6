"""`mtx train --dry-run`: everything that training would do before its first step, some steps, and nothing left behind.

What the run directory holds is read and never changed; what it does not hold yet is made in a temporary directory.
Flow: configuration -> data, trainer (by `mtx.pipeline`'s own pieces) -> figures -> `Report`.
"""

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mtx import pipeline
from mtx.config.schema import Config
from mtx.data.preprocess import PreparedData
from mtx.dry_run.advice import advice
from mtx.dry_run.estimate import Estimate, Measured, estimate
from mtx.dry_run.memory import Memory, MemoryGauge
from mtx.dry_run.pace import StepPace, keep_end_away, save_s, scoring_s, time_steps, validation_s
from mtx.dry_run.report import Disk, Report, Run
from mtx.dry_run.text import TextFigures, text_figures
from mtx.files import disk, durable
from mtx.interop.limits import export_note
from mtx.model.device import find_device
from mtx.run.contents import checkpoint_steps, full_checkpoint_steps, is_prepared
from mtx.run.deferred_errors import DeferredErrors
from mtx.run.directory import check_settings
from mtx.run.layout import STATE, RunLayout
from mtx.run.lock import check_writable
from mtx.training import checkpoint
from mtx.training.metrics import require_tensorboard
from mtx.training.stopping import StoppingCriteria
from mtx.training.trainer import Trainer


def rehearse(wanted: Config) -> Report:
    """What `wanted` would do and cost, if it were trained here and now.

    Raises:
        MtxError: what training would raise before its first step, but for a disk without room.
    """
    paths = RunLayout(Path(wanted.run_dir))
    if wanted.training.tensorboard:
        require_tensorboard()
    check_writable(paths)
    check_settings(paths, wanted)
    with tempfile.TemporaryDirectory(prefix="mtx-", ignore_cleanup_errors=os.name == "nt") as directory:
        scratch = RunLayout(Path(directory))
        was_prepared = is_prepared(paths.data) or bool(checkpoint_steps(paths))
        started = time.monotonic()
        data = pipeline.prepared_data(wanted, paths if was_prepared else scratch, pipeline.initial_of(wanted, paths))
        prepare_s = time.monotonic() - started
        trainer, steps, memory = _begun(wanted, paths, scratch, data)
        size = sum(parameter.numel() for parameter in trainer.model.parameters())
        disk_use = _disk(trainer, 0 if was_prepared else _num_bytes(scratch.data))
        time_left = _time_left(trainer, scratch, prepare_s, steps)
        run = _run(trainer, size, steps, time_left)
        text = _text(data)
    src, tgt = wanted.data.src, wanted.data.tgt
    report = Report(src, tgt, was_prepared, _of_data(data), text, run, memory, disk_use, time_left, [])
    return replace(report, warnings=advice(report, wanted))


def _begun(
    wanted: Config, paths: RunLayout, scratch: RunLayout, data: PreparedData
) -> tuple[Trainer, StepPace, Memory]:
    """The trainer where the run stands, after some steps, with what these took."""
    device = find_device(wanted.device)
    gauge, started = MemoryGauge(device), time.monotonic()
    records = paths if paths.chosen.exists() else scratch
    trainer = pipeline.new_trainer(wanted, paths, records, device, data, DeferredErrors())
    trainer.begin()
    if done := full_checkpoint_steps(paths):
        trainer.state = checkpoint.load_state(paths.checkpoint(done[-1]) / STATE)
    made_s = time.monotonic() - started
    gauge.begin_steps()
    steps = time_steps(trainer)
    return trainer, replace(steps, start_s=made_s + steps.start_s), gauge.read(trainer.model)


def _time_left(trainer: Trainer, scratch: RunLayout, prepare_s: float, steps: StepPace) -> Estimate:
    one_save_s = save_s(trainer, scratch)
    keep_end_away(trainer)
    state, config = trainer.state, trainer.config
    one_validation_s = validation_s(trainer)
    ending = StoppingCriteria(config, trainer.data, time.monotonic(), state.elapsed_s)
    reserve_s = ending.reserve_s(config.training.time_limit or 0.0, one_validation_s)
    measured = Measured(prepare_s, steps, one_save_s, one_validation_s, scoring_s(trainer), reserve_s)
    ended_by = ending.reason(state) if state.step else None
    return estimate(config.training, state.step, state.elapsed_s, measured, ended_by)


def _run(trainer: Trainer, size: int, steps: StepPace, time_left: Estimate) -> Run:
    config, chosen, train, done = trainer.config, trainer.runtime, trainer.data.train, trainer.state.step
    steps_per_epoch = float(train.weights[train.corpus].sum()) / steps.pairs
    return Run(
        chosen.device, chosen.precision, chosen.threads, trainer.num_micro_steps, size,
        trainer.data.tokenizer.num_pieces, export_note(config.model), config.training.batch_tokens,
        done, config.training.max_steps, steps_per_epoch, (done + time_left.steps) / steps_per_epoch,
    )  # fmt: skip


def _text(data: PreparedData) -> dict[str, TextFigures]:
    stores = {"train": data.train, "valid": data.valid}
    stores |= {f"test.{name}": store for name, store in data.tests.items()}
    return {name: text_figures(store, data.tokenizer, data.train) for name, store in stores.items()}


def _of_data(data: PreparedData) -> dict[str, Any]:
    return {key: data.report[key] for key in ("read", "kept", "held_out", "dropped", "corpora", "valid", "tests")}


def _disk(trainer: Trainer, num_data: int) -> Disk:
    return Disk(trainer.space_needed() + num_data, disk.free_bytes(durable.nearest_directory(trainer.paths.root)))


def _num_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())
