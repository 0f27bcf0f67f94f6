"""Random models in the layouts of M2M-100 and NLLB, which transformers wrote, become the same models here."""

import io
import json
import logging
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.torch
import sentencepiece
import torch
from torch import Tensor

from mtx.data.packing import pack_sentences, to_device
from mtx.data.tokenizer import Frame, Tokenizer
from mtx.decoding import model_directory
from mtx.decoding.load import open_torch
from mtx.decoding.model_directory import LoadedModel
from mtx.decoding.options import Placement, SearchOptions
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.interop.export import compare_export, export
from mtx.interop.m2m100 import find_language, import_m2m100
from mtx.storage.model_description import language_pairs
from mtx.training import init_from
from tests.integration.commands import mtx
from tests.models import tiny_config

transformers = pytest.importorskip("transformers")
pytest.importorskip("google.protobuf")  # NllbTokenizer reads a SentencePiece model by it

NLLB = ["eng_Latn", "yor_Latn", "swh_Latn", "twi_Latn", "aka_Latn", "zho_Hans", "zho_Hant"]
SMALL = {"d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "attention_heads": 4, "ffn_dim": 48}
LARGER = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "attention_heads": 8, "ffn_dim": 96}
ODD_TEXTS = ["", "  abc   def", "ABC", "eng_Latn abc", "__en__ abc", "</s> <s> <unk>", "漢字 ab", "a\tb", "m² ½", "ﬁ"]


def sentences(count: int, seed: int, letters: str = "abcdefghijklmü") -> list[str]:
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices(letters, k=rng.randint(2, 6))) for _ in range(6)) for _ in range(count)]


def write_pieces(path: Path) -> list[str]:
    """A SentencePiece model as fairseq trains it; returns its pieces of text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(400, 1)), model_writer=model, model_type="bpe", vocab_size=300, minloglevel=2
    )
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return list(processor.id_to_piece(list(range(3, len(processor)))))


@torch.no_grad()
def write_model(directory: Path, is_nllb: bool, sizes: dict[str, int], dtype: torch.dtype, seed: int = 1) -> None:
    """A random model and its tokenizer by transformers' own classes."""
    directory.mkdir()
    pieces = write_pieces(directory / "sentencepiece.bpe.model")
    if is_nllb:
        tokenizer = transformers.NllbTokenizer.from_pretrained(directory, extra_special_tokens=NLLB)
        num_rows = len(tokenizer) + 2
    else:  # its ids are not in the order of the pieces
        ids = {piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces[::-1]])}
        (directory / "vocab.json").write_text(json.dumps(ids))
        files = (str(directory / name) for name in ("vocab.json", "sentencepiece.bpe.model"))
        tokenizer = transformers.M2M100Tokenizer(*files)
        num_rows = len(ids) + 100 + 8
    tokenizer.save_pretrained(directory)
    by_stack = {
        f"{stack}_{key}": sizes[key] for stack in ("encoder", "decoder") for key in ("attention_heads", "ffn_dim")
    }
    layers = {key: value for key, value in sizes.items() if key not in ("attention_heads", "ffn_dim")}
    config = transformers.M2M100Config(vocab_size=num_rows, init_std=0.3, **layers, **by_stack)
    torch.manual_seed(seed)
    model = transformers.M2M100ForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        elif "decoder.layers" in name and "out_proj" in name:
            parameter.mul_(8)  # or each token would repeat itself, because its embedding gives its logit
    transformers.utils.logging.disable_progress_bar()
    model.to(dtype).save_pretrained(directory)


class Theirs(NamedTuple):
    model: Any
    tokenizer: Any

    @classmethod
    def load(cls, directory: Path) -> "Theirs":
        model = transformers.M2M100ForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
        return cls(model.eval(), transformers.AutoTokenizer.from_pretrained(directory))

    def rows(self, ours: LoadedModel) -> list[int]:
        """Their id of each of our ids: the one with the same row."""
        theirs = self.model.model.shared.weight
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(ours.model.embedding[:-1].detach(), theirs.detach(), compute_mode=exact)
        assert (distances.amin(1) == 0).all()
        return distances.argmin(1).tolist()


@pytest.fixture(scope="module", params=["nllb", "m2m"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("published") / str(request.param)
    write_model(directory, request.param == "nllb", SMALL, torch.float32)
    return directory


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("nllb") / "nllb"
    write_model(directory, True, SMALL, torch.float32)
    return directory


@pytest.fixture
def copy(nllb: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(nllb, tmp_path / "copy"))


def imported(source: Path, target: Path, *arguments: Any, **options: Any) -> LoadedModel:
    import_m2m100(source, target, *arguments, **options)
    return model_directory.load(target)


def all_languages(directory: Path) -> list[str]:
    """Those that sw and en begin; every row of the model stays then."""
    names = NLLB if "nllb" in directory.name else [f"__{code}__" for code in M2M_CODES]
    first = [find_language(code, names) for code in ("sw", "en")]
    return [*first, *(name for name in names if name not in first)]


M2M_CODES: list[str] = []
if transformers:
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

    M2M_CODES = FAIRSEQ_LANGUAGE_CODES["m2m100"]


@torch.no_grad()
def assert_equal_logits(ours: LoadedModel, theirs: Theirs, src: list[list[int]], tgt: list[list[int]]) -> None:
    rows, model = theirs.rows(ours), ours.model
    model.prepare_positions(64)
    batch = to_device(pack_sentences(src, tgt, model.pad_id, model.start_id), torch.device("cpu"))
    got = (model.decode(batch, model.encode(batch)) @ model.output_weight.T).split([len(ids) for ids in tgt])
    for src_ids, tgt_ids, logits in zip(src, tgt, got, strict=True):
        source, target = (torch.tensor([[rows[token] for token in ids]]) for ids in (src_ids, tgt_ids))
        start = torch.full((1, 1), 2)
        expected = theirs.model(input_ids=source, decoder_input_ids=torch.cat([start, target[:, :-1]], 1)).logits[0]
        assert expected.abs().max() > 1
        torch.testing.assert_close(logits, expected[:, rows], rtol=0, atol=1e-4)


def end_at(length: int) -> Callable[[Tensor, Tensor], Tensor]:
    """At the maximum length only `</s>` can follow, with its probability, which transformers would take to be 1."""

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        if ids.shape[1] < length:
            return scores
        return torch.full_like(scores, -torch.inf).index_copy_(1, torch.tensor([2]), scores[:, [2]])

    return process


def assert_equal_search(directory: Path, ours: LoadedModel, theirs: Theirs, src: list[list[int]], frame: Frame) -> None:
    """Greedy search finds the same on all of 100 lines, beam search without a length penalty on 98 of them."""
    rows, engine = theirs.rows(ours), open_torch(directory, Placement(device="cpu"))
    longest, length = max(map(len, src)), 24
    padded = torch.tensor([[rows[token] for token in ids] + [1] * (longest - len(ids)) for ids in src])
    for num_beams, most_different in ((1, 0), (4, 2)):
        options = SearchOptions(beam_size=num_beams, length_penalty=0.0, max_length=length)
        found = engine.search(src, [list(frame.before_tgt)] * len(src), options)
        generated = theirs.model.generate(
            padded, attention_mask=(padded != 1).long(), num_beams=num_beams, length_penalty=0.0,
            max_length=length + 1, forced_bos_token_id=rows[frame.before_tgt[0]], logits_processor=[end_at(length)],
            bad_words_ids=[[1]], early_stopping=num_beams > 1, do_sample=False,
        )  # fmt: skip
        expected = [[token for token in ids[1:] if token != 1] for ids in generated.tolist()]
        got = [[rows[token] for token in candidates[0].ids] for candidates in found]
        assert len(src) == 100 and len({*map(tuple, got)}) >= 10
        assert sum(a != b for a, b in zip(got, expected, strict=True)) <= most_different, num_beams


# --- the same model ---


@pytest.mark.parametrize("is_nllb", [True, False])
@pytest.mark.parametrize(("sizes", "dtype"), [(SMALL, torch.float32), (LARGER, torch.bfloat16)])
def test_ids_logits_and_translations_are_those_of_transformers(
    tmp_path: Path, is_nllb: bool, sizes: dict[str, int], dtype: torch.dtype
) -> None:
    directory = tmp_path / ("nllb" if is_nllb else "m2m")
    write_model(directory, is_nllb, sizes, dtype)
    languages, theirs = all_languages(directory), Theirs.load(directory)
    ours = imported(directory, tmp_path / "ours", languages)
    frame, rows = ours.tokenizer.frame(*languages[:2]), theirs.rows(ours)
    lines = sentences(100, 2)
    names = [name if is_nllb else name.strip("_") for name in languages]
    assert [*ours.tokenizer.languages] == languages
    assert language_pairs(ours.info) == [*permutations(languages, 2)] and not {"src", "tgt"} & {*ours.info}
    theirs.tokenizer.src_lang, theirs.tokenizer.tgt_lang = names[:2]
    src = ours.tokenizer.encode(lines, frame)
    assert [[rows[token] for token in ids] for ids in src] == theirs.tokenizer(lines).input_ids
    odd = ODD_TEXTS if is_nllb else [text for text in ODD_TEXTS if "_" not in text and "<" not in text]
    unlike = [text for text in odd if "</s>" not in text and "Latn" not in text]  # their text becomes control ids
    for target, expected in ((False, theirs.tokenizer(unlike)), (True, theirs.tokenizer(text_target=unlike))):
        got = ours.tokenizer.encode(unlike, frame, target=target)
        assert [[rows[token] for token in ids] for ids in got] == expected.input_ids
    tgt = ours.tokenizer.encode(sentences(100, 3), frame, target=True)
    assert ours.tokenizer.decode(tgt) == sentences(100, 3)
    assert_equal_logits(ours, theirs, src[:20], tgt[:20])
    assert_equal_search(tmp_path / "ours", ours, theirs, src, frame)


def test_hugging_face_and_back_is_the_same_model(published: Path, tmp_path: Path) -> None:
    first = imported(published, tmp_path / "first", ["sw", "en", "yo"], new_languages=["fon=yo"])
    export(tmp_path / "first", "huggingface", tmp_path / "theirs")
    theirs = Theirs.load(tmp_path / "theirs")
    assert type(theirs.tokenizer).__name__ == "NllbTokenizer"
    lines, frame = sentences(100, 2), first.tokenizer.frame("sw", "en")
    src = first.tokenizer.encode(lines, frame)
    order = theirs.tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"])
    assert order == [0, 1, 2, 3] and theirs.tokenizer.pad_token_id == 1
    names = first.tokenizer.vocabulary()[: first.tokenizer.num_pieces]
    ids = theirs.tokenizer.convert_tokens_to_ids(names)
    assert [[ids[token] for token in line] for line in src] == theirs.tokenizer(lines).input_ids
    mask = theirs.model.model.shared.weight[theirs.tokenizer.mask_token_id]
    assert torch.equal(mask, first.model.embedding[first.tokenizer.num_pieces + 1])
    moved = theirs.model.model.shared.weight[ids]
    assert torch.equal(moved, first.model.embedding[: len(ids)])  # a new language's row equals another one
    assert "forced_bos_token_id" in (tmp_path / "theirs" / "generation_config.json").read_text()
    again = imported(tmp_path / "theirs", tmp_path / "again", ["sw", "en", "yo", "fon"])
    assert again.tokenizer.is_same(first.tokenizer)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name


def test_ctranslate2_translates_the_same(published: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    imported(published, tmp_path / "ours", ["sw", "en"])
    export(tmp_path / "ours", "ctranslate2", tmp_path / "ct2")
    config = json.loads((tmp_path / "ct2" / "config.json").read_text())
    assert config["decoder_start_token"] == "</s>"
    lines = sentences(100, 2)
    options: Any = {"max_length": 24, "length_penalty": 0.0, "to": "en"}
    ours = Translator.load(tmp_path / "ours", engine="torch", **options).translate(lines)
    theirs = Translator.load(tmp_path / "ct2", engine="ctranslate2", **options).translate(lines)
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= 2
    assert len({*ours}) > 10


def test_the_example_of_an_export_has_the_language_tokens(copy: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    change_json(copy / "config.json", max_position_embeddings=24)
    change_json(copy / "generation_config.json", num_beams=1)
    imported(copy, tmp_path / "ours", ["sw", "en"])
    export(tmp_path / "ours", "ctranslate2", tmp_path / "ct2")
    lines = [line[:12] for line in sentences(20, 2)]
    text = "".join(f"{line}\n" for line in lines).encode()
    command = [sys.executable, str(tmp_path / "ct2" / "example.py")]
    translations = []
    for src, tgt, arguments in (("sw", "en", []), ("en", "sw", ["en-sw"])):
        done = subprocess.run([*command, *arguments], input=text, capture_output=True, check=True)
        ours = Translator.load(tmp_path / "ct2", max_length=24 + 50, src=src, to=tgt).translate(lines)
        got = done.stdout.decode().splitlines()
        assert sum(a != b for a, b in zip(ours, got, strict=True)) <= 1 and len({*got}) > 5
        translations.append(got)
    assert translations[0] != translations[1]


@pytest.mark.parametrize("to", ["huggingface", "ctranslate2"])
def test_an_export_is_compared_in_each_direction(published: Path, tmp_path: Path, to: str) -> None:
    copy = shutil.copytree(published, tmp_path / published.name)
    change_json(copy / "config.json", max_position_embeddings=24)
    imported(copy, tmp_path / "ours", ["sw", "en"])
    export(tmp_path / "ours", to, tmp_path / "theirs")
    lines = [line[:12] for line in sentences(12, 2)]
    ours = {tgt: Translator.load(tmp_path / "ours", to=tgt, beam_size=1).translate(lines) for tgt in ("en", "sw")}
    assert ours["en"] != ours["sw"]
    texts = {("sw", "en"): [lines, ours["en"]], ("en", "sw"): [lines, ours["sw"]]}
    compared = compare_export(tmp_path / "ours", to, tmp_path / "theirs", texts)
    assert compared is not None and compared.num_lines == 24 and compared.identical >= 0.95


def test_argos_has_no_language_tokens(nllb: Path, tmp_path: Path) -> None:
    imported(nllb, tmp_path / "ours", ["sw", "en"])
    with pytest.raises(UsageError, match="a package of Argos Translate has one direction and no language tokens"):
        export(tmp_path / "ours", "argos", tmp_path / "ours.argosmodel")
    assert not (tmp_path / "ours.argosmodel").exists()


# --- the cut ---


def test_the_cut_keeps_the_pieces_of_the_text_and_other_text_falls_apart(published: Path, tmp_path: Path) -> None:
    text = tmp_path / "my.txt"
    lines = sentences(60, 5, "abcdefg")
    text.write_text("\n".join([*lines, "h ü"]) + "\n")
    whole = imported(published, tmp_path / "whole", ["sw", "en"])
    ours = imported(published, tmp_path / "ours", ["sw", "en"], keep_pieces_of=text)
    frame = ours.tokenizer.frame("sw", "en")
    assert ours.tokenizer.num_ids < whole.tokenizer.num_ids - 50

    def pieces(loaded: LoadedModel, texts: list[str]) -> list[list[str]]:
        return [loaded.tokenizer.pieces(ids) for ids in loaded.tokenizer.encode(texts, frame)]

    before = [loaded.tokenizer.pieces(ids) for loaded in (whole,) for ids in loaded.tokenizer.encode_text(lines)]
    assert [ours.tokenizer.pieces(ids) for ids in ours.tokenizer.encode_text(lines)] == before
    other = sentences(60, 6, "abcdefghü")
    ids = ours.tokenizer.encode_text(other)
    assert not any(1 in sentence for sentence in ids)  # no <unk>
    assert ours.tokenizer.decode(ids) == other
    assert sum(map(len, ids)) > sum(map(len, whole.tokenizer.encode_text(other)))
    theirs = Theirs.load(published)
    src, tgt = ours.tokenizer.encode(lines[:9], frame), ours.tokenizer.encode(lines[9:18], frame, target=True)
    assert_equal_logits(ours, theirs, src, tgt)
    export(tmp_path / "ours", "huggingface", tmp_path / "cut")
    exported = Theirs.load(tmp_path / "cut")
    src = ours.tokenizer.encode(sentences(100, 7, "abcdefg"), frame)
    assert_equal_logits(ours, exported, src[:9], tgt)
    assert_equal_search(tmp_path / "ours", ours, exported, src, frame)
    assert exported.tokenizer(lines[:9]).input_ids == [
        [exported.rows(ours)[token] for token in ids] for ids in ours.tokenizer.encode(lines[:9], frame)
    ]


def test_the_cut_keeps_what_a_piece_is_merged_from(nllb: Path, tmp_path: Path) -> None:
    whole = imported(nllb, tmp_path / "whole", ["sw", "en"])
    words = [piece for piece in whole.tokenizer.models.pieces if len(piece) == 3 and piece.startswith("▁")][:9]
    assert len(words) > 3
    for word in words:
        (tmp_path / "my.txt").write_text(word[1:] + "\n")
        ours = imported(nllb, tmp_path / "ours", ["sw", "en"], keep_pieces_of=tmp_path / "my.txt")
        assert ours.tokenizer.pieces(ours.tokenizer.encode_text([word[1:]])[0]) == [word]
        assert ours.tokenizer.num_pieces < 12


def test_a_cut_for_pairs_names_the_characters_that_the_model_lacks(
    nllb: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "my.tsv").write_text("abc def\tɖekpe abɖ\nüb\tcab\n")
    with caplog.at_level(logging.INFO):
        ours = imported(nllb, tmp_path / "ours", ["sw", "en"], keep_pieces_of=tmp_path / "my.tsv")
    assert "my.tsv: the model lacks 2 characters, which it reads as <unk>: ɖ (2), p (1)" in caplog.text
    assert {"▁", "a", "b", "c", "d", "e", "f", "k", "ü"} <= {*ours.tokenizer.vocabulary()}
    assert not {"g", "h"} & {*ours.tokenizer.vocabulary()}


# --- languages ---


def test_a_language_is_found_by_its_name_or_its_code() -> None:
    nllb = transformers.models.nllb.tokenization_nllb.FAIRSEQ_LANGUAGE_CODES
    m2m = [f"__{code}__" for code in M2M_CODES]
    expected = {
        "tw": "twi_Latn", "ak": "aka_Latn", "ps": "pbt_Arab", "ff": "fuv_Latn", "qu": "quy_Latn", "crh": "crh_Latn",
        "sw": "swh_Latn", "en": "eng_Latn", "eng": "eng_Latn", "yor_Latn": "yor_Latn", "zh-Hant": "zho_Hant",
        "zho_Hans": "zho_Hans", "ar": "arb_Arab", "fa": "pes_Arab", "no": "nob_Latn", "nn": "nno_Latn",
        "sr": "srp_Cyrl", "ms": "zsm_Latn", "et": "est_Latn", "fon": "fon_Latn", "fur": "fur_Latn",
    }  # fmt: skip
    assert {code: find_language(code, nllb) for code in expected} == expected
    expected = {"en": "__en__", "sw": "__sw__", "swh": "__sw__", "yor": "__yo__", "__zu__": "__zu__", "zh": "__zh__"}
    assert {code: find_language(code, m2m) for code in expected} == expected
    for code, text in {"zh": "zho_Hans, zho_Hant", "ku": "ckb_Arab, kmr_Latn", "ace": "ace_Arab, ace_Latn"}.items():
        with pytest.raises(UsageError, match=f"language {code}: the model has {text}"):
            find_language(code, nllb)
    for code in ("xx", "sr_Latn", "klingon", ""):
        with pytest.raises(UsageError, match=f"language {code}: the model does not have it"):
            find_language(code, nllb)


def test_each_side_begins_with_its_language(nllb: Path, tmp_path: Path) -> None:
    ours = imported(nllb, tmp_path / "ours", ["en", "sw"], new_languages=["fon=yo", "xyz"])
    tokenizer = ours.tokenizer
    assert [*tokenizer.languages] == ["en", "sw", "fon", "xyz"]
    names = tokenizer.pieces([*tokenizer.languages.values()])
    assert names == ["eng_Latn", "swh_Latn", ">>fon<<", ">>xyz<<"]
    for src, tgt in (("en", "fon"), ("sw", "en")):
        frame, ids = tokenizer.frame(src, tgt), tokenizer.languages
        assert frame == Frame((ids[src],), (0,), (ids[tgt],))
        encoded = [tokenizer.encode(["abc"], frame, target=target)[0] for target in (False, True)]
        assert [sentence[0] for sentence in encoded] == [ids[src], ids[tgt]]
        assert tokenizer.frame_of(*encoded) == frame
    assert tokenizer.decode([[tokenizer.languages["fon"], *tokenizer.encode_text(["abc"])[0], 0]]) == ["abc"]
    typed = tokenizer.encode_text([" ".join(names)])[0]
    assert not {*typed} & {*tokenizer.languages.values()}  # text never becomes a language
    theirs = safetensors.torch.load_file(nllb / "model.safetensors")["model.shared.weight"]
    of = transformers.AutoTokenizer.from_pretrained(nllb).convert_tokens_to_ids
    embedding = ours.model.embedding
    assert torch.equal(embedding[tokenizer.languages["fon"]], theirs[of("yor_Latn")])
    torch.testing.assert_close(embedding[tokenizer.languages["xyz"]], theirs[of(NLLB)].mean(0))
    with pytest.raises(UsageError, match="has no language de; it has en, sw, fon, xyz"):
        tokenizer.frame("en", "de")
    assert Tokenizer.load(tmp_path / "ours").is_same(tokenizer)


def test_names_of_languages_are_parts_of_directions(nllb: Path, tmp_path: Path) -> None:
    first = imported(nllb, tmp_path / "first", ["en", "zh-Hant"], new_languages=["fon=yo"])
    assert [*first.tokenizer.languages] == ["en", "zh_Hant", "fon"]
    assert first.info["directions"][:2] == ["en-zh_Hant", "en-fon"]
    export(tmp_path / "first", "huggingface", tmp_path / "theirs")
    again = imported(tmp_path / "theirs", tmp_path / "again", ["eng_Latn", ">>fon<<"])
    assert again.info["directions"] == ["eng_Latn-fon", "fon-eng_Latn"]


@pytest.mark.parametrize("value", [5, {}, {"rule": "x", "ids": {}}, {"rule": "both", "ids": {"en": 9999}}])
def test_languages_of_a_tokenizer_must_fit_it(nllb: Path, tmp_path: Path, value: Any) -> None:
    imported(nllb, tmp_path / "ours", ["en", "sw"])
    change_json(tmp_path / "ours" / "tokenizer.json", languages=value)
    with pytest.raises(
        DamagedFileError, match=r"tokenizer\.json: its normalization, tags, languages or pieces do not match"
    ):
        Tokenizer.load(tmp_path / "ours")


def test_small_100_has_the_target_before_the_source(copy: Path, tmp_path: Path) -> None:
    change_json(copy / "tokenizer_config.json", tokenizer_class="SMALL100Tokenizer")
    ours = imported(copy, tmp_path / "ours", ["en", "sw"])
    assert ours.tokenizer.frame("en", "sw") == Frame((ours.tokenizer.languages["sw"],))
    export(tmp_path / "ours", "huggingface", tmp_path / "theirs")
    assert Theirs.load(tmp_path / "theirs").tokenizer.src_lang == "swh_Latn"
    again = imported(tmp_path / "theirs", tmp_path / "again", ["en", "sw"])
    assert again.tokenizer.is_same(ours.tokenizer)


def test_models_of_wmt_2021_have_other_languages(tmp_path: Path) -> None:
    write_model(tmp_path / "theirs", False, SMALL, torch.float32)
    num_pieces = len(json.loads((tmp_path / "theirs" / "vocab.json").read_text()))
    change_json(tmp_path / "theirs" / "tokenizer_config.json", language_codes="wmt21")
    change_json(tmp_path / "theirs" / "config.json", vocab_size=num_pieces + 8)
    shared = "model.shared.weight"
    change_weights(lambda t: t.update({shared: t[shared][: num_pieces + 8].clone()}))(tmp_path / "theirs")
    ours = imported(tmp_path / "theirs", tmp_path / "ours", ["de", "is"])
    theirs = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")[shared]
    assert torch.equal(ours.model.embedding[[*ours.tokenizer.languages.values()]], theirs[[-1, -6]])


def test_a_tied_matrix_has_any_of_its_names(copy: Path, tmp_path: Path) -> None:
    """The hub's conversion keeps the first by the alphabet."""
    before = imported(copy, tmp_path / "before", ["en", "sw"])
    change_weights(lambda t: t.update({"lm_head.weight": t.pop("model.shared.weight")}))(copy)
    assert torch.equal(imported(copy, tmp_path / "ours", ["en", "sw"]).model.embedding, before.model.embedding)


def test_languages_of_older_files(copy: Path, tmp_path: Path) -> None:
    """Before version 5, transformers saved their ids in another file too; these count."""
    expected = {name: 309 - i for i, name in enumerate(NLLB)}
    decoder = {str(token): {"content": name} for name, token in expected.items()}
    change_json(copy / "tokenizer_config.json", added_tokens_decoder=decoder)
    theirs = safetensors.torch.load_file(copy / "model.safetensors")["model.shared.weight"]
    ours = imported(copy, tmp_path / "ours", ["en", "sw"])
    for name, language in (("en", "eng_Latn"), ("sw", "swh_Latn")):
        assert torch.equal(ours.model.embedding[ours.tokenizer.languages[name]], theirs[expected[language]])


# --- licences ---


def test_the_licence_comes_first_and_stays(published: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    licence = "CC-BY-NC-4.0" if published.name == "nllb" else "MIT"
    with caplog.at_level(logging.INFO):
        import_m2m100(published, tmp_path / "ours", ["sw", "en"])
    assert caplog.messages[0] == f"{published}: licence {licence}"
    card = (tmp_path / "ours" / "README.md").read_text()
    assert f"license: {licence.lower()}\n" in card and f"Licence of the model: `{licence}`" in card
    assert "translates between `sw`, `en`" in card and published.name in card
    export(tmp_path / "ours", "huggingface", tmp_path / "theirs")
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert f"license: {licence.lower()}\n" in card and "M2M100ForConditionalGeneration.from_pretrained" in card
    assert "translates `sw` to `en`, `en` to `sw`. mtx exported" in card and 'language: ["sw", "en"]' in card
    assert init_from.describe(str(tmp_path / "ours"))[0]["model.licence"] == licence


def test_only_models_that_start_from_eos_name_their_start(nllb: Path, tmp_path: Path) -> None:
    """An earlier mtx reads the models of this one."""
    assert imported(nllb, tmp_path / "ours", ["sw", "en"]).model.config.stored()["start"] == "eos"
    assert "start" not in tiny_config().stored()


# --- refused ---


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def configure(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: change_json(directory / "config.json", **changes)


def change_weights(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        tensors = safetensors.torch.load_file(directory / "model.safetensors")
        change(tensors)
        safetensors.torch.save_file(tensors, directory / "model.safetensors")

    return damage


def other_pieces(directory: Path) -> None:
    model = io.BytesIO()
    text = iter(sentences(100, 1, "abc"))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=text, model_writer=model, model_type="bpe", vocab_size=40, minloglevel=2
    )
    (directory / "sentencepiece.bpe.model").write_bytes(model.getvalue())


def without_languages(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer_config.json").unlink()


REFUSED: list[tuple[Callable[[Path], object], type[MtxError], str]] = [
    (lambda d: (d / "sentencepiece.bpe.model").unlink(), UsageError, r"sentencepiece\.bpe\.model: missing file"),
    (other_pieces, DamagedFileError, r"config\.json: vocab_size is 311, but there are 41 pieces"),
    (lambda d: (d / "sentencepiece.bpe.model").write_bytes(b"x"), DamagedFileError, "not a SentencePiece model"),
    (without_languages, DamagedFileError, "neither tokenizer.json nor tokenizer_config.json names the languages"),
    (configure(vocab_size=305), DamagedFileError, r"vocab_size is 305, but there are 301 pieces and 7 languages"),
    (configure(vocab_size=340), DamagedFileError, r"vocab_size is 340, but there are 301 pieces"),
    (configure(vocab_size=313), DamagedFileError, r"model\.shared\.weight is \[311, 32\], expected \[313, 32\]"),
    (configure(layernorm_embedding=True), UsageError, r"config\.json: layernorm_embedding is True"),
    (configure(model_type="nllb-moe"), UsageError, r"config\.json: model_type is 'nllb-moe'"),
    (configure(model_type="t5"), UsageError, r"config\.json: model_type is 't5'"),
    (configure(scale_embedding=False), UsageError, "scale_embedding is False"),
    (configure(tie_word_embeddings=False), UsageError, "tie_word_embeddings is False"),
    (configure(decoder_start_token_id=1), UsageError, "decoder_start_token_id is 1"),
    (configure(decoder_ffn_dim=64), UsageError, "decoder_ffn_dim is 64, but mtx requires 48"),
    (configure(d_model="32"), DamagedFileError, "d_model is '32'"),
    (configure(encoder_attention_heads=3, decoder_attention_heads=3), UsageError, "divisible by model.num_heads"),
    (change_weights(lambda t: t.pop("model.encoder.layer_norm.bias")), DamagedFileError, "missing tensor"),
    (change_weights(lambda t: t.update(extra=torch.ones(1))), DamagedFileError, "unknown tensor extra"),
    (
        change_weights(lambda t: t.update({"model.encoder.embed_positions.weights": torch.randn(9, 32)})), UsageError,
        r"embed_positions\.weights is not mtx's table of sinusoids",
    ),
    (lambda d: change_json(d / "tokenizer.json", added_tokens=[{"id": "x"}]), DamagedFileError, "added_tokens 0 "),
    (
        lambda d: change_json(d / "tokenizer.json", added_tokens=[{"id": 301, "content": ">>\x1b[2J<<"}]),
        DamagedFileError, "names the languages",
    ),
    (lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"), UsageError, "pickle files are unsafe"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "kind", "message"), REFUSED)
def test_what_is_not_such_a_model_is_refused_by_name(
    copy: Path, tmp_path: Path, damage: Callable[[Path], object], kind: type[MtxError], message: str
) -> None:
    damage(copy)
    with pytest.raises(kind, match=message) as error:
        import_m2m100(copy, tmp_path / "ours", ["en", "sw"])
    text = str(error.value)
    assert text.startswith(str(copy)) and "\n" not in text and len(text) < 400
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--languages", "en,xx"], "language xx: the model does not have it"),
        (["--languages", "en,zh"], "language zh: the model has zho_Hans, zho_Hant"),
        (["--languages", "en,sw,en"], "--languages: en is named twice"),
        (["--languages", "en,sw,eng"], "--languages: eng_Latn is named twice"),
        (["--languages", "en,,sw"], "language : the model does not have it"),
        (["--languages", "en"], "a model translates between at least two languages"),
        ([], "a model translates between at least two languages"),
        (["--languages", "en,sw", "--new-language", "fon=xx"], "language xx: the model does not have it"),
        (["--languages", "en,sw", "--new-language", "en=sw"], "--languages: en is named twice"),
        (["--languages", "en,sw", "--new-language", "=sw"], "--new-language '': expected a code"),
        (["--languages", "en,sw", "--keep-pieces-of", "none.txt"], "none.txt: no such file"),
    ],
)  # fmt: skip
def test_a_wrong_request_leaves_nothing(nllb: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = mtx("import", nllb, *arguments, "-o", tmp_path / "ours")
    assert done.returncode == 2
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and errors[0].startswith(f"error: {message}")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", ["t5", "nllb-moe", "mbart"])
def test_the_command_refuses_other_models_by_name(copy: Path, tmp_path: Path, kind: str) -> None:
    change_json(copy / "config.json", model_type=kind)
    done = mtx("import", copy, "-o", tmp_path / "ours")
    assert done.returncode == 2 and not (tmp_path / "ours").exists()
    message = done.stderr.decode()
    assert f"model_type is '{kind}'" in message and "but not NLLB's experts, mBART and T5" in message


def test_the_command_imports(nllb: Path, tmp_path: Path) -> None:
    assert not mtx(
        "import", nllb, "--languages", "en, sw", "--new-language", "fon=yo", "-o", tmp_path / "ours"
    ).returncode
    assert [*Tokenizer.load(tmp_path / "ours").languages] == ["en", "sw", "fon"]


def test_legacy_behaviour_is_a_warning(copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_json(copy / "tokenizer_config.json", legacy_behaviour=True)
    import_m2m100(copy, tmp_path / "ours", ["en", "sw"])
    assert "legacy_behaviour puts the language of a source last; mtx puts it first" in caplog.text


def test_a_table_of_positions_is_accepted(copy: Path, tmp_path: Path) -> None:
    """Old files have it, with two rows that no token uses."""
    table = transformers.models.m2m_100.modeling_m2m_100.M2M100SinusoidalPositionalEmbedding(30, 32, 1).weights
    change_weights(lambda t: t.update({"model.encoder.embed_positions.weights": table.clone()}))(copy)
    import_m2m100(copy, tmp_path / "ours", ["en", "sw"])
