"""Test sets from files and from sacreBLEU's collection; `tests/integration/test_compare.py` reads those of runs."""

from pathlib import Path

import pytest

from mtx.errors import DataError, UsageError
from mtx.evaluation import test_sets
from mtx.scoring.metrics import TestSet


def test_parallel_lines_name_both_counts(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("1\n2\n3\n")
    with pytest.raises(DataError, match="a has 2 lines, .*b has 3"):
        test_sets.parallel_lines(tmp_path / "a", tmp_path / "b")


def test_files_make_a_test_set(tmp_path: Path) -> None:
    for name in ("src", "a", "b", "hyp"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "two").write_text("1\n2\n")
    src, a, b, hyp, two = (tmp_path / name for name in ("src", "a", "b", "hyp", "two"))
    made = test_sets.test_set_of_files([hyp], src, [a, b], "de")
    assert (made.name, made.sources, made.references, made.more_references) == ("src", ["src"], ["a"], [["b"]])
    assert made.hypotheses == {hyp: ["hyp"]} and made.tgt == "de"
    assert test_sets.test_set_of_files([], None, [b], "") == TestSet("b", "", [], ["b"])
    for files in ((None, [a, two]), (src, [a, two]), (two, [a])):
        with pytest.raises(DataError, match="has [12] lines, .* has [12]"):
            test_sets.test_set_of_files([], *files, "")


@pytest.mark.parametrize("name, pair", [("wmt99", "en-de"), ("wmt14/full", "en-xx"), ("wmt14/full", "german")])
def test_unknown_test_sets_and_directions_are_refused(name: str, pair: str) -> None:
    with pytest.raises(UsageError):
        test_sets.sacrebleu_test_set(name, pair)
