"""`mtx train --dry-run`: what it tells of text and cost, and that it leaves nothing behind, however it ends."""

import json
import os
import signal
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import (
    TINY,
    check_error,
    mtx,
    pairs,
    put_temporary_files_into,
    start,
    tree,
    wait_until,
    write_tsv,
)
from tests.rig import PATIENCE_S
from tests.unit.data.sentences import sentences

NUMBERS = range(1000, 1400)


def dry_run(*arguments: Any, **options: Any) -> dict[str, Any]:
    result = mtx("train", *arguments, "--dry-run", "--json", **options)
    assert result.returncode == 0, result.stderr.decode()
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def warnings(found: dict[str, Any]) -> str:
    assert all(advice["text"] and advice["help"] for advice in found["warnings"])
    return "\n".join(advice["text"] for advice in found["warnings"])


def write_pairs(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows), encoding="utf-8")
    return path


def test_json_tells_all_and_nothing_is_left(settings: list[str], tmp_path: Path) -> None:
    scratch, run = tmp_path / "scratch", tmp_path / "no" / "run"
    scratch.mkdir()
    found = dry_run(*settings, f"run_dir={run}", first=partial(put_temporary_files_into, scratch))
    assert not run.parent.exists() and not list(scratch.glob("mtx-*"))
    assert set(found) == {"was_prepared", "data", "run", "time", "warnings"} and not found["was_prepared"]
    data = found["data"]
    assert (data["read"], data["kept"], data["held_out"], data["dropped"]) == (400, 360, 40, {})
    run_figures, time = found["run"], found["time"]
    assert (run_figures["steps_done"], run_figures["max_steps"], run_figures["device"]) == (0, 40, "cpu")
    assert run_figures["epochs"] == pytest.approx(40 / run_figures["steps_per_epoch"])
    assert (time["steps"], time["ends_by"], time["may_end_sooner"]) == (40, "max_steps", False)
    assert time["prepare_s"] > 0 and time["step_s"] > 0 and time["tgt_tokens_per_s"] > 0
    assert time["total_s"] > time["prepare_s"] + 40 * time["step_s"]


def test_lines_for_a_person(settings: list[str], tmp_path: Path) -> None:
    result = mtx("train", *settings, f"run_dir={tmp_path / 'run'}", "--dry-run")
    lines = result.stdout.decode().split("\n")
    assert result.returncode == 0 and not (tmp_path / "run").exists()
    starts = [line.split(":")[0] for line in lines if line[:1].isalpha() and not line.startswith("warning")]
    assert starts == ["pairs", "model", "steps", "time"]
    assert "warning: only 360 pairs" in result.stdout.decode() and b"warning" not in result.stderr


def test_text_that_is_not_as_it_should_be(tmp_path: Path) -> None:
    good = pairs(NUMBERS)
    copied = [(src, src) for src, _ in good[:152]]
    train = write_pairs(tmp_path / "train.tsv", copied + good[152:])
    valid = write_pairs(tmp_path / "valid.tsv", [(tgt, src) for src, tgt in pairs(range(2000, 2050))])
    strange = [("ერთი ორი", "null eins"), *good[390:400], *pairs(range(3000, 3039))]
    test = write_pairs(tmp_path / "news.tsv", strange)
    names = [f"data.train={train}", f"data.valid={valid}", f"data.test={test}"]
    found = dry_run(*names, *TINY, f"run_dir={tmp_path / 'run'}")
    told = warnings(found)
    assert f"38% of the pairs are the source copied as the target, such as {train}:1: one zero" in told
    assert "test set news: 10 training pairs have a source or target of it" in told
    assert "validation set: only 50 sentences" in told
    assert "only 248 pairs" in told


@pytest.mark.parametrize("command", ["prepare", "train"])
def test_what_is_wrong_with_a_text_is_said_after_every_preparation(command: str, tmp_path: Path) -> None:
    good, run = pairs(NUMBERS), tmp_path / "run"
    train = write_pairs(tmp_path / "a\x1b[31m.tsv", [(src, src) for src, _ in good[:152]] + good[152:])
    tests = [write_pairs(tmp_path / f"test{number}.tsv", good[number : number + 1]) for number in range(152, 155)]
    arguments = [f"data.train={train}", f"data.test={','.join(map(str, tests))}", *TINY, "training.max_steps=2"]
    result = mtx(command, *arguments, f"run_dir={run}")
    assert result.returncode == 0, result.stderr.decode()
    lines = result.stderr.decode().split("\n")
    told = [number for number, line in enumerate(lines) if line.startswith("warning: ")]
    assert lines[told[0]].startswith("warning: 38% of the pairs are the source copied as the target, such as ")
    assert "a\\x1b[31m.tsv:1: one zero" in lines[told[0]] and "\x1b" not in result.stderr.decode()
    assert all(lines[number + 1].startswith("  help: ") for number in told)
    assert len(told) == 6
    again = mtx(command, *arguments, f"run_dir={run}")
    assert again.returncode == 0 and b"warning" not in again.stderr


@pytest.mark.parametrize("command", [["prepare"], ["train", "--dry-run"], ["train"]])
def test_columns_that_swap_the_sides_are_refused_before_training(
    command: list[str], tmp_path: Path, refused: Any
) -> None:
    rows = enumerate(zip(sentences("fr", 300), sentences("en", 300), strict=True))
    text = "id;source;target\n" + "".join(f'{number};"{src}";{tgt}\n' for number, (src, tgt) in rows)
    (tmp_path / "my.csv").write_text(text, encoding="utf-8")
    train, languages = f"data.train={tmp_path / 'my.csv'}", ["data.src=en", "data.tgt=fr", "data.max_tokens=256"]
    arguments = [train, *TINY, *languages, "training.max_steps=2", f"run_dir={tmp_path / 'run'}"]
    refused(2, ["my.csv: source and target are swapped", "data.columns=3,2"], *command, *arguments, "data.columns=2,3")
    right = mtx("prepare", *arguments, "data.columns=3,2")
    assert right.returncode == 0 and b"are swapped" not in right.stderr, "the corrected command starts from scratch"
    assert b"skipping the header in the first line; the source is column 3, 'target'" in right.stderr
    assert json.loads((tmp_path / "run" / "data" / "report.json").read_text())["read"] == 300


def test_words_in_bytes_are_told(tmp_path: Path) -> None:
    train = write_tsv(tmp_path / "train.tsv", NUMBERS)
    valid = write_pairs(tmp_path / "valid.tsv", [("ერთი ორი სამი", tgt) for _, tgt in pairs(range(2000, 2300))])
    found = dry_run(f"data.train={train}", f"data.valid={valid}", *TINY, f"run_dir={tmp_path / 'run'}")
    assert "validation set: 100% of the en words have unknown characters" in warnings(found)


def test_a_run_that_is_begun_is_read_and_not_changed(run_copy: Path) -> None:
    before = tree(run_copy)
    found = dry_run(run_copy, "training.max_steps=60")
    assert found["was_prepared"] and found["time"]["prepare_s"] < 5
    assert (found["run"]["steps_done"], found["time"]["steps"]) == (40, 20)
    finished = dry_run(run_copy)
    assert finished["time"]["steps"] == 0 and "this run is finished at step 40" in warnings(finished)
    assert tree(run_copy) == before


@pytest.mark.extended
def test_a_run_that_ended_with_a_cooldown_goes_on_to_a_larger_limit(settings: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = mtx("train", *settings, f"run_dir={run}", "training.max_steps=10", "training.cooldown=0.5")
    assert ended.returncode == 0, ended.stderr.decode()
    assert dry_run(run)["time"]["steps"] == 0
    found = dry_run(run, "training.max_steps=16")
    assert found["time"]["steps"] == 6 and "has ended" not in warnings(found)
    assert mtx("train", run, "training.max_steps=16").returncode == 0
    assert json.loads((run / "status.json").read_text())["step"] == 16


def test_a_run_with_other_settings_is_refused(refused: Callable[..., None], run_copy: Path) -> None:
    refused(2, ["seed is 2, it was 1"], "train", run_copy, "seed=2", "--dry-run")


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_a_run_directory_that_cannot_be_written_is_refused(
    place: str, refused: Callable[..., None], settings: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"text")
    words = [f"run_dir {tmp_path / place}: cannot create or write it"]
    refused(2, words, "train", *settings, f"run_dir={tmp_path / place}")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"] and (tmp_path / "file").read_bytes() == b"text"


def test_a_run_directory_that_others_own_is_refused(settings: list[str], tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o555)
    if os.access(place, os.W_OK):
        pytest.skip("this user may write everywhere")
    result = mtx("train", *settings, f"run_dir={place / 'run'}")
    check_error(result.returncode, result.stderr.decode(), 2, "cannot create or write it: Permission denied")


def test_a_time_limit_and_patience(settings: list[str], tmp_path: Path) -> None:
    more = ["training.max_steps=100000000", "training.time_limit=1h", "training.patience=3"]
    time = dry_run(*settings, *more, f"run_dir={tmp_path / 'run'}")["time"]
    assert time["ends_by"] == "time_limit" and time["may_end_sooner"]
    assert 0.9 * 3600 < time["total_s"] <= 3600


def test_names_from_strangers_reach_no_terminal(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "a\x1b[31m.tsv", NUMBERS)
    with path.open("a", encoding="utf-8") as file:
        file.write("one\x07\tone\x07\n" * 30)
    result = mtx("train", f"data.train={path}", *TINY, f"run_dir={tmp_path / 'run'}", "--dry-run")
    assert result.returncode == 0 and b"a\\x1b[31m.tsv:401: one\\x07" in result.stdout
    assert b"\x1b" not in result.stdout and b"\x07" not in result.stdout


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    rows = [(src, src) for src, _ in pairs(NUMBERS)]
    valid = write_tsv(tmp_path / "valid.tsv", range(2000, 2010))
    train = write_pairs(tmp_path / "train.tsv", rows)
    result = mtx(
        "train", f"data.train={train}", f"data.valid={valid}", f"data.test={valid}", *TINY,
        f"run_dir={tmp_path / 'run'}", "--dry-run", first=partial(put_temporary_files_into, scratch),
    )  # fmt: skip
    check_error(result.returncode, result.stderr.decode(), 1, "no pairs left to train on")
    assert not (tmp_path / "run").exists() and not list(scratch.glob("mtx-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(number: signal.Signals, settings: list[str], tmp_path: Path) -> None:
    scratch, run = tmp_path / "scratch", tmp_path / "run"
    scratch.mkdir()
    slow = ["training.batch_tokens=8000", "model.d_ff=4000"]
    first = partial(put_temporary_files_into, scratch)
    process = start("train", *settings, f"run_dir={run}", *slow, "--dry-run", first=first)
    wait_until(lambda: list(scratch.glob("*/chosen.json")), process)
    assert [stat.S_IMODE(path.stat().st_mode) for path in scratch.iterdir()] == [0o700]
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    check_error(process.returncode, err.decode(), 128 + number)
    assert out == b"" and not run.exists() and not list(scratch.glob("mtx-*"))


def test_json_alone_is_refused(refused: Callable[..., None], settings: list[str]) -> None:
    refused(2, ["--json goes with --dry-run"], "train", *settings, "--json")
