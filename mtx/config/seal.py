"""The seal of a run's config.yaml: a comment in its last line, by which mtx notices that the file was changed.

The seal is the sha256 of the other lines, and two digits of the sha256 of each, which tell the line that was changed.
It keeps nobody from changing a file on purpose; the checkpoints of the run hold its fixed settings as well.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from mtx.errors import DamagedFileError

_BEGINNING = "# sealed by mtx: "
_SEAL = re.compile(rf"{_BEGINNING}([0-9a-f]{{64}}) ([0-9a-f]*)")


def sealed(text: str) -> str:
    """The text with its seal."""
    lines = text.removesuffix("\n").split("\n")
    return "\n".join([*lines, _BEGINNING + _seal(lines), ""])


def is_sealed(lines: Sequence[str]) -> bool:
    """Whether mtx wrote these lines and nobody has changed them."""
    seals, others = _split(lines)
    return seals == [_BEGINNING + _seal(others)]


def check_seal(path: Path, lines: Sequence[str]) -> None:
    """Check that nobody has changed the lines of a config.yaml; those of earlier versions have no seal.

    Raises:
        DamagedFileError: naming the first line that was changed, if the seal tells it.
    """
    seals, others = _split(lines)
    if not seals or is_sealed(lines):
        return
    number = _changed_line(seals[-1], others)
    place = f"{path}" if number is None else f"{path}:{number + 1}: {others[number].strip()!r}"
    raise DamagedFileError(f"{place}: was changed after mtx wrote it", how_to_change(path))


def how_to_change(path: Path) -> str:
    """What changes the settings of the run that a config.yaml belongs to."""
    run = f"mtx train {path.parent} key=value changes a setting that may change"
    return f"{run}; mtx train {path} run_dir=NEW starts a new run with this file"


def _split(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines that are seals, also broken ones, and the others."""
    seals = [line for line in lines if line.startswith(_BEGINNING)]
    return seals, [line for line in lines if not line.startswith(_BEGINNING)]


def _seal(lines: Sequence[str]) -> str:
    return f"{_sha256(chr(10).join(lines))} {''.join(map(_digits, lines))}"


def _changed_line(seal: str, lines: Sequence[str]) -> int | None:
    match = _SEAL.fullmatch(seal)
    digits = match[2] if match else ""
    numbers = (number for number, line in enumerate(lines) if digits[2 * number : 2 * number + 2] != _digits(line))
    return next(numbers, None) if match else None


def _digits(line: str) -> str:
    return _sha256(line)[:2]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()
