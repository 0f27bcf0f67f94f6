"""The training step and the search, traced and compiled for CUDA without a GPU; see `scripts/traced/traced_step.py`."""

import importlib.util

import pytest
import torch


def require_cuda_build() -> None:
    """Skips a module of tests where torch cannot trace for CUDA, and says what is missing."""
    reason = None
    if torch.version.cuda is None:
        reason = f"torch {torch.__version__} is a build for CPUs; scripts/traced/check_traced.sh makes an environment"
    elif importlib.util.find_spec("triton") is None:
        reason = "triton is not installed; scripts/traced/check_traced.sh makes an environment"
    elif not torch.cuda.is_available():
        reason = "no GPU, and none is pretended: python -m scripts.traced.no_gpu -m pytest tests/traced"
    if reason is not None:
        pytest.skip(reason, allow_module_level=True)
