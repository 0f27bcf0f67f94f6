"""The expected quality of a translation in XLIFF, TMX and PO."""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mtx.commands.translate import kind_of_document
from mtx.data.markup import Marked
from mtx.decoding.translator import Hypothesis
from mtx.documents.document import translate_document

ITS = "{http://www.w3.org/2005/11/its}"


@dataclass(frozen=True)
class Known(Hypothesis):
    """A translation whose quality is its length."""

    @property
    def quality(self) -> float:  # type: ignore[override]
        return float(len(self.text))

    @property
    def advice(self) -> str:  # type: ignore[override]
        return "look"


def known(segments: list[Marked]) -> list[Hypothesis]:
    return [Known(segment, 0.0, []) for segment in segments]


def unknown(segments: list[Marked]) -> list[Hypothesis]:
    return [Hypothesis(segment, 0.0, []) for segment in segments]


def translated(path: Path, text: str, translate: object = known) -> str:
    path.write_text(text, encoding="utf-8", newline="")
    kind = kind_of_document(path)
    assert kind is not None
    return translate_document(path, kind, ("en", "de"), True, translate).decode()  # type: ignore[arg-type]


XLIFF = (
    '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" source-language="en" '
    'target-language="de" datatype="plaintext"><body><trans-unit id="1"><source>A dog runs.</source></trans-unit>'
    '<trans-unit id="2"><source>Yes. A cat.</source><seg-source><mrk mtype="seg" mid="1">Yes.</mrk> '
    '<mrk mtype="seg" mid="2">A cat.</mrk></seg-source></trans-unit></body></file></xliff>'
)


def test_xliff_has_the_confidence_of_its_worst_segment(tmp_path: Path) -> None:
    once = translated(tmp_path / "a.xlf", XLIFF)
    root = ElementTree.fromstring(once)
    targets = [each for each in root.iter() if each.tag.endswith("target")]
    assert {each.attrib[f"{ITS}version"] for each in targets} == {"2.0"}
    assert [each.attrib[f"{ITS}mtConfidence"] for each in targets] == ["0.110", "0.040"]
    assert {each.attrib[f"{ITS}annotatorsRef"] for each in targets} == {"mt-confidence|mtx"}
    assert translated(tmp_path / "a.xlf", once) == once, "replaced, not repeated"
    assert "its" not in translated(tmp_path / "a.xlf", XLIFF, unknown)


@dataclass(frozen=True)
class Unlike(Known):
    """A translation of which the shortest have no quality, since they are unlike what the model was checked with."""

    @property
    def quality(self) -> float | None:  # type: ignore[override]
        return None if len(self.text) < 5 else super().quality


def unlike(segments: list[Marked]) -> list[Hypothesis]:
    return [Unlike(segment, 0.0, []) for segment in segments]


def test_a_unit_with_a_segment_without_an_estimate_has_none_and_loses_an_old_one(tmp_path: Path) -> None:
    old = translated(tmp_path / "a.xlf", XLIFF)
    assert old.count("mtConfidence") == 2
    for text in (XLIFF, old):
        root = ElementTree.fromstring(translated(tmp_path / "a.xlf", text, unlike))
        targets = [each for each in root.iter() if each.tag.endswith("target")]
        assert [each.attrib.get(f"{ITS}mtConfidence") for each in targets] == ["0.110", None]
        assert "Yes." in "".join(targets[1].itertext())
    po = 'msgid ""\nmsgstr "Language: de\\n"\n\nmsgid "Dog."\nmsgstr ""\n'
    once = translated(tmp_path / "a.po", po)
    assert "# mtx: quality 4" in once
    for text in (po, once):
        assert "quality" not in translated(tmp_path / "a.po", text, unlike)


def test_xliff_2_has_no_place_for_it_in_a_target(tmp_path: Path) -> None:
    text = (
        '<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de"><file id="f">'
        '<unit id="1"><segment><source>A dog.</source></segment></unit></file></xliff>'
    )
    assert "<target>A dog.</target>" in translated(tmp_path / "a.xlf", text)
    assert translated(tmp_path / "a.xlf", text) == translated(tmp_path / "a.xlf", text, unknown)


def test_tmx_has_a_property(tmp_path: Path) -> None:
    source = '<tuv xml:lang="en"><seg>A dog.</seg></tuv>'
    unit = f'<tmx version="1.4"><header srclang="en"/><body><tu>{source}{{}}</tu></body></tmx>'
    whole = unit.format(
        '<tuv xml:lang="de"><note>n</note><prop type="x-mtx-quality">6, look</prop><seg>A dog.</seg></tuv>'
    )
    assert translated(tmp_path / "a.tmx", whole) == whole
    assert translated(tmp_path / "a.tmx", unit.format("")) == whole.replace("<note>n</note>", "")
    assert "prop" not in translated(tmp_path / "a.tmx", unit.format(""), unknown)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_po_has_a_comment(tmp_path: Path, line_end: str) -> None:
    text = (
        'msgid ""\nmsgstr "Language: de\\n"\n\n# kept\n#: a.c:1\nmsgid "A dog."\nmsgstr ""\n\n'
        '#, c-format\nmsgid "One cat"\nmsgid_plural "%d cats."\nmsgstr[0] ""\nmsgstr[1] ""\n'
    ).replace("\n", line_end)
    once = translated(tmp_path / "a.po", text)
    comments = [line for line in once.split(line_end) if line.startswith("#")]
    assert comments == [
        "# kept", "#: a.c:1", "#, fuzzy", "# mtx: quality 6, look", "#, c-format, fuzzy", "# mtx: quality 7, look",
    ]  # fmt: skip
    assert translated(tmp_path / "a.po", once) == once, "replaced, not repeated"
    assert "quality" not in translated(tmp_path / "a.po", once, unknown), "what is new has no estimate"


def test_a_page_shows_no_quality_and_does_not_compute_it(tmp_path: Path) -> None:
    class Unasked(Hypothesis):
        @property
        def quality(self) -> float:
            raise AssertionError

    def translate(segments: list[Marked]) -> list[Hypothesis]:
        return [Unasked(segment, 0.0, []) for segment in segments]

    for name, text in (("a.html", "<p>a dog</p>"), ("a.md", "a dog\n")):
        assert translated(tmp_path / name, text, translate) == text
