"""Measures what metrics and reports cost: metrics at every step, and the report of a run of 100,000 steps.

    python -m scripts.benchmarks.report RUN [--threads 2]

RUN is a finished run. The steps use its model, data and settings; nothing is written into it. Steps with and without
metrics are taken in turn, so that other load on the machine affects both.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from mtx.config import settings
from mtx.data.token_store import load_prepared
from mtx.model.cuda_graphs import HostCopy
from mtx.storage.run_files import RunLayout
from mtx.training.build import build, read_runtime
from mtx.training.hooks import Console, EventLog
from mtx.training.trainer import Update
from scripts.benchmarks.machine import machine, versions

_STEPS = 600
_CALLS = 20_000
_LONG = 100_000
_LIMIT_S = 600  # of drawing the report


def _metrics_cost(run: Path, scratch: Path) -> dict[str, float]:
    """Returns the median times of a step with and without metrics, their ratio, and the time of the metrics alone."""
    paths = RunLayout(run)
    config = settings.load(paths.config)
    runtime = read_runtime(paths.chosen)
    config = config.model_copy(update={"training": config.training.model_copy(update={"max_steps": 1 << 20})})
    data = load_prepared(paths.data)
    trainer = build(config, replace(runtime, device="cpu"), data, RunLayout(scratch))
    times_with_metrics: list[float] = []
    times_without: list[float] = []
    trainer.hooks = [EventLog(), Console()]
    for hook in trainer.hooks:
        hook.on_start(trainer)
    trainer.progress.restart()

    def report(step: int, num_tgt_tokens: int, figures: torch.Tensor) -> None:
        trainer.progress.unread.append(
            Update(step, trainer.state.position, 1e-3, num_tgt_tokens, HostCopy(figures), 0.0)
        )
        trainer._report_updates(wait=True)

    with trainer.cleanup:
        loaded = trainer.load(_STEPS + 20)
        for step in range(1, _STEPS + 21):
            started = time.perf_counter()
            batch = next(loaded)
            figures = trainer.update(batch, step, 1e-3)
            figures.tolist()  # waits for the device
            if step % 2:
                report(step, batch.num_tgt_tokens, figures)
            if step > 20:  # the first ones are slow
                times = times_with_metrics if step % 2 else times_without
                times.append(time.perf_counter() - started)
        loaded.close()
        started = time.perf_counter()
        for _ in range(_CALLS):
            report(step, 1000, figures)
        metrics_s = (time.perf_counter() - started) / _CALLS
    with_metrics_s = statistics.median(times_with_metrics)
    step_s = statistics.median(times_without)
    return {
        "step_ms": 1e3 * step_s, "with_metrics_ms": 1e3 * with_metrics_s, "ratio": with_metrics_s / step_s,
        "one_report_us": 1e6 * metrics_s, "share_of_a_step": metrics_s / step_s,
    }  # fmt: skip


def _long_run(run: Path, scratch: Path) -> float:
    """Returns the seconds of `mtx report` for a copy of the run with metrics of 100,000 steps and 100 validations."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    start = next(event for event in lines if event["event"] == "start")
    train = [event for event in lines if event["event"] == "train"]
    validation = next(event for event in lines if event["event"] == "validation")
    with (scratch / "metrics.jsonl").open("w") as file:
        file.write(json.dumps(start) + "\n")
        for step in range(1, _LONG + 1):
            event = {**train[step % len(train)], "step": step, "time": start["time"] + step}
            file.write(json.dumps(event) + "\n")
            if step % 1000 == 0:
                file.write(json.dumps({**validation, "step": step, "time": start["time"] + step}) + "\n")
    for path in run.iterdir():
        if path.name not in ("metrics.jsonl", "report.html", "run.lock"):
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, scratch / path.name)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "mtx", "report", str(scratch)], check=True, timeout=_LIMIT_S)
    return time.perf_counter() - started


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a finished run")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch; default: %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        figures = _metrics_cost(arguments.run, Path(scratch))
    with tempfile.TemporaryDirectory() as scratch:
        figures["report_of_100000_steps_s"] = _long_run(arguments.run, Path(scratch))
    print(json.dumps({**machine(torch.device("cpu")), **versions("torch", "jinja2")}))
    for name, value in figures.items():
        print(f"{name:26} {value:12.4f}")


if __name__ == "__main__":
    main()
