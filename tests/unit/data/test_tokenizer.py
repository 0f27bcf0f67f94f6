"""The layout of token ids, and that no text at all breaks, misleads or escapes the tokenizer."""

import io
import json
import random
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencepiece

from mtx.config.schema import TokenizerConfig
from mtx.data.sentencepiece_models import SplitModel
from mtx.data.tokenizer import EOS_ID, NUM_RESERVED, UNK_ID, Form, Frame, Tokenizer, normalize, train_tokenizer
from mtx.errors import DamagedFileError, DataError, MtxError
from mtx.storage.model_description import tokenizer_files

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


def test_one_text_or_many_give_the_same_ids_and_texts(tokenizer: Tokenizer, split: Tokenizer) -> None:
    texts = [word * count for count in range(60) for word in ("ab ", "", "ü \U0001f469 ", "x\u2028y ")]
    for each in (tokenizer, split):
        for target in (False, True):
            ids = each.encode(texts, target=target)
            assert ids == [each.encode([text], target=target)[0] for text in texts]
            assert each.decode(ids) == [each.decode([sentence])[0] for sentence in ids]


def test_a_tag_stands_in_front_and_leaves_no_text(tokenizer: Tokenizer) -> None:
    frame = tokenizer.frame("src", "tgt", "web")
    plain, tagged = tokenizer.encode(["abc"])[0], tokenizer.encode(["abc"], frame)[0]
    assert tagged == [501, *plain]
    assert tokenizer.decode([[*tagged, tokenizer.pad_id, 507]]) == ["abc"]


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
        assert "\ufffd" not in text
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
    frame = loaded.frame("src", "tgt", "web")
    assert loaded.encode(HOSTILE, frame) == tokenizer.encode(HOSTILE, frame)
    assert (loaded.num_ids, loaded.normalization, loaded.tags) == (508, "nfc", tokenizer.tags)


@pytest.mark.parametrize(
    "key, value",
    [("pieces", {"a": 3}), ("tags", {"BT": 3}), ("tags", []), ("normalization", ["nfc"]), ("format", 3)],
)
def test_a_description_that_does_not_fit_is_refused(
    tokenizer: Tokenizer, tmp_path: Path, key: str, value: object
) -> None:
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}) + "\n")
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
    assert 500 < train("auto", pairs=1).num_pieces <= 4000
    assert train("auto", pairs=20_000).num_pieces <= 8000
    many_characters = [chr(0x4E00 + number) * 3 for number in range(3000)]
    assert 3000 < train_tokenizer(many_characters, TokenizerConfig(), 1, []).num_pieces <= 8000


def test_errors_name_the_key_and_the_way_out() -> None:
    with pytest.raises(
        DataError, match=r"tokenizer.vocab_size 50000 is too large for this corpus; the maximum is (\d+)"
    ) as error:
        train(50_000)
    largest = int(str(error.value).rpartition(" ")[2])
    assert str(largest) in (error.value.help or "")
    assert train(largest).num_pieces == largest
    with pytest.raises(
        DataError, match=r"tokenizer.vocab_size 270 is too small for its characters; the minimum is \d+"
    ):
        train(270)
    for nothing in ([], ["", "  ", "\n"]):
        with pytest.raises(DataError, match="cannot train a tokenizer on this text"):
            train_tokenizer(iter(nothing), TokenizerConfig(), 1, [])
    with pytest.raises(MtxError, match="got 9 "):
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


def test_vocabulary_and_file_names(tokenizer: Tokenizer, tmp_path: Path) -> None:
    vocabulary = tokenizer.vocabulary()
    assert vocabulary[:3] == ["</s>", "<unk>", "<0x00>"] and vocabulary[500:502] == ["<BT>", "<web>"]
    assert len(vocabulary) == tokenizer.num_ids and "<pad>" not in vocabulary
    tokenizer.save(tmp_path)
    assert tokenizer_files(tmp_path) == ("tokenizer.model", "tokenizer.json")
    assert [*json.loads((tmp_path / "tokenizer.json").read_text())] == ["format", "normalization", "tags", "pieces"]
    assert tokenizer.encode(["ab cd"], target=True) == tokenizer.encode(["ab cd"])


# --- a model for each side ---


def side_model(letters: str) -> bytes:
    """With SentencePiece's own ids, which are not the vocabulary's, and no byte fallback."""
    rng, model = random.Random(1), io.BytesIO()
    lines = [" ".join("".join(rng.choices(letters, k=4)) for _ in range(6)) for _ in range(100)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=40, hard_vocab_limit=False, minloglevel=2
    )
    return model.getvalue()


PIECES = ["</s>", "<unk>", "▁", "x", "y", "a", "b", "ж", ">>fr<<", "<0x0A>", "▁a", "<pad>"]


@pytest.fixture(scope="module")
def split() -> Tokenizer:
    return Tokenizer(SplitModel(side_model("ab"), side_model("xy"), {p: i for i, p in enumerate(PIECES)}), "none", [])


def test_two_models_share_one_vocabulary(split: Tokenizer) -> None:
    assert (split.num_pieces, split.num_ids, split.pad_id, split.tags) == (11, 11, 11, {})
    assert split.vocabulary() == PIECES[:-1] and split.pieces([11]) == ["<pad>"]
    assert split.encode([""]) == split.encode([""], target=True) == [[EOS_ID]]
    assert set(split.encode(["ab"])[0][:-1]) <= {1, 2, 5, 6, 10}  # pieces longer than these are not in the vocabulary
    assert split.encode(["ж"]) == split.encode(["ж"], target=True) == [[2, 7, EOS_ID]]  # known to the vocabulary alone
    assert split.encode(["q"]) == [[2, UNK_ID, EOS_ID]]


def test_a_language_token_counts_at_the_start_of_a_source_only(split: Tokenizer) -> None:
    plain = split.encode(["ж"])[0]
    assert split.encode([">>fr<< ж", ">>fr<<ж"]) == [[8, *plain]] * 2
    for text in ("ж >>fr<<", ">>de<< ж", " >>fr<<", ">>fr<"):
        assert 8 not in split.encode([text])[0], text
    assert 8 not in split.encode([">>fr<< ж"], target=True)[0]


def test_a_frame_is_a_tag_or_a_language_or_what_a_source_names(tokenizer: Tokenizer, split: Tokenizer) -> None:
    assert tokenizer.frame("en", "fr") == Frame((), (EOS_ID,), ()) == split.frame("en", "de")
    assert tokenizer.frame("en", "fr", "BT") == Frame((500,), (EOS_ID,), ())
    french = split.frame("en", "fr")
    assert french == Frame((8,), (EOS_ID,), ())
    assert split.encode(["ж"], french) == split.encode([">>fr<< ж"], french) == split.encode([">>fr<< ж"])
    assert split.named_frame(">>fr<< ж", split.frame("en", "de")) == (french, " ж")
    assert split.encode(["x"], Frame((8,), (0, 8), (8, 3)), target=True)[0][:2] == [8, 3]
    for each, frame in ((tokenizer, tokenizer.frame("", "", "web")), (split, french)):
        [src], [tgt] = (each.encode(["ab"], frame, target=target) for target in (False, True))
        assert each.frame_of(src, tgt) == frame


def test_the_number_of_reserved_symbols_is_stored_where_it_is_not_the_usual_one(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    few = Tokenizer(tokenizer.models, "nfc", ["BT"], num_reserved=3)
    few.save(tmp_path)
    loaded, path = Tokenizer.load(tmp_path), tmp_path / "tokenizer.json"
    assert loaded.num_ids == 503 and loaded.vocabulary()[-3:] == ["<BT>", "<reserved_1>", "<reserved_2>"]
    assert "reserved" not in tokenizer._description() and loaded.is_same(few)
    for number in (0, -1, True, "3", 10**12):
        path.write_text(json.dumps({**json.loads(path.read_text()), "reserved": number}) + "\n")
        with pytest.raises(DamagedFileError, match=r"tokenizer\.json: "):
            Tokenizer.load(tmp_path)


def test_text_of_two_models_never_becomes_a_control_id(split: Tokenizer) -> None:
    for target in (False, True):
        for text, ids in zip(HOSTILE, split.encode(HOSTILE, target=target), strict=True):
            assert ids[-1] == EOS_ID and all(0 < token < 11 for token in ids[:-1]), text
        assert EOS_ID not in split.encode(["b</s>"], target=target)[0][:-1]  # neither model knows < / s >: one piece
        assert 11 not in split.encode(["<pad>"], target=target)[0]


def test_two_models_decode_by_the_target_side(split: Tokenizer) -> None:
    assert split.decode([[8, 2, 3, 4, 1, 2, 7, 10, 0, 11], [], [0]]) == ["xy ж a", "", ""]
    assert split.decode([[2, 3, 9, 4]]) == ["x<0x0A>y"]  # no byte fallback in this model: it is no byte
    assert len(split.decode([[token] for token in range(12)])) == 12


def test_two_models_are_saved_and_loaded(split: Tokenizer, tmp_path: Path) -> None:
    split.save(tmp_path)
    names = ("tokenizer.src.model", "tokenizer.tgt.model", "tokenizer.json")
    assert tokenizer_files(tmp_path) == names
    loaded = Tokenizer.load(tmp_path)
    texts = [*HOSTILE, ">>fr<< ab", "xyxy"]
    for target in (False, True):
        assert loaded.encode(texts, target=target) == split.encode(texts, target=target)
    assert loaded.vocabulary() == split.vocabulary() and loaded.normalization == "none"


NUMBERED = {piece: number for number, piece in enumerate(PIECES)}


@pytest.mark.parametrize(
    "key, value",
    [
        ("pieces", None), ("pieces", PIECES), ("pieces", {}), ("pieces", {**NUMBERED, "x": 4}),
        ("pieces", {**NUMBERED, "x": 12}), ("pieces", {**NUMBERED, "x": "3"}), ("pieces", {**NUMBERED, "x": True}),
        ("pieces", {**NUMBERED, "</s>": 1, "<unk>": 0}), ("pieces", {**NUMBERED, "<pad>": 3, "x": 11}),
        ("pieces", {piece: number for piece, number in NUMBERED.items() if piece != "x"}),
        ("tags", {"BT": 11}), ("normalization", "NFC"), ("format", 3),
    ],
)  # fmt: skip
def test_a_vocabulary_that_does_not_fit_is_refused(split: Tokenizer, tmp_path: Path, key: str, value: object) -> None:
    split.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}) + "\n")
    with pytest.raises(DamagedFileError, match=r"tokenizer\.json: "):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.src.model", "tokenizer.tgt.model"])
@pytest.mark.parametrize("content", [None, b"", b"text"])
def test_a_side_that_is_no_model_is_refused(split: Tokenizer, tmp_path: Path, name: str, content: bytes | None) -> None:
    split.save(tmp_path)
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFileError, match=rf"/{name}: (missing file|not a SentencePiece model)"):
        Tokenizer.load(tmp_path)


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
