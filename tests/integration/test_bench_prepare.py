"""`scripts/benchmarks/prepare.py` on little text: the figures of checkouts, whose mtx runs, and the made pairs."""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from scripts.benchmarks.prepare import JUNK, make_lines
from tests.integration.commands import write_sides
from tests.rig import PATIENCE_S, ROOT

pytestmark = [pytest.mark.extended, pytest.mark.skipif(sys.platform != "linux", reason="it needs /proc")]


def run(directory: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    write_sides(directory, "train", range(1000, 1500))
    command = [sys.executable, "-m", "scripts.benchmarks.prepare", "--data-dir", str(directory), "--pairs", "2500"]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.mark.slow
def test_the_figures_of_two_checkouts(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    trees = ["--tree", str(ROOT), "--tree", str(ROOT)]
    result = run(tmp_path, *trees, "--first-step", "2", "--json", str(report), "tokenizer.vocab_size=300")
    assert result.returncode == 0 and "pairs_per_minute" in result.stdout, result.stderr
    rows = json.loads(report.read_text())["rows"]
    assert [row["tree"] for row in rows] == [str(ROOT)] * 2
    for row in rows:
        assert min(row["main_cpu_s"], row["temporary_mb"], row["first_step_2_s"]) > 0
        assert 50 < min(row["first_step_2_anon_mb"]) <= row["first_step_2_peak_anon_mb"] < 3000
        assert len(row["first_step_2_anon_mb"]) == 2


def test_the_mtx_of_the_checkout_runs(tmp_path: Path) -> None:
    (tmp_path / "mtx").mkdir()
    (tmp_path / "mtx" / "__init__.py").write_text("raise SystemExit('another mtx')")
    result = run(tmp_path, "--tree", str(tmp_path))
    assert result.returncode == 1 and "another mtx" in result.stderr


def test_made_pairs_are_always_the_same_ones_and_a_tenth_are_copies(tmp_path: Path) -> None:
    write_sides(tmp_path, "train", range(1000, 1100))
    lines, again = ([*islice(make_lines(tmp_path / "train"), 5000)] for _ in range(2))
    assert lines == again
    assert 0.87 < len({*lines} - {*JUNK}) / 5000 < 0.89
