"""Faults put into mtx's own code, one at a time, each of which other tests must notice. At night only."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.reliability.conftest import NIGHTLY

Tally = Callable[[str, int, int], None]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """One fault: `old` becomes `new` in a file below mtx/, and one of `tests` must fail."""

    what: str
    path: str
    old: str
    new: str
    tests: str


CRASHES = "tests/reliability/test_crashes.py"
KILLS = "tests/reliability/test_kills.py"
CHECKPOINT = "tests/unit/training/test_checkpoint.py"
POLL = "            if ranks.size == 1 and self._signals.stop:\n                raise InterruptedTrainingError\n"
SEED = "            seed_micro_step(self.device, self.config.seed, step, ranks.rank + number * ranks.size)\n"
DECODE = 'yield line.decode("utf-8", errors=invalid)'
LOCK = "return FileLock(paths.lock).acquire(timeout=_LOCK_TIMEOUT_S)"
FINITE = "if not np.isfinite(tensor.numpy()).all():"
UNEQUAL = "read_lines(tgt_path, ESCAPE), strict=True)"
RENAMED = "        disk.rename(new, path)\n"
PARENT = "        disk.sync(path.parent)\n"

MUTANTS = [
    Mutant("a new file is not synced", "storage/durable.py", "disk.sync(temporary, file)", "pass", CRASHES),
    Mutant("a rename is not synced", "storage/durable.py", f"{RENAMED}{PARENT}", RENAMED, CRASHES),
    Mutant(
        "the files of a checkpoint are not synced", "storage/durable.py",
        "            disk.sync(path)\n", "", CRASHES,
    ),
    Mutant(
        "the old is removed before the new is there", "storage/durable.py",
        "        disk.rename(path, old)\n", "        _remove_tree(path)\n", CRASHES,
    ),
    Mutant(
        "sha256 is not compared", "storage/durable.py",
        "_entry(path) not in accepted", 'accepted[0]["bytes"] != path.stat().st_size',
        "tests/reliability/test_damage.py",
    ),
    Mutant(
        "a damaged checkpoint is the end", "training/checkpoint.py",
        "            continue\n        for bad", "            break\n        for bad",
        f"tests/reliability/test_machine.py {CHECKPOINT}",
    ),
    Mutant("random numbers are not seeded anew", "training/trainer.py", SEED, "", KILLS),
    Mutant(
        "a resume begins the epoch anew", "training/trainer.py",
        "self.sampler, self.state.position,", "self.sampler, replace(self.state.position, index=0),", KILLS,
    ),
    Mutant(
        "lines end at U+2028 too", "storage/text_files.py",
        DECODE, f'{DECODE.replace("yield", "yield from")}.splitlines() or [""]', "tests/reliability/test_lines.py",
    ),
    Mutant(
        "the longer side is cut", "data/tables.py",
        UNEQUAL, "read_lines(tgt_path, ESCAPE))", "tests/reliability/test_hygiene.py",
    ),
    Mutant(
        "numbers are not looked at before the update", "training/strategy.py",
        "(~self._figures.isfinite().all()).float()", "torch.zeros(())", "tests/reliability/test_numbers.py",
    ),
    Mutant(
        "what is not finite is saved", "training/checkpoint.py",
        FINITE, "if False:", f"{CHECKPOINT} tests/reliability/test_numbers.py",
    ),
    Mutant(
        "no lock", "storage/run_directory.py",
        LOCK, "return contextlib.nullcontext()", "tests/reliability/test_owner.py",
    ),
    Mutant(
        "messages go to stdout", "cli.py",
        "_LogHandler(sys.stderr)", "_LogHandler(sys.stdout)", "tests/reliability/test_pipes.py",
    ),
    Mutant("signals are not looked at", "training/trainer.py", POLL, "", "tests/reliability/test_signals.py"),
    Mutant(
        "a failed save is not told", "training/checkpoint.py",
        "            self.deferred_errors.add(", "            print(", "tests/reliability/test_disk.py",
    ),
    Mutant(
        "weights of any shape are taken", "decoding/model_directory.py",
        "got != right", "False", "tests/unit/decoding/test_model_directory.py",
    ),
]  # fmt: skip


def run_tests(copy: Path, tests: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("MTX_RELIABILITY", None)
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False, timeout=900)


@pytest.mark.skipif(not NIGHTLY, reason="runs other tests many times")
def test_every_fault_is_noticed(tmp_path: Path, tally: Tally) -> None:
    copy = tmp_path / "mtx"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", "runs", ".*_cache"))
    sound = run_tests(copy, " ".join(sorted({path for mutant in MUTANTS for path in mutant.tests.split()})))
    assert sound.returncode == 0, sound.stdout.decode()[-2000:]
    missed = []
    for mutant in MUTANTS:
        path = copy / "mtx" / mutant.path
        text = path.read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.what}: {mutant.path} has changed"
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        result = run_tests(copy, mutant.tests)
        if result.returncode != 1:  # 1: tests ran, and one failed
            missed.append(f"{mutant.what}: {result.stdout.decode()[-300:]}")
        path.write_text(text, encoding="utf-8")
    print(*missed, sep="\n")
    tally("faults put into mtx's own code", len(MUTANTS), len(MUTANTS) - len(missed))


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.what for mutant in MUTANTS])
def test_the_line_is_there(mutant: Mutant) -> None:
    """In every run: what a fault replaces stands in the code once, and its tests exist."""
    assert (ROOT / "mtx" / mutant.path).read_text(encoding="utf-8").count(mutant.old) == 1
    assert all((ROOT / path).is_file() for path in mutant.tests.split())
