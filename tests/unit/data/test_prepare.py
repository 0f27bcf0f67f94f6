"""From text files to stores: every pair is accounted for, what is held out never trains, nothing is left half done."""

import logging
import random
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtx.config import settings
from mtx.config.schema import Config, TrainText
from mtx.data import held_out
from mtx.data import prepare as module
from mtx.data.prepare import prepare
from mtx.data.token_store import PreparedData, TokenStore, load_prepared
from mtx.errors import DamagedFileError, DataError, UsageError
from mtx.storage import disk
from mtx.storage.model_description import info_of
from mtx.storage.run_files import is_prepared

Pair = tuple[str, str]
WORDS = ["".join(random.Random(n).choices("abcdefghijklmnop", k=2 + n % 6)) for n in range(120)]


def pairs(num_pairs: int, seed: int = 1) -> list[Pair]:
    """Different pairs with different sources."""
    rng = random.Random(seed)
    translations: dict[str, str] = {}
    while len(translations) < num_pairs:
        words = rng.choices(WORDS, k=rng.randint(3, 10))
        translations[" ".join(words)] = " ".join(word.upper() for word in reversed(words))
    return list(translations.items())


def write(path: Path, text: Sequence[Pair]) -> None:
    path.with_name(path.name + ".xx").write_text("".join(f"{src}\n" for src, _ in text), encoding="utf-8", newline="")
    path.with_name(path.name + ".yy").write_text("".join(f"{tgt}\n" for _, tgt in text), encoding="utf-8", newline="")


def make_config(tmp_path: Path, *overrides: str, train: tuple[Any, ...] = ("train",)) -> Config:
    keys = [f"data.dir={tmp_path}", "data.src=xx", "data.tgt=yy", *overrides]
    config = settings.resolve(None, keys).config
    return config.model_copy(update={"data": config.data.model_copy(update={"train": train})})


def run(tmp_path: Path, *overrides: str, out: str = "out", train: tuple[Any, ...] = ("train",)) -> PreparedData:
    prepare(make_config(tmp_path, *overrides, train=train), tmp_path / out)
    return load_prepared(tmp_path / out)


GIVEN = ("data.valid=dev", "data.test=flickr,news")


@pytest.fixture
def train_text(tmp_path: Path) -> list[Pair]:
    """Training text with a validation and two test sets beside it."""
    text = pairs(330)
    write(tmp_path / "dev", text[300:310])
    write(tmp_path / "flickr", text[310:320])
    write(tmp_path / "news", text[320:])
    write(tmp_path / "train", text[:300])
    return text[:300]


def text_of(store: TokenStore) -> list[Pair]:
    return list(zip(store.src_texts(), store.tgt_texts(), strict=True))


def conserves(report: dict[str, Any]) -> bool:
    dropped = sum(entry["pairs"] for entry in report["dropped"].values())
    parts = [corpus["kept"] + corpus["held_out"] + sum(corpus["dropped"].values()) for corpus in report["corpora"]]
    whole = [corpus["read"] for corpus in report["corpora"]]
    return report["kept"] + report["held_out"] + dropped == report["read"] == sum(whole) and parts == whole


def test_clean_text_passes_through_whole(tmp_path: Path, train_text: list[Pair]) -> None:
    data = run(tmp_path, *GIVEN)
    assert text_of(data.train) == train_text
    assert list(data.tests) == ["flickr", "news"] and data.valid.num_pairs == 10
    for store in (data.train, data.valid, *data.tests.values()):
        for side, texts in ((store.src, store.src_texts()), (store.tgt, store.tgt_texts())):
            ids = side.sentences(np.arange(side.num_sentences))
            assert ids == data.tokenizer.encode(texts) and data.tokenizer.decode(ids) == texts
    assert conserves(data.report) and data.report["kept"] == 300 and data.report["dropped"] == {}
    assert data.report["src_tokens"] == data.train.src.lengths.sum()
    assert data.report["src_tgt_ratio"] == data.train.src.lengths.sum() / data.train.tgt.lengths.sum()
    assert data.report["pieces"] == data.tokenizer.num_pieces


def test_the_directory_holds_what_the_paths_name(tmp_path: Path, train_text: list[Pair]) -> None:
    assert not is_prepared(tmp_path / "out")
    run(tmp_path, *GIVEN)
    assert is_prepared(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "train.arrow", "valid.arrow", "test.flickr.arrow", "test.news.arrow",
        "report.json", "settings.json", "tokenizer.model", "tokenizer.json", "manifest.json",
    }  # fmt: skip


def test_every_pair_is_accounted_for(tmp_path: Path, train_text: list[Pair]) -> None:
    long = " ".join("xyzxyzq" for _ in range(100))
    bad = [("", "a"), ("same", "same"), ("a\x07b", "c"), (long, long.upper())]
    bad = [train_text[3], *bad, train_text[5], ("x", "y" * 900)]
    write(tmp_path / "train", train_text[:100] + bad + train_text[100:])
    data = run(tmp_path, *GIVEN, "data.max_tokens=64")
    dropped = data.report["dropped"]
    assert conserves(data.report) and data.report["read"] == 307 and data.report["kept"] == 300
    assert {reason: entry["pairs"] for reason, entry in dropped.items()} == {
        "duplicate": 2, "empty": 1, "identical": 1, "control characters": 1, "too long": 1, "length ratio": 1,
    }  # fmt: skip
    assert dropped["control characters"]["example"] == {"corpus": "train", "line": 104, "src": "a\\x07b", "tgt": "c"}
    assert dropped["too long"]["example"]["line"] == 105 and len(dropped["too long"]["example"]["src"]) == 80
    assert dropped["duplicate"]["example"]["line"] == 101
    assert text_of(data.train) == train_text
    assert data.train.lines(np.arange(300)) == [*range(1, 101), *range(108, 308)]
    assert max(data.train.src.lengths.max(), data.train.tgt.lengths.max()) <= 64


def test_the_first_of_many_is_the_example(tmp_path: Path, train_text: list[Pair]) -> None:
    words = ["".join(random.Random(number).choices("qrstuvwxyz", k=1000)) for number in range(3)]  # of many pieces
    write(tmp_path / "train", [*train_text, *((word, word.upper()) for word in words), *train_text[:2]])
    data = run(tmp_path, *GIVEN, "data.max_tokens=100", "tokenizer.vocab_size=330")
    example = {"corpus": "train", "line": 301, "src": words[0][:80], "tgt": words[0][:80].upper()}
    assert data.report["dropped"]["too long"] == {"pairs": 3, "example": example}
    assert data.report["dropped"]["duplicate"]["example"]["line"] == 304
    assert data.report["src_tokens"] == data.train.src.lengths.sum()


def test_missing_values_are_counted_and_not_dropped(tmp_path: Path, train_text: list[Pair]) -> None:
    """A long source drops its pair for the ratio of lengths, and the cell is shown all the same."""
    assert run(tmp_path, *GIVEN).report["missing_values"] == {"pairs": 0, "example": None}
    long = " ".join(f"word{number}" for number in range(20))
    cells = [("a dog", "nan"), ("a cat", "#N/A"), ("NULL", "a cow"), (long, "#REF!"), ("nan", "nan")]
    write(tmp_path / "train", train_text[:40] + cells + train_text[40:])
    data = run(tmp_path, *GIVEN, out="with-cells")
    example = {"corpus": "train", "line": 41, "src": "a dog", "tgt": "nan"}
    assert data.report["missing_values"] == {"pairs": 5, "example": example} and conserves(data.report)
    assert {reason: entry["pairs"] for reason, entry in data.report["dropped"].items()} == {
        "length ratio": 1, "identical": 1,
    }  # fmt: skip
    assert text_of(data.train) == train_text[:40] + cells[:3] + train_text[40:]


def test_corpora_bring_weights_and_tags(tmp_path: Path, train_text: list[Pair]) -> None:
    write(tmp_path / "back", pairs(50, seed=2) + train_text[:5])
    train = ("train", TrainText(name="back", weight=0.5, tag="BT"))
    data = run(tmp_path, *GIVEN, train=train)
    assert data.train.weights.tolist() == [1.0, 0.5] and data.train.corpus.tolist() == [0] * 300 + [1] * 50
    first = data.train.src.tokens[data.train.src.locate(np.arange(350))[0]]
    assert set(first[300:].tolist()) == {data.tokenizer.tags["BT"]} and max(first[:300]) < data.tokenizer.num_pieces
    assert data.train.tgt.tokens[data.train.tgt.locate(np.arange(350))[0]].max() < data.tokenizer.num_pieces
    assert [corpus["dropped"] for corpus in data.report["corpora"]] == [{}, {"duplicate": 5}] and conserves(data.report)


def test_weights_that_leave_an_epoch_without_a_sentence_are_refused(tmp_path: Path, train_text: list[Pair]) -> None:
    """A step would go through an epoch after another without finding a sentence."""
    write(tmp_path / "back", pairs(50, seed=2))

    def weighted(train: float, back: float) -> tuple[TrainText, TrainText]:
        return TrainText(name="train", weight=train), TrainText(name="back", weight=back)

    expected = "the weights 1e-09 for the 300 of train, 0.01 for the 50 of back an epoch would have 0.5 pairs"
    with pytest.raises(UsageError, match=f"^data.train: with {expected}; expected at least 1$"):
        run(tmp_path, *GIVEN, train=weighted(1e-9, 0.01))
    assert not (tmp_path / "out").exists()
    assert run(tmp_path, *GIVEN, out="smallest", train=weighted(0.0034, 1e-9)).train.num_pairs == 350
    assert run(tmp_path, *GIVEN, out="other", train=weighted(1e-9, 0.02)).train.num_pairs == 350


def test_an_epoch_is_judged_by_what_is_left_of_it(tmp_path: Path, train_text: list[Pair]) -> None:
    words = ["".join(random.Random(number).choices("qrstuvwxyz", k=1000)) for number in range(3)]  # of many pieces
    write(tmp_path / "back", [(word, word.upper()) for word in words])
    train = (TrainText(name="train", weight=1e-9), TrainText(name="back", weight=1.0))
    with pytest.raises(UsageError, match="an epoch would have 3e-07 pairs"):
        run(tmp_path, *GIVEN, "data.max_tokens=100", "tokenizer.vocab_size=330", train=train)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("weight", [1_000_001, 1e30, 1e308])
def test_weights_that_make_an_epoch_too_large_are_refused(tmp_path: Path, weight: float) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"data: {{src: en, tgt: de, train: [{{name: a.tsv, weight: {weight!r}}}]}}")
    expected = re.escape(f"data.train[0].weight: expected at most 1000000, got {weight!r}")
    with pytest.raises(UsageError, match=expected):
        settings.resolve(str(path), [])


@pytest.mark.parametrize("weight, has_windows", [(1.0, False), (1.3, False), (1.4, True)])
def test_an_epoch_of_many_pairs_has_windows(
    tmp_path: Path, train_text: list[Pair], monkeypatch: pytest.MonkeyPatch, weight: float, has_windows: bool
) -> None:
    monkeypatch.setattr(module, "WINDOW_PAIRS", 400)  # of 300 pairs
    store = run(tmp_path, *GIVEN, train=(TrainText(name="train", weight=weight),)).train
    assert (store.window == 400) == has_windows == (b"window" in (tmp_path / "out" / "train.arrow").read_bytes())


def test_given_sets_are_used_as_given_and_leaks_are_counted(tmp_path: Path, train_text: list[Pair]) -> None:
    long = " ".join(["abc"] * 300)
    spaced = (f" {train_text[8][0]}\x0c", train_text[8][1])
    strange = [("", ""), ("same", "same"), ("a\u2028b\x0c", "c\td "), (long, "D"), train_text[7], spaced]
    write(tmp_path / "flickr", strange)
    write(tmp_path / "train", [*train_text, (train_text[7][0], "ANOTHER ONE")])
    data = run(tmp_path, *GIVEN)
    store = data.tests["flickr"]
    assert text_of(store) == strange
    assert store.lines(np.arange(6)) == [1, 2, 3, 4, 5, 6]
    assert store.src.lengths.max() == 256 and store.src.sentences(np.array([3]))[0][255] == 0
    report = data.report["tests"]["flickr"]
    assert report["would_drop"] == {"empty": 1, "identical": 1, "length ratio": 1}
    assert report["cut_to_max_tokens"] == 1 and report["held_out"] is False and report["pairs"] == 6
    assert report["leaks"]["train_pairs"] == 3 and report["leaks"]["example"]["line"] == 8
    nothing = {"train_pairs": 0, "example": None, "near_pairs": 0, "near_examples": [], "lines": []}
    assert data.report["tests"]["news"]["leaks"] == nothing
    assert data.report["kept"] == 301


def test_twins_in_another_unicode_form_are_leaks_and_duplicates(tmp_path: Path) -> None:
    text = [(f"\u00e9{src}", f"\u00fc{tgt}") for src, tgt in pairs(300)]
    twins = [(unicodedata.normalize("NFD", src), unicodedata.normalize("NFD", tgt)) for src, tgt in text]
    write(tmp_path / "train", [*text, *twins])
    data = run(tmp_path)
    held_out = [src for store in (data.valid, data.tests["heldout"]) for src in store.src_texts()]
    known = {unicodedata.normalize("NFC", src) for src in data.train.src_texts()}
    assert len(held_out) == 30 and not known & set(held_out)
    assert data.report["dropped"]["duplicate"]["pairs"] == 300
    write(tmp_path / "dev", twins[:20])
    write(tmp_path / "train", text)
    leaks = run(tmp_path, "data.valid=dev", "data.test=dev", out="given").report["valid"]["leaks"]
    assert leaks["train_pairs"] == 20


def test_missing_sets_are_held_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = pairs(400)
    write(tmp_path / "train", text)
    with caplog.at_level(logging.INFO, logger="mtx.data"):
        data = run(tmp_path)
    valid, test, train = (set(text_of(store)) for store in (data.valid, data.tests["heldout"], data.train))
    assert (len(valid), len(test), len(train)) == (20, 20, 360) and valid | test | train == set(text)
    assert conserves(data.report) and data.report["held_out"] == 40 and data.report["valid"]["held_out"] is True
    assert data.report["tests"]["heldout"]["pairs"] == 20
    assert "no validation set configured: holding out 20 source sentences" in caplog.text
    assert "no test set configured: holding out 20 source sentences" in caplog.text


def test_pairs_with_the_target_of_a_held_out_pair_are_dropped(tmp_path: Path) -> None:
    """Back-translated text has the references of the test set with other sources, and own text may have a few."""
    text = pairs(400)
    write(tmp_path / "train", text)
    alone = run(tmp_path, out="alone")
    write(tmp_path / "bt", [(f"back {src}", tgt) for src, tgt in text])
    data = run(tmp_path, train=("train", TrainText(name="bt", tag="BT")))
    references = {*data.valid.tgt_texts(), *data.tests["heldout"].tgt_texts()}
    assert len(references) == 40 and not references & set(data.train.tgt_texts())
    assert data.report["dropped"]["target held out"]["pairs"] == 40
    assert data.report["corpora"][1]["dropped"] == {"target held out": 40} and conserves(data.report)
    for name in ("valid", "tests"):
        assert data.report[name] == alone.report[name], "the sets are the same"
    [(src, tgt), *_] = text_of(data.valid)
    write(tmp_path / "train", [*text, (f"other {src}", tgt)])
    grown = run(tmp_path, out="grown")
    assert grown.report["dropped"]["target held out"]["pairs"] == 1 and conserves(grown.report)
    assert (src, tgt) in text_of(grown.valid) and tgt not in grown.train.tgt_texts()


def test_leaks_into_a_given_set_are_counted_on_both_sides(tmp_path: Path, train_text: list[Pair]) -> None:
    write(tmp_path / "bt", [(f"back {src}", tgt) for src, tgt in pairs(310)[300:]])
    data = run(tmp_path, *GIVEN, train=("train", TrainText(name="bt", tag="BT")))
    leaks = data.report["valid"]["leaks"]
    assert leaks["train_pairs"] == 10 and (leaks["example"]["corpus"], leaks["example"]["line"]) == ("bt", 1)
    assert data.report["kept"] == 310 and data.report["dropped"] == {}


def test_omissions_in_the_training_text_are_counted(tmp_path: Path, train_text: list[Pair]) -> None:
    write(tmp_path / "train", [*train_text[:98], ("seven words, and one full stop", "."), ("in 1987", "no")])
    data = run(tmp_path, *GIVEN)
    assert data.report["kept"] == 100 and data.report["suspicious"] == {"short": 0.01, "numbers": 0.01}


def test_only_the_missing_set_is_held_out(tmp_path: Path, train_text: list[Pair]) -> None:
    data = run(tmp_path, "data.valid=dev")
    assert data.valid.num_pairs == 10 and data.tests["heldout"].num_pairs == 15 and data.train.num_pairs == 285


def test_the_largest_held_out_set(tmp_path: Path, train_text: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "MAX_HELD_OUT", 7)
    data = run(tmp_path)
    assert (data.valid.num_pairs, data.tests["heldout"].num_pairs, data.train.num_pairs) == (7, 7, 286)


def test_equal_sources_stay_together(tmp_path: Path) -> None:
    text = [(src, f"{tgt} {ending}") for ending in ("A", "B", "C") for src, tgt in pairs(100)]
    write(tmp_path / "train", text)
    data = run(tmp_path)
    sources = [set(store.src_texts()) for store in (data.train, data.valid, data.tests["heldout"])]
    assert [len(group) for group in sources] == [90, 5, 5]
    assert data.valid.num_pairs == data.tests["heldout"].num_pairs == 15


def test_a_sentence_falls_the_same_way_in_a_larger_corpus(tmp_path: Path) -> None:
    small, large = pairs(300), pairs(300) + pairs(300, seed=5)
    random.Random(3).shuffle(large)
    sets = []
    for name, text in (("small", small), ("large", large)):
        write(tmp_path / name, text)
        data = run(tmp_path, out=f"out-{name}", train=(name,))
        sets.append([set(text_of(store)) & set(small) for store in (data.valid, data.tests["heldout"])])
    for before, after in zip(*sets, strict=True):
        assert before and after and (before <= after or after <= before)
    assert not sets[0][0] & sets[1][1] and not sets[0][1] & sets[1][0]


def test_equal_text_gives_equal_bytes(tmp_path: Path, train_text: list[Pair]) -> None:
    for out in ("a", "b"):
        run(tmp_path, *GIVEN, out=out)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_the_tokenizer_sees_a_sample(tmp_path: Path, train_text: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    learn = module.train_tokenizer

    def spy(sentences: Any, **rest: Any) -> Any:
        seen.append(list(sentences))
        assert seen[-1] == list(sentences)
        return learn(seen[-1], **rest)

    monkeypatch.setattr(module, "train_tokenizer", spy)
    run(tmp_path, *GIVEN, out="whole")
    monkeypatch.setattr(module, "MAX_TOKENIZER_PAIRS", 100)
    run(tmp_path, *GIVEN, out="a")
    run(tmp_path, *GIVEN, out="b")
    run(tmp_path, *GIVEN, "seed=2", out="c")
    assert sorted(seen[0]) == sorted(text for pair in train_text for text in pair)
    assert 140 < len(seen[1]) < 260 and seen[1] == seen[2] != seen[3]


def test_nothing_left_names_the_reasons(tmp_path: Path) -> None:
    write(tmp_path / "train", [("", "a"), ("b", "b"), ("", "c")])
    for overrides in (("data.valid=train", "data.test=train"), ()):
        with pytest.raises(DataError, match=r"no pairs left to train on: 3 read \(2 empty, 1 identical\)"):
            run(tmp_path, *overrides)
    write(tmp_path / "long", [("a b c d e f g h i j", "k l m n o p q r s t")])
    with pytest.raises(DataError, match=r"no pairs left to train on: 1 read \(1 too long\)"):
        run(tmp_path, "data.valid=long", "data.test=long", "data.max_tokens=8", train=("long",))
    write(tmp_path / "empty", [])
    with pytest.raises(DataError, match="no pairs left to train on: 0 read"):
        run(tmp_path, train=("empty",))
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_too_small_to_hold_out(tmp_path: Path) -> None:
    write(tmp_path / "train", pairs(2))
    with pytest.raises(DataError, match=r"no pairs left to train on: 2 read \(2 held out\)"):
        run(tmp_path)
    write(tmp_path / "train", pairs(3))
    data = run(tmp_path)
    assert (data.train.num_pairs, data.valid.num_pairs, data.tests["heldout"].num_pairs) == (1, 1, 1)


@pytest.mark.parametrize("empty, kind", [("dev", "validation"), ("news", "test")])
def test_an_empty_set_is_refused(tmp_path: Path, train_text: list[Pair], empty: str, kind: str) -> None:
    write(tmp_path / empty, [])
    with pytest.raises(DataError, match=f"the {kind} set '{empty}' has no pairs"):
        run(tmp_path, *GIVEN)


@pytest.mark.parametrize("step", ["_clean", "_learn_tokenizer", "_encode_train", "_encode_set", "_report"])
def test_an_interruption_leaves_nothing(
    tmp_path: Path, train_text: list[Pair], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = getattr(module, step)

    def interrupted(*arguments: Any, **options: Any) -> None:
        work(*arguments, **options)
        raise KeyboardInterrupt

    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(module, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, *GIVEN)
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_there_is_not_overwritten(tmp_path: Path, train_text: list[Pair]) -> None:
    run(tmp_path, *GIVEN)
    with pytest.raises(UsageError, match="out: not empty"):
        run(tmp_path, *GIVEN)
    assert is_prepared(tmp_path / "out")


def test_a_changed_file_is_refused_by_name(tmp_path: Path, train_text: list[Pair]) -> None:
    run(tmp_path, *GIVEN)
    path = tmp_path / "out" / "test.news.arrow"
    content = bytearray(path.read_bytes())
    content[TokenStore.load(path).src.locate(np.array([0]))[0][0] * 2] ^= 1  # another word
    path.write_bytes(content)
    TokenStore.load(path)
    with pytest.raises(DamagedFileError, match=r"test\.news\.arrow"):
        load_prepared(tmp_path / "out")


GERMAN = [f"das Mädchen läuft {number} mal über die Straße" for number in range(300)]


def write_german(tmp_path: Path, name: str, codec: str, num_wrong: int, num_pairs: int = 300) -> None:
    """Pairs whose last `num_wrong` targets are in another encoding."""
    (tmp_path / f"{name}.xx").write_text("".join(f"a girl runs {n} times\n" for n in range(num_pairs)))
    codecs = ["utf-8"] * (num_pairs - num_wrong) + [codec] * num_wrong
    lines = [f"{text}\n".encode(codec) for text, codec in zip(GERMAN, codecs, strict=False)]
    (tmp_path / f"{name}.yy").write_bytes(b"".join(lines))


def test_a_few_pairs_that_are_not_utf_8_are_dropped_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_german(tmp_path, "train", "cp1252", 10)
    sides = (tmp_path / f"train.{side}" for side in ("xx", "yy"))
    src, tgt = (side.open("a", encoding="utf-8") for side in sides)
    with src, tgt:
        src.write("a \ufffd runs\n")
        tgt.write("U+FFFD is UTF-8\n")
    data = run(tmp_path)
    dropped = {reason: entry["pairs"] for reason, entry in data.report["dropped"].items()}
    assert dropped == {"not UTF-8": 10, "control characters": 1}
    assert "M\ufffddchen" in data.report["dropped"]["not UTF-8"]["example"]["tgt"]
    place = f"{tmp_path / 'train.yy'}:291: not UTF-8, perhaps WINDOWS-1252"
    assert [m for m in caplog.messages if "UTF-8," in m] == [f"{place}; dropping 10 of the 301 pairs"]


@pytest.mark.parametrize("num_wrong, num_pairs", [(11, 300), (150, 300), (300, 300), (11, 12)])
def test_a_corpus_that_is_largely_not_utf_8_is_refused(tmp_path: Path, num_wrong: int, num_pairs: int) -> None:
    write_german(tmp_path, "train", "cp1252", num_wrong, num_pairs)
    with pytest.raises(DataError) as error:
        run(tmp_path)
    line = num_pairs - num_wrong + 1
    assert str(error.value).startswith(f"{tmp_path / 'train.yy'}:{line}: not UTF-8, perhaps WINDOWS-1252")
    assert error.value.help == f"iconv -f WINDOWS-1252 -t UTF-8 {tmp_path / 'train.yy'} > NEW"
    assert not (tmp_path / "out").exists()


def test_a_table_that_is_not_utf_8_is_refused_by_row_without_a_command_for_text(tmp_path: Path) -> None:
    raw = pa.array([b"a dog", b"a caf\xe9"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    pq.write_table(pa.table({"xx": texts, "yy": texts}), tmp_path / "t.parquet")
    with pytest.raises(DataError) as error:
        run(tmp_path, "data.valid=t.parquet", "data.test=t.parquet", train=("t.parquet",))
    assert str(error.value) == "t.parquet:2: not UTF-8" and error.value.help is None


@pytest.mark.parametrize("key", ["valid", "test"])
def test_validation_and_test_text_that_is_not_utf_8_is_refused(tmp_path: Path, key: str) -> None:
    write_german(tmp_path, "train", "utf-8", 0)
    write_german(tmp_path, "held", "cp1252", 1, 20)
    with pytest.raises(DataError, match=r"held\.yy:20: not UTF-8, perhaps WINDOWS-125"):
        run(tmp_path, f"data.{key}=held")


@pytest.mark.parametrize("key", ["train", "valid", "test"])
def test_utf_16_and_cr_are_refused(tmp_path: Path, key: str) -> None:
    write_german(tmp_path, "train", "utf-8", 0)
    (tmp_path / "wide.tsv").write_text("".join(f"a\t{text}\n" for text in GERMAN), encoding="utf-16-le")
    (tmp_path / "old.tsv").write_text("".join(f"a\t{text}\r" for text in GERMAN), newline="")
    for name, words in (("wide.tsv", "expected UTF-8, got UTF-16LE"), ("old.tsv", "lines end in CR")):
        more: tuple[str, ...] = () if key == "train" else (f"data.{key}={tmp_path / name}",)
        with pytest.raises(DataError, match=rf"{name}: {words}"):
            run(tmp_path, *more, train=("train", str(tmp_path / name)) if key == "train" else ("train",))


@pytest.mark.parametrize("ending, share", [(". Yes", 1.0), ("", 0.0)])
def test_the_share_of_training_lines_with_several_sentences_is_recorded(
    tmp_path: Path, ending: str, share: float
) -> None:
    write(tmp_path / "train", [(f"{src}{ending}", tgt) for src, tgt in pairs(300)])
    data = run(tmp_path, "tokenizer.vocab_size=320")
    assert data.report["multi_sentence_share"] == share
    assert info_of(make_config(tmp_path), data.report)["multi_sentence_share"] == share


def test_codes_that_many_pairs_have_on_both_sides_are_recorded_and_elements_leave_the_text(tmp_path: Path) -> None:
    rows = [
        (f"<b>{src}</b> %s &amp; {{n}} {number}", f"%s <i>{tgt}</i> &amp; {{m}}")
        for number, (src, tgt) in enumerate(pairs(300))
    ]
    write(tmp_path / "train", rows)
    data = run(tmp_path, "tokenizer.vocab_size=320")
    assert data.report["codes"] == info_of(make_config(tmp_path), data.report)["codes"] == ["%s"]
    src, tgt = data.train.src_texts()[0], data.train.tgt_texts()[0]
    assert "<" not in src + tgt and "%s & {n}" in src and tgt.startswith("%s ")


def test_the_disk_that_large_text_needs_is_said_before(
    tmp_path: Path, train_text: list[Pair], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_bytes = sum(path.stat().st_size for path in tmp_path.glob("train.??"))
    factor = 10e9 / num_bytes
    monkeypatch.setattr(module, "_CLEANING_BYTES", factor)
    monkeypatch.setattr(module, "_STORE_BYTES", 2 * factor)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 900_000_000_000)
    with caplog.at_level(logging.INFO, logger="mtx.data"):
        run(tmp_path, *GIVEN)
        monkeypatch.setattr(disk, "free_bytes", lambda path: 5_000_000_000)
        run(tmp_path, *GIVEN, out="full")
        monkeypatch.undo()
        run(tmp_path, *GIVEN, out="small")
    said = [(record.levelname, record.message) for record in caplog.records if record.message.endswith("are free")]
    needs = "cleaning needs about 10 GB, the store needs about 20 GB"
    assert said == [("INFO", f"{needs}; 900 GB are free"), ("WARNING", f"{needs}; 5 GB are free")]
