"""`scripts/benchmarks/train.py` at toy size: each row has figures or a reason, and the peers are the same model."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtx.training.loss import smoothed_loss
from scripts.benchmarks import baselines, machine, train, train_worker
from tests.integration.commands import write_sides
from tests.models import batch_of, random_ids, side, tiny_model
from tests.rig import PATIENCE_S

pytestmark = pytest.mark.extended

COMMAND = [sys.executable, "-m", "scripts.benchmarks.train"]
needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


def check_row(row: dict[str, Any]) -> None:
    assert row["slowest_window"] <= row["tgt_tokens_per_s"] <= row["fastest_window"]
    assert 0 < row["model_flop_utilisation"] < 1.5
    assert 0.5 < row["real_position_share"] <= 1
    assert 0 <= row["data_wait_share"] < 1
    assert row["peak_memory_bytes"] > 1e8
    assert row["first_step_s"] > 0


@pytest.mark.slow
def test_every_system_has_its_figures_or_a_reason(tmp_path: Path) -> None:
    write_sides(tmp_path, "train", range(1000, 1200))
    systems, report = ["mtx", "nn-transformer", "marian-fp32"], tmp_path / "report.json"
    command = [*COMMAND, "--device", "cpu", "--preset", "tiny", "--batch-tokens", "256", "--threads"]
    command += ["1", "--seconds", "0.5", "--data-dir", str(tmp_path), "--json", str(report)]
    result = subprocess.run(
        [*command, "--systems", ",".join(systems)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(report.read_text(encoding="utf-8"))
    assert {"machine", "versions", "settings", "date"} <= found.keys()
    assert [row["system"] for row in found["rows"]] == systems
    for row in found["rows"][:2]:
        check_row(row)
    marian = found["rows"][2]
    if find_spec("transformers"):
        check_row(marian)
    else:
        reason = "transformers is missing: pip install -c constraints.txt 'transformers>=4.48'"
        assert marian == {"system": "marian-fp32", "tgt_tokens_per_s": None, "reason": reason}
        assert reason in result.stdout


@pytest.mark.slow
def test_random_ids_are_measured_and_a_system_that_cannot_run_fails(tmp_path: Path) -> None:
    """Once the script failed for every system without --data-dir, and its exit code was 0."""
    command = [*COMMAND, "--device", "cpu", "--preset", "tiny", "--batch-tokens", "512", "--threads"]
    command += ["1", "--seconds", "0.2", "--systems", "mtx"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert result.returncode == 0 and "TFLOP/s" in result.stdout, result.stderr
    command[command.index("512")] = "1"  # below the longest sentence
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert result.returncode == 1 and "error: mtx was not measured: " in result.stderr


def test_what_measured_nothing_ends_with_an_error() -> None:
    fine, failed = {"system": "mtx", "tgt_tokens_per_s": 1.0}, {"system": "marian-fp32", "reason": "is missing"}
    machine.require_figures([fine, failed])
    for rows, text in (
        ([failed], "error: marian-fp32 was not measured: is missing"),
        ([{"system": "mtx", "reason": "no memory"}, fine], "error: mtx was not measured: no memory"),
        ([], "error: "),
    ):
        with pytest.raises(SystemExit, match=text):
            machine.require_figures(rows)


@pytest.mark.parametrize(
    ("code", "stderr", "reason"),
    [
        (1, "Traceback:\n  x()\ntorch.OutOfMemoryError: 2 GB\n\nSet TORCH_LOGS\n", "torch.OutOfMemoryError: 2 GB"),
        (1, "no such option\n", "no such option"),
        (1, "", "exit code 1"),
        (-9, "a warning\n", "killed by signal 9"),
    ],
)  # fmt: skip
def test_the_reason_is_one_line(code: int, stderr: str, reason: str) -> None:
    assert machine._failure(code, stderr) == reason


def test_a_process_that_hangs_is_killed_and_has_a_reason() -> None:
    code = "import subprocess; subprocess.run(['sleep', '600'])"  # and a child of it that holds its output open
    assert machine.run_limited([sys.executable, "-c", code], 0.5) == ("", "killed at its limit of 0.5 s")
    assert machine.run_limited([sys.executable, "-c", "print(7)"], 60.0) == ("7\n", None)


@pytest.mark.parametrize(("precision", "is_fast"), [("auto", False), ("auto", True), ("fp32", True), ("bf16", False)])
def test_products_have_the_precision_of_the_run(monkeypatch: pytest.MonkeyPatch, precision: str, is_fast: bool) -> None:
    """On a processor without bf16 the script once took nine minutes for its products, before the first row."""
    used = list[torch.dtype]()
    monkeypatch.setattr(train_worker, "fast_precision", lambda device: "bf16" if is_fast else "fp32")
    monkeypatch.setattr(
        train_worker.torch, "randn", lambda *size, dtype, **_: used.append(dtype) or torch.zeros(2, 2, dtype=dtype)
    )
    about = train_worker.describe_machine(torch.device("cpu"), precision)
    expected = precision if precision != "auto" else "bf16" if is_fast else "fp32"
    assert about["precision"] == expected
    assert set(used) == {torch.bfloat16 if expected == "bf16" else torch.float32}


def test_a_run_that_is_cut_keeps_its_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    about = {"device": "cpu", "name": "a CPU", "precision": "fp32", "product_flops_per_s": 1e11}
    row = {"tgt_tokens_per_s": 10.0, "model_flops_per_tgt_token": 1e9, "slowest_window": 9.0, "fastest_window": 11.0,
           "peak_memory_bytes": 1e9, "first_step_s": 1.0, "data_wait_share": 0.0,
           "real_position_share": 1.0}  # fmt: skip
    ran, cut = list[str](), {"marian-fp32"}

    def run(job: Any) -> dict[str, Any]:
        ran.append(job.system)
        if job.system in cut:
            raise KeyboardInterrupt
        return about if job.system == "machine" else row

    report = tmp_path / "report.json"
    monkeypatch.setattr(train, "_run", run)
    monkeypatch.setattr(sys, "argv", ["train", "--json", str(report)])
    with pytest.raises(KeyboardInterrupt):
        train.main()
    found = json.loads(report.read_text(encoding="utf-8"))["rows"]
    assert [each["system"] for each in found] == ran[1:-1] and found[0]["model_flop_utilisation"] == 0.1
    cut.clear()
    ran.clear()
    train.main()
    assert ran == ["machine", "mtx", "nn-transformer", "nn-transformer-compiled", "marian-fp32"], "none in bf16"


class Store:
    """Sentences as the peers' batches read them."""

    def __init__(self, src: list[list[int]], tgt: list[list[int]], num_ids: int):
        self.src, self.tgt, self.num_ids = side(src), side(tgt), num_ids


@needs_transformers
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_marian_has_the_loss_and_the_gradient_of_mtx(attention: str) -> None:
    ours = tiny_model(num_ids=13, dtype=torch.float32)
    src, tgt = random_ids([5, 9, 2, 1, 7], 13, seed=5), random_ids([6, 3, 8, 4, 1], 13, seed=6)
    theirs = baselines.MarianBaseline(ours, 64, attention).eval()
    packed, padded = batch_of(src, tgt, 13, max_tokens=9), baselines.padded_batch(Store(src, tgt, 13), np.arange(5))
    hidden = ours.decode(packed, ours.encode(packed))
    expected = smoothed_loss(hidden, ours.output_weight, None, packed.tgt_out_ids, baselines.LABEL_SMOOTHING).loss
    got = theirs(padded.src_ids, padded.tgt_in_ids, padded.tgt_out_ids)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=0)
    gradients = [
        torch.autograd.grad(loss, embedding)[0][:-1]
        for loss, embedding in ((got, theirs.marian.model.shared.weight), (expected, ours.embedding))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def test_batches_hold_every_pair_once_and_stay_within_the_budget() -> None:
    rng = np.random.default_rng(3)
    src, tgt = (random_ids(rng.integers(1, 30, 200).tolist(), 13, seed) for seed in (1, 2))
    store = Store(src, tgt, 13)
    batches = baselines.bucketed(store, 64)
    assert sorted(np.concatenate(batches)) == list(range(200))
    assert all(len(pairs) * store.tgt.lengths[pairs].max() <= 64 for pairs in batches)
    padded = [baselines.padded_batch(store, pairs) for pairs in batches]
    assert sum(batch.num_tgt_tokens for batch in padded) == sum(map(len, tgt))
    for batch, pairs in zip(padded, batches, strict=True):
        assert [row[row != 13].tolist() for row in batch.src_ids] == [src[i] for i in pairs]
        assert [row[row != 13].tolist() for row in batch.tgt_out_ids] == [tgt[i] for i in pairs]
        assert (batch.tgt_in_ids[:, 0] == 13).all()
        assert torch.equal(batch.tgt_in_ids[:, 1:], batch.tgt_out_ids[:, :-1])
