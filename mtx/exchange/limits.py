"""What an export cannot do, in plain words, so that it is said before training starts. No torch here.

Two things are asked: whether a format can hold an architecture, and whether a directory may be replaced.
"""

from pathlib import Path

from mtx import files
from mtx.config import ModelConfig
from mtx.errors import UsageError
from mtx.paths import MANIFEST


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
    """Refuse a directory that holds anything mtx did not write: an export replaces it whole.

    Raises:
        UsageError: naming what would be lost.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UsageError(f"{directory}: is there and is no directory")
    names = sorted(path.name for path in directory.iterdir())
    listed = files.read_json(directory / MANIFEST).get("files") if MANIFEST in names else None
    known = {MANIFEST, *(listed if isinstance(listed, dict) else ())}
    if strange := [name for name in names if name not in known]:
        raise UsageError(
            f"{directory}: holds {strange[0]}, which mtx did not write there and would replace", "name a new directory"
        )
