"""A translator without a model, and a server that translates with it."""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from mtx.config.schema import TokenizerConfig
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.decoding.options import Attention, SearchOptions
from mtx.decoding.translator import Hypothesis, Part, Translator
from mtx.serve.server import Limits, Server
from mtx.serve.translation import Pairs, TranslationQueue
from tests.translators import FakeTranslator


@functools.cache
def tokenizer() -> Tokenizer:
    return train_tokenizer(["a red dog", "A RED DOG"] * 50, TokenizerConfig(vocab_size=290), 1, [])


class Upper(FakeTranslator):
    """Translates into capitals; the other hypotheses have one and two exclamation marks. `fail` fails, `wait` waits.

    Attributes:
        calls: the parts of lines of each call.
        part_chars: most characters of a part.
        may_go_on: what `wait` waits for.
    """

    part_chars = 1000

    def __init__(self, src: str = "en", tgt: str = "de"):
        super().__init__(tokenizer(), 50, SearchOptions())
        self.directions = [(src, tgt)]
        self._languages = src, tgt
        self.calls, self.may_go_on, self.has_begun = list[list[str]](), threading.Event(), threading.Event()

    def split(self, lines: Sequence[str], *others: Any) -> list[list[Part]]:
        return [[each for part in parts for each in self._chunks(part)] for parts in super().split(lines, *others)]

    def _chunks(self, part: Part) -> list[Part]:
        if part.fixed_translation:
            return [part]
        starts = range(0, len(part.text), self.part_chars)
        chunks = [(start > 0, part.text[start : start + self.part_chars]) for start in starts]
        return [part._replace(ids=list(text.encode()), text=text, follows_sentence=follows) for follows, text in chunks]

    def decode_parts(self, parts: Sequence[Part], *others: Any, **named: Any) -> list[list[Hypothesis]]:
        read = [part for part in parts if part.fixed_translation is None]
        lines = [bytes(part.ids).decode() for part in read]
        self.calls.append(lines)
        if "wait" in lines:
            self.has_begun.set()
            self.may_go_on.wait(10)
        if "fail" in lines:
            raise ValueError(f"cannot translate {lines}")
        texts = [line.upper() + "!" * n for line in lines for n in range(3)]
        pieces = map(self.tokenizer.pieces, self.tokenizer.encode(texts, target=True))
        flat = [Hypothesis([text], 0.0, names) for text, names in zip(texts, pieces, strict=True)]
        rest = iter(self._put_back(read, [flat[row : row + 3] for row in range(0, len(flat), 3)]))
        return [
            [Hypothesis(part.fixed_translation, 0.0, [])] if part.fixed_translation else next(rest) for part in parts
        ]

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        return [np.eye(len(tgt), len(src), dtype=np.float32) for src, tgt in zip(sources, targets, strict=True)]


class Sure(Upper):
    """Its hypotheses know their quality by their length, and need a look if they are short."""

    def join_parts(self, *found: Any) -> list[list[Hypothesis]]:
        return [[Sized(**vars(each)) for each in of_line] for of_line in super().join_parts(*found)]


class Sized(Hypothesis):
    quality = property(lambda self: len(self.text) or None)  # type: ignore[assignment]
    advice = property(lambda self: ("use" if len(self.text) > 1 else "look") if self.text else None)  # type: ignore[assignment]


@contextlib.contextmanager
def served(*translators: Translator, keys: Sequence[str] = (), **limits: Any) -> Iterator[TestClient]:
    """A client of a server with these translators (one from en to de by default) and limits."""
    values = Limits(**limits)
    with TranslationQueue(values.batch_tokens, values.waiting_s) as queue:
        for translator in translators:
            vars(translator)["queue"] = queue
        app = Server(Pairs(translators or [Upper()]), queue, keys, values).app()
        yield TestClient(app, raise_server_exceptions=False)
