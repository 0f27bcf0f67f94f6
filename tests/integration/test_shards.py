"""`mtx prepare --shard K/N`: the commands of docs/howto/past-one-machine.md, killed shards, the join by `mtx train`."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integration.commands import ENVIRONMENT, mtx, start, write_tsv
from tests.reliability.marks import num_marks, slow_within
from tests.rig import PATIENCE_S, ROOT

pytestmark = pytest.mark.seconds
PAGE = (ROOT / "docs" / "howto" / "past-one-machine.md").read_text(encoding="utf-8")
STAND_INS = {
    "mtx": f'exec {sys.executable} -m mtx "$@"',
    "sbatch": '[ "$1" = --array=1-3 ] && SLURM_ARRAY_TASK_ID=2 bash -c "$3"',  # one job of three
}


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def with_tokenizer(settings: list[str], tmp_path: Path) -> list[str]:
    """Settings with a tokenizer that is learned first; the run `whole` has the text without shards."""
    assert mtx("prepare", *settings, f"run_dir={tmp_path / 'learned'}").returncode == 0
    model = tmp_path / "learned" / "data" / "tokenizer.model"
    given = [f"tokenizer.model={model}", *(each for each in settings if not each.startswith("tokenizer."))]
    assert mtx("prepare", *given, f"run_dir={tmp_path / 'whole'}").returncode == 0
    return given


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    section = PAGE.partition("\n## Preparing on several machines\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```", section, re.MULTILINE | re.DOTALL)
    learn, slurm, xargs, join = "".join(blocks).replace("64", "3").replace("32000", "300").splitlines()
    [tokenizer] = re.findall(r"`(tokenizer: {.*?})`", section)
    assert "xargs -P2" in xargs
    for name, line in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def run(command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    write_tsv(tmp_path / "big.tsv", range(1000, 1400))
    write_tsv(tmp_path / "part.tsv", range(1100, 1300))
    (tmp_path / "big.yaml").write_text("data:\n  train: big.tsv\n  src: en\n  tgt: de\nrun_dir: runs/big\n")
    run(learn)
    with (tmp_path / "big.yaml").open("a") as file:
        file.write(tokenizer)
    run(slurm)
    assert [path.name for path in (tmp_path / "runs" / "big" / "shards").iterdir() if path.is_dir()] == ["0002-of-0003"]
    run(xargs)
    run(join)
    run("mtx prepare big.yaml run_dir=runs/whole")
    assert content(tmp_path / "runs" / "big" / "data") == content(tmp_path / "runs" / "whole" / "data")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
@pytest.mark.parametrize("moment", ["mtx.data.blocks:encode_block", "mtx.storage.durable:write_manifest"])
def test_a_killed_shard_is_made_by_the_same_command(moment: str, with_tokenizer: list[str], tmp_path: Path) -> None:
    run, marks = tmp_path / "run", tmp_path / "marks"
    arguments = ["prepare", *with_tokenizer, f"run_dir={run}"]
    assert mtx(*arguments, "--shard", "2/2").returncode == 0
    slowly = partial(slow_within, marks, "mtx.data.prepare:write_shard", moment, 20.0)
    started = start(*arguments, "--shard", "1/2", first=slowly)
    assert started.wait_until(lambda: num_marks(marks, moment)) and started.kill_at(time.monotonic())
    left = {path.name for path in (run / "shards").iterdir() if path.is_dir()}
    assert left == {"0002-of-0002", ".tmp-0001-of-0002"}, "an unfinished shard"
    refused = mtx(*arguments)
    error, help_line = refused.stderr.decode().splitlines()[-2:]
    assert refused.returncode == 2 and error == f"error: {run}/shards: 1 of 2 shards; missing 1"
    assert help_line.startswith("help: mtx prepare CONFIG --shard 1/2; ")
    made = mtx(*arguments, "--shard", "1/2")
    assert made.returncode == 0, made.stderr.decode()
    left = {path.name for path in (run / "shards").iterdir() if path.is_dir()}
    assert left == {"0001-of-0002", "0002-of-0002"}
    joined = mtx(*arguments)
    assert joined.returncode == 0, joined.stderr.decode()
    assert content(run / "data") == content(tmp_path / "whole" / "data") and not (run / "shards").exists()


def test_a_training_joins_the_shards(with_tokenizer: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [*with_tokenizer, f"run_dir={run}"]
    for number in (2, 1):
        done = mtx("prepare", *arguments, "--shard", f"{number}/2")
        assert done.returncode == 0 and f"prepared: {run}/shards/000{number}-of-0002" in done.stderr.decode()
    done = mtx("train", *arguments, "training.max_steps=2")
    assert done.returncode == 0, done.stderr.decode()
    assert content(run / "data") == content(tmp_path / "whole" / "data") and not (run / "shards").exists()


@pytest.mark.parametrize(
    "shard, problem", [("0/3", "--shard 0/3: expected K/N"), ("1/3", "--shard needs a given tokenizer")]
)
def test_what_is_refused(
    shard: str, problem: str, settings: list[str], tmp_path: Path, refused: Callable[..., None]
) -> None:
    refused(2, [problem], "prepare", *settings, f"run_dir={tmp_path / 'run'}", "--shard", shard)
    assert not (tmp_path / "run").exists()
