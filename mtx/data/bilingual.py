"""Pairs of a file whose units name their languages: a translation memory, a bilingual file, a catalogue of messages.

The parsers of the formats (`tmx_xliff`, `po`) give units, each with a text in some languages. This module finds in each
the sides that are asked for, whatever their order and region: en-GB serves en. A unit without one of them is left out
and counted. Flow: `Unit` -> `PairBlock`.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from langcodes import Language
from langcodes.tag_parser import LanguageTagError

from mtx.data.corpora import PairBlock, PairGroup
from mtx.data.languages import tag_of
from mtx.data.tables import BLOCK_PAIRS, PLAIN_NAMES
from mtx.errors import DataError, UsageError
from mtx.storage.text_files import printable

NO_TRANSLATION = "not translated"
UNKNOWN = ""  # the language of a side that the file does not name
_MOST_PAIRS = 1000  # of one unit
_MOST_LANGUAGES, _SHOWN_CHARS = 8, 40
_MACROLANGUAGES = {"nb": "no", "cmn": "zh", "arb": "ar", "pes": "fa", "zsm": "ms"}  # the form that is usually meant
_NOT_DIGITS = re.compile(r"\D")


@dataclass(slots=True)
class Variant:
    """The text of a unit in one language.

    Attributes:
        date: grows with the time of its last change, and is 0 if unknown.
    """

    language: str
    text: str
    date: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence in several languages, and the line of the file at which it begins."""

    line: int
    variants: list[Variant]


@dataclass(frozen=True)
class BilingualReader:
    """A `Reader` of files whose units name their languages. A unit with several translations gives several pairs.

    Attributes:
        units: reads the units of a file.
        form: tmx, xliff or po, which `mtx.documents` also translates.
    """

    units: Callable[[Path], Iterable[Unit]]
    form: str | None = None

    def __call__(self, path: Path, languages: tuple[str, str], columns: tuple[str, ...] = ()) -> Iterator[PairBlock]:
        """See `Reader`. Raises DataError also if no unit has both languages."""
        present = Counter[str]()
        has_pairs = False
        units = iter(self.units(path))
        for first in units:
            lines, dates = list[int](), list[int]()
            src_texts, tgt_texts = list[str](), list[str]()
            untranslated = None
            for unit in itertools.chain([first], itertools.islice(units, BLOCK_PAIRS - 1)):
                present.update({variant.language: None for variant in unit.variants}.keys())
                src, tgt = _sides(unit, languages)
                if len(src) * len(tgt) > _MOST_PAIRS:
                    raise DataError(f"{path}:{unit.line}: a unit has {len(src)} sources and {len(tgt)} translations")
                for one, other in itertools.product(src, tgt):
                    lines.append(unit.line)
                    dates.append(max(one.date, other.date))
                    src_texts.append(one.text)
                    tgt_texts.append(other.text)
                if not (src and tgt):
                    texts = (side[0].text if side else "" for side in (src, tgt))
                    untranslated = untranslated or PairGroup(0, unit.line, *texts)
                    untranslated.count += 1
            has_pairs |= bool(lines)
            left_out = {NO_TRANSLATION: untranslated} if untranslated else {}
            yield PairBlock(lines, src_texts, tgt_texts, dates, left_out)
        if not has_pairs:
            raise _no_pairs(path, present, languages)


def require_languages(path: Path, named: tuple[str, str], languages: tuple[str, str]) -> None:
    """Refuse a document in other languages than those of a model, as far as both name them.

    Raises:
        UsageError: if one of them is another; the message has all four.
    """
    for name, language in zip(named, languages, strict=True):
        if name and language not in PLAIN_NAMES and match_rank(name, language) is None:
            shown, own = (" to ".join(printable(word) or "?" for word in pair) for pair in (named, languages))
            raise UsageError(f"{path}: is {shown}, the model translates {own}")


def join_lines(text: str) -> str:
    """A text without its line breaks, and the white space around them and at both ends."""
    return " ".join(filter(None, map(str.strip, text.split("\n")))) if "\n" in text else text.strip()


@lru_cache(maxsize=1 << 16)
def date_of(text: str) -> int:
    """A date such as 20250131T093000Z as a number that grows with time; 0 for none."""
    digits = _NOT_DIGITS.sub("", text)[:14]
    return int(digits.ljust(14, "0")) if digits else 0


def _sides(unit: Unit, languages: tuple[str, str]) -> tuple[list[Variant], list[Variant]]:
    """The variants of a unit that serve as source and as target; several if the unit has several translations."""
    src, tgt = (_find_serving(unit, language) for language in languages)
    unnamed = [variant for variant in unit.variants if variant.language == UNKNOWN and variant.text]
    if not src and not tgt:
        return unnamed[:1], unnamed[1:]
    return src or unnamed, tgt or unnamed


def _find_serving(unit: Unit, asked: str) -> list[Variant]:
    ranked = [(match_rank(variant.language, asked), variant) for variant in unit.variants if variant.text]
    best = min((rank for rank, _ in ranked if rank is not None), default=None)
    return [variant for rank, variant in ranked if rank == best is not None]


@lru_cache
def match_rank(tag: str, asked: str) -> int | None:
    """How well a language tag of a file serves a language that is asked for; the lower the better, None for not at all.

    0: the same. 1: it is more special, en-GB for en. 2: it is more general, en for en-GB.
    """
    tag, asked = tag.replace("_", "-"), tag_of(asked).replace("_", "-")
    if tag.casefold() == asked.casefold():
        return 0
    try:
        has, wants = Language.get(tag), Language.get(asked)
    except LanguageTagError:
        return None
    if len({_MACROLANGUAGES.get(code, code) for code in (str(has.language), str(wants.language))}) > 1:
        return None
    whole, wanted = has.maximize(), wants.maximize()
    if all(want in (None, got) for want, got in ((wants.script, whole.script), (wants.territory, whole.territory))):
        return 0 if (has.script, has.territory) == (wants.script, wants.territory) else 1
    is_general = all(
        got in (None, want) for got, want in ((has.script, wanted.script), (has.territory, wanted.territory))
    )
    return 2 if is_general else None


def _no_pairs(path: Path, present: Counter[str], languages: tuple[str, str]) -> DataError:
    if not present:
        return DataError(f"{path}: holds no units")
    listed = list_languages(present)
    return DataError(f"{path}: no unit is in both {languages[0]} and {languages[1]}; it has {listed}")


def list_languages(present: Counter[str]) -> str:
    """The commonest languages of a file and their numbers of units, for a message."""
    shown = [
        f"{printable(name[:_SHOWN_CHARS]) or 'unnamed'} ({count:,})"
        for name, count in present.most_common(_MOST_LANGUAGES)
    ]
    return ", ".join(shown) + (", ..." if len(present) > _MOST_LANGUAGES else "") or "none"
