"""What `mtx compare` prints says which test the p-values are of, and shows every figure once."""

import json

import pytest

from mtx.evaluation.comparison import compare, p_text
from mtx.evaluation.comparison_output import FORMATS, Results, output_lines
from mtx.evaluation.differing_settings import Group
from mtx.evaluation.significance import System

REFERENCES = [f"one two three four five {word} seven eight" for word in "abcdefghijklmnopqrst"]


def results(groups: list[Group], wrong: tuple[int, ...] = (1, 2, 8, 9)) -> Results:
    """Results of runs that have a word replaced in `wrong` of 9 lines."""
    systems = [
        System(name, [line.replace("five", "x") if n % 9 < bad else line for n, line in enumerate(REFERENCES)])
        for name, bad in zip("abcd", wrong, strict=False)
    ][: sum(len(group.members) for group in groups)]
    comparison = compare(systems, REFERENCES, ["bleu"], groups=groups)
    names = [system.name for system in systems]
    keys: dict[str, list[object]] = {"data.valid": [None] * len(names)}
    return Results(names, keys, {}, {"heldout": comparison})


TWO = [Group("good", [0, 1]), Group("bad", [2, 3])]
SINGLES = [Group("a", [0]), Group("b", [1])]


@pytest.mark.parametrize("groups, test", [(TWO, "first group, good, by a test that counts other seeds and"),
                                          (SINGLES, "first system, a, by sacreBLEU's paired bootstrap")])  # fmt: skip
def test_every_form_names_the_test_and_what_it_is_against(groups: list[Group], test: str) -> None:
    for form in FORMATS:
        text = "\n".join(output_lines(results(groups), form))
        assert text.count(f"p is that of the difference to the {test}") == 1, form


def test_a_single_run_against_seeds_is_judged_under_a_condition() -> None:
    good, bad = Group("good", [0, 1]), Group("bad", [2])
    for groups in ([good, bad], [bad, good]):
        [verdict] = results(groups).headlines()
        assert ", and not by chance if other seeds of bad would vary as those of good (p" in verdict
    [chance] = results([Group("a", [0]), Group("others", [1, 2, 3])]).headlines()
    assert "may be chance (p" in chance and "if other seeds" not in results(TWO).headlines()[0]


def test_a_p_value_is_written_in_one_way() -> None:
    apart = results(SINGLES, (0, 9))
    row = next(line for line in output_lines(apart, "text") if line.startswith("b  "))
    assert row.endswith("  0.0010") and "(p = 0.0010, " in apart.headlines()[0]
    assert p_text(0.00009) == "<0.0001" and p_text(0.00009, "p = ", "p < ") == "p < 0.0001"


def test_intervals_are_shown_by_their_ends() -> None:
    both = results(TWO)
    first = both.test_sets["heldout"].metrics[0].systems[0]
    shown = f"{first.interval[0]:.1f} to {first.interval[1]:.1f}"
    for form in ("text", "markdown", "latex"):
        text = "\n".join(output_lines(both, form))
        assert shown in text
    [system, *_] = json.loads(output_lines(both, "json")[0])["test_sets"]["heldout"]["metrics"][0]["systems"]
    assert tuple(system["interval"]) == first.interval


def test_a_single_group_has_no_column_for_p_and_columns_of_lengths_have_names() -> None:
    twins = results([Group("good", [0, 1])])
    lines = output_lines(twins, "text")
    assert lines[lines.index("mean ± sample standard deviation over the seeds:") + 1].split() == ["runs", "BLEU", "95%"]
    assert lines[lines.index("BLEU by words of the reference:") + 1].split() == ["sentences", "a", "b"]
    assert "| BLEU |" in "\n".join(output_lines(twins, "markdown")).replace("  ", "")
    assert (
        "p is" not in "\n".join(lines)
        and json.loads(output_lines(twins, "json")[0])["test_sets"]["heldout"]["test"] == ""
    )
    assert "  data.valid: null (a), null (b)" in lines
