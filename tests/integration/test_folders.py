"""Each folder around the spine can be taken away: training and translation still work, and commands name the folder."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.commands import ENVIRONMENT, TINY
from tests.rig import PATIENCE_S

pytestmark = [pytest.mark.extended, pytest.mark.seconds]
ROOT = Path(__file__).parents[2]
NEEDS = {
    "evaluation": ["evaluate", "run"],
    "report": ["train", "run", "--dry-run"],
    "interop": ["export", "run", "--to", "ctranslate2", "-o", "export"],
    "documents": ["translate", "run", "page.html"],
    "serve": ["serve", "run"],
    "synthesis": ["back-translate", "run", "lines.txt", "-o", "pairs.tsv"],
    "architectures": ["train", "demo", "model.architecture=rnn", "run_dir=other"],
}


def run(directory: Path, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run the copy of mtx in `directory`, there."""
    command = [sys.executable, "-m", "mtx", *arguments]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(directory)}
    return subprocess.run(
        command, cwd=directory, env=environment, input=stdin, capture_output=True, check=False, timeout=PATIENCE_S
    )


@pytest.mark.parametrize("folder", NEEDS)
def test_the_spine_works_without(folder: str, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "mtx", tmp_path / "mtx", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.rmtree(tmp_path / "mtx" / folder)
    (tmp_path / "page.html").write_text("<p>one two</p>")
    (tmp_path / "lines.txt").write_text("one two\n")
    trained = run(tmp_path, "train", f"data.train={corpus}", *TINY, "training.max_steps=4", "run_dir=run")
    assert trained.returncode == 0 and b"BLEU" in trained.stdout, trained.stderr.decode()
    translated = run(tmp_path, "translate", "run", stdin=b"one two\n")
    assert translated.returncode == 0 and translated.stdout.count(b"\n") == 1, translated.stderr.decode()
    refused = run(tmp_path, *NEEDS[folder])
    said = refused.stderr.decode()
    assert refused.returncode == 2 and f"mtx.{folder}" in said, said
    assert "this mtx has no " in said or "not available" in said
