"""A document says which direction of a model it needs."""

from pathlib import Path

import pytest

from mtx.documents.document import find_direction
from mtx.errors import UsageError

DIRECTIONS = [("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "en")]
XLIFF = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="{src}" {more}
original="a" datatype="plaintext"><body><trans-unit id="1"><source>Hello</source></trans-unit></body></file></xliff>"""
TMX = """<tmx version="1.4"><header srclang="{src}" segtype="sentence" datatype="x" o-tmf="x" adminlang="en"
creationtool="x" creationtoolversion="1"/><body><tu><tuv xml:lang="en"><seg>Hello</seg></tuv><tuv xml:lang="fr-CA">
<seg>Bonjour</seg></tuv></tu></body></tmx>"""
PO = 'msgid ""\nmsgstr ""\n"Language: {tgt}\\n"\n\nmsgid "Hello"\nmsgstr ""\n'


@pytest.mark.parametrize(
    "kind, text, expected",
    [
        ("xliff", XLIFF.format(src="en-GB", more='target-language="fr-FR"'), ("en", "fr")),
        ("xliff", XLIFF.format(src="fr", more=""), ("fr", "en")),
        ("tmx", TMX.format(src="en"), ("en", "fr")),
        ("tmx", TMX.format(src="fr"), ("fr", "en")),
        ("po", PO.format(tgt="de"), ("en", "de")),
    ],
)
def test_the_languages_of_a_document_choose(tmp_path: Path, kind: str, text: str, expected: tuple[str, str]) -> None:
    path = tmp_path / f"document.{kind}"
    path.write_text(text)
    assert find_direction(path, kind, DIRECTIONS) == expected


@pytest.mark.parametrize(
    "kind, text, problem",
    [
        ("xliff", XLIFF.format(src="en", more=""), r"is en to \?, the model has en-de, en-fr$"),
        ("xliff", XLIFF.format(src="it", more=""), r"is it to \?, the model has en-de, en-fr, de-en, fr-en$"),
        ("po", PO.format(tgt="en"), r"is \? to en, the model has de-en, fr-en$"),
        ("po", 'msgid "Hello"\nmsgstr ""\n', r"is \? to \?, the model has en-de, en-fr, de-en, fr-en$"),
    ],
)
def test_unclear_languages_are_an_error(tmp_path: Path, kind: str, text: str, problem: str) -> None:
    path = tmp_path / f"document.{kind}"
    path.write_text(text)
    with pytest.raises(UsageError, match=problem):
        find_direction(path, kind, DIRECTIONS)
