"""report.html, written by training and by `mtx report`: what it shows, and that untrusted text cannot harm it."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from mtx.storage import durable
from tests.integration.commands import TINY, events, mtx, pairs, set_settings, start, wait_until

Refused = Callable[..., None]
HOSTILE = "<script>alert(1)</script> \"quoted\" 'text' & \x1b[31m \u202eright to left \u05e9\u05dc <img src=x>"
SHOWN = HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")


class Page(HTMLParser):
    """A parsed page: its elements, and its visible text by part."""

    def __init__(self, path: Path):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.parts: dict[str, str] = {}
        self._part, self._inside, self._space = "", "", " "
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside, self._space = tag, "" if tag == "wbr" else " "
        if tag == "section" and "part" in (dict(attrs).get("class") or "").split():
            self._part = str(dict(attrs)["id"]).removeprefix("part-")

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.parts[self._part] = self.parts.get(self._part, "") + self._space + data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def text(self, part: str) -> str:
        return " ".join(self.parts[part].split())


def test_training_leaves_a_report_that_answers_the_questions(trained: Path) -> None:
    page = Page(trained / "report.html")
    first, last = (event for event in events(trained) if event["event"] == "validation")
    assert "State finished" in page.text("overview") and "40 of 40 steps of 256 target tokens" in page.text("overview")
    assert "Is it still improving?" in page.text("overview") and "360 sentence pairs (digits.tsv)" in page.text(
        "overview"
    )
    assert "heldout: none of its sentences" in page.text("overview")
    for sample, later in zip(first["samples"], last["samples"], strict=True):
        assert sample["src"] in page.text("samples") and sample["ref"] in page.text("samples")
        assert f"step 40 {later['hyp']}".strip() in page.text("samples")
    assert "95% interval" in page.text("overview") and "nrefs:1|bs:1000|seed:12345|case:mixed" in page.text("scores")
    assert "BLEU by words of the reference sentences run 1 to 10 20 " in page.text("scores")
    source = (trained / "evaluation" / "heldout" / "src.txt").read_text().split("\n")[0]
    assert source in page.text("sentences")
    assert "held out" in page.text("data") and "data" in page.text("settings") and "code" in page.text("settings")
    assert "torch" in page.text("settings") and "batch_tokens: 256" in page.text("settings")
    assert sum(tag == "svg" for tag, _ in page.elements) == 5, "four charts, and one in the overview"


def _without_times_and_names(page: str) -> str:
    return re.sub(r"Made on [^.]*|run_dir: .*|\b(run|copy)\b", "", page)


def test_the_command_writes_the_report_again_also_without_a_model(run_copy: Path, tmp_path: Path) -> None:
    written = (run_copy / "report.html").read_text()
    (run_copy / "report.html").unlink()
    assert mtx("report", run_copy).returncode == 0
    again = (run_copy / "report.html").read_text()
    assert _without_times_and_names(again) == _without_times_and_names(written)
    for name in ("model", "checkpoints", "evaluation"):
        shutil.rmtree(run_copy / name)
    assert mtx("report", run_copy, "-o", tmp_path / "bare.html").returncode == 0
    bare = Page(tmp_path / "bare.html")
    assert "when training has ended" in bare.text("scores")


def test_a_run_with_prepared_data_only(settings: list[str], tmp_path: Path) -> None:
    assert mtx("prepare", *settings, f"run_dir={tmp_path / 'run'}").returncode == 0
    assert mtx("report", tmp_path / "run").returncode == 0
    page = Page(tmp_path / "run" / "report.html")
    assert "no curves before the first step" in page.text("curves")
    assert "There are no samples of a validation yet" in page.text("samples")
    assert "360 sentence pairs" in page.text("overview") and "State not started" in page.text("overview")


def test_several_runs_share_a_report_and_are_compared(trained: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(trained, tmp_path / "other"))
    set_settings(other, model__dropout=0.3)
    translations = other / "evaluation" / "heldout"
    (translations / "hyp.txt").write_text((translations / "ref.txt").read_text())
    durable.write_manifest(translations)
    assert mtx("report", trained, other, "-o", tmp_path / "both.html").returncode == 0
    page = Page(tmp_path / "both.html")
    assert "What differs between the runs setting run other model.dropout 0.1 0.3" in page.text("overview")
    assert "is better than" in page.text("overview") and "statistically significant" in page.text("overview")
    assert page.text("overview").startswith("Overview Which is better on heldout ? other is better than run by ")
    assert page.text("curves").startswith("Curves run other training validation")
    assert page.text("sentences").startswith("Where the runs differ") and "where other is better" in page.text(
        "sentences"
    )
    assert "setting run other model.dropout 0.1 0.3" in page.text("settings")
    assert any(attrs.get("class") == "marked" for _, attrs in page.elements)


def test_wrong_requests_are_refused(refused: Refused, trained: Path, tmp_path: Path) -> None:
    refused(2, ["not a run directory"], "report", tmp_path)
    refused(2, ["there is no directory"], "report", trained, "-o", tmp_path / "no" / "report.html")
    refused(2, ["at most 10"], "report", *[trained] * 11)


@pytest.mark.extended
def test_killed_training_leaves_a_report(settings: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start("train", *settings, "training.max_steps=4000", f"run_dir={run}", draws=True)
    wait_until((run / "report.html").is_file, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    page = Page(run / "report.html")
    assert "State running" in page.text("overview") and "step 20" in page.text("samples")
    assert mtx("report", run).returncode == 0, "the report can be written again"
    assert "State stopped: killed, or its machine went down" in Page(run / "report.html").text("overview")


def test_a_run_whose_training_goes_on_shows_its_scores_as_outdated(run_copy: Path) -> None:
    with (run_copy / "metrics.jsonl").open("a") as file:
        for event in ({"event": "start", "step": 40, "time": 9e9}, {"event": "train", "step": 41, "time": 9e9 + 1}):
            file.write(json.dumps(event) + "\n")
    status = json.loads((run_copy / "status.json").read_text())
    (run_copy / "status.json").write_text(json.dumps({**status, "state": "running"}))
    with FileLock(run_copy / "run.lock"):
        assert mtx("report", run_copy).returncode == 0
    text = Page(run_copy / "report.html").text("overview")
    assert "State running" in text and "of the model from an earlier end of training" in text


def _event(**values: Any) -> str:
    return json.dumps({"event": "validation", "step": 50, "time": 9e9, "bleu": 1.0, "nll": 1.0, **values}) + "\n"


@pytest.mark.parametrize(
    "line",
    [
        _event(step=10**400), _event(time=-(10**400)), _event(bleu=1e308), _event(nll="<script>"), _event(samples=[{}]),
        _event(samples=[{"src": 1, "ref": 2, "hyp": 3}]), _event(samples="text"), _event(event="hint"),
        _event(event="hint", text=["<b>"]), _event(event="start", machine=["<img src=x>"]), "[" * 200_000 + "\n",
    ],
    ids=range(11),
)  # fmt: skip
def test_events_of_an_untrusted_run_cannot_harm_the_page(line: str, run_copy: Path) -> None:
    with (run_copy / "metrics.jsonl").open("a") as file:
        file.write(line)
    result = mtx("report", run_copy)
    assert result.returncode == 0, result.stderr
    page = Page(run_copy / "report.html")
    assert not any(tag in ("img", "b") for tag, _ in page.elements) and page.text("curves")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("data/report.json", '"kept": ', '"kept_": '), ("data/report.json", '"pieces": ', '"pieces": "<b>", "_": '),
        ("model/scores.json", '"run": {', '"run": [1], "_": {'),
    ],
)  # fmt: skip
def test_damaged_files_of_a_run_are_refused_by_name(
    name: str, old: str, new: str, run_copy: Path, refused: Refused
) -> None:
    path = run_copy / name
    path.write_text(path.read_text().replace(old, new, 1))
    durable.write_manifest(path.parent)
    refused(1, [name], "report", run_copy)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_place_of_a_file_is_refused(run_copy: Path, refused: Refused) -> None:
    (run_copy / "metrics.jsonl").unlink()
    os.mkfifo(run_copy / "metrics.jsonl")
    refused(1, ["metrics.jsonl"], "report", run_copy)


def test_a_hostile_corpus_is_shown_as_text(tmp_path: Path) -> None:
    rows = [f"{src} {HOSTILE}\t{tgt} {HOSTILE}\n" for src, tgt in pairs(range(1000, 1200))]
    clean = [f"{line}\n" for line in ("\t".join(pair) for pair in pairs(range(2000, 2100)))]
    corpus = tmp_path / "hostile.tsv"
    corpus.write_text("".join([*clean, *rows]), encoding="utf-8")
    options = [f"data.train={corpus}", f"data.valid={corpus}", f"data.test={corpus}", "data.max_length_ratio=9"]
    run = tmp_path / "<b>run"
    result = mtx("train", *TINY, *options, "data.max_tokens=256", "training.max_steps=3", f"run_dir={run}", draws=True)
    assert result.returncode == 0, result.stderr
    assert b"\x1b" not in result.stderr and "\u202e".encode() not in result.stderr
    text, page = (run / "report.html").read_text(encoding="utf-8"), Page(run / "report.html")
    assert {tag for tag, _ in page.elements} & {"img", "b", "iframe", "object", "link"} == set()
    scripts = [attrs for tag, attrs in page.elements if tag == "script" and attrs.get("type") != "application/json"]
    assert len(scripts) == 2 and not any("src" in attrs for attrs in scripts)
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert "\x1b" not in text and "\u202e" not in text
    assert SHOWN in page.text("sentences")
    assert "control characters" in page.text("data")
