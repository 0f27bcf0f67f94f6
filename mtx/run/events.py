"""Reads metrics.jsonl, the events of a run so far, one JSON object a line. `training.metrics` writes it."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from mtx.files import text_files
from mtx.files.foreign import require_file, require_size

_MAX_BYTES = 1 << 29  # 100,000 steps have 30 MB


def read_events(metrics: Path) -> list[dict[str, Any]]:
    """The events in a metrics.jsonl; lines that hold none are skipped, since a killed process can leave half a line."""
    if not metrics.exists():
        return []
    require_file(metrics)
    require_size(metrics, _MAX_BYTES)
    events = []
    for line in text_files.read_lines(metrics):
        with contextlib.suppress(ValueError, OverflowError, RecursionError):
            event = json.loads(line)
            if _is_event(event):
                events.append(event)
    return events


def _is_event(value: Any) -> bool:
    """Whether a line holds an event in which what is computed with is a number; the rest is only shown."""
    if not (isinstance(value, dict) and isinstance(value.get("event"), str)):
        return False
    needed = ("step", "bleu") if value["event"] == "validation" else ()
    present = [key for key in ("step", "bleu", "left_s", "time") if value.get(key) is not None or key in needed]
    return all(isinstance(value.get(key), int | float) and math.isfinite(value[key]) for key in present) and (
        "step" not in value or value["step"] is not None
    )
