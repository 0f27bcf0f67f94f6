"""Each cleaning rule by a table that one can check by hand; the set of hashes against Python's own set."""

from random import Random

import numpy as np
import pytest

from mtx.config.schema import DataConfig
from mtx.data.cleaning import clean_pair, find_first, hash_pairs, hash_texts, is_missing_value
from mtx.data.markup import clean_text

LIMITS = DataConfig(max_tokens=10, max_length_ratio=4.0)


@pytest.mark.parametrize("separator", "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u2028\u2029")
def test_separators_become_spaces(separator: str) -> None:
    assert clean_text(f"{separator}a{separator}b {separator}") == "a b"
    assert len(clean_text(f"x{separator}y").splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a\u00a0b",
        "\u00a0«a»",
        "می\u200cخواهم",
        "👩\u200d👩\u200d👧",
        "\u200fא\u200e",
        "a\u2060b",
        "e\u0301",
        "▁",
        "a  b",
        "",
        "\x00a",
    ],
)
def test_all_other_characters_stay(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("src", "reason"),
    [
        ("", "empty"),
        (" \t\u2028 ", "empty"),
        ("\u200b", "empty"),
        ("\ufeff \u00a0", "empty"),
        ("\u3000\u2060\ufe0f\u3164", "empty"),
        ("a\x00b", "control characters"),
        ("a\x1bb", "control characters"),
        ("a\x7f", "control characters"),
        ("a\x9fb", "control characters"),
        ("a\ud800b", "control characters"),
        ("a\udfff", "control characters"),
        ("a\ufffdb", "control characters"),
        ("\u00a0\ufffd", "control characters"),
        ("a" * 161, "too long"),
        ("ein Hund", "identical"),
        ("\tein Hund\r", "identical"),
        ("a" * 63, "length ratio"),  # 73 / 18 > 4 = 72 / 18
        ("ü" * 32, "length ratio"),  # 74 / 18, in bytes
    ],
)
def test_reasons_on_both_sides(src: str, reason: str) -> None:
    assert clean_pair(src, "ein Hund", LIMITS) == reason
    assert clean_pair("ein Hund", src, LIMITS) == reason


@pytest.mark.parametrize("src", ["a" * 62, "ü" * 31, "\u00a0a", "🇩🇪", "\u200bx", "\ue000", "⠁", " a dog\u2028runs\n"])
def test_pairs_that_stay(src: str) -> None:
    assert clean_pair(src, "ein Hund", LIMITS) == (clean_text(src), "ein Hund")
    assert clean_pair("ein Hund", src, LIMITS) == ("ein Hund", clean_text(src))


def test_longest_allowed_side_counts_characters() -> None:
    assert clean_pair("a" * 160, "b" * 160, LIMITS) == ("a" * 160, "b" * 160)
    assert clean_pair("ü" * 160, "b" * 160, LIMITS) == ("ü" * 160, "b" * 160)


@pytest.mark.parametrize(
    ("src", "tgt", "reason"),
    [
        ("", "a\x00", "empty"),
        ("\x00", "a", "empty"),
        ("a\x00" * 200, "a", "control characters"),
        ("a" * 161, "a" * 161, "too long"),
        ("a" * 161, "a", "too long"),
    ],
)
def test_the_first_reason_counts(src: str, tgt: str, reason: str) -> None:
    assert clean_pair(src, tgt, LIMITS) == reason


def test_hashes_are_the_same_everywhere() -> None:
    # b2sum -l 64 of "a" and of "a\xffb", read as little-endian numbers
    assert [f"{h:016x}" for h in hash_texts(["a"])] == [bytes.fromhex("40f89e395b66422f")[::-1].hex()]
    assert hash_texts([]).dtype == np.uint64


def test_pair_hashes_see_where_the_sides_part() -> None:
    src, tgt = ["ab", "a", "abc", "", "ab\n", "ab"], ["c", "bc", "", "abc", "c", "\nc"]
    assert len(set(hash_pairs(hash_texts(src), hash_texts(tgt)).tolist())) == 6
    assert len(set(hash_pairs(hash_texts(["a", "b"]), hash_texts(["b", "a"])).tolist())) == 2
    assert len(set(hash_texts(["\ud800", "\udfff", "?", "\ufffd"]).tolist())) == 4


def test_hashes_do_not_depend_on_the_spelling_of_a_character() -> None:
    composed, decomposed = "caf\u00e9 \ud55c", "cafe\u0301 \u1112\u1161\u11ab"
    assert len(set(hash_texts([composed, decomposed]).tolist())) == 1
    known = bytes.fromhex("f350cf7d1954e332")[::-1].hex()  # b2sum -l 64 of the text in NFC
    assert f"{hash_texts([decomposed])[0]:016x}" == known


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_equal_hashes_counts(seed: int) -> None:
    random = Random(seed)
    values = [0, 2**64 - 1, *(random.getrandbits(64) for _ in range(random.choice([5, 300, 3000])))]
    hashes = random.choices(values, k=random.choice([0, 1, 2, 50, 200, 3000]))
    expected = [value not in hashes[:i] for i, value in enumerate(hashes)]
    assert find_first(np.array(hashes, np.uint64)).tolist() == expected


def test_what_programs_write_into_cells_for_a_missing_value() -> None:
    pandas = "nan NaN -nan -NaN NaT <NA> NA N/A n/a NULL null (null) \\N None #N/A #NA 1.#IND -1.#QNAN"
    spreadsheets = "#N/A #REF! #VALUE! #DIV/0! #NAME? #NULL! #NUM! #NV #N/D #WERT! #BEZUG! #¡VALOR! #¿NOMBRE? Err:502"
    for cell in (*pandas.split(), *spreadsheets.split(), "#N/A N/A", " nan "):
        assert is_missing_value(cell), cell
    for text in (
        "Na",
        "na",
        "Nana",
        "Na, gut",
        "Na!",
        "nan.",
        "no value",
        "Nullte",
        "#1",
        "#win!",
        "#hashtag",
        "",
        "!",
        "Err",
    ):
        assert not is_missing_value(text), text
