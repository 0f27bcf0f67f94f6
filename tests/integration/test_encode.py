"""`mtx encode` writes a vector for each line, and finds the training sentences that are nearest to a line."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtx import cli
from mtx.files import durable
from mtx.run.layout import RunLayout
from mtx.run.lock import hold_lock
from tests.integration.commands import flip_bit, mtx, pairs, tree

TEXT = b"one two three\n\nfour \xff five\nfour five"


@pytest.fixture(scope="module")
def searched(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the vectors of its training sentences."""
    run = tmp_path_factory.mktemp("searched") / "run"
    shutil.copytree(trained, run)
    result = mtx("encode", run, "--nearest", 2, stdin=b"one two three four\n")
    assert result.returncode == 0, result.stderr.decode()
    (run.parent / "stderr").write_bytes(result.stderr)
    return run


def rows(stdout: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.decode().split("\n")[:-1]]


def test_json_and_a_matrix_hold_the_same_vectors(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    printed = mtx("encode", trained / "model", stdin=TEXT)
    assert printed.returncode == 0 and b"1 line held invalid UTF-8" in printed.stderr
    written = mtx("encode", trained, tmp_path / "text", "-o", tmp_path / "vectors.npy")
    assert (written.returncode, written.stdout) == (0, b""), written.stderr.decode()
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    assert (vectors.shape, vectors.dtype) == ((4, 32), np.float32)
    assert np.array([row["vector"] for row in rows(printed.stdout)], np.float32).tolist() == vectors.tolist()
    assert vectors.any(1).tolist() == [True, False, True, True]
    pieces = rows(mtx("encode", trained, "--tokens", stdin=TEXT).stdout)
    assert pieces[1] == {"pieces": [], "vectors": []} and pieces[0]["pieces"][-1] == "</s>"
    for row, mean in zip(pieces, vectors, strict=True):
        assert len(row["pieces"]) == len(row["vectors"])
        if row["pieces"]:
            np.testing.assert_allclose(np.mean(row["vectors"], 0), mean, atol=1e-5)


def test_no_lines_are_an_empty_matrix_and_no_json(trained: Path, tmp_path: Path) -> None:
    assert mtx("encode", trained, "-o", tmp_path / "none.NPY").returncode == 0
    assert np.load(tmp_path / "none.NPY").shape == (0, 32)
    assert (lambda done: (done.returncode, done.stdout))(mtx("encode", trained)) == (0, b"")


def test_the_nearest_sentences_come_with_their_translations(searched: Path, corpus: Path) -> None:
    told = (searched.parent / "stderr").read_text()
    assert "training sentences, which is done once" in told and "done in" in told
    text = dict(line.split("\t") for line in corpus.read_text(encoding="utf-8").split("\n")[:-1])
    known = next(src for src, _ in pairs(range(1100, 1200)) if src in text)
    lines = f"{known}\n\none two zero\n".encode()
    result = mtx("encode", searched, "--nearest", 3, "--json", stdin=lines)
    assert (result.returncode, result.stderr) == (0, b""), "the vectors are there"
    found = [row["nearest"] for row in rows(result.stdout)]
    assert [len(neighbours) for neighbours in found] == [3, 0, 3]
    assert found[0][0] == {"similarity": pytest.approx(1, abs=1e-5), "source": known, "translations": [text[known]]}
    for neighbours in (found[0], found[2]):
        assert all(neighbour["translations"] == [text[neighbour["source"]]] for neighbour in neighbours)
        assert len({neighbour["source"] for neighbour in neighbours}) == 3
        similarities = [neighbour["similarity"] for neighbour in neighbours]
        assert similarities == sorted(similarities, reverse=True)
    shown = mtx("encode", searched, "--nearest", 3, stdin=lines).stdout.decode().split("\n")
    assert shown[:3] == [known, f"   1.00  {known}", f"         {text[known]}"]
    assert shown[7:11] == ["", "", "", "one two zero"]


def test_the_files_are_what_the_page_says(searched: Path) -> None:
    """The way from a vector of a line to the similarities, with numpy alone."""
    directory, line = searched / "vectors", b"one two three four\n"
    train, mean, scaling = (np.load(directory / f"{name}.npy") for name in ("train", "mean", "scaling"))
    vector = np.array(rows(mtx("encode", searched, stdin=line).stdout)[0]["vector"], np.float32)
    query = (vector - mean) @ scaling
    similarities = train @ (query / np.linalg.norm(query)).T
    [row] = rows(mtx("encode", searched, "--nearest", 2, "--json", stdin=line).stdout)
    best = sorted(similarities.ravel(), reverse=True)[:2]
    assert [neighbour["similarity"] for neighbour in row["nearest"]] == pytest.approx(best, abs=1e-5)
    np.testing.assert_allclose(np.linalg.norm(train, axis=1), 1, atol=1e-5)


def test_vectors_that_do_not_fit_are_made_again(
    searched: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    caplog.set_level(logging.INFO, "mtx")
    run, text = Path(shutil.copytree(searched, tmp_path / "run")), tmp_path / "text"
    text.write_text("one two\n")

    def is_made_again() -> bool:
        caplog.clear()
        assert cli.run(["encode", str(run), str(text), "--nearest", "1", "-o", str(tmp_path / "out")]) == 0
        return "done once" in caplog.text

    whole = tree(run / "vectors")
    assert [*whole] == ["manifest.json", "mean.npy", "origin.json", "scaling.npy", "train.npy"]
    assert not is_made_again()
    flip_bit(run / "vectors" / "train.npy")
    assert is_made_again() and "train.npy: sha256 differs" in caplog.text and tree(run / "vectors") == whole
    with hold_lock(RunLayout(run)):  # it is needed only to make them
        assert not is_made_again()
    for name in ("weights", "data"):
        origin = durable.read_json(run / "vectors" / "origin.json")
        durable.write_json(run / "vectors" / "origin.json", {**origin, name: "others"})
        durable.write_manifest(run / "vectors")
        assert is_made_again() and not is_made_again()
    assert sorted(path.name for path in run.iterdir()) == sorted(path.name for path in searched.iterdir())


def test_what_is_asked_wrongly(trained: Path, run_copy: Path, tmp_path: Path, refused: Callable[..., None]) -> None:
    text, matrix = tmp_path / "text", tmp_path / "a.npy"
    text.write_text("one\n")
    refused(2, ["a.npy", "--tokens", "FILE.jsonl"], "encode", trained, text, "--tokens", "-o", matrix)
    refused(2, ["a.npy", "--json"], "encode", trained, text, "--json", "-o", matrix)
    refused(2, ["--nearest prints sentences", "a.npy"], "encode", trained, text, "--nearest", 1, "-o", matrix)
    refused(2, ["--nearest prints sentences", "--tokens"], "encode", trained, text, "--nearest", 1, "--tokens")
    refused(2, ["no training text", "run directory"], "encode", trained / "model", text, "--nearest", 1)
    refused(2, ["no such model"], "encode", tmp_path / "none", text)
    refused(2, ["--nearest"], "encode", trained, text, "--nearest", 0)
    refused(2, ["is a text that is read"], "encode", trained, text, "-o", text)
    with hold_lock(RunLayout(run_copy)):
        refused(1, ["another process works on this run"], "encode", run_copy, text, "--nearest", 1)
    assert not matrix.exists() and not (trained / "vectors").exists() and not (run_copy / "vectors").exists()
