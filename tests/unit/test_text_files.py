import gzip
import io
import os
from pathlib import Path

import pytest

from mtx import text_files
from mtx.errors import DataError, UsageError


def test_lines_end_at_lf_only() -> None:
    data = b"\xef\xbb\xbfa\r\nb\rc\x0b\x0c\x1c\x85\n\xe2\x80\xa8d\xef\xbb\xbf\n\nlast\r"
    lines = list(text_files.byte_lines(io.BytesIO(data)))
    assert lines == [b"a", b"b\rc\x0b\x0c\x1c\x85", b"\xe2\x80\xa8d\xef\xbb\xbf", b"", b"last\r"]


@pytest.mark.parametrize(
    "data, count", [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\n\n", 2), (b"\xef\xbb\xbf", 1)]
)
def test_number_of_lines(data: bytes, count: int) -> None:
    assert len(list(text_files.byte_lines(io.BytesIO(data)))) == count


def test_reads_plain_and_gzip_alike_and_invalid_bytes_as_replacement(tmp_path: Path) -> None:
    data = b"ok\n\xff\xed\xa0\x80 bad\n"
    (tmp_path / "plain").write_bytes(data)
    (tmp_path / "packed").write_bytes(gzip.compress(data[:4]) + gzip.compress(data[4:]))  # recognised by content
    expected = ["ok", "\ufffd\ufffd\ufffd\ufffd bad"]
    for name in ("plain", "packed"):
        assert list(text_files.read_lines(tmp_path / name)) == expected


def test_refuses_missing_and_truncated_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        list(text_files.read_lines(tmp_path / "missing"))
    (tmp_path / "cut").write_bytes(gzip.compress(os.urandom(5000))[:-20])
    with pytest.raises(DataError, match="cut: truncated"):
        list(text_files.read_lines(tmp_path / "cut"))


@pytest.mark.parametrize("data", [b"one\n", b"", gzip.compress(b"one\n", mtime=0)])
def test_reads_a_pipe(data: bytes) -> None:
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    assert list(text_files.read_lines(Path(f"/dev/fd/{reader}"))) == (["one"] if data else [])
    os.close(reader)


@pytest.mark.parametrize("data, expected", [(b"", True), (b"a", False), (b"a\n", True), (b"a\nb", False)])
def test_ends_in_newline(tmp_path: Path, data: bytes, expected: bool) -> None:
    (tmp_path / "x").write_bytes(data)
    assert text_files.ends_in_newline(tmp_path / "x") is expected
