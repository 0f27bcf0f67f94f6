"""First light (`scripts/first_light`) at toy size: its probes fit mtx, and a stage costs its limit and no more.

Whoever renames or removes what a probe uses, or adds a dependency, finds out here, without a GPU.
"""

import contextlib
import gzip
import importlib
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.integration.commands import ENVIRONMENT, pairs
from tests.rig import PATIENCE_S

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "scripts" / "first_light"
TINY = ["--device", "cpu", "--preset", "tiny", "--ids", "500"]
PROBES = {
    "machine": ["cpu"],
    "step": [*TINY, "--tokens", "512", "--variants", "eager", "--seconds", "0.1"],
    "peers": [*TINY, "--tokens", "512", "--peer", "nn-transformer", "--eager", "--seconds", "0.1"],
    "products": ["--device", "cpu", "--presets", "tiny", "--tokens", "64", "--ids", "500", "--toy"],
    "decode": [*TINY, "--lines", "4", "--peer-lines", "2"],
}
# What an image for machine learning has: torch, transformers and what they and pytest need.
IN_THE_IMAGE = {
    "torch", "sentencepiece", "sacrebleu", "charset-normalizer", "huggingface-hub", "typer", "tqdm", "numpy", "pyarrow",
    "safetensors", "PyYAML", "regex", "jinja2", "transformers", "pytest", "pytest-xdist",
}  # fmt: skip


@pytest.fixture
def first_light(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("first_light")


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n") if line.startswith('{"probe"')]


def test_every_probe_is_tried_here() -> None:
    assert {path.stem.removeprefix("probe_") for path in FOLDER.glob("probe_*.py")} == PROBES.keys()


@pytest.mark.seconds
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_measures_with_what_mtx_has(
    name: str, first_light: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mtx.training import loss

    monkeypatch.setattr(loss, "_CHUNK_BYTES", loss._CHUNK_BYTES)  # a probe changes it
    importlib.import_module(f"probe_{name}").main(PROBES[name])
    rows = rows_of(capsys.readouterr().out)
    assert rows and not [row for row in rows if "error" in row]
    if name in ("step", "peers"):
        assert [row["alone"] for row in rows if "alone" in row] == ["no", "yes"]


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "makes"), [("step", "mtx_system"), ("peers", "ready")])
def test_a_variant_that_is_ready_is_measured_before_the_next_one(
    name: str, makes: str, first_light: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiling the next one may hang or die."""
    probe = importlib.import_module(f"probe_{name}")
    make, arguments = getattr(probe, makes), [each for each in PROBES[name] if each != "--eager"]

    def make_one(*rest: Any) -> Any:
        if '"alone": "no"' in capsys.readouterr().out:
            raise InterruptedError
        return make(*rest)

    monkeypatch.setattr(probe, makes, make_one)
    monkeypatch.setattr(probe, "errors_reported", lambda *_, **__: contextlib.nullcontext())
    with pytest.raises(InterruptedError):
        probe.main([",".join([each] * 2) if each == "eager" else each for each in arguments])


@pytest.mark.seconds
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_failed_test_is_a_row(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_failing.py").write_text("def test_one(): assert 1 == 2\ndef test_two(): pass")
    (tmp_path / "test_broken.py").write_text("import nothing")
    results = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "failed_tests", "-n", workers, "--continue-on-collection-errors"]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(FOLDER), "FIRST_LIGHT_RESULTS": str(results)}
    environment.pop("PYTEST_XDIST_WORKER", None)  # of the tests themselves
    result = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert result.returncode == 1
    rows = {row["test"]: row["message"] for row in rows_of(results.read_text(encoding="utf-8"))}
    assert rows.keys() == {"test_failing.py::test_one", "test_broken.py"}
    assert rows["test_failing.py::test_one"].startswith("assert 1 == 2") and "nothing" in rows["test_broken.py"]


def test_each_dependency_is_brought_or_there_or_not_imported(first_light: ModuleType) -> None:
    import probe_machine

    lines = (FOLDER / "wheels.txt").read_text(encoding="utf-8").split("\n")
    brought = [Requirement(line) for line in lines if line and not line.startswith("#")]
    names = {requirement.name for requirement in brought}
    required = {requirement.name for requirement in probe_machine.required()}
    assert required == names | IN_THE_IMAGE, "mend wheels.txt, IN_THE_IMAGE or NOT_IMPORTED"
    with (ROOT / "pyproject.toml").open("rb") as file:
        stated = {Requirement(each).name for each in tomllib.load(file)["project"]["dependencies"]}
    assert stated >= probe_machine.NOT_IMPORTED
    assert probe_machine.missing() == []


def test_a_missing_or_old_package_is_named(first_light: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import probe_machine

    wanted = [Requirement("numpy>=1.0"), Requirement("numpy>=999"), Requirement("no-such-package>=2")]
    monkeypatch.setattr(probe_machine, "required", lambda: wanted)
    assert probe_machine.missing() == ["numpy>=999", "no-such-package>=2"]


HANGS = "import subprocess; subprocess.run(['sleep', '60'], start_new_session=True)"  # it outlives its parent
PROBE = """
import sys, time
from turns import report, wait_for_turn
wait_for_turn()
report("turn", name="{0}", began=time.time())
{1}
report("turn", name="{0}", ended=time.time())
"""


@pytest.mark.skipif(os.name != "posix", reason="first light runs on Linux")
def test_a_stage_that_hangs_or_dies_costs_its_limit_and_nothing_else(
    first_light: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stage(name: str, code: str, limit_s: float = 60, **options: Any) -> Any:
        return first_light.Stage(name, [sys.executable, "-c", code], limit_s, **options)

    results = tmp_path / "results.jsonl"
    monkeypatch.setenv("FIRST_LIGHT_RESULTS", str(results))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    together = [
        stage("hangs", HANGS, 1.0),
        stage("dies", "import os; os.abort()", turn_s=60),
        stage("fails", "raise SystemExit(3)"),
        stage("first", PROBE.format("first", "time.sleep(0.3)"), turn_s=60),
        stage("hangs in its turn", PROBE.format("hangs", HANGS), turn_s=1.0),
        stage("dies in its turn", PROBE.format("dies", "import os; os.abort()"), turn_s=60),
        stage("last", PROBE.format("last", ""), turn_s=60),
    ]
    alone = [stage("hangs alone", HANGS, 1.0), stage("alone", "print('all is well')")]
    with (tmp_path / "log.txt").open("w") as log:
        failed = first_light.run_stages(together, alone, log, time.monotonic() + 300)
    rows = rows_of(results.read_text(encoding="utf-8"))
    outcomes = {row["name"]: row["outcome"] for row in rows if row["probe"] == "stage"}
    assert outcomes == {
        "hangs": "killed at its limit of 1 s", "dies": "killed by signal 6", "fails": "exit code 3", "first": "done",
        "hangs in its turn": "killed at the end of its turn of 1 s", "dies in its turn": "killed by signal 6",
        "last": "done", "hangs alone": "killed at its limit of 1 s", "alone": "done",
    }  # fmt: skip
    assert set(failed) == {name for name, outcome in outcomes.items() if outcome != "done"}
    turns = [(row["name"], "began" in row) for row in rows if row["probe"] == "turn"]
    expected = [("first", True), ("first", False), ("hangs", True), ("dies", True), ("last", True), ("last", False)]
    assert turns == expected, "one at a time"
    assert "[alone] all is well\n" in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_the_budget_ends_everything(first_light: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIRST_LIGHT_RESULTS", str(tmp_path / "results.jsonl"))
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    stages = [first_light.Stage(name, sleeps, 60) for name in ("together", "alone")]
    with (tmp_path / "log.txt").open("w") as log:
        assert first_light.run_stages(stages[:1], stages[1:], log, time.monotonic() + 0.5) == ["together"]
    rows = rows_of((tmp_path / "results.jsonl").read_text(encoding="utf-8"))
    assert [row["outcome"] for row in rows] == ["killed at the end of the budget", "skipped: the budget is spent"]


def run(*, data: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**ENVIRONMENT, "DATA": str(data), **variables}
    command = [sys.executable, str(FOLDER / "first_light.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)


def test_without_a_gpu_it_goes_no_further(tmp_path: Path) -> None:
    result = run(data=tmp_path, OUT=str(tmp_path / "out"))
    outcomes = {row["name"]: row["outcome"] for row in rows_of(result.stdout) if row["probe"] == "stage"}
    assert result.returncode == 1 and outcomes == {"machine": "exit code 1"}
    assert "device=cuda: " in result.stdout
    result = run(data=tmp_path, OUT=str(tmp_path / "out"), STAGES="base nothing")
    assert result.returncode == 1 and "error: STAGES: there is no nothing, only doctor, " in result.stderr


def test_prepare_needs_multi30k(tmp_path: Path) -> None:
    command = ["bash", str(FOLDER / "prepare.sh")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert result.returncode == 2 and "MULTI30K_DIR [PACKAGE...]" in result.stderr
    result = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert result.returncode == 2 and result.stderr.startswith(f"error: {tmp_path}: has no train.en.gz")


@pytest.mark.slow
def test_all_stages_at_toy_size(tmp_path: Path) -> None:
    """Also without the packages that a machine with a GPU may lack; compiled variants say that they need CUDA."""
    data, lacking = tmp_path / "data", tmp_path / "lacking"
    for folder in (data, lacking):
        folder.mkdir()
    for name in ("ctranslate2", "datasets"):
        (lacking / f"{name}.py").write_text("raise ImportError(__name__)\n")
    for name, numbers in (("train", range(1000, 3000)), ("val", range(3000, 3020)), ("test_2016_flickr", range(20))):
        for side, tongue in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs(numbers))
            (data / f"{name}.{tongue}.gz").write_bytes(gzip.compress(text.encode()))
    stages = "multi30k doctor tests base compiled flex big nn marian products autotuned decode two-gpus long"
    result = run(
        data=data, DEVICE="cpu", OUT=str(tmp_path / "out"), BUDGET_S="800", STAGES=stages, PYTHONPATH=str(lacking)
    )
    log = (tmp_path / "out" / "log.txt").read_text(encoding="utf-8")
    assert result.returncode == 0, log
    rows = rows_of((tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8"))
    assert not [row for row in rows if "error" in row]
    outcomes = {row["name"]: row["outcome"] for row in rows if row["probe"] == "stage"}
    assert outcomes == dict.fromkeys(["machine", *stages.split()], "done")
    found = {row["name"]: row for row in rows if row["probe"] == "run"}
    assert found.keys() == {"multi30k", "two-gpus", "long"} and found["multi30k"]["bleu"].keys() == {"test_2016_flickr"}
    assert all(row["steps"] >= 4 and row["tgt_tokens_per_s"] > 0 for row in found.values())
    for table in ("machine", "stage", "first step", "step", "peer", "product", "decode", "run"):
        assert f"\n{table}\n\n| " in result.stdout
    assert (tmp_path / "out" / "multi30k.tgz").is_file()


@pytest.mark.parametrize(
    "name, tflops",
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA H20", 148),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("A100-PCIE-40GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA A30", 165),
        ("NVIDIA A40", 150),
        ("NVIDIA A2", 18),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA RTX A1000", 27),
        ("NVIDIA RTX A6000", 155),
        ("NVIDIA RTX 6000 Ada Generation", 364),
        ("NVIDIA GeForce RTX 3060", 25),
        ("NVIDIA GeForce RTX 3060 Ti", 32),
        ("NVIDIA GeForce RTX 3090", 71),
        ("NVIDIA GeForce RTX 3090 Ti", 80),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 88),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA GeForce RTX 5090", 209),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 3080 with Max-Q Design", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("Quadro RTX 6000", None),
        ("NVIDIA RTX 4000 SFF Ada Generation", None),
        ("NVIDIA A100X", None),
        ("NVIDIA L20", None),
        ("Tesla T4", None),
        ("AMD Instinct MI300X", None),
    ],
)
def test_the_peak_of_a_gpu_is_found_by_its_whole_name(
    first_light: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, tflops: float | None
) -> None:
    import torch
    from turns import peak_flops

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    peak = peak_flops(torch.device("cuda"), "bf16")
    assert peak == (None if tflops is None else tflops * 1e12)
    assert peak_flops(torch.device("cuda"), "fp32") is None
