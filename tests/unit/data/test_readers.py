"""The list of readers alone says which endings are files of pairs, and who reads them."""

from pathlib import Path

import pytest

from mtx.data.readers import FILE_ENDING, READERS, reader_of
from mtx.data.tables import PairBlock

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
    assert reader_of(path) is READERS[ending]
    blocks: list[PairBlock] = list(reader_of(path)(path, ("en", "de")))
    assert [(block.src, block.tgt) for block in blocks] == [(["a"], ["b"])]


def test_two_files_of_a_name_with_a_dot_are_no_file() -> None:
    assert not any(map(FILE_ENDING.search, ["news.2014", "train", "a.tsv.en"]))
