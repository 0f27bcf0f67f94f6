"""`mtx import hf:USER/MODEL` from a hub on loopback that speaks to huggingface_hub; no test reaches the network."""

import hashlib
import json
import logging
import logging.handlers
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants, scan_cache_dir
from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars

from mtx import cli
from mtx.errors import MtxError, UsageError
from mtx.interop import download
from mtx.interop.hub import fetch
from mtx.interop.huggingface import import_marian
from mtx.storage import disk
from tests.integration.commands import tree
from tests.rig import PATIENCE_S
from tests.unit.interop.test_import_marian import write_marian
from tests.unit.interop.test_m2m100 import NLLB, SMALL, write_model

torch = pytest.importorskip("torch")

REPO = "Helsinki-NLP/opus-mt-en-de"
NAME = f"hf:{REPO}"
TITLE = "Adding `safetensors` variant of this model"
FIRST, SECOND, CONVERTED = (f"{digit * 40}" for digit in "123")
LARGE = ("model.safetensors", "source.spm", "pytorch_model.bin")  # in Git LFS
CLOSED = "http://127.0.0.1:9"


class Hub(ThreadingHTTPServer):
    """A hub with one model.

    Attributes:
        commits: the files of each commit.
        refs: branches, tags and pull requests, each with its commits, the newest first.
        pulls: title, author and status of each pull request.
        answers: the status and the X-Error-Code of paths that contain a text.
        asked: method, path and Range of each request.
        stops_at: the weights stop after this number of bytes, until `goes_on` is set.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.commits: dict[str, dict[str, bytes]] = {}
        self.refs: dict[str, list[str]] = {"main": [SECOND, FIRST]}
        self.pulls: list[tuple[str, str, str]] = []
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[tuple[str, str, str | None]] = []
        self.stops_at: int | None = None
        self.has_stopped, self.goes_on = threading.Event(), threading.Event()
        self.damage: Callable[[bytes], bytes] = lambda data: data
        self.url = f"http://127.0.0.1:{self.server_port}"

    def downloads(self) -> list[str]:
        return [path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]

    def convert(
        self, author: str = "SFconvertbot", title: str = TITLE, status: str = "open", parent: str = SECOND
    ) -> None:
        """Take the safetensors out of main, and propose them."""
        weights = self.commits[SECOND].pop("model.safetensors", None) or self.commits[CONVERTED]["model.safetensors"]
        self.commits[SECOND]["pytorch_model.bin"] = b"pickle"
        self.commits[CONVERTED] = {**self.commits[SECOND], "model.safetensors": weights}
        self.pulls.append((title, author, status))
        self.refs[f"refs/pr/{len(self.pulls)}"] = [CONVERTED, parent, FIRST]


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append((self.command, unquote(path), self.headers.get("Range")))
        for text, (status, code) in self.server.answers.items():
            if text in unquote(path):
                self.reply(b"{}", status, {"X-Error-Code": code})
                return
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts == [""]:
            self.reply(b"the hub")
        elif parts[:1] == ["api"] and "/".join(parts[2:4]) == REPO:
            self.tell(*parts[4:])
        elif "/".join(parts[:2]) == REPO and parts[2] == "resolve":
            self.send_file(parts[3], parts[4])
        else:
            self.reply(b"{}", 404, {"X-Error-Code": "RepoNotFound"})

    def tell(self, what: str, revision: str = "main") -> None:
        hub = self.server
        commits = hub.refs.get(revision, [revision])
        if commits[0] not in hub.commits:
            self.reply(b"{}", 404, {"X-Error-Code": "RevisionNotFound"})
            return
        value: Any
        if what == "revision":
            files = hub.commits[commits[0]]
            siblings = [{"rfilename": name, "size": len(data), **_lfs(name, data)} for name, data in files.items()]
            value = {"id": REPO, "sha": commits[0], "tags": ["marian", "license:cc-by-4.0"], "siblings": siblings}
        elif what == "discussions":
            pulls = [
                {
                    "title": title, "num": number, "author": {"name": author}, "status": status, "isPullRequest": True,
                    "createdAt": "2023-01-01T00:00:00.000Z", "repo": {"name": REPO, "type": "model"},
                }
                for number, (title, author, status) in enumerate(hub.pulls, 1)
            ]  # fmt: skip
            value = {"discussions": pulls, "count": len(pulls), "start": 0}
        else:
            assert what == "commits"
            date = "2023-01-01T00:00:00.000Z"
            value = [{"id": commit, "title": "", "message": "", "authors": [], "date": date} for commit in commits]
        self.reply(json.dumps(value).encode())

    def send_file(self, commit: str, name: str) -> None:
        data = self.server.commits[commit][name]
        tag = _lfs(name, data).get("lfs", {}).get("sha256") or hashlib.sha1(data).hexdigest()
        headers = {"X-Repo-Commit": commit, "ETag": f'"{tag}"', "X-Linked-Size": str(len(data))}
        span, status = self.headers.get("Range"), 200
        if span:
            first = int(span.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"], status = f"bytes {first}-{len(data) - 1}/{len(data)}", 206
            data = data[first:]
        self.reply(self.server.damage(data) if name in LARGE else data, status, headers, name)

    def reply(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None, name: str = "") -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        hub = self.server
        if name == "model.safetensors" and hub.stops_at is not None:
            self.wfile.write(body[: hub.stops_at])
            self.wfile.flush()
            hub.has_stopped.set()
            hub.goes_on.wait(PATIENCE_S)
            return
        self.wfile.write(body)


def _lfs(name: str, data: bytes) -> dict[str, Any]:
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return {"lfs": entry} if name in LARGE else {}


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hub") / "marian"
    write_marian(directory)
    (directory / "README.md").write_text("not read")
    (directory / "tf_model.h5").write_text("not read")
    return directory


@pytest.fixture
def hub(marian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    hub.commits = {SECOND: {path.name: path.read_bytes() for path in sorted(marian.iterdir())}, FIRST: {}}
    threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
    use(hub.url, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda _: None)  # between tries
    yield hub
    hub.goes_on.set()
    hub.shutdown()
    hub.server_close()


def use(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setenv("NO_PROXY", "*")


def test_only_what_an_import_reads_is_downloaded_once(
    hub: Hub, marian: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mtx")
    enable_progress_bars()
    directory, origin = fetch(NAME)
    assert origin == f"{NAME}@{SECOND}"
    read = {"config.json", "generation_config.json", "model.safetensors", "source.spm", "target.spm", "vocab.json"}
    assert {path.name for path in directory.iterdir()} == read | {"tokenizer_config.json"}
    assert hub.downloads()[-1] == "model.safetensors"
    first = caplog.messages[0]
    assert " 1 MB, " in first and "licence cc-by-4.0" in first and SECOND in first
    assert are_progress_bars_disabled()  # stderr is not a terminal
    import_marian(directory, tmp_path / "theirs")
    import_marian(marian, tmp_path / "ours")
    assert tree(tmp_path / "theirs") == tree(tmp_path / "ours")
    hub.asked.clear()
    assert fetch(NAME) == (directory, origin) and hub.downloads() == []
    assert fetch(f"{NAME}@{SECOND}") == (directory, origin) and hub.downloads() == []
    cache = scan_cache_dir(constants.HF_HUB_CACHE)
    [repo] = cache.repos
    assert not cache.warnings and repo.repo_id == REPO
    assert {ref for revision in repo.revisions for ref in revision.refs} == {"mtx/main", f"mtx/{SECOND}"}


def test_offline_the_cache_is_enough(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mtx")
    hub.convert()
    online = fetch(NAME)
    use(CLOSED, monkeypatch)
    assert fetch(NAME) == online
    assert f"{NAME}: {CLOSED} cannot be reached (" in caplog.messages[-1]
    assert f"using commit {CONVERTED} of the cache" in caplog.messages[-1]
    with pytest.raises(MtxError, match=f"{CLOSED} cannot be reached .*, and it is not in the cache$") as error:
        fetch(f"{NAME}@v2")
    assert "HF_HOME=DIR" in (error.value.help or "")


def test_what_another_program_downloaded_is_enough_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, origin = fetch(NAME)
    shutil.move(directory.parents[1] / "refs" / "mtx" / "main", directory.parents[1] / "refs" / "main")
    use(CLOSED, monkeypatch)
    assert fetch(NAME) == (directory, origin)


def test_the_conversion_of_the_hub(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mtx")
    hub.convert()
    directory, origin = fetch(NAME)
    assert origin == f"{NAME}@{CONVERTED}" and (directory / "model.safetensors").is_file()
    assert "the hub's own conversion, refs/pr/1" in caplog.messages[0]
    assert "pytorch_model.bin" not in hub.downloads()


@pytest.mark.parametrize(
    "pull",
    [{"author": "somebody"}, {"title": "Better weights"}, {"status": "closed"}, {"parent": FIRST}],
    ids=lambda pull: next(iter(pull)),
)
def test_no_other_conversion(hub: Hub, pull: dict[str, str]) -> None:
    hub.convert(**pull)
    with pytest.raises(UsageError, match="no model.safetensors; mtx reads neither pickle files, .* unsafe") as error:
        fetch(NAME)
    assert f"hf download {REPO} --local-dir DIR" in (error.value.help or "") and hub.downloads() == []
    hub.convert()  # beside it
    assert fetch(NAME)[1] == f"{NAME}@{CONVERTED}"


def test_weights_in_several_files(hub: Hub) -> None:
    hub.commits[SECOND]["model-00001-of-00002.safetensors"] = hub.commits[SECOND].pop("model.safetensors")
    with pytest.raises(UsageError, match="nor weights in several files$"):
        fetch(NAME)
    assert hub.downloads() == []


def test_another_architecture_is_refused_before_its_weights(hub: Hub) -> None:
    hub.commits[SECOND]["config.json"] = b'{"model_type": "t5"}'
    with pytest.raises(UsageError, match="model_type is 't5'"):
        fetch(NAME)
    assert hub.downloads() == ["config.json"]


@pytest.mark.parametrize(
    "name",
    [
        *("hf:", "hf:opus-mt", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:/a", "hf:a/", "hf:a/b@", "hf:a/b@../main"),
        *("hf:a/b@x/../y", "hf:a/b@.x", "hf:a/b c", "hf:a/b@main\n", "hf:ä/b", "hf:https://huggingface.co/a/b"),
    ],
)
def test_names(name: str, hub: Hub) -> None:
    with pytest.raises(UsageError, match="expected hf:USER/MODEL or hf:USER/MODEL@REVISION"):
        fetch(name)
    assert hub.asked == []


@pytest.mark.parametrize(
    ("name", "answers", "message"),
    [
        ("hf:no/where", {}, "there is no such model, or it is private"),
        (NAME, {"/api/": (401, "RepoNotFound")}, "there is no such model, or it is private"),
        (NAME, {"/resolve/": (401, "GatedRepo")}, "it is only for users who accept its conditions"),
        (NAME, {"model.safetensors": (403, "GatedRepo")}, "it is only for users who accept its conditions"),
        (f"{NAME}@v9", {}, "there is no such revision"),
        (NAME, {"/api/": (503, "")}, "503"),
        ("hf:a--b/c", {}, "a--b/c"),
    ],
)
def test_what_the_hub_refuses(
    name: str, answers: dict[str, tuple[int, str]], message: str, hub: Hub, tmp_path: Path
) -> None:
    hub.answers = answers
    with pytest.raises(MtxError, match=f"^{name} cannot be downloaded: .*{message}") as error:
        fetch(name)
    assert "\n" not in str(error.value) and f"{hub.url}/{name[3:].partition('@')[0]} is its page" in (
        error.value.help or ""
    )
    assert not (tmp_path / "cache" / "hub" / f"models--{REPO.replace('/', '--')}" / "refs").exists()


def test_a_full_disk(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write = disk.write

    def fill(fd: int, data: memoryview) -> int:
        if len(data) > 5000:
            raise OSError(28, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(disk, "write", fill)
    assert run(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    monkeypatch.setattr(disk, "write", write)
    assert run(tmp_path) == 0


def test_a_broken_connection_is_resumed_quietly(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, handler = logging.getLogger("huggingface_hub"), logging.handlers.BufferingHandler(100)
    theirs.setLevel(logging.WARNING)
    theirs.addHandler(handler)
    monkeypatch.setattr(download, "_CHUNK_BYTES", 1000)
    hub.stops_at = len(hub.commits[SECOND]["model.safetensors"]) // 2 + 1000
    hub.goes_on.set()
    directory, _ = fetch(NAME)
    assert (directory / "model.safetensors").read_bytes() == hub.commits[SECOND]["model.safetensors"]
    assert hub.downloads().count("model.safetensors") == 2
    assert handler.buffer == []
    theirs.removeHandler(handler)


def test_damage_on_the_way_is_seen(hub: Hub) -> None:
    hub.damage = lambda data: data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(MtxError, match="was damaged on the way"):
        fetch(NAME)
    hub.damage = lambda data: data
    fetch(NAME)


def test_a_link_out_of_the_cache_is_replaced(hub: Hub, tmp_path: Path) -> None:
    """A cache may have links into a store that several caches share, which an import does not follow."""
    directory, _ = fetch(NAME)
    weights = directory / "model.safetensors"
    blob = weights.resolve()
    shared = shutil.move(blob, tmp_path / "shared")
    blob.symlink_to(shared)
    fetch(NAME)
    assert weights.resolve() == blob and blob.read_bytes() == shared.read_bytes()


def run(directory: Path, *options: str) -> int:
    return cli.run(["import", NAME, "-o", str(directory / "model"), *options])


def test_the_command(hub: Hub, marian: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    import_marian(marian, tmp_path / "local")
    assert tree(tmp_path / "model") == tree(tmp_path / "local")
    hub.asked.clear()
    (tmp_path / "model" / "mine").touch()
    assert run(tmp_path) == 2 and hub.asked == []  # before the download
    assert "not an earlier export or import" in capfd.readouterr().err


def test_the_card_names_the_commit(hub: Hub, tmp_path: Path) -> None:
    write_model(tmp_path / "nllb", True, SMALL, torch.float32)
    hub.commits[SECOND] = {path.name: path.read_bytes() for path in (tmp_path / "nllb").iterdir()}
    assert run(tmp_path, "--languages", f"{NLLB[0]},{NLLB[1]}") == 0
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert f"imported by mtx from `{NAME}@{SECOND}`" in card


IMPORT = """
import sys
from mtx.interop import download
download._CHUNK_BYTES = 1000
from mtx import cli
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.seconds
def test_a_killed_download_resumes(hub: Hub, marian: Path, tmp_path: Path) -> None:
    whole = hub.commits[SECOND]["model.safetensors"]
    hub.stops_at = len(whole) // 2
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": constants.HF_HUB_CACHE, "NO_PROXY": "*"}
    environment |= {"HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", IMPORT, "import", NAME, "-o", str(tmp_path / "model")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        assert hub.has_stopped.wait(PATIENCE_S)
        [partial] = wait_for(lambda: [p for p in Path(constants.HF_HUB_CACHE).rglob("*.part") if p.stat().st_size])
        wait_for(lambda: partial.stat().st_size > hub.stops_at - 2000)
        process.send_signal(signal.SIGKILL)
    got = partial.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    hub.stops_at = None
    hub.goes_on.set()
    hub.asked.clear()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stderr  # no bar
    assert [(path.rpartition("/")[2], span) for method, path, span in hub.asked if method == "GET" and span] == [
        ("model.safetensors", f"bytes={got}-")
    ]
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.part"))
    import_marian(marian, tmp_path / "local")
    assert tree(tmp_path / "model") == tree(tmp_path / "local")


def wait_for(condition: Callable[[], Any]) -> Any:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if value := condition():
            return value
        pause.wait(0.02)
    raise AssertionError("it never came")
