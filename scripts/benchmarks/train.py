"""Measures the training speed of mtx and of other implementations, and prints one table.

    python -m scripts.benchmarks.train --device cpu --preset cpu-reference --data-dir DIR --seconds 30 --json FILE

Every system runs in a process of its own, with the same token ids, sizes, dropout, threads and allocator settings. A
system that cannot run here, or takes longer than --limit, has the reason in its row instead of figures. Where products
in bf16 are slow, or with --precision fp32, systems in bf16 run only if --systems names them. With `--loss-steps N` the
script compares the losses of mtx and of the fp32 baseline after N steps instead of their speed. `baselines.py`
has the other implementations, and `train_worker.py` the work of one process; this file starts the processes and prints
the table.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mtx.machine import num_cores
from scripts.benchmarks.machine import (
    KEEP_FREED_MEMORY,
    PIP_TRANSFORMERS,
    require_figures,
    run_worker,
    versions,
    write_report,
)
from scripts.benchmarks.train_job import PRESETS, Job

STARTED = time.perf_counter()  # before the slow imports: the time to the first step starts here

CPU_SYSTEMS = ("mtx", "nn-transformer", "nn-transformer-compiled", "marian-fp32", "marian-bf16-compiled")
CUDA_SYSTEMS = (*CPU_SYSTEMS[:4], "marian-bf16", CPU_SYSTEMS[4])
SYSTEMS = (*CUDA_SYSTEMS, "marian-bf16-compiled-tuned")  # the last one runs only if --systems names it
LOSS_SYSTEMS = ("mtx", "marian-fp32")
DISTRIBUTIONS = ("torch", "transformers", "numpy", "mtx-translate")
LOSSES_HEAD = ["label-smoothed training loss per target token, mean of the last 50 steps, by seed"]


def main() -> None:
    """Reads the command line, runs every system, prints the table and writes the JSON file."""
    arguments = _arguments()
    if arguments.worker:
        from scripts.benchmarks.train_worker import work

        print(json.dumps(work(Job(**json.loads(arguments.worker)), STARTED)))
        return
    with tempfile.TemporaryDirectory(prefix="mtx-bench-") as scratch:
        threads = arguments.threads
        precision = arguments.precision
        machine = _run(Job("machine", arguments.device, "tiny", 0, 0, threads, 0, scratch, precision))
        if "reason" in machine:
            sys.exit(f"error: {machine['reason']}")
        job = _first_job(arguments, machine, scratch)
        shared = {key: value for key, value in asdict(job).items() if key not in ("system", "scratch", "data", "seed")}
        settings = {
            **shared,
            "data_dir": arguments.data_dir and str(arguments.data_dir),
            "mtx": job.settings(),
            "environment": _environment(job),
        }
        rows = list[dict[str, Any]]()
        report = {"rows": rows, "machine": machine, "versions": versions(*DISTRIBUTIONS), "settings": settings,
                  "date": datetime.now(UTC).isoformat(timespec="seconds")}  # fmt: skip
        if arguments.loss_steps:
            report |= {"rows": [], "losses": rows}
        measured = _compare_losses if arguments.loss_steps else _rows
        print("\n".join(LOSSES_HEAD if arguments.loss_steps else _head(machine)), flush=True)
        for row in measured(job, arguments, machine):
            rows.append(row)
            print(_losses_line(row) if arguments.loss_steps else _line(row), flush=True)
            write_report(arguments.json, report)
    if not arguments.loss_steps:
        print(_comparison(rows), end="")
    require_figures(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--preset", choices=PRESETS, help="default: cpu-reference on a CPU, base on CUDA")
    parser.add_argument("--data-dir", type=Path, help="has train.en[.gz] and train.de[.gz]; default: random ids")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto", help="as in mtx train")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured time of each system, after the warm-up")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--systems", help=f"some of {','.join(SYSTEMS)}")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds until a system is killed; %(default)s")
    parser.add_argument("--threads", type=int, default=num_cores(), help="threads of each system; default: all cores")
    parser.add_argument("--batch-tokens", type=int, help="target tokens per step; default: the preset's")
    parser.add_argument("--loss-steps", type=int, default=0, help="compare the losses of N steps, not the speed")
    parser.add_argument("--seeds", type=int, default=3, help="number of runs of each system with --loss-steps")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="peak with --loss-steps, after a quarter")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.systems = arguments.systems.split(",") if arguments.systems else None
    if unknown := set(arguments.systems or ()) - set(SYSTEMS):
        parser.error(f"--systems: unknown {', '.join(sorted(unknown))}, expected some of {', '.join(SYSTEMS)}")
    return arguments


def _first_job(arguments: argparse.Namespace, machine: dict[str, Any], scratch: str) -> Job:
    """Prepares the text and returns the job that all systems share."""
    device = machine["device"]
    limit_s = arguments.limit
    preset = arguments.preset or ("cpu-reference" if device == "cpu" else "base")
    tokens = arguments.batch_tokens or PRESETS[preset].batch_tokens
    num_ids = PRESETS[preset].num_ids
    seconds = arguments.seconds
    threads = arguments.threads
    precision = machine["precision"]
    job = Job("mtx", device, preset, tokens, seconds, threads, num_ids, scratch, precision, limit_s)
    if arguments.loss_steps:
        job = replace(job, loss_steps=arguments.loss_steps, learning_rate=arguments.learning_rate)
    if arguments.data_dir is None:
        return job
    from mtx.config import settings
    from mtx.data import prepare
    from mtx.errors import MtxError

    print("preparing the text", file=sys.stderr)
    text = [f"data.dir={arguments.data_dir}", "data.train=train"]
    try:
        prepare.prepare(settings.resolve(None, [*job.settings(), *text]).config, Path(scratch, "data"))
    except MtxError as error:
        sys.exit(f"error: {error}")
    return replace(job, data=str(Path(scratch, "data")))


def _environment(job: Job) -> dict[str, str]:
    """Returns the environment variables of all systems.

    oneDNN keeps the kernels of all shapes that padded batches have.
    """
    variables = {
        **KEEP_FREED_MEMORY,
        "OMP_NUM_THREADS": str(job.threads),
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "2000"),  # as `mtx` sets it
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384",
        "PYTORCH_CUDA_ALLOC_CONF": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        "HF_HUB_OFFLINE": "1",
    }
    # Each system compiles from scratch, as for a new user.
    return variables | {"TORCHINDUCTOR_CACHE_DIR": str(Path(job.scratch, f"inductor-{job.system}"))}


def _run(job: Job) -> dict[str, Any]:
    """Runs `job` in a process of its own; returns its figures, or the reason why it has none."""
    print(f"running {job.system}" + (f", seed {job.seed}" if job.loss_steps else ""), file=sys.stderr, flush=True)
    if job.system.startswith("marian") and find_spec("transformers") is None:
        return {"reason": f"transformers is missing: {PIP_TRANSFORMERS}"}
    return run_worker("scripts.benchmarks.train", asdict(job), _environment(job), job.limit_s)


def _rows(job: Job, arguments: argparse.Namespace, machine: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the row of each system when it is measured."""
    systems = CPU_SYSTEMS if job.device == "cpu" else CUDA_SYSTEMS
    fast = [system for system in systems if job.precision == "bf16" or "bf16" not in system]
    for system in arguments.systems or fast:
        answer = _run(replace(job, system=system))
        if "reason" in answer:
            yield {"system": system, "tgt_tokens_per_s": None, **answer}
        else:
            flops_per_s = answer["tgt_tokens_per_s"] * answer["model_flops_per_tgt_token"]
            yield {"system": system, **answer, "model_flop_utilisation": flops_per_s / machine["product_flops_per_s"]}


def _compare_losses(job: Job, arguments: argparse.Namespace, machine: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the label-smoothed loss per target token of each system by seed, as the mean of the last 50 steps."""
    for system in arguments.systems or LOSS_SYSTEMS:
        answers = [_run(replace(job, system=system, seed=seed)) for seed in range(1, arguments.seeds + 1)]
        if reasons := [answer["reason"] for answer in answers if "reason" in answer]:
            yield {"system": system, "reason": reasons[0]}
            continue
        final_losses = [mean(answer["losses"][-50:]) for answer in answers]
        spread = stdev(final_losses) if len(final_losses) > 1 else 0.0
        every = max(1, arguments.loss_steps // 100)
        curves = [answer["losses"][every - 1 :: every] for answer in answers]
        yield {"system": system, "last": final_losses, "mean": mean(final_losses), "std": spread, "curves": curves}


def _head(machine: dict[str, Any]) -> list[str]:
    """Returns the lines above the rows."""
    rate = machine["product_flops_per_s"] / 1e12
    return [
        f"{machine['name']}, {machine['precision']} matrix products {rate:.2f} TFLOP/s",
        f"{'system':24} {'tgt tok/s':>10} {'spread over windows':>21} {'MFU':>6} {'peak MB':>8} {'1st step s':>10} "
        f"{'waits':>6} {'tokens/positions':>16}",
    ]


def _line(row: dict[str, Any]) -> str:
    if "reason" in row:
        return f"{row['system']:24} {row['reason']}"
    spread = f"{row['slowest_window']:,.0f}..{row['fastest_window']:,.0f}"
    return (
        f"{row['system']:24} {row['tgt_tokens_per_s']:10,.0f} {spread:>21} {row['model_flop_utilisation']:6.1%} "
        f"{row['peak_memory_bytes'] / 1e6:8,.0f} {row['first_step_s']:10.1f} {row['data_wait_share']:6.1%} "
        f"{row['real_position_share']:16.1%}"
    )


def _comparison(rows: list[dict[str, Any]]) -> str:
    """Returns a line with the speed of mtx relative to the fastest of the other systems, if both were measured."""
    rates = {row["system"]: row["tgt_tokens_per_s"] for row in rows if row["tgt_tokens_per_s"]}
    peers = {system: rate for system, rate in rates.items() if system != "mtx"}
    if "mtx" in rates and peers:
        best = max(peers, key=lambda system: peers[system])
        return f"mtx is {rates['mtx'] / peers[best]:.2f} times as fast as {best}, the fastest of the others\n"
    return ""


def _losses_line(row: dict[str, Any]) -> str:
    seeds = " ".join(f"{loss:.4f}" for loss in row.get("last", []))
    text = row.get("reason") or f"{seeds}   mean {row['mean']:.4f} ± {row['std']:.4f}"
    return f"{row['system']:24} {text}"


if __name__ == "__main__":
    main()
