"""Reads translation memories in TMX (1.1 to 1.4b) as units, to train and to translate (`documents.tmx`).

Inline codes and what they hold are left out of the text: the content of bpt, ept, it, ph and ut is code of another
program. The text in hi stays. Flow: file -> `xml_stream` -> `Unit` -> `bilingual`.
"""

from pathlib import Path

from mtx.data.bilingual import CODES, Unit, Variant, date_of, is_break, one_line
from mtx.data.xml_stream import MAX_PARTS, MAX_TEXT, XmlReader
from mtx.errors import DataError


class TmxReader(XmlReader[Unit]):
    """Iterates over the units of a memory. A tuv without a seg has no text, and no places of one.

    Each `*_depth` is the number of elements open with the innermost tu, tuv, seg or code included; 0 outside of any.
    """

    format = "TMX"

    def __init__(self, path: Path, text: str | None = None):
        super().__init__(path, text)
        self.tu_depth = self.tuv_depth = self.seg_depth = self.code_depth = 0
        self.variants: list[Variant] = []
        self.parts: list[str] = []  # the text of the seg
        self.language = ""
        self.size = self.unit_line = self.unit_date = self.date = self.tuv_start = self.seg_start = self.seg_end = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.seg_depth:
            if name in CODES:
                self.code_depth = self.code_depth or self.depth
                if is_break(attributes):
                    self.parts.append(" ")
        elif self.tuv_depth:
            if name == "seg":
                self.seg_depth, self.seg_start = self.depth, self.at()
                self.parts.clear()
        elif name == "tuv" and self.tu_depth:
            self.tuv_depth, self.tuv_start = self.depth, self.at()
            self.language = attributes.get("xml:lang") or attributes.get("lang") or ""
            self.date = _date(attributes) or self.unit_date
        elif name == "tu":
            self.tu_depth = self.depth
            self.unit_line = self.line()
            self.unit_date = _date(attributes)
            self.variants, self.size = [], 0
        elif name == "tmx" and self.depth == 1:
            self.is_known = True

    def end(self, name: str) -> None:
        depth, self.depth = self.depth, self.depth - 1
        if self.seg_depth:
            if depth == self.seg_depth:
                self.seg_depth, self.seg_end = 0, self.at()
            elif depth == self.code_depth:
                self.code_depth = 0
        elif depth == self.tuv_depth:
            places = (self.tuv_start, self.seg_start, self.seg_end, self.at())
            text = one_line("".join(self.parts)).strip()
            self.variants.append(Variant(self.language, text, self.date, places))
            self.tuv_depth = self.seg_start = self.seg_end = 0
            self.parts.clear()
            if len(self.variants) > MAX_PARTS:
                raise DataError(f"{self.path}:{self.unit_line}: a unit has more than {MAX_PARTS:,} texts")
        elif depth == self.tu_depth:
            self.units.append(Unit(self.unit_line, self.variants))
            self.tu_depth = 0

    def text(self, text: str) -> None:
        if self.seg_depth and not self.code_depth:
            self.size += len(text)
            if self.size > MAX_TEXT:
                raise DataError(
                    f"{self.path}:{self.unit_line}: the texts of a unit have more than {MAX_TEXT:,} characters"
                )
            self.parts.append(text)


def _date(attributes: dict[str, str]) -> int:
    return date_of(attributes.get("changedate") or attributes.get("creationdate") or "")
