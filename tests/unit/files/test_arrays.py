"""Matrices as numpy reads them, whatever the number of their rows; nothing else is taken for one."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mtx.errors import DamagedFileError
from mtx.files.arrays import Floats, open_rows, write_rows


@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 4], [1] * 12, [100_000]])
def test_blocks_become_one_matrix(sizes: list[int], tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(sum(sizes), 3)).astype(np.float32)

    def blocks() -> Iterator[Floats]:
        yield from np.split(rows, np.cumsum(sizes)[:-1]) if sizes else []

    with (tmp_path / "a.npy").open("wb") as file:
        assert write_rows(file, blocks(), 3) == sum(sizes)
    found = np.load(tmp_path / "a.npy")
    assert found.shape == rows.shape and found.dtype == np.float32 and (found == rows).all()
    if len(rows):  # numpy cannot map nothing
        assert (np.load(tmp_path / "a.npy", mmap_mode="r") == rows).all()
        assert (open_rows(tmp_path / "a.npy") == rows).all()


def test_what_is_no_matrix_of_float32_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for array in (np.zeros(3, np.float32), np.zeros((2, 3)), np.array([[{}]], dtype=object)):
        np.save(path, array)
        with pytest.raises(DamagedFileError, match=r"a\.npy: "):
            open_rows(path)
    for content in (b"", b"\x93NUMPY\x01\x00", b"text\n", None):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(DamagedFileError, match=r"a\.npy: is not a readable array"):
            open_rows(path)
    np.save(path, np.zeros((50, 3), np.float32))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=r"a\.npy: is not a readable array"):
        open_rows(path)
