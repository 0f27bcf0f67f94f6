"""Pairs that have, or nearly have, a sentence of a set are found in any text, by one process and by several."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtx.data.leaks import Leaks, find_matches
from mtx.data.sources import Corpus
from mtx.data.workers import map_in_workers

CORPUS = Corpus("train.tsv", partial(iter, []), (Path("train.tsv"),))
OTHER = "zu"  # a side that shares nothing


def batch(pairs: list[tuple[str, str]]) -> pa.RecordBatch:
    src, tgt = (list(side) for side in zip(*pairs, strict=True))
    rows = len(pairs)
    return pa.RecordBatch.from_pydict(
        {"line": range(1, rows + 1), "corpus": [0] * rows, "file": [0] * rows, "src": src, "tgt": tgt}
    )


def leaks(train: list[tuple[str, str]], test: list[tuple[str, str]], has_directions: bool = False) -> Any:
    src, tgt = (list(side) for side in zip(*test, strict=True))
    found = Leaks(src, tgt, has_directions)
    for _, _, pair, rests in find_matches(batch(train), found.sides, [(found.ends, found.rests)]):
        found.count(CORPUS, pair, rests)
    return found.report()


SENTENCE = "The mayor of Bautzen opened the new fire station on Monday"


@pytest.mark.parametrize(
    ("text", "other", "kind"),
    [
        (SENTENCE, SENTENCE, "same"),
        ("Käse", "Ka\u0308se", "same"),
        ("<b>Save</b> the file", "Save the file", "same"),
        ("Press &amp; hold", " Press & hold\u2028", "same"),
        ("<p>Hello</p>", "<p>Hello</p>", "same"),
        ("&nbsp;Hello<br>", "Hello", "same"),
        ("<br>", "<br>", "same"),
        ("♪", "♪", "same"),  # no words
        (SENTENCE, SENTENCE.upper() + "!", "near"),
        (SENTENCE, SENTENCE.replace("Bautzen", "Cottbus"), "near"),
        (SENTENCE, SENTENCE.replace("Bautzen", "Frankfurt (Oder)"), "near"),
        (SENTENCE, SENTENCE.replace("of Bautzen ", ""), "near"),
        (SENTENCE, f"Today {SENTENCE}", "near"),
        (SENTENCE, f"{SENTENCE} at noon", "near"),
        ("Page 12 of 1,205", "Page 7 of 9", "near"),
        ("Yes!", "yes", "near"),
        ("1 205 pages", "7 pages", "near"),
        ("我昨天在学校里见到了老师", "我昨天在学校里见到了小王", "near"),
        (SENTENCE, SENTENCE.replace("Bautzen", "Cottbus").replace("Monday", "Friday"), None),  # two places
        (SENTENCE, SENTENCE.replace("Bautzen", "Frankfurt am Main"), None),
        (SENTENCE, f"{SENTENCE} and on the day before", None),
        ("Tom is not at home", "Tom is not at work", None),  # few words
        ("♪", "…", None),
        ("_File", "_Quit", None),
        ("กิน", "กัน", None),
        ("我昨天在学校里见到了老师", "他明天要去北京看望他的父母", None),
        ("मैं कल स्कूल गया था", "मैं कल बाज़ार गया था", None),  # vowel signs do not end a word
        ("Yes", "Yes, please", None),
        ("the new fire station", "new the fire station", None),
        ("ab c", "a bc", None),
    ],
)
def test_what_is_nearly_the_same(text: str, other: str, kind: str | None) -> None:
    numbers = {"same": (1, 0), "near": (0, 1), None: (0, 0)}[kind]
    for train, test in ((text, other), (other, text)):
        for entry in (leaks([(train, OTHER)], [(test, "ein")]), leaks([(OTHER, train)], [("ein", test)])):
            assert (entry["train_pairs"], entry["near_pairs"]) == numbers
            assert entry["lines"] == ([1] if kind else [])


words = st.lists(st.sampled_from("abc"), min_size=1, max_size=11)


def is_near(one: list[str], other: list[str]) -> bool:
    """The definition, by trying all cuts."""
    for first, first_cut, second_cut in product(range(12), range(3), range(3)):
        rest = one[:first] + ["|"] + one[first + first_cut :]
        same = rest == other[:first] + ["|"] + other[first + second_cut :]
        fits = first + first_cut <= len(one) and first + second_cut <= len(other)
        if same and fits and (first_cut == second_cut == 0 or len(rest) - 1 >= 6):
            return True
    return False


@given(words, words)
def test_near_texts_are_those_of_the_definition(one: list[str], other: list[str]) -> None:
    entry = leaks([(" ".join(one) + " !", OTHER)], [(" ".join(other) + " ?", "ein")])
    assert entry["near_pairs"] == is_near(one, other)


def test_the_entry_counts_pairs_once_and_shows_three_examples() -> None:
    test = [(f"{SENTENCE} in hall {letter}", f"Der Bürgermeister kam {letter}") for letter in "ABCDE"]
    near = [(f"{SENTENCE} in room {letter}", f"Der Bürgermeister ging {letter}") for letter in "ABCDE"]
    entry = leaks([*near, test[3], (OTHER, test[3][1]), (OTHER, "nichts")], [*test, ("x", "y")])
    assert (entry["train_pairs"], entry["near_pairs"], entry["lines"]) == (2, 5, [1, 2, 3, 4, 5])
    assert entry["example"] == {"corpus": "train.tsv", "line": 6, "src": test[3][0], "tgt": test[3][1]}
    assert [example["line"] for example in entry["near_examples"]] == [1, 2, 3]
    assert entry["near_examples"][0]["like"] == test[0][0]


def test_a_pair_may_have_one_line_on_each_side() -> None:
    entry = leaks([("one", "zwei")], [("one", "eins"), ("two", "zwei"), ("three", "drei")])
    assert (entry["train_pairs"], entry["near_pairs"], entry["lines"]) == (1, 0, [1, 2])


@pytest.mark.parametrize(("has_directions", "lines"), [(False, [1]), (True, [1, 2, 3])])
def test_a_side_is_compared_with_the_same_side_or_with_both_of_several_directions(
    has_directions: bool, lines: list[int]
) -> None:
    test = [("one", "eins"), ("two", "zwei"), ("three", "drei")]
    assert leaks([("one", "zu"), ("zwei", "so"), ("da", "three")], test, has_directions)["lines"] == lines


def test_many_near_texts_are_counted_pair_by_pair() -> None:
    test = [(f"Page {number}", f"Seite {number}") for number in range(500)]
    entry = leaks([(f"Page {number}", f"Seite {number}") for number in range(500, 3000)], test)
    assert entry["near_pairs"] == 2500 and entry["lines"] == [*range(1, 501)]


def test_the_example_is_like_the_nearest_text() -> None:
    far = SENTENCE.replace("Bautzen opened", "Cottbus closed")
    near = SENTENCE.replace("Bautzen", "Guben")
    for test in ((far, near), (near, far)):
        [example] = leaks([(SENTENCE, OTHER)], [(text, "ein") for text in test])["near_examples"]
        assert example["like"] == near


def test_a_worker_has_the_same_hashes() -> None:
    found = Leaks([SENTENCE], ["ein"], has_directions=False)
    find = partial(find_matches, sides=found.sides, indexes=[(found.ends, found.rests)])
    [matches] = map_in_workers(find, [batch([(SENTENCE, OTHER)])], num_workers=2, few_items=0)
    assert len(matches) == 1


def test_a_set_may_be_empty() -> None:
    entry = Leaks([], [], has_directions=False)
    assert find_matches(batch([("one", "eins")]), entry.sides, [(entry.ends, entry.rests)]) == []
    assert entry.report()["lines"] == []
