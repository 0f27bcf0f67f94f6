"""A SentencePiece model of any program is used as it is: its pieces get the ids of mtx, and the run holds a copy."""

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from mtx.config import settings
from mtx.config.schema import TokenizerConfig, TrainText
from mtx.data.bpe_dropout import BpeDropout
from mtx.data.prepare import prepare
from mtx.data.sources import find_corpora
from mtx.data.token_store import load_prepared
from mtx.data.tokenizer import EOS_ID, UNK_ID, Tokenizer, given_tokenizer
from mtx.decoding.ctranslate2_writer import write_ctranslate2
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.interop.huggingface import export_huggingface
from mtx.storage import durable
from mtx.storage.run_files import describe_sources, find_changed_files
from tests.exports import lively_bundle
from tests.integration.commands import write_tsv
from tests.unit.interop import peers

LINES = ["ab cde", "", "xyz ж\u0301 a", "</s> <unk> <pad> <s>", "m² \u00e9 e\u0301", "\x00 a\u2028b"]


def write_model(path: Path, letters: str, **options: Any) -> Path:
    rng, model = random.Random(1), io.BytesIO()
    lines = [" ".join("".join(rng.choices(letters, k=4)) for _ in range(6)) for _ in range(100)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, hard_vocab_limit=False, minloglevel=2,
        **{"vocab_size": 60, **options},
    )  # fmt: skip
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """A unigram model with control symbols in the usual places, and a BPE model with bytes and a symbol of its own."""
    bytes_and_symbols = {"model_type": "bpe", "byte_fallback": True, "user_defined_symbols": ["<sep>"]}
    bytes_and_symbols |= {"pad_id": 3, "control_symbols": ["<2de>"], "vocab_size": 340}
    return [
        write_model(tmp_path / "src.model", "abcdeж"), write_model(tmp_path / "tgt.model", "xyzaü", **bytes_and_symbols)
    ]  # fmt: skip


def given(*paths: Path) -> Tokenizer:
    tokenizer = given_tokenizer(TokenizerConfig(model=tuple(map(str, paths)), normalization="none"))
    assert tokenizer is not None
    return tokenizer


def test_without_the_setting_there_is_none() -> None:
    assert given_tokenizer(TokenizerConfig()) is None


@pytest.mark.parametrize("numbers", [[0], [1], [0, 1]])
def test_pieces_are_those_of_the_models_and_ids_those_of_mtx(
    models: list[Path], numbers: list[int], tmp_path: Path
) -> None:
    paths = [models[number] for number in numbers]
    tokenizer = given(*paths)
    for path, is_target in ((paths[0], False), (paths[-1], True)):
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
        for line, ids in zip(LINES, tokenizer.encode(LINES, target=is_target), strict=True):
            pieces = theirs.encode(line, out_type=str)
            assert ids.pop() == EOS_ID and EOS_ID not in ids
            expected = [piece if token != theirs.unk_id() else "<unk>" for piece, token in
                        zip(pieces, theirs.encode(line), strict=True)]  # fmt: skip
            ours = tokenizer.pieces(ids)
            assert len(ours) == len(expected)
            known_to_the_other_side = [a for a, b in zip(ours, expected, strict=True) if a != b]
            assert all(piece in tokenizer.vocabulary() for piece in known_to_the_other_side)
            assert len(numbers) == 2 or ours == expected
    vocabulary = tokenizer.vocabulary()
    assert vocabulary[:2] == ["</s>", "<unk>"] and (EOS_ID, UNK_ID) == (0, 1)
    assert len(set(vocabulary)) == len(vocabulary) == tokenizer.num_ids
    assert not {"<s>", "<pad>", "<2de>"} & set(vocabulary) and ("<sep>" in vocabulary) == (1 in numbers)
    text = ["ab cde a"] if numbers == [0] else ["xyz aü <sep> x"]
    assert tokenizer.decode(tokenizer.encode(text, target=True)) == text
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).vocabulary() == vocabulary


def test_bpe_dropout_leaves_symbols_whole_and_needs_bpe(models: list[Path], tmp_path: Path) -> None:
    tokenizer = given(models[1])
    [ids] = tokenizer.encode(["xyz <sep> za"], target=True)
    [symbol] = [token for token in ids if tokenizer.pieces([token]) == ["<sep>"]]
    dropout = BpeDropout(tokenizer, 1, 0.5, 999, True)
    cuts = [dropout.cut(ids, [draw] * len(ids)) for draw in range(20)]
    assert all(symbol in cut for cut in cuts) and len({*map(tuple, cuts)}) > 1
    write_tsv(tmp_path / "my.tsv", range(200))
    values = ["data.src=en", "data.tgt=de", f"data.train={tmp_path / 'my.tsv'}", "training.bpe_dropout=0.1"]
    config = settings.resolve(None, [*values, f"tokenizer.model={models[0]}", f"run_dir={tmp_path / 'run'}"]).config
    with pytest.raises(UsageError, match="bpe_dropout needs a BPE model, but tokenizer.model has another kind"):
        prepare(config, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda path: None, UsageError, "no such file"),
        (lambda path: path.mkdir(), UsageError, "no such file"),
        (lambda path: path.write_bytes(b""), DamagedFileError, "not a SentencePiece model"),
        (lambda path: path.write_bytes(b"\xff" * 999), DamagedFileError, "not a SentencePiece model"),
        (lambda path: path.write_bytes(bytes(2**25 + 1)), DamagedFileError, "33,554,433 bytes, expected at most"),
        (
            lambda path: write_model(path, "ab", user_defined_symbols=["<pad>"]),
            DamagedFileError,
            "expected 3 to",
        ),
        (
            lambda path: path.write_bytes(b"\n\x08\n\x01a\x15\0\0\0\0"),  # one piece, and no <unk>
            DamagedFileError,
            "unk is not defined",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, make: Callable[[Path], object], error: type[MtxError], words: str
) -> None:
    path = tmp_path / "given.model"
    make(path)
    with pytest.raises(error, match=f"given.model: .*{words}") as raised:
        given(path)
    assert "\n" not in str(raised.value)


def test_given_models_decide_over_the_other_keys(tmp_path: Path) -> None:
    own = settings.resolve("multi30k-en-de", ["tokenizer.model=a.model,b.model"])
    assert settings.resolve("multi30k-en-de", []).config.tokenizer.vocab_size != "auto"
    tokenizer = own.config.tokenizer
    assert (tokenizer.model, tokenizer.vocab_size, tokenizer.normalization) == (("a.model", "b.model"), "auto", "none")
    tokenizer = settings.resolve(None, ["tokenizer.model=a", "tokenizer.normalization=nfc"]).config.tokenizer
    assert (tokenizer.vocab_size, tokenizer.normalization) == ("auto", "none")
    for wrong, words in (
        ("a,b,c", "expected at most 2 items"),
        ("a tokenizer.vocab_size=500", "has its own subwords"),
        ("a training.init_from=b", "init_from"),
    ):
        with pytest.raises(UsageError, match=words):
            settings.resolve(None, f"tokenizer.model={wrong}".split())
    assert settings.resolve("multi30k-en-de", ["tokenizer.model="]).is_explicit("tokenizer.vocab_size")
    path = tmp_path / "config.yaml"
    path.write_text(settings.dump(own.config))
    assert settings.load(path) == settings.resolve(str(path), []).config == own.config


def test_the_run_holds_a_copy_and_a_changed_model_is_told(models: list[Path], tmp_path: Path) -> None:
    text = write_tsv(tmp_path / "my.tsv", range(1000, 1100))
    words = [f"data.train={text}", "data.src=en", "data.tgt=de", f"tokenizer.model={models[1]}"]
    config = settings.resolve(None, words).config
    record = tmp_path / "sources.json"
    durable.write_json(record, describe_sources(find_corpora(config.data).files(config.tokenizer)))
    prepare(config, tmp_path / "data")
    content = models[1].read_bytes()
    models[1].write_bytes(content + b"\n")
    assert find_changed_files(record) == [models[1]]
    models[1].unlink()
    assert find_changed_files(record) == []
    data = load_prepared(tmp_path / "data")
    assert (tmp_path / "data" / "tokenizer.src.model").read_bytes() == content
    assert data.train.num_pairs > 80 and data.report["pieces"] == data.tokenizer.num_ids
    with pytest.raises(UsageError, match="no such file"):
        prepare(config, tmp_path / "again")
    models[1].write_bytes(content)
    tagged = config.data.model_copy(update={"train": (TrainText(name=str(text), tag="BT"),)})
    with pytest.raises(UsageError, match="the tag BT is not in the tokenizer of tokenizer.model"):
        prepare(config.model_copy(update={"data": tagged}), tmp_path / "again")


@pytest.mark.seconds
def test_a_model_with_it_is_exported(models: list[Path], tmp_path: Path) -> None:
    tokenizer = given(*models)
    loaded = lively_bundle(tokenizer, tmp_path / "ours")
    export_huggingface(loaded, tmp_path / "huggingface")
    vocabulary = json.loads((tmp_path / "huggingface" / "vocab.json").read_text(encoding="utf-8"))
    assert vocabulary == {piece: token for token, piece in enumerate([*tokenizer.vocabulary(), "<pad>"])}
    pytest.importorskip("transformers")
    _, theirs = peers.marian(tmp_path / "huggingface")
    plain = [line for line in LINES if "<" not in line and line.isprintable()]
    assert theirs(plain).input_ids == tokenizer.encode(plain)
    assert theirs(text_target=plain).input_ids == tokenizer.encode(plain, target=True)
    pytest.importorskip("ctranslate2")
    from mtx.decoding.translator import Translator

    write_ctranslate2(loaded, tmp_path / "ctranslate2", "fp32")
    expected = Translator.load(tmp_path / "ours", engine="torch", device="cpu").translate(LINES)
    assert Translator.load(tmp_path / "ctranslate2", device="cpu").translate(LINES) == expected
    assert len(set(expected)) > 2
