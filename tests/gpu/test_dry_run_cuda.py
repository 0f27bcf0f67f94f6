"""A dry run on CUDA waits for what it times, and tells the device's memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.commands import TINY, write_tsv

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def test_time_and_memory_of_the_device(tmp_path: Path) -> None:
    corpus, run = write_tsv(tmp_path / "digits.tsv", range(1000, 1400)), tmp_path / "run"
    command = [sys.executable, "-m", "mtx", "train", f"data.train={corpus}", *TINY, "device=cuda", f"run_dir={run}"]
    result = subprocess.run([*command, "--dry-run", "--json"], env=os.environ, capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr.decode()
    found = json.loads(result.stdout)
    memory, total = found["memory"], torch.cuda.get_device_properties(0).total_memory
    assert found["run"]["device"].startswith("cuda") and memory["device"] == total
    assert 0 < memory["other"] < total and memory["needed"] < total
    # No step of this model is done sooner: some hundred kernels, one after the other, take longer.
    assert found["time"]["step_s"] > 1e-4
    assert not run.exists()
