"""The torch engine: translates lines with any model in fp32 or bf16.

Flow: ids -> groups of similar length -> search -> `Candidate`. On a CPU, two threads within one small step are slower
than two workers with one thread each, so n threads search as n workers that take sentences from one queue.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from mtx.data.cleaning import clean_text
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding import model_directory
from mtx.decoding.attention_maps import AttentionMaps, attention_maps
from mtx.decoding.beam_search import Model, RequestQueue, search
from mtx.decoding.options import EXTRA_LENGTH, Candidate, Placement, Request, SearchOptions
from mtx.decoding.scoring import ForcedScore, score_pairs, similar_batches
from mtx.decoding.text_translator import Attention, TextTranslator, check_lengths, require_lines
from mtx.errors import UsageError, first_line, is_out_of_memory
from mtx.model.architectures import search_model
from mtx.model.device import attention_kernel, expand_segments, find_device, free_unused_memory, num_threads
from mtx.model.translation_model import TranslationModel
from mtx.storage.run_contents import find_model, require_models

logger = logging.getLogger(__name__)

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_MAX_SLOTS = {"cpu": 64, "cuda": 1024}  # sentences that are decoded at once
_MAPS_AT_ONCE = 16  # pairs of which all attention weights are in memory
_TINY = 1e-30  # a weight in fp32 that changes no other
_BATCH_TOKENS, _CUDA_BATCH_TOKENS = 4096, 32_768  # by default, until memory runs out


class TorchTranslator(TextTranslator):
    """Translates lines of text with one model, or several. Safe to call from several threads: one call decodes at once.

    Args:
        tokenizer, max_tokens, options: see `TextTranslator`.
        placement: precision is that of weights and computation; batch_tokens is by default 4,096, and on CUDA 32,768,
            and is halved when memory runs out. The models are on their device already.
        others: models with the same tokenizer that search together with the first, as an ensemble.
    """

    engine_name = "torch"

    def __init__(
        self,
        model: TranslationModel,
        tokenizer: Tokenizer,
        max_tokens: int,
        options: SearchOptions | None = None,
        placement: Placement | None = None,
        others: Sequence[TranslationModel] = (),
    ):
        placement = placement or Placement()
        self.models = [model, *others]
        positions = [each.num_tgt_positions for each in self.models if each.num_tgt_positions]
        super().__init__(tokenizer, max_tokens, options or SearchOptions(), min(positions, default=None))
        self.precision = placement.precision or "fp32"
        self.device = model.output_weight.device
        is_cuda = self.device.type == "cuda"
        self.batch_tokens = placement.batch_tokens or (_CUDA_BATCH_TOKENS if is_cuda else _BATCH_TOKENS)
        self.num_workers = (placement.threads or num_threads()) if self.device.type == "cpu" else 1
        self._lock = threading.Lock()
        self._search_models: list[Model] = []  # made in the first search

    @classmethod
    def open(cls, model: str | Path, search: SearchOptions, placement: Placement) -> Self:
        """See `FromModel.load`; the model may be an ensemble A+B, which searches as its first model does.

        Raises:
            UsageError: the models of an ensemble have different tokenizers.
        """
        device, paths = find_device(placement.device), require_models(model)
        loaded = [model_directory.load(find_model(path)) for path in paths]
        first = loaded[0]
        for path, other in zip(paths, loaded, strict=True):
            if not other.tokenizer.is_same(first.tokenizer):
                help = f"train one with the tokenizer of the other: tokenizer.model={paths[0]}/model/tokenizer.model"
                raise UsageError(
                    f"{paths[0]} and {path}: have different tokenizers, so they cannot search together", help
                )
            config = other.model.config
            if config.architecture == "transformer":
                head_size = config.d_model // config.num_heads
                other.model.kernel = attention_kernel(device, placement.precision or "fp32", head_size)
        expand_segments(device)
        models = [each.model.to(device) for each in loaded]
        max_tokens = min(int(each.info["max_tokens"]) for each in loaded)
        translator = cls(models[0], first.tokenizer, max_tokens, search.of_model(first.info), placement, models[1:])
        translator.describe(first.info)
        return translator

    @property
    def model(self) -> TranslationModel:
        """The only model; UsageError for an ensemble."""
        if len(self.models) > 1:
            raise UsageError("an ensemble of models only translates", "give one of its models")
        return self.models[0]

    def decode(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> list[list[Candidate]]:
        """See `TextTranslator.decode`."""
        requests = self.requests(sources, prefixes)
        longest_first = sorted(requests, key=lambda request: -_num_read(request))
        with self._evaluating():
            candidates = self._search_in_memory(longest_first)
        found: list[list[Candidate]] = [[] for _ in sources]
        for request in requests:
            found[request.number * len(sources) // len(requests)] += candidates[request.number]
        return found

    def _models_for_search(self) -> list[Model]:
        """Returns the models as search calls them."""
        if not self._search_models:
            self._search_models = [search_model(model, _DTYPES[self.precision]) for model in self.models]
        return self._search_models

    def log_probs(
        self, src: Sequence[str], tgt: Sequence[str], first: int = 1, names: tuple[str, str] = ("line", "target")
    ) -> list[ForcedScore]:
        """Scores each line of `tgt` as a translation of the same line of `src`.

        Args:
            first: number of the first line, for messages.
            names: how messages call a line of `src` and of `tgt`, before its number.

        Raises:
            TypeError: `src` or `tgt` is no list of str.
            ValueError: they have different numbers of lines.
            DataError: a source has more than max_tokens pieces, or a target more pieces than learned positions.
        """
        require_lines(src, "log_probs", tgt)
        src_ids, tgt_ids = self._ids(src, is_target=False), self._ids(tgt, is_target=True)
        check_lengths(src_ids, self.max_tokens, names[0], first)
        check_lengths(tgt_ids, self.num_tgt_positions, names[1], first)
        return self.forced(src_ids, tgt_ids)

    def forced(self, src: Sequence[list[int]], tgt: Sequence[list[int]]) -> list[ForcedScore]:
        """Scores existing translations as token ids, each ending in `</s>`; see `score_pairs`."""
        with self._evaluating():
            return score_pairs(self.model, src, tgt, self.options.alpha, self.precision)

    def attention_maps(self, src: Sequence[str], tgt: Sequence[str] | None = None) -> list[AttentionMaps]:
        """Returns the attention weights of each line of `src` and its translation `tgt`, by default the model's own.

        Raises:
            TypeError: `src` or `tgt` is no list of str.
            ValueError: they have different numbers of lines.
            DataError: a source has more than max_tokens pieces, or a target more than the model can write.
        """
        require_lines(src, "attention_maps", tgt)
        model = self.model
        src_ids = self._ids(src, is_target=False)
        if not src_ids:
            return []
        check_lengths(src_ids, self.max_tokens, "line")
        if tgt is None:
            tgt_ids = [candidates[0].ids for candidates in self.decode(src_ids, [[] for _ in src_ids])]
        else:
            tgt_ids = self._ids(tgt, is_target=True)
            check_lengths(tgt_ids, min(self.max_tokens + EXTRA_LENGTH, self.num_tgt_positions), "target")
        with self._evaluating():
            return attention_maps(model, self.tokenizer, src_ids, tgt_ids)

    def sentence_vectors(self, lines: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns for each line the mean of the encoder's outputs over its pieces, [L, D]; zeros if it has no text.

        A line with more than max_tokens pieces is encoded in parts, which count by their pieces.
        """
        parts = [(number, part.ids) for number, of_line in enumerate(self.split(lines)) for part in of_line]
        sources, num_pieces = [ids for _, ids in parts], np.zeros((len(lines), 1), np.float32)
        with self._evaluating():
            models = self._models_for_search()
            size = sum(model.source_states([[EOS_ID]])[0].shape[1] for model in models)
            vectors = np.zeros((len(lines), size), np.float32)
            for rows in similar_batches(sources, sources, self.batch_tokens):
                by_model = [model.source_states([sources[row] for row in rows]) for model in models]
                for row, *states in zip(rows, *by_model, strict=True):
                    vectors[parts[row][0]] += torch.cat(states, -1).float().sum(0).cpu().numpy()
                    num_pieces[parts[row][0]] += len(states[0])
        vectors /= np.maximum(num_pieces, 1)
        return vectors

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        """See `TextTranslator.cross_attention`; of several models it is the mean."""
        by_model: list[list[Attention]] = [[] for _ in self.models]
        with self._evaluating():
            for model, found in zip(self.models, by_model, strict=True):
                for start in range(0, len(sources), _MAPS_AT_ONCE):
                    rows = slice(start, start + _MAPS_AT_ONCE)
                    maps = attention_maps(model, self.tokenizer, sources[rows], targets[rows])
                    means = [pair.cross[-1].mean(0) + _TINY for pair in maps]
                    found += [one / one.sum(-1, keepdims=True) for one in means]  # also of a decoder alone
        return [np.mean(found, axis=0) for found in zip(*by_model, strict=True)]

    def _ids(self, lines: Sequence[str], is_target: bool) -> list[list[int]]:
        return self.tokenizer.encode([clean_text(line) for line in lines], target=is_target, num_threads=1)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Lets one thread use the models, without dropout or gradients and on their CUDA device; all is restored."""
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        with self._lock, on_device, torch.inference_mode():
            training = [model for model in self.models if model.training]
            for model in training:
                model.eval()
                self._search_models = []  # they hold copies of the weights, which training has changed since
            try:
                yield
            finally:
                for model in training:
                    model.train()

    def _search_in_memory(self, requests: list[Request]) -> dict[int, list[Candidate]]:
        """Searches; when memory runs out it tries again with half the batch."""
        while True:
            try:
                return self._search(requests)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or all(group.num_slots == 1 for group in self._groups(requests)):
                    raise
                shortage = first_line(error)
                self.batch_tokens //= 2
            # Here the error is gone, and with it the tensors of its frames.
            free_unused_memory(self.device)
            logger.info("out of memory (%s): batches have %s source tokens now", shortage, f"{self.batch_tokens:,}")

    def _search(self, requests: list[Request]) -> dict[int, list[Candidate]]:
        models, groups = self._models_for_search(), list(self._groups(requests))

        def search_groups() -> dict[int, list[Candidate]]:
            return {k: v for group in groups for k, v in search(models, group, self.options).items()}

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
        for request in requests:
            slots = self._num_slots(group[0]) if group else 0
            is_full = bool(group) and len(group) >= slots * self.num_workers
            if is_full and 2 * _num_read(request) <= _num_read(group[0]) and self._num_slots(request) > slots:
                yield RequestQueue(group, slots, self.num_workers)
                group = []
            group.append(request)
        if group:
            yield RequestQueue(group, self._num_slots(group[0]), self.num_workers)

    def _num_slots(self, longest: Request) -> int:
        most = _MAX_SLOTS.get(self.device.type, 64)
        return max(1, min(most, self.batch_tokens // max(_num_read(longest), 8)))


def _num_read(request: Request) -> int:
    """The tokens that a model reads before it writes one."""
    return len(request.source) + len(request.prefix)
