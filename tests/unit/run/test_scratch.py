"""What a dry run keeps on the disk is for its owner's eyes, and does not stay."""

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from mtx.run.layout import RunLayout
from mtx.run.lock import hold_lock, write_owner
from mtx.run.scratch import scratch_directory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="lock files cannot be written there")
STALE = f"process 1 on {socket.gethostname()} since 2026-01-01 00:00:00\n"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def left(temporary: Path, name: str, lock: str) -> Path:
    directory = temporary / name
    directory.mkdir()
    (directory / "run.lock").write_text(lock)
    (directory / "text").write_text("secret")
    return directory


def test_it_is_private_and_goes_with_the_context(temporary: Path) -> None:
    with scratch_directory() as paths:
        assert stat.S_IMODE(paths.root.stat().st_mode) == 0o700 and paths.root.parent == temporary
        (paths.root / "text").write_text("secret")
    assert not list(temporary.iterdir())


def test_what_a_killed_dry_run_left_is_removed_by_the_next(temporary: Path) -> None:
    left(temporary, "mtx-dry-run-a", STALE)
    with scratch_directory() as paths:
        assert list(temporary.iterdir()) == [paths.root]


def test_what_others_use_or_own_stays(temporary: Path) -> None:
    elsewhere = left(temporary, "elsewhere", STALE)
    (temporary / "mtx-dry-run-link").symlink_to(elsewhere)
    stays = [
        left(temporary, "mtx-dry-run-no-owner", ""), left(temporary, "mtx-dry-run-mine", "mine"),
        left(temporary, "mtx-dry-run-host", STALE.replace(socket.gethostname(), "another-host")),
        left(temporary, "mtx-notes", STALE), elsewhere,
    ]  # fmt: skip
    used = RunLayout(left(temporary, "mtx-dry-run-used", ""))
    if (pid := os.fork()) == 0:
        with hold_lock(used):
            write_owner(used.lock)
            (used.root / "held").touch()
            while not (used.root / "end").exists():
                pass
        os._exit(0)
    while not (used.root / "held").exists():
        pass
    with scratch_directory():
        pass
    (used.root / "end").touch()
    os.waitpid(pid, 0)
    assert all((path / "text").exists() for path in (*stays, used.root))
