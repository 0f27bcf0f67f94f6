"""Which sentences are in an unusual case, and how their words are usually written."""

import re

import pytest

from mtx.data.letter_case import Case, case_of, in_case, truecase

WHOLE = frozenset(
    [
        "A",
        "Closed",
        "Don't",
        "Haus",
        "I",
        "Man",
        "New",
        "Open",
        "York",
        "a",
        "am",
        "and",
        "i",
        "in",
        "man",
        "new",
        "us",
        "visits",
        "york",
        "ọ́jọ́",
    ]
)


def count_tokens(texts: list[str]) -> list[int]:
    """Words of `WHOLE` are one piece, other words one for each letter and one for the space before."""
    pieces = (re.findall(r"[\w'\u0300-\u036f]+|[^\w\s]", text) for text in texts)
    return [1 + sum(1 if piece in WHOLE else 1 + len(piece) for piece in found) for found in pieces]


@pytest.mark.parametrize(
    "text, case",
    [
        ("A MAN", "upper"), ("3 MEN!", "upper"), ("NASA", "upper"), ("A", None), ("A4", None), ("12", None), ("", None),
        ("ǅ ABC", None), ("IBM公司", None), ("ПРИВЕТ", "upper"), ("A Man In", "title"), ("A Man in", None),
        ("New York", None), ("3 Men And Women", "title"), ("(a Man) In It", "title"), ("a Man In It", None),
        ("今天 天气 很好", None),
    ],
)  # fmt: skip
def test_cases(text: str, case: Case | None) -> None:
    assert case_of(text) == case


@pytest.mark.parametrize(
    "text, case, usual",
    [
        ("A MAN IN HAUS AND I AM", "upper", "A man in Haus and I am"),
        ("DON'T, MAN!", "upper", "Don't, man!"),
        ("3 MAN IN", "upper", "3 man in"),
        ("¡CLOSED!", "upper", "¡Closed!"),
        ("Ọ́JỌ́ MAN", "upper", "Ọ́jọ́ man"),
        ("MAN Ọ́JỌ́", "upper", "Man ọ́jọ́"),
        ("NATO", "upper", None),
        ("OPEN", "upper", "Open"),
        ("USB", "upper", None),
        ("MAN. I'M IN.", "upper", "Man. I'm in."),
        ("MAN! (A MAN AND A MAN)", "upper", "Man! (A man and a man)"),
        ("Man In Haus Visits Merkel", "title", "Man in Haus visits Merkel"),
        ("THE İ MAN", "upper", "The i man"),
        ("A Man And NASA", "title", "A man and NASA"),
        ("Merkel Visits A Man", "title", "Merkel visits a man"),
        ("Angela Merkel Berlin", "title", None),
        ("Haus Haus Haus", "title", None),
    ],
)
def test_words_are_written_as_the_tokenizer_knows_them(text: str, case: Case, usual: str | None) -> None:
    assert truecase(text, case, "en", count_tokens) == usual


def test_some_words_stay_as_they_are() -> None:
    assert truecase("A MAN AND THE USB", "upper", "en", count_tokens, [(14, 17)]) == "A man and the USB"


def test_only_english_has_the_pronoun() -> None:
    assert truecase("A MAN AND I AM", "upper", "it", count_tokens) == "A man and i am"


def test_a_title_of_names_with_a_known_word_stays() -> None:
    names = " ".join(["Merkel"] * 6)
    assert truecase(f"{names} Visits", "title", "en", count_tokens) is None


@pytest.mark.parametrize(
    "text, case, language, expected",
    [
        ("Straße in", "upper", "de", "STRASSE IN"), ("bir iş ılık", "upper", "tr", "BİR İŞ ILIK"),
        ("a man's t-shirt (old)", "title", "en", "A Man's T-shirt (old)"), ("iş var", "title", "tr-TR", "İş Var"),
        ("მე ვარ", "title", "ka", "მე ვარ"), ("ǆep ßa", "title", "hr", "ǅep Ssa"),
    ],
)  # fmt: skip
def test_the_case_of_a_translation(text: str, case: Case, language: str, expected: str) -> None:
    assert in_case(text, case, language) == expected


def test_small_letters_of_turkish() -> None:
    assert truecase("BU ILIK İŞ", "upper", "tr", lambda texts: [text.count("I") for text in texts]) == "Bu ılık iş"
