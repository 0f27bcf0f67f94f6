"""`mtx doctor` tells what a machine has, in words and in JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from tests.integration.commands import mtx


def test_in_words_and_in_json(tmp_path: Path) -> None:
    text = mtx("doctor", tmp_path / "no" / "where")
    assert text.returncode == 0 and text.stderr == b""
    lines = text.stdout.decode().split("\n")[:-1]
    names = ["mtx", "packages", "CPU", "GPU", "memory", "disk", "device"]
    assert [line.split(":")[0] for line in lines] == names
    assert f"torch {torch.__version__}" in lines[1] and "GFLOP/s" in lines[6]
    found = json.loads(mtx("doctor", "--json").stdout)
    assert found["versions"]["torch"] == torch.__version__ and found["device"]["gflops"] > 0
    assert found["disk"]["free_gb"] > 0 and found["gpu"]["devices"] == []


def test_a_device_that_is_not_here(refused: Callable[..., None]) -> None:
    refused(2, ["device=cuda"], "doctor", "--device", "cuda")
