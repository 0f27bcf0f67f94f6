"""Opens a model with CTranslate2 on a CPU, and with torch on a GPU and for what CTranslate2 cannot do.

CTranslate2 in fp32 gives the translations of torch, and faster. It needs a conversion of the model, which the user's
cache keeps: made from verified weights, and found again by their sha256, the precision and the version of CTranslate2.
A model is verified before its conversion is used. No engine is imported before it is used.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
from filelock import FileLock

from mtx.config.schema import ModelConfig
from mtx.decoding.options import EngineName, Placement, SearchOptions
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.formatting import mtx_command
from mtx.storage import durable, model_description
from mtx.storage.run_files import EXPORT_CONFIG, MODEL_CONFIG, WEIGHTS, find_model, is_run, require_models

if TYPE_CHECKING:
    from mtx.decoding.ctranslate2_engine import CTranslate2Engine
    from mtx.decoding.torch_engine import TorchEngine

logger = logging.getLogger(__name__)

# one of these files is there if the driver of a GPU is; importing torch only to learn that there is none takes a second
_DRIVERS = "/dev/nvidiactl", "/dev/dxg", "/dev/kfd"
_SECONDS_BYTES = 100_000_000  # weights whose conversion takes seconds
_MAX_BYTES = 5_000_000_000  # of all conversions together; the one that was used longest ago goes first


def open_engine(model: str | Path, search: SearchOptions, placement: Placement) -> "CTranslate2Engine | TorchEngine":
    """Opens MODEL, a model directory, run, export or ensemble A+B, with the engine of `choose_engine`.

    Raises:
        UsageError: there is no such model, device or precision.
        DamagedFileError: a file of the model is missing or damaged.
        MtxError: CTranslate2 is required, but cannot be used.
    """
    models = require_models(model)
    is_export = (models[0] / EXPORT_CONFIG).is_file()
    if len(models) > 1:
        only_torch = "ensembles of models"
    elif search.sampling:
        only_torch = "random sampling"
    else:
        only_torch = None
    engine = choose_engine(placement, is_export, only_torch)
    if engine != "torch":
        # without a choice of the user it runs on a CPU, whatever device it finds
        ctranslate2_placement = placement if engine == "ctranslate2" else replace(placement, device="cpu")
        try:
            return _open_ctranslate2(models[0], ctranslate2_placement, is_export)
        except MtxError as error:
            if engine == "ctranslate2":
                raise
            logger.info("torch translates: %s", error)
    return open_torch(model, placement)


def open_torch(model: str | Path, placement: Placement) -> "TorchEngine":
    """Opens MODEL with torch; raises what `open_engine` does."""
    from mtx.decoding.torch_engine import TorchEngine

    return TorchEngine.load(require_models(model), placement)


def choose_engine(placement: Placement, is_export: bool, only_torch: str | None) -> EngineName:
    """The engine that translates: torch or ctranslate2, or auto: CTranslate2 if it can be used, else torch.

    Args:
        only_torch: requested features that CTranslate2 lacks. In torch, a sample depends only on the seed, its line and
            its number.

    Raises:
        UsageError: CTranslate2 is requested with a feature of torch only.
    """
    engine = placement.engine
    if engine == "torch" or (engine == "auto" and placement.precision in ("bf16", "tf32")):
        return "torch"
    if engine == "ctranslate2" or placement.precision in ("fp16", "int8") or is_export:
        if only_torch:
            raise UsageError(f"only the engine torch supports {only_torch}", "use --engine torch")
        return "ctranslate2"
    is_on_cpu = placement.device == "cpu" or (placement.device == "auto" and not has_gpu())
    return "auto" if is_on_cpu and not only_torch else "torch"


def has_gpu() -> bool:
    """Whether this machine has a GPU that torch can use."""
    if "torch" not in sys.modules and not any(map(os.path.exists, _DRIVERS)):
        return False
    from mtx.model.device import find_device

    return find_device("auto").type != "cpu"


def _open_ctranslate2(model: Path, placement: Placement, is_export: bool) -> "CTranslate2Engine":
    """Opens an export, or MODEL's conversion in the cache, converting it again if it is damaged."""
    from mtx.decoding.ctranslate2_engine import CTranslate2Engine

    if is_export:
        return CTranslate2Engine(model, placement)
    precision = placement.precision or "fp32"
    placement = replace(placement, precision=None)
    export = cached_export(model, precision)
    try:
        return CTranslate2Engine(export, placement)
    except DamagedFileError as error:
        logger.warning("%s; converting the model again", error)
        shutil.rmtree(export, ignore_errors=True)
        return CTranslate2Engine(cached_export(model, precision), placement)


def cached_export(model: Path, precision: str = "fp32") -> Path:
    """The directory of MODEL's conversion for CTranslate2, converted now if it is not in the cache.

    Args:
        model: run directory or model directory.

    Raises:
        UsageError: if there is no finished model, or it is not a Transformer.
        DamagedFileError: if a file of the model differs from its manifest.
        MtxError: if CTranslate2 is not installed, or the cache cannot be written.
    """
    from mtx.decoding.ctranslate2_engine import library

    root = find_model(model)
    if not (root / durable.MANIFEST).is_file():
        raise UsageError(f"{model}: no finished model", mtx_command("train", model) if is_run(model) else None)
    version = library().__version__
    check_is_transformer(model_description.read(root, (WEIGHTS,)).config)
    cache = platformdirs.user_cache_path("mtx", appauthor=False) / "ctranslate2"
    export = cache / f"{_identity(root)}-{precision}-{version}"
    if durable.has_manifest(export):
        with contextlib.suppress(OSError):
            os.utime(export)
        return export
    try:
        durable.make_directories(cache)
        with FileLock(cache / "lock"):
            if not durable.has_manifest(export):  # else another process has converted it meanwhile
                shutil.rmtree(export, ignore_errors=True)
                _convert(root, export, precision)
    except OSError as error:
        raise MtxError(
            f"{cache}: cannot write it: {error.strerror or error}",
            f"write it elsewhere: {mtx_command('export', model, '--to', 'ctranslate2', '--precision', precision)} "
            "-o DIR",
        ) from None
    return export


def check_is_transformer(config: ModelConfig) -> None:
    """Raises UsageError for a model of another architecture, which no other program runs."""
    if config.architecture != "transformer":
        raise UsageError(f"a model of model.architecture={config.architecture} cannot be exported (only transformer)")


def _identity(root: Path) -> str:
    """A hash of the sources of a conversion: the weights, the configuration and the tokenizer."""
    entries = durable.read_manifest(root)
    names = (WEIGHTS, MODEL_CONFIG, *model_description.tokenizer_files(root))
    return hashlib.sha256(json.dumps([entries[name] for name in names]).encode()).hexdigest()[:32]


def _convert(root: Path, export: Path, precision: str) -> None:
    """Converts a model; removes the least recently used conversions until all have at most `_MAX_BYTES` in total."""
    if (root / WEIGHTS).stat().st_size > _SECONDS_BYTES:
        logger.info("%s: converting for CTranslate2 in %s (only once)", root, precision)
    from mtx.decoding import model_directory
    from mtx.decoding.ctranslate2_writer import write_ctranslate2

    durable.remove_temporaries(export.parent)
    loaded = model_directory.load(root)
    if not export.name.startswith(_identity(root)):
        raise DamagedFileError(f"{root}: changed while being read")
    write_ctranslate2(loaded, export, precision)
    size = 0
    for path in sorted(filter(Path.is_dir, export.parent.iterdir()), key=lambda path: -path.stat().st_mtime):
        size += sum(file.stat().st_size for file in path.iterdir())
        if size > _MAX_BYTES and path != export:
            shutil.rmtree(path, ignore_errors=True)
