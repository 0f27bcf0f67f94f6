import json
import os
import shutil
import stat
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from mtx.errors import DamagedFileError
from mtx.storage import disk, durable


def test_a_new_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.write_text(path, "old")
    with pytest.raises(ZeroDivisionError), durable.new_file(path) as file:
        file.write(b"half")
        assert path.read_text() == "old"
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    assert not stat.S_IMODE(path.stat().st_mode) & 0o111
    assert path.stat().st_mode & 0o044  # readable by others, unlike what mkstemp makes


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
def test_a_file_that_is_replaced_keeps_its_permissions_and_is_never_more_readable(tmp_path: Path) -> None:
    path = tmp_path / "file"
    umask = os.umask(0o027)
    try:
        for mode in (0o600, 0o400, 0o664, 0o777, 0o640):
            path.touch()
            path.chmod(mode)
            with durable.new_file(path) as file:
                (temporary,) = set(tmp_path.iterdir()) - {path}
                assert stat.S_IMODE(temporary.stat().st_mode) == mode
                file.write(b"new")
            assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_text() == "new"
        durable.write_text(tmp_path / "other", "a new file follows the umask")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "other").stat().st_mode) == 0o640


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
@pytest.mark.parametrize("mode", [0o200, 0o400, 0o000])
def test_a_file_that_its_owner_may_not_open_is_replaced(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really_open = tmp_path / "file", os.open
    path.touch()
    path.chmod(mode)

    def as_not_root(name: Any, flags: int, *mode: int) -> int:
        wanted = stat.S_IWUSR if flags & (os.O_WRONLY | os.O_RDWR) else stat.S_IRUSR
        if Path(name).is_file() and not Path(name).stat().st_mode & wanted:
            raise PermissionError(13, "Permission denied", str(name))
        return really_open(name, flags, *mode)

    monkeypatch.setattr("os.open", as_not_root)
    durable.write_text(path, "new")
    monkeypatch.undo()
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.stat().st_size == 3


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
def test_a_file_is_made_with_no_more_permissions_than_it_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fchmod", lambda *_: None)
    disk.create(tmp_path / "file", 0o600).close()
    assert not stat.S_IMODE((tmp_path / "file").stat().st_mode) & 0o077


def test_a_new_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "directory"
    with pytest.raises(KeyboardInterrupt), durable.new_directory(path) as new:
        (new / "a").write_text("half")
        raise KeyboardInterrupt
    assert not list(path.parent.iterdir())
    for text in ("first", "second"):
        with durable.new_directory(path) as new:
            (new / "a").write_text(text)
        assert (path / "a").read_text() == text
    assert list(path.parent.iterdir()) == [path]
    durable.verify(path, ["a"])


def test_a_replacement_that_fails_puts_the_old_directory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rename = tmp_path / "directory", disk.rename
    with durable.new_directory(path) as new:
        (new / "a").write_text("first")

    def fail_second(old: Path, new: Path) -> None:
        if new == path and "old-" not in old.name:
            raise OSError(28, "No space left on device")
        rename(old, new)

    monkeypatch.setattr(disk, "rename", fail_second)
    with pytest.raises(OSError), durable.new_directory(path) as new:
        (new / "a").write_text("second")
    assert (path / "a").read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_a_replacement_that_was_killed_is_undone(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.rename(directory.with_name(f".tmp-old-{directory.name}"))
    durable.remove_temporaries(directory.parent)
    durable.verify(directory, ["a"])
    shutil.copytree(directory, directory.with_name(f".tmp-old-{directory.name}"))
    durable.remove_temporaries(directory.parent)
    assert list(directory.parent.iterdir()) == [directory]
    with monkeypatch.context() as patch:  # killed while the directory is being removed
        patch.setattr(durable, "remove_tree", lambda path: None)
        durable.remove_directory(directory)
    durable.remove_temporaries(directory.parent)
    assert not list(directory.parent.iterdir())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with durable.new_directory(tmp_path / "directory") as new:
        (new / "a").write_bytes(bytes(range(256)))
        (new / "b").write_bytes(b"")
    return tmp_path / "directory"


def test_every_flipped_bit_and_every_truncation_is_detected(directory: Path) -> None:
    path = directory / "a"
    data = path.read_bytes()
    damaged = [data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :] for i in range(len(data))]
    for content in [*damaged, *(data[:i] for i in range(0, len(data), 16)), data + b"\0", b"\0" * 256]:
        if content != data:
            path.write_bytes(content)
            with pytest.raises(DamagedFileError, match="directory/a: "):
                durable.verify(directory)
    path.write_bytes(data)
    durable.verify(directory, ["a", "b"])


def test_verify_can_be_limited_to_the_needed_files(directory: Path) -> None:
    (directory / "a").write_bytes(b"damaged")
    durable.verify(directory, ["b"], only_needed=True)
    with pytest.raises(DamagedFileError, match="directory/a: "):
        durable.verify(directory, ["a"], only_needed=True)


def test_verify_can_compare_only_sizes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / "a"
    data = path.read_bytes()
    monkeypatch.setattr(durable, "sha256", None)
    path.write_bytes(data.swapcase())
    durable.verify(directory, ["a", "b"], only_sizes=True)
    path.write_bytes(data[:-1])
    with pytest.raises(DamagedFileError, match="directory/a: damaged file"):
        durable.verify(directory, only_sizes=True)
    path.unlink()
    with pytest.raises(DamagedFileError, match="directory/a: missing file"):
        durable.verify(directory, only_sizes=True)


def test_verify_names_a_file_that_is_missing_or_not_listed(directory: Path) -> None:
    with pytest.raises(DamagedFileError, match="does not list c"):
        durable.verify(directory, ["c"])
    (directory / "b").unlink()
    with pytest.raises(DamagedFileError, match="b: missing file"):
        durable.verify(directory)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/file"])
def test_a_manifest_cannot_point_outside(directory: Path, name: str) -> None:
    durable.write_json(directory / "manifest.json", {"files": {name: {"bytes": 0, "sha256": ""}}})
    with pytest.raises(DamagedFileError, match="is not the name of a file in this directory"):
        durable.verify(directory)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 3}', "\ufeff{}", "\x00", "[" * 200_000])
def test_json_of_another_format_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(DamagedFileError, match="x.json"):
        durable.read_json(tmp_path / "x.json")


def test_json_files_carry_the_format_and_unescaped_text(tmp_path: Path) -> None:
    durable.write_json(tmp_path / "x.json", {"name": "é"})
    assert "é" in (tmp_path / "x.json").read_text(encoding="utf-8")
    assert (
        json.loads((tmp_path / "x.json").read_bytes())
        == durable.read_json(tmp_path / "x.json")
        == {"format": 2, "name": "é"}
    )


def test_remove_temporaries_leaves_other_files(tmp_path: Path) -> None:
    mine = [".tmp-x", ".tmp-notes", ".tmp-0123456789ABCDEF", ".tmp-0123456789abcdef0", ".tmp-old-", "other"]
    for name in (".tmp-0123456789abcdef", *mine):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / ".tmp-00000000ffffffff").touch()
    durable.remove_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(mine)
    assert all((tmp_path / name / "file").exists() for name in mine)
    durable.remove_temporaries(tmp_path / "nowhere")


def write(path: Path, text: str) -> None:
    with durable.new_directory(path) as new:
        (new / "a").write_text(text)


def test_a_replaced_directory_is_kept_if_others_put_anything_there(tmp_path: Path) -> None:
    path = tmp_path / "directory"
    write(path, "first")
    (path / "notes").mkdir()
    (path / "notes" / "file").write_text("mine")
    write(path, "second")
    kept = tmp_path / "kept-directory"
    assert (kept / "a").read_text() == "first" and (kept / "notes" / "file").read_text() == "mine"
    write(path, "third")
    assert (path / "a").read_text() == "third" and {*tmp_path.iterdir()} == {path, kept}


@pytest.mark.parametrize("has_notes", [False, True])
@pytest.mark.parametrize("after", range(6))
def test_a_replacement_that_is_killed_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, has_notes: bool
) -> None:
    path, kept = tmp_path / "directory", tmp_path / "kept-directory"
    write(path, "first")
    if has_notes:
        (path / "notes").write_text("mine")
    calls = list[str]()

    def until_killed(operation: Any, *arguments: Any) -> None:
        calls.append(operation.__name__)
        if len(calls) > after:
            raise Killed
        operation(*arguments)

    class Killed(BaseException):
        pass

    new = tmp_path / ".tmp-0123456789abcdef"
    new.mkdir()
    (new / "a").write_text("second")
    durable.write_manifest(new)
    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "remove_directory"):
            patch.setattr(disk, name, partial(until_killed, getattr(disk, name)))
        with pytest.raises(Killed):
            disk.rename(path, old := tmp_path / ".tmp-old-directory")
            disk.rename(new, path)
            durable._settle(old)
            raise Killed
    durable.remove_temporaries(tmp_path)
    assert (path / "a").read_text() == ("first" if after < 2 else "second")
    if has_notes:
        assert ((path if after < 2 else kept) / "notes").read_text() == "mine"
    assert {*tmp_path.iterdir()} == ({path, kept} if has_notes and after >= 2 else {path})


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_what_mtx_did_not_write_is_set_aside_and_not_replaced(tmp_path: Path, kind: str) -> None:
    path, aside = tmp_path / "directory", tmp_path / "kept-directory"
    aside.write_text("an earlier one")
    if kind == "directory":
        path.mkdir()
        (path / "file").write_text("mine")
    elif kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to("nowhere")
    write(path, "new")
    assert (path / "a").read_text() == "new" and aside.read_text() == "an earlier one"
    kept = tmp_path / "kept-directory-2"
    assert (
        kept.is_symlink() if kind == "link" else (kept / "file" if kind == "directory" else kept).read_text() == "mine"
    )


def test_a_directory_behind_a_link_is_not_emptied(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "first")
    (tmp_path / "elsewhere" / "notes").write_text("mine")
    path = tmp_path / "directory"
    path.symlink_to("elsewhere")
    write(path, "second")
    assert (path / "a").read_text() == "second" and not path.is_symlink()
    assert (tmp_path / "elsewhere" / "a").read_text() == "first" and (tmp_path / "elsewhere" / "notes").exists()
    link = tmp_path / "link"
    link.symlink_to("directory")
    durable.remove_directory(link)
    assert (tmp_path / "kept-link").is_symlink() and (path / "a").exists()


def test_a_directory_with_anything_of_others_is_not_removed(directory: Path) -> None:
    (directory / "notes").write_text("mine")
    durable.remove_directory(directory)
    kept = directory.with_name("kept-directory")
    assert list(directory.parent.iterdir()) == [kept] and (kept / "notes").read_text() == "mine"


def test_replacing_files_lists_nothing_else(directory: Path) -> None:
    (directory / "notes").write_text("mine")
    durable.replace_files(directory, {"b": b"new", "c": b"added"})
    entries = durable.read_manifest(directory)
    assert list(entries) == ["a", "b", "c"] and entries["c"] == {"bytes": 5, "sha256": sha256(b"added").hexdigest()}
    durable.verify(directory, ["c"])
    assert ((directory / "b").read_bytes(), (directory / "c").read_bytes()) == (b"new", b"added")


def test_while_files_are_replaced_the_old_and_the_new_are_accepted_and_nothing_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(path: Path, data: bytes) -> None:
        if path.name != durable.MANIFEST:
            raise Killed
        write(path, data)

    write = durable.write_bytes
    (directory / "d").write_bytes(b"not listed yet")
    monkeypatch.setattr(durable, "write_bytes", kill)
    for content in (b"second", b"third"):
        with pytest.raises(Killed):
            durable.replace_files(directory, dict.fromkeys("acd", content))
    monkeypatch.undo()
    old = {name: (directory / name).read_bytes() for name in "ad"}
    assert not durable.foreign_entries(directory)
    for name in "acd":
        for content in (old.get(name), b"second", b"third"):
            if content is not None:
                (directory / name).write_bytes(content)
            durable.verify(directory)
            durable.verify(directory, only_sizes=True)
        (directory / name).write_bytes(b"fourth")
        with pytest.raises(DamagedFileError, match=f"{name}: damaged"):
            durable.verify(directory)
        (directory / name).unlink()
        if name in old:
            with pytest.raises(DamagedFileError, match=f"{name}: missing"):
                durable.verify(directory)
        else:
            durable.verify(directory)
            with pytest.raises(DamagedFileError, match=f"{name}: missing"):
                durable.verify(directory, [name])
        (directory / name).write_bytes(b"third")
    durable.replace_files(directory, {"a": b"fifth", "c": b"", "d": b""})
    assert [type(entry) for entry in durable.read_manifest(directory).values()] == [dict] * 4


def test_json_keeps_the_bytes_of_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    names = [os.fsdecode(b"caf\xe9\xff"), "plain", "\ud83d", "é😀"]
    durable.write_json(tmp_path / "x.json", {"names": names})
    assert durable.read_json(tmp_path / "x.json")["names"] == names
    assert "é😀".encode() in (tmp_path / "x.json").read_bytes()


def test_remove_member_removes_the_file_and_its_entry(directory: Path) -> None:
    durable.remove_member(directory, "a")
    durable.verify(directory, ["b"])
    assert not (directory / "a").exists()
    with pytest.raises(DamagedFileError, match="does not list a"):
        durable.verify(directory, ["a"])
    (directory / "a").touch()  # as a kill leaves it
    durable.remove_member(directory, "a")
    assert not (directory / "a").exists()
