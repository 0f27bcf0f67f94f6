"""Translators of tiny models, and what the engines of tests have in common."""

import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from mtx.data.tokenizer import Tokenizer
from mtx.decoding.options import Attention, Candidate, EngineName, Placement, SearchOptions
from mtx.decoding.torch_engine import TorchEngine
from mtx.decoding.translator import Translator
from mtx.model.translation_model import TranslationModel


def info(max_tokens: int) -> dict[str, Any]:
    """That of a model which leaves lines whole, unless it is asked to split them."""
    return {"src": "src", "tgt": "tgt", "max_tokens": max_tokens, "multi_sentence_share": 1.0}


def torch_translator(
    model: TranslationModel,
    tokenizer: Tokenizer,
    max_tokens: int,
    options: SearchOptions | None = None,
    placement: Placement | None = None,
) -> Translator:
    """A translator with a model in memory."""
    return Translator(TorchEngine([model], tokenizer, placement), tokenizer, info(max_tokens), options)


def search(
    translator: Translator, sources: Sequence[list[int]], prefixes: Sequence[list[int]] | None = None
) -> list[list[Candidate]]:
    """What the engine of a translator finds."""
    return translator.engine.search(sources, prefixes or [[]] * len(sources), translator.options)


class FakeTranslator(Translator):
    """A translator that is its own engine, and by default does not search."""

    name: ClassVar[EngineName] = "torch"
    num_tgt_positions = sys.maxsize
    num_calls = 1

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, options: SearchOptions | None = None):
        super().__init__(self, tokenizer, info(max_tokens), options)

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        raise NotImplementedError

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        raise NotImplementedError
