"""`scripts/benchmarks/translate.py` at toy size: each row has figures or a reason; speed is not tested."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import translate, translate_worker
from tests.integration.commands import ENVIRONMENT, pairs, tree

pytestmark = pytest.mark.extended

FIGURES = (
    "sentences_per_s", "target_tokens_per_s", "latency_ms", "latency_p95_ms", "latency_25_tokens_ms", "load_s",
    "memory_mb",
)  # fmt: skip
NEEDS = {"transformers": ["transformers"], "ctranslate2": ["ctranslate2-fp32", "mtx-ctranslate2-int8"]}


def bench(*arguments: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "scripts.benchmarks.translate", "--device", "cpu", "--threads", "1"]
    command += map(str, arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=600)


@pytest.mark.slow
def test_every_row_has_its_figures_or_a_reason(trained: Path, tmp_path: Path) -> None:
    before, report = tree(trained), tmp_path / "report.json"
    systems = ["mtx-torch-fp32", "mtx-ctranslate2-int8", "ctranslate2-fp32", "transformers"]
    result = bench(trained, "--lines", 12, "--repeats", 2, "--systems", ",".join(systems), "--json", report)
    assert result.returncode == 0, result.stderr
    assert tree(trained) == before
    found = json.loads(report.read_text(encoding="utf-8"))
    assert {"rows", "commands", "machine", "versions", "command", "settings", "date"} == found.keys()
    assert found["settings"]["lines"] == 12
    rows = found["rows"]
    assert [(r["system"], r["mode"]) for r in rows] == [(s, m) for m in ("greedy", "beam4") for s in systems]
    missing = {system for library, needing in NEEDS.items() if find_spec(library) is None for system in needing}
    for row in rows:
        if row["system"] in missing:
            assert row["sentences_per_s"] is None and row["reason"] in result.stdout
            continue
        assert all(row[name] > 0 for name in FIGURES), row
        assert row["latency_ms"] <= row["latency_p95_ms"]
        assert 0 <= row["identical"] <= 1 and 0 <= row["bleu"] <= 100
        assert row["identical"] == 1 or row["system"] != "mtx-torch-fp32"
        assert max(row["rounds"]) == row["sentences_per_s"] and 1 <= len(row["rounds"]) <= 2
        assert f"{row['sentences_per_s']:,.1f}" in result.stdout
    assert [(c["engine"], c["lines"]) for c in found["commands"]] == [("torch", 12), ("ctranslate2", 12)]
    assert all((c["seconds"] or 0) > 0 for c in found["commands"] if c["engine"] == "torch" or not missing)


@pytest.mark.slow
def test_random_weights_write_as_much_as_they_read(tmp_path: Path) -> None:
    src, report = tmp_path / "src", tmp_path / "report.json"
    src.write_text("".join(f"{text}\n" for text, _ in pairs(range(1000, 1040))), encoding="utf-8")
    systems = ["mtx-torch-fp32", *(name for name in ("ctranslate2", "transformers") if find_spec(name))]
    names = ",".join(name.replace("ctranslate2", "ctranslate2-int8") for name in systems)
    result = bench(
        "--preset", "tiny", "--src", src, "--lines", 10, "--repeats", 1, "--systems", names, "--json", report
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 2 * len(systems)
    written = [row["target_tokens_per_s"] / row["sentences_per_s"] for row in rows]
    assert max(written) < 1.2 * min(written), written


def test_a_model_without_text_is_refused_in_one_line(trained: Path) -> None:
    result = bench(trained / "model")
    assert result.returncode == 1 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ") and "--src FILE" in result.stderr


def test_later_rounds_try_what_was_near_the_best() -> None:
    fast, near, slow = (translate.Setting(1, 1, size) for size in (1, 2, 3))
    figures = {
        fast: {"seconds": 1.0, "latency_ms": 9.0},
        near: {"seconds": 1.2, "latency_ms": 3.0},
        slow: {"seconds": 2.0},
    }
    runs = [translate.Run("transformers", "greedy", setting, found) for setting, found in figures.items()]
    job = translate.Job("transformers", "cpu", "", "", "", 0.6, False, translate.Setting(1, 2))
    first, second = translate._jobs(job, ["greedy"], runs)
    assert (first.setting, first.throughput, first.latency) == (fast, ("greedy",), ())
    assert (second.setting, second.throughput, second.latency) == (near, ("greedy",), ("greedy",))
    every = translate._jobs(job, ["greedy", "beam4"], [])
    assert [asked.setting for asked in every] == [
        translate.Setting(1, n, b) for n, b in ((2, 64), (2, 256), (2, 1024), (1, 64))
    ]
    assert [bool(asked.throughput) for asked in every] == [True, True, True, False]


def test_batches_hold_every_row_once_and_stay_within_their_size() -> None:
    lengths = [3, 9, 1, 9, 4, 12, 2]
    assert list(translate_worker.batches(lengths, 3, "examples")) == [[5, 1, 3], [4, 0, 6], [2]]
    assert list(translate_worker.batches(lengths, 18, "tokens")) == [[5], [1, 3], [4, 0, 6, 2]]
