"""Bilingual files: a pair for each segment, without codes, proposals and targets that are no translation."""

from pathlib import Path

import pytest

from mtx.data.bilingual import Unit, Variant
from mtx.data.translation_memories import read_xliff
from mtx.errors import DataError

VERSION_1 = """<?xml version="1.0"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0">
<file original="a" source-language="en" target-language="de-AT"><header><sdl:a><source>no</source></sdl:a></header>
<body><group id="g"><trans-unit id="1"><source>A <g id="1">dog</g>. A cat.</source><seg-source>
<mrk mtype="seg" mid="1">A <g id="1">dog</g>.</mrk> <mrk mtype="seg" mid="2">A <mrk mtype="x">cat</mrk>.</mrk>
</seg-source>
<target><mrk mtype="seg" mid="1">Ein <g id="1">Hund</g>.</mrk> <mrk mtype="seg" mid="2">Eine Katze.</mrk></target>
<alt-trans><source>no</source><target>nein</target></alt-trans><sdl:seg-defs><sdl:seg id="1"/></sdl:seg-defs>
</trans-unit></group>
<trans-unit id="2"><source>New</source><target state="new">New</target></trans-unit>
<trans-unit id="3"><source>None</source><note>no</note></trans-unit>
<trans-unit id="4">
<source>Press <ph id="1">{0}<sub>no</sub></ph><bpt id="2">b</bpt>OK<ept id="2">b</ept><x ctype="lb"/>now<bx/></source>
<target state="translated">Jetzt <x id="3"/>OK</target><sdl:a><target>nein</target></sdl:a></trans-unit>
</body></file>
<file original="b" source-language="fr"><body>
<trans-unit id="1"><source>chien</source><target>dog</target></trans-unit></body></file></xliff>
"""
VERSION_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de" xmlns:m="m">
<file id="f"><unit id="1"><m:matches><m:match><source>no</source><target>nein</target></m:match></m:matches>
<notes><note>no</note></notes><originalData><data id="d">&lt;b&gt;</data></originalData>
<segment><source>A <pc id="1"><mrk id="m" type="term">dog</mrk></pc>.</source>
<target>Ein <pc id="1">Hund</pc>.</target></segment>
<ignorable><source> </source></ignorable>
<segment state="initial"><source>A<ph id="2" subType="fmt:lb"/>c<cp hex="0001"/><sc id="3"/>at.</source></segment>
</unit></file></xliff>
"""


def units(directory: Path, text: str) -> list[Unit]:
    (directory / "a.xlf").write_text(text, encoding="utf-8")
    return list(read_xliff(directory / "a.xlf"))


def test_version_1(tmp_path: Path) -> None:
    assert units(tmp_path, VERSION_1) == [
        Unit(4, [Variant("en", "A dog."), Variant("de-AT", "Ein Hund.")]),
        Unit(4, [Variant("en", "A cat."), Variant("de-AT", "Eine Katze.")]),
        Unit(10, [Variant("en", "New")]),
        Unit(11, [Variant("en", "None")]),
        Unit(12, [Variant("en", "Press OK now"), Variant("de-AT", "Jetzt OK")]),
        Unit(17, [Variant("fr", "chien"), Variant("", "dog")]),
    ]


def test_deleted_text_of_tracked_changes_is_no_text(tmp_path: Path) -> None:
    marks = '<mrk mtype="x-sdl-deleted">alte <g id="1">x</g></mrk><mrk mtype="x-sdl-added">neue</mrk>'
    text = (
        f"<xliff><file source-language='de'><trans-unit><source>Das {marks} Haus</source></trans-unit></file></xliff>"
    )
    assert units(tmp_path, text) == [Unit(1, [Variant("de", "Das neue Haus")])]


@pytest.mark.parametrize(
    "code, text",
    [
        (r'<ph id="1">\n</ph>', "a. B"), ('<ph id="1">\n</ph>', "a. B"), ('<ph id="1">&lt;br/&gt;</ph>', "a. B"),
        ('<x id="1" equiv-text="&lt;br/&gt;"/>', "a. B"), ('<x id="1" ctype="lb"/>', "a. B"), ('<x id="1"/>', "a. B"),
        (r'<ph id="1" equiv="\n\n"/>', "a. B"), ('<ph id="1" type="fmt" subType="xlf:lb"/>', "a. B"),
        ('<ph id="1">&lt;/p&gt;&lt;p&gt;</ph>', "a. B"), ('<ph id="1">&amp;nbsp;</ph>', "a. B"),
        (r'<bpt id="1">{\line }</bpt>', "a. B"), ('<bpt id="1">&lt;b&gt;</bpt>', "a.B"), ("<g>br</g>", "a.brB"),
    ],
)  # fmt: skip
def test_a_code_that_says_white_space_is_a_space(code: str, text: str, tmp_path: Path) -> None:
    unit = f"<trans-unit><source>a.{code}B</source></trans-unit>"
    [[variant]] = [unit.variants for unit in units(tmp_path, f"<xliff><file>{unit}</file></xliff>")]
    assert variant.text == text


@pytest.mark.parametrize(
    "source, text",
    [
        ("The<ph/>tomato", "The tomato"), ('a<ph disp="nbsp"/>b', "a b"), ('5<ph equiv-text=" "/>kg', "5 kg"),
        ("CO<x/>2", "CO2"), ("一<x/>二", "一二"), ("on<x/> and<x/>, <x/><x/>on", "on and, on"), ("<x/>a<x/>", "a"),
    ],
)  # fmt: skip
def test_a_code_between_letters_is_a_space(source: str, text: str, tmp_path: Path) -> None:
    unit = f"<trans-unit><source>{source}</source></trans-unit>"
    [[variant]] = [unit.variants for unit in units(tmp_path, f"<xliff><file>{unit}</file></xliff>")]
    assert variant.text == text


def test_version_2(tmp_path: Path) -> None:
    assert units(tmp_path, VERSION_2) == [
        Unit(4, [Variant("en", "A dog."), Variant("de", "Ein Hund.")]),
        Unit(7, [Variant("en", "A c at.")]),
    ]


@pytest.mark.parametrize(
    "state, target, texts",
    [
        ("initial", "A dog.", ["A dog."]), ("initial", "Ein Hund.", ["A dog.", "Ein Hund."]),
        ("translated", "A dog.", ["A dog.", "A dog."]),
        ("needs-translation", "Ein Hund.", ["A dog."]),  # which some programs write into XLIFF 2
    ],
)  # fmt: skip
def test_the_state_of_a_segment(state: str, target: str, texts: list[str], tmp_path: Path) -> None:
    segment = f'<segment state="{state}"><source>A dog.</source><target>{target}</target></segment>'
    [unit] = units(tmp_path, f'<xliff srcLang="en" trgLang="de"><file><unit>{segment}</unit></file></xliff>')
    assert [variant.text for variant in unit.variants] == texts


def test_names_with_a_prefix(tmp_path: Path) -> None:
    text = VERSION_2.replace("<", "<x:").replace("<x:/", "</x:").replace("x:m:", "m:").replace("xmlns=", "xmlns:x=")
    assert units(tmp_path, text) == units(tmp_path, VERSION_2)


def test_what_is_no_xliff(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a.xlf: not XLIFF"):
        units(tmp_path, "<a><source>x</source></a>")
    with pytest.raises(DataError, match="a.xlf:1: elements are nested more than 200 deep"):
        units(tmp_path, "<xliff><file><trans-unit><source>" + "<g>" * 30_000)
