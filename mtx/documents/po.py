"""A catalogue of messages as a document: empty translations are filled in, and marked fuzzy, PO's word for unsure.

Placeholders such as %s and {0} are tags, so each comes out once. Flow: see `documents.xliff`.
"""

import html
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mtx.data.bilingual import require_languages
from mtx.data.po import Message, messages
from mtx.documents.edits import Edit, fixed
from mtx.documents.inline import with_lines
from mtx.documents.markup import Marked, bare, element_tag, is_choice, raw, with_placeholders, with_tags
from mtx.errors import DataError

_ENTITY = re.compile(r"&(?:\w{2,10}|#\d{1,6});")
_KEPT_ENTITIES = frozenset(["&amp;", "&lt;", "&gt;", "&quot;", "&apos;", "&nbsp;"])  # others are characters of a word
_MARKUP = re.compile(rf"(?<!%)</?[a-zA-Z][^<>]{{0,1000}}>|{'|'.join(sorted(_KEPT_ENTITIES))}")
_SPACES = re.compile(r" *[\t\r\n]\s*|(?<=\S)  +(?=\S)")  # of texts in columns, too
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})
_CHARSET = re.compile(r"charset=([^\s;]+)", re.IGNORECASE)
_UTF_8 = ("utf-8", "utf8", "charset")  # the last one is that of templates


def read(path: Path, languages: tuple[str, str], overwrite: bool, text: str) -> Iterator[Edit]:
    """The edits that translate a catalogue; see `documents.xliff.read`."""
    lines, line_end = _lines(text), "\r\n" if "\r\n" in text else "\n"
    for message in messages(path, text.split("\n")):
        if message.is_header:
            require_languages(path, message.languages, languages)
            _require_utf_8(path, message)
            continue
        forms = [key for key in message.texts if key.startswith("msgstr")]
        is_flagged = message.is_fuzzy
        for key in forms:
            is_plural = "msgid_plural" in message.texts and (key != "msgstr[0]" or len(forms) == 1)
            source = _marked(message.texts.get("msgid_plural" if is_plural else "msgid", ""))
            if (message.texts[key] and not overwrite) or not bare(source)[0] or is_choice(source):
                continue
            if not is_flagged:
                is_flagged, flags = True, message.flags_line
                at = lines[message.line][0] if flags is None else lines[flags][1]
                yield fixed(at, at, f"#, fuzzy{line_end}" if flags is None else ", fuzzy")
            first, last = message.lines[key]
            yield Edit(lines[first][0], lines[last][1], source, partial(_string, key))


def _string(key: str, translation: Marked) -> str:
    return f'{key} "{raw(translation).translate(_ESCAPED)}"'


def _require_utf_8(path: Path, header: Message) -> None:
    charset = _CHARSET.search(header.field("Content-Type"))
    if charset and charset[1].lower() not in _UTF_8:
        raise DataError(f"{path}: its header says charset={charset[1]}", "msgconv --to-code=UTF-8 makes it UTF-8")


def _lines(text: str) -> list[tuple[int, int]]:
    """From where to where each line goes, without its white space at the end, by its number from 1."""
    spans, at = [(0, 0)], 0
    for line in text.split("\n"):
        spans.append((at, at + len(line.rstrip())))
        at += len(line) + 1
    return spans


def _marked(text: str) -> Marked:
    """A message as text and tags: placeholders, markup, line breaks inside of it, and the spaces between columns."""
    text = _ENTITY.sub(lambda match: match[0] if match[0] in _KEPT_ENTITIES else html.unescape(match[0]), text)
    return with_lines(with_placeholders(with_tags([text], _MARKUP, element_tag)), _SPACES)
