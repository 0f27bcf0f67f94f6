"""`mtx train --device N` and torchrun: real launchers, with the exit codes, signals and output of one process."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtx.machine import num_cores
from mtx.training.build import read_runtime
from tests.integration.commands import ENVIRONMENT, TINY, check_error, events, have_ended, mtx, spawn, wait_until
from tests.rig import PATIENCE_S

pytestmark = [pytest.mark.extended, pytest.mark.seconds]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LONG = [*TINY, "training.max_steps=100000", "training.validate_every=100000", "precision=fp32"]


def end(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    _, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, err.decode()


def test_two_devices_print_what_one_does(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run $$ $HOME"
    process = spawn("train", f"data.train={corpus}", *TINY, f"run_dir={run}", "--device", 2)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err.decode()
    assert out.startswith(b"heldout BLEU ") and out.count(b"\n") == 1
    assert err.count(b"training ends at step 40") == 1 and b"torch" not in err and b"Traceback" not in err
    assert b'"ranks": 2' in (run / "metrics.jsonl").read_bytes()
    again = mtx("train", run)
    assert again.returncode == 0 and b"this run is finished" in again.stderr


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_launcher_saves_and_stops(
    number: signal.Signals, code: int, corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = spawn("train", *LONG, f"data.train={corpus}", f"run_dir={run}", "--device", 2)
    wait_until((run / "checkpoints" / "step-00000004").is_dir, process)
    if number == signal.SIGTERM:
        process.send_signal(signal.SIGUSR1)  # only saves
    process.send_signal(number)
    returned, err = end(process)
    check_error(returned, err, code, "the state is saved", "same command")


def test_a_killed_rank_ends_the_run_and_is_named(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = spawn("train", *LONG, f"data.train={corpus}", f"run_dir={run}", "--device", 2)
    wait_until((run / "checkpoints" / "step-00000004").is_dir, process)
    ranks = children(process)
    os.kill(ranks[1], signal.SIGKILL)
    returned, err = end(process)
    assert returned == 137 and f"error: rank 1 (process {ranks[1]}) was killed by SIGKILL" in err
    assert "Traceback" not in err and have_ended(ranks)


def test_torchrun_starts_again_from_the_last_checkpoint(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [*TORCHRUN, "--max-restarts", "1", "-m", "mtx", "train", *TINY, "training.max_steps=300"]
    settings = ["training.validate_every=300", f"data.train={corpus}", f"run_dir={run}"]
    environment = {**ENVIRONMENT, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    process = subprocess.Popen([*command, *settings], env=environment, stderr=subprocess.PIPE)
    wait_until((run / "checkpoints" / "step-00000004").is_dir, process)
    os.kill(children(process)[1], signal.SIGKILL)
    returned, err = end(process)
    assert returned == 0, err
    starts = [event["step"] for event in events(run) if event["event"] == "start"]
    assert len(starts) == 2 and starts[1] >= 4


def children(process: "subprocess.Popen[bytes]") -> list[int]:
    """The processes that a launcher has started, in the order of their ranks."""
    pids = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    ranks = {environment(pid).get("RANK", ""): pid for pid in pids}
    return [ranks["0"], ranks["1"]]


def environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def test_torchrun_starts_ranks_whose_threads_are_not_recorded(corpus: Path, tmp_path: Path) -> None:
    run, environment = tmp_path / "run", {name: v for name, v in ENVIRONMENT.items() if name != "OMP_NUM_THREADS"}
    settings = [*TINY, "training.max_steps=4", f"data.train={corpus}", f"run_dir={run}"]
    command = [*TORCHRUN, "-m", "mtx", "train", *settings]
    result = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE_S)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.startswith(b"heldout BLEU ") and result.stdout.count(b"\n") == 1
    assert re.search(b"in (fp32|bf16), 1 thread in each of 2 ranks: ", result.stderr)
    assert read_runtime(run / "chosen.json").threads == 0
    goes_on = [sys.executable, "-m", "mtx", "train", str(run), "training.max_steps=5"]
    result = subprocess.run(
        goes_on, env={**ENVIRONMENT, "OMP_NUM_THREADS": "2"}, capture_output=True, timeout=PATIENCE_S
    )
    assert result.returncode == 0 and f", {min(2, num_cores())} thread".encode() in result.stderr


REFUSED: list[tuple[list[Any], list[str]]] = [
    (["--device", "all"], ["--device all", "CUDA", "--device 2"]),
    (["--device", "0"], ["--device 0: expected a number from 1", "--device cuda:0"]),
    (["--device", "cuda"], ["device=cuda: ", "--device cpu, or --device auto"]),
    (["--device", "two"], ["device: expected auto, cpu, cuda, cuda:1 or mps, got 'two'", "mtx config device"]),
    (["--device", "2", "--dry-run"], ["--dry-run"]),
    (["--devices", "2"], ["no option --devices", "mtx train --device N"]),
    (["--device"], ["Option '--device' requires an argument"]),
]


@pytest.mark.parametrize("options, words", REFUSED)
def test_what_cannot_be_started_is_refused(options: list[Any], words: list[str], refused: Any, tmp_path: Path) -> None:
    refused(2, words, "train", "demo", f"run_dir={tmp_path / 'run'}", *options)
    assert not (tmp_path / "run").exists()


def test_ranks_are_refused_where_they_start_others(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(2, ["torchrun"], "train", "demo", "--device", 2)
    refused(2, ["--dry-run"], "train", "demo", "--dry-run")
