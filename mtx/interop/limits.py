"""What an export refuses: models that a format cannot represent, and directories that it must not replace.

This module does not import torch.
"""

from pathlib import Path

from mtx.config.schema import ModelConfig
from mtx.errors import UsageError
from mtx.files import durable
from mtx.files.durable import MANIFEST
from mtx.run.contents import is_run
from mtx.run.layout import MODEL_CONFIG, WEIGHTS, RunLayout


def huggingface_obstacles(config: ModelConfig) -> list[str]:
    """Why MarianMT cannot represent this architecture; empty if it can. CTranslate2 can represent all Transformers."""
    obstacles = []
    if config.norm != "post":
        obstacles.append(f"model.norm={config.norm}: MarianMT has its norms after each residual sum (model.norm=post)")
    if config.positions != "sinusoidal":
        obstacles.append(f"model.positions={config.positions}: MarianMT computes its positions (sinusoidal)")
    return obstacles


def check_is_transformer(architecture: str) -> None:
    """Raise UsageError for a model of another architecture, which no format has."""
    if architecture != "transformer":
        raise UsageError(f"a model of model.architecture={architecture} cannot be exported, only a Transformer can")


def check_replaceable(directory: Path) -> None:
    """Raise UsageError if a directory holds a file not written by mtx, because an export or import replaces it.

    mtx wrote what the manifest lists, and temporary files of an interruption.
    """
    if not directory.exists() and not directory.is_symlink():
        return
    if not directory.is_dir():
        raise UsageError(f"{directory}: is not a directory")
    run = directory.resolve().parent
    if is_run(run) and directory.resolve() == RunLayout(run).model:
        raise UsageError(f"{directory}: is the model of a run, so it is not replaced", "name a new directory")
    has_manifest = (directory / MANIFEST).exists()
    if others := sorted(durable.foreign_entries(directory) if has_manifest else directory.iterdir()):
        raise UsageError(
            f"{directory}: holds {others[0].name}, which mtx did not write there and would replace",
            "name a new directory",
        )


def check_model_replaceable(directory: Path) -> None:
    """Raise UsageError if an import would replace anything but a model directory that mtx wrote."""
    check_replaceable(directory)
    if not directory.exists() or not any(directory.iterdir()):
        return
    if not {MODEL_CONFIG, WEIGHTS} <= durable.read_manifest(directory).keys():
        raise UsageError(f"{directory}: is no model directory, so it is not replaced", "name a new directory")


def export_note(config: ModelConfig) -> str | None:
    """Which format this architecture cannot be exported to, and why; None if it can be exported to all of them."""
    if config.architecture != "transformer":
        return f"this model cannot be exported (model.architecture={config.architecture}), only a Transformer can"
    obstacles = "; ".join(huggingface_obstacles(config))
    return f"this model can be exported to ctranslate2, not to huggingface ({obstacles})" if obstacles else None
