"""`mtx encode` writes a vector for each line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.integration.commands import mtx

TEXT = b"one two three\n\nfour \xff five\nfour five\n"


def rows(stdout: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.decode().split("\n")[:-1]]


def test_json_and_a_matrix_hold_the_same_vectors(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    printed = mtx("encode", trained / "model", stdin=TEXT)
    assert printed.returncode == 0 and b"1 line had invalid UTF-8" in printed.stderr
    written = mtx("encode", trained, tmp_path / "text", "-o", tmp_path / "vectors.npy")
    assert (written.returncode, written.stdout) == (0, b""), written.stderr.decode()
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    assert (vectors.shape, vectors.dtype) == ((4, 32), np.float32)
    assert np.array([row["vector"] for row in rows(printed.stdout)], np.float32).tolist() == vectors.tolist()
    assert vectors.any(1).tolist() == [True, False, True, True]


def test_no_lines_are_an_empty_matrix_and_no_json(trained: Path, tmp_path: Path) -> None:
    assert mtx("encode", trained, "-o", tmp_path / "none.NPY").returncode == 0
    assert np.load(tmp_path / "none.NPY").shape == (0, 32)
    assert (lambda done: (done.returncode, done.stdout))(mtx("encode", trained)) == (0, b"")


def test_what_is_asked_wrongly(trained: Path, tmp_path: Path, refused: Callable[..., None]) -> None:
    text = tmp_path / "text"
    text.write_text("one\n")
    refused(2, ["no such model"], "encode", tmp_path / "none", text)
    refused(2, ["also reads the file"], "encode", trained, text, "-o", text)
