"""The torch engine: lines to lines with a Transformer in fp32 or bf16, on the CPU in workers of one thread each.

Flow: ids -> groups of similar length -> search -> `Candidate`. Two threads inside one small step are slower than two
workers with a thread each, so a CPU with n threads searches with n workers that take from the same sentences.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from mtx.data.cleaning import clean_text
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.attention_maps import AttentionMaps, attention_maps
from mtx.decoding.continuous_batching import ENCODED, Request, RequestQueue, search
from mtx.decoding.memory_check import check_memory, hypothesis_bytes, search_bytes
from mtx.decoding.options import EXTRA_LENGTH, Candidate, Sampling, SearchOptions
from mtx.decoding.scoring import ForcedScore, score_pairs
from mtx.decoding.text_translator import Splitter, TextTranslator
from mtx.errors import DataError, UsageError
from mtx.model.device import attention_kernel, available_bytes, num_threads
from mtx.model.inference import IncrementalModel
from mtx.model.kv_cache import COLUMNS_AT_A_TIME
from mtx.model.transformer import Transformer
from mtx.model_directory import storage
from mtx.run.contents import model_directory

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_MAX_SLOTS = {"cpu": 64, "cuda": 1024}  # sentences that are decoded at once


class Translator(TextTranslator):
    """Translates lines of text with one model. Safe to call from several threads: one call decodes at a time.

    Args:
        max_tokens: longest source, in pieces with `</s>`, that goes through the model in one piece.
        precision: `fp32` or `bf16`, of the weights and of what is computed with them.
        threads: on the CPU; None means `num_threads()`.
        batch_tokens: source tokens that are decoded at once.
        src, tgt, splitter: see `TextTranslator`.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, max_tokens: int, options: SearchOptions | None = None, *,
        precision: str = "fp32", threads: int | None = None, batch_tokens: int = 4096, src: str = "src",
        tgt: str = "tgt", splitter: Splitter | None = None,
    ):  # fmt: skip
        super().__init__(tokenizer, max_tokens, options or SearchOptions(), src=src, tgt=tgt, splitter=splitter)
        self.model, self.precision, self.batch_tokens = model, precision, batch_tokens
        self.num_workers = (threads or num_threads()) if model.output_weight.device.type == "cpu" else 1
        self._lock = threading.Lock()
        self._engine: IncrementalModel | None = None

    @classmethod
    def load(
        cls, model: str | Path, *, device: str = "cpu", precision: str = "fp32", threads: int | None = None,
        beam_size: int | None = None, length_penalty: float | None = None, max_length: int | None = None,
        sampling: Sampling | None = None, batch_tokens: int = 4096, splitter: Splitter | None = None,
    ) -> "Translator":  # fmt: skip
        """Load a model directory (or the model of a run directory).

        Args:
            beam_size, length_penalty: None means what the run was configured with.
            max_length: most target tokens; None means those of the source + 50.
        """
        path = Path(model)
        if not path.is_dir():
            raise UsageError(f"{model}: no such model directory or run directory")
        loaded = storage.load(model_directory(path))
        info = loaded.info
        options = SearchOptions(
            beam_size or int(info["beam_size"]),
            float(info["length_penalty"]) if length_penalty is None else length_penalty, max_length, sampling,
        )  # fmt: skip
        config = loaded.model.config
        loaded.model.kernel = attention_kernel(torch.device(device), precision, config.d_model // config.num_heads)
        return cls(
            loaded.model.to(device), loaded.tokenizer, int(info["max_tokens"]), options, precision=precision,
            threads=threads, batch_tokens=batch_tokens, src=str(info["src"]), tgt=str(info["tgt"]), splitter=splitter,
        )  # fmt: skip

    def decode(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> list[list[Candidate]]:
        """See `TextTranslator.decode`."""
        if self.is_checked:
            check_memory(self, sources, prefixes)
        samples = 1 if self.options.sampling is None else self.options.sampling.num_samples
        with self._lock, self._evaluating(), torch.inference_mode():
            if self._engine is None:
                self._engine = IncrementalModel(self.model, _DTYPES[self.precision])
            found = self._search(self._engine, self._requests(sources, prefixes, samples))
        results = [found[number] for number in range(len(sources) * samples)]
        return [sum(results[i : i + samples], []) for i in range(0, len(results), samples)]

    def bytes_needed(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> int:
        """See `mtx.decoding.memory_check.Engine`; samples are counted as they are handed back."""
        requests = self._requests(sources, prefixes, 1)
        num_searches = self.num_workers if len(requests) >= 2 * self.num_workers else 1
        largest = max((self._group_bytes(group) for group in self._groups(requests)), default=0)
        positions = (
            0 if self.model.tgt_positions is not None else max((request.limit for request in requests), default=0)
        )
        table = 16 * self.model.config.d_model * positions  # it is computed in fp64
        return num_searches * largest + table + hypothesis_bytes(self.options, len(sources))

    def bytes_available(self) -> int | None:
        """See `mtx.decoding.memory_check.Engine`."""
        return available_bytes(self.model.output_weight.device)

    def _group_bytes(self, group: RequestQueue) -> int:
        """What a worker takes at least that decodes sentences of this group."""
        config, on_cuda = self.model.config, self.model.output_weight.device.type == "cuda"
        value_bytes, steps = _DTYPES[self.precision].itemsize, COLUMNS_AT_A_TIME[on_cuda]
        beams = self.options.beam_size if self.options.sampling is None else 1
        rows, length = group.num_slots * beams, len(group.waiting[0].source)
        sources = 2 * config.num_decoder_layers * group.num_slots * length * config.d_model * value_bytes
        seen = beams * steps if beams > 1 else 0
        search = search_bytes(config, len(self.model.output_weight), rows, steps, value_bytes, seen)
        encoded = group.num_slots // 2 if on_cuda else min(group.num_slots, ENCODED)  # at once
        encoder = encoded * length * (2 * config.num_heads * length + config.d_ff) * value_bytes
        history = 8 * rows * group.max_length
        return sources + history + max(search, encoder)

    def log_probs(
        self, src: Sequence[str], tgt: Sequence[str], first: int = 1, names: tuple[str, str] = ("line", "target")
    ) -> list[ForcedScore]:
        """How probable the model finds each line of `tgt` as a translation of that of `src`.

        Args:
            first: number of the first line, for messages.
            names: what a line of each text is called in messages, before its number.

        Raises:
            DataError: where a source is longer than the model takes in one piece, or a target has more pieces than a
                table of learned positions has rows.
        """
        src_ids, tgt_ids = self._ids(src, is_target=False), self._ids(tgt, is_target=True)
        _check_lengths(src_ids, self.max_tokens, names[0], first)
        _check_lengths(tgt_ids, self._num_tgt_positions(), names[1], first)
        return self.forced(src_ids, tgt_ids)

    def forced(self, src: Sequence[list[int]], tgt: Sequence[list[int]]) -> list[ForcedScore]:
        """Score given token ids, each ending in `</s>`; see `score_pairs`."""
        with self._lock, self._evaluating():
            return score_pairs(self.model, src, tgt, self.options.length_penalty, self.precision)

    def attention_maps(self, src: Sequence[str], tgt: Sequence[str] | None = None) -> list[AttentionMaps]:
        """What the model attends to in each line of `src` and in its translation, its own where none is given.

        Raises:
            DataError: where a source is longer than the model takes in one piece, or a target than it writes.
        """
        src_ids = self._ids(src, is_target=False)
        _check_lengths(src_ids, self.max_tokens, "line")
        if tgt is None:
            tgt_ids = [found[0].ids for found in self.decode(src_ids, [[] for _ in src_ids])]
        else:
            tgt_ids = self._ids(tgt, is_target=True)
            _check_lengths(tgt_ids, min(self.max_tokens + EXTRA_LENGTH, self._num_tgt_positions()), "target")
        with self._lock, self._evaluating():
            return attention_maps(self.model, self.tokenizer, src_ids, tgt_ids)

    def _ids(self, lines: Sequence[str], is_target: bool) -> list[list[int]]:
        return self.tokenizer.encode([clean_text(line) for line in lines], target=is_target, num_threads=1)

    def _num_tgt_positions(self) -> int:
        """The most target pieces that the model has positions for; sinusoidal positions have no end."""
        return sys.maxsize if self.model.tgt_positions is None else len(self.model.tgt_positions)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """The model without dropout, and afterwards in the mode in which it was."""
        was_training = self.model.training
        self.model.eval()
        if was_training:
            self._engine = None  # it holds copies of weights, which training has changed
        try:
            yield
        finally:
            self.model.train(was_training)

    def _requests(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], samples: int) -> list[Request]:
        """The sentences to translate, longest first; each as often as it is sampled."""
        requests = []
        for row, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            limit = min(self.options.limit(source, prefix), self._num_tgt_positions())
            requests += [Request(row * samples + sample, source, limit, prefix, sample) for sample in range(samples)]
        return sorted(requests, key=lambda request: -len(request.source))

    def _search(self, engine: IncrementalModel, requests: list[Request]) -> dict[int, list[Candidate]]:
        groups = list(self._groups(requests))
        if self.num_workers == 1 or len(requests) < 2 * self.num_workers:
            return {k: v for group in groups for k, v in search(engine, group, self.options).items()}

        def work() -> dict[int, list[Candidate]]:
            torch.set_num_threads(1)
            return {k: v for group in groups for k, v in search(engine, group, self.options).items()}

        with ThreadPoolExecutor(self.num_workers, "mtx-search") as pool:
            parts = [pool.submit(work) for _ in range(self.num_workers)]
            try:
                found = {k: v for part in parts for k, v in part.result().items()}
            except BaseException:  # an interruption, or a worker's error: the others need not go on
                for group in groups:
                    group.given_up.set()
                raise
        torch.set_num_threads(torch.get_num_threads())  # this thread's, which threads to come take over
        return found

    def _groups(self, requests: list[Request]) -> Iterator[RequestQueue]:
        """Sentences that are decoded in the same slots: the longest decides how many there are.

        A group ends where sentences are half as long and more slots are possible, if its own were filled.
        """
        group: list[Request] = []
        for request in requests:
            slots = self._num_slots(group[0]) if group else 0
            is_full = len(group) >= slots * self.num_workers
            if (
                group
                and is_full
                and 2 * len(request.source) <= len(group[0].source)
                and self._num_slots(request) > slots
            ):
                yield RequestQueue.of(group, slots, self.num_workers)
                group = []
            group.append(request)
        if group:
            yield RequestQueue.of(group, self._num_slots(group[0]), self.num_workers)

    def _num_slots(self, longest: Request) -> int:
        most = _MAX_SLOTS.get(self.model.output_weight.device.type, 64)
        return max(1, min(most, self.batch_tokens // max(len(longest.source), 8)))


def _check_lengths(sentences: Sequence[list[int]], limit: int, name: str, first: int = 1) -> None:
    """Raise a DataError that names the first sentence of more than `limit` pieces; they are counted from `first`."""
    for number, ids in enumerate(sentences, start=first):
        if len(ids) > limit:
            raise DataError(f"{name} {number} has {len(ids)} pieces, the model takes {limit}")
