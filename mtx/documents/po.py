"""A catalogue of messages as a document: empty translations are filled in, and marked fuzzy, PO's word for unsure.

Placeholders such as %s and {0} are tags, so each comes out once. Flow: see `documents.xliff`.
"""

import html
import re
from collections.abc import Sequence
from pathlib import Path

from mtx.data.bilingual import require_languages
from mtx.data.po import Message, messages
from mtx.documents.edits import Edit, Reading
from mtx.documents.inline import with_lines
from mtx.documents.markup import Marked, bare, element_tag, is_choice, raw, with_edges, with_placeholders, with_tags
from mtx.errors import DataError

_ENTITY = re.compile(r"&(?:\w{2,10}|#\d{1,6});")
_KEPT_ENTITIES = frozenset(["&amp;", "&lt;", "&gt;", "&quot;", "&apos;", "&nbsp;"])  # others are characters of a word
_MARKUP = re.compile(rf"(?<!%)</?[a-zA-Z][^<>]{{0,1000}}>|{'|'.join(sorted(_KEPT_ENTITIES))}")
_SPACES = re.compile(r" *[\t\r\n]\s*|(?<=\S)  +(?=\S)")  # of texts in columns, too
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})
_CHARSET = re.compile(r"charset=([^\s;]+)", re.IGNORECASE)
_UTF_8 = ("utf-8", "utf8", "charset")  # the last one is that of templates


def read(path: Path, text: str, languages: tuple[str, str], overwrite: bool) -> Reading:
    """The messages to translate, and what makes the edits from their translations; see `documents.xliff.read`."""
    todo = list[tuple[Message, str, Marked]]()  # the message, the keyword of a translation, and its source
    for message in messages(path, text.split("\n")):
        if message.is_header:
            require_languages(path, message.languages, languages)
            _require_utf_8(path, message)
            continue
        forms = [key for key in message.texts if key.startswith("msgstr")]
        for key in forms:
            is_plural = "msgid_plural" in message.texts and (key != "msgstr[0]" or len(forms) == 1)
            source = _marked(message.texts.get("msgid_plural" if is_plural else "msgid", ""))
            if (overwrite or not message.texts[key]) and bare(source)[0] and not is_choice(source):
                todo.append((message, key, source))

    def write(translations: Sequence[Marked]) -> list[Edit]:
        lines, edits, flagged = _lines(text), list[Edit](), set[int]()
        line_end = "\r\n" if "\r\n" in text else "\n"
        for (message, key, source), translation in zip(todo, translations, strict=True):
            new = raw(with_edges(source, translation))
            first, last = message.lines[key]
            edits.append(Edit(lines[first][0], lines[last][1], f'{key} "{new.translate(_ESCAPED)}"'))
            if message.is_fuzzy or message.line in flagged:
                continue
            flagged.add(message.line)
            if message.flags_line is not None:
                end = lines[message.flags_line][1]
                edits.append(Edit(end, end, ", fuzzy"))
            else:
                start = lines[message.line][0]
                edits.append(Edit(start, start, f"#, fuzzy{line_end}"))
        return edits

    return [source for *_, source in todo], write


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
