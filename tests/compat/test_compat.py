"""Runs and models of earlier versions of mtx work: see README.md beside this file. They are used in copies."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mtx.files import durable
from tests.integration.commands import events, mtx, write_tsv

OLD = Path(__file__).with_name("format-1")
SRC = OLD / "finished/evaluation/test/src.txt"
TRANSLATIONS = (OLD / "finished/evaluation/test/hyp.txt").read_text(encoding="utf-8")
SCORE = "test BLEU 93.15  chrF2 96.7  TER 3.1"
WEIGHTS = Path("model/model.safetensors")
# what `interrupted` would have learned from in its next steps, had it not been interrupted
NEXT_LOSSES = {71: 2.88646, 72: 2.91423, 73: 2.93314, 74: 2.87458, 75: 2.87171}

Copy = Callable[[str], Path]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Copies an old directory and returns where the copy is."""
    return lambda name: Path(shutil.copytree(OLD / name, tmp_path / name))


def output(*arguments: Any) -> str:
    """What a command that succeeds prints on stdout."""
    result = mtx(*arguments)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def test_the_files_are_those_that_were_written() -> None:
    manifests = list(OLD.rglob("manifest.json"))
    assert len(manifests) == 12
    for manifest in manifests:
        durable.verify(manifest.parent)


def test_a_finished_run_is_understood(copy: Copy, tmp_path: Path) -> None:
    run = copy("finished")
    status = json.loads(output("status", run, "--json"))
    assert (status["state"], status["step"], status["best_step"]) == ("finished", 500, 500)
    assert "  d_model: 16 " in output("config", run)
    output("report", run)
    assert "93.1" in (run / "report.html").read_text(encoding="utf-8")
    output("attention", run, "the big child hears music", "-o", tmp_path / "attention.html")
    assert (tmp_path / "attention.html").stat().st_size > 10_000


def test_a_finished_run_translates_and_scores_as_it_did(copy: Copy) -> None:
    run = copy("finished")
    assert output("translate", run, SRC) == TRANSLATIONS
    assert output("translate", run / "model", SRC, "--beam", "1").count("\n") == 13
    log_probs = output("logprob", run, SRC, run / "evaluation/test/hyp.txt").split()
    assert [float(number) for number in log_probs[:2]] == pytest.approx([-1.303715, -1.583419], abs=1e-3)
    assert output("evaluate", run).startswith(SCORE)
    assert (run / "evaluation/test/hyp.txt").read_text(encoding="utf-8") == TRANSLATIONS


@pytest.mark.skipif(
    not torch.cpu._is_vnni_supported(),
    reason="products of 8 bits saturate without VNNI, and a model of 16 dimensions then translates wrongly",
)
def test_a_kept_conversion_for_ctranslate2_is_used_as_it_is(copy: Copy) -> None:
    pytest.importorskip("ctranslate2")
    run = copy("finished")
    for model in (run, run / "model/ctranslate2-int8"):
        result = mtx("translate", model, SRC, "--precision", "int8")
        assert result.stderr == b""  # where it would say that it converts
        # the last sentence has two translations of nearly the same score, which 8 bits may exchange
        assert result.stdout.decode().splitlines()[:-1] == TRANSLATIONS.splitlines()[:-1]


def test_a_finished_run_is_compared_with_a_model(copy: Copy) -> None:
    comparison = json.loads(output("compare", copy("finished"), copy("learned"), "--json"))
    bleu = comparison["test_sets"]["test"]["metrics"][0]
    assert [system["score"] for system in bleu["systems"]] == pytest.approx([93.149, 100.0], abs=1e-3)


def test_a_finished_run_stays_finished_until_it_may_train_on(copy: Copy) -> None:
    run = copy("finished")
    weights, told = (run / WEIGHTS).read_bytes(), events(run)
    assert output("train", run).startswith(SCORE)
    assert (run / WEIGHTS).read_bytes() == weights and events(run) == told
    output("train", run, "training.max_steps=505")
    assert [event["step"] for event in events(run) if event["event"] in ("start", "end")] == [0, 500, 500, 505]
    assert (run / WEIGHTS).read_bytes() != weights


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(copy: Copy) -> None:
    run = copy("interrupted")
    assert json.loads(output("status", run, "--json"))["state"] == "stopped"
    assert output("translate", run, SRC).count("\n") == 13
    assert output("train", run).startswith("heldout BLEU ")
    losses = {event["step"]: event["loss"] for event in events(run) if event["event"] == "train"}
    assert sorted(losses) == list(range(1, 121))
    assert {step: losses[step] for step in NEXT_LOSSES} == pytest.approx(NEXT_LOSSES, rel=1e-3)
    assert output("evaluate", run).startswith("heldout BLEU ")


@pytest.mark.parametrize("name", ["learned", "imported"])
def test_a_model_alone_translates_and_is_exported(name: str, copy: Copy, tmp_path: Path) -> None:
    model = copy(name)
    text = tmp_path / "text"
    text.write_text("the big child hears music\nthis green sheep finds light\n", encoding="utf-8")
    assert output("translate", model, text) == "das große Kind hört Musik\ndieses grüne Schaf findet Licht\n"
    pytest.importorskip("ctranslate2")
    assert "2 lines: 100.0% identical" in output("export", model, "--to", "ctranslate2", "--text", text)


def test_another_run_starts_from_a_model(copy: Copy, tmp_path: Path) -> None:
    text, run = write_tsv(tmp_path / "digits.tsv", range(1000, 1060)), tmp_path / "run"
    settings = [f"data.train={text}", "training.batch_tokens=256", "training.max_steps=2", f"run_dir={run}"]
    output("train", f"training.init_from={copy('imported')}", *settings)
    assert events(run)[-1]["step"] == 2
