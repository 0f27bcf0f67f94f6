"""A run whose fast path has a fault goes on with what has none, says so once, and remembers it.

A CPU plays the GPU: its steps are those of the plain path, whatever parts are used, and the faults are put in.
"""

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from mtx import pipeline
from mtx.config import settings
from mtx.config.schema import Config
from mtx.data.preprocess import PreparedData, load_prepared
from mtx.files import durable
from mtx.model.attention_kernels import BlockLayout
from mtx.run.layout import RunLayout
from mtx.training import fast_path, runtime, trial_process
from mtx.training.runtime import RuntimeChoices, choose_runtime, read_runtime, record_check, write_runtime
from tests.integration.commands import TINY, write_tsv
from tests.models import dense
from tests.unit.training.test_micro_step import dense_varlen_attn
from tests.unit.training.trials import FaultyTrial

ALL = ("compile", "graph", "varlen", "bf16")
HERE = {"gpu": "NVIDIA H100", "driver": "580.1", "torch": "2.13.0"}
CPU = torch.device("cpu")
GPU_SETTINGS = ["precision=bf16", "training.compile=true", "training.max_steps=3", "training.validate_every=3"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is only prepared."""
    directory = tmp_path_factory.mktemp("prepared")
    corpus = write_tsv(directory / "digits.tsv", range(1000, 1200))
    wanted = settings.resolve(None, [f"data.train={corpus}", *TINY, *GPU_SETTINGS, f"run_dir={directory / 'run'}"])
    return pipeline.prepare_only(wanted.config).root


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Makes the CPU pass for a GPU with the varlen kernel; the result may be changed to become another GPU."""
    versions = dict(HERE)
    kernels: Any = ModuleType("torch.nn.attention.varlen")
    kernels.varlen_attn = dense_varlen_attn
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    monkeypatch.setattr(BlockLayout, "attend_joint", dense)
    monkeypatch.setattr(runtime, "cuda_versions", lambda device: dict(versions))
    monkeypatch.setattr(
        fast_path, "attention_kernel", lambda device, precision, *_: {"bf16": "varlen"}.get(precision, "padded")
    )
    monkeypatch.setattr(fast_path, "run_trial", trial_process._run_here)
    return versions


class Choosing:
    """Starts a run's choices again and again, and counts the trials."""

    def __init__(self, root: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch):
        self.paths, self.num_trials = RunLayout(root), 0
        self.data: PreparedData = load_prepared(RunLayout(prepared).data)
        self.own: Config = settings.load(RunLayout(prepared).config)
        self._monkeypatch = monkeypatch

    def __call__(self, faults: Mapping[str, str], compile: Any = "auto", device: str = "auto") -> RuntimeChoices:
        trial, self.num_trials = FaultyTrial(faults), 0

        def count(task: fast_path.Task) -> Any:
            self.num_trials += 1
            return trial(task)

        self._monkeypatch.setattr(fast_path, "trial", count)
        training = self.own.training.model_copy(update={"compile": compile})
        config = self.own.model_copy(update={"training": training, "device": device})
        chosen = choose_runtime(self.paths, config, CPU, self.data)
        record_check(self.paths.chosen, chosen)
        return chosen


@pytest.fixture
def choose(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Choosing:
    return Choosing(tmp_path, prepared, monkeypatch)


@pytest.mark.seconds
@pytest.mark.parametrize(
    "part, fault",
    [("compile", "raises"), ("graph", "wrong"), ("varlen", "raises"), ("bf16", "wrong"), ("compile", "hangs")],
)
def test_the_run_goes_on_with_the_plain_path_and_says_so(
    part: str, fault: str, prepared: Path, tmp_path: Path, gpu: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    if fault == "hangs":
        monkeypatch.setattr(fast_path, "run_trial", trial_process.run_trial)
    monkeypatch.setattr(fast_path, "trial", FaultyTrial({part: fault}))
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # the real one takes a minute
    own = settings.load(RunLayout(prepared).config)
    with caplog.at_level(logging.INFO):
        result = pipeline.train(own.model_copy(update={"run_dir": str(tmp_path / "run")}))
    assert result.scores
    records = {id(record): record for record in caplog.records}.values()  # pytest may keep a record twice
    warnings = [record.message for record in records if "the fast path has a fault" in record.message]
    assert len(warnings) == 1 and f"here: {fast_path.PARTS[part]}: " in warnings[0]
    assert {"raises": "C compiler", "wrong": "from the plain step's", "hangs": "no answer in 1 s"}[fault] in warnings[0]
    chosen = json.loads(result.paths.chosen.read_text())
    assert list(chosen["switched_off"]) == [part] and chosen["checked_on"] == HERE
    sound = {"compile": ALL[1:], "graph": ("compile", "varlen", "bf16"), "varlen": ("bf16",), "bf16": ()}[part]
    assert read_runtime(result.paths.chosen).parts == sound
    report = result.paths.report.read_text(encoding="utf-8")
    assert "switched off" in report and f"{part}: " in report


def test_what_is_recorded_is_not_checked_again_until_the_machine_changes(choose: Choosing, gpu: dict[str, str]) -> None:
    assert choose({"compile": "raises"}, compile=True).parts == ("graph", "varlen", "bf16")
    assert choose.num_trials == 2
    again = choose({})
    assert choose.num_trials == 0 and again.parts == ("graph", "varlen", "bf16") and "compile" in again.switched_off
    for key in HERE:
        gpu[key] += " of another kind"
        assert choose({"graph": "raises"}).parts == ("compile", "varlen", "bf16"), "the compiler was tried again"
        assert choose.num_trials == 3
        assert read_runtime(choose.paths.chosen).checked_on == gpu
    assert choose({}).parts == ("compile", "varlen", "bf16") and choose.num_trials == 0
    gpu["driver"] = "590"
    assert choose({}).parts == ALL and choose.num_trials == 1
    gpu["driver"] = "600"
    assert choose({}).parts == ALL and choose.num_trials == 1, "what has no fault is checked again too"


def test_the_key_decides_about_compiling_at_each_start(choose: Choosing, gpu: dict[str, str]) -> None:
    assert "compile" not in choose({}, compile=False).parts
    assert "compile" not in choose({}).parts and choose.num_trials == 0, "auto is what was chosen first"
    assert "compile" in choose({}, compile=True).parts and choose.num_trials == 1
    assert "compile" not in choose({}, compile=False).parts and choose.num_trials == 0


def test_asking_to_compile_tries_again_what_failed(choose: Choosing, gpu: dict[str, str]) -> None:
    choose({"compile": "raises"}, compile=True)
    found = choose({}, compile=True)
    assert choose.num_trials == 1 and found.parts == ALL and found.switched_off == {}
    assert choose({}).parts == ALL and choose.num_trials == 0


def test_without_a_faultless_kernel_nothing_that_needs_it_is_used(choose: Choosing, gpu: dict[str, str]) -> None:
    choose({"varlen": "wrong"}, compile=True)
    assert choose({}, compile=True).parts == ("bf16",) and choose.num_trials == 0


def test_a_run_that_was_never_checked_is_checked_at_its_next_start(choose: Choosing, gpu: dict[str, str]) -> None:
    old = {
        "device": "cpu",
        "precision": "bf16",
        "micro_batch_tokens": 256,
        "kernel": "varlen",
        "threads": 1,
        "compile": True,
    }
    durable.write_json(choose.paths.chosen, old)
    assert choose({"compile": "raises"}).parts == ("graph", "varlen", "bf16") and choose.num_trials == 2
    assert choose({}).parts == ("graph", "varlen", "bf16") and choose.num_trials == 0


def test_the_kernel_of_today_decides_what_is_compiled_and_recorded(
    choose: Choosing, gpu: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose({}, compile=True).parts == ALL
    before = choose.paths.chosen.read_text()
    monkeypatch.setattr(fast_path, "attention_kernel", lambda *_: "padded")  # device=cpu, or a GPU without the kernel
    assert choose({}).parts == ("bf16",) and choose.num_trials == 0
    monkeypatch.setattr(BlockLayout, "attend_joint", dense)
    monkeypatch.setattr(runtime, "cuda_versions", lambda device: None)
    found = choose({}, device="cpu")
    assert (found.kernel, found.graph, found.compile) == ("padded", False, False) and choose.num_trials == 0
    assert choose.paths.chosen.read_text() == before, "where there is a GPU again, it goes on as before"


def test_a_compiled_run_goes_on_with_the_cpu(prepared: Path, tmp_path: Path) -> None:
    config = settings.load(RunLayout(prepared).config).model_copy(update={"run_dir": str(tmp_path / "run")})
    result = pipeline.train(config.model_copy(update={"training": config.training.model_copy(update={"max_steps": 2})}))
    chosen = read_runtime(result.paths.chosen)
    on_gpu = replace(chosen, device="cuda", checked_on=HERE).with_parts(ALL)
    write_runtime(result.paths.chosen, on_gpu)
    assert pipeline.train(config.model_copy(update={"device": "cpu"})).scores


def test_a_cpu_has_nothing_to_check(choose: Choosing) -> None:
    chosen = choose({}, compile=True)
    assert choose.num_trials == 0 and chosen.parts == ("bf16",) and chosen.checked_on is None
