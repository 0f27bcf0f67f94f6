"""A step is cut into micro-batches of one shape, and packing conserves every pair."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtx.data.packing import SLICES, PackedBatch, Shape, assign, micro_batch_shape, pack, pack_sentences
from mtx.data.sampler import SamplerState, steps
from tests.models import random_ids, side
from tests.samplers import sampler_of
from tests.unit.data.test_sampler import lengths, random_lengths, sampler

PAD = 50


def fits(shape: Shape, *sizes: int) -> bool:
    return bool((np.array(sizes) <= shape.room).all())


# --- the shape ---


@pytest.mark.parametrize(
    "batch, micro, ratio, longest, expected",
    [
        # 4096 + 18 dummies (4114 / 256 -> 17, one to spare) -> 258 * 16
        (4096, 4096, 1.0, 256, (1, Shape(4128, 4128, 1376, 256, 18))),
        # 25000 + 100 (25100 / 256 -> 99, one to spare) -> 197 * 128; no 2% as k = 1
        (25_000, 25_000, 1.0, 256, (1, Shape(25_216, 25_216, 8405, 256, 100))),
        # 12500 * 1.02 = 12750, + 52 (12802 / 256 -> 51) -> 101 * 128
        (25_000, 12_500, 1.0, 256, (2, Shape(12_928, 12_928, 4309, 256, 52))),
        # one token less makes three: 25000 / 3 * 1.02 = 8500, + 35 (8535 / 256 -> 34) -> 67 * 128
        (25_000, 12_499, 1.0, 256, (3, Shape(8576, 8576, 2858, 256, 35))),
        # half as many source tokens: 12500 + 100 -> 99 * 128; the dummies are those that the longer side needs
        (25_000, 25_000, 0.5, 256, (1, Shape(12_672, 25_216, 8405, 256, 100))),
        # a micro-batch never gets smaller than the longest sentence: 256 + 3 -> 17 * 16
        (1024, 100, 1.0, 256, (11, Shape(272, 272, 90, 256, 3))),
        # 8174 + 18 = 8192 is still a multiple of 16, 8175 + 18 = 8193 becomes one of 128
        (8174, 8174, 1.0, 512, (1, Shape(8192, 8192, 2730, 512, 17))),
        (8176, 8176, 1.0, 512, (1, Shape(8320, 8320, 2773, 512, 18))),
    ],
)
def test_the_shape_by_hand(batch: int, micro: int, ratio: float, longest: int, expected: tuple[int, Shape]) -> None:
    assert micro_batch_shape(batch, micro, ratio, longest, None) == expected


@pytest.mark.parametrize(
    "batch, micro, tokens_per_sentence, k, sentences",
    [
        # 1.25 * 25,216 / 27 = 1,167.4, and 16 and the 100 dummies
        (25_000, 25_000, 27.0, 1, 1168 + 16 + 100),
        # sentences of one token are at most a quarter of the budget: the room that any step has
        (25_000, 25_000, 1.0, 1, 8405),
        # 1.25 * 400,000 / 5 = 100,000 sentences are more than a grid's 65,535 blocks; two micro-batches have
        # 1.25 * 204,928 / 5 = 51,232 and 16 and 802 dummies
        (400_000, 400_000, 5.0, 2, 51_232 + 16 + 802),
    ],
)
def test_the_room_for_sentences_by_hand(
    batch: int, micro: int, tokens_per_sentence: float, k: int, sentences: int
) -> None:
    found, shape = micro_batch_shape(batch, micro, 1.0, 256, tokens_per_sentence)
    assert (found, shape.max_sentences) == (k, sentences)
    assert shape == replace(micro_batch_shape(batch, -(-batch // k), 1.0, 256, None)[1], max_sentences=sentences)


@pytest.mark.parametrize(
    "batch, longest, mean",
    [pytest.param(10_000_000, 2, 1.0, marks=pytest.mark.extended), (3_000_000, 200_000, 1.0), (65_536, 8, 8.0)],
)
def test_no_grid_has_too_many_blocks(batch: int, longest: int, mean: float) -> None:
    _, shape = micro_batch_shape(batch, batch, 1.0, longest, mean)
    assert shape.spare + 1 <= shape.max_sentences <= 65_535


@pytest.mark.parametrize("num_ranks, k", [(1, 3), (2, 4), (3, 3), (4, 4), (5, 5)])
def test_each_rank_has_as_many_micro_batches(num_ranks: int, k: int) -> None:
    """25,000 tokens need three micro-batches of at most 8,400; with more ranks, the next multiple of their number."""
    num_micro_batches, shape = micro_batch_shape(25_000, 8400, 1.0, 256, None, num_ranks)
    assert num_micro_batches == k
    assert shape == micro_batch_shape(25_000, -(-25_000 // k), 1.0, 256, None)[1]


def test_a_shape_fits_what_leaves_room_for_the_dummies() -> None:
    shape = Shape(num_src=30, num_tgt=20, max_sentences=9, max_tokens=10, spare=4)
    assert fits(shape, 26, 16, 5)
    assert not fits(shape, 27, 16, 5)
    assert not fits(shape, 26, 17, 5)
    assert not fits(shape, 26, 16, 6)


# --- assignment to micro-batches ---


@pytest.mark.parametrize(
    "sizes, first, second",
    [
        # both sides together 2, 4, 6, 8, 10: half is 15, and the fourth reaches from 12 to 20
        ((1, 2, 3, 4, 5), [0, 1, 2], [3, 4]),
        # 2, 4, 8, 2, 8: half is 12, and the third reaches from 6 to 14
        ((1, 2, 4, 1, 4), [0, 1, 2], [3, 4]),
    ],
)
def test_a_step_is_cut_in_its_order_and_a_sentence_goes_where_its_middle_lies(
    sizes: tuple[int, ...], first: list[int], second: list[int]
) -> None:
    groups = assign(lengths(*sizes), lengths(*sizes), 2, Shape(100, 100, 50, 10, 5))
    assert [g.tolist() for g in groups] == [first, second]


def test_what_does_not_fit_is_dealt_longest_first_to_the_emptiest() -> None:
    shape = Shape(13, 13, 50, 10, 5)  # 8 tokens a side; the cut would give 6 and 9
    # 5 -> a, 4 -> b, 3 -> b (4 < 5), 2 -> a (5 < 7), 1 -> a (7 = 7: the first)
    groups = assign(lengths(1, 2, 3, 4, 5), lengths(1, 2, 3, 4, 5), 2, shape)
    assert [g.tolist() for g in groups] == [[4, 1, 0], [3, 2]]


def test_sentences_are_dealt_so_that_neither_side_fills_up_first() -> None:
    shape = Shape(18, 18, 50, 10, 5)  # 13 tokens a side; the cut would give 14 source tokens
    # (8, 3) -> a; (3, 7) -> b; (3, 6) -> a, as 3*8 + 6*3 = 42 < 3*3 + 6*7 = 51; (6, 2) -> b, as 6*3 + 2*7 = 32 < 84
    groups = assign(lengths(8, 6, 3, 3), lengths(3, 2, 7, 6), 2, shape)
    assert [g.tolist() for g in groups] == [[0, 3], [2, 1]]


def test_what_fits_nowhere_opens_one_more() -> None:
    shape = Shape(20, 30, 10, 8, 4)  # 16 source tokens
    assert [g.tolist() for g in assign(lengths(8, 8, 8), lengths(1, 1, 1), 1, shape)] == [[0, 1], [2]]
    by_count = Shape(100, 100, 6, 8, 4)  # two sentences
    assert [g.tolist() for g in assign(lengths(1, 1, 1), lengths(1, 1, 1), 1, by_count)] == [[0, 1], [2]]


def test_sentences_fit_many_micro_batches_without_one_more() -> None:
    src, tgt = random_lengths(20_000, seed=5)
    plan = sampler(src, tgt, batch_tokens=64 * 2000)
    k, shape = micro_batch_shape(64 * 2000, 2000, plan.ratio, 64, None, num_ranks=64)
    num_distributed = 0
    for step in steps(plan, SamplerState(), 5):
        groups = assign(step.src_lengths, step.tgt_lengths, k, shape)
        assert len(groups) == k
        assert sorted(np.concatenate(groups).tolist()) == list(range(len(step.pairs)))
        for group in groups:
            assert fits(shape, step.src_lengths[group].sum(), step.tgt_lengths[group].sum(), len(group))
        num_distributed += groups[0].tolist() != list(range(len(groups[0])))
    assert num_distributed, "a cut into consecutive sentences does not fit"


@pytest.mark.parametrize("k", [1, 2, 3, 4, 8])
def test_a_step_is_the_same_however_it_is_cut(k: int) -> None:
    src, tgt = random_lengths(2000, seed=5)
    plan = sampler(src, tgt, batch_tokens=4096)
    num_micro_batches, shape = micro_batch_shape(4096, -(-4096 // k), plan.ratio, 64, None)
    assert num_micro_batches == k
    step = plan.step(SamplerState())
    groups = assign(src[step.pairs], tgt[step.pairs], k, shape)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(step.pairs)))
    for group in groups:
        pairs = step.pairs[group]
        assert fits(shape, src[pairs].sum(), tgt[pairs].sum(), len(group))


@pytest.mark.parametrize(
    "batch_tokens, k, least",
    [(4096, 1, 0.98), (25_000, 1, 0.98), *((tokens, k, 0.95) for tokens in (4096, 25_000) for k in (2, 4, 8))],
)
def test_positions_are_filled(batch_tokens: int, k: int, least: float) -> None:
    src, tgt = random_lengths(29_000, seed=6)
    plan = sampler(src, tgt, batch_tokens)
    _, shape = micro_batch_shape(batch_tokens, -(-batch_tokens // k), plan.ratio, 256, plan.tokens_per_sentence)
    tokens = positions = 0
    for step in steps(plan, SamplerState(), 12):
        groups = assign(src[step.pairs], tgt[step.pairs], k, shape)
        assert len(groups) == k, "no step needs one more"
        tokens += step.src_lengths.sum() + step.tgt_lengths.sum()
        positions += len(groups) * (shape.num_src + shape.num_tgt)
    assert tokens / positions >= least


@given(
    parts=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 300)), min_size=1, max_size=6),
    batch_tokens=st.integers(40, 2000),
    k=st.integers(1, 5),
    seed=st.integers(0, 100),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_steps_fit_whose_sentences_are_far_from_the_mean(
    parts: list[tuple[int, int]], batch_tokens: int, k: int, seed: int
) -> None:
    """Also where the mean is that of all of the text, and a step has only its shortest sentences: of one token."""
    tgt = np.concatenate([np.full(number, length, np.int32) for length, number in parts])
    src = np.minimum(40, tgt + np.random.default_rng(seed).integers(0, 3, len(tgt))).astype(np.int32)
    plan = sampler(src, tgt, batch_tokens)
    k, shape = micro_batch_shape(batch_tokens, -(-batch_tokens // k), plan.ratio, 40, plan.tokens_per_sentence)
    short = [i for i in np.argsort(tgt, kind="stable").tolist() for _ in range(3)]
    short = short[: max(1, min(batch_tokens // 4, int((tgt[short].cumsum() <= batch_tokens).sum())))]
    for pairs in [np.array(short), *(step.pairs for step in steps(plan, SamplerState(), 3))]:
        groups = assign(src[pairs], tgt[pairs], k, shape)
        assert len(groups) >= k
        assert sorted(np.concatenate(groups).tolist()) == list(range(len(pairs)))
        for group in groups:
            assert fits(shape, int(src[pairs[group]].sum()), int(tgt[pairs[group]].sum()), len(group))


def test_usual_steps_need_no_further_micro_batch_with_little_room_for_sentences() -> None:
    src, tgt = random_lengths(29_000, seed=7)
    for k in (1, 2, 8):
        plan = sampler(src, tgt, 25_000)
        _, shape = micro_batch_shape(25_000, -(-25_000 // k), plan.ratio, 256, plan.tokens_per_sentence)
        assert shape.max_sentences < shape.num_tgt // 3
        for step in steps(plan, SamplerState(), 40):
            assert len(assign(src[step.pairs], tgt[step.pairs], k, shape)) == k


# --- packing ---


def unpack(batch: PackedBatch) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch, read back by its offsets."""
    sides = ((batch.src_ids, batch.src_offsets), (batch.tgt_out_ids, batch.tgt_offsets))
    numbers = range(batch.num_sentences)
    src, tgt = ([ids[offsets[i] : offsets[i + 1]].tolist() for i in numbers] for ids, offsets in sides)
    return list(zip(src, tgt, strict=True))


def check_batch(batch: PackedBatch, shape: Shape) -> None:
    """Everything that holds for any batch of `shape`."""
    n = batch.num_sentences
    begin, end = batch.buffer.data_ptr(), batch.buffer.data_ptr() + batch.buffer.nbytes
    assert all(begin <= getattr(batch, name).data_ptr() <= end for name in SLICES)
    sides = (
        (batch.src_ids, batch.src_positions, batch.src_offsets, batch.num_src_tokens, shape.num_src),
        (batch.tgt_out_ids, batch.tgt_positions, batch.tgt_offsets, batch.num_tgt_tokens, shape.num_tgt),
    )
    for *tensors, real, size in sides:
        ids, positions, offsets = (tensor.numpy() for tensor in tensors)
        assert ids.shape == positions.shape == (size,)
        assert offsets.dtype == np.int32
        assert offsets.shape == (shape.max_sentences + 1,)
        assert (offsets[0], offsets[n], offsets[-1]) == (0, real, size)
        sizes = np.diff(offsets)
        used = int((offsets < size).sum())
        assert (sizes[:used] >= 1).all()
        assert (sizes[used:] == 0).all()
        assert sizes.max() <= shape.max_tokens
        assert positions.tolist() == [i for length in sizes for i in range(length)]
        assert (ids[real:] == PAD).all()
        assert (ids[:real] != PAD).all()
    assert (batch.src_offsets < shape.num_src).sum() == (batch.tgt_offsets < shape.num_tgt).sum(), "pairs of dummies"
    starts = batch.tgt_positions == 0
    assert (batch.tgt_in_ids[starts] == PAD).all()
    assert (batch.tgt_in_ids[1:][~starts[1:]] == batch.tgt_out_ids[:-1][~starts[1:]]).all()


def test_a_packed_batch_by_hand() -> None:
    src, tgt = side([[1, 2, 0], [3, 0], [4, 0]]), side([[5, 0], [6, 7, 8, 0], [9, 0]])
    batch = pack(src, tgt, np.array([1, 0]), Shape(num_src=9, num_tgt=8, max_sentences=5, max_tokens=4, spare=1), PAD)
    p = PAD
    assert batch.src_ids.tolist() == [3, 0, 1, 2, 0, p, p, p, p]
    assert batch.src_positions.tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 3]
    assert batch.tgt_out_ids.tolist() == [6, 7, 8, 0, 5, 0, p, p]
    assert batch.tgt_in_ids.tolist() == [p, 6, 7, 8, p, 5, p, p]
    assert batch.tgt_positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1]
    assert batch.src_offsets.tolist() == [0, 2, 5, 9, 9, 9]
    assert batch.tgt_offsets.tolist() == [0, 4, 6, 8, 8, 8]
    assert (batch.num_sentences, batch.num_src_tokens, batch.num_tgt_tokens, batch.max_tokens) == (2, 5, 6, 4)


def test_what_lies_in_the_buffer_of_a_batch_is_aligned() -> None:
    for longest in range(64, 72):  # several numbers of sentences
        _, shape = micro_batch_shape(512, 128, 0.9, longest, 12.0)
        batch = pack(side([]), side([]), np.empty(0, dtype=np.int64), shape, PAD)
        distances = [getattr(batch, name).data_ptr() - batch.buffer.data_ptr() for name in SLICES]
        assert distances == sorted(set(distances))
        assert all(distance % 16 == 0 for distance in distances)


def test_a_long_tail_is_cut_into_dummies_that_are_empty_on_no_side() -> None:
    one = side([[1, 0]])
    shape = Shape(num_src=23, num_tgt=5, max_sentences=9, max_tokens=8, spare=3)
    batch = pack(one, one, np.array([0]), shape, PAD)
    assert batch.src_offsets.tolist() == [0, 2, 9, 16, 23, 23, 23, 23, 23, 23]  # 21 positions in 3 dummies of 7
    assert batch.tgt_offsets.tolist() == [0, 2, 3, 4, 5, 5, 5, 5, 5, 5]
    check_batch(batch, shape)


def test_a_micro_batch_without_sentences_is_all_dummies() -> None:
    _, shape = micro_batch_shape(512, 128, 1.0, 64, 12.0)
    batch = pack(side([]), side([]), np.empty(0, dtype=np.int64), shape, PAD)
    assert batch.num_sentences == 0
    check_batch(batch, shape)


def test_a_batch_that_is_full_has_no_dummies() -> None:
    pairs = side([[1, 2, 0], [3, 0]])
    batch = pack(pairs, pairs, np.arange(2), Shape(5, 5, 2, 3, 0), PAD)
    assert batch.src_offsets.tolist() == [0, 3, 5]


@pytest.mark.seconds
@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60),
    batch_tokens=st.integers(40, 400),
    k=st.integers(1, 5),
    seed=st.integers(0, 100),
    has_narrow_room=st.booleans(),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_packing_conserves_every_pair(
    sizes: list[tuple[int, int]], batch_tokens: int, k: int, seed: int, has_narrow_room: bool
) -> None:
    src, tgt = (random_ids(column, PAD, seed + i) for i, column in enumerate(zip(*sizes, strict=True)))
    sides = side(src), side(tgt)
    plan = sampler_of(sides[0].lengths, sides[1].lengths, None, seed, batch_tokens)
    mean = plan.tokens_per_sentence if has_narrow_room else None
    k, shape = micro_batch_shape(batch_tokens, -(-batch_tokens // k), plan.ratio, 40, mean)
    for step in steps(plan, SamplerState(), 4):
        groups = assign(sides[0].lengths[step.pairs], sides[1].lengths[step.pairs], k, shape)
        batches = [pack(*sides, step.pairs[group], shape, PAD) for group in groups]
        for batch in batches:
            check_batch(batch, shape)
        packed = sorted(pair for batch in batches for pair in unpack(batch))
        assert packed == sorted((src[i], tgt[i]) for i in step.pairs)
        assert sum(batch.num_src_tokens for batch in batches) == step.src_lengths.sum()
        assert sum(batch.num_tgt_tokens for batch in batches) == step.tgt_lengths.sum()


@pytest.mark.parametrize("longest", [8, 12, 16, 32])
def test_one_side_much_longer_than_the_other_and_short_sentences(longest: int) -> None:
    """The dummies that cover the long side's tail have room on the short side too, and no step becomes a hundred."""
    rng = np.random.default_rng(longest)
    for batch_tokens in rng.integers(9000, 12_000, 3).tolist():
        src, tgt = rng.integers(1, longest + 1, 3000).astype(np.int32), np.ones(3000, dtype=np.int32)
        plan = sampler(src, tgt, batch_tokens)
        k, shape = micro_batch_shape(batch_tokens, -(-batch_tokens // 4), plan.ratio, longest, None)
        step = plan.step(SamplerState())
        groups = assign(src[step.pairs], tgt[step.pairs], k, shape)
        assert len(groups) == k
        sides = (side(random_ids(lengths.tolist(), PAD, 1)) for lengths in (src, tgt))
        check_batch(pack(*sides, step.pairs[groups[0]], shape, PAD), shape)


def test_a_batch_holds_exactly_these_sentences() -> None:
    batch = pack_sentences([[5, 6, 0], [0]], [[0], [7, 0]], pad_id=9)
    assert batch.src_ids.tolist() == [5, 6, 0, 0]
    assert batch.src_offsets.tolist() == [0, 3, 4]
    assert batch.tgt_in_ids.tolist() == [9, 9, 7]
    assert (batch.num_sentences, batch.max_tokens) == (2, 3)
