"""Sentences that ranks translate in turns come back in order, each direction translated and scored in its languages."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mtx.config.schema import Config
from mtx.data.token_store import TokenStore, store_batch, write_store
from mtx.decoding.options import SearchOptions
from mtx.training import validation
from mtx.training.validation import deciding_metric, interleave, validate_part, validation_of

DIRECTIONS = ["en-de", "en-zh", "de-en"]
LONG, SHORT = "ein Satz mit fünf Wörtern", "ja"


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_every_nth_line_of_each_rank_makes_up_the_text(size: int) -> None:
    lines = [str(number) for number in range(7)]
    assert interleave([lines[number::size] for number in range(size)]) == lines


def prepared(path: Path, directions: Sequence[int], targets: Sequence[str] | None = None) -> Any:
    """Data with a validation set of these directions, its sources s0, s1 and so on; its targets have four ids."""
    number = len(directions)
    targets = targets or [LONG] * number
    rows = zip(range(number), directions, targets, strict=True)
    blocks = [store_batch(10, [[2, 0]], [[2, 2, 2, 0]], [n], [number], [f"s{n}"], [tgt]) for n, number, tgt in rows]
    write_store(path, 10, [1.0], blocks)
    tokenizer = SimpleNamespace(normalization="nfc", num_forced=0)
    return SimpleNamespace(valid=TokenStore.load(path), tokenizer=tokenizer, report={})


def config(directions: Sequence[str], metric: str = "auto") -> Config:
    data = {"src": "en", "tgt": "de", "directions": directions}
    return Config.model_validate({"data": data, "training": {"best_metric": metric}})


class Engine:
    """Gives each target the log-probability of minus its number of ids."""

    def __init__(self, *_: Any) -> None: ...

    def log_probs(self, src: Sequence[Any], tgt: Sequence[Any], alpha: float) -> list[Any]:
        return [SimpleNamespace(log_prob=-float(len(ids))) for ids in tgt]


class Names:
    """Translates a line into its direction and itself."""

    splitter = None
    options = SearchOptions(beam_size=1)
    name = ""

    def __init__(self, *_: Any) -> None: ...

    def to(self, tgt: str, src: str) -> "Names":
        view = Names()
        view.name = f"{src}-{tgt}"
        return view

    def translate(self, lines: list[str]) -> list[str]:
        return [f"{self.name} {line}" for line in lines]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_sentence_is_translated_in_its_direction(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "TorchEngine", Engine)
    monkeypatch.setattr(validation, "Translator", Names)
    numbers = [0, 0, 2, 2, 2, 1, 0]
    data = prepared(tmp_path / "valid.arrow", numbers)
    model: Any = None
    parts = [validate_part(config(DIRECTIONS), data, model, rank, size) for rank in range(size)]
    hypotheses = interleave([part["hypotheses"] for part in parts])
    assert hypotheses == [f"{DIRECTIONS[number]} s{row}" for row, number in enumerate(numbers)]
    assert sum(part["nll"] for part in parts) == 28.0


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_the_mean_of_the_directions_decides(metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts as much as another, however many sentences it has; one without a sentence does not count."""
    asked = list[tuple[list[str], list[str], str]]()
    values = {3: 10.0, 1: 40.0}

    def measure(hypotheses: list[str], references: list[str], tgt: str, metrics: list[str]) -> dict[str, Any]:
        asked.append((hypotheses, references, tgt))
        return {name: {"score": values[len(hypotheses)]} for name in metrics}

    monkeypatch.setattr(validation.metrics, "score", measure)
    data = prepared(tmp_path / "valid.arrow", [0, 1, 0, 0], ["r0", "r1", "r2", "r3"])
    parts = [{"nll": 8.0, "hypotheses": ["h0", "h1", "h2", "h3"]}]
    result = validation_of(config(DIRECTIONS, metric), data, parts, 0.0)
    assert (result.score, result.bleu, result.nll) == (25.0, 25.0, 0.5)
    assert result.by_direction == {"en-de": 10.0, "en-zh": 40.0} == result.figures()["by_direction"]
    assert asked[:2] == [(["h0", "h2", "h3"], ["r0", "r2", "r3"], "de"), (["h1"], ["r1"], "zh")]
    one = validation_of(
        config([], metric), prepared(tmp_path / "one.arrow", [0, 0, 0]), [{**parts[0], "hypotheses": [*"abc"]}], 0.0
    )
    assert one.score == 10.0 and "by_direction" not in one.figures() and asked[-1][2] == "de"


def test_one_direction_too_short_for_bleu_lets_chrf_decide(tmp_path: Path) -> None:
    for number, targets in enumerate(([LONG] * 5, [LONG] * 4 + [SHORT], [SHORT] + [LONG] * 4)):
        data = prepared(tmp_path / f"{number}.arrow", [0, 0, 0, 0, 2], targets)
        assert deciding_metric(data, config(DIRECTIONS)) == ("chrf" if number == 1 else "bleu")
        assert deciding_metric(data, config(DIRECTIONS, "nll")) == "nll"
