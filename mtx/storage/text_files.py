"""The only reader of text: its lines, its encoding, and the kind of a file that is not plain text.

A line ends at LF only, so that no other character can misalign a corpus. The first bytes determine the kind of a file.
UTF-16 and UTF-32 are recognised with certainty, by a byte order mark or by the NULs next to every space and line end;
among other encodings `likely_encoding` finds only the most probable one, by a name that iconv accepts.
"""

import contextlib
import gzip
import itertools
import logging
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from mtx.errors import DataError, UsageError
from mtx.formatting import counted, did_you_mean, shell_command

logger = logging.getLogger(__name__)

_PRINTED = "\u200c\u200d\u00a0\u202f\u3000"  # joiners, which some scripts need, and spaces used in text
_FIRST_BYTES = 2**20  # of the first line; text that has only CRs in them is refused
_LINE_BYTES = 2**24  # a longer line is refused: a small file of gzip may be one line that no memory holds
_SAMPLE_LINES = 100  # that are not UTF-8, and show the encoding
_SEARCHED_LINES = 10_000  # in which they are searched
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile("[\udc80-\udcff]")  # Python's surrogateescape: each represents a byte that is not UTF-8

BEGINNING_BYTES = 1 << 16  # they contain the first element of XML, and the first message of PO

_PLAIN = "expected plain UTF-8 text, one sentence per line, optionally compressed with gzip"


class FileKind(NamedTuple):
    """A kind of file that is not lines of text.

    Attributes:
        name: with an article. hint: what to do with the file.
        form: tmx, xliff or po if the file holds pairs, which `data.readers` reads; html, markdown or subtitles for
            other documents; else empty.
        endings: of its name, if they show it.
        signature: matches its first bytes; never, if only its name shows it.
    """

    name: str
    hint: str
    form: str
    endings: str
    signature: str


# XML up to its first element; groups are atomic, so that no file makes the search long
_PROLOG = r"\s*(?=<[?!a-zA-Z])(?>(?:<!--.*?-->|<\?.*?\?>|<![^>\[]*+(?:\[[^\]]*+\])?+[^>]*+>)\s*)*+"
_ONLY_BY_NAME = "(?!)"
_BINARY = {
    "Zip, office": r"PK(?:\x03\x04|\x05\x06|\x07\x08)|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    "RTF": r"\{\\rtf\d",
    "PDF": r"%PDF-\d",
    "SQLite": r"SQLite\ format\ 3\0",
    "Parquet": r"PAR1\x15",
    "tar": r".{257}ustar(?:\0|\ \ \0)",
    "7z": r"7z\xbc\xaf\x27\x1c",
    "rar": r"Rar!\x1a\x07",
    "xz": r"\xfd7zXZ\0",
    "gzip": r"\x1f\x8b\x08",
    "bzip2": r"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)",
    "zstd": r"\x28\xb5\x2f\xfd",
    "PNG": r"\x89PNG\r\n\x1a\n",
    "JPEG": r"\xff\xd8\xff",
    "GIF": r"GIF8[79]a.{0,6}\0",  # of the seven bytes after its name, the last is nearly always 0
    "WebP": r"RIFF.{4}WEBPVP8",
    "TIFF": r"II[*+]\0|MM\0[*+]",
    "MO": r"\xde\x12\x04\x95|\x95\x04\x12\xde",
}
_KEYS = {  # with messages
    "JSON": r"""[\s\[]*\{\s*"(?:[^"\\\n]|\\.)*"\s*:""",
    ".strings": r"""(?:\s*/\*.*?\*/)*+\s*"(?:[^"\\\n]|\\.)*"\s*=\s*\"""",
    "PHP, JavaScript": r"\s*(?:<\?php|export\ default\b|module\.exports\b)",
    # Two keys, below comments
    "Fluent, .properties, INI, TOML": (
        r"(?:(?:[ \t]*(?:[\#!;][^\n]*|\[[^\]\n]*\]\s*)?\n)*+[\w.-]+[ \t]*=[^\n]*\n?(?:[ \t]+[^\n]*(?:\n|$)|\r?\n)*+){2}"
    ),
    # Below comments: two levels, two keys with dots, or below keys in small letters a block
    "YAML": (
        r"(?:(?:---|[ \t]*\#[^\n]*)?\r?\n)*+"
        r"""(?:[\w.-]+:[ \t]*\r?\n[ \t]+[\w."'-]+:\s|(?:[\w-]+\.[\w.-]+:[ \t][^\n]*\n){2}"""
        r"|(?:[a-z_][\w.-]*:[ \t]+(?![|>][-+]?[ \t]*\r?\n)[^\n]*\n(?:[ \t]*(?:\#[^\n]*)?\r?\n)*+)*+"
        r"""[a-z_][\w.-]*:[ \t]*(?:[|>][-+]?[ \t]*\r?\n[ \t]+\S|\r?\n[ \t]*(?:-[ \t]+)?[\w."'-]+:\s))"""
    ),
}
_HOLDS_PAIRS = "to train on its pairs: data.train=FILE, or data.valid or data.test; to translate it, give it as a FILE"
_TO_TRAIN_OR_TRANSLATE = "to train, write one pair per line, as source TAB target; to translate it, give it as a FILE"
# The first match counts. White space in a signature has no meaning, but in a class.
_KINDS = [
    FileKind("a translation memory (TMX)", _HOLDS_PAIRS, "tmx", "tmx", rf"{_PROLOG}<tmx\b"),
    FileKind(
        "a bilingual file (XLIFF)",
        _HOLDS_PAIRS,
        "xliff",
        "xliff|xlf|sdlxliff|mqxliff|mxliff",
        rf"{_PROLOG}<([\w.-]+:)?xliff\b",
    ),
    FileKind(
        "a message catalogue (PO)",
        _HOLDS_PAIRS,
        "po",
        "po|pot",
        r"""(?:\s*\#[^\n]*\n)*+\s*(?:msgctxt\s+(?:"[^\n]*\n\s*)++)?msgid\s+\"""",
    ),
    FileKind(
        "XML or HTML",
        "save a page as plain text, or name it .html to translate it; export a term base as .tsv; convert other XML to "
        "PO",
        "",
        "xml|resx",
        rf"\s*<\?xml\s|{_PROLOG}<((?i:html)|resources|TS|martif|tbx)\b",
    ),
    FileKind(
        "an office document, an archive or another binary file",
        'save a spreadsheet as "CSV UTF-8" (.csv), a document as text, HTML or XLIFF; unpack an archive; name Parquet '
        ".parquet",
        "",
        "docx|xlsx|pptx|odt|ods|pdf|epub|zip|mo|parquet",
        "|".join(_BINARY.values()),
    ),
]
# Those that are text: a translation line by line would spoil them
_STRUCTURED = [
    FileKind(
        "a page (HTML)",
        _TO_TRAIN_OR_TRANSLATE,
        "html",
        "html|htm|xhtml|xht|php|ejs|twig|liquid|hbs",
        _ONLY_BY_NAME,
    ),
    FileKind("Markdown", _TO_TRAIN_OR_TRANSLATE, "markdown", "md|mdx|markdown", _ONLY_BY_NAME),
    FileKind(
        "subtitles",
        "to train, write one pair per line, as source TAB target; to translate them, give them as a FILE",
        "subtitles",
        "srt|vtt",
        r"\s*(?:WEBVTT\b|(?:\d+[ \t]*\r?\n)?(?:\d+:)?\d\d:\d\d[,.]\d{3}[ ]*-->)",
    ),
    FileKind(
        "subtitles of another kind",
        "make them SRT (ffmpeg)",
        "",
        "ass|ssa|sbv|smi",
        r"\s*(?:\[Script\ Info\]|<SAMI|\d:\d\d:\d\d\.\d{3},\d:\d\d:)",
    ),
    FileKind(
        "a notebook (Jupyter)", "make it Markdown: jupytext --to md FILE", "", "ipynb", r"""\s*\{\s*"cells"\s*:"""
    ),
    FileKind(
        "keys with messages (JSON, YAML, Fluent and the like)",
        "convert them to PO or XLIFF (Translate Toolkit)",
        "",
        "json|arb|yml|yaml|toml|properties|strings|ini|vue|ftl",
        "|".join(_KEYS.values()),
    ),
    FileKind(
        "another markup (LaTeX, reStructuredText, AsciiDoc, Org)",
        "make it HTML or Markdown (pandoc; asciidoctor for AsciiDoc)",
        "",
        "rst|tex|adoc|asciidoc|asc|org",
        r"\s*\\documentclass\b"
        # In any line a directive, the start of a block, an option of AsciiDoc below its title, or the lines around code
        r"|(?:[^\n]*\n)*?(?:[ \t]*(?:\.\.[ ][\w-]+::|\#\+[a-zA-Z_]{4,}(?:[ ]\w|:))"
        r"""|\[[\w,\#.%="' -]+\]\r?\n(?:----|====|\|===)|=[ ][^\n]+\n(?:[^\n]+\n){0,3}:[\w-]+:)""",
    ),
    FileKind(
        "a marked text of the Bible (USFM)",
        "write one verse a line, without marks",
        "",
        "usfm|sfm|ptx",
        r"\s*\\(?:id|usfm|h|m?t?\d?|s\d?|c|p|v)\s",
    ),
    FileKind(
        "a table",
        "write the column to translate into a file of its own, as with cut -f 1 FILE or jq -r .src FILE",
        "",
        "tsv|jsonl",
        # A TAB in two lines, but not those of a list
        r"(?:(?:\d+|[ \d.)(*+-]*+[^\s\d.)(*+\xe2-][^\t\n]*+)\t[^\n]*+(?:\n|$)){2}",
    ),
    FileKind(
        "a table (CSV)",
        "save the column to translate as a file of its own, with a spreadsheet or csvcut",
        "",
        "csv",
        _ONLY_BY_NAME,
    ),
    FileKind("an export of Anki", "give its table alone: grep -v '^#' FILE > NEW.txt", "", "apkg", r"\#separator:"),
    FileKind(
        "text in subwords",
        "sed -E 's/@@( |$)//g' FILE > NEW joins those of BPE; sed 's/ //g; s/▁/ /g' FILE > NEW those of SentencePiece",
        "",
        "bpe",
        r"(?:.*?[^\s@]@@[ ][^\s@]){2}|(?:\xe2\x96\x81\S*[ ]+){2}",
    ),
]
KINDS = _KINDS + _STRUCTURED


def kind_of(beginning: bytes, kinds: Iterable[FileKind] = _KINDS) -> FileKind | None:
    """The kind of a file that begins with these bytes, about BEGINNING_BYTES of them; None for plain text."""
    beginning = beginning[:BEGINNING_BYTES].removeprefix(b"\xef\xbb\xbf")
    if encoding := wide_encoding(beginning):
        beginning = beginning.decode(encoding, "ignore").removeprefix("\ufeff").encode()
    return next((kind for kind in kinds if re.match(f"(?sx){kind.signature}".encode(), beginning)), None)


def unlike_lines(lines: Sequence[str]) -> str | None:
    """What some lines are instead of lines of text, and what to do, for a warning; None for lines of text."""
    kind = kind_of("\n".join(lines[:100]).encode("utf-8", "replace"), KINDS)
    return f"expected lines of text, got {kind.name}: {kind.hint}" if kind else None


_BOMS = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
_WIDE = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
_MANY_CONTROLS = 0.3  # share of the bytes; in text in UTF-16 about every second byte is a control character
_LONGEST_CUT = 3  # bytes of a character that is cut at the end
_STRANGE = 0.01  # share of characters foreign to text above which it is another encoding
_DECLARED = re.compile(rb"""(?:\xef\xbb\xbf)?\s*<\?xml[^>]*?\sencoding\s*=\s*["']([\w.:-]+)""")
# Common encodings of parallel text. If several are equally probable, the first counts.
_EAST_ASIAN = ("cp932", "gb18030", "big5", "cp949", "euc_jp")
_NARROW = (
    "cp1252",
    "cp1251",
    *_EAST_ASIAN,
    "cp1250",
    "koi8_r",
    "cp1253",
    "cp1254",
    "cp1256",
    "cp1255",
    "cp1257",
    "cp874",
)


def wide_encoding(beginning: bytes) -> str | None:
    """UTF-16 or UTF-32 if a text that starts with these bytes is in one of them, with or without a byte order mark."""
    num_nuls = beginning.count(0)
    is_narrow = num_nuls < 2 or (
        sum(1 for byte in beginning if byte < 0x20) < _MANY_CONTROLS * len(beginning)
        and _decode(beginning, "utf-8") is not None
    )
    names = () if is_narrow and not beginning.startswith(_BOMS) else _WIDE
    for name in names:
        text = _decode(beginning, name) or ""
        num_strange = sum(1 for c in text if unicodedata.category(c) in ("Cc", "Cn", "Co") and c not in "\t\r\n\f")
        if text in ("", "\ufeff") or num_strange > _STRANGE * len(text):
            continue
        if text[0] == "\ufeff":
            return name[:6]
        # In UTF-32 all characters have NULs. In UTF-16 they belong to ASCII such as spaces, few to U+4E00 and the like.
        has_nuls = name.startswith("UTF-32") or 3 * sum(1 for c in text if c < "\x80") > 2 * num_nuls
        if has_nuls and not is_narrow and ("\n" in text or b"\n" not in beginning):
            return name
    return None


def _decode(beginning: bytes, name: str) -> str | None:
    """The text in an encoding, without a truncated character at the end; None if it is not in this encoding."""
    try:
        return beginning.decode(name)
    except UnicodeDecodeError as error:
        return beginning[: error.start].decode(name) if error.start >= len(beginning) - _LONGEST_CUT else None


def declared_encoding(beginning: bytes) -> str | None:
    """The encoding that single-byte XML declares, in lower case; UTF-8 if it declares a two-byte encoding."""
    declared = _DECLARED.match(beginning)
    name = declared[1].decode().lower() if declared else None
    return "utf-8" if name and name.startswith(("utf-16", "utf16", "ucs-2")) else name


# By language, where a short text does not show the encoding
_CODE_PAGES = {
    "cs": "cp1250", "hr": "cp1250", "hu": "cp1250", "pl": "cp1250", "ro": "cp1250", "sk": "cp1250", "sl": "cp1250",
    "el": "cp1253",
    "az": "cp1254", "tr": "cp1254",
    "he": "cp1255",
    "ar": "cp1256", "fa": "cp1256", "ur": "cp1256",
    "et": "cp1257", "lt": "cp1257", "lv": "cp1257",
    "vi": "cp1258",
}  # fmt: skip


def likely_encoding(sample: bytes, language: str | None = None) -> str | None:
    """The most probable encoding of some lines that are not UTF-8, or None if none of the usual ones fits.

    If the code page of the language fits, it is the most probable one.

    Args:
        language: its code; None if it is unknown.
    """
    from charset_normalizer import from_bytes

    code_page = _CODE_PAGES.get(language) if language else None
    usual = [code_page, *_NARROW] if code_page else list(_NARROW)
    matches = {
        codec: match
        for match in from_bytes(sample, cp_isolation=usual)
        for codec in match.could_be_from_charset  # they give the same text
    }
    is_european = 8 * sum(1 for byte in sample if byte > 127) < len(sample)  # single letters between ASCII
    candidates = [codec for codec in usual if codec in matches and not (is_european and codec in _EAST_ASIAN)]
    if not candidates:
        return None
    if code_page in candidates:
        return _iconv_name(code_page)

    def improbability(codec: str) -> tuple[float, float]:
        return matches[codec].chaos, -matches[codec].coherence

    return _iconv_name(min(candidates, key=improbability))  # the first of equally probable ones


def _iconv_name(codec: str) -> str:
    """The name by which iconv knows a codec of Python."""
    name = codec.replace("cp", "windows-") if codec.startswith("cp125") else codec.replace("_", "-")
    return name.upper()


def kind_of_file(path: Path) -> FileKind | None:
    """The kind of a file, by its content and its name; None for lines of text. A page is recognised by its name.

    Raises:
        UsageError: if the file is missing, or has no text.
        DataError: if the beginning of a gzip file is damaged.
    """
    kind_by_name = next(
        (kind for kind in KINDS if re.search(rf"(?i)\.(?:{kind.endings})(?:\.gz|\.erb)?$", path.name)), None
    )
    if kind_by_name and kind_by_name.form == "html":
        return kind_by_name
    with open_bytes(path) as file, errors_named(path):
        beginning = file.peek(BEGINNING_BYTES)  # type: ignore[attr-defined]
    kind_by_content = kind_of(beginning)
    if kind_by_content and not kind_by_content.form:
        raise UsageError(f"{path}: expected plain text, got {kind_by_content.name}", kind_by_content.hint)
    return kind_by_content or kind_by_name or kind_of(beginning, KINDS)


def require_content(path: Path) -> None:
    """Raise a UsageError for a file, plain or gzip, that is empty or has only white space."""
    with open_bytes(path) as file, errors_named(path):
        for chunk in iter(partial(file.read, BEGINNING_BYTES), b""):
            if chunk.removeprefix(b"\xef\xbb\xbf").strip():
                return
    raise UsageError(f"{path}: the file is empty")


def open_bytes(path: Path, is_plain: bool = False) -> IO[bytes]:
    """Open a file or pipe, plain or gzip, for reading bytes; gzip is recognised by the first two bytes.

    Raises:
        UsageError: if the file is missing, or not plain text (see `kind_of`) and `is_plain`.
        DataError: if the beginning of a gzip file is damaged.
    """
    try:
        file: Any = path.open("rb", BEGINNING_BYTES)
    except OSError as error:
        reason = f"cannot read it: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            reason = f"no such file{did_you_mean(path)}"
        raise UsageError(f"{path}: {reason}") from None
    with errors_named(path):
        stream: Any = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
        kind = kind_of(stream.peek(BEGINNING_BYTES)) if is_plain else None
    if kind:
        raise UsageError(f"{path}: expected plain text, got {kind.name}", kind.hint)
    return stream  # type: ignore[no-any-return]


@contextlib.contextmanager
def errors_named(name: Path) -> Iterator[None]:
    """Turn errors of reading in the block into a DataError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: truncated or damaged gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{name}: cannot read it: {error.strerror or error}") from None


def byte_lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a binary stream, without LF, without one CR before it, and without a BOM at byte 0."""
    for number, line in enumerate(file):
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield line[:-1].removesuffix(b"\r") if line.endswith(b"\n") else line


Lines = Sequence[str]
LineParts = tuple[str, ...]  # a line, perhaps with its prefix or its reference
Invalid = Literal["replace", "surrogateescape", "strict"]


def decoded_lines(file: IO[bytes], name: Path, invalid: Invalid = "replace") -> Iterator[str]:
    """The lines of an open UTF-8 stream, as in `read_lines`; error messages use `name`."""
    with errors_named(name):
        lines = byte_lines(_checked_lines(file, name))
        for number, line in enumerate(lines, 1):
            if len(line) >= _LINE_BYTES:
                raise DataError(f"{name}:{number}: the line has more than 16 MiB", _PLAIN)
            try:
                yield line.decode("utf-8", errors=invalid)
            except UnicodeDecodeError:
                invalid_lines = InvalidLines()  # it and those of the following lines show the encoding
                invalid_lines.replace(list(map(escaped, [line, *itertools.islice(lines, _SEARCHED_LINES)])))
                hint = iconv(name, invalid_lines.encoding() or "ENCODING")
                raise DataError(f"{name}:{number}: not UTF-8{invalid_lines.guess()}", hint) from None


def read_lines(path: Path, invalid: Invalid = "replace") -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzip.

    Args:
        invalid: treatment of bytes that are not UTF-8. `replace`: U+FFFD. `surrogateescape`: one lone surrogate per
            byte, which `is_utf8` finds. `strict`: the file is refused.

    Raises:
        UsageError: if the file is missing or not text, see `kind_of`.
        DataError: if a gzip file is truncated or damaged, the text is in UTF-16 or UTF-32, its lines end in CR, or one
            has more than 16 MiB.
    """
    with open_bytes(path, is_plain=True) as file:
        yield from decoded_lines(file, path, invalid)


def _checked_lines(file: IO[bytes], name: Path) -> Iterator[bytes]:
    """The lines of a stream with their ends; a longer one is cut after _LINE_BYTES or more.

    Raises:
        DataError: if its beginning is in UTF-16 or has CRs for LFs.
    """
    beginning = file.peek(BEGINNING_BYTES)  # type: ignore[attr-defined]  # waits no longer than reading a line
    first_line = file.readline(_FIRST_BYTES)
    if encoding := wide_encoding(max(beginning, first_line, key=len)):  # gzip shows only the first member
        raise DataError(f"{name}: expected UTF-8, got {encoding}", iconv(name, encoding))
    if not first_line.endswith(b"\n"):
        if first_line.count(b"\r") > 1:
            hint = f"tr '\\r' '\\n' < {shell_command(name)} > NEW"
            raise DataError(f"{name}: lines end in CR (old Mac format), expected LF", hint)
        first_line += file.readline(_LINE_BYTES)
    return itertools.chain([first_line] if first_line else [], iter(partial(file.readline, _LINE_BYTES), b""))


def iconv(name: Path, encoding: str) -> str:
    """The command that converts a file, which may be compressed, to UTF-8."""
    file = shell_command(name)
    command = f"iconv -f {encoding} -t UTF-8"
    return f"gzip -dc {file} | {command} > NEW" if name.suffix == ".gz" else f"{command} {file} > NEW"


def escaped(line: bytes) -> str:
    """A line with a lone surrogate for each byte that is not UTF-8."""
    return line.decode("utf-8", "surrogateescape")


def is_utf8(line: str) -> bool:
    """Whether a line that was read with `surrogateescape` was UTF-8; U+FFFD is."""
    return line.isprintable() or _ESCAPED.search(line) is None  # surrogates are not printable


def replace_invalid(line: str) -> str:
    """A line that was read with `surrogateescape` as if read with `replace`."""
    return line if is_utf8(line) else line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates by U+FFFD: they have no UTF-8 form, and SentencePiece and Arrow refuse them."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


class InvalidLines:
    """Counts the lines that are not UTF-8 in a text that was read with `surrogateescape`, and keeps some of them.

    Args:
        place: the place of the lines for `log`, such as " of the prefixes".
    """

    def __init__(self, place: str = ""):
        self._place = place
        self.count = 0
        self._sample: list[str] = []

    def replace(self, lines: list[str]) -> list[str]:
        """Count the invalid lines; returns all lines as if read with `replace`."""
        invalid = [line for line in lines if not is_utf8(line)]
        self.count += len(invalid)
        self._sample += invalid[: _SAMPLE_LINES - len(self._sample)]
        return list(map(replace_invalid, lines)) if invalid else lines

    def log(self) -> None:
        """Warn of the invalid lines, if there are any."""
        if self.count:
            lines = f"{counted(self.count, 'line')}{self._place}"
            logger.warning(f"{lines} had invalid UTF-8, replaced by U+FFFD{self.guess()}")

    def encoding(self) -> str | None:
        """The probable encoding of the invalid lines, see `likely_encoding`."""
        return likely_encoding("\n".join(self._sample).encode("utf-8", "surrogateescape"))

    def guess(self) -> str:
        """The probable encoding as the end of a message; may be empty."""
        return f", perhaps {encoding}" if (encoding := self.encoding()) else ""


def printable(text: str) -> str:
    """The text with control characters and the like escaped for a terminal; joiners and spaces stay."""
    return "".join(c if c.isprintable() or c in _PRINTED else c.encode("unicode_escape").decode() for c in text)


def ends_in_newline(path: Path) -> bool:
    """Whether the last line of a file is complete, so that more can be appended; true for an empty file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 1))
        return file.read() in (b"", b"\n")
