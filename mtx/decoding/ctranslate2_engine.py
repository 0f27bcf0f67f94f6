"""The CTranslate2 engine: translates lines with a model that `mtx export --to ctranslate2` wrote. No torch here.

CTranslate2 searches, and mtx then scores and sorts the hypotheses with the paper's length penalty. The best hypothesis
is nearly always the same as that of the torch engine. The other hypotheses may differ, because CTranslate2 searches
until there are beam_size hypotheses, keeps those with the largest plain log-probability, and finishes fewer at the
maximum length.
"""

import functools
import logging
import math
import os
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding.options import (
    NO_SCORES,
    Attention,
    Candidate,
    EngineName,
    Placement,
    Request,
    SearchOptions,
    Sentences,
    new_requests,
    penalty,
)
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.formatting import install_command
from mtx.machine import num_cores, num_idle_cores
from mtx.storage import model_description
from mtx.storage.durable import read_untrusted_json
from mtx.storage.run_files import CTRANSLATE2_CONFIG, CTRANSLATE2_VOCABULARY, CTRANSLATE2_WEIGHTS, EXPORT_CONFIG
from mtx.storage.streams import progress

_FILES = CTRANSLATE2_WEIGHTS, CTRANSLATE2_CONFIG, CTRANSLATE2_VOCABULARY
# Source tokens of a batch. On the CPU 256 to 1,024 take equal time with 3+3 layers of 256, and 4,096 a fifth more; with
# layers of 128 1,024 take 3% less than 512.
_BATCH_TOKENS = 1024
_CUDA_BATCH_TOKENS = 8192
_MOST_THREADS = 4  # for one sentence; CTranslate2 never takes more by itself
# CTranslate2's own length penalty is score / |Y|^this. With 0 it would stop when the first hypothesis is the best one,
# before beam_size have finished. This number is not 0, but |Y|^this is 1 in single precision.
_NO_PENALTY = 1e-9
_DISABLED = -1e9  # a beam that CTranslate2 disabled has -1e10, such as one that ends right after a prefix
LogProbs = dict[tuple[int, ...], float | None]  # of hypotheses; None until it is known
COMPUTE_TYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8"}  # what CTranslate2 calls each precision
_PRECISIONS = {kind: name for name, kind in COMPUTE_TYPES.items()}
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


class CTranslate2Engine:
    """Searches with CTranslate2.

    Args:
        path: a directory that `mtx export --to ctranslate2` wrote.
        placement: threads is the number of batches that are translated at the same time; a sentence that waits alone
            gets all their cores instead, for which the weights are loaded a second time. batch_tokens is by default
            1,024, and on CUDA 8,192.

    Raises:
        UsageError: the directory is not an export, or CTranslate2 lacks the device or the precision.
        DamagedFileError: a file is missing or damaged.
        MtxError: CTranslate2 is not installed, or cannot load the model.
    """

    name: ClassVar[EngineName] = "ctranslate2"

    def __init__(self, path: Path, placement: Placement):
        self.info = model_description.read(path, _FILES, name=EXPORT_CONFIG).info
        self.tokenizer = Tokenizer.load(path)
        self._pieces = self.tokenizer.pieces
        vocabulary = self.tokenizer.vocabulary()
        if read_untrusted_json(path / CTRANSLATE2_VOCABULARY) != vocabulary:
            raise DamagedFileError(f"{path / CTRANSLATE2_VOCABULARY}: not the vocabulary of the tokenizer")
        device = str(placement.device)
        if device == "auto":
            device = "cuda" if library().get_cuda_device_count() else "cpu"
        is_cpu = device == "cpu"
        self._is_cpu = is_cpu
        self.num_tgt_positions = int(self.info["num_positions"])
        self.num_calls = (placement.threads or num_cores()) if is_cpu else 1
        self.batch_tokens = placement.batch_tokens or (_BATCH_TOKENS if is_cpu else _CUDA_BATCH_TOKENS)
        self._open_runtime = functools.partial(_open_runtime, path, device, placement.precision)
        self.runtime = self._open_runtime(self.num_calls, 1)
        self._runtimes = [self.runtime]
        self._opening = threading.Lock()
        self.precision = _PRECISIONS.get(self.runtime.compute_type, self.runtime.compute_type)
        self._batched: dict[str, Any] = {
            "max_batch_size": self.batch_tokens,
            "batch_type": "tokens",
            "max_input_length": 0,
        }
        self._ids = {piece: token for token, piece in enumerate(vocabulary)}

    def _runtime_for_one(self) -> Any:
        """The runtime for a sentence that waits alone: its worker has all cores, unless others use them now.

        Threads that wait for each other hundreds of times in a sentence would wait for those others too: with one
        more busy process, a sentence of 25 tokens took 20 to 240 ms instead of 7.
        """
        num_threads = min(self.num_calls, _MOST_THREADS)
        if num_threads == 1 or num_idle_cores() < num_threads:
            return self.runtime
        with self._opening:
            if len(self._runtimes) < 2:
                self._runtimes.append(self._open_runtime(1, num_threads))
            return self._runtimes[1]

    def search(self, sources: Sentences, prefixes: Sentences, options: SearchOptions) -> list[list[Candidate]]:
        """See `Engine.search`.

        A batch is searched with the largest limit of its sentences. Sentences with a smaller limit whose hypotheses
        reach it are searched again, in batches of one limit, which wait behind the others so that all workers have
        work until the end. Then what CTranslate2 has not scored is scored.
        """
        requests = new_requests(sources, prefixes, options, self.num_tgt_positions)
        num_busy = sum(runtime.num_active_batches for runtime in self._runtimes)
        runtime = self.runtime if num_busy or len(requests) > 1 else self._runtime_for_one()
        waiting = deque(self._batches(requests, max(1, self.num_calls - num_busy)))
        running = deque[tuple[list[Request], list[Any]]]()
        hypotheses = [LogProbs() for _ in requests]
        with progress("translating", len(requests), "sentences") as update:
            while waiting or running:
                is_first_done = running and all(future.done() for future in running[0][1])
                if waiting and not is_first_done:  # to start one takes until CTranslate2's queue has a place
                    batch = waiting.popleft()
                    running.append((batch, self._start(runtime, batch, options)))
                    continue
                batch, results = running.popleft()
                longest = max(request.limit for request in batch)
                cut_requests = defaultdict[int, list[Request]](list)  # by limit, to search them again
                for request, future in zip(batch, results, strict=True):
                    result = future.result()
                    pieces = result.hypotheses  # a copy
                    if options.num_beams > 1 and request.limit < longest and max(map(len, pieces)) >= request.limit:
                        cut_requests[request.limit].append(request)
                    else:
                        hypotheses[request.number] = self._hypotheses(request, pieces, result.scores)
                        update(1)
                waiting.extend(cut_requests.values())
        missing = [
            (request, ids)
            for request in requests
            for ids, log_prob in hypotheses[request.number].items()
            if log_prob is None
        ]
        scored = runtime.score_batch(
            [self._pieces(request.source[:-1]) for request, _ in missing],
            [self._pieces(ids[:-1]) for _, ids in missing],
            **self._batched,
        )
        num_forced = self.tokenizer.num_forced
        for (request, ids), result in zip(missing, scored, strict=True):
            log_prob = sum(result.log_probs[num_forced:])
            if not math.isfinite(log_prob):
                raise MtxError(NO_SCORES)
            hypotheses[request.number][ids] = log_prob
        candidates_by_source = []
        for log_probs in hypotheses:
            candidates = list[Candidate]()
            for ids, log_prob in log_probs.items():
                assert log_prob is not None, "what was missing has been scored"
                candidates.append(Candidate([*ids], log_prob / penalty(len(ids) - num_forced, options.alpha)))
            candidates.sort(key=lambda candidate: -candidate.score)
            candidates_by_source.append(candidates)
        return candidates_by_source

    def cross_attention(self, sources: Sentences, targets: Sentences) -> list[Attention]:
        """See `Engine.cross_attention`: CTranslate2 gives it for the translation that it is made to write."""
        if not sources:
            return []
        results = self.runtime.translate_batch(
            [self._pieces(source[:-1]) for source in sources],
            [self._pieces(target[:-1]) or None for target in targets],
            beam_size=1,
            max_decoding_length=max(map(len, targets)),
            return_attention=True,
            **self._batched,
        )
        rows = (result.attention[0][: len(target) - 1] for result, target in zip(results, targets, strict=True))
        return [
            np.array(row, np.float32) if row else np.empty((0, len(source)), np.float32)
            for row, source in zip(rows, sources, strict=True)
        ]

    def _batches(self, requests: Sequence[Request], num_workers: int) -> Iterator[list[Request]]:
        """Yields requests in batches of similar length, longest first, and enough batches for all workers.

        Those with a prefix (tokens that the translation must begin with) get their own batches: CTranslate2 would
        search the other sentences of a batch differently if one had a prefix.
        """
        share = math.ceil(sum(len(request.source) for request in requests) / num_workers)
        without_prefix = [request for request in requests if not request.prefix]
        with_prefix = [request for request in requests if request.prefix]
        for group in filter(None, (without_prefix, with_prefix)):
            batch: list[Request] = []
            for request in sorted(group, key=lambda request: len(request.source), reverse=True):
                if batch and len(batch[0].source) * (len(batch) + 1) > min(self.batch_tokens, share):
                    yield batch
                    batch = []
                batch.append(request)
            yield batch

    def _start(self, runtime: Any, batch: list[Request], options: SearchOptions) -> Any:
        """Starts the search of a batch; returns a future result for each of its requests."""
        return runtime.translate_batch(
            [self._pieces(request.source[:-1]) for request in batch],
            [self._pieces(request.prefix) or None for request in batch] if batch[0].prefix else None,
            beam_size=options.num_beams,
            num_hypotheses=options.num_beams,
            max_decoding_length=max(1, max(request.limit for request in batch) - 1),  # then comes `</s>`
            min_decoding_length=0,
            max_input_length=0,
            length_penalty=_NO_PENALTY,
            return_scores=options.has_scores or options.num_beams > 1 or not self._is_cpu,
            return_end_token=True,
            asynchronous=True,
        )

    def _hypotheses(self, request: Request, by_beam: list[list[str]], scores: list[float]) -> LogProbs:
        """Returns the hypotheses of one source, cut to the limit, with `</s>`, and their log-probabilities.

        CTranslate2's scores omit the prefix, and the end of a hypothesis that it cut; there and for a disabled beam the
        log-probability is None, so that the hypothesis is scored later. Where no scores are needed it is 0.

        Args:
            scores: empty if none are needed.
        """
        assert scores or len(by_beam) == 1
        hypotheses = LogProbs()
        for number, pieces in enumerate(by_beam):
            ids = [self._ids[piece] for piece in pieces]
            is_whole = ids[-1:] == [EOS_ID] and len(ids) <= request.limit
            if not is_whole:
                ids = [*ids[: request.limit - 1], EOS_ID]
            if scores:
                log_prob = scores[number]
                is_usable = log_prob > _DISABLED
            else:
                log_prob = 0.0
                is_usable = len(pieces) > 1  # an empty translation may come from a model that computes NaN: score it
            is_scored = is_whole and len(request.prefix) == self.tokenizer.num_forced and is_usable
            hypotheses.setdefault(tuple(ids), log_prob if is_scored else None)
        return hypotheses


def _open_runtime(path: Path, device: str, precision: str | None, num_workers: int, num_threads: int) -> Any:
    """Opens the model in CTranslate2, on a CPU with this number of threads for each worker."""
    kind, _, index = device.partition(":")
    try:
        translator = library().Translator(
            os.fsencode(path),
            kind,
            device_index=int(index or 0),
            compute_type="default" if precision is None else COMPUTE_TYPES[precision],
            inter_threads=num_workers,
            intra_threads=num_threads,
        )
        if kind == "cuda":  # CTranslate2 loads cuBLAS only now
            translator.translate_batch([["</s>"]], max_decoding_length=1)
    except ValueError as error:
        raise UsageError(
            f"device {device}, precision {precision or 'default'}: CTranslate2: {' '.join(str(error).split())}"
        ) from None
    except RuntimeError as error:
        raise MtxError(
            f"{path}: CTranslate2 cannot load it: {' '.join(str(error).split())}",
            _CUBLAS_HELP if "cublas" in str(error) else None,
        ) from None
    return translator
