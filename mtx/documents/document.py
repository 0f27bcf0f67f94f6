"""Documents in which `mtx translate` changes only the text: XLIFF, TMX, PO, HTML, Markdown and subtitles.

Flow: bytes -> text -> segments with tags -> translations -> edits of the text -> bytes. The parsers are loaded only for
documents, not for lines of text.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mtx.data.inline_codes import accelerator
from mtx.data.markup import Marked, Tag, text_of
from mtx.errors import DataError, UsageError
from mtx.formatting import counted, format_size, shell_command
from mtx.storage.text_files import declared_encoding, errors_named, is_utf8, likely_encoding, wide_encoding

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 28  # of a document, which is held in memory as a whole
_GZIP = b"\x1f\x8b"


def translate_document(
    path: Path,
    kind: str,
    languages: tuple[str, str],
    overwrite: bool,
    translate: Callable[[list[Marked]], list[Marked]],
) -> bytes:
    """The bytes of a document with its text translated; logs the number of segments, and what is left.

    Args:
        kind: from `kind_of_document`.
        languages: the languages of the model.
        overwrite: whether existing translations are replaced.
        translate: translates segments.

    Raises:
        UsageError: if it is too large, or compressed.
        DataError: if it is damaged.
    """
    with errors_named(path), path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if data.startswith(_GZIP):
        raise UsageError(f"{path}: compressed documents are not supported", shell_command("gzip", "-dk", path))
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {format_size(MAX_BYTES)}", "divide it")
    text, encoding = decode(path, data, kind)
    from mtx.documents import bilingual_documents, html, markdown, subtitles

    front = _FRONT_MATTER.match(text) if kind in ("html", "markdown") else None
    head = front[0] if front else ""
    text = text[len(head) :]
    left = Counter[str]()  # what stays in the source language, by its kind
    reads: list[Callable[[str], Iterable[Edit]]] = [subtitles.read]
    if kind == "markdown":
        reads = [partial(markdown.read, left=left)]
    elif kind == "html":
        reads = [partial(html.read_attributes, path, tgt=languages[1]), html.read_blocks]
    elif kind in bilingual_documents.EDITS:
        reads = [partial(bilingual_documents.EDITS[kind], path, languages, overwrite, left=left)]
        translate = partial(_keep_accelerators, translate)
    num_segments = 0
    for read in reads:
        edits = list(read(text))
        found = segments(edits)
        num_segments += len(found) + left.total()
        text = apply(text, edits, translate(found))
        num_segments -= left.total()  # with what could not be written
    kinds = ", ".join(counted(number, what) for what, number in (+left).most_common())
    rest = f", {left.total():,} left ({kinds})" if kinds else ""
    logger.info("%s: %s translated%s", path, counted(num_segments, "segment"), rest)
    return encoding.encode(head + text)


def _keep_accelerators(translate: Callable[[list[Marked]], list[Marked]], segments: list[Marked]) -> list[Marked]:
    pairs = [without_accelerator(segment) for segment in segments]
    translations = translate([segment for segment, _ in pairs])
    return [with_accelerator(new, mark) for new, (_, mark) in zip(translations, pairs, strict=True)]


def without_accelerator(marked: Marked) -> tuple[Marked, str]:
    """A segment without its accelerator mark, as in &File and _File, and the mark with its letter, or nothing."""
    match = accelerator(text_of(marked))
    if match is None:
        return marked, ""
    mark = match[0]
    return [part if isinstance(part, Tag) else part.replace(mark, match[1] or "") for part in marked], mark.strip(" ()")


def with_accelerator(marked: Marked, mark: str) -> Marked:
    """A translation with the accelerator mark: before its letter, else before the first letter.

    Without Latin letters, as in Chinese, both are appended to the text in parentheses.
    """
    if not mark:
        return marked
    for letter in (rf"\b(?i:{mark[1]})", f"(?i:{mark[1]})", "[A-Za-z]"):
        for number, part in enumerate(marked):
            if isinstance(part, str) and (match := re.search(letter, part)):
                at = match.start()
                return [*marked[:number], f"{part[:at]}{mark[0]}{part[at:]}", *marked[number + 1 :]]
    return [*marked, f"({mark.upper()})"]


_MARKS = {"utf-8": b"\xef\xbb\xbf", "utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}  # byte order marks
_MAX_SPACE = 200
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?=\S)(?:(?!\1).*\n)*?(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)")
_META = re.compile(rb"<meta[^>]{1,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_META_BYTES = 4096
_LATIN_1 = frozenset(["iso-8859-1", "iso8859-1", "latin-1", "latin1", "us-ascii", "ascii"])


@dataclass(frozen=True)
class Encoding:
    """The encoding of a document: a Python codec, and the byte order mark before the text."""

    codec: str
    mark: bytes = b""

    def encode(self, text: str) -> bytes:
        """The bytes of a text; a character that the encoding lacks becomes a character reference of XML and HTML."""
        return self.mark + text.encode(self.codec, "xmlcharrefreplace")


@dataclass(frozen=True)
class Edit:
    """Replaces a span of characters by a translation; an empty span is an insertion.

    Attributes:
        segment: the text to translate; empty if the new text is known.
        write: formats the translation for the document.
    """

    start: int
    end: int
    segment: Marked
    write: Callable[[Marked], str]


def replace_text(start: int, end: int, text: str) -> Edit:
    """An edit that replaces a span of characters by this text."""
    return Edit(start, end, [], lambda _: text)


def segments(edits: Iterable[Edit]) -> list[Marked]:
    """The segments to translate for some edits."""
    return [edit.segment for edit in edits if edit.segment]


def apply(text: str, edits: Iterable[Edit], translations: Iterable[Marked]) -> str:
    """The text after all edits, which are in order and do not overlap; consumes the translations that they need."""
    parts = list[str]()
    end = 0
    rest = iter(translations)
    for edit in edits:
        assert edit.start >= end
        parts += [text[end : edit.start], edit.write(next(rest) if edit.segment else [])]
        end = edit.end
    return "".join([*parts, text[end:]])


def space_before(text: str, at: int) -> str:
    """The white space before a character, such as the line break and the indentation of a tag."""
    before = text[max(0, at - _MAX_SPACE) : at]
    return before[len(before.rstrip()) :]


def decode(path: Path, data: bytes, kind: str) -> tuple[str, Encoding]:
    """The text of a document, without a byte order mark, and how to encode it again. `kind`: see `translate_document`.

    Raises:
        DataError: if it is not in UTF-8, UTF-16 or its declared encoding, or cannot be written back unchanged.
    """
    encoding = _encoding(data, kind)
    try:
        text = data.removeprefix(encoding.mark).decode(encoding.codec)
        if encoding.encode(text) == data:
            return text, encoding
        raise DataError(f"{path}: cannot write its encoding back unchanged ({encoding.codec})", "save it in UTF-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        guess = likely_encoding(data[max(0, error.start - 1000) : error.start + 1000])
        perhaps = f", perhaps {guess}" if guess else ""
        raise DataError(f"{path}:{line}: not {encoding.codec.upper()}{perhaps}", "save it in UTF-8") from None
    except (LookupError, ValueError):  # not a codec, or not a text encoding
        raise DataError(f"{path}: unsupported encoding ({encoding.codec})", "save it in UTF-8") from None


def _encoding(data: bytes, kind: str) -> Encoding:
    for codec, mark in _MARKS.items():
        if data.startswith(mark):
            return Encoding(codec, mark)
    if wide := wide_encoding(data[: 1 << 13]):
        return Encoding(wide.lower())
    declared = declared_encoding(data)
    if kind == "html" and not declared and (meta := _META.search(data[:_META_BYTES])):
        declared = meta[1].decode().lower()
        if not data.isascii() and is_utf8(data.decode("utf-8", "surrogateescape")):
            declared = "utf-8"  # whatever the page declares: text in other encodings is not valid UTF-8
        elif declared in _LATIN_1:
            declared = "cp1252"  # as browsers read it
    return Encoding(declared or "utf-8")
