"""The arithmetic of `scripts/estimate_gpus.py`, by hand."""

from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.extended

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import estimate_gpus

    return estimate_gpus


def test_products_follow_the_peak_rate_and_the_rest_the_bandwidth(script: ModuleType) -> None:
    assert script.H100.slowdown == pytest.approx(1)
    half = script.Gpu("half the rate, a quarter of the bandwidth", "", 989 / 2, 3.35 / 4)
    assert half.slowdown == pytest.approx((2 * 18.4 + 4 * 14) / 32.4)
    assert script.Gpu("fp32", "", 989, 3.35, size=4).slowdown == pytest.approx((18.4 + 2 * 14) / 32.4)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(54, "0.9 min"), (490, "8.2 min"), (5340, "89 min"), (5400, "1.5 h"), (129_000, "36 h"), (129_600, "1.5 days"),
     (25_000_000, "290 days")],
)  # fmt: skip
def test_durations(script: ModuleType, seconds: float, text: str) -> None:
    assert script.duration(seconds) == text


def test_the_document_has_the_table_that_the_command_prints(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main()
    document = (SCRIPTS.parent / "docs" / "scaling.md").read_text(encoding="utf-8")
    table = capsys.readouterr().out
    assert table.count("\n") == 8 and table in document
