"""The ranks of a run on several machines see its data in one place or in copies: who reads them, and what is found."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mtx.config import settings
from mtx.data.token_store import PreparedData
from mtx.errors import DamagedFileError, MtxError
from mtx.storage import durable
from mtx.storage.run_files import TRAIN_STORE, RunLayout
from mtx.training import run
from mtx.training.ranks import Ranks
from tests.integration.commands import TINY, write_tsv


@dataclass
class Team:
    """Ranks that are threads of this process, and the stores that each of them has hashed."""

    copies: Sequence[Path]  # the run directory that each rank sees

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(len(self.copies), timeout=60)
        self.values = list[Any](self.copies)
        self.hashed = Counter[int]()

    def load(self) -> list[PreparedData]:
        with ThreadPoolExecutor(len(self.copies)) as pool:
            futures = [pool.submit(self.load_on_rank, rank) for rank in range(len(self.copies))]
        errors = [error for future in futures if (error := future.exception())]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [future.result() for future in futures]

    def load_on_rank(self, rank: int) -> PreparedData:
        threading.current_thread().name = str(rank)
        paths = RunLayout(self.copies[rank])
        member: Any = Member(rank, self)
        return run._prepare_together(settings.load(paths.config), paths, member, [])[0]


@dataclass
class Member:
    """One rank of a team."""

    rank: int
    team: Team

    run_on_rank_zero = Ranks.run_on_rank_zero

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def gather(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        try:
            self.team.values[self.rank] = work(*arguments)
        except BaseException:
            self.team.barrier.abort()
            raise
        self.team.barrier.wait()
        values = list(self.team.values)
        self.team.barrier.wait()
        return values


def prepare(directory: Path, numbers: range) -> Path:
    """A run that is prepared, in a new directory."""
    directory.mkdir()
    corpus = write_tsv(directory / "digits.tsv", numbers)
    config = settings.resolve(None, [f"data.train={corpus}", *TINY, f"run_dir={directory / 'run'}"]).config
    return run.prepare_only(config).root


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("prepared") / "one", range(1000, 1200))


@pytest.fixture
def copies(prepared: Path, tmp_path: Path) -> list[Path]:
    """A run directory and a copy of it, as two machines see them."""
    return [Path(shutil.copytree(prepared, tmp_path / name)) for name in "ab"]


def team_on(copies: list[Path], numbers: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> Team:
    """A team whose ranks see the copies with these numbers."""
    team = Team([copies[number] for number in numbers])
    sha256 = durable.sha256

    def counted(path: Path) -> str:
        if path.name == TRAIN_STORE:
            team.hashed[int(threading.current_thread().name)] += 1
        return sha256(path)

    monkeypatch.setattr(durable, "sha256", counted)
    return team


@pytest.mark.parametrize(
    ("numbers", "readers"),
    [([0], [0]), ([0, 0], [0]), ([0, 1], [0, 1]), ([0, 0, 1, 1], [0, 2]), ([0, 1, 1, 0], [0, 1])],
)
def test_one_rank_hashes_each_copy(
    numbers: list[int], readers: list[int], copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    team = team_on(copies, numbers, monkeypatch)
    loaded = team.load()
    assert team.hashed == dict.fromkeys(readers, 1)
    assert len({data.sha256 for data in loaded}) == 1


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("numbers", [[0, 1], [0, 0, 1, 1]])
def test_a_flipped_byte_in_any_copy_is_found(
    numbers: list[int], copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(copies[1] / "data" / TRAIN_STORE)
    with pytest.raises(MtxError, match=rf"b/data/{TRAIN_STORE}: damaged file .*; rank 0 prepared it") as caught:
        team_on(copies, numbers, monkeypatch).load()
    assert "copy it again" in str(caught.value.help)
    with pytest.raises(DamagedFileError, match=rf"b/data/{TRAIN_STORE}: damaged file"):
        team_on(copies, [1 - number for number in numbers], monkeypatch).load()


def test_a_rank_that_does_not_hash_compares_sizes(copies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its machine sees the file of another one as it was before."""
    monkeypatch.setattr(run, "_identify_copy", lambda _: (1, 2))
    team = team_on(copies, [0, 1], monkeypatch)
    team.load()
    assert team.hashed == {0: 1}
    store = copies[1] / "data" / TRAIN_STORE
    store.write_bytes(store.read_bytes()[:-8])
    with pytest.raises(MtxError, match=rf"b/data/{TRAIN_STORE}: damaged file"):
        team_on(copies, [0, 1], monkeypatch).load()


def test_a_rank_without_data_says_which_file_it_lacks(copies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(copies[1] / "data")
    with pytest.raises(MtxError, match=r"b/data/manifest.json: missing file; rank 0 prepared it"):
        team_on(copies, [0, 1], monkeypatch).load()


def test_a_copy_of_other_data_is_refused(copies: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [copies[0], prepare(tmp_path / "other", range(3000, 3200))]
    with pytest.raises(MtxError, match=r"other/run/data: different data; rank 0 prepared it"):
        team_on(others, [0, 1], monkeypatch).load()


def test_what_identifies_a_copy(copies: list[Path], tmp_path: Path) -> None:
    """Its path does not."""
    paths, other = map(RunLayout, copies)
    linked = RunLayout(tmp_path / "linked")
    linked.root.mkdir()
    linked.data.symlink_to(paths.data)
    here, there = run._identify_copy(paths), run._identify_copy(other)
    assert here and there and run._identify_copy(linked) == here
    assert here[0] != there[0], "the inode counts"
    (paths.data / TRAIN_STORE).touch()
    again = run._identify_copy(paths)
    assert again and again[0] == here[0] and again[1] != here[1], "the change time counts"


def test_data_may_be_a_link_to_a_local_disk(copies: list[Path], tmp_path: Path) -> None:
    """Nothing replaces it, and where it leads nowhere nothing is prepared again."""
    paths = RunLayout(copies[0])
    local = Path(shutil.move(paths.data, tmp_path / "local"))
    paths.data.symlink_to(local)
    config = settings.load(paths.config).model_copy(update={"run_dir": str(paths.root)})
    run.prepare_only(config)
    assert paths.data.is_symlink()
    local.rename(tmp_path / "away")
    with pytest.raises(DamagedFileError, match="data: the prepared data of this run is missing"):
        run.prepare_only(config)
    assert paths.data.is_symlink()
