"""`mtx serve` as users start it, on loopback, with a small model."""

import contextlib
import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("ctranslate2")

from mtx.decoding.translator import Translator
from tests.integration.commands import mtx, spawn
from tests.rig import PATIENCE_S
from tests.unit.decoding.test_translator_directions import multilingual


@contextlib.contextmanager
def serving(*arguments: Any) -> Iterator[tuple[Any, int]]:
    """A server that has started, and its port."""
    process = spawn("serve", *arguments, "--port", 0, "--device", "cpu")
    lines = list[dict[str, Any]]()
    try:
        assert process.stderr is not None
        while not lines or not lines[-1]["message"].startswith("serving "):
            line = process.stderr.readline()
            assert line, process.communicate()
            lines.append(json.loads(line))
        yield process, int(lines[-1]["message"].rstrip("/").rpartition(":")[2])
    finally:
        process.kill()
        process.communicate()


def ask(port: int, **fields: Any) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    body = json.dumps({"source": "en", "target": "de", **fields})
    connection.request("POST", "/translate", body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    assert response.status == 200, answer
    return answer


def begin_request(port: int, body: bytes) -> socket.socket:
    """A request that the server has begun to answer, and that has sent no body yet."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    connection.sendall(
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
    return connection


def wait_until_closed(port: int) -> None:
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.01)
    raise AssertionError("the server still takes connections")


def test_it_translates_as_mtx_translate_does(run_copy: Path) -> None:
    lines = ["one two three", "", "four five", "nine"]
    command = ["translate", run_copy, "--engine", "ctranslate2", "--precision", "fp32"]
    expected = mtx(*command, stdin="\n".join(lines).encode()).stdout.decode().split("\n")[:-1]
    with serving(run_copy) as (process, port):
        assert ask(port, q=lines)["translatedText"] == expected
        assert ask(port, q="\n".join(lines))["translatedText"] == "\n".join(expected)
        tagged = ask(port, q="<p>one <b>two</b> three</p>", format="html")["translatedText"]
        assert tagged.startswith("<p>") and tagged.count("<b>") == tagged.count("</b>") == 1
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b""), err
    log = [json.loads(line) for line in err.decode().split("\n")[:-1]]
    assert [line["message"] for line in log] == ["request"] * 3 + ["stopped"]
    assert "two" not in err.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_that_has_begun_is_answered_before_the_server_stops(run_copy: Path, number: signal.Signals) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("under nohup, a hangup means nothing")
    body = json.dumps({"q": "one two", "source": "en", "target": "de"}).encode()
    with serving(run_copy) as (process, port):
        expected = ask(port, q="one two")
        with begin_request(port, body) as connection:
            process.send_signal(number)
            wait_until_closed(port)
            connection.sendall(body)
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert (response.status, json.loads(response.read())) == (200, expected)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_what_cannot_be_served_is_refused(trained: Path, tmp_path: Path, refused: Any) -> None:
    refused(2, ["--host 0.0.0.0", "API key", "--api-key-file FILE"], "serve", trained, "--host", "0.0.0.0")
    refused(2, ["no such model"], "serve", tmp_path / "none", "--port", 0)
    refused(2, ["two models translate en to de"], "serve", trained, trained, "--port", 0)
    (tmp_path / "keys").write_text("\n \n")
    refused(2, ["expected an API key"], "serve", trained, "--api-key-file", tmp_path / "keys")
    (tmp_path / "keys").write_text("0123456789abcdef\nshort\n")
    refused(2, ["key 2 has fewer than 16"], "serve", trained, "--api-key-file", tmp_path / "keys")
    (tmp_path / "keys").write_text("0123456789abcdef\n")
    for host in ("a" * 300, "a..b", "no.such.host.invalid", "1.2.3.4.5", "192.0.2.1"):
        refused(2, [f"--host {host}"], "serve", trained, "--host", host, "--api-key-file", tmp_path / "keys")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused(2, [f"--host 127.0.0.1 --port {port}", "in use"], "serve", trained, "--port", port)


def test_missing_packages_are_named(trained: Path, refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtx.commands.serve.find_spec", lambda name: None if name != "starlette" else name)
    refused(1, ["not installed: uvicorn, python-multipart", "install", "uvicorn"], "serve", trained)


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_the_engine_of_each_model_has_translated_before_the_first_request(
    engine: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtx.commands.serve import serve
    from mtx.serve import server

    searched = list[tuple[Any, int]]()
    load = Translator.load

    def load_and_watch(model: str, **options: Any) -> Translator:
        translator = load(model, **options, engine=engine, threads=1)
        search = translator.engine.search

        def watched(sources: Any, *rest: Any) -> Any:
            searched.append((translator.engine, sum(map(len, sources))))
            return search(sources, *rest)

        translator.engine.search = watched  # type: ignore[method-assign]
        return translator

    other = multilingual(tmp_path / "other", "target", ["en-fr", "fr-en"])
    monkeypatch.setattr(Translator, "load", load_and_watch)
    monkeypatch.setattr(server, "run", lambda *_: searched.append((None, 0)))
    monkeypatch.setattr(server, "log_as_json", lambda: None)
    serve([str(trained), str(other)], "127.0.0.1", 0, None, "cpu")
    engines, sizes = zip(*searched, strict=True)
    assert len({*engines}) == 3 and engines[-1] is None
    assert all(size > 1 for size in sizes[:-1]), "more than the end of a sentence"


def test_another_host_with_a_key(run_copy: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("0123456789abcdef\n")
    with serving(run_copy, "--host", "0.0.0.0", "--api-key-file", tmp_path / "keys") as (_, port):
        assert ask(port, q="one", api_key="0123456789abcdef")["translatedText"]
        with pytest.raises(AssertionError, match="requires an API key"):
            ask(port, q="one")
