"""The metrics of the server, for Prometheus. They hold no texts and no addresses."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mtx.serve.queue import TranslationQueue

_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAIR = ("source", "target")


class Metrics(Collector):
    """Counts requests and translations; the queue counts its batches itself."""

    def __init__(self, queue: TranslationQueue):
        self._queue, self.registry = queue, CollectorRegistry()
        self.registry.register(self)
        about = "Requests by path and status"
        self.requests = Counter("mtx_requests", about, ("path", "status"), registry=self.registry)
        about = "Time from the first byte of a request to the last of its response"
        self.seconds = Histogram("mtx_request_seconds", about, buckets=_BUCKETS_S, registry=self.registry)
        about = "Characters of the source texts of translations"
        self.characters = Counter("mtx_characters", about, _PAIR, registry=self.registry)
        self.texts = Counter("mtx_texts", "Source texts of translations", _PAIR, registry=self.registry)
        about = "Translations that repeat words or copy their source"
        self.suspicious = Counter("mtx_suspicious", about, _PAIR, registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """The figures of the queue."""
        queue = self._queue
        yield GaugeMetricFamily("mtx_waiting_tokens", "Tokens that wait for translation", queue.waiting_tokens)
        yield CounterMetricFamily("mtx_batches", "Batches that were translated", queue.num_batches)
        yield CounterMetricFamily("mtx_batch_items", "Sentences and segments of these batches", queue.num_items)
