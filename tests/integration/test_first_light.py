"""First light (`scripts/first_light`) at toy size: its probes fit mtx, and a stage costs its limit and no more.

Whoever renames or removes what a probe uses, or adds a dependency, finds out here, without a GPU.
"""

import argparse
import contextlib
import gzip
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
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
    "step": [*TINY, "--tokens", "512", "--turn", "--seconds", "0.1"],
    "micro": ["--device", "cpu", "--presets", "tiny", "--tokens", "64", "--ids", "500", "--toy"],
    "ncu": ["--device", "cpu"],
    "decode": [*TINY, "--lines", "2,4"],
}
# What an image for machine learning has: torch, transformers, and what they and pytest need.
IN_THE_IMAGE = {
    "torch", "sentencepiece", "sacrebleu", "charset-normalizer", "huggingface-hub", "typer", "tqdm", "numpy", "pyarrow",
    "safetensors", "PyYAML", "regex", "jinja2", "requests", "pytest", "pytest-xdist",
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
    name: str, first_light: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    importlib.import_module(f"probe_{name}").main(PROBES[name])
    rows = rows_of(capsys.readouterr().out)
    assert rows and not [row for row in rows if "error" in row]
    if name == "step":
        assert [row["alone"] for row in rows if row["probe"] == "step"] == ["no", "yes"]
    if name == "decode":
        assert [(row["lines"], row.get("run")) for row in rows] == [
            (size, run) for size in (2, 4) for run in (1, 2, 3, None)
        ]


def test_a_variant_changes_what_the_compiler_sees(first_light: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import probe_step
    import torch

    from mtx.training import loss

    monkeypatch.setattr(torch._inductor.config, "combo_kernels", False)
    chosen = list[str]()
    monkeypatch.setattr(probe_step, "replaced", lambda names: contextlib.nullcontext(chosen.extend(names)))
    options = argparse.Namespace(device="cuda", combo=True, loss_rows=77, candidates="norm,loss")
    with probe_step.changed(options):
        assert loss._rows_at_once(torch.zeros(8, 8), 9) == 77 and torch._inductor.config.combo_kernels
        assert chosen == ["norm", "loss"]
    assert loss._rows_at_once(torch.zeros(8, 8), 9) == 512


def test_the_profile_has_all_kernels_and_names_the_longest(
    first_light: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import probe_step
    import torch
    from torch.autograd import DeviceType

    names = [f"void ns::(anonymous namespace)::kernel_{n}<float, (Kind)1>(float*)" for n in range(40)]
    names.append("Memcpy DtoD (Device -> Device)")
    events = [
        SimpleNamespace(device_type=DeviceType.CUDA, name=name, time_range=SimpleNamespace(elapsed_us=lambda n=n: n))
        for n, name in enumerate(names)
    ]
    profiler = contextlib.nullcontext(SimpleNamespace(events=lambda: events))
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: profiler)
    system = SimpleNamespace(update=lambda *_: None, source=iter(range(probe_step.NUM_PROFILED)))
    probe_step.profile("base", system, torch.device("cpu"), tmp_path / "profile.txt")
    text = (tmp_path / "profile.txt").read_text(encoding="utf-8")
    assert all(name in text for name in names)
    functions = [row["function"] for row in rows_of(capsys.readouterr().out) if row["probe"] == "kernel"]
    assert functions == [f"kernel_{n}" for n in range(39, 29, -1)]


NCU = """#!{python}
import sys
option = dict(zip(sys.argv, sys.argv[1:]))
assert option["--kernel-name"] == "regex:^({functions})$" and sys.argv[-1] == "--in-range"
open(option["--log-file"], "w").write({output!r})
"""
FIGURES = """==PROF== Connected to process 7
"ID","Kernel Name","{0.NS}","{0.COMPUTE}","{0.MEMORY}"
"","","ns","%","%"
"0","norm","1,000","20.25","80.5"
"1","gemm","9,000","90","30"
"2","norm","2,000.5","30.25","70.5"
==PROF== Disconnected
"""
REFUSED = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"


@pytest.mark.parametrize(
    ("output", "rows"),
    [
        (
            FIGURES,
            [
                {"function": "gemm", "launches": 1, "us": 9.0, "compute_percent": 90.0, "memory_percent": 30.0},
                {"function": "norm", "launches": 2, "us": 1.5, "compute_percent": 25.2, "memory_percent": 75.5},
            ],
        ),
        (REFUSED, [{"function": "", "note": f"ncu has no figures: {REFUSED}"}]),
        (None, [{"function": "", "note": "there is no ncu on this machine"}]),
    ],
)
def test_ncu_gives_a_row_for_each_of_the_longest_kernels_or_the_reason(
    output: str | None,
    rows: list[dict[str, Any]],
    first_light: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import probe_ncu

    functions = [*(f"kernel_{n}" for n in range(20)), "gemm", "norm"]  # also of an earlier profile
    if output is not None:
        text = NCU.format(python=sys.executable, functions="|".join(functions[-10:]), output=output.format(probe_ncu))
        (tmp_path / "ncu").write_text(text)
        (tmp_path / "ncu").chmod(0o755)
    results = tmp_path / "results.jsonl"
    kernels = [json.dumps({"probe": "kernel", "function": name}) for name in functions]
    results.write_text("\n".join(kernels) + "\n")
    monkeypatch.setenv("FIRST_LIGHT_RESULTS", str(results))
    monkeypatch.setenv("PATH", str(tmp_path))
    probe_ncu.main(["--device", "cuda"])
    assert rows_of(capsys.readouterr().out) == [{"probe": "ncu", **row} for row in rows]


@pytest.mark.parametrize("gigabytes", [80, 141])
def test_the_control_takes_turns_with_every_option_and_tuned_variants_are_alone(
    gigabytes: int, first_light: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(first_light, "gpu_state", lambda: {"memory.total": str(1000 * gigabytes)})
    groups = first_light.list_stages("cuda", tmp_path, tmp_path, tmp_path)
    shared = [group for group in groups if len(group) > 1]
    assert len(shared) == (1 if gigabytes > 100 else 2)
    timed = [[stage.name for stage in group if stage.turn_s] for group in shared]
    assert all(names[0] == "control" for names in timed)
    assert sum(timed, []).count("norm,loss") == 1 and not {"compiled", "descent", "big"}.intersection(*timed)
    alone = {group[0].name: group[0] for group in groups if len(group) == 1}
    order = ["compiled", "micro", "decode", "ncu", "descent"]
    assert [*alone][:5] == order, "the control is compiled before all others, and the search before the budget is spent"
    caches = [name for name, stage in alone.items() if "TORCHINDUCTOR_CACHE_DIR" in stage.environment]
    assert caches == ["descent"]


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


PROBE = """
import os, subprocess, sys
from turns import report, wait_for_turn
name, fault, bad_place, mark = sys.argv[1:]
def reach(place):
    if place != bad_place:
        return
    if fault == "hangs":
        open(mark, "w").close()
        subprocess.run(["sleep", "60"], start_new_session=True)  # it outlives its parent
    if fault == "dies":
        os.kill(os.getpid(), 9)
    raise SystemExit(int(os.environ["CODE"]))
for number in (1, 2, 3, 4):
    if number == 3:
        reach("when ready")
        wait_for_turn()
    reach(f"before row {number}")
    report("row", name=name, number=number, pid=os.getpid())
reach("at the end")
"""
PLACES = {"before row 1": 0, "before row 2": 1, "when ready": 2, "before row 3": 2, "before row 4": 3, "at the end": 4}


@pytest.mark.skipif(os.name != "posix", reason="first light runs on Linux")
@pytest.mark.seconds
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_in_any_place_costs_its_limit_and_no_row(
    place: str, first_light: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The clock jumps when the stage hangs, so that its limit does not depend on load."""
    mark, results = tmp_path / "hangs", tmp_path / "results.jsonl"
    clock = SimpleNamespace(monotonic=lambda: 1000.0 if mark.exists() else 1.0, sleep=time.sleep)
    monkeypatch.setattr(first_light, "time", clock)
    monkeypatch.setenv("FIRST_LIGHT_RESULTS", str(results))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))

    def stage(name: str, bad_place: str, limit_s: float) -> Any:
        command = [sys.executable, "-c", PROBE, name, name, bad_place, mark]
        return first_light.Stage(name, command, limit_s, limit_s, {"CODE": "3"})

    together = [stage("hangs", place, 500), stage("dies", place, 1e9), stage("raises", place, 1e9)]
    together.append(stage("healthy", "nowhere", 1e9))
    alone = first_light.Stage("alone", [sys.executable, "-c", "print('all is well')"], 1e9)
    with (tmp_path / "log.txt").open("w") as log:
        assert first_light.run_stages([together, [alone]], log, 1e9) == ["hangs", "dies", "raises"]
    rows = rows_of(results.read_text(encoding="utf-8"))
    is_turn = place in ("before row 3", "before row 4", "at the end")
    limit = "the end of its turn" if is_turn else "its limit"
    assert {row["name"]: row["outcome"] for row in rows if row["probe"] == "stage"} == {
        "hangs": f"killed at {limit} of 500 s", "dies": "killed by signal 9", "raises": "exit code 3",
        "healthy": "done", "alone": "done",
    }  # fmt: skip
    found = [(row["name"], row["number"]) for row in rows if row["probe"] == "row"]
    numbers = {name: range(1, PLACES[place] + 1) for name in ("hangs", "dies", "raises")} | {"healthy": range(1, 5)}
    expected = [(name, number) for name, until in numbers.items() for number in until]
    assert sorted(found) == sorted(expected)
    assert [row for row in found if row[1] > 2] == [row for row in expected if row[1] > 2], "turns, one at a time"
    assert "[alone] all is well\n" in (tmp_path / "log.txt").read_text(encoding="utf-8")


@pytest.mark.skipif(os.name != "posix", reason="first light runs on Linux")
def test_a_process_that_cannot_be_killed_stops_nothing(
    first_light: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A GPU's driver may hold one."""
    monkeypatch.setenv("FIRST_LIGHT_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.setattr(first_light, "DEATH_S", 0.1)
    kept = list[int]()
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda group, _: kept.append(group))
    sleeps = first_light.Stage("sleeps", [sys.executable, "-c", "import time; time.sleep(600)"], 0.5)
    next_one = first_light.Stage("next", [sys.executable, "-c", ""], 600)
    try:
        with (tmp_path / "log.txt").open("w") as log:
            assert first_light.run_stages([[sleeps], [next_one]], log, time.monotonic() + 600) == ["sleeps"]
    finally:
        kill(kept[0], signal.SIGKILL)


DRIVER = """
import sys, time
import first_light
probe, mark = sys.argv[1:]
commands = [[sys.executable, "-c", probe, name, "hangs", name, mark] for name in ("before row 2", "nowhere")]
stages = [first_light.Stage("stage", command, 600, turn_s=600) for command in commands]
first_light.run_stages([stages], sys.stderr, time.monotonic() + 600)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a killed process")
def test_stages_die_with_a_killed_first_light_and_the_rows_stay(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    environment = {**ENVIRONMENT, "PYTHONPATH": str(FOLDER), "FIRST_LIGHT_RESULTS": str(results)}
    with (tmp_path / "log.txt").open("w") as log:
        command = [sys.executable, "-c", DRIVER, PROBE, str(tmp_path / "mark")]
        driver = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    wait_for(lambda: results.is_file() and len(rows_of(results.read_text())) == 3)
    driver.kill()
    driver.wait()
    rows = rows_of(results.read_text(encoding="utf-8"))
    wait_for(lambda: not any(is_running(row["pid"]) for row in rows))
    rows = rows_of(results.read_text(encoding="utf-8"))
    found = sorted((row["name"], row["number"]) for row in rows)
    assert found == [("before row 2", 1), ("nowhere", 1), ("nowhere", 2)]


def test_a_probe_takes_no_turn_after_first_light_has_ended(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "PYTHONPATH": str(FOLDER), "FIRST_LIGHT_RESULTS": str(tmp_path / "results.jsonl")}
    command = [sys.executable, "-c", PROBE, "late", "", "", ""]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": PATIENCE_S}
    result: Any = subprocess.run(command, env=environment, check=False, **options)  # type: ignore[call-overload]
    assert result.returncode == 1 and [row["number"] for row in rows_of(result.stdout)] == [1, 2]


def test_the_budget_ends_everything(first_light: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIRST_LIGHT_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.setattr(first_light, "LEAST_S", 0.1)
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    stages = [first_light.Stage(name, sleeps, 60) for name in ("first", "second")]
    with (tmp_path / "log.txt").open("w") as log:
        assert first_light.run_stages([stages[:1], stages[1:]], log, time.monotonic() + 0.5) == ["first"]
    rows = rows_of((tmp_path / "results.jsonl").read_text(encoding="utf-8"))
    assert [row["outcome"] for row in rows] == ["killed at the end of the budget", "skipped: the budget is spent"]


def run(*, data: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**ENVIRONMENT, "DATA": str(data), **variables}
    command = [sys.executable, str(FOLDER / "first_light.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=1900)


def test_without_a_gpu_it_goes_no_further(tmp_path: Path) -> None:
    result = run(data=tmp_path, OUT=str(tmp_path / "out"))
    outcomes = {row["name"]: row["outcome"] for row in rows_of(result.stdout) if row["probe"] == "stage"}
    assert result.returncode == 1 and outcomes == {"machine": "exit code 1"}
    assert "device=cuda: " in result.stdout
    result = run(data=tmp_path, OUT=str(tmp_path / "out"), STAGES="big nothing")
    assert result.returncode == 1 and "error: STAGES: there is no nothing, only compiled, " in result.stderr


@pytest.mark.seconds
def test_a_run_without_its_text_is_skipped_with_the_reason(tmp_path: Path) -> None:
    result = run(data=tmp_path, DEVICE="cpu", OUT=str(tmp_path / "out"), STAGES="own-text")
    outcomes = {row["name"]: row["outcome"] for row in rows_of(result.stdout) if row["probe"] == "stage"}
    reason = f"skipped: {tmp_path} has no train.en-de.tsv.gz; DATA names the directory"
    assert result.returncode == 0 and outcomes == {"own-text": reason, "machine": "done"}


def prepare(checkout: Path, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Runs a copy of prepare.sh with a stand-in for `python3 -m pip`."""
    folder, programs = checkout / "scripts" / "first_light", checkout / "bin"
    for each in (folder, programs):
        each.mkdir(parents=True, exist_ok=True)
    for name in ("prepare.sh", "wheels.txt"):
        shutil.copy(FOLDER / name, folder)
    (programs / "python3").write_text("#!/bin/sh\n")
    (programs / "python3").chmod(0o755)
    environment = {**ENVIRONMENT, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(folder / "prepare.sh"), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_prepare_needs_tatoeba(tmp_path: Path) -> None:
    result = prepare(tmp_path / "checkout")
    assert result.returncode == 2 and "DIR [PACKAGE...]" in result.stderr
    result = prepare(tmp_path / "checkout", tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {tmp_path}/../tatoeba: has no train.en-de.tsv.gz")


@pytest.mark.parametrize("named", ["tatoeba", "multi30k"])
def test_prepare_brings_one_direction_of_the_folder_or_of_its_neighbour(named: str, tmp_path: Path) -> None:
    for folder in ("tatoeba", "multi30k"):
        (tmp_path / folder).mkdir()
    names = {f"{part}.en-de.tsv.gz" for part in ("train", "dev", "test")}
    for name in (*names, "train.en-fr.tsv.gz"):
        (tmp_path / "tatoeba" / name).write_text(name)
    result = prepare(tmp_path / "checkout", tmp_path / named)
    assert result.returncode == 0, result.stderr
    assert {path.name for path in (tmp_path / "checkout" / ".gpu" / "tatoeba").iterdir()} == names


@pytest.mark.slow
def test_all_stages_at_toy_size(tmp_path: Path) -> None:
    """Also without the packages that a machine with a GPU may lack; compiled variants say that they need CUDA."""
    data, lacking = tmp_path / "data", tmp_path / "lacking"
    for folder in (data, lacking):
        folder.mkdir()
    for name in ("ctranslate2", "datasets", "transformers"):
        (lacking / f"{name}.py").write_text("raise ImportError(__name__)\n")
    for name, numbers in (("train", range(1000, 3000)), ("dev", range(3000, 3020)), ("test", range(20))):
        text = "".join(f"{src}\t{tgt}\n" for src, tgt in pairs(numbers))
        (data / f"{name}.en-de.tsv.gz").write_bytes(gzip.compress(text.encode()))
    options = ["control", "no-mix-order", "multi-stages", "pdl", "combo", "loss-chunks", "norm", "loss", "norm,loss"]
    compiled = ["compiled", "descent", *options, "big", "big-candidates"]
    stages = [*compiled, "micro", "ncu", "tests", "decode", "own-text", "two-gpus"]
    result = run(
        data=data, DEVICE="cpu", OUT=str(tmp_path / "out"), BUDGET_S="1800", STAGES=" ".join(stages),
        PYTHONPATH=str(lacking),
    )  # fmt: skip
    log = (tmp_path / "out" / "log.txt").read_text(encoding="utf-8")
    assert result.returncode == 0, log
    rows = rows_of((tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8"))
    assert not [row for row in rows if "error" in row]
    outcomes = {row["name"]: row["outcome"] for row in rows if row["probe"] == "stage"}
    assert outcomes == dict.fromkeys(["machine", *stages], "done")
    needs = {row["variant"]: row["compiled"] for row in rows if row["probe"] == "first step"}
    assert needs == dict.fromkeys(compiled, "needs CUDA, not cpu")
    assert [row["note"] for row in rows if row.get("name") == "candidates"] == ["needs CUDA, not cpu"]
    found = {row["name"]: row for row in rows if row["probe"] == "run"}
    assert found.keys() == {"own-text", "two-gpus"} and found["own-text"]["scores"].keys() == {"test.en-de"}
    assert all(row["steps"] >= 4 and row["tgt_tokens_per_s"] > 0 for row in found.values())
    for table in ("machine", "stage", "first step", "step", "call", "ncu", "decode", "run"):
        assert f"\n{table}\n\n| " in result.stdout
    assert (tmp_path / "out" / "own-text.tgz").is_file()


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
