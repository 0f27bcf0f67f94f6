"""Which sentence is in which slot: the search over many sentences with a model that decodes a fixed number at once.

A sentence that is done leaves, and a waiting one takes its place, so that the device stays full to the end. On CUDA a
step is recorded once as a graph for each shape and replayed, and the host sees some steps late what is done; a step
that a finished sentence takes meanwhile changes nothing.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mtx.decoding.beam_search import Beams, trace
from mtx.decoding.options import Candidate, SearchOptions
from mtx.decoding.sampling import Sampler
from mtx.errors import MtxError

_PLAIN_STEPS = 2  # before a step is recorded: libraries allocate in the first what they keep
_LAG = 2  # steps that the host is behind CUDA
_REFILL = 8  # on CUDA slots are filled again when an eighth of them is free
ENCODED = 16  # sentences that a CPU encodes together: enough rows for its products, and of nearly one length
_SHRINK = 0.75  # with nothing waiting, slots are given up when at most so many are in use


class Cache(Protocol):
    """What a model keeps of the sentences in its slots; `mtx.model.kv_cache.Cache` holds the definitions."""

    def admit(self, slots: list[int], sources: Any, rows: list[int]) -> None: ...
    def release(self, slots: list[int]) -> None: ...
    def keep(self, slots: list[int]) -> None: ...
    def prepare(self) -> int: ...
    def reorder(self, parents: Tensor) -> None: ...
    def stepped(self) -> None: ...


class Model(Protocol):
    """What search knows of a model."""

    pad_id: int
    device: torch.device

    def encode(self, sources: Sequence[Any]) -> Any: ...
    def start(self, num_slots: int, beam_size: int, max_length: int) -> Any: ...
    def step(self, ids: Tensor, ages: Tensor, cache: Any) -> Tensor: ...


@dataclass(frozen=True)
class Request:
    """One sentence to translate.

    Attributes:
        number: under which its hypotheses are handed back.
        source: token ids.
        limit: most target tokens, `</s>` included, at least 1.
        prefix: target ids that its translations begin with.
        sample: which sample of the source this is, where one is drawn.
    """

    number: int
    source: Any
    limit: int
    prefix: list[int]
    sample: int = 0


@dataclass(frozen=True)
class RequestQueue:
    """Sentences of similar length, longest first; several workers may take from them.

    Attributes:
        num_slots: how many are decoded at once.
        num_workers: that share them.
        given_up: set where the rest is not wanted any more.
    """

    waiting: deque[Request]
    num_slots: int
    max_length: int
    prefix_width: int
    num_workers: int = 1
    given_up: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, requests: Sequence[Request], num_slots: int, num_workers: int = 1) -> "RequestQueue":
        return cls(
            deque(requests), max(1, min(num_slots, -(-len(requests) // num_workers))),
            max(request.limit for request in requests), max(len(request.prefix) for request in requests),
            num_workers,
        )  # fmt: skip

    def take(self, most: int) -> list[Request]:
        """The next sentences to encode together; fewer towards the end, so that all workers end together."""
        wanted = min(most, max(8, len(self.waiting) // (2 * self.num_workers)))
        taken: list[Request] = []
        while self.waiting and len(taken) < wanted:
            try:
                taken.append(self.waiting.popleft())
            except IndexError:  # another worker took the last
                break
        return taken


@torch.inference_mode()
def search(model: Model, requests: RequestQueue, options: SearchOptions) -> dict[int, list[Candidate]]:
    """Find the hypotheses of the sentences that are waiting, until there are none.

    Returns:
        For the number of each sentence its finished hypotheses, at most beam_size, best first.
    """
    return _Search(model, requests, options).run()


class _Search:
    def __init__(self, model: Model, requests: RequestQueue, options: SearchOptions):
        self.model, self.requests = model, requests
        self.on_cuda = model.device.type == "cuda"
        self.options = options if options.sampling is None else replace(options, beam_size=1)
        beams, slots = self.options.beam_size, requests.num_slots
        self.cache = model.start(slots, beams, requests.max_length)
        self.beams = Beams(
            slots, beams, options.length_penalty, requests.max_length, requests.prefix_width, model.pad_id, model.device
        )
        drawn = options.sampling
        self.sampler = None if drawn is None else Sampler(drawn, slots, requests.max_length, model.device)
        self.slots: list[Request | None] = [None] * slots
        self.since = [0] * slots  # the step before which each sentence was admitted
        self.encoded: deque[tuple[Request, Any, int]] = deque()
        self.num_steps = 0
        self.polls: deque[tuple[int, Tensor, Any]] = deque()
        self.unread: deque[tuple[list[int], list[Tensor], Any]] = deque()
        self.results: dict[int, list[Candidate]] = {}
        self.step: Callable[[], None] = Recorded(self._step, self.cache.prepare) if self.on_cuda else self._plain_step

    def run(self) -> dict[int, list[Candidate]]:
        while not self.requests.given_up.is_set() and self._fill():
            self.step()
            self.cache.stepped()
            self.num_steps += 1
            self._collect(self._poll())
            self._read(wait=False)
        self._read(wait=True)
        return self.results

    def _fill(self) -> bool:
        """Give free slots to waiting sentences; whether any slot is in use."""
        free = [slot for slot, request in enumerate(self.slots) if request is None]
        in_use = len(self.slots) - len(free)
        if free and not (self.on_cuda and in_use and len(free) * _REFILL < len(self.slots)):
            in_use += self._admit(free)
        if in_use and not self.on_cuda and in_use <= _SHRINK * len(self.slots):
            kept = [slot for slot, request in enumerate(self.slots) if request is not None]
            for part in (self.cache, self.beams, *([self.sampler] if self.sampler else [])):
                part.keep(kept)
            self.slots, self.since = [self.slots[s] for s in kept], [self.since[s] for s in kept]
        return in_use > 0

    def _admit(self, free: list[int]) -> int:
        """Fill free slots while there is anything waiting; how many."""
        admitted = 0
        while admitted < len(free):
            if not self.encoded:
                taken = self.requests.take(len(self.slots) if self.on_cuda else ENCODED)
                if not taken:
                    break
                sources = self.model.encode([request.source for request in taken])
                self.encoded.extend((request, sources, row) for row, request in enumerate(taken))
            sources = self.encoded[0][1]
            requests: list[Request] = []
            rows: list[int] = []
            while self.encoded and self.encoded[0][1] is sources and admitted + len(requests) < len(free):
                request, _, row = self.encoded.popleft()
                requests.append(request)
                rows.append(row)
            self._begin(free[admitted : admitted + len(requests)], requests, sources, rows)
            admitted += len(requests)
        return admitted

    def _begin(self, slots: list[int], requests: list[Request], sources: Any, rows: list[int]) -> None:
        self.cache.admit(slots, sources, rows)
        self.beams.admit(slots, [request.limit for request in requests], [request.prefix for request in requests])
        if self.sampler is not None:
            self.sampler.admit(
                slots, [request.source for request in requests], [request.sample for request in requests]
            )
        for slot, request in zip(slots, requests, strict=True):
            self.slots[slot], self.since[slot] = request, self.num_steps

    def _plain_step(self) -> None:
        self.cache.prepare()
        self._step()

    def _step(self) -> None:
        """One more token for every hypothesis; all of it on the device."""
        beams = self.beams
        logits = self.model.step(beams.ids, beams.ages, self.cache)
        log_probs = torch.log_softmax(logits, -1, dtype=torch.float)
        tokens = None if self.sampler is None else self.sampler.draw(logits, beams.ages)
        self.cache.reorder(beams.advance(*beams.candidates(log_probs, tokens)))

    def _poll(self) -> tuple[int, list[bool]] | None:
        """Which slots were done after a step, and the number of that step; on CUDA some steps late."""
        done = self.beams.done
        if not self.on_cuda:
            return self.num_steps, done.tolist()
        self.polls.append((self.num_steps, _to_host(done), torch.cuda.current_stream().record_event()))
        if len(self.polls) <= _LAG:
            return None
        number, copy, event = self.polls.popleft()
        event.synchronize()
        return number, copy.tolist()

    def _collect(self, poll: tuple[int, list[bool]] | None) -> None:
        """Take the hypotheses of finished sentences out of their slots."""
        if poll is None:
            return
        number, done = poll
        slots = [
            s for s, request in enumerate(self.slots) if request is not None and done[s] and self.since[s] < number
        ]
        if not slots:
            return
        at = torch.tensor(slots).to(self.model.device, non_blocking=True)
        rows = [rows.index_select(0, at) for rows in (self.beams.history, self.beams.finished, self.beams.ends)]
        numbers = [request.number for slot in slots if (request := self.slots[slot]) is not None]
        event = None
        if self.on_cuda:
            rows = [_to_host(row) for row in rows]
            event = torch.cuda.current_stream().record_event()
        self.unread.append((numbers, rows, event))
        self.cache.release(slots)
        for slot in slots:
            self.slots[slot] = None

    def _read(self, wait: bool) -> None:
        """Turn what has reached the host into hypotheses."""
        while self.unread and (wait or self.unread[0][2] is None or self.unread[0][2].query()):
            numbers, rows, event = self.unread.popleft()
            if event is not None:
                event.synchronize()
            for number, history, finished, ends in zip(numbers, *rows, strict=True):
                self.results[number] = trace(history, finished, ends)
                if not self.results[number]:
                    raise MtxError("the model gives no numbers as scores: its weights are damaged or far too large")


def _to_host(tensor: Tensor) -> Tensor:
    """A copy from CUDA in page-locked memory, which may still be under way."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


class Recorded:
    """Runs `step` on CUDA as a recorded graph, anew when the result of `prepare` is another; the first times as it is.

    A step must read and write the same memory each time while the result of `prepare` is the same.
    """

    def __init__(self, step: Callable[[], None], prepare: Callable[[], int]):
        self._step, self._prepare = step, prepare
        self._version = self._times = -1
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        version = self._prepare()
        if version != self._version:
            self._version, self._times, self._graph = version, 0, None
        self._times += 1
        if self._times <= _PLAIN_STEPS:
            self._step()
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step()
        self._graph.replay()
