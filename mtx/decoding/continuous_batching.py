"""Continuous batching: search over many sentences with a model that decodes a fixed number of slots at once.

When a sentence is done it leaves its slot, and a waiting sentence takes that slot, so the device stays full to the end.
The rules of the search itself are in `mtx.decoding.beam_search`. On CUDA, a step is recorded once as a graph for each
shape and replayed. The host learns only some steps later that a sentence is done; the steps that a finished sentence
takes in the meantime change nothing.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from mtx.decoding.beam_search import Beams, backtrace
from mtx.decoding.options import NO_SCORES, Candidate, Request, SearchOptions
from mtx.decoding.sampling import Sampler
from mtx.errors import MtxError
from mtx.model.cuda_graphs import CudaGraph, HostCopy

_WARM_UP_STEPS = 2  # before a step is recorded, because libraries allocate memory in their first steps
_HOST_LAG = 2  # number of steps that the host is behind CUDA
_REFILL_FRACTION = 8  # on CUDA, slots are filled again when one in eight is free


class Cache(Protocol):
    """What a model keeps of the sentences in the slots; `mtx.model.kv_cache.KVCache` documents the methods."""

    def admit(self, slots: list[int], sources: Any, rows: list[int]) -> None: ...
    def release(self, slots: list[int]) -> None: ...
    def prepare(self) -> int: ...
    def count_step(self) -> None: ...
    def reorder(self, parents: Tensor) -> None: ...


class Model(Protocol):
    """The methods of a model that decoding calls; `mtx.model.inference.IncrementalModel` has and documents them.

    Search calls all but `source_states`, which gives `TorchEngine.sum_states` its vectors.
    """

    pad_id: int
    device: torch.device

    def encode(self, sources: Sequence[Any]) -> Any: ...
    def source_states(self, sources: Sequence[Any]) -> list[Tensor]: ...
    def start(self, num_slots: int, beam_size: int, max_length: int) -> Cache: ...
    def step(self, ids: Tensor, lengths: Tensor, cache: Any) -> Tensor: ...


@dataclass(frozen=True)
class RequestQueue:
    """Waiting sentences of similar length, longest first; several workers may take from one queue.

    Attributes:
        num_slots: number of sentences that a worker decodes at once.
        max_length, prefix_width: the largest limit and the longest prefix.
        num_workers: number of workers that share the queue.
        cancelled: set to make all workers stop early.
    """

    waiting: deque[Request]
    num_slots: int
    max_length: int
    prefix_width: int
    num_workers: int = 1
    cancelled: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, requests: Sequence[Request], num_slots: int, num_workers: int = 1) -> "RequestQueue":
        return cls(
            deque(requests),
            max(1, min(num_slots, -(-len(requests) // num_workers))),
            max(request.limit for request in requests),
            max(len(request.prefix) for request in requests),
            num_workers,
        )

    def take(self, max_requests: int) -> list[Request]:
        """Removes the next sentences, to encode together; fewer towards the end, so that all workers end together."""
        num_requests = min(max_requests, max(8, len(self.waiting) // (2 * self.num_workers)))
        requests: list[Request] = []
        with contextlib.suppress(IndexError):  # there are no more; another worker may have taken the last one
            while len(requests) < num_requests:
                requests.append(self.waiting.popleft())
        return requests


@torch.inference_mode()
def search(model: Model, queue: RequestQueue, options: SearchOptions) -> dict[int, list[Candidate]]:
    """Translates waiting sentences until the queue is empty.

    Returns:
        For each request's number its finished hypotheses, at most beam_size, best first.

    Raises:
        MtxError: if all scores of the model are NaN or infinite.
    """
    return _Search(model, queue, options).run()


class _Search:
    def __init__(self, model: Model, queue: RequestQueue, options: SearchOptions):
        self.model, self.queue = model, queue
        self.on_cuda = model.device.type == "cuda"
        sampling = options.sampling
        num_slots, max_length = queue.num_slots, queue.max_length
        num_beams = options.num_beams if sampling is None else 1
        self.cache = model.start(num_slots, num_beams, max_length)
        self.beams = Beams(
            num_slots, num_beams, options.alpha, max_length, queue.prefix_width, model.pad_id, model.device
        )
        self.sampler = None if sampling is None else Sampler(sampling, num_slots, max_length, model.device)
        self.slots: list[Request | None] = [None] * num_slots
        self.admitted_at = [0] * num_slots  # the number of steps before each sentence was admitted
        self.sources: Any = None  # of the sentences that were encoded together last
        self.encoded: deque[tuple[int, Request]] = deque()  # those of them that wait, with their rows in `sources`
        self.num_steps = 0
        self.polls: deque[tuple[int, HostCopy]] = deque()  # on CUDA: `done` after a step, on its way to the host
        self.unread: deque[tuple[list[int], list[HostCopy]]] = deque()  # finished sentences, on their way to the host
        self.results: dict[int, list[Candidate]] = {}
        self.stream = torch.cuda.Stream(model.device) if self.on_cuda else None  # type: ignore[no-untyped-call]
        self.graph: CudaGraph | None = None
        self.version = self.num_warm_ups = -1

    def run(self) -> dict[int, list[Candidate]]:
        while not self.queue.cancelled.is_set() and self._fill():
            self._step()
            self.cache.count_step()
            self.num_steps += 1
            self._collect()
            self._read(wait=False)
        self._read(wait=True)
        return self.results

    def _fill(self) -> bool:
        """Fills free slots with waiting sentences; returns whether any slot is in use."""
        free = [slot for slot, request in enumerate(self.slots) if request is None]
        in_use = len(self.slots) - len(free)
        if self.on_cuda and in_use and len(free) * _REFILL_FRACTION < len(self.slots):
            return True
        while free and (self.encoded or self._encode()):
            count = min(len(free), len(self.encoded))
            self._begin(free[:count], [self.encoded.popleft() for _ in range(count)])
            free = free[count:]
        return len(free) < len(self.slots)

    def _encode(self) -> bool:
        """Encodes the next waiting sentences together; returns whether there are any."""
        requests = self.queue.take(len(self.slots))
        if requests:
            self.sources = self.model.encode([request.source for request in requests])
            self.encoded.extend(enumerate(requests))
        return bool(requests)

    def _begin(self, slots: list[int], encoded: list[tuple[int, Request]]) -> None:
        requests = [request for _, request in encoded]
        self.cache.admit(slots, self.sources, [row for row, _ in encoded])
        self.beams.admit(slots, [request.limit for request in requests], [request.prefix for request in requests])
        if self.sampler is not None:
            self.sampler.admit(slots, [[*r.source, *r.prefix] for r in requests], [r.sample for r in requests])
        for slot, request in zip(slots, requests, strict=True):
            self.slots[slot], self.admitted_at[slot] = request, self.num_steps

    def _step(self) -> None:
        """Takes a step; on CUDA by a graph, which is recorded again when the cache has another version."""
        version = self.cache.prepare()
        if self.stream is None:
            self._extend()
            return
        if self.graph is None or version != self.version:
            self.graph = CudaGraph(self._extend, self.stream)
            self.version, self.num_warm_ups = version, 0
        if self.num_warm_ups < _WARM_UP_STEPS:
            self.num_warm_ups += 1
            self.graph.warm_up()
        else:
            self.graph.replay()

    def _extend(self) -> None:
        """Adds one token to every hypothesis, without waiting for the device."""
        beams = self.beams
        logits = self.model.step(beams.ids, beams.lengths, self.cache)
        log_probs = torch.log_softmax(logits, -1, dtype=torch.float)
        samples = None if self.sampler is None else self.sampler.draw(logits, beams.lengths)
        self.cache.reorder(beams.advance(*beams.candidates(log_probs, samples)))

    def _poll(self) -> tuple[int, list[bool]]:
        """Returns which slots were done after a step, and the number of that step: on CUDA an earlier step."""
        done = self.beams.done
        if not self.on_cuda:
            return self.num_steps, done.tolist()
        self.polls.append((self.num_steps, HostCopy(done)))
        if len(self.polls) <= _HOST_LAG:
            return 0, []
        step, copy = self.polls.popleft()
        return step, copy.tensor().tolist()

    def _collect(self) -> None:
        """Takes the hypotheses of finished sentences out of their slots."""
        step, done = self._poll()
        finished = {
            slot: request
            for slot, (request, is_done) in enumerate(zip(self.slots, done, strict=False))
            if request is not None and is_done and self.admitted_at[slot] < step
        }
        if not finished:
            return
        slot_ids = torch.tensor(list(finished)).to(self.model.device, non_blocking=True)
        beams = self.beams
        results = [tensor.index_select(0, slot_ids) for tensor in (beams.history, beams.finished, beams.ends)]
        self.unread.append(([request.number for request in finished.values()], list(map(HostCopy, results))))
        self.cache.release(list(finished))
        for slot in finished:
            self.slots[slot] = None

    def _read(self, wait: bool) -> None:
        """Turns finished sentences that have reached the host into hypotheses."""
        while self.unread and (wait or self.unread[0][1][-1].is_ready()):
            numbers, copies = self.unread.popleft()
            for number, history, finished, ends in zip(numbers, *(copy.tensor() for copy in copies), strict=True):
                self.results[number] = backtrace(history, finished, ends)
                if not self.results[number]:
                    raise MtxError(NO_SCORES)
