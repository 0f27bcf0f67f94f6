"""The CTranslate2 export inside a model directory, with which `mtx translate MODEL` translates on a CPU.

The first use converts the model; later uses convert it again only if its weights have changed. Only a conversion
imports torch.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from mtx.decoding.ctranslate2_engine import library
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.files import durable
from mtx.files.durable import MANIFEST
from mtx.files.shell import mtx_command
from mtx.interop.limits import check_is_transformer
from mtx.run.contents import is_run, model_directory
from mtx.run.layout import EXPORT_CONFIG, KEPT_EXPORT_PREFIX, MODEL_CONFIG, SCORES, WEIGHTS

logger = logging.getLogger(__name__)

_SECONDS_BYTES = 100_000_000  # weights whose conversion takes seconds


def cached_export(model: Path, precision: str = "fp32", is_damaged: bool = False) -> Path:
    """The directory of MODEL's CTranslate2 export, converted now if it is missing or outdated.

    Args:
        model: run directory or model directory; a directory that is a CTranslate2 export itself is returned.
        is_damaged: make it again if its files differ from its manifest.

    Raises:
        UsageError: if there is no such model.
        DamagedFileError: if the lock file is a symbolic link.
        MtxError: if CTranslate2 is not installed, or the export cannot be written inside the model directory.
    """
    if (model / EXPORT_CONFIG).is_file():
        return model
    root = require_model_directory(model)
    export, source = root / f"{KEPT_EXPORT_PREFIX}{precision}", weights_hash(root)
    library()  # before anything is written
    if not is_damaged and _source_of(export) == source:
        return export
    if isinstance(stored := durable.read_json(root / MODEL_CONFIG).get("model"), dict):  # or loading refuses it
        check_is_transformer(stored.get("architecture", "transformer"))
    lock = root / f"{durable.TEMPORARY_PREFIX}{export.name}.lock"
    if lock.is_symlink():  # locking would empty the file that it points to
        raise DamagedFileError(f"{lock}: is a symbolic link, expected a lock file")
    try:
        with _locked(lock):
            if is_damaged and not _is_sound(export):
                durable.remove_directory(export)
            if _source_of(export) != source:  # no other process has converted it meanwhile
                if precision != "fp32" or (root / WEIGHTS).stat().st_size > _SECONDS_BYTES:
                    logger.info("%s: converting for CTranslate2 in %s, which is done once", root, precision)
                scores = durable.read_json(root / SCORES) if (root / SCORES).is_file() else None
                from mtx.interop.ctranslate2 import write_ctranslate2
                from mtx.model_directory import storage

                write_ctranslate2(storage.load(root), export, precision, source, scores)
                if precision != "fp32":
                    from mtx.interop.export import measure_cost

                    measure_cost(root, export)
    except OSError as error:
        elsewhere = mtx_command("export", model, "--to", "ctranslate2", "--precision", precision)
        raise MtxError(
            f"{export}: cannot be written: {error.strerror or error}",
            f"write it elsewhere: {elsewhere} -o DIR && {mtx_command('translate', 'DIR', '--engine', 'ctranslate2')}",
        ) from None
    return export


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold a lock, whose file is removed also after a failure; a process that waits for it then makes a new one."""
    with FileLock(lock):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows does not remove an open file
                lock.unlink()


def require_model_directory(model: Path) -> Path:
    """The model directory that MODEL names: itself, or that of the run; UsageError if there is none."""
    if not model.is_dir():
        raise UsageError(f"{model}: no such model directory or run directory")
    root = model_directory(model)
    if (root / MANIFEST).is_file():
        return root
    if is_run(model):
        raise UsageError(
            f"{model}: this run has no model directory yet", f"to go on with it: {mtx_command('train', model)}"
        )
    raise UsageError(f"{model}: is not a model directory or a run directory")


def weights_hash(root: Path) -> str:
    """The sha256 of a model directory's weights, from its manifest."""
    try:
        return str(durable.read_json(root / MANIFEST)["files"][WEIGHTS]["sha256"])
    except (KeyError, TypeError):
        raise DamagedFileError(f"{root / MANIFEST}: does not list {WEIGHTS}") from None


def _is_sound(export: Path) -> bool:
    try:
        durable.verify(export)
    except DamagedFileError:
        return False
    return True


def _source_of(export: Path) -> str | None:
    """The sha256 of the weights that an export was made from; None without a usable export."""
    try:
        return str(durable.read_json(export / EXPORT_CONFIG).get("source"))
    except DamagedFileError:
        return None
