"""What an export refuses: models that a format cannot represent, and directories that it must not replace.

This module does not import torch.
"""

from pathlib import Path

from mtx.config.schema import ModelConfig
from mtx.errors import UsageError
from mtx.storage import durable
from mtx.storage.durable import MANIFEST
from mtx.storage.run_contents import is_run
from mtx.storage.run_files import RunLayout


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


def check_replaceable(directory: Path, marks: set[str]) -> None:
    """Raise UsageError if an export or import would replace anything but an earlier one, which has these files.

    mtx wrote what the manifest lists, and temporary files of an interruption.
    """
    if not directory.exists() and not directory.is_symlink():
        return
    if not directory.is_dir():
        raise UsageError(f"{directory}: is not a directory")
    has_manifest = (directory / MANIFEST).exists()
    others = sorted(durable.foreign_entries(directory) if has_manifest else directory.iterdir())
    if others:
        problem = f"holds {others[0].name}, which mtx did not write there and would replace"
    elif RunLayout(run := directory.resolve().parent).model == directory.resolve() and is_run(run):
        problem = "is the model of a run, so it is not replaced"
    elif has_manifest and not marks <= durable.read_manifest(directory).keys():
        problem = "is another directory of mtx, so it is not replaced"
    else:
        return
    raise UsageError(f"{directory}: {problem}", "name a new directory")


def export_note(config: ModelConfig) -> str | None:
    """Which format this architecture cannot be exported to, and why; None if it can be exported to all of them."""
    if config.architecture != "transformer":
        return f"this model cannot be exported (model.architecture={config.architecture}), only a Transformer can"
    obstacles = "; ".join(huggingface_obstacles(config))
    return f"this model can be exported to ctranslate2, not to huggingface ({obstacles})" if obstacles else None
