"""Reads catalogues of messages (gettext's PO) as units. Flow: file -> `Unit` -> `bilingual`.

Entries that are fuzzy or obsolete are left out, and the header is no message. Of a message with a plural the singular
goes with the first form and the plural with the last. PO names the target language alone, in its header.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mtx.data.bilingual import UNKNOWN, Unit, Variant, join_lines
from mtx.data.tmx_xliff import MAX_UNIT_BYTES
from mtx.errors import DataError
from mtx.storage.text_files import decoded_lines, open_bytes

_STRINGS = r'(?:"(?:[^"\\]|\\.)*+"\s*+)++'
_TEXT = re.compile(rf"(?:(msgctxt|msgid|msgid_plural|msgstr|msgstr\[[0-9]{{1,2}}\])\s*)?({_STRINGS})")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|(.))")
_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass
class Message:
    """A message of a catalogue.

    Attributes:
        line: that of its first keyword; lines count from 1.
        texts: the text of each keyword: msgid, msgstr[0] and the like.
        lines: the first and the last line of each keyword.
        flags_line: the line of its flags, such as `#, fuzzy`; None without one.
        is_fuzzy: whether its translation is only a proposal.
    """

    line: int = 0
    texts: dict[str, str] = field(default_factory=dict)
    lines: dict[str, tuple[int, int]] = field(default_factory=dict)
    flags_line: int | None = None
    is_fuzzy: bool = False

    @property
    def is_header(self) -> bool:
        """Whether it is the catalogue's header, the message without a source."""
        return self.texts.get("msgid") == "" and "msgctxt" not in self.texts

    @property
    def languages(self) -> tuple[str, str]:
        """The languages of the catalogue by its header; UNKNOWN for one that it does not name."""
        return self.field("X-Source-Language") or UNKNOWN, self.field("Language") or UNKNOWN

    def field(self, name: str) -> str:
        """A field of the header; empty if it has none."""
        match = re.search(rf"^{name}:(.*)$", self.texts.get("msgstr", ""), re.MULTILINE | re.IGNORECASE)
        return match[1].strip() if match else ""


def read_po(path: Path) -> Iterator[Unit]:
    """The messages of a catalogue, one after the other; one without a translation has its source alone.

    Raises:
        DataError: if a line is no PO, or the text is not in UTF-8.
    """
    src_language = tgt_language = UNKNOWN
    with open_bytes(path) as file:
        for message in messages(path, decoded_lines(file, path, "strict")):
            if message.is_header:
                src_language, tgt_language = message.languages
                continue
            texts = message.texts
            forms = [] if message.is_fuzzy else [text for key, text in texts.items() if key.startswith("msgstr")]
            has_one_form = "msgid_plural" in texts and len(forms) == 1  # which is that of any number
            for source, translations in {"msgid": forms[:1], "msgid_plural": forms[-1:]}.items():
                if source in texts and not (has_one_form and source == "msgid"):
                    variants = [Variant(src_language, join_lines(texts[source]))]
                    variants += [Variant(tgt_language, join_lines(text)) for text in translations if text]
                    yield Unit(message.line, variants)


def messages(path: Path, lines: Iterable[str]) -> Iterator[Message]:
    """The messages of a catalogue's lines, its header too, without the obsolete ones; `path` is for messages.

    Raises:
        DataError: if a line is no PO.
    """
    message, following = Message(), Message()
    keyword = ""
    for number, line in enumerate(lines, 1):
        content = line.strip()
        if content.startswith("#,"):
            following.flags_line = number
            following.is_fuzzy |= "fuzzy" in content
        elif content.startswith("#~"):
            following = Message()  # its flags were those of an obsolete message
        elif not content or content.startswith("#"):
            continue
        elif (match := _TEXT.fullmatch(content)) and (match[1] or keyword):
            if match[1]:
                keyword = match[1]
                if keyword in message.texts or (keyword in ("msgctxt", "msgid") and "msgid" in message.texts):
                    yield message
                    message = Message()
                if not message.texts:
                    message, following = following, Message()
                    message.line = number
                message.texts[keyword] = ""
            first, _ = message.lines.get(keyword, (number, number))
            message.lines[keyword] = first, number
            message.texts[keyword] += "".join(map(_unescape, _STRING.findall(match[2])))
            if len(message.texts[keyword]) > MAX_UNIT_BYTES:
                raise DataError(f"{path}:{message.line}: a message has more than {MAX_UNIT_BYTES:,} characters")
        else:
            raise DataError(f"{path}:{number}: is no line of PO, expected a keyword and a text in quotes")
    if message.texts:
        yield message


def _unescape(text: str) -> str:
    """The text of a string, whose escapes stand for characters, or by their numbers for bytes."""
    if "\\" not in text:
        return text
    octets = _ESCAPE.sub(_octet, text.encode().decode("latin-1"))
    return octets.encode("latin-1").decode("utf-8", "replace")


def _octet(match: re.Match[str]) -> str:
    hexadecimal, octal, character = match.groups()
    if character:
        return _CHARACTERS.get(character, character)
    return chr(int(hexadecimal or octal, 16 if hexadecimal else 8) & 0xFF)
