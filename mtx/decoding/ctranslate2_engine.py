"""The CTranslate2 engine: translates lines with a model that `mtx export --to ctranslate2` wrote. No torch here.

CTranslate2 searches, and mtx then scores and sorts the hypotheses with the paper's length penalty. The best hypothesis
is nearly always the same as that of the torch engine. The other hypotheses may differ, because CTranslate2 searches
until there are beam_size hypotheses, keeps those with the largest plain log-probability, and finishes fewer at the
maximum length.
"""

import itertools
import logging
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding import model_description
from mtx.decoding.engine import Attention, new_requests
from mtx.decoding.options import NO_SCORES, Candidate, EngineName, Placement, Request, SearchOptions, penalty
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.formatting import install_command
from mtx.machine import num_cores
from mtx.storage.run_files import CTRANSLATE2_CONFIG, CTRANSLATE2_VOCABULARY, CTRANSLATE2_WEIGHTS, EXPORT_CONFIG
from mtx.storage.untrusted import read_untrusted_json

_FILES = CTRANSLATE2_WEIGHTS, CTRANSLATE2_CONFIG, CTRANSLATE2_VOCABULARY
# Source tokens of a batch. On the CPU 256 to 1,024 take equal time with 3+3 layers of 256, and 4,096 a fifth more; with
# layers of 128 1,024 take 3% less than 512.
_BATCH_TOKENS, _CUDA_BATCH_TOKENS = 1024, 8192
# CTranslate2's own length penalty is score / |Y|^this. With 0 it would stop when the first hypothesis is the best one,
# before beam_size have finished. This number is not 0, but |Y|^this is 1 in single precision.
_NO_PENALTY = 1e-9
COMPUTE_TYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8"}  # what CTranslate2 calls each precision
_CUBLAS_HELP = (
    "CTranslate2 needs CUDA 12's cuBLAS: pip install nvidia-cublas-cu12 and put its nvidia/cublas/lib into "
    "LD_LIBRARY_PATH; or take the engine torch"
)


def library() -> Any:
    """Imports and returns the module ctranslate2.

    Raises:
        MtxError: CTranslate2 is not installed.
    """
    try:
        import ctranslate2

        ctranslate2.set_log_level(logging.ERROR)  # it would warn that a CPU computes a float16 model in float32
    except ImportError as error:
        raise MtxError(f"CTranslate2 is not installed ({error})", install_command("ctranslate2")) from None
    return ctranslate2


@dataclass
class _Hypothesis:
    """The token ids of a hypothesis, `</s>` included, and its log-probability; None until it is computed."""

    ids: list[int]
    log_prob: float | None


class CTranslate2Engine:
    """Searches with CTranslate2.

    Args:
        runtime: the `ctranslate2.Translator`.
        tokenizer: gives the pieces, which CTranslate2 reads and writes.
        num_positions: number of positions of the model, the most tokens that a translation can have.
        threads: number of batches of a call that `runtime`, with as many workers, translates at the same time.
        batch_tokens: number of source tokens of a batch.
    """

    name: ClassVar[EngineName] = "ctranslate2"

    def __init__(self, runtime: Any, tokenizer: Tokenizer, num_positions: int, threads: int, batch_tokens: int):
        self.runtime, self.threads = runtime, threads
        self.num_tgt_positions = num_positions
        self.batch_tokens = batch_tokens
        self._pieces = tokenizer.vocabulary()
        self._ids = {piece: token for token, piece in enumerate(self._pieces)}

    @classmethod
    def open(cls, path: Path, placement: Placement) -> tuple[Self, Tokenizer, Mapping[str, Any]]:
        """Loads a directory that `mtx export --to ctranslate2` wrote; returns tokenizer and info too.

        Raises:
            UsageError: the directory is not an export, or CTranslate2 lacks the device or the precision.
            DamagedFileError: a file is missing or damaged.
            MtxError: CTranslate2 is not installed, or cannot load the model.
        """
        described = model_description.read(path, _FILES, name=EXPORT_CONFIG)
        info = described.info
        if read_untrusted_json(path / CTRANSLATE2_VOCABULARY) != described.tokenizer.vocabulary():
            raise DamagedFileError(f"{path / CTRANSLATE2_VOCABULARY}: is not the vocabulary of the tokenizer")
        device = str(placement.device)
        if device == "auto":
            device = "cuda" if library().get_cuda_device_count() else "cpu"
        threads = (placement.threads or num_cores()) if device == "cpu" else 1
        batch_tokens = placement.batch_tokens or (_BATCH_TOKENS if device == "cpu" else _CUDA_BATCH_TOKENS)
        runtime = _open(path, device, placement.precision, threads)
        engine = cls(runtime, described.tokenizer, int(info["num_positions"]), threads, batch_tokens)
        return engine, described.tokenizer, info

    def share_workers(self) -> int:
        """See `Engine.share_workers`."""
        num_workers, self.threads = self.threads, 1
        return num_workers

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        """See `Engine.search`.

        A batch is searched with the largest limit of its sentences. Sentences with a smaller limit whose hypotheses
        reach it are searched again, in batches of one limit.
        """
        requests = new_requests(sources, prefixes, options, self.num_tgt_positions)
        batches = list(self._batches(requests))
        found, again = self._translate(batches, options), defaultdict[int, list[Request]](list)
        for batch in batches if options.num_beams > 1 else ():
            longest = max(request.limit for request in batch)
            for request in batch:
                if request.limit < longest and max(map(len, found[request.number][0])) >= request.limit:
                    again[request.limit].append(request)
        found |= self._translate((batch for some in again.values() for batch in self._batches(some)), options)
        hypotheses = [self._hypotheses(request, *found[request.number]) for request in requests]
        self._score(sources, hypotheses)
        return [_candidates(of_source, options.alpha) for of_source in hypotheses]

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        """See `Engine.cross_attention`: CTranslate2 gives it for the translation that it is made to write."""
        if not sources:
            return []
        results = self.runtime.translate_batch(
            [self._text(source[:-1]) for source in sources],
            [self._text(target[:-1]) or None for target in targets],
            beam_size=1,
            max_decoding_length=max(map(len, targets)),
            max_input_length=0,
            return_attention=True,
            max_batch_size=self.batch_tokens,
            batch_type="tokens",
        )
        rows = (result.attention[0][: len(target) - 1] for result, target in zip(results, targets, strict=True))
        return [
            np.array(row, np.float32) if row else np.empty((0, len(source)), np.float32)
            for row, source in zip(rows, sources, strict=True)
        ]

    def _translate(
        self, batches: Iterable[list[Request]], options: SearchOptions
    ) -> dict[int, tuple[list[list[str]], list[float]]]:
        """Returns CTranslate2's hypotheses, as pieces, and their scores for each request of the batches."""
        started = [(batch, self._start(batch, options)) for batch in batches]
        waiting = (
            (request, result) for batch, results in started for request, result in zip(batch, results, strict=True)
        )
        results = ((request.number, result.result()) for request, result in waiting)
        return {n: (result.hypotheses, result.scores) for n, result in results}  # each time they are read is a copy

    def _batches(self, requests: Sequence[Request]) -> Iterator[list[Request]]:
        """Yields requests in batches of similar length, longest first, and enough batches for all threads.

        Those with a prefix (tokens that the translation must begin with) get their own batches: CTranslate2 would
        search the other sentences of a batch differently if one had a prefix.
        """
        share = -(-sum(len(request.source) for request in requests) // self.threads)
        longest_first = sorted(requests, key=lambda request: (bool(request.prefix), -len(request.source)))
        for _, group in itertools.groupby(longest_first, key=lambda request: bool(request.prefix)):
            batch: list[Request] = []
            for request in group:
                if batch and len(batch[0].source) * (len(batch) + 1) > min(self.batch_tokens, share):
                    yield batch
                    batch = []
                batch.append(request)
            yield batch

    def _start(self, batch: list[Request], options: SearchOptions) -> Any:
        """Starts the translation of one batch; returns results that can be waited for."""
        return self.runtime.translate_batch(
            [self._text(request.source[:-1]) for request in batch],
            [self._text(request.prefix) or None for request in batch] if batch[0].prefix else None,
            beam_size=options.num_beams,
            num_hypotheses=options.num_beams,
            max_decoding_length=max(1, max(request.limit for request in batch) - 1),  # the last token is `</s>`
            min_decoding_length=0,
            max_input_length=0,
            length_penalty=_NO_PENALTY,
            return_scores=True,
            return_end_token=True,
            asynchronous=True,
        )

    def _text(self, ids: list[int]) -> list[str]:
        return [self._pieces[token] for token in ids]

    def _hypotheses(self, request: Request, found: list[list[str]], scores: list[float]) -> list[_Hypothesis]:
        """Returns the hypotheses of one source, cut to the limit, each with `</s>` at its end.

        CTranslate2's scores leave out the prefix, and the end of a hypothesis that it cut; `_score` computes those.
        """
        if not any(map(math.isfinite, scores)):
            raise MtxError(NO_SCORES)
        hypotheses: list[_Hypothesis] = []
        for pieces, score in zip(found, scores, strict=True):
            ids = list(map(self._ids.__getitem__, pieces))
            is_whole = ids[-1:] == [EOS_ID] and len(ids) <= request.limit
            if not is_whole:
                ids = [*ids[: request.limit - 1], EOS_ID]
            if all(ids != hypothesis.ids for hypothesis in hypotheses):
                hypotheses.append(_Hypothesis(ids, score if is_whole and not request.prefix else None))
        return hypotheses

    def _score(self, sources: Sequence[list[int]], hypotheses: list[list[_Hypothesis]]) -> None:
        """Computes missing log-probabilities."""
        missing = [
            (row, h) for row, row_hypotheses in enumerate(hypotheses) for h in row_hypotheses if h.log_prob is None
        ]
        if not missing:
            return
        share = -(-sum(len(hypothesis.ids) for _, hypothesis in missing) // self.threads)
        results = self.runtime.score_batch(
            [self._text(sources[row][:-1]) for row, _ in missing],
            [self._text(hypothesis.ids[:-1]) for _, hypothesis in missing],
            max_batch_size=min(self.batch_tokens, share),
            batch_type="tokens",
            max_input_length=0,
        )
        for (_, hypothesis), result in zip(missing, results, strict=True):
            hypothesis.log_prob = sum(result.log_probs)


def _candidates(hypotheses: list[_Hypothesis], alpha: float) -> list[Candidate]:
    """Returns hypotheses with mtx's scores, best first."""
    candidates = [Candidate(h.ids, (h.log_prob or 0.0) / penalty(len(h.ids), alpha)) for h in hypotheses]
    return sorted(candidates, key=lambda c: -c.score)


def _open(path: Path, device: str, precision: str | None, workers: int) -> Any:
    """Opens the model in CTranslate2, on a CPU with one thread for each worker."""
    runtime = library()
    kind, _, index = device.partition(":")
    try:
        translator = runtime.Translator(
            os.fsencode(path),
            kind,
            device_index=int(index or 0),
            compute_type="default" if precision is None else COMPUTE_TYPES[precision],
            inter_threads=workers,
            intra_threads=1,
        )
        if kind == "cuda":  # CTranslate2 loads cuBLAS only now
            translator.translate_batch([["</s>"]], max_decoding_length=1)
    except ValueError as error:
        text = " ".join(str(error).split())
        raise UsageError(f"device {device}, precision {precision or 'default'}: CTranslate2: {text}") from None
    except RuntimeError as error:
        help = _CUBLAS_HELP if "cublas" in str(error) else None
        raise MtxError(f"{path}: CTranslate2 cannot load it: {' '.join(str(error).split())}", help) from None
    return translator
