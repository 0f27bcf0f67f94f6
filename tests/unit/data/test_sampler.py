"""The sentences of a step are a pure function of the seed and the position, and every epoch holds every pair."""

from collections import Counter
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from mtx.data.sampler import BatchSampler, EpochOrder, SamplerState, Step, steps
from tests.samplers import epoch_order, sampler_of


def lengths(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def random_lengths(num_pairs: int, seed: int, mean: float = 15.0, longest: int = 64) -> tuple[Any, Any]:
    """Lengths like those of Multi30k: lognormal, target and source correlated."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, 0.3, num_pairs)
    sides = (np.exp(np.log(mean) - 0.05 + shared + rng.normal(0, 0.12, num_pairs)) for _ in range(2))
    src, tgt = (np.clip(x.round(), 1, longest).astype(np.int32) for x in sides)
    return src, tgt


def sampler(src: Any, tgt: Any, batch_tokens: int, weights: Any = None, seed: int = 3) -> BatchSampler:
    return sampler_of(src, tgt, weights, seed, batch_tokens)


@pytest.mark.parametrize(
    "src, tgt, expected",
    [
        (20, 10, 10),  # 100 target tokens; the source budget is 100 * 20/10 = 200
        (30, 7, 14),  # 14 * 7 = 98, a 15th would make 105
        (3, 2, 25),  # 50 would fit, but 100 / 4 sentences are the most
    ],
)
def test_a_step_of_equal_sentences_by_hand(src: int, tgt: int, expected: int) -> None:
    step = sampler(lengths(*[src] * 40), lengths(*[tgt] * 40), batch_tokens=100).step(SamplerState())
    assert len(step.pairs) == expected
    assert (step.src_lengths.sum(), step.tgt_lengths.sum()) == (src * expected, tgt * expected)
    assert step.position_after == SamplerState(0, expected)


@pytest.mark.parametrize("batch_tokens", [100, 600])  # 600: a step looks at fewer sentences than it may take
def test_a_step_takes_sentences_until_the_next_would_exceed_a_budget(batch_tokens: int) -> None:
    src, tgt = random_lengths(200, seed=1, mean=9)
    plan = sampler(src, tgt, batch_tokens)
    src_budget = round(batch_tokens * src.sum() / tgt.sum())
    order = np.concatenate([epoch_order(3, epoch, 200) for epoch in range(20)]).tolist()
    stopped_by = Counter()
    for step in steps(plan, SamplerState(), 40):
        taken, src_sum, tgt_sum = [], 0, 0
        while (
            src_sum + src[order[0]] <= src_budget
            and tgt_sum + tgt[order[0]] <= batch_tokens
            and len(taken) < batch_tokens // 4
        ):
            taken.append(order.pop(0))
            src_sum, tgt_sum = src_sum + src[taken[-1]], tgt_sum + tgt[taken[-1]]
        stopped_by["src"] += src_sum + src[order[0]] > src_budget
        stopped_by["tgt"] += tgt_sum + tgt[order[0]] > batch_tokens
        assert (step.pairs.tolist(), step.src_lengths.sum(), step.tgt_lengths.sum()) == (taken, src_sum, tgt_sum)
    assert min(stopped_by.values()) > 5, "both budgets were tried"


def test_a_step_of_many_more_sentences_than_usual() -> None:
    sizes = lengths(*[5] * 500, *[35] * 500)  # 20 on average; the long ones are never drawn
    step = sampler(sizes, sizes, batch_tokens=2000, weights=np.repeat([1.0, 0.0], 500)).step(SamplerState())
    assert (len(step.pairs), step.tgt_lengths.sum()) == (400, 2000)


def test_a_source_longer_than_its_budget_makes_a_step_alone() -> None:
    src, tgt = lengths(*[1] * 30, 40), lengths(*[4] * 31)  # 70 / 124 of 20 tokens are 11: less than the 40 of one
    steps_with_it = [step for step in steps(sampler(src, tgt, batch_tokens=20), SamplerState(), 10) if 30 in step.pairs]
    assert steps_with_it
    assert all(step.src_lengths.sum() <= 40 for step in steps_with_it)


@pytest.mark.parametrize(
    "num_pairs, start, after",
    [
        (7, SamplerState(0, 4), SamplerState(1, 1)),  # 3 of the old epoch, 1 of the new one
        (8, SamplerState(0, 4), SamplerState(1, 0)),  # exactly the rest
        (3, SamplerState(0, 0), SamplerState(1, 1)),
        (1, SamplerState(5, 0), SamplerState(9, 0)),  # four epochs in one step
    ],
)
def test_a_step_runs_on_across_the_end_of_an_epoch(num_pairs: int, start: SamplerState, after: SamplerState) -> None:
    step = sampler(lengths(*[10] * num_pairs), lengths(*[10] * num_pairs), batch_tokens=40).step(start)
    assert len(step.pairs) == 4
    assert step.position_after == after


def collect(plan: BatchSampler, num_steps: int) -> list[Step]:
    return list(steps(plan, SamplerState(), num_steps))


def test_every_epoch_holds_every_pair_once() -> None:
    src, tgt = random_lengths(300, seed=2)
    pairs = np.concatenate([step.pairs for step in collect(sampler(src, tgt, batch_tokens=200), 80)])
    assert len(pairs) > 900
    epochs = [pairs[i : i + 300].tolist() for i in (0, 300, 600)]
    assert all(sorted(epoch) == list(range(300)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3, "each epoch has an order of its own"


def test_order_is_random_and_depends_on_the_seed() -> None:
    first, second = (epoch_order(seed, 0, 1000) for seed in (1, 2))
    assert (first != second).mean() > 0.9
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.1


def test_weights_repeat_pairs_and_draw_the_fraction_anew() -> None:
    weights = np.array([1.0, 2.0, 0.25, 0.0, 1.5])
    counts = []
    for epoch in range(400):
        counts.append(np.bincount(epoch_order(1, epoch, 5, weights), minlength=5))
    seen = np.stack(counts)
    assert (seen >= np.floor(weights)).all()
    assert (seen <= np.ceil(weights)).all()
    np.testing.assert_allclose(seen.mean(0), weights, atol=0.08)  # 3 standard errors of 0.5 / sqrt(400)


def test_steps_with_weights_go_on_through_epochs_that_hold_nothing() -> None:
    plan = sampler(lengths(5), lengths(5), batch_tokens=20, weights=np.array([0.3]))
    sizes = [len(epoch_order(3, epoch, 1, np.array([0.3]))) for epoch in range(200)]
    assert {0, 1} == set(sizes)
    taken = collect(plan, 3)
    assert [len(step.pairs) for step in taken] == [4, 4, 4]
    after = taken[-1].position_after
    assert (sum(sizes[: after.epoch]), after.index, sizes[after.epoch]) == (12, 0, 1)


def test_an_empty_epoch_has_no_fraction() -> None:
    weights = np.array([0.3])
    empty = next(epoch for epoch in range(200) if not len(epoch_order(3, epoch, 1, weights)))
    plan = sampler(lengths(5), lengths(5), batch_tokens=20, weights=weights)
    assert plan.epochs(SamplerState(empty, 0)) == empty


@pytest.mark.parametrize("weighted", [False, True])
def test_resuming_from_any_position_gives_the_same_rest(weighted: bool) -> None:
    src, tgt = random_lengths(100, seed=4)
    weights = np.random.default_rng(1).uniform(0, 2, 100) if weighted else None
    whole = collect(sampler(src, tgt, 150, weights), 30)
    assert whole[-1].position_after.epoch >= 2
    for start in range(1, 30):
        resumed = sampler(src, tgt, 150, weights).step(whole[start - 1].position_after)
        assert resumed.pairs.tolist() == whole[start].pairs.tolist()
        assert resumed.position_after == whole[start].position_after


def test_a_position_can_be_asked_again_after_others() -> None:
    src, tgt = random_lengths(100, seed=4)
    plan = sampler(src, tgt, 150)
    expected = plan.step(SamplerState(0, 10)).pairs.tolist()
    for epoch in range(5):
        plan.step(SamplerState(epoch, 3))
    assert plan.step(SamplerState(0, 10)).pairs.tolist() == expected


def test_the_mean_of_an_epoch_counts_each_pair_as_often_as_it_occurs() -> None:
    src, tgt = lengths(3, 3, 3), lengths(10, 20, 60)
    assert sampler_of(src, tgt, None, 1, 100).tokens_per_sentence == 30
    weights = np.array([1.0, 2.5, 0.5])  # (10 + 50 + 30) / 4
    assert sampler_of(src, tgt, weights, 1, 100).tokens_per_sentence == 22.5


def test_means_are_rounded_as_in_version_1_0() -> None:
    """The source budget follows from them, and with it the steps of a run that resumes."""
    for seed in range(50):
        src, tgt = random_lengths(300, seed)
        weights = np.random.default_rng(seed).uniform(0, 3, 300)
        plan = sampler(src, tgt, 100, weights)
        mean = float(np.average(tgt, weights=weights))
        assert (plan.tokens_per_sentence, plan.ratio) == (mean, float(np.average(src, weights=weights)) / mean)


def digest(*arrays: Any) -> str:
    return sha256(b"".join(np.asarray(array, np.int64).tobytes() for array in arrays)).hexdigest()[:16]


@pytest.mark.parametrize(
    "weights, expected", [(None, "8c895272f85e7e1e"), (np.full(1000, 1.5), "6107dc762e4f7af2")]
)  # of version 0.2.0: a run that goes on under another version must see the sentences that it has not seen
def test_the_order_of_an_epoch_is_that_of_earlier_versions(weights: Any, expected: str) -> None:
    assert digest(epoch_order(3, 1, 1000, weights)) == expected


def test_each_epoch_is_shuffled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled = list[int]()
    draw = EpochOrder._draw_window

    def note(self: EpochOrder, epoch: int, number: int) -> Any:
        shuffled.append(epoch)
        return draw(self, epoch, number)

    monkeypatch.setattr(EpochOrder, "_draw_window", note)
    plan = sampler(lengths(*[4] * 40), lengths(*[4] * 40), batch_tokens=16)  # 4 pairs a step
    assert len(list(steps(plan, SamplerState(), 20))) == 20
    assert shuffled == [0, 1]


def test_a_step_has_the_lengths_of_its_pairs() -> None:
    src, tgt = random_lengths(200, seed=1)
    step = sampler(src, tgt, 600).step(SamplerState())
    assert step.src_lengths.tolist() == src[step.pairs].tolist()
    assert step.tgt_lengths.tolist() == tgt[step.pairs].tolist()
