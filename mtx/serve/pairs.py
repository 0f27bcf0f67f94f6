"""The language pairs that the server translates, each with its model: codes, names, and guesses of the language."""

from collections.abc import Iterable
from functools import partial

from mtx.data.language_detection import rank_languages
from mtx.data.languages import code_of, name_of
from mtx.decoding.translator import Translator
from mtx.documents.tagged_segments import translate_segments
from mtx.errors import UsageError


class Pair:
    """A translator and its functions for `TranslationQueue`, which batches what is submitted for the same function.

    Lines are submitted in the parts that the translator translates them in, so that none, however long, takes long.
    """

    def __init__(self, translator: Translator):
        self.translator = translator
        self.best = partial(translator.decode_parts, n_best=1)
        self.segments = partial(translate_segments, translator)

    def num_tokens(self, texts: Iterable[str]) -> list[int]:
        """How many tokens source texts have, at least one each."""
        return [len(ids) for ids in self.translator.tokenizer.encode(list(texts), num_threads=1)]


class Pairs:
    """The pairs by their languages, which are called as the models call them.

    Raises:
        UsageError: if two models translate the same pair.
    """

    def __init__(self, translators: Iterable[Translator]):
        self._pairs = dict[tuple[str, str], Pair]()
        for translator in translators:
            if (languages := (translator.src, translator.tgt)) in self._pairs:
                raise UsageError(f"two models translate {languages[0]} to {languages[1]}", "name one of them")
            self._pairs[languages] = Pair(translator)
        self._codes = list(dict.fromkeys(code for languages in self._pairs for code in languages))
        known = {name: code for code in reversed(self._codes) for name in (code_of(code), code)}
        self._known = {name.lower().replace("_", "-"): code for name, code in known.items()}

    @property
    def first(self) -> tuple[str, str]:
        """The languages of the first pair."""
        return next(iter(self._pairs))

    def get(self, source: str, target: str) -> Pair:
        """The pair of two languages; raises UsageError if there is none."""
        src = self._code("source", source)
        tgt = self._code("target", target)
        if (src, tgt) not in self._pairs:
            targets = ", ".join(self._targets(src)) or "nothing"
            raise UsageError(f"target: {src} is not translated to {tgt} here, only to {targets}")
        return self._pairs[src, tgt]

    def languages(self) -> list[dict[str, object]]:
        """The answer of /languages."""
        return [{"code": code, "name": name_of(code) or code, "targets": self._targets(code)} for code in self._codes]

    def detect(self, text: str, target: str | None = None) -> list[dict[str, object]]:
        """The answer of /detect: the likeliest language first, with confidences in per cent.

        Args:
            target: only languages that are translated to this one; raises UsageError if there are none.
        """
        codes = self._codes
        if target is not None:
            tgt = self._code("target", target)
            codes = [src for src, other in self._pairs if other == tgt]
            if not codes:
                raise UsageError(f"target: nothing is translated to {tgt} here")
        ranked = rank_languages(text, self._codes)
        return [{"confidence": confidence, "language": code} for code, confidence in ranked if code in codes]

    def _targets(self, src: str) -> list[str]:
        return [tgt for other, tgt in self._pairs if other == src]

    def _code(self, field: str, language: str) -> str:
        """The code that a client means, also with another region (en for en-GB) or case."""
        name = language.lower().replace("_", "-")
        code = self._known.get(name) or self._known.get(name.partition("-")[0])
        if code is None:
            raise UsageError(f"{field}: {language[:40]} is not supported, expected one of {', '.join(self._codes)}")
        return code
