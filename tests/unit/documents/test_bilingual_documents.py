"""Inline codes of XML: references, attributes, and pairs that overlap, whose translations are well-formed XML."""

import random
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from mtx.data.markup import Marked, Tag, bare
from mtx.data.translation_memories import read_units
from mtx.decoding.tag_placement import put_back
from mtx.decoding.word_alignment import Link
from mtx.documents import bilingual_documents
from mtx.documents.bilingual_documents import with_attribute, write_xml

CODE = re.compile(r"<[^>]*>")


def parse(content: str, keeps_lines: bool = False) -> Marked:
    document = f"<tmx><tu><seg>{content}</seg></tu></tmx>"
    (unit,) = read_units(Path("a.tmx"), "TMX", document)
    return bilingual_documents.parse(document, unit.named("seg")[0], keeps_lines)


@pytest.mark.parametrize(
    "tag, result",
    [
        ("<a>", '<a k="v">'), ("<a/>", '<a k="v"/>'), ("<a b='c' />", "<a b='c' k=\"v\"/>"),
        ("<a k='x' b=\"k='y'\">", '<a k="v" b="k=\'y\'">'), ("<a b=' k=\"x\"'>", "<a b=' k=\"x\"' k=\"v\">"),
        ("<a b='c' d='/'>", "<a b='c' d='/' k=\"v\">"), ("<a\n  k = 'x'\n>", '<a\n  k = "v"\n>'),
    ],
)  # fmt: skip
def test_an_attribute_is_set_or_added(tag: str, result: str) -> None:
    assert with_attribute(tag, "k", "v") == result


def test_references_are_those_of_xml() -> None:
    assert parse("&lt;&gt;&quot;&apos;&#65;&#x42;&#x80;") == ["<>\"'AB\x80"]
    assert parse("a &amp;lt; b &amp;#8217;") == ["a ", Tag("&amp;lt;"), " b ’"]  # text that is HTML


def translated(content: str, rng: random.Random) -> str:
    """The content translated word for word in another order, with random links."""
    text, tags = bare(parse(content))
    tgt = " ".join(rng.sample(text.split(), len(text.split())))
    links = [Link(*m.span(), rng.uniform(-1, len(text) + 1)) for m in re.finditer(r"\S+", tgt)]
    return write_xml(put_back(tags, text, tgt, links))


def test_overlapping_codes_give_well_formed_xml_with_openers_first() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        open_elements, open_codes, number, content = list[int](), list[int](), 0, ""
        for _ in range(rng.randint(1, 30)):
            choice, number = rng.randrange(6), number + 1
            if choice == 0:
                open_elements.append(number)
                content += f'<g id="{number}">'
            elif choice == 1 and open_elements:
                open_elements.pop()
                content += "</g>"
            elif choice == 2:
                open_codes.append(number)
                content += f'<bx id="{number}"/>'
            elif choice == 3 and open_codes:
                content += f'<ex id="{open_codes.pop(rng.randrange(len(open_codes)))}"/>'
            elif choice == 4:
                content += f'<x id="{number}"/>'
            else:
                content += f"w{number} "
        content += "</g>" * len(open_elements) + "".join(f'<ex id="{code}"/>' for code in open_codes) + " end"
        result = translated(content, rng)
        ElementTree.fromstring(f"<target>{result}</target>")
        assert sorted(CODE.findall(result)) == sorted(CODE.findall(content))
        for code in re.findall(r'<bx id="(\d+)"', content):
            assert result.index(f'<bx id="{code}"/>') < result.index(f'<ex id="{code}"/>'), (content, result)


def test_line_breaks_are_tags_where_white_space_counts() -> None:
    def texts(parts: Marked) -> list[str]:
        return [part if isinstance(part, str) else part.raw for part in parts]

    assert texts(parse("\n a\n  b<x/>\tc\n", keeps_lines=True)) == ["\n ", "a", "\n  ", "b", "<x/>", "\t", "c", "\n"]
    assert texts(parse("\n a\n  b", keeps_lines=False)) == ["\n a\n  b"]
    assert texts(parse("a\n \nb\nc", keeps_lines=False)) == ["a", "\n \n", "b\nc"], "paragraphs"
    assert texts(parse("a&#10;b", keeps_lines=False)) == ["a", "\n", "b"]
    assert texts(parse("\na<x/>\n<y/>\n", keeps_lines=True)) == ["\n", "a", "<x/>", "\n", "<y/>", "\n"]


@pytest.mark.parametrize(
    "code", [r"<ph>\n</ph>", "<ph>&lt;br/&gt;</ph>", '<x equiv-text="&lt;br/&gt;"/>', '<x ctype="lb"/>']
)
def test_a_code_that_says_a_line_break_is_one(code: str) -> None:
    text, [placed] = bare(parse(f"One:{code}2"))
    assert (text, placed.is_word) == ("One: 2", False)


def test_a_code_with_an_end_tag_of_its_own_is_one_tag() -> None:
    content = 'a <bx id="1"></bx>dog<ex id="1"></ex> <x id="2"></x>'
    parts = parse(content)
    assert write_xml(parts) == content
    assert [part.kind for part in parts if isinstance(part, Tag)] == ["open", "close", "alone"]


def test_ten_thousand_codes_take_no_time_at_all() -> None:
    content = "<x/>word " * 10_000
    assert len(parse(content)) == 20_000 and len(bare(parse(content))[1]) == 10_000


def test_elements_of_html_that_are_text_are_tags() -> None:
    content = 'a &lt;b class="x"&gt;red&lt;/b&gt; <g id="1">dog&lt;br/&gt;</g> &lt;name&gt; 3 &lt; 4 &gt; 2'
    parts = parse(content)
    assert write_xml(parts) == content
    assert [(part.raw, part.kind) for part in parts if isinstance(part, Tag)] == [
        ('&lt;b class="x"&gt;', "open"), ("&lt;/b&gt;", "close"), ('<g id="1">', "open"), ("&lt;br/&gt;", "alone"),
        ("</g>", "close"), ("&lt;name&gt;", "open"),
    ]  # fmt: skip
    assert bare(parts)[0] == "a red dog 3 < 4 > 2"


@pytest.mark.parametrize("content", ["see https://a.b/?x=1&amp;y=2 now", "{{a &amp; b}} &lt; c", "%s &amp; %d"])
def test_placeholders_and_addresses_are_written_as_they_were(content: str) -> None:
    assert write_xml(parse(content)) == content


def test_a_placeholder_is_whole_wherever_the_parser_cuts_the_text() -> None:
    for length in range(4060, 4100):
        assert Tag("{{name}}") in parse("a" * length + " {{name}} b")
