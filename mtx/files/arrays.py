"""Matrices as .npy files, which numpy and other programs read: written block by block, and mapped into memory.

Only numbers are read; `numpy.load`, which can be told to run code from a file, is not used.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mtx.errors import DamagedFileError

Floats = NDArray[np.float32]


def write_rows(file: IO[bytes], blocks: Iterable[Floats], num_columns: int) -> int:
    """Write blocks of rows as one matrix of float32 into a file that can seek; returns the number of rows.

    Memory holds one block at a time: numpy leaves room in the header of a file for any number of rows.
    """
    num_rows = 0
    _write_header(file, num_rows, num_columns)
    for block in blocks:
        file.write(np.ascontiguousarray(block, np.dtype("<f4")).data)
        num_rows += len(block)
    file.seek(0)
    _write_header(file, num_rows, num_columns)
    return num_rows


def _write_header(file: IO[bytes], num_rows: int, num_columns: int) -> None:
    npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (num_rows, num_columns)})


def open_rows(path: Path) -> Floats:
    """Map a file of `write_rows` into memory; raises DamagedFileError if it is of another kind."""
    try:
        array: Any = npy.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise DamagedFileError(f"{path}: is not a readable array ({error})") from None
    if array.ndim != 2 or array.dtype != np.float32:
        raise DamagedFileError(f"{path}: {array.dtype} {list(array.shape)}, expected a matrix of float32")
    return np.asarray(array)
