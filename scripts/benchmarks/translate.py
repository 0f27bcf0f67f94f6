"""Measures the translation speed of mtx and of other systems on the same model and sentences, and prints one table.

    python -m scripts.benchmarks.translate MODEL --device cpu --json FILE
    python -m scripts.benchmarks.translate --preset base --src FILE --device cuda --json FILE
    python -m scripts.benchmarks.translate MODEL --src FILE --systems mtx-torch-fp32,ctranslate2-fp32 --modes beam4

Every system translates lines of text to lines of text, tokenizing included, with the same number of threads. A process
measures one setting of one system (batch size, workers and threads). The first round tries all settings, the next
rounds those near the best; each round goes through all systems, and the best round counts. Latency is the time of a
call with one sentence. Load time is from the start of a process to its first translated line. A system that cannot run
here, or takes longer than --limit, has the reason in its row instead of figures. Where products in bf16 are slow, or
with --precision fp32, systems in bf16 run only if --systems names them.

With `--preset` the weights are random and all translations are as long as their sources (`translate_inputs.py`).
`translate_worker.py` has the work of one process; this file starts the processes and prints the table.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mtx.machine import num_cores
from scripts.benchmarks.machine import (
    PIP_TRANSFORMERS,
    machine,
    require_figures,
    run_limited,
    run_worker,
    versions,
    write_report,
)
from scripts.benchmarks.translate_job import Job, Setting

if TYPE_CHECKING:
    from scripts.benchmarks.translate_inputs import Text

STARTED = time.perf_counter()  # before the slow imports: the load time starts here
MODULE = "scripts.benchmarks.translate"
MODES = ("greedy", "beam4")
DISTRIBUTIONS = ("torch", "ctranslate2", "transformers", "sentencepiece", "sacrebleu", "mtx-translate")
BASELINE = "mtx-torch-fp32"  # the column "same" compares with its translations
CPU_SYSTEMS = (
    BASELINE, "mtx-torch-bf16", "mtx-ctranslate2-int8", "ctranslate2-fp32", "ctranslate2-int8", "transformers",
)  # fmt: skip
CUDA_SYSTEMS = (*CPU_SYSTEMS[:4], "ctranslate2-fp16", *CPU_SYSTEMS[4:])
SYSTEMS = (*CUDA_SYSTEMS[:3], "mtx-ctranslate2-fp32", *CUDA_SYSTEMS[3:])
# the batches that are tried with CTranslate2
BATCHES = {
    "cpu": ((64, "examples"), (1024, "tokens")),
    "cuda": ((64, "examples"), (256, "examples"), (1024, "examples"), (8192, "tokens")),
}
TRANSFORMERS_BATCHES = (64, 256, 1024)
NUM_COMMAND_LINES = 100
NEAR_BEST = 1.25  # settings within this factor of the best time are tried again, since timings vary


@dataclass(frozen=True)
class Run:
    """The figures of one job in one mode."""

    system: str
    mode: str
    setting: Setting
    figures: dict[str, Any]


def main() -> None:
    """Reads the command line, runs every system, prints the table and writes the JSON file."""
    arguments = _arguments()
    if arguments.worker:
        from scripts.benchmarks.translate_worker import work

        values = json.loads(arguments.worker)
        print(json.dumps(work(Job(**{**values, "setting": Setting(**values["setting"])}), STARTED)))
        return
    from mtx.errors import MtxError

    try:
        with tempfile.TemporaryDirectory(prefix="mtx-bench-") as scratch:
            report = _measure(arguments, Path(scratch))
    except MtxError as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    print(_table(report))
    require_figures(report["rows"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL", help="run directory or model directory")
    parser.add_argument("--preset", choices=("tiny", "small", "base", "big"), help="random weights instead of MODEL")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto", help="as in mtx train")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--src", type=Path, help="file with sentences; default: the run's own test set")
    parser.add_argument("--ref", type=Path, help="file with their references, for BLEU")
    parser.add_argument("--lines", type=int, default=1000, help="number of sentences, from the first line on")
    parser.add_argument("--systems", help=f"some of {','.join(SYSTEMS)}")
    parser.add_argument("--modes", default=",".join(MODES), help="some of %(default)s")
    parser.add_argument("--threads", type=int, default=num_cores(), help="threads of each system; default: all cores")
    parser.add_argument("--repeats", type=int, default=3, help="rounds over all systems; the best one counts")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds until a process is killed; %(default)s")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return arguments
    if (arguments.model is None) == (arguments.preset is None):
        parser.error("give either MODEL or --preset")
    if arguments.preset and not arguments.src:
        parser.error("--preset needs --src FILE with sentences of real length")
    arguments.systems = arguments.systems.split(",") if arguments.systems else None
    modes = arguments.modes.split(",")
    _check_names("--modes", modes, MODES, parser)
    arguments.modes = [mode for mode in MODES if mode in modes]
    _check_names("--systems", arguments.systems or (), SYSTEMS, parser)
    if min(arguments.lines, arguments.threads, arguments.repeats) < 1:
        parser.error("--lines, --threads and --repeats must be at least 1")
    return arguments


def _check_names(option: str, names: Iterable[str], allowed: Sequence[str], parser: argparse.ArgumentParser) -> None:
    if unknown := set(names) - set(allowed):
        parser.error(f"{option}: unknown {', '.join(sorted(unknown))}, expected some of {', '.join(allowed)}")


def _measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Runs all systems and returns the report."""
    from mtx.model.device import fast_precision, find_device
    from mtx.storage import model_description
    from scripts.benchmarks.translate_inputs import copy_model, find_text, random_model, usable_text, write_exports

    device = find_device(arguments.device)
    model = scratch / "model"
    if arguments.model:
        copy_model(arguments.model, model)
    name, sources, references = find_text(arguments.model, arguments.src, arguments.ref)
    if arguments.preset:
        random_model(arguments.preset, sources, model)
    text = usable_text(model, name, sources, references, arguments.lines)
    _write_json(scratch / "text.json", {"lines": text.lines, "line_of_25": text.line_of_25})
    info = model_description.read(model).info
    precision = fast_precision(device) if arguments.precision == "auto" else arguments.precision
    all_systems = CPU_SYSTEMS if device.type == "cpu" else CUDA_SYSTEMS
    systems = list(arguments.systems or [name for name in all_systems if precision == "bf16" or "bf16" not in name])
    if arguments.preset:
        systems = [system for system in systems if not system.startswith("mtx-ctranslate2")]
    exports = write_exports(model, systems, scratch)
    if "transformers" in systems and find_spec("transformers") is None:
        exports.reasons["transformers"] = f"transformers is missing: {PIP_TRANSFORMERS}"
    job = Job(
        "", str(device), str(model), str(exports.huggingface), str(scratch / "text.json"), info["length_penalty"],
        arguments.preset is not None, Setting(1, arguments.threads), limit_s=arguments.limit,
    )  # fmt: skip
    report: dict[str, Any] = {
        "rows": [],
        "commands": [],
        "machine": machine(device),
        "versions": versions(*DISTRIBUTIONS),
        "command": shlex.join(["python", "-m", MODULE, *sys.argv[1:]]),
        "settings": {
            "model": str(arguments.model or f"preset {arguments.preset}, random weights"), "text": name,
            "lines": len(text.lines), "lines_left_out": text.num_left_out, "tokens_of_25": text.tokens_of_25,
            "threads": arguments.threads, "repeats": arguments.repeats, "length_penalty": info["length_penalty"],
            "environment": _environment(arguments.threads),
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for system, runs in _rounds(job, systems, arguments.modes, arguments.repeats, exports.reasons):
        for mode in arguments.modes:
            rows[mode, system] = _row(runs, system, mode, text, info["tgt"], job.is_random, exports.reasons)
            print(_line(rows[mode, system]), file=sys.stderr, flush=True)
        write_report(arguments.json, {**report, "rows": list(rows.values())})
    report["rows"] = [  # again, since the baseline may have run last
        _row(runs, system, mode, text, info["tgt"], job.is_random, exports.reasons)
        for mode in arguments.modes for system in systems
    ]  # fmt: skip
    report["commands"] = [] if job.is_random else _commands(job, text.lines, scratch)
    write_report(arguments.json, report)
    return report


# Rounds of processes


def _throughput_settings(job: Job) -> list[Setting]:
    threads = job.setting.threads
    kind = job.device.partition(":")[0]
    if job.system.startswith("mtx-"):
        return [job.setting]
    if job.system == "transformers":
        return [Setting(1, threads, size) for size in TRANSFORMERS_BATCHES]
    shapes = [(1, threads), (threads, 1)] if kind == "cpu" and threads > 1 else [(1, threads)]
    return [Setting(*shape, *batch) for shape in shapes for batch in BATCHES.get(kind, BATCHES["cuda"])]


def _latency_settings(job: Job) -> list[Setting]:
    """Returns a setting with all threads and one with a single thread, which can be faster for one sentence."""
    setting = _throughput_settings(job)[0]
    is_fixed = job.system.startswith("mtx-") or job.device != "cpu" or setting.threads == 1
    return [setting] if is_fixed else [setting, replace(setting, threads=1)]


def _rounds(
    job: Job, systems: list[str], modes: Sequence[str], repeats: int, reasons: dict[str, str]
) -> Iterator[tuple[str, list[Run]]]:
    """Runs every system once per round, and adds to `reasons` why a system has no figures at all.

    Yields:
        The name of each system when it has run, and all runs so far.
    """
    runs: list[Run] = []
    for number in range(repeats):
        for system in systems:
            its_runs = [run for run in runs if run.system == system]
            jobs = [] if system in reasons else _jobs(replace(job, system=system), modes, its_runs)
            for system_job in jobs:
                print(f"round {number + 1} of {repeats}: {system}, {system_job.setting}", file=sys.stderr, flush=True)
                answer = _run(system_job)
                if "reason" in answer:
                    print(f"{system}, {system_job.setting}: {answer['reason']}", file=sys.stderr)
                    if not its_runs:
                        reasons[system] = answer["reason"]
                    continue
                load_s = {"load_s": answer["load_s"]}
                new_runs = [Run(system, m, system_job.setting, answer[m] | load_s) for m in modes if m in answer]
                runs += new_runs
                its_runs += new_runs
            if its_runs:
                reasons.pop(system, None)
            yield system, runs


def _jobs(job: Job, modes: Sequence[str], runs: list[Run]) -> list[Job]:
    """Returns jobs for all settings of a system that has not run yet, or else for those near the best of each mode."""
    throughput = {}
    latency = {}
    for mode in modes:
        throughput[mode] = _near_best(runs, mode, "seconds") if runs else _throughput_settings(job)
        latency[mode] = _near_best(runs, mode, "latency_ms") if runs else _latency_settings(job)
    lists = [by_mode[mode] for by_mode in (throughput, latency) for mode in modes]
    settings = dict.fromkeys(setting for settings_of_mode in lists for setting in settings_of_mode)
    return [
        replace(
            job, setting=setting, throughput=tuple(mode for mode in modes if setting in throughput[mode]),
            latency=tuple(mode for mode in modes if setting in latency[mode]),
        )
        for setting in settings
    ]  # fmt: skip


def _near_best(runs: Iterable[Run], mode: str, key: str) -> list[Setting]:
    """Returns the settings whose figure is within `NEAR_BEST` of the smallest."""
    measured = [run for run in runs if run.mode == mode and key in run.figures]
    limit = NEAR_BEST * min((run.figures[key] for run in measured), default=0.0)
    return list(dict.fromkeys(run.setting for run in measured if run.figures[key] <= limit))


def _best(runs: Iterable[Run], mode: str, key: str) -> Run | None:
    """Returns the run with the smallest figure."""
    measured = (run for run in runs if run.mode == mode and key in run.figures)
    return min(measured, key=lambda run: run.figures[key], default=None)


def _environment(threads: int) -> dict[str, str]:
    """Returns the environment variables of all systems."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "2000"),  # as `mtx` sets it
        "HF_HUB_OFFLINE": "1",
    }


def _run(job: Job) -> dict[str, Any]:
    """Runs `job` in a process of its own; returns its figures, or the reason why it has none."""
    return run_worker(MODULE, asdict(job), _environment(job.setting.threads), job.limit_s)


def _commands(job: Job, lines: list[str], scratch: Path) -> list[dict[str, Any]]:
    """Measures the wall time of the whole `mtx translate` with each engine, as the median of 3."""
    path = scratch / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in lines[:NUM_COMMAND_LINES]), encoding="utf-8")
    command = [sys.executable, "-m", "mtx", "translate", job.model, str(path)]
    command += ["--device", job.device, "--threads", str(job.setting.threads)]
    rows: dict[str, dict[str, Any]] = {}
    times: dict[str, list[float]] = {"torch": [], "ctranslate2": []}
    for number in range(4):  # the first one fills the page cache and writes the cached export
        for engine, seconds in times.items():
            begun = time.perf_counter()
            _, reason = run_limited([*command, "--engine", engine], job.limit_s)
            if number:
                seconds.append(time.perf_counter() - begun)
            rows[engine] = {"engine": engine, "lines": min(NUM_COMMAND_LINES, len(lines)), "seconds": None}
            if reason:
                rows[engine]["reason"] = reason
    return [{**row, "seconds": median(times[engine])} if "reason" not in row else row for engine, row in rows.items()]


# The report


def _row(
    runs: list[Run], system: str, mode: str, text: "Text", language: str, is_random: bool, reasons: dict[str, str]
) -> dict[str, Any]:
    """Returns one row of the table: the best of all runs of a system in a mode; without quality if it is random."""
    from mtx.scoring import metrics

    row: dict[str, Any] = {"system": system, "mode": mode}
    runs_of_mode = [run for run in runs if run.mode == mode]
    system_runs = [run for run in runs_of_mode if run.system == system]
    baseline_runs = [run for run in runs_of_mode if run.system == BASELINE]
    best = _best(system_runs, mode, "seconds")
    fastest_call = _best(system_runs, mode, "latency_ms")
    baseline = None if is_random else _best(baseline_runs, mode, "seconds")
    if best is None or fastest_call is None:
        reason = reasons.get(system, "only some of its settings could run")
        return {**row, "sentences_per_s": None, "latency_ms": None, "reason": reason}
    same_setting = [run.figures for run in system_runs if run.setting == best.setting]
    with_latency = [run.figures for run in system_runs if "latency_ms" in run.figures]
    lines = best.figures["translations"]
    expected = baseline.figures["translations"] if baseline else None
    return {
        **row,
        "sentences_per_s": best.figures["sentences_per_s"],
        "target_tokens_per_s": best.figures["target_tokens_per_s"],
        **{key: fastest_call.figures[key] for key in ("latency_ms", "latency_p95_ms")},
        "latency_25_tokens_ms": min(figures["latency_25_tokens_ms"] for figures in with_latency),
        "load_s": min(figures["load_s"] for figures in same_setting),
        "memory_mb": best.figures["memory_mb"],
        "identical": expected and sum(1 for a, b in zip(lines, expected, strict=True) if a == b) / len(lines),
        "bleu": metrics.bleu(lines, text.references, language) if text.references and not is_random else None,
        "settings": str(best.setting),
        "latency_settings": f"{fastest_call.setting.threads} threads",
        "rounds": [figures["sentences_per_s"] for figures in same_setting if "seconds" in figures],
    }


def _table(report: dict[str, Any]) -> str:
    """Returns the report as text."""
    settings = report["settings"]
    lines = [
        f"{report['machine']['name']}, {settings['threads']} threads; {settings['lines']} sentences of "
        f'{settings["text"]}; "one ms" is a sentence of {settings["tokens_of_25"]} tokens',
        f"{'system':22} {'mode':6} {'sent/s':>8} {'tgt tok/s':>9} {'1 call ms':>9} {'p95 ms':>7} {'one ms':>7} "
        f"{'load s':>6} {'MB':>6} {'same':>6} {'BLEU':>6}  best setting",
    ]
    lines += map(_line, report["rows"])
    lines += _ratios(report["rows"])
    for row in report["commands"]:
        shown = row.get("reason") or f"{row['seconds']:.2f} s"
        lines.append(f"mtx translate --engine {row['engine']}, {row['lines']} lines: {shown}")
    return "\n".join(lines)


def _ratios(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yields how mtx compares with CTranslate2 called directly, at the best of its settings, in each mode."""
    by_key = {(row["system"], row["mode"]): row for row in rows if "reason" not in row}
    for (system, mode), direct in by_key.items():
        if ours := by_key.get((f"mtx-{system}", mode)):
            latency = ours["latency_25_tokens_ms"] / direct["latency_25_tokens_ms"]
            rate = ours["sentences_per_s"] / direct["sentences_per_s"]
            yield f"mtx / {system}, {mode}: {latency:.2f} of its time for one sentence, {rate:.2f} of its rate for all"


def _line(row: dict[str, Any]) -> str:
    if "reason" in row:
        return f"{row['system']:22} {row['mode']:6} {row['reason']}"
    identical = "" if row["identical"] is None else f"{row['identical']:.1%}"
    bleu = "" if row["bleu"] is None else f"{row['bleu']:.2f}"
    return (
        f"{row['system']:22} {row['mode']:6} {row['sentences_per_s']:8,.1f} {row['target_tokens_per_s']:9,.0f} "
        f"{row['latency_ms']:9.1f} {row['latency_p95_ms']:7.1f} {row['latency_25_tokens_ms']:7.1f} "
        f"{row['load_s']:6.2f} {row['memory_mb']:6,.0f} {identical:>6} {bleu:>6}  {row['settings']}"
    )


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


if __name__ == "__main__":
    main()
