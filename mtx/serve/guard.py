"""What happens to every request, whatever it asks for: limits, a log line, counters, and an answer to every failure.

Slow clients are for uvicorn, and for a reverse proxy before it.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtx.errors import MtxError
from mtx.serve.fields import RequestError
from mtx.serve.limits import Limits
from mtx.serve.metrics import Metrics

logger = logging.getLogger("mtx.serve")
_HEADERS = [
    (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"),
]  # fmt: skip
_TAKEN_BYTES = 1 << 27  # of a body that is too large; a client that is still sending would not see the answer

Result = TypeVar("Result")


class Guard:
    """Middleware that limits bodies, answers failures, and records every request.

    Args:
        paths: the paths that logs and metrics name; others may hold anything and count as `other`.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, paths: frozenset[str]):
        self._app, self._limits, self._metrics, self._paths = app, limits, metrics, paths
        self._too_large = f"the body is larger than the limit of {limits.body_bytes:,} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, num_bytes = time.monotonic(), 0, 0
        scope["state"] = facts = dict[str, Any]()

        async def receive_limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._limits.body_bytes:
                while message.get("more_body", False) and num_bytes < _TAKEN_BYTES:
                    message = await receive()
                    num_bytes += len(message.get("body", b""))
                raise RequestError(413, self._too_large)
            return message

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
            await send(message)

        try:
            await self._refusing(dict(scope["headers"]))(scope, receive_limited, send_marked)
        except Exception as error:
            if status:
                raise
            await _failed(error)(scope, receive, send_marked)
        finally:
            self._record(scope, status, time.monotonic() - started, facts)

    def _refusing(self, headers: dict[bytes, bytes]) -> ASGIApp:
        """The application, or an answer to headers that are refused before the body is read."""
        if b"content-length" in headers and b"transfer-encoding" in headers:  # two servers may read it in two ways
            text = "expected the header content-length or transfer-encoding, not both"
            return JSONResponse({"error": text}, 400, {"connection": "close"})
        length = int(headers.get(b"content-length", b"0"))  # h11 lets only numbers pass
        if b"expect" in headers and length > self._limits.body_bytes:  # its client waits to be asked for the body
            return JSONResponse({"error": self._too_large}, 413, {"connection": "close"})
        return self._app

    def _record(self, scope: Scope, status: int, seconds: float, facts: dict[str, Any]) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "OPTIONS", "POST") else "other"
        self._metrics.requests.labels(path, status).inc()
        self._metrics.seconds.observe(seconds)
        fields = {"method": method, "path": path, "status": status, "seconds": round(seconds, 4), **facts}
        logger.info("request", extra={"fields": fields})


def _failed(error: Exception) -> JSONResponse:
    """The answer to a request that failed. The log names the place alone: the text may hold what was translated."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where else ""
    logger.error("%s at %s", type(error).__name__, place)
    text = str(error) if isinstance(error, MtxError) else "the server failed; its log says where"
    return JSONResponse({"error": text}, 500)


async def finish_in_time(request: Request, work: Coroutine[Any, Any, Result], seconds: float) -> Result:
    """The result of some work for a request.

    Raises:
        ClientDisconnect: the client has gone, so nobody needs the result.
        RequestError: 504, the time is over.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_disconnect(request.receive))
    try:
        done, _ = await asyncio.wait([task, gone], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        if gone in done:
            raise ClientDisconnect
        raise RequestError(504, f"the translation took longer than {seconds:g} seconds")
    finally:
        task.cancel()
        gone.cancel()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
