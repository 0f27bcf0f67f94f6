"""The examples that the help of each command shows do what they say, in a folder with the files that they name."""

import shlex
import shutil
from pathlib import Path

import pytest

from mtx import cli
from mtx.commands.help import EXAMPLES
from tests.integration.commands import mtx

pytestmark = pytest.mark.extended

# These train or download, need a published model, or are run by other tests; test_commands_in_docs.py parses them all.
NOT_RUN = (
    "mtx train",
    "mtx distil",
    "mtx prepare",
    "mtx import",
    "mtx doctor",
    "mtx serve",
    "mtx export runs/my --to huggingface",
)
RUN = [
    line
    for group in EXAMPLES.values()
    for lines in group.values()
    for line in lines
    if not line.startswith(NOT_RUN) and "echo" not in line and " > " not in line
]


@pytest.fixture(scope="module")
def folder(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for name in ("my", "second", "de-en"):
        shutil.copytree(trained, folder / "runs" / name)
    for name in ("input.txt", "output.txt", "reference.txt", "more.de"):
        (folder / name).write_text("one two three four\nfive six seven eight\n")
    return folder


@pytest.mark.parametrize("line", RUN)
@pytest.mark.seconds
def test_an_example_is_done(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if "ctranslate2" in line:
        pytest.importorskip("ctranslate2")
    monkeypatch.chdir(folder)
    words = shlex.split(line)[1:]
    assert cli.run(words) == 0, capfd.readouterr().err
    if "-o" in words:
        assert (folder / words[words.index("-o") + 1]).exists()
    else:
        assert capfd.readouterr().out


@pytest.mark.seconds
def test_the_example_that_reads_a_pipe(folder: Path) -> None:
    [line] = [line for lines in EXAMPLES["Translate"].values() for line in lines if "echo" in line]
    text, _, command = line.partition(" | ")
    done = mtx("translate", folder / "runs" / "my", stdin=shlex.split(text)[1].encode())
    assert command == "mtx translate runs/my" and done.stdout.count(b"\n") == 1
