"""`mtx train` end to end: what it prints, what it leaves, what it does when called again."""

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from mtx.config import settings
from mtx.decoding.translator import Translator
from mtx.formatting import program_name
from mtx.training.events import Validation
from mtx.training.hooks import EventLog
from mtx.training.run import train as run_train
from mtx.training.trainer import Trainer
from tests.integration.commands import TINY, events, mtx, tree, write_sides

SCORE_LINE = re.compile(r"heldout BLEU \d+\.\d\d  chrF2 \d+\.\d  TER \d+\.\d  nrefs:1\|case:mixed\|\S+\n")


def test_prints_the_score_line_alone_on_stdout(trained: Path) -> None:
    assert SCORE_LINE.fullmatch((trained.parent / "stdout").read_text())


def test_stderr_holds_no_warning_of_a_library(trained: Path) -> None:
    err = (trained.parent / "stderr").read_text()
    assert "Warning" not in err and "/torch/" not in err and "\r" not in err
    assert "holding out 20 source sentences" in err and f"model: {trained / 'model'}" in err


def test_the_run_directory_is_what_the_design_says(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert names == {
        "config.yaml", "chosen.json", "data", "checkpoints", "model", "evaluation", "metrics.jsonl", "run.lock",
        "status.json", "report.html", "sources.json",
    }  # fmt: skip
    assert {path.name for path in (trained / "model").iterdir()} == {
        "model.safetensors", "config.json", "tokenizer.model", "tokenizer.json", "scores.json", "manifest.json",
        "README.md",
    }  # fmt: skip
    steps = {path.name for path in (trained / "checkpoints").iterdir()}
    assert steps >= {"step-00000032", "step-00000036", "step-00000040"}
    full = {path.parent.name for path in (trained / "checkpoints").rglob("optimizer.safetensors")}
    assert full >= {"step-00000036", "step-00000040"} and len(full) <= 3  # the best may be another one
    assert not [name for name in tree(trained) if ".tmp-" in name]
    for path in trained.rglob("*.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["format"] == 2, path
    assert "precision: auto" in (trained / "config.yaml").read_text()


def test_scores_json_holds_scores_signatures_and_the_run(trained: Path) -> None:
    scores = json.loads((trained / "model" / "scores.json").read_text())
    assert set(scores) == {"format", "heldout", "run"}
    assert set(scores["heldout"]) == {"bleu", "chrf", "ter"}
    assert all(set(metric) == {"score", "signature"} for metric in scores["heldout"].values())
    assert set(scores["run"]) == {
        "precision", "training_precision", "device", "torch", "seed", "config", "data", "code", "weights", "steps",
        "elapsed",
    }  # fmt: skip
    engine = Translator.load(trained / "model", device=scores["run"]["device"]).engine
    assert engine.name == "ctranslate2" and scores["run"]["precision"] == engine.precision == "fp32"
    weights = json.loads((trained / "model" / "config.json").read_text())["weights"]
    assert scores["run"]["weights"] == weights and weights in (trained / "model" / "README.md").read_text()


def test_metrics_have_one_object_per_event(trained: Path) -> None:
    found = events(trained)
    assert [event["step"] for event in found if event["event"] == "train"] == list(range(1, 41))
    assert [event["step"] for event in found if event["event"] == "validation"] == [20, 40]
    assert found[0]["event"] == "start" and found[-1] | {"time": 0} == {
        "event": "end", "time": 0, "step": 40, "reason": "max_steps",
    }  # fmt: skip


def test_each_validation_tells_the_same_sentences_and_what_became_of_them(trained: Path) -> None:
    first, second = (event["samples"] for event in events(trained) if event["event"] == "validation")
    assert len(first) == 5 and [s["src"] for s in first] == [s["src"] for s in second]
    assert all(sample["ref"] and set(sample) == {"src", "ref", "hyp"} for sample in first)
    assert f"  {first[0]['src']}\n    -> {first[0]['hyp'][:120]}" in (trained.parent / "stderr").read_text()


def test_a_finished_run_says_so_and_a_larger_max_steps_trains_on(
    run_copy: Path, trained: Path, settings: list[str]
) -> None:
    before = tree(run_copy)
    again = mtx("train", *settings, f"run_dir={run_copy}", "run_dir=" + str(run_copy))
    assert (
        again.returncode == 0 and b"this run is finished; increase training.max_steps to train further" in again.stderr
    )
    assert again.stdout == (trained.parent / "stdout").read_bytes()
    after = tree(run_copy)
    del before["config.yaml"], after["config.yaml"]  # it names its own run_dir
    assert after == before

    longer = mtx("train", run_copy, "training.max_steps=44")
    assert longer.returncode == 0 and b"resuming from step 40" in longer.stderr
    assert SCORE_LINE.fullmatch(longer.stdout.decode())
    assert events(run_copy)[-1]["step"] == 44


def test_the_licences_of_a_finished_run_may_change_and_only_its_card_does(run_copy: Path) -> None:
    before = tree(run_copy / "model")
    result = mtx("train", run_copy, "model.licence=CC-BY-4.0", "data.licence=bought for a project")
    assert result.returncode == 0 and b"this run is finished" in result.stderr
    after = tree(run_copy / "model")
    changed = {name for name, content in after.items() if before.get(name) != content}
    assert changed == {"README.md", "scores.json", "manifest.json"} and before.keys() == after.keys()
    card = after["README.md"].decode()
    assert "license: cc-by-4.0\n" in card and "training text: `bought for a project`; it may apply" in card
    assert before["README.md"].decode().partition("Licence of")[2].partition("\n")[2] in card
    again = mtx("train", run_copy)
    assert again.returncode == 0 and tree(run_copy / "model") == after


def test_a_finished_run_stays_finished_if_what_mattered_while_it_trained_changes(run_copy: Path) -> None:
    before = tree(run_copy / "model")
    changes = ["training.validate_every=7", "training.patience=9", "decoding.batch_tokens=640"]
    result = mtx("train", run_copy, *changes)
    assert result.returncode == 0 and b"this run is finished" in result.stderr
    assert tree(run_copy / "model") == before and "patience: 9" in (run_copy / "config.yaml").read_text()
    again = mtx("train", run_copy, "decoding.beam_size=2")
    assert again.returncode == 0 and b"this run is finished" not in again.stderr


def test_a_finished_run_names_the_setting_that_ended_it(run_copy: Path) -> None:
    metrics = run_copy / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"reason": "max_steps"', '"reason": "patience"'))
    assert b"increase training.patience to train further" in mtx("train", run_copy).stderr


def test_what_to_type_next_runs_this_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert program_name() == "mtx"
    (tmp_path / "mtx").write_text("another program")
    (tmp_path / "mtx").chmod(0o755)
    for path in (tmp_path, tmp_path / "nothing"):
        monkeypatch.setenv("PATH", str(path))
        assert program_name() == f"{sys.executable} -m mtx"


def test_two_text_files_with_given_sets(tmp_path: Path) -> None:
    for name, numbers in (("train", range(100, 400)), ("dev", range(400, 420)), ("news", range(420, 440))):
        write_sides(tmp_path, name, numbers)
    result = mtx(
        "train", f"data.dir={tmp_path}", "data.train=train", "data.valid=valid", "data.test=news", *TINY,
        "training.max_steps=4", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.startswith(b"news BLEU ")
    run = tmp_path / "runs" / "en-de"
    references = (run / "evaluation" / "news" / "ref.txt").read_bytes()
    assert references == (tmp_path / "news.de").read_bytes()


@pytest.mark.extended
@pytest.mark.seconds
def test_chrf_decides_where_references_are_too_short_for_bleu(tmp_path: Path) -> None:
    """A dictionary has BLEU 0 in every validation: the best was always the first one, and patience ended there."""
    words = ["".join(word) for word in itertools.product("abc", "de", "fgh", "ij", "kl")]
    (tmp_path / "words.tsv").write_text("".join(f"{word}\t{word.upper()}\n" for word in words))
    run, text = tmp_path / "run", f"data.train={tmp_path / 'words.tsv'}"
    more = ["training.validate_every=4", "training.learning_rate=0.03", "tokenizer.vocab_size=290", text]
    more.append("training.cooldown=0")  # which would follow
    arguments = ["train", "own-text", *TINY, *more, f"run_dir={run}"]
    first = mtx(*arguments, "training.max_steps=20")
    assert first.returncode == 0, first.stderr.decode()
    assert b"warning: heldout: half of the references" in first.stderr and b"chrF2" in first.stderr
    again = mtx(*arguments, "training.max_steps=4000", "training.patience=2", draws=True)
    assert again.returncode == 0, again.stderr.decode()
    validations = [event for event in events(run) if event["event"] == "validation"]
    scores = [event["chrf"] for event in validations]
    best = scores.index(max(scores))
    assert events(run)[-1]["reason"] == "patience" and len(scores) - 1 - best == 2
    assert {event["bleu"] for event in validations} == {0.0}
    status = json.loads(mtx("status", run, "--json").stdout)
    assert (status["best_metric"], status["best_score"]) == ("chrF2", scores[best])
    assert status["best_step"] == validations[best]["step"]
    report = (run / "report.html").read_text(encoding="utf-8")
    assert "Validation chrF2" in report and f"the best is {scores[best]:.2f}, at step" in report


@pytest.mark.extended
@pytest.mark.seconds
@pytest.mark.parametrize("cooldown", [0.5, 0.3])
def test_a_time_limit_gives_the_run_of_as_many_steps(
    corpus: Path, tmp_path: Path, cooldown: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, by a clock of which a step takes one second and a validation three."""
    clock = 5.0

    def slow(name: str, seconds: float) -> None:
        original = getattr(Trainer, name)

        def taking_time(*arguments: Any) -> Any:
            nonlocal clock
            clock += seconds
            return original(*arguments)

        monkeypatch.setattr(Trainer, name, taking_time)

    slow("_step", 1.0)
    slow("_validate", 3.0)
    monkeypatch.setattr(Validation, "later_seconds", lambda self, share: 3.0)
    monkeypatch.setattr(Trainer, "elapsed_s", lambda self: clock)
    common = [f"data.train={corpus}", *TINY, "training.warmup_steps=60", "training.validate_every=10", f"{cooldown=}"]
    common[-1] = f"training.{common[-1]}"
    weights = dict[str, bytes]()
    for name, limit in (("timed", "training.time_limit=200s"), ("counted", "training.time_limit=null")):
        planned = [event for event in events(tmp_path / "timed") if event["event"] == "cooldown"] if weights else []
        last = planned[0]["last"] if planned else 100_000
        config = settings.resolve(None, [*common, limit, f"training.max_steps={last}", f"run_dir={tmp_path / name}"])
        run_train(config.config, hooks=[EventLog()])
        weights[name] = (tmp_path / name / "model" / "model.safetensors").read_bytes()
    assert planned[0]["reason"] == "time_limit" and 60 < last < 150
    assert weights["timed"] == weights["counted"]
    totals = [event["max_steps"] for event in events(tmp_path / "timed") if event["event"] == "train"]
    assert totals[:10] == [None] * 10 and None not in totals[10:], "the first validation is after step 10"
    assert max(totals[10:]) < 1.5 * last and totals[-1] == len(totals) == last
