"""Typer's options become those of `Translator.load`, and only those that a command takes are there."""

import shlex
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer
from typer.testing import CliRunner

from mtx import cli
from mtx.commands import inspect_model
from mtx.commands.translator_options import ALL, LoadOptions, takes
from mtx.decoding.options import MBR_EPSILON, Placement, Sampling, SearchOptions
from mtx.errors import UsageError


def run(names: tuple[str, ...], options: str = "") -> tuple[SearchOptions, Placement]:
    found = dict[str, Any]()

    @takes(*names)
    def command(text: str, *, options: LoadOptions) -> None:
        assert text == "x"
        found.update(options)

    app = typer.Typer(rich_markup_mode=None)
    app.command()(command)
    result = CliRunner().invoke(app, ["x", *shlex.split(options)])
    assert result.exit_code == 0, result.output
    place = {name: found.pop(name) for name in vars(Placement()) if name in found}
    return SearchOptions(**found), Placement(**place)


def test_nothing_given_leaves_everything_to_the_model() -> None:
    assert run(ALL) == (SearchOptions(), Placement())
    assert run(()) == run(("beam_size",)) == (SearchOptions(), Placement())


@pytest.mark.parametrize("command", ["logprob", "encode", "attention"])
def test_what_does_not_search_is_computed_by_torch_in_tf32(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(model: str, **options: Any) -> NoReturn:
        loaded.append(Placement(**options))
        raise UsageError("enough")

    loaded = list[Placement]()
    monkeypatch.setattr(inspect_model, "load_translator", load)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("a\n")
    texts = ["text", "text"] if command == "logprob" else ["text"]
    assert cli.run([command, "model", *texts]) == 2
    assert loaded == [Placement(precision="tf32", engine="torch")]


def test_each_option_has_its_place() -> None:
    searched = run(ALL, "--beam 2 --length-penalty 1 --max-length 9 --n-best 2 --no-split-sentences")
    assert searched == (SearchOptions(2, 1.0, 9, None, False, 2), Placement())
    placed = run(ALL, "--engine ctranslate2 --precision int8 --threads 3 --device cuda:1 --batch-tokens 64")
    assert placed == (SearchOptions(), Placement("cuda:1", "int8", 3, 64, "ctranslate2"))
    drawn, _ = run(ALL, "--n-best 2 --temperature 0.5 --top-k 3 --top-p 0.9 --epsilon 0.1 --seed 7")
    assert drawn.sampling == Sampling(2, temperature=0.5, top_k=3, top_p=0.9, seed=7, epsilon=0.1)
    assert run(ALL, "--mbr 4")[0].sampling == Sampling(4, epsilon=MBR_EPSILON, mbr=True)


def test_a_command_has_the_options_that_it_takes_with_their_help() -> None:
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @takes("beam_size")
    def command(*, options: LoadOptions) -> None:
        """Search."""

    shown = CliRunner().invoke(app, ["--help"]).output
    assert (
        "--beam INT" in shown
        and "Beam size.  [default: as in the run]" in shown
        and "--device" not in shown
        and "--options" not in shown
    )
