"""Subtitles: numbers, times, settings, notes and styles stay; a cue has as many lines as before, at most."""

from pathlib import Path

import pytest

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
        ("one two three\n\nfour", "ONE TWO\n\nTHREE FOUR"),
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


def test_an_empty_translation_leaves_an_empty_cue() -> None:
    [edit] = subtitles.read("1\n00:00:01,000 --> 00:00:02,000\none two\nthree four\n")
    assert edit.write([""]) == ""


def test_what_webvtt_has_besides_cues_stays(tmp_path: Path) -> None:
    text = "WEBVTT - a film\n\nSTYLE\n::cue { color: red }\n\nNOTE a\n\nname\n00:01.000 --> 00:04.000 align:start\n{}"
    text += "\n\nname two\n00:03.000 --> 00:04.000\n{}\n\nNOTE b\n\n00:05.000 --> 00:06.000\n\n{}"
    text = text.replace("{ color: red }", "{{ color: red }}") + "\n\nREGION\nid:fred"
    assert translated(tmp_path / "a.vtt", text.format(*["one"] * 3)) == text.format(*["ONE"] * 3)
