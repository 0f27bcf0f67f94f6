"""What a run directory holds is read from its files alone."""

from pathlib import Path
from typing import Any

import pytest

from mtx.config import settings
from mtx.config.schema import Config
from mtx.errors import DamagedFileError, UsageError
from mtx.runs.run_directory import read_status
from mtx.storage import durable
from mtx.storage.run_files import (
    MARIAN_SOURCE_MODEL,
    MODEL_CONFIG,
    OPTIMIZER,
    REPORT,
    STATE,
    WEIGHTS,
    RunLayout,
    checkpoint_steps,
    find_model,
    full_checkpoint_steps,
    has_begun,
    require_run,
    translated_tests,
)


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


def test_checkpoints_are_recognised_by_name_and_manifest(run: RunLayout) -> None:
    assert checkpoint_steps(run) == [] and not has_begun(run)
    for step, names in ((100, (WEIGHTS, OPTIMIZER)), (20, (WEIGHTS,)), (3, (WEIGHTS, OPTIMIZER))):
        with durable.new_directory(run.checkpoint(step)) as new:
            for name in names:
                (new / name).touch()
    for name in ("step-new", "damaged-step-00000050", ".tmp-1"):
        (run.checkpoints / name).mkdir()
    (run.checkpoint(3) / "manifest.json").write_text("{")  # loading it reports the damage
    assert checkpoint_steps(run) == [3, 20, 100] and full_checkpoint_steps(run) == [3, 100] and has_begun(run)


def test_a_run_directory_means_its_model_directory_if_it_has_one(run: RunLayout) -> None:
    assert find_model(run.root) == run.root
    run.model.mkdir()
    assert find_model(run.root) == run.model and find_model(run.model) == run.model
    with pytest.raises(UsageError, match="not a run directory"):
        require_run(run.root)


def test_what_is_no_model_directory_is_told_with_the_path_to_give(run: RunLayout) -> None:
    checkpoint, marian = run.checkpoint(600), run.root / "huggingface"
    for file in (
        run.config,
        checkpoint / STATE,
        run.data / REPORT,
        marian / MODEL_CONFIG,
        marian / MARIAN_SOURCE_MODEL,
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for path, what, hint in (
        (checkpoint, "a part of a run", "MODEL is a run directory or a model directory"),
        (run.data, "a part of a run", "MODEL is a run directory or a model directory"),
        (marian, "a MarianMT directory", f"import {marian} -o MODEL"),
    ):
        with pytest.raises(UsageError, match=what) as caught:
            find_model(path)
        assert hint in (caught.value.help or "")


def test_a_test_set_is_translated_if_it_has_hypotheses(run: RunLayout) -> None:
    assert translated_tests(run) == []
    for name in ("b", "a", "half", "kept-a", "damaged-b"):
        (run.evaluation / name).mkdir(parents=True)
        (run.evaluation / name / ("src.txt" if name == "half" else "hyp.txt")).touch()
    assert translated_tests(run) == ["a", "b"]


@pytest.mark.parametrize("scores", [{"test": 3}, {"test": {"bleu": {"score": "x"}}}, {"test": {"bleu": 1}}])
def test_scores_that_are_none_are_told_by_their_file(scores: dict[str, Any], run: RunLayout) -> None:
    run.config.write_text(settings.dump(Config()))
    run.model.mkdir()
    durable.write_json(run.model / "scores.json", scores)
    with pytest.raises(DamagedFileError, match="scores.json: no BLEU scores"):
        read_status(run.root)
