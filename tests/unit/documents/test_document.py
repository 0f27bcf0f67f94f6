"""Documents come out with translated text, and are the same otherwise; other programs read them."""

import gzip
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mtx.commands.translate import kind_of_document
from mtx.data.markup import Marked
from mtx.decoding.translator import Hypothesis
from mtx.documents.document import translate_document
from mtx.errors import DataError, UsageError
from tests.unit.data.test_po import CATALOGUE
from tests.unit.data.test_tmx import MEMORY
from tests.unit.data.test_xliff import VERSION_1, VERSION_2

TMX = '<tmx version="1.4"><header srclang="en"/><body><tu>{}</tu></body></tmx>'
XLIFF = '<xliff version="2.0" srcLang="en" trgLang="de"><file id="f">{}</file></xliff>'
STATE = ' state="needs-review-translation"'


def shout(segments: list[Marked]) -> list[Hypothesis]:
    """The translation of these tests: capital letters, single spaces but at the ends. Tags stay where they are."""
    return [Hypothesis(_shouted(segment), 0.0, []) for segment in segments]


def _shouted(segment: Marked) -> Marked:
    whole = "".join(part if isinstance(part, str) else "\ue000" for part in segment)
    before, after = whole[: len(whole) - len(whole.lstrip())], whole[len(whole.rstrip()) :]
    first, *texts = (before + re.sub(r"\s+", " ", whole).strip().upper() + after).split("\ue000")
    tags = (part for part in segment if not isinstance(part, str))
    return [first, *(part for pair in zip(tags, texts, strict=True) for part in pair)]


def translated(
    path: Path, text: str | bytes, languages: tuple[str, str] = ("en", "de"), overwrite: bool = False
) -> str:
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(data)
    kind = kind_of_document(path)
    assert kind is not None
    return translate_document(path, kind, languages, overwrite, shout).decode()


def without(text: str, *names: str) -> str:
    """The XML without the elements of these names, in one spelling; an independent parser reads it."""
    root = ElementTree.fromstring(text.encode())
    for parent in root.iter():
        parent.attrib.pop("target-language", None)
        for child in [child for child in parent if child.tag.rpartition("}")[2] in names]:
            parent.remove(child)
        for element in parent:
            element.tail = None
    return ElementTree.canonicalize(ElementTree.tostring(root), strip_text=True)


def test_xliff_1(tmp_path: Path) -> None:
    text = VERSION_1.replace('source-language="fr"', 'source-language="en"')
    result = translated(tmp_path / "a.xlf", text)
    assert without(result, "target") == without(text, "target")
    assert f"<source>New</source><target{STATE}>NEW</target>" in result
    assert f"<source>None</source><target{STATE}>NONE</target><note>" in result
    assert "Ein <g" in result and "Jetzt" in result and "<target>dog</target>" in result, "translations are kept"
    again = translated(tmp_path / "a.xlf", result)
    assert again == result, "there is nothing left to do"


def test_xliff_1_segments(tmp_path: Path) -> None:
    text = VERSION_1.replace('Ein <g id="1">Hund</g>.', "").replace('source-language="fr"', 'source-language="en"')
    result = translated(tmp_path / "a.xlf", text)
    mrk = '<mrk mtype="seg" mid="{}">{}</mrk>'
    segments = mrk.format(1, 'A <g id="1">DOG</g>.'), mrk.format(2, "Eine Katze.")
    assert f"<target{STATE}>{' '.join(segments)}</target>" in result
    all_new = translated(tmp_path / "a.xlf", text, overwrite=True)
    assert 'mid="2">A <mrk mtype="x">CAT</mrk>.</mrk>' in all_new
    assert (
        f"""<target{STATE}>PRESS <ph id="1">{{0}}<sub>no</sub></ph><bpt id="2">b</bpt>OK<ept id="2">b</ept>"""
        in all_new
    )


def test_xliff_2(tmp_path: Path) -> None:
    result = translated(tmp_path / "a.xlf", VERSION_2)
    assert without(result, "target") == without(VERSION_2.replace('"initial"', '"translated"'), "target")
    assert (
        '</source><target>A<ph id="2" subType="fmt:lb"/>C<cp hex="0001"/><sc id="3"/>AT.</target></segment>' in result
    )
    text = VERSION_2.replace("<", "<x:").replace("<x:/", "</x:").replace("x:m:", "m:").replace("xmlns=", "xmlns:x=")
    result = translated(tmp_path / "a.xlf", text.replace(' trgLang="de"', ""))
    assert "<x:target>A<x:ph" in result and ' trgLang="de">' in result


def test_what_says_so_is_not_translated(tmp_path: Path) -> None:
    text = VERSION_1.replace('<trans-unit id="3">', '<trans-unit id="3" translate="no">').replace('"fr"', '"en"')
    assert "NONE" not in translated(tmp_path / "a.xlf", text)
    text = text.replace('<file original="a"', '<file translate="no" original="a"')
    assert translated(tmp_path / "a.xlf", text) == text


def test_tmx(tmp_path: Path) -> None:
    result = translated(tmp_path / "m.tmx", MEMORY)
    tuv = '<tuv xml:lang="de-DE"><seg>ONE<ph type="lb">\\n</ph>TWO<it pos="end">x</it><ut>y</ut></seg></tuv>'
    assert result == MEMORY.replace('<tuv lang="FR"><seg/></tuv>', f'<tuv lang="FR"><seg/></tuv>\n      {tuv}')
    spaced = '<tu><tuv xml:lang="en"><seg> a </seg></tuv>{}</tu></body>'
    text = MEMORY.replace("</body>", spaced.format(""))
    assert spaced.format('<tuv xml:lang="de-DE"><seg> A </seg></tuv>') in translated(tmp_path / "m.tmx", text)
    french = translated(tmp_path / "m.tmx", MEMORY, ("en", "fr"))
    assert '<tuv lang="FR"><seg>ONE' in french and french.count('xml:lang="FR"') == 1
    overwritten = translated(tmp_path / "m.tmx", MEMORY, overwrite=True)
    assert "großer" in result and "großer" not in overwritten and overwritten.count("<tuv") == result.count("<tuv")


def test_a_new_variant_has_the_code_of_the_nearest_region_of_the_file(tmp_path: Path) -> None:
    other = '<tu><tuv xml:lang="en"><seg>c</seg></tuv>{}</tu></body>'
    text = TMX.format('<tuv xml:lang="en"><seg>a</seg></tuv>').replace(
        "</body>",
        other.format("".join(f'<tuv xml:lang="{code}"><seg>b</seg></tuv>' for code in ("fr", "de-AT", "de-DE"))),
    )
    assert '<tuv xml:lang="de-AT"><seg>A</seg></tuv>' in translated(tmp_path / "a.tmx", text, ("en", "de-AT"))
    assert '<tuv xml:lang="de-DE"><seg>A</seg></tuv>' in translated(tmp_path / "a.tmx", text, ("en", "de-DE"))


def test_a_file_of_keys_in_one_language_gets_advice_that_works(tmp_path: Path) -> None:
    text = (
        '<xliff version="1.2"><file source-language="en" target-language="en"><trans-unit resname="cart.title">'
        "<source>cart.title</source><target>Your cart</target></trans-unit></file></xliff>"
    )
    with pytest.raises(UsageError, match="is en to en, the model translates en to de") as error:
        translated(tmp_path / "a.xlf", text)
    assert "replace them by their targets first, and set its target language to de" in str(error.value.help)
    text = text.replace("<source>cart.title", "<source>Your cart").replace(
        'target-language="en"', 'target-language="de"'
    )
    assert "YOUR CART</target>" in translated(tmp_path / "a.xlf", text)


def test_a_memory_of_only_an_emoji_gets_its_translation(tmp_path: Path) -> None:
    damaged = TMX.format('<tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="DE"></tuv>')
    assert translated(tmp_path / "damaged.tmx", damaged) == damaged
    assert "<seg>A</seg>" in translated(tmp_path / "other.tmx", damaged.replace("DE", "FR"))
    text = TMX.format('<tuv xml:lang="en"><seg>👍</seg></tuv>')
    assert '<tuv xml:lang="de"><seg>👍</seg></tuv></tu>' in translated(tmp_path / "a.tmx", text)


def test_a_variant_with_text_serves_first(tmp_path: Path) -> None:
    unit = '<tu><tuv xml:lang="en-GB"><seg/></tuv><tuv xml:lang="en-US"><seg>a</seg></tuv>{}</tu></body>'
    tuvs = '<tuv xml:lang="de"><seg x="1"{}</tuv>'
    result = translated(tmp_path / "m.tmx", MEMORY.replace("</body>", unit.format(tuvs.format("/>"))))
    assert unit.format(tuvs.format(">A</seg>")) in result
    unit = unit.replace("en-GB", "en")
    result = translated(tmp_path / "m.tmx", MEMORY.replace("</body>", unit.format(tuvs.format("/>"))))
    assert unit.format(tuvs.format(">A</seg>")) in result, "as in training"
    text = MEMORY.replace("</body>", unit.format(tuvs.format("/>") + tuvs.format(">b</seg>")))
    assert unit.format(tuvs.format("/>") + tuvs.format(">b</seg>")) in translated(tmp_path / "m.tmx", text)


def test_po(tmp_path: Path) -> None:
    result = translated(tmp_path / "a.po", CATALOGUE, ("en", "de"))
    filled = CATALOGUE.replace('msgid "Empty"\nmsgstr ""', '#, fuzzy\nmsgid "Empty"\nmsgstr "EMPTY"')
    assert result == filled.replace('msgstr "Öffnen"', 'msgstr "CLOSE"')  # fuzzy: no translation, and stays so
    text = CATALOGUE.replace(r'msgstr "\"%s\" \303\266ffnen \x41\\n"', 'msgstr ""\n""').replace("\n", "\r\n")
    result = translated(tmp_path / "a.po", text)
    assert '#, c-format, fuzzy\r\nmsgid "Open \\"%s\\"\\n"\r\nmsgstr "OPEN \\"%s\\"\\n"\r\n' in result
    lines = CATALOGUE.replace('msgid "Empty"', 'msgid "One\\n"\n"two\\n"')
    assert 'msgstr "ONE\\nTWO\\n"' in translated(tmp_path / "a.po", lines)
    plural = CATALOGUE.replace('"%d Datei"', '""').replace('"%d Dateien"', '""')
    assert 'msgstr[0] "%d FILE"\nmsgstr[1] "%d FILES"\n' in translated(tmp_path / "a.po", plural)


PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>a dog</title><style>p > a { color: red }</style>
<script>if (a < b) { c = "<p>no</p>" }</script></head>
<body title='a "body"'><!-- a comment --><h1>two <em>dogs</em></h1>
<p>
  A <b class="x > y">red</b> dog &amp; a cat<br/>run. <img src="a.png" alt="a cat"> <code>a &lt; b</code>
</p><p translate="no">no</p><ul><li>one<li>two</ul><pre>a  dog</pre> 12 <hr> end
</body></html>
"""


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags, self.texts = list[str](), list[str]()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag + "".join(f" {k}={v}" for k, v in attributes if k not in ("alt", "title")))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html(tmp_path: Path) -> None:
    result = translated(tmp_path / "p.html", PAGE)
    before, after = _Texts(), _Texts()
    before.feed(PAGE)
    after.feed(result)
    assert after.tags == before.tags
    kept = ("if (a < b)", "p > a", "no", "a < b", "a  dog")
    expected = [t if t.strip().startswith(kept) else t.upper() for t in before.texts]
    assert [" ".join(t.split()) for t in after.texts] == [" ".join(t.split()) for t in expected]
    assert '<img src="a.png" alt="A CAT">' in result and "<body title='A &quot;BODY&quot;'>" in result
    assert 'A <b class="x > y">RED</b> DOG &amp; A CAT<br/>RUN.' in result and "<!-- a comment -->" in result


MARKDOWN = """---
title: a dog
---
# Two *dogs* play #

A man in a **red shirt**
reads [a book](x.html "title") and `code`.
He sees <b>it</b> \\*now\\* https://example.com/a_b_c now[^1].

- one
- [ ] two _three_
  more
1. four

> five

```
a dog
```

| six | `x` |
|:--|---|
| seven | 12 |

    code

[ref]: http://x
<div>
not text in snake_case

snake_case_word
"""


def test_markdown(tmp_path: Path) -> None:
    result = translated(tmp_path / "p.md", MARKDOWN)
    assert result.split("\n") == [
        "---", "title: a dog", "---", "# TWO *DOGS* PLAY #", "",
        'A MAN IN A **RED SHIRT** READS [A BOOK](x.html "TITLE") AND `code`. '
        "HE SEES <b>IT</b> \\*NOW\\* https://example.com/a_b_c NOW[^1].", "",
        "- ONE", "- [ ] TWO _THREE_ MORE", "1. FOUR", "", "> FIVE", "", "```", "a dog", "```", "",
        "| SIX | `x` |", "|:--|---|", "| SEVEN | 12 |", "", "    code", "", "[ref]: http://x", "<div>",
        "NOT TEXT IN SNAKE_CASE", "", "SNAKE_CASE_WORD", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("UTF-8", "UTF-16").encode("utf-16"),
        lambda text: text.replace("UTF-8", "ISO-8859-1").encode("latin-1"),
        lambda text: text.replace("\n", "\r\n").encode(),
    ],
    ids=["BOM", "UTF-16", "Latin 1", "CRLF"],
)
def test_encodings_and_line_ends_stay(encode: Callable[[str], bytes], tmp_path: Path) -> None:
    path, text = tmp_path / "m.tmx", '<?xml version="1.0" encoding="UTF-8"?>\n<tmx><body><tu>\n{}</tu></body></tmx>\n'
    unit = '<tuv xml:lang="en"><seg>{}</seg></tuv>\n'
    path.write_bytes(encode(text.format(unit.format("café"))))
    kind = kind_of_document(path)
    result = translate_document(path, str(kind), ("en", "de"), False, shout)
    tuv = '<tuv xml:lang="de"><seg>CAFÉ</seg></tuv>'
    assert result == encode(text.format(unit.format("café").replace("</tuv>\n", f"</tuv>\n{tuv}\n")))


@pytest.mark.parametrize(
    "declared, codec, text",
    [
        ("iso-8859-1", "cp1252", "öffnen … 字"),
        ("windows-1251", "cp1251", "дом ж"),
        ("iso-8859-1", "utf-8", "öffnen"),  # a page that is UTF-8 in truth
    ],
)
def test_a_page_stays_in_the_encoding_that_it_declares(declared: str, codec: str, text: str, tmp_path: Path) -> None:
    def page(text: str) -> bytes:
        html = f'<meta http-equiv="Content-Type" content="text/html; charset={declared}"><p>{text}</p>'
        return html.encode(codec, "xmlcharrefreplace")

    (path := tmp_path / "p.html").write_bytes(page(text))
    assert translate_document(path, "html", ("en", "de"), False, shout) == page(text.upper())


def test_subtitles_in_another_encoding_get_the_command_that_converts_them(tmp_path: Path) -> None:
    lines = ["Hol voltál egész nap?", "Nem tudom, talán később.", "Őrült vagy."]
    text = "".join(f"{at}\n00:00:0{at},000 --> 00:00:0{at},900\n{line}\n\n" for at, line in enumerate(lines, 1))
    (path := tmp_path / "a.srt").write_bytes(text.encode("cp1250"))
    with pytest.raises(DataError, match="a.srt:3: not UTF-8, perhaps WINDOWS-1250") as error:
        translate_document(path, "subtitles", ("hu", "de"), False, shout)
    assert error.value.help == f"iconv -f WINDOWS-1250 -t UTF-8 {path} > NEW"


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a.xlf: is en to de-AT, the model translates fr to it"):
        translated(tmp_path / "a.xlf", VERSION_1, ("fr", "it"))
    with pytest.raises(UsageError, match="a.po: is en_GB to de, the model translates en to fr"):
        translated(tmp_path / "a.po", CATALOGUE, ("en", "fr"))
    with pytest.raises(DataError, match=r"a.xlf:\d+: damaged XML"):
        translated(tmp_path / "a.xlf", VERSION_1[:-100])
    with pytest.raises(DataError, match="p.html:2: not UTF-8, perhaps WINDOWS-1252"):
        translated(tmp_path / "p.html", ("<p>and</p>\n<p>schöne Grüße für alle</p>").encode("latin-1"))
    (tmp_path / "p.html").write_bytes(gzip.compress(b"<p>a dog</p>"))
    with pytest.raises(UsageError, match="p.html: compressed documents"):
        translate_document(tmp_path / "p.html", "html", ("en", "de"), False, shout)
    with pytest.raises(DataError, match=r"a.xlf: not XLIFF: its first element is not xliff"):
        translated(tmp_path / "a.xlf", f"<a>{VERSION_2}</a>")
    with pytest.raises(DataError, match=r"a.tmx: not TMX: its first element is not tmx"):
        translated(tmp_path / "a.tmx", "<a><tmx/></a>")
    with pytest.raises(DataError, match=r"a.po: its header has charset=ISO-8859-1"):
        header = r'"Content-Type: text/plain; charset=ISO-8859-1\n"'
        translated(tmp_path / "a.po", CATALOGUE.replace('"Language: de\\n"', f"{header}\nä").encode("latin-1"))
    with pytest.raises(DataError, match=r"a.po: its header has charset=UT\ufffdF-8"):
        translated(tmp_path / "a.po", b'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UT\x80F-8\\n"\n')
    with pytest.raises(DataError, match=r"a.tmx: cannot write its encoding back unchanged \(utf-7\)"):
        translated(tmp_path / "a.tmx", b"<?xml version='1.0' encoding='utf-7'?><tmx>+AGE-</tmx>")


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [("a.json", "a", "PO or XLIFF"), ("a.YML", "a: b", "PO or XLIFF"), ("a.rst", "a", "pandoc"), ("a.ass", "a", "SRT"),
     ("a.ipynb", '{\n "cells": [', "jupytext"), ("a.csv", "a,b", "csvcut"),
     ("a.yml.erb", "a: b", "PO or XLIFF"), ("a.txt", '[\n{"a": "b"}]', "PO or XLIFF")],
)  # fmt: skip
def test_a_file_that_is_no_lines_is_refused_with_what_to_do(name: str, text: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="expected lines of text") as error:
        kind_of_document(tmp_path / name)
    assert hint in str(error.value.help) and "--lines" in str(error.value.help)


@pytest.mark.parametrize("text", ['<?xml version="1.0"?>\n<resources/>', "<!DOCTYPE TS>\n<TS>"])
def test_xml_with_other_texts_is_refused_with_what_to_do(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(UsageError, match="got XML") as error:
        kind_of_document(tmp_path / "a.xml")
    assert "convert other XML to PO" in str(error.value.help)


def test_lines_of_text_are_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("<p>a dog</p>\n")
    assert kind_of_document(tmp_path / "a.txt") is None
    assert {kind_of_document(tmp_path / name) for name in ("a.HTM", "a.html.erb", "a.php")} == {"html"}


def test_utf_16_that_lost_a_byte_is_refused(tmp_path: Path) -> None:
    units = '<tu><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de"><seg>two</seg></tuv></tu>' * 30
    data = f'<?xml version="1.0"?>\n<tmx version="1.4"><header/><body>{units}</body></tmx>'.encode("utf-16-be")
    (tmp_path / "cut.tmx").write_bytes(data[:1500] + data[1501:])
    with pytest.raises(DataError, match="NUL"):
        translate_document(tmp_path / "cut.tmx", "tmx", ("en", "de"), True, shout)


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.md", "a\n\n<p>b</p>\n\n<!-- c -->\n\n<script>d</script>\n", "2 segments translated"),
        ("a.md", "a\n", "1 segment translated"),
        ("a.md", "---\ntitle: a\n---\nb\n", "1 segment translated, 1 left (1 front matter)"),
        ("a.md", "---\ndraft: true\n---\nb\n", "1 segment translated"),
        ("a.md", "a\n\nb \0 c\n\n> <p>d\n> e</p>\n\n<p>{f && <b>g</b>}</p>\n",
         "1 segment translated, 3 left (2 HTML blocks, 1 paragraph)"),
        ("a.html", "<p title='a'>b</p>", "2 segments translated"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:04,000\na\n\nb\n", "2 segments translated"),
        ("a.po", 'msgid "a"\nmsgstr ""\n\nmsgid "b"\nmsgstr "b"\n\nmsgid "{n, plural, other {c}}"\nmsgstr ""\n',
         "1 segment translated, 2 left (1 ICU message, 1 copied source)"),
        ("a.tmx", TMX.format('<tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de"><seg>a</seg></tuv>'),
         "0 segments translated, 1 left (1 copied source)"),
        ("a.xlf", XLIFF.format("<unit><segment><source>a</source></segment></unit>" * 2000
         + "<unit><segment><source>{n, plural, other {b}}</source></segment></unit>"),
         "2,000 segments translated, 1 left (1 ICU message)"),
        ("a.xlf", '<xliff version="1.2"><file source-language="en"><trans-unit approved="yes"><source>a</source>'
         '<target/></trans-unit></file></xliff>', "0 segments translated, 1 left (1 locked segment)"),
        ("a.xlf", XLIFF.format('<unit><segment state="final"><source>a</source><target>a</target></segment></unit>'
         '<unit><segment state="final"><source>a</source><target>b</target></segment></unit>'
         '<unit><segment state="final"><source>4</source><target>4</target></segment></unit>'),
         "0 segments translated, 1 left (1 locked segment)"),
        ("a.xlf", XLIFF.format('<unit><segment state="initial"><source>{n, plural, other {b}}</source><target>'
         '{n, plural, other {b}}</target></segment></unit>'), "0 segments translated, 1 left (1 ICU message)"),
    ],
)  # fmt: skip
def test_one_line_counts_what_is_left(
    name: str, text: str, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    translated(tmp_path / name, text)
    assert caplog.messages == [f"{tmp_path / name}: {message}"]
