"""What a stranger can do to a model directory: changes by name, each with words of the error that answers it."""

import json
import os
import struct

import torch

from mtx.storage.durable import MANIFEST
from mtx.storage.run_files import MODEL_CONFIG, TOKENIZER_JSON, TOKENIZER_MODEL, WEIGHTS
from tests.reliability.hostile_changes import (
    Change,
    braces,
    config,
    embedding,
    extra,
    header,
    instead,
    known_pieces,
    link,
    listed,
    manifest,
    model_text,
    outside,
    overlap,
    pipe,
    put,
    sentencepiece_model,
    text,
    twice,
    weights,
)  # fmt: skip
from tests.reliability.hostile_files import PICKLE, piece, torch_pickle, with_charsmap, with_pieces
from tests.reliability.hostile_files import safetensors as safetensors_file

MATRIX = "encoder.0.inner.weight"
MEGABYTE = 1 << 20
ESCAPE = "\x1b[2J"

WEIGHT_FILES: dict[str, tuple[Change, str]] = {
    "pickle": (put(WEIGHTS, PICKLE), "model.safetensors"),
    "pickle of torch": (put(WEIGHTS, torch_pickle()), "model.safetensors"),
    "nothing in it": (put(WEIGHTS, b""), "model.safetensors"),
    "header of 2^63 bytes": (put(WEIGHTS, safetensors_file({}, length=1 << 63)), "a header of"),
    "header of 2^64-1 bytes": (put(WEIGHTS, safetensors_file({}, length=(1 << 64) - 1)), "a header of"),
    "header longer than the file": (put(WEIGHTS, safetensors_file({}, length=1000)), "model.safetensors"),
    "header of 20 MB": (put(WEIGHTS, safetensors_file(b" " * 20 * MEGABYTE)), "a header of"),
    "header of 100,000 lists": (put(WEIGHTS, safetensors_file(b"[" * 100_000)), "nested too deeply"),
    "header that is a list": (put(WEIGHTS, safetensors_file([])), "model.safetensors"),
    "overlapping tensors": (header(overlap), "offset"),
    "offsets beyond the file": (embedding(data_offsets=[0, 1 << 60]), "offset"),
    "offsets in reverse": (embedding(data_offsets=[64, 0]), "offset"),
    "offsets below zero": (embedding(data_offsets=[-4, 0]), "-4"),
    "shape beyond 2^64": (embedding(shape=[1 << 32] * 3), "overflow"),
    "shape larger than its bytes": (embedding(shape=[1 << 40, 16]), "shape"),
    "shape with a fraction": (embedding(shape=[1.5, 2]), "1.5"),
    "shape of nothing times 2^124": (extra([0, 1 << 62, 1 << 62]), "model.safetensors"),
    "shape of nothing times 2^63": (extra([0, 1 << 63]), "model.safetensors"),
    "type of 4 bits": (extra([0], "F4"), "unknown tensor"),
    "type that there is not": (embedding(dtype="PICKLE"), "PICKLE"),
    "a tensor twice": (twice, "duplicate key"),
    "bytes behind the end": (lambda d: put(WEIGHTS, (d / WEIGHTS).read_bytes() + b"12345678")(d), "model.safetensors"),
    "not a number": (weights(lambda tensors: tensors[MATRIX][0, 0].fill_(torch.nan)), f"{MATRIX} has numbers"),
    "infinity": (weights(lambda tensors: tensors["embedding"].fill_(torch.inf)), "embedding has numbers"),
    "numbers that overflow": (weights(lambda tensors: tensors[MATRIX].fill_(3e38)), "no numbers as scores"),
    "transposed": (weights(lambda tensors: tensors.update({MATRIX: tensors[MATRIX].T.contiguous()})), "[16, 32]"),
    "missing": (weights(lambda tensors: tensors.pop(MATRIX)), f"missing tensor {MATRIX}"),
    "one too many": (weights(lambda tensors: tensors.update(x=torch.ones(2))), "unknown tensor x"),
    "control characters in a name": (weights(lambda t: t.update({ESCAPE: torch.ones(2)})), r"\x1b[2J"),
    "a name of a megabyte": (weights(lambda t: t.update({"x" * MEGABYTE: torch.ones(2)})), "unknown tensor"),
    "of another type": (weights(lambda t: t.update({MATRIX: t[MATRIX].double()})), "torch.float64"),
    **{f"none, but {name}": (instead(name), "does not list model.safetensors") for name in (
        "pytorch_model.bin", "model.bin", "model.pt", "optimizer.pt", "checkpoint.pkl", "model.npy",
    )},
}  # fmt: skip

CONFIGS: dict[str, tuple[Change, str]] = {
    "pickle": (put(MODEL_CONFIG, PICKLE), "invalid JSON"),
    "nothing in it": (put(MODEL_CONFIG, b""), "invalid JSON"),
    "a list": (put(MODEL_CONFIG, b"[]"), "got None"),
    "a million lists": (put(MODEL_CONFIG, b"[" * MEGABYTE), "nested too deeply"),
    "20 MB": (put(MODEL_CONFIG, b'{"format": 2}' + b" " * 20 * MEGABYTE), "expected at most"),
    "a key twice": (model_text('"d_model": 16, "d_model": 16'), "duplicate key"),
    "d_model of 10^9": (config(d_model=10**9), "d_model"),
    "d_model of 10^18": (config(d_model=10**18), "d_model"),
    "d_model of 65,536, d_ff of 2^18": (config(d_model=1 << 16, d_ff=1 << 18), "expected torch.float32 [65536]"),
    "d_ff of 10^12": (config(d_ff=10**12), "d_ff"),
    "10^9 layers": (config(num_encoder_layers=10**9), "num_encoder_layers"),
    "1,000 layers": (config(num_decoder_layers=1000), "missing tensor decoder"),
    "no heads": (config(num_heads=0), "num_heads"),
    "heads below zero": (config(num_heads=-1), "num_heads"),
    "heads that do not divide": (config(num_heads=3), "is not divisible"),
    "a width with a fraction": (config(d_model=16.5), "d_model"),
    "a width that is no number": (model_text('"d_model": NaN'), "d_model"),
    "a width of 1e400": (model_text('"d_model": 1e400'), "d_model"),
    "a width of 4,000 digits": (model_text(f'"d_model": {"9" * 4000}'), "d_model"),
    "a width of 5,000 digits": (model_text(f'"d_model": {"9" * 5000}'), "digits"),
    "code for a model": (config(model="__import__('os').system('touch canary')"), "expected a section"),
    "a tag for a preset": (config(preset="!!python/object/apply:os.system [touch canary]"), "preset"),
    "an attribute for an activation": (config(activation="__class__"), "activation"),
    "control characters in a key": (model_text(f'"d_model": 16, "{ESCAPE[1:]}\\u001b": 1'), r"\x1b"),
    "control characters in a language": (config(src=f"{ESCAPE}\nde"), "src: "),
    "a path for a language": (config(tgt="../../etc/passwd"), "tgt: "),
    "a language of a megabyte": (config(src="x" * MEGABYTE), "src: "),
    "max_tokens of 10^12": (config(max_tokens=10**12), "max_tokens: "),
    "max_tokens with no room for a piece": (config(max_tokens=2), "max_tokens: "),
    "a beam of 10^12": (config(beam_size=10**12), "beam_size: "),
    "a share of 2": (config(multi_sentence_share=2.0), "multi_sentence_share: "),
    "a beam that is true": (config(beam_size=True), "beam_size"),
    "a penalty of 1e308": (config(length_penalty=1e308), "length_penalty: "),
    "a penalty that is no number": (text(MODEL_CONFIG, '"length_penalty": 0.6', '"length_penalty": NaN'), "length_pen"),
    "outputs of 4,000 digits": (config(num_ids=int("9" * 4000)), "num_ids: "),
    "a format of a megabyte": (config(format=ESCAPE * (MEGABYTE // 4)), "expected format 2"),
}  # fmt: skip

TOKENIZERS: dict[str, tuple[Change, str]] = {
    "pickle": (put(TOKENIZER_MODEL, PICKLE), "not a SentencePiece model"),
    "nothing in it": (put(TOKENIZER_MODEL, b""), "not a SentencePiece model"),
    "a piece of 100 kB": (sentencepiece_model(lambda m: with_pieces(m, piece(b"a" * 100_000))), "too long"),
    "a user's piece of 100 kB": (sentencepiece_model(lambda m: with_pieces(m, piece(b"a" * 100_000, 4))), "too long"),
    "a piece with NUL": (sentencepiece_model(lambda m: with_pieces(m, piece(b"a\0b"))), "null character"),
    "a piece that is not UTF-8": (sentencepiece_model(lambda m: with_pieces(m, piece(b"\xff\xfe"))), "not UTF-8"),
    "a piece twice": (sentencepiece_model(lambda m: with_pieces(m, piece(b"zz") * 2)), "already defined"),
    "an unknown piece": (sentencepiece_model(lambda m: with_pieces(m, piece(b"a\nb"))), "do not match"),
    "1,050,000 pieces": (
        sentencepiece_model(lambda m: with_pieces(m, b"".join(piece(b"%d~" % i) for i in range(1_050_000)))), "too many"
    ),
    "a table of garbage": (
        sentencepiece_model(lambda m: with_charsmap(m, struct.pack("<I", 1024) + bytes(range(256)) * 4 + b"abc\0")),
        "precompiled_charsmap is invalid",
    ),
    "a table with a wrong size": (sentencepiece_model(lambda m: with_charsmap(m, b"\xff" * 9)), "blob size"),
    "half of it": (sentencepiece_model(lambda m: m[: len(m) // 2]), "not a SentencePiece model"),
    "a field of 2^63 bytes": (sentencepiece_model(lambda m: m + b"\x0a" + b"\xff" * 9 + b"\1"), "not a SentencePiece"),
    "64 MB of nothing": (lambda d: os.truncate(d / TOKENIZER_MODEL, 64 * MEGABYTE), "expected at most"),
    "tokenizer.json: pickle": (put(TOKENIZER_JSON, PICKLE), "invalid JSON"),
    "tokenizer.json: of another model": (text(TOKENIZER_JSON, '"a": ', '"\\u00e9": '), "do not match"),
    "tokenizer.json: a piece twice": (text(TOKENIZER_JSON, '"<unk>": 1', '"<unk>": 1, "<unk>": 1'), "duplicate key"),
    "tokenizer.json: no Unicode form": (text(TOKENIZER_JSON, '"nfc"', '{"nfc": 1}'), "do not match"),
    "tokenizer.json: a tag of half a character": (text(TOKENIZER_JSON, '"BT"', '"\\ud800"'), "tags"),
    "tokenizer.json: 100,000 tags": (
        text(TOKENIZER_JSON, '"tags": {', '"tags": {' + "".join(f'"t{i}": {i}, ' for i in range(100_000))), "tags"
    ),
}  # fmt: skip

MANIFESTS: dict[str, tuple[Change, str]] = {
    "pickle": (manifest(lambda values: PICKLE), "invalid JSON"),
    "nothing in it": (manifest(lambda values: b""), "invalid JSON"),
    "a list of files": (manifest(lambda values: values.update(files=[1])), "lists no files"),
    "a name above": (listed("../secret"), "not the name of a file"),
    "an absolute name": (listed("/etc/passwd"), "not the name of a file"),
    "the directory above": (listed(".."), ".."),
    "a name with NUL": (listed("a\0b"), r"\x00"),
    "half a character": (listed("\ud800"), r"\ud800"),
    "a name of 100 kB": (listed("x" * 100_000), "xxx"),
    "17 MB of braces": (braces(17 * MEGABYTE), "expected at most"),
    "15 MB of braces": (braces(15 * MEGABYTE), "lists no files"),
    "700,000 names, one twice": (
        manifest(lambda v: b'{"files": {' + b"".join(b'"%d":1,' % i for i in range(700_000)) + b'"699999":1}}'),
        "duplicate",
    ),
    "a file twice": (manifest(lambda v: json.dumps(v).replace("{", '{"x": 1, "x": 1, ').encode()), "duplicate key"),
    "a hash that is a list": (manifest(lambda values: values["files"][WEIGHTS].update(sha256=["x"])), "sha256"),
}  # fmt: skip

LINKS: dict[str, tuple[Change, str]] = {
    **{f"{name} to /etc/passwd": (link(name, "/etc/passwd"), "a link to another directory") for name in (
        WEIGHTS, MODEL_CONFIG, TOKENIZER_MODEL, TOKENIZER_JSON, MANIFEST, "unknown",
    )},
    "a second tokenizer to /etc/passwd": (link("tokenizer.src.model", "/etc/passwd"), "a link to another directory"),
    **{f"{name} to its honest self": (outside(name), "a link to another directory") for name in (
        WEIGHTS, MODEL_CONFIG, TOKENIZER_MODEL, TOKENIZER_JSON, MANIFEST,
    )},
    **{f"{name} to /dev/zero": (link(name, "/dev/zero", list_it=True), "missing file") for name in (
        WEIGHTS, MODEL_CONFIG, TOKENIZER_MODEL, TOKENIZER_JSON,
    )},
    "to itself": (link(WEIGHTS, WEIGHTS, list_it=True), "missing file"),
    "a pipe for weights": (pipe(WEIGHTS), "missing file"),
    "a pipe for a configuration": (pipe(MODEL_CONFIG), "missing file"),
}  # fmt: skip

NO_MODELS: dict[str, tuple[Change, str]] = {  # asked wrongly: exit code 2
    "a pipe for a manifest": (pipe(MANIFEST), "not a model directory"),
    "a manifest that is /dev/zero": (link(MANIFEST, "/dev/zero"), "not a model directory"),
    "a run's configuration that is /etc/passwd": (link("config.yaml", "/etc/passwd"), "no model yet"),
    "a model inside that is /etc": (link("model", "/etc"), "not a model directory"),
}

HARMLESS: dict[str, Change] = {  # not read, or read as what they are: the translation comes
    **{name: put(name, PICKLE) for name in (
        "pytorch_model.bin", "optimizer.safetensors", "optimizer", "state.json", "rng.pkl", "scores.json", "model.pt",
        "mtx.py", "torch.py", "sentencepiece.py", "sitecustomize.py", "conftest.py",
    )},
    "an environment variable for a language": config(src="$HOME`touch canary`$(touch canary)"),
    "a link to the directory itself": link("model", "."),
    "pieces with line ends": known_pieces(piece(b"a\nb", 4) + piece(b"\r\n", 4)),
    "a piece without a score": known_pieces(piece(b"zz", 1, float("nan"))),
    "words in the header": header(lambda tensors: tensors.update(__metadata__={"loader": "eval(1)"})),
}  # fmt: skip
