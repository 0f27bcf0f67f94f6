"""`mtx translate MODEL FILE.xliff` and the like: the document comes back with translations, by either engine."""

import random
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from mtx.decoding.translator import Translator
from tests.integration.commands import mtx, pairs

STATE = "needs-review-translation"
CODE = re.compile("<[^>]*>")


def xliff(sources: list[str]) -> str:
    units = [f'<trans-unit id="{n}"><source>{source}</source></trans-unit>' for n, source in enumerate(sources)]
    file = '<file source-language="en" target-language="de"><body>\n{}\n</body></file>'
    return f'<xliff version="1.2">{file.format(chr(10).join(units))}</xliff>\n'


def with_tags(text: str, rng: random.Random) -> str:
    """A sentence with tags around some of its words, and one that stands alone."""
    words = text.split()
    start = rng.randrange(len(words))
    stop = rng.randint(start + 1, len(words))
    inner = rng.randrange(start, stop)
    words[inner] = f'<x id="3"/>{words[inner]}'
    words[start] = f'<g id="1">{words[start]}'
    words[stop - 1] += "</g>"
    return " ".join(words)


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_every_tag_comes_out_once_and_the_text_is_that_without_tags(trained: Path, engine: str, tmp_path: Path) -> None:
    options: list[Any] = ["--engine", engine]
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
        options += ["--precision", "fp32"]
    rng, texts = random.Random(1), [src for src, _ in pairs(range(100, 160))]
    document, out = tmp_path / "a.xlf", tmp_path / "out.xlf"
    sources = [with_tags(text, rng) for text in texts]
    document.write_text(xliff(sources), encoding="utf-8")
    result = mtx("translate", trained, document, "-o", out, *options)
    assert result.returncode == 0 and b"60 segments translated" in result.stderr, result.stderr.decode()
    root = ElementTree.fromstring(out.read_text(encoding="utf-8"))
    targets = list(root.iter("target"))
    assert {target.attrib["state"] for target in targets} == {STATE}
    raw = re.findall(r"<target[^>]*>(.*?)</target>", out.read_text(encoding="utf-8"))
    assert [sorted(CODE.findall(target)) for target in raw] == [sorted(CODE.findall(source)) for source in sources]
    written = [" ".join("".join(target.itertext()).split()) for target in targets]
    assert written == [" ".join(text.split()) for text in Translator.load(trained, engine="torch").translate(texts)]
    without = re.sub(f'<target state="{STATE}">.*?</target>', "", out.read_text(encoding="utf-8"))
    assert without == document.read_text(encoding="utf-8")
    printed = mtx("translate", trained, out, "--engine", engine)
    assert printed.stdout == out.read_bytes() and b"0 segments translated" in printed.stderr


def test_options_that_are_for_lines_are_refused(trained: Path, tmp_path: Path, refused: Any) -> None:
    document, text = tmp_path / "a.xlf", tmp_path / "a.txt"
    document.write_text(xliff(["one"]), encoding="utf-8")
    text.write_text("one\n")
    for options in (["--n-best", "2"], ["--prefix", text], ["--json"]):
        refused(2, ["a.xlf: is a document", "--n-best, --prefix and --json"], "translate", trained, document, *options)
    refused(2, ["--overwrite is for documents"], "translate", trained, text, "--overwrite")
    refused(2, ["a.xlf", "reads the file"], "translate", trained, document, "-o", document)
    document.write_text(xliff(["one"]).replace('"de"', '"fr"'), encoding="utf-8")
    refused(2, ["a.xlf: is en to fr, the model translates en to de"], "translate", trained, document)
    document.write_text(xliff(["one"])[:-20], encoding="utf-8")
    out = tmp_path / "out"
    out.write_text("before")
    refused(1, ["a.xlf:3: damaged XML"], "translate", trained, document, "-o", out)
    assert out.read_text() == "before", "nothing is lost"
