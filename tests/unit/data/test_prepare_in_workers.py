"""Preparation in worker processes gives the very bytes, counts, examples and errors of preparation in one."""

import gzip
import logging
import os
import random
from pathlib import Path

import pytest

from mtx.config.schema import Config, TrainText
from mtx.data import prepare, tables, token_store, workers
from mtx.errors import DataError
from tests.unit.data.test_prepare import GIVEN, Pair, make_config, pairs, write

pytestmark = [
    pytest.mark.seconds,
    pytest.mark.skipif(os.name != "posix", reason="without POSIX all work is done in one process"),
]
EXTENDED = pytest.mark.extended


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BLOCK_PAIRS", 60)
    monkeypatch.setattr(workers, "FEW_ITEMS", 1)
    monkeypatch.setattr(prepare, "_FEW_PAIRS", 0)


def prepare_on(num_cores: int, config: Config, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "num_cores", lambda: num_cores)
    prepare.prepare(config, data_dir)


def dirty(num_pairs: int) -> list[Pair]:
    """Text with every kind of pair that is dropped, duplicates of blocks far and near, and sources that repeat."""
    rng, text = random.Random(4), pairs(num_pairs)
    long = " ".join("xyzxyzq" for _ in range(100))
    bad = [("", "a"), ("same", "same"), ("a\x07b", "c"), (long, long.upper()), ("x", "y" * 200)]
    for number in range(0, num_pairs, 7):
        text.insert(rng.randrange(number + 1), bad[number % len(bad)])
        word = "".join(rng.choices("éèëêàâ", k=200))  # too many pieces
        text.insert(rng.randrange(number + 1), (word, word.upper()))
        text.append(text[rng.randrange(len(text))])
        text.append((text[rng.randrange(len(text))][0], f"another one {number}"))
    return text


@pytest.mark.parametrize("overrides", [(), pytest.param(GIVEN, marks=EXTENDED), ("data.valid=dev",)])
@pytest.mark.parametrize("num_workers", [2, pytest.param(3, marks=EXTENDED)])
def test_the_number_of_workers_changes_nothing(
    tmp_path: Path,
    overrides: tuple[str, ...],
    num_workers: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = dirty(700)
    write(tmp_path / "train", text)
    write(tmp_path / "back", [*pairs(200, seed=2), *text[:50]])
    for number, name in enumerate(("dev", "flickr", "news")):
        write(tmp_path / name, pairs(10, seed=number + 10) + text[number * 5 : number * 5 + 5])
    train = ("train", TrainText(name="back", weight=0.5, tag="BT"))
    config = make_config(tmp_path, *overrides, "data.max_tokens=48", train=train)
    logged = []
    for out, number in (("one", 1), ("many", num_workers)):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="mtx.data"):
            prepare_on(number, config, tmp_path / out, monkeypatch)
        logged.append([record.getMessage() for record in caplog.records])
    assert logged[0] == logged[1]
    one, many = ({path.name: path.read_bytes() for path in (tmp_path / out).iterdir()} for out in ("one", "many"))
    assert one.keys() == many.keys()
    assert [name for name in one if one[name] != many[name]] == []
    data = token_store.load_prepared(tmp_path / "many")
    dropped = data.report["dropped"]
    assert dropped["too long"]["pairs"] > 110
    assert data.report["src_tokens"] == data.train.src.lengths.sum()
    assert data.report["tgt_tokens"] == data.train.tgt.lengths.sum()
    held_out = [*([] if overrides else [data.valid]), *([] if overrides == GIVEN else data.tests.values())]
    assert not {text for store in held_out for text in store.src_texts()} & set(data.train.src_texts())
    assert set(dropped) >= {"empty", "identical", "control characters", "too long", "length ratio", "duplicate"}


@pytest.mark.extended
def test_the_sample_of_a_tokenizer_is_the_same_in_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "train", pairs(900))
    config = make_config(tmp_path)
    monkeypatch.setattr(prepare, "MAX_TOKENIZER_PAIRS", 300)
    for number in (1, 2):
        prepare_on(number, config, tmp_path / str(number), monkeypatch)
    assert (tmp_path / "1" / "tokenizer.model").read_bytes() == (tmp_path / "2" / "tokenizer.model").read_bytes()


@pytest.mark.extended
def test_errors_are_the_same_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "train", pairs(600))
    write(tmp_path / "uneven", pairs(600))
    with (tmp_path / "uneven.xx").open("a") as file:
        file.write("one more\n")
    write(tmp_path / "cut", pairs(600))
    for side in ("xx", "yy"):
        path = tmp_path / f"cut.{side}"
        content = gzip.compress(path.read_bytes())
        path.write_bytes(content[: len(content) * 2 // 3])
    write(tmp_path / "nothing", [("", "a")] * 600)
    (tmp_path / "bad.tsv").write_text("a\tb\n" * 500 + "a b\n", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    for name, override in [
        ("uneven", "seed=1"), ("cut", "seed=1"), ("nothing", "seed=1"), ("bad.tsv", "seed=1"),
        ("train", "tokenizer.vocab_size=60000"), ("train", "tokenizer.vocab_size=270"),
    ]:  # fmt: skip
        for sets in (("data.valid=train", "data.test=train"), ()):
            errors = []
            for number in (1, 2):
                with pytest.raises(DataError) as error:
                    prepare_on(
                        number, make_config(tmp_path, *sets, override, train=(name,)), tmp_path / "out", monkeypatch
                    )
                errors.append((str(error.value), error.value.help))
            assert errors[0] == errors[1]
            assert sorted(tmp_path.iterdir()) == before
