"""Ranks share out validation and scoring, and one process would have found the same."""

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mtx.errors import MtxError
from mtx.runs.run_directory import read_status
from tests.integration.commands import TINY, check_error, events, mtx, write_tsv
from tests.ranks import start_ranks

pytestmark = [
    pytest.mark.extended,
    pytest.mark.seconds, pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")
]  # fmt: skip
SETTINGS = [*TINY, "precision=fp32", "training.max_steps=60", "training.validate_every=60"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A finished run of one process, and its settings."""
    directory = tmp_path_factory.mktemp("alone")
    text, test = (write_tsv(directory / name, numbers) for name, numbers in (
        ("text.tsv", range(1000, 1400)), ("test.tsv", range(2000, 2060))))  # fmt: skip
    settings = [*SETTINGS, f"data.train={text}", f"data.test={test}"]
    run = directory / "run"
    done = mtx("train", *settings, f"run_dir={run}")
    assert done.returncode == 0, done.stderr
    return run, settings


def outcome(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.glob("evaluation/*/*") if path.suffix in (".txt", ".json")}


def start_event(run: Path) -> Any:
    return next(event for event in events(run) if event["event"] == "validation")


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_score_a_run_as_one_process_does(size: int, alone: tuple[Path, list[str]], tmp_path: Path) -> None:
    whole, settings = alone
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    expected = outcome(run)
    assert "hyp.txt" in expected
    shutil.rmtree(run / "evaluation")
    shutil.rmtree(run / "model")
    team = start_ranks(size, *settings, f"run_dir={run}")
    assert team.wait() == [0] * size, team.err()
    assert outcome(run) == expected
    assert read_status(run).state == "finished"
    assert all(start.err() + start.out() == "" for start in team.starts[1:])


def divide_finely() -> None:
    """In a new process: a validation has many batches."""
    pytest.MonkeyPatch().setattr("mtx.decoding.torch_engine.SCORED_TOKENS", 32)


def test_ranks_validate_as_one_process_does(alone: tuple[Path, list[str]], tmp_path: Path) -> None:
    whole, settings = alone
    found = []
    for size in (1, 2, 3):
        run = tmp_path / f"run-{size}"
        values = [*settings, f"training.init_from={whole}", "training.max_steps=1", f"run_dir={run}"]
        team = start_ranks(size, *values, first=lambda _: divide_finely)
        assert team.wait() == [0] * size, team.err()
        found.append(start_event(run))
    for there in found[1:]:
        assert abs(there["nll"] - found[0]["nll"]) <= 1e-6
        assert [there[key] for key in ("step", "bleu", "samples")] == [
            found[0][key] for key in ("step", "bleu", "samples")
        ]


def fail(*_: Any, **__: Any) -> None:
    raise MtxError("the disk of this rank is gone")


def break_stage(stage: str) -> None:
    """In a new process: let a function fail."""
    pytest.MonkeyPatch().setattr(stage, fail)


@pytest.mark.parametrize(
    ("rank", "stage"),
    [(0, "mtx.training.build.validate_part"), (1, "mtx.training.build.validate_part"),
     (0, "mtx.training.run.write_test_set"), (1, "mtx.decoding.translator.Translator.translate")],
)  # fmt: skip
def test_a_rank_that_fails_ends_all(rank: int, stage: str, alone: tuple[Path, list[str]], tmp_path: Path) -> None:
    team = start_ranks(
        2, *alone[1], "training.max_steps=2", f"run_dir={tmp_path / 'run'}",
        first=lambda number: partial(break_stage, stage) if number == rank else None,
    )  # fmt: skip
    codes = team.wait(60)
    assert codes == [1, 1], team.err()
    check_error(codes[0], team.starts[0].err(), 1, "the disk of this rank is gone", *(["rank 1"] if rank else []))
    assert team.starts[1].err() == ""


def log_tokens(log: Path) -> None:
    """In a new process: log the target tokens of each step that the metrics count."""
    from mtx.training.trainer import Progress

    original = Progress.measure

    def measure(self: Any, update: Any, *values: Any) -> Any:
        os.write(fd, f"{update.num_tgt_tokens}\n".encode())
        return original(self, update, *values)

    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pytest.MonkeyPatch().setattr(Progress, "measure", measure)


def test_metrics_count_the_tokens_of_all_ranks(alone: tuple[Path, list[str]], tmp_path: Path) -> None:
    tokens = []
    for size, rdrop_alpha in ((1, 0), (2, 0), (1, 1)):
        run, log = tmp_path / f"run-{size}-{rdrop_alpha}", tmp_path / f"log-{size}-{rdrop_alpha}"
        values = [*alone[1], "training.max_steps=8", f"training.rdrop_alpha={rdrop_alpha}", f"run_dir={run}"]
        team = start_ranks(size, *values, first=lambda _, log=log: partial(log_tokens, log))  # type: ignore[misc]
        assert team.wait() == [0] * size, team.err()
        tokens.append(log.read_text())
    assert tokens[0] == tokens[1] == tokens[2] and tokens[0].count("\n") == 8
