"""What `mtx translate --glossary` tells at its end: how many terms the translations use."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtx.files.sizes import counted

if TYPE_CHECKING:
    from mtx.decoding.text_translator import TextTranslator

logger = logging.getLogger("mtx")

_SHOWN_CHARS, _SHOWN_LINES = 80, 10


class TermCount:
    """Counts the terms of the glossary that translations use; without a glossary it does nothing."""

    def __init__(self, translator: "TextTranslator"):
        self._translator, self._glossary = translator, translator.glossary
        self._num_terms = self._num_used = 0
        self._missed = list[tuple[str, str]]()  # lines, and their terms that are not used

    def add(self, sources: Sequence[str], translations: Sequence[str]) -> None:
        """Count the terms of these lines."""
        if self._glossary is None:
            return
        from mtx.data.glossary import Glossary, num_used
        from mtx.data.letter_case import in_case
        from mtx.evaluation.term_use import count_used

        for source, translation in zip(sources, translations, strict=True):
            usual, case = self._translator.usual_case(source)
            terms = self._glossary
            if case is not None:  # the translation has it too
                terms = Glossary({term: in_case(tgt, case, self._translator.tgt) for term, tgt in terms.terms.items()})
            in_line, used = count_used(terms, [usual], [translation])
            self._num_terms += in_line
            self._num_used += used
            if used < in_line:
                expected = [match.tgt for match in terms.matches(usual)]
                missing = [term for term in expected if not num_used([term], translation)]
                self._missed.append((source[:_SHOWN_CHARS], ", ".join(missing or expected)))

    def tell(self) -> None:
        """Log the counts, with the first lines that lack a term."""
        if self._glossary is None:
            return
        counts = f"{self._num_used:,}", counted(self._num_terms, "term")
        if not self._missed:
            logger.info("%s of %s of the glossary used", *counts)
            return
        logger.warning("%s of %s of the glossary used; missing are:", *counts)
        for line, terms in self._missed[:_SHOWN_LINES]:
            logger.info("  %s in the translation of: %s", terms, line)
        if (left := len(self._missed) - _SHOWN_LINES) > 0:
            logger.info("  and more in %s", counted(left, "line"))
