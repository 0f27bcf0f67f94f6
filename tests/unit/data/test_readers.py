"""The list of readers alone says which endings are files of pairs, and who reads them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtx.commands.train import resolve
from mtx.data.readers import FILE_ENDING, READERS, find_reader
from mtx.data.tables import PairBlock
from mtx.errors import DataError
from tests.unit.data.corpus_files import open_file, write
from tests.unit.data.sentences import sentences

MEMORIES = {
    "tmx": '<tmx><tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv></tu></tmx>',
    "po": 'msgid "a"\nmsgstr "b"\n',
    "pot": 'msgid "a"\nmsgstr "b"\n',
}
XLIFF = '<xliff srcLang="en" trgLang="de"><segment><source>a</source><target>b</target></segment></xliff>'
TABLES = {"tsv": "a\tb\n", "csv": "a,b\n", "jsonl": '{"en": "a", "de": "b"}\n'}


@pytest.mark.parametrize("ending", [ending for ending in READERS if ending != "parquet"])
def test_every_ending_in_the_list_is_read(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{ending.upper()}"
    path.write_text({**MEMORIES, **TABLES}.get(ending, XLIFF))
    assert FILE_ENDING.search(path.name) and FILE_ENDING.search(f"{path.name}.gz")
    assert (reader := find_reader(path)) and reader is READERS[ending]
    blocks: list[PairBlock] = list(reader(path, ("en", "de")))
    assert [(block.src, block.tgt) for block in blocks] == [(["a"], ["b"])]


def test_two_files_of_a_name_with_a_dot_are_no_file() -> None:
    assert not any(map(FILE_ENDING.search, ["news.2014", "train", "a.tsv.en"]))


FORMS = {
    "a.tsv": "".join(f"{src}\t{tgt}\n" for src, tgt in zip(sentences("en"), sentences("de"), strict=True)),
    "b.tsv": "German\tEnglish\nHund\tdog\nKatze\tcat\n",
    "c.csv": "id,source,German\n1,a dog,ein Hund\n2,a cat,eine Katze\n",
    "d.txt": "a dog ||| ein Hund\na cat ||| eine Katze\n",
    "e.jsonl": '{"en": "a dog", "de": "ein Hund"}\n',
    "f.po": 'msgid ""\nmsgstr "X-Source-Language: en\\nLanguage: de\\n"\n\n'
    'msgid "a dog"\nmsgstr "ein Hund"\n\nmsgid "a cat"\nmsgstr "eine Katze"\n',
    "g.tmx": '<tmx version="1.4"><body><tu><tuv xml:lang="en"><seg>a dog</seg></tuv>'
    '<tuv xml:lang="de"><seg>ein Hund</seg></tuv></tu></body></tmx>',
}


@pytest.mark.parametrize("name", FORMS)
def test_a_reading_continues_after_the_search_for_languages(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, FORMS[name])
    reader = find_reader(path)
    assert reader
    for languages in (("en", "de"), ("de", "en"), ("src", "tgt")):
        for columns in ((), ("2", "1")):
            expected = read_or_refuse(reader(path, languages, columns))
            file = open_file(path)
            read_or_refuse(iter([file.languages(columns)]))
            assert read_or_refuse(file.pairs(languages, columns)) == expected
            assert read_or_refuse(file.pairs(languages, columns)) == expected, "the next one begins again"


def read_or_refuse(blocks: Iterator[object]) -> object:
    try:
        return list(blocks)
    except DataError as error:
        return str(error)


def test_a_reading_does_not_continue_after_an_error(tmp_path: Path) -> None:
    file = open_file(
        write(tmp_path / "a.po", 'msgid "a dog"\nmsgstr "ein Hund"\n\nmsgid "a cat"\nmsgstr "eine Katze"\n\nx\n')
    )
    for _ in range(2):
        with pytest.raises(DataError, match="a.po:7"):
            file.find_languages()
        with pytest.raises(DataError, match="a.po:7"):
            list(file.pairs(("en", "de"), ()))


@pytest.mark.parametrize("name", ["a.tsv", "b.tsv", "f.po", "g.tmx"])
def test_a_file_is_read_once_for_its_languages_and_its_size(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / name, FORMS[name])
    opened = list[Path]()
    open_path = Path.open

    def count(path: Path, *arguments: Any, **keys: Any) -> Any:
        opened.append(path)
        return open_path(path, *arguments, **keys)

    monkeypatch.setattr(Path, "open", count)
    resolve([str(path), f"run_dir={tmp_path}/run"])
    assert opened.count(path) == 3, "first of all, its beginning shows twice what it is"
