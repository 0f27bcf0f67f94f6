"""A run directory: opening it (lock, settings, cleaning up), and what it was made from.

mtx makes a run in a new or empty directory, or continues its own run. A start that fails before the run holds anything
removes the files that it made. The kernel holds the lock (run.lock), so that it is released however its owner ends;
the empty file remains.

The settings are in config.yaml. The fixed ones (`mtx.config.settings`) must not change: the prepared data and each
checkpoint contain them too, protected by their manifests.
"""

import contextlib
import errno
import fcntl
import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mtx.config import settings
from mtx.config.schema import Config, leaves
from mtx.errors import DamagedFileError, MtxError, TerminatedError, UsageError
from mtx.formatting import mtx_command, shell_command
from mtx.storage import durable
from mtx.storage.model_description import MAX_TOKENIZER_BYTES, ModelDescription, check_info, info_of, tokenizer_files
from mtx.storage.run_files import (
    OPTIMIZER,
    REPORT,
    SETTINGS,
    STATE,
    RunLayout,
    checkpoint_steps,
    full_checkpoint_steps,
    has_begun,
    is_prepared,
    is_run,
)

logger = logging.getLogger(__name__)

_ATTEMPTS = 100  # another start that cleans up at the same moment can make an attempt fail
_DISK_FAILURES = (errno.EIO, errno.ENOSPC)  # after any other error the run_dir is unsuitable
_LOCK_TIMEOUT_S = 0.5  # `mtx status` may hold the lock for a moment
# Prefixes of files that file systems and desktops create, even in an empty volume.
_SYSTEM_FILES = ("lost+found", ".DS_Store", ".nfs", ".snapshot", ".Trash", ".Spotlight-V100", ".fseventsd")


@contextlib.contextmanager
def hold_lock(paths: RunLayout) -> Iterator[None]:
    """Hold the lock of a run until the context ends; a missing run directory is created.

    Raises:
        MtxError: if another process holds the lock, or the disk fails.
        UsageError: if the run directory cannot be created or written, or contains files of no run.
    """
    if not settings.exists(paths.lock):  # no process owns it, and nothing has been created
        refuse_foreign(paths)
    with _take_lock(paths):
        refuse_foreign(paths)
        yield


def _take_lock(paths: RunLayout) -> AbstractContextManager[object]:
    try:
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):  # a start that failed has just removed what it had made
                durable.make_directories(paths.root)
                return FileLock(paths.lock).acquire(timeout=_LOCK_TIMEOUT_S)
        return FileLock(paths.lock).acquire(blocking=False)
    except Timeout:
        owner = ""
        with contextlib.suppress(OSError, MtxError):
            status = durable.read_json(paths.status)
            if status.get("state") == "running":
                owner = f": process {status.get('pid')} on {status.get('host')}"
        hint = "wait for it, or use another run_dir"
        raise MtxError(f"{paths.root}: in use by another process{owner}", hint) from None
    except OSError as error:
        kind = MtxError if error.errno in _DISK_FAILURES else UsageError
        raise kind(f"run_dir {paths.root}: cannot create or write it: {error.strerror}") from None


def is_locked(lock: Path) -> bool:
    """Whether any process, including this one, holds the lock of a run."""
    try:
        with lock.open("rb") as file:  # this user may only read the run, so FileLock cannot ask
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock
        pass
    return False


@contextlib.contextmanager
def open_run(config: Config) -> Iterator[RunLayout]:
    """Own the run directory of `config` until the context ends.

    Raises:
        UsageError: if the directory holds a run with other fixed settings, or files of no run, or cannot be created.
        MtxError: if another process works on the run.
    """
    paths = RunLayout(Path(config.run_dir))
    new_directories = [path for path in (paths.root, *paths.root.parents) if not settings.exists(path)]
    with hold_lock(paths):
        was_run = is_run(paths.root)
        try:
            _record_config(paths, config)
            clean_up(paths)
            yield paths
        except BaseException as error:
            if isinstance(error, TerminatedError):
                action = "resume" if has_begun(paths) else "prepare the text from the start"
                error.help = f"rerun the same command to {action}"
            if not (was_run or has_begun(paths)):  # the corrected command starts from scratch
                _remove(paths.status, paths.config, paths.lock, *new_directories)
            raise


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # it is missing, or others put something there
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()


def refuse_foreign(paths: RunLayout) -> None:
    """Raise UsageError if a directory is neither empty nor the directory of a run.

    A run has a configuration with a lock, prepared data, a checkpoint or a model; its user may add any files.
    """
    if is_run(paths.root) and (paths.lock.exists() or has_begun(paths) or is_prepared(paths.model)):
        return
    files = list[str]()
    with contextlib.suppress(OSError):  # no directory, or one that cannot be read, as taking its lock will report
        files = sorted(path.name for path in paths.root.iterdir() if not _is_trace(path, paths))
    if files:
        raise UsageError(
            f"run_dir {paths.root}: not a run directory, and not empty ({files[0]})",
            "set run_dir=DIR to a new or empty directory, or to a run",
        )


def _is_trace(path: Path, paths: RunLayout) -> bool:
    """Whether a path is of a start that was killed before it wrote the configuration, or of the system."""
    if path == paths.lock:
        return not path.stat().st_size
    return path == paths.distilled or durable.is_temporary(path.name) or path.name.startswith(_SYSTEM_FILES)


def clean_up(paths: RunLayout) -> None:
    """Clean up after an interruption; the caller holds the lock of the run."""
    for directory in (paths.root, paths.checkpoints, *paths.checkpoints.glob("step-*"), paths.evaluation, paths.before):
        durable.remove_temporaries(directory)
    for step in {*checkpoint_steps(paths)} - {*full_checkpoint_steps(paths)}:
        durable.remove_member(paths.checkpoint(step), OPTIMIZER)  # a kill may have left the file


def _record_config(paths: RunLayout, config: Config) -> None:
    """Write config.yaml and log changes in a run: a setting omitted from a repeated command returns to its default.

    Raises:
        UsageError: see `check_settings`.
    """
    check_settings(paths, config)
    if has_begun(paths):
        with contextlib.suppress(MtxError, OSError):  # no configuration yet, or an unreadable one
            changes = settings.differences(settings.load(paths.config), config)
            if message := describe_changes(change for change in changes if change[0] != "run_dir"):
                logger.info(f"{paths.root} continues with changed settings: {message}")
    durable.write_text(paths.config, settings.dump(config))


def check_settings(paths: RunLayout, config: Config) -> None:
    """Check that a run can be resumed with `config`, which then replaces its config.yaml.

    Raises:
        UsageError: with both values of each fixed setting that differs; max_steps is less than the steps of the run.
    """
    if not (paths.config.exists() and has_begun(paths)):
        return
    if changes := describe_changes(settings.fixed_differences(fixed_config(paths, config), config)):
        raise UsageError(
            f"{paths.root} is a run with another configuration: {changes}",
            f"use another run_dir=DIR for a new run; to resume this one unchanged: {mtx_command('train', paths.root)}",
        )
    if (config.training.max_steps or math.inf) < max(checkpoint_steps(paths), default=0):
        raise UsageError("training.max_steps is less than the number of steps that this run has taken")


def load_config(paths: RunLayout) -> Config:
    """The configuration of a run.

    Raises:
        UsageError: if config.yaml is not a configuration, or a fixed setting in it has changed; with both values.
    """
    durable.require_file(paths.config)
    config = settings.load(paths.config)
    if changes := describe_changes(settings.fixed_differences(fixed_config(paths, config), config)):
        copy = shell_command("cp", paths.config, "COPY.yaml")
        train = mtx_command("train", "COPY.yaml", "run_dir=NEW")
        raise UsageError(
            f"{paths.config}: {changes}", f"undo the change, or start a new run with it: {copy} && {train}"
        )
    return config


def describe_changes(changes: Iterable[tuple[str, Any, Any]]) -> str:
    """Settings with their new and old values, such as `seed is 2, it was 1`; empty if there are none."""

    def show(value: object) -> str:  # as on a command line, if possible
        return repr(",".join(map(str, value)) if isinstance(value, tuple) else value)

    return "; ".join(f"{key} is {show(new)}, it was {show(old)}" for key, old, new in changes)


def fixed_config(paths: RunLayout, config: Config) -> Config:
    """A configuration with the original fixed settings of a run.

    They are in the newest undamaged checkpoint, else in the data, else in config.yaml. Those that were not decided when
    the data was prepared are those of `config`.
    """
    values = dict(leaves(config.model_dump()))
    states = [paths.checkpoint(step) / STATE for step in reversed(checkpoint_steps(paths))]
    for path in (*states, paths.data / SETTINGS):
        stored = durable.Json()
        with contextlib.suppress(OSError, DamagedFileError):  # training reports or removes a damaged one
            durable.verify(path.parent, (path.name,), only_needed=True)
            stored = durable.read_json(path)
        if stored.get("settings"):
            try:
                for key in stored.get("undecided", ()):
                    section, _, name = key.partition(".")
                    stored["settings"].setdefault(section, {})[name] = values[key]
                return Config.model_validate(stored["settings"])
            except (ValueError, LookupError, TypeError):  # pydantic's is a ValueError
                raise DamagedFileError(f"{path}: its settings are not a configuration") from None
    return settings.load(paths.config)


def describe_sources(paths: Iterable[Path]) -> durable.Json:
    """The content of sources.json: path, size, time and sha256 of each local file that the data is prepared from.

    It is next to the data, not in it, so that the hash of the data depends only on what a run learns from, wherever its
    files were.
    """
    files = [
        {"path": str(path.absolute()), **_size_and_time(path), "sha256": durable.sha256(path)}
        for path in dict.fromkeys(paths)
    ]
    return {"files": files}


def find_changed_files(record: Path) -> list[Path]:
    """The files that differ from those in a sources.json; missing files and records are ignored.

    An unreadable record counts as different.
    """
    return [path for path, entry in _read_record(record) if _differs(path, entry)]


def recorded_text(record: Path) -> list[tuple[str, str]]:
    """Name and sha256 of each file in a sources.json; empty if it is missing or damaged."""
    return [(path.name, str(entry["sha256"])) for path, entry in _read_record(record) if "sha256" in entry]


def _read_record(record: Path) -> list[tuple[Path, durable.Json]]:
    """The files in a sources.json; none if it is missing, and only itself, without values, if it cannot be read."""
    try:
        stored = durable.read_json(record)["files"] if record.exists() else []
        return [(Path(entry["path"]), entry) for entry in stored]
    except (DamagedFileError, KeyError, TypeError):
        return [(record, {})]


def _size_and_time(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _differs(path: Path, entry: durable.Json) -> bool:
    """Whether a file differs; its content is read only if its size or its time has changed."""
    try:
        if _size_and_time(path).items() <= entry.items():
            return False
        return durable.sha256(path) != entry.get("sha256")
    except (OSError, ValueError):  # missing, or no possible path
        return False


def describe_model(paths: RunLayout) -> ModelDescription:
    """The description of the model of a run without a model directory.

    Raises:
        UsageError: if the run has no checkpoint.
        DamagedFileError: if a file of the tokenizer or the report on the data is damaged.
    """
    if not checkpoint_steps(paths):
        raise UsageError(
            f"{paths.root}: this run has no model yet", f"to resume training: {mtx_command('train', paths.root)}"
        )
    report = paths.data / REPORT
    files = (*tokenizer_files(paths.data), REPORT)
    durable.verify(paths.data, dict.fromkeys(files, MAX_TOKENIZER_BYTES), only_needed=True)
    config = load_config(paths)
    info = info_of(config, durable.read_json(report))
    check_info(report, info)
    return ModelDescription(config.model, info, paths.data)
