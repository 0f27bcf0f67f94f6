"""Each epoch has other pieces of the same text, and what a place of an epoch holds depends on nothing else."""

import random

import numpy as np
import pytest
import sentencepiece

from mtx.config.schema import TokenizerConfig
from mtx.config.settings import resolve
from mtx.data import bpe_dropout
from mtx.data import sampler as module
from mtx.data.augmentation import epoch_text
from mtx.data.bpe_dropout import BpeDropout
from mtx.data.sampler import BatchSampler, SamplerState, steps
from mtx.data.token_store import Side, TokenStore, store_batch, write_store
from mtx.data.tokenizer import Tokenizer, train_tokenizer

NUM_PAIRS, MAX_TOKENS, TAG = 90, 24, "BT"


def texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefgh", k=5)) for _ in range(40)]
    return [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(NUM_PAIRS)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = TokenizerConfig.model_validate({"vocab_size": 330})
    return train_tokenizer([*texts(1), *texts(2)], config, NUM_PAIRS, [TAG])


@pytest.fixture(scope="module")
def store(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    path, src, tgt = tmp_path_factory.mktemp("store") / "train.arrow", texts(1), texts(2)
    half = NUM_PAIRS // 2
    tagged = tokenizer.encode(src[half:], tokenizer.frame("", "", TAG))
    ids = [*tokenizer.encode(src[:half]), *tagged], tokenizer.encode(tgt, target=True)
    write_store(
        path,
        tokenizer.num_ids,
        [1.0],
        [store_batch(tokenizer.num_ids, *ids, np.arange(NUM_PAIRS), np.zeros(NUM_PAIRS), src, tgt)],
    )
    return TokenStore.load(path)


def plan(store: TokenStore, tokenizer: Tokenizer, rate: float = 0.3) -> BatchSampler:
    keys = [f"training.bpe_dropout={rate}", "seed=7", f"data.max_tokens={MAX_TOKENS}", "training.batch_tokens=100"]
    encode = epoch_text(resolve(None, keys).config, store, tokenizer, None)
    return BatchSampler(store.epoch_order(7), 100, 4096, encode)


def sentences(side: Side) -> list[list[int]]:
    return side.sentences(np.arange(side.num_sentences))


def epoch_of(sampler: BatchSampler, epoch: int) -> list[tuple[int, list[int], list[int]]]:
    """Number, source ids and target ids of each pair of an epoch, in its order."""
    found, position = [], SamplerState(epoch, 0)
    while position.epoch == epoch:
        step = sampler.step(position)
        rows = list(zip(step.pairs.tolist(), *map(sentences, step.sides), strict=False))
        found += rows[: len(step.pairs)]
        assert step.src_lengths.sum() == sum(len(src) for _, src, _ in rows[: len(step.pairs)])
        position = step.position_after
    return found[:NUM_PAIRS]


@pytest.fixture(autouse=True, params=[16, 4096])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", request.param)


def test_an_epoch_has_each_pair_with_other_pieces_of_the_same_text(store: TokenStore, tokenizer: Tokenizer) -> None:
    src, tgt = store.src_texts(), store.tgt_texts()
    plain = [sentences(store.src), sentences(store.tgt)]
    sampled, changed = plan(store, tokenizer), 0
    for epoch in (0, 1):
        rows = epoch_of(sampled, epoch)
        assert sorted(number for number, _, _ in rows) == list(range(NUM_PAIRS))
        for number, src_ids, tgt_ids in rows:
            assert tokenizer.decode([src_ids, tgt_ids]) == [src[number], tgt[number]]
            assert max(len(src_ids), len(tgt_ids)) <= MAX_TOKENS
            assert (src_ids[0] == tokenizer.tags[TAG]) == (number >= NUM_PAIRS // 2)
            assert src_ids[-1] == tgt_ids[-1] == 0
            changed += src_ids != plain[0][number]
            changed += tgt_ids != plain[1][number]
    assert changed > NUM_PAIRS
    assert epoch_of(sampled, 0) != epoch_of(sampled, 1)


def test_a_step_is_a_function_of_its_position(store: TokenStore, tokenizer: Tokenizer) -> None:
    whole = [(s.pairs.tolist(), sentences(s.sides[0])[: len(s.pairs)], s.position_after)
             for s in steps(plan(store, tokenizer), SamplerState(), 25)]  # fmt: skip
    fresh = plan(store, tokenizer)
    for earlier, (pairs, src, after) in list(zip(whole, whole[1:], strict=False))[::-1]:
        step = fresh.step(earlier[2])
        assert (step.pairs.tolist(), sentences(step.sides[0])[: len(step.pairs)], step.position_after) == (
            pairs,
            src,
            after,
        )


def test_a_sentence_that_would_become_too_long_keeps_its_pieces(store: TokenStore, tokenizer: Tokenizer) -> None:
    longest = int(store.src.lengths.max())
    plain = sentences(store.src)
    src = BpeDropout(tokenizer, 1, 0.9, longest, target=False)(plain, np.random.default_rng(1))
    assert max(map(len, src)) <= longest
    row = int(store.src.lengths.argmax())
    assert src[row] == plain[row]


def test_without_dropout_the_merges_are_those_of_sentencepiece(store: TokenStore, tokenizer: Tokenizer) -> None:
    for side, target in ((store.src, False), (store.tgt, True)):
        dropout = BpeDropout(tokenizer, 1, 0.0, MAX_TOKENS, target)
        assert dropout(sentences(side), np.random.default_rng(1)) == sentences(side)


def test_with_dropout_the_pieces_are_as_many_as_sentencepiece_draws(store: TokenStore, tokenizer: Tokenizer) -> None:
    dropout, plain = BpeDropout(tokenizer, 1, 0.2, 1000, target=True), sentences(store.tgt)
    ours = np.mean([sum(map(len, dropout(plain, np.random.default_rng(epoch)))) for epoch in range(30)])
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.models.source)
    texts = store.tgt_texts() * 30
    theirs = processor.encode(texts, enable_sampling=True, alpha=0.2, nbest_size=-1)
    assert ours == pytest.approx((sum(map(len, theirs)) + len(texts)) / 30, rel=0.03)


def test_the_cache_is_bounded_by_its_ids_and_changes_no_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without spaces a word is a sentence, so that a bound on the number of entries bounds no memory."""
    rng = random.Random(3)
    letters = [chr(0x4E00 + number) for number in range(60)]
    text = ["".join(rng.choices(letters, k=rng.randint(5, 40))) for _ in range(200)]
    config = TokenizerConfig.model_validate({"vocab_size": 330})
    tokenizer = train_tokenizer([*text, *texts(1)], config, NUM_PAIRS, [])
    ids = tokenizer.encode([*text, *texts(1)], target=True)
    whole = BpeDropout(tokenizer, 5, 0.3, 1000, target=True)
    expected = [whole(ids, np.random.default_rng(epoch)) for epoch in (0, 1)]
    monkeypatch.setattr(bpe_dropout, "_MAX_IDS", 1500, raising=False)
    bounded = BpeDropout(tokenizer, 5, 0.3, 1000, target=True)
    for epoch in (0, 1):
        for number, draws in enumerate(np.random.default_rng(epoch).integers(32, size=(len(ids), 60)).tolist()):
            bounded.cut(ids[number], draws)
            assert sum(len(word) + len(cut) for (word, _), cut in bounded._cuts.items()) <= 1500 + 100
    assert [bounded(ids, np.random.default_rng(epoch)) for epoch in (0, 1)] == expected
    assert len(whole._cuts) > 200, "ordinary text stays in it"
