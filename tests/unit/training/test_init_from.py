"""A run that starts from a model: whose word counts for each setting, and which models are refused."""

import logging
import random
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from mtx.config import settings
from mtx.config.schema import Config, TokenizerConfig
from mtx.config.settings import Resolved
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.decoding import model_directory
from mtx.errors import DamagedFileError, UsageError
from mtx.storage import durable
from mtx.storage.run_files import REPORT, WEIGHTS, RunLayout
from mtx.training import init_from
from mtx.training.checkpoint import State, load_state
from mtx.training.init_from import inherit
from mtx.training.run import load_initial
from tests.models import tiny_config, tiny_model

INFO = {"src": "de", "tgt": "en", "max_tokens": 40, "beam_size": 3, "length_penalty": 0.7}
MODEL: dict[str, Any] = {"norm": "pre", "activation": "gelu", "dropout": 0.25}


def learn_tokenizer(letters: str, **options: Any) -> Tokenizer:
    rng = random.Random(1)
    lines = [" ".join("".join(rng.choices(letters, k=4)) for _ in range(6)) for _ in range(100)]
    return train_tokenizer(iter(lines), TokenizerConfig(vocab_size=300, **options), 100, ["BT"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory of 2+2 layers of 16/32 with 300 pieces, de-en."""
    directory = tmp_path_factory.mktemp("models") / "m"
    tokenizer = learn_tokenizer("abcdef", normalization="none")
    weights = tiny_model(tokenizer.num_ids, dtype=torch.float32, **MODEL).state_dict()
    model_directory.write(directory, weights, tiny_config(**MODEL), tokenizer, INFO)
    return directory


def resolve(model: Path, *overrides: str, name: str | None = "own-text") -> Resolved:
    return inherit(settings.resolve(name, [f"training.init_from={model}", "data.train=x.tsv", *overrides]))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


# Whose settings


def test_the_models_architecture_pieces_and_languages_go_before_a_recipe(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {preset: small, dropout: 0.1}\ntraining: {max_steps: 20000}\n")
    resolved = resolve(model, name=str(recipe))
    config = resolved.config
    assert config.model == tiny_config(**{**MODEL, "dropout": 0.1})  # the recipe gives dropout
    assert (config.tokenizer.vocab_size, config.tokenizer.normalization) == (300, "none")
    assert (config.data.src, config.data.tgt) == ("de", "en")
    assert config.training.max_steps == 20_000 and config.run_dir == "runs/recipe"
    origins = resolved.origins
    assert {origins[key] for key in ("model.d_model", "model.norm", "model.preset", "tokenizer.vocab_size")} == {
        "init_from"
    }
    assert (origins["model.dropout"], origins["training.max_steps"]) == (str(recipe), str(recipe))
    assert sorted(origins) == sorted(settings.resolve(str(recipe), ["data.src=x", "data.tgt=y"]).origins)
    assert [record.message for record in caplog.records] == [
        f"using tokenizer and architecture of {model}, which override model.preset of {recipe}"
    ]


def test_what_nobody_gives_is_the_models(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    resolved = resolve(model, "model.preset=base", name=None)  # what the model says too
    assert resolved.config.model == tiny_config(**MODEL)
    assert (resolved.origins["model.dropout"], resolved.origins["model.preset"]) == ("init_from", "command line")
    assert not caplog.records


def test_a_file_gives_way_but_for_dropout_and_languages(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: {d_model: 64, dropout: 0.4}\ntokenizer: {vocab_size: 9000}\ndata: {src: nl}\n")
    config = resolve(model, name=str(path)).config
    assert (config.model.d_model, config.model.dropout, config.tokenizer.vocab_size) == (16, 0.4, 300)
    assert (config.data.src, config.data.tgt) == ("nl", "en")
    assert warnings(caplog) == [f"{model} translates de-en, this run nl-en"]


def test_the_command_line_may_set_dropout_and_languages_and_what_is_so_anyway(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resolved = resolve(model, "model.dropout=0", "data.tgt=nl", "model.d_model=16", "tokenizer.vocab_size=300")
    assert (resolved.config.model.dropout, resolved.config.data.tgt) == (0.0, "nl")
    assert resolved.origins["model.d_model"] == "command line"
    assert warnings(caplog) == [f"{model} translates de-en, this run de-nl"]


def test_the_command_line_may_not_contradict(model: Path) -> None:
    with pytest.raises(UsageError) as error:
        resolve(model, "model.d_ff=64", "tokenizer.normalization=nfc", "model.preset=tiny")
    text = str(error.value)
    assert text.startswith(f"training.init_from {model} has its own tokenizer and architecture: ")
    for problem in (
        "model.preset is tiny, the model's is base",
        "model.d_ff is 64, the model's is 32",
        "tokenizer.normalization is nfc, the model's is none",
    ):
        assert problem in text
    with pytest.raises(UsageError, match="tokenizer.vocab_size is auto, the model's is 300"):
        resolve(model, "tokenizer.vocab_size=auto")


def test_longer_sentences_than_learned_positions(model: Path, tmp_path: Path) -> None:
    learned = tiny_model(308, dtype=torch.float32, positions="learned")
    tokenizer = model_directory.load(model).tokenizer
    model_directory.write(tmp_path / "m", learned.state_dict(), learned.config, tokenizer, INFO)
    assert resolve(tmp_path / "m", "data.max_tokens=1024", "training.batch_tokens=4096").config
    with pytest.raises(UsageError, match="data.max_tokens 1025 is above the 1024 positions"):
        resolve(tmp_path / "m", "data.max_tokens=1025", "training.batch_tokens=4096")
    assert learned.src_positions is not None and len(learned.src_positions) == 1024


# A run that is begun


def begin(run: RunLayout, config: Config, tokenizer: Tokenizer) -> None:
    """The files by which a run counts as begun."""
    with durable.new_directory(run.data) as data:
        tokenizer.save(data)
        durable.write_json(data / REPORT, {})
    durable.write_text(run.config, settings.dump(config))


def test_a_begun_run_has_its_settings_from_its_own_configuration(model: Path, tmp_path: Path) -> None:
    run = RunLayout(tmp_path / "run")
    first = resolve(model, f"run_dir={run.root}")
    begin(run, first.config, model_directory.load(model).tokenizer)
    gone = model.rename(model.with_name("gone"))
    try:
        assert resolve(model, f"run_dir={run.root}").config == first.config
        assert inherit(settings.resolve(str(run.root), [])).config == first.config
        with durable.new_directory(run.checkpoint(3)) as new:  # it holds the fixed settings, without beam_size
            durable.write_json(new / "state.json", asdict(State(3, settings=settings.fixed_settings(first.config))))
        assert resolve(model, f"run_dir={run.root}").config.decoding.beam_size == 3
        durable.remove_directory(run.checkpoint(3))
        other = resolve(model, f"run_dir={run.root}", "model.d_ff=64").config  # the pipeline refuses the difference
        assert other.model.d_ff == 64
        with pytest.raises(UsageError, match="not a model directory"):
            resolve(model, f"run_dir={tmp_path / 'new'}")
        shutil.move(run.data, tmp_path / "data")  # a start that was killed while it prepared leaves no more than this
        with pytest.raises(UsageError, match="not a model directory"):
            resolve(model, f"run_dir={run.root}")
        shutil.move(tmp_path / "data", run.data)
        with pytest.raises(UsageError, match="not a model directory"):  # which the pipeline needs for the first step
            init_from.load(first.config)
    finally:
        gone.rename(model)


def test_the_checkpoints_of_a_run_without_a_model(model: Path, tmp_path: Path) -> None:
    run = RunLayout(tmp_path / "run")
    config = resolve(model, f"run_dir={run.root}", "data.tgt=nl").config
    begin(run, config, model_directory.load(model).tokenizer)
    with pytest.raises(UsageError, match="this run has no model yet"):
        resolve(run.root)
    weights = model_directory.load(model).model.state_dict()
    with durable.new_directory(run.checkpoint(3)) as new:
        model_directory.save_tensors(new / WEIGHTS, weights)
        durable.write_json(new / "state.json", asdict(State(3)))
    resolved = resolve(run.root)
    assert (resolved.config.model, resolved.config.data.tgt) == (config.model, "nl")
    loaded = init_from.load(resolved.config)
    assert loaded is not None and loaded.sha256 == durable.sha256(run.checkpoint(3) / WEIGHTS)
    with (run.data / "tokenizer.json").open("a") as file:
        file.write("\n")
    with pytest.raises(DamagedFileError, match="tokenizer.json: damaged file"):
        resolve(run.root)


# The weights and the tokenizer


def test_the_model_is_loaded_with_the_sha256_of_its_file(model: Path, tmp_path: Path) -> None:
    config = resolve(model, "model.dropout=0").config
    loaded = init_from.load(config)
    assert loaded.sha256 == durable.sha256(model / WEIGHTS)
    assert load_initial(settings.resolve("own-text", []).config, RunLayout(tmp_path)) is None


def test_a_model_that_is_another_one_by_now(model: Path, tmp_path: Path) -> None:
    config = settings.replace_values(resolve(model), {"model.activation": "relu"}, "").config
    with pytest.raises(UsageError, match="its architecture differs from this run"):
        init_from.load(config)
    config = resolve(model).config
    loaded = init_from.load(config)
    assert loaded is not None
    init_from.check_tokenizer(config.training, loaded.tokenizer, Tokenizer.load(model))
    rewriting = learn_tokenizer("abcdef", normalization="nmt_nfkc")  # the same pieces, of other text
    assert rewriting.vocabulary() == loaded.tokenizer.vocabulary()
    for other in (
        learn_tokenizer("abcdef", normalization="nfc"),
        learn_tokenizer("ghijkl", normalization="none"),
        Tokenizer(rewriting.models, "none", ["BT"]),
    ):
        with pytest.raises(UsageError, match="its tokenizer differs"):
            init_from.check_tokenizer(config.training, loaded.tokenizer, other)


def test_the_state_of_a_checkpoint_keeps_the_initial_model(tmp_path: Path) -> None:
    new = State(30, best_score=1.0, init_sha256="ab")
    durable.write_json(tmp_path / "state.json", asdict(new))
    assert load_state(tmp_path / "state.json") == new


def test_settings_need_no_torch() -> None:
    code = "import sys, mtx.training.init_from; print({'torch', 'datasets'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


# Several directions


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory of de-en, en-de and en-fr."""
    directory = tmp_path_factory.mktemp("many") / "m"
    tokenizer = train_tokenizer(iter(["abc bcd cde"] * 20), TokenizerConfig(), 20, [], languages=["de", "en", "fr"])
    weights = tiny_model(tokenizer.num_ids, dtype=torch.float32, **MODEL).state_dict()
    info = {key: value for key, value in INFO.items() if key not in ("src", "tgt")}
    info["directions"] = ["de-en", "en-de", "en-fr"]
    model_directory.write(directory, weights, tiny_config(**MODEL), tokenizer, info)
    return directory


@pytest.mark.parametrize(
    ("overrides", "directions", "is_told"),
    [
        ([], "de-en+en-de+en-fr", False),
        (["data.directions=en-fr,en-de"], "en-fr+en-de", False),
        (["data.directions=en-fr"], "en-fr", False),
        (["data.directions=en-fr,de-fr"], "en-fr+de-fr", True),
        (["data.src=fr", "data.tgt=en"], "fr-en", True),
    ],
)
def test_an_adaptation_has_the_models_directions_or_its_own(
    overrides: list[str], directions: str, is_told: bool, many: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert resolve(many, *overrides).config.data.direction == directions
    told = [f"{many} translates de-en+en-de+en-fr, this run {directions}"] if is_told else []
    assert warnings(caplog) == told


def test_a_language_that_the_model_lacks_is_refused(many: Path) -> None:
    for overrides in (["data.directions=en-yo,de-en"], ["data.src=en", "data.tgt=yo"], ["data.directions=en-yo"]):
        with pytest.raises(UsageError, match="^the model has no language yo; it has de, en, fr$"):
            resolve(many, *overrides)


def test_one_direction_may_become_several(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its tokenizer may have the names of languages; `prepare` checks that."""
    data = resolve(model, "data.directions=de-en,de-nl").config.data
    assert data.direction == "de-en+de-nl"
    assert warnings(caplog) == [f"{model} translates de-en, this run de-en+de-nl"]
