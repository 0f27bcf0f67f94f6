"""`training.init_from`: a run that starts from a model keeps its pieces, learns on from its weights, resumes alike."""

import io
import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch

from mtx.config.schema import ModelConfig, TokenizerConfig
from mtx.data.sentencepiece_models import SplitModel
from mtx.data.token_store import load_prepared
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.decoding import model_directory
from mtx.interop.huggingface import export_huggingface, import_marian
from mtx.model.transformer import Transformer
from mtx.storage import durable
from mtx.storage.run_files import WEIGHTS
from tests.integration.commands import (
    ENVIRONMENT,
    check_error,
    events,
    flip_bit,
    mtx,
    pairs,
    start,
    tree,
    wait_until,
    write_sides,
    write_tsv,
)
from tests.integration.test_looking import ASK
from tests.rig import PATIENCE_S

INFO = {"src": "en", "tgt": "de", "max_tokens": 32, "beam_size": 4, "length_penalty": 1.0}
Refused = Callable[..., None]
QUICK = [
    "data.max_tokens=32", "training.batch_tokens=256", "training.warmup_steps=20", "training.learning_rate=0.01",
    "training.max_steps=8", "training.checkpoint_every=4", "training.validate_every=4", "training.average_last=1",
]  # fmt: skip


@pytest.fixture
def source(trained: Path, tmp_path: Path) -> Path:
    """A model directory, 1+1 layers of 32/64, 300 pieces, en-de, after 40 steps."""
    return Path(shutil.copytree(trained / "model", tmp_path / "source"))


def train(*arguments: Any) -> str:
    """`mtx train`; what it said on stderr."""
    result = mtx("train", *arguments)
    assert result.returncode == 0, result.stderr.decode()
    return result.stderr.decode()


def validation_nll(run: Path) -> dict[int, float]:
    return {event["step"]: event["nll"] for event in events(run) if event["event"] == "validation"}


def test_training_starts_from_the_weights_and_keeps_the_pieces(source: Path, corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = [f"training.init_from={source}", f"data.train={corpus}", *QUICK, "training.learning_rate=1e-9"]
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("sizes: corpus\nmodel: {preset: small}\n", encoding="utf-8")
    err = train(str(recipe), *settings, f"run_dir={run}")
    assert f"which override model.preset of {recipe}" in err
    assert f"starting from the weights of {source}" in err
    for name in ("tokenizer.model", "tokenizer.json"):
        assert (run / "data" / name).read_bytes() == (source / name).read_bytes()
        assert (run / "model" / name).read_bytes() == (source / name).read_bytes()
    before, after = (model_directory.load(directory).model.state_dict() for directory in (source, run / "model"))
    for name, tensor in before.items():
        assert torch.allclose(tensor, after[name], rtol=0, atol=1e-7), name
    nll = validation_nll(run)
    assert list(nll) == [0, 4, 8] and nll[8] == pytest.approx(nll[0], abs=1e-4)
    assert nll[0] < 0.7 * math.log(308)  # what a new model has is above
    told = json.loads((run / "model" / "scores.json").read_text())["run"]["init_from"]
    assert told == {"path": str(source), "sha256": durable.sha256(source / WEIGHTS)}
    config = (run / "config.yaml").read_text()
    assert f"init_from: {source}\n" in config and "d_model: 32\n" in config and "vocab_size: 300\n" in config


def test_a_resumed_run_is_the_uninterrupted_one_and_needs_the_model_no_more(
    source: Path, corpus: Path, tmp_path: Path
) -> None:
    settings = ["own-text", f"training.init_from={source}", f"data.train={corpus}", *QUICK, "training.cooldown=0"]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(*settings, f"run_dir={whole}")
    train(*settings, f"run_dir={halves}", "training.max_steps=4")
    shutil.rmtree(source)
    err = train(halves, "training.max_steps=8")
    assert "resuming from step 4" in err and "starting from" not in err
    for name in (Path("checkpoints", "step-00000008", "optimizer.safetensors"), Path("model", WEIGHTS)):
        assert (halves / name).read_bytes() == (whole / name).read_bytes()
    run = [json.loads((path / "model" / "scores.json").read_text())["run"] for path in (whole, halves)]
    assert run[0]["init_from"] == run[1]["init_from"]
    assert validation_nll(whole)[8] < validation_nll(whole)[0]
    assert "this run is finished" in train(*settings, f"run_dir={halves}")


@pytest.mark.extended
def test_stopped_before_the_first_step(source: Path, corpus: Path, tmp_path: Path) -> None:
    """What is known by then is the validation of the model; there is nothing to go on from."""
    run = tmp_path / "run"
    slow = ["training.batch_tokens=8000", "training.micro_batch_tokens=32", "training.max_steps=1"]
    settings = [f"training.init_from={source}", f"data.train={corpus}", *QUICK, *slow, f"run_dir={run}"]
    process = start("train", *settings)
    wait_until(lambda: (run / "metrics.jsonl").is_file() and validation_nll(run), process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    check_error(process.returncode, err.decode(), 143, "after step 0")
    assert not list((run / "checkpoints").glob("step-*"))
    assert "starting from the weights" in train(*settings)


def test_a_worse_model_is_told(source: Path, corpus: Path, tmp_path: Path) -> None:
    settings = [*QUICK, "training.learning_rate=10", "training.warmup_steps=1", "training.max_steps=2"]
    err = train(f"training.init_from={source}", f"data.train={corpus}", *settings, f"run_dir={tmp_path / 'run'}")
    assert "advice: " in err and "keep the original model" in err


def test_a_run_without_a_model_directory_in_other_languages(run_copy: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.rmtree(run_copy / "model")
    run = tmp_path / "run"
    settings = [f"training.init_from={run_copy}", f"data.train={corpus}", *QUICK, "training.max_steps=1"]
    err = train("own-text", *settings, "data.src=nl", f"run_dir={run}")
    assert f"warning: {run_copy} translates en-de, this run nl-de" in err
    steps = {durable.sha256(path) for path in run_copy.glob(f"checkpoints/*/{WEIGHTS}")}
    assert json.loads((run / "model" / "scores.json").read_text())["run"]["init_from"]["sha256"] in steps


def test_config_shows_what_the_model_brings_without_torch(source: Path) -> None:
    command = [sys.executable, "-c", ASK, "config", "own-text", f"training.init_from={source}"]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True)
    lines = [line.split() for line in result.stdout.decode().splitlines()]
    for line in ("d_model: 32 # init_from", "vocab_size: 300 # init_from", "src: en # init_from"):
        assert line.split() in lines
    assert ["dropout:", "0.1", "#", "init_from"] in lines


# Refusals


def test_what_is_refused_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tsv(tmp_path / "x.tsv", range(100, 200))
    write_tsv(tmp_path / "y.tsv", range(200, 300))
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "tagged.yaml").write_text("data: {train: [x.tsv, {name: y.tsv, tag: BT}]}\n")
    before = tree(tmp_path)
    text, model = "data.train=x.tsv", f"training.init_from={source}"
    wrong = [
        (
            [text, "training.init_from=nowhere"],
            ["training.init_from nowhere: not a model", "mtx import makes a model directory"],
        ),
        ([text, f"training.init_from={'a' * 5000}"], ["not a model directory or a run directory"]),
        (
            [text, "training.init_from=empty"],
            ["training.init_from empty: not a model", "mtx import makes a model directory"],
        ),
        ([text, "training.init_from=x.tsv"], ["training.init_from x.tsv: not a model"]),
        ([text, "training.init_from=begun"], ["begun: this run has no model yet"]),
        (
            [text, model, "model.d_model=64", "tokenizer.vocab_size=400"],
            ["model.d_model is 64, the model's is 32", "tokenizer.vocab_size is 400, the model's is 300", "leave"],
        ),
        (["./tagged.yaml", model], ["data.train: the tag BT is not in the tokenizer"]),
        (["missing.tsv", model], ["missing.tsv"]),
        ([model, "data.train=missing.tsv"], ["missing.tsv"]),
    ]
    for arguments, words in wrong:
        for command in ("train", "prepare"):
            refused(2, words, command, *arguments, "data.max_tokens=32")
            assert tree(tmp_path) == before and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.model"])
def test_a_damaged_model_leaves_nothing(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tsv(tmp_path / "x.tsv", range(100, 200))
    flip_bit(source / name)
    before = tree(tmp_path)
    refused(1, [f"{source / name}"], "train", f"training.init_from={source}", "data.train=x.tsv")
    assert tree(tmp_path) == before and not (tmp_path / "runs").exists()


def test_weights_that_do_not_fit_leave_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tsv(tmp_path / "x.tsv", range(100, 200))
    model_directory.save_tensors(source / WEIGHTS, {"embedding": torch.zeros(3, 3)})
    durable.write_manifest(source)
    words = [f"{source / WEIGHTS}: missing tensor "]
    refused(1, words, "train", f"training.init_from={source}", "data.train=x.tsv")
    assert not (tmp_path / "runs").exists()


def test_another_model_under_its_name(source: Path, corpus: Path, tmp_path: Path, refused: Refused) -> None:
    run = tmp_path / "run"
    settings = [f"training.init_from={source}", f"data.train={corpus}", *QUICK, f"run_dir={run}"]
    assert mtx("prepare", *settings).returncode == 0
    prepared = tree(run)
    refused(2, ["training.init_from is ", "it was"], "train", *settings, f"training.init_from={tmp_path}/./source")
    assert tree(run) == prepared
    moved = source.rename(tmp_path / "moved")
    refused(2, [f"training.init_from {source}: not a model"], "train", *settings)
    (run / "status.json").unlink()  # it says why
    assert tree(run) == prepared
    loaded = model_directory.load(moved)
    other = train_tokenizer(["ab cd ef gh"] * 9, TokenizerConfig(), 9, [])
    model = Transformer(loaded.model.config, other.num_ids)
    model_directory.write(source, model.state_dict(), model.config, other, INFO)
    refused(2, ["its tokenizer differs", "another run_dir"], "train", run)
    (run / "status.json").unlink()
    assert tree(run) == prepared
    shutil.rmtree(source)
    moved.rename(source)
    assert "starting from the weights" in train(*settings, "training.max_steps=1")


# A tokenizer of two models


def learn(lines: list[str], size: int) -> bytes:
    """A SentencePiece model with the controls of published ones: `</s>` 0, `<unk>` 1."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, model_type="unigram",
        hard_vocab_limit=False, eos_id=0, unk_id=1, bos_id=-1, pad_id=-1, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def write_split_model(directory: Path) -> Tokenizer:
    """A random model, laid out as a published one: a SentencePiece model for each side and one vocabulary."""
    text = pairs(range(1000, 1400))
    sides = [learn([pair[side] for pair in text], size) for side, size in ((0, 50), (1, 60))]
    processors = [sentencepiece.SentencePieceProcessor(model_proto=side) for side in sides]
    pieces = {p.id_to_piece(i) for p in processors for i in range(2, p.get_piece_size())}
    names = ["</s>", "<unk>", *sorted(pieces), "<pad>"]
    tokenizer = Tokenizer(SplitModel(*sides, {name: i for i, name in enumerate(names)}), "none", [])
    config = ModelConfig.model_validate(
        {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_ff": 64, "num_heads": 2, "dropout": 0.0,
         "activation": "swish", "output_bias": True}
    )  # fmt: skip
    torch.manual_seed(1)
    model_directory.write(directory, Transformer(config, tokenizer.num_ids).state_dict(), config, tokenizer, INFO)
    return tokenizer


@pytest.mark.extended
def test_a_published_model_with_a_tokenizer_of_two_models(tmp_path: Path) -> None:
    source, run = tmp_path / "source", tmp_path / "run"
    tokenizer = write_split_model(tmp_path / "own")
    export_huggingface(model_directory.load(tmp_path / "own"), tmp_path / "published")
    import_marian(tmp_path / "published", source)
    write_sides(tmp_path, "dev", range(1400, 1420))
    corpus = write_tsv(tmp_path / "x.tsv", range(1000, 1400))
    settings = [f"data.train={corpus}", f"data.valid={tmp_path / 'dev'}", *QUICK, "training.max_steps=50"]
    settings.append("training.learning_rate=0.002")
    err = train("own-text", f"training.init_from={source}", *settings, f"run_dir={run}", "training.validate_every=25")
    nll = validation_nll(run)
    assert nll[50] < nll[25] < nll[0] and nll[50] < 0.6 * nll[0]
    losses = [event["loss"] for event in events(run) if event["event"] == "train" and event["step"] % 10 == 0]
    assert losses == sorted(losses, reverse=True) and len(losses) == 5
    for name in ("tokenizer.src.model", "tokenizer.tgt.model", "tokenizer.json"):
        assert (run / "model" / name).read_bytes() == (source / name).read_bytes()
    assert "vocab_size: auto" in (run / "config.yaml").read_text()  # it has fewer pieces than one can ask for
    [gain] = json.loads((run / "model" / "scores.json").read_text())["run"]["gains"]
    assert gain["test"] == "heldout" and (run / "before" / "heldout" / "hyp.txt").is_file()
    translated = mtx("translate", run, stdin=b"one two three four\n")
    assert translated.returncode == 0 and len(translated.stdout.splitlines()) == 1
    export_huggingface(model_directory.load(run / "model"), tmp_path / "again")
    for name in ("vocab.json", "source.spm", "target.spm"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "published" / name).read_bytes()
    check_encoded_by_the_side(run, tokenizer)
    assert "exported" not in err


def check_encoded_by_the_side(run: Path, tokenizer: Tokenizer) -> None:
    """Sources are encoded by the source model, targets by the target model, for training and for validation."""
    data = load_prepared(run / "data")
    for store in (data.train, data.valid):
        src, tgt = (side.sentences(np.arange(store.num_pairs)) for side in (store.src, store.tgt))
        assert src == tokenizer.encode(list(store.src_texts()))
        assert tgt == tokenizer.encode(list(store.tgt_texts()), target=True)
        assert tgt != tokenizer.encode(list(store.tgt_texts()))
