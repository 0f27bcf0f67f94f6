"""What happens to every request, whatever it asks for: limits, a log line, counters, and an answer to every failure.

The body is read before the application sees the request, so that a slow client holds nothing but its connection.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtx.errors import MtxError
from mtx.serve.fields import RequestError
from mtx.serve.limits import Limits
from mtx.serve.metrics import Metrics

logger = logging.getLogger("mtx.serve")
_DISCONNECTED = 499  # nginx's status of a request whose client has gone; nobody receives it
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


class _DisconnectedError(Exception):
    """The client has gone."""


class _TooLargeError(Exception):
    """A body is too large; `is_sent`: the client is sending more of it."""

    def __init__(self, is_sent: bool):
        super().__init__()
        self.is_sent = is_sent


class Guard:
    """Middleware that keeps the limits of a request.

    Args:
        paths: the paths that logs and metrics name; others may hold anything and count as `other`.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, paths: frozenset[str]):
        self._app, self._limits, self._metrics, self._paths = app, limits, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, response = time.monotonic(), _Response(send, self._limits.send_s)
        scope["state"] = facts = dict[str, Any]()
        try:
            await self._answer(scope, receive, response)
        except (_DisconnectedError, TimeoutError):  # of a client that does not read
            response.status = _DISCONNECTED
        finally:
            self._record(scope, response.status, time.monotonic() - started, facts)

    async def _answer(self, scope: Scope, receive: Receive, response: "_Response") -> None:
        try:
            body = await self._body(scope, receive)
        except _TooLargeError as error:
            rest = self._rest(receive) if error.is_sent else None
            text = f"the body is larger than the limit of {self._limits.body_bytes:,} bytes"
            await _refuse_body(413, text, response, rest)
            return
        except TimeoutError:
            text = f"the body did not arrive within {self._limits.body_s:g} seconds"
            await _refuse_body(408, text, response)
            return
        except RequestError as error:
            await _refuse_body(error.status, error.text, response)
            return
        try:
            await self._run(scope, body, receive, response)
        except RequestError as error:
            await _error(error.status, error.text)(scope, receive, response.send)
        except _DisconnectedError:
            raise
        except Exception as error:
            if response.status:
                raise
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where else ""
            logger.error("%s at %s", type(error).__name__, place)  # its text may hold what was translated
            text = str(error) if isinstance(error, MtxError) else "the server failed; its log says where"
            await _error(500, text)(scope, receive, response.send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        headers, body, is_ending = dict(scope["headers"]), bytearray(), False
        if b"content-length" in headers and b"transfer-encoding" in headers:  # two servers may read it in two ways
            raise RequestError(400, "expected the header content-length or transfer-encoding, not both")
        if int(headers.get(b"content-length", b"0")) > self._limits.body_bytes:  # h11 lets only numbers pass
            raise _TooLargeError(is_sent=b"expect" not in headers)  # such a client waits until it is asked to send
        async with asyncio.timeout(self._limits.body_s):
            while not is_ending:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _DisconnectedError
                body += message.get("body", b"")
                is_ending = not message.get("more_body", False)
                if len(body) > self._limits.body_bytes:
                    raise _TooLargeError(is_sent=not is_ending)
        return bytes(body)

    async def _rest(self, receive: Receive) -> None:
        """Take the rest of a body, for some time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.body_s):
                while (await receive()).get("more_body", False):
                    pass

    async def _run(self, scope: Scope, body: bytes, receive: Receive, response: "_Response") -> None:
        """Let the application answer, until the client has gone or the time is over."""
        gone = asyncio.ensure_future(_until_disconnect(receive))
        answer = asyncio.ensure_future(self._app(scope, _replay(body, gone), response.send))
        try:
            done, _ = await asyncio.wait(
                [answer, gone], timeout=self._limits.request_s, return_when=asyncio.FIRST_COMPLETED
            )
            if answer in done:
                await answer
            elif gone in done or response.status:  # or it reads its response too slowly
                raise _DisconnectedError
            else:
                raise RequestError(504, f"the translation took longer than {self._limits.request_s:g} seconds")
        finally:
            for task in (answer, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    def _record(self, scope: Scope, status: int, seconds: float, facts: dict[str, Any]) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "OPTIONS", "POST") else "other"
        self._metrics.count("mtx_requests_total", path=path, status=str(status))
        self._metrics.observe(seconds)
        fields = {"method": method, "path": path, "status": status, "seconds": round(seconds, 4), **facts}
        logger.info("request", extra={"fields": fields})


class _Response:
    """A response on its way: its status, 0 before it begins. A client must read it within a time."""

    def __init__(self, send: Send, timeout_s: float):
        self._send, self._timeout_s, self.status = send, timeout_s, 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        async with asyncio.timeout(self._timeout_s):
            await self._send(message)


def _error(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status)


async def _refuse_body(
    status: int, text: str, response: _Response, rest: Coroutine[Any, Any, None] | None = None
) -> None:
    """Answer, and close the connection; take the rest of the body before, or its client may not see the answer."""
    answer = _error(status, text)
    answer.headers["connection"] = "close"
    await response.send({"type": "http.response.start", "status": status, "headers": answer.raw_headers})
    await response.send({"type": "http.response.body", "body": answer.body, "more_body": True})
    if rest is not None:
        await rest
    await response.send({"type": "http.response.body", "body": b""})


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _replay(body: bytes, gone: "asyncio.Future[None]") -> Callable[[], Awaitable[Message]]:
    """What gives the application a body that was read, and then the end of the connection."""
    messages: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        if (message := next(messages, None)) is not None:
            return message
        await asyncio.shield(gone)
        return {"type": "http.disconnect"}

    return receive
