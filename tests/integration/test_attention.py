"""`mtx attention` writes a page; what a model that copies attends to is what it copies."""

import random
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtx.decoding.torch_engine import AttentionMaps
from mtx.decoding.translator import Translator
from tests.integration.commands import mtx


def test_a_page_of_several_sentences(trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    result = mtx("attention", trained, "one two three", "four 漢 \x1b five", "-o", page)
    assert (result.returncode, result.stdout) == (0, b"")
    assert result.stderr.decode() == f"attention: {page}\n"
    text = page.read_text(encoding="utf-8")
    assert "en</bdi> to <bdi>de" in text and '"decoder"' in text and "\x1b" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_page_of_a_translation_that_is_given(trained: Path, tmp_path: Path) -> None:
    arguments = ("attention", trained / "model", "one two", "-o", tmp_path / "a.html")
    assert mtx(*arguments, "--target", "null null null").returncode == 0
    given = (tmp_path / "a.html").read_bytes()
    assert mtx(*arguments).returncode == 0
    assert (tmp_path / "a.html").read_bytes() != given


def test_without_a_name_the_page_lies_in_the_current_directory(trained: Path, tmp_path: Path) -> None:
    assert mtx("attention", trained, "one", cwd=tmp_path).stderr == b"attention: attention.html\n"
    assert (tmp_path / "attention.html").read_bytes().startswith(b"<!doctype html>")


def test_what_is_asked_wrongly(trained: Path, tmp_path: Path, refused: Callable[..., None]) -> None:
    page = tmp_path / "a.html"
    refused(2, ["x.png", "ends in .html"], "attention", trained, "one", "-o", tmp_path / "x.png")
    refused(2, ["no directory"], "attention", trained, "one", "-o", tmp_path / "no" / "a.html")
    refused(2, ["1 --target for 2"], "attention", trained, "one", "two", "--target", "a", "-o", page)
    refused(2, ["no such model"], "attention", tmp_path / "none", "one", "-o", page)
    refused(1, ["line 'one one", "the model supports 32"], "attention", trained, "one " * 60, "-o", page)
    refused(2, ["SENTENCE"], "attention", trained)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_a_model_that_copies_attends_to_what_it_copies(tmp_path: Path) -> None:
    """Letters become capitals, and each is a piece: where a piece is written, its source is looked at."""
    rng = random.Random(1)
    lines = [" ".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 10))) for _ in range(3000)]
    (tmp_path / "copy.tsv").write_text("".join(f"{line}\t{line.upper()}\n" for line in lines))
    settings = [
        "data.src=en", "data.tgt=de", "data.max_tokens=32", "tokenizer.vocab_size=363", "model.preset=tiny",
        "model.d_model=64", "model.d_ff=128", "model.num_heads=2", "model.dropout=0", "model.num_encoder_layers=1",
        "model.num_decoder_layers=1", "training.batch_tokens=1024", "training.warmup_steps=50",
        "training.learning_rate=0.005", "training.max_steps=400", "training.checkpoint_every=400",
        "training.validate_every=400", "training.average_last=1", "precision=fp32", "device=cpu",
    ]  # fmt: skip
    result = mtx("train", f"data.train={tmp_path}/copy.tsv", *settings, f"run_dir={tmp_path}/run")
    assert result.returncode == 0, result.stderr.decode()
    found = Translator.load(tmp_path / "run", engine="torch").attention_maps(
        lines[:30], [line.upper() for line in lines[:30]]
    )
    assert all(len(maps.src_tokens) == len(maps.tgt_tokens) for maps in found)
    assert max(on_diagonal(found, head) for head in range(2)) > 0.9
    assert max(on_diagonal(found, head, offset) for head in range(2) for offset in (-1, 1)) < 0.1


def on_diagonal(found: list[AttentionMaps], head: int, offset: int = 0) -> float:
    """The share of rows of the cross attention whose largest weight lies `offset` right of the diagonal."""
    rows = [maps.cross[0, head].argmax(-1) == np.arange(len(maps.tgt_tokens)) + offset for maps in found]
    return float(np.concatenate(rows).mean())
