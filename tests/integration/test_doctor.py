"""`mtx doctor` tells what a machine has, in words and in JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mtx import cli
from mtx.commands import doctor
from mtx.formatting import install_command
from tests.integration.commands import mtx


def test_in_words_and_in_json(tmp_path: Path) -> None:
    text = mtx("doctor", tmp_path / "no" / "where")
    assert text.returncode == 0 and text.stderr == b""
    lines = text.stdout.decode().split("\n")[:-1]
    names = ["mtx", "packages", "CPU", "GPU", "memory", "disk", "device"]
    lines = [line for line in lines if not line.startswith("missing:")]
    assert [line.split(":")[0] for line in lines] == names
    assert f"torch {torch.__version__}" in lines[1] and "GFLOP/s" in lines[6]
    found = json.loads(mtx("doctor", "--json").stdout)
    assert found["versions"]["torch"] == torch.__version__ and found["device"]["gflops"] > 0
    assert found["disk"]["free_gb"] > 0 and found["gpu"]["devices"] == []


def test_what_is_missing_is_told_with_what_needs_it_and_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "package_version", lambda name="mtx": None if name == "ctranslate2" else "1.0")
    assert cli.run(["doctor", "--json"]) == 0
    versions = json.loads(capsys.readouterr().out)["versions"]
    assert versions["ctranslate2"] == "missing" and versions["torch"] == "1.0"
    assert cli.run(["doctor"]) == 0
    expected = "missing:  ctranslate2, for --to ctranslate2 and --engine ctranslate2: "
    lines = capsys.readouterr().out.split("\n")
    assert [line for line in lines if line.startswith("missing:")] == [expected + install_command("ctranslate2")]


def test_a_device_that_is_not_here(refused: Callable[..., None]) -> None:
    refused(2, ["device=cuda"], "doctor", "--device", "cuda")
