"""Connections that never become a request are answered and closed."""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from uvicorn.server import ServerState

from mtx.serve.limits import Limits
from mtx.serve.protocol import LimitedProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def with_connections(
    number: int, talk: Callable[..., Awaitable[None]], app: Any = hello, state: ServerState | None = None, **limits: Any
) -> None:
    """Let `talk` have this many connections, each a pair of a reader and a writer, to a server with limits."""

    async def run() -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        made = functools.partial(
            LimitedProtocol, config=config, server_state=state or ServerState(), app_state={}, limits=Limits(**limits)
        )
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(number)]
        async with asyncio.timeout(10):
            await talk(*connections)
        for _, writer in connections:
            writer.close()
        server.close()

    asyncio.run(run())


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """The status and the error of the last answer of a connection that is then closed."""
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]


def test_headers_that_never_end() -> None:
    async def talk(*connections: Any) -> None:
        (silent, _), (slow, writer), (second, next_writer) = connections
        next_writer.write(REQUEST)
        assert (await second.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        next_writer.write(b"GET / HT")
        for _ in range(5):
            writer.write(b"GET / HTTP/1.1\r\n" if _ == 0 else b"X-A: b\r\n")
            await asyncio.sleep(0.02)
        for reader in (silent, slow, second):
            assert await answer(reader) == (408, "the headers did not arrive within 0.2 seconds")

    with_connections(3, talk, headers_s=0.2)


def test_a_connection_may_be_used_again_within_its_time() -> None:
    async def talk(connection: Any) -> None:
        reader, writer = connection
        for _ in range(4):
            writer.write(REQUEST)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.06)

    with_connections(1, talk, headers_s=0.1)


def test_too_many_connections() -> None:
    async def talk(*connections: Any) -> None:
        assert await answer(connections[2][0]) == (503, "the server has too many connections; try again later")
        reader, writer = connections[0]
        writer.write(REQUEST)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200"), "those that came before stay"

    with_connections(3, talk, connections=2)


@pytest.mark.parametrize(
    "request_",
    [
        b"no HTTP\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n X: folded first\r\n\r\n"[:-2] + b"Bad Name: b\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 20_000,
    ],
)
def test_what_is_no_http(request_: bytes) -> None:
    async def talk(connection: Any) -> None:
        reader, writer = connection
        writer.write(request_)
        assert await answer(reader) == (400, "the request is not valid HTTP")

    with_connections(1, talk)


def test_a_client_that_does_not_read_is_given_up() -> None:
    """Also when the whole response was written: to close the connection would wait for the client without end."""
    state = ServerState()

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % (1 << 24))]})
        await send({"type": "http.response.body", "body": bytes(1 << 24)})

    async def talk(unread: Any, read: Any) -> None:
        for _, writer in (unread, read):
            writer.write(REQUEST)
        assert len(await read[0].readuntil(b"\r\n\r\n")) and len(state.connections) == 2
        assert all(each.transport.get_write_buffer_limits() == (0, 0) for each in state.connections), "of any length"
        await read[0].readexactly(1 << 24)
        while len(state.connections) > 1:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        read[1].write(REQUEST)
        assert (await read[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"), "who has read may ask again"

    with_connections(2, talk, large, state, send_s=1.0)


def test_a_refused_body_that_turns_out_to_be_no_http_has_its_answer() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async def talk(connection: Any) -> None:
        reader, writer = connection
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 413")
        writer.write(b"zz\r\n")
        assert await reader.read() == b"", "one answer"

    with_connections(1, talk, refuse)
