"""Tags are taken out of a sentence and come back at its words: each once, and pairs well nested."""

import random
import re

import pytest

from mtx.data.markup import Marked, Tag, bare, mark_up
from mtx.decoding.tag_placement import put_back
from mtx.decoding.word_alignment import Link
from mtx.documents.document import with_accelerator, without_accelerator


def marked(text: str) -> Marked:
    """Text with <b>, </b> and <x/> as text and tags."""
    parts = Marked()
    for part in re.split(r"(<[^>]*>)", text):
        if match := re.fullmatch(r"<(/?)(\w+)(/?)>", part):
            kind = "close" if match[1] else "alone" if match[3] else "open"
            parts.append(Tag(part, kind, match[2], match[2] == "br"))  # type: ignore[arg-type]
        elif part:
            parts.append(part)
    return parts


def raw(parts: Marked) -> str:
    return "".join(part if isinstance(part, str) else part.raw for part in parts)


def words(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


def links(src: str, tgt: str, order: list[int]) -> list[Link]:
    """Links each word of the translation, by the number of the word of the source."""
    sources = words(src)
    return [Link(*span, sum(sources[number]) / 2) for span, number in zip(words(tgt), order, strict=True)]


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        (["see ", Tag("{0}"), ", please"], "see, please"),
        (["see ", Tag("{0}"), Tag("{1}"), "."], "see."),
        (["see ", Tag("{0}"), " !"], "see !"),
        (["see ", Tag("{0}"), ".txt"], "see .txt"),
        (["costs ", Tag("{0}"), "..."], "costs..."),
        (["see ", Tag("<b>", "open", "b"), "!", Tag("</b>", "close", "b")], "see !"),
        (["see ", Tag("<br/>", is_break=True), "."], "see ."),
    ],
)
def test_the_text_is_written_as_it_would_be_without_placeholders(segment: Marked, text: str) -> None:
    found, tags = bare(segment)
    assert found == text and all(placed.at <= len(text) for placed in tags)
    result = raw(put_back(tags, found, found, links(found, found, list(range(len(words(found)))))))
    assert result == raw(segment)


@pytest.mark.parametrize(
    "text, without",
    [
        ("a <b>red</b> dog", "a red dog"), ("<b>a</b>", "a"), ("a <x/> dog", "a dog"), ("a<x/> dog", "a dog"),
        (" a <x/>", "a"), ("one<br/>two", "one two"), ("one <br/> two", "one two"), ("<x/>", ""), ("a \n  b", "a b"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_text_without_its_tags(text: str, without: str) -> None:
    assert bare(marked(text))[0] == without


@pytest.mark.parametrize(
    "src, tgt, order, result",
    [
        ("a <b>red</b> dog", "un chien rouge", [0, 2, 1], "un chien <b>rouge</b>"),
        ("<b>a red dog</b>", "un chien rouge", [0, 2, 1], "<b>un chien rouge</b>"),
        ("<b>a <i>red</i> dog</b> runs", "un chien rouge court", [0, 2, 1, 3], "<b>un chien <i>rouge</i></b> court"),
        ("a <b>red</b> <i>dog</i>", "un chien rouge", [0, 2, 1], "un <i>chien</i> <b>rouge</b>"),
        ("<x/>a dog<y/>", "un chien", [0, 1], "<x/>un chien<y/>"),
        ("a <x/> dog runs", "un chien court", [0, 1, 2], "un <x/> chien court"),
        ("a dog<x/> runs", "un chien court", [0, 1, 2], "un chien<x/> court"),
        ("a <x/>dog runs", "un chien court", [0, 1, 2], "un <x/>chien court"),
        ("a <b></b>dog", "un chien", [0, 1], "un <b></b>chien"),
        ("the <b>big</b> dog", "Hund", [2], "<b>Hund</b>"),  # nothing translates what it enclosed
        ("see <b>it</b>!", "sieh es!", [0, 1, 1], "sieh <b>es</b>!"),  # punctuation is no word of it
        ("<b>Stop!</b> Go", "Halt! Los", [0, 1, 2], "<b>Halt!</b> Los"),
        ("<x/> dogs", "Hunde", [0], "<x/> Hunde"),
        ("<x/> of <y/>", "von", [0], "<x/> von <y/>"),
        ("<b><x/></b> dogs", "Hunde", [0], "<b><x/></b> Hunde"),
        ("a <b></b> dog", "ein Hund", [0, 1], "ein <b></b> Hund"),
        ("see <b><x/></b> for", "sieh für", [0, 1], "sieh <b><x/></b> für"),
        ("the <x/> option", "Option die", [1, 0], "Option die <x/>"),
        ("the <x/> runs", "läuft die", [1, 0], "läuft die <x/>"),
        ("the <x/>", "die", [0], "die <x/>"),
        ("a<br/>b", "ein Hund", [0, 1], "ein<br/>Hund"),
        ("a <br/> b", "ein Hund", [0, 1], "ein <br/> Hund"),
        ("Error: <x/> not found", "Fehler: nicht da", [0, 1, 2, 3], "Fehler: <x/> nicht da"),
        ("a (<x/> b)", "ein (b)", [0, 1, 2, 3], "ein (<x/> b)"),
        ("<x/> (b)", "(b)", [0, 1, 2], "<x/> (b)"),
        ("<b>a</b> <i>b</i>", "eins zwei", [0, 1], "<b>eins</b> <i>zwei</i>"),
        ("<b>a </b>b", "eins zwei", [0, 1], "<b>eins </b>zwei"),
        ("<b>a</b> <i>b</i>", "zwei eins", [1, 0], "<i>zwei</i> <b>eins</b>"),
        ("<b>Home</b><i>About us</i>", "Heim Über uns", [0, 1, 2], "<b>Heim</b><i>Über uns</i>"),
        ("CO <b>2</b> ist", "CO2 ist", [0, 2], "<b>CO2</b> ist"),
        ("Text<b>1</b>. So", "Text1. So", [0, 1, 2], "<b>Text1</b>. So"),
        ("save <x/><y/> now", "jetzt sichern", [1, 0], "jetzt sichern <x/><y/>"),
        ("a <x/><y/> b", "ein b", [0, 1], "ein <x/><y/> b"),
        ("find '<x/>'.", "'' finden.", [1, 2, 0, 3], "'<x/>' finden."),
        ("find (<x/>)", "„“ finden", [1, 2, 0], "„<x/>“ finden"),
        ('say "so" <x/>.', "„so“.", [1, 1, 1, 2], "„so“ <x/>."),
        ("don't find '<x/>'.", "don't find ''.", [0, 1, 2, 3, 4, 5, 6], "don't find '<x/>'."),
        ("<x/>, <y/> and <z/>", "und", [1], "<x/> <y/> und <z/>"),
        ("see <x/><br/>then go", "sieh dann geh", [0, 1, 2], "sieh <x/><br/>dann geh"),
        ("see <b><x/></b> <br/> <y/> go", "sieh geh", [0, 1], "sieh <b><x/></b> <br/> <y/> geh"),
        ("wait in <b>", "warte in", [0, 1], "warte in <b>"),  # a tag without its other end is a word
        ("<b> two dogs", "zwei Hunde", [0, 1], "<b> zwei Hunde"),
        ("see <b>table 4</b>.", "siehe Tafel 4.", [0, 1, 0, 3], "siehe <b>Tafel 4</b>."),  # a number is the same
        ("see <b>table 4</b> of 42", "siehe 42 Tafel 42", [0, 4, 1, 4], "siehe 42 <b>Tafel</b> 42"),
        ("the <b>d</b>og runs", "der Hund rennt", [0, 1, 2], "der <b>H</b>und rennt"),
        ("see <x/>. It", "sieh. Es", [0, 1, 2], "sieh <x/>. Es"),
        ("see <x/>. It", "sieh. Es", [0, 2, 0], "sieh <x/>. Es"),  # wherever the attention of punctuation goes
        ("see it.<x/> It", "Es. Es sieh", [1, 0, 3, 1], "Es.<x/> Es sieh"),
        ("the <b>old king</b>", "der alte König hat.", [0, 1, 2, 2, 2], "der <b>alte König hat.</b>"),
        ("a <b>dog", "ein Hund", [0, 1], "ein <b>Hund"),
        ("a dog</b> runs", "ein Hund läuft", [0, 1, 2], "ein Hund</b> läuft"),
        ("a <b>dog</b> runs", "", [], "<b></b>"),
    ],
)
def test_tags_go_where_their_words_went(src: str, tgt: str, order: list[int], result: str) -> None:
    text, tags = bare(marked(src))
    assert raw(put_back(tags, text, tgt, links(text, tgt, order))) == result


def test_pieces_of_a_word_stay_together_and_ideographs_do_not() -> None:
    text, tags = bare(marked("a <b>dog</b> house"))
    pieces = [Link(0, 4, 0.5), Link(4, 10, 3.5), Link(10, 15, 8)]
    assert raw(put_back(tags, text, "eine Hundehütte", pieces)) == "eine <b>Hundehütte</b>"
    assert raw(put_back(tags, text, "一只狗屋", [Link(0, 2, 0.5), Link(2, 3, 3.5), Link(3, 4, 8)])) == "一只<b>狗</b>屋"


def test_a_tag_keeps_its_place_between_a_digit_and_the_full_stop_in_one_piece() -> None:
    text, tags = bare(mark_up(["in 70<sup>5</sup>."]))
    pieces = [Link(0, 2, 1), Link(2, 4, 3), Link(4, 6, 5)]
    assert raw(put_back(tags, text, "um 70.", pieces)) == "um 70<sup>5</sup>."


def test_very_many_tags_are_placed_by_some_of_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtx.decoding.tag_placement._MOST_WORK", 10)
    text, tags = bare(marked("<b>one</b> two <i>three <x/></i> four"))
    assert raw(put_back(tags, text, "eins zwei drei vier", [])) == "<b>eins</b> zwei drei <i>vier <x/></i>"


@pytest.mark.seconds
def test_very_many_tags_take_no_longer_each() -> None:
    for tag in ("<b></b>", "<x/>"):
        text, tags = bare(marked(f"a {tag * 50_000} b"))
        assert text == "a b" and sum(len(placed.tags) for placed in tags) == tag.count("<") * 50_000


def test_without_links_tags_are_placed_in_proportion() -> None:
    text, tags = bare(marked("one two <b>three</b> four"))
    assert raw(put_back(tags, text, "eins zwei drei vier", [])) == "eins zwei <b>drei</b> vier"


def is_nested(parts: Marked, src: Marked) -> bool:
    kinds = {part.raw: part for part in src if isinstance(part, Tag)}
    stack = list[str]()
    for part in parts:
        if isinstance(part, Tag):
            tag = kinds[part.raw.strip()]
            if tag.kind == "open":
                stack.append(str(tag.pair))
            elif tag.kind == "close" and (not stack or stack.pop() != tag.pair):
                return False
    return not stack


def test_every_tag_comes_out_once_and_nested_whatever_the_links() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        num_tags, parts = 0, Marked()

        def add(depth: int, parts: Marked = parts) -> None:
            nonlocal num_tags
            for _ in range(rng.randint(0, 3)):
                parts += ["one ", "two", " ", ". "][: rng.randint(0, 4)]
                num_tags += 1
                if rng.random() < 0.4:
                    parts.append(Tag(f"<x{num_tags}/>"))
                elif depth < 3:
                    name = f"t{num_tags}"
                    parts.append(Tag(f"<{name}>", "open", name))
                    add(depth + 1)
                    parts.append(Tag(f"</{name}>", "close", name))

        add(0)
        text, tags = bare(parts)
        tgt = " ".join(rng.choices(["eins", "zwei", "drei", ".", "四五"], k=rng.randint(0, 6)))
        found = [Link(*span, rng.uniform(-1, len(text) + 1)) for span in words(tgt)]
        result = put_back(tags, text, tgt, found)
        assert sorted(part.raw.strip() for part in result if isinstance(part, Tag)) == sorted(
            part.raw for part in parts if isinstance(part, Tag)
        )
        assert "".join("".join(part for part in result if isinstance(part, str)).split()) == "".join(tgt.split())
        assert sorted(" ".join(p if isinstance(p, str) else " " for p in result).split()) == sorted(tgt.split())
        assert is_nested(result, parts), (raw(parts), raw(result))


def test_many_placeholders_take_no_time() -> None:
    parts: Marked = [part for _ in range(20_000) for part in ("%s, ", Tag("%s"))] + [", "]
    assert len(bare(["see ", *(Tag("%s") if n % 2 else ", " for n in range(40_000))])[1]) == 20_000
    assert len(bare(parts)[1]) == 20_000


@pytest.mark.parametrize(
    "source, translation, result",
    [
        ("&Delete file", "Eine Datei löschen", "Eine &Datei löschen"),
        ("Save _As %s", "Speichern als %s", "Speichern _als %s"),
        ("打开(_O)", "Open it", "_Open it"),
        ("E&xit", "Schließen", "&Schließen"),
        ("_Open file", "打开文件", "打开文件(_O)"),
        ("AT&T is open", "AT&T ist offen", "AT&T ist offen"),
        ("file_name", "file_name", "file_name"),
        ("_one_ or two", "_eins_ oder zwei", "_eins_ oder zwei"),
        ("this & that", "dies & das", "dies & das"),
    ],
)
def test_the_mark_of_an_accelerator_moves_to_a_letter_of_the_translation(
    source: str, translation: str, result: str
) -> None:
    segment, mark = without_accelerator(mark_up([source]))
    assert bool(mark) == (source != raw(segment))
    assert raw(with_accelerator(mark_up([translation]), mark)) == result


def test_codes_that_belong_together_are_a_pair() -> None:
    kinds = [(tag.kind, tag.pair) for tag in mark_up(["{b>a<b} {1}"]) if isinstance(tag, Tag)]
    assert kinds == [("open", "code b"), ("close", "code b"), ("alone", None)]


@pytest.mark.parametrize(
    "text, codes",
    [("One.<a b='c'><sup>[1]</sup></a> Two", ["<a b='c'><sup>[1]</sup></a>"]), ("a <b>%s</b> <i>42</i>!", ["<b>%s</b>",
     "<i>42</i>"]), ("H<sub>2</sub>O <b>a</b>", []), ("a <i></i><b><br></b>", ["<br>"])],
)  # fmt: skip
def test_an_element_without_a_letter_is_one_code(text: str, codes: list[str]) -> None:
    parts = mark_up([text])
    assert raw(parts) == text and [p.raw for p in parts if isinstance(p, Tag) and p.kind == "alone"] == codes


@pytest.mark.parametrize("code", ["<x/>", "<x/><x/>"])
def test_a_code_between_two_letters_is_a_space(code: str) -> None:
    text, tags = bare(marked(f"one{code}two"))
    assert text == "one two"
    assert raw(put_back(tags, text, "eins zwei", links(text, "eins zwei", [0, 1]))) == f"eins{code}zwei"
    assert bare(marked(f"一{code}只"))[0] == "一只" and bare(marked(f"H{code}2"))[0] == "H2"
