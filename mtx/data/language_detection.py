"""Detects the language of a text, and the two languages of a file of pairs.

Flow: some sentences -> py3langid -> `Profile` -> how much a text looks like each language. Languages unknown to
py3langid are judged by the letters of their script; Latin letters alone are not informative. Uncertain sentences count
for no language. For a single sentence only `rank_languages` is useful: it ranks a few languages by likelihood.

The languages of a file are named by its header (the first line of a table, the keys of JSON, the columns of Parquet,
the attributes of XML, or the header of PO), or else detected from its text.
"""

import contextlib
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, islice, repeat
from pathlib import Path

import regex
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from mtx.data.bilingual import UNKNOWN, BilingualReader, Unit, match_rank
from mtx.data.languages import KNOWN, WITHOUT_SPACES, Languages, code_of, is_code, key_of, script_of
from mtx.data.readers import Reader, reader_of
from mtx.data.tables import (
    PLAIN_NAMES,
    Columns,
    PairBlock,
    TableReader,
    language_of_column,
    open_parquet,
    read_parquet,
)
from mtx.errors import UsageError
from mtx.formatting import mtx_command
from mtx.storage.text_files import printable, read_lines

_SURE = 0.5  # probability from which a sentence counts for a language
# Rules of thumb. Over 99% of Multi30k's sentences count for their own language.
_SURE_WORDS = 5  # minimum number of words of a line, for a text to be in one language and in no other
_SURE_RATIO = 10  # and minimum ratio of its likelihood to another language's
_ALIKE = 0.5  # minimum likeness to a language
_ALIKE_RATIO = 1.5  # and minimum ratio to the likeness to another language, or of another text
_ENOUGH_TEXTS = 10  # minimum number of different sentences
_ENOUGH_LETTERS = 300  # minimum number of letters
_SAMPLE = 4_000  # inspected sentences or units
_LONE_LETTER = re.compile(f"[{WITHOUT_SPACES}]")
# Perhaps languages in the name of a file: en-yo.tsv and yoruba.tsv, unlike my.tsv
_IN_NAME = re.compile(r"[^\W\d_]{3,}|(?<![^\W\d_])[a-z]{2}(?=[-_])|(?<=[-_])[a-z]{2}(?![^\W\d_])")
_TEXT = "its text"  # which shows the languages of a file that does not name them
_ALSO_OTHER_WORDS = ("id", "no")  # Indonesian and Norwegian; with two other languages, an identifier and a number


@cache
def _detector() -> LanguageIdentifier:
    """The detector of 140 languages; it takes half a second to load, and 74 MB."""
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=_SURE)


@lru_cache(maxsize=1 << 13)  # both sides of a sample
def _classify(text: str) -> str:
    """The detector's code for a sentence. The first sentences of a corpus are read several times before training."""
    return str(_detector().classify(text)[0])


@dataclass(frozen=True)
class Profile:
    """The share of a text's sentences in each language, and its letters; both are empty if it is too small.

    Only the first sentences are inspected.
    """

    languages: defaultdict[str, float]
    letters: Counter[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Profile":
        """The profile of some sentences; repeated sentences count once."""
        sample = set(islice(texts, _SAMPLE))
        letters = _letters(sample)
        if len(sample) < _ENOUGH_TEXTS or letters.total() < _ENOUGH_LETTERS:
            sample = set()
            letters = Counter()
        return cls(_by_key((_classify(text), 1 / len(sample)) for text in sample), letters)

    def likeness(self, language: str) -> float | None:
        """The share of the sentences in a language, or of letters in its script if the detector does not support it.

        None if the language is unknown, or the text is too small.
        """
        if not self.letters:
            return None
        if (key := key_of(language)) in map(key_of, _detector().labels):
            return self.languages[key]
        script = script_of(language)
        return None if script == "Latn" else _share_in_script(self.letters, script)

    def other_language(self, language: str) -> str | None:
        """The code of the language that a text looks like, if it is clearly not the given one."""
        likeness = self.likeness(language)
        best = max(KNOWN, key=lambda key: self.languages[key])
        is_other = likeness is not None and self.languages[best] >= max(_ALIKE, _ALIKE_RATIO * likeness)
        return best if is_other and best != key_of(language) else None


def language_of(texts: Iterable[str]) -> str | None:
    """The code of the language of some sentences; None if they are too few, or it is unclear."""
    shares = Profile.of(texts).languages
    *_, (second_best, _), (best, language) = sorted((shares[key], key) for key in KNOWN)
    return language if best >= max(_ALIKE, _ALIKE_RATIO * second_best) else None


def are_exchanged(src: Profile, tgt: Profile, languages: Languages) -> bool:
    """Whether the source text looks like the target language and the target text like the source language.

    One known language is enough; if both are known, both must look swapped.
    """
    is_known = False
    for side, other_side, language in ((src, tgt, languages[0]), (tgt, src, languages[1])):
        likeness = side.likeness(language)
        other_likeness = other_side.likeness(language)
        if likeness is not None and other_likeness is not None:
            if other_likeness < max(_ALIKE, _ALIKE_RATIO * likeness):
                return False
            is_known = True
    return is_known


def rank_languages(text: str, languages: Sequence[str]) -> list[tuple[str, float]]:
    """Some languages, the most likely for a short text first, each with its share of the likelihood in per cent.

    Languages that the detector does not support get the remaining likelihood, by the letters of their scripts. All
    shares are 0 without letters, and for a text in none of the languages.
    """
    weights = dict.fromkeys(languages, 0.0)
    if letters := _letters([text]):
        likelihood = _by_key(_detector().rank(text))
        remaining = max(0.0, 1 - sum(likelihood.get(key_of(language), 0.0) for language in languages))
        for language in languages:
            share = _share_in_script(letters, script_of(language))
            weights[language] = likelihood.get(key_of(language), remaining if share is None else remaining * share)
    total = sum(weights.values()) or 1.0
    shares = {language: round(100 * weight / total, 1) for language, weight in weights.items()}
    return sorted(shares.items(), key=lambda item: -item[1])


def is_surely_in(text: str, language: str, other_languages: Iterable[str]) -> bool:
    """Whether a text of at least five words, and each of its lines, is in a language and in none of some others.

    False if the detector does not support one of the languages: it would take Silesian for Polish.
    """
    lines = [
        line for line in (text, *text.split("\n")) if len(_LONE_LETTER.sub(r"\g<0> ", line).split()) >= _SURE_WORDS
    ]
    for line in lines:
        likelihood = _by_key(_detector().rank(line))
        rivals = (_SURE_RATIO * likelihood.get(key_of(other), 1.0) for other in other_languages)
        if likelihood[key_of(language)] < max([_SURE, *rivals]):
            return False
    return bool(lines)


def _by_key(numbers: Iterable[tuple[str, float]]) -> defaultdict[str, float]:
    """The sums of the numbers of the detector's codes, by the keys of `KNOWN`, which some codes share."""
    sums = defaultdict[str, float](float)
    for code, number in numbers:
        sums[key_of(code)] += number
    return sums


def _letters(texts: Iterable[str]) -> Counter[str]:
    return Counter(filter(str.isalpha, chain.from_iterable(texts)))


def _share_in_script(letters: Counter[str], script: str) -> float | None:
    """The share of letters in a script by its ISO 15924 code; None if Unicode does not know it, such as Jpan."""
    try:
        in_script = regex.compile(rf"\p{{sc={script}}}").match
    except regex.error:
        return None
    return sum(number for letter, number in letters.items() if in_script(letter)) / letters.total()


def find_languages(path: Path, columns: Columns = ()) -> tuple[str, str, str]:
    """The source and target language of a file of pairs, and what names them: "its header" and the like.

    Args:
        columns: data.columns.

    Raises:
        UsageError: if they are unknown; the hint has the command that names them.
        DataError: if the file cannot be read, or is not UTF-8 and so unclear.
    """
    languages, origin = languages_of(path, columns)
    match languages:
        case [str(src), str(tgt)] if src != tgt:
            return src, tgt, origin
    if isinstance(reader_of(path), TableReader):
        deque(read_lines(path, "strict"), 0)  # text in another encoding is not clear: the error names that
    elif not any(languages):
        deque(reader_of(path)(path, PLAIN_NAMES, columns), 0)  # if its units have no text, the error names that
    names = ", ".join(filter(None, languages)) or "no header with languages, and its text is not clear"
    in_name = map(language_of_column, _IN_NAME.findall(path.name))
    candidates = chain((name for name in in_name if name and name not in languages), repeat("CODE"))
    sides = [*dict.fromkeys(languages), None, None][:2]
    src, tgt = (language or next(candidates) for language in sides)
    settings = [f"data.columns={','.join(columns)}"] if columns else []
    settings += [f"data.src={src}", f"data.tgt={tgt}"]
    raise UsageError(
        f"{path}: cannot tell its two languages: found {printable(names[:200])}",
        mtx_command("train", path, *settings),
    )


def names_languages(path: Path) -> bool:
    """Whether the header or the units of a file of pairs name its languages."""
    return languages_of(path, ())[1] != _TEXT


def languages_of(path: Path, columns: Columns) -> tuple[list[str | None], str]:
    """The languages of a file of pairs, the source first and None for an unclear one, and what names them.

    In a table these are column names: those of data.columns, or all.
    """
    reader = reader_of(path)
    if isinstance(reader, BilingualReader):
        return _languages_of_units(reader.units(path))
    names = _column_names(path, reader)
    if columns:
        numbers = {str(number): name for number, name in enumerate(names, 1)}
        names = [numbers.get(column, column) for column in columns]
    column_of = {language: name for name in names if (language := language_of_column(name))}
    if len(column_of) > 2:
        column_of = {language: name for language, name in column_of.items() if name.casefold() not in _ALSO_OTHER_WORDS}
    if len(column_of) == 1 and len(names) == 2 and not isinstance(reader, TableReader) and all(map(is_code, names)):
        return [*map(code_of, names)], "its header"  # keys are names, so that one of them may be an unknown language
    if len(column_of) >= 2:
        return [*column_of], "its header"
    block = next(reader(path, PLAIN_NAMES, columns), PairBlock((), [], []))
    return [language_of(side) for side in (block.src, block.tgt)], _TEXT


def _languages_of_units(units: Iterable[Unit]) -> tuple[list[str | None], str]:
    """The languages of units, the source first: without regions if two still differ; by their text if unnamed.

    An unnamed source that is not clear is in the language of its format: English in PO.
    """
    sample = list(islice(units, _SAMPLE))
    present = dict.fromkeys(variant.language for unit in sample for variant in unit.variants)
    if UNKNOWN in present:
        sides = zip(*(unit.variants for unit in sample if len(unit.variants) == 2), strict=True)
        src, *tgt = [side[0].language or language_of(variant.text for variant in side) for side in sides] or [None]
        return [src or sample[0].src_language or None, *tgt], _TEXT
    codes = dict.fromkeys(map(code_of, present))
    tags = [*codes] if len(codes) > 1 else [*present]
    sources = [tag for tag in tags if match_rank(tag, sample[0].src_language) is not None]
    return [*dict.fromkeys(sources + tags)], "its header" if sources else "its first unit"


def _column_names(path: Path, reader: Reader) -> list[str]:
    """The possible column names of a table: its first row, the keys of its first object, or its columns.

    In a dataset of the hub they are inside of `translation`.
    """
    if reader is read_parquet:
        with open_parquet(path) as file:
            inner_names = [column.name for column in file.schema if column.path.startswith("translation.")]
            return inner_names or list(file.schema.names)
    lines = read_lines(path)
    if isinstance(reader, TableReader):
        return next(reader.rows(path, lines), [])
    with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):  # the reader reports the problem
        row = json.loads(next(lines, "{}"))
        translation = row.get("translation")
        return [*translation] if isinstance(translation, dict) else [*row]
    return []
