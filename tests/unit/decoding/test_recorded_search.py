"""A search whose step is recorded and replayed finds what an eager one finds, and is freed with its last reference."""

import gc
import random
import weakref
from typing import Any

import pytest
import torch

from mtx.decoding.beam_search import RequestQueue, Slots, _Search, search
from mtx.decoding.options import Candidate, Request, SearchOptions
from mtx.model import kv_cache
from mtx.model.architectures import new_search_model
from tests.graphs import StandIn, record_on_a_cpu
from tests.models import random_ids, tiny_model

NUM_IDS, LIMIT = 19, 12


def queue(num_requests: int = 9, num_slots: int = 4) -> RequestQueue:
    sources = random_ids([7, 7, 6, 5, 4, 4, 3, 2, 1][:num_requests], NUM_IDS, 5)
    return RequestQueue([Request(number, source, LIMIT, []) for number, source in enumerate(sources)], num_slots)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_recorded_search_is_the_eager_one_and_is_freed(num_beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_search_model(tiny_model(NUM_IDS, dtype=torch.float32).eval(), torch.float32)
    expected = search([model], queue(), SearchOptions(num_beams, 0.6))
    record_on_a_cpu(monkeypatch)
    monkeypatch.setattr(kv_cache, "_COLUMNS_READ", 4)
    model.is_static = True

    def new_slots() -> Slots:
        return Slots([model], 4, num_beams, LIMIT, 0.6, None)

    with torch.inference_mode():
        _Search(new_slots(), queue()).run()  # the first use of torch's dispatcher by Python keeps frames in a cycle
    StandIn.replays = 0
    gc.collect()
    gc.disable()
    try:
        with torch.inference_mode():
            slots = new_slots()
            found = [_Search(slots, queue()).run() for _ in range(3)]  # the third one replays from its first step on
        assert [*slots._graphs] == [(num_beams * columns,) for columns in (128, 4, 8, 12)], "all in the first search"
        held = [weakref.ref(each) for each in (slots, slots.caches[0])]
        del slots
        assert [each() for each in held] == [None] * 2, "a cycle keeps a GPU's memory until a full collection"
    finally:
        gc.enable()
    assert StandIn.replays > LIMIT and StandIn.modes and not any(StandIn.modes), "recorded outside of inference mode"
    for result in found:
        for number, candidates in expected.items():
            assert ids(result[number]) == ids(candidates)
            scores = [candidate.score for candidate in candidates]
            assert [candidate.score for candidate in result[number]] == pytest.approx(scores, abs=1e-5)


def ids(candidates: list[Candidate]) -> list[list[int]]:
    return [candidate.ids for candidate in candidates]


@pytest.mark.parametrize("architecture", ["transformer", "decoder", "rnn"])
def test_slots_that_were_empty_in_an_earlier_search_are_like_new(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers that are NaN in an empty slot would stay in its cache, where no mask hides them."""
    model = new_search_model(tiny_model(NUM_IDS, dtype=torch.float32, architecture=architecture).eval(), torch.float32)
    options = SearchOptions(3, 0.6)
    expected = search([model], queue(8, 64), options)
    record_on_a_cpu(monkeypatch)
    model.is_static = True
    kept = dict[Any, Slots]()
    for size in (5, 8):
        found = search([model], queue(size, 64), options, kept)
    assert len(kept) == 1
    assert {number: ids(found[number]) for number in expected} == {n: ids(each) for n, each in expected.items()}


def test_a_longer_source_needs_another_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_search_model(tiny_model(NUM_IDS, dtype=torch.float32).eval(), torch.float32)
    queues = [
        [RequestQueue([Request(0, source, LIMIT, [])], 64) for source in random_ids([5, 6, 70, 71], NUM_IDS, 1)]
        for _ in range(2)
    ]
    expected = [search([model], each, SearchOptions(2, 0.6)) for each in queues[0]]
    record_on_a_cpu(monkeypatch)
    model.is_static = True
    kept = dict[Any, Slots]()
    found = [search([model], each, SearchOptions(2, 0.6), kept) for each in queues[1]]
    assert [ids(each[0]) for each in found] == [ids(each[0]) for each in expected]
    assert len(kept) == 1 and len(StandIn.modes) > 2


def test_a_server_stops_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of 1 to 64 sentences of any length need few shapes, and all are kept."""
    record_on_a_cpu(monkeypatch)
    model = new_search_model(tiny_model(NUM_IDS, dtype=torch.float32, num_decoder_layers=1).eval(), torch.float32)
    model.is_static = True
    kept = dict[Any, Slots]()
    rng = random.Random(2)
    recorded = []
    for _ in range(3):
        for size in (1, 2, 3, 5, 9, 17, 20, 33, 40, 64):
            sources = random_ids([rng.randint(1, 60) for _ in range(size)], NUM_IDS, rng.randint(0, 99))
            requests = [Request(number, source, len(source) + 3, []) for number, source in enumerate(sources)]
            search([model], RequestQueue(requests, 1024), SearchOptions(1, 0.6), kept)
        recorded.append(len(StandIn.modes))
    assert len(kept) == 3, "16, 32 and 64 slots"
    assert recorded[0] <= 10 and recorded[2] == recorded[1]


def test_slots_of_earlier_searches_are_given_up_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_a_cpu(monkeypatch)
    model = new_search_model(tiny_model(NUM_IDS, dtype=torch.float32).eval(), torch.float32)
    model.is_static = True
    kept = dict[Any, Slots]()
    limit = 1 << 33
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: limit + 1 if len(kept) > 2 else limit)
    for num_beams in (1, 2, 3, 1):
        search([model], queue(), SearchOptions(num_beams, 0.6), kept)
    assert [beams for _, beams, *_ in kept] == [3, 1]
