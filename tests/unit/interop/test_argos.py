"""A package of Argos Translate holds what it needs offline, and nothing of the user's is replaced by one."""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mtx.decoding import model_directory
from mtx.decoding.ctranslate2_engine import library
from mtx.decoding.ctranslate2_writer import write_ctranslate2
from mtx.errors import UsageError
from mtx.interop.argos import _KEEPS_WHOLE, _SEARCH, _SPLITS, translate_as_argos, write_argos
from mtx.interop.export import export
from tests.exports import lively_bundle, small_tokenizer

pytest.importorskip("ctranslate2")

LINES = ["ab cde", "fgü a", "cab fad gab", "ab"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    lively_bundle(small_tokenizer(), tmp_path / "model")
    return tmp_path / "model"


def contents(package: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(package) as opened:
        return {name.split("/", 1)[1]: opened.read(name) for name in opened.namelist()}


def test_a_package_has_all_that_argos_reads(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "de_en.argosmodel"
    export(model, "argos", file, "int8")
    packed = contents(file)
    about = json.loads(packed["metadata.json"])
    assert (about["from_code"], about["from_name"], about["to_code"], about["type"]) == (
        "de",
        "German",
        "en",
        "translate",
    )
    assert {*packed} == {
        "metadata.json", "README.md", "sentencepiece.model", "minisbd/sentences.onnx", "model/model.bin",
        "model/config.json", "model/shared_vocabulary.json",
    }  # fmt: skip
    with zipfile.ZipFile(file) as opened:
        assert {name.split("/")[0] for name in opened.namelist()} == {"translate-de_en-1_0"}
    first = file.read_bytes()
    export(model, "argos", file, "int8")  # an earlier package is replaced, by the same bytes
    assert file.read_bytes() == first


def test_a_language_has_its_own_name_or_its_code(model: Path, tmp_path: Path) -> None:
    loaded = model_directory.load(model)
    loaded.info["tgt"] = "sr"
    write_argos(loaded, tmp_path / "a.argosmodel", "int8", "")
    about = json.loads(contents(tmp_path / "a.argosmodel")["metadata.json"])
    assert (about["to_code"], about["to_name"]) == ("sr", "sr"), "not Croatian, whose profile it shares"


def test_its_model_and_pieces_are_those_of_mtx(model: Path, tmp_path: Path) -> None:
    loaded = model_directory.load(model)
    write_argos(loaded, tmp_path / "a.argosmodel", "fp32", "")
    write_ctranslate2(loaded, tmp_path / "export", "fp32")
    tokenizer, runtime = loaded.tokenizer, library().Translator(str(tmp_path / "export"), "cpu")
    pieces = [tokenizer.pieces(ids[:-1]) for ids in tokenizer.encode(LINES)]
    written = [result.hypotheses[0] for result in runtime.translate_batch(pieces, **_SEARCH)]
    ids = {piece: number for number, piece in enumerate(tokenizer.vocabulary())}
    ours = tokenizer.decode([[ids[piece] for piece in line] for line in written])
    assert translate_as_argos(tmp_path / "a.argosmodel", LINES) == [line.strip() for line in ours]
    assert len({*ours}) > 1


def test_a_model_of_several_sentences_keeps_them_together(model: Path, tmp_path: Path) -> None:
    loaded = model_directory.load(model)
    for share, expected in ((0.0, _SPLITS), (0.5, _KEEPS_WHOLE)):
        loaded.info["multi_sentence_share"] = share
        write_argos(loaded, tmp_path / "a.argosmodel", "fp32", "")
        splitter = contents(tmp_path / "a.argosmodel")["minisbd/sentences.onnx"]
        assert (_SPLITS in splitter, _KEEPS_WHOLE in splitter) == (expected is _SPLITS, expected is _KEEPS_WHOLE)


def test_what_is_no_package_is_not_replaced(model: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.argosmodel"
    mine.write_text("my notes")
    for place in (mine, tmp_path):
        with pytest.raises(UsageError, match="not an earlier package, so it is not replaced"):
            export(model, "argos", place)
    assert mine.read_text() == "my notes"


def splits(text: str) -> list[str]:
    """The sentences that the network finds, as MiniSBD asks it."""
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    np: Any = pytest.importorskip("numpy")
    import mtx.interop.argos as argos

    session = onnxruntime.InferenceSession(str(argos._SPLITTER), providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    numbers = json.loads(about["vocab"])["_unit2id"]
    assert json.loads(about["config"])["feat_funcs"] == ["capitalized", "numeric", "end_of_para"]
    units = np.array([[numbers.get(c, 1) for c in text]])
    features = [[float(c.isupper()), float(c.isdigit()), float(i == len(text) - 1)] for i, c in enumerate(text)]
    [labels] = session.run(None, {"units": units, "features": np.array([features], np.float32)})
    ends = [place + 1 for place, label in enumerate(labels[0].argmax(1)) if label == 2]
    return [text[start:end].strip() for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A man sleeps. Two dogs run! Is it?", ["A man sleeps.", "Two dogs run!", "Is it?"]),
        ("Dr. Smith met J. Doe at 3.5 km. He left", ["Dr. Smith met J. Doe at 3.5 km.", "He left"]),
        ("Am 19. Mai war es. Gut.", ["Am 19. Mai war es.", "Gut."]),
        ("He said “so.” Then e.g. this.", ["He said “so.”", "Then e.g. this."]),
        ("私は行く。彼も！「はい。」そう", ["私は行く。", "彼も！", "「はい。」", "そう"]),
    ],
)
def test_the_splitter_inside_ends_sentences_where_they_end(text: str, expected: list[str]) -> None:
    assert splits(text) == expected


def test_without_ctranslate2_it_says_so(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(Exception, match="CTranslate2 is not installed"):
        export(model, "argos", tmp_path / "a.argosmodel")
