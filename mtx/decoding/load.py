"""Which engine translates with a model: CTranslate2 on a CPU, torch on a GPU and for what CTranslate2 cannot do.

CTranslate2 in fp32 gives the translations of torch, and faster. The user's cache keeps the conversion of a model
(`export_cache`). This module imports neither engine before one is used.
"""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mtx.decoding.export_cache import cached_export
from mtx.decoding.options import EngineName, Placement, SearchOptions
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.machine import num_cores
from mtx.storage.run_contents import require_models
from mtx.storage.run_files import EXPORT_CONFIG

if TYPE_CHECKING:
    from mtx.decoding.torch_engine import TorchEngine

logger = logging.getLogger(__name__)

Kind = Literal["model", "export", "ensemble"]
# one of these files is there if the driver of a GPU is; importing torch only to learn that there is none takes a second
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", f"{os.environ.get('SYSTEMROOT', '')}/System32/nvcuda.dll")


def choose_engine(
    placement: Placement, kind: Kind, draws: bool, has_gpu: Callable[[], bool]
) -> tuple[EngineName, str | None]:
    """The engine that translates: torch or ctranslate2, or auto, which is CTranslate2 if it can be used, else torch.

    Args:
        kind: what the model is.
        draws: whether samples are drawn. torch draws each by the seed, its line and its number alone.
        has_gpu: whether this machine has one; asked only where that decides.

    Returns:
        The engine, and why auto takes torch, unless that goes without saying.

    Raises:
        UsageError: CTranslate2 is needed for what only torch has.
    """
    asked, precision = placement.engine, placement.precision
    only_torch = "ensembles of models" if kind == "ensemble" else "random sampling" if draws else None
    if asked == "torch" or (asked == "auto" and precision == "bf16"):
        return "torch", None
    if asked == "ctranslate2" or precision in ("fp16", "int8") or kind == "export":
        if only_torch:
            raise UsageError(f"only the engine torch has {only_torch}", "leave it out, or take --engine torch")
        return "ctranslate2", None
    on_cpu = placement.device == "cpu" or (placement.device == "auto" and not has_gpu())
    if not on_cpu:
        return "torch", None
    return ("torch", f"only it has {only_torch}") if only_torch else ("auto", None)


def load(model: str | Path, search: SearchOptions, placement: Placement) -> Translator:
    """Loads MODEL, a model directory, run, export or ensemble A+B, for the engine that `choose_engine` takes.

    Raises:
        UsageError: there is no such model, device or precision.
        DamagedFileError: a file of the model is missing or damaged.
        MtxError: CTranslate2 is needed, and cannot be used.
    """
    models = require_models(model)
    placement = replace(placement, threads=placement.threads and min(placement.threads, num_cores()))
    engine, reason = choose_engine(placement, kind_of(models), search.sampling is not None, has_gpu)
    try:
        if engine == "ctranslate2":
            return _load_ctranslate2(models[0], search, placement)
        if engine == "auto":
            return _load_ctranslate2(models[0], search, replace(placement, device="cpu"))  # whatever CTranslate2 finds
    except MtxError as error:
        if engine == "ctranslate2":
            raise
        reason = str(error)
    if reason:
        logger.info("torch translates: %s", reason)
    from mtx.decoding.torch_engine import TorchEngine

    return Translator(*TorchEngine.open(models, placement), search)


def _load_ctranslate2(model: Path, search: SearchOptions, placement: Placement) -> Translator:
    """Loads an export, or the conversion of MODEL in the cache, which is made again if it is damaged."""
    from mtx.decoding.ctranslate2_engine import CTranslate2Engine

    def load_torch() -> "TorchEngine":
        from mtx.decoding.torch_engine import TorchEngine

        return TorchEngine.open([model], replace(placement, precision=None))[0]

    if kind_of([model]) == "export":
        return Translator(*CTranslate2Engine.open(model, placement), search, load_torch)
    precision, placement = placement.precision or "fp32", replace(placement, precision=None)
    export = cached_export(model, precision)
    try:
        opened = CTranslate2Engine.open(export, placement)
    except DamagedFileError as error:
        logger.warning("%s; it is made again", error)
        shutil.rmtree(export, ignore_errors=True)
        opened = CTranslate2Engine.open(cached_export(model, precision), placement)
    if found := opened[2].get("comparison"):  # of fp16 or int8, if it was measured
        logger.info("%s, compared with fp32 on %s", precision, found)
    return Translator(*opened, search, load_torch)


def fill_cache(model: Path) -> None:
    """Convert a model now, so that its first translation here need not wait."""
    if not has_gpu():
        try:
            cached_export(model)
        except MtxError as error:
            logger.info("torch translates: %s", error)


def kind_of(models: Sequence[Path]) -> Kind:
    """What the models are that a MODEL argument names."""
    if len(models) > 1:
        return "ensemble"
    return "export" if (models[0] / EXPORT_CONFIG).is_file() else "model"


def has_gpu() -> bool:
    """Whether this machine has a GPU that torch can use."""
    if "torch" not in sys.modules and not any(Path(path).exists() for path in _DRIVERS):
        return False
    from mtx.model.device import find_device

    return find_device("auto").type != "cpu"
