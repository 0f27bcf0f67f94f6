import os
from pathlib import Path

import pytest

from mtx.errors import MtxError
from mtx.run import system_memory

MEMINFO = "MemTotal:       16000 kB\nMemFree:        1000 kB\nMemAvailable:   8000 kB\nHugePages_Total:       0\n"
UNLIMITED = str((1 << 63) - 4096)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8,000 KiB free, whose control groups are made by `write`."""
    monkeypatch.setattr(system_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(system_memory, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(system_memory, "_GROUPS", tmp_path / "groups")
    (tmp_path / "meminfo").write_text(MEMINFO)
    return tmp_path


def write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / f"memory.{name}").write_text(text + "\n")


def test_without_control_groups_it_is_what_the_machine_has(system: Path) -> None:
    assert system_memory.available_bytes() == 8000 * 1024
    (system / "own").write_text("0::/\n")
    assert system_memory.available_bytes() == 8000 * 1024


def test_the_smallest_limit_of_its_groups_counts(system: Path) -> None:
    (system / "own").write_text("0::/jobs/mine\n")
    statistics = "anon 1000\nactive_file 30\ninactive_file 400"
    write(system / "groups" / "jobs" / "mine", max="max", current="1000", stat=statistics)
    assert system_memory.available_bytes() == 8000 * 1024
    write(system / "groups" / "jobs", max="5000", current="2000", stat=statistics)
    assert system_memory.available_bytes() == 5000 - 2000 + 430, "pages of files are given up"
    write(system / "groups" / "jobs", max="9000000000", current="2000", stat=statistics)
    assert system_memory.available_bytes() == 8000 * 1024


def test_groups_of_version_1(system: Path) -> None:
    (system / "own").write_text("5:cpuacct,cpu:/\n4:memory:/docker/abc\n0::/\n")
    statistics = "inactive_file 1\ntotal_active_file 20\ntotal_inactive_file 300"
    write(system / "groups" / "memory", limit_in_bytes="7000", usage_in_bytes="5000", stat=statistics)
    assert system_memory.available_bytes() == 2320, "a container sees its group as the root"
    write(system / "groups" / "memory", limit_in_bytes=UNLIMITED, usage_in_bytes="5000", stat=statistics)
    assert system_memory.available_bytes() == 8000 * 1024


def test_a_system_that_does_not_tell_what_is_free(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (system / "meminfo").unlink()
    assert system_memory.available_bytes() == system_memory.total_bytes()
    monkeypatch.delattr("os.sysconf")
    assert system_memory.total_bytes() is None and system_memory.available_bytes() is None


def test_the_limit_of_the_address_space_counts(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    (system / "statm").write_text("1000 20 3 4 0 5 0\n")
    monkeypatch.setattr(system_memory, "_STATM", system / "statm")
    used = 1000 * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert system_memory.free_address_space() is None and system_memory.available_bytes() == 8000 * 1024
    system_memory.check_address_space(is_training=True)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 5000, resource.RLIM_INFINITY))
    assert system_memory.free_address_space() == system_memory.available_bytes() == 5000
    with pytest.raises(MtxError, match=r"\(ulimit -v\): 0 MB are left, expected at least 900 MB$"):
        system_memory.check_address_space(is_training=False)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 3_900_000_000, resource.RLIM_INFINITY))
    system_memory.check_address_space(is_training=False)
    with pytest.raises(MtxError, match=r"3.9 GB are left, expected at least 4.0 GB$"):
        system_memory.check_address_space(is_training=True)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 3_996_000_000, resource.RLIM_INFINITY))
    with pytest.raises(MtxError, match=r"3.996 GB are left, expected at least 4.000 GB$"):
        system_memory.check_address_space(is_training=True)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used - 1, resource.RLIM_INFINITY))
    assert system_memory.available_bytes() == 0
