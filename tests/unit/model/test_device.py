"""A GPU that torch cannot use gives a warning with `auto` and an error with `cuda`."""

from pathlib import Path

import pytest
import torch

from mtx.errors import UsageError
from mtx.model import device
from mtx.model.device import find_device


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_NVIDIA", tmp_path)


def test_without_a_gpu_auto_is_the_cpu_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device, "_NVIDIA", Path("/none"))
    assert find_device("auto") == torch.device("cpu") and not caplog.text
    with pytest.raises(UsageError, match="device=cuda: torch .* finds no CUDA device here"):
        find_device("cuda")


@pytest.mark.usefixtures("driver")
def test_a_torch_build_for_cpus_on_a_machine_with_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert find_device("auto") == torch.device("cpu")
    assert "has an NVIDIA GPU, but torch" in caplog.text and "the CPU is used" in caplog.text
    with pytest.raises(UsageError, match="device=cuda: this machine has an NVIDIA GPU, but torch .* build for CPUs"):
        find_device("cuda")
    assert find_device("cpu") == torch.device("cpu") and caplog.text.count("NVIDIA") == 1


@pytest.mark.usefixtures("driver")
def test_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\n(found version 11040)")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    assert find_device("auto") == torch.device("cpu")
    assert "cannot use: The NVIDIA driver on your system is too old (found version 11040); the CPU" in caplog.text
