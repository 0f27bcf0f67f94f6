"""Pairs of a file whose units name their languages: a translation memory, a bilingual file, a message catalogue.

`translation_memories` parses the formats into units, each with a text in several languages. This module finds source
and target in each, whatever their order and region: en-GB serves en. A unit without one of them is skipped and
counted. Flow: `Unit` -> `PairBlock`.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from langcodes import Language
from langcodes.tag_parser import LanguageTagError

from mtx.data.languages import Languages, tag_of
from mtx.data.markup import accelerator
from mtx.data.tables import BLOCK_PAIRS, PLAIN_NAMES, Columns, ItemReader, PairBlock, PairGroup
from mtx.errors import DataError, UsageError
from mtx.storage.text_files import printable

NO_TRANSLATION = "not translated"
UNKNOWN = ""  # an unnamed language
UNREAD_DATE = 2  # of a date in another form, which is counted; `PairBlock.dates` are otherwise 1 or much greater
_DATE = re.compile(r"(?:19[7-9]|20\d)\d(?:\d{4}(?:T\d{6}Z?)?|-\d\d-\d\d(?:[T ].+)?)")
_MACROLANGUAGES = {"nb": "no", "cmn": "zh", "arb": "ar", "pes": "fa", "zsm": "ms"}  # the usual form


@dataclass(slots=True)
class Variant:
    """The text of a unit in one language.

    Attributes:
        date: grows with the time of its last change, see `date_of`; 0 if unknown.
    """

    language: str
    text: str
    date: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence in several languages, and the line of the file at which it begins.

    Attributes:
        src_language: the source language, if the file names it separately, or its format implies it.
        problem: what its elements lack, if it has no pair; empty if it is only not translated.
    """

    line: int
    variants: list[Variant]
    src_language: str = field(default=UNKNOWN, compare=False)
    problem: str = field(default="", compare=False)


@dataclass(frozen=True)
class BilingualReader(ItemReader):
    """A `Reader` of files whose units name their languages. A unit with several translations gives several pairs.

    Attributes:
        items: reads the units of a file.
    """

    items: Callable[[Path], Iterator[Unit]]

    def pairs(self, path: Path, units: Iterator[Unit], languages: Languages, columns: Columns) -> Iterator[PairBlock]:
        """The pairs of the units of a file. Raises DataError also if no unit has both languages."""
        present = Counter[str]()
        has_pairs = False
        problem = ""
        while block := list(itertools.islice(units, BLOCK_PAIRS)):
            rows = list[tuple[int, str, str, int]]()
            skipped = dict[str, PairGroup]()
            for unit in block:
                present.update(variant.language for variant in unit.variants)
                src, tgt = _sides(unit, languages, columns)
                if len(src) * len(tgt) > 1000:  # no real unit has that many pairs
                    raise DataError(f"{path}:{unit.line}: a unit has {len(src)} sources and {len(tgt)} translations")
                for source, target in itertools.product(src, tgt):
                    src_text = _without_accelerator(source.text)
                    tgt_text = _without_accelerator(target.text)
                    rows.append((unit.line, src_text, tgt_text, max(source.date, target.date, 1)))
                if not (src and tgt):
                    texts = ["".join(variant.text for variant in side[:1]) for side in (src, tgt)]
                    if unit.problem and not problem:
                        problem = f"{path}:{unit.line}: {unit.problem}"
                    skipped.setdefault(
                        unit.problem or NO_TRANSLATION, PairGroup(0, unit.line, texts[0], texts[1])
                    ).count += 1
            if rows:
                has_pairs = True
            lines, src_texts, tgt_texts, dates = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
            yield PairBlock(lines, src_texts, tgt_texts, dates, skipped)
        names = list(filter(None, present))
        lacks_one = languages != PLAIN_NAMES and any(
            all(match_rank(name, language) is None for name in names) for language in languages
        )
        if problem and not has_pairs and not (names and lacks_one):
            raise DataError(problem)
        if not present:
            raise DataError(f"{path}: no units")
        if not has_pairs:
            counts = ", ".join(f"{name or 'unnamed'} ({count:,})" for name, count in present.most_common())
            raise DataError(f"{path}: no unit is in both {' and '.join(languages)}; it has {printable(counts[:100])}")


def require_languages(path: Path, document_languages: Languages, languages: Languages) -> None:
    """Refuse a document in other languages than the model's, if both name their languages.

    Raises:
        UsageError: with all four languages, if they differ.
    """
    for name, language in zip(document_languages, languages, strict=True):
        if name and language not in PLAIN_NAMES and match_rank(name, language) is None:
            document = " to ".join(printable(word) or "?" for word in document_languages)
            raise UsageError(
                f"{path}: is {document}, the model translates {' to '.join(languages)}",
                "use a model of its direction; where the sources are keys, replace them by their targets first, and "
                f"set its target language to {languages[1]}",
            )


def join_lines(text: str) -> str:
    """A text without its line breaks, and the white space around them and at both ends."""
    return " ".join(filter(None, map(str.strip, text.split("\n"))))


def date_of(text: str) -> int:
    """A date of 1970 to 2099, such as 20250131T093000Z or 2025-01-31 10:30+0100, as a number that grows with time.

    Any other date is UNREAD_DATE; 0 without digits, as in templates of PO. Without a zone it is in UTC.
    """
    try:
        if _DATE.fullmatch(text):
            date = datetime.fromisoformat(text)
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
            return max(UNREAD_DATE + 1, int(seconds * 1e6))
    except ValueError:  # such as February 30
        pass
    return UNREAD_DATE if re.search(r"\d", text) else 0


def _sides(unit: Unit, languages: Languages, columns: Columns) -> tuple[list[Variant], list[Variant]]:
    """The variants of a unit that serve as source and as target; several if the unit has several translations.

    An unnamed text serves as any language, unless `columns` are the languages: then several directions are possible.
    """
    variants = [variant for variant in unit.variants if variant.text]
    src, tgt = (nearest(variants, language) for language in languages)
    unnamed = [variant for variant in variants if variant.language == UNKNOWN and columns != languages]
    if not src and not tgt:
        return unnamed[:1], unnamed[1:]
    return src or unnamed, tgt or unnamed


def _without_accelerator(text: str) -> str:
    mark = accelerator(text)
    return text.replace(mark[0], mark[1] or "") if mark else text


def nearest(variants: list[Variant], language: str) -> list[Variant]:
    """The variants that match a language best."""
    for rank in range(3):
        matching = [variant for variant in variants if match_rank(variant.language, language) == rank]
        if matching:
            return matching
    return []


@lru_cache
def match_rank(tag: str, language: str) -> int | None:
    """How well a language tag of a file matches a language; lower is better, None for no match.

    0: the same. 1: more specific, en-GB for en. 2: more general, en for en-GB.
    """
    language = tag_of(language)
    if tag.casefold() == language.casefold():
        return 0
    try:
        offered = Language.get(tag)
        expected = Language.get(language)
    except LanguageTagError:
        return None
    if len({_MACROLANGUAGES.get(code, code) for code in (str(offered.language), str(expected.language))}) > 1:
        return None
    if _covers(expected, offered):
        return 0 if (offered.script, offered.territory) == (expected.script, expected.territory) else 1
    return 2 if _covers(offered, expected) else None


def _covers(general: Language, special: Language) -> bool:
    """Whether the script and territory of a tag are given or implied by another tag."""
    full_tag = special.maximize()
    return general.script in (None, full_tag.script) and general.territory in (None, full_tag.territory)
