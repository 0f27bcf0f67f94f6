"""In which encoding is text that is not UTF-8? Flow: its first bytes, or its invalid lines -> a name that iconv knows.

UTF-16 and UTF-32 are certain, from a byte order mark or from the NULs that they have beside every space and every line
end. For all others `likely_encoding` can only give the most probable one.
"""

import re
import unicodedata

_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_WIDE = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
_MANY_CONTROLS = 0.3  # share of the bytes; in text in UTF-16 about every second byte is a control character
_LONGEST_CUT = 3  # bytes of a character that is cut at the end
_STRANGE = 0.01  # share of characters that no text has, above which it is another encoding
_DECLARED = re.compile(rb"""(?:\xef\xbb\xbf)?\s*<\?xml[^>]*?\sencoding\s*=\s*["']([\w.:-]+)""")
# The encodings in which parallel text is found. Where several are equally probable, the first counts.
_NARROW = "cp1252 cp1251 cp932 gb18030 big5 cp949 euc_jp cp1250 koi8_r cp1253 cp1254 cp1256 cp1255 cp1257 cp874"


def wide_encoding(beginning: bytes) -> str | None:
    """UTF-16 or UTF-32 if a text that begins with these bytes is in one of them, with or without a byte order mark."""
    for mark, name in _MARKS.items():
        if beginning.startswith(mark) and _is_ordinary(beginning, name):
            return name
    few_controls = sum(byte < 0x20 for byte in beginning) < _MANY_CONTROLS * len(beginning)
    if beginning.count(0) < 2 or (few_controls and _decoded(beginning, "utf-8") is not None):
        return None
    return next((name for name in _WIDE if _is_ordinary(beginning, name) and _has_spaces(beginning, name)), None)


def declared_encoding(beginning: bytes) -> str | None:
    """The encoding that XML in single bytes declares, in small letters; UTF-8 if it declares one of two bytes."""
    declared = _DECLARED.match(beginning)
    name = declared[1].decode().lower() if declared else None
    return "utf-8" if name and name.startswith(("utf-16", "utf16", "ucs-2")) else name


def _decoded(beginning: bytes, name: str) -> str | None:
    """The text in an encoding, without a character that is cut at the end; None if it is not in this encoding."""
    try:
        return beginning.decode(name)
    except UnicodeDecodeError as error:
        return beginning[: error.start].decode(name) if error.start >= len(beginning) - _LONGEST_CUT else None


def _is_ordinary(beginning: bytes, name: str) -> bool:
    """Whether nearly all characters in an encoding are such as text has."""
    text = _decoded(beginning, name)
    if not text:
        return False
    num_strange = sum(unicodedata.category(c) in ("Cc", "Cn", "Co") and c not in "\t\r\n\f" for c in text)
    return num_strange <= _STRANGE * len(text)


def _has_spaces(beginning: bytes, name: str) -> bool:
    """Whether most NULs belong to spaces and other ASCII, few to U+4E00 and the like, and line feeds are line feeds."""
    text = beginning.decode(name, "ignore")
    has_line_feeds = "\n" in text or b"\n" not in beginning
    is_ascii = 3 * sum(c < "\x80" for c in text) > 2 * beginning.count(0)
    return has_line_feeds and (is_ascii or name.startswith("UTF-32"))  # there all characters have NULs


def likely_encoding(sample: bytes) -> str | None:
    """The most probable encoding of some lines that are not UTF-8, or None if none of the usual ones fits."""
    from charset_normalizer import from_bytes

    names = _NARROW.split()
    candidates = [
        (match.chaos, -match.coherence, names.index(name))
        for match in from_bytes(sample, cp_isolation=names)
        for name in match.could_be_from_charset  # they give the same text
        if name in names
    ]
    return names[min(candidates)[2]].replace("cp125", "windows-125").replace("_", "-").upper() if candidates else None
