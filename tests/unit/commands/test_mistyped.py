"""A mistyped command line is answered with one that would have been right."""

import shlex
from pathlib import Path

import pytest

from mtx import cli
from mtx.formatting import mtx_command
from mtx.storage.run_files import is_model


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a text, and a run `model`, which no command reads here."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.yaml").touch()
    Path("my.en").write_text("a dog\n")
    assert is_model("model")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("translate my.en model", "mtx translate model my.en"),
        ("translate my.en -q model", "mtx translate model my.en -q"),
        ("translate my.en --beam=4 model", "mtx translate model my.en --beam=4"),
        ("translate my.en --beam 4 model", "mtx translate model my.en --beam 4"),
        ("translate 'a dog' model", "echo 'a dog' | mtx translate model"),
        ("translate model 'a dog' -q", "echo 'a dog' | mtx translate model -q"),
        ("translate --text 'a dog' model", 'a text is piped: echo "a text" | mtx translate MODEL'),
        ("back-translate my.en model -o bt.tsv", "mtx back-translate model my.en -o bt.tsv"),
        ("attention 'a dog' model", "mtx attention model 'a dog'"),
        ("logprob my.en my.en model", "mtx logprob model my.en my.en"),
        ("translate --model model my.en", "mtx translate model my.en"),
        ("translate --model model --input my.en", "mtx translate model my.en"),
        ("translate --model=model --input=my.en --beam 4", "mtx translate model --beam 4 my.en"),
        ("translate model -src my.en", "mtx translate model my.en"),
        ("translate model my.en --src en --tgt de", "--from LANGUAGE"),
        ("translate model my.en --tgt de", "--to LANGUAGE"),
        ("translate --model", "mtx translate MODEL"),
        ("translate model --input", "mtx translate model FILE"),
        ("model my.en", "mtx translate model my.en"),
        ("my.en my.de", "mtx train my.en my.de"),
    ],
)
def test_the_answer_is_what_should_have_been_typed(words: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(shlex.split(words)) == 2
    assert capsys.readouterr().err.splitlines()[-1].replace(mtx_command(), "mtx ") == f"help: {hint}"
