"""Messages are filled in: their placeholders, white space, plurals and flags."""

from pathlib import Path

import pytest

from mtx.data.markup import Marked
from mtx.decoding.translator import Hypothesis
from mtx.documents.document import translate_document
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
        (r"  -q, --quiet\t\tsay less\n  -o out \tsave", r"  -q, --quiet\t\tSAY LESS\n  -o out \tSAVE"),
        ("set '--keep-up' or -k (--jobs=<n>): b -- x-ray -1", "SET '--keep-up' OR -k (--jobs=<n>): B -- X-RAY -1"),
        ("no --dry-run. (--a[=b]) -flat", "NO --dry-run. (--a[=b]) -FLAT"),
        (r"-I bake.\n-So?", r"-I BAKE.\n-SO?"),
        ("baker mix [<options>] [--] <flour>...", "baker mix [<options>] [--] <flour>..."),
        (r"same as -dR\n  use  -f\n  or:  %s", r"SAME AS -dR\n  use  -f\n  OR:  %s"),
        (r"  mix a b   Mix them.\n  none, off\tStop\n a   b", r"  mix a b   MIX THEM.\n  none, off\tSTOP\n A   B"),
        ("   two words   ", "   TWO WORDS   "),
        ("Red.|nIt is <1> one", "RED.|nIT IS <1> ONE"),
        ("100%% of 50 %%d", "100%% OF 50 %%D"),
        (r"  a\n b\n", r"  A\n B\n"),
        (r"\"a\"\tb \\n", r"\"A\"\tB \\n"),
        ("%1$s a %2$s, $b c ${d}-${e}, $f < 2$", "%1$s A %2$s, $b C ${d}-${e}, $f < 2$"),
        ("a <code>b()</code> &lt;i&gt; %<PRIu64>", "A <code>b()</code> &lt;i&gt; %<PRIu64>"),
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


def test_forms_stay_in_their_order(tmp_path: Path) -> None:
    text = 'msgid "a file"\nmsgid_plural "%d files"\nmsgstr[2] "{}"\nmsgstr[0] "{}"\nmsgstr[1] "{}"\n'
    result = translated(tmp_path / "a.po", text.format("", "", ""))
    assert result == "#, fuzzy\n" + text.format("%d FILES", "A FILE", "%d FILES")
    text = 'msgid "a file"\nmsgid_plural "%d files"\nmsgstr[0] "{}"\nmsgstr "again"\n'
    assert translated(tmp_path / "a.po", text.format("")) == "#, fuzzy\n" + text.format("A FILE")


def test_a_message_of_only_code_keeps_its_translation(tmp_path: Path) -> None:
    text = '#, markdown-text\nmsgid "![](🎉.png)"\nmsgstr "a"\n'
    assert translated(tmp_path / "a.po", text, overwrite=True) == text


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


RST = "#: ../../a.rst:3"
MARKDOWN = "#, markdown-text"
GODOT = "#: doc/classes/Node.xml"


@pytest.mark.parametrize(
    "comment, source, translation",
    [
        ("", "a :func:`b` :class:`c d <e.F>` :meth:`g <H.__g__>` ``i`` `j`",
         "A :func:`b` :class:`C D <e.F>` :meth:`g <H.__g__>` ``i`` `j`"),
        ("", "`a b <https://c.d>`_ |e| **f** *g* [1]_ [#h]_::", "`A B <https://c.d>`_ |e| **F** *G* [1]_ [#h]_::"),
        ("", "a ``:b:`c d <e>``` ```f g`_`` `h's i`_", "A ``:b:`c d <e>``` ```f g`_`` `h's i`_"),
        ("", r":ref:`a <a>` :term:`b`\\ s {doc}`c d <e>` \\*f", r":ref:`A <a>` :term:`b`\\ S {doc}`C D <e>` \\*f"),
        ("", "`a' and ``b'' * c **d 2**e", "`A' AND ``B'' * C **D 2**E"),
        ("", "[b]a[/b] [url=c]d[/url] [code]e f[/code] [param g] [operator H.operator []]",
         "[b]A[/b] [url=c]D[/url] [code]e f[/code] [param g] [operator H.operator []]"),
        ("", "[center][wave a=1][b]c[/b] d[/wave][/center] [lb]e[rb] [hint=f]g[/hint] [sic]",
         "[center][wave a=1][b]C[/b] D[/wave][/center] [lb]E[rb] [hint=f]G[/hint] [SIC]"),
        ("", ":menuselection:`&a --> b c` :abbr:`d (e f)`", ":menuselection:`&A --> B C` :abbr:`d (E F)`"),
        ("", "[*]_ a _`b c`", "[*]_ A _`b c`"),
        ("", "**a** (:class:`b`) -- c **d** (e)", "**a** (:class:`b`) -- C **D** (E)"),
        (RST, r"a b_c\\_ d\\_e.f \\*g\\* \\`h i\\`", r"A b_c\\_ d\\_e.f \\*G\\* \\`H I\\`"),
        (RST, r".. image:: a/b.png\n   :alt: c", r".. image:: a/b.png\n   :alt: C"),
        (RST, ">>> a(b)\\nc", ">>> a(b)\\nC"),
        ("", "[a b](https://c.d) ![e](f.png) [g](h)", "[A B](https://c.d) ![e](f.png) [G](H)"),
        ("", "see a_ in x.c_", "SEE A_ IN X.C_"),
        (RST, "see a_ and b-c__", "SEE a_ AND b-c__"),
        ("#. Sphinx", "see a_", "SEE a_"),
        (GODOT, "a [Node2D] [int]", "A [Node2D] [int]"),
        (MARKDOWN, "# a\\n\\n- b `c`\\n- [d](#e)\\n", "# A\\n\\n- B `c`\\n- [D](#e)\\n"),
        ("#: a/b.md:7", "a _b_ {c}`d`", "A _B_ {c}`d`"),
        ("#: a.md:7\n#, rst-text", "a _b_", "A _B_"),
        *[(f"#: a.{suffix}", "bake --heat or -f now", "BAKE --heat OR -f NOW") for suffix in ("rst", "txt", "md", "c")],
    ],
)  # fmt: skip
def test_markup_of_messages(comment: str, source: str, translation: str, tmp_path: Path) -> None:
    text = f'{comment}\nmsgid "{{}}"\nmsgstr "{{}}"\n'
    result = translated(tmp_path / "a.po", text.format(source, ""))
    assert result.replace("#, fuzzy\n", "").replace(", fuzzy", "") == text.format(source, translation)


@pytest.mark.parametrize(
    "kind", ["Fenced code block (bash)", "delimited block -", "Yaml Front Matter Hash Value: layout"]
)
def test_a_block_of_code_is_no_text(kind: str, tmp_path: Path) -> None:
    text = f'#. type: {kind}\n#, no-wrap\nmsgid "# a comment\\n"\nmsgstr ""\n'
    assert translated(tmp_path / "a.po", text) == text


@pytest.mark.parametrize(
    "message",
    ["F j, Y g:i a", "N j, Y, P", "yyyy-MM-dd HH:mm", "H:i", "^cakes/(?P<name>[-\\w]+)/$", "^[yYjJ]",
     "<Primary><Shift>S", "<Control>F10", "'bake cake' [--heat | -h] [<flour>]", "images/cake.png",
     "cake://a.png", "#include <cake.h>", "MENU_START", "DIALOG_INTRO_01", "inventory.sword.name"],
)  # fmt: skip
def test_messages_of_code_are_left(message: str, tmp_path: Path) -> None:
    text = f'msgid "{message}"\nmsgstr ""\n\nmsgctxt "a.xhp\\nbas_id1\\nhelp.text"\nmsgid "Print it"\nmsgstr ""\n'
    assert translated(tmp_path / "a.po", text) == text


@pytest.mark.parametrize(
    "message", ["see", "I see", "Go_on", "a.b", "^1Red team^7 wins", "<B>Yes", "A, b", "Add all", "'bake' a [b]"]
)
def test_short_messages_are_translated(message: str, tmp_path: Path) -> None:
    assert message not in translated(tmp_path / "a.po", f'msgid "{message}"\nmsgstr ""\n').split("msgstr")[1]


def test_the_header_names_the_markup(tmp_path: Path) -> None:
    header = 'msgid ""\nmsgstr "Project-Id-Version: {}\\n"\n\n'
    message = 'msgid "a [Node] b_"\nmsgstr "{}"\n'
    for name, translation in [
        ("Sphinx", "A [NODE] b_"),
        ("Godot Engine class reference", "A [Node] B_"),
        ("x", "A [NODE] B_"),
    ]:
        text = header.format(name) + message
        assert f'"{translation}"' in translated(tmp_path / "a.po", text.format(""))


def test_marks_next_to_letters_are_separated_in_rst(tmp_path: Path) -> None:
    (path := tmp_path / "a.po").write_text(f'{RST}\nmsgid "a ``b`` **c** d::"\nmsgstr ""\n')

    def translate(segments: list[Marked]) -> list[Hypothesis]:
        texts = [[part.replace(" ", "") if isinstance(part, str) else part for part in segment] for segment in segments]
        return [Hypothesis(text, 0.0, []) for text in texts]

    result = translate_document(path, "po", ("en", "de"), False, translate).decode()
    assert r'msgstr "a\\ ``b``\\ **c**\\ d::"' in result


def test_credits_of_translators_are_left_to_them(tmp_path: Path) -> None:
    text = 'msgctxt "NAME OF TRANSLATORS"\nmsgid "Names"\nmsgstr ""\n\nmsgid "translator-credits"\nmsgstr ""\n'
    assert translated(tmp_path / "a.po", text) == text


def test_names_with_underscores_have_no_accelerator(tmp_path: Path) -> None:
    for source in (
        "The *_subtype* of it",
        "The lamp takes the arguments that are named there, or those passed into the _lamp of the cat.",
        "The lamp is described by its name, version, maintainer, description, &c., and it is sent to a cat.",
    ):
        result = translated(tmp_path / "a.po", f'msgid "{source}"\nmsgstr ""\n')
        assert result.endswith(f'msgstr "{source.upper()}"\n'), result


def test_a_template_gets_advice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.pot"
    translated(path, 'msgid ""\nmsgstr "Content-Type: text/plain; charset=CHARSET\\n"\n\nmsgid "a"\nmsgstr ""\n')
    assert f"msginit -l de -i {path}" in caplog.text


@pytest.mark.parametrize(
    "header", ['msgid ""\n', 'msgid ""\nmsgstr[0] "x"\n', '#, fuzzy\nmsgid ""\n', 'msgid ""\nmsgid_plural ""\n', ""]
)
@pytest.mark.parametrize("damaged", ['msgid "b"\n', 'msgid "b"\nmsgid_plural "c"\n', 'msgctxt "d"\nmsgid "b"\n', ""])
def test_what_lacks_its_msgstr_stays_and_is_counted(
    header: str, damaged: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    message = 'msgid "a"\nmsgstr "{}"\n'
    result = translated(tmp_path / "a.po", f"{header}\n{damaged}\n{message.format('')}")
    assert result == f"{header}\n{damaged}\n#, fuzzy\n{message.format('A')}"
    assert caplog.messages[-1].endswith("1 left (1 incomplete message)" if damaged else "1 segment translated")


@pytest.mark.parametrize("comment", ["#, c-format", "#, fuzzy", "# mtx: quality 3, redo", "# words", "#: a.c:1"])
@pytest.mark.parametrize("keys", [["msgid", "msgstr"], ["msgid", "msgid_plural", "msgstr[0]", "msgstr[1]"]])
def test_a_comment_inside_a_message_stays(comment: str, keys: list[str], tmp_path: Path) -> None:
    for at in range(1, len(keys)):
        lines = [f'{key} "{"a" * key.startswith("msgid")}"' for key in keys]
        filled = [f'{key} "{"a" if key.startswith("msgid") else "A"}"' for key in keys]
        following = ['{}msgid "b"', 'msgstr "{}"', ""]
        text = "\n".join([*lines[:at], comment, *lines[at:], *following])
        result = "\n".join([*filled[:at], comment, *filled[at:], *following])
        fuzzy = "" if comment == "#, fuzzy" else "#, fuzzy\n"
        assert translated(tmp_path / "a.po", text.format("", "")) == fuzzy + result.format("#, fuzzy\n", "B")
