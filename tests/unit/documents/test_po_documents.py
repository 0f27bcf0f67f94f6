"""Messages are filled in: their placeholders, white space, plurals and flags."""

from pathlib import Path

import pytest

from tests.unit.documents.test_document import translated


@pytest.mark.parametrize(
    "source, translation",
    [
        ("%s has %-5.2f%% of %(name)s %1$d %*d %'d", "%s HAS %-5.2f%% OF %(name)s %1$d %*d %'d"),
        ("%{name} %<n>d ${x} {0} {{value}} %1", "%{name} %<n>d ${x} {0} {{value}} %1"),
        ("a %@ <b>c</b><br> 100% done", "A %@ <b>C</b><br> 100% DONE"),
        ("a {{ b }} { c } #{d} 50%complete &nbsp; %d", "A {{ b }} { c } #{d} 50%COMPLETE &nbsp; %d"),
        ("{n, plural, one {# file} other {# files}}", "{n, plural, one {# file} other {# files}}"),
        ("see https://a.b/c?d=e. (www.a.de)", "SEE https://a.b/c?d=e. (www.a.de)"),
        ("请看https://a.b/c）打开 a. see HTTPS://a.b/F_(x)…", "请看https://a.b/c）打开 A. SEE HTTPS://a.b/F_(x)…"),
        ("mail x.y+z@mail.a-b.org or a@b, @me", "MAIL x.y+z@mail.a-b.org OR A@B, @me"),
        (r"a:\n%s\n\n%s b\n", r"A:\n%s\n\n%s B\n"),
        ("  -h, --help     show &#8220;it&#8221;", "  -h, --help     SHOW “IT”"),
        (r"- a\n  -b C, --d     e\n * f", r"- A\n  -b C, --d     E\n * F"),
        ("100%% of 50 %%d", "100%% OF 50 %%D"),
        (r"  a\n b\n", r"  A\n B\n"),
        (r"\"a\"\tb \\n", r"\"A\"\tB \\n"),
    ],
)
def test_placeholders_and_white_space(source: str, translation: str, tmp_path: Path) -> None:
    text = 'msgid "{}"\nmsgstr "{}"\n'
    result = translated(tmp_path / "a.po", text.format(source, ""))
    letters = any(character.isalpha() for character in translation if character.isupper())
    assert result == ("#, fuzzy\n" * letters) + text.format(source, translation * letters)


def test_a_message_of_only_an_emoji_gets_its_translation(tmp_path: Path) -> None:
    text = 'msgid "❤️"\nmsgstr "{}"\n'
    assert translated(tmp_path / "a.po", text.format("")) == "#, fuzzy\n" + text.format("❤️")


def test_plurals_flags_and_obsolete_messages(tmp_path: Path) -> None:
    text = """#, c-format
#~ msgid "old"
#~ msgstr ""

#, c-format

# a note
msgid "a"
msgstr ""
#, fuzzy, c-format
msgid "b"
msgstr ""
msgid "one"
msgid_plural "%d many"
msgstr[0] ""
msgid "a file"
msgid_plural "files"
msgstr[0] ""
msgstr[1] ""
"""
    filled = text.replace(
        '#, c-format\n\n# a note\nmsgid "a"\nmsgstr ""', '#, c-format, fuzzy\n\n# a note\nmsgid "a"\nmsgstr "A"'
    )
    filled = filled.replace('msgid "b"\nmsgstr ""\nmsgid "one"', 'msgid "b"\nmsgstr "B"\n#, fuzzy\nmsgid "one"')
    filled = filled.replace('msgstr[0] ""', 'msgstr[0] "%d MANY"', 1)
    filled = filled.replace('msgid "a file"', '#, fuzzy\nmsgid "a file"').replace('msgstr[0] ""', 'msgstr[0] "A FILE"')
    assert translated(tmp_path / "a.po", text) == filled.replace('msgstr[1] ""', 'msgstr[1] "FILES"')
