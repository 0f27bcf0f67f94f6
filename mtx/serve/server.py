"""`mtx serve`: the application, which has LibreTranslate's interface, and what runs it.

Flow: `Guard` -> a route -> `TranslationQueue` -> JSON.
"""

import base64
import hashlib
import json
import re
import secrets
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from jinja2 import Template
from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from mtx.serve.guard import Guard, Limits, answer, finish_in_time
from mtx.serve.translation import Pairs, Translation, TranslationQueue, translate_html, translate_plain
from mtx.storage.text_files import replace_surrogates

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_MAX_FIELDS = 100
_TAG = re.compile("<[^<>]*>")  # roughly: enough to guess the language of what is around
_STOPPING_S = 5  # after SIGTERM, in addition to the time that a request may take


def _without_surrogates(value: object) -> object:
    return replace_surrogates(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_without_surrogates)]


class Detected(BaseModel):
    """The fields of /detect."""

    q: Text | Annotated[list[Text], Field(fail_fast=True)]

    @property
    def texts(self) -> list[str]:
        """The texts, also of a single one."""
        return [self.q] if isinstance(self.q, str) else self.q


class Translated(Detected):
    """The fields of /translate."""

    source: Text
    target: Text
    format: Literal["text", "html"] = "text"
    alternatives: NonNegativeInt = 0


async def _read_fields(request: Request) -> dict[str, Any]:
    """The fields of a request's body, if that is JSON; otherwise of its address and of its form, as in LibreTranslate.

    Raises:
        HTTPException: 400 if there is no field, or the body is neither a JSON object nor a form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        async with request.form(max_files=0, max_fields=_MAX_FIELDS) as form:
            return {**form, **request.query_params}
    if not kind and request.query_params:
        return dict(request.query_params)
    if kind != "application/json":
        raise HTTPException(400, f"expected a body of the type application/json or {_FORMS[0]}")
    try:
        fields = json.loads(await request.body())
    except (ValueError, RecursionError):  # of json, or of the encoding
        raise HTTPException(400, "the body is not valid JSON") from None
    if not isinstance(fields, dict):
        raise HTTPException(400, 'expected a JSON object, such as {"q": "text", "source": "en", "target": "de"}')
    return fields


def render_page(languages: list[dict[str, object]], settings: dict[str, object]) -> tuple[str, str]:
    """The HTML of the page, one file with everything inside, and its policy: its script and its styles alone run.

    Names of languages come from models, and are not trusted.
    """
    template, style, script = (
        Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    text = Template(template).render(style=style, script=script, data={"languages": languages, "settings": settings})
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@dataclass(eq=False)
class Server:
    """The routes. One thread, that of the event loop, runs them all.

    Args:
        keys: one of them must come with a request that translates; none if nothing must come.
    """

    pairs: Pairs
    queue: TranslationQueue
    keys: Sequence[str]
    limits: Limits

    def app(self) -> Starlette:
        """The ASGI application."""
        languages, settings = self.pairs.languages(), self._settings()
        text, policy = render_page(languages, settings)
        fixed = {
            "/": HTMLResponse(text, headers={"content-security-policy": policy}),
            "/languages": JSONResponse(languages),
            "/frontend/settings": JSONResponse(settings),
            "/health": JSONResponse({"status": "ok"}),
        }
        posted = {"/translate": self.translate, "/detect": self.detect}
        routes = [
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posted.items()),
            *(Route(path, response, methods=["GET"]) for path, response in fixed.items()),
        ]
        paths = frozenset(route.path for route in routes)
        anyone = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "POST"], allow_headers=["*"])
        guard = Middleware(Guard, limits=self.limits, paths=paths)
        app = Starlette(routes=routes, middleware=[anyone, guard], exception_handlers={HTTPException: answer})
        app.router.redirect_slashes = False  # its redirects name the host that the request names
        return app

    async def translate(self, request: Request) -> Response:
        """POST /translate: q (a text or a list), source, target, format, alternatives, api_key."""
        fields = Translated(**await self._authorized_fields(request))
        texts = self._limited(fields.texts)
        request.state.chars = sum(map(len, texts))
        request.state.texts = len(texts)
        sources, guesses = [fields.source] * len(texts), []
        if fields.source == "auto":
            bare = [_TAG.sub(" ", text) for text in texts] if fields.format == "html" else texts
            guesses = [self.pairs.detect(text, fields.target)[0] for text in bare]
            sources = [str(guess["language"]) for guess in guesses]
        work = self._translate_all(texts, sources, fields)
        results = await finish_in_time(request, work, self.limits.request_s)
        request.state.suspicious = sum(bool(result.suspicion) for result in results)
        found: dict[str, list[Any]] = {"translatedText": [result.text for result in results]}
        if guesses:
            found["detectedLanguage"] = guesses
        if fields.alternatives:
            found["alternatives"] = [result.alternatives for result in results]
        if request.state.suspicious:
            found["suspicion"] = [result.suspicion for result in results]
        is_list = isinstance(fields.q, list)
        return JSONResponse(found if is_list else {name: values[0] for name, values in found.items()})

    def _limited(self, texts: list[str]) -> list[str]:
        """Some texts, if they are not more than the limits allow."""
        for number, most, what in (
            (len(texts), self.limits.texts, "texts"),
            (sum(map(len, texts)), self.limits.chars, "characters"),
        ):
            if number > most:
                raise HTTPException(400, f"q has {number:,} {what}, more than the limit of {most:,}")
        return texts

    async def _translate_all(
        self, texts: Sequence[str], sources: Sequence[str], fields: Translated
    ) -> list[Translation]:
        """The translations in the order of the texts; those of one source language are one job of the queue."""
        results = dict[int, Translation]()
        for source in dict.fromkeys(sources):
            numbers = [number for number, other in enumerate(sources) if other == source]
            pair, some = self.pairs.get(source, fields.target), [texts[number] for number in numbers]
            if fields.format == "html":
                translated = await translate_html(self.queue, pair, some, self.limits.segment_tokens)
            else:
                translated = await translate_plain(self.queue, pair, some, fields.alternatives)
            results |= dict(zip(numbers, translated, strict=True))
        return [results[number] for number in range(len(texts))]

    async def detect(self, request: Request) -> Response:
        """POST /detect: q, api_key."""
        fields = Detected(**await self._authorized_fields(request))
        return JSONResponse(self.pairs.detect(" ".join(self._limited(fields.texts))))

    def _settings(self) -> dict[str, object]:
        names = {language["code"]: language["name"] for language in self.pairs.languages()}
        sides = zip(("source", "target"), self.pairs.first, strict=True)
        return {
            "apiKeys": bool(self.keys),
            "keyRequired": bool(self.keys),
            "charLimit": self.limits.chars,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "suggestions": False,
            "frontendTimeout": 500,
            "language": {side: {"code": code, "name": names[code]} for side, code in sides},
        }

    async def _authorized_fields(self, request: Request) -> dict[str, Any]:
        fields = await _read_fields(request)
        if not self.keys:
            return fields
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        sent = fields.get("api_key") or (token.strip() if scheme.lower() == "bearer" else "")
        given = str(sent).encode("utf-8", "replace")
        if not given:
            raise HTTPException(403, "this server needs an API key: the parameter api_key")
        if sum(secrets.compare_digest(given, key.encode()) for key in self.keys) == 0:  # all, so in equal time
            raise HTTPException(403, "invalid API key")
        return fields


def http_server(app: Starlette, limits: Limits) -> uvicorn.Server:
    """The HTTP server, which answers the requests that have begun before it stops."""
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
        timeout_graceful_shutdown=round(limits.request_s) + _STOPPING_S,
    )
    return uvicorn.Server(config)


def run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve on a bound socket until SIGTERM, SIGINT or SIGHUP.

    Raises:
        KeyboardInterrupt: after a SIGTERM or SIGINT, as they mean to mtx.
    """
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, server.handle_exit)
    server.run([listener])
