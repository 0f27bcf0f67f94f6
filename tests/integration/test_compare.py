"""`mtx compare`: runs and files, in words and in JSON, and the exit code for nightly retraining."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mtx import files
from tests.integration.commands import mtx

Refused = Callable[..., None]


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> list[Path]:
    """A run, the same with another seed, and one with another setting and translations that are worse."""
    roots = [Path(shutil.copytree(trained, tmp_path / name)) for name in ("first", "seed", "worse")]
    for root, old, new in ((roots[1], "seed: 1", "seed: 2"), (roots[2], "dropout: 0.1", "dropout: 0.3")):
        config = root / "config.yaml"
        assert config.read_text().count(old) == 1
        config.write_text(config.read_text().replace(old, new))
    reference, hypothesis = (roots[0] / "evaluation" / "heldout" / name for name in ("ref.txt", "hyp.txt"))
    for root in roots[:2]:  # nearly right, so that something can be worse
        write(root, reference.read_text().replace("acht", "neun", 3))
    assert hypothesis.read_text() != reference.read_text()
    write(roots[2], "".join(f"{line[:-4]}\n" for line in reference.read_text().split("\n")[:-1]))
    return roots


def write(root: Path, text: str) -> None:
    directory = root / "evaluation" / "heldout"
    (directory / "hyp.txt").write_text(text)
    files.write_manifest(directory)


def test_runs(runs: list[Path]) -> None:
    found = mtx("compare", *runs)
    text = found.stdout.decode()
    assert found.returncode == 0, found.stderr.decode()
    assert f"  model.dropout: 0.1 ({runs[0]}), 0.1 ({runs[1]}), 0.3 ({runs[2]})\n" in text
    assert "  seed: 1 (" in text and "run_dir" not in text.split("heldout")[0]
    assert "heldout, 20 sentences" in text and "BLEU  nrefs:1|bs:1000|seed:12345|" in text
    assert text.count("  2 runs that differ in their seeds: ") == 3
    assert f"{runs[1]} and {runs[0]} are equal in BLEU" in text
    assert f"{runs[2]} is worse than {runs[0]} by " in text and "and not by chance" in text


def test_json_and_the_exit_code_for_a_worse_one(runs: list[Path]) -> None:
    worse = mtx("compare", runs[0], runs[2], "--json", "--fail-if-worse", "-m", "bleu", "--paired", "ar")
    assert worse.returncode == 3
    value = json.loads(worse.stdout)
    assert value["differing_keys"] == {"model.dropout": [0.1, 0.3]} and value["same_but_for_seed"] == [[0], [1]]
    measured = value["test_sets"]["heldout"]["metrics"]
    assert [m["name"] for m in measured] == ["BLEU"] and measured[0]["systems"][1]["p_value"] < 0.05
    for pair in ([runs[0], runs[1]], [runs[2], runs[0]]):
        assert mtx("compare", *pair, "--fail-if-worse").returncode == 0


def test_files(runs: list[Path], tmp_path: Path) -> None:
    hypotheses = [run / "evaluation" / "heldout" / "hyp.txt" for run in (runs[0], runs[2])]
    reference = runs[0] / "evaluation" / "heldout" / "ref.txt"
    found = mtx("compare", *hypotheses, "--ref", reference, "--fail-if-worse")
    assert found.returncode == 3 and b"ref.txt, 20 sentences" in found.stdout and b"what differs" not in found.stdout


def test_asked_wrongly(runs: list[Path], tmp_path: Path, refused: Refused) -> None:
    short = tmp_path / "short"
    short.write_text("one\n")
    reference = runs[0] / "evaluation" / "heldout" / "ref.txt"
    refused(2, ["two or more systems"], "compare", runs[0])
    refused(2, ["short: is not a run directory", "--ref FILE"], "compare", runs[0], short)
    refused(2, ["--test x", "they have heldout"], "compare", runs[0], runs[1], "--test", "x")
    refused(1, ["short has 1 lines, the references have 20"], "compare", reference, short, "--ref", reference)
    (runs[1] / "evaluation" / "heldout" / "ref.txt").write_text("another\n")
    refused(1, ["ref.txt: "], "compare", runs[0], runs[1])
    files.write_manifest(runs[1] / "evaluation" / "heldout")
    refused(1, ["ref.txt: is not that of"], "compare", runs[0], runs[1])
    shutil.rmtree(runs[1] / "evaluation")
    refused(2, ["no test set in common"], "compare", runs[0], runs[1])
