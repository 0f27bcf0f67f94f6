"""Subtitles: numbers, times, settings, notes and styles stay; a cue has as many lines as before, at most."""

import re
from collections import Counter
from pathlib import Path

import pytest

from mtx.data.markup import Marked, Tag
from mtx.documents import subtitles
from tests.unit.documents.test_document import translated


@pytest.mark.parametrize(
    "text, result",
    [
        ("one two\nthree four five", "ONE TWO THREE\nFOUR FIVE"),
        ("<i>one two</i>", "<i>ONE TWO</i>"),
        ("{\\an8}one\ntwo", "{\\an8}ONE\nTWO"),
        ("<v Fred Smith>one <c.red big>two</c>\nthree", "<v Fred Smith>ONE\n<c.red big>TWO</c> THREE"),
        ("one <00:01.500>two &amp; three", "ONE <00:01.500>TWO &amp; THREE"),
        ("- one\n- two\nthree", "- ONE\n- TWO\nTHREE"),
        ("one\\Ntwo\\hthree", "ONE\\NTWO\\hTHREE"),
        ("{\\i1}one two.{\\i0}\\NThree", "{\\i1}ONE TWO.{\\i0}\\NTHREE"),
        ("<b>one</b>\n<i>two three four five six</i>", "<b>ONE</b>\n<i>TWO THREE FOUR FIVE SIX</i>"),
        ("<i>one</i>\n<i>two three four</i>", "<i>ONE</i> <i>TWO\nTHREE FOUR</i>"),
        ("the <ruby>one two<rt>a note</rt></ruby> is", "THE <ruby>ONE TWO<rt>a note</rt></ruby> IS"),
        ("one &lrm;two&rlm; three", "ONE &lrm;TWO&rlm; THREE"),
        ("one\ntwo three\n7\n00:04,0 --> 00:05,0\na", "ONE TWO\nTHREE\n7\n00:04,0 --> 00:05,0\nA"),
        ("# one two three #\n* four *", "# ONE TWO THREE #\n* FOUR *"),
        (">> one two three.\n>> four", ">> ONE TWO THREE.\n>> FOUR"),
        ("ANN: one two three.\nMR. B: four", "ANN: ONE TWO THREE.\nMR. B: FOUR"),
        ("[one two three]\nfour", "[ONE TWO THREE]\nFOUR"),
        (" \none", " \nONE"),
        ("one two three\n\nfour", "ONE TWO THREE\n\nFOUR"),
        ("\none\n \n\n- two\n", "\nONE\n \n\n- TWO\n"),
        ("*one* two", "*ONE* TWO"),
        ("42", "42"),
        ("♪ ♪", "♪ ♪"),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_text_of_cues_is_translated(text: str, result: str, line_end: str, tmp_path: Path) -> None:
    srt = "1\n00:00:01,000 --> 00:00:04,000\n{}\n\n2\n00:00:05,200 --> 00:00:07,900\n{}".replace("\n", line_end)
    text, result = (each.replace("\n", line_end) for each in (text, result))
    assert translated(tmp_path / "a.srt", srt.format(text, text)) == srt.format(result, result)


def test_an_empty_translation_has_no_words() -> None:
    [edit] = subtitles.read(Path("a.srt"), "1\n00:00:01,000 --> 00:00:02,000\none two\nthree four\n", Counter())
    assert edit.write([""]) == ""


def test_a_cue_named_note_is_a_cue(tmp_path: Path) -> None:
    text = "WEBVTT\n\nNOTE\n00:01.000 --> 00:04.000\n{}\n\nNOTE one\ntwo\n"
    assert translated(tmp_path / "a.vtt", text.format("one")) == text.format("ONE")


def test_what_webvtt_has_besides_cues_stays(tmp_path: Path) -> None:
    text = "WEBVTT - a film\n\nSTYLE\n::cue { color: red }\n\nNOTE a\n\nname\n00:01.000 --> 00:04.000 align:start\n{}"
    text += "\n\nname two\n00:03.000 --> 00:04.000\n{}\n\nNOTE b\n\n00:05.000 --> 00:06.000\n\n{}"
    text = text.replace("{ color: red }", "{{ color: red }}") + "\n\nREGION\nid:fred"
    assert translated(tmp_path / "a.vtt", text.format(*["one"] * 3)) == text.format(*["ONE"] * 3)


CUES = "1\n00:00:00,000 --> 00:00:00,900\n{}\n\n{}\n{}\n\n3\n00:00:03,000 --> 00:00:04,000\n{}\n"


@pytest.mark.parametrize("number", ["2", "#2", "2.", "\u200f2", ""])
@pytest.mark.parametrize(
    "times",
    [
        "00:00:01,000 --> 00:00:02,000", "0:0:9,0 --> 0:0:10,5", "00:00:0,500 --> 00:00:1,500", "00:09 --> 00:11",
        "00:00:01,000-->00:00:02,000", "00:00:01,000 – > 00:00:02,000", "00:00:01,000 - > 00:00:02,000",
        "00:00:01,000 → 00:00:02,000", "00:00:01;000 --> 00:00:02;000", "00:00:01,0000 --> 00:00:02,0000",
        "00:00:01,000 --> ", " --> 00:00:02,000", "-->", "00: 00: 01,000 --> 00: 00: 02,000",
        "00:00:01 ,000 --> 00:00:02 ,000", "00 : 00 : 01 --> 00 : 00 : 02", "\u200f00:00:01,000 --> 00:00:02,000",
        "\ufeff00:00:01,000 --> 00:00:02,000", "\u202a00:00:01,000\u202c --> \u202a00:00:02,000\u202c",
        "-00:00:01,000 --> 00:00:02,000", "2 00:00:01,000 --> 00:00:02,000", "[2] 00:00:01,000 --> 00:00:02,000",
        "00:00:01,000 --> 00:00:02,000  X1:201 X2:516", "00:01.000 --> 00:02.000 align:start line:0%",
        "00:00:01,000 => 00:00:02,000", "00:00:01,000 ==> 00:00:02,000", "00:00:01,000 > 00:00:02,000",
        "00:00:01,000 --&gt; 00:00:02,000", "00:00:01,000 ⟶ 00:00:02,000", "00:00:01,000 ⇒ 00:00:02,000",
        "00:00:01,000 -- 00:00:02,000", "00:00:01,000 ——> 00:00:02,000", "[00:00:01.000 --> 00:00:02.000]",
        "００：００：０１，０００ －－＞ ００：００：０２，０００", "00:00:01'000 --> 00:00:02'000",
        "00.00.01.000 --> 00.00.02.000", "00:00:01:000 --> 00:00:02:000", "1.000 --> 2.500",
        "00:00:01,000 --> 00:00:02,000dle",
        "\t00:00:01,000\t-->\t00:00:02,000",
    ],
)  # fmt: skip
def test_a_line_with_times_in_any_form_begins_a_cue(times: str, number: str, tmp_path: Path) -> None:
    before = f"{number}\n{times}".removeprefix("\n")
    for text in (CUES, CUES.replace("{}\n\n", "{}\n")):
        if text == CUES or number:  # else the line before is text of the cue before
            result = translated(tmp_path / "a.srt", text.format("one two", before, "three\nfour", "five"))
            assert result == text.format("ONE TWO", before, "THREE\nFOUR", "FIVE")


@pytest.mark.parametrize(
    "line",
    [
        "From 10:30 -> 11:00 we eat",
        "10:30 -> 11:00 we eat",
        "we are > 30",
        "room 12 --> the park",
        "in 1984",
        "1984 or so",
    ],
)
def test_a_sentence_with_times_is_text(line: str, tmp_path: Path) -> None:
    result = translated(tmp_path / "a.srt", CUES.format("one", "2\n00:00:01,000 --> 00:00:02,000", line, "five"))
    assert " ".join(result.split("\n")[6:-5]) == line.upper()


def test_a_year_within_a_text_is_text(tmp_path: Path) -> None:
    text = CUES.format("one", "2\n00:00:01,000 --> 00:00:02,000", "{}", "five").replace("\n", "\r\n")
    result = translated(tmp_path / "a.srt", text.format("in the old old\r\n1984\r\nit was"))
    assert "\r\nIN THE OLD\r\nOLD 1984\r\nIT WAS\r\n\r\n3" in result
    kept = text.format("they were\r\n300\r\n\r\n42\r\n\r\n")
    assert translated(tmp_path / "a.srt", kept) == kept.replace("they were", "THEY WERE").replace("one", "ONE").replace(
        "five", "FIVE"
    ), "next to a blank line it may be the number of a cue"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("one two three\nfour\n\nfive six\n\n\nseven", "ONE TWO\nTHREE FOUR\n\nFIVE SIX\n\n\nSEVEN"),
        ("one two three\n\n2\n\n2\n00:04,0 --> 00:05,0\nfour", "ONE TWO THREE\n\n2\n\n2\n00:04,0 --> 00:05,0\nFOUR"),
        ("\n\none\n\ntwo\nthree four", "\n\nONE\n\nTWO THREE\nFOUR"),
        ("one\n\u200f\ntwo", "ONE\n\u200f\nTWO"),
    ],
)
def test_words_never_move_over_a_blank_line(text: str, expected: str, tmp_path: Path) -> None:
    cue = "1\n00:00:01,000 --> 00:00:02,000\n"
    assert translated(tmp_path / "a.srt", cue + text) == cue + expected


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_marks_of_direction_stay_at_each_line(line_end: str, tmp_path: Path) -> None:
    text = "\u200f1\n\u200f00:00:01,000 --> 00:00:02,000\n\u202bone two\u202c\n\u202bthree\u202c\n\u200f\n\u200f2\n"
    text = (text + "\u200f00:00:03,000 --> 00:00:04,000\n\u200f- four\n\u200f(five)\n").replace("\n", line_end)
    result = (
        text.replace("one two", "ONE TWO").replace("three", "THREE").replace("four", "FOUR").replace("five", "FIVE")
    )
    assert translated(tmp_path / "a.srt", text) == result


@pytest.mark.parametrize(
    "name, text, num_segments, num_left",
    [
        ("a.srt", CUES.format("one", "2\n00:00:0l,000 --> 00:00:02,000", "two", "five"), 2, 1),
        ("a.srt", CUES.format("one", "2", "two\n\nthree", "five"), 2, 2),
        ("a.srt", "by Ann\n\n" + CUES.format("one", "2\n00:00:01,000 --> 00:00:02,000", "two", "five"), 3, 1),
        ("a.srt", CUES.format("one", "2\n00:00:01,000 --> 00:00:02,000 two", "three", "five"), 3, 1),
        ("a.vtt", "WEBVTT\nKind: captions\n\nNOTE one\ntwo\n\nthree\n\n0:01.0 --> 0:02.0\nfour\n\nNOTE five\n", 1, 1),
    ],
)  # fmt: skip
def test_a_text_without_a_readable_time_is_left(
    name: str, text: str, num_segments: int, num_left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    result = translated(tmp_path / name, text)
    cues = "1 unreadable cue" if num_left == 1 else f"{num_left} unreadable cues"
    segments = "1 segment" if num_segments == 1 else f"{num_segments} segments"
    assert caplog.messages == [f"{tmp_path / name}: {segments} translated, {num_left} left ({cues})"]
    assert [line.lower() for line in result.split("\n")] == [line.lower() for line in text.split("\n")]


def test_what_is_attached_to_a_time_is_no_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    translated(tmp_path / "a.srt", CUES.format("one", "2\n00:00:01,000 --> 00:00:02,000dle", "two", "five"))
    assert caplog.messages == [f"{tmp_path / 'a.srt'}: 3 segments translated"]


@pytest.mark.parametrize(
    "text, is_told",
    [
        ("one two\n\nthree\n", True),
        ("1\none\n\n2\ntwo\n", True),
        ("[00:00:00.000 --> 00:00:02.000]   one\n[00:00:02.000 --> 00:00:11.400]   two\n", True),
        ("by Ann\n\n1\n00:00:00,000 --> 00:00:02,000\n♪\n", False),
        ("WEBVTT\n\nNOTE one\n\nSTYLE\n::cue {}\n", False),
        ("", False),
    ],
)
def test_a_file_without_a_readable_cue_is_told(
    text: str, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert translated(tmp_path / "a.srt", text) == text
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    told = f"{tmp_path / 'a.srt'}: no cue has readable times, such as 00:00:01,000 --> 00:00:02,000"
    assert warnings == [told] * is_told


@pytest.mark.parametrize(
    "translation, expected",
    [
        (["明天我们在公园里等火车，因为天气很好。"], "明天我们在公园里等\n火车，因为天气很好。"),
        (["我们用GitHub和Python3.11写程序。"], "我们用GitHub和\nPython3.11写程序。"),
        (["他说完「好的」。再见"], "他说完「好\n的」。再见"),
        (["今日はとてもいい天気ですね。"], "今日はとてもい\nい天気ですね。"),
        (["พรุ่งนี้เราจะรอรถไฟ"], "พรุ่งนี้เรา\nจะรอรถไฟ"),
        (["ថ្ងៃស្អែកយើងរង់ចាំរថភ្លើង"], None),
        (["ພວກເຮົາລໍຖ້າລົດໄຟຢູ່ໃນສວນ"], None),
        (["မနက်ဖြန်ကျွန်တော်တို့ရထားကိုစောင့်မယ်"], None),
        ([Tag("<i>", "open", "i"), "明天我们", Tag("</i>", "close", "i"), "在公园里等火车"], None),
        ([Tag("<v 王 先生>"), "我们在公园里等火车"], None),
        ([Tag("<v 王先生王先生王先生王先生>"), "我们在"], None),
        (["アイアーイイ"], None),
        (["我们走 她说好的啊"], "我们走\n她说好的啊"),
        (["好"], "好"),
    ],
)
def test_a_text_without_spaces_is_divided_too(translation: Marked, expected: str | None) -> None:
    [edit] = subtitles.read(Path("a.srt"), "1\n00:00:01,000 --> 00:00:02,000\none two\nthree four\n", Counter())
    result = edit.write(translation)
    whole = "".join(part if isinstance(part, str) else part.raw for part in translation)
    assert re.sub(r"\s", "", result) == whole.replace(" ", "")
    first, *rest = result.split("\n")
    assert not rest or (rest[0][0] not in "，。」！,.ー" and len(rest) == 1 and first.count("<") == first.count(">"))
    assert expected is None or result == expected
    assert rest or expected == "好"
