"""The torch engine: searches with any model in fp32 or bf16, scores, and looks into it.

Flow: ids -> groups of similar length -> search -> `Candidate`. On a CPU, two threads within one small step are slower
than two workers with one thread each, so n threads search as n workers that take sentences from one queue.
"""

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from mtx.data.tokenizer import Tokenizer
from mtx.decoding import model_directory
from mtx.decoding.beam_search import Model, RequestQueue, Slots, search
from mtx.decoding.options import Attention, Candidate, EngineName, Placement, Request, SearchOptions, new_requests
from mtx.decoding.scoring import AttentionMaps, ForcedScore, attention_maps, score_pairs
from mtx.errors import UsageError, first_line, is_out_of_memory
from mtx.model.architectures import new_search_model
from mtx.model.device import (
    allow_tf32,
    attention_kernel,
    expand_segments,
    fast_precision,
    find_device,
    free_unused_memory,
    num_threads,
)
from mtx.model.translation_model import TranslationModel
from mtx.storage.run_files import find_model

logger = logging.getLogger(__name__)

_MAX_SLOTS = {"cpu": 64, "cuda": 1024}  # sentences that are decoded at once
_MAPS_AT_ONCE = 16  # pairs of which all attention weights are in memory
_TINY = 1e-30  # a weight in fp32 that changes no other
_BATCH_TOKENS, _CUDA_BATCH_TOKENS = 4096, 32_768  # by default, until memory runs out


class TorchEngine:
    """Searches with one model, or an ensemble of several with the same tokenizer. One call decodes at once.

    Args:
        models: on their device already; they are put into evaluation mode, and must not be trained meanwhile.
        placement: precision is that of search; scores are computed in fp32 with TF32 unless it is given. batch_tokens
            is by default 4,096, and on CUDA 32,768, and is halved when memory runs out.
    """

    name: ClassVar[EngineName] = "torch"
    num_calls = 1

    def __init__(self, models: Sequence[TranslationModel], tokenizer: Tokenizer, placement: Placement | None = None):
        placement = placement or Placement()
        self.models, self.tokenizer = [model.eval() for model in models], tokenizer
        positions = [model.num_tgt_positions for model in models if model.num_tgt_positions]
        self.num_tgt_positions = min(positions, default=sys.maxsize)
        self.device = models[0].output_weight.device
        is_cuda = self.device.type == "cuda"
        precision = placement.precision or (fast_precision(self.device) if is_cuda else "fp32")
        self.precision: str = precision if is_cuda or precision != "tf32" else "fp32"
        self._scores_precision = placement.precision or "tf32"
        self.batch_tokens = placement.batch_tokens or (_CUDA_BATCH_TOKENS if is_cuda else _BATCH_TOKENS)
        self.num_workers = (placement.threads or num_threads()) if self.device.type == "cpu" else 1
        self._lock = threading.Lock()
        self._kept = dict[Any, Slots]()  # with CUDA's graphs, for later searches

    @classmethod
    def open(cls, paths: Sequence[Path], placement: Placement) -> tuple[Self, Tokenizer, Mapping[str, Any]]:
        """Loads a model or the models of an ensemble; returns tokenizer and info too, those of the first.

        Raises:
            UsageError: there is no such device, or the models have different tokenizers.
            DamagedFileError: a file is missing or damaged.
        """
        device = find_device(placement.device)
        loaded = [model_directory.load(find_model(path)) for path in paths]
        first = loaded[0]
        for path, other in zip(paths, loaded, strict=True):
            if not other.tokenizer.is_same(first.tokenizer):
                help = f"train one with the other's tokenizer: tokenizer.model={paths[0]}/model/tokenizer.model"
                raise UsageError(f"{paths[0]} and {path}: an ensemble needs models with the same tokenizer", help)
            other.model.kernel = attention_kernel(other.model.config, device, placement.precision or "fp32")
        expand_segments(device)
        models = [each.model.to(device) for each in loaded]
        info = {**first.info, "max_tokens": min(int(each.info["max_tokens"]) for each in loaded)}
        return cls(models, first.tokenizer, placement), first.tokenizer, info

    @property
    def model(self) -> TranslationModel:
        """The only model; UsageError for an ensemble."""
        if len(self.models) > 1:
            raise UsageError("not supported for an ensemble", "use one of its models")
        return self.models[0]

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        """See `Engine.search`."""
        requests = new_requests(sources, prefixes, options, self.num_tgt_positions)
        longest_first = sorted(requests, key=lambda request: -_num_read(request))
        with self.use_models():
            candidates = self._search_in_memory(longest_first, options)
        found: list[list[Candidate]] = [[] for _ in sources]
        for request in requests:
            found[request.number * len(sources) // len(requests)] += candidates[request.number]
        return found

    def log_probs(self, src: Sequence[list[int]], tgt: Sequence[list[int]], alpha: float) -> list[ForcedScore]:
        """Scores existing translations, each ending in `</s>`; see `score_pairs`."""
        with self.use_models():
            return score_pairs(self.model, src, tgt, alpha, self._scores_precision)

    def attention_maps(self, src: Sequence[list[int]], tgt: Sequence[list[int]]) -> list[AttentionMaps]:
        """Returns all attention weights of each pair, both sides ending in `</s>`."""
        with self.use_models():
            return attention_maps(self.model, self.tokenizer, src, tgt) if src else []

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        """See `Engine.cross_attention`; of several models it is the mean."""
        found: list[Attention] = []
        with self.use_models():
            for start in range(0, len(sources), _MAPS_AT_ONCE):
                pairs = [side[start : start + _MAPS_AT_ONCE] for side in (sources, targets)]
                by_model = [attention_maps(model, self.tokenizer, *pairs) for model in self.models]
                for maps in zip(*by_model, strict=True):
                    means = [one.cross[-1].mean(0) + _TINY for one in maps]  # also of a decoder alone
                    found.append(np.mean([mean / mean.sum(-1, keepdims=True) for mean in means], axis=0))
        return found

    @contextlib.contextmanager
    def use_models(self) -> Iterator[None]:
        """Lets one thread use the models, without gradients and on their CUDA device."""
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        tf32 = allow_tf32(self.device) if self._scores_precision == "tf32" else contextlib.nullcontext()
        with self._lock, on_device, tf32, torch.inference_mode():
            yield

    @functools.cached_property
    def search_models(self) -> list[Model]:
        """The models as search calls them."""
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        return [new_search_model(model, dtype) for model in self.models]

    def _search_in_memory(self, requests: list[Request], options: SearchOptions) -> dict[int, list[Candidate]]:
        """Searches; when memory runs out it tries again without kept slots, then with half the batch."""
        kept = len(self._kept)
        while True:
            try:
                return self._search(requests, options)
            except (RuntimeError, MemoryError) as error:
                is_least = not kept and all(group.num_slots == 1 for group in self._groups(requests))
                if is_least or not is_out_of_memory(error):
                    raise
                shortage = first_line(error)
            self._kept.clear()
            # Here the error is gone, and with it the tensors of its frames.
            free_unused_memory(self.device)
            if not kept:
                self.batch_tokens //= 2
                tokens = f"{self.batch_tokens:,}"
                logger.info("out of memory (%s): reducing batches to %s source tokens", shortage, tokens)
            kept = 0

    def _search(self, requests: list[Request], options: SearchOptions) -> dict[int, list[Candidate]]:
        models, groups = self.search_models, list(self._groups(requests))

        def search_groups() -> dict[int, list[Candidate]]:
            return {k: v for group in groups for k, v in search(models, group, options, self._kept).items()}

        if self.num_workers == 1 or len(requests) < 2 * self.num_workers:
            return search_groups()
        with ThreadPoolExecutor(self.num_workers, "mtx-search", torch.set_num_threads, (1,)) as pool:
            parts = [pool.submit(search_groups) for _ in range(self.num_workers)]
            try:
                results = {k: v for part in parts for k, v in part.result().items()}
            except BaseException:  # an interruption, or a worker's error: the other workers stop
                for group in groups:
                    group.cancelled.set()
                raise
        torch.set_num_threads(torch.get_num_threads())  # new threads inherit this thread's number again
        return results

    def _groups(self, requests: list[Request]) -> Iterator[RequestQueue]:
        """Groups sentences that are decoded in the same slots; the longest sentence decides the number of slots.

        A new group begins when sentences are half as long, more slots are possible, and the group fills its own slots.
        """
        group: list[Request] = []
        slots = 0
        for request in requests:
            more = max(1, min(_MAX_SLOTS.get(self.device.type, 64), self.batch_tokens // max(_num_read(request), 8)))
            is_full = len(group) >= slots * self.num_workers
            if group and is_full and 2 * _num_read(request) <= _num_read(group[0]) and more > slots:
                yield RequestQueue(group, slots, self.num_workers)
                group = []
            slots = slots if group else more
            group.append(request)
        if group:
            yield RequestQueue(group, slots, self.num_workers)


def _num_read(request: Request) -> int:
    """The tokens that a model reads before it writes one."""
    return len(request.source) + len(request.prefix)
