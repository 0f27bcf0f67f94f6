"""Of several translations of one source the newest is learned from, and the others are counted."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mtx.config.schema import DataConfig
from mtx.data import prepare
from mtx.data.cleaning import choose_translations, hash_pairs
from mtx.data.sources import Corpora, Corpus
from mtx.data.tables import PairBlock
from mtx.data.token_store import PreparedData
from tests.unit.data.test_prepare import GIVEN, Pair, conserves, pairs, run, text_of, write

TEXT = pairs(330)


def chosen(*columns: list[int]) -> list[int]:
    return choose_translations(*(np.array(column, np.uint64) for column in columns)).tolist()


def test_the_latest_date_counts_and_of_equal_dates_the_last() -> None:
    sources, targets, dates = [7, 5, 9, 7, 5, 5, 2**63], [*range(7)], [30, 10, 0, 20, 10, 3, 1]
    for files in ([1] * 7, [*range(7)]):
        assert chosen(sources, targets, dates, files) == [0, 4, 2, 0, 4, 4, 6]
    assert chosen([], [], [], []) == []


def test_without_dates_the_translation_of_most_files_counts_and_of_several_the_last() -> None:
    sources, targets = [5, 5, 5, 5, 7, 7], [1, 2, 1, 3, 1, 2]
    assert chosen(sources, targets, [1] * 6, [1, 2, 3, 4, 1, 2]) == [2, 2, 2, 2, 5, 5]
    assert chosen(sources, targets, [1] * 6, [1, 2, 1, 4, 1, 2]) == [3, 3, 3, 3, 5, 5], "both are in one file"
    assert chosen(sources, targets, [1, 2, 1, 1, 1, 1], [1, 2, 3, 4, 1, 2]) == [1, 1, 1, 1, 5, 5]


def test_the_files_of_a_pair_are_counted_exactly() -> None:
    """Each translation in one file more wins, whatever other pairs and corpora there are (a brute-force count)."""
    rng = np.random.default_rng(1)
    for num_files in (2, 3, 7):
        rows = rng.integers([40, 3, num_files], size=(600, 3)).astype(np.uint64)
        sources, targets, corpora = rows.T
        files = hash_pairs(corpora, np.zeros(600, np.uint64))
        chosen = choose_translations(sources, targets, np.ones(600, np.uint64), files)
        for source in range(40):
            [row] = {*chosen[sources == source].tolist()}
            held = {tgt: len({*corpora[(sources == source) & (targets == tgt)].tolist()}) for tgt in (0, 1, 2)}
            assert held[int(targets[row])] == max(held.values())


def memory(path: Path, units: list[tuple[str, str, int]], date: str = "{}0101T000000Z") -> str:
    """A memory of sources, translations and years."""
    tuv = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    text = "\n".join(
        f'<tu changedate="{date.format(year)}">{tuv.format("xx", src)}{tuv.format("yy", tgt)}</tu>'
        for src, tgt, year in units
    )
    path.write_text(f'<tmx version="1.4"><header/><body>\n{text}\n</body></tmx>', encoding="utf-8")
    return str(path)


def prepared(tmp_path: Path, train: tuple[str, ...], *overrides: str) -> PreparedData:
    for name, text in (("dev", TEXT[300:310]), ("flickr", TEXT[310:320]), ("news", TEXT[320:]), ("rest", TEXT[:300])):
        write(tmp_path / name, text)
    return run(tmp_path, *GIVEN, *overrides, train=("rest", *train))


def added(data: PreparedData) -> list[str]:
    rest: set[Pair] = set(TEXT)
    return [tgt for src, tgt in text_of(data.train) if (src, tgt) not in rest]


@pytest.mark.parametrize(
    "duplicates, targets",
    [("auto", ["new", "x", "y"]), ("newest", ["new", "y"]), ("all", ["new", "x", "y", "old"])],
)
def test_the_newest_translation_counts_in_memories(tmp_path: Path, duplicates: str, targets: list[str]) -> None:
    new = memory(tmp_path / "new.tmx", [("a dog", "new", 2025)])
    old = memory(tmp_path / "old.tmx", [("a dog", "old", 2024)])
    (tmp_path / "t.tsv").write_text("a cat\tx\na cat\ty\n")
    data = prepared(tmp_path, (new, str(tmp_path / "t.tsv"), old), f"data.duplicates={duplicates}")
    assert added(data) == targets and conserves(data.report)
    older = {"all": 0, "auto": 1, "newest": 2}[duplicates]
    assert sum(corpus["dropped"].get("older translation", 0) for corpus in data.report["corpora"]) == older
    if duplicates == "auto":
        example = data.report["dropped"]["older translation"]["example"]
        assert example == {"corpus": old, "line": 2, "src": "a dog", "tgt": "old"}


@pytest.mark.parametrize("form", ["31.12.{}", "31.12.{} 10:00:00", "12/31/{}", "{}"])
def test_a_date_in_another_form_counts_as_none_and_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    """By its digits, 31.12.2018 was later than 2025, and 01.02.2025 earlier than 2019."""
    new = memory(tmp_path / "new.tmx", [("a dog", "new", 2017)])
    old = memory(tmp_path / "old.tmx", [("a dog", "old", 2018), ("a cow", "both", 2018), ("a hen", "one", 2018)], form)
    undated = memory(tmp_path / "undated.tmx", [("a cow", "both", 0), ("a hen", "last", 0)], "")
    more = memory(tmp_path / "more.tmx", [("a cow", "one", 2025)], form)
    data = prepared(tmp_path, (new, old, more, undated))
    assert sorted(added(data)) == ["both", "last", "new"]
    [warning] = [each.getMessage() for each in caplog.records if "date" in each.getMessage()]
    assert warning.startswith(f"4 units with a date that cannot be read count as undated, such as {old}:2: ")


def test_dates_of_catalogues_are_read_with_their_zone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalogues = []
    for name, date in (("a", "2024-05-01 23:00-0300"), ("b", "2024-05-02 01:30+0000"), ("c", "YEAR-MO-DA HO:MI+ZONE")):
        path = tmp_path / f"{name}.po"
        header = f'msgid ""\nmsgstr "Language: yy\\nX-Source-Language: xx\\nPO-Revision-Date: {date}\\n"\n'
        path.write_text(f'{header}\nmsgid "a dog"\nmsgstr "{name}"\n', encoding="utf-8")
        catalogues.append(str(path))
    assert added(prepared(tmp_path, tuple(catalogues))) == ["a"] and "undated" not in caplog.text


def test_a_pair_that_cleaning_drops_displaces_no_other(tmp_path: Path) -> None:
    copied = memory(tmp_path / "m.tmx", [("dog", "Hund", 2001), ("dog", "dog", 2002), (" dog", "a\ufffdb", 2003)])
    data = prepared(tmp_path, (copied,))
    assert added(data) == ["Hund"]
    assert data.report["corpora"][1]["dropped"] == {"identical": 1, "control characters": 1}


def test_the_training_text_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = list[str]()
    find = prepare.find_corpora

    def counted(corpus: Corpus) -> Iterator[PairBlock]:
        reads.append(corpus.name)
        return corpus.blocks()

    def find_counted(data: DataConfig) -> Corpora:
        found = find(data)
        return replace(found, train=[replace(corpus, blocks=partial(counted, corpus)) for corpus in found.train])

    monkeypatch.setattr(prepare, "find_corpora", find_counted)
    write(tmp_path / "train", TEXT)
    name = memory(tmp_path / "m.tmx", [("a dog", "new", 2025)])
    assert conserves(run(tmp_path, "data.terms=auto", train=("train", name)).report)
    assert reads == ["train", name]
