"""What an export cannot do, in plain words, so that it is said before training starts. No torch here.

Two things are asked: whether a format can hold an architecture, and whether a directory may be replaced.
"""

from pathlib import Path

from mtx import files
from mtx.config import ModelConfig
from mtx.errors import UsageError
from mtx.paths import KEPT_EXPORT_PREFIX, MANIFEST


def huggingface_obstacles(config: ModelConfig) -> list[str]:
    """Why this architecture cannot become a MarianMT directory; empty where it can.

    Every `model.tie`, `model.activation` and `model.output_bias` can: transformers' MarianMTModel has them all.
    """
    obstacles = []
    if config.norm != "post":
        obstacles.append(f"model.norm={config.norm}: MarianMT has its norms after each residual sum (model.norm=post)")
    if config.positions != "sinusoidal":
        obstacles.append(f"model.positions={config.positions}: MarianMT computes its positions (sinusoidal)")
    return obstacles


def ctranslate2_obstacles(config: ModelConfig) -> list[str]:
    """Why CTranslate2 cannot run this architecture: empty, for its specification has all that `ModelConfig` allows.

    That is norms before or after (with the final norms), ReLU, swish and exact gelu, a position table of any content,
    a bias on the output and separate matrices for source, target and output.
    """
    return []


def check_replaceable(directory: Path) -> None:
    """Refuse a directory that holds anything mtx did not write: an export or an import replaces it whole.

    mtx wrote what the manifest lists, what an interruption left, and the exports that a model directory keeps.

    Raises:
        UsageError: naming what would be lost.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UsageError(f"{directory}: is there and is no directory")
    listed = files.read_json(directory / MANIFEST).get("files") if (directory / MANIFEST).exists() else None
    known = {MANIFEST, *(listed if isinstance(listed, dict) else ())}
    for path in sorted(directory.iterdir()):
        is_leftover = listed is not None and path.name.startswith(files.TEMPORARY_PREFIX)
        if path.name in known or is_leftover:
            continue
        if not (path.name.startswith(KEPT_EXPORT_PREFIX) and path.is_dir()):
            raise UsageError(
                f"{directory}: holds {path.name}, which mtx did not write there and would replace",
                "name a new directory",
            )
        check_replaceable(path)
