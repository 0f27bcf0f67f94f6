"""An empty translation of a text leaves its segment as it was, in documents of each kind, and is counted as left."""

import logging
from pathlib import Path

import pytest

from mtx.commands.translate import kind_of_document
from mtx.data.markup import Marked, text_of
from mtx.decoding.translator import Hypothesis
from mtx.documents.document import translate_document
from tests.unit.documents.test_quality_notes import Known

MARK = '<mrk mtype="seg" mid="{}">{}</mrk>'
MARKS = "".join(MARK.format(*each) for each in enumerate(["Lost.", "A cat."]))
XLIFF_1 = '<xliff version="1.2"><file source-language="en"{}><body>{}</body></file></xliff>'
XLIFF_2 = '<xliff version="2.0" srcLang="en"{}><file id="f"><unit id="u">{}</unit></file></xliff>'
GERMAN = ' target-language="de"'
UNIT = "<trans-unit><source>{}</source>{}</trans-unit>"
TMX = '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>Lost</seg></tuv>{}</tu></body></tmx>'
NEW = '<target state="needs-review-translation">'


def weak(segments: list[Marked]) -> list[Hypothesis]:
    """A model that writes white space for each text with the word Lost, and capitals for others."""
    results = list[Hypothesis]()
    for segment in segments:
        is_lost = "lost" in text_of(segment).lower()
        marked = [part if not isinstance(part, str) else " " if is_lost else part.upper() for part in segment]
        results.append(Known(marked, 0.0, []))
    return results


def translated(path: Path, text: str, overwrite: bool = True) -> str:
    path.write_text(text, encoding="utf-8", newline="")
    kind = kind_of_document(path)
    assert kind is not None
    return translate_document(path, kind, ("en", "de"), overwrite, weak).decode()


@pytest.mark.parametrize(
    "name, text, number",
    [
        ("a.xlf", XLIFF_1.format(GERMAN, UNIT.format("Lost", "")), 1),
        ("a.xlf", XLIFF_1.format(GERMAN, UNIT.format("Lost <x id='1'/> it", "<target state='new'>alt</target>")), 1),
        ("a.xlf", XLIFF_1.format(GERMAN, UNIT.format("Lost", "<target/>") + UNIT.format("I lost", "")), 2),
        ("a.xlf", XLIFF_2.format(" trgLang='de'",
         "<segment state='initial'><source>Lost</source><target>a</target></segment>"), 1),
        ("a.tmx", TMX.format(""), 1),
        ("a.tmx", TMX.format('<tuv xml:lang="de"><prop type="x-mtx-quality">6, look</prop><seg>alt</seg></tuv>'), 1),
        ("a.po", '#, fuzzy\nmsgid "Lost %d"\nmsgstr "alt"\n\nmsgid "_Lost"\nmsgstr ""\n', 2),
        ("a.po", '# mtx: quality 6, look\n#, fuzzy\nmsgid "Lost"\nmsgid_plural "%d lost"\nmsgstr[0] "alt"\n', 1),
        ("a.po", '#, c-format, markdown-text\nmsgid "Lost\\n\\nI **lost**\\n"\nmsgstr "alt"\n', 2),
        ("a.html", "<h1>Lost</h1><p title='lost' class=a>I <b>lost</b> &auml;", 3),
        ("a.md", '# Lost\n\nI *lost*\nit\n\n| lost | ![Lost](a.png "lost") |\n|---|---|\n', 5),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\n- I lost\nit\n- <i>Lost</i>\n", 2),
    ],
)  # fmt: skip
def test_a_segment_without_a_translation_stays_as_it_was(
    name: str, text: str, number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert translated(tmp_path / name, text) == text
    left = "1 empty translation" if number == 1 else f"{number} empty translations"
    assert f"{name}: 0 segments translated, {number} left ({left})" in caplog.text


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("a.xlf", XLIFF_1.format("", UNIT.format("Lost", "") + UNIT.format("A cat", "")),
         XLIFF_1.format(GERMAN, UNIT.format("Lost", "") + UNIT.format("A cat", f"{NEW}A CAT</target>"))
         ),
        ("a.po", '#, fuzzy\nmsgid "Lost"\nmsgid_plural "a cat"\nmsgstr[0] "alt"\nmsgstr[1] ""\n',
         '#, fuzzy\nmsgid "Lost"\nmsgid_plural "a cat"\nmsgstr[0] "alt"\nmsgstr[1] "A CAT"\n'),
        ("a.po", '#, fuzzy, markdown-text\nmsgid "Lost\\n\\na cat"\nmsgstr ""\n',
         '#, fuzzy, markdown-text\nmsgid "Lost\\n\\na cat"\nmsgstr "Lost\\n\\nA CAT"\n'),
        ("a.html", "<p title='lost'>a cat</p>", "<p title='lost'>A CAT</p>"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\n- I lost\nit\n- a cat\n",
         "1\n00:00:01,000 --> 00:00:02,000\n- I lost\nit\n- A CAT\n"),
    ],
)  # fmt: skip
def test_its_neighbours_are_translated(
    name: str, text: str, expected: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    result = translated(tmp_path / name, text)
    without_notes = "".join(line for line in result.splitlines(True) if not line.startswith("# mtx: quality"))
    assert without_notes.replace(f' {ITS}="0.050"', "") == expected
    assert f"{name}: 1 segment translated, 1 left (1 empty translation)" in caplog.text


ITS = (
    'xmlns:its="http://www.w3.org/2005/11/its" its:version="2.0" its:annotatorsRef="mt-confidence|mtx" its:mtConfidence'
)


@pytest.mark.parametrize(
    "target, expected",
    [
        (MARK.format(0, "alt") + " " + MARK.format(1, "alt"), MARK.format(0, "alt") + " " + MARK.format(1, "A CAT.")),
        (MARK.format(0, "") + MARK.format(1, ""), MARK.format(0, "") + MARK.format(1, "A CAT.")),
    ],
)
@pytest.mark.parametrize("overwrite, state", [(True, ""), (False, ' state="new"')])
def test_a_segment_of_a_unit_stays_as_it_was(
    target: str, expected: str, overwrite: bool, state: str, tmp_path: Path
) -> None:
    sides = "<seg-source>{}</seg-source><target{}>{}</target>"
    text = XLIFF_1.format("", UNIT.format("Lost. A cat.", sides.format(MARKS, state, target)))
    assert f">{expected}</target>" in translated(tmp_path / "a.xlf", text, overwrite)


def test_a_text_without_letters_may_be_its_own_translation(tmp_path: Path) -> None:
    text = TMX.format("").replace("Lost", "👍")
    assert '<tuv xml:lang="de"><prop' not in text and "<seg>👍</seg></tuv></tu>" in translated(tmp_path / "a.tmx", text)


def test_a_cue_without_a_translation_is_readable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    text = "by Ann\n\n1\n00:00:01,000 --> 00:00:02,000\nLost\n"
    assert translated(tmp_path / "a.srt", text) == text
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "2 left (1 unreadable cue, 1 empty translation)" in caplog.text
