"""A file of text that was replaced after a run was prepared is told; what cannot be told is not guessed."""

import os
from pathlib import Path

import pytest

from mtx.config.schema import DataConfig, TokenizerConfig
from mtx.data.sources import find_corpora
from mtx.storage import durable
from mtx.storage.run_files import describe_sources, find_changed_files

TOKENIZER = TokenizerConfig()


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    for name in ("train.en", "train.de", "more.tsv", "dev.en", "dev.de", "test.jsonl"):
        (tmp_path / name).write_text(name)
    return DataConfig(
        src="en", tgt="de", dir=str(tmp_path), train=("train", "more.tsv"), valid="dev", test=("test.jsonl",)
    )


@pytest.fixture
def record(tmp_path: Path, data: DataConfig) -> Path:
    durable.write_json(tmp_path / "sources.json", describe_sources(find_corpora(data).files(TOKENIZER)))
    return tmp_path / "sources.json"


def test_every_file_is_recorded_and_none_has_changed(tmp_path: Path, data: DataConfig, record: Path) -> None:
    files = durable.read_json(record)["files"]
    names = ["train.en", "train.de", "more.tsv", "dev.en", "dev.de", "test.jsonl"]
    assert [file["path"] for file in files] == [str(tmp_path / name) for name in names]
    assert files[0]["bytes"] == 8 and files[0]["sha256"] == durable.sha256(tmp_path / "train.en")
    assert find_changed_files(record) == []
    os.utime(tmp_path / "train.en", ns=(1, 1))  # touched, not changed
    assert find_changed_files(record) == []


@pytest.mark.parametrize("name", ["train.de", "more.tsv", "dev.en", "test.jsonl"])
@pytest.mark.parametrize("text", ["of another length", None])
def test_a_file_that_was_replaced_is_told(
    name: str, text: str | None, tmp_path: Path, data: DataConfig, record: Path
) -> None:
    path = tmp_path / name
    path.write_text(text or path.read_text().swapcase())
    os.utime(path, ns=(1, 1))
    assert find_changed_files(record) == [path]


def test_a_missing_file_and_a_missing_record_say_nothing(tmp_path: Path, data: DataConfig, record: Path) -> None:
    (tmp_path / "train.en").unlink()
    assert find_changed_files(record) == []
    (tmp_path / "more.tsv").write_text("another")
    assert find_changed_files(record) == [tmp_path / "more.tsv"]
    assert find_changed_files(tmp_path / "nothing") == []


@pytest.mark.parametrize("text", ["{", '{"format": 2}', '{"format": 2, "files": [3]}', '{"format": 2, "files": 3}'])
def test_a_damaged_record_counts_as_one_that_differs(data: DataConfig, record: Path, text: str) -> None:
    record.write_text(text)
    assert find_changed_files(record) == [record]


def test_text_that_is_not_local_is_not_recorded() -> None:
    assert describe_sources(find_corpora(DataConfig(generator="grammar")).files(TOKENIZER)) == {"files": []}
