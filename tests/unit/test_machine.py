"""Everything that starts threads or processes uses no more cores than this process may use."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mtx import cli, machine
from mtx.config import settings
from mtx.data.workers import map_in_workers
from mtx.decoding.translator import Translator
from mtx.machine import num_cores
from mtx.model import device
from mtx.model.device import num_threads
from mtx.storage.run_files import RunLayout
from mtx.training.build import choose_runtime
from tests.exports import lively_bundle, small_tokenizer
from tests.unit.data.test_workers import process_of

pytestmark = pytest.mark.skipif(os.name != "posix", reason="without POSIX there are no cgroups")


@pytest.fixture
def quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the CPU quota of a container, on a machine with 64 cores; the test writes it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(machine, "_CPU_QUOTA", tmp_path / "cpu.max")
    return tmp_path / "cpu.max"


@pytest.mark.parametrize("text, cores", [("max 100000", 64), ("150000 100000", 1), ("400000 100000", 4), ("", 64)])
def test_the_quota_of_a_container_limits_the_cores(quota: Path, text: str, cores: int) -> None:
    assert num_cores() == 64
    quota.write_text(f"{text}\n")
    assert num_cores() == cores


def test_torch_starts_no_more_threads_than_there_are_cores(quota: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota.write_text("300000 100000\n")
    assert num_threads() == 3
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # OMP_NUM_THREADS=2
    assert num_threads() == 2


def test_ranks_share_the_cores_whatever_torchrun_says(quota: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota.write_text("1200000 100000\n")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # torchrun sets OMP_NUM_THREADS=1
    assert [num_threads(local_size) for local_size in (2, 5, 12, 20)] == [6, 2, 1, 1]


def test_workers_engines_and_doctor_use_the_cores_of_the_container(
    quota: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quota.write_text("300000 100000\n")
    assert len(set(map_in_workers(process_of, range(9), few_items=0))) == 3
    assert device.machine(torch.device("cpu"))["cores"] == 3
    assert cli.run(["doctor", "--device", "cpu", "--json"]) == 0
    cpu = json.loads(capsys.readouterr().out)["cpu"]
    assert cpu["cores"] == cpu["threads"] == 3
    lively_bundle(small_tokenizer(), tmp_path / "model")
    assert Translator.load(tmp_path / "model", engine="torch").torch.num_workers == 3


def test_training_uses_the_cores_of_the_container(quota: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # other tests count on one
    quota.write_text("300000 100000\n")
    config = settings.resolve(None, ["training.micro_batch_tokens=512"]).config
    side = SimpleNamespace(block_tokens=np.array([100]))
    train = SimpleNamespace(weights=np.ones(1), corpora=np.zeros(1, int), tgt=side)
    data: Any = SimpleNamespace(tokenizer=SimpleNamespace(num_ids=300), report={"src_tgt_ratio": 1.0}, train=train)
    assert choose_runtime(RunLayout(tmp_path), config, torch.device("cpu"), data).threads == 3


def test_the_ctranslate2_engine_uses_the_cores_of_the_container(quota: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    from mtx.decoding.ctranslate2_writer import write_ctranslate2
    from mtx.decoding.translator import Translator

    quota.write_text("3 1\n")
    write_ctranslate2(lively_bundle(small_tokenizer(), tmp_path / "model"), tmp_path / "export", "fp32")
    assert Translator.load(tmp_path / "export").engine.num_calls == 3


def test_free_memory_is_what_machine_and_container_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_MEMORY_LIMIT", tmp_path / "memory.max")
    assert machine.available_bytes() == machine.total_bytes()
    (tmp_path / "meminfo").write_text("MemTotal:  16000 kB\nMemFree:  1000 kB\nMemAvailable:   8000 kB\n")
    for limit, expected in (("max", 8000 * 1024), ("5000", 5000), ("9000000000", 8000 * 1024)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert machine.available_bytes() == expected
    for path in tmp_path.iterdir():
        path.unlink()
    monkeypatch.delattr("os.sysconf")
    assert machine.available_bytes() is None


def test_cores_on_which_something_runs_are_not_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LOAD", tmp_path / "loadavg")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert machine.num_idle_cores() == 4, "not reported"
    for running, idle in ((1, 4), (3, 2), (0, 4)):
        (tmp_path / "loadavg").write_text(f"0.10 0.20 0.30 {running}/321 4567\n")
        assert machine.num_idle_cores() == idle
