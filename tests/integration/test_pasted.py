"""What mtx prints as a command does that when pasted into a shell, also where paths hold spaces and quotes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mtx.formatting import program_name
from tests.integration.commands import ENVIRONMENT, MTX
from tests.rig import PATIENCE_S

pytestmark = [
    pytest.mark.extended,
    pytest.mark.seconds,
    pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell with ANSI-C quoting"),
]


@pytest.fixture
def here(trained: Path, tmp_path: Path) -> Path:
    """A folder with the shared run, whose name looks like an option, and a text."""
    folder = tmp_path / "it's a folder"
    shutil.copytree(trained, folder / "-my run")
    return folder


def run(words: list[str], cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def printed(text: str) -> list[str]:
    """The commands in what mtx printed: from the program, or what feeds or precedes it, to the end of the line."""
    beginnings = ('echo "…" | ', "MTX_DEBUG=1 ", "cp ", f"{program_name()} ", f"{' '.join(MTX)} ")
    commands = []
    for line in text.split("\n"):
        starts = [line.find(beginning) for beginning in beginnings if beginning in line]
        commands += [line[min(starts) :]] if starts else []
    return commands


def paste(command: str, cwd: Path) -> str:
    done = run(["bash", "-c", command], cwd)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def test_what_is_next_after_training(here: Path) -> None:
    done = run([*MTX, "train", "./-my run", "training.max_steps=80"], here)  # after 40 it is of no use yet
    translate, evaluate = printed(done.stderr)
    assert done.returncode == 0 and "'./-my run'" in translate
    assert paste(translate, here).count("\n") == 1
    assert paste(evaluate, here).startswith("heldout BLEU ")


def test_the_next_step_of_a_run_without_a_model(here: Path) -> None:
    shutil.rmtree(here / "-my run" / "model")
    refused = run([*MTX, "translate", "./-my run", "--engine", "ctranslate2"], here)
    [go_on] = printed(refused.stderr)
    assert paste(go_on, here).startswith("heldout BLEU ")
    assert (here / "-my run" / "model" / "README.md").is_file()


def test_what_to_do_with_an_edited_configuration(here: Path) -> None:
    config = here / "-my run" / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("num_heads: 2", "num_heads: 4"), encoding="utf-8")
    refused = run([*MTX, "evaluate", "./-my run"], here)
    [train_anew] = printed(refused.stderr)
    copied, _, train = train_anew.partition(" && ")
    assert train.endswith(" train COPY.yaml run_dir=NEW")
    paste(copied, here)
    assert "num_heads: 4 " in paste(train.replace(" train ", " config ", 1), here)


def test_a_text_in_place_of_a_configuration_and_a_wrong_option(here: Path, corpus: Path) -> None:
    shutil.copy(corpus, here / "my text.tsv")
    prepared = run([*MTX, "prepare", "my text.tsv"], here)
    [train] = printed(prepared.stderr)
    assert train.endswith(" train own-text 'data.train=my text.tsv' data.src=en data.tgt=de 'run_dir=runs/my text'")
    assert paste(train.replace(" train ", " config ", 1), here).count("my text.tsv") == 1
    [hint] = printed(run([*MTX, "status", "--no-such"], here).stderr)
    assert "Usage: mtx status" in paste(hint, here)
