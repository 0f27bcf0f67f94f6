"""The CTranslate2 engine gives the translations and scores of the torch engine, and does not import torch."""

import contextlib
import copy
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding import ctranslate2_engine
from mtx.decoding.ctranslate2_engine import CTranslate2Engine
from mtx.decoding.ctranslate2_writer import write_ctranslate2
from mtx.decoding.options import Placement, Sampling, SearchOptions, new_requests, penalty
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, DataError, MtxError, UsageError
from mtx.storage import streams
from tests.exports import VARIANTS, lively_bundle, small_tokenizer
from tests.models import random_ids
from tests.translators import search

pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture(scope="module")
def exports(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each variant: `model-0` and its export `export-0`, and so on."""
    root = tmp_path_factory.mktemp("exports")
    for number, changes in enumerate(VARIANTS):
        write_ctranslate2(
            lively_bundle(tokenizer, root / f"model-{number}", **changes), root / f"export-{number}", "fp32"
        )
    return root


def sources(tokenizer: Tokenizer, count: int = 60, seed: int = 1) -> list[list[int]]:
    lengths = np.random.default_rng(seed).integers(2, 20, count).tolist()
    return random_ids(lengths, tokenizer.num_ids, seed)


@pytest.mark.seconds
@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_it_finds_what_our_search_finds(
    tokenizer: Tokenizer, exports: Path, number: int, beam_size: int, alpha: float
) -> None:
    how: dict[str, Any] = {"beam_size": beam_size, "length_penalty": alpha, "threads": 1}
    src = sources(tokenizer)
    for max_length in (12, None):
        ours = Translator.load(exports / f"model-{number}", engine="torch", **how, max_length=max_length)
        theirs = Translator.load(exports / f"export-{number}", **how, max_length=max_length)
        best = [[found[0] for found in search(t, src)] for t in (ours, theirs)]
        assert [candidate.ids for candidate in best[1]] == [candidate.ids for candidate in best[0]]
        np.testing.assert_allclose([c.score for c in best[1]], [c.score for c in best[0]], rtol=0, atol=1e-4)
        assert len({tuple(candidate.ids) for candidate in best[0]}) >= 5


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_its_attention_is_ours(tokenizer: Tokenizer, exports: Path, number: int) -> None:
    ours = Translator.load(exports / f"model-{number}", engine="torch", threads=1)
    theirs = Translator.load(exports / f"export-{number}", threads=1)
    text = [ids for ids in sources(tokenizer) if max(ids) < tokenizer.num_pieces]
    src, tgt = [*text[:20], text[0]], [*text[20:40], [EOS_ID]]
    maps = [translator.engine.cross_attention(src, tgt) for translator in (ours, theirs)]
    assert [len(translator.engine.cross_attention([], [])) for translator in (ours, theirs)] == [0, 0]
    for one, other, src_ids, tgt_ids in zip(*maps, src, tgt, strict=True):
        assert len(one) == len(tgt_ids) and len(other) in (len(tgt_ids) - 1, len(tgt_ids))
        np.testing.assert_allclose(one.sum(1), 1, rtol=1e-5)
        width = min(one.shape[1], other.shape[1], len(src_ids)) if other.size else 0
        np.testing.assert_allclose(one[: len(other), :width], other[:, :width], atol=1e-4)


def test_hypotheses_are_whole_different_and_in_order(tokenizer: Tokenizer, exports: Path) -> None:
    src, alpha = sources(tokenizer), 1.0
    for number in range(len(VARIANTS)):
        theirs = Translator.load(exports / f"export-{number}", max_length=9, length_penalty=alpha)
        for source, found in zip(src, search(theirs, src), strict=True):
            assert all(c.ids.index(EOS_ID) == len(c.ids) - 1 < 9 for c in found)
            assert len({tuple(c.ids) for c in found}) == len(found) and 1 <= len(found) <= 4
            assert [c.score for c in found] == sorted((c.score for c in found), reverse=True)
            pieces = [tokenizer.pieces(found[-1].ids[:-1])], [tokenizer.pieces(source[:-1])]
            forced = sum(theirs.engine.runtime.score_batch(pieces[1], pieces[0])[0].log_probs)
            assert found[-1].score == pytest.approx(forced / penalty(len(found[-1].ids), alpha), abs=1e-4)


@pytest.mark.parametrize("has_scores", [True, False])
def test_a_model_without_numbers_as_scores_is_refused(tokenizer: Tokenizer, tmp_path: Path, has_scores: bool) -> None:
    bundle = lively_bundle(tokenizer, tmp_path / "model")
    for weight in bundle.model.state_dict().values():
        weight.mul_(1e12)
    write_ctranslate2(bundle, tmp_path / "export", "fp32")
    with pytest.raises(MtxError, match="no numbers as scores"):
        search(Translator.load(tmp_path / "export", beam_size=1, has_scores=has_scores), sources(tokenizer))


def test_an_empty_translation_is_possible(tokenizer: Tokenizer, exports: Path) -> None:
    src = sources(tokenizer)
    short = [search(Translator.load(exports / "export-0", max_length=n), src) for n in (1, 12)]
    assert all([c.ids for c in found] == [[EOS_ID]] for found in short[0])
    assert any(found[0].ids == [EOS_ID] for found in short[1])


@pytest.mark.parametrize("number, beam_size", [(0, 1), (0, 4), (2, 4)])
def test_prefixes_are_begun_with_and_scored(tokenizer: Tokenizer, exports: Path, number: int, beam_size: int) -> None:
    src = sources(tokenizer, 50)
    prefixes = [ids[:-1] for ids in random_ids([1, 2, 3, 5, 1] * 10, tokenizer.num_ids, 9)]
    how: dict[str, Any] = {"beam_size": beam_size, "max_length": 12, "threads": 1}
    ours = search(Translator.load(exports / f"model-{number}", engine="torch", **how), src, prefixes)
    theirs = search(Translator.load(exports / f"export-{number}", **how), src, prefixes)
    assert all(found[0].ids[: len(prefix)] == prefix for prefix, found in zip(prefixes, theirs, strict=True))
    same = [(a[0], b[0]) for a, b in zip(ours, theirs, strict=True) if a[0].ids == b[0].ids]
    assert len(same) >= 48  # two beams end otherwise at the maximum length
    np.testing.assert_allclose([b.score for _, b in same], [a.score for a, _ in same], rtol=0, atol=1e-4)


def test_a_prefix_longer_than_the_limit_is_all_there_is(tokenizer: Tokenizer, exports: Path) -> None:
    prefix = [5, 6, 7, 8]
    found = search(Translator.load(exports / "export-2", max_length=2), [[9, EOS_ID]], [prefix])
    assert [candidate.ids for candidate in found[0]] == [[*prefix, EOS_ID]]


def test_lines_are_what_they_are_in_any_company_and_thread(exports: Path) -> None:
    lines = ["ab cde", "", "fgü a", "cab " * 60, "x\u2028y", "gab fad"]
    translator = Translator.load(exports / "export-0", threads=2, max_length=12)
    out = translator.translate(lines)
    assert out == Translator.load(exports / "model-0", engine="torch", max_length=12).translate(lines)
    assert [translator.translate([line])[0] for line in lines] == out
    found: list[list[str]] = [[] for _ in range(3)]
    threads = [threading.Thread(target=lambda i=i: found[i].extend(translator.translate(lines))) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [out] * 3


def test_a_long_search_shows_how_far_it_is(
    exports: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "LINE_EVERY_S", 0.0)
    caplog.set_level(logging.INFO, "mtx")
    Translator.load(exports / "export-0", threads=1).translate(["ab cde", "fgü a", "x", "gab fad"])
    assert [text.partition(",")[0] for text in caplog.messages] == [f"translating: {n} of 4 sentences" for n in (2, 3)]


def test_progress_does_not_wait_until_all_batches_are_in_the_queue(
    exports: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = CTranslate2Engine(exports / "export-0", Placement(device="cpu", threads=1))
    engine.batch_tokens = 1  # a batch for each sentence, many more than the queue of CTranslate2 takes
    events = list[str]()
    start = engine._start

    def started(*arguments: Any) -> Any:
        events.append("started")
        return start(*arguments)

    @contextlib.contextmanager
    def progress(*_: Any) -> Iterator[Any]:
        yield lambda number: events.append("finished")

    monkeypatch.setattr(engine, "_start", started)
    monkeypatch.setattr(ctranslate2_engine, "progress", progress)
    engine.search(sources(tokenizer, 200), [[] for _ in range(200)], SearchOptions(4, 0.6))
    assert events.count("finished") == 200
    assert "finished" in events[: events.count("started") // 2]


def test_work_is_shared_among_workers(exports: Path) -> None:
    engine = CTranslate2Engine(exports / "export-0", Placement(device="cpu", threads=4))
    assert engine.num_calls == 4

    def batches(lengths: list[int], num_workers: int = 4) -> list[list[int]]:
        sources = [[2] * length for length in lengths]
        requests = new_requests(sources, [[]] * len(lengths), SearchOptions(), 512)
        return [[request.number for request in batch] for batch in engine._batches(requests, num_workers)]

    few = batches([3, 9, 4, 8, 3, 9, 4, 8])
    assert len(few) >= 4 and sorted(sum(few, [])) == list(range(8))
    assert len(batches([10] * 1000)) >= 10_000 / engine.batch_tokens
    assert len(batches([1] * 8, 1)) == 1


@pytest.mark.seconds
def test_a_sentence_that_waits_alone_has_all_cores(
    tokenizer: Tokenizer, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = CTranslate2Engine(exports / "export-0", Placement(device="cpu", threads=2))
    src, options = sources(tokenizer), SearchOptions().with_model_defaults(engine.info)
    opened, open_runtime = list[tuple[int, int]](), engine._open_runtime
    engine._open_runtime = lambda *how: opened.append(how) or open_runtime(*how)  # type: ignore[func-returns-value]
    together = engine.search(src, [[]] * len(src), options)
    monkeypatch.setattr(ctranslate2_engine, "num_idle_cores", lambda: 1)
    engine.search(src[:1], [[]], options)
    assert not opened, "a batch, and a busy machine, do without a second copy of the weights"
    monkeypatch.setattr(ctranslate2_engine, "num_idle_cores", lambda: 2)
    alone = [engine.search([source], [[]], options)[0] for source in src]
    assert opened == [(1, 2)]
    assert [[c.ids for c in found] for found in alone] == [[c.ids for c in found] for found in together]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose([c.score for c in one], [c.score for c in other], rtol=0, atol=1e-4)
    engine._runtimes = [SimpleNamespace(num_active_batches=1)]
    assert engine.search(src[:1], [[]], options)[0][0].ids == together[0][0].ids
    assert opened == [(1, 2)], "beside another call it has one worker"


def test_first_requests_at_once_open_one_more_copy_of_the_weights(
    tokenizer: Tokenizer, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = CTranslate2Engine(exports / "export-0", Placement(device="cpu", threads=2))
    [source], options = sources(tokenizer, 1), SearchOptions().with_model_defaults(engine.info)
    opened, open_runtime = list[tuple[int, int]](), engine._open_runtime
    begin = threading.Barrier(6)

    def open_slowly(*how: int) -> Any:
        opened.append(how)
        time.sleep(0.2)
        return open_runtime(*how)

    def request(_: int) -> list[int]:
        begin.wait()
        return engine.search([source], [[]], options)[0][0].ids

    engine._open_runtime = open_slowly  # type: ignore[assignment]
    monkeypatch.setattr(ctranslate2_engine, "num_idle_cores", lambda: 2)
    with ThreadPoolExecutor(begin.parties) as pool:
        found = list(pool.map(request, range(begin.parties)))
    assert opened == [(1, 2)] and len(engine._runtimes) == 2
    assert found == [found[0]] * begin.parties


def test_threads_share_one_model_for_torch(exports: Path) -> None:
    translator = Translator.load(exports / "model-0", engine="ctranslate2", threads=1)
    opened, load_torch = list[int](), translator._load_torch
    begin = threading.Barrier(4)

    @cache
    def load_slowly() -> Any:
        opened.append(1)
        time.sleep(0.2)
        assert load_torch
        return load_torch()

    def use(view: Translator) -> Any:
        begin.wait()
        return vars(Translator)["torch"].func(view)  # before Python 3.12, cached_property has a lock of its own

    translator._load_torch = load_slowly
    with ThreadPoolExecutor(begin.parties) as pool:
        engines = list(pool.map(use, [copy.copy(translator) for _ in range(begin.parties)]))
    assert opened == [1] and engines == [engines[0]] * begin.parties


def test_it_does_not_import_torch(exports: Path) -> None:
    code = (
        "import sys; from mtx import Translator;"
        "print(Translator.load(sys.argv[1]).translate(['ab']), 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(exports / "export-0")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.endswith("] False\n"), result.stderr


def test_other_directories_devices_and_damaged_files_are_refused(exports: Path, tmp_path: Path) -> None:
    def refused(error: type[Exception], match: str, directory: Path, **how: Any) -> None:
        with pytest.raises(error, match=match):
            Translator.load(directory, **how)

    refused(UsageError, "not a model directory", tmp_path)
    refused(UsageError, "device mps", exports / "export-0", device="mps")
    refused(MtxError, "cannot load|cuda:99", exports / "export-0", device="cuda:99")
    refused(UsageError, "precision bfloat1", exports / "export-0", precision="bfloat1")
    refused(ValueError, "threads=0: expected", exports / "export-0", threads=0)
    refused(ValueError, "beam_size=0: expected", exports / "export-0", beam_size=0)
    refused(UsageError, "device None", exports / "export-0", device=None)
    refused(UsageError, "nope: no such model directory", Path("nope"))
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in (exports / "export-0").iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    weights = bytearray((broken / "model.bin").read_bytes())
    weights[-9] ^= 1
    (broken / "model.bin").write_bytes(weights)
    refused(DamagedFileError, "model.bin", broken)


def test_nothing_goes_beyond_the_positions(exports: Path) -> None:
    translator = Translator.load(exports / "export-1", max_length=5000, threads=1)
    assert len(search(translator, [[5, 6, EOS_ID]])[0][0].ids) == 512
    ids = translator.tokenizer.encode(["ab " * 1000])[0]
    longest, longer = (translator.tokenizer.decode([ids[:count]])[0] for count in (511, 512))
    assert translator.hypotheses(["ab"], [longest])[0][0].text == longest
    with pytest.raises(DataError, match=r"^prefix 'ab .*' … has 513 subwords, the model supports 512$"):
        translator.hypotheses(["ab"], [longer])


def test_it_draws_no_samples(exports: Path) -> None:
    with pytest.raises(UsageError, match="^only the engine torch supports random sampling$"):
        Translator.load(exports / "export-2", sampling=Sampling())


def test_a_gpu_without_the_cublas_of_ctranslate2_is_told_at_the_start(
    exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CTranslate2 loads cuBLAS with its first product, so that once the first translation ended with a traceback."""

    class Runtime:
        def translate_batch(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("Library libcublas.so.12 is not found or cannot be loaded")

    library = type("Library", (), {"Translator": lambda *_, **__: Runtime(), "get_cuda_device_count": lambda: 1})
    monkeypatch.setattr(ctranslate2_engine, "library", lambda: library)
    with pytest.raises(MtxError, match="libcublas.so.12 is not found") as caught:
        Translator.load(exports / "export-0", device="cuda")
    assert "pip install nvidia-cublas-cu12" in (caught.value.help or "")
