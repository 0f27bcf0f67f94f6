"""With training.deterministic=true two runs on the same GPU end with the same bits, also where one was stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.commands import TINY, wait_until, write_tsv

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

SETTINGS = ["device=cuda", "precision=bf16", "training.deterministic=true", "model.num_heads=4"]


def start(run: Path, corpus: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "mtx", "train", f"data.train={corpus}", *TINY, *SETTINGS, f"run_dir={run}"]
    return subprocess.Popen(command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def test_the_same_bits_again_and_after_a_kill(tmp_path: Path) -> None:
    corpus = write_tsv(tmp_path / "digits.tsv", range(1000, 1400))
    for name in ("first", "second"):
        process = start(tmp_path / name, corpus)
        assert process.wait(300) == 0, process.communicate()
    assert weights(tmp_path / "first") == weights(tmp_path / "second")
    killed = start(tmp_path / "killed", corpus)
    wait_until((tmp_path / "killed" / "checkpoints" / "step-00000008").is_dir, killed)
    killed.send_signal(signal.SIGKILL)
    killed.wait(60)
    again = start(tmp_path / "killed", corpus)
    assert again.wait(300) == 0, again.communicate()
    assert weights(tmp_path / "killed") == weights(tmp_path / "first")
