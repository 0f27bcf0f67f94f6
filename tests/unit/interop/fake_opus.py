"""An OPUS on loopback: its interface answers as OPUS's own code does, and its zips have faults on demand."""

import io
import json
import threading
import zipfile
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

WORDS = {
    "en": "the {} dogs run",
    "sw": "mbwa {} wanakimbia",
    "zh_CN": "{} 只狗在跑",
    "cmn": "{} 只狗",
    "de": "{} Hunde laufen",
}
KEYS = ("corpus", "source", "target", "version", "latest", "preprocessing")


def lines(language: str, number: int) -> str:
    return "".join(f"{WORDS.get(language, language + ' {}').format(index)}\n" for index in range(number))


def zipped(members: Iterable[tuple[str, str | bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, text in members:
            archive.writestr(name, text)
    return data.getvalue()


def members(corpus: str, src: str, tgt: str, number: int = 100) -> dict[str, str]:
    """The files of a corpus, as OPUS has them in its zip."""
    stem = f"{corpus}.{src}-{tgt}"
    return {
        "README": "A corpus\n",
        "LICENSE": "\nCC BY 2.0 FR\nmore\n",
        f"{stem}.{src}": lines(src, number),
        f"{stem}.{tgt}": lines(tgt, number),
        f"{stem}.scores": "1\n" * number,
    }


class Opus(ThreadingHTTPServer):
    """An OPUS with a few corpora.

    Attributes:
        zips: by their path.
        entries: what the interface knows.
        asked: method, path with query, and Range of each request.
        answers: bodies, or statuses, of paths that begin with a text.
        etag: of all zips.
        has_range: whether requests for a part are answered with it.
        cut: the connection breaks after this number of bytes of a zip.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.zips: dict[str, bytes] = {}
        self.entries: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str, str | None]] = []
        self.answers: dict[str, bytes | int | str] = {}
        self.etag: str | None = '"first"'
        self.has_range = True
        self.cut: int | None = None
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, corpus: str, version: str, src: str, tgt: str, data: bytes | None = None, **entry: Any) -> str:
        """Add a corpus; returns the path of its zip."""
        src, tgt = sorted((src, tgt))
        path = f"/{corpus}/{version}/moses/{src}-{tgt}.txt.zip"
        self.zips[path] = data if data is not None else zipped(members(corpus, src, tgt).items())
        for other in self.entries:
            if (other["corpus"], other["source"], other["target"]) == (corpus, src, tgt):
                other["latest"] = "False"
        known = {"corpus": corpus, "version": version, "source": src, "target": tgt, "url": self.url + path}
        known |= {"alignment_pairs": 100, "size": max(1, len(self.zips[path]) >> 10), "latest": "True"}
        self.entries.append(known | {"preprocessing": "moses", "id": len(self.entries), "documents": ""} | entry)
        return path

    def answer(self, query: dict[str, str]) -> Any:
        """As `DbOperations` of OpusTools."""
        query = {key: value for key, value in query.items() if key in (*KEYS, "languages", "corpora")}
        if query.get("version") == "latest":
            query |= {"latest": "True"}
            del query["version"]
        if "source" in query and "target" in query:
            query["source"], query["target"] = sorted((query["source"], query["target"]))
        wants_languages = query.pop("languages", None)
        source = query.get("source")
        if wants_languages and source:
            del query["source"]
        chosen = [entry for entry in self.entries if query.items() <= entry.items()]
        if not wants_languages:
            return {"corpora": chosen}
        if not source:
            return {"languages": list(dict.fromkeys(entry["source"] for entry in chosen))}
        sides = [(entry["source"], entry["target"]) for entry in chosen]
        pairs = [*sides, *(side[::-1] for side in sides)]
        return {"languages": list(dict.fromkeys(other for one, other in pairs if one == source))}


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Opus

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        opus = self.server
        url = urlsplit(self.path)
        opus.asked.append((self.command, self.path, self.headers.get("Range")))
        prepared = next((answer for start, answer in opus.answers.items() if url.path.startswith(start)), None)
        if isinstance(prepared, str):  # a redirect
            self.reply(b"", 302, {"Location": prepared})
        elif isinstance(prepared, int):
            self.reply(b"no", prepared)
        elif prepared is not None:
            self.reply(prepared)
        elif url.path == "/opusapi/":
            self.reply(json.dumps(opus.answer(dict(parse_qsl(url.query)))).encode())
        elif url.path in opus.zips:
            self.send_zip(opus.zips[url.path])
        else:
            self.reply(b"no", 404)

    def send_zip(self, data: bytes) -> None:
        opus = self.server
        headers = {"ETag": opus.etag} if opus.etag else {}
        span = self.headers.get("Range")
        if not span or not opus.has_range:
            self.reply(data, headers=headers, cut=opus.cut)
            return
        first = int(span.removeprefix("bytes=").rstrip("-"))
        if first >= len(data):
            self.reply(b"", 416, headers | {"Content-Range": f"bytes */{len(data)}"})
            return
        headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.reply(data[first:], 206, headers, opus.cut)

    def reply(
        self, body: bytes, status: int = 200, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None and cut < len(body):
            self.close_connection = True


# What a subprocess runs, with the address of an OPUS on loopback as its first argument
COMMAND = """
import sys
import requests
from mtx import cli
from mtx.interop import download, opus
opus.API = sys.argv.pop(1) + "/opusapi/"
download.new_session = requests.Session
cli.main()
"""
