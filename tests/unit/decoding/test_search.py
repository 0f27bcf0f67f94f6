"""Search finds what brute force finds, and its scores are the model's."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mtx.decoding.search import EOS_ID, Candidate, greedy, length_penalty, search
from tests.models import batch_of, random_ids, tiny_model

Prefix = tuple[int, ...]


class TableModel:
    """Logits that are a fixed function of (source, whole prefix). Its hidden states are the logits themselves.

    The cache keeps each row's prefix, so that a wrong reorder gives other logits.
    """

    def __init__(
        self, num_ids: int, seed: int = 0, sharpness: float = 1.5, table: dict[Prefix, list[float]] | None = None
    ):
        self.pad_id = num_ids
        self.output_weight = torch.eye(num_ids)
        self.output_bias: Tensor | None = None
        self.seed, self.sharpness, self.table = seed, sharpness, table

    def logits(self, source: int, prefix: Prefix) -> list[float]:
        if self.table is not None:
            return np.log(self.table.get(prefix, [0.0002, 0.4999, 0.4999])).tolist()
        rng = np.random.default_rng([self.seed, source, *prefix])
        return (rng.standard_normal(self.pad_id) * self.sharpness).tolist()

    def log_probs(self, source: int, prefix: Prefix) -> Tensor:
        return torch.tensor(self.logits(source, prefix), dtype=torch.float32).log_softmax(-1)

    def start_cache(self, memory: list[int], beam_size: int) -> "TableCache":
        return TableCache(list(memory), [() for _ in range(len(memory) * beam_size)])

    def decode_step(self, ids: Tensor, cache: "TableCache") -> Tensor:
        beams = ids.shape[1]
        assert len(cache.prefixes) == ids.numel() == len(cache.sources) * beams
        cache.prefixes = [(*p, i) for p, i in zip(cache.prefixes, ids.flatten().tolist(), strict=True)]
        assert all(prefix[0] == self.pad_id for prefix in cache.prefixes)
        rows = [self.logits(cache.sources[n // beams], prefix[1:]) for n, prefix in enumerate(cache.prefixes)]
        return torch.tensor(rows, dtype=torch.float32).view(*ids.shape, -1)


class TableCache:
    def __init__(self, sources: list[int], prefixes: list[Prefix]):
        self.sources, self.prefixes = sources, prefixes

    def reorder(self, index: Tensor) -> None:
        self.prefixes = [self.prefixes[i] for i in index.tolist()]

    def keep_sentences(self, sentences: Tensor, rows: Tensor) -> None:
        self.sources = [self.sources[i] for i in sentences.tolist()]
        self.reorder(rows)


def forced_score(model: TableModel, source: int, ids: list[int], limit: int, alpha: float) -> float:
    """At the limit only `</s>` is left, at its own probability."""
    total = sum(float(model.log_probs(source, tuple(ids[:t]))[token]) for t, token in enumerate(ids))
    assert len(ids) <= limit
    return total / ((5 + len(ids)) / 6) ** alpha


def brute_force(model: TableModel, source: int, limit: int, alpha: float) -> list[Candidate]:
    """Every sequence of at most `limit` tokens that ends in `</s>`, best first."""
    every = [[*body, EOS_ID] for n in range(limit) for body in product(range(1, model.pad_id), repeat=n)]
    scored = [Candidate(ids, forced_score(model, source, ids, limit, alpha)) for ids in every]
    return sorted(scored, key=lambda c: -c.score)


def run(model: Any, memory: Any, limits: list[int], beam_size: int, alpha: float) -> list[list[Candidate]]:
    return search(model, memory, torch.tensor(limits), beam_size, alpha)


def same(got: list[Candidate], expected: list[Candidate]) -> None:
    assert [c.ids for c in got] == [c.ids for c in expected]
    assert [c.score for c in got] == pytest.approx([c.score for c in expected], abs=1e-5)


@pytest.mark.parametrize("length, alpha, expected", [(1, 0.6, 1.0), (7, 1.0, 2.0), (7, 0.0, 1.0), (19, 0.5, 2.0)])
def test_length_penalty_by_hand(length: int, alpha: float, expected: float) -> None:
    assert length_penalty(length, alpha) == pytest.approx(expected)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("num_ids, limit", [(3, 5), (4, 4), (5, 3)])
def test_a_wide_beam_is_brute_force(num_ids: int, limit: int, alpha: float) -> None:
    model, sources = TableModel(num_ids), list(range(8))
    beam_size = num_ids ** (limit - 1)  # room for every open hypothesis and every end
    results = run(model, sources, [limit] * 8, beam_size, alpha)
    for source, found in zip(sources, results, strict=True):
        same(found, brute_force(model, source, limit, alpha)[: len(found)])
    assert max(len(found) for found in results) > 3
    assert len({len(found[0].ids) for found in results}) > 1


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_beam_1_is_greedy(alpha: float) -> None:
    model, sources, limits = TableModel(6), list(range(12)), [3, 9, 5, 1] * 3
    by_beam, by_greedy = run(model, sources, limits, 1, alpha), greedy(model, sources, torch.tensor(limits), alpha)
    for source, limit, beam, best in zip(sources, limits, by_beam, by_greedy, strict=True):
        ids: list[int] = []
        while EOS_ID not in ids:
            ids.append(EOS_ID if len(ids) + 1 == limit else int(model.log_probs(source, tuple(ids)).argmax()))
        expected = Candidate(ids, forced_score(model, source, ids, limit, alpha))
        same(beam, [expected])
        same(best, [expected])
    assert len({len(b[0].ids) for b in by_beam}) > 3, "they end at different times"


@pytest.mark.parametrize("beam_size", [2, 3, 5])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_what_holds_for_every_result(beam_size: int, alpha: float) -> None:
    model, sources, limits = TableModel(7, seed=2), list(range(15)), [4, 8, 2, 1, 12] * 3
    for source, limit, found in zip(sources, limits, run(model, sources, limits, beam_size, alpha), strict=True):
        assert 1 <= len(found) <= beam_size
        assert len({tuple(c.ids) for c in found}) == len(found)
        assert all(a.score >= b.score for a, b in zip(found, found[1:], strict=False))
        for candidate in found:
            assert len(candidate.ids) <= limit
            assert candidate.ids.index(EOS_ID) == len(candidate.ids) - 1
            assert candidate.score == pytest.approx(forced_score(model, source, candidate.ids, limit, alpha), abs=1e-5)


@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_a_batch_is_its_sentences_one_by_one(beam_size: int) -> None:
    model, sources, limits = TableModel(6, seed=3), list(range(20)), [9, 3, 14, 1, 6] * 4
    together = run(model, sources, limits, beam_size, 0.6)
    for source, limit, found in zip(sources, limits, together, strict=True):
        same(found, run(model, [source], [limit], beam_size, 0.6)[0])
    assert len({len(found[0].ids) for found in together}) > 3, "they end at different times"


def test_the_last_token_is_forced_to_be_the_end() -> None:
    model = TableModel(3, table={(): [0.01, 0.9, 0.09], (1,): [0.01, 0.9, 0.09], (1, 1): [0.02, 0.9, 0.08]})
    expected = Candidate([1, 1, 0], float(np.log(0.9 * 0.9 * 0.02)))
    same(run(model, [0], [3], 1, 0.0)[0], [expected])
    same(greedy(model, [0], torch.tensor([3]), 0.0)[0], [expected])
    same(run(model, [0], [1], 2, 0.0)[0], [Candidate([0], float(np.log(0.01)))])


# `</s>` at 0.2 is third after one token; both other tokens go on, and then everything ends.
THIRD: dict[Prefix, list[float]] = {(): [0.2, 0.5, 0.3], (1,): [0.9, 0.06, 0.04], (2,): [0.9, 0.06, 0.04]}


def test_a_hypothesis_finishes_only_among_the_top_candidates() -> None:
    model = TableModel(3, table=THIRD)
    narrow = run(model, [0], [3], 2, 0.0)[0]
    same(narrow, [Candidate([1, 0], float(np.log(0.5 * 0.9))), Candidate([2, 0], float(np.log(0.3 * 0.9)))])
    wide = run(model, [0], [3], 3, 0.0)[0]
    same(wide[:3], [*narrow, Candidate([0], float(np.log(0.2)))])


def test_a_sentence_goes_on_while_an_open_hypothesis_can_win() -> None:
    """`</s>` comes first at once, at 0.6; with alpha 1 ten sure tokens at 0.399 in all are worth more."""
    sure: dict[Prefix, list[float]] = {(1,) * n: [0.0001, 0.999, 0.0009] for n in range(1, 9)}
    model = TableModel(3, table={(): [0.6, 0.399, 0.001], **sure, (1,) * 9: [0.999, 0.0005, 0.0005]})
    long = Candidate([1] * 9 + [0], float(np.log(0.399 * 0.999**9)) / (15 / 6))
    assert long.score > np.log(0.6)
    same(run(model, [0], [10], 2, 1.0)[0], [long, Candidate([0], float(np.log(0.6)))])
    same(run(model, [0], [10], 2, 0.0)[0], [Candidate([0], float(np.log(0.6)))])  # nothing can win: it ends at once


# --- with the real model ---

NUM_IDS = 12
LENGTHS = [5, 2, 9, 1, 7, 4]


def encoded(model: Any, src: list[list[int]]) -> Any:
    return model.encode(batch_of(src, [[EOS_ID]] * len(src), NUM_IDS))


def forced_by_transformer(model: Any, src: list[int], ids: list[int], alpha: float) -> float:
    batch = batch_of([src], [ids], NUM_IDS)
    with torch.no_grad():
        logits = model.decode(batch, model.encode(batch)) @ model.output_weight.T
        if model.output_bias is not None:
            logits = logits + model.output_bias
    log_p = logits.log_softmax(-1)
    return float(log_p[torch.arange(len(ids)), torch.tensor(ids)].sum()) / ((5 + len(ids)) / 6) ** alpha


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("seed, changes", [(4, {}), (2, {"norm": "pre", "tie": "none", "output_bias": True})])
def test_transformer_scores_are_forced_and_batching_changes_nothing(
    seed: int, changes: dict[str, Any], beam_size: int
) -> None:
    model = tiny_model(NUM_IDS, seed=seed, dtype=torch.float32, **changes)
    src = random_ids(LENGTHS, NUM_IDS, 1)
    limits = [length + 6 for length in LENGTHS]
    with torch.no_grad():
        together = run(model, encoded(model, src), limits, beam_size, 0.6)
        for sentence, limit, found in zip(src, limits, together, strict=True):
            same(found, run(model, encoded(model, [sentence]), [limit], beam_size, 0.6)[0])
            for c in found:
                assert c.score == pytest.approx(forced_by_transformer(model, sentence, c.ids, 0.6), abs=1e-4)
    assert len({len(found[0].ids) for found in together}) > 1


def test_transformer_greedy_is_beam_1() -> None:
    model = tiny_model(NUM_IDS, seed=4, dtype=torch.float32)
    src = random_ids(LENGTHS, NUM_IDS, 1)
    limits = torch.tensor([length + 6 for length in LENGTHS])
    with torch.no_grad():
        memory = encoded(model, src)
        for a, b in zip(greedy(model, memory, limits, 0.6), search(model, memory, limits, 1, 0.6), strict=True):
            same(a, b)
