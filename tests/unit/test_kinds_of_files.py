"""What each kind of file gets, as a document, as training text, as lines and in Python: the table of the docs."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtx.commands.translate import kind_of_document
from mtx.data.readers import READERS, find_reader
from mtx.data.tables import read_text
from mtx.errors import DataError, UsageError
from mtx.storage.text_files import KINDS, kind_of, unlike_lines

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "text-formats.md"
SENTENCES = b"The lamp is red.\nA cat sleeps.\n"
# The beginning of the first cell of a row, and files of that kind: a name, and its content
FILES: dict[str, list[tuple[str, bytes]]] = {
    "sentences, one": [("a.txt", SENTENCES), ("a", b"Anna: Hello, Tom!\nTom: Hello, Anna!\n")],
    "two files": [("a.en", SENTENCES)],
    "lyrics": [
        ("a.lrc", b"[ar:Anna]\n[00:12.00]The lamp is red.\n"),
        ("chat.txt", b"12/03/2026, 14:05 - Anna: The lamp is red.\n12/03/2026, 14:06 - Tom: Yes.\n"),
    ],
    "XLIFF": [
        ("a.xlf", b'<xliff srcLang="en" trgLang="de"><segment><source>a</source><target>b</target></segment></xliff>')
    ],
    "translation memory": [
        ("a.tmx", b'<tmx><tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv></tu></tmx>')
    ],
    "message catalogue": [("a.po", b'msgid "a"\nmsgstr "b"\n'), ("a.txt", b'# by Anna\nmsgid "a"\nmsgstr "b"\n')],
    "HTML page": [("a.html", b"<!DOCTYPE html>\n<html><p>The lamp</p></html>\n")],
    "Markdown": [("a.md", b"# The lamp\n\nIt is *red*.\n")],
    "subtitles": [
        ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nThe lamp\n"),
        ("a.txt", b"\xef\xbb\xbfWEBVTT\n\n00:01.000 --> 00:02.000\nThe lamp\n"),
    ],
    "other subtitles": [
        ("a.ass", b"[Script Info]\nTitle: x\n"),
        ("a.txt", b"0:00:01.000,0:00:02.000\nThe lamp is red.\n"),
    ],
    "table with TABs": [("a.tsv", b"a lamp\teine Lampe\na cat\teine Katze\n"), ("a.txt", b"1\ta lamp\n2\ta cat\n")],
    "table with commas": [("a.csv", b"a lamp,eine Lampe\na cat,eine Katze\n")],
    "pairs with": [("a.txt", b"a lamp ||| eine Lampe\na cat|||eine Katze\n")],
    "JSON lines": [
        ("a.jsonl", b'{"en": "a lamp", "de": "eine Lampe"}\n'),
        ("a.json", b'{"translation": {"en": "a lamp", "de": "eine Lampe"}}\n'),
        ("a.txt", b'{"source": "a lamp", "target": "eine Lampe"}\n'),
    ],
    "notebook": [("a.ipynb", b'{\n "cells": [\n  {\n'), ("a.txt", b'{"cells": []}\n')],
    "keys with messages": [
        ("g.json", b'{\n  "open": "Open",\n  "close": "Close"\n}\n'),
        ("a.ftl", b"lamp = The lamp is red.\ncat = { $name } sleeps.\n    .label = A cat\n"),
        ("a.txt", b"# Messages\n\nlamp = The lamp is red.\n-cat = A cat\n"),
        ("b.txt", b"menu.open=Open the file\nmenu.close = Close it\n"),
        ("c.txt", b'/* A button */\n"open" = "Open the file";\n'),
        ("d.txt", b'en:\n  open: "Open the file"\n'),
        ("e.txt", b'[\n{"open": "Open the file"}]\n'),
        ("f.txt", b"[menu]\nopen = Open\nclose = Close\n"),
        ("g.yaml.j2", b"---\ntitle: Open the lamp\n\nmenu:\n  - name: Close\n    url: /lamp\n"),
        ("h.cfg", b"# Lamps\ntext: >\n  The lamp\n  is red.\n"),
    ],
    "LaTeX": [
        ("a.txt", b"\\documentclass{article}\n"),
        ("b.txt", b".. note:: The lamp\n"),
        ("c.asc", b"= Lamps\nAnna <anna@example.org>\n:toc: left\n\nThe lamp\n"),
        ("d.txt", b"The lamp is red.\n\n[source,bash]\n----\nlamp --red\n----\n"),
        ("e.txt", b"The lamp\n========\n\n.. code-block:: bash\n\n   lamp --red\n"),
        ("f.txt", b"* The lamp\n#+begin_src sh\nlamp --red\n#+end_src\n"),
    ],
    "export of Anki": [("a.txt", b"#separator:tab\n#html:true\na lamp\teine Lampe\tred\na cat\teine Katze\n")],
    "Bible text": [("a.usfm", b"\\id GEN\n\\c 1\n\\v 1 The lamp\n"), ("a.txt", b"\\v 1 The lamp\n\\v 2 A cat\n")],
    "sentences in subwords": [("a.txt", b"The l@@ amp is red.\nA c@@ at sleeps.\n")],
    "other XML": [("a.xml", b'<?xml version="1.0"?>\n<a/>\n'), ("a.ts", b"<!DOCTYPE TS>\n<TS/>\n")],
    "office documents": [("a.docx", b"PK\x03\x04" + bytes(30))],
}


def rows() -> dict[str, list[str]]:
    section = PAGE.read_text(encoding="utf-8").partition("## What each kind of file gets")[2].partition("\n## ")[0]
    table = [re.split(r" \| ", line[2:-2]) for line in section.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in table[1:]}


def as_training_text(path: Path) -> str:
    try:
        reader = find_reader(path)
        return "pairs" if reader and [block.src for block in reader(path, ("en", "de"))] else "refused"
    except (UsageError, DataError):
        return "refused"


def as_document(path: Path) -> str:
    try:
        return "document" if kind_of_document(path) else "lines"
    except UsageError as error:
        assert error.help
        return "refused"


def test_the_table_has_every_ending_and_every_kind() -> None:
    endings = {ending for cells in rows().values() for ending in re.findall(r"`\.(\w+)`", cells[0])}
    others = {"txt", "lrc", "json"}
    assert endings - others | {"json"} == {*READERS, *"|".join(kind.endings for kind in KINDS).split("|")}
    assert [name for name in rows() if not any(map(name.startswith, [*FILES, "Parquet"]))] == []


@pytest.mark.parametrize(("row", "name", "content"), [(row, *file) for row, files in FILES.items() for file in files])
def test_a_file_gets_what_the_table_says(row: str, name: str, content: bytes, tmp_path: Path) -> None:
    (cells,) = (cells for first, cells in rows().items() if first.startswith(row))
    (path := tmp_path / name).write_bytes(content)
    training = as_training_text(path)
    if row == "two files":
        (tmp_path / "a.de").write_bytes(content)
        training = "pairs" if list(read_text(path, tmp_path / "a.de")) else "refused"
    lines = content.decode("utf-8", "replace").splitlines()
    on_stdin = "refused" if kind_of(content, KINDS) else "lines"
    in_python = "warning" if unlike_lines(lines) else "lines"
    assert [as_document(path), training, on_stdin, in_python] == cells[1:]


def test_parquet_gets_what_the_table_says(tmp_path: Path) -> None:
    pq.write_table(pa.table({"en": ["a lamp"], "de": ["eine Lampe"]}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    found = [as_document(tmp_path / "a.parquet"), as_training_text(tmp_path / "a.parquet")]
    found += ["refused" if kind_of(content, KINDS) else "lines"]
    assert found == rows()["Parquet"][1:4]


def test_a_name_is_enough_and_a_catalogue_in_binary_form_is_refused(tmp_path: Path) -> None:
    for name, content in (
        ("a.adoc", b"= Lamps\n"),
        ("a.yml", b"lamp: red\n"),
        ("a.mo", b"\xde\x12\x04\x95" + bytes(30)),
    ):
        (tmp_path / name).write_bytes(content)
        assert as_document(tmp_path / name) == as_training_text(tmp_path / name) == "refused"


@pytest.mark.parametrize(
    "text",
    [
        "He said: the lamp = the light.\nA cat sleeps.\n",
        "\tThe lamp.\n\tA cat.\n",
        "1.\tThe lamp\n2.\tA cat\n",
        "Note:\n  the lamp is red.\n",
        "{name} sleeps.\n{0} lamps\n",
        "[1] The lamp\n[2] A cat\n",
        "Write to anna@@example or a@b @@ c\n",
        "import the lamp\nexport it\n",
        "12:05 The lamp\n13:05 A cat\n",
        "<p>The lamp</p>\n",
        "The lamp\tis red.\nA cat sleeps.\n",
        "= Lamps =\nNote: red\n",
        "# The lamp\n#+1 for a cat\n",
        "[x] The lamp\n---- \n",
        "The lamp...\n.. and a cat: red\n",
        "from: Anna\nto: Tom\n\nShopping:\n  - lamps\n",
        "Date: 6 June\nPresent:\n  Anna: late\n",
    ],
)
def test_lines_of_text_are_lines(text: str) -> None:
    assert kind_of(text.encode(), KINDS) is None
    assert unlike_lines(text.splitlines()) is None
