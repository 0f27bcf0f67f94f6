"""What a run has told of itself so far: the events of metrics.jsonl, which `training.monitor` writes."""

import contextlib
import json
from pathlib import Path
from typing import Any

from mtx.files import text_files
from mtx.files.durable import require_file


def read_events(metrics: Path) -> list[dict[str, Any]]:
    """The events of a run so far, without the half-written line that a killed process can leave."""
    events = []
    if metrics.exists():
        require_file(metrics)
    for line in text_files.read_lines(metrics) if metrics.exists() else ():
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and "event" in event:
                events.append(event)
    return events
