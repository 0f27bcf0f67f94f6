"""What a search would take is estimated from sizes and options, and refused by the option that asks for too much."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mtx.config.limits import MAX_BEAM_SIZE
from mtx.decoding.memory_check import ORDINARY, check_beam, check_memory, search_bytes
from mtx.decoding.options import Sampling, SearchOptions
from mtx.decoding.torch_engine import TorchTranslator
from mtx.errors import UsageError
from tests.exports import small_tokenizer
from tests.models import tiny_config, tiny_model

GB = 10**9


@dataclass
class Engine:
    """A search takes 100 MB for each beam and sample, 1 MB for each token of its maximum length, and 1 KB for each
    token of a batch."""

    options: SearchOptions
    batch_tokens: int = 4096
    available: int | None = 4 * GB

    def bytes_needed(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> int:
        sampling = self.options.sampling
        hypotheses = self.options.beam_size if sampling is None else sampling.num_samples
        return 10**8 * hypotheses + 10**6 * (self.options.max_length or 0) + 1000 * self.batch_tokens

    def bytes_available(self) -> int | None:
        return self.available


def message(engine: Engine) -> tuple[str, str | None]:
    with pytest.raises(UsageError) as caught:
        check_memory(engine, [[1, 0]], [[]])
    return str(caught.value), caught.value.help


def test_the_option_is_named_with_what_it_needs_and_a_value_that_fits() -> None:
    free = "of memory here, and 4.0 GB are free"
    assert message(Engine(SearchOptions(10_000))) == (f"--beam 10000 needs 1,000.0 GB {free}", "--beam 19")
    sampling = SearchOptions(sampling=Sampling(10**8))
    assert message(Engine(sampling)) == (f"--n-best {10**8} needs 10,000,000.0 GB {free}", "--n-best 19")
    mbr = SearchOptions(sampling=Sampling(10**8, mbr=True))
    assert message(Engine(mbr)) == (f"--mbr {10**8} needs 10,000,000.0 GB {free}", "--mbr 64")
    long = SearchOptions(1, max_length=10**30)
    assert message(Engine(long))[1] == "--max-length 1895"
    assert message(Engine(SearchOptions(1), batch_tokens=10**7))[1] == f"--batch-tokens {19 * 10**5}"


def test_of_several_large_options_the_one_that_is_to_blame_is_named() -> None:
    error, help = message(Engine(SearchOptions(20, max_length=10**6)))
    assert error.startswith("--max-length 1000000 needs 1,002.0 GB") and help == "--max-length 500", "2 GB are half"
    error, help = message(Engine(SearchOptions(10_000, max_length=10**6), batch_tokens=10**4))
    assert error.startswith("--beam 10000 --max-length 1000000 --batch-tokens 10000 needs 2,000.0 GB")
    assert help == "--beam 10 --max-length 500 --batch-tokens 8192"


def test_what_fits_or_is_ordinary_is_not_refused() -> None:
    ordinary = SearchOptions(ORDINARY["--beam"], max_length=ORDINARY["--max-length"])
    engines = [
        Engine(ordinary, ORDINARY["--batch-tokens"], available=0), Engine(SearchOptions(39)),
        Engine(SearchOptions(11, max_length=1), available=0, batch_tokens=-1000 * 1000),  # 101 MB
        Engine(SearchOptions(10_000), available=None), Engine(SearchOptions(sampling=Sampling(10)), available=0),
    ]  # fmt: skip
    for engine in engines:
        check_memory(engine, [[1, 0]], [[]])


def test_a_beam_is_no_larger_than_the_vocabulary() -> None:
    check_beam("--beam", 300, 300)
    with pytest.raises(UsageError, match="^--beam 301 is more than the 300 tokens of the vocabulary$") as caught:
        check_beam("--beam", 301, 300)
    assert caught.value.help == "--beam 10"
    check_beam("--beam", MAX_BEAM_SIZE, 32_000)
    with pytest.raises(UsageError, match="^decoding.beam_size 10000 is more than 1,000, the largest beam$") as caught:
        check_beam("decoding.beam_size", 10_000, 32_000)
    assert caught.value.help == "decoding.beam_size=10"


def test_what_the_first_steps_take() -> None:
    config = tiny_config(num_decoder_layers=3, d_model=16, num_heads=4)
    keys_values = 2 * 3 * 5 * 12 * 16 * 2
    assert search_bytes(config, 100, rows=5, steps=12, value_bytes=2, num_looked_at=0) == keys_values + 3 * 5 * 100 * 4
    mask = 5 * 9000 * 2
    assert search_bytes(config, 100, rows=5, steps=12, value_bytes=2, num_looked_at=9000) == keys_values + 9 * mask


@pytest.fixture(scope="module")
def translator() -> TorchTranslator:
    tokenizer = small_tokenizer()
    return TorchTranslator(
        tiny_model(tokenizer.num_ids, dtype=torch.float32), tokenizer, 24, SearchOptions(2), threads=1
    )


def needed(
    translator: TorchTranslator, lengths: Sequence[int], threads: int = 1, batch_tokens: int = 4096, **to: Any
) -> int:
    changed = TorchTranslator(
        translator.model, translator.tokenizer, 24, SearchOptions(**to), threads=threads, batch_tokens=batch_tokens
    )
    return changed.bytes_needed([[1] * (n - 1) + [0] for n in lengths], [[] for _ in lengths])


def test_what_the_torch_engine_needs_grows_with_its_options(translator: TorchTranslator) -> None:
    one = needed(translator, [20], beam_size=100)
    rows, size = 100, len(translator.model.output_weight)
    keys_values, mask = 2 * 2 * rows * 12 * 16 * 4, rows * 1200 * 4
    sources, history, table = 2 * 2 * 20 * 16 * 4, 8 * rows * 70, 16 * 16 * 70
    first_steps = keys_values + mask + max(2 * 4 * mask, 12 * rows * size)
    assert one == first_steps + sources + history + table + 100 * 1000
    assert needed(translator, [20] * 64, beam_size=100) > 60 * one, "64 slots"
    assert needed(translator, [20] * 64, beam_size=100, batch_tokens=20) < 10 * one, "one slot and 64 results"
    assert needed(translator, [20] * 256, 2, beam_size=100) > 1.9 * needed(translator, [20] * 64, beam_size=100)
    assert needed(translator, [20], beam_size=1, max_length=10**9) > 16 * 16 * 10**9
    assert needed(translator, [20] * 3, sampling=Sampling(10**9)) > 3 * 1000 * 10**9, "no job for each sample is made"
    assert needed(translator, []) == 0


def test_a_translator_that_is_checked_refuses(translator: TorchTranslator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtx.decoding.memory_check._NEVER_REFUSED", 1)
    monkeypatch.setattr("mtx.run.system_memory.available_bytes", lambda: 10**6)
    sampler = TorchTranslator(translator.model, translator.tokenizer, 24, SearchOptions(1, sampling=Sampling(2000)))
    assert len(sampler.hypotheses(["ab"])[0]) == 2000
    sampler.is_checked = True
    with pytest.raises(UsageError, match="--n-best 2000 needs 2 MB of memory here, and 1 MB are free"):
        sampler.hypotheses(["ab"])
