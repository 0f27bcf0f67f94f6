"""Languages of a file's units serve those that are asked for; units without both are counted."""

from pathlib import Path

import pytest

from mtx.data.bilingual import (
    NO_TRANSLATION,
    UNKNOWN,
    UNREAD_DATE,
    BilingualReader,
    Unit,
    Variant,
    date_of,
    match_rank,
)
from mtx.data.tables import PairBlock, PairGroup
from mtx.data.translation_memories import read_tmx, read_xliff
from mtx.errors import DataError

FILE = Path("memory")


def units(*texts: dict[str, str]) -> list[Unit]:
    return [Unit(number, [Variant(*item) for item in text.items()]) for number, text in enumerate(texts, 1)]


def blocks(languages: tuple[str, str], *texts: dict[str, str]) -> list[PairBlock]:
    return list(BilingualReader(lambda _: iter(units(*texts)))(FILE, languages))


@pytest.mark.parametrize(
    "tag, asked, rank",
    [
        ("en", "en", 0), ("EN", "en", 0), ("en_GB", "en-gb", 0), ("eng", "en", 0), ("en", "English", 0),
        ("??", "??", 0),
        ("en-GB", "en", 1), ("zh-CN", "zh-Hans", 1), ("zh-TW", "zh-Hans", None), ("zh-TW", "zh", 1), ("de-DE", "de", 1),
        ("no", "nb", 0), ("nb", "no", 0), ("cmn", "zh", 0),
        ("en", "en-GB", 2), ("en-US", "en-GB", None), ("de", "en", None), ("", "en", None), ("??", "en", None),
    ],
)  # fmt: skip
def test_how_well_a_language_serves(tag: str, asked: str, rank: int | None) -> None:
    assert match_rank(tag, asked) == rank


def test_either_direction_and_any_two_of_several_languages() -> None:
    text = {"de-DE": "Hund", "en-US": "dog", "fr": "chien"}
    for languages, pair in ((("en", "de"), ("dog", "Hund")), (("fr", "en-US"), ("chien", "dog"))):
        (block,) = blocks(languages, text)
        assert (block.src, block.tgt) == ([pair[0]], [pair[1]]) and block.skipped == {}


def test_the_region_that_was_asked_for_goes_before_the_others() -> None:
    text = {"en-US": "color", "en-GB": "colour", "en": "?", "de": "Farbe"}
    assert [blocks((asked, "de"), text)[0].src[0] for asked in ("en-US", "en-GB", "en")] == ["color", "colour", "?"]
    (block,) = blocks(("en", "de"), {"en-US": "color", "en-GB": "colour", "de": "Farbe"})
    assert block.src == ["color", "colour"], "each is English"


def test_units_without_one_side_are_counted() -> None:
    (block,) = blocks(
        ("en", "de"), {"en": "dog"}, {"en": "cat", "de": "Katze"}, {"fr": "chien", "de": "Hund"}, {"en": "a", "de": ""}
    )
    assert (list(block.lines), block.src, block.tgt) == ([2], ["cat"], ["Katze"])
    assert block.skipped == {NO_TRANSLATION: PairGroup(3, 1, "dog", "")}


def test_a_side_that_the_file_does_not_name_is_the_other_one() -> None:
    assert blocks(("de", "en"), {UNKNOWN: "dog", "de": "Hund"})[0].tgt == ["dog"]
    assert blocks(("en", "de"), {"en": "dog", UNKNOWN: "Hund"})[0].tgt == ["Hund"]
    unnamed = Unit(1, [Variant(UNKNOWN, "dog"), Variant(UNKNOWN, "Hund")])
    (block,) = BilingualReader(lambda _: iter([unnamed]))(FILE, ("en", "de"))
    assert (block.src, block.tgt) == (["dog"], ["Hund"])


def test_a_unit_has_its_limits_and_an_empty_text_hides_no_other() -> None:
    many = Unit(7, [Variant(language, f"{number}") for number in range(40) for language in ("en", "de")])
    with pytest.raises(DataError, match="memory:7: a unit has 40 sources and 40 translations"):
        list(BilingualReader(lambda _: iter([many]))(FILE, ("en", "de")))
    assert blocks(("en", "de"), {"en": "", "en-GB": "dog", "de": "Hund"})[0].src == ["dog"]


def test_several_translations_are_several_pairs() -> None:
    unit = Unit(7, [Variant("en", "dog", 5), Variant("de", "Hund", 9), Variant("de", "Köter", 3)])
    (block,) = BilingualReader(lambda _: iter([unit]))(FILE, ("en", "de"))
    assert (block.lines, block.tgt, block.dates) == ([7, 7], ["Hund", "Köter"], [9, 5])


@pytest.mark.parametrize(
    "text, without",
    [("&Open", "Open"), ("Save _as", "Save as"), ("打开 (_O)", "打开"), ("AT&T", "AT&T"), ("a_b", "a_b")],
)
def test_marks_of_accelerators_are_taken_out(text: str, without: str) -> None:
    (block,) = blocks(("en", "de"), {"en": f"{text} <b>%s</b>", "de": "Hund"})
    assert block.src == [f"{without} <b>%s</b>"]


def test_a_file_in_other_languages_says_which() -> None:
    with pytest.raises(DataError, match=r"no unit is in both en and it; it has en-US \(2\), de \(1\)$"):
        blocks(("en", "it"), {"en-US": "dog", "de": "Hund"}, {"en-US": "cat"})
    with pytest.raises(DataError, match="no unit is in both") as error:
        blocks(("en", "it"), {"en-US": "dog", "x-" * 5000: "Hund"})
    assert len(str(error.value)) < 200
    with pytest.raises(DataError, match="memory: no units"):
        blocks(("en", "it"))


WITHOUT_SEG = '<tu><tuv xml:lang="en">dog</tuv><tuv xml:lang="de">Hund</tuv></tu>'
HALF = '<tu><tuv xml:lang="en"><seg>dog</seg></tuv><tuv xml:lang="de">Hund</tuv></tu>'
UNNAMED = "<tu><tuv><seg>dog</seg></tuv><tuv><seg>Hund</seg></tuv></tu>"
GOOD = '<tu><tuv xml:lang="en"><seg>cat</seg></tuv><tuv xml:lang="de"><seg>Katze</seg></tuv></tu>'


def pairs_of_memory(directory: Path, units: str, columns: tuple[str, ...] = ()) -> list[PairBlock]:
    (directory / "a.tmx").write_text(f"<tmx><body>{units}</body></tmx>", encoding="utf-8")
    return [*BilingualReader(read_tmx)(directory / "a.tmx", ("en", "de"), columns)]


def test_a_language_that_is_not_there_is_said_before_an_element_that_a_unit_lacks(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no unit is in both en and de; it has en \(1\), fr \(1\)$"):
        pairs_of_memory(tmp_path, HALF.replace('"de"', '"fr"'))


@pytest.mark.parametrize(
    ("units", "columns", "problem"),
    [
        (WITHOUT_SEG * 3, (), "<tuv> without <seg>"),
        (HALF, (), "<tuv> without <seg>"),
        ("<tu/>", (), "<tu> without <tuv>"),
        (UNNAMED, ("en", "de"), "<tuv> without xml:lang"),  # of several directions
    ],
)
def test_units_that_lack_an_element_say_which(
    units: str, columns: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=f"a.tmx:1: {problem}$"):
        pairs_of_memory(tmp_path, units, columns)
    (block,) = pairs_of_memory(tmp_path, units + GOOD, columns)
    assert block.src == ["cat"] and {reason: group.count for reason, group in block.skipped.items()} == {
        problem: units.count("<tu") - units.count("<tuv")
    }


def test_units_that_are_only_not_translated_stay_so(tmp_path: Path) -> None:
    empty = '<tu><tuv xml:lang="en"><seg>dog</seg></tuv><tuv xml:lang="de"><seg/></tuv></tu>'
    with pytest.raises(DataError, match=r"no unit is in both en and de; it has en \(1\), de \(1\)$"):
        pairs_of_memory(tmp_path, empty)
    assert pairs_of_memory(tmp_path, UNNAMED)[0].tgt == ["Hund"]
    (tmp_path / "a.xliff").write_text(
        '<xliff version="1.2"><file source-language="en" target-language="de"><body>'
        "<trans-unit><target>Hund</target></trans-unit><trans-unit><source>cat</source><target>Katze</target>"
        "</trans-unit></body></file></xliff>"
    )
    (block,) = BilingualReader(read_xliff)(tmp_path / "a.xliff", ("en", "de"))
    assert block.src == ["cat"] and [*block.skipped] == ["<trans-unit> without <source>"]


def test_dates_grow_with_time() -> None:
    dates = [
        "19700101T000000Z", "19991231", "20240131T000000Z", "2024-02-01", "2024-02-01T09:00:00.25Z",
        "2024-02-01 09:00:00.5", "20240201T093000", "2024-02-01 12:00+0200", "2024-02-01T10:00:01+00:00",
        "2024-02-01 06:00-04:30", "2024-02-01T23:00:00-02:00", "2099-12-31T23:59:59Z",
    ]  # fmt: skip
    numbers = [date_of(date) for date in dates]
    assert numbers == sorted({*numbers}) and numbers[0] > UNREAD_DATE > 1
    assert date_of("2024-05-01 12:00+0200") == date_of("20240501T100000Z") == date_of("2024-05-01T10:00:00")
    assert date_of("2024-05-01") == date_of("20240501") == date_of("20240501T000000Z")


@pytest.mark.parametrize(
    "text",
    [
        "31.12.2018", "12/31/2018", "1714557600", "2024-05", "20241301", "2024-02-30", "20240501T",
        "20240501T120000+0200", "2024-05-01T25:00", "2024-05-01x12:00", "2024-W18-3", "1969-12-31", "21000101",
        "version 7", "２０２４-０５-０１", "2024-05-01 12:00+99:00", "2024-05-01\n", "20240501T120000Z" * 2000,
    ],
)  # fmt: skip
def test_other_forms_are_no_date(text: str) -> None:
    assert date_of(text) == UNREAD_DATE


def test_a_date_without_digits_is_missing() -> None:
    assert {date_of(text) for text in ("", "YEAR-MO-DA HO:MI+ZONE", "unknown")} == {0}
