"""mtx does without what only POSIX, or only Linux, has: the same commands with all of it taken away."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.commands import ENVIRONMENT, events

pytestmark = pytest.mark.extended

WITHOUT = """
import os, signal, sys
for module in ("grp", "pwd", "readline", "resource", "termios"):
    sys.modules[module] = None
import platformdirs.unix  # which other systems have in another form, with its own imports
for name in ("confstr", "fork", "geteuid", "getuid", "mkfifo", "posix_fadvise", "sched_getaffinity", "sysconf"):
    delattr(os, name)
for name in ("SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1"):
    delattr(signal, name)
from mtx import cli
settings, run, text = sys.argv[1:-2], sys.argv[-2], sys.argv[-1]
for arguments in (
    ["doctor"], ["train", *settings, "--dry-run"], ["train", *settings], ["status", run], ["translate", run, text],
):
    assert cli.run(arguments) == 0, arguments
"""


def test_commands_that_train_look_and_translate(settings: list[str], tmp_path: Path) -> None:
    run, text = tmp_path / "run", tmp_path / "text"
    text.write_text("one two\n", encoding="utf-8")
    short = [*settings, "training.max_steps=4", "training.validate_every=4", f"run_dir={run}"]
    command = [sys.executable, "-c", WITHOUT, *short, run, text]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr.decode()
    assert events(run)[-1]["event"] == "end"
