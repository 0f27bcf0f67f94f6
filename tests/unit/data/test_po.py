"""Catalogues of messages: every kind of entry; a line that is none is refused by its number."""

from pathlib import Path

import pytest

from mtx.data.bilingual import Unit, Variant
from mtx.data.translation_memories import read_po
from mtx.errors import DataError

CATALOGUE = r"""# Translations.
#, fuzzy
msgid ""
msgstr ""
"Language: de\n"
"X-Source-Language: en_GB\n"

#: a.c:1
#, c-format
msgid "Open \"%s\"\n"
msgstr "\"%s\" \303\266ffnen \x41\\n"

#, c-format, fuzzy
#| msgid "old"
msgid "Close"
msgstr "Öffnen"
msgctxt "menu"
msgid "%d file"
msgid_plural ""
"%d "
"files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"
msgid "Empty"
msgstr ""

#~ msgid "gone"
#~ msgstr "weg"
"""


def units(directory: Path, text: str | bytes) -> list[Unit]:
    (directory / "a.po").write_bytes(text.encode() if isinstance(text, str) else text)
    return list(read_po(directory / "a.po"))


def test_every_kind_of_entry(tmp_path: Path) -> None:
    en, de = "en_GB", "de"
    assert units(tmp_path, CATALOGUE) == [
        Unit(10, [Variant(en, 'Open "%s"'), Variant(de, '"%s" öffnen A\\n')]),
        Unit(15, [Variant(en, "Close")]),
        Unit(17, [Variant(en, "%d file"), Variant(de, "%d Datei")]),
        Unit(17, [Variant(en, "%d files"), Variant(de, "%d Dateien")]),
        Unit(24, [Variant(en, "Empty")]),
    ]
    assert units(tmp_path, CATALOGUE.replace("\n", "\r\n")) == units(tmp_path, CATALOGUE)


def test_what_the_grammar_allows(tmp_path: Path) -> None:
    text = r"""#, fuzzy
#~ msgid "gone"
#~ msgstr "weg"
msgid "a" " \"b\""

# a comment
msgstr "c"

#, fuzzy

msgid
"d"
msgstr
"e"
msgid "one file"
msgid_plural "%d files"
msgstr[0] "%d 个文件"
"""
    assert units(tmp_path, text) == [
        Unit(4, [Variant("", 'a "b"'), Variant("", "c")]),
        Unit(11, [Variant("", "d")]),
        Unit(15, [Variant("", "%d files"), Variant("", "%d 个文件")]),
    ]


def test_the_number_of_a_form_decides_what_it_translates(tmp_path: Path) -> None:
    singular, plural = 'msgstr[0] "Datei"\n', 'msgstr[1] "Dateien"\n'
    text = 'msgid "file"\nmsgid_plural "files"\n'
    pairs = [
        Unit(1, [Variant("", "file"), Variant("", "Datei")]),
        Unit(1, [Variant("", "files"), Variant("", "Dateien")]),
    ]
    assert units(tmp_path, text + singular + plural) == pairs
    assert units(tmp_path, text + plural + singular) == pairs
    only = [Unit(1, [Variant("", "files"), Variant("", "Datei")])]
    assert units(tmp_path, text + singular) == only
    sources = [Unit(2, [Variant("", "file")]), Unit(2, [Variant("", "files")])]
    assert units(tmp_path, f"#, fuzzy\n{text}{singular}") == sources


@pytest.mark.parametrize(
    "line",
    ['msgid "a', "msgid a", "text", '"alone"', 'msgstr[a] "x"', 'msgfoo "x"', 'msgid "a" "b" c'],
)
def test_a_line_that_is_no_po(line: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.po:3: invalid PO syntax"):
        units(tmp_path, f"# first\n\n{line}\n")


def test_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a.po:2: not UTF-8, perhaps ") as error:
        units(tmp_path, 'msgid "and"\nmsgstr "schöne Grüße für alle Hörer"\n'.encode("latin-1"))
    assert "iconv -f WINDOWS-1252 -t UTF-8" in str(error.value.help)
