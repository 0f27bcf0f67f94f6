"""The language pairs that the server translates, each with its model: codes, names, and guesses of the language."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from mtx.data.language_guess import rank_languages
from mtx.data.languages import code_of, name_of
from mtx.decoding.text_translator import TextTranslator
from mtx.documents.translate import Alignment, align, translate_segments
from mtx.errors import UsageError


class Pair:
    """A translator and its functions for `TranslationQueue`, which batches what is submitted for the same function.

    Lines are submitted in the parts that the translator translates them in, so that none, however long, takes long.
    """

    def __init__(self, translator: TextTranslator):
        self.src, self.tgt = translator.src, translator.tgt
        self.split, self.parts, self.join = translator.split, translator.decode_parts, translator.join_parts
        self.best = partial(translator.decode_parts, n_best=1)
        self.segments = partial(translate_segments, translator)
        self.alignments: partial[list[Alignment]] = partial(align, translator)
        self._tokenizer = translator.tokenizer

    def num_tokens(self, texts: Iterable[str]) -> list[int]:
        """How many tokens source texts have, at least one each."""
        return [len(ids) for ids in self._tokenizer.encode(list(texts), num_threads=1)]


class Pairs:
    """The pairs by their languages.

    Attributes:
        codes: the languages, as the models call them, in the order of the models.

    Raises:
        UsageError: if two models translate the same pair.
    """

    def __init__(self, translators: Iterable[TextTranslator]):
        self._pairs = dict[tuple[str, str], Pair]()
        for pair in map(Pair, translators):
            if (pair.src, pair.tgt) in self._pairs:
                raise UsageError(f"two models translate {pair.src} to {pair.tgt}", "name one of them")
            self._pairs[pair.src, pair.tgt] = pair
        self.codes = list(dict.fromkeys(code for languages in self._pairs for code in languages))
        self._known = {name.lower(): code for code in reversed(self.codes) for name in (code_of(code), code)}

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._pairs.values())

    def get(self, src: str, tgt: str) -> Pair | None:
        """The pair of two languages of `codes`."""
        return self._pairs.get((src, tgt))

    def code(self, language: str) -> str | None:
        """The language of `codes` that a client means, also with another region (en for en-GB) or case."""
        name = language.lower().replace("_", "-")
        return self._known.get(language.lower()) or self._known.get(name) or self._known.get(name.partition("-")[0])

    def targets(self, src: str) -> list[str]:
        """The languages that a language is translated to."""
        return [tgt for other, tgt in self._pairs if other == src]

    def sources(self, tgt: str) -> list[str]:
        """The languages that are translated to a language."""
        return [src for src, other in self._pairs if other == tgt]

    def languages(self) -> list[dict[str, object]]:
        """The answer of /languages."""
        return [{"code": code, "name": name_of(code) or code, "targets": self.targets(code)} for code in self.codes]

    def detect(self, text: str, languages: Sequence[str] | None = None) -> list[dict[str, object]]:
        """The answer of /detect: `languages` (all by default), the most likely first, with confidences in per cent."""
        ranked = rank_languages(text, self.codes)
        return [
            {"confidence": confidence, "language": code}
            for code, confidence in ranked
            if languages is None or code in languages
        ]
