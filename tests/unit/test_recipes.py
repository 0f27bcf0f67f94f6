"""The shipped recipes: they resolve, they state only what differs, and those of the paper hold the paper's numbers."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mtx.config.schema import Config
from mtx.config.settings import read_yaml, recipe_dir, recipe_facts, recipe_names, resolve
from mtx.data.model_sizes import KEYS
from mtx.errors import UsageError

RECIPES = recipe_names()


def test_all_recipes_are_there() -> None:
    assert RECIPES == [
        "adapt",
        "back-translation",
        "demo",
        "iwslt14-de-en",
        "iwslt17-de-en",
        "multi30k-de-en",
        "multi30k-en-de",
        "multi30k-en-de-best",
        "multi30k-en-de-lc",
        "multi30k-en-fr",
        "multi30k-fr-en",
        "own-text",
        "student",
        "wmt14-en-de-base",
        "wmt14-en-de-big",
        "wmt14-en-fr-big",
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_resolves_to_its_own_run_directory(name: str) -> None:
    config = resolve(name, []).config
    assert config.run_dir == f"runs/{name}"
    assert config.data.src != config.data.tgt
    data = config.data
    assert (
        data.generator
        or (data.train and data.valid and data.test)
        or (name in ("adapt", "own-text", "student") and not data.train)
        or (name == "back-translation" and len(data.train) == 2)
    )


@pytest.mark.parametrize("name", RECIPES)
def test_hub_data_has_local_names_too(name: str) -> None:
    """With `data.dir` the hub is not used, so a recipe names a local file for each split."""
    data = resolve(name, []).config.data
    if data.hub:
        assert data.hub.valid
        assert len(data.hub.test) == len(data.test) > 0


@pytest.mark.parametrize("name", [name for name in RECIPES if re.search(r"-[a-z]{2}-[a-z]{2}(-|$)", name)])
def test_languages_are_those_of_the_name(name: str) -> None:
    data = resolve(name, []).config.data
    assert f"-{data.src}-{data.tgt}" in name


@pytest.mark.parametrize("name", RECIPES)
def test_header_and_length(name: str) -> None:
    lines = (recipe_dir() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 120
    header = lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]
    assert re.fullmatch(rf"# {re.escape(name)}: .+\.", header[0])
    facts = [line.split(":")[0] for line in header[1:] if re.fullmatch(r"# [a-z]+: \S.*", line)]
    assert facts in (
        ["# learns", "# score"], ["# learns", "# machine", "# score"], ["# learns", "# machine", "# time", "# score"],
    )  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_the_results_have_the_same_machine_time_and_score(name: str) -> None:
    """What a recipe claims has its row in docs/results.md; what was not run has none."""
    results = (recipe_dir().parent / "docs" / "results.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| `mtx train {name}[ `].*\|$", results, re.MULTILINE)
    _, machine, time, score = recipe_facts(name)
    assert len(rows) == (bool(_numbers(score)) and "not run" not in score)
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")]
        assert machine in cells and time in cells
        assert any(number in cell.split() for number in _numbers(score) for cell in cells)


def _numbers(score: str) -> list[str]:
    return re.findall(r"\d[\d.]*\d", score.split(" on ")[0])


@pytest.mark.parametrize("name", RECIPES)
def test_states_nothing_that_is_the_default(name: str, tmp_path: Path) -> None:
    """A key is a delta when the recipe without it is another configuration, or none at all."""
    values, _ = read_yaml(recipe_dir() / f"{name}.yaml")
    whole = _resolve_values(values, tmp_path)
    for path in _leaf_paths(values):
        if whole.sizes == "corpus" and ".".join(path) in KEYS:
            continue  # it stays as it is, where the amount of text would choose
        try:
            rest = _resolve_values(_without(values, path), tmp_path)
        except UsageError:
            continue  # such as data.hub.name, which has no default
        assert rest != whole, f"{'.'.join(path)} states the default"


def test_a_stated_default_is_found(tmp_path: Path) -> None:
    values = {"model": {"preset": "tiny", "d_ff": "256"}}
    assert _resolve_values(_without(values, ("model", "d_ff")), tmp_path) == _resolve_values(values, tmp_path)


# Vaswani et al. 2017: table 3 (layers to dropout), 5.3 (warmup), 5.4 (smoothing), 5.1 (tokens a step, vocabulary), 5.2
# (steps) and 6.1 (averaging, beam, alpha; 10 minutes between checkpoints are 1,500 steps of 0.4 s or 600 of 1.0 s).
PAPER = {
    "model.num_encoder_layers": (6, 6, 6),
    "model.num_decoder_layers": (6, 6, 6),
    "model.d_model": (512, 1024, 1024),
    "model.d_ff": (2048, 4096, 4096),
    "model.num_heads": (8, 16, 16),
    "model.dropout": (0.1, 0.3, 0.1),
    "model.norm": ("post", "post", "post"),
    "model.activation": ("relu", "relu", "relu"),
    "model.tie": ("all", "all", "all"),
    "model.positions": ("sinusoidal", "sinusoidal", "sinusoidal"),
    "tokenizer.vocab_size": (37_000, 37_000, 32_000),
    "training.max_steps": (100_000, 300_000, 300_000),
    "training.batch_tokens": (25_000, 25_000, 25_000),
    "training.learning_rate": (None, None, None),  # the peak of Eq. 3
    "training.warmup_steps": (4000, 4000, 4000),
    "training.label_smoothing": (0.1, 0.1, 0.1),
    "training.clip_norm": (None, None, None),
    "training.checkpoint_every": (1500, 600, 600),
    "training.average_last": (5, 20, 20),
    "decoding.beam_size": (4, 4, 4),
    "decoding.length_penalty": (0.6, 0.6, 0.6),
    "data.src": ("en", "en", "en"),
    "data.tgt": ("de", "de", "fr"),
    "data.train": (("train",), ("train",), ("train",)),
    "data.valid": ("newstest2013", "newstest2013", "newstest2013"),
    "data.test": (("newstest2014",), ("newstest2014",), ("newstest2014",)),
    "data.hub.name": ("wmt/wmt14", "wmt/wmt14", "wmt/wmt14"),
    "data.hub.subset": ("de-en", "de-en", "fr-en"),
}


@pytest.mark.parametrize("key", PAPER)
def test_wmt14_recipes_hold_the_papers_numbers(key: str) -> None:
    recipes = ("wmt14-en-de-base", "wmt14-en-de-big", "wmt14-en-fr-big")
    assert tuple(_value(resolve(name, []).config, key) for name in recipes) == PAPER[key]


def test_multi30k_lc_holds_the_published_protocol() -> None:
    config = resolve("multi30k-en-de-lc", []).config
    assert config.data.hub is None  # its text is made from the raw one, and the hub has only that
    model = config.model
    assert (model.num_encoder_layers, model.num_decoder_layers, model.d_model, model.d_ff) == (4, 4, 128, 256)
    assert (model.num_heads, model.tie) == (4, "all")
    assert config.decoding.beam_size == 5


def _resolve_values(values: dict[str, Any], folder: Path) -> Config:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return resolve(str(path), []).config


def _leaf_paths(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaf_paths(value, (*prefix, name))
        else:
            yield (*prefix, name)


def _without(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The values less one key; a section that it leaves empty goes with it."""
    first, *rest = path
    others = {name: value for name, value in values.items() if name != first}
    inner = _without(values[first], tuple(rest)) if rest else {}
    return {**others, first: inner} if inner else others


def _value(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value
