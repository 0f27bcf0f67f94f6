"""What kind of file is it, if it is not plain text, and how does one get from it to what mtx reads?

The first bytes decide. Flow: the beginning of a file, which
`text_files` has opened -> `FileKind`, or None for plain text.
"""

import re
from dataclasses import dataclass

from mtx.storage.encodings import wide_encoding

BEGINNING_BYTES = 1 << 13  # in which the parts of an office document and the first element of XML are named

_TABLE = 'save it as "CSV UTF-8" (.csv), which mtx reads as pairs'
_DOCUMENT = "save it as plain text in UTF-8, one sentence a line"
_EXPORT = (
    "export the pairs from your translation tool as tab-separated text (.tsv), or as a spreadsheet and save that as "
    '"CSV UTF-8" (.csv)'
)
_PAIRS = "mtx train reads its pairs: data.train=FILE, or data.valid or data.test"
_PACKED = "unpack it; text may be compressed by gzip"
_PLAIN = "text is plain UTF-8, one sentence a line; it may be compressed by gzip"
_PART = rb"(?=PK\x03\x04).*?PK\x03\x04.{26}"  # of a zip file: up to the name of some part of it
_OPEN_DOCUMENT = _PART + rb"mimetypeapplication/vnd\.oasis\.opendocument\."
# Of XML, up to its first element. The groups are atomic, so that no file makes the search long.
_PROLOG = rb"\s*(?=<[?!a-zA-Z])(?>(?:<!--.*?-->|<\?.*?\?>|<![^>\[]*+(?:\[[^\]]*+\])?+[^>]*+>)\s*)*+"


@dataclass(frozen=True)
class FileKind:
    """A kind of file that is not plain text: its name with an article, and what to do with the file.

    Attributes:
        form: tmx, xliff or po if the file holds pairs, which `data.sources` reads.
    """

    name: str
    help: str
    form: str | None = None


# The first bytes of files that are not plain text; no sentence begins with them. The first that matches counts.
_SIGNATURES = [
    (_PART + rb"xl/", "a spreadsheet (Excel)", _TABLE),
    (_OPEN_DOCUMENT + rb"spreadsheet", "a spreadsheet (OpenDocument)", _TABLE),
    (_PART + rb"word/", "a Word document", _DOCUMENT),
    (_PART + rb"ppt/", "a PowerPoint presentation", _DOCUMENT),
    (_OPEN_DOCUMENT, "a document (OpenDocument)", _DOCUMENT),
    (_PART + rb"mimetypeapplication/epub", "a book (EPUB)", _DOCUMENT),
    (rb"PK(\x03\x04|\x05\x06|\x07\x08)", "a zip archive or an office document", _PACKED),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an office document of the old format",
     f"a spreadsheet: {_TABLE}; a text: {_DOCUMENT}"),
    (rb"\{\\rtf\d", "a text in RTF", _DOCUMENT),
    (rb"%PDF-\d", "a PDF", _DOCUMENT),
    (_PROLOG + rb"<tmx\b", "a translation memory (TMX)", _PAIRS),
    (_PROLOG + rb"<([\w.-]+:)?xliff\b[^>]*SdlXliff", "a bilingual file of Trados (SDLXLIFF)", _PAIRS),
    (_PROLOG + rb"<([\w.-]+:)?xliff\b", "a bilingual file (XLIFF)", _PAIRS),
    (_PROLOG + rb"<(martif|tbx)\b", "a term base (TBX)", _EXPORT),
    (rb"(?i)" + _PROLOG + rb"<html\b", "a web page (HTML)", _DOCUMENT),
    (rb"\s*<\?xml\s", "XML", _DOCUMENT),
    (rb'(?:\s*#[^\n]*\n)*+\s*(msgctxt "[^\n]*\n)?msgid "', "a catalogue of messages (PO)", _PAIRS),
    (rb"SQLite format 3\0", "a database (SQLite), such as a memory of Trados (.sdltm)", _EXPORT),
    (rb"PAR1\x15", "a table (Parquet)", "mtx reads it as pairs if its name ends in .parquet"),
    (rb".{257}ustar(\0|  \0)|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07", "an archive (tar, 7z or rar)", _PACKED),
    (rb"\xfd7zXZ\0|BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)|\x28\xb5\x2f\xfd", "compressed, but not by gzip", _PACKED),
    # a GIF has seven bytes after its name, of which the last is nearly always 0
    (rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a.{0,6}\0|RIFF.{4}WEBPVP8|II[*+]\0|MM\0[*+]", "an image", _PLAIN),
]  # fmt: skip
_FORMS = {  # of the kinds that hold pairs
    "a translation memory (TMX)": "tmx",
    "a bilingual file of Trados (SDLXLIFF)": "xliff",
    "a bilingual file (XLIFF)": "xliff",
    "a catalogue of messages (PO)": "po",
}


def kind_of(beginning: bytes) -> FileKind | None:
    """The kind of a file that begins with these bytes, about BEGINNING_BYTES of them; None for plain text."""
    beginning = beginning[:BEGINNING_BYTES].removeprefix(b"\xef\xbb\xbf")
    if encoding := wide_encoding(beginning):
        beginning = beginning.decode(encoding, "ignore").removeprefix("\ufeff").encode()
    for signature, name, help in _SIGNATURES:
        if re.match(signature, beginning, re.DOTALL):
            return FileKind(name, help, _FORMS.get(name))
    return None
