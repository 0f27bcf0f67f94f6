"""Text without a letter is its own translation; what the model cannot read goes; what is too long is told."""

from collections.abc import Sequence

import pytest

from mtx.data.glossary import Glossary
from mtx.data.markup import needs_no_translation
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding.options import Candidate, Sampling, SearchOptions
from tests.translators import FakeTranslator
from tests.unit.decoding.test_terms_used import tokenizer

__all__ = ["tokenizer"]  # a fixture


class Echo(FakeTranslator):
    """Translates each part as "ein", and notes what the model reads."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int = 40, options: SearchOptions | None = None):
        super().__init__(tokenizer, max_tokens, options)
        self.read = list[str]()

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        self.read += self.tokenizer.decode([[token for token in ids if token != EOS_ID] for ids in sources])
        [ids] = self.tokenizer.encode(["ein"], target=True)
        return [[Candidate(ids, 0.0)] * (options.sampling.num_samples if options.sampling else 1) for _ in sources]


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "2,500.00",
        "---",
        "(%)",
        "•",
        "☺",
        "▁▁",
        "12:30",
        "BE0768880101",
        "v2.0.1",
        "A4",
        "COVID-19",
        "\u200b",
        "?",
        "menu.save_as.title",
        "save_as",
        "main.py",
    ],
)
def test_what_needs_no_translation(text: str) -> None:
    assert needs_no_translation(text)


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "A",
        "2nd",
        "第3章",
        "（笑）",
        "A4 B5",
        "3D-Film",
        "N/A",
        "x86 is",
        "e.g.",
        "U.S.",
        "z.B.",
        "a.k.a",
        "ph.d",
        "go.",
        "well...so",
        "two.words now",
    ],
)
def test_what_needs_a_translation(text: str) -> None:
    assert not needs_no_translation(text)


def test_it_is_its_own_translation_everywhere(tokenizer: Tokenizer) -> None:
    translator = Echo(tokenizer)
    assert translator.translate(["42", "one two", " ☺ ", "A4", ""]) == ["42", "ein", " ☺", "A4", ""]
    assert translator.read == ["one two"]
    samples = Echo(tokenizer, options=SearchOptions(sampling=Sampling(3))).hypotheses(["42", "one"])
    assert [[each.text for each in found] for found in samples] == [["42"] * 3, ["ein"] * 3]
    assert Echo(tokenizer).translate(["42"], ["ein"]) == ["ein"], "a prefix asks for a translation"


@pytest.mark.parametrize(
    "lead",
    ["  ", "\t", "- ", "* ", "1) ", "> ", "> > ", "  - ", "[00:12.00]", "[00:12.00][01:40.50]", "[14:05] Anna: ",
     "[12/03/2026, 14:05:11] Anna Miller: ", "12/03/2026, 2:05 PM - Anna: ", "2026-03-12 14:05 - +49 171 1234: ",
     "[x] ", "[ ] ", "a) ", "(b) ", "◦ ", "\u200e[14.05.26, 18:06:02] Tom: \u200e",
     "[14.05.26, 18:06:02] Dad (new phone): ",
     "[00:00:00.000 --> 00:00:02.000]   ", "[00:00:00.000 --> 00:00:02.000]", "00:00:00.000 --> 00:00:02.000 ",
     "00:00:00,000 --> 00:00:02,000  ", "[00:00.000 --> 00:02.000]  ", "00:12 -> 00:15 ", "00:12 → 00:15: ", "(00:12) ",
     "(1:02:03)", "[00:12:13] ", "[00:12 - 00:15] ", "(00:12:13 – 00:12:15): ", "00:00:12 - 00:00:15: ",
     "00:00:12.5-00:00:15.5 ", "[1.00s -> 2.00s] ", "[0.0 - 2.5] ", "1.00s --> 2.00s ", "- [00:12 --> 00:15] ",
     "[0:00:00.000000 --> 0:00:02.500000] ", "00:01 - 00:05 ", "(10:30) God: ", "[14:05] Anna Maria: ",
     "[00:00:00.000 --> 00:00:02.000] SPEAKER_00: ", "00:00:12 - 00:00:15 Anna Miller: ", "=== ", "== ",
     "2026-05-14 08:00:01,123 INFO  [main] com.example.App - ", "2026-05-14 08:00:01,123 - root - ERROR - ",
     "[2026-05-14 08:00:01] WARN ", "\tat com.example.App.run(App.java:87) ", "java.io.FileNotFoundException: "],
)  # fmt: skip
def test_what_stands_before_the_text_of_a_line_stays(lead: str, tokenizer: Tokenizer) -> None:
    translator = Echo(tokenizer)
    assert translator.translate([f"{lead}one two"]) == [f"{lead}ein"]
    assert translator.read == ["one two"]


@pytest.mark.parametrize("line", ["5 -> 6 one", "1.5 - 2.0 one", "5.10 → 6.1 one", "one (00:12)", "=one", "a = one"])
def test_other_numbers_and_signs_are_read(line: str, tokenizer: Tokenizer) -> None:
    translator = Echo(tokenizer)
    translator.translate([line])
    assert translator.read == [line]


@pytest.mark.parametrize("time", ["(10:30) ", "[14:05] ", "[00:00:00.000 --> 00:00:02.000] "])
def test_words_before_a_colon_are_no_name_of_who_speaks(time: str, tokenizer: Tokenizer) -> None:
    translator = Echo(tokenizer)
    translator.translate([f"{time}Please note: one"])
    assert translator.read == ["Please note: one"]


def test_the_marks_of_a_heading_stay_at_both_ends(tokenizer: Tokenizer) -> None:
    translator = Echo(tokenizer)
    assert translator.translate(["=== one two ===", "== one ==  "]) == ["=== ein ===", "== ein =="]
    assert translator.read == ["one two", "one"]


def test_cells_are_translated_one_by_one(tokenizer: Tokenizer) -> None:
    translator = Echo(tokenizer)
    assert translator.translate(["1\tone two.\t \tfour\t-", "one:\ttwo"]) == ["1\tein\t \tein\t-", "ein\tein"]
    assert translator.read == ["one two.", "four", "one:", "two"]
    assert translator.translate(["\tone\t", "\t"]) == ["\tein\t", ""]
    assert translator.translate(["one\ttwo"], ["ein"]) == ["ein"], "a prefix leaves the line whole"


def test_the_frame_of_mail_stays(tokenizer: Tokenizer) -> None:
    lines = ["-- ", "Message-ID: <2026.a1@example.org>", "Date: Tue, 14 May 2026 09:12:44 +0200"]
    assert Echo(tokenizer).translate(lines) == lines
    others = ["one -- ", "Date: one", "one-two: four", "one (two): four", "I said: one"]
    assert Echo(tokenizer).translate(others) == ["ein"] * len(others)


def test_marks_of_lyrics_are_their_own_translation(tokenizer: Tokenizer) -> None:
    assert Echo(tokenizer).translate(["[ar:one two]", "[one two]", "one: two"]) == ["[ar:one two]", "ein", "ein"]


def test_lines_that_are_a_file_of_another_kind_get_a_warning_once(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    translator = Echo(tokenizer)
    for _ in range(2):
        assert len(translator.translate(["a = one", "b = two"])) == 2
    translator.translate_marked([["a = one\nb = two"]])
    assert [text.partition(" (")[0] for text in caplog.messages] == ["expected lines of text, got keys with messages"]


def test_a_term_of_the_glossary_is_translated(tokenizer: Tokenizer) -> None:
    translator = Echo(tokenizer)
    translator.use_glossary(Glossary({"A4": "ein"}))
    assert translator.translate(["A4", "A5"]) == ["ein", "A5"]


def test_what_no_piece_has_is_a_space_or_nothing(tokenizer: Tokenizer) -> None:
    translator = Echo(tokenizer)
    translator.translate(["one\u00a0two", "fo\u00adur", "\u200eone\u200b five", "\ufeffone", "two\u034f"])
    assert translator.read == ["one two", "four", "one five", "one", "two"]


def test_a_sentence_that_is_too_long_is_told_once(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    translator = Echo(tokenizer, 6)
    [found], [short] = translator.hypotheses(["one two four five " * 3, "one"])
    assert found.is_cut and not short.is_cut
    translator.translate(["one two four five " * 3])
    assert caplog.text.count("a sentence has more than 6 subwords and is translated in parts") == 1
