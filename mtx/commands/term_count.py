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
        self._missed = list[str]()

    def add(self, sources: Sequence[str], translations: Sequence[str]) -> None:
        """Count the terms of these lines."""
        if self._glossary is None:
            return
        from mtx.data.glossary import Glossary
        from mtx.data.letter_case import in_case
        from mtx.evaluation.term_use import count_used

        for source, translation in zip(sources, translations, strict=True):
            usual, case = self._translator.usual_case(source)
            terms = self._glossary
            if case is not None:  # the translation has it too
                terms = Glossary({term: in_case(tgt, case, self._translator.tgt) for term, tgt in terms.terms.items()})
            num_terms, num_used = count_used(terms, [usual], [translation])
            self._num_terms += num_terms
            self._num_used += num_used
            if num_used < num_terms:
                self._missed.append(source[:_SHOWN_CHARS])

    def tell(self) -> None:
        """Log the counts, with the first lines that lack a term."""
        if self._glossary is not None:
            shown = "".join(f"\n  {line}" for line in self._missed[:_SHOWN_LINES])
            more = f"\n  and {left:,} more" if (left := len(self._missed) - _SHOWN_LINES) > 0 else ""
            missed = f"; some are missing in the translation of:{shown}{more}" if self._missed else ""
            log = logger.warning if self._missed else logger.info
            log("%s of %s of the glossary used%s", f"{self._num_used:,}", counted(self._num_terms, "term"), missed)
