"""The first minutes of mtx on a GPU: how fast are a step and the search, where does the time go, and what helps?

    python scripts/first_light/first_light.py

Each stage is a process with a limit: one that hangs or dies costs its limit and nothing else. Stages run in groups, one
after the other. A stage that is a group of its own is alone on the machine. Stages of a larger group compile together
and time a moment as soon as they can; when all are ready or over, they take turns and time again, each alone on the
device. Rows are written as they are measured, and tables in Markdown come last. The exit code is 1 if a stage failed.

Environment:
    DEVICE    cuda (the default), or cpu, which tries every stage at toy size
    DATA      directory of Tatoeba's train, dev and test.en-de.tsv.gz; by default .gpu/tatoeba, which prepare.sh makes
    OUT       directory of the results; by default a temporary one
    BUDGET_S  seconds for everything, by default 480; a stage that no longer fits is skipped
    STAGES    names of stages; by default all but big, big-candidates, own-text and two-gpus
"""

import contextlib
import ctypes
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from tables import print_tables
from turns import READY, RESULTS, errors_reported, report

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT))  # where mtx is not installed
NOT_BY_DEFAULT = ("big", "big-candidates", "own-text", "two-gpus")
LEAST_S = 15  # a stage needs at least this
DEATH_S = 5  # for a killed process to end, which one that the driver holds may never do
OF_PARENT_DEATH = 1  # the option of Linux's prctl that names the signal for it
LIBC = ctypes.CDLL(None)
MTX = [sys.executable, "-m", "mtx"]
TEXT = {key: f"{name}.en-de.tsv.gz" for key, name in (("train", "train"), ("valid", "dev"), ("test", "test"))}
TESTS = [
    sys.executable, "-m", "pytest", "-v", "-rfE",
    # one file a process: a search that records first must not meet a training
    "-n", str(min(9, os.cpu_count() or 1)), "--dist", "loadfile", "-p", "failed_tests", "-p", "no:cacheprovider",
    "tests/gpu", "tests/unit/model/test_block_kernels.py",
    # these train whole runs, which takes too long here
    "--ignore=tests/gpu/test_deterministic_cuda.py", "--ignore=tests/gpu/test_dry_run_cuda.py",
]  # fmt: skip
TOY = ["--preset", "tiny", "--tokens", "512", "--ids", "500", "--seconds", "0.5"]
TOY_MICRO = ["--toy", "--presets", "tiny", "--tokens", "512", "--ids", "4000"]
TOY_SEARCH = ["--preset", "tiny", "--ids", "500", "--lines", "4,8"]
TOY_PATIENCE = 10  # times the limits, for a CPU that other work uses too
TOY_TRAINING = ["training.max_steps=4", "training.validate_every=4"]
GPU_STATE = [
    "name", "memory.total", "driver_version", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu",
    "clocks_event_reasons.active",
]  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A process of first light.

    Attributes:
        limit_s: seconds for all of its work; of a stage with turns, until it is ready for the first one.
        turn_s: seconds for its turn; 0 means that it takes none.
        environment: variables that it has in addition.
        run: the run directory that it makes, whose figures are reported when it is over.
    """

    name: str
    command: Sequence[str | Path]
    limit_s: float
    turn_s: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    run: Path | None = None


class Running:
    """A stage in progress, as the leader of a process group of its own."""

    def __init__(self, stage: Stage, log: TextIO):
        self.stage = stage
        self._log = log
        self._started = time.monotonic()
        self.is_ready = False
        self.outcome = ""
        self._last = ""
        self._turn_began = 0.0
        self._ended = 0.0
        self._process = subprocess.Popen(
            list(map(str, stage.command)), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", process_group=0, preexec_fn=_die_with_parent,
            env={**os.environ, **stage.environment},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)  # a stray child may hold the pipe open for ever
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == READY:
                self.is_ready = True
            else:
                self._last = line.strip() if line.strip() and not line.startswith("{") else self._last  # no row
                self._log.write(f"[{self.stage.name}] {line.rstrip()}\n")
                self._log.flush()
        self._ended = time.monotonic()

    def wait_until_ready(self, budget_ends: float) -> None:
        """Waits until it is ready for its turn or over, and kills it at its limit."""
        self._wait(self._started + self.stage.limit_s, budget_ends, f"killed at its limit of {self.stage.limit_s:g} s")

    def take_turn(self, budget_ends: float) -> None:
        """Lets it time, if it is ready, and kills it at the end of its turn."""
        if self.outcome:
            return
        self.is_ready = False
        self._turn_began = time.monotonic()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        turn_ends = self._turn_began + self.stage.turn_s
        self._wait(turn_ends, budget_ends, f"killed at the end of its turn of {self.stage.turn_s:g} s")

    def _wait(self, limit: float, budget_ends: float, reason: str) -> None:
        while self._process.poll() is None and not self.is_ready:
            if time.monotonic() > min(limit, budget_ends):
                self.end(reason if limit < budget_ends else "killed at the end of the budget")
                return
            time.sleep(0.05)
        if (code := self._process.poll()) is not None:
            self.end("done" if code == 0 else f"exit code {code}" if code > 0 else f"killed by signal {-code}")

    def end(self, outcome: str) -> None:
        """Kills what is left of it and reports how it ended."""
        if self.outcome:
            return
        self.outcome = outcome
        ended = self._ended or time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_S)
        self._reader.join(1.0)
        seconds = round(ended - self._started, 1)
        turn_s = round(ended - self._turn_began, 1) if self._turn_began else None
        report(
            "stage", name=self.stage.name, outcome=outcome, seconds=seconds, turn_s=turn_s, last_line=self._last[:99]
        )
        if self.stage.run is not None:
            with errors_reported("run", name=self.stage.name):  # a run that died may have left anything
                report("run", name=self.stage.name, wall_s=seconds, **describe_run(self.stage.run))


def _die_with_parent() -> None:
    """Lets Linux kill this process, which becomes a stage, when first light is killed and cannot do it."""
    if sys.platform == "linux":
        LIBC.prctl(OF_PARENT_DEATH, signal.SIGKILL)


def run_stages(groups: Sequence[Sequence[Stage]], log: TextIO, budget_ends: float) -> list[str]:
    """Runs groups one after the other; the stages of a group side by side, and then their turns one after the other.

    Returns:
        The names of those that failed.
    """
    running = list[Running]()
    try:
        for group in groups:
            if budget_ends - time.monotonic() < LEAST_S:
                for stage in group:
                    report("stage", name=stage.name, outcome="skipped: the budget is spent")
                continue
            for stage in group:
                running.append(Running(stage, log))
            of_group = running[len(running) - len(group) :]
            for stage_process in sorted(of_group, key=lambda stage_process: stage_process.stage.limit_s):
                stage_process.wait_until_ready(budget_ends)
            for stage_process in of_group:
                stage_process.take_turn(budget_ends)
    finally:
        for stage_process in running:
            stage_process.end("interrupted")
    return [stage_process.stage.name for stage_process in running if stage_process.outcome != "done"]


def list_stages(device: str, data: Path, out: Path, work: Path) -> list[list[Stage]]:
    """Returns the groups of all stages, in the order in which they run."""
    is_toy = device == "cpu"
    cores = os.cpu_count() or 1
    memory = gpu_state().get("memory.total", "")  # in MiB; some devices have "[N/A]"
    all_fit = is_toy or (memory.isdecimal() and int(memory) > 100_000)
    profile = ("--profile", out / "profile.txt")
    shared = {  # of processes that compile at the same time
        "OMP_NUM_THREADS": str(max(1, cores // 4)), "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, cores // 3)),
    }  # fmt: skip

    def probe(name: str, *arguments: str | Path, toy: Sequence[str] = ()) -> list[str | Path]:
        return [sys.executable, HERE / f"probe_{name}.py", "--device", device, *arguments, *(toy if is_toy else [])]

    def step(name: str, *arguments: str | Path, limit_s: float = 120, **environment: str) -> Stage:
        return Stage(name, probe("step", "--variant", name, *arguments, toy=TOY), limit_s, environment=environment)

    def option(name: str, *arguments: str, **environment: str) -> Stage:
        command = probe("step", "--variant", name, "--turn", *arguments, toy=TOY)
        return Stage(name, command, limit_s=150, turn_s=15, environment={**shared, **environment})

    def train(name: str, limit_s: float, *arguments: str, toy: Sequence[str]) -> Stage:
        settings = [*arguments, f"device={device}", f"run_dir={work / name}", *(toy if is_toy else [])]
        return Stage(name, [*MTX, "train", *settings], limit_s, run=work / name)

    control = option("control")  # from the cache of `compiled`, whose kernels were chosen on a quiet device
    of_compiler = [
        option("no-mix-order", TORCHINDUCTOR_MIX_ORDER_REDUCTION="0"),
        option("multi-stages", TORCHINDUCTOR_MIX_ORDER_REDUCTION_ALLOW_MULTI_STAGES="1"),
        option("pdl", TORCHINDUCTOR_ENABLE_PDL="1"),
        option("combo", "--combo"),
    ]
    of_mtx = [
        option("loss-chunks", "--loss-rows", "3584"),
        *(option(names, "--candidates", names) for names in ("norm", "loss", "norm,loss")),
    ]
    tests = Stage("tests", TESTS, 150, environment={"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"})
    together = [[tests, control, *of_compiler, *of_mtx]]
    if not all_fit:
        together = [[tests, control, *of_compiler], [control, *of_mtx]]
    own_text = [
        "own-text", *(f"data.{key}={data / name}" for key, name in TEXT.items()), "data.src=en", "data.tgt=de",
        "training.time_limit=80s",
    ]  # fmt: skip
    descent = {"TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "1", "TORCHINDUCTOR_CACHE_DIR": str(work / "descent")}
    groups = [
        [step("compiled", *profile)],
        [Stage("micro", probe("micro", toy=TOY_MICRO), 60)],
        [Stage("decode", probe("decode", toy=TOY_SEARCH), 90)],
        [Stage("ncu", probe("ncu"), 60)],
        [step("descent", limit_s=150, **descent)],
        *together,
        [train("own-text", 120, *own_text, toy=["sizes=10000", "tokenizer.vocab_size=auto", *TOY_TRAINING])],
        [step("big", "--preset", "big", *profile)],
        [step("big-candidates", "--preset", "big", "--candidates", "norm,loss")],
        [train("two-gpus", 300, "demo", "--device", "2", toy=TOY_TRAINING)],
    ]
    patience = TOY_PATIENCE if is_toy else 1
    return [
        [replace(stage, limit_s=patience * stage.limit_s, turn_s=patience * stage.turn_s) for stage in group]
        for group in groups
    ]


def gpu_state() -> dict[str, str]:
    """Returns what nvidia-smi says of the first GPU; nothing where there is none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(GPU_STATE)}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(zip(GPU_STATE, result.stdout.partition("\n")[0].split(", "), strict=False))


def keep(run: Path, archive: Path) -> None:
    """Writes what a run measured into an archive, without its weights and data."""
    with tarfile.open(archive, "w:gz") as file:
        for name in ("metrics.jsonl", "chosen.json", "config.yaml", "model/scores.json", "evaluation"):
            if (run / name).exists():
                file.add(run / name, name)


def describe_run(run: Path) -> dict[str, Any]:
    """Returns the figures of a run that is over, however it ended."""
    from mtx.runs.run_directory import read_events
    from mtx.storage.run_files import RunLayout, stored_scores

    events = list(read_events(RunLayout(run).metrics))
    windows = [event for event in events if event["event"] == "train"]
    rates = sorted(event["tgt_tokens_per_s"] for event in windows[2:] or windows)  # without the first ones
    stalls = [event["stall_s"] for event in events if event["event"] == "checkpoint"]
    scores = {
        name: {"bleu": round(score["bleu"]["score"], 2), "chrf2": round(score["chrf"]["score"], 1)}
        for name, score in stored_scores(RunLayout(run)).items()
    }
    low, high = (rates[int(share * (len(rates) - 1))] if rates else 0 for share in (0.05, 0.95))
    return {
        "steps": max((event.get("step", 0) for event in events), default=0),
        "tgt_tokens_per_s": round(statistics.median(rates or [0])), "p5": round(low), "p95": round(high),
        "saves": len(stalls), "stalls_s": round(sum(stalls), 2),
        "longest_stall_s": max(stalls, default=0.0), "scores": scores,
    }  # fmt: skip


def main() -> int:
    """Runs the chosen stages and prints the tables."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    device = os.environ.get("DEVICE", "cuda")
    budget_s = float(os.environ.get("BUDGET_S", "480"))
    out = Path(os.environ.get("OUT") or tempfile.mkdtemp(prefix="first-light-")).resolve()
    data = Path(os.environ.get("DATA") or ROOT / ".gpu" / "tatoeba").resolve()
    budget_ends = time.monotonic() + budget_s
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="first-light-work-") as scratch, (out / "log.txt").open("a") as log:
        work = Path(scratch)
        paths = [ROOT, HERE]
        os.environ |= {
            RESULTS: str(out / "results.jsonl"), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),  # empty, so that first steps are cold
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }  # fmt: skip
        groups = list_stages(device, data, out, work)
        names = dict.fromkeys(stage.name for group in groups for stage in group)
        chosen_names = os.environ.get("STAGES", "").split() or [name for name in names if name not in NOT_BY_DEFAULT]
        if unknown := [name for name in chosen_names if name not in names]:
            sys.exit(f"error: STAGES: there is no {', '.join(unknown)}, only {', '.join(names)}")
        missing = [name for name in TEXT.values() if not (data / name).is_file()]
        if missing and "own-text" in chosen_names:
            report("stage", name="own-text", outcome=f"skipped: {data} has no {missing[0]}; DATA names the directory")
            chosen_names.remove("own-text")
        chosen = [[stage for stage in group if stage.name in chosen_names] for group in groups]
        machine = Stage("machine", [sys.executable, HERE / "probe_machine.py", device], 60)
        failed = run_stages([[machine]], log, budget_ends)
        if not failed:  # without the packages or the device, no stage can work
            failed = run_stages(chosen, log, budget_ends)
        if state := gpu_state():
            report("gpu at the end", **state)
        if (work / "own-text").is_dir():
            keep(work / "own-text", out / "own-text.tgz")
    print_tables(out / "results.jsonl")
    print(f"log, rows and profiles: {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
