"""Comparisons break scores down by sentence length.

What `mtx compare` prints of them says which test the p-values are of, and shows every figure once.
"""

import json
from pathlib import Path
from typing import get_args

import pytest

from mtx.config import settings
from mtx.config.schema import Config
from mtx.data.languages import tokenizer_of
from mtx.errors import DataError
from mtx.evaluation.comparison import (
    Comparison,
    Format,
    Group,
    Results,
    compare,
    differing_settings,
    draw_table,
    groups_of,
    mean_tables,
    output_lines,
    setting_text,
    words,
)
from mtx.evaluation.significance import SentenceMean, System, p_text
from mtx.storage import durable
from mtx.storage.run_files import RunLayout


@pytest.fixture
def systems(tmp_path: Path) -> list[Path]:
    """A file, a run, a run with another dropout, and two runs with another seed."""
    paths = [tmp_path / name for name in ("hyp.txt", "base", "dropout", "seed", "same_seed")]
    paths[0].touch()
    for root, dropout, seed in zip(paths[1:], (0.1, 0.3, 0.1, 0.1), (1, 1, 2, 2), strict=True):
        root.mkdir()
        values = {"run_dir": str(root), "seed": seed, "model": {"dropout": dropout}}
        RunLayout(root).config.write_text(settings.dump(Config.model_validate(values)))
    return paths


def test_differing_settings_are_those_of_the_runs_without_their_places(systems: list[Path]) -> None:
    assert differing_settings(systems) == {"model.dropout": [0.1, 0.3, 0.1, 0.1], "seed": [1, 1, 2, 2]}
    assert differing_settings(systems[:2]) == {}


def members(systems: list[Path]) -> list[list[int]]:
    return [group.members for group in groups_of(systems, [path.name for path in systems])]


def test_runs_with_different_seeds_form_a_group_and_a_repeated_seed_does_not(systems: list[Path]) -> None:
    assert members(systems) == [[0], [1, 3], [2], [4]]


def record(run: Path, *sha256: str) -> None:
    files = [
        {"path": f"/text/{name}", "sha256": value} for name, value in zip(("a.tsv", "b.tsv"), sha256, strict=False)
    ]
    durable.write_json(RunLayout(run).sources, {"files": files})


def set_data(run: Path, **values: object) -> None:
    """Give a run the seed in its place and a `data` section."""
    seed = {"base": 1, "seed": 2, "same_seed": 3}[run.name]
    config = Config.model_validate({"run_dir": str(run), "seed": seed, "model": {"dropout": 0.1}, "data": values})
    RunLayout(run).config.write_text(settings.dump(config))


def test_runs_on_other_text_are_no_twins(systems: list[Path]) -> None:
    base, _, seed, same_seed = systems[1:]
    for run, second in ((base, "2" * 64), (seed, "2" * 64), (same_seed, "3" * 64)):
        set_data(run)
        record(run, "1" * 64, second)
    assert members([seed, base, same_seed]) == [[0, 1], [2]]
    files = [["a.tsv 11111111", f"b.tsv {second}"] for second in ("22222222", "33333333")]
    assert differing_settings([base, same_seed])["text"] == files
    labels = [group.label for group in groups_of([base, seed, same_seed], ["first", "second", "third"])]
    assert labels == ["first and 1 more seed", "third"]
    set_data(same_seed, dir="/other")
    labels = [group.label for group in groups_of([base, seed, same_seed], ["first", "second", "third"])]
    assert labels == ["data.dir=null", "data.dir=/other"]


def test_a_run_whose_record_is_damaged_is_no_twin(systems: list[Path]) -> None:
    record(systems[1], "1" * 64)
    RunLayout(systems[4]).sources.write_text("{")
    assert members([systems[1], systems[4]]) == [[0], [1]]


def test_a_setting_without_a_value_is_null(systems: list[Path]) -> None:
    set_data(systems[1], valid="b.tsv")
    labels = [group.label for group in groups_of([systems[1], systems[3], systems[4]], ["a", "b", "c"])]
    assert labels == ["a", "b", "c"]
    set_data(systems[4])
    labels = [group.label for group in groups_of([systems[1], systems[3], systems[4]], ["a", "b", "c"])]
    assert labels == ["data.valid=b.tsv", "data.valid=null"]


def test_values_are_shown_as_they_are_written() -> None:
    values = [None, True, 0.1, "b.tsv", ("a.tsv", 2)]
    assert list(map(setting_text, values)) == ["null", "true", "0.1", "b.tsv", "a.tsv,2"]


def compare_texts(references: list[str], *hypotheses: list[str]) -> Comparison:
    return compare([System(str(i), lines) for i, lines in enumerate(hypotheses)], references, ["bleu"])


def test_bleu_by_length() -> None:
    references = ["a b c d e f g h i j", "a b c d e f g h i j k", " ".join("abcdefghij" * 5), "one two three four"]
    first = list(references)
    second = [references[0], "a b c d e f g h i j x", references[2], "five"]
    comparison = compare_texts(references, first, second)
    assert [(b.shortest, b.longest, b.count) for b in comparison.lengths] == [(1, 10, 2), (11, 20, 1), (41, None, 1)]
    assert comparison.lengths[2].bleu == pytest.approx([100.0, 100.0])


@pytest.mark.parametrize("tgt, character", [("zh", "我"), ("ja", "の"), ("th", "ก")])
def test_lengths_are_in_characters_where_the_language_writes_no_spaces(tgt: str, character: str) -> None:
    references = [character * number for number in (5, 20, 21, 80, 81)]
    comparison = compare([System("a", references), System("b", references)], references, ["bleu"], tgt)
    assert comparison.length_unit == "characters"
    assert [(length_bin.length, length_bin.count) for length_bin in comparison.lengths] == [
        ("1 to 20", 2), ("21 to 40", 1), ("61 to 80", 1), ("81 and more", 1),
    ]  # fmt: skip
    assert compare_texts(["a b"], ["a b"], ["a b"]).length_unit == "words"


def test_unequal_numbers_of_lines_are_refused() -> None:
    with pytest.raises(DataError, match="^1 has 1 lines, the references have 2$"):
        compare_texts(["a", "b"], ["a", "b"], ["a"])
    with pytest.raises(DataError, match="nothing to score"):
        compare_texts([], [], [])


def test_runs_of_one_group_are_not_told_apart_and_groups_have_mean_and_deviation() -> None:
    references = [f"one two three four five {word} seven" for word in "abcdefghij"]
    right, half = references, [line.replace("seven", "x") for line in references[:5]] + references[5:]
    systems = [System(name, lines) for name, lines in (("a", right), ("b", half), ("c", ["x"] * 10), ("d", right))]
    groups = [Group("good", [0, 1]), Group("bad", [2]), Group("other", [3])]
    comparison = compare(systems, references, ["bleu"], groups=groups)
    good, bad, other = comparison.metrics[0].groups
    a, b, c, d = (measured.score for measured in comparison.metrics[0].systems)
    assert a == d == pytest.approx(100) and c < b < a
    assert (good.mean, good.deviation) == (pytest.approx((a + b) / 2), pytest.approx((a - b) / 2**0.5))
    assert good.p_value is None and (bad.mean, bad.deviation, other.deviation) == (c, None, None)
    verdicts = comparison.verdicts()
    assert [verdict.split(" by ")[0] for verdict in verdicts] == ["bad is worse than good", "other is better than good"]
    assert "1 run against 2, over seeds and sentences" in verdicts[0]
    twins = compare(systems[:2], references, ["bleu"], groups=groups[:1])
    assert twins.verdicts() == [f"the 2 runs differ only in their seeds: BLEU {good.mean:.2f} ± {good.deviation:.2f}"]


def test_single_systems_are_compared_in_pairs_beside_groups() -> None:
    references = [f"one two three four five {word} seven" for word in "abcdefghij"]
    worse = [line.replace("five", "x") for line in references]
    systems = [System(name, lines) for name, lines in (("a", references), ("b", worse), ("c", worse), ("d", worse))]
    groups = [Group("a", [0]), Group("b and c", [1, 2]), Group("d", [3])]
    metric = compare(systems, references, ["bleu"], groups=groups).metrics[0]
    alone = compare([systems[0], systems[3]], references, ["bleu"]).metrics[0]
    assert metric.groups[2].p_value == alone.groups[1].p_value
    assert metric.systems[::3] == alone.systems, "intervals of the same samples"
    assert metric.groups[1].p_value == pytest.approx(0, abs=1e-6)
    assert metric.signature == alone.signature


def test_chrf_decides_where_bleu_says_nothing() -> None:
    references = ["one", "two", "three"]
    assert compare([System("a", references), System("b", references)], references).decided_by == "chrF2"
    assert compare_texts(["a b c d e"], ["a b c d e"], ["a"]).decided_by == "BLEU"


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


@pytest.mark.parametrize("groups, test", [(TWO, "first group, good, by a test that accounts for random seeds and"),
                                          (SINGLES, "first system, a, by sacreBLEU's paired bootstrap")])  # fmt: skip
def test_every_form_names_the_test_and_what_it_is_against(groups: list[Group], test: str) -> None:
    for form in get_args(Format):
        text = "\n".join(output_lines(results(groups), form))
        assert text.count(f"p is for the difference to the {test}") == 1, form


def test_a_single_run_against_seeds_is_judged_under_a_condition() -> None:
    good, bad = Group("good", [0, 1]), Group("bad", [2])
    for groups in ([good, bad], [bad, good]):
        [verdict] = results(groups).headlines()
        assert (
            ", a statistically significant difference if other seeds of bad would vary as those of good (p" in verdict
        )
    [chance] = results([Group("a", [0]), Group("others", [1, 2, 3])]).headlines()
    assert "may be due to chance (p" in chance and "if other seeds" not in results(TWO).headlines()[0]


def test_a_p_value_is_written_in_one_way() -> None:
    apart = results(SINGLES, (0, 9))
    row = next(line for line in output_lines(apart, "text") if line.startswith("b  "))
    assert row.endswith("  0.0010") and "(p = 0.0010, " in apart.headlines()[0]
    assert p_text(0.00009) == "< 0.0001"


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


@pytest.mark.parametrize(
    "language, text, units",
    [
        ("en", "It is 2.5 km.", ["It", "is", "2.5", "km."]),
        ("bos", "dobar dan", ["dobar", "dan"]),  # Bosnian; bo and bod are Tibetan
        ("", "a b", ["a", "b"]),
        ("zh", "我在 IBM 工作8年", ["我", "在", "IBM", "工", "作", "8", "年"]),
        ("zh-Hant", "我們", ["我", "們"]),
        ("ja_JP", "です", ["で", "す"]),
        ("zho_Hans", "我们", ["我", "们"]),
        ("th", "ไปไหน", ["ไ", "ป", "ไ", "ห", "น"]),
        ("lo", "ໄປໃສ", ["ໄ", "ປ", "ໃ", "ສ"]),
        ("km", "ទៅណា", ["ទ", "ៅ", "ណ", "ា"]),
        ("my", "ဘယ်", ["ဘ", "ယ", "်"]),
        ("bo", "ང་", ["ང", "་"]),
    ],
)
def test_words_are_characters_where_a_language_writes_no_spaces(language: str, text: str, units: list[str]) -> None:
    assert words(text, tokenizer_of(language, [])) == units


def test_means_over_directions_are_of_the_metrics_that_all_have() -> None:
    def of(*metrics: str) -> Comparison:
        means = {name: SentenceMean([0.25, 0.5], f"{name}|v:1") for name in metrics}
        return compare([System("a", ["x", "y"], means), System("b", ["x", "y"], means)], ["x", "y"], ["bleu"])

    tables = mean_tables({"t.en-de": of("mine", "other"), "t.de-en": of("other")}, [("en", "de"), ("de", "en")])
    [(name, [head, *rows])] = tables.items()
    assert (name, head) == ("t, mean of 2 directions", ["", "BLEU", "other"])
    assert [row[2] for row in rows] == ["0.3750", "0.3750"]


ROWS = [["", "BLEU"], ["a_1 & b", "30.12 ± 0.31"], ["x|y", "9.00"]]


def test_text_is_aligned() -> None:
    assert draw_table(ROWS, "text") == ["                 BLEU", "a_1 & b  30.12 ± 0.31", "x|y              9.00"]


def test_markdown_escapes_the_bars_of_cells() -> None:
    assert draw_table(ROWS, "markdown") == [
        "|         |         BLEU |",
        "|:--------|-------------:|",
        "| a_1 & b | 30.12 ± 0.31 |",
        r"| x\|y    |         9.00 |",
    ]


def test_latex_escapes_and_needs_no_package() -> None:
    lines = draw_table([*ROWS, ["{50%}~^\\<$#>", ""]], "latex")
    assert lines[:2] == [r"\begin{tabular}{lr}", r"\hline"] and lines[-2:] == [r"\hline", r"\end{tabular}"]
    cells = [
        [cell.strip() for cell in line.removesuffix(r" \\").split(" & ")] for line in lines if line.endswith(r"\\")
    ]
    assert cells[0] == ["", "BLEU"] and cells[1] == [r"a\_1 \& b", r"30.12 $\pm$ 0.31"]
    escaped = r"\{50\%\}\textasciitilde{}\^{}\textbackslash{}\ensuremath{<}\$\#\ensuremath{>}"
    assert cells[2] == ["x|y", "9.00"] and cells[3] == [escaped, ""]


def test_the_test_of_metrics_of_programs_is_named() -> None:
    lines = ["a b c d e"] * 3
    means = {"c": SentenceMean([0.25, 0.5, 0.5], "made|v:1")}
    for measured, expected in (({}, False), (means, True)):
        result = compare([System(name, lines, measured) for name in "ab"], lines)
        assert ("both of its ends count" in result.test()) == expected
