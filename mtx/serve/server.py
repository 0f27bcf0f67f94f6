"""`mtx serve`: the application with LibreTranslate's interface, and its server.

Flow: `Guard` (limits, a log line, and a response to every failure) -> a route -> `TranslationQueue` -> JSON. uvicorn
and a reverse proxy in front of it handle slow clients.
"""

import asyncio
import base64
import hashlib
import ipaddress
import json
import logging
import re
import secrets
import signal
import socket
import time
import traceback
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import uvicorn
from jinja2 import Template
from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtx.data.languages import name_of
from mtx.errors import DataError, MtxError, UsageError
from mtx.formatting import mtx_command
from mtx.machine import package_version
from mtx.serve.translation import Pairs, Translation, TranslationQueue, align, translate_html, translate_plain
from mtx.storage.text_files import replace_surrogates

logger = logging.getLogger("mtx.serve")
_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


@dataclass(frozen=True)
class Limits:
    """The limits of a request and the timeouts of the server, all in one place.

    Attributes:
        chars: maximum number of characters in all texts of a request.
        texts: maximum number of texts in a request.
        body_bytes: maximum size of a body. A character takes up to 12 bytes, as JSON or form.
        connections: maximum number of open connections.
        waiting_s: maximum time that a translation is expected to take. Since later requests share the time, it may
            take twice as long. It is proportional to tokens, of which an unknown character has up to four, an ordinary
            one a quarter.
        batch_tokens: tokens that a thread translates at once. A small request waits for about one such batch.
        request_s: timeout of a translation in seconds, including waiting.
        idle_s: seconds that an open connection may wait for its next request.
    """

    chars: int = 10_000
    texts: int = 200
    body_bytes: int = 1 << 18
    connections: int = 500
    waiting_s: float = 20.0
    batch_tokens: int = 750
    request_s: float = 60.0
    idle_s: int = 15


def refuse_public_without_keys(host: str, address: str, keys: Sequence[str], models: Sequence[str]) -> None:
    """Raise a UsageError for a server without API keys at an address that other machines can reach.

    Args:
        host: as the user wrote it.
        address: its IP address.
        models: those of the command, for the hint.
    """
    if not keys and not ipaddress.ip_address(address).is_loopback:
        raise UsageError(
            f"--host {host}: other machines could use the server without an API key",
            mtx_command("serve", *map(Path, models), "--host", host, "--api-key-file", "FILE"),
        )


@dataclass(eq=False)
class Guard:
    """Middleware that limits bodies, answers failures, and records every request."""

    app: ASGIApp
    limits: Limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        started = time.monotonic()
        status = 0
        num_bytes = 0
        facts = dict[str, Any]()
        scope["state"] = facts

        async def receive_limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self.limits.body_bytes:
                # A client that is still sending would miss the response.
                while message.get("more_body", False) and num_bytes < 1 << 27:
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
            fields = {
                "method": scope["method"] if scope["method"] in ("GET", "HEAD", "OPTIONS", "POST") else "other",
                "path": scope["path"] if "endpoint" in scope else "other",  # untrusted without a route
                "status": status,
                "seconds": round(time.monotonic() - started, 4),
                **facts,
            }
            logger.info("request", extra={"fields": fields})


async def answer(request: Request, error: Exception) -> Response:
    """The response to a refused or failed request: {"error": text}.

    The log contains only the place of a failure, since the text of an error may contain translated text.
    """
    headers = None
    match error:
        case HTTPException(status_code=status, detail=text):
            headers = error.headers
        case ValidationError():  # of the fields of a request
            status = 400
            text = _invalid_field(error)
        case UsageError() | DataError():
            status = 400
            text = str(error)
        case ClientDisconnect():
            status = 499  # as in nginx; nobody receives it
            text = ""
        case _:
            place = traceback.extract_tb(error.__traceback__)[-1]
            logger.error("%s at %s:%s", type(error).__name__, place.filename, place.lineno)
            status = 500
            text = str(error) if isinstance(error, MtxError) else "internal server error; see the server's log"
    return JSONResponse({"error": text}, status, headers)


def _invalid_field(error: ValidationError) -> str:
    """The problem with the first invalid field, in the words of LibreTranslate if it has some."""
    problem = error.errors(include_url=False)[0]
    name = problem["loc"][0]
    match problem["type"]:
        case "missing":
            return f"Invalid request: missing {name} parameter"
        case "literal_error":
            return f"{str(problem['input'])[:40]} format is not supported"
        case kind if kind.startswith("int_"):
            return f"Invalid request: {name} parameter is not a number"
    return f"Invalid request: {name}: {problem['msg']}"


async def finish_in_time(
    request: Request, work: Coroutine[Any, Any, list[Translation]], seconds: float
) -> list[Translation]:
    """The translations of a request.

    Raises:
        ClientDisconnect: the client has disconnected.
        HTTPException: 504, the timeout has passed.
    """

    async def wait_until_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_until_disconnect())
    try:
        await asyncio.wait([task, disconnect], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if disconnect.done():
            raise ClientDisconnect
        raise HTTPException(504, f"the translation took longer than {seconds:g} seconds")
    finally:
        task.cancel()
        disconnect.cancel()


class JsonFormat(logging.Formatter):
    """A record as one line of JSON in ASCII, with the dict `fields` of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """The line: time (UTC), level, message, and fields."""
        fields = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        return json.dumps(fields | getattr(record, "fields", {}))


def log_as_json() -> None:
    """Write the messages of mtx and the errors of the HTTP library as JSON from now on; none contains user text."""
    library = logging.getLogger("uvicorn.error")
    library.handlers = logging.getLogger("mtx").handlers
    library.propagate = False
    library.setLevel(logging.ERROR)
    for handler in library.handlers:
        handler.setFormatter(JsonFormat())


_TAG = re.compile("<[^<>]*>")  # approximate: enough to detect the language of the other text


Text = Annotated[str, BeforeValidator(lambda value: replace_surrogates(value) if isinstance(value, str) else value)]


class DetectionFields(BaseModel):
    """The fields of /detect."""

    q: Text | Annotated[list[Text], Field(fail_fast=True)]

    @property
    def texts(self) -> list[str]:
        """The texts, also of a single one."""
        return [self.q] if isinstance(self.q, str) else self.q


Fields = TypeVar("Fields", bound=DetectionFields)


class TranslationFields(DetectionFields):
    """The fields of /translate."""

    source: Text
    target: Text
    text_format: Literal["text", "html"] = Field("text", alias="format")
    alternatives: NonNegativeInt = 0
    quality: bool = False
    alignment: bool = False

    @property
    def texts_without_tags(self) -> list[str]:
        """The texts without tags."""
        return [_TAG.sub(" ", text) for text in self.texts] if self.text_format == "html" else self.texts


def render_page(languages: list[dict[str, object]], settings: dict[str, object]) -> tuple[str, str]:
    """The HTML of the page, a single file, and its policy, which allows only its own script and styles.

    Names of languages come from models and are untrusted.
    """
    template, style, script = map(_read_file, ("page.html", "page.css", "page.js"))
    text = Template(template).render(style=style, script=script, data={"languages": languages, "settings": settings})
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _read_file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@dataclass(eq=False)
class Server:
    """The routes. The thread of the event loop runs them all.

    Args:
        keys: API keys, one of which a translation request must have; empty if no key is needed.
    """

    pairs: Pairs
    queue: TranslationQueue
    keys: Sequence[str]
    limits: Limits

    def app(self) -> Starlette:
        """The ASGI application."""
        languages = self.pairs.languages()
        settings = {
            "apiKeys": bool(self.keys),
            "keyRequired": bool(self.keys),
            "charLimit": self.limits.chars,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "suggestions": False,
            "frontendTimeout": 500,
            "language": {
                side: {"code": code, "name": name_of(code) or code}
                for side, code in zip(("source", "target"), self.pairs.first_languages, strict=True)
            },
        }
        text, policy = render_page(languages, settings)
        spec = json.loads(_read_file("spec.json"))  # the calls in OpenAPI, with the fields of their bodies
        spec["info"]["version"] = package_version() or "unknown"
        fixed_responses = {
            "/": HTMLResponse(text, headers={"content-security-policy": policy}),
            "/languages": JSONResponse(languages),
            "/frontend/settings": JSONResponse(settings),
            "/health": JSONResponse({"status": "ok"}),
            "/spec": JSONResponse(spec),
        }
        routes = [
            Route("/translate", self.translate, methods=["POST"]),
            Route("/detect", self.detect, methods=["POST"]),
            *(Route(path, response, methods=["GET"]) for path, response in fixed_responses.items()),
        ]
        cors = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "POST"], allow_headers=["*"])
        guard = Middleware(Guard, limits=self.limits)
        app = Starlette(routes=routes, middleware=[cors, guard], exception_handlers={HTTPException: answer})
        app.router.redirect_slashes = False  # its redirects contain the untrusted host of the request
        return app

    async def translate(self, request: Request) -> Response:
        """POST /translate: q (a text or a list), source, target, format, alternatives, quality, alignment, api_key."""
        fields = await self._read_fields(request, TranslationFields)
        if fields.alignment and fields.text_format == "html":
            raise HTTPException(400, "Invalid request: alignment is not available for html")
        sources = [fields.source] * len(fields.texts)
        guesses = []
        if fields.source == "auto":
            guesses = [
                (await asyncio.to_thread(self.pairs.detect, text, fields.target))[0]
                for text in fields.texts_without_tags
            ]
            sources = [str(guess["language"]) for guess in guesses]
        results = await finish_in_time(request, self._translate_all(sources, fields), self.limits.request_s)
        request.state.suspicious = sum(1 for result in results if result.suspicion)
        response: dict[str, list[Any]] = {"translatedText": [result.text for result in results]}
        if guesses:
            response["detectedLanguage"] = guesses
        if fields.alternatives:
            response["alternatives"] = [result.alternatives for result in results]
        if request.state.suspicious:
            response["suspicion"] = [result.suspicion for result in results]
        if fields.quality:
            response["quality"] = await asyncio.to_thread(lambda: [result.estimates() for result in results])
        if fields.alignment:
            response["alignment"] = [result.alignment for result in results]
        if isinstance(fields.q, list):
            return JSONResponse(response)
        return JSONResponse({name: values[0] for name, values in response.items()})

    async def _translate_all(self, sources: Sequence[str], fields: TranslationFields) -> list[Translation]:
        """The translations in the order of the texts; texts of one source language are one job of the queue."""
        translate = translate_html if fields.text_format == "html" else translate_plain
        pairs = {source: self.pairs.get(source, fields.target) for source in dict.fromkeys(sources)}
        chars = sum(len(text) for text, source in zip(fields.texts_without_tags, sources, strict=True) if pairs[source])
        self.queue.require_room(chars // 4)  # about as many tokens, of all languages
        results = dict[int, Translation]()
        is_admitted = False
        for source, pair in pairs.items():
            numbers = [number for number, language in enumerate(sources) if language == source]
            batch = [fields.texts[number] for number in numbers]
            translations = list(map(Translation, batch))
            if pair:
                translations = await translate(self.queue, pair, batch, fields.alternatives, is_admitted)
                is_admitted = True
                if fields.alignment:
                    translations = await align(self.queue, pair, translations)
            results |= zip(numbers, translations, strict=True)
        return [results[number] for number in sorted(results)]

    async def detect(self, request: Request) -> Response:
        """POST /detect: q, api_key."""
        fields = await self._read_fields(request, DetectionFields)
        return JSONResponse(await asyncio.to_thread(self.pairs.detect, " ".join(fields.texts)))

    async def _read_fields(self, request: Request, kind: type[Fields]) -> Fields:
        """The fields of a JSON body; otherwise the fields of the URL and the form, as in LibreTranslate.

        Null values count as missing, and so do empty values other than q.

        Raises:
            HTTPException: 400 if the body is neither a JSON object nor a form, or its texts are above the limits; 403
                without a valid key.
        """
        body = await request.body()
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
            try:
                values = json.loads(body)
            except (ValueError, RecursionError):  # of json, or of the encoding
                raise HTTPException(400, "the body is not valid JSON") from None
            if not isinstance(values, dict):
                raise HTTPException(
                    400, 'expected a JSON object, such as {"q": "text", "source": "en", "target": "de"}'
                )
        else:
            async with request.form(max_files=0, max_fields=100) as form:
                values = {**form, **request.query_params}
            if body and not values:
                raise HTTPException(
                    400, "expected a body of the type application/json or application/x-www-form-urlencoded"
                )
        values = {name: value for name, value in values.items() if value is not None and (name == "q" or value != "")}
        if self.keys:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            sent_key = values.get("api_key") or (token.strip() if scheme.lower() == "bearer" else "")
            if not sent_key:
                raise HTTPException(403, "this server requires an API key: the parameter api_key")
            key = str(sent_key).encode("utf-8", "replace")
            if not any(secrets.compare_digest(key, valid_key.encode()) for valid_key in self.keys):
                raise HTTPException(403, "Invalid API key")
        fields = kind(**values)
        request.state.texts = len(fields.texts)
        request.state.chars = sum(map(len, fields.texts))
        for size, limit in ((request.state.texts, self.limits.texts), (request.state.chars, self.limits.chars)):
            if size > limit:
                raise HTTPException(400, f"Invalid request: request ({size}) exceeds text limit ({limit})")
        return fields


def http_server(app: Starlette, limits: Limits) -> uvicorn.Server:
    """The HTTP server; it responds to running requests before it stops."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=limits.idle_s,
        timeout_graceful_shutdown=round(limits.request_s) + 5,
    )
    return uvicorn.Server(config)


def run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve on a bound socket until SIGTERM, SIGINT or SIGHUP.

    Raises:
        KeyboardInterrupt: after a SIGTERM or SIGINT, as elsewhere in mtx.
    """
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, server.handle_exit)
    server.run([listener])
