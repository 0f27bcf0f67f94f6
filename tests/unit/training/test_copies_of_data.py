"""The ranks of a run on several machines see its data in one place or in copies: who reads them, and what is found."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mtx.config import settings
from mtx.errors import DamagedFileError, MtxError
from mtx.storage import durable
from mtx.storage.run_files import REPORT, TRAIN_STORE, RunLayout
from mtx.training import run
from tests.integration.commands import TINY

STORE = Path("data", TRAIN_STORE)


@dataclass
class Rank:
    """One rank, which meets the others where each names the copy that it sees."""

    rank: int
    copies: Sequence[Path]
    sha256: str  # that rank 0 has found

    def run_on_rank_zero(self, work: Callable[[], str]) -> str:
        return self.sha256 if self.rank else work()

    def gather(self, work: Callable[..., Any], *of_paths: RunLayout) -> list[Any]:
        return [work(RunLayout(copy)) for copy in self.copies] if of_paths else [work()]


def load(copies: Sequence[Path]) -> list[int]:
    """Load the data on a rank for each of these run directories; the ranks that have hashed the store."""
    readers = []
    sha256 = ""
    for number, copy in enumerate(copies):
        paths = RunLayout(copy)
        rank: Any = Rank(number, copies, sha256)
        with mock.patch.object(durable, "sha256", wraps=durable.sha256) as hashing:
            data, _ = run._prepare_together(settings.load(paths.config), paths, rank, [])
        sha256 = data.sha256
        readers += [number for call in hashing.call_args_list if call.args[0].name == TRAIN_STORE]
    return readers


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prepared") / "run"
    return run.prepare_only(settings.resolve(None, [f"data.train={corpus}", *TINY, f"run_dir={root}"]).config).root


@pytest.fixture
def copies(prepared: Path, tmp_path: Path) -> list[Path]:
    """A run directory as two machines see it, each with its own copy."""
    return [Path(shutil.copytree(prepared, tmp_path / name)) for name in "ab"]


@pytest.mark.parametrize(
    ("numbers", "readers"),
    [([0], [0]), ([0, 0], [0]), ([0, 1], [0, 1]), ([0, 0, 1, 1], [0, 2]), ([0, 1, 1, 0], [0, 1])],
)
def test_one_rank_hashes_each_copy(numbers: list[int], readers: list[int], copies: list[Path]) -> None:
    assert load([copies[number] for number in numbers]) == readers


def test_a_flipped_byte_in_any_copy_is_found(copies: list[Path]) -> None:
    a, b = copies
    content = bytearray((b / STORE).read_bytes())
    content[len(content) // 2] ^= 1
    (b / STORE).write_bytes(content)
    with pytest.raises(MtxError, match=f"{b / STORE}: damaged file .*; rank 0 prepared it"):
        load([a, a, b, b])
    with pytest.raises(DamagedFileError, match=f"{b / STORE}: damaged file"):
        load([b, a])


def test_a_rank_that_does_not_hash_compares_sizes(copies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_identify_copy", lambda _: (1, 2))
    assert load(copies) == [0]
    (copies[1] / STORE).write_bytes((copies[1] / STORE).read_bytes()[:-8])
    with pytest.raises(MtxError, match=f"{copies[1] / STORE}: damaged file"):
        load(copies)


def test_a_copy_of_other_data_is_refused(copies: list[Path]) -> None:
    data = copies[1] / "data"
    (data / REPORT).write_bytes((data / REPORT).read_bytes() + b"\n")
    durable.write_manifest(data)
    with pytest.raises(MtxError, match=f"{data}: different data; rank 0 prepared it"):
        load(copies)


def test_a_copy_has_its_inode_and_its_change_time(copies: list[Path]) -> None:
    found = [run._identify_copy(RunLayout(copy)) for copy in copies]
    assert found[0] and found[1] and found[0][0] != found[1][0]
    time.sleep(0.05)  # the kernel's clock of files ticks every 10 ms at most
    (copies[0] / STORE).touch()
    again = run._identify_copy(RunLayout(copies[0]))
    assert again and again[0] == found[0][0] and again[1] != found[0][1]


def test_data_may_be_a_link_to_a_local_disk(copies: list[Path], tmp_path: Path) -> None:
    """Nothing replaces it, and where it leads nowhere nothing is prepared again."""
    shared, local = copies[0], tmp_path / "local"
    (shared / "data").rename(local)
    (shared / "data").symlink_to(local)
    assert load([shared, shared]) == [0]
    local.rename(tmp_path / "away")
    with pytest.raises(DamagedFileError, match="data: the prepared data of this run is missing"):
        load([shared])
    assert (shared / "data").is_symlink()
