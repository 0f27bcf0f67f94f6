"""Shards in any order join to the bytes, counts and examples of a text that one machine prepares, or one line says why
not."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mtx.config.schema import Config, TokenizerConfig, TrainText
from mtx.data import prepare as module
from mtx.data import tables, workers
from mtx.data.prepare import prepare, prepare_shard
from mtx.data.shards import read_blocks
from mtx.data.sources import find_corpora
from mtx.data.token_store import load_prepared
from mtx.data.tokenizer import given_tokenizer
from mtx.errors import DamagedFileError, UsageError
from mtx.storage import durable
from mtx.training.run import prepare_only
from mtx.training.run import prepare_shard as prepare_shard_of_run
from tests.unit.data import test_directions as directions
from tests.unit.data.test_prepare import GIVEN, make_config, pairs, write
from tests.unit.data.test_prepare_in_workers import dirty

BLOCK_PAIRS = 100


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pairs in a block, and no worker processes."""
    monkeypatch.setattr(tables, "BLOCK_PAIRS", BLOCK_PAIRS)
    monkeypatch.setattr(workers, "num_cores", lambda: 1)


def with_tokenizer(config: Config, directory: Path) -> Config:
    """The configuration with a tokenizer that was learned from its text."""
    prepare(config, directory)
    tokenizer = TokenizerConfig.model_validate({"model": str(directory / "tokenizer.model")})
    return config.model_copy(update={"tokenizer": tokenizer})


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def make_shards(config: Config, directory: Path, num_shards: int) -> None:
    numbers = [*range(1, num_shards + 1)]
    random.Random(num_shards).shuffle(numbers)
    for number in numbers:
        prepare_shard(config, directory, number, num_shards)


def compare(config: Config, tmp_path: Path, *divisions: int) -> durable.Json:
    """Compare the data of one machine with those of shards, made in any order; returns the report."""
    config = with_tokenizer(config, tmp_path / "learned")
    sources = prepare(config, tmp_path / "whole")
    for num_shards in divisions:
        directory = tmp_path / f"{num_shards} shards"
        make_shards(config, directory, num_shards)
        joined = tmp_path / f"joined-{num_shards}"
        assert prepare(config, joined, shards=directory) == sources
        assert content(joined) == content(tmp_path / "whole")
    return durable.read_json(tmp_path / "whole" / "report.json")


def num_blocks(config: Config, num_shards: int) -> list[int]:
    """The number of blocks of each shard."""
    train = find_corpora(config.data).train
    return [len([*read_blocks(train, number, num_shards)]) for number in range(1, num_shards + 1)]


def write_dirty(directory: Path, name: str = "train", seed: int = 0) -> None:
    """Text with every kind of pair that is dropped or noticed."""
    text = dirty(500)
    random.Random(seed).shuffle(text)
    write(directory / name, [("NULL", "NULL"), *text, ("n/a", "none at all"), ("long " * 5000, "lang " * 5000)])
    path = directory / f"{name}.xx"
    lines = path.read_bytes().split(b"\n")
    for number in (150, 350):
        lines[number] = b"\xff not UTF-8"
    path.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize("overrides", [(), GIVEN])
def test_one_file_is_divided_by_blocks(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    write_dirty(tmp_path)
    for number, name in enumerate(("dev", "flickr", "news"), 2):
        write(tmp_path / name, [*pairs(10, seed=number), *pairs(500)[: 3 * number]])
    config = make_config(tmp_path, *overrides, "data.max_tokens=48")
    assert num_blocks(config, 3) == [3, 3, 2] and num_blocks(config, 11) == [1] * 8 + [0] * 3
    report = compare(config, tmp_path, 1, 3, 11)
    dropped = {"control characters", "duplicate", "empty", "identical", "length ratio", "not UTF-8", "too long"}
    assert dropped <= report["dropped"].keys(), report
    assert report["dropped"]["too long"]["pairs"] > 60, "by their tokens, and one by its characters"
    assert report["missing_values"]["pairs"] == 2
    if overrides:
        assert report["held_out"] == 0 and report["tests"]["news"]["leaks"]["train_pairs"] > 10
    else:
        assert report["held_out"] > 0


def write_folder(folder: Path, num_files: int) -> None:
    """Files whose text repeats that of others."""
    folder.mkdir()
    for number in range(num_files):
        text = [*pairs(130, seed=number + 1), *pairs(130, seed=number)[:40]]
        (folder / f"{number}.xx-yy.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in text), encoding="utf-8")


def test_a_folder_is_divided_by_files_or_by_blocks(tmp_path: Path) -> None:
    write_folder(tmp_path / "texts", 5)
    config = make_config(tmp_path, train=("texts",))
    assert num_blocks(config, 2) == [6, 4] and num_blocks(config, 3) == [4, 4, 2]
    assert num_blocks(config, 5) == [2] * 5
    assert num_blocks(config, 9) == [5, 5] + [0] * 7, "the first blocks of all files, and the second ones"
    report = compare(config, tmp_path, 2, 3, 5, 9)
    duplicates = report["dropped"]["duplicate"]
    assert duplicates["pairs"] == 160 and duplicates["example"]["corpus"] == str(tmp_path / "texts" / "1.xx-yy.tsv")


def test_texts_with_weights_and_a_tag(tmp_path: Path) -> None:
    write_dirty(tmp_path)
    write_dirty(tmp_path, "back", seed=1)
    write_folder(tmp_path / "texts", 3)
    texts = ("train", TrainText(name="back", weight=0.5, tag="BT"), TrainText(name="texts", weight=2.0))
    report = compare(make_config(tmp_path, "data.max_tokens=48", train=texts), tmp_path, 2, 3, 7)
    assert [corpus["weight"] for corpus in report["corpora"]] == [1.0, 0.5, 2.0]
    assert report["corpora"][1]["tag"] == "BT" and report["corpora"][1]["dropped"]["duplicate"] > 300


def test_several_directions_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(3):
        directions.write_lines(tmp_path / "texts", f"part{number}", "en de", range(number * 120, number * 120 + 150))
    config = directions.make_config(tmp_path, "en-de,de-en", train="texts")
    assert sum(num_blocks(config, 2)) == 12
    report = compare(config, tmp_path, 2, 3, 5, 13)
    assert [corpus["read"] for corpus in report["corpora"]] == [450, 450]


def test_a_memory_with_dates_and_skipped_units(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(3)
    tuv = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    units = list[str]()
    for number, (src, tgt) in enumerate(pairs(250) * 2):
        date = "31.12.2020" if number in (120, 320) else f"{rng.randint(2000, 2025)}0101T000000Z"
        second = "" if number % 50 == 7 else tuv.format("yy", f"{tgt} {rng.randint(0, 2)}")
        units.append(f'<tu changedate="{date}">{tuv.format("xx", src)}{second}</tu>\n')
    (tmp_path / "m.tmx").write_text(f'<tmx version="1.4"><header/><body>\n{"".join(units)}</body></tmx>')
    report = compare(make_config(tmp_path, train=(str(tmp_path / "m.tmx"),)), tmp_path, 3)
    assert report["dropped"]["not translated"]["pairs"] == 10 and report["dropped"]["older translation"]["pairs"] > 100
    warnings = [each.getMessage() for each in caplog.records if "with a date" in each.getMessage()]
    assert len(warnings) == 3 and len({*warnings}) == 1 and "m.tmx:122: " in warnings[0]


def test_terms(tmp_path: Path) -> None:
    write(tmp_path / "train", pairs(600))
    report = compare(make_config(tmp_path, "data.terms=auto"), tmp_path, 2)
    assert report["terms"] > 0


@pytest.mark.seconds
def test_workers_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "num_cores", lambda: 2)
    monkeypatch.setattr(workers, "FEW_ITEMS", 1)
    monkeypatch.setattr(module, "_FEW_PAIRS", 0)
    write_dirty(tmp_path)
    compare(make_config(tmp_path, "data.max_tokens=48"), tmp_path, 2)


# A run


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A run of two files with a tokenizer, not prepared yet."""
    write(tmp_path / "train", pairs(250))
    write(tmp_path / "more", pairs(250, seed=2))
    text = make_config(tmp_path, f"run_dir={tmp_path / 'run'}", train=("train", "more"))
    return with_tokenizer(text, tmp_path / "learned")


def make_run(config: Config, *names: str) -> Path:
    """Make shards of a run; returns the directory of the last one."""
    return [prepare_shard_of_run(config, name) for name in names][-1]


def refused(message: str, help_line: str, call: Callable[[], object], kind: type[Exception] = UsageError) -> None:
    """Check that a call ends with an error that says what to type."""
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value) and help_line in (getattr(caught.value, "help", "") or "")
    assert "\n" not in str(caught.value)


def test_a_run_joins_its_shards_and_removes_them(config: Config, tmp_path: Path) -> None:
    prepare(config, tmp_path / "whole")
    assert make_run(config, "3/3", "1/3", "2/3") == tmp_path / "run" / "shards" / "0002-of-0003"
    assert prepare_only(config).data == tmp_path / "run" / "data"
    assert content(tmp_path / "run" / "data") == content(tmp_path / "whole")
    assert not (tmp_path / "run" / "shards").exists()
    refused("prepared already", "another run_dir", lambda: make_run(config, "1/3"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux does")
def test_more_shards_than_files_that_may_be_open(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    monkeypatch.setattr(tables, "BLOCK_PAIRS", 10)
    make_shards(config, tmp_path / "shards", 20)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    unused = [number for number in range(1000) if number not in in_use]
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused[12], limits[1]))
    try:
        prepare(config, tmp_path / "joined", shards=tmp_path / "shards")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_shard_is_made_once(config: Config) -> None:
    shard = make_run(config, "1/2")
    (shard / "mark").touch()
    assert make_run(config, "1/2") == shard and (shard / "mark").exists()


def test_a_shard_for_an_adaptation_has_the_tokenizer_of_its_model(config: Config, tmp_path: Path) -> None:
    tokenizer = given_tokenizer(config.tokenizer)
    adaptation = config.model_copy(update={"tokenizer": TokenizerConfig()})
    prepare_shard(adaptation, tmp_path / "shards", 1, 1, tokenizer)
    prepare(adaptation, tmp_path / "joined", tokenizer, tmp_path / "shards")
    prepare(adaptation, tmp_path / "whole", tokenizer)
    assert content(tmp_path / "joined") == content(tmp_path / "whole")


def test_missing_shards_are_named(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(config, "2/5", "4/5")
    refused("shards: 2 of 5 shards; missing 1, 3, 5", "mtx prepare CONFIG --shard 1/5; ", lambda: prepare_only(config))
    make_run(config, "1/5", "3/5")
    refused("shards: 4 of 5 shards; missing 5", "mtx prepare CONFIG --shard 5/5; ", lambda: prepare_only(config))


def test_shards_of_two_divisions(config: Config) -> None:
    last = make_run(config, "1/2", "2/2", "2/3")
    problem = "shards: expected the shards of one N, got some of 2 and some of 3"
    refused(problem, "delete those of another N", lambda: prepare_only(config))
    shutil.rmtree(last)
    prepare_only(config)


def test_no_shard_is_complete(config: Config, tmp_path: Path) -> None:
    (tmp_path / "run" / "shards" / f"{durable.TEMPORARY_PREFIX}{'0' * 16}").mkdir(parents=True)
    refused("expected the shards of one N, got none", "mtx prepare CONFIG --shard K/N", lambda: prepare_only(config))


def change_settings(config: Config) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update={"max_tokens": 20})})


def add_a_line(config: Config) -> Config:
    for side in ("xx", "yy"):
        with (Path(str(config.data.dir)) / f"more.{side}").open("a") as file:
            file.write("one more\n")
    return config


def replace_text(config: Config) -> Config:
    path = Path(str(config.data.dir)) / "more.xx"
    path.write_text(path.read_text().upper())
    return config


def change_tokenizer(config: Config) -> Config:
    [model] = map(Path, config.tokenizer.model)
    shutil.rmtree(model.parent)
    text = config.data.model_copy(update={"train": ("more",)})
    prepare(config.model_copy(update={"data": text, "tokenizer": TokenizerConfig()}), model.parent)
    return config


@pytest.mark.parametrize(
    "change, name",
    [
        (change_settings, "data.max_tokens"),
        (add_a_line, "text files"),
        (replace_text, "text files"),
        (change_tokenizer, "tokenizer"),
    ],  # fmt: skip
)
def test_a_shard_of_other_text_or_settings(change: Callable[[Config], Config], name: str, config: Config) -> None:
    make_run(config, "1/2")
    changed = change(config)
    make_run(changed, "2/2")
    problem = f"0001-of-0002: was made with a different {name}"
    hint = "delete it, then mtx prepare CONFIG --shard 1/2"
    refused(problem, hint, lambda: prepare_only(changed))
    refused(problem, hint, lambda: make_run(changed, "1/2"))


@pytest.mark.parametrize("name", ["cleaned.arrow", "encoded.arrow", "blocks.jsonl"])
def test_a_shortened_file(name: str, config: Config) -> None:
    file = make_run(config, "1/2", "2/2") / name
    os.truncate(file, file.stat().st_size - 1)
    hint = "delete it, then mtx prepare CONFIG --shard 2/2"
    refused(f"0002-of-0002/{name}: damaged file", hint, lambda: prepare_only(config), DamagedFileError)


def test_a_flipped_byte(config: Config) -> None:
    file = make_run(config, "1/1") / "encoded.arrow"
    content = bytearray(file.read_bytes())
    content[-2000] ^= 1
    file.write_bytes(content)
    hint = "delete it, then mtx prepare CONFIG --shard 1/1"
    refused("0001-of-0001/encoded.arrow: damaged file", hint, lambda: prepare_only(config), DamagedFileError)


def test_sets_may_change_until_the_join(config: Config, tmp_path: Path) -> None:
    make_run(config, "1/1")
    write(tmp_path / "given", pairs(40, seed=3))
    data = config.data.model_copy(update={"valid": "given", "test": ("given",)})
    changed = config.model_copy(update={"data": data})
    assert load_prepared(prepare_only(changed).data).valid.num_pairs == 40


def test_other_files_stay(config: Config, tmp_path: Path) -> None:
    notes = make_run(config, "1/1").with_name("notes")
    notes.touch()
    prepare_only(config)
    assert [*(tmp_path / "run" / "shards").iterdir()] == [notes]
    prepare_only(config)
    assert notes.exists()


def test_a_shard_needs_a_tokenizer(config: Config) -> None:
    without = config.model_copy(update={"tokenizer": TokenizerConfig()})
    problem = "--shard needs a given tokenizer, the same for all shards: tokenizer.model is not set"
    refused(problem, "mtx prepare CONFIG data.train=PART run_dir=DIR; then ", lambda: make_run(without, "1/2"))


@pytest.mark.parametrize("name", ["0/3", "4/3", "x", "1/0", "1/3/5", "-1/3", ""])
def test_what_is_no_shard(name: str, config: Config, tmp_path: Path) -> None:
    refused(f"--shard {name}: expected K/N with K from 1 to N, such as 3/16", "", lambda: make_run(config, name))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run(config: Config, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").touch()
    refused("not a run directory, and not empty (notes)", "set run_dir=DIR to a new", lambda: make_run(config, "1/2"))
