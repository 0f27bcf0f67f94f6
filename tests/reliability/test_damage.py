"""Whatever happens to the bytes of a checkpoint is noticed, in one line that names a file of it."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mtx.errors import DamagedFileError
from mtx.storage.durable import MANIFEST
from mtx.storage.run_files import OPTIMIZER, STATE, WEIGHTS, RunLayout
from mtx.training import checkpoint
from tests.reliability.conftest import NIGHTLY
from tests.reliability.test_crashes import fresh, save

Tally = Callable[[str, int, int], None]
NAMES = (WEIGHTS, OPTIMIZER, STATE, MANIFEST)


@pytest.fixture
def paths(tmp_path: Path) -> RunLayout:
    paths = RunLayout(tmp_path / "run")
    for number, step in enumerate((10, 20)):
        save(paths, number, step)
    return paths


def is_noticed(directory: Path) -> bool:
    """Whether the checkpoint is refused in one line that names a file in it."""
    try:
        checkpoint.load(directory, *fresh())
    except DamagedFileError as error:
        text = str(error)
        return "\n" not in text and any(str(directory / name) in text for name in NAMES)
    return False


def flipped(data: bytes, rng: random.Random) -> Iterator[bytes]:
    for place in range(len(data)):
        for bit in range(8) if NIGHTLY else [rng.randrange(8)]:
            yield data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def cut(data: bytes) -> Iterator[bytes]:
    yield from (data[:length] for length in range(len(data)))
    yield data + b"\0"
    yield data + data


def zeroed(data: bytes) -> Iterator[bytes]:
    yield bytes(len(data))
    for start in range(0, len(data), 64):
        block = data[start : start + 64]
        if any(block):
            yield data[:start] + bytes(len(block)) + data[start + 64 :]


@pytest.mark.parametrize("how", ["flipped", "cut", "zeroed"])
def test_every_byte(paths: RunLayout, how: str, tally: Tally) -> None:
    directory, rng = paths.checkpoint(20), random.Random(1)
    tried = noticed = 0
    for name in NAMES:
        path = directory / name
        data = path.read_bytes()
        for damaged in {"flipped": flipped(data, rng), "cut": cut(data), "zeroed": zeroed(data)}[how]:
            path.write_bytes(damaged)
            tried += 1
            noticed += is_noticed(directory)
        path.write_bytes(data)
    assert not is_noticed(directory)
    tally(f"bytes of a checkpoint {how}", tried, noticed)


def test_files_of_other_checkpoints(paths: RunLayout, tally: Tally) -> None:
    a, b = paths.checkpoint(10), paths.checkpoint(20)
    noticed = tried = 0
    for chosen in range(1, 1 << len(NAMES)):  # any of the files, and all of them
        names = [name for number, name in enumerate(NAMES) if chosen >> number & 1]
        originals = {name: (b / name).read_bytes() for name in names}
        for name in names:
            shutil.copy(a / name, b / name)
        tried += 1
        noticed += is_noticed(b)
        for name, data in originals.items():
            (b / name).write_bytes(data)
    assert not is_noticed(b)
    tally("files swapped between checkpoints", tried, noticed)
