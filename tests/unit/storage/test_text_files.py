import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mtx.errors import DataError, UsageError
from mtx.storage import text_files
from mtx.storage.text_files import kind_of


def test_lines_end_at_lf_only() -> None:
    data = b"\xef\xbb\xbfa\r\nb\rc\x0b\x0c\x1c\x85\n\xe2\x80\xa8d\xef\xbb\xbf\n\nlast\r"
    lines = list(text_files.byte_lines(io.BytesIO(data)))
    assert lines == [b"a", b"b\rc\x0b\x0c\x1c\x85", b"\xe2\x80\xa8d\xef\xbb\xbf", b"", b"last\r"]


@pytest.mark.parametrize(
    "data, count", [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\n\n", 2), (b"\xef\xbb\xbf", 1)]
)
def test_a_stream_has_as_many_lines_as_lfs_and_an_unfinished_line(data: bytes, count: int) -> None:
    assert len(list(text_files.byte_lines(io.BytesIO(data)))) == count


def test_plain_and_gzip_files_read_alike_and_invalid_bytes_become_u_fffd(tmp_path: Path) -> None:
    data = b"ok\n\xff\xed\xa0\x80 bad\n"
    (tmp_path / "plain").write_bytes(data)
    (tmp_path / "packed").write_bytes(gzip.compress(data[:4]) + gzip.compress(data[4:]))  # recognised by content
    expected = ["ok", "\ufffd\ufffd\ufffd\ufffd bad"]
    for name in ("plain", "packed"):
        assert list(text_files.read_lines(tmp_path / name)) == expected


def test_missing_and_truncated_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        list(text_files.read_lines(tmp_path / "missing"))
    (tmp_path / "cut").write_bytes(gzip.compress(os.urandom(5000))[:-20])
    with pytest.raises(DataError, match="cut: truncated"):
        list(text_files.read_lines(tmp_path / "cut"))


def packed(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def zip_of(name: str, text: str = "") -> bytes:
    """A zip file as office programs write it: the part that tells the kind is not the first."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        if name != "mimetype":
            archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr(name, text)
    return buffer.getvalue()


def tar_of(file: io.BytesIO, form: int) -> None:
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        archive.addfile(tarfile.TarInfo("letter.txt"))


PIXEL = struct.pack("<HHBBB", 1, 1, 0x80, 0, 0)
BINARY = "an office document, an archive or another binary file"
OTHER_FORMATS = {
    "zip": (zip_of("letter.txt"), BINARY),
    "docx": (zip_of("word/document.xml"), BINARY),
    "xlsx": (zip_of("xl/workbook.xml"), BINARY),
    "pptx": (zip_of("ppt/presentation.xml"), BINARY),
    "ods": (zip_of("mimetype", "application/vnd.oasis.opendocument.spreadsheet"), BINARY),
    "odt": (zip_of("mimetype", "application/vnd.oasis.opendocument.text"), BINARY),
    "epub": (zip_of("mimetype", "application/epub+zip"), BINARY),
    "rtf": (b"{\\rtf1\\ansi Dear Sir}", BINARY),
    "tmx": (
        b'\xef\xbb\xbf<?xml version="1.0"?>\n<!DOCTYPE tmx>\n<!-- a > b --><tmx version="1.4">',
        "a translation memory",
    ),
    "tmx in UTF-16": ('<?xml version="1.0"?><tmx version="1.4">'.encode("utf-16"), "a translation memory"),
    "tmx.gz": (gzip.compress(b"<tmx version='1.4'>"), "a translation memory"),
    "xliff": (b'<?xml version="1.0"?><xliff version="1.2">', "a bilingual file .XLIFF"),
    "sdlxliff": (b'<xliff xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0">', "a bilingual file .XLIFF"),
    "tbx": (b'<?xml version="1.0"?><martif type="TBX">', "XML or HTML"),
    "html": (b"<!DOCTYPE html>\n<HTML lang=en>", "XML or HTML"),
    "xml": (b'<?xml version="1.0"?><text>', "XML or HTML"),
    "po": (b'# German\n# by me\n\nmsgid ""\nmsgstr ""\n', "a message catalogue"),
    "po with a long beginning": (
        b"# by me\n" * 2_000 + b'msgctxt ""\n"a"\n"b"\nmsgid\n"c"\n',
        "a message catalogue",
    ),
    "sdltm": (b"SQLite format 3\0", BINARY),
    "parquet": (b"PAR1\x15\0", BINARY),
    "empty zip": (packed(lambda file: zipfile.ZipFile(file, "w").close()), BINARY),
    "doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504), BINARY),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", BINARY),
    "gnu tar": (packed(lambda file: tar_of(file, tarfile.GNU_FORMAT)), BINARY),
    "posix tar": (packed(lambda file: tar_of(file, tarfile.PAX_FORMAT)), BINARY),
    "tar.gz": (gzip.compress(packed(lambda file: tar_of(file, tarfile.PAX_FORMAT))), BINARY),
    "7z": (b"7z\xbc\xaf\x27\x1c\x00\x04", BINARY),
    "rar": (b"Rar!\x1a\x07\x01\x00", BINARY),
    "xz": (lzma.compress(b"text\n"), BINARY),
    "bzip2": (bz2.compress(b"text\n"), BINARY),
    "empty bzip2": (bz2.compress(b""), BINARY),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00", BINARY),
    "png": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", BINARY),
    "jpeg": (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00", BINARY),
    "gif": (b"GIF89a" + PIXEL, BINARY),
    "webp": (b"RIFF\x24\x00\x00\x00WEBPVP8 ", BINARY),
    "tiff": (b"II*\x00\x08\x00\x00\x00", BINARY),
}


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_files_of_other_formats_are_refused(name: str, tmp_path: Path) -> None:
    path, (data, kind) = tmp_path / "letter", OTHER_FORMATS[name]
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"letter: expected plain text, got {kind}"):
        text_files.open_bytes(path, is_plain=True)


LIKE_OTHER_FORMATS = [
    "BMW builds cars", "BM\0\0\0\0 are five characters", "GIF89a is a format of images", "PK is a joiner", "II*, MM*",
    "%PDF-", "BZh9 is how bzip2 begins", "RIFF and WEBP", "7z", "Rar!", "<b>bold</b>", "< xml", "<!-- a -->",
    "# a\n\nb", "msgid of a message", "PAR1 is a gene", "{\\rtf", "x" * 257 + "ustar wars", "\0\0\0", "\xd0\xcf",
]  # fmt: skip


@pytest.mark.parametrize("text", LIKE_OTHER_FORMATS)
def test_text_that_begins_nearly_like_another_format_is_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(text, encoding="utf-8")
    assert list(text_files.read_lines(tmp_path / "text")) == text.split("\n")


@pytest.mark.parametrize("beginning", [b"<!--a-->", b"\n", b"#\n", b"<!--", b"<!", b"PK\x03\x04", b"<?xml ?>\n"])
def test_no_beginning_makes_the_search_long(beginning: bytes) -> None:
    """Nested repetitions would take longer than the universe is old for some of them."""
    assert kind_of(beginning * 8192) is None or beginning in (b"PK\x03\x04", b"<?xml ?>\n")


@pytest.mark.parametrize("data", [b"\x1f\x8b", b"\x1f\x8b\x09\0\0\0\0\0\0\0", gzip.compress(b"text\n", mtime=0)[:12]])
def test_a_gzip_file_with_a_damaged_beginning_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(data)
    with pytest.raises(DataError, match="cut: truncated or damaged gzip file"):
        list(text_files.read_lines(tmp_path / "cut"))


@pytest.mark.parametrize("data", [b"one\n", b"", gzip.compress(b"one\n", mtime=0)])
def test_a_pipe_is_read(data: bytes) -> None:
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    assert list(text_files.read_lines(Path(f"/dev/fd/{reader}"))) == (["one"] if data else [])
    os.close(reader)


@pytest.mark.parametrize("data, expected", [(b"", True), (b"a", False), (b"a\n", True), (b"a\nb", False)])
def test_ends_in_newline_means_that_the_last_line_is_complete(tmp_path: Path, data: bytes, expected: bool) -> None:
    (tmp_path / "x").write_bytes(data)
    assert text_files.ends_in_newline(tmp_path / "x") is expected


GERMAN = "Das Mädchen läuft über die Straße.\n"


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_utf_16_is_refused_by_name(codec: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / f"my text{'' if pack is bytes else '.gz'}"
    path.write_bytes(pack((GERMAN * 300).encode(codec)))
    with pytest.raises(DataError) as error:
        next(text_files.read_lines(path))
    name = codec.upper().replace("-LE", "LE")
    assert str(error.value) == f"{path}: expected UTF-8, got {name}"
    iconv = f"iconv -f {name} -t UTF-8"
    command = f"{iconv} '{path}' > NEW" if pack is bytes else f"gzip -dc '{path}' | {iconv} > NEW"
    assert error.value.help == command


def test_lines_that_end_in_cr_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old"
    for text in ("a\rb\rc", "a b\r" * 300_000 + "c\n"):
        path.write_text(text, newline="")
        with pytest.raises(DataError, match="old: lines end in CR") as error:
            next(text_files.read_lines(path))
        assert error.value.help == f"tr '\\r' '\\n' < {path} > NEW"
    for text in ("a\r", "a\rb", "a\rb\rc\nd\n", "a\r\n\r\n", "x" * 2**21 + "\ra\n"):
        path.write_text(text, newline="")
        assert len(list(text_files.read_lines(path))) == max(1, text.count("\n"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_line_without_an_end_is_refused(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """So that a small file of gzip takes no more memory than other files."""
    path = tmp_path / "text"
    for num_before in (0, 3):
        path.write_bytes(pack(b"a dog\n" * num_before + b"a" * 2**24 + b"\n"))
        lines = text_files.read_lines(path)
        assert [next(lines) for _ in range(num_before)] == ["a dog"] * num_before
        with pytest.raises(DataError) as error:
            next(lines)
        assert str(error.value) == f"{path}:{num_before + 1}: the line has more than 16 MiB"
    path.write_bytes(pack(b"a" * (2**24 - 2) + b"\na dog"))
    assert list(map(len, text_files.read_lines(path))) == [2**24 - 2, 5]


def test_a_line_that_is_not_utf_8_is_named_with_its_probable_encoding(tmp_path: Path) -> None:
    path = tmp_path / "ref.de"
    path.write_bytes(b"\xef\xbb\xbfA dog.\nU+FFFD: \xef\xbf\xbd\n" + GERMAN.encode("cp1252") * 3)
    lines = text_files.read_lines(path, "strict")
    assert [next(lines), next(lines)] == ["A dog.", "U+FFFD: \ufffd"]
    with pytest.raises(DataError) as error:
        next(lines)
    assert str(error.value) == f"{path}:3: not UTF-8, perhaps WINDOWS-1252"
    assert error.value.help == f"iconv -f WINDOWS-1252 -t UTF-8 {path} > NEW"


def test_escaped_lines_tell_invalid_bytes_from_u_fffd(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbf\xbd\na\xffb\x80\n")
    valid, invalid = text_files.read_lines(path, "surrogateescape")
    assert text_files.is_utf8(valid) and not text_files.is_utf8(invalid)
    assert [text_files.replace_invalid(line) for line in (valid, invalid)] == list(text_files.read_lines(path))


def test_invalid_lines_are_counted_and_guessed_at(caplog: pytest.LogCaptureFixture) -> None:
    invalid, one = text_files.InvalidLines(), text_files.InvalidLines(" of --prefix")
    assert invalid.replace(["a", "\ufffd"]) == ["a", "\ufffd"]
    invalid.log()
    lines = [GERMAN.encode("cp1252").decode("utf-8", "surrogateescape")] * 3
    assert invalid.replace(["a", *lines])[:2] == ["a", "Das M\ufffddchen l\ufffduft \ufffdber die Stra\ufffde.\n"]
    one.replace(lines[:1])
    one.log()
    invalid.log()
    first, second = caplog.messages
    assert first.startswith("1 line of --prefix had invalid UTF-8")
    assert second == "3 lines had invalid UTF-8, replaced by U+FFFD, perhaps WINDOWS-1252"


def test_a_short_first_member_of_gzip_does_not_decide_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "members.gz"
    path.write_bytes(gzip.compress(b"\0\0\0 ") + gzip.compress(b"\n"))
    assert list(text_files.read_lines(path)) == ["\0\0\0 "]
