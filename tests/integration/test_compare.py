"""`mtx compare` of runs, models and files: its text, its JSON, and the exit code of `--fail-if-worse`."""

import json
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from mtx.storage import durable
from tests.integration.commands import mtx, set_settings, tree

Refused = Callable[..., None]


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> list[Path]:
    """A run, the same run with another seed, and one with another setting and worse translations."""
    roots = [Path(shutil.copytree(trained, tmp_path / name)) for name in ("first", "seed", "worse")]
    set_settings(roots[1], seed=2)
    set_settings(roots[2], model__dropout=0.3)
    reference, hypothesis = (roots[0] / "evaluation" / "heldout" / name for name in ("ref.txt", "hyp.txt"))
    for root in roots[:2]:  # nearly right, so that the third run is significantly worse
        write_hypotheses(root, reference.read_text().replace("acht", "neun", 3))
    assert hypothesis.read_text() != reference.read_text()
    write_hypotheses(roots[2], "".join(f"{line[:-4]}\n" for line in reference.read_text().split("\n")[:-1]))
    return roots


def write_hypotheses(root: Path, text: str) -> None:
    directory = root / "evaluation" / "heldout"
    (directory / "hyp.txt").write_text(text)
    durable.write_manifest(directory)


def test_runs_are_compared_with_settings_scores_and_verdicts(runs: list[Path]) -> None:
    result = mtx("compare", *runs)
    text = result.stdout.decode()
    assert result.returncode == 0, result.stderr.decode()
    assert f"  model.dropout: 0.1 ({runs[0]}), 0.1 ({runs[1]}), 0.3 ({runs[2]})\n" in text
    assert "  seed: 1 (" in text and "run_dir" not in text.split("heldout")[0]
    assert "heldout, 20 sentences" in text and "BLEU: nrefs:1|bs:1000|seed:12345|" in text
    verdict, note = text.split("\n")[:2]
    assert (
        verdict.startswith("model.dropout=0.3 is worse than model.dropout=0.1 by ")
        and "a statistically significant difference" in verdict
    )
    assert note.startswith("note: with fewer than three runs per setting")
    table = text.split("over the seeds:\n")[1].split("\n\n")[0].split("\n")
    assert table[0].split() == ["runs", "BLEU", "95%", "p", "chrF2", "95%", "p", "TER", "95%", "p"]
    assert table[1].split()[:5] == ["model.dropout=0.1", "2", table[3].split()[1], "±", "0.00"]
    assert table[2].split()[0] == str(runs[0]) and table[3].split()[0] == str(runs[1])
    assert f"{runs[1]} is" not in text and f"{runs[1]} and" not in text, "seed twins are not told apart"


def test_all_formats_have_the_same_figures(runs: list[Path], tmp_path: Path) -> None:
    value = json.loads(mtx("compare", *runs, "--format", "json").stdout)
    [bleu, *_] = value["test_sets"]["heldout"]["metrics"]
    first, second = bleu["groups"]
    assert [group["label"] for group in value["test_sets"]["heldout"]["groups"]] == [
        "model.dropout=0.1", "model.dropout=0.3",
    ]  # fmt: skip
    assert first["deviation"] == 0.0 and first["p_value"] is None
    page = mtx("compare", *runs, "--format", "markdown", "-o", tmp_path / "page.md")
    assert (page.returncode, page.stdout) == (0, b"")
    markdown = (tmp_path / "page.md").read_text()
    assert value["verdict"] == [markdown.split("\n")[0]] and f"| {first['mean']:.2f} ± 0.00 |" in markdown
    row = next(line for line in markdown.split("\n") if line.startswith("| model.dropout=0.3"))
    cells = [cell.strip() for cell in row.split("|")]
    assert (cells[2], cells[3], cells[5]) == ("1", f"{second['mean']:.2f}", "< 0.0001")
    latex = mtx("compare", *runs, "--format", "latex").stdout.decode()
    assert all(line[:1] in ("%", "\\", "") or line.endswith(r"\\") for line in latex.split("\n"))
    assert rf"{first['mean']:.2f} $\pm$ 0.00 &" in latex and latex.count(r"\begin{tabular}") == 1


def test_the_form_of_the_output_is_one(runs: list[Path], refused: Refused, tmp_path: Path) -> None:
    refused(2, ["csv"], "compare", *runs, "--format", "csv")
    refused(2, ["there is no directory"], "compare", *runs, "-o", tmp_path / "none" / "page.md")


def test_json_and_the_exit_code_of_a_significantly_worse_run(runs: list[Path]) -> None:
    worse = mtx("compare", runs[0], runs[2], "--json", "--fail-if-worse", "-m", "chrf")
    assert worse.returncode == 3
    value = json.loads(worse.stdout)
    assert value["differing_keys"] == {"model.dropout": [0.1, 0.3]}
    measured = value["test_sets"]["heldout"]["metrics"]
    assert [m["name"] for m in measured] == ["chrF2"] and measured[0]["groups"][1]["p_value"] < 0.05
    for pair in ([runs[0], runs[1]], [runs[2], runs[0]]):
        assert mtx("compare", *pair, "--fail-if-worse").returncode == 0


def test_files_of_hypotheses_are_compared(runs: list[Path], tmp_path: Path) -> None:
    hypotheses = [run / "evaluation" / "heldout" / "hyp.txt" for run in (runs[0], runs[2])]
    reference = runs[0] / "evaluation" / "heldout" / "ref.txt"
    result = mtx("compare", *hypotheses, "--ref", reference, "--fail-if-worse")
    assert result.returncode == 3 and b"ref.txt, 20 sentences" in result.stdout and b"differences:" not in result.stdout


def bleu(*arguments: object) -> list[float]:
    """The BLEU of all systems."""
    result = mtx("compare", *arguments, "--json")
    assert result.returncode == 0, result.stderr.decode()
    [test_set] = json.loads(result.stdout)["test_sets"].values()
    [metric] = [metric for metric in test_set["metrics"] if metric["name"] == "BLEU"]
    return [measured["score"] for measured in metric["systems"]]


def test_a_model_translates_the_test_set_of_a_run(trained: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(trained / "model", tmp_path / "model"))
    reference = trained / "evaluation" / "heldout" / "ref.txt"
    before = tree(trained), tree(model)
    result = mtx("compare", reference, trained, model, "--device", "cpu", "--json")
    value = json.loads(result.stdout)
    assert value["differing_keys"] == {}
    [perfect, of_run, of_model] = value["test_sets"]["heldout"]["metrics"][0]["systems"]
    assert perfect["score"] == pytest.approx(100) and of_run["score"] == of_model["score"] < 100
    words = mtx("compare", model, trained, "--test", "heldout").stdout.decode()
    assert f"{trained} and {model} are equal in BLEU" in words and "differences:" not in words
    assert (tree(trained), tree(model)) == before


def test_differing_keys_and_seeds_are_those_of_runs_only(runs: list[Path]) -> None:
    result = mtx("compare", runs[0] / "model", runs[0], runs[2], runs[1])
    text = result.stdout.decode()
    assert f"  model.dropout: 0.1 ({runs[0]}), 0.3 ({runs[2]}), 0.1 ({runs[1]})\n" in text, result.stderr.decode()
    model, twins, first, _, other = text.split("over the seeds:\n")[1].split("\n")[1:6]
    assert model.split()[:2] == [str(runs[0] / "model"), "1"] and other.split()[:2] == ["model.dropout=0.3", "1"]
    assert twins.split()[:5] == ["model.dropout=0.1", "2", first.split()[1], "±", "0.00"]


def test_models_and_files_are_compared_on_files_in_any_normalization(trained: Path, tmp_path: Path) -> None:
    directory = trained / "evaluation" / "heldout"
    src, hyp, ref = (directory / name for name in ("src.txt", "hyp.txt", "ref.txt"))
    decomposed = tmp_path / "nfd"
    decomposed.write_text(unicodedata.normalize("NFD", ref.read_text()))
    assert decomposed.read_text() != ref.read_text()
    scores = bleu(trained / "model", trained, hyp, ref, decomposed, "--src", src, "--ref", decomposed)
    assert scores[0] == scores[1] == scores[2] < 100 and scores[3:] == [pytest.approx(100)] * 2
    assert bleu(trained, hyp) == scores[:2]
    assert bleu(trained, decomposed) == [scores[0], pytest.approx(100)]


def with_two_test_sets(root: Path) -> list[Path]:
    """A copy of a run with a second test set, twice."""
    copy = Path(shutil.copytree(root, root.with_name("two")))
    shutil.copytree(copy / "evaluation" / "heldout", copy / "evaluation" / "second")
    return [copy, copy]


def test_wrong_requests_are_refused(runs: list[Path], tmp_path: Path, refused: Refused) -> None:
    short = tmp_path / "short"
    short.write_text("one\n")
    reference = runs[0] / "evaluation" / "heldout" / "ref.txt"
    refused(2, ["two or more systems"], "compare", runs[0])
    refused(1, ["short has 1 lines, the references have 20"], "compare", runs[0], short)
    refused(2, ["short: not a run directory", "--ref FILE"], "compare", short, runs[0] / "model")
    refused(
        2,
        ["model: this model needs the source text", "--src FILE"],
        "compare",
        runs[0] / "model",
        short,
        "--ref",
        reference,
    )
    for misplaced in (("--src", reference), ("--direction", "en-de"), ("--ref", reference, "--test", "heldout")):
        refused(2, ["go with --ref, --test goes with runs"], "compare", runs[0], runs[1], *misplaced)
    several = ["--ref: compare takes one file of references, got 2", "mtx evaluate --hyp"]
    refused(2, several, "compare", reference, reference, "--ref", reference, "--ref", reference)
    refused(2, ["short: ambiguous; choose the test set", "--test "], "compare", *with_two_test_sets(runs[0]), short)
    refused(2, ["not a model directory"], "compare", runs[1], tmp_path)
    refused(2, ["--test x", "they have heldout"], "compare", runs[0], runs[1], "--test", "x")
    refused(1, ["short has 1 lines, the references have 20"], "compare", reference, short, "--ref", reference)
    (runs[1] / "evaluation" / "heldout" / "ref.txt").write_text("another\n")
    refused(1, ["ref.txt: "], "compare", runs[0], runs[1])
    durable.write_manifest(runs[1] / "evaluation" / "heldout")
    refused(1, ["ref.txt: differs from the references of"], "compare", runs[0], runs[1])
    shutil.rmtree(runs[1] / "evaluation")
    refused(2, ["no common test set"], "compare", runs[0], runs[1])


def test_control_characters_of_untrusted_names_are_escaped(tmp_path: Path) -> None:
    for name, text in (("ref", "a b c d e"), ("first", "a b c d"), ("\x1b]0;owned\x07", "a x")):
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    result = mtx("compare", tmp_path / "first", tmp_path / "\x1b]0;owned\x07", "--ref", tmp_path / "ref")
    assert result.returncode == 0 and b"\x1b" not in result.stdout and b"\\x1b]0;owned" in result.stdout


def test_a_run_compared_with_itself_is_no_second_seed(runs: list[Path]) -> None:
    again = mtx("compare", runs[0], runs[0], runs[1], "--json", "-m", "bleu")
    groups = json.loads(again.stdout)["test_sets"]["heldout"]["groups"]
    assert [group["members"] for group in groups] == [[0, 2], [1]]


def test_a_run_that_has_not_ended_is_named_with_the_command_that_goes_on(runs: list[Path], refused: Refused) -> None:
    assert b"stopped" not in mtx("compare", *runs[:2]).stdout
    spaced = runs[1].rename(runs[1].with_name("second seed"))
    with (spaced / "metrics.jsonl").open("a") as file:
        file.write('{"event": "start", "step": 36}\n')
    command = shlex.join([sys.executable, "-m", "mtx", "train", str(spaced)])
    state = f"{spaced} is stopped at step 36 of 40: {command} resumes it"
    told = mtx("compare", runs[0], spaced).stdout.decode()
    assert f"\nnote: {state}; its translations are of an earlier step\n" in told
    shutil.rmtree(spaced / "evaluation")
    refused(2, ["no common test set"], "compare", runs[0], spaced)


def test_runs_on_other_text_are_no_seed_twins(runs: list[Path]) -> None:
    record = runs[1] / "sources.json"
    stored = durable.read_json(record)
    stored["files"][0]["sha256"] = "0" * 64
    durable.write_json(record, stored)
    text = mtx("compare", *runs[:2], "-m", "bleu").stdout.decode()
    first, name = durable.read_json(runs[0] / "sources.json")["files"][0], Path(stored["files"][0]["path"]).name
    assert f"  text: {name} {first['sha256'][:8]} ({runs[0]}), {name} 00000000 ({runs[1]})\n" in text
    assert f"{runs[1]} and {runs[0]} are equal in BLEU" in text and "differ only in their seeds" not in text


def test_seed_twins_are_never_worse(runs: list[Path]) -> None:
    """The third run has worse translations; here it is a twin of the first."""
    set_settings(runs[2], model__dropout=0.1, seed=3)
    result = mtx("compare", runs[0], runs[2], "--fail-if-worse")
    assert result.returncode == 0 and result.stdout.startswith(b"the 2 runs differ only in their seeds: BLEU ")
    assert b" is worse" not in result.stdout and b"chance" not in result.stdout
