"""A run of several directions: trained, resumed, on two ranks, evaluated, compared and adapted; its card and report."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import made_once
from tests.integration.commands import TINY, events, mtx, pairs
from tests.ranks import start_ranks

pytestmark = pytest.mark.seconds
Refused = Callable[..., None]
FRENCH = ["zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"]
DIRECTIONS = ["en-de", "de-en", "en-fr"]
TESTS = [f"heldout.{direction}" for direction in DIRECTIONS]
SETTINGS = [
    *TINY[2:], "data.train=digits", f"data.directions={','.join(DIRECTIONS)}", "precision=fp32", "training.cooldown=0",
    "training.batch_tokens=384", "training.micro_batch_tokens=32", "training.max_steps=8", "training.validate_every=4",
    "training.average_last=1",
]  # fmt: skip
WEIGHTS = Path("checkpoints", "step-00000008", "model.safetensors")


def train(*arguments: Any) -> str:
    result = mtx("train", *arguments)
    assert result.returncode == 0, result.stderr.decode()
    return result.stderr.decode()


def scores(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "model" / "scores.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("text")
    lines = [*zip(*pairs(range(1000, 1400)), strict=True)]
    lines.append(tuple(" ".join(FRENCH[int(digit)] for digit in str(number)) for number in range(1000, 1400)))
    for language, side in zip(("en", "de", "fr"), lines, strict=True):
        (directory / f"digits.{language}").write_text("\n".join((*side, "")), encoding="utf-8")
    return f"data.dir={directory}"


@pytest.fixture(scope="module")
def whole(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(directory: Path) -> None:
        train("own-text", *SETTINGS, text, f"run_dir={directory / 'run'}")

    return made_once("directions", make, tmp_path_factory) / "run"


def test_each_direction_has_its_scores_and_the_mean_is_one_more(whole: Path) -> None:
    info = json.loads((whole / "model" / "config.json").read_text())
    assert info["directions"] == DIRECTIONS and not {"src", "tgt"} & info.keys()
    stored = scores(whole)
    assert [name for name in stored if name not in ("format", "run")] == [*TESTS, "heldout"]
    for metric in ("bleu", "chrf", "ter"):
        mean = sum(stored[name][metric]["score"] for name in TESTS) / 3
        assert stored["heldout"][metric]["score"] == pytest.approx(mean)
    for event in (event for event in events(whole) if event["event"] == "validation"):
        assert [*event["by_direction"]] == DIRECTIONS
        assert event["bleu"] == pytest.approx(sum(event["by_direction"].values()) / 3)
    for name, words in zip(TESTS, ("eins", "one", "un"), strict=True):
        assert words in (whole / "evaluation" / name / "ref.txt").read_text(encoding="utf-8").split()
    card = (whole / "model" / "README.md").read_text(encoding="utf-8")
    assert "\n# `en` to `de`, `de` to `en`, `en` to `fr`\n" in card and 'language: ["en", "de", "fr"]\n' in card
    assert "\n- `heldout.en-fr`: chrF2 " in card and "\n- `digits`, `en` to `fr`: 400 pairs;" in card
    assert "`mean of 3 language pairs`" in card


def test_evaluate_compare_and_report_show_each_direction(whole: Path, tmp_path: Path) -> None:
    result = mtx("evaluate", whole, "--json")
    assert result.returncode == 0, result.stderr.decode()
    measured, stored = json.loads(result.stdout), scores(whole)
    assert [*measured] == [*TESTS, "heldout"]
    assert all(
        value["bleu"]["score"] == pytest.approx(stored[name]["bleu"]["score"]) for name, value in measured.items()
    )
    other = Path(shutil.copytree(whole, tmp_path / "other"))
    for systems in ((whole, other), (whole, other / "model")):
        result = mtx("compare", *systems)
        assert result.returncode == 0, result.stderr.decode()
        head, *rows = result.stdout.decode().split("heldout, mean of 3 directions\n")[1].split("\n")[:3]
        assert head.split() == ["BLEU", "chrF2", "TER"] and len({tuple(row.split()[1:]) for row in rows}) == 1
        bleu = stored["heldout"]["bleu"]["score"]
        assert rows[0].split()[1] == f"{bleu:.2f}"
    result = mtx("report", whole, "-o", tmp_path / "report.html", draws=True)
    assert result.returncode == 0, result.stderr.decode()
    page = re.sub("<[^>]+>", "", (tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "en to de, de to en, en to fr: run" in page and "heldout, mean of 3 directions" in page
    assert "digits en-fr" in page


def test_a_resumed_run_is_the_uninterrupted_one(whole: Path, text: str, tmp_path: Path) -> None:
    halves = tmp_path / "halves"
    train("own-text", *SETTINGS, text, f"run_dir={halves}", "training.max_steps=4")
    assert "resuming from step 4" in train(halves, "training.max_steps=8")
    for name in (WEIGHTS, WEIGHTS.with_name("optimizer.safetensors"), Path("model", "model.safetensors")):
        assert (halves / name).read_bytes() == (whole / name).read_bytes()
    assert [scores(run)[TESTS[2]] for run in (halves, whole)] == [scores(whole)[TESTS[2]]] * 2
    assert "this run is finished" in train("own-text", *SETTINGS, text, f"run_dir={halves}")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")
def test_two_ranks_learn_and_translate_what_one_does(whole: Path, text: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    team = start_ranks(2, "own-text", *SETTINGS, text, f"run_dir={run}")
    assert team.wait() == [0, 0], team.err()
    weights, there = load_file(run / WEIGHTS), load_file(whole / WEIGHTS)
    for name, tensor in weights.items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(tensor, there[name], rtol=0, atol=1e-5)
    validations = [[event["nll"] for event in events(path) if event["event"] == "validation"] for path in (run, whole)]
    assert validations[0] == pytest.approx(validations[1], abs=1e-4)
    for name in TESTS:
        texts = [(path / "evaluation" / name / "hyp.txt").read_text(encoding="utf-8") for path in (run, whole)]
        assert texts[0] == texts[1]


def test_an_adaptation_may_have_fewer_or_other_directions(whole: Path, text: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["own-text", f"training.init_from={whole / 'model'}", *SETTINGS, text]
    err = train(*settings, "data.directions=de-en,de-fr", f"run_dir={run}")
    assert f"warning: {whole / 'model'} translates en-de+de-en+en-fr, this run de-en+de-fr" in err
    assert f"translate {run} --from de --to en\n" in err  # what to do next
    assert [gain["test"] for gain in scores(run)["run"]["gains"]] == ["heldout.de-en", "heldout.de-fr"]
    assert (run / "before" / "heldout.de-fr" / "hyp.txt").is_file()
    before = (run / "before" / "heldout.de-en" / "ref.txt").read_text(encoding="utf-8")
    assert set(before.split()) <= {word for line in pairs(range(1000, 1400)) for word in line[0].split()}


def test_a_language_that_the_model_lacks_is_refused_before_text_is_read(
    whole: Path, refused: Refused, tmp_path: Path
) -> None:
    words = ["the model has no language yo; it has de, en, fr"]
    settings = [f"training.init_from={whole}", "data.train=nothing", f"run_dir={tmp_path / 'run'}"]
    refused(2, words, "train", "own-text", *settings, "data.directions=en-yo,yo-en")
    assert not (tmp_path / "run").exists()


def test_a_metric_of_a_program_has_a_score_for_each_direction_and_their_mean(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    code = 'import sys; print("# mine"); print(*map(len, sys.stdin), sep="\\n")'
    option = ["--metric-command", shlex.join([sys.executable, "-c", code])]
    values = json.loads(mtx("evaluate", run, *option, "--json").stdout)
    assert [*values] == [*TESTS, "heldout"]
    mean = sum(values[name]["mine"]["score"] for name in TESTS) / 3
    assert values["heldout"]["mine"] == {"score": pytest.approx(mean), "signature": "mean of 3 language pairs"}
    lines = mtx("evaluate", run, *option).stdout.decode().splitlines()
    assert lines[-1] == f"heldout mine {mean:.4f}  mean of 3 language pairs"
    table = mtx("compare", run, run, "-m", "ter", *option).stdout.decode().partition("heldout, mean of 3 directions")[2]
    assert table.split()[:2] == ["TER", "mine"] and f"{mean:.4f}" in table
