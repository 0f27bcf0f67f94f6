"""A MarianMT directory that transformers wrote becomes the same model here, or is refused by what is wrong with it."""

import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import sentencepiece
import torch
from torch import Tensor

from mtx.decoding import model_directory
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.interop.huggingface import export_huggingface, import_marian
from tests.integration.commands import tree
from tests.models import random_ids
from tests.unit.interop import peers

transformers = pytest.importorskip("transformers")

RUN = Path(__file__).parents[2] / "compat" / "format-2" / "run"
LANGUAGE = ">>deu<<"
TEXTS = [
    "", "abc fed", "  ab  cd ", f"{LANGUAGE} abc", f"{LANGUAGE}abc", "Grüße ab", "\U0001f600 ab", "漢字ab", "m² ½",
    "xyz vuw", "ab,c", "ab vuw fed xyz",
]  # fmt: skip
SIZES = {
    "encoder_layers": 3, "decoder_layers": 2, "d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 48,
}  # fmt: skip


def sentencepiece_model(letters: str, seed: int) -> bytes:
    """Trained by SentencePiece's defaults, as published models are: its ids differ from the vocabulary's."""
    rng, model = random.Random(seed), io.BytesIO()
    lines = [" ".join("".join(rng.choices(letters, k=4)) for _ in range(6)) for _ in range(100)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    return model.getvalue()


def union(*models: bytes) -> dict[str, int]:
    pieces: dict[str, int] = {"</s>": 0, "<unk>": 1}
    for model in models:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        for token in reversed(range(3, processor.get_piece_size())):
            pieces.setdefault(processor.id_to_piece(token), len(pieces))
    return {**pieces, LANGUAGE: len(pieces), "<pad>": len(pieces) + 1}


@torch.no_grad()
def write_marian(directory: Path, **changes: Any) -> None:
    """A random model by transformers' own class, its weights wide enough that errors would show."""
    source, target = sentencepiece_model("abcdefü", 1), sentencepiece_model("defxyzuvw,", 2)
    vocabulary = union(source, target)
    pad = len(vocabulary) - 1
    config = transformers.MarianConfig(
        vocab_size=pad + 1, pad_token_id=pad, decoder_start_token_id=pad, scale_embedding=True,
        **{"activation_function": "swish", "init_std": 0.3, **SIZES, **changes},
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        assert "embed_tokens" not in name or not parameter[pad].any()
    model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    model.generation_config.num_beams = 6
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(directory)
    (directory / "source.spm").write_bytes(source)
    (directory / "target.spm").write_bytes(target)
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("published")
    write_marian(directory)
    return directory


def assert_equal_logits(directory: Path, loaded: model_directory.LoadedModel) -> None:
    model, _ = peers.marian(directory)
    num_ids = loaded.tokenizer.num_ids
    src, tgt = random_ids([5, 9, 1, 20, 7], num_ids, 3), random_ids([6, 3, 12, 4, 1], num_ids, 4)
    ours, theirs = peers.our_logits(loaded.model, src, tgt), peers.their_logits(model, src, tgt)
    assert theirs.abs().max() > 1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_ids_logits_and_settings_are_those_of_transformers(published: Path, tmp_path: Path) -> None:
    import_marian(published, tmp_path / "ours")
    loaded = model_directory.load(tmp_path / "ours")
    assert_equal_logits(published, loaded)
    assert loaded.model.output_bias is not None and loaded.model.config.num_encoder_layers == 3
    assert dict(loaded.info) | {
        "src": "en", "tgt": "de", "max_tokens": 48, "beam_size": 6, "length_penalty": 1.0
    } == dict(loaded.info)  # fmt: skip
    _, theirs = peers.marian(published)
    ours = loaded.tokenizer
    assert ours.encode(TEXTS) == theirs(TEXTS).input_ids
    no_language = [text for text in TEXTS if LANGUAGE not in text]
    assert ours.encode(no_language, target=True) == theirs(text_target=no_language).input_ids
    assert ours.encode(TEXTS) != ours.encode(TEXTS, target=True)
    ids = ours.encode(no_language, target=True)
    assert ours.decode(ids) == theirs.batch_decode(ids, skip_special_tokens=True)
    model, _ = peers.marian(published)
    src = ours.encode(["abc fed ab"])[0]
    out = model.generate(torch.tensor([src]), num_beams=1, max_length=12, bad_words_ids=[[ours.pad_id]])
    assert out[0].tolist() == [ours.pad_id, *peers.our_greedy(loaded.model, src, 11)]


@pytest.mark.parametrize(
    "changes",
    [
        {"share_encoder_decoder_embeddings": False},
        {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "activation_function": "relu"},
    ],
)
def test_other_ways_to_tie(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_marian(tmp_path / "published", **changes)
    import_marian(tmp_path / "published", tmp_path / "ours")
    assert_equal_logits(tmp_path / "published", model_directory.load(tmp_path / "ours"))


def test_in_and_out_again(published: Path, tmp_path: Path) -> None:
    import_marian(published, tmp_path / "ours")
    loaded = model_directory.load(tmp_path / "ours")
    export_huggingface(loaded, tmp_path / "again")
    assert_equal_logits(tmp_path / "again", loaded)
    _, first = peers.marian(published)
    _, second = peers.marian(tmp_path / "again")
    assert first(TEXTS).input_ids == second(TEXTS).input_ids
    assert json.loads((tmp_path / "again" / "vocab.json").read_text()) == first.get_vocab()
    import_marian(tmp_path / "again", tmp_path / "ours again")
    back = model_directory.load(tmp_path / "ours again")
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(back.model.state_dict()[name], tensor), name
    assert dict(back.info) == dict(loaded.info)


def reverse_ids(directory: Path) -> None:
    """Gives every piece another id, and so the files of the same model in another order."""
    ids = json.loads((directory / "vocab.json").read_text())
    last = len(ids) - 1
    (directory / "vocab.json").write_text(json.dumps({piece: last - token for piece, token in ids.items()}))
    change_json(
        directory / "config.json", eos_token_id=last, forced_eos_token_id=last, pad_token_id=0, decoder_start_token_id=0
    )
    with_rows = "model.shared.weight", "final_logits_bias"
    change_weights(directory, lambda t: t.update({n: t[n].flip(int(n.startswith("final"))) for n in with_rows}))


def test_ids_in_another_order_are_the_same_model(published: Path, copy: Path, tmp_path: Path) -> None:
    reverse_ids(copy)
    import_marian(published, tmp_path / "first")
    import_marian(copy, tmp_path / "second")
    first, second = (model_directory.load(tmp_path / name) for name in ("first", "second"))
    _, theirs = peers.marian(copy)
    assert first.tokenizer.encode(TEXTS) != second.tokenizer.encode(TEXTS)  # the pieces between are in file order
    pieces = [list(map(loaded.tokenizer.pieces, loaded.tokenizer.encode(TEXTS))) for loaded in (first, second)]
    assert pieces[0] == pieces[1] == list(map(theirs.convert_ids_to_tokens, theirs(TEXTS).input_ids))
    for name, tensor in first.model.state_dict().items():
        other = second.model.state_dict()[name]
        rows = sorted(range(first.tokenizer.num_ids), key=lambda row: first.tokenizer.pieces([row]))
        others = sorted(range(first.tokenizer.num_ids), key=lambda row: second.tokenizer.pieces([row]))
        assert torch.equal(tensor[rows], other[others]) if len(tensor) > 60 else torch.equal(tensor, other), name


# --- older and other files of the same model ---


def change_weights(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def copy(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "copy"))


def test_copies_of_tied_and_computed_tensors_are_accepted(published: Path, copy: Path, tmp_path: Path) -> None:
    model, _ = peers.marian(published)
    derived = {name: t for name, t in model.state_dict().items() if "embed" in name or name == "lm_head.weight"}
    assert len(derived) == 5
    change_weights(copy, lambda tensors: tensors.update({name: t.clone() for name, t in derived.items()}))
    import_marian(copy, tmp_path / "ours")
    assert_equal_logits(published, model_directory.load(tmp_path / "ours"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_fp32(copy: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    change_weights(copy, lambda tensors: tensors.update({name: t.to(dtype) for name, t in tensors.items()}))
    halves = safetensors.torch.load_file(copy / "model.safetensors")
    import_marian(copy, tmp_path / "ours")
    embedding = model_directory.load(tmp_path / "ours").model.embedding
    assert embedding.dtype == torch.float32 and torch.equal(embedding, halves["model.shared.weight"].float())


def test_without_a_bias_and_settings_there_are_defaults(copy: Path, tmp_path: Path) -> None:
    change_weights(copy, lambda tensors: tensors.pop("final_logits_bias"))
    (copy / "generation_config.json").unlink()
    (copy / "tokenizer_config.json").unlink()
    import_marian(copy, tmp_path / "ours")
    loaded = model_directory.load(tmp_path / "ours")
    assert loaded.model.output_bias is None
    assert (loaded.info["src"], loaded.info["tgt"], loaded.info["beam_size"]) == ("src", "tgt", 4)


# --- refused ---


def remove(name: str) -> Callable[[Path], None]:
    return lambda directory: change_weights(directory, lambda tensors: tensors.pop(name))


def put(name: str, tensor: Callable[[dict[str, Tensor]], Tensor]) -> Callable[[Path], None]:
    return lambda directory: change_weights(directory, lambda tensors: tensors.update({name: tensor(tensors)}))


def configure(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: change_json(directory / "config.json", **changes)


def vocabulary(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: change_json(directory / "vocab.json", **changes)


def with_nan(tensors: dict[str, Tensor]) -> Tensor:
    tensor = tensors["model.decoder.layers.1.fc1.bias"].clone()
    tensor[3] = float("nan")
    return tensor


def pickle_only(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def truncated(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes()[:-40]) and None


FC1 = "model.encoder.layers.0.fc1.weight"
REFUSED: list[tuple[Callable[[Path], None], type[MtxError], str]] = [
    (pickle_only, UsageError, r"pytorch_model\.bin: pickle files"),
    (lambda d: (d / "model.safetensors").unlink(), DamagedFileError, r"model\.safetensors: missing file"),
    (truncated("model.safetensors"), DamagedFileError, r"model\.safetensors: cannot read it"),
    (remove(FC1), DamagedFileError, r"model\.safetensors: missing tensor model\.encoder\.layers\.0\.fc1\.weight"),
    (put(FC1, lambda t: t[FC1].T), DamagedFileError, r"fc1\.weight is \[16, 32\], expected \[32, 16\]"),
    (put("model.extra", lambda t: torch.ones(1)), DamagedFileError, "unknown tensor model.extra"),
    (put("model.decoder.layers.1.fc1.bias", with_nan), DamagedFileError, r"fc1\.bias has .* not finite"),
    (put(FC1, lambda t: t[FC1].double()), UsageError, "is torch.float64"),
    (put(FC1, lambda t: t[FC1].to(torch.int8)), UsageError, "is torch.int8"),
    (put("lm_head.weight", lambda t: t["model.shared.weight"] + 1), DamagedFileError, "lm_head.weight differs"),
    (put("final_logits_bias", lambda t: torch.zeros(1, 4)), DamagedFileError, r"final_logits_bias is \[1, 4\]"),
    (put("model.shared.weight", lambda t: t["model.shared.weight"] + 1), UsageError, r"\(<pad>\) is not zero"),
    (
        put("model.encoder.embed_positions.weight", lambda t: torch.randn(48, 16)), UsageError,
        "is not mtx's table of sinusoids",
    ),
    (configure(normalize_before=True), UsageError, r"config\.json: normalize_before is True"),
    (configure(normalize_embedding=True), UsageError, r"config\.json: normalize_embedding is True"),
    (configure(static_position_embeddings=False), UsageError, "static_position_embeddings is False"),
    (configure(scale_embedding=False), UsageError, r"scale_embedding is False"),
    (configure(is_encoder_decoder=False), UsageError, "is_encoder_decoder is False"),
    (configure(add_final_layer_norm=True), UsageError, "add_final_layer_norm is True"),
    (configure(model_type="m2m_100"), UsageError, "model_type is 'm2m_100'"),
    (configure(activation_function="tanh"), UsageError, "activation_function is 'tanh'"),
    (configure(activation_function=[]), UsageError, "activation_function is"),
    (configure(decoder_ffn_dim=64), UsageError, "decoder_ffn_dim is 64, but mtx requires 32"),
    (configure(decoder_attention_heads=2), UsageError, "decoder_attention_heads is 2, but mtx requires 4"),
    (configure(encoder_layers=10**12), DamagedFileError, "encoder_layers is 1000000000000"),
    (configure(d_model="16"), DamagedFileError, "d_model is '16'"),
    (configure(encoder_attention_heads=3, decoder_attention_heads=3), UsageError, "divisible by model.num_heads"),
    (configure(tie_word_embeddings=False), UsageError, "tie_word_embeddings is False"),
    (configure(pad_token_id=0), UsageError, "pad_token_id is 0"),
    (configure(eos_token_id=1), UsageError, "eos_token_id is 1"),
    (configure(decoder_vocab_size=9), UsageError, "decoder_vocab_size is 9"),
    (lambda d: (d / "config.json").write_text("[" * 100_000) and None, DamagedFileError, r"config\.json: invalid JSON"),
    (lambda d: (d / "config.json").write_text("[]") and None, DamagedFileError, r"config\.json: not a JSON object"),
    (truncated("vocab.json"), DamagedFileError, r"vocab\.json: invalid JSON"),
    (lambda d: (d / "vocab.json").unlink(), DamagedFileError, r"vocab\.json: missing file"),
    (vocabulary(**{"</s>": 5}), DamagedFileError, r"vocab\.json: .*with ids from 0"),
    (vocabulary(**{"</s>": 1, "<unk>": 0}), UsageError, "eos_token_id is 0, but mtx requires 1"),
    (vocabulary(**{"</s>": 200}), DamagedFileError, r"vocab\.json: .*with ids from 0"),
    (vocabulary(another=7.5), DamagedFileError, r"vocab\.json: .*with ids from 0"),
    (vocabulary(**{"\ud800": 7}), DamagedFileError, r"vocab\.json: .*with ids from 0"),
    (lambda d: (d / "vocab.json").write_text('{"</s>": 0, "<unk>": 1, "<pad>": 2}') and None, DamagedFileError,
     r"vocab\.json: expected 110 entries .*, got 3"),
    (truncated("source.spm"), DamagedFileError, r"source\.spm: not a SentencePiece model"),
    (lambda d: (d / "target.spm").unlink(), DamagedFileError, r"target\.spm: missing file"),
    (lambda d: change_json(d / "tokenizer_config.json", separate_vocabs=True), UsageError, "separate_vocabs"),
    (lambda d: change_json(d / "tokenizer_config.json", source_lang="../x"), DamagedFileError, "source_lang is '../x'"),
    (lambda d: change_json(d / "generation_config.json", num_beams="4"), DamagedFileError, "num_beams is '4'"),
    (lambda d: change_json(d / "generation_config.json", length_penalty=-1), DamagedFileError, "length_penalty is -1"),
]  # fmt: skip


@pytest.mark.parametrize("damage, kind, message", REFUSED)
def test_what_is_not_such_a_model_is_refused_by_name(
    copy: Path, tmp_path: Path, damage: Callable[[Path], None], kind: type[MtxError], message: str
) -> None:
    damage(copy)
    with pytest.raises(kind, match=message) as error:
        import_marian(copy, tmp_path / "ours")
    text = str(error.value)
    assert text.startswith(f"{copy}/") and "\n" not in text and len(text) < 400
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    "files, kind, message",
    [
        ({"config.json": '{"model_type": "t5"}'}, UsageError, "model_type is 't5': expected 'marian'"),
        ({"config.json": '{"model_type": "mbart"}'}, UsageError, "model_type is 'mbart': expected 'marian'"),
        ({"config.json": '{"model_type": "marian"}'}, DamagedFileError, "model.safetensors: missing file"),
        ({"model.npz": "", "vocab.spm": ""}, UsageError, "a model of Marian itself"),
    ],
)
def test_a_directory_of_another_program_is_named(
    tmp_path: Path, files: dict[str, str], kind: type[MtxError], message: str
) -> None:
    (theirs := tmp_path / "theirs").mkdir()
    for name, text in files.items():
        (theirs / name).write_text(text)
    with pytest.raises(kind, match=message):
        import_marian(theirs, tmp_path / "ours")
    with pytest.raises(UsageError, match="not a model directory") as error:
        model_directory.load(theirs)
    assert "import" in str(error.value.help)


def test_a_pickle_comes_with_the_way_to_convert_it(copy: Path, tmp_path: Path) -> None:
    pickle_only(copy)
    with pytest.raises(UsageError) as error:
        import_marian(copy, tmp_path / "ours")
    assert f".save_pretrained({str(copy)!r})" in (error.value.help or "")


def test_an_imported_model_is_replaced_unless_it_holds_what_mtx_did_not_write(copy: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    import_marian(copy, ours)
    import_marian(copy, ours)
    (ours / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="ours: not an earlier export or import"):
        import_marian(copy, ours)
    assert (ours / "notes.txt").read_text() == "mine"


def test_no_part_of_a_run_is_replaced(copy: Path, tmp_path: Path) -> None:
    run_copy = Path(shutil.copytree(RUN, tmp_path / "run"))
    before = tree(run_copy)
    checkpoint = next((run_copy / "checkpoints").glob("step-*"))
    for part in (run_copy / "data", checkpoint, next((run_copy / "evaluation").iterdir())):
        with pytest.raises(UsageError, match="not an earlier export or import"):
            import_marian(copy, part)
    (tmp_path / "link").symlink_to(run_copy / "model")
    for model in (run_copy / "model", tmp_path / "link"):
        with pytest.raises(UsageError, match="not an earlier export or import"):
            import_marian(copy, model)
    assert tree(run_copy) == before


def test_nothing_of_others_is_replaced(copy: Path, tmp_path: Path) -> None:
    for place in (copy, tmp_path):
        with pytest.raises(UsageError, match="not an earlier export or import"):
            import_marian(copy, place)
    with pytest.raises(UsageError, match="no such directory"):
        import_marian(tmp_path / "nothing", tmp_path / "ours")
