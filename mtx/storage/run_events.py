"""Reads metrics.jsonl, the events of a run so far, one JSON object a line. `EventLog` writes it."""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mtx.config.limits import MAX_COUNT
from mtx.storage.untrusted import require_file, require_size

_MAX_BYTES = 1000 * MAX_COUNT  # a step has about 300 bytes, so no run with a possible training.max_steps has more
_MAX_LINE_BYTES = 1 << 20  # read at once, so that the memory stays bounded whatever the file holds

# What can decide which validation is the best: its key in the events, and its name.
DECIDING_METRICS = {"chrf": "chrF2", "bleu": "BLEU", "nll": "nll"}


def recorded_metric(validations: Sequence[dict[str, Any]]) -> str:
    """The key of the metric that decided which of these validation events is the best, by the last of them."""
    named = validations[-1].get("decides") if validations else None
    return named if isinstance(named, str) and named in DECIDING_METRICS else "bleu"


def quality(validation: Mapping[str, Any], metric: str) -> float:
    """The figure of a validation event that is larger if the validation is better; minus infinity without one."""
    value = validation.get(metric)
    value = math.nan if value is None else float(value)
    return -math.inf if math.isnan(value) else -value if metric == "nll" else value


def read_events(metrics: Path) -> list[dict[str, Any]]:
    """The events in a metrics.jsonl; lines that hold none are skipped, since a killed process can leave half a line."""
    if not metrics.exists():
        return []
    require_file(metrics)
    require_size(metrics, _MAX_BYTES)
    events = []
    with metrics.open("rb") as file:
        for line in iter(partial(file.readline, _MAX_LINE_BYTES), b""):
            with contextlib.suppress(ValueError, OverflowError, RecursionError):
                event = json.loads(line.decode("utf-8", "replace"))
                if _is_event(event):
                    events.append(event)
    return events


def _is_event(value: Any) -> bool:
    """Whether a line holds an event in which what is computed with is a number; the rest is only shown."""
    if not (isinstance(value, dict) and isinstance(value.get("event"), str)):
        return False
    needed = {"validation": ("step", "bleu"), "cooldown": ("first", "last")}.get(value["event"], ())
    present = [
        key
        for key in ("step", "bleu", "chrf", "nll", "left_s", "time", "epochs", "max_steps", "first", "last")
        if value.get(key) is not None or key in needed
    ]
    return all(isinstance(value.get(key), int | float) and math.isfinite(value[key]) for key in present) and (
        "step" not in value or value["step"] is not None
    )
