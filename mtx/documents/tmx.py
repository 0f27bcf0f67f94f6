"""A translation memory as a document: units without a text in the target language get one. See `documents.xliff`."""

from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

from mtx.data.bilingual import Unit, Variant, match_rank
from mtx.data.tmx import TmxReader
from mtx.documents.edits import Edit, space_before
from mtx.documents.inline import Element, element, parse, written
from mtx.documents.markup import Marked, bare, is_choice


def read(path: Path, languages: tuple[str, str], overwrite: bool, text: str) -> Iterator[Edit]:
    """The edits that translate a memory; see `documents.xliff.read`."""
    for unit in TmxReader(path, text):
        src, tgt = (_serving(text, unit, language) for language in languages)
        tgt = None if tgt is src else tgt
        if src is None or _seg(text, src) is None or (tgt is not None and _seg(text, tgt) is None):
            continue  # no text in this language, or a damaged unit without a seg
        segment = _parsed(text, src)
        if bare(segment)[0] and not is_choice(segment) and (overwrite or tgt is None or not _has_text(text, tgt)):
            yield _edit(text, tgt, unit, segment, languages[1])


def _serving(text: str, unit: Unit, language: str) -> Variant | None:
    """The variant in a language: of the nearest region, with text if one has some."""
    ranked = [
        (rank, not _has_text(text, variant), number)
        for number, variant in enumerate(unit.variants)
        if (rank := match_rank(variant.language, language)) is not None
    ]
    return unit.variants[min(ranked)[-1]] if ranked else None


def _seg(text: str, variant: Variant) -> Element | None:
    _, start, inner_end, _ = variant.places
    return Element.at(text, start, inner_end) if start else None


def _parsed(text: str, variant: Variant) -> Marked:
    seg = _seg(text, variant)
    return parse(seg.content(text)) if seg else []


def _has_text(text: str, variant: Variant) -> bool:
    return bool(bare(_parsed(text, variant))[0])


def _edit(text: str, tgt: Variant | None, unit: Unit, segment: Marked, language: str) -> Edit:
    if tgt is not None and (seg := _seg(text, tgt)):
        return Edit(seg.start, seg.end, segment, lambda new: element(text[seg.start : seg.inner_start], written(new)))
    start, _, _, inner_end = unit.variants[-1].places
    end = Element.at(text, start, inner_end).end
    before = f"{space_before(text, start)}<tuv xml:lang={quoteattr(language)}><seg>"
    return Edit(end, end, segment, lambda new: f"{before}{written(new)}</seg></tuv>")
