"""Beam search, greedy search and sampling (6.1 of the paper): from token ids to finished hypotheses.

The score of a hypothesis is its log-probability / ((5 + |Y|) / 6)^alpha; |Y| counts `</s>`, but not ids that name the
language, whose probability does not count either. A hypothesis finishes when its `</s>` is among the top `beam_size`
candidates. A sentence is done when `beam_size` hypotheses have finished, or when the best open hypothesis cannot beat
the worst finished one even at the maximum length. At the maximum length only `</s>` is allowed. Greedy search is a beam
of one; sampling is a beam of one whose token is drawn. `Slots` has these rules; all its sentences take a step together,
and the results of a step stay on the device. A sample depends on the seed, its source, its prefix and its number, but
not on other sentences of the batch.

`search` has the loop. A model decodes a fixed number of slots at once. When a sentence is done it leaves its slot, and
a waiting sentence takes that slot, so the device stays full to the end (continuous batching). On CUDA, a step is
recorded once as a graph for each shape and replayed, also by later searches with the same `Slots`. The host learns
only some steps later that a sentence is done; the steps that a finished sentence takes in the meantime change nothing.

Search calls `encode`, `start` and `step` of a model, which `IncrementalModel` documents; the form of another
architecture has the same methods (`mtx.model.architectures`). Several models with one tokenizer search together, as an
ensemble: every step takes the mean of the probabilities that they give to the next token (Sutskever et al. 2014). Each
has its own cache, and the hypotheses are shared.

Shapes: B slots, J beams, V outputs, T target length.
"""

import contextlib
import functools
import hashlib
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mtx.data.tokenizer import EOS_ID
from mtx.decoding.options import NO_SCORES, Candidate, Request, Results, Sampling, SearchOptions, penalty
from mtx.errors import MtxError, first_line, is_out_of_memory
from mtx.formatting import divide_up, round_up
from mtx.model.cuda_graphs import CudaGraph, HostCopy
from mtx.model.inference import IncrementalModel

logger = logging.getLogger(__name__)

_MINUS_INF = -inf  # the score where there is no hypothesis
_WARM_UP_STEPS = 2  # before a step is recorded
_HOST_LAG = 2  # number of steps that the host is behind CUDA
_REFILL_FRACTION = 8  # on CUDA, slots are filled again when one in eight is free
# On CUDA there are few shapes, since recording one takes longer than a hundred steps.
_FEWEST_SLOTS = 16
_LENGTH_STEP = 128  # all maximum lengths are multiples of it
_KEPT_SHARE = 0.5  # of a GPU's memory; with more in use, slots of earlier searches are given up
_GROUP = 64  # number of neighbouring tokens in a group, see `top_continuations`


class RequestQueue:
    """Waiting sentences of similar length, longest first; several workers may take from one queue.

    Args:
        num_slots: number of sentences that a worker decodes at once, at most.
        num_workers: number of workers that share the queue.
        num_forced: ids at the start of each prefix that name the language: they do not count in a score.

    Attributes:
        most_slots, num_slots: those that a worker may have, and those that it needs.
        max_length: the largest limit.
        cancelled: set to make all workers stop early.
    """

    def __init__(self, requests: Sequence[Request], num_slots: int, num_workers: int = 1, num_forced: int = 0):
        self.waiting = deque(requests)
        self.num_workers = num_workers
        self.num_forced = num_forced
        self.most_slots = num_slots
        self.num_slots = min(num_slots, divide_up(len(requests), num_workers))
        self.max_length = max(request.limit for request in requests)
        self.cancelled = threading.Event()

    def take(self, max_requests: int) -> list[Request]:
        """Removes the next sentences, to encode together; fewer towards the end, so that all workers end together."""
        num_requests = min(max_requests, max(8, len(self.waiting) // (2 * self.num_workers)))
        requests = []
        with contextlib.suppress(IndexError):  # there are no more; another worker may have taken the last one
            for _ in range(num_requests):
                requests.append(self.waiting.popleft())
        return requests


def _ignore(number: int) -> None:
    """Take the number of sentences, and do nothing."""


@torch.inference_mode()
def search(
    models: Sequence[IncrementalModel],
    queue: RequestQueue,
    options: SearchOptions,
    kept_slots: "dict[Any, Slots] | None" = None,
    on_finished: Callable[[int], None] = _ignore,
) -> Results:
    """Translates waiting sentences until the queue is empty, with one model or an ensemble.

    Args:
        kept_slots: the slots of earlier searches of these models on CUDA, for this one and for later ones.
        on_finished: takes the number of sentences that have just been finished; several workers call it.

    Returns:
        For each request's number its finished hypotheses, at most beam_size, best first.

    Raises:
        MtxError: if all scores of the model are NaN or infinite.
    """
    if kept_slots is None:
        kept_slots = {}
    num_beams = 1 if options.sampling else options.num_beams
    num_slots = queue.num_slots
    max_length = queue.max_length
    if models[0].is_static:
        num_slots = min(queue.most_slots, max(_FEWEST_SLOTS, 2 * num_slots - 1))
        num_slots = 1 << (num_slots.bit_length() - 1)  # the largest power of two that is not more
        max_length = round_up(max_length, _LENGTH_STEP)
    key = num_slots, num_beams, max_length, options.alpha, options.sampling, queue.num_forced
    slots = kept_slots.pop(key, None) or Slots(models, *key)
    results = _Search(slots, queue, on_finished).run()
    if slots.stream and not queue.cancelled.is_set():
        kept_slots[key] = slots
        while len(kept_slots) > 1 and torch.cuda.memory_allocated() > _KEPT_SHARE * torch.cuda.mem_get_info()[1]:
            del kept_slots[next(iter(kept_slots))]  # the oldest
    return results


class Slots:
    """A fixed number of slots for sentences: what each model keeps of them, their hypotheses, and the step of all.

    Attributes:
        ids: the last token of each open hypothesis, [B, J].
        scores: its log-probability, -inf if there is no hypothesis, [B, J].
        lengths: number of tokens so far, [B].
        limits: largest number of tokens, [B].
        num_forced: number of tokens at the start that do not count in a score.
        required: the token that is required at each length, of a prefix or `</s>` at the limit; -1 if any is allowed,
            [B, T].
        history: the choice of each beam at each length, token * J + parent, [B, J, T].
        finished_scores: those of finished hypotheses, best first, -inf if there are fewer than J, [B, J].
        finished_places: the place of each of them in `history`, length * J + parent, [B, J].
        done: whether the sentence needs no further step, or the slot is empty, [B].
        uniform: a number for each step of a sample, [B, T].
    """

    _versions: Any = None  # of the caches that the graphs were made for

    def __init__(
        self,
        models: Sequence[IncrementalModel],
        num_slots: int,
        num_beams: int,
        max_length: int,
        alpha: float,
        sampling: Sampling | None,
        num_forced: int = 0,
    ):
        def full(value: float, *shape: int) -> Tensor:
            return torch.full((num_slots, *shape), value, device=device)

        self.models = models
        self.size = num_slots
        self.sampling = sampling
        self.num_forced = num_forced
        self.start_id = models[0].start_id
        device = models[0].device
        self.caches = [model.start(num_slots, num_beams, max_length) for model in models]
        self.ids = full(self.start_id, num_beams)
        self.scores = full(0.0, num_beams)  # not -inf, with which an empty slot may choose an added token
        self.lengths = full(0)
        self.limits = full(1)
        self.required = full(-1, max_length)
        self.history = full(0, num_beams, max_length)
        self.finished_scores = full(_MINUS_INF, num_beams)
        self.finished_places = full(0, num_beams)
        self.done = full(True)
        self.penalties = penalty(torch.arange(max_length + 1, dtype=torch.float) - num_forced, alpha).to(device)
        self.uniform = full(0.0, max_length)
        self.stream = torch.cuda.Stream(device) if models[0].is_static else None  # type: ignore[no-untyped-call]
        self.reduce_logits = find_reduction(device) if self.stream else None

    def admit(self, slots: list[int], requests: Sequence[Request]) -> None:
        """Begins these sentences in these slots."""
        required = np.full((len(slots), self.required.shape[1]), -1)
        for row, request in zip(required, requests, strict=True):
            row[: len(request.prefix)] = request.prefix
            row[request.limit - 1] = EOS_ID
        device = self.ids.device
        slot_ids = torch.tensor(slots, device=device)
        self.required[slot_ids] = torch.from_numpy(required).to(device)
        self.limits[slot_ids] = torch.tensor([request.limit for request in requests], device=device)
        self.ids[slot_ids] = self.start_id
        self.lengths[slot_ids] = 0
        self.done[slot_ids] = False
        self.scores[slot_ids] = _MINUS_INF
        self.scores[slot_ids, 0] = 0.0  # one open beam is enough, because all beams would start equal
        self.finished_scores[slot_ids] = _MINUS_INF
        if self.sampling:
            numbers = []  # in [0, 1), which follow from the source, the prefix and the number of the sample
            for request in requests:
                key = repr((self.sampling.seed, request.sample, [*request.source, *request.prefix])).encode()
                philox = np.random.Philox(key=int.from_bytes(hashlib.sha256(key).digest()[:16], "little"))
                numbers.append(np.random.Generator(philox).random(self.uniform.shape[1], dtype=np.float32))
            self.uniform[slot_ids] = torch.from_numpy(np.stack(numbers)).to(device)

    def step(self) -> None:
        """Takes a step; on CUDA by a graph, which is recorded again when a cache has another version."""
        states = [cache.prepare() for cache in self.caches]
        if not self.stream:
            self._extend()
            return
        versions, widths = zip(*states, strict=True)
        if versions != self._versions:
            self._versions = versions
            pool = torch.cuda.graph_pool_handle()  # of all, because none reads there what another one wrote
            self._graphs = defaultdict[Any, CudaGraph](partial(CudaGraph, self.stream, pool, _WARM_UP_STEPS))
        self._graphs[widths].replay(self._extend)

    def _extend(self) -> None:
        """Adds one token to every hypothesis, without waiting for the device."""
        logits, *further_logits = [
            model.step(self.ids, self.lengths, cache) for model, cache in zip(self.models, self.caches, strict=True)
        ]
        if further_logits:  # logits of the mean probability
            logits = torch.log_softmax(torch.stack([logits, *further_logits]), -1, dtype=torch.float).logsumexp(0)
        samples = None
        if self.sampling:
            samples = draw(logits[:, 0], self.uniform.gather(1, self.lengths[:, None]), self.sampling)
        if self.reduce_logits is None:
            log_probs = torch.log_softmax(logits, -1, dtype=torch.float)
            choices = self.candidates(self.scores, log_probs, None, samples)
        else:
            log_sums, maxima = self.reduce_logits(logits, _GROUP)
            choices = self.candidates(self.scores - log_sums, logits, maxima, samples)
        parents = self.advance(*choices)
        for cache in self.caches:
            cache.reorder(parents)

    def candidates(
        self, offsets: Tensor, logits: Tensor, maxima: Tensor | None, samples: Tensor | None
    ) -> list[Tensor]:
        """Returns the best continuations of each slot: the best 2 J of all beams and tokens, or the required token.

        Args:
            offsets: what makes a logit the log-probability of a hypothesis with its continuation, [B, J].
            logits: of all tokens, [B, J, V].
            maxima: see `top_continuations`.
            samples: tokens that were drawn and are required where no other is, [B, 1]; J is 1.

        Returns:
            The log-probability of each hypothesis with its continuation, best first, its beam, and its token, [B, k]
            each.
        """
        num_beams = self.ids.shape[1]
        best = top_continuations(offsets, logits, 2 * num_beams if num_beams > 1 else 1, maxima)
        required = self.required.gather(1, self.lengths[:, None])
        if samples is not None:
            required = torch.where(required < 0, samples, required)
        scores = offsets + logits.gather(-1, required.clamp(min=0)[:, :, None].expand(-1, num_beams, 1))[..., 0]
        if self.num_forced:
            scores = torch.where((self.lengths < self.num_forced)[:, None], self.scores, scores)
        scores, beams = scores.sort(-1, descending=True)
        padding = (0, best[0].shape[1] - num_beams)
        forced = F.pad(scores, padding, value=_MINUS_INF), F.pad(beams, padding), required.expand_as(best[2])
        return [torch.where(required < 0, *choices) for choices in zip(best, forced, strict=True)]

    def advance(self, top: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """Continues with the best of `candidates` that do not end, and adds those that end to the finished hypotheses.

        Returns:
            The parent of each new beam: the beam that it continues, [B, J].
        """
        beams = self.ids.shape[1]
        is_end = tokens == EOS_ID
        may_end = top[:, :beams]  # the others are not good enough
        is_finishing = is_end[:, :beams] & (may_end > _MINUS_INF) & ~self.done[:, None]
        new_scores = may_end / self.penalties[self.lengths + 1][:, None]
        new_scores.masked_fill_(~is_finishing, _MINUS_INF)
        places = self.lengths[:, None] * beams + parents[:, :beams]
        finished, order = torch.cat([self.finished_scores, new_scores], 1).topk(beams, dim=1)
        self.finished_places.copy_(torch.cat([self.finished_places, places], 1).gather(1, order))
        self.finished_scores.copy_(finished)
        if beams > 1:
            top, order = top.masked_fill(is_end, _MINUS_INF).topk(beams, dim=1)
            parents = parents.gather(1, order)
            tokens = tokens.gather(1, order)
            is_finished = self.finished_scores > _MINUS_INF
            worst = self.finished_scores.masked_fill(~is_finished, inf).amin(1)
            best_open = top[:, 0]  # which cannot improve on the finished ones even at the maximum length
            cannot_improve = is_finished[:, 0] & (best_open / self.penalties[self.limits] <= worst)
            self.done |= cannot_improve | is_finished[:, -1] | (best_open == _MINUS_INF)
        else:
            self.done |= is_end[:, 0]
        self.scores.copy_(top)
        self.ids.copy_(tokens)
        position = self.lengths[:, None, None].expand(-1, beams, 1)
        self.history.scatter_(2, position, (tokens * beams + parents)[:, :, None])
        self.lengths += ~self.done
        return parents


class _Search:
    """One search, on the host."""

    def __init__(self, slots: Slots, queue: RequestQueue, on_finished: Callable[[int], None] = _ignore):
        self.slots = slots
        self.queue = queue
        self.on_finished = on_finished
        self.running = dict[int, tuple[Request, int]]()  # by slot, with the number of steps before it was admitted
        self.sources = list[Any]()  # by model, of the sentences that were encoded together last
        self.encoded = list[tuple[int, Request]]()  # those of them that wait, with their rows in `sources`
        self.num_steps = 0
        self.polls = deque[tuple[int, HostCopy]]()  # `done` after a step, on its way to the host
        self.unread = deque[tuple[list[int], list[HostCopy]]]()  # finished sentences, on their way to the host
        self.results = Results()

    def run(self) -> Results:
        while not self.queue.cancelled.is_set() and self._fill():
            self.slots.step()
            self.num_steps += 1
            self._collect()
            self._read_finished(wait=False)
        self._read_finished(wait=True)
        return self.results

    def _fill(self) -> bool:
        """Fills free slots with waiting sentences; returns whether any slot is in use."""
        num_slots = self.slots.size
        free = [slot for slot in range(num_slots) if slot not in self.running]
        if self.slots.stream and self.running and len(free) * _REFILL_FRACTION < num_slots:
            return True
        while free:
            if not self.encoded:
                requests = self.queue.take(num_slots)
                if not requests:
                    break
                self.sources = [model.encode([request.source for request in requests]) for model in self.slots.models]
                self.encoded = list(enumerate(requests))
            rows, admitted = map(list, zip(*self.encoded[: len(free)], strict=True))
            self.encoded = self.encoded[len(free) :]
            slots = free[: len(rows)]
            free = free[len(rows) :]
            for cache, sources in zip(self.slots.caches, self.sources, strict=True):
                cache.admit(slots, sources, rows)
            self.slots.admit(slots, admitted)
            self.running |= {slot: (request, self.num_steps) for slot, request in zip(slots, admitted, strict=True)}
        return bool(self.running)

    def _collect(self) -> None:
        """Takes the hypotheses of finished sentences out of their slots, on CUDA some steps after they were done."""
        state = self.slots
        self.polls.append((self.num_steps, HostCopy(state.done)))
        if state.stream and len(self.polls) <= _HOST_LAG:
            return
        step, copy = self.polls.popleft()
        is_done = copy.tensor().tolist()
        slots = [slot for slot, (_, admitted_at) in self.running.items() if is_done[slot] and admitted_at < step]
        if not slots:
            return
        numbers = [self.running.pop(slot)[0].number for slot in slots]
        slot_ids = torch.tensor(slots).to(state.ids.device, non_blocking=True)
        results = state.history, state.finished_scores, state.finished_places
        self.unread.append((numbers, [HostCopy(tensor.index_select(0, slot_ids)) for tensor in results]))
        for cache in state.caches:
            cache.release(slots)

    def _read_finished(self, wait: bool) -> None:
        """Turns finished sentences that have reached the host into hypotheses."""
        while self.unread and (wait or self.unread[0][1][-1].is_ready()):
            numbers, copies = self.unread.popleft()
            for number, *sentence_rows in zip(numbers, *(copy.tensor() for copy in copies), strict=True):
                self.results[number] = backtrace(*sentence_rows)
                if not self.results[number]:
                    raise MtxError(NO_SCORES)
            self.on_finished(len(numbers))


@functools.cache
def find_reduction(device: torch.device) -> Callable[[Tensor, int], tuple[Tensor, Tensor]] | None:
    """Returns `reduce_logits` if it computes on this device what torch does, else None.

    A kernel that crashes the process or hangs is not caught.
    """
    logits = 9 * torch.arange(600 * _GROUP, device=device).sin().bfloat16().view(2, 3, -1)
    exact = logits.float()
    try:
        from mtx.decoding.search_kernels import reduce_logits  # imported here: it needs triton

        log_sums, maxima = reduce_logits(logits, _GROUP)
        torch.testing.assert_close(log_sums, exact.logsumexp(-1))
        torch.testing.assert_close(maxima, exact.view(2, 3, -1, _GROUP).amax(-1))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        fault = f"{type(error).__name__}: {first_line(error)}"
        logger.info(f"searching by torch's operations instead of mtx's kernel, which does not work here ({fault})")
        return None
    return reduce_logits


def top_continuations(
    scores: Tensor, logits: Tensor, count: int, maxima: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the `count` largest sums of a beam's score [B, J] and a token's logit [B, J, V] of each slot.

    Neighbouring tokens form groups. The largest sums lie in the `count` groups with the largest maxima, and finding
    these groups first is much faster than sorting all tokens. With a small vocabulary all tokens are sorted.

    Args:
        maxima: those of the groups, [B, J, V / 64], where they are known.

    Returns:
        The sums, largest first, their beams and their tokens, [B, min(count, J V)] each.
    """
    num_slots, beams, size = logits.shape
    if size % _GROUP or logits.numel() < 1 << 17 or size < count * _GROUP:
        total = (scores[:, :, None] + logits).flatten(1)
        if count > 1:
            top, flat = total.topk(min(count, beams * size), dim=1)
        else:
            top, flat = total.max(1, keepdim=True)
        return top, flat // size, flat % size
    groups = logits.view(num_slots, beams, -1, _GROUP)
    if maxima is None:
        maxima = groups.amax(-1)
    best = (maxima + scores[:, :, None]).flatten(1).topk(count, dim=1).indices  # groups of the slot
    in_beam = best // groups.shape[2]
    values = groups.flatten(1, 2).gather(1, best[:, :, None].expand(-1, -1, _GROUP))
    top, flat = (values + scores.gather(1, in_beam)[:, :, None]).flatten(1).topk(count, dim=1)
    group = flat // _GROUP
    tokens = (best % groups.shape[2]).gather(1, group) * _GROUP + flat % _GROUP
    return top, in_beam.gather(1, group), tokens


def backtrace(history: Tensor, finished_scores: Tensor, finished_places: Tensor) -> list[Candidate]:
    """Returns the finished hypotheses of one sentence, best first, from its rows of `Slots` in host memory."""
    beams = history.shape[0]
    rows = history.tolist()
    candidates = []
    for score, place in zip(finished_scores.tolist(), finished_places.tolist(), strict=True):
        if score == _MINUS_INF:
            break
        length, beam = divmod(place, beams)
        ids = [EOS_ID]
        for position in reversed(range(length)):
            token, beam = divmod(rows[beam][position], beams)
            ids.append(token)
        candidates.append(Candidate(ids[::-1], score))
    return candidates


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Returns tokens [B, 1]: where the cumulative probability of logits [B, V] passes `uniform` [B, 1]."""
    values = logits / sampling.temperature
    size = logits.shape[1]
    if not sampling.top_k and sampling.top_p == 1:
        tokens = torch.arange(size, device=logits.device).expand(len(logits), -1)
    else:
        values, tokens = values.topk(min(sampling.top_k or size, size), -1)  # most probable first
    exact = torch.float64 if logits.device.type in ("cpu", "cuda") else torch.float32  # MPS has no float64
    probs = torch.softmax(values.to(exact), -1)
    if sampling.top_p < 1:  # a token is in the nucleus if the sum before it is less than top_p
        preceding_mass = F.pad(probs.cumsum(-1)[:, :-1], (1, 0))
        probs = probs.masked_fill(preceding_mass >= sampling.top_p, 0)
    if sampling.epsilon:  # the most probable token always stays
        probs = probs.masked_fill(probs < probs.amax(-1, keepdim=True).clamp(max=sampling.epsilon), 0)
    total = probs.cumsum(-1)
    mass = total[:, -1:].contiguous()
    rank = torch.searchsorted(total, uniform.to(exact) * mass, right=True)
    last_rank = torch.searchsorted(total, mass).clamp(max=tokens.shape[1] - 1)  # the last one that may be drawn
    return tokens.gather(1, torch.minimum(rank, last_rank))  # the product may be rounded to the mass
