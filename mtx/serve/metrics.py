"""The counters of the server, in the text format of Prometheus. They hold no texts and no addresses."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_HELP = {
    "mtx_requests_total": "Requests by path and status",
    "mtx_characters_total": "Characters of the source texts of translations",
    "mtx_texts_total": "Source texts of translations",
    "mtx_suspicious_total": "Translations that repeat words or copy their source",
}


class Metrics:
    """Counts requests and translations. Used by the thread of the event loop alone."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[tuple[tuple[str, str], ...]]] = {name: Counter() for name in _HELP}
        self._buckets = [0] * (len(_BUCKETS_S) + 1)
        self._seconds = 0.0

    def count(self, name: str, number: int = 1, **labels: str) -> None:
        """Add to a counter."""
        self._counts[name][tuple(labels.items())] += number

    def observe(self, seconds: float) -> None:
        """Add the time that a request took."""
        self._buckets[bisect_left(_BUCKETS_S, seconds)] += 1
        self._seconds += seconds

    def text(self, values: dict[str, tuple[str, str, int]]) -> str:
        """The page for Prometheus.

        Args:
            values: numbers that others count: type, explanation and value of each name.
        """
        lines = list[str]()
        for name, help in _HELP.items():
            counts = self._counts[name].items()
            lines += _head(name, "counter", help)
            lines += [f"{name}{_labels(labels)} {number}" for labels, number in sorted(counts)]
        name, total = "mtx_request_seconds", 0
        lines += _head(name, "histogram", "Time from the first byte of a request to the last of its response")
        for bound, number in zip((*map(str, _BUCKETS_S), "+Inf"), self._buckets, strict=True):
            total += number
            lines.append(f"{name}_bucket{_labels([('le', bound)])} {total}")
        lines += [f"{name}_sum {self._seconds:.6f}", f"{name}_count {total}"]
        for name, (kind, help, value) in values.items():
            lines += [*_head(name, kind, help), f"{name} {value}"]
        return "".join(f"{line}\n" for line in lines)


def _head(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    """Labels as Prometheus reads them; their values come from us, but for languages, which models name."""
    escaped = [(name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels]
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}" if escaped else ""
