"""The codes of a text on its way through a `Translator`: out of its sentences, and back into their translations.

Flow: a line or a segment of a document -> `units` -> `sentences` -> search -> `link_pieces` -> `placing.put_back`.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

import numpy as np

from mtx.data.cleaning import clean_text
from mtx.data.markup import Marked, Placed, Tag, mark_up, raw
from mtx.data.sentencepiece_models import piece_bytes
from mtx.decoding.options import Attention
from mtx.decoding.placing import Link, match_pairs
from mtx.storage.text_files import replace_surrogates

# Tags between sentences: blocks of HTML, blank lines, bullets, and the mark between plural forms
_BETWEEN_SENTENCES = re.compile(
    r"(?:<|&lt;)/?(?:p(?:ara)?|li|div|h[1-6]|t[dhr]|[uod]l|d[td]|blockquote)(?![\w-])|^\|+$|\n\s*[\n>•*+–-]",
    re.IGNORECASE,
)
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_SHORT_LINE = 40  # characters; no program has wrapped it
_BLANK = re.compile(r"nbsp|space|#(?:160|xa0);|\xa0|^ +$", re.IGNORECASE)  # a break that ends no line
_BALANCING_ROUNDS, _LEAST = 5, 1e-9


def mark_up_line(line: str, keeps_codes: bool = False) -> Marked:
    """A plain line as text with its indentation, and codes, unless they stay text; controls are spaces."""
    text = clean_text(_CONTROLS.sub(" ", replace_surrogates(line)))
    indentation = line[: len(line) - len(line.lstrip("\t "))] if text else ""
    return [text] if keeps_codes else mark_up([indentation + text])


def units(marked: Marked, lead: re.Pattern[str]) -> Iterator[Marked]:
    """The texts of a segment that are translated one by one, and what separates them: their joined parts are all of it.

    Separators are tags between sentences outside all pairs, breaks after a short line, unless the next one begins with
    a small letter, white space at the edges of a text, and what `lead` matches before it.
    """
    texts, depth, length = [Marked()], 0, 0
    for part, following in zip_longest(marked, marked[1:], fillvalue=""):
        if isinstance(part, str):
            length += len(part)
        else:
            is_line = part.is_break and not _BLANK.search(part.raw)
            is_cut = is_line and length < _SHORT_LINE and not raw([following]).lstrip()[:1].islower()
            length *= not is_line
            if not depth and (is_cut or _BETWEEN_SENTENCES.search(part.raw)):
                texts += [[part], []]
                continue
            depth += (part.kind == "open") - (part.kind == "close")
        texts[-1].append(part)
    for text in texts:
        before = after = ""
        if text and isinstance(text[0], str) and (match := lead.match(text[0])):
            before, text = match[0], [text[0][match.end() :], *text[1:]]
        if text and isinstance(text[-1], str):
            end = text[-1].rstrip()
            after, text = text[-1][len(end) :], [*text[:-1], end]
        yield [before]
        yield text
        yield [after]


def sentences(
    text: str, tags: Sequence[Placed], split: Callable[[str], list[str]] | None
) -> list[tuple[str, Sequence[Placed]]]:
    """The sentences of a bare text, each with its tags; a pair around several sentences encloses a part of each."""
    cuts = {tag.at for tag in tags if any(_BETWEEN_SENTENCES.search(each.raw) for each in tag.tags)}
    parts = [text[begin:end].strip() for begin, end in pairwise(sorted({0, *cuts, len(text)}))]
    texts = [sentence for part in parts if part for sentence in (split(part) if split else [part])]
    starts, end = list[int](), 0
    for sentence in texts:
        starts.append(max(end, text.find(sentence, end)))
        end = starts[-1] + len(sentence)
    return divided(texts, starts, tags)


def divided(texts: Sequence[str], starts: Sequence[int], tags: Sequence[Placed]) -> list[tuple[str, Sequence[Placed]]]:
    """Parts of a text, which begin at these characters, each with its tags.

    A pair around several parts encloses each of them: between two parts it has ends that are not written.
    """
    numbers = [max(0, bisect_right(starts, tag.at - (tag.tags[0].kind == "close")) - 1) for tag in tags]
    by_text: list[list[Placed]] = [[] for _ in texts]
    for number, tag in zip(numbers, tags, strict=True):
        by_text[number].append(replace(tag, at=min(tag.at - starts[number], len(texts[number]))))
    for first, last in sorted(match_pairs(tags).items(), reverse=True):
        pair = tags[first].tags[0].pair
        for number in range(numbers[first], numbers[last]):
            by_text[number].append(Placed((Tag("", "close", pair),), len(texts[number]), "", "", False))
            by_text[number + 1].insert(0, Placed((Tag("", "open", pair),), 0, "", "", False))
    return list(zip(texts, by_text, strict=True))


def link_pieces(attention: Attention, src: tuple[Sequence[str], str], tgt: tuple[Sequence[str], str]) -> list[Link]:
    """Links each piece of a translation to the middle of its source piece, by the attention.

    Args:
        attention: its rows and columns for `</s>` do not count.
        src, tgt: the pieces of each side, and its text.
    """
    links = list[Link]()
    src_ends, tgt_ends = ([0.0, *_ends(*side)] for side in (src, tgt))
    balanced = _balance(attention[: len(tgt_ends) - 2, : len(src_ends) - 2])
    for row, (start, end) in zip(balanced, pairwise(map(round, tgt_ends)), strict=False):
        column = int(row.argmax())
        if end > start:
            links.append(Link(start, end, (src_ends[column] + src_ends[column + 1]) / 2))
    return links


def _balance(attention: Attention) -> Attention:
    """Balanced attention: each source piece gets the same total, and so does each piece of the translation.

    Some pieces attract the attention of many others, such as the first noun or a full stop. Sinkhorn and Knopp 1967.
    """
    for axis in (1, 0) * _BALANCING_ROUNDS if len(attention) > 1 else ():
        attention = attention / np.maximum(attention.sum(axis, keepdims=True), _LEAST)
    return attention


def _ends(pieces: Sequence[str], text: str) -> list[float]:
    """The end of each piece in a text, in characters, even if normalisation has changed its length."""
    ends, data = list[int](), b""
    for piece in pieces:
        data += piece_bytes(piece)
        ends.append(len(data.decode("utf-8", "ignore")) - 1)  # the first piece begins with a space
    if ends:
        ends[-1] = ends[-2] if len(ends) > 1 else 0  # `</s>` has no text
    scale = len(text) / ends[-1] if ends and ends[-1] > 0 else 1.0
    return [max(0, end) * scale for end in ends]
