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
        ("trian", "mtx --help"),
        ("status model --seed 1", "mtx status --help"),
        ("translate model --beam-size 1", "--beam INT"),
        ("train own-text --zzz 1", "mtx train --help"),
        ("train own-text --lr 1", "settings are written key=value: training.learning_rate=VALUE"),
        (
            "train own-text --layers 1",
            "settings are written key=value: model.num_encoder_layers=VALUE model.num_decoder_layers=VALUE",
        ),
        (
            "train own-text --wandb 1",
            "mtx does not support such services; training.tensorboard=true writes metrics for TensorBoard",
        ),
        ("train --training.max_steps 100", "settings are written key=value: training.max_steps=VALUE"),
        ("train --training.max_steps=100", "settings are written key=value: training.max_steps=VALUE"),
        ("train --max-steps=100", "settings are written key=value: training.max_steps=VALUE"),
        ("train training.max_steps 100", "training.max_steps=VALUE, without spaces"),
        ("train training.max_steps = 100", "training.max_steps=VALUE, without spaces"),
    ],
)
def test_the_answer_is_what_should_have_been_typed(words: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(shlex.split(words)) == 2
    assert capsys.readouterr().err.splitlines()[-1].replace(mtx_command(), "mtx ") == f"help: {hint}"


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ("train run_dir=my clients/2026 runs", "clients/2026"),
        ("train training.max_steps= 100", "100"),
        ("train seed=2 demo2", "demo2"),
    ],
)
def test_a_word_that_is_no_setting_is_named(words: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(shlex.split(words)) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: '{word}' is not a setting",
        "help: settings are written key=value, without spaces; quote a value with spaces",
    ]
