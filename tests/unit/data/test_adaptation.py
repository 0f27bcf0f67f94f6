"""With `training.init_from` sentences are held out of the own text alone, and other text does not outweigh it."""

import logging
from pathlib import Path
from typing import Any

import pytest

from mtx.config import settings
from mtx.config.schema import Config
from mtx.data.prepare import prepare
from mtx.data.token_store import PreparedData, load_prepared
from mtx.data.tokenizer import train_tokenizer
from mtx.errors import DataError
from tests.unit.data.test_prepare import Pair, conserves, make_config, pairs, text_of, write

OWN, GENERAL = pairs(200), pairs(1000, seed=9)


def adaptation(tmp_path: Path, train: tuple[Any, ...], *overrides: str, init_from: str | None = "model") -> Config:
    config = make_config(tmp_path, *overrides)
    tree = config.model_dump()
    tree["data"]["train"], tree["training"]["init_from"] = train, init_from
    return Config.model_validate(tree)


def run(tmp_path: Path, train: tuple[Any, ...], *overrides: str, init_from: str | None = "model") -> PreparedData:
    """The prepared data of an adaptation; the tokenizer stands for that of the model."""
    config = adaptation(tmp_path, train, *overrides, init_from=init_from)
    lines = [line for pair in OWN for line in pair]
    prepare(config, tmp_path / "out", tokenizer=train_tokenizer(lines, config.tokenizer, len(OWN), ["BT"]))
    return load_prepared(tmp_path / "out")


@pytest.fixture(autouse=True)
def text(tmp_path: Path) -> None:
    write(tmp_path / "own", OWN)
    write(tmp_path / "general", GENERAL)


def weights(data: PreparedData) -> list[float]:
    return [corpus["weight"] for corpus in data.report["corpora"]]


def held_out(data: PreparedData) -> set[Pair]:
    return {pair for store in (data.valid, data.tests["heldout"]) for pair in text_of(store)}


def test_only_own_text_is_held_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mtx.data"):
        data = run(tmp_path, ("own", "general"))
    assert (data.valid.num_pairs, data.tests["heldout"].num_pairs) == (10, 10)
    assert held_out(data) <= set(OWN) and set(GENERAL) <= set(text_of(data.train))
    assert [corpus["held_out"] for corpus in data.report["corpora"]] == [20, 0]
    assert conserves(data.report) and "holding out 10 source sentences of own" in caplog.text


def test_without_a_model_all_text_is_held_out(tmp_path: Path) -> None:
    data = run(tmp_path, ("own", "general"), init_from=None)
    assert held_out(data) & set(GENERAL) and weights(data) == [1.0, 1.0]


def test_nothing_is_held_out_of_text_with_a_tag(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mtx.data"):
        data = run(tmp_path, ("own", {"name": "general", "tag": "BT"}), init_from=None)
    assert held_out(data) <= set(OWN) and [corpus["held_out"] for corpus in data.report["corpora"]] == [20, 0]
    assert "holding out 10 source sentences of own" in caplog.text


def test_where_all_text_has_a_tag_all_is_own(tmp_path: Path) -> None:
    data = run(tmp_path, ({"name": "general", "tag": "BT"},), init_from=None)
    assert held_out(data) <= set(GENERAL) and held_out(data)


def test_general_text_loses_what_is_held_out(tmp_path: Path) -> None:
    """Its other translations of a held-out source must not be learned, and do not belong to the test set."""
    write(tmp_path / "general", [*GENERAL, *((src, f"{tgt} ANDERS") for src, tgt in OWN)])
    data = run(tmp_path, ("own", "general"))
    assert held_out(data) <= set(OWN) and len(held_out(data)) == 20
    assert not {src for src, _ in held_out(data)} & {src for src, _ in text_of(data.train)}
    assert data.report["corpora"][1]["dropped"] == {"source held out": 20} and conserves(data.report)


def test_a_tagged_text_is_never_own(tmp_path: Path) -> None:
    data = run(tmp_path, ({"name": "general", "tag": "BT"}, "own"))
    assert held_out(data) <= set(OWN) and len(held_out(data)) == 20


def test_general_text_is_used_as_often_as_own_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mtx.data"):
        data = run(tmp_path, ("own", "general"))
    assert weights(data) == [1.0, 0.18]  # 180 of the 200 own pairs are left
    assert data.train.weights.tolist() == pytest.approx([1.0, 0.18])
    assert "general: its 1,000 pairs get the weight 0.18" in caplog.text


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (("general", "own"), [1.0, 1.0]),
        (("own", {"name": "general", "weight": None}), [1.0, 0.18]),
        (("own", {"name": "general"}), [1.0, 1.0]),
        (("own", {"name": "general", "weight": 0.5}), [1.0, 0.5]),
        (({"name": "own", "weight": 3.0}, "general"), [3.0, 0.18]),
        (({"name": "own", "weight": None}, "general"), [1.0, 0.18]),
    ],
)
def test_weights(tmp_path: Path, train: tuple[Any, ...], expected: list[float]) -> None:
    assert weights(run(tmp_path, train)) == expected


def test_own_text_of_which_nothing_is_left(tmp_path: Path) -> None:
    write(tmp_path / "own", [("x", "x")] * 3)
    with pytest.raises(DataError, match=r"own: no pairs left to train on: 3 read \(3 identical\)"):
        run(tmp_path, ("own", "general"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tests", ["heldout,flickr", "flickr,heldout"])
def test_held_out_text_beside_a_named_test_set(tmp_path: Path, tests: str) -> None:
    write(tmp_path / "flickr", pairs(30, seed=4))
    data = run(tmp_path, ("own", "general"), f"data.test={tests}")
    assert list(data.tests) == tests.split(",")
    assert set(text_of(data.tests["heldout"])) <= set(OWN) and data.tests["flickr"].num_pairs == 30
    assert {name: entry["held_out"] for name, entry in data.report["tests"].items()} == {
        "heldout": True, "flickr": False
    }  # fmt: skip


def test_a_file_of_that_name_is_named_by_its_path(tmp_path: Path) -> None:
    write(tmp_path / "heldout", pairs(30, seed=4))
    data = run(tmp_path, ("own",), "data.test=./heldout,heldout")
    assert {name: store.num_pairs for name, store in data.tests.items()} == {"heldout": 30, "heldout-2": 10}


def test_one_language_needs_no_file_of_that_name() -> None:
    assert settings.resolve(None, ["data.src=a", "data.tgt=a", "data.train=x.tsv", "data.test=heldout"])
