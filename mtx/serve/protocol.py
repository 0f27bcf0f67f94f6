"""The HTTP connection of uvicorn with limits. By itself it waits without end for headers, and for a client to read.

What is refused before a request has arrived gets an answer of the same form as any other error.
"""

import asyncio
import functools
import json
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from mtx.serve.limits import Limits

logger = logging.getLogger("mtx.serve")


class LimitedProtocol(H11Protocol):
    """A connection that ends if headers take too long, if its client does not read, or if there are too many."""

    def __init__(self, *arguments: Any, limits: Limits, **options: Any):
        super().__init__(*arguments, **options)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, and wait for its headers."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that writing is paused whenever the client has something to read
        if len(self.connections) > self._limits.connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "the server has too many connections; try again later")
        else:
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait until the client reads, for some time; to close the connection would wait for that without end."""
        super().pause_writing()
        self._reading_timer = self.loop.call_later(self._limits.send_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client has read everything."""
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take what the client has sent; the first bytes of its next headers start the time for them."""
        if self._timer is None and not self._is_answering():
            self._wait_for_headers()
        super().data_received(data)
        if self._is_answering():
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; a request whose body was refused before its end has its answer."""
        if self._is_answering() and self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP")

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_headers(self) -> None:
        text = f"the headers did not arrive within {self._limits.headers_s:g} seconds"
        refuse = functools.partial(self._refuse, HTTPStatus.REQUEST_TIMEOUT, text)
        self._timer = self.loop.call_later(self._limits.headers_s, refuse)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        if self.transport.is_closing():
            return
        logger.info("refused", extra={"fields": {"status": status.value}})
        body = json.dumps({"error": text}).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
