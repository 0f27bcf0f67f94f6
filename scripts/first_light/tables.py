"""Prints rows of results as tables in Markdown.

python tables.py results.jsonl
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHARES = {"mfu"}
HIDDEN = {"probe", "error", "loss"}


def print_tables(path: Path) -> None:
    """Prints a table for each probe, in the order in which they wrote first, and then the errors."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    measured = [row for row in rows if "error" not in row]
    for probe in dict.fromkeys(row["probe"] for row in measured):
        print(f"\n{probe}\n")
        print("\n".join(_table([row for row in measured if row["probe"] == probe])))
    for row in rows:
        if "error" in row:
            about = " ".join(str(value) for key, value in row.items() if key not in HIDDEN)
            print(f"\nerror in {row['probe']} {about}: {row['error']}")


def _table(rows: list[dict[str, Any]]) -> Iterable[str]:
    keys = list(dict.fromkeys(key for row in rows for key in row if key not in HIDDEN))
    yield "| " + " | ".join(keys) + " |"
    yield "|" + "---|" * len(keys)
    for row in rows:
        yield "| " + " | ".join(_cell(key, row.get(key)) for key in keys) + " |"


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key in SHARES:
        return f"{value:.1%}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(name, part)}" for name, part in value.items())
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int | float) else str(value).replace("|", "\\|")


if __name__ == "__main__":
    print_tables(Path(sys.argv[1]))
