"""The arithmetic of `scripts/simulate_scaling.py`, by hand."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.extended

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import simulate_scaling

    return simulate_scaling


@pytest.fixture
def cluster(script: ModuleType) -> Any:
    """Round numbers."""
    return script.Cluster(
        nvlink_gb_s=400, network_gb_s=200, nvlink_ms=0.5, network_ms=1, doubling_ms=0.25, hop_us=50, plan_ns=27,
        pack_ns=10, launch_ms=2, least_ms=3, spread=0, copy_gb_s=12, report_s=2, valid_tokens=100_000,
    )  # fmt: skip


@pytest.fixture
def model(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(script, "count_parameters", lambda preset: 100_000_000)
    return script.Model("base", step_ms=55.0, fixed_ms=5.0, attention_ms=11.0, decoded_per_s=100_000)


@pytest.mark.parametrize(
    "devices, expected",
    [
        (1, 0.0),
        (2, 0.5 + 1.0),  # 2 * 1/2 * 400 MB at 400 GB/s
        (8, 0.5 + 1.75),
        (16, 1 + 2 * 15 / 16 * 2),
        (64, 1 + 2 * 0.25 + 2 * 63 / 64 * 2),  # two doublings beyond two machines
    ],
)
def test_the_sum_of_gradients(script: ModuleType, cluster: Any, devices: int, expected: float) -> None:
    assert script.all_reduce_ms(400_000_000, devices, cluster) == pytest.approx(expected)


def test_the_hosts_agree_in_rounds_of_doubling_distance(script: ModuleType, cluster: Any) -> None:
    assert [script.agreement_ms(n, cluster) for n in (1, 2, 5, 512)] == pytest.approx([0, 0.05, 0.15, 0.45])


def test_a_step_that_the_devices_limit(script: ModuleType, cluster: Any, model: Any) -> None:
    k, shape = script.step_shape(25_000 * 8, 8)
    time = script.step_time(model, 25_000 * 8, 8, cluster, wait=1.1)
    assert k == 8
    assert time.device_ms == pytest.approx(1.1 * (5 + 50 * shape.num_tgt / 25_000))
    assert time.all_reduce_ms == pytest.approx(0.5 + 1.75)
    assert time.host_ms == pytest.approx(2 + 3 * 0.05)
    assert time.loader_ms == pytest.approx((200_000 + 10 * shape.num_tgt) / 1e6)
    assert time.alone_ms == pytest.approx((1 + 2) * 1000 / 1000 + 0.1 * 1000 / 1500)  # 1.2 GB at 12 GB/s: 0.1 s
    assert time.total_ms == pytest.approx(time.device_ms + time.all_reduce_ms + time.alone_ms)
    assert time.limit == "devices"


def test_a_small_step_on_many_devices_is_limited_by_the_hosts(script: ModuleType, cluster: Any, model: Any) -> None:
    time = script.step_time(model, 25_000, 512, script.replace(cluster, hop_us=2000))
    assert time.device_ms == pytest.approx(5 + 3), "the least time of a graph"
    assert time.total_ms == pytest.approx(9 * 2 + 2 + time.alone_ms)
    assert time.limit == "hosts"


def test_a_step_of_several_micro_batches_is_updated_once(script: ModuleType, cluster: Any, model: Any) -> None:
    assert script.compute_ms(model, 3, 25_000, cluster) == pytest.approx(5 + 3 * 50)


def test_devices_wait_for_uneven_attention_and_for_the_slowest(script: ModuleType, cluster: Any, model: Any) -> None:
    def wait(src: Any, spread: float = 0.0) -> float:
        changed = script.replace(cluster, spread=spread)
        factor: float = script.waiting(model, src, np.full(8000, 25, np.int32), 50_000, 4, changed)
        return factor

    even, uneven = np.full(8000, 25, np.int32), np.full(8000, 25, np.int32)
    uneven[::50] = 200  # two blocks long: 4 of itself and 2 with the target, where the others have 1 and 1
    assert script.waiting(model, even, even, 25_000, 1, cluster) == 1
    assert wait(even) == pytest.approx(1, abs=1e-4)
    assert 1 < wait(uneven) < wait(uneven, spread=0.1)


def test_blocks_of_attention(script: ModuleType) -> None:
    src, tgt = np.array([64, 65]), np.array([1, 128])
    assert script.num_blocks(src, tgt) == (1 + 1 + 1) + (4 + 4 + 4)


def test_the_smallest_batch_is_the_first_that_is_efficient_enough(script: ModuleType, cluster: Any, model: Any) -> None:
    alone = 25_000 / script.step_time(model, 25_000, 1, cluster).total_ms
    smallest = script.smallest_batch(model, 64, 0.5, cluster)
    speeds = [n / script.step_time(model, n * 64, 64, cluster).total_ms for n in (smallest - 250, smallest)]
    assert speeds[0] < 0.5 * alone <= speeds[1]
    assert script.smallest_batch(model, 64, 1.5, cluster) is None


def test_the_weights_of_the_presets(script: ModuleType) -> None:
    assert [round(script.count_parameters(preset) / 1e6) for preset in ("base", "big")] == [63, 214]


@pytest.mark.slow
def test_the_document_has_the_tables_that_the_command_prints(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["simulate_scaling.py"])
    script.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    document = (SCRIPTS.parent / "docs" / "scaling.md").read_text(encoding="utf-8").splitlines()
    assert len(rows) > 40
    assert [row for row in rows if row not in document] == []
