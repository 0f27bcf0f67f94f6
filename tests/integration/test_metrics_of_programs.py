"""`mtx evaluate` and `mtx compare` by the metric of a program: shown, stored with a run, kept, computed once."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtx.storage import durable
from tests.integration.commands import ENVIRONMENT, mtx, set_settings, tree

CODE = """
import json, pathlib, sys
signature, calls = sys.argv[1:]
with open(calls, "a") as file:
    file.write("call\\n")
print("#", signature)
for line in sys.stdin:
    row = json.loads(line)
    shared = set(row["hyp"].split()) & set(row["ref"].split())
    print(len(shared) / len(row["ref"].split()) + len(row["src"]) / 1e6)
"""


class Program:
    """A metric that counts its calls."""

    def __init__(self, directory: Path):
        self.calls = directory / "calls"
        self.path = directory / "metric.py"
        self.path.write_text(CODE)

    def option(self, signature: str = "mine|v:1") -> list[str]:
        return ["--metric-command", shlex.join([sys.executable, *map(str, (self.path, signature, self.calls))])]

    def num_calls(self) -> int:
        return len(self.calls.read_text().split()) if self.calls.exists() else 0


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def heldout(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "evaluation" / "heldout" / "scores.json").read_text())["heldout"])


def printed(*arguments: Any, code: int = 0) -> str:
    result = mtx(*arguments)
    assert result.returncode == code, result.stderr.decode()
    return result.stdout.decode()


def write_hypotheses(run: Path, cut: int) -> None:
    """Nearly the references, without the ends of their lines."""
    directory = run / "evaluation" / "heldout"
    lines = (directory / "ref.txt").read_text().splitlines()
    (directory / "hyp.txt").write_text("".join(f"{line[: len(line) - cut]}\n" for line in lines))
    durable.write_manifest(directory)


def test_a_run_stores_and_keeps_the_numbers_and_compare_takes_them(
    run_copy: Path, program: Program, tmp_path: Path
) -> None:
    before = heldout(run_copy)
    lines = printed("evaluate", run_copy, *program.option()).splitlines()
    default = printed("evaluate", run_copy).splitlines()
    assert lines[:1] == default
    assert re.fullmatch(r"heldout mine \d\.\d{4} \[\d\.\d{3}, \d\.\d{3}\]  mine\|v:1", lines[1]), lines
    stored = heldout(run_copy)
    entry = stored.pop("mine")
    assert {name: value["score"] for name, value in stored.items()} == {n: v["score"] for n, v in before.items()}
    assert [*entry] == ["score", "interval", "signature", "command", "text", "sentences"]
    assert entry["score"] == pytest.approx(sum(entry["sentences"]) / len(entry["sentences"]))
    assert program.num_calls() == 1
    other = Path(shutil.copytree(run_copy, tmp_path / "other"))
    set_settings(other, model__dropout=0.3)
    files = tree(run_copy), tree(other)
    value = json.loads(printed("compare", run_copy, other, *program.option(), "--json"))
    measured = value["test_sets"]["heldout"]["metrics"][-1]
    assert (measured["name"], measured["systems"][0]["score"]) == ("mine", entry["score"])
    assert measured["systems"][0]["interval"] == entry["interval"] and program.num_calls() == 1
    write_hypotheses(other, 4)
    files = tree(run_copy), tree(other)
    printed("compare", run_copy, other, *program.option())
    assert program.num_calls() == 2, "the other text"
    assert (tree(run_copy), tree(other)) == files
    printed("evaluate", run_copy, *program.option())
    assert program.num_calls() == 3
    printed("evaluate", other)
    assert "mine" in heldout(other), "the model translates as before"
    write_hypotheses(run_copy, 4)
    scores = {"heldout": {**heldout(run_copy), "mine": {**entry, "text": "0" * 64}}}
    durable.write_json(run_copy / "evaluation" / "heldout" / "scores.json", scores)
    durable.write_manifest(run_copy / "evaluation" / "heldout")
    printed("evaluate", run_copy)
    assert heldout(run_copy) == stored, "of another text"


def test_only_chosen_metrics_are_shown_and_the_default_ones_are_stored_too(run_copy: Path, program: Program) -> None:
    lines = printed("evaluate", run_copy, "-m", "chrf++", "-m", "bleu", *program.option()).splitlines()
    assert [line.split()[1] for line in lines] == ["BLEU", "chrF++", "mine"]
    values = json.loads(printed("evaluate", run_copy, "-m", "ter", "--json"))
    assert [*values["heldout"]] == ["ter"]
    assert {*heldout(run_copy)} == {"mine", "bleu", "chrf", "ter"}


def test_chrf_with_words_is_that_of_the_sacrebleu_command(run_copy: Path) -> None:
    ref, hyp = (run_copy / "evaluation" / "heldout" / name for name in ("ref.txt", "hyp.txt"))
    command = [sys.executable, "-m", "sacrebleu", ref, "-i", hyp, "-m", "chrf", "--chrf-word-order", "2", "-w", "6"]
    theirs = json.loads(subprocess.run([*map(str, command)], env=ENVIRONMENT, capture_output=True, check=True).stdout)
    ours = json.loads(printed("evaluate", "--hyp", hyp, "--ref", ref, "-m", "chrf++", "--json"))["hyp.txt"]
    assert [*ours] == ["chrf++"] and round(ours["chrf++"]["score"], 6) == theirs["score"]
    assert ours["chrf++"]["signature"] == theirs["signature"]
    table = printed("compare", hyp, hyp, "--ref", ref, "-m", "chrf++")
    assert f"{theirs['score']:.2f}" in table and "are equal in chrF++" in table


def test_systems_are_compared_with_four_digits_in_all_formats(run_copy: Path, program: Program, tmp_path: Path) -> None:
    worse = Path(shutil.copytree(run_copy, tmp_path / "worse"))
    set_settings(worse, model__dropout=0.3)
    write_hypotheses(run_copy, 0)
    write_hypotheses(worse, 4)
    command = ["compare", run_copy, worse, "-m", "bleu", *program.option()]
    value = json.loads(printed(*command, "--json", "--fail-if-worse", code=3))
    measured = value["test_sets"]["heldout"]["metrics"][1]
    means = [f"{group['mean']:.4f}" for group in measured["groups"]]
    low, high = measured["systems"][1]["interval"]
    for form in ("text", "markdown", "latex"):
        text = printed(*command, "--format", form)
        assert all(word in text for word in (*means, f"{low:.3f} to {high:.3f}", "mine: mine|v:1"))
    gain = measured["groups"][1]["mean"] - measured["groups"][0]["mean"]
    assert f"{worse} is worse than {run_copy} by {-gain:.4f} mine, " in printed(*command)
    set_settings(worse, model__dropout=0.1, seed=2)
    assert re.search(r"  \d\.\d{4} ± \d\.\d{4}", printed(*command)), "the mean of two seeds"


def test_files_need_the_source_text(run_copy: Path, program: Program, refused: Any) -> None:
    src, hyp, ref = (run_copy / "evaluation" / "heldout" / name for name in ("src.txt", "hyp.txt", "ref.txt"))
    need = ["needs the source text", "--src FILE"]
    refused(2, need, "evaluate", "--hyp", hyp, "--ref", ref, *program.option())
    refused(2, need, "compare", hyp, ref, "--ref", ref, *program.option())
    assert program.num_calls() == 0
    lines = printed("evaluate", "--hyp", hyp, "--ref", ref, "--src", src, *program.option()).splitlines()
    assert lines[1].startswith("hyp.txt mine 0.")
    table = printed("compare", hyp, ref, "--ref", ref, "--src", src, *program.option(), "-m", "bleu")
    assert "is better than" in table and program.num_calls() == 3
    short = run_copy / "short"
    short.write_text("eins\n")
    refused(1, ["short has 1 lines"], "compare", hyp, short, "--ref", ref, "--src", src, *program.option())
    several = mtx("evaluate", "--hyp", hyp, "--ref", ref, "--ref", ref, "--src", src, *program.option())
    assert b"against the first reference" in several.stderr


def test_changed_copies_are_scored_too(run_copy: Path, program: Program) -> None:
    values = json.loads(printed("evaluate", run_copy, "--robust", *program.option(), "--json"))
    assert len(values) == 5 and all("mine" in scores for scores in values.values())


def test_different_signatures_and_names_of_mtx_are_refused(
    run_copy: Path, program: Program, tmp_path: Path, refused: Any
) -> None:
    other = Path(shutil.copytree(run_copy, tmp_path / "other"))
    write_hypotheses(other, 4)
    printed("evaluate", run_copy, *program.option())
    path = run_copy / "evaluation" / "heldout" / "scores.json"
    path.write_text(path.read_text().replace('"mine|v:1"', '"mine|v:0"'))
    durable.write_manifest(path.parent)
    words = ["different signatures: mine|v:0, mine|v:1", "mtx evaluate RUN -m"]
    refused(1, words, "compare", run_copy, other, *program.option())
    before = tree(run_copy / "evaluation")
    refused(1, ["its name is 'BLEU'"], "evaluate", run_copy, *program.option("BLEU"))
    refused(2, ["-m blue: expected bleu, chrf"], "evaluate", run_copy, "-m", "blue")
    refused(2, ["-m comet: expected --metric-python", "unbabel-comet"], "compare", run_copy, other, "-m", "comet")
    assert tree(run_copy / "evaluation") == before
