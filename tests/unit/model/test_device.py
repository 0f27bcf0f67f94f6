"""A GPU that torch cannot use gives a warning with `auto` and an error with `cuda`; what is known of usable ones."""

import re
from pathlib import Path
from typing import Any

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
    assert "has an NVIDIA GPU, but torch" in caplog.text and "using the CPU" in caplog.text
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
    assert "cannot use: The NVIDIA driver on your system is too old (found version 11040); using the CPU" in caplog.text


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes torch find one GPU with this capability, and kernels for these architectures."""

    def install(capability: tuple[int, int], *architectures: str) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA GeForce GTX 970")
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(architectures))

    return install


WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


def test_a_gpu_that_torch_has_no_kernels_for(gpu: Any, caplog: pytest.LogCaptureFixture) -> None:
    gpu((5, 2), *WHEEL)
    reason = (
        f"NVIDIA GeForce GTX 970 has compute capability 5.2, and torch {torch.__version__} is built for sm_75, sm_80,"
    )
    assert find_device("auto") == torch.device("cpu")
    assert f"{reason} sm_86, sm_90, sm_100, sm_120; using the CPU" in caplog.text
    for name in ("cuda", "cuda:0"):
        with pytest.raises(UsageError, match=re.escape(f"device={name}: {reason}")):
            find_device(name)


@pytest.mark.parametrize(
    "capability, architectures, is_usable",
    [
        ((7, 5), WHEEL, True),
        ((8, 9), WHEEL, True),  # a kernel for 8.6 runs on 8.9
        ((9, 0), WHEEL, True),
        ((10, 3), WHEEL, True),
        ((7, 0), WHEEL, False),  # one for 7.5 does not run on 7.0
        ((11, 0), WHEEL, False),
        ((12, 1), WHEEL, True),
        ((13, 0), (*WHEEL, "compute_120"), True),  # the driver compiles for later ones
        ((11, 0), (*WHEEL, "compute_120"), False),
        ((9, 0), ("sm_90a",), True),
        ((10, 3), ("sm_100f",), True),
        ((9, 4), ("gfx942",), True),  # another maker's build
        ((9, 0), (), True),
    ],
)
def test_which_gpus_a_build_of_torch_has_kernels_for(
    gpu: Any, capability: tuple[int, int], architectures: tuple[str, ...], is_usable: bool
) -> None:
    gpu(capability, *architectures)
    assert find_device("auto").type == ("cuda" if is_usable else "cpu")


def test_looking_for_a_gpu_does_not_open_it(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher, and each rank, would take memory of the first one."""
    gpu((9, 0), *WHEEL)
    for name in ("memory_reserved", "set_device", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, None)
    monkeypatch.setattr(torch, "empty", None)
    assert find_device("cuda:0") == torch.device("cuda:0")


@pytest.mark.parametrize("works", [True, False])
def test_memory_grows_where_the_gpu_can(monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    settings: list[str] = []

    def empty(*_: Any, **__: Any) -> None:
        if not works:
            raise RuntimeError("CUDA driver error: operation not supported")

    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    device.expand_segments(torch.device("cuda"))
    taken_back = [] if works else ["expandable_segments:False"]
    assert settings == ["expandable_segments:True", *taken_back]
    with monkeypatch.context() as patch:  # an allocation in memory that torch has already shows nothing
        patch.setattr(torch.cuda, "memory_reserved", lambda device: 1 << 21)
        device.expand_segments(torch.device("cuda"))
        assert len(settings) == 2 - works
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "max_split_size_mb:512")
            settings.clear()
            device.expand_segments(torch.device("cuda"))
            assert settings == []
