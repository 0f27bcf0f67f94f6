"""The conversions for CTranslate2 in the user's cache, with which `mtx translate MODEL` translates on a CPU.

A conversion is made from verified weights, and found again by their sha256, the precision and the version of
CTranslate2. A model is verified before its conversion is used. Only a conversion imports torch.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path

import platformdirs
from filelock import FileLock

from mtx.data.tokenizer import Tokenizer
from mtx.decoding.ctranslate2_engine import library
from mtx.decoding.ctranslate2_limits import check_is_transformer
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.formatting import mtx_command
from mtx.storage import durable, model_description
from mtx.storage.durable import MANIFEST
from mtx.storage.run_contents import find_model, is_run
from mtx.storage.run_files import MODEL_CONFIG, WEIGHTS

logger = logging.getLogger(__name__)

_SECONDS_BYTES = 100_000_000  # weights whose conversion takes seconds
_MAX_BYTES = 5_000_000_000  # of all conversions together; the one that was used longest ago goes first


def cached_export(model: Path, precision: str = "fp32") -> Path:
    """The directory of MODEL's conversion for CTranslate2, converted now if it is not in the cache.

    Args:
        model: run directory or model directory.

    Raises:
        UsageError: if there is no finished model.
        DamagedFileError: if a file of the model differs from its manifest.
        MtxError: if CTranslate2 is not installed, or the cache cannot be written.
    """
    root = find_model(model)
    if not (root / MANIFEST).is_file():
        help = mtx_command("train", model) if is_run(model) else None
        raise UsageError(f"{model}: is not a model directory, nor a run that has one", help)
    version = library().__version__
    check_is_transformer(model_description.read(root, (WEIGHTS,)).config.architecture)
    cache = platformdirs.user_cache_path("mtx", appauthor=False) / "ctranslate2"
    export = cache / f"{_identity(root)}-{precision}-{version}"
    try:
        if durable.has_manifest(export):
            with contextlib.suppress(OSError):
                os.utime(export)
            return export
        durable.make_directories(cache)
        with FileLock(cache / "lock"):
            if not durable.has_manifest(export):  # else another process has converted it meanwhile
                shutil.rmtree(export, ignore_errors=True)
                _convert(root, export, precision)
                _remove_oldest(cache, export)
    except OSError as error:
        elsewhere = mtx_command("export", model, "--to", "ctranslate2", "--precision", precision)
        raise MtxError(
            f"{cache}: cannot be written: {error.strerror or error}",
            f"write it elsewhere: {elsewhere} -o DIR && {mtx_command('translate', 'DIR', '--engine', 'ctranslate2')}",
        ) from None
    return export


def _identity(root: Path) -> str:
    """A hash of what a conversion is made from: the weights, the configuration and the tokenizer."""
    entries = durable.read_manifest(root)
    names = (WEIGHTS, MODEL_CONFIG, *Tokenizer.file_names_in(root))
    return hashlib.sha256(json.dumps([entries[name]["sha256"] for name in names]).encode()).hexdigest()[:32]


def _convert(root: Path, export: Path, precision: str) -> None:
    if precision != "fp32" or (root / WEIGHTS).stat().st_size > _SECONDS_BYTES:
        logger.info("%s: converting for CTranslate2 in %s, which is done once", root, precision)
    from mtx.decoding import model_directory
    from mtx.decoding.ctranslate2_writer import write_ctranslate2

    durable.remove_temporaries(export.parent)
    loaded = model_directory.load(root)
    if not export.name.startswith(_identity(root)):
        raise DamagedFileError(f"{root}: changed while it was read")
    write_ctranslate2(loaded, export, precision)
    if precision != "fp32":
        from mtx.interop.export import measure_cost

        measure_cost(root, export)


def _remove_oldest(cache: Path, newest: Path) -> None:
    """Remove the conversions that were used longest ago until all together have at most `_MAX_BYTES`."""
    exports = sorted(filter(Path.is_dir, cache.iterdir()), key=lambda path: path.stat().st_mtime)
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in exports}
    for path in exports:
        if sum(sizes.values()) > _MAX_BYTES and path != newest:
            shutil.rmtree(path, ignore_errors=True)
            del sizes[path]
