"""The torch engine: translates lines with any model in fp32 or bf16.

Flow: ids -> groups of similar length -> search -> `Candidate`. On a CPU, two threads within one small step are slower
than two workers with one thread each, so n threads search as n workers that take sentences from one queue.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mtx.config.limits import MAX_BATCH_TOKENS
from mtx.data.cleaning import clean_text
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.attention_maps import AttentionMaps, attention_maps
from mtx.decoding.continuous_batching import Model, Request, RequestQueue, search
from mtx.decoding.options import EXTRA_LENGTH, Candidate, Sampling, SearchOptions, check_number
from mtx.decoding.scoring import ForcedScore, score_pairs, similar_batches
from mtx.decoding.text_translator import Attention, Splitter, TextTranslator, check_lengths, require_lines
from mtx.errors import UsageError, first_line, is_out_of_memory
from mtx.model.architectures import search_model
from mtx.model.device import attention_kernel, expand_segments, find_device, free_unused_memory, num_threads
from mtx.model.translation_model import TranslationModel
from mtx.model_directory import storage
from mtx.run.contents import model_directory

logger = logging.getLogger(__name__)

Precision = Literal["fp32", "bf16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_MAX_SLOTS = {"cpu": 64, "cuda": 1024}  # sentences that are decoded at once
_MAPS_AT_ONCE = 16  # pairs of which all attention weights are in memory
_TINY = 1e-30  # a weight in fp32 that changes no other
_BATCH_TOKENS, _CUDA_BATCH_TOKENS = 4096, 32_768  # by default, until memory runs out


class TorchTranslator(TextTranslator):
    """Translates lines of text with one model. Safe to call from several threads: one call decodes at a time.

    Args:
        precision: `fp32` or `bf16`, for weights and computation.
        threads: number of threads on a CPU; None means `num_threads()`.
        batch_tokens: number of source tokens that are decoded at once; None means 4,096, and on CUDA 32,768. It is
            halved when memory runs out.
        tokenizer, max_tokens, options, src, tgt, splitter: see `TextTranslator`.
    """

    def __init__(
        self, model: TranslationModel, tokenizer: Tokenizer, max_tokens: int, options: SearchOptions | None = None, *,
        precision: Precision = "fp32", threads: int | None = None, batch_tokens: int | None = None, src: str = "src",
        tgt: str = "tgt", splitter: Splitter | None = None,
    ):  # fmt: skip
        if threads is not None:
            check_number("threads", threads, 1)
        if batch_tokens is not None:
            check_number("batch_tokens", batch_tokens, 1, MAX_BATCH_TOKENS)
        super().__init__(
            tokenizer, max_tokens, options or SearchOptions(), num_tgt_positions=model.num_tgt_positions, src=src,
            tgt=tgt, splitter=splitter,
        )  # fmt: skip
        self.model, self.precision = model, precision
        kind = model.output_weight.device.type
        self.batch_tokens = batch_tokens or (_CUDA_BATCH_TOKENS if kind == "cuda" else _BATCH_TOKENS)
        self.num_workers = (threads or num_threads()) if kind == "cpu" else 1
        self._lock = threading.Lock()
        self._engine: Model | None = None

    @classmethod
    def load(
        cls, model: str | Path, *, device: str = "auto", precision: Precision = "fp32", threads: int | None = None,
        beam_size: int | None = None, length_penalty: float | None = None, max_length: int | None = None,
        sampling: Sampling | None = None, batch_tokens: int | None = None, split_sentences: bool | None = None,
    ) -> "TorchTranslator":  # fmt: skip
        """Load a model directory (or the model of a run directory).

        Args:
            device: auto, cpu, cuda, cuda:1 or mps; see `find_device`.
            beam_size, length_penalty: None means the run's configuration.
            max_length: most target tokens; None means the source's number of tokens + 50.
            split_sentences: whether the sentences of a line are translated one by one; None means if the model was
                trained on single sentences.

        Raises:
            UsageError: there is no such model, device or precision.
            TypeError, ValueError: another argument is of another type, or out of its range.
            DamagedFileError: a file of the model is missing or damaged.
        """
        if precision not in _DTYPES:
            raise UsageError(f"precision {precision}: the engine torch has {', '.join(_DTYPES)}")
        place, path = find_device(device), Path(model)
        if not path.is_dir():
            raise UsageError(f"{model}: no such model directory or run directory")
        loaded = storage.load(model_directory(path))
        expand_segments(place)
        info = loaded.info
        options = SearchOptions.of_model(info, beam_size, length_penalty, max_length, sampling)
        config = loaded.model.config
        if config.architecture == "transformer":
            loaded.model.kernel = attention_kernel(place, precision, config.d_model // config.num_heads)
        translator = cls(
            loaded.model.to(place), loaded.tokenizer, int(info["max_tokens"]), options, precision=precision,
            threads=threads, batch_tokens=batch_tokens, src=str(info["src"]), tgt=str(info["tgt"]),
        )  # fmt: skip
        translator.choose_splitter(split_sentences, info)
        return translator

    def decode(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> list[list[Candidate]]:
        """See `TextTranslator.decode`."""
        samples = 1 if self.options.sampling is None else self.options.sampling.num_samples
        requests = self._requests(sources, prefixes, samples)
        with self._lock, self._evaluating(), torch.inference_mode():
            if self._engine is None:
                self._engine = self._new_engine()
            candidates = self._search_in_memory(self._engine, requests)
        results = [candidates[number] for number in range(len(sources) * samples)]
        return [sum(results[i : i + samples], []) for i in range(0, len(results), samples)]

    def _new_engine(self) -> Model:
        """Returns the model as search calls it."""
        model: Model = search_model(self.model, _DTYPES[self.precision])
        return model

    def _halve_batch(self, requests: list[Request]) -> bool:
        """Halves `batch_tokens`; returns whether fewer of these sentences are then decoded at once."""
        groups = [group for group in self._groups(requests) if group.num_slots > 1]
        if groups:
            self.batch_tokens = max(group.num_slots * max(_num_read(group.waiting[0]), 8) for group in groups) // 2
        return bool(groups)

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
        with self._lock, self._evaluating():
            return score_pairs(self.model, src, tgt, self.options.length_penalty, self.precision)

    def attention_maps(self, src: Sequence[str], tgt: Sequence[str] | None = None) -> list[AttentionMaps]:
        """Returns the attention weights of each line of `src` and its translation `tgt`, by default the model's own.

        Raises:
            TypeError: `src` or `tgt` is no list of str.
            ValueError: they have different numbers of lines.
            DataError: a source has more than max_tokens pieces, or a target more than the model can write.
        """
        require_lines(src, "attention_maps", tgt)
        src_ids = self._ids(src, is_target=False)
        if not src_ids:
            return []
        check_lengths(src_ids, self.max_tokens, "line")
        if tgt is None:
            tgt_ids = [candidates[0].ids for candidates in self.decode(src_ids, [[] for _ in src_ids])]
        else:
            tgt_ids = self._ids(tgt, is_target=True)
            check_lengths(tgt_ids, min(self.max_tokens + EXTRA_LENGTH, self.num_tgt_positions or sys.maxsize), "target")
        with self._lock, self._evaluating():
            return attention_maps(self.model, self.tokenizer, src_ids, tgt_ids)

    def source_states(self, sources: Sequence[list[int]], is_summed: bool = False) -> list[npt.NDArray[np.float32]]:
        """Returns the encoder's output for each source of ids, [S, D], or its sum over the positions, [D]."""
        states: list[Any] = [None] * len(sources)
        with self._lock, self._evaluating(), torch.inference_mode():
            if self._engine is None:
                self._engine = self._new_engine()
            for rows in similar_batches(sources, sources, self.batch_tokens):
                found = self._engine.source_states([sources[row] for row in rows])
                for row, state in zip(rows, found, strict=True):
                    states[row] = (state.float().sum(0) if is_summed else state.float()).cpu().numpy()
        return states

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        """See `TextTranslator.cross_attention`."""
        found = list[Attention]()
        with self._lock, self._evaluating():
            for start in range(0, len(sources), _MAPS_AT_ONCE):
                rows = slice(start, start + _MAPS_AT_ONCE)
                maps = attention_maps(self.model, self.tokenizer, sources[rows], targets[rows])
                means = [pair.cross[-1].mean(0) + _TINY for pair in maps]
                found += [rows / rows.sum(-1, keepdims=True) for rows in means]  # also of a decoder alone
        return found

    def _ids(self, lines: Sequence[str], is_target: bool) -> list[list[int]]:
        return self.tokenizer.encode([clean_text(line) for line in lines], target=is_target, num_threads=1)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Switches dropout off and makes the model's CUDA device that of this thread; afterwards both are restored."""
        was_training = self.model.training
        self.model.eval()
        if was_training:
            self._engine = None  # it holds copies of the weights, which training has changed since
        device = self.model.output_weight.device
        try:
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                yield
        finally:
            self.model.train(was_training)

    def _requests(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], samples: int) -> list[Request]:
        """Returns a request for each sentence, longest first, or for each of its samples."""
        requests = []
        for row, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            limit = min(self.options.limit(source, prefix), self.num_tgt_positions or sys.maxsize)
            requests += [Request(row * samples + sample, source, limit, prefix, sample) for sample in range(samples)]
        return sorted(requests, key=lambda request: -_num_read(request))

    def _search_in_memory(self, engine: Model, requests: list[Request]) -> dict[int, list[Candidate]]:
        """Searches; when memory runs out it tries again with half the batch."""
        while True:
            try:
                return self._search(engine, requests)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or not self._halve_batch(requests):
                    raise
                shortage = first_line(error)
            # Here the error is gone, and with it the tensors of its frames.
            free_unused_memory(engine.device)
            logger.info("out of memory (%s): batches have %s source tokens now", shortage, f"{self.batch_tokens:,}")

    def _search(self, engine: Model, requests: list[Request]) -> dict[int, list[Candidate]]:
        groups = list(self._groups(requests))

        def search_groups() -> dict[int, list[Candidate]]:
            return {k: v for group in groups for k, v in search(engine, group, self.options).items()}

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
                yield RequestQueue.of(group, slots, self.num_workers)
                group = []
            group.append(request)
        if group:
            yield RequestQueue.of(group, self._num_slots(group[0]), self.num_workers)

    def _num_slots(self, longest: Request) -> int:
        most = _MAX_SLOTS.get(self.model.output_weight.device.type, 64)
        return max(1, min(most, self.batch_tokens // max(_num_read(longest), 8)))


def _num_read(request: Request) -> int:
    """The tokens that a model reads before it writes one."""
    return len(request.source) + len(request.prefix)
