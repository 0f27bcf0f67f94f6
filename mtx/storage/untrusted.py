"""Reads files that may come from a stranger: regular files only, of bounded size, and JSON without surprises."""

import json
import reprlib
from collections import Counter
from pathlib import Path
from typing import Any

from mtx.errors import DamagedFileError

MAX_JSON_BYTES = 1 << 24  # a vocabulary of 60,000 pieces has 1.5 MB; 16 MB of braces need 400 MB of memory


def require_file(path: Path) -> None:
    """Check that `path` is a regular file, or a link to one in its own directory.

    Links into the `blobs` of a Hugging Face cache are accepted too, because a snapshot consists of such links.

    Raises:
        DamagedFileError: if it is not.
    """
    if not path.is_file():
        raise DamagedFileError(f"{path}: is missing")
    home = path.parent.resolve()
    if path.is_symlink() and path.resolve().parent not in (home, home.parent.parent / "blobs"):
        raise DamagedFileError(f"{path}: is a link that leads out of its directory", "cp -rL copies without links")


def require_size(path: Path, limit: int) -> None:
    """Raise DamagedFileError if a file has more than `limit` bytes, before it is read."""
    if (size := path.stat().st_size) > limit:
        raise DamagedFileError(f"{path}: {size:,} bytes, expected at most {limit:,}")


def parse_json(data: bytes) -> Any:
    """The value of JSON text. Raises ValueError if it is not JSON, is nested too deeply, or has a key twice."""
    try:
        return json.loads(data, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        duplicate, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"duplicate key {reprlib.repr(duplicate)}")
    return values


def read_untrusted_json(path: Path) -> Any:
    """The value of a JSON file of any program. Raises DamagedFileError if the file is damaged or huge."""
    require_file(path)
    require_size(path, MAX_JSON_BYTES)
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise DamagedFileError(f"{path}: is not JSON ({error})") from None
