"""The commands that only look: help, config, status. They answer at once, without torch."""

import json
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from mtx.config.settings import recipe_facts, recipe_names
from tests.integration.commands import ENVIRONMENT, end_at_step, mtx, start, tree, wait_until

ASK = """
import sys
from mtx import cli
code = cli.run(sys.argv[1:])
assert 'torch' not in sys.modules
sys.exit(code)
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["train", "--help"], ["config"], ["config", "multi30k-en-de"], ["status", "RUN"], ["status"]],
)
def test_no_torch(arguments: list[str], trained: Path) -> None:
    arguments = [str(trained) if argument == "RUN" else argument for argument in arguments]
    result = subprocess.run([sys.executable, "-c", ASK, *arguments], env=ENVIRONMENT, capture_output=True, check=False)
    assert result.returncode == 0 and ((result.stdout and not result.stderr) or arguments == ["status"])


def test_config_lists_the_recipes_in_a_table() -> None:
    head, *rows = mtx("config").stdout.decode().split("\n\n")[0].split("\n")
    assert head.split("  ")[0] == "recipe" and len(rows) == len(recipe_names())
    assert max(map(len, rows)) <= 100
    columns = [head.index(title) for title in ("what it learns", "machine", "time", "BLEU")]
    for name, row in zip(recipe_names(), rows, strict=True):
        cells = [row[start:end].strip() for start, end in pairwise([0, *columns, len(row) + 1])]
        assert cells == [name, *recipe_facts(name)]
        assert all(row[start - 2 : start] == "  " for start in columns if start < len(row))
        assert row.count("not run") <= 1


def test_config_tells_where_values_come_from(tmp_path: Path) -> None:
    result = mtx("config", "multi30k-en-de", "training.max_steps=7")
    lines = result.stdout.decode().split("\n")
    assert any(line.startswith("  max_steps: 7 ") and line.endswith("# command line") for line in lines)
    assert any("num_heads: 4" in line and "preset small" in line for line in lines)
    assert any(line.endswith("# recipe multi30k-en-de") for line in lines) and any(
        line.endswith("# default") for line in lines
    )


def test_status_of_a_finished_run(trained: Path) -> None:
    before = tree(trained)
    text = mtx("status", trained).stdout.decode()
    assert "state:     finished\n" in text and "40 of 40" in text and "validation BLEU" in text
    assert "time left: none\n" in text and "heldout BLEU" in text
    found = json.loads(mtx("status", trained, "--json").stdout)
    assert found["left_s"] is None
    assert (found["state"], found["step"], found["max_steps"]) == ("finished", 40, 40)
    assert tree(trained) == before


def test_status_without_a_run_lists_all_runs(trained: Path, tmp_path: Path) -> None:
    empty = mtx("status", cwd=tmp_path)
    assert (empty.returncode, empty.stdout) == (0, b"") and b"mtx train demo" in empty.stderr
    assert json.loads(mtx("status", "--json", cwd=tmp_path).stdout) == []
    (tmp_path / "runs" / "notes").mkdir(parents=True)
    (tmp_path / "runs" / "mine").symlink_to(trained)
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "config.yaml").write_text("training: [\n")
    found = mtx("status", cwd=tmp_path)
    head, row = found.stdout.decode().splitlines()
    assert head.split("  ")[0] == "run" and row.startswith("runs/mine  finished  40 of 40")
    assert "validation BLEU" in row and row.endswith(" ago")
    assert found.returncode == 0 and found.stderr.startswith(b"warning: runs/broken/config.yaml:")
    (listed,) = json.loads(mtx("status", "--json", cwd=tmp_path).stdout)
    alone = json.loads(mtx("status", "runs/mine", "--json", cwd=tmp_path).stdout)
    assert listed.pop("age_s") > 0 and listed == alone


def test_status_while_running_and_stopped_and_the_loser_of_two(settings: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [*settings, f"run_dir={run}", "training.max_steps=100000", "training.validate_every=50000"]
    process = start("train", *arguments)
    wait_until((run / "checkpoints" / "step-00000012").is_dir, process)
    found = json.loads(mtx("status", run, "--json").stdout)
    assert found["state"] == "running" and found["step"] >= 10 and found["left_s"] > 1
    before = (run / "config.yaml").read_bytes()
    loser = mtx("train", *arguments)
    assert loser.returncode == 1 and b"in use by another process: process " in loser.stderr
    assert (run / "config.yaml").read_bytes() == before and process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "state:     stopped" in mtx("status", run).stdout.decode()


def test_a_finished_run_that_trains_on_and_is_killed_is_not_finished(run_copy: Path) -> None:
    end_at_step(run_copy, 44, signal.SIGKILL, run_copy, "training.max_steps=1000", "training.validate_every=500")
    found = json.loads(mtx("status", run_copy, "--json").stdout)
    assert found["state"] == "stopped" and found["step"] >= 40
