"""Splits a line of running text into sentences, with the library sentencex and a few additional rules.

A wrong split is worse than a missing one, so a boundary of the library counts only if it looks like one. Languages
without sentence marks, such as Thai, are not split.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

from sentencex import segment

from mtx.data.languages import code_of
from mtx.storage.text_files import replace_surrogates

# A model that was trained on a smaller share of lines with several sentences translates sentences one by one.
MOSTLY_SINGLE = 0.1

_SPACE = re.compile(r"\s")
_LETTER = re.compile(r"[^\W\d_](?!\w{0,40};)")  # not one of `&quot;`, as Moses escapes a quotation mark
_QUOTE = re.compile("[‹«»‘“„`]")  # the library looks for the end of each in all the rest of a text
_MOST_QUOTES = 300
_INITIAL = re.compile(r"[^\W\d_]\.")  # `M. Dupont`
_INITIAL_OR_ORDINAL = re.compile(r"([^\W\d_]|\d\d?)\.")  # `im 19. Jahrhundert`
# Languages that write an ordinal number with a dot; the library knows this only before the names of months.
_DOTTED_ORDINALS = "bs cs da de et eu fi fo hr hu is lb lv mk nb nn no pl sk sl sr tr"


def sentence_splitter(language: str) -> Callable[[str], list[str]]:
    """A function that splits a line into its sentences, without the spaces between them.

    Args:
        language: a code such as en; for other languages the library's general rules apply.
    """
    code = code_of(language)
    abbreviation = _INITIAL_OR_ORDINAL if code in _DOTTED_ORDINALS.split() else _INITIAL

    def split(text: str) -> list[str]:
        text = replace_surrogates(text)
        plain = _SPACE.sub(" ", text)  # the library fails at an initial before another space
        if len(_QUOTE.findall(plain)) > _MOST_QUOTES:
            plain = _QUOTE.sub(" ", plain)
        parts = segment(code, plain)
        letters = [match.start() for match in _LETTER.finditer(text)]
        writes_capitals = text != text.lower()
        sentences = list[str]()
        start = 0
        for part, end in zip(parts[:-1], accumulate(map(len, parts)), strict=False):
            is_sentence = bisect_left(letters, start) < bisect_left(letters, end) < len(letters)  # not `1.`, not `:)`
            last_word = "".join(part.split()[-1:])
            is_cut = abbreviation.fullmatch(last_word) or (writes_capitals and text[end].islower())
            # without a space, example.com is a name
            is_apart = part[-1].isspace() or not part[-1].isascii() or _is_ideographic(text[end])
            if is_sentence and not is_cut and is_apart:
                sentences.append(text[start:end].strip())
                start = end
        return [*sentences, text[start:].strip()] if sentences else [text]

    return split


_DATE = r"(?:\d{1,4}[-/.]\d{1,2}[-/.]\d{2,4},?[ T])?\d{1,2}:\d\d(?::\d\d(?:[.,]\d{1,20})?)?(?:[ \u202f]?[AaPp][Mm])?"
_CLOCK = r"\d{1,3}(?::\d\d){1,2}(?:[.,]\d{1,6})?"
_SECONDS = r"\d{1,5}\.\d{1,3}"
_ARROW = "(?:[-–—=]{1,9}>|→)"
_SPAN = (
    rf"[\[(](?:{_CLOCK}|{_SECONDS}s?) ?(?:{_ARROW}|[-–—]) ?(?:{_CLOCK}|{_SECONDS}s?)[\])]:?|\({_CLOCK}\):?"
    rf"|(?:{_CLOCK}|{_SECONDS}s) ?{_ARROW} ?(?:{_CLOCK}|{_SECONDS}s):?|{_CLOCK} ?[-–—] ?{_CLOCK}:?(?= )"
)
_NAME = r"[^\s:]{1,500}(?: [^\sa-z:][^\s:]{0,500})?(?: \([^():]{1,500}\))?"  # not `Please note`
_LOGGER = (  # and other columns of a log
    r"(?: {1,100}(?:-|\[[^\[\]]{0,500}\]|[\w$]{1,200}(?:\.[\w$]{1,200}){1,50}:?|\w{1,200}(?= - [A-Z]{4}))(?= )){0,50}"
)
# What precedes the text of a line, by where it comes from
LEADS = {
    "log: time, level and names": (
        rf"\[?{_DATE}\]?{_LOGGER} {{1,100}}"
        rf"\[?(?:TRACE|DEBUG|INFO|WARN(?:ING)?|ERROR|FATAL|CRITICAL)\]?:?{_LOGGER}(?= )"
    ),
    "log: call": r"(?:at )?(?:[\w$/]{1,200}\.){2,50}[\w$<>]{1,200}(?:\([^()]{0,500}\)|:(?= ))",
    "transcript, chat: time and who speaks": (
        rf"(?:{_SPAN}|\[{_DATE}\](?= )|{_DATE} -(?= ))(?: (?:\+[\d -]{{1,100}}|{_NAME}): )?"
    ),
    "lyrics (LRC): times": r"(?:\[\d{1,3}:\d\d(?:[.:]\d{1,3}){0,2}\]){1,100}",
    "lyrics (LRC): other marks": r"\[(?:ar|ti|al|au|by|re|ve|la|length|offset|tool):[^\]]{0,1000}\]",
    "mail: date": r"Date: \w{3}, \d{1,2} \w{3} \d{4} [\d:]{1,20} [-+]\d{4}.{0,1000}",
    "mail: header with an address": (
        r"(?!E-)[A-Z]\w{0,100}(?:-\w{1,100}){1,20}:(?=\s{1,100}(?:<\S{1,1000}>\s{0,100})?\Z)"
    ),
}


@cache
def lead_pattern(language: str) -> re.Pattern[str]:
    """The marks before the text of a line: white space, a mark, a number, or a time with the name of who speaks.

    `1.` may be an ordinal, in some languages.
    """
    dot = "" if code_of(language) in _DOTTED_ORDINALS.split() else "."
    spaces = r"[\s\u200e\u200f\u202a-\u202e]*"  # with marks of the direction of text
    return re.compile(
        rf"({spaces}(?:(?:[-*+•◦▪→–>]|={{2,6}}|\[[ xX]\]|\(?(?:[A-Za-z]\)|\d{{1,3}}[){dot}]))[ \t]+)*"
        rf"(?:{'|'.join(LEADS.values())})?{spaces})"
    )


def multi_sentence_share(lines: Sequence[str], language: str) -> float:
    """The share of lines with more than one sentence, from 0 to 1."""
    split = sentence_splitter(language)
    return sum(1 for line in lines if len(split(line)) > 1) / max(1, len(lines))


def space_between(before: str, after: str) -> str:
    """What separates two sentences: a space, except next to Chinese and Japanese characters, or to nothing."""
    is_close = not before or not after or _is_ideographic(before[-1]) or _is_ideographic(after[0])
    return "" if is_close else " "


def _is_ideographic(character: str) -> bool:
    """Whether it is a letter or a mark of a script without spaces between sentences."""
    is_wide = unicodedata.east_asian_width(character) in ("W", "F") and unicodedata.category(character)[0] in "LP"
    return is_wide and not unicodedata.name(character, "").startswith("HANGUL")
