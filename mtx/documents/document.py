"""Documents in which `mtx translate` changes only the text: XLIFF, TMX, PO, HTML, Markdown and subtitles.

Flow: bytes -> text -> segments with tags -> translations -> edits of the text -> bytes. Only a document loads this
module and the parsers, lines of text do not.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from mtx.data.bilingual import match_rank
from mtx.data.languages import Languages, code_of
from mtx.data.markup import Marked, Tag, accelerator, has_letters, is_blank, text_of
from mtx.data.readers import READERS, PairFile
from mtx.data.translation_memories import languages_of, messages, read_units
from mtx.decoding.translator import Hypotheses, in_words
from mtx.documents import bilingual_documents, html, markdown, subtitles
from mtx.documents.edits import Edit, SegmentId, apply, segment_id
from mtx.errors import DataError, UsageError
from mtx.formatting import counted, format_size, shell_command
from mtx.storage.text_files import (
    declared_encoding,
    decoded_lines,
    errors_named,
    iconv,
    is_utf8,
    likely_encoding,
    open_bytes,
    printable,
    wide_encoding,
)

logger = logging.getLogger(__name__)

_BYTE_ORDER_MARK = "\ufeff"
MAX_BYTES = 1 << 28  # of a document, which is held in memory as a whole
# What may stay in the source language. The log lists the most frequent kind first, and equal ones in this order.
_UNTRANSLATED_KINDS = (
    "front matter",
    "unreadable cue",
    "incomplete message",
    "locked segment",
    "ICU message",
    "copied source",
    "HTML block",
    "paragraph",
    "empty translation",
)


def translate_document(
    path: Path,
    kind: str,
    languages: Languages,
    overwrite: bool,
    translate: Callable[[list[Marked]], Hypotheses],
) -> bytes:
    """The bytes of a document with its text translated; logs the number of segments, and what is left.

    Args:
        kind: from `kind_of_document`.
        languages: the languages of the model.
        overwrite: whether existing translations are replaced.
        translate: returns the best hypothesis of each segment.

    Raises:
        UsageError: if it is too large, or compressed.
        DataError: if it is damaged.
    """
    with errors_named(path), path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if data.startswith(b"\x1f\x8b"):
        raise UsageError(f"{path}: compressed documents are not supported", shell_command("gzip", "-dk", path))
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {format_size(MAX_BYTES)}", "divide it")
    if kind == "po" and (charset := _OTHER_CHARSET.search(data)):
        raise DataError(
            f"{path}: its header has {charset[1].decode(errors='replace')}", "convert it with msgconv --to-code=UTF-8"
        )
    full_text, codec = decode(path, data, kind, code_of(languages[0]))
    text = full_text.removeprefix(_BYTE_ORDER_MARK)
    if kind in ("html", "markdown") and (front_matter := _FRONT_MATTER.match(text)):
        text = text[front_matter.end() :]
    head = full_text[: len(full_text) - len(text)]
    untranslated = Counter(dict.fromkeys(_UNTRANSLATED_KINDS, 0))
    if _TITLE.search(head):
        untranslated["front matter"] += 1
    has_accelerators = kind in bilingual_documents.EDITS
    readers: list[Callable[[str], Iterable[Edit]]] = [partial(subtitles.read, path, untranslated=untranslated)]
    estimates = dict[SegmentId, tuple[float | None, str | None]]()  # see `bilingual_documents.Estimates`
    if kind == "markdown":
        read_text = partial(markdown.read, untranslated=untranslated, is_mdx=path.suffix == ".mdx")
        readers = [read_text, partial(markdown.read_rest, path, text)]
    elif kind == "html":
        readers = [
            partial(html.read_blocks, path, src=languages[0]),
            partial(html.read_attributes, languages=languages),
        ]
    elif has_accelerators:
        readers = [
            partial(
                bilingual_documents.EDITS[kind],
                path,
                languages,
                overwrite,
                untranslated=untranslated,
                estimates=estimates,
            )
        ]
    num_segments = 0
    for read_edits in readers:
        edits = list(read_edits(text))
        segments = [edit.segment for edit in edits if edit.segment]
        pairs = [without_accelerator(segment) if has_accelerators else (segment, "") for segment in segments]
        num_untranslated = untranslated.total()
        best = translate([segment for segment, _ in pairs])
        empty = set[SegmentId]()
        for segment, hypothesis in zip(segments, best, strict=True):
            if has_letters(segment) and is_blank(hypothesis.marked):
                empty.add(segment_id(segment))
            elif has_accelerators and hypothesis.advice:
                estimates[segment_id(segment)] = hypothesis.quality, hypothesis.advice
        untranslated["empty translation"] += len(empty)
        translations = (
            with_accelerator(hypothesis.marked, mark) for hypothesis, (_, mark) in zip(best, pairs, strict=True)
        )
        text = apply(text, edits, translations, empty)
        num_unwritten = untranslated.total() - num_untranslated  # empty translations, and what a document cannot hold
        num_segments += len(pairs) - num_unwritten
    kinds = ", ".join(counted(number, kind) for kind, number in untranslated.most_common() if number)
    what_is_left = f", {untranslated.total():,} left ({kinds})" if kinds else ""
    logger.info("%s: %s translated%s", path, counted(num_segments, "segment"), what_is_left)
    # a character that the encoding lacks becomes a character reference of XML and HTML
    return (head + text).encode(codec, "xmlcharrefreplace")


def find_direction(path: Path, kind: str, directions: Sequence[Languages]) -> Languages:
    """The direction (source, target) whose languages an XLIFF, TMX or PO document names.

    Raises:
        UsageError: if it is none of `directions`, or several.
    """
    if kind == "tmx":
        headers = iter([PairFile(path, READERS[kind]).find_languages()[:2]])
    elif kind == "po":
        with open_bytes(path) as file:
            catalogue = messages(path, decoded_lines(file, path))
            headers = iter([message.languages for message in catalogue if message.is_header])
    else:
        headers = map(languages_of, read_units(path, "XLIFF"))
    named = next(headers, ("", ""))
    matches = [
        pair
        for pair in directions
        if all(not name or match_rank(name, language) is not None for name, language in zip(named, pair, strict=True))
    ]
    if len(matches) != 1:
        names = " to ".join(printable(name) or "?" for name in named)
        raise UsageError(f"{path}: is {names}, the model has {in_words(matches or directions)}", "--to chooses")
    return matches[0]


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
            if isinstance(part, str) and re.search(letter, part):
                return [*marked[:number], re.sub(letter, rf"{mark[0]}\g<0>", part, count=1), *marked[number + 1 :]]
    return [*marked, f"({mark.upper()})"]


_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?=\S)(?:(?!\1).*\n)*?(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)")
_TITLE = re.compile("(?:title|description|text)[\"']?\\s*[:=]|[^\\W\\d_] [^\\W\\d_]", re.IGNORECASE)
# In the header of PO; CHARSET is that of templates
_OTHER_CHARSET = re.compile(rb"\n\"Content-Type:[^\n\"]*(charset=(?!utf-?8|charset)[^\s;\\\"]+)", re.IGNORECASE)
_META = re.compile(rb"<meta[^>]{1,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_LATIN_1 = re.compile("iso-?8859-1|latin-?1|(us-)?ascii")


def decode(path: Path, data: bytes, kind: str, language: str) -> tuple[str, str]:
    """The text of a document, with its byte order mark, and the codec.

    Args:
        kind: see `translate_document`. language: of the text, as in `likely_encoding`.

    Raises:
        DataError: if it is not in UTF-8, UTF-16 or its declared encoding, or cannot be written back unchanged.
    """
    codec = _codec(data, kind)
    try:
        text = data.decode(codec)
        if text.encode(codec, "xmlcharrefreplace") == data:
            return text, codec
        raise DataError(f"{path}: cannot write its encoding back unchanged ({codec})", "save it in UTF-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        lines = data[: error.start + 10_000].split(b"\n")[line - 1 :]
        guess = likely_encoding(b"\n".join(text for text in lines if not text.isascii()), language)
        guess_note = f", perhaps {guess}" if guess else ""
        raise DataError(f"{path}:{line}: not {codec.upper()}{guess_note}", iconv(path, guess or "ENCODING")) from None
    except (LookupError, ValueError):  # not a codec, or not a text encoding
        raise DataError(f"{path}: unsupported encoding ({codec})", "save it in UTF-8") from None


def _codec(data: bytes, kind: str) -> str:
    for codec in ("utf-8", "utf-16-le", "utf-16-be"):
        if data.startswith(_BYTE_ORDER_MARK.encode(codec)):
            return codec
    if wide := wide_encoding(data[: 1 << 13]):
        return wide.lower()
    declared = declared_encoding(data)
    if kind == "html" and not declared and (meta := _META.search(data[:4096])):
        declared = meta[1].decode().lower()
        if not data.isascii() and is_utf8(data.decode("utf-8", "surrogateescape")):
            declared = "utf-8"  # whatever the page declares: text in other encodings is not valid UTF-8
        elif _LATIN_1.fullmatch(declared):
            declared = "cp1252"  # as browsers read it
    is_undeclared = kind == "html" and data.isascii() and b"<html" in data.lower()  # a browser may take it for anything
    return declared or ("ascii" if is_undeclared else "utf-8")
