"""A crash or a power cut while a finished model changes leaves one that translates at once: the old or the new one."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mtx.decoding import model_directory
from mtx.decoding.translator import Translator
from mtx.evaluation import quality_fit
from mtx.scoring.quality import QualityMap
from mtx.storage import durable
from mtx.storage.run_files import RunLayout, model_identity
from tests.reliability import journal
from tests.reliability.conftest import size
from tests.reliability.journal import Op, Recorder
from tests.unit.decoding.test_translator_directions import LINES, multilingual
from tests.unit.scoring.test_quality import VALUES

Tally = Callable[[str, int, int], None]
DIRECTION = "en-de"
MAPS = [QualityMap(**{**VALUES, "redo_below": limit}) for limit in (30.0, 40.0)]


def add_scores(model: Path, number: int, patch: pytest.MonkeyPatch) -> None:
    model_directory.add_scores(model, {"run": {"number": number}}, {"README.md": f"# card {number}\n"})


def fit_quality(model: Path, number: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quality_fit, "fit", lambda *_: MAPS[number])
    quality_fit.fit_quality(Translator.load(model, to="de", src="en", engine="torch"), model, [], [])


def write_again(model: Path, number: int, patch: pytest.MonkeyPatch) -> None:
    multilingual(model, "target", [DIRECTION, "en-fr"] if number else [DIRECTION, "de-en"])


def state(path: Path) -> list[Any]:
    """What a user gets of a model that loads and translates."""
    model = Translator.load(path, engine="torch", device="cpu", threads=1)
    translator = model.to("de", "en")
    found = translator.hypotheses(LINES[:2])
    directory = translator._directory
    assert directory and model_identity(path)
    scores, card = directory / "scores.json", directory / "README.md"
    return [
        [(line[0].text, line[0].quality) for line in found],
        translator.quality_maps,
        model.directions,
        durable.read_json(scores) if scores.exists() else None,
        card.read_text() if card.exists() else None,
    ]


Recorded = tuple[list[Op], int, str, list[list[Any]]]


def record(root: Path, name: str, *acts: Callable[[Path, int, pytest.MonkeyPatch], None]) -> Recorded:
    """Records changes of a model; returns the operations, how many made the model, its name, and all its states."""
    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(root, patch)
        model = root / name
        if name == "run":
            model = RunLayout(model).model
            durable.make_directories(root / name)
            durable.write_text(root / name / "config.yaml", "")
        write_again(model, 0, patch)
        num_made = len(recorder.ops)
        states = [state(root / name)]
        for number, act in enumerate(acts):
            act(model, number, patch)
            states.append(state(root / name))
    return recorder.ops, num_made, name, states


def outcomes(recorded: Recorded, disks: Callable[[list[Op]], Iterator[Any]], path: Path) -> Iterator[bool]:
    """For each disk that is left after an operation: whether the model works, and each part is one of its states."""
    ops, num_made, name, states = recorded
    works = dict[Any, bool]()  # a sync, say, leaves what was there before it
    for end in range(num_made, len(ops) + 1):
        for write_out in disks(ops[:end]):
            write_out(path)
            content = journal.content_of(path)
            if content not in works:
                works[content] = has_a_state(path / name, states)
            yield works[content]
            shutil.rmtree(path)


def has_a_state(model: Path, states: list[list[Any]]) -> bool:
    """Whether a model works, and each part of what a user gets of it is that of one of its states."""
    try:
        parts = zip(state(model), zip(*states, strict=True), strict=True)
        return all(part in possible for part, possible in parts)
    except Exception:
        return False


CASES = [
    ("model", add_scores, add_scores),
    ("model", fit_quality, fit_quality),
    ("run", add_scores, fit_quality),
    ("model", write_again, write_again),
    ("run", write_again, write_again),
]


@pytest.mark.parametrize("case", CASES)
def test_killed_at_any_write(case: Any, tmp_path: Path, tally: Tally) -> None:
    def killed(ops: list[Op]) -> Iterator[Any]:
        return (lambda path, left=left: journal.write_out(left, path) for left in journal.killed(ops))

    results = list(outcomes(record(tmp_path / "recorded", *case), killed, tmp_path / "disk"))
    tally("killed while a finished model changes", len(results), sum(results))


@pytest.mark.parametrize("case", CASES)
def test_power_cut_at_any_write(case: Any, tmp_path: Path, tally: Tally) -> None:
    rng = random.Random(1)
    most = size(2, 40)
    results = list(
        outcomes(record(tmp_path / "recorded", *case), lambda ops: journal.cut(ops, most, rng), tmp_path / "disk")
    )
    tally("power cut while a finished model changes", len(results), sum(results))
