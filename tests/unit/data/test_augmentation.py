"""Some pairs of an epoch have changed text, by the seed and the place in the epoch alone, and they still are pairs."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx.config.schema import Config, TokenizerConfig
from mtx.config.settings import resolve
from mtx.data import token_store
from mtx.data.augmentation import AUGMENTATIONS, EpochText, epoch_text, make_typing_errors
from mtx.data.glossary import Glossary
from mtx.data.sampler import BatchSampler, Encode, SamplerState, steps
from mtx.data.token_store import TokenStore, store_batch
from mtx.data.tokenizer import EOS_ID, Tokenizer, train_tokenizer
from mtx.evaluation.test_sets import changed_copies
from mtx.scoring.metrics import TestSet
from mtx.training.build import text_and_sampler

NUM_PAIRS, TAG = 60, "BT"
SRC = [f"a small dog number {'abcdef'[n % 6]} sees the house." for n in range(NUM_PAIRS)]
TGT = [f"ein kleiner Hund Nummer {'abcdef'[n % 6]} sieht das Haus." for n in range(NUM_PAIRS)]
PAIRS = np.arange(NUM_PAIRS)


def sampler_of(config: Config, train: TokenStore, tokenizer: Tokenizer, terms: Glossary | None = None) -> BatchSampler:
    data: Any = SimpleNamespace(train=train, tokenizer=tokenizer, terms=terms)
    return text_and_sampler(config, data)[1]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = TokenizerConfig.model_validate({"vocab_size": 340})
    return train_tokenizer([*SRC, *TGT], config, 2 * NUM_PAIRS, [TAG])


def write_store(
    tokenizer: Tokenizer, directory: Path, tags: list[str | None], src: list[str], tgt: list[str]
) -> TokenStore:
    src_ids = [tokenizer.encode([line], tokenizer.frame("", "", tag))[0] for line, tag in zip(src, tags, strict=True)]
    ids = src_ids, tokenizer.encode(tgt, target=True)
    token_store.write_store(
        directory / "train.arrow",
        tokenizer.num_ids,
        [1.0],
        [store_batch(tokenizer.num_ids, *ids, np.arange(len(src)), np.zeros(len(src)), src, tgt)],
    )
    return TokenStore.load(directory / "train.arrow")


@pytest.fixture(scope="module")
def store(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    half = NUM_PAIRS // 2
    return write_store(tokenizer, tmp_path_factory.mktemp("store"), [None] * half + [TAG] * half, SRC, TGT)


def config_of(*overrides: str) -> Config:
    return resolve(None, ["training.batch_tokens=1000", *overrides]).config


def changer(store: TokenStore, tokenizer: Tokenizer, seed: int = 7, max_tokens: int = 200, **rates: float) -> Encode:
    keys = [f"seed={seed}", f"data.max_tokens={max_tokens}", *(f"training.{name}={n}" for name, n in rates.items())]
    encode = epoch_text(config_of(*keys), store, tokenizer, None)
    assert encode is not None
    return encode


def ids_of(sides: tuple[Any, ...]) -> list[tuple[list[int], list[int]]]:
    src, tgt = (side.sentences(np.arange(len(side.lengths))) for side in sides)
    return list(zip(src, tgt, strict=True))


def test_the_rate_is_the_share_of_pairs_that_change_and_each_epoch_changes_others(
    store: TokenStore, tokenizer: Tokenizer
) -> None:
    changed = changer(store, tokenizer, upper_case=0.25)
    plain, counts, places = ids_of((store.src, store.tgt)), 0, set()
    for epoch in range(20):
        for row, (src_ids, tgt_ids) in enumerate(ids_of(changed(epoch, 0, PAIRS))):
            if (src_ids, tgt_ids) != plain[row]:
                counts += 1
                places.add(row)
                assert tokenizer.decode([src_ids, tgt_ids]) == [SRC[row].upper(), TGT[row].upper()]
                assert (src_ids[0] == tokenizer.tags[TAG]) == (row >= NUM_PAIRS // 2)
                assert src_ids[-1] == tgt_ids[-1] == EOS_ID
    assert 0.2 < counts / (20 * NUM_PAIRS) < 0.3
    assert len(places) > 50


def test_a_chunk_is_a_function_of_seed_epoch_and_number(store: TokenStore, tokenizer: Tokenizer) -> None:
    rates = {"upper_case": 0.2, "typing_errors": 0.5, "no_end_punctuation": 0.3}
    chunk = ids_of(changer(store, tokenizer, **rates)(3, 2, PAIRS))
    again = changer(store, tokenizer, **rates)
    assert ids_of(again(3, 1, PAIRS)) != chunk and ids_of(again(2, 2, PAIRS)) != chunk
    assert ids_of(again(3, 2, PAIRS)) == chunk
    assert ids_of(changer(store, tokenizer, seed=8, **rates)(3, 2, PAIRS)) != chunk


def test_a_pair_that_would_become_too_long_stays(store: TokenStore, tokenizer: Tokenizer) -> None:
    longest = int(max(store.src.lengths.max(), store.tgt.lengths.max()))
    everything = ids_of(changer(store, tokenizer, upper_case=1.0)(0, 0, PAIRS))
    assert max(len(ids) for pair in everything for ids in pair) > longest
    limited = ids_of(changer(store, tokenizer, max_tokens=longest, upper_case=1.0)(0, 0, PAIRS))
    plain = ids_of((store.src, store.tgt))
    assert max(len(ids) for pair in limited for ids in pair) <= longest
    assert any(pair == old for pair, old in zip(limited, plain, strict=True))


def test_a_step_has_room_for_a_source_that_became_longer_than_all_others(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Targets in capital letters have many tokens, so there is little room for sources."""
    src, tgt = ["house."] * NUM_PAIRS, [TGT[0].upper()] * NUM_PAIRS
    short = write_store(tokenizer, tmp_path, [None] * NUM_PAIRS, src, tgt)
    config = config_of("training.upper_case=0.5", "training.batch_tokens=64", "data.max_tokens=64")
    sampler = sampler_of(config, short, tokenizer)
    longest = max(len(ids) for ids in tokenizer.encode(["HOUSE."]))
    assert round(64 * sampler.ratio) < longest and int(short.src.lengths.max()) < longest
    assert all(len(step.pairs) for step in steps(sampler, SamplerState(), 100))


def test_a_share_of_the_pairs_has_translations_beside_terms(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = TokenizerConfig.model_validate({"vocab_size": 340})
    marked = train_tokenizer([*SRC, *TGT], config, 2 * NUM_PAIRS, [TAG], has_marks=True)
    store = write_store(marked, tmp_path, [TAG] * NUM_PAIRS, SRC, TGT)
    config = config_of("training.upper_case=0.2", "data.terms=auto", "seed=7")
    encode = epoch_text(config, store, marked, Glossary({"dog": "Hund", "house": "Haus"}))
    assert encode is not None
    marks, found = {*marked.marks.values()}, 0
    for epoch in range(20):
        for src_ids, tgt_ids in ids_of(encode(epoch, 0, PAIRS)):
            assert src_ids[0] == marked.tags[TAG] and not marks & {*tgt_ids}
            if marks & {*src_ids}:
                found += 1
                assert sum(token in marks for token in src_ids) % 3 == 0
                assert not marked.decode([tgt_ids])[0].isupper()
    assert 0.12 < found / (20 * NUM_PAIRS) < 0.2  # those in capital letters have none of these terms
    config = config_of("data.terms=auto")
    assert sampler_of(config, store, marked, Glossary({"dog": "Hund"})).step(SamplerState()).sides


def test_bpe_dropout_cuts_the_changed_text(store: TokenStore, tokenizer: Tokenizer) -> None:
    changed = sampler_of(config_of("training.upper_case=0.3"), store, tokenizer).step(SamplerState()).sides
    both = config_of("training.upper_case=0.3", "training.bpe_dropout=0.3")
    cut = sampler_of(both, store, tokenizer).step(SamplerState()).sides
    plain, sampled = ids_of(changed), ids_of(cut)
    assert plain != sampled
    for old, new in zip(plain, sampled, strict=True):
        assert tokenizer.decode(list(old)) == tokenizer.decode(list(new))
    assert any(text.isupper() for text in tokenizer.decode([src for src, _ in sampled]))


def shout(src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
    """An augmentation of somebody who has read what one is."""
    return f"{src}!{rng.randrange(3)}", f"{tgt}!"


def test_any_function_of_the_type_is_an_augmentation(store: TokenStore, tokenizer: Tokenizer) -> None:
    sides = EpochText(config_of(), store, tokenizer, [(AUGMENTATIONS["upper_case"], 1.0), (shout, 1.0)])(0, 0, PAIRS)
    src, tgt = (tokenizer.decode(side) for side in map(list, zip(*ids_of(sides), strict=True)))
    assert {line[-2:] for line in src} == {"!0", "!1", "!2"} and tgt == [f"{line.upper()}!" for line in TGT]


# --- what an augmentation does to a pair ---


@pytest.mark.parametrize(
    "name, src, tgt",
    [
        ("upper_case", "IT'S A DOG.", "EIN STRASSENHUND! (JA.)"),
        ("title_case", "It's A Dog.", "Ein Straßenhund! (ja.)"),
        ("no_end_punctuation", "It's a dog", "Ein Straßenhund! (ja.)"),
    ],
)
def test_changes_of_both_sides(name: str, src: str, tgt: str) -> None:
    changed = AUGMENTATIONS[name]("It's a dog.", "Ein Straßenhund! (ja.)", random.Random(1))
    assert changed == (src, tgt)


@pytest.mark.parametrize(
    "text, without",
    [("a dog!?…", "a dog"), ("一只狗。", "一只狗"), ("...", "..."), ("a dog . ", "a dog"), ("2.5", "2.5")],
)
def test_end_punctuation(text: str, without: str) -> None:
    assert AUGMENTATIONS["no_end_punctuation"](text, text, random.Random(1)) == (without, without)


def test_typing_errors_are_in_a_tenth_of_the_longer_words_of_the_source() -> None:
    rng, src = random.Random(1), " ".join(["abcdef"] * 5000)
    words = make_typing_errors(src, src, rng)[0].split()
    wrong = [word for word in words if word != "abcdef"]
    assert 400 < len(wrong) < 600 and make_typing_errors("dog a2b4", src, rng) == ("dog a2b4", src)
    assert {word for word in wrong if len(word) == 5} == {"acdef", "abdef", "abcef", "abcdf"}
    assert {word for word in wrong if len(word) == 7} == {"abbcdef", "abccdef", "abcddef", "abcdeef"}
    assert {word for word in wrong if len(word) == 6} == {"acbdef", "abdcef", "abcedf", "abcdfe"}


def test_copies_of_a_test_set_are_the_same_at_every_call() -> None:
    test_set = TestSet("set", "de", ["a nicely written sentence."] * 9, ["ein Satz."] * 9, [["Ein Satz!"] * 9])
    copies = changed_copies(test_set)
    assert copies == changed_copies(test_set)
    assert [copy.name for copy in copies] == [f"set, {name.replace('_', ' ')}" for name in AUGMENTATIONS]
    assert copies[0].more_references == [["EIN SATZ!"] * 9] and copies[0].references == ["EIN SATZ."] * 9
    assert len(set(copies[3].sources)) > 1 and copies[3].references == test_set.references
