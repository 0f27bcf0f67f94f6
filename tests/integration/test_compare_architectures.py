"""`scripts/studies/compare_architectures.py`: equal parameters, and at toy size equal time and a full table."""

import csv
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mtx.config.settings import resolve
from mtx.model.architectures import new_model
from tests.integration.commands import ENVIRONMENT, TINY, events

pytestmark = pytest.mark.extended

NAMES = ["transformer", "rnn", "decoder"]


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("recipe", ["multi30k-en-de", "multi30k-de-en", "demo", "wmt14-en-de-base"])
def test_an_architecture_has_as_many_parameters_as_the_transformer(recipe: str, name: str) -> None:
    """Within half a layer of the decoder alone, and a row and a column of the recurrent model."""
    from scripts.studies import compare_architectures  # imports matplotlib

    transformer = resolve(recipe, []).config.model
    config = resolve(recipe, compare_architectures.settings_of(name, transformer, 8000)).config.model
    with torch.device("meta"):
        size, target = (sum(p.numel() for p in new_model(each, 8000).parameters()) for each in (config, transformer))
    assert config.architecture == name
    layer = 4 * transformer.d_model**2 + 2 * transformer.d_model * transformer.d_ff
    assert abs(size - target) < (0.6 * layer if name == "decoder" else 0.01 * target)


def compare(directory: Path, corpus: Path, *options: str) -> list[dict[str, str]]:
    """The rows of the table after a call."""
    sizes = ["model.d_model=64", "model.d_ff=128", "model.num_encoder_layers=2", "model.num_decoder_layers=2"]
    tiny = [setting for setting in TINY if "max_steps" not in setting]
    settings = [f"data.train={corpus}", *tiny, *sizes, "training.validate_every=4"]
    command = [sys.executable, "-m", "scripts.studies.compare_architectures", "own-text", *settings]
    command += ["--dir", str(directory), "--jobs", "2", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=600)
    assert done.returncode == 0, done.stderr
    with (directory / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_all_have_equal_time_and_a_row(corpus: Path, tmp_path: Path) -> None:
    rows, runs = compare(tmp_path, corpus, "--minutes", "0.1"), [tmp_path / "own-text" / name for name in NAMES]
    assert [row[""] for row in rows] == [f"own-text, {name}" for name in NAMES]
    assert all(float(cell) >= 0 for row in rows for column, cell in row.items() if column)
    validations = [[event for event in events(run) if event["event"] == "validation"] for run in runs]
    target = max(min(event["ppl"] for event in of_run) for of_run in validations)
    for run, row, of_run in zip(runs, rows, validations, strict=True):
        end = events(run)[-1]
        assert (end["reason"], str(end["step"])) == ("time_limit", row["steps"])
        assert row["steps to P"] == str(next(event["step"] for event in of_run if event["ppl"] <= target + 1e-6))
        assert math.log(float(row["perplexity"])) == pytest.approx(min(e["nll"] for e in of_run), abs=0.5)
    page = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert f"P is {target:.2f}; sentences by words: 20 of 1 to 10; BLEU: nrefs:1" in page
    assert (tmp_path / "architectures.png").read_bytes().startswith(b"\x89PNG")

    before = [(run / "metrics.jsonl").read_bytes() for run in runs]
    rows = compare(tmp_path, corpus, "--minutes", "0.1", "--perplexity", "1.0001")
    assert [(run / "metrics.jsonl").read_bytes() for run in runs] == before, "the runs were finished"
    assert [row["steps to P"] for row in rows] == ["", "", ""]
