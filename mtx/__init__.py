"""The public interface of mtx in Python, described in docs/reference/python.md. Names are imported on first use.

So `import mtx`, and with it the `mtx` command, loads neither torch nor any other library.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtx.decoding.options import Sampling
    from mtx.decoding.torch_engine import AttentionMaps, ForcedScore
    from mtx.decoding.translator import Hypothesis, Translator
    from mtx.errors import DamagedFileError, DataError, MtxError, UsageError

    __version__: str

__all__ = [
    "AttentionMaps", "DamagedFileError", "DataError", "ForcedScore", "Hypothesis", "MtxError",
    "Sampling", "Translator", "UsageError", "__version__",
]  # fmt: skip
_MODULES = {
    "AttentionMaps": "mtx.decoding.torch_engine",
    "ForcedScore": "mtx.decoding.torch_engine",
    "Sampling": "mtx.decoding.options",
    **dict.fromkeys(("Hypothesis", "Translator"), "mtx.decoding.translator"),
    **dict.fromkeys(("DamagedFileError", "DataError", "MtxError", "UsageError"), "mtx.errors"),
}


def __getattr__(name: str) -> Any:
    """The public names (PEP 562); "unknown" is the version of a checkout that is not installed."""
    if name == "__version__":
        version = importlib.import_module("mtx.machine").package_version()
        return version or "unknown"
    if name not in _MODULES:
        raise AttributeError(f"module 'mtx' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
