"""What happens to every request, whatever it asks for: limits, a log line, and an answer to every failure.

Slow clients are for uvicorn, and for a reverse proxy before it.
"""

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtx.errors import DataError, MtxError, UsageError

logger = logging.getLogger("mtx.serve")
_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_METHODS = ("GET", "HEAD", "OPTIONS", "POST")
_TAKEN_BYTES = 1 << 27  # of a body that is too large; a client that is still sending would not see the answer

Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how long the server waits: the only place with such numbers.

    Attributes:
        chars: most characters of the texts of a request, together.
        texts: most texts of a request.
        body_bytes: largest body. A character takes up to 12 bytes, as JSON or form.
        connections: most open connections.
        waiting_tokens: most tokens that wait for translation, those of all requests together. Time is in proportion to
            tokens, of which a character that the model does not know takes up to four, and an ordinary one a quarter.
        batch_tokens: tokens that a thread translates at once. A request waits for one such batch, and for a sentence of
            each other request that waits, before its first sentence is translated.
        segment_tokens: most tokens of a paragraph of HTML, which is translated at once.
        request_s: how many seconds a translation may take, waiting included.
        idle_s: how many seconds an open connection may wait for its next request.
    """

    chars: int = 10_000
    texts: int = 200
    body_bytes: int = 1 << 18
    connections: int = 500
    waiting_tokens: int = 125_000
    batch_tokens: int = 750
    segment_tokens: int = 4_000
    request_s: float = 60.0
    idle_s: int = 15


@dataclass(eq=False)
class Guard:
    """Middleware that limits bodies, answers failures, and records every request.

    Args:
        paths: the paths that logs name; others may hold anything and count as `other`.
    """

    app: ASGIApp
    limits: Limits
    paths: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        started = time.monotonic()
        status = num_bytes = 0
        scope["state"] = facts = dict[str, Any]()

        async def receive_limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self.limits.body_bytes:
                while message.get("more_body", False) and num_bytes < _TAKEN_BYTES:
                    message = await receive()
                    num_bytes += len(message.get("body", b""))
                text = f"the body is larger than the limit of {self.limits.body_bytes:,} bytes"
                raise HTTPException(413, text, {"connection": "close"})  # the rest of the body may still come
            return message

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        try:
            await self.app(scope, receive_limited, send_marked)
        except Exception as error:
            if status:
                raise
            await (await answer(Request(scope), error))(scope, receive, send_marked)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            method = scope["method"] if scope["method"] in _METHODS else "other"
            seconds = round(time.monotonic() - started, 4)
            fields = {"method": method, "path": path, "status": status, "seconds": seconds, **facts}
            logger.info("request", extra={"fields": fields})


async def answer(request: Request, error: Exception) -> Response:
    """The answer to a request that is refused or has failed: {"error": text}.

    The log names the place of a failure alone: the text of an error may hold what was translated.
    """
    headers = None
    match error:
        case HTTPException(status_code=status, detail=text):
            headers = error.headers
        case ValidationError():  # of the fields of a request
            first = error.errors(include_url=False)[0]
            status, text = 400, f"{first['loc'][0]}: {first['msg']}"
        case UsageError() | DataError():
            status, text = 400, str(error)
        case ClientDisconnect():
            status, text = 499, ""  # as of nginx; nobody receives it
        case _:
            place = traceback.extract_tb(error.__traceback__)[-1]
            logger.error("%s at %s:%s", type(error).__name__, place.filename, place.lineno)
            status = 500
            text = str(error) if isinstance(error, MtxError) else "the server failed; its log says where"
    return JSONResponse({"error": text}, status, headers)


async def finish_in_time(request: Request, work: Coroutine[Any, Any, Result], seconds: float) -> Result:
    """The result of some work for a request.

    Raises:
        ClientDisconnect: the client has gone, so nobody needs the result.
        HTTPException: 504, the time is over.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_disconnect(request.receive))
    try:
        await asyncio.wait([task, gone], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientDisconnect
        raise HTTPException(504, f"the translation took longer than {seconds:g} seconds")
    finally:
        task.cancel()
        gone.cancel()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class JsonFormat(logging.Formatter):
    """A record as one line of JSON in ASCII; the dict `fields` of a record adds its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line: time (UTC), level, message, and fields."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        about = {"time": f"{moment}.{int(record.msecs):03}Z", "level": record.levelname.lower()}
        return json.dumps(about | {"message": record.getMessage()} | getattr(record, "fields", {}))


def log_as_json() -> None:
    """Write the messages of mtx as JSON from now on, and the errors of the HTTP library too; none holds a text."""
    library = logging.getLogger("uvicorn.error")
    library.handlers = logging.getLogger("mtx").handlers
    library.propagate = False
    library.setLevel(logging.ERROR)
    for handler in library.handlers:
        handler.setFormatter(JsonFormat())
