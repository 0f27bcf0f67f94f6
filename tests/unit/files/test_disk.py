"""What is different on Windows."""

from pathlib import Path

import pytest

from mtx.files import disk


@pytest.mark.parametrize("num_refusals", [0, 2, 3])
def test_a_rename_that_windows_refuses_for_a_moment_is_tried_again(
    num_refusals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals, replace = iter(range(num_refusals)), Path.replace

    def refused_at_first(old: Path, new: Path) -> Path:
        if next(refusals, None) is not None:
            raise PermissionError
        return replace(old, new)

    monkeypatch.setattr(Path, "replace", refused_at_first)
    monkeypatch.setattr(disk, "_PAUSES_S", (0.0, 0.0))
    (tmp_path / "old").touch()
    if num_refusals == 3:
        with pytest.raises(PermissionError):
            disk.rename(tmp_path / "old", tmp_path / "new")
    else:
        disk.rename(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new").exists() is (num_refusals < 3)
