"""Translates segments with tags: first without tags, which are then placed by the cross attention (`placing`)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import NamedTuple

import numpy as np

from mtx.data.inline_codes import has_codes
from mtx.data.sentence_splitter import joined_sentences
from mtx.data.sentencepiece_models import piece_bytes
from mtx.decoding.options import Attention
from mtx.decoding.translator import Hypothesis, Translator
from mtx.documents.markup import Marked, Placed, Tag, bare, is_choice, mark_up, raw, with_edges
from mtx.documents.placing import Link, in_proportion, put_back
from mtx.storage.text_files import replace_surrogates

_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2
# Tags between sentences: blocks of HTML, blank lines, bullets, and the mark between plural forms
_BETWEEN_SENTENCES = re.compile(
    r"(?:<|&lt;)/?(?:p(?:ara)?|li|div|h[1-6]|t[dhr]|[uod]l|d[td]|blockquote)(?![\w-])|^\|+$|\n\s*[\n>•*+–-]",
    re.IGNORECASE,
)
_SHORT_LINE = 40  # characters; no program has wrapped it
_BLANK = re.compile(r"nbsp|space|#(?:160|xa0);|\xa0|^ +$", re.IGNORECASE)  # a break that ends no line
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_BALANCING_ROUNDS, _LEAST = 5, 1e-9


@dataclass
class _Sentence:
    """A sentence of a segment: its start in the segment's bare text, and in the bare translation.

    Attributes:
        language: the language token of its segment (`>>fra<<`), if it precedes an earlier sentence.
        pieces: the pieces of the translation as written by the model.
        links: the parts of its translation, with their sources.
    """

    text: str
    src_start: int
    language: str = ""
    translation: str = ""
    tgt_start: int = 0
    pieces: Sequence[str] = ()
    links: Sequence[Link] = ()


def translate_segments(translator: Translator, segments: Sequence[Marked]) -> list[Marked]:
    """Returns the translations of segments, each with all tags of its source. A segment without text is kept."""
    pieces = [_pieces(segment) for segment in segments]
    flat = [piece for some in pieces for piece in some]
    translated = map(with_edges, flat, _translate(translator, flat))
    return [[part for _ in some for part in next(translated)] for some in pieces]


def _pieces(segment: Marked) -> list[Marked]:
    """A segment split at the tags between sentences outside all pairs; each such tag is a part.

    So is a break after a short line, unless the next one begins with a small letter.
    """
    pieces, depth, length = [Marked()], 0, 0
    for part, following in zip_longest(segment, segment[1:], fillvalue=""):
        if isinstance(part, str):
            length += len(part)
        else:
            is_line = part.is_break and not _BLANK.search(part.raw)
            is_cut = is_line and length < _SHORT_LINE and not raw([following]).lstrip()[:1].islower()
            length *= not is_line
            if not depth and (is_cut or _BETWEEN_SENTENCES.search(part.raw)):
                pieces += [[part], []]
                continue
            depth += (part.kind == "open") - (part.kind == "close")
        pieces[-1].append(part)
    return pieces


def _translate(translator: Translator, segments: Sequence[Marked]) -> list[Marked]:
    texts = [bare(segment) for segment in segments]
    sentences = [_sentences(translator, text, tags) for text, tags in texts]
    flat = [sentence for some in sentences for sentence in some]
    found_for = translator.hypotheses([s.language + s.text for s in flat], n_best=1)
    for sentence, hypotheses in zip(flat, found_for, strict=True):
        sentence.translation, sentence.pieces = _NO_XML.sub(" ", hypotheses[0].text), hypotheses[0].pieces
    _link(translator, [s for some, (_, tags) in zip(sentences, texts, strict=True) if tags for s in some])
    results = []
    for segment, (text, tags), some in zip(segments, texts, sentences, strict=True):
        translation = _join(some)
        is_same = not text or translation == text  # such as one without a letter
        results.append(list(segment) if is_same else put_back(tags, text, translation, _links(some)))
    return results


def translate_lines(translator: Translator, lines: Sequence[str], n_best: int | None = None) -> list[list[Hypothesis]]:
    """Returns the hypotheses of plain lines, with all placeholders, addresses, markup and emoji of their sources.

    See `Translator.hypotheses`.
    """
    bare_lines = list(map(without_codes, lines))
    found_for = translator.hypotheses([line.text for line in bare_lines], n_best=n_best)
    return put_codes_back(
        translator, [(line, found[:n_best]) for line, found in zip(bare_lines, found_for, strict=True)]
    )


class BareLine(NamedTuple):
    """A plain line, its text without codes, and the codes."""

    line: str
    text: str
    tags: list[Placed]


def without_codes(line: str) -> BareLine:
    """A plain line without its placeholders, addresses, markup and emoji; controls and line ends in it are spaces."""
    line = _CONTROLS.sub(" ", replace_surrogates(line))
    return BareLine(line, *(bare(_mark_up(line)) if has_codes(line) else (line, [])))


def put_codes_back(
    translator: Translator, translations: Sequence[tuple[BareLine, list[Hypothesis]]]
) -> list[list[Hypothesis]]:
    """The hypotheses of bare lines with the codes of the lines. A line that is its own translation is kept."""
    sentences = [
        [_Sentence(line.text, 0, translation=each.text, pieces=each.pieces) for each in found]
        for line, found in translations
    ]
    coded = [some for (line, _), some in zip(translations, sentences, strict=True) if line.tags]
    _link(translator, [each for some in coded for each in some if each.translation != each.text])
    results = []
    for (line, found), some in zip(translations, sentences, strict=True):
        placed = [raw(put_back(line.tags, line.text, each.translation, each.links)) for each in some]
        texts = [line.line if each.text == line.text else text for each, text in zip(found, placed, strict=True)]
        results.append([replace(each, text=text) for each, text in zip(found, texts, strict=True)])
    return results


def _mark_up(line: str) -> Marked:
    return [Tag(line)] if is_choice([line]) else mark_up([line])


def _sentences(translator: Translator, text: str, tags: Sequence[Placed]) -> list[_Sentence]:
    sentences, start = list[_Sentence](), 0
    language = translator.tokenizer.language_token(text)
    cuts = {tag.at for tag in tags if any(_BETWEEN_SENTENCES.search(each.raw) for each in tag.tags)}
    parts = [text[begin:end].strip() for begin, end in pairwise(sorted({0, *cuts, len(text)}))]
    split = translator.splitter or (lambda part: [part])
    for sentence in (sentence for part in parts if part for sentence in split(part)):
        start = max(start, text.find(sentence, start))
        sentences.append(_Sentence(sentence, start, language if sentences else ""))
        start += len(sentence)
    return sentences


def _join(sentences: Sequence[_Sentence]) -> str:
    """The translation of a segment; notes the start of each sentence in it."""
    text = ""
    for sentence in sentences:
        text = joined_sentences([text, sentence.translation])
        sentence.tgt_start = len(text) - len(sentence.translation)
    return text


def _links(sentences: Sequence[_Sentence]) -> list[Link]:
    """The links of a segment."""
    return [
        Link(sentence.tgt_start + link.start, sentence.tgt_start + link.end, sentence.src_start + link.src)
        for sentence in sentences
        for link in sentence.links
    ]


def _link(translator: Translator, sentences: Sequence[_Sentence]) -> None:
    """Finds the links of sentences; proportional ones for a sentence that is too long for the model."""
    if not sentences:
        return
    tokenizer, limit = translator.tokenizer, translator.max_tokens
    texts = [_as_translated(translator, sentence) for sentence in sentences]
    src = tokenizer.encode([text for text, _ in texts])
    tgt = tokenizer.encode([text for _, text in texts], target=True)
    most = min(limit, translator.engine.num_tgt_positions)
    rows = [row for row in range(len(src)) if len(src[row]) <= limit and 1 < len(tgt[row]) <= most]
    attention = translator.engine.cross_attention([src[row] for row in rows], [tgt[row] for row in rows])
    for sentence in sentences:
        sentence.links = in_proportion(sentence.text, sentence.translation)
    for row, weights in zip(rows, attention, strict=True):
        sentence = sentences[row]
        src_ends = _ends(tokenizer.pieces(src[row]), sentence.text)
        sentence.links = _link_pieces(weights, src_ends, _ends(tokenizer.pieces(tgt[row]), sentence.translation))


def _as_translated(translator: Translator, sentence: _Sentence) -> tuple[str, str]:
    """Source and translation as seen by the model: truecased, if the model does not handle capitals or title case."""
    text, case = translator.truecase(sentence.text)
    spelled = b"".join(map(piece_bytes, sentence.pieces)).decode("utf-8", "replace")
    return text, spelled.strip() if case else sentence.translation


def _link_pieces(attention: Attention, src_ends: list[float], tgt_ends: list[float]) -> list[Link]:
    """Links each piece of the translation to the middle of its source piece, by the attention."""
    links = list[Link]()
    src_ends = [0.0, *src_ends]
    tgt_ends = [0.0, *tgt_ends]
    balanced = _balance(attention[: len(tgt_ends) - 2, : len(src_ends) - 2])  # without `</s>`
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
