"""`mtx corpora` with a dataset of a hub on loopback, and with test sets of sacreBLEU; no test reaches the network."""

import hashlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtx import cli
from mtx.storage import durable
from tests.rig import PATIENCE_S
from tests.unit.data.corpus_files import find, pairs_of

COMMIT = "a" * 40
SUBSETS = ("en-fr", "de-en")
SPLITS = {"train": 5, "validation": 2, "test": 1}


def rows(subset: str, split: str) -> list[dict[str, Any]]:
    src, tgt = subset.split("-")
    return [
        {"translation": {src: f"{split} {src}\t{index}\nx", tgt: f"{split} {tgt} {index}"}}
        for index in range(SPLITS[split])
    ]


def files() -> dict[str, bytes]:
    """The files of a dataset with two subsets of three splits."""
    card = "---\nlicense: cc-by-4.0\nconfigs:\n"
    data = dict[str, bytes]()
    for subset in SUBSETS:
        card += f"- config_name: {subset}\n  data_files:\n"
        for split in SPLITS:
            card += f"  - split: {split}\n    path: {subset}/{split}-*\n"
            table = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(rows(subset, split)), table)
            data[f"{subset}/{split}-0.parquet"] = table.getvalue()
    return {"README.md": f"{card}---\n".encode(), **data}


class Hub(BaseHTTPRequestHandler):
    """What `datasets` asks about the dataset user/books."""

    protocol_version = "HTTP/1.1"
    files = files()
    extra_bytes = 0

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        about, name = "/api/datasets/user/books", path.rpartition(f"/resolve/{COMMIT}/")[2]
        if path == "/":
            self.reply(b"the hub")
        elif path.startswith(f"{about}/tree/"):
            folder = path.removeprefix(f"{about}/tree/").partition("/")[2]
            entries = [
                {
                    "type": "file",
                    "oid": hashlib.sha1(data).hexdigest(),
                    "size": len(data) + self.extra_bytes,
                    "path": file,
                }
                for file, data in self.files.items()
                if file.rpartition("/")[0] == folder
            ]
            if not folder:
                entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": subset} for subset in SUBSETS]
            self.reply(json.dumps(entries).encode())
        elif path.startswith(about):
            siblings = [{"rfilename": file} for file in self.files]
            value = {"id": "user/books", "sha": COMMIT, "tags": ["license:cc-by-4.0"], "siblings": siblings}
            self.reply(json.dumps(value).encode())
        elif path.startswith("/datasets/user/books") and name in self.files:
            data = self.files[name]
            self.reply(data, ETag=f'"{hashlib.sha1(data).hexdigest()}"', **{"X-Repo-Commit": COMMIT})
        else:
            self.reply(b"{}", 404, **{"X-Error-Code": "RepoNotFound" if "nowhere" in path else "EntryNotFound"})

    def reply(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    values = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "cache"), "NO_PROXY": "*", "HF_HUB_OFFLINE": "0"}
    yield {**os.environ, **values, "HF_HUB_DISABLE_TELEMETRY": "1"}
    server.shutdown()
    server.server_close()


def run(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mtx", "corpora", *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip


@pytest.mark.seconds
def test_a_dataset_of_the_hub(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(tmp_path, environment, "fr-en", "--hub", "user/books", "-o", "text")
    assert done.returncode == 0, done.stderr
    assert "books-en-fr-aaaaaaaa: ? pairs, 0.0 MB; terms: http://" in done.stderr
    folder = "text/books-en-fr-aaaaaaaa"
    settings = f"data.src=fr data.tgt=en data.valid={folder}/validation data.test={folder}/test"
    assert done.stderr.endswith(f"mtx train text/ {settings}\n")
    origin = durable.read_json(tmp_path / folder / "origin.json")
    page = f"{environment['HF_ENDPOINT']}/datasets/user/books"
    assert (origin["version"], origin["url"], origin["terms"]) == (COMMIT, page, f"cc-by-4.0; {page}")
    monkeypatch.chdir(tmp_path)
    corpora = find(src="fr", tgt="en", train=("text",), valid=f"{folder}/validation", test=(f"{folder}/test",))
    for split, [corpus] in zip(SPLITS, (corpora.train, corpora.valid, corpora.tests["test"]), strict=True):
        texts = [row["translation"] for row in rows("en-fr", split)]
        assert pairs_of(corpus) == [(text["fr"], text["en"].replace("\n", " ")) for text in texts]


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["en-sw", "--hub", "user/books"], r"error: user/books: it has the subsets en-fr, de-en\nhelp: .*SUBSET --hub"),
        (["en-sw", "de-en", "--hub", "user/books"], "columns are .*, expected en and sw"),
        (["en-sw", "--hub", "user/nowhere"], "user/nowhere cannot be loaded from the hub: "),
    ],
)
def test_what_is_not_in_the_hub(words: list[str], problem: str, environment: dict[str, str], tmp_path: Path) -> None:
    done = run(tmp_path, environment, *words, "-o", "text")
    assert done.returncode in (1, 2) and re.search(problem, done.stderr), done.stderr
    assert not (tmp_path / "text").exists()


@pytest.mark.seconds
def test_a_large_dataset_needs_confirmation(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "extra_bytes", 400_000_000)
    done = run(tmp_path, environment, "en-fr", "--hub", "user/books", "-o", "text")
    assert done.returncode == 2 and "error: 1,200 MB would be downloaded\nhelp: add --yes" in done.stderr
    assert not (tmp_path / "text").exists()


@pytest.mark.parametrize("num_references", [1, 3])
def test_a_test_set(num_references: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "mtx")
    names = ["src", *map(str, range(num_references))]
    for name in names:
        (tmp_path / name).write_text(f"{name} 1\n{name} 2\n")
    source, *references = (str(tmp_path / name) for name in names)
    monkeypatch.setattr("sacrebleu.get_source_file", lambda *_: source)
    monkeypatch.setattr("sacrebleu.get_reference_files", lambda *_: references)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cli.run(["corpora", "en-de", "--testset", "wmt14/full", "-o", "sets"]) == 0
    assert caplog.messages[0] == "sets/wmt14-full: 2 pairs; terms: unknown"
    assert caplog.messages[-1].endswith("train text/ data.src=en data.tgt=de data.test=sets/wmt14-full")
    assert cli.run(["corpora", "de-en", "--testset", "wmt14/full", "-o", "sets"]) == 2  # it is another test set
    texts = {path.name: path.read_text() for path in Path("sets/wmt14-full").iterdir() if path.suffix != ".json"}
    more = {f"wmt14-full-{number}.de": f"{number - 1} 1\n{number - 1} 2\n" for number in range(2, num_references + 1)}
    assert texts == {"wmt14-full.en": "src 1\nsrc 2\n", "wmt14-full.de": "0 1\n0 2\n", **more}
    origin = durable.read_json(Path("sets/wmt14-full/origin.json"))
    assert origin["url"].startswith("https://") and origin["version"].startswith("sacrebleu ")
    [corpus] = find(src="en", tgt="de", train=("sets/wmt14-full",)).train
    assert pairs_of(corpus) == [("src 1", "0 1"), ("src 2", "0 2")]


def test_test_sets_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["corpora", "en-xx", "--testset", "wmt14/full", "-o", "sets"]) == 2
    assert "sacreBLEU has no test set wmt14/full for the direction en-xx" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []
