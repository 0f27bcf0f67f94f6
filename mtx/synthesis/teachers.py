"""Teachers, whose translations become training text: a model of mtx, or an external one: a server or a program.

Flow: a model, an address or a command -> `Teacher` -> `translate`, which gets the blocks of a job that resumes from
`synthetic_text.write_pairs`. A server has the interface of LibreTranslate, as `mtx serve` has, or that of OpenAI, with
a model that chats. What such a model adds to a translation is not removed: `write_pairs` drops the pair.
"""

import contextlib
import ipaddress
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from multiprocessing.pool import ThreadPool
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from mtx.data.languages import name_of
from mtx.data.markup import clean_text
from mtx.decoding.translator import Translator
from mtx.errors import MtxError, UsageError, first_line
from mtx.formatting import counted
from mtx.interop.download import is_temporary
from mtx.storage import durable
from mtx.storage.programs import find_program, run_on_lines
from mtx.storage.resumable import Blocks, MisalignedError
from mtx.storage.text_files import printable, replace_surrogates

logger = logging.getLogger(__name__)

KEY = "MTX_TEACHER_KEY"  # the environment variable with the key of the server
_RESUMES = "the same command resumes"
_UNKEPT = "its translations may belong to other lines, so none is kept"
_NUM_EXAMPLES = 3
_NUM_REQUESTS = 8  # at a time
_REQUEST_LINES = 32
_TIMEOUT_S = 600
_MAX_TRIES = 8  # of a request, in about two minutes
_TRIES_BEFORE_WARNING = 3
_LONGEST_WAIT_S = 60.0
_KEY_FORM = re.compile(r"[!#-\[\]-~]*")  # those that JSON, in which a server may repeat it, does not escape
_PROMPT = "Translate the following text from {src} to {tgt}. Answer with the translation only, in one line.\n\n{text}"


class Teacher:
    """Translates text.

    Attributes:
        identity: what its translations depend on.
        block_lines: the most lines that a killed process loses.
        language: that of the translations, of which those in another language are dropped; empty: none is.
    """

    identity: durable.Json
    block_lines: int
    language: str

    def translate(self, blocks: Blocks) -> Iterator[list[str]]:
        """Yields the translations of each block of lines; an answer with line breaks is not a translation of its line.

        Raises:
            MtxError: the teacher fails.
            MisalignedError: it has more or fewer translations than lines.
        """
        raise NotImplementedError

    def shifted(self) -> MtxError:
        """The error for translations whose lengths fit other lines than their own."""
        return MtxError("the translations seem to be shifted against their lines")


class ModelTeacher(Teacher):
    """A model of mtx. For a line with a reference it gives the hypothesis nearest to that by chrF2."""

    block_lines = 1024
    language = ""

    def __init__(self, translator: Translator):
        self._translator = translator
        self.identity: durable.Json = {"search": repr(translator.options), "translator": translator.engine.name}

    def translate(self, blocks: Blocks) -> Iterator[list[str]]:
        """See `Teacher.translate`."""
        for block in blocks:
            lines = [line for line, *_ in block]
            if all(len(parts) == 1 for parts in block):
                yield self._translator.translate(lines)
                continue
            yield [
                nearest_by_chrf([hypothesis.text for hypothesis in ranked], *references)
                for ranked, (_, *references) in zip(self._translator.hypotheses(lines), block, strict=True)
            ]


def nearest_by_chrf(texts: Sequence[str], reference: str | None = None) -> str:
    """The text with the highest chrF2 against a reference; the first one of equal ones, or without a reference."""
    if reference is None:
        return texts[0]
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return max(texts, key=lambda text: metric.sentence_score(text, [reference]).score)


class ExternalTeacher(Teacher):
    """A teacher that is not an mtx model: a server or a program.

    Attributes:
        name: as it is shown.
        num_lines, seconds: of its translations so far, for the speed.
    """

    block_lines = 128  # they may have been paid for

    def __init__(self, name: str, identity: durable.Json, language: str):
        self.name = name
        self.identity = identity
        self.language = language
        self.num_lines = 0
        self.seconds = 0.0

    def announce(self, lines: Iterable[str]) -> None:
        """Says how much text goes where before any does; nothing for a program, which is the user's own."""

    def _record(self, lines: Sequence[str], translations: Sequence[str], started: float) -> None:
        """Record translations that took from `started` until now; the first ones are shown."""
        if not self.num_lines:
            logger.info("the first translations of %s:", self.name)
            for line, translation in islice(zip(lines, translations, strict=False), _NUM_EXAMPLES):
                logger.info("  %s -> %s", printable(line[:80]), printable(translation[:80]))
        self.num_lines += len(translations)
        self.seconds += time.monotonic() - started


class CommandTeacher(ExternalTeacher):
    """A program that reads all lines that are left, and writes a translation of each, at once or at its end."""

    def __init__(self, command: str, language: str):
        self._words = find_program(command)
        super().__init__(command, {"command": command}, language)

    def translate(self, blocks: Blocks) -> Iterator[list[str]]:
        """See `Teacher.translate`."""
        blocks_of_lines = [[_as_sent(line) for line, *_ in block] for block in blocks]
        if not blocks_of_lines:
            return
        num_sent = sum(map(len, blocks_of_lines))
        num_lines = 0
        started = time.monotonic()
        with run_on_lines(self.name, self._words, chain.from_iterable(blocks_of_lines)) as answers:
            for lines in blocks_of_lines:
                translations = list(islice(answers, len(lines)))
                num_lines += len(translations)
                if len(translations) < len(lines):
                    raise self._misaligned(num_sent, f"{num_lines:,}")
                self._record(lines, translations, started)
                started = time.monotonic()
                yield translations
            if next(answers, None) is not None:
                raise self._misaligned(num_sent, "more")

    def shifted(self) -> MtxError:
        """See `Teacher.shifted`; its earlier translations are of the same answer, and removed too."""
        return MisalignedError(str(super().shifted()), _UNKEPT)

    def _misaligned(self, num_sent: int, extent: str) -> MisalignedError:
        return MisalignedError(
            f"{self.name}: expected {counted(num_sent, 'line')}, one for each that it reads, got {extent}",
            _UNKEPT,
        )


class ServerTeacher(ExternalTeacher):
    """A server with the interface of LibreTranslate, or of OpenAI for an address with the name of a model.

    Args:
        address: such as http://127.0.0.1:5000, or https://HOST/v1#MODEL.
        src, tgt: the languages.

    Raises:
        UsageError: the address has a key in it, or text would cross a network in plain text.
    """

    def __init__(self, address: str, src: str, tgt: str):
        try:
            parts = urlsplit(address)
        except ValueError as error:
            raise UsageError(f"{address}: {first_line(error)}") from None
        self._url = address.partition("#")[0].rstrip("/")
        self._model = parts.fragment
        self._languages = (src, tgt)
        self._key = os.environ.get(KEY, "").strip()
        if not _KEY_FORM.fullmatch(self._key):
            raise UsageError(f"{KEY}: expected a key of ASCII characters without spaces, quotes and backslashes")
        if "@" in parts.netloc or parts.query:
            raise UsageError(
                "the address of a teacher must not contain a user, a password or a query", f"the key is read from {KEY}"
            )
        if not parts.hostname:
            raise UsageError(f"{address}: has no host", "https://HOST, or https://HOST/v1#MODEL")
        if parts.scheme == "http" and not _is_loopback(parts.hostname):
            raise UsageError(f"{address}: the text and the key would cross the network unencrypted", "https://HOST")
        identity = {"url": self._url, "direction": [src, tgt]}
        if self._model:
            identity |= {"model": self._model, "prompt": _PROMPT}
        super().__init__(address, identity, tgt)
        self._refusal: MtxError | None = None  # of the last line that the server has refused
        self._session = requests.Session()
        self._session.trust_env = parts.scheme == "https"  # a proxy of the environment is not on this machine
        self._session.auth = self._authorize
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=_NUM_REQUESTS))

    def announce(self, lines: Iterable[str]) -> None:
        """See `ExternalTeacher.announce`."""
        sizes = list(map(len, lines))
        logger.info(
            "up to %s, %s characters, go to %s; the terms of a service or a model may forbid training on its answers",
            counted(len(sizes), "line"),
            f"{sum(sizes):,}",
            urlsplit(self._url).netloc,
        )

    def translate(self, blocks: Blocks) -> Iterator[list[str]]:
        """See `Teacher.translate`; a few lines are translated and shown before the rest is sent."""
        request_lines = 1 if self._model else _REQUEST_LINES
        with ThreadPool(_NUM_REQUESTS) as pool:  # of daemon threads, which do not delay the end of a stopped command
            for block in blocks:
                lines = [_as_sent(line) for line, *_ in block]
                translations = list[str]()
                started = time.monotonic()
                if not self.num_lines:
                    translations = self._translate_first(lines[:_NUM_EXAMPLES])
                    self._record(lines, translations, started)
                    started = time.monotonic()
                starts = range(len(translations), len(lines), request_lines)
                parts = pool.imap(self._translate_lines, [lines[start : start + request_lines] for start in starts])
                translated = [text for part in parts for text in part]
                self._record((), translated, started)
                yield translations + translated

    def _translate_first(self, lines: Sequence[str]) -> list[str]:
        """The translations of the first lines; an error if the server refuses all of them."""
        translations = [self._translate_lines([line]) for line in lines]
        if self._refusal and not any(map(any, translations)):
            raise self._refusal
        return [text for part in translations for text in part]

    def _translate_lines(self, lines: Sequence[str]) -> list[str]:
        """The translations of some lines; an empty one of a line that the server refuses."""
        try:
            if self._model:
                return list(map(self._chat, lines))
            return self._translate_by_libretranslate(lines)
        except _RefusedError as error:
            if len(lines) > 1:
                middle = len(lines) // 2
                return self._translate_lines(lines[:middle]) + self._translate_lines(lines[middle:])
            self._refusal = error
            logger.warning("%s: a line is not translated: %s", error, printable(lines[0][:80]))
            return [""]

    def _translate_by_libretranslate(self, lines: Sequence[str]) -> list[str]:
        src, tgt = self._languages
        request = {"q": list(lines), "source": src, "target": tgt, "format": "text"}
        if self._key:
            request["api_key"] = self._key
        return self._ask("translate", request, lambda answer: answer["translatedText"], len(lines))

    def _chat(self, line: str) -> str:
        src, tgt = (name_of(language) or language for language in self._languages)
        message = {"role": "user", "content": _PROMPT.format(src=src, tgt=tgt, text=line)}
        request = {"model": self._model, "messages": [message], "temperature": 0}
        [translation] = self._ask("chat/completions", request, _read_completion, 1)
        return translation

    def _ask(self, path: str, request: durable.Json, read: Callable[[Any], object], num_translations: int) -> list[str]:
        """The translations that `read` takes from the JSON of an answer."""
        response = self._post(path, request)
        text = " ".join(response.content[:2000].decode(errors="replace").split())
        text = text.replace(self._key or "\n", "...") or response.headers.get("location", "")  # it may repeat the key
        reason = f"{self.name}: status {response.status_code}: {printable(text[:200])}"
        match response.status_code:
            case 200:
                with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
                    texts = read(durable.parse_json(response.content))
                    if isinstance(texts, list) and [*map(type, texts)] == [str] * num_translations:
                        return [replace_surrogates(text).strip() for text in texts]
                expected = counted(num_translations, "translation")
                raise MtxError(f"{self.name}: expected {expected}, got {printable(text[:200]) or 'nothing'}", _RESUMES)
            case 400 | 413 | 422:
                raise _RefusedError(reason, _RESUMES)
            case 401 | 403:
                raise MtxError(reason, f"the key of the server is in the environment variable {KEY}")
            case 404 | 405:
                raise MtxError(reason, "http://HOST for LibreTranslate's interface, http://HOST/v1#MODEL for OpenAI's")
        raise MtxError(reason, _RESUMES)

    def _post(self, path: str, request: durable.Json) -> requests.Response:
        """The response to a request, which is repeated while the server is busy, or has gone away for a while."""
        for number in range(1, _MAX_TRIES + 1):
            try:
                response = self._session.post(
                    f"{self._url}/{path}", json=request, timeout=_TIMEOUT_S, allow_redirects=False
                )
                response.raise_for_status()
                return response
            except requests.RequestException as error:
                if error.response is not None and (number == _MAX_TRIES or not is_temporary(error)):
                    return error.response
                cause = getattr(error.args[0], "reason", error) if error.args else error  # of "Max retries exceeded"
                was_never_there = error.response is None and not self.num_lines
                if number == _MAX_TRIES or was_never_there or not is_temporary(error):
                    raise MtxError(f"{self.name}: {first_line(cause)}", _RESUMES) from None
                wait_s = 2.0 ** (number - 1)
                if error.response is not None:
                    retry_after = error.response.headers.get("retry-after", "")
                    wait_s = float(retry_after) if retry_after.isdecimal() else wait_s
                wait_s = min(_LONGEST_WAIT_S, wait_s)
                if number == _TRIES_BEFORE_WARNING:
                    logger.warning("%s: %s; trying again", self.name, first_line(cause))
                time.sleep(wait_s)
        raise AssertionError("unreachable")

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the key; without a function for it, requests would send a password of ~/.netrc."""
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request


class _RefusedError(MtxError):
    """The server refuses a request for its text, such as one that is too long for it."""


def _read_completion(answer: Any) -> object:
    """The text of OpenAI's answer as a list; without a refusal, which is null, and without a text that was cut."""
    choice = answer["choices"][0]
    is_cut = choice.get("finish_reason") == "length"
    return ["" if is_cut else choice["message"]["content"] or ""]


def _as_sent(line: str) -> str:
    """The line on one line. A full stop replaces an empty line, which some teachers skip; its pair is dropped."""
    return clean_text(line) or "."


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
