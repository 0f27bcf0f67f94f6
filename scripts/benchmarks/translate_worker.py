"""The work of one process of `translate.py`: it loads one system, translates and measures.

A system translates lines of text to lines of text. The other systems run the model that mtx exported, called as their
users call them. Large packages are imported only when the system needs them, so load time and memory are its own.
"""

import ctypes
import json
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.decoding import options as search_options
from mtx.decoding.options import EXTRA_LENGTH, SearchOptions
from scripts.benchmarks.machine import peak_host_memory
from scripts.benchmarks.translate_job import Job

BEAMS = {"greedy": 1, "beam4": 4}
NUM_LATENCIES = 100  # sentences, with one call each
NUM_SAME = 20  # calls with the sentence of about 25 tokens
NUM_WARM_UP = 5
WARM_UP_LINES = 128  # on a CPU; on CUDA the warm-up has all lines


@dataclass(frozen=True)
class Translation:
    """A translated line, and the number of tokens that the model wrote for it, `</s>` included."""

    text: str
    num_tokens: int


Translate = Callable[[Sequence[str], int], list[Translation]]  # lines and a beam size


def work(job: Job, started: float) -> dict[str, Any]:
    """Does a job.

    Args:
        started: when the process started, on the performance counter.

    Returns:
        `load_s`, the time from the start of the process until its first line is translated, and the figures by mode.
    """
    memory = _DeviceMemory(job.device) if job.device.startswith("cuda") else None
    text = json.loads(Path(job.text).read_text(encoding="utf-8"))
    lines = text["lines"]
    modes = [mode for mode in BEAMS if mode in (*job.throughput, *job.latency)]
    translate = _load(job)
    translate(lines[:1], BEAMS[modes[0]])
    answer: dict[str, Any] = {"load_s": time.perf_counter() - started}
    for mode in modes:  # greedy first, so that its peak memory does not include that of beam search
        figures = _throughput(translate, lines, BEAMS[mode], memory is None) if mode in job.throughput else {}
        if mode in job.latency:
            figures |= _latency(translate, lines[:NUM_LATENCIES], text["line_of_25"], BEAMS[mode])
        answer[mode] = figures | {"memory_mb": (memory.peak() if memory else peak_host_memory()) / 1e6}
    return answer


def _throughput(translate: Translate, lines: list[str], beam_size: int, on_cpu: bool) -> dict[str, Any]:
    translate(lines[:WARM_UP_LINES] if on_cpu else lines, beam_size)
    _synchronize()
    begun = time.perf_counter()
    translations = translate(lines, beam_size)
    _synchronize()
    seconds = time.perf_counter() - begun
    return {
        "seconds": seconds,
        "sentences_per_s": len(lines) / seconds,
        "target_tokens_per_s": sum(translation.num_tokens for translation in translations) / seconds,
        "translations": [translation.text for translation in translations],
    }


def _latency(translate: Translate, lines: list[str], line_of_25: str, beam_size: int) -> dict[str, float]:
    times = sorted(_calls(translate, lines, beam_size))
    times_of_25 = sorted(_calls(translate, [line_of_25] * NUM_SAME, beam_size))
    return {
        "latency_ms": times[len(times) // 2],
        "latency_p95_ms": times[min(len(times) - 1, round(0.95 * len(times)))],
        "latency_25_tokens_ms": times_of_25[len(times_of_25) // 2],
    }


def _calls(translate: Translate, lines: Sequence[str], beam_size: int) -> Iterator[float]:
    """Yields the milliseconds of a call for each line, after some warm-up calls."""
    for number, line in enumerate([*lines[:NUM_WARM_UP], *lines]):
        _synchronize()
        begun = time.perf_counter()
        translate([line], beam_size)
        _synchronize()
        if number >= min(NUM_WARM_UP, len(lines)):
            yield 1e3 * (time.perf_counter() - begun)


# The systems


def _load(job: Job) -> Translate:
    if job.system == "transformers":
        return _transformers(job)
    return _mtx(job) if job.system.startswith("mtx-") else _ctranslate2(job)


def limit_to_source_length() -> None:
    """Limits translations to the length of their sources, which a model that never writes `</s>` reaches."""
    search_options.EXTRA_LENGTH = 0


def _mtx(job: Job) -> Translate:
    """Returns mtx's translator, loaded as `mtx translate` and users' own programs do."""
    from mtx.commands.translator_options import load_translator

    _, engine, precision = job.system.split("-")
    place = {"device": job.device, "precision": precision, "threads": job.setting.threads, "engine": engine}
    translator = load_translator(job.model, split_sentences=False, **place)
    if job.is_random:
        limit_to_source_length()

    def translate(lines: Sequence[str], beam_size: int) -> list[Translation]:
        translator.options = SearchOptions(beam_size, job.length_penalty, has_scores=False)  # as `mtx translate` does
        best = [hypotheses[0] for hypotheses in translator.hypotheses(lines)]
        return [Translation(hypothesis.text, len(hypothesis.pieces)) for hypothesis in best]

    return translate


def _ctranslate2(job: Job) -> Translate:
    """Returns plain CTranslate2 and SentencePiece, used as in the example of the export."""
    import ctranslate2
    import sentencepiece

    from mtx.decoding.ctranslate2_engine import COMPUTE_TYPES
    from mtx.decoding.load import cached_export
    from mtx.storage.run_files import TOKENIZER_JSON, TOKENIZER_MODEL, TOKENIZER_SRC_MODEL, TOKENIZER_TGT_MODEL

    precision = job.system.rpartition("-")[2]
    setting = job.setting
    path = cached_export(Path(job.model), precision)
    names = [TOKENIZER_MODEL] * 2 if (path / TOKENIZER_MODEL).is_file() else [TOKENIZER_SRC_MODEL, TOKENIZER_TGT_MODEL]
    src, tgt = (sentencepiece.SentencePieceProcessor(model_file=str(path / name)) for name in names)
    is_nfc = json.loads((path / TOKENIZER_JSON).read_text(encoding="utf-8"))["normalization"] == "nfc"
    kind, _, number = job.device.partition(":")
    runtime = ctranslate2.Translator(
        str(path), kind, device_index=int(number or 0), compute_type=COMPUTE_TYPES[precision],
        inter_threads=setting.workers, intra_threads=setting.threads,
    )  # fmt: skip

    def translate(lines: Sequence[str], beam_size: int) -> list[Translation]:
        pieces = src.encode([unicodedata.normalize("NFC", line) if is_nfc else line for line in lines], out_type=str)
        options = {"beam_size": beam_size, "length_penalty": job.length_penalty, "max_input_length": 0}
        if job.is_random:
            results = _translate_to_source_length(runtime, pieces, job, options)
        else:
            results = runtime.translate_batch(
                pieces, max_batch_size=setting.batch, batch_type=setting.unit, min_decoding_length=0,
                max_decoding_length=max(map(len, pieces)) + EXTRA_LENGTH, **options,
            )  # fmt: skip
        best = [result.hypotheses[0] for result in results]
        texts = tgt.decode(best)
        num_ends = 0 if job.is_random else 1
        return [Translation(text.replace("\n", " "), len(b) + num_ends) for text, b in zip(texts, best, strict=True)]

    return translate


def _translate_to_source_length(runtime: Any, pieces: list[list[str]], job: Job, options: dict[str, Any]) -> list[Any]:
    """Returns translations of a random model, in each batch with as many tokens as its sources have on average."""
    lengths = [len(line) + 1 for line in pieces]
    waiting = []
    for rows in batches(lengths, job.setting.batch, job.setting.unit):
        length = round(sum(lengths[row] for row in rows) / len(rows))
        forced = {"min_decoding_length": length, "max_decoding_length": length}
        waiting.append(
            (rows, runtime.translate_batch([pieces[row] for row in rows], asynchronous=True, **forced, **options))
        )
    by_row = {row: result.result() for rows, results in waiting for row, result in zip(rows, results, strict=True)}
    return [by_row[row] for row in range(len(pieces))]


def _transformers(job: Job) -> Translate:
    """Returns `MarianMTModel.generate` on sentences sorted by length, in bf16 on CUDA."""
    import torch
    import transformers

    torch.set_num_threads(job.setting.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.MarianTokenizer.from_pretrained(job.huggingface)
    model = transformers.MarianMTModel.from_pretrained(job.huggingface).eval()
    model = model.to(job.device, torch.bfloat16 if job.device.startswith("cuda") else torch.float32)
    # This rule costs time at every step and changes nothing, since the export's bias makes pad impossible already.
    model.generation_config.bad_words_ids = None

    def generate(ids: list[list[int]], beam_size: int) -> list[Translation]:
        inputs = tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(job.device)
        options: dict[str, Any] = {"max_new_tokens": max(map(len, ids)) + EXTRA_LENGTH}
        if job.is_random:
            options["max_new_tokens"] = options["min_new_tokens"] = round(sum(map(len, ids)) / len(ids))
        if beam_size > 1:
            options |= {"length_penalty": job.length_penalty, "early_stopping": True}
        with torch.inference_mode():
            output_ids = model.generate(**inputs, num_beams=beam_size, do_sample=False, **options)
        texts = tokenizer.batch_decode(output_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        lengths = (output_ids[:, 1:] != tokenizer.pad_token_id).sum(1).tolist()
        return [Translation(text, length) for text, length in zip(texts, lengths, strict=True)]

    def translate(lines: Sequence[str], beam_size: int) -> list[Translation]:
        ids = tokenizer(list(lines)).input_ids
        translations: dict[int, Translation] = {}
        for rows in batches([len(line) for line in ids], job.setting.batch, job.setting.unit):
            translations.update(zip(rows, generate([ids[row] for row in rows], beam_size), strict=True))
        return [translations[row] for row in range(len(ids))]

    return translate


def batches(lengths: Sequence[int], size: int, unit: str) -> Iterator[list[int]]:
    """Yields batches of rows of similar length, longest first: at most `size` rows, or `size` tokens with padding."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if rows and (len(rows) + 1) * (lengths[rows[0]] if unit == "tokens" else 1) > size:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


# Measuring


def _synchronize() -> None:
    """Waits for the work of torch on CUDA, if torch is in use at all."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class _DeviceMemory:
    """The peak memory of a GPU since the start, less the memory in use at the start. A thread samples it.

    The driver's own count is the same for every library: it includes the context, kernels and free lists. It also
    includes the memory that other programs take meanwhile.
    """

    class _Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self, device: str):
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByIndex_v2", int(device.partition(":")[2] or 0), ctypes.byref(self._handle))
        self._first = self._most = self._used_bytes()
        threading.Thread(target=self._watch, daemon=True).start()

    def peak(self) -> int:
        return max(self._most, self._used_bytes()) - self._first

    def _watch(self) -> None:
        while True:
            self._most = max(self._most, self._used_bytes())
            time.sleep(0.02)

    def _used_bytes(self) -> int:
        memory = self._Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return int(memory.used)

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise OSError(f"{name} failed with code {code}")
