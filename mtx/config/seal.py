"""The seal of a run's config.yaml: a comment in its last line, by which mtx notices that the file was changed.

The seal is the sha256 of the other lines. It keeps nobody from changing a file on purpose; the checkpoints of the run
hold its fixed settings as well, and tell which ones were changed (`mtx.run.configuration`).
"""

import hashlib
from collections.abc import Sequence

_BEGINNING = "# sealed by mtx: "


def sealed(text: str) -> str:
    """The text with its seal."""
    lines = text.removesuffix("\n").split("\n")
    return "\n".join([*lines, _seal(lines), ""])


def is_sealed(lines: Sequence[str]) -> bool:
    """Whether mtx wrote these lines and nobody has changed them."""
    seals, others = _split(lines)
    return seals == [_seal(others)]


def is_changed(lines: Sequence[str]) -> bool:
    """Whether lines that mtx sealed have been changed; those of earlier versions have no seal."""
    seals, _ = _split(lines)
    return bool(seals) and not is_sealed(lines)


def _split(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines that are seals, also broken ones, and the others."""
    seals = [line for line in lines if line.startswith(_BEGINNING)]
    return seals, [line for line in lines if not line.startswith(_BEGINNING)]


def _seal(lines: Sequence[str]) -> str:
    return _BEGINNING + hashlib.sha256("\n".join(lines).encode("utf-8", errors="surrogatepass")).hexdigest()
