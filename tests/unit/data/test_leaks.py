"""Pairs that have, or nearly have, a sentence of a set are found in any text, by one process and by several."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtx.data import workers
from mtx.data.leaks import SetText, find_leaks
from mtx.data.sources import Corpus
from mtx.data.tables import BLOCK_PAIRS

CORPUS = Corpus("train.tsv", partial(iter, []), (Path("train.tsv"),))
OTHER = "zu"  # a side that shares nothing


def batch(pairs: list[tuple[str, str]]) -> pa.RecordBatch:
    src, tgt = (list(side) for side in zip(*pairs, strict=True))
    rows = len(pairs)
    return pa.RecordBatch.from_pydict(
        {"line": range(1, rows + 1), "corpus": [0] * rows, "file": [0] * rows, "src": src, "tgt": tgt}
    )


def leaks(train: list[tuple[str, str]], test: list[tuple[str, str]]) -> Any:
    src, tgt = (list(side) for side in zip(*test, strict=True))
    [entry] = find_leaks([batch(train)], [SetText(src, tgt)], [CORPUS])
    return entry


SENTENCE = "The mayor of Bautzen opened the new fire station on Monday"


@pytest.mark.parametrize(
    ("text", "other", "kind"),
    [
        (SENTENCE, SENTENCE, "same"),
        ("Käse", "Ka\u0308se", "same"),
        ("<b>Save</b> the file", "Save the file", "same"),
        ("Press &amp; hold", " Press & hold\u2028", "same"),
        (SENTENCE, SENTENCE.upper() + "!", "near"),
        (SENTENCE, SENTENCE.replace("Bautzen", "Cottbus"), "near"),
        (SENTENCE, SENTENCE.replace("Bautzen", "Frankfurt (Oder)"), "near"),
        (SENTENCE, SENTENCE.replace("of Bautzen ", ""), "near"),
        (SENTENCE, f"Today {SENTENCE}", "near"),
        (SENTENCE, f"{SENTENCE} at noon", "near"),
        ("Page 12 of 1,205", "Page 7 of 9", "near"),
        ("Yes!", "yes", "near"),
        ("♪", "…", "near"),  # no words
        ("我昨天在学校里见到了老师", "我昨天在学校里见到了小王", "near"),
        (SENTENCE, SENTENCE.replace("Bautzen", "Cottbus").replace("Monday", "Friday"), None),  # two places
        (SENTENCE, SENTENCE.replace("Bautzen", "Frankfurt am Main"), None),
        (SENTENCE, f"{SENTENCE} and on the day before", None),
        ("Tom is not at home", "Tom is not at work", None),  # few words
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


words = st.lists(st.sampled_from("abc"), max_size=11)


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


def test_many_near_texts_take_time_in_proportion_to_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 pairs are like each of 2,000 lines: twenty million comparisons would take minutes."""
    monkeypatch.setattr(workers, "num_cores", lambda: 1)
    test = SetText([f"Page {number}" for number in range(2000)], [f"Seite {number}" for number in range(2000)])
    train = [(f"Page {number}", f"Seite {number}") for number in range(2000, 12_000)]
    batches = [batch(train[start : start + BLOCK_PAIRS]) for start in range(0, len(train), BLOCK_PAIRS)]
    [entry] = find_leaks(batches, [test], [CORPUS])
    assert entry["near_pairs"] == 10_000 and len(entry["lines"]) == 2000


def test_workers_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    test = [SetText([f"{SENTENCE} {number} is here"], ["ein"]) for number in range(2)]
    batches = [batch([(f"{SENTENCE} {number} is there", OTHER)] * 3) for number in range(5)]
    alone = find_leaks(batches, test, [CORPUS])
    monkeypatch.setattr(workers, "FEW_ITEMS", 1)
    monkeypatch.setattr(workers, "num_cores", lambda: 2)
    assert find_leaks(batches, test, [CORPUS]) == alone
    assert [entry["near_pairs"] for entry in alone] == [15, 15]
