"""The CTranslate2 engine: translates lines with a model that `mtx export --to ctranslate2` wrote. No torch here.

CTranslate2 searches, and mtx then scores and sorts the hypotheses with the paper's length penalty. The best hypothesis
is nearly always the same as that of the torch engine. The other hypotheses may differ, because CTranslate2 searches
until there are beam_size hypotheses, keeps those with the largest plain log-probability, and finishes fewer at the
maximum length.
"""

import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding.options import NO_SCORES, Candidate, Sampling, SearchOptions, check_number, penalty
from mtx.decoding.text_translator import Attention, Splitter, TextTranslator
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.files.shell import install_command, mtx_command
from mtx.files.untrusted import read_untrusted_json
from mtx.model_directory import description
from mtx.run.layout import CTRANSLATE2_CONFIG, CTRANSLATE2_VOCABULARY, CTRANSLATE2_WEIGHTS, EXPORT_CONFIG
from mtx.run.machine import num_cores

_FILES = CTRANSLATE2_WEIGHTS, CTRANSLATE2_CONFIG, CTRANSLATE2_VOCABULARY
# Source tokens of a batch. On the CPU 256 to 1,024 take equal time with 3+3 layers of 256, and 4,096 a fifth more; with
# layers of 128 1,024 take 3% less than 512.
_BATCH_TOKENS = {"cpu": 1024, "cuda": 8192}
# CTranslate2's own length penalty is score / |Y|^this. With 0 it would stop when the first hypothesis is the best one,
# before beam_size have finished. This number is not 0, but |Y|^this is 1 in single precision.
_NO_PENALTY = 1e-9
Precision = Literal["fp32", "fp16", "int8"]
COMPUTE_TYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8"}  # what CTranslate2 calls each precision
_NUM_SEEDS = 1 << 32  # larger seeds wrap around, because CTranslate2 takes 32 bits
_CUBLAS_HELP = (
    "CTranslate2 needs CUDA 12's cuBLAS: pip install nvidia-cublas-cu12 and put its nvidia/cublas/lib into "
    "LD_LIBRARY_PATH; or take the engine torch"
)


def library() -> Any:
    """Imports and returns the module ctranslate2.

    Raises:
        MtxError: CTranslate2 is not installed, or refuses a variable of the environment.
    """
    try:
        import ctranslate2

        ctranslate2.set_log_level(logging.ERROR)  # it would warn that a CPU computes a float16 model in float32
    except ImportError as error:
        raise MtxError(f"CTranslate2 is not installed ({error})", install_command("ctranslate2")) from None
    except ValueError as error:
        names = ", ".join(name for name in sorted(os.environ) if name.startswith("CT2_"))
        raise UsageError(f"CTranslate2 refuses a variable of the environment ({error}): {names}") from None
    return ctranslate2


@dataclass
class _Hypothesis:
    """The token ids of a hypothesis, `</s>` included, and its log-probability; None until it is computed."""

    ids: list[int]
    log_prob: float | None


class CTranslate2Translator(TextTranslator):
    """Translates lines of text with CTranslate2. Safe to call from several threads at once.

    A sample depends on all samples that the same worker of CTranslate2 drew before, and its last bits on the worker's
    number of threads. So one worker of one thread draws them all, and the same seed gives the same samples for the same
    calls in the same order, with any number of threads.

    Args:
        runtime: the `ctranslate2.Translator`.
        num_positions: number of positions of the model, the most tokens that a translation can have.
        threads: number of batches of a call that `runtime`, with as many workers, translates at the same time.
        batch_tokens: number of source tokens of a batch.
        tokenizer, max_tokens, options, src, tgt, splitter: see `TextTranslator`.
    """

    _draws_by_line = False

    def __init__(
        self, runtime: Any, tokenizer: Tokenizer, max_tokens: int, options: SearchOptions, *, num_positions: int,
        threads: int, batch_tokens: int, src: str = "src", tgt: str = "tgt",
        splitter: Splitter | None = None,
    ):  # fmt: skip
        super().__init__(
            tokenizer, max_tokens, options, num_tgt_positions=num_positions, src=src, tgt=tgt, splitter=splitter
        )
        self.runtime, self.num_positions = runtime, num_positions
        self.threads, self.batch_tokens = threads, batch_tokens
        self._pieces = tokenizer.vocabulary()
        self._ids = {piece: token for token, piece in enumerate(self._pieces)}

    @classmethod
    def load(
        cls, directory: str | Path, *, device: str = "auto", threads: int | None = None, beam_size: int | None = None,
        length_penalty: float | None = None, max_length: int | None = None, sampling: Sampling | None = None,
        split_sentences: bool | None = None, precision: Precision | None = None,
    ) -> "CTranslate2Translator":  # fmt: skip
        """Loads a directory that `mtx export --to ctranslate2` wrote.

        Args:
            device: auto, cpu, cuda or cuda:1.
            threads: number of CPU threads; None means all cores that this process may use.
            beam_size, length_penalty: None means the run's configuration.
            split_sentences: see `Translator.load`.
            precision: fp32, fp16 or int8, for the computation; None means that of the directory.

        Raises:
            UsageError: the directory is no export, this machine lacks the device or the precision, or `sampling` has an
                epsilon, which CTranslate2 does not have.
            TypeError, ValueError: another argument is of another type, or out of its range.
            DamagedFileError: a file differs from its manifest or does not fit the model.
        """
        if sampling is not None and sampling.epsilon:
            raise UsageError("CTranslate2 has no epsilon sampling", "take the engine torch, or epsilon 0")
        path = Path(directory)
        if not (path / EXPORT_CONFIG).is_file():
            help = mtx_command("export", path if path.exists() else "MODEL", "--to", "ctranslate2", "-o", "DIR")
            raise UsageError(f"{path}: {'is no CTranslate2 export' if path.exists() else 'no such directory'}", help)
        described = description.read(path, _FILES, name=EXPORT_CONFIG)
        info = described.info
        if read_untrusted_json(path / CTRANSLATE2_VOCABULARY) != described.tokenizer.vocabulary():
            raise DamagedFileError(f"{path / CTRANSLATE2_VOCABULARY}: is not the vocabulary of the tokenizer")
        if not isinstance(info.get("num_positions"), int) or info["num_positions"] < info["max_tokens"]:
            raise DamagedFileError(f"{path / EXPORT_CONFIG}: num_positions: missing or less than max_tokens")
        options = SearchOptions.of_model(info, beam_size, length_penalty, max_length, sampling)
        if threads is not None:
            check_number("threads", threads, 1)
        kind, index = _find_device(device)
        threads = (threads or num_cores()) if kind == "cpu" else 1
        workers = 1 if sampling is not None else threads  # each worker draws by itself, at its own pace
        if sampling is not None:
            library().set_random_seed(sampling.seed % _NUM_SEEDS)
        runtime = _open(path, kind, index, precision, workers)
        translator = cls(
            runtime, described.tokenizer, int(info["max_tokens"]), options, threads=workers,
            num_positions=int(info["num_positions"]), batch_tokens=_BATCH_TOKENS[kind],
            src=str(info["src"]), tgt=str(info["tgt"]),
        )  # fmt: skip
        translator.choose_splitter(split_sentences, info)
        return translator

    def share_workers(self) -> int:
        """See `TextTranslator.share_workers`."""
        num_workers, self.threads = self.threads, 1
        return num_workers

    def decode(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> list[list[Candidate]]:
        """See `TextTranslator.decode`.

        A batch is searched with the largest limit of its sentences. Sentences with a smaller limit whose hypotheses
        reach it are searched again, in batches of one limit.
        """
        asked = (self.options.limit(source, prefix) for source, prefix in zip(sources, prefixes, strict=True))
        limits = [min(limit, self.num_positions) for limit in asked]
        rows = range(len(sources))
        batches = list(self._batches(rows, sources, prefixes))
        results = self._translate(batches, sources, prefixes, limits)
        if self.options.beam_size > 1 and self.options.sampling is None:
            longest = {row: most for batch in batches for most in [max(limits[r] for r in batch)] for row in batch}
            shorter = [row for row in rows if limits[row] < longest[row]]
            too_long = [row for row in shorter if max(map(len, results[row][0])) >= limits[row]]
            same_limit = [
                [row for row in too_long if limits[row] == limit] for limit in {limits[row] for row in too_long}
            ]
            again = (batch for some in same_limit for batch in self._batches(some, sources, prefixes))
            results |= self._translate(again, sources, prefixes, limits)
        hypotheses = [self._hypotheses(*results[row], prefixes[row], limits[row]) for row in rows]
        self._score(sources, hypotheses)
        return [self._candidates(row_hypotheses) for row_hypotheses in hypotheses]

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        """See `TextTranslator.cross_attention`: CTranslate2 gives it for the translation that it is made to write."""
        if not sources:
            return []
        results = self.runtime.translate_batch(
            [self._text(source[:-1]) for source in sources], [self._text(target[:-1]) or None for target in targets],
            beam_size=1, max_decoding_length=max(map(len, targets)), max_input_length=0, return_attention=True,
            max_batch_size=self.batch_tokens, batch_type="tokens",
        )  # fmt: skip
        rows = (result.attention[0][: len(target) - 1] for result, target in zip(results, targets, strict=True))
        return [
            np.array(row, np.float32) if row else np.empty((0, len(source)), np.float32)
            for row, source in zip(rows, sources, strict=True)
        ]

    def _translate(
        self, batches: Iterable[list[int]], sources: Sequence[list[int]], prefixes: Sequence[list[int]],
        limits: list[int],
    ) -> dict[int, tuple[list[list[str]], list[float]]]:  # fmt: skip
        """Returns CTranslate2's hypotheses, as pieces, and their scores for each row of the batches."""
        started = [(rows, self._start(rows, sources, prefixes, limits)) for rows in batches]
        waiting = ((row, result) for rows, results in started for row, result in zip(rows, results, strict=True))
        results = ((row, result.result()) for row, result in waiting)
        return {row: (result.hypotheses, result.scores) for row, result in results}  # each time they are read is a copy

    def _batches(
        self, rows: Sequence[int], sources: Sequence[list[int]], prefixes: Sequence[list[int]]
    ) -> Iterator[list[int]]:
        """Yields these rows in batches of similar length, longest first, and enough batches for all threads.

        Rows with a prefix (tokens that the translation must begin with) get their own batches: CTranslate2 would search
        the other rows of a batch differently if one had a prefix.
        """
        max_tokens = min(self.batch_tokens, -(-sum(len(sources[row]) for row in rows) // self.threads))
        batch: list[int] = []
        for row in sorted(rows, key=lambda i: (bool(prefixes[i]), -len(sources[i]))):
            is_full = batch and len(sources[batch[0]]) * (len(batch) + 1) > max_tokens
            if is_full or (batch and bool(prefixes[row]) != bool(prefixes[batch[0]])):
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _start(
        self, rows: list[int], sources: Sequence[list[int]], prefixes: Sequence[list[int]], limits: list[int]
    ) -> Any:
        """Starts the translation of one batch; returns results that can be waited for."""
        sampling = self.options.sampling
        search: dict[str, Any] = {"beam_size": self.options.beam_size, "num_hypotheses": self.options.beam_size}
        if sampling is not None:
            num_samples = 1 if sampling.top_k == 1 else sampling.num_samples  # CTranslate2 refuses equal samples
            search = {
                "beam_size": 1, "num_hypotheses": num_samples,
                "sampling_topk": sampling.top_k if sampling.top_k < self.tokenizer.num_ids else 0,  # 0 means all
                "sampling_topp": sampling.top_p, "sampling_temperature": sampling.temperature,
            }  # fmt: skip
        return self.runtime.translate_batch(
            [self._text(sources[row][:-1]) for row in rows],
            [self._text(prefixes[row]) or None for row in rows] if any(prefixes[row] for row in rows) else None,
            max_decoding_length=max(1, max(limits[row] for row in rows) - 1),  # the last token is `</s>`
            min_decoding_length=0, max_input_length=0, length_penalty=_NO_PENALTY, return_scores=True,
            return_end_token=True, asynchronous=True, **search,
        )  # fmt: skip

    def _text(self, ids: list[int]) -> list[str]:
        return [self._pieces[token] for token in ids]

    def _hypotheses(
        self, found: list[list[str]], scores: list[float], prefix: list[int], limit: int
    ) -> list[_Hypothesis]:
        """Returns the hypotheses of one source, cut to the limit, each with `</s>` at its end.

        CTranslate2's scores leave out the prefix, and the end of a hypothesis that it cut; `_score` computes those.
        """
        if not any(map(math.isfinite, scores)):
            raise MtxError(NO_SCORES)
        hypotheses: list[_Hypothesis] = []
        for pieces, score in zip(found, scores, strict=True):
            ids = list(map(self._ids.__getitem__, pieces))
            is_whole = ids[-1:] == [EOS_ID] and len(ids) <= limit
            if not is_whole:
                ids = [*ids[: limit - 1], EOS_ID]
            if self.options.sampling is not None or all(ids != hypothesis.ids for hypothesis in hypotheses):
                hypotheses.append(_Hypothesis(ids, score if is_whole and not prefix else None))
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
            max_batch_size=min(self.batch_tokens, share), batch_type="tokens", max_input_length=0,
        )  # fmt: skip
        for (_, hypothesis), result in zip(missing, results, strict=True):
            hypothesis.log_prob = sum(result.log_probs)

    def _candidates(self, hypotheses: list[_Hypothesis]) -> list[Candidate]:
        """Returns hypotheses with mtx's scores, best first; samples stay in the order of drawing."""
        alpha = self.options.length_penalty
        candidates = [Candidate(h.ids, (h.log_prob or 0.0) / penalty(len(h.ids), alpha)) for h in hypotheses]
        if self.options.sampling is None:
            return sorted(candidates, key=lambda c: -c.score)
        return candidates * (self.options.sampling.num_samples // len(candidates))


def _find_device(name: str) -> tuple[str, int]:
    """Returns cpu or cuda, and its index, for `auto`, `cpu`, `cuda` or `cuda:1`; nothing falls back silently."""
    count = library().get_cuda_device_count()
    name = str(name)  # None too is answered below
    if name == "auto":
        return ("cuda" if count else "cpu"), 0
    kind, _, number = name.partition(":")
    if kind == "cpu" and not number:
        return kind, 0
    if kind != "cuda" or not re.fullmatch("[0-9]*", number):
        raise UsageError(f"device {name}: CTranslate2 knows auto, cpu, cuda and cuda:1")
    if int(number or 0) >= count:
        raise UsageError(f"device {name}: CTranslate2 finds {count} CUDA devices here", "--device cpu, or auto")
    return kind, int(number or 0)


def _open(path: Path, kind: str, index: int, precision: str | None, workers: int) -> Any:
    """Opens the model in CTranslate2, on a CPU with one thread for each worker."""
    if precision is not None and precision not in COMPUTE_TYPES:
        raise UsageError(f"precision {precision}: the engine ctranslate2 has {', '.join(COMPUTE_TYPES)}")
    runtime = library()
    try:
        translator = runtime.Translator(
            os.fsencode(path), kind, device_index=index,
            compute_type="default" if precision is None else COMPUTE_TYPES[precision],
            inter_threads=workers, intra_threads=1,
        )  # fmt: skip
        if kind == "cuda":  # CTranslate2 loads cuBLAS only now
            translator.translate_batch([["</s>"]], max_decoding_length=1)
    except ValueError as error:
        raise UsageError(f"precision {precision}: {' '.join(str(error).split())}") from None
    except RuntimeError as error:
        help = _CUBLAS_HELP if "cublas" in str(error) else None
        raise MtxError(f"{path}: CTranslate2 cannot load it: {' '.join(str(error).split())}", help) from None
    return translator
