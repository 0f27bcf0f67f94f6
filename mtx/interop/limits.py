"""What an export refuses: models that a format cannot hold, and directories that are not replaced. No torch here."""

from pathlib import Path

from mtx.config.schema import ModelConfig
from mtx.errors import UsageError
from mtx.files import durable
from mtx.files.durable import MANIFEST
from mtx.run.layout import KEPT_EXPORT_PREFIX


def huggingface_obstacles(config: ModelConfig) -> list[str]:
    """Why this architecture cannot become a MarianMT directory; empty where it can. CTranslate2 can hold every one."""
    obstacles = []
    if config.norm != "post":
        obstacles.append(f"model.norm={config.norm}: MarianMT has its norms after each residual sum (model.norm=post)")
    if config.positions != "sinusoidal":
        obstacles.append(f"model.positions={config.positions}: MarianMT computes its positions (sinusoidal)")
    return obstacles


def check_replaceable(directory: Path) -> None:
    """Refuse a directory that holds files that mtx did not write, since an export or an import replaces it whole.

    mtx wrote what the manifest lists, the leftovers of an interruption, and the exports that a model directory caches.

    Raises:
        UsageError: naming the first such file.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UsageError(f"{directory}: is not a directory")
    listed = durable.read_json(directory / MANIFEST).get("files") if (directory / MANIFEST).exists() else None
    known = {MANIFEST, *(listed if isinstance(listed, dict) else ())}
    for path in sorted(directory.iterdir()):
        is_leftover = listed is not None and path.name.startswith(durable.TEMPORARY_PREFIX)
        if path.name in known or is_leftover:
            continue
        if not (path.name.startswith(KEPT_EXPORT_PREFIX) and path.is_dir()):
            raise UsageError(
                f"{directory}: holds {path.name}, which mtx did not write there and would replace",
                "name a new directory",
            )
        check_replaceable(path)


def export_note(config: ModelConfig) -> str | None:
    """Which format this architecture cannot be exported to, and why; None if it can be exported to all of them."""
    obstacles = "; ".join(huggingface_obstacles(config))
    return f"this model can be exported to ctranslate2, not to huggingface ({obstacles})" if obstacles else None
