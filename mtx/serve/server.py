"""`mtx serve`: the application, which has LibreTranslate's interface, /align and /metrics, and what runs it.

Flow: `Guard` -> a route -> `TranslationQueue` -> JSON.
"""

import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mtx.errors import DataError
from mtx.serve import page
from mtx.serve.fields import Aligned, Detected, RequestError, Translated, check_fields, read_fields
from mtx.serve.guard import Guard, finish_in_time
from mtx.serve.limits import Limits
from mtx.serve.metrics import Metrics
from mtx.serve.pairs import Pair, Pairs
from mtx.serve.queue import QueueFullError, TranslationQueue
from mtx.serve.translation import Translation, align, translate_html, translate_plain, without_tags

_AUTO = "auto"
_FORMATS = ("text", "html")
_RETRY_S = 5
_STOPPING_S = 5  # after SIGTERM, in addition to the time that a request may take


class Server:
    """The routes. One thread, that of the event loop, runs them all.

    Args:
        keys: one of them must come with a request that translates, or asks for metrics; none if nothing must come.
    """

    def __init__(self, pairs: Pairs, queue: TranslationQueue, keys: Sequence[str], limits: Limits):
        self._pairs, self._queue, self._keys, self._limits = pairs, queue, keys, limits
        self._metrics = Metrics(queue)
        self._page, self._policy = page.render(pairs.languages(), self._settings())

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            self._route("/", self.index),
            self._route("/translate", self.translate, "POST"),
            self._route("/detect", self.detect, "POST"),
            self._route("/align", self.align, "POST"),
            self._route("/languages", self.languages),
            self._route("/frontend/settings", self.settings),
            self._route("/health", self.health),
            self._route("/metrics", self.metrics),
        ]
        paths = frozenset(route.path for route in routes)
        anyone = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "POST"], allow_headers=["*"])
        guard = Middleware(Guard, limits=self._limits, metrics=self._metrics, paths=paths)
        handlers: Any = {
            HTTPException: _http_error, RequestError: _request_error, QueueFullError: _queue_full,
            ClientDisconnect: _disconnected,
        }  # fmt: skip
        app = Starlette(routes=routes, middleware=[anyone, guard], exception_handlers=handlers)
        app.router.redirect_slashes = False  # its redirects name the host that the request names
        return app

    def _route(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
        return Route(path, endpoint, methods=[method])

    async def translate(self, request: Request) -> Response:
        """POST /translate: q (a text or a list), source, target, format, alternatives, api_key."""
        sent = await self._authorized_fields(request)
        fields = check_fields(Translated, sent)
        texts, format = self._limited(fields.q), fields.format
        if format not in _FORMATS:
            raise RequestError(400, f"format: {format[:40]} is not supported, expected {' or '.join(_FORMATS)}")
        guesses = [self._guess(text, fields.target, format) for text in texts] if fields.source == _AUTO else []
        sources = [str(guess["language"]) for guess in guesses] if guesses else [fields.source] * len(texts)
        request.state.chars, request.state.texts = sum(map(len, texts)), len(texts)
        work = self._translate_all(texts, sources, fields.target, format, fields.alternatives)
        results = await finish_in_time(request, work, self._limits.request_s)
        return JSONResponse(self._answer(results, guesses, isinstance(sent["q"], list), fields.alternatives))

    def _limited(self, texts: list[str]) -> list[str]:
        """Some texts, if they are not more than the limits allow."""
        most, most_chars, num_chars = self._limits.texts, self._limits.chars, sum(map(len, texts))
        if len(texts) > most:
            raise RequestError(400, f"q has {len(texts):,} texts, more than the limit of {most:,}")
        if num_chars > most_chars:
            raise RequestError(400, f"q has {num_chars:,} characters, more than the limit of {most_chars:,}")
        return texts

    async def _translate_all(
        self, texts: Sequence[str], sources: Sequence[str], target: str, format: str, num_alternatives: int
    ) -> list[Translation]:
        """The translations in the order of the texts; those of one source language are one job of the queue."""
        results = dict[int, Translation]()
        for source in dict.fromkeys(sources):
            numbers = [number for number, other in enumerate(sources) if other == source]
            pair, some = self._pair(source, target), [texts[number] for number in numbers]
            self._metrics.texts.labels(pair.src, pair.tgt).inc(len(some))
            self._metrics.characters.labels(pair.src, pair.tgt).inc(sum(map(len, some)))
            try:
                translated = (
                    await translate_html(self._queue, pair, some, self._limits.segment_tokens)
                    if format == "html"
                    else await translate_plain(self._queue, pair, some, num_alternatives)
                )
            except DataError as error:
                raise RequestError(400, str(error)) from None
            num_suspicious = sum(bool(each.suspicion) for each in translated)
            self._metrics.suspicious.labels(pair.src, pair.tgt).inc(num_suspicious)
            results |= dict(zip(numbers, translated, strict=True))
        return [results[number] for number in range(len(texts))]

    def _answer(
        self, results: Sequence[Translation], guesses: Sequence[object], is_list: bool, num_alternatives: int
    ) -> dict[str, Any]:
        answer: dict[str, list[Any]] = {"translatedText": [result.text for result in results]}
        if guesses:
            answer["detectedLanguage"] = list(guesses)
        if num_alternatives:
            answer["alternatives"] = [result.alternatives for result in results]
        if any(result.suspicion for result in results):
            answer["suspicion"] = [result.suspicion for result in results]
        return answer if is_list else {name: values[0] for name, values in answer.items()}

    async def detect(self, request: Request) -> Response:
        """POST /detect: q, api_key."""
        fields = check_fields(Detected, await self._authorized_fields(request))
        return JSONResponse(self._pairs.detect(" ".join(self._limited(fields.q))))

    async def align(self, request: Request) -> Response:
        """POST /align: q, translation, source, target, api_key; for each line its words and which belong together."""
        fields = check_fields(Aligned, await self._authorized_fields(request))
        self._limited([fields.q])
        self._limited([fields.translation])
        work = align(self._queue, self._pair(fields.source, fields.target), fields.q, fields.translation)
        try:
            lines = await finish_in_time(request, work, self._limits.request_s)
        except ValueError:
            raise RequestError(400, "translation: expected as many lines as q has") from None
        return JSONResponse({"lines": list(map(asdict, lines))})

    async def index(self, request: Request) -> Response:
        """GET /: the page."""
        return Response(self._page, media_type="text/html", headers={"content-security-policy": self._policy})

    async def languages(self, request: Request) -> Response:
        """GET /languages."""
        return JSONResponse(self._pairs.languages())

    async def settings(self, request: Request) -> Response:
        """GET /frontend/settings."""
        return JSONResponse(self._settings())

    async def health(self, request: Request) -> Response:
        """GET /health."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics, with the header Authorization: Bearer KEY if keys are required."""
        self._require_key(request, {})
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _settings(self) -> dict[str, Any]:
        first = next(iter(self._pairs))
        names = {language["code"]: language["name"] for language in self._pairs.languages()}
        sides = {"source": first.src, "target": first.tgt}
        return {
            "apiKeys": bool(self._keys), "keyRequired": bool(self._keys), "charLimit": self._limits.chars,
            "filesTranslation": False, "supportedFilesFormat": [], "suggestions": False,
            "frontendTimeout": 500, "language": {side: {"code": c, "name": names[c]} for side, c in sides.items()},
        }  # fmt: skip

    async def _authorized_fields(self, request: Request) -> dict[str, Any]:
        fields = await read_fields(request)
        self._require_key(request, fields)
        return fields

    def _require_key(self, request: Request, fields: dict[str, Any]) -> None:
        if not self._keys:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        sent = fields.get("api_key") or (token.strip() if scheme.lower() == "bearer" else "")
        given = str(sent).encode("utf-8", "replace")
        if not given:
            raise RequestError(403, "this server needs an API key: the parameter api_key")
        if sum(secrets.compare_digest(given, key.encode()) for key in self._keys) == 0:  # all, so in equal time
            raise RequestError(403, "invalid API key")

    def _guess(self, text: str, target: str, format: str) -> dict[str, object]:
        """The likeliest language of a text among those that are translated to the target."""
        code = self._code("target", target)
        sources = self._pairs.sources(code)
        if not sources:
            raise RequestError(400, f"target: nothing is translated to {code} here")
        return self._pairs.detect(without_tags(text) if format == "html" else text, sources)[0]

    def _pair(self, source: str, target: str) -> Pair:
        src, tgt = self._code("source", source), self._code("target", target)
        pair = self._pairs.get(src, tgt)
        if pair is None:
            targets = ", ".join(self._pairs.targets(src)) or "nothing"
            raise RequestError(400, f"target: {src} is not translated to {tgt} here, only to {targets}")
        return pair

    def _code(self, name: str, language: str) -> str:
        code = self._pairs.code(language)
        if code is None:
            known = ", ".join(self._pairs.codes)
            raise RequestError(400, f"{name}: {language[:40]} is not supported, expected one of {known}")
        return code


async def _request_error(request: Request, error: RequestError) -> Response:
    headers = {"connection": "close"} if error.status == 413 else None  # the rest of the body may still come
    return JSONResponse({"error": error.text}, error.status, headers)


async def _disconnected(request: Request, error: ClientDisconnect) -> Response:
    """nginx's status of a request whose client has gone; nobody receives it."""
    return Response(status_code=499)


async def _http_error(request: Request, error: HTTPException) -> Response:
    """No such path, a wrong method, or a form that is none."""
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _queue_full(request: Request, error: QueueFullError) -> Response:
    text = "too much is waiting for translation; try again later"
    return JSONResponse({"error": text}, 503, headers={"retry-after": str(_RETRY_S)})


def http_server(app: Starlette, limits: Limits) -> uvicorn.Server:
    """The HTTP server, which answers the requests that have begun before it stops."""
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
        proxy_headers=False, limit_concurrency=limits.connections, timeout_keep_alive=limits.idle_s,
        timeout_graceful_shutdown=round(limits.request_s) + _STOPPING_S,
    )  # fmt: skip
    return uvicorn.Server(config)


def run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve on a bound socket until SIGTERM, SIGINT or SIGHUP.

    Raises:
        KeyboardInterrupt: after a SIGTERM or SIGINT, as they mean to mtx.
    """
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, server.handle_exit)
    server.run([listener])
