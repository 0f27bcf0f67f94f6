"""Search returns the hypotheses that brute force returns, in any company, and their scores are those of the model."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mtx.data.tokenizer import EOS_ID
from mtx.decoding.beam_search import Request, RequestQueue, draw, search, top_continuations
from mtx.decoding.options import Candidate, Sampling, SearchOptions, penalty
from mtx.model.inference import IncrementalModel
from tests.models import batch_of, random_ids, tiny_model

Prefix = tuple[int, ...]


class TableModel:
    """Logits that are a fixed function of (source, whole prefix). Its hidden states are the logits themselves.

    The cache keeps each row's prefix, so that a wrong reorder gives other logits.
    """

    is_static = False

    def __init__(
        self, num_ids: int, seed: int = 0, sharpness: float = 1.5, table: dict[Prefix, list[float]] | None = None
    ):
        self.pad_id, self.start_id, self.device = num_ids, num_ids + 1, torch.device("cpu")
        self.seed, self.sharpness, self.table = seed, sharpness, table

    def logits(self, source: int, prefix: Prefix) -> list[float]:
        if self.table is not None:
            return np.log(self.table.get(prefix, [0.0002, 0.4999, 0.4999])).tolist()
        rng = np.random.default_rng([self.seed, source, *prefix])
        return (rng.standard_normal(self.pad_id) * self.sharpness).tolist()

    def log_probs(self, source: int, prefix: Prefix) -> Tensor:
        return torch.tensor(self.logits(source, prefix), dtype=torch.float32).log_softmax(-1)

    def encode(self, sources: list[int]) -> list[int]:
        return list(sources)

    def start(self, num_slots: int, beam_size: int, max_length: int) -> "TableCache":
        return TableCache(num_slots, beam_size)

    def step(self, ids: Tensor, lengths: Tensor, cache: "TableCache") -> Tensor:
        for row, (beams, length) in enumerate(zip(ids.tolist(), lengths.tolist(), strict=True)):
            cache.prefixes[row] = [(*prefix, i) for prefix, i in zip(cache.prefixes[row], beams, strict=True)]
            if cache.is_open[row]:
                assert all(prefix[0] == self.start_id and len(prefix) == length + 1 for prefix in cache.prefixes[row])
        rows = [
            [self.logits(source, prefix[1:]) for prefix in prefixes]
            for source, prefixes in zip(cache.sources, cache.prefixes, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.float32)


class TableCache:
    def __init__(self, num_slots: int, beam_size: int):
        self.sources, self.beam_size, self.is_open = [0] * num_slots, beam_size, [False] * num_slots
        self.prefixes: list[list[Prefix]] = [[()] * beam_size for _ in range(num_slots)]
        self.steps = 0

    def admit(self, slots: list[int], sources: list[int], rows: list[int]) -> None:
        for slot, row in zip(slots, rows, strict=True):
            assert not self.is_open[slot]
            self.sources[slot], self.prefixes[slot], self.is_open[slot] = sources[row], [()] * self.beam_size, True

    def release(self, slots: list[int]) -> None:
        for slot in slots:
            self.is_open[slot] = False

    def prepare(self) -> int:
        self.steps += 1
        return 0

    def reorder(self, parents: Tensor) -> None:
        self.prefixes = [[beams[i] for i in row] for beams, row in zip(self.prefixes, parents.tolist(), strict=True)]


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


def run(
    model: Any, sources: list[Any], limits: list[int], beam_size: int, alpha: float, num_slots: int = 3,
    prefixes: list[list[int]] | None = None, sampling: Sampling | None = None,
) -> list[list[Candidate]]:  # fmt: skip
    """Search in few slots, so that sentences wait for them; `model` may be the list of an ensemble."""
    prefixes = prefixes or [[] for _ in sources]
    requests = [Request(n, s, limits[n], prefixes[n]) for n, s in enumerate(sources)]
    models = model if isinstance(model, list) else [model]
    found = search(models, RequestQueue(requests, num_slots), SearchOptions(beam_size, alpha, sampling=sampling))
    return [found[number] for number in range(len(requests))]


def same(got: list[Candidate], expected: list[Candidate]) -> None:
    assert [c.ids for c in got] == [c.ids for c in expected]
    assert [c.score for c in got] == pytest.approx([c.score for c in expected], abs=1e-5)


@pytest.mark.parametrize("length, alpha, expected", [(1, 0.6, 1.0), (7, 1.0, 2.0), (7, 0.0, 1.0), (19, 0.5, 2.0)])
def test_length_penalty_by_hand(length: int, alpha: float, expected: float) -> None:
    assert penalty(length, alpha) == pytest.approx(expected)


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
    found = run(model, sources, limits, 1, alpha)
    for source, limit, beam in zip(sources, limits, found, strict=True):
        ids: list[int] = []
        while EOS_ID not in ids:
            ids.append(EOS_ID if len(ids) + 1 == limit else int(model.log_probs(source, tuple(ids)).argmax()))
        same(beam, [Candidate(ids, forced_score(model, source, ids, limit, alpha))])
    assert len({len(b[0].ids) for b in found}) > 3, "they end at different times"


@pytest.mark.parametrize("beam_size", [2, 3, 5])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_every_result_is_distinct_sorted_within_its_limit_and_scored_by_the_model(beam_size: int, alpha: float) -> None:
    model, sources, limits = TableModel(7, seed=2), list(range(15)), [4, 8, 2, 1, 12] * 3
    for source, limit, found in zip(sources, limits, run(model, sources, limits, beam_size, alpha), strict=True):
        assert 1 <= len(found) <= beam_size
        assert len({tuple(c.ids) for c in found}) == len(found)
        assert all(a.score >= b.score for a, b in zip(found, found[1:], strict=False))
        for candidate in found:
            assert len(candidate.ids) <= limit
            assert candidate.ids.index(EOS_ID) == len(candidate.ids) - 1
            assert candidate.score == pytest.approx(forced_score(model, source, candidate.ids, limit, alpha), abs=1e-5)


@pytest.mark.parametrize("num_slots", [1, 2, 7, 20])
@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_a_batch_gives_what_its_sentences_give_one_by_one(beam_size: int, num_slots: int) -> None:
    model, sources, limits = TableModel(6, seed=3), list(range(20)), [9, 3, 14, 1, 6] * 4
    together = run(model, sources, limits, beam_size, 0.6, num_slots)
    for source, limit, found in zip(sources, limits, together, strict=True):
        same(found, run(model, [source], [limit], beam_size, 0.6)[0])
    assert len({len(found[0].ids) for found in together}) > 3, "they end at different times"


def test_free_slots_are_filled_while_a_long_sentence_goes_on() -> None:
    """Two slots and one long sentence among short ones: the short ones pass through the other slot meanwhile."""
    model = TableModel(3, table={(1,) * n: [0.0001, 0.9998, 0.0001] for n in range(12)})
    caches: list[TableCache] = []
    start = model.start
    model.start = lambda *shape: caches.append(start(*shape)) or caches[0]  # type: ignore[func-returns-value,method-assign]
    run(model, [0] * 7, [12, 2, 2, 2, 2, 2, 2], 1, 0.0, num_slots=2)
    assert caches[0].steps == 12


def test_the_last_token_is_forced_to_be_the_end() -> None:
    model = TableModel(3, table={(): [0.01, 0.9, 0.09], (1,): [0.01, 0.9, 0.09], (1, 1): [0.02, 0.9, 0.08]})
    expected = Candidate([1, 1, 0], float(np.log(0.9 * 0.9 * 0.02)))
    same(run(model, [0], [3], 1, 0.0)[0], [expected])
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


@pytest.mark.parametrize("prefix", [[1], [2, 1], [3, 3, 2]])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_with_a_prefix_search_is_brute_force_over_targets_with_that_prefix(prefix: list[int], alpha: float) -> None:
    model, sources, limit = TableModel(4, seed=1), list(range(6)), 4
    results = run(model, sources, [limit] * 6, 4**3, alpha, prefixes=[prefix, []] * 3)
    for source, found in zip(sources, results, strict=True):
        forced = prefix if source % 2 == 0 else []
        every = [c for c in brute_force(model, source, limit, alpha) if c.ids[: len(forced)] == forced]
        same(found, every[: len(found)])
        assert found


@pytest.mark.parametrize("size", [10, 640, 2048, 4032, 4033])
def test_the_best_are_found_in_the_groups_with_the_largest_maxima(size: int) -> None:
    beams, count = 4, 8
    log_probs = torch.randn(30, beams, size, generator=torch.Generator().manual_seed(size))
    log_probs[0, 0, -3:] += 9
    log_probs[1, 2, 64:70] += 9  # all in one group
    log_probs[2, :, [0, size // 2, size - 1]] = float("-inf")
    scores = torch.randn(30, beams)
    scores[3, 1:] = float("-inf")
    top, parents, tokens = top_continuations(scores, log_probs, count)
    assert torch.equal(top, (scores[:, :, None] + log_probs).flatten(1).topk(count).values)
    rows = torch.arange(30)[:, None]
    assert torch.equal(top, scores.gather(1, parents) + log_probs[rows, parents, tokens])
    assert len({(p, t) for p, t in zip(parents[1].tolist(), tokens[1].tolist(), strict=True)}) == count


# --- sampling ---


@pytest.mark.parametrize("epsilon", [0.0, 0.25])
def test_samples_are_of_the_whole_distribution_and_scored_by_the_model(epsilon: float) -> None:
    """All sequences of at most 3 tokens, each about as often as the model says, renormalised without what is cut."""
    model, limit, count = TableModel(3, seed=5, sharpness=0.7), 3, 1500
    requests = [Request(n, [7], limit, [], n) for n in range(count)]
    found = search(
        [_FirstOf(model)], RequestQueue(requests, 50),
        SearchOptions(1, 0.0, sampling=Sampling(epsilon=epsilon)),
    )  # fmt: skip
    counts: dict[Prefix, int] = {}
    for n in range(count):
        (candidate,) = found[n]
        counts[tuple(candidate.ids)] = counts.get(tuple(candidate.ids), 0) + 1
        assert candidate.score == pytest.approx(forced_score(model, 7, candidate.ids, limit, 0.0), abs=1e-5)
    bodies = [[], [1], [2], [1, 1], [1, 2], [2, 1], [2, 2]]
    cut = [body for body in bodies if not counts.get((*body, EOS_ID))]
    assert bool(cut) == bool(epsilon)
    for body in bodies:
        # at the limit `</s>` is forced, whatever its probability
        chosen = body if len(body) == limit - 1 else [*body, EOS_ID]
        p = float(np.prod([_left(model, tuple(chosen[:t]), epsilon)[token] for t, token in enumerate(chosen)]))
        assert counts.get((*body, EOS_ID), 0) / count == pytest.approx(p, abs=4 * (p * (1 - p) / count) ** 0.5)


def _left(model: TableModel, prefix: Prefix, epsilon: float) -> Any:
    """The distribution of the next token without those below epsilon."""
    probs = model.log_probs(7, prefix).exp().numpy()
    probs[probs < epsilon] = 0
    return probs / probs.sum()


class _FirstOf:
    """A TableModel whose sources are lists of one number."""

    is_static = False

    def __init__(self, model: TableModel):
        self.start_id, self.device, self.start, self.step = model.start_id, model.device, model.start, model.step

    def encode(self, sources: list[list[int]]) -> list[int]:
        return [source[0] for source in sources]


def test_a_sample_depends_on_its_source_its_number_and_the_seed_alone() -> None:
    model = _FirstOf(TableModel(6, seed=5, sharpness=0.5))
    sampling = Sampling(seed=4)

    def drawn(sources: list[int], samples: list[int], slots: int, sampling: Sampling) -> list[list[int]]:
        requests = [Request(n, [s], 9, [], k) for n, (s, k) in enumerate(zip(sources, samples, strict=True))]
        found = search([model], RequestQueue(requests, slots), SearchOptions(4, 0.6, sampling=sampling))
        return [found[n][0].ids for n in range(len(requests))]

    alone = [drawn([s], [k], 1, sampling)[0] for s, k in ((3, 0), (3, 1), (5, 0))]
    assert drawn([5, 3, 3, 8], [0, 1, 0, 0], 2, sampling)[:3] == alone[::-1]
    assert len({tuple(ids) for ids in alone}) == 3
    assert drawn([3], [0], 1, Sampling(seed=9)) != alone[:1]


# --- with the real model ---

NUM_IDS = 12
LENGTHS = [5, 2, 9, 1, 7, 4]


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
    limits, engine = [length + 6 for length in LENGTHS], IncrementalModel(model)
    together = run(engine, src, limits, beam_size, 0.6, num_slots=4)
    for sentence, limit, found in zip(src, limits, together, strict=True):
        same(found, run(engine, [sentence], [limit], beam_size, 0.6)[0])
        for c in found:
            assert c.score == pytest.approx(forced_by_transformer(model, sentence, c.ids, 0.6), abs=1e-4)
    assert len({len(found[0].ids) for found in together}) > 1


def frequencies(sampling: Sampling, logits: list[float], count: int = 40_000) -> Tensor:
    uniform = (torch.arange(count)[:, None] + 0.5) / count  # evenly spaced: frequencies are exact to 1/count
    drawn = draw(torch.tensor(logits).expand(count, -1), uniform, sampling)
    return torch.bincount(drawn[:, 0], minlength=len(logits)) / count


@pytest.mark.parametrize(
    "sampling, possible",
    [
        (Sampling(), [0, 1, 2, 3, 4]),
        (Sampling(temperature=0.5), [0, 1, 2, 3, 4]),
        (Sampling(top_k=2), [3, 1]),
        (Sampling(top_p=0.5), [3, 1]),  # 0.4 alone is less
        (Sampling(top_p=0.39), [3]),
        (Sampling(top_p=0.75, temperature=2.0), [0, 1, 2, 3]),
        (Sampling(top_k=3, top_p=0.8), [3, 1]),  # of the three, 0.47 + 0.35 reach 0.8
        (Sampling(epsilon=0.12), [3, 1, 2]),
        (Sampling(epsilon=0.12, temperature=0.5), [3, 1]),  # 0.56 and 0.32; 0.15 became 0.08
        (Sampling(epsilon=0.6), [3]),  # no token has as much, so the most probable one is drawn
        (Sampling(epsilon=0.16, top_k=3), [3, 1, 2]),  # of the three, 0.15 is 0.18
        (Sampling(epsilon=0.35, top_p=0.75), [3]),
        (Sampling(epsilon=0.12, top_p=0.5), [3, 1]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_probable(sampling: Sampling, possible: list[int]) -> None:
    logits = np.log([0.1, 0.3, 0.15, 0.4, 0.05])
    weights = np.exp(logits / sampling.temperature)
    expected = np.array([w if i in possible else 0.0 for i, w in enumerate(weights)])
    expected /= expected.sum()
    got = frequencies(sampling, logits.tolist())
    assert got.tolist() == pytest.approx(expected.tolist(), abs=1e-3)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24, 1.0])  # 1.0: what a product is that was rounded up
def test_a_token_below_epsilon_is_never_drawn(uniform: float) -> None:
    logits = torch.tensor([[0.05, 0.4, 0.05, 0.4, 0.1]]).log()
    token = draw(logits, torch.tensor([[uniform]]), Sampling(epsilon=0.2)).item()
    assert token == (3 if uniform else 1)
