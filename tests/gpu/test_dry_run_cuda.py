"""A dry run on CUDA waits for what it times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.commands import TINY, write_tsv

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def test_the_time_of_a_step(tmp_path: Path) -> None:
    corpus, run = write_tsv(tmp_path / "digits.tsv", range(1000, 1400)), tmp_path / "run"
    command = [sys.executable, "-m", "mtx", "train", f"data.train={corpus}", *TINY, "device=cuda", f"run_dir={run}"]
    result = subprocess.run([*command, "--dry-run", "--json"], env=os.environ, capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr.decode()
    found = json.loads(result.stdout)
    assert found["run"]["device"].startswith("cuda")
    # No step of this model is done sooner: some hundred kernels, one after the other, take longer.
    assert found["time"]["step_s"] > 1e-4
    assert not run.exists()
