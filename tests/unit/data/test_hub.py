"""A dataset of the hub, loaded with datasets' own code from a local folder, and a hub that cannot be reached."""

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtx.errors import DataError, MtxError, UsageError
from tests.rig import PATIENCE_S
from tests.unit.data.corpus_files import PAIRS, SHAPES, find, pairs_of, write, write_parquet
from tests.unit.data.sentences import sentences


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("mtx.data.sources.unreachable", lambda: None)  # no test asks the hub


def hub_dataset(directory: Path) -> dict[str, Any]:
    """A dataset with three splits in nested Parquet."""
    directory.mkdir()
    for split in ("train", "validation", "test"):
        rows = [{"translation": {"de": tgt, "en": src}} for src, tgt in [(split, split), *PAIRS]]
        pq.write_table(pa.Table.from_pylist(rows), directory / f"{split}.parquet")
    return {"name": str(directory), "valid": "validation", "test": ["test", "train[1:3]"]}


@pytest.mark.usefixtures("hub_cache")
def test_hub(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.INFO)
    corpora = find(hub=hub_dataset(tmp_path / "ds"), train=("elsewhere",), valid="val", test=("test_2016_flickr",))
    assert pairs_of(corpora.train[0]) == [("train", "train"), *PAIRS]
    assert pairs_of(corpora.train[0]) == [("train", "train"), *PAIRS]
    assert pairs_of(corpora.valid) == [("validation", "validation"), *PAIRS]
    assert list(corpora.tests) == ["test_2016_flickr", "train_1_3_"]
    assert pairs_of(corpora.tests["test_2016_flickr"]) == [("test", "test"), *PAIRS]
    assert pairs_of(corpora.tests["train_1_3_"]) == PAIRS[:2]
    assert f"{tmp_path / 'ds'}: reading from the cache; missing files are downloaded" in caplog.text
    assert capfd.readouterr().err == ""  # no progress bar where stderr is not a terminal


@pytest.mark.usefixtures("hub_cache")
def test_hub_with_several_directions(tmp_path: Path) -> None:
    corpora = find(hub=hub_dataset(tmp_path / "ds"), directions="en-de,de-en,en-fr")
    assert [corpus.languages for corpus in corpora.all_corpora()] == [("en", "de"), ("de", "en")] * 4
    assert pairs_of(corpora.train[1]) == [(tgt, src) for src, tgt in [("train", "train"), *PAIRS]]
    with pytest.raises(UsageError, match="columns are .translation.de., .translation.en., expected en and fr"):
        find(hub={"name": str(tmp_path / "ds")}, directions="fr-en,en-fr")


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("shape", SHAPES)
def test_hub_with_json(tmp_path: Path, shape: Callable[[str, str], dict[str, Any]]) -> None:
    write(tmp_path / "ds" / "train.jsonl", "".join(json.dumps(shape(*pair)) + "\n" for pair in PAIRS))
    corpora = find(hub={"name": str(tmp_path / "ds")})
    assert pairs_of(corpora.train[0]) == PAIRS
    assert corpora.valid == []
    assert corpora.tests == {}


@pytest.mark.usefixtures("hub_cache")
def test_hub_with_subsets_in_folders(tmp_path: Path) -> None:
    """The hub's converted copy has no configurations; each subset is a folder there."""
    for subset in ("de-en", "de-fr"):
        for split in ("train", "validation"):
            path = tmp_path / "ds" / subset / split / "0000.parquet"
            path.parent.mkdir(parents=True)
            write_parquet(path, {"en": [subset], "de": [split]})
    hub = {"name": str(tmp_path / "ds"), "revision": "refs/convert/parquet", "valid": "validation"}
    for subset in ("de-en", "de-fr"):
        corpora = find(hub=hub | {"subset": subset})
        assert pairs_of(corpora.train[0]) == [(subset, "train")]
        assert pairs_of(corpora.valid) == [(subset, "validation")]
    with pytest.raises(MtxError, match=" cannot be loaded from the hub: .*de-en"):
        find(hub=hub | {"subset": "de-en", "revision": "main"})


@pytest.mark.usefixtures("hub_cache")
def test_hub_without_validation(tmp_path: Path) -> None:
    corpora = find(hub=hub_dataset(tmp_path / "ds") | {"valid": None})
    assert corpora.valid == []
    assert list(corpora.tests) == ["test", "train_1_3_"]
    assert pairs_of(corpora.tests["test"]) == [("test", "test"), *PAIRS]


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize(
    "changed",
    [
        *({"valid": "dev"}, {"train": "train[1:x]"}, {"subset": "de-fr"}, {"name": "not an id"}),
        *(
            {"name": name, "valid": None, "test": ()}
            for name in ("script", "saved", "broken", "invalid", "empty", "none")
        ),
    ],
)
def test_hub_that_refuses(tmp_path: Path, changed: dict[str, Any]) -> None:
    write(tmp_path / "script" / "script.py", "raise SystemExit")
    write(tmp_path / "saved" / "state.json", "{}")
    write(tmp_path / "broken" / "train.parquet", "no Parquet")
    write(tmp_path / "invalid" / "train.jsonl", '{"en": "a", "de": "b"}\n{"en": \n')
    (tmp_path / "empty").mkdir()
    hub = hub_dataset(tmp_path / "ds") | changed
    if not hub["name"].startswith("not"):  # absolute, so that nothing asks the hub
        hub["name"] = str(tmp_path / hub["name"])
    with pytest.raises(MtxError, match=" cannot be loaded from the hub: .") as error:
        find(hub=hub)
    assert type(error.value) is MtxError
    assert "\n" not in str(error.value)
    assert "An error occurred" not in str(error.value)  # but which
    assert "data.dir=DIR" in (error.value.help or "")


@pytest.mark.usefixtures("hub_cache")
def test_hub_with_swapped_columns(tmp_path: Path) -> None:
    rows = [{"en": german, "de": english} for german, english in zip(sentences("de"), sentences("en"), strict=True)]
    write(tmp_path / "ds" / "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    corpora = find(hub={"name": str(tmp_path / "ds")})
    with pytest.raises(UsageError, match="ds train: source and target are swapped$"):
        pairs_of(corpora.train[0])


@pytest.mark.usefixtures("hub_cache")
def test_hub_with_other_columns(tmp_path: Path) -> None:
    write(tmp_path / "ds" / "train.jsonl", '{"first": "a", "de": "b"}\n')
    with pytest.raises(DataError, match="ds train: the columns are 'first', 'de', expected en and de"):
        find(hub={"name": str(tmp_path / "ds")})


UNREACHABLE = """
import sys, time
sleeps = []
time.sleep = sleeps.append  # huggingface_hub sleeps for 23 s in all between its tries
from mtx.config.schema import DataConfig
from mtx.data.sources import find_corpora
from mtx.errors import MtxError
data = {"train": sys.argv[1:2], "valid": "val", "test": sys.argv[2:]}
try:
    corpora = find_corpora(DataConfig(src="en", tgt="de", hub={"name": "no/where"}, **data))
    print([pair for block in corpora.train[0].blocks() for pair in zip(block.src, block.tgt)])
except MtxError as error:
    print(error, error.help, sep="|")
print(len(sleeps))
"""


def load_from(endpoint: str, home: Path, *names: str) -> list[str]:
    """What a process prints that loads no/where from a hub: the pairs or the error, and the number of sleeps."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_HUB_ETAG_TIMEOUT": "1", "NO_PROXY": "*"}
    command = [sys.executable, "-c", UNREACHABLE, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stderr == ""
    return done.stdout.splitlines()


CLOSED = "http://127.0.0.1:9"


@pytest.mark.seconds
def test_hub_that_cannot_be_reached_is_told_at_the_first_try(tmp_path: Path) -> None:
    error, sleeps = load_from(CLOSED, tmp_path, "train", "flickr", "news.tsv.gz")
    message, _, hint = error.partition("|")
    assert message.startswith(f"no/where cannot be loaded from the hub: {CLOSED} cannot be reached (")
    assert "Connection refused" in message and message.endswith("), and it is not in the cache")
    assert "data.dir=DIR" in hint and "HTTPS_PROXY=URL" in hint and "HF_HOME=DIR" in hint
    assert sleeps == "0"


@pytest.mark.seconds
def test_hub_that_never_answers_is_asked_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:
        endpoint = f"http://127.0.0.1:{hole.getsockname()[1]}"
        error, sleeps = load_from(endpoint, tmp_path, "train")
        hole.settimeout(0)
        hole.accept()[0].close()
        with pytest.raises(BlockingIOError):
            hole.accept()
    assert f"{endpoint} cannot be reached (timed out), and it is not in the cache|" in error and sleeps == "0"


@pytest.mark.seconds
def test_what_is_in_the_cache_needs_no_hub(tmp_path: Path) -> None:
    dataset = tmp_path / "where"
    dataset.mkdir()
    write_parquet(dataset / "train.parquet", {"en": ["a"], "de": ["x"]})
    load = "import sys, datasets; datasets.load_dataset(sys.argv[1])"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-c", load, str(dataset)], env=environment, capture_output=True, check=True)
    [local] = (tmp_path / "home" / "datasets" / "where").iterdir()
    of_hub = tmp_path / "home" / "datasets" / "no___where"  # as a dataset of the hub lies there
    of_hub.mkdir()
    local.rename(of_hub / "default")
    assert load_from(CLOSED, tmp_path / "home") == ["[('a', 'x')]", "0"]
