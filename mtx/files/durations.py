"""Durations for messages and reports."""

import math


def format_duration(seconds: float) -> str:
    """A number of seconds as 45 s, 12 min or 3 h 20 min; "unknown" if it is not finite."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
