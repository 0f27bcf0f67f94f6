"""The torch engine: searches with any model in fp32 or bf16, scores, and looks into it.

Flow: ids -> groups of similar length -> search -> `Candidate`; ids of pairs -> packed batches -> `ForcedScore` or
`AttentionMaps`, which `mtx logprob`, validation and `mtx.report` use. On a CPU, two threads within one small step are
slower than two workers with one thread each, so n threads search as n workers that take sentences from one queue.
"""

import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mtx.data.packing import PackedBatch, pack_sentences, to_device
from mtx.data.tokenizer import Tokenizer
from mtx.decoding import model_directory
from mtx.decoding.beam_search import RequestQueue, Slots, search
from mtx.decoding.options import (
    Attention,
    Candidate,
    EngineName,
    Placement,
    Request,
    Results,
    SearchOptions,
    Sentences,
    new_requests,
    penalty,
)
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
from mtx.model.inference import IncrementalModel
from mtx.model.translation_model import TranslationModel, Weights
from mtx.storage.run_files import find_model
from mtx.storage.streams import progress

Pieces = tuple[str, ...]
logger = logging.getLogger(__name__)

_MAX_SLOTS = 64  # sentences that are decoded at once
_CUDA_MAX_SLOTS = 1024
_MAPS_AT_ONCE = 16  # pairs of which all attention weights are in memory
_TINY = 1e-30  # a weight in fp32 that changes no other
_BATCH_TOKENS = 4096  # by default, until memory runs out
_CUDA_BATCH_TOKENS = 32_768
SCORED_TOKENS = 8192  # in a batch, or those of a single longer pair
# In memory at once; in a validation next to all that training keeps there, and larger blocks leave holes in it.
_MAX_LOGITS = 1 << 21


@dataclass(frozen=True)
class ForcedScore:
    """An existing translation: natural log-probability, number of tokens with `</s>`, and penalised score.

    Ids that name the language count in none of them.
    """

    log_prob: float
    num_tokens: int
    score: float


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """All attention weights of one pair; L layers, H heads, S source and T target pieces, each row a distribution.

    Row t of `decoder` and `cross` belongs to the position that predicts `tgt_tokens[t]` from `tgt_inputs[: t + 1]`.

    Attributes:
        src_tokens: [S] pieces as text, such as `▁the`, with `</s>`.
        tgt_tokens: [T] predicted pieces, with `</s>`.
        encoder: [L, H, S, S], from source pieces to source pieces.
        decoder: [L, H, T, T], from predicted pieces to the pieces before them, `tgt_inputs`.
        cross: [L, H, T, S], from predicted pieces to source pieces.
    """

    src_tokens: Pieces
    tgt_tokens: Pieces
    encoder: Weights
    decoder: Weights
    cross: Weights

    @property
    def kinds(self) -> list[str]:
        """Which of `cross`, `encoder` and `decoder` the model has."""
        return [kind for kind in ("cross", "encoder", "decoder") if getattr(self, kind).size]

    @property
    def tgt_inputs(self) -> Pieces:
        """[T] pieces that the decoder reads: `<pad>` first, then the predicted pieces except the last."""
        return ("<pad>", *self.tgt_tokens[:-1])


class TorchEngine:
    """Searches with one model, or an ensemble of several with the same tokenizer. One call decodes at once.

    Args:
        models: on their device already; they are put into evaluation mode, and must not be trained meanwhile.
        placement: precision is that of search; scores are computed in fp32 with TF32 unless it is given. batch_tokens
            is by default 4,096, and on CUDA 32,768, and is halved when memory runs out.
    """

    name: ClassVar[EngineName] = "torch"
    num_calls = 1
    info: Mapping[str, Any]  # of what `load` has loaded

    def __init__(self, models: Sequence[TranslationModel], tokenizer: Tokenizer, placement: Placement | None = None):
        placement = placement or Placement()
        self.models = [model.eval() for model in models]
        self.tokenizer = tokenizer
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
        self._kept_slots = dict[Any, Slots]()  # with CUDA's graphs, for later searches

    @classmethod
    def load(cls, paths: Sequence[Path], placement: Placement) -> Self:
        """Loads a model or the models of an ensemble, with the tokenizer and the info of the first.

        Raises:
            UsageError: there is no such device, or the models have different tokenizers.
            DamagedFileError: a file is missing or damaged.
        """
        device = find_device(placement.device)
        loaded = [model_directory.load(find_model(path)) for path in paths]
        tokenizer = loaded[0].tokenizer
        for path, member in zip(paths, loaded, strict=True):
            if not member.tokenizer.is_same(tokenizer):
                raise UsageError(
                    f"{paths[0]} and {path}: an ensemble needs models with the same tokenizer",
                    f"train one with the other's tokenizer: tokenizer.model={paths[0]}/model/tokenizer.model",
                )
            member.model.kernel = attention_kernel(member.model.config, device, placement.precision or "fp32")
        expand_segments(device)
        engine = cls([member.model.to(device) for member in loaded], tokenizer, placement)
        engine.info = {**loaded[0].info, "max_tokens": min(member.info["max_tokens"] for member in loaded)}
        return engine

    @property
    def model(self) -> TranslationModel:
        """The only model; UsageError for an ensemble."""
        if len(self.models) > 1:
            raise UsageError("not supported for an ensemble", "use one of its models")
        return self.models[0]

    def search(self, sources: Sentences, prefixes: Sentences, options: SearchOptions) -> list[list[Candidate]]:
        """See `Engine.search`."""
        requests = new_requests(sources, prefixes, options, self.num_tgt_positions)
        with self.use_models(), progress("translating", len(requests), "sentences") as update:
            candidates = self._search_in_memory(sorted(requests, key=_num_read, reverse=True), options, update)
        candidates_by_source = [list[Candidate]() for _ in sources]
        for request in requests:
            candidates_by_source[request.source_number] += candidates[request.number]
        return candidates_by_source

    def log_probs(self, src: Sentences, tgt: Sentences, alpha: float) -> list[ForcedScore]:
        """Scores existing translations, each ending in `</s>`; see `score_pairs`."""
        with self.use_models():
            return score_pairs(self.model, src, tgt, alpha, self._scores_precision, self.tokenizer.num_forced)

    def attention_maps(self, src: Sentences, tgt: Sentences) -> list[AttentionMaps]:
        """Returns all attention weights of each pair, both sides ending in `</s>`."""
        with self.use_models():
            return attention_maps(self.model, self.tokenizer, src, tgt) if src else []

    def cross_attention(self, sources: Sentences, targets: Sentences) -> list[Attention]:
        """See `Engine.cross_attention`; of several models it is the mean."""
        attentions = []
        with self.use_models():
            for start in range(0, len(sources), _MAPS_AT_ONCE):
                pairs = [side[start : start + _MAPS_AT_ONCE] for side in (sources, targets)]
                by_model = [attention_maps(model, self.tokenizer, *pairs) for model in self.models]
                for maps_of_pair in zip(*by_model, strict=True):
                    means = [maps.cross[-1].mean(0) + _TINY for maps in maps_of_pair]  # also of a decoder alone
                    attentions.append(np.mean([mean / mean.sum(-1, keepdims=True) for mean in means], axis=0))
        return attentions

    @contextmanager
    def use_models(self) -> Iterator[None]:
        """Lets one thread use the models, without gradients and on their CUDA device."""
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        tf32 = allow_tf32(self.device) if self._scores_precision == "tf32" else nullcontext()
        with self._lock, on_device, tf32, torch.inference_mode():
            yield

    @functools.cached_property
    def search_models(self) -> list[IncrementalModel]:
        """The models as search calls them."""
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        return [new_search_model(model, dtype) for model in self.models]

    def _search_in_memory(
        self, requests: list[Request], options: SearchOptions, update: Callable[[int], None]
    ) -> Results:
        """Searches; when memory runs out it tries again without kept slots, then with half the batch."""
        num_kept = len(self._kept_slots)
        while True:
            try:
                return self._search(requests, options, update)
            except (RuntimeError, MemoryError) as error:
                is_least = not num_kept and all(group.num_slots == 1 for group in self._groups(requests))
                if is_least or not is_out_of_memory(error):
                    raise
                shortage = first_line(error)
            self._kept_slots.clear()
            # Here the error is gone, and with it the tensors of its frames.
            free_unused_memory(self.device)
            if not num_kept:
                self.batch_tokens //= 2
                logger.info(f"out of memory ({shortage}): reducing batches to {self.batch_tokens:,} source tokens")
            num_kept = 0

    def _search(self, requests: list[Request], options: SearchOptions, update: Callable[[int], None]) -> Results:
        models = self.search_models
        groups = list(self._groups(requests))
        results = Results()

        def search_groups() -> None:
            for group in groups:
                results.update(search(models, group, options, self._kept_slots, update))

        if self.num_workers == 1 or len(requests) < 2 * self.num_workers:
            search_groups()
            return results
        with ThreadPoolExecutor(self.num_workers, "mtx-search", torch.set_num_threads, (1,)) as pool:
            parts = [pool.submit(search_groups) for _ in range(self.num_workers)]
            try:
                for part in parts:
                    part.result()
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
        num_slots = 0
        max_slots = _CUDA_MAX_SLOTS if self.device.type == "cuda" else _MAX_SLOTS
        for request in requests:
            possible_slots = max(1, min(max_slots, self.batch_tokens // max(_num_read(request), 8)))
            is_full = len(group) >= num_slots * self.num_workers
            if group and is_full and 2 * _num_read(request) <= _num_read(group[0]) and possible_slots > num_slots:
                yield RequestQueue(group, num_slots, self.num_workers, self.tokenizer.num_forced)
                group = []
            if not group:
                num_slots = possible_slots
            group.append(request)
        if group:
            yield RequestQueue(group, num_slots, self.num_workers, self.tokenizer.num_forced)


def _num_read(request: Request) -> int:
    """The tokens that a model reads before it writes one."""
    return len(request.source) + len(request.prefix)


@torch.inference_mode()
def score_pairs(
    model: TranslationModel,
    src: Sentences,
    tgt: Sentences,
    alpha: float,
    precision: str = "fp32",
    num_forced: int = 0,
) -> list[ForcedScore]:
    """Scores each target given its source, both ending in `</s>`, in batches of similar length.

    Args:
        num_forced: the number of ids at the start of a target that do not count.
    """
    results = {}
    for rows in batch_by_length(src, tgt, SCORED_TOKENS):
        batch = _pack(model, [src[row] for row in rows], [tgt[row] for row in rows])
        with torch.autocast(batch.src_ids.device.type, torch.bfloat16, enabled=precision == "bf16"):
            hidden = model.decode(batch, model.encode(batch))
            nll = target_nll(hidden, batch.tgt_out_ids, model.output_weight, model.output_bias)
        for row, part in zip(rows, torch.split(nll, [len(tgt[r]) for r in rows]), strict=True):
            log_prob = -float(part[num_forced:].numpy().sum())
            length = len(tgt[row]) - num_forced
            results[row] = ForcedScore(log_prob, length, log_prob / penalty(length, alpha))
    return [results[row] for row in range(len(src))]


def _pack(model: TranslationModel, src: Sentences, tgt: Sentences) -> PackedBatch:
    """One batch of pairs on the device of the model, which is ready for it."""
    batch = pack_sentences(src, tgt, model.pad_id, model.start_id)
    model.prepare_positions(batch.max_tokens)
    return to_device(batch, model.output_weight.device)


def target_nll(hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the nll of each target token, fp64 [N] in host memory; 0 for pad, the id after the last output.

    Args:
        hidden: [N, D]. targets: [N]. weight: [V, D]. bias: [V] or None.
    """
    rows = max(1, _MAX_LOGITS // len(weight))
    parts = [
        F.cross_entropy(F.linear(h, weight, bias).float(), y, ignore_index=len(weight), reduction="none")
        for h, y in zip(torch.split(hidden, rows), torch.split(targets.long(), rows), strict=True)
    ]
    return torch.cat(parts).cpu().double()  # on the CPU, because MPS has no float64


def batch_by_length(src: Sentences, tgt: Sentences, max_tokens: int) -> Iterator[list[int]]:
    """Yields rows of similar length that have at most `max_tokens` tokens together, or a single longer row."""
    rows: list[int] = []
    total = 0
    for row in sorted(range(len(tgt)), key=lambda r: (len(tgt[r]), len(src[r]))):
        num_tokens = max(len(tgt[row]), len(src[row]))
        if rows and total + num_tokens > max_tokens:
            yield rows
            rows = []
            total = 0
        rows.append(row)
        total += num_tokens
    if rows:
        yield rows


@torch.inference_mode()
def attention_maps(
    model: TranslationModel, tokenizer: Tokenizer, src: Sentences, tgt: Sentences
) -> list[AttentionMaps]:
    """Returns the maps of each pair of ids, both sides ending in `</s>`; the model must be in evaluation mode."""
    src_pieces = [tuple(tokenizer.pieces(ids)) for ids in src]
    tgt_pieces = [tuple(tokenizer.pieces(ids)) for ids in tgt]
    weights = model.attention_weights(_pack(model, src, tgt))
    return list(map(AttentionMaps, src_pieces, tgt_pieces, *zip(*weights, strict=True)))
