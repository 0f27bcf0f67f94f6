"""A line is split where sentences end, stays as it is where it holds one, and is joined as its language writes."""

from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtx.data.markup import clean_text
from mtx.data.sentence_splitter import LEADS, multi_sentence_share, sentence_splitter, space_between
from mtx.storage.text_files import replace_surrogates
from tests.unit.patterns import growing_unit, has_unbounded_repetition, mark_matches, without_marks

SPLIT = [
    ("en", "Dr. Smith went home. He slept.", ["Dr. Smith went home.", "He slept."]),
    ("en", "Is it? Yes! It is.", ["Is it?", "Yes!", "It is."]),
    ("en", "a man sleeps. a dog runs.", ["a man sleeps.", "a dog runs."]),
    ("en", "1. A man sleeps. 2. A dog runs.", ["1. A man sleeps.", "2. A dog runs."]),
    ("en", "He is 25. She is 30.", ["He is 25.", "She is 30."]),
    ("de", "Im 19. Jahrhundert. Danach.", ["Im 19. Jahrhundert.", "Danach."]),
    ("ger", "Das gilt bzw. Das gilt Abs. Drei. Ende.", ["Das gilt bzw. Das gilt Abs.", "Drei.", "Ende."]),
    ("fr", "Il dort. M. Dupont est là.", ["Il dort.", "M. Dupont est là."]),
    ("zh", "我是学生。你好!他说:“好。”走了。", ["我是学生。", "你好!", "他说:“好。”", "走了。"]),
    ("ja", "私は学生です。あなたは?", ["私は学生です。", "あなたは?"]),
    ("hi", "मैं छात्र हूँ। तुम कौन हो?", ["मैं छात्र हूँ।", "तुम कौन हो?"]),
    ("en", "Plan B\xa0. Then C\u2004. Now.", ["Plan B\xa0.", "Then C\u2004.", "Now."]),  # the library alone panics
    ("src", "One. Two.", ["One.", "Two."]),
    ("no such language", "One. Two.", ["One.", "Two."]),
]
WHOLE = [
    ("en", "A man in a hat."), ("en", "3. A man sleeps."), ("en", "It was approx. two."), ("en", "One! :)"),
    ("en", "at 3 p.m. on Jan. 5"), ("en", "See www.Example.Com now"), ("en", "keep clear . &quot;"), ("en", ". . ."),
    ("en", ""), ("en", "\u3000One."), ("de", "Die 2. Klasse"), ("th", "ฉันเป็นนักเรียน คุณล่ะ"), ("de", "z.B. Äpfel"),
]  # fmt: skip


@pytest.mark.parametrize("language, line, sentences", SPLIT)
def test_a_line_of_several_sentences(language: str, line: str, sentences: list[str]) -> None:
    assert sentence_splitter(language)(line) == sentences
    assert joined(sentences) == line


@pytest.mark.parametrize("language, line", WHOLE)
def test_a_line_of_one_sentence(language: str, line: str) -> None:
    assert sentence_splitter(language)(line) == [line]


@given(
    st.text(st.sampled_from("aB1.!? \xa0\u2004\u3000。।“\"'\ud800:)&;\U0001f600"), max_size=30),
    st.sampled_from(["en", "de", "my"]),
)
@settings(max_examples=300, deadline=None)
def test_no_text_loses_a_character_or_ends_the_process(text: str, language: str) -> None:
    line = clean_text(text)
    sentences = sentence_splitter(language)(line)
    assert "".join("".join(sentences).split()) == "".join(replace_surrogates(line).split())


def joined(sentences: list[str]) -> str:
    return reduce(lambda text, sentence: text + space_between(text, sentence) + sentence, sentences, "")


def test_sentences_are_joined_as_they_are_written() -> None:
    assert joined(["A.", "", "B."]) == "A. B."
    assert joined(["나는 학생이다.", "너는?", "네 \U0001f600", "좋다"]) == "나는 학생이다. 너는? 네 \U0001f600 좋다"
    assert joined(["我是学生。", "Python 好。", "你!", "Ok."]) == "我是学生。Python 好。你! Ok."
    assert joined([]) == ""


def test_the_share_of_lines_with_several_sentences() -> None:
    assert multi_sentence_share(["One. Two.", "Dr. Smith", "Four", ""], "en") == 0.25
    assert multi_sentence_share([], "en") == 0.0


# By the name of a pattern: what it takes, between « and », and what it leaves
LEAD_EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "log: time, level and names": (
        ["«2024-01-02 12:00:01,123 [main] INFO com.bake.Oven:» Hot", "«[12:00] ERROR:» Cold"],
        ["12:00 The INFO", "INFO: a", "2024-01-02 12:00 a"],
    ),
    "log: call": (["«at com.bake.Oven.heat(Oven.java:12)»", "«com.bake.Oven:» Hot"], ["a.b: c", "e.g. the", "at home"]),
    "transcript, chat: time and who speaks": (
        ["«[00:01 - 00:05] Ann Lee: »Hello", "«[02.01.24, 12:00] +49 170: »Hi", "«0:01 --> 0:05» a", "«12:00 -» a"],
        ["12:00 a", "at 12 - 13", "Ann: hello"],
    ),
    "lyrics (LRC): times": (["«[00:12.30][01:02.3]»La"], ["[0012]", "[00:1]", "00:12"]),
    "lyrics (LRC): other marks": (["«[ar:The Bakers]»"], ["[arr:a]", "[note]", "ar:a"]),
    "mail: date": (["«Date: Mon, 2 Jan 2006 15:04:05 -0700 (MST)»"], ["Date: Monday", "Date: Mon, 2 Jan"]),
    "mail: header with an address": (
        ["«Message-ID:» <a@b.c>", "«Reply-To:» \t"],
        ["E-Mail: ", "Message: <a>", "X-A: b"],
    ),
}


def test_each_lead_has_examples_of_what_it_takes_and_leaves() -> None:
    assert LEAD_EXAMPLES.keys() == LEADS.keys()
    assert all(takes and leaves for takes, leaves in LEAD_EXAMPLES.values())


@pytest.mark.parametrize("name", LEADS)
def test_a_lead_takes_and_leaves_and_its_time_grows_with_the_text(name: str) -> None:
    takes, leaves = LEAD_EXAMPLES[name]
    at_start = rf"\A(?:{LEADS[name]})"
    assert [mark_matches(at_start, without_marks(text)) for text in takes] == takes
    assert [mark_matches(at_start, text) for text in leaves] == leaves
    assert not has_unbounded_repetition(LEADS[name])
    assert growing_unit(at_start, takes) is None
