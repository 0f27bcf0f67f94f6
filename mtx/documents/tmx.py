"""A translation memory as a document: units without a text in the target language get one. See `documents.xliff`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import quoteattr

from mtx.data.bilingual import match_rank
from mtx.documents.edits import Edit, space_before
from mtx.documents.inline import TOKEN, element, parse, written
from mtx.documents.markup import Marked, bare, is_choice, with_edges
from mtx.errors import DataError
from mtx.files.xml_stream import parse_text

_LANGUAGES = ("xml:lang", "lang")


@dataclass
class _Variant:
    """A tuv: from where to where it goes, and the content of its seg; an empty element has no content."""

    start: int
    language: str
    end: int = 0
    seg: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass
class _Unit:
    variants: list[_Variant] = field(default_factory=list)


def read(
    path: Path, text: str, languages: tuple[str, str], overwrite: bool
) -> tuple[list[Marked], Callable[[Sequence[Marked]], list[Edit]]]:
    """The segments to translate, and what makes the edits from their translations; see `documents.xliff.read`."""
    finder = _Finder(text)
    parse_text(path, text, finder)
    if not finder.is_memory:
        raise DataError(f"{path}: is not TMX: its first element is not tmx")
    todo = list[tuple[_Variant | None, _Unit, Marked]]()
    for unit in finder.units:
        src, tgt = (_serving(text, unit, language) for language in languages)
        tgt = None if tgt is src else tgt
        if src is None or not src.seg[3] or (tgt is not None and not tgt.seg[3]):
            continue  # no text in this language, or a damaged unit without a seg
        segment = parse(text[src.seg[1] : src.seg[2]])
        if bare(segment)[0] and not is_choice(segment) and (overwrite or tgt is None or not _has_text(text, tgt)):
            todo.append((tgt, unit, segment))

    def write(translations: Sequence[Marked]) -> list[Edit]:
        return [
            _edit(text, tgt, unit, written(with_edges(segment, translation)), languages[1])
            for (tgt, unit, segment), translation in zip(todo, translations, strict=True)
        ]

    return [segment for *_, segment in todo], write


def _serving(text: str, unit: _Unit, language: str) -> _Variant | None:
    """The variant in a language: of the nearest region, with text if one has some."""
    ranked = [(rank, not _has_text(text, variant), number) for number, variant in enumerate(unit.variants)
              if (rank := match_rank(variant.language, language)) is not None]  # fmt: skip
    return unit.variants[min(ranked)[-1]] if ranked else None


def _has_text(text: str, variant: _Variant) -> bool:
    return bool(bare(parse(text[variant.seg[1] : variant.seg[2]]))[0])


def _edit(text: str, tgt: _Variant | None, unit: _Unit, content: str, language: str) -> Edit:
    if tgt is not None:
        start, inner, _, end = tgt.seg
        return Edit(start, end, element(text[start:inner], content))
    last = unit.variants[-1]
    tag = f"<tuv xml:lang={quoteattr(language)}><seg>{content}</seg></tuv>"
    return Edit(last.end, last.end, space_before(text, last.start) + tag)


class _Finder:
    """Finds the units of a memory; their spans count the characters of the text."""

    def __init__(self, text: str):
        self.document, self.depth = text, 0
        self.line: Callable[[], int] = int
        self.at: Callable[[], int] = int
        self.units: list[_Unit] = []
        self.is_memory = False
        self._seg: tuple[int, int] | None = None
        self._seg_depth = 0  # of open elements inside of it

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self._seg is not None:
            self._seg_depth += 1
            return
        self.is_memory = self.is_memory or (name == "tmx" and self.depth == 1)
        if name == "tu":
            self.units.append(_Unit())
        elif name == "tuv" and self.units:
            language = next((attributes[key] for key in _LANGUAGES if key in attributes), "")
            self.units[-1].variants.append(_Variant(self.at(), language))
        elif name == "seg" and self.units and self.units[-1].variants:
            start = self.at()
            tag = TOKEN.match(self.document, start)
            self._seg = start, tag.end() if tag else start

    def end(self, name: str) -> None:
        self.depth -= 1
        if self._seg is not None and self._seg_depth:
            self._seg_depth -= 1
        elif name == "seg" and self._seg is not None:
            (start, inner), at = self._seg, self.at()
            is_empty = self.document[inner - 2 : inner] == "/>"
            end = inner if is_empty else self.document.index(">", at) + 1
            self.units[-1].variants[-1].seg = start, inner, inner if is_empty else at, end
            self._seg = None
        elif name == "tuv" and self._seg is None and self.units and self.units[-1].variants:
            variant, at = self.units[-1].variants[-1], self.at()
            tag = TOKEN.match(self.document, variant.start)
            is_empty = tag is not None and bool(tag["empty"])
            variant.end = tag.end() if tag and is_empty else self.document.index(">", at) + 1

    def text(self, text: str) -> None:
        """Does nothing: text is taken from the document itself."""
