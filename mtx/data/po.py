"""Reads catalogues of messages (gettext's PO) as units. Flow: file -> `Unit` -> `bilingual`.

Entries that are fuzzy or obsolete are left out, and the header is no message. Of a message with a plural the singular
goes with the first form and the plural with the last. PO names the target language alone, in its header.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mtx.data.bilingual import UNKNOWN, Unit, Variant, one_line
from mtx.errors import DataError
from mtx.files.text_files import decoded_lines, open_bytes
from mtx.files.xml_stream import MAX_TEXT

_STRINGS = r'(?:"(?:[^"\\]|\\.)*+"\s*+)++'
_KEYWORD = re.compile(rf"(msgctxt|msgid|msgid_plural|msgstr|msgstr\[[0-9]{{1,2}}\])\s*({_STRINGS})")
_CONTINUED = re.compile(_STRINGS)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(r"(?:\\(?:x[0-9A-Fa-f]{1,2}|[0-7]{1,3}))+|\\.")
_BYTE = re.compile(r"\\(?:x([0-9A-Fa-f]+)|([0-7]+))")
_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass
class _Entry:
    """A message: the texts by keyword, and whether it is only a proposal."""

    line: int = 0
    is_fuzzy: bool = False
    texts: dict[str, list[str]] = field(default_factory=dict)


def read_po(path: Path) -> Iterator[Unit]:
    """The messages of a catalogue, one after the other; one without a translation has its source alone.

    Raises:
        DataError: if a line is no PO, or the text is not in UTF-8.
    """
    src_language = tgt_language = UNKNOWN
    for entry in _entries(path):
        texts = {key: _unescaped("".join(parts)) for key, parts in entry.texts.items()}
        if texts.get("msgid") == "" and "msgctxt" not in texts:
            fields = (line.partition(":") for line in texts.get("msgstr", "").split("\n"))
            header = {name.strip(): value.strip() for name, _, value in fields}
            src_language = header.get("X-Source-Language", UNKNOWN)
            tgt_language = header.get("Language", UNKNOWN)
            continue
        forms = [] if entry.is_fuzzy else [text for key, text in texts.items() if key.startswith("msgstr")]
        has_one_form = "msgid_plural" in texts and len(forms) == 1  # which is that of any number
        for source, translations in {"msgid": forms[:1], "msgid_plural": forms[-1:]}.items():
            if source in texts and not (has_one_form and source == "msgid"):
                variants = [Variant(src_language, _text(texts[source]))]
                variants += [Variant(tgt_language, _text(text)) for text in translations if text]
                yield Unit(entry.line, variants)


def _entries(path: Path) -> Iterator[_Entry]:
    with open_bytes(path) as file:
        yield from _entries_of(path, decoded_lines(file, path, "strict"))


def _entries_of(path: Path, lines: Iterator[str]) -> Iterator[_Entry]:
    entry, keyword, is_fuzzy, size = _Entry(), "", False, 0
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or not line.strip():
            is_fuzzy = (is_fuzzy or (line.startswith("#,") and "fuzzy" in line)) and not line.startswith("#~")
        elif match := _KEYWORD.fullmatch(line.strip()):
            keyword = match[1]
            if keyword in entry.texts or (keyword in ("msgctxt", "msgid") and "msgid" in entry.texts):
                yield entry
                entry, size = _Entry(), 0
            if not entry.texts:
                entry.line, entry.is_fuzzy, is_fuzzy = number, is_fuzzy, False
            entry.texts[keyword] = _STRING.findall(match[2])
        elif keyword and _CONTINUED.fullmatch(line.strip()):
            entry.texts[keyword] += _STRING.findall(line)
        else:
            raise DataError(f"{path}:{number}: is no line of PO, expected a keyword and a text in quotes")
        size += len(line)
        if size > MAX_TEXT:
            raise DataError(f"{path}:{entry.line}: a message has more than {MAX_TEXT:,} characters")
    if entry.texts:
        yield entry


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    """The text of an escape: of one character, or of the bytes of some, by their numbers."""
    numbers = [int(hexadecimal or octal, 16 if hexadecimal else 8) for hexadecimal, octal in _BYTE.findall(match[0])]
    if not numbers:
        return _CHARACTERS.get(match[0][1], match[0][1])
    return bytes(number & 0xFF for number in numbers).decode("utf-8", "replace")


def _text(text: str) -> str:
    return one_line(text).strip()
