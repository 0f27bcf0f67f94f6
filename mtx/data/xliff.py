"""Reads bilingual files in XLIFF 1.0 to 1.2 and 2.x, also those of Trados, memoQ and Phrase, as units.

Inline codes and what they hold are left out; the text in g, pc, hi and mrk stays. A segmented trans-unit gives a unit
for each segment. Proposals of other translations are no part of the text, nor are targets that still hold the source.
Flow: file -> `xml_stream` -> `Unit` -> `bilingual`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from mtx.data.bilingual import UNKNOWN, Unit, Variant, one_line, read_units
from mtx.errors import DataError
from mtx.files.xml_stream import MAX_PARTS, MAX_TEXT

_CODES = frozenset(["bpt", "ept", "it", "ph", "ut"])
_OTHERS = frozenset(
    ["alt-trans", "bin-unit", "matches", "glossary", "ignorable", "originalData", "notes", "note", "prop-group"]
)
_UNITS = frozenset(["trans-unit", "segment"])
_SIDES = frozenset(["source", "seg-source", "target"])
_BREAKS = frozenset(["lb", "x-br", "x-html-br", "fmt:lb"])  # types of codes that stand for a line break
_DELETED = "x-sdl-deleted"  # of tracked changes
_UNTRANSLATED = frozenset(["new", "needs-translation"])  # states of targets that hold the source, if anything


def read_xliff(path: Path) -> Iterator[Unit]:
    """The units of a bilingual file, one after the other; one without a translation has its source alone.

    Raises:
        DataError: if it is not XLIFF or damaged, see `read_xml`.
    """
    return read_units(path, _Handler(path), "XLIFF")


class _Handler:
    """Collects units.

    Attributes:
        prefix: that of the names of XLIFF's own elements; others are of other programs.
        others: the number of open elements that are no part of the text.
        side: the open source, seg-source or target; None outside.
        codes: the number of open inline codes.
        segment: the number of the open segment in a side; None outside of all.
        texts: the parts of each side's text, whole (None) and by segment.
    """

    def __init__(self, path: Path):
        self.path = path
        self.prefix, self.is_known = "", False
        self.units: list[Unit] = []
        self.languages = {"source": UNKNOWN, "target": UNKNOWN}
        self.depth = self.others = self.codes = self.size = self.unit_line = 0
        self.line: Callable[[], int] = int
        self.side: str | None = None
        self.segment: str | None = None
        self.marks: list[tuple[str | None, int]] = []
        self.texts: dict[str, dict[str | None, list[str]]] = {}
        self.is_untranslated = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if not self.is_known:
            prefix, _, local = name.rpartition(":")
            if local == "xliff":
                self.prefix, self.is_known = f"{prefix}:" if prefix else "", True
                self._set_languages(attributes.get("srcLang"), attributes.get("trgLang"))
            return
        if self.prefix:
            name = name.removeprefix(self.prefix) if name.startswith(self.prefix) else f"other:{name}"
        if self.others or name in _OTHERS or ":" in name:
            self.others += 1
        elif self.side is not None:
            self._start_inline(name, attributes)
        elif name in _SIDES:
            self.side, self.segment, self.codes, self.marks = name, None, 0, []
            self.texts[name] = {None: []}
            if name == "target":
                self.is_untranslated = attributes.get("state") in _UNTRANSLATED
        elif name in _UNITS:
            self.unit_line, self.size, self.texts, self.is_untranslated = self.line(), 0, {}, False
        elif name == "file" and "source-language" in attributes:
            self._set_languages(attributes["source-language"], attributes.get("target-language"))

    def _set_languages(self, src: str | None, tgt: str | None) -> None:
        self.languages = {"source": src or UNKNOWN, "target": tgt or UNKNOWN}

    def _start_inline(self, name: str, attributes: dict[str, str]) -> None:
        assert self.side is not None
        if name in _CODES:
            self.codes += 1
        elif name == "mrk":
            self.marks.append((self.segment, self.codes))
            if attributes.get("mtype") == _DELETED:
                self.codes += 1
            if attributes.get("mtype") == "seg":
                self.segment = attributes.get("mid", "")
                self.texts[self.side].setdefault(self.segment, [])
                if len(self.texts[self.side]) > MAX_PARTS:
                    raise DataError(f"{self.path}:{self.unit_line}: a unit has more than {MAX_PARTS:,} texts")
        elif name == "cp":  # a character that XML cannot hold
            self._add(" ")
        if {attributes.get("ctype"), attributes.get("type"), attributes.get("subType")} & _BREAKS:
            self._add(" ")

    def end(self, name: str) -> None:
        self.depth -= 1
        if self.others:
            self.others -= 1
            return
        name = name.removeprefix(self.prefix)
        if name == self.side:
            self.side = None
        elif self.side is not None:
            if name in _CODES:
                self.codes -= 1
            elif name == "mrk":
                self.segment, self.codes = self.marks.pop()
        elif name in _UNITS:
            self._add_units()

    def text(self, text: str) -> None:
        if self.side is not None and not self.codes and not self.others:
            self._add(text)

    def _add(self, text: str) -> None:
        assert self.side is not None
        self.size += len(text)
        if self.size > MAX_TEXT:
            raise DataError(f"{self.path}:{self.unit_line}: the texts of a unit have more than {MAX_TEXT:,} characters")
        self.texts[self.side][None].append(text)
        if self.segment is not None:
            self.texts[self.side][self.segment].append(text)

    def _add_units(self) -> None:
        """The units of a trans-unit or segment: one for each segment of both sides, or a single one."""
        src = self.texts.get("seg-source") or self.texts.get("source")
        tgt = {} if self.is_untranslated else self.texts.get("target", {})
        if src is None:
            return
        segments: list[str | None] = [key for key in src if key is not None and key in tgt]
        if not segments:
            src = self.texts.get("source") or src
        for key in segments or [None]:
            sides = {"source": src[key], "target": tgt.get(key)}
            self.units.append(
                Unit(
                    self.unit_line,
                    [
                        Variant(self.languages[side], text)
                        for side, parts in sides.items()
                        if parts is not None and (text := one_line("".join(parts)).strip())
                    ],
                )
            )
