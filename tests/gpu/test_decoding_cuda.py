"""Decoding on CUDA, with recorded steps and a host that lags behind, gives the translations of the CPU."""

import random
from typing import Any

import pytest
import torch

from mtx.decoding import beam_search
from mtx.decoding.beam_search import Request, RequestQueue, Slots, find_reduction, search
from mtx.decoding.options import Sampling, SearchOptions
from mtx.model.inference import IncrementalModel
from tests.models import random_ids, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
NUM_IDS = 3000  # large enough for the search by groups in `top_continuations`


def found(device: str, precision: str, options: SearchOptions, num_slots: int, prefix: list[int]) -> list[Any]:
    model = tiny_model(NUM_IDS, seed=4, dtype=torch.float32, output_bias=True, d_model=64, d_ff=128)
    with torch.no_grad():
        assert model.output_bias is not None
        model.output_bias[0] += 2.5  # sentences end
    rng = random.Random(1)
    src = sorted(random_ids([rng.randint(2, 40) for _ in range(200)], NUM_IDS, 1), key=len, reverse=True)
    requests = [Request(n, s, len(s) + 20, prefix if n % 3 == 0 else [], n) for n, s in enumerate(src)]
    queue = RequestQueue(requests, num_slots)
    engine = IncrementalModel(model.to(device), torch.bfloat16 if precision == "bf16" else torch.float32)
    results = search([engine], queue, options)
    return [results[n] for n in range(len(requests))]


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("num_slots", [16, 64])
@pytest.mark.parametrize("prefix", [[], [5, 7]])
def test_cuda_finds_what_the_cpu_finds(beam_size: int, num_slots: int, prefix: list[int]) -> None:
    options = SearchOptions(beam_size, 0.6)
    ours, expected = (found(device, "fp32", options, num_slots, prefix) for device in ("cuda", "cpu"))
    same = sum(a[0].ids == b[0].ids for a, b in zip(ours, expected, strict=True))
    assert same >= 0.99 * len(expected)
    for a, b in zip(ours, expected, strict=True):
        assert a[0].score == pytest.approx(b[0].score, abs=1e-3)
    assert len({len(b[0].ids) for b in expected}) > 5, "they end at different times"


@pytest.mark.parametrize("longer_by", [0, 600])  # which needs a longer table of positions
def test_a_later_search_replays_the_graph_of_an_earlier_one(longer_by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, num_recorded = torch.cuda.graph, 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal num_recorded
        num_recorded += 1
        return capture(*arguments, **named)

    monkeypatch.setattr(torch.cuda, "graph", counted)
    model = IncrementalModel(tiny_model(NUM_IDS, seed=4, dtype=torch.float32, output_bias=True).cuda())
    kept, results, others, recorded = dict[Any, Slots](), [], [], []
    for seed, added in ((1, 0), (1, 0), (2, longer_by), (1, 0)):
        sources = sorted(random_ids([9, 12, 3, 7, 15], NUM_IDS, seed), key=len, reverse=True)
        requests = [Request(n, source, len(source) + 20 + added, []) for n, source in enumerate(sources)]
        found = search([model], RequestQueue(requests, 16), SearchOptions(4, 0.6), kept)
        results.append([found[n][0].ids for n in range(len(requests))])
        others += [torch.full((64 << n,), torch.nan, device="cuda") for n in range(12)]  # take what was freed
        recorded.append(num_recorded)
    assert results[1] == results[3] and len(kept) == (2 if longer_by else 1)
    assert recorded[0] == 1 < recorded[1], "a search in slots that another one left reads no more columns than needed"
    assert recorded[3] == recorded[2], "the last search replays what the second recorded"
    assert recorded[2] > recorded[1] or not longer_by  # it records again each time that its cache grows


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_kernel_of_the_search_finds_what_torch_finds(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_reduction(torch.device("cuda", 0)) is not None
    options = SearchOptions(4, 0.6)
    ours = found("cuda", precision, options, 64, [5, 7])
    monkeypatch.setattr(beam_search, "find_reduction", lambda device: None)
    expected = found("cuda", precision, options, 64, [5, 7])
    same = sum(a[0].ids == b[0].ids for a, b in zip(ours, expected, strict=True))
    assert same >= 0.99 * len(expected)
    for a, b in zip(ours, expected, strict=True):
        assert a[0].score == pytest.approx(b[0].score, abs=1e-3)


def test_bf16_and_samples_run() -> None:
    assert len(found("cuda", "bf16", SearchOptions(4, 0.6), 64, [])) == 200
    drawn = [found("cuda", "fp32", SearchOptions(1, 0.0, sampling=Sampling(seed=3)), n, []) for n in (16, 64)]
    same = sum(a[0].ids == b[0].ids for a, b in zip(*drawn, strict=True))
    assert same >= 0.97 * len(drawn[0])
