"""The layout of token ids, and that no text at all breaks, misleads or escapes the tokenizer."""

import json
import random
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtx.config import TokenizerConfig
from mtx.data.tokenizer import EOS_ID, NUM_RESERVED, UNK_ID, Form, Tokenizer, normalize, train_tokenizer
from mtx.errors import DamagedFileError, DataError, MtxError, UsageError

HOSTILE = [
    "", " ", "   ", "\u3000", "</s>", "<unk>", "<pad>", "<0x41>", "<BT>", "a\x00b", "a\nb\r\nc\u2028d\x85e\u2029",
    "▁", "a▁b", "\ud800", "a\udfffb", "\U0001f468\u200d\U0001f469", "\u202eabc", "é", "e\u0301", "m² ½ ﬁ", "▅",
    "x" * 5000,
]  # fmt: skip


def corpus(num_sentences: int = 400) -> list[str]:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnoprstuvé", k=rng.randint(2, 9))) for _ in range(300)]
    return [" ".join(rng.choices(words, k=rng.randint(2, 12))) for _ in range(num_sentences)]


def train(size: int | str = "auto", tags: list[str] | None = None, form: Form = "nfc", pairs: int = 200) -> Tokenizer:
    return train_tokenizer(iter(corpus()), TokenizerConfig(vocab_size=size, normalization=form), pairs, tags or [])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train(500, ["BT", "web"])


def test_layout_of_the_ids(tokenizer: Tokenizer) -> None:
    assert (EOS_ID, UNK_ID, NUM_RESERVED) == (0, 1, 8)
    assert (tokenizer.num_pieces, tokenizer.num_ids, tokenizer.pad_id) == (500, 508, 508)
    assert tokenizer.tags == {"BT": 500, "web": 501}
    assert tokenizer.pieces([0, 1, 2, 500, 501, 502, 508]) == [
        "</s>", "<unk>", "<0x00>", "<BT>", "<web>", "<reserved_2>", "<pad>",
    ]  # fmt: skip


def test_round_trip_ends_in_eos(tokenizer: Tokenizer) -> None:
    texts = corpus()
    ids = tokenizer.encode(texts)
    assert all(sentence[-1] == EOS_ID and EOS_ID not in sentence[:-1] for sentence in ids)
    assert tokenizer.decode(ids) == texts
    assert max(map(max, ids)) < tokenizer.num_pieces


def test_a_tag_stands_in_front_and_leaves_no_text(tokenizer: Tokenizer) -> None:
    plain, tagged = tokenizer.encode(["abc"])[0], tokenizer.encode(["abc"], "web")[0]
    assert tagged == [501, *plain]
    assert tokenizer.decode([[*tagged, tokenizer.pad_id, 507]]) == ["abc"]
    with pytest.raises(UsageError, match="no tag 'news'"):
        tokenizer.encode(["abc"], "news")


@pytest.mark.parametrize("form", ["nfc", "nmt_nfkc", "none"])
def test_no_text_is_refused_and_none_becomes_a_control_id(form: Form) -> None:
    tokenizer = train(500, ["BT"], form)
    for text, ids in zip(HOSTILE, tokenizer.encode(HOSTILE), strict=True):
        assert ids[-1] == EOS_ID and all(1 < token < tokenizer.num_pieces for token in ids[:-1]), text
    assert tokenizer.encode(["", " ", "   "]) == [[EOS_ID]] * 3
    assert tokenizer.decode(tokenizer.encode(["</s> <unk> <0x41> <BT>"])) == ["</s> <unk> <0x41> <BT>"]


def test_decoded_text_holds_no_line_break_or_control(tokenizer: Tokenizer) -> None:
    byte_pieces = [[2 + byte] for byte in range(256)] + [[2 + byte for byte in "a\nb\u2028c\x85d".encode()]]
    for text in tokenizer.decode(byte_pieces + tokenizer.encode(HOSTILE)):
        assert len(f"{text}.".splitlines()) == 1
        assert not any(unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") for char in text)
    assert tokenizer.decode(tokenizer.encode(["a\nb"])) == ["a b"]


def test_every_id_can_be_decoded(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.decode([[token] for token in range(tokenizer.pad_id + 1)])) == tokenizer.pad_id + 1


def test_normalization_forms() -> None:
    assert normalize("e\u0301 m²", "nfc") == "é m²"
    assert normalize("e\u0301 m²", "none") == normalize("e\u0301 m²", "nmt_nfkc") == "e\u0301 m²"
    nfc, nfkc, none = train(500), train(500, form="nmt_nfkc"), train(500, form="none")
    assert nfc.encode(["e\u0301"]) == nfc.encode(["é"])
    assert none.encode(["e\u0301"]) != none.encode(["é"])
    assert [t.decode(t.encode(["m² ½"])) for t in (nfc, nfkc, none)] == [["m² ½"], ["m2 1⁄2"], ["m² ½"]]


def test_equal_text_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        train(500, ["BT"]).save(tmp_path / name)
    for file in ("tokenizer.model", "tokenizer.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert str(tmp_path).encode() not in (tmp_path / "a" / "tokenizer.model").read_bytes()


def test_save_and_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode(HOSTILE, "web") == tokenizer.encode(HOSTILE, "web")
    assert (loaded.num_ids, loaded.normalization, loaded.tags) == (508, "nfc", tokenizer.tags)


@pytest.mark.parametrize(
    "key, value",
    [("pieces", {"a": 3}), ("tags", {"BT": 3}), ("tags", []), ("normalization", ["nfc"]), ("format", 2)],
)
def test_a_description_that_does_not_fit_is_refused(
    tokenizer: Tokenizer, tmp_path: Path, key: str, value: object
) -> None:
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(DamagedFileError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"text", b"\x0a\xff\xff\xff\xff"])
def test_a_file_that_is_no_model_is_refused(tokenizer: Tokenizer, tmp_path: Path, content: bytes | None) -> None:
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.model"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"tokenizer\.model"):
        Tokenizer.load(tmp_path)


def test_auto_takes_what_the_corpus_can_fill() -> None:
    assert 500 < train("auto", pairs=1).num_pieces <= 2000
    assert train("auto", pairs=20_000).num_pieces <= 8000
    many_characters = [chr(0x4E00 + number) * 3 for number in range(3000)]
    assert 3000 < train_tokenizer(many_characters, TokenizerConfig(), 1, []).num_pieces <= 8000


def test_errors_name_the_key_and_the_way_out() -> None:
    with pytest.raises(
        DataError, match=r"tokenizer.vocab_size 50000 is more than this corpus can fill; the largest is (\d+)"
    ) as error:
        train(50_000)
    largest = int(str(error.value).rpartition(" ")[2])
    assert str(largest) in (error.value.help or "")
    assert train(largest).num_pieces == largest
    with pytest.raises(DataError, match=r"tokenizer.vocab_size 270 is less than the \d+ that"):
        train(270)
    for nothing in ([], ["", "  ", "\n"]):
        with pytest.raises(DataError, match="no text"):
            train_tokenizer(iter(nothing), TokenizerConfig(), 1, [])
    with pytest.raises(MtxError, match="9 tags"):
        train(500, list("abcdefghi"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("line 7")])
def test_what_ends_the_text_ends_the_training(error: BaseException) -> None:
    def text() -> Iterator[str]:
        yield from corpus()
        raise error

    with pytest.raises(type(error)) as raised:
        train_tokenizer(text(), TokenizerConfig(), 1, [])
    assert raised.value is error


def test_hostile_text_can_be_trained_on() -> None:
    train_tokenizer(iter(corpus() + HOSTILE), TokenizerConfig(), 1, [])


def test_threads_do_not_disturb_each_other(tokenizer: Tokenizer) -> None:
    texts, results = corpus(), []
    expected = tokenizer.encode(texts)

    def work() -> None:
        for _ in range(5):
            ids = tokenizer.encode(texts)
            results.append(ids == expected and tokenizer.decode(ids) == texts)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 20
