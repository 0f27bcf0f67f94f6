"""Reads translation memories in TMX (1.1 to 1.4b) as units. Flow: file -> `xml_stream` -> `Unit` -> `bilingual`.

Inline codes and what they hold are left out: the content of bpt, ept, it, ph and ut is code of another program. The
text in hi stays.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from mtx.data.bilingual import Unit, Variant, date_of, one_line, read_units
from mtx.errors import DataError
from mtx.files.xml_stream import MAX_PARTS, MAX_TEXT

_CODES = frozenset(["bpt", "ept", "it", "ph", "ut"])
_BREAKS = frozenset(["lb", "br", "x-lb", "x-br"])  # types of codes that stand for a line break


def read_tmx(path: Path) -> Iterator[Unit]:
    """The units of a memory, one after the other.

    Raises:
        DataError: if it is not TMX or damaged, see `read_xml`.
    """
    return read_units(path, _Handler(path), "TMX")


class _Handler:
    """Collects units. `parts` is the text of the open seg, or None outside; `codes` the number of open inline codes."""

    def __init__(self, path: Path):
        self.path, self.is_known = path, False
        self.units: list[Unit] = []
        self.parts: list[str] | None = None
        self.variants: list[Variant] = []
        self.depth = self.codes = self.size = self.unit_line = self.unit_date = self.date = 0
        self.line: Callable[[], int] = int
        self.language = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.parts is not None:
            if name in _CODES:
                self.codes += 1
                if attributes.get("type") in _BREAKS:
                    self.parts.append(" ")
        elif name == "seg":
            self.parts, self.codes = [], 0
        elif name == "tuv":
            self.language = attributes.get("xml:lang") or attributes.get("lang") or ""
            self.date = _date(attributes) or self.unit_date
        elif name == "tu":
            self.unit_line, self.variants, self.unit_date, self.size = self.line(), [], _date(attributes), 0
        elif name == "tmx":
            self.is_known = True

    def end(self, name: str) -> None:
        self.depth -= 1
        if name == "seg" and self.parts is not None:
            text = one_line("".join(self.parts))
            self.variants.append(Variant(self.language, text.strip(), self.date))
            self.parts = None
            if len(self.variants) > MAX_PARTS:
                raise DataError(f"{self.path}:{self.unit_line}: a unit has more than {MAX_PARTS:,} texts")
        elif name == "tu":
            self.units.append(Unit(self.unit_line, self.variants))
        elif name in _CODES and self.codes:
            self.codes -= 1

    def text(self, text: str) -> None:
        if self.parts is not None and not self.codes:
            self.size += len(text)
            if self.size > MAX_TEXT:
                raise DataError(
                    f"{self.path}:{self.unit_line}: the texts of a unit have more than {MAX_TEXT:,} characters"
                )
            self.parts.append(text)


def _date(attributes: dict[str, str]) -> int:
    return date_of(attributes.get("changedate") or attributes.get("creationdate") or "")
