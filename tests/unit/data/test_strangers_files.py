"""Files of pairs as other programs and people leave them: read, or refused with the command that mends them."""

import json
import subprocess
from pathlib import Path

import pytest

from mtx.config.schema import DataConfig
from mtx.data.sources import find_corpora
from mtx.data.tables import language_of_column
from mtx.data.text_arguments import describe
from mtx.errors import DataError, UsageError
from tests.unit.data.corpus_files import find_languages, open_file
from tests.unit.data.sentences import sentences

PAIRS = list(zip(sentences("en", 12), sentences("fr", 12), strict=True))
UNKNOWN = [f"{word}xq {number} kwe{word}" for number, word in enumerate("bfghjklmnpqr")]


def pairs_of(path: Path) -> list[tuple[str, str]]:
    src, tgt, _ = find_languages(path)
    return [pair for block in open_file(path).pairs((src, tgt), ()) for pair in zip(block.src, block.tgt, strict=True)]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("hub.json", lambda en, fr: json.dumps({"translation": {"en": en, "fr": fr}})),
        ("a.txt", lambda en, fr: f"{en} ||| {fr}"),
        ("a.jsonl", lambda en, fr: json.dumps({"source": en, "target": fr})),
    ],
)
def test_pairs_in_the_forms_of_other_programs_are_read(name: str, write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (path := tmp_path / name).write_text("".join(write(*pair) + "\n" for pair in PAIRS))
    assert describe([str(path)], []) == [f"data.train={path}", f"run_dir=runs/{path.name.removesuffix('.jsonl')}"]
    assert pairs_of(path) == PAIRS


@pytest.mark.parametrize(
    "header",
    ["English words/sentences,French words/sentences", "English sentences,French sentences", "text_en,text_fr",
     "sentence_eng_Latn,sentence_fra_Latn", "English (UK),French text"],
)  # fmt: skip
def test_a_header_names_the_languages_in_more_words(header: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text(f"{header}\na lamp,une lampe\n")
    assert find_languages(path) == ("en", "fr", "its header")
    assert pairs_of(path) == [("a lamp", "une lampe")]
    assert [language_of_column(name) for name in ("words", "text", "Source text", "Yoruba")] == [None, None, None, "yo"]


def test_text_in_subwords_gets_a_warning_with_the_command_that_joins_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{en.replace('a', 'a@@ ')}\t{fr}\n" for en, fr in PAIRS))
    (corpus,) = find_corpora(DataConfig(train=(str(path),), src="en", tgt="fr")).train
    for _ in range(2):
        list(corpus.blocks())
    assert f"{path}: expected lines of text, got text in subwords: sed -E 's/@@( |$)//g' FILE" in caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once, although it is read twice"
    caplog.clear()
    path.write_text("".join(f"{en}\t{fr}\n" for en, fr in PAIRS))
    list(corpus.blocks())
    assert "expected lines" not in caplog.text


@pytest.mark.parametrize("text", [json.dumps([{"en": "a", "fr": "b"}]), json.dumps([{"en": "a", "fr": "b"}], indent=1)])
def test_an_array_gets_a_command_that_makes_lines_of_it(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match="a.json:1: ") as error:
        pairs_of(path)
    assert error.value.help == f"write one object per line: jq -c 'arrays[] // .' {path} > NEW.jsonl"


@pytest.mark.parametrize(
    "name, text, kind, advice",
    [
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\na lamp\n", "subtitles", "to train, write one pair per line"),
        ("a.txt", "\\id RUT\n\\c 1\n\\v 1 the cat\n", r"a marked text of the Bible \(USFM\)", "without marks"),
        (
            "a.json",
            '{\n  "open": "Open"\n}\n',
            r"keys with messages \(JSON, YAML, Fluent and the like\)",
            "PO or XLIFF",
        ),
        ("a.txt", "a lamp\nthe cat\n", "single sentences", "write one pair per line"),
    ],
)
def test_a_file_without_pairs_is_called_what_it_is(
    name: str, text: str, kind: str, advice: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=f"expected sentence pairs, got {kind}$") as error:
        describe([str(tmp_path / name)], [])
    assert advice in str(error.value.help)


@pytest.mark.parametrize("src", ["a\tlamp\nthe cat\n", "a lamp\nthe\tcat\n"])
def test_two_files_are_joined_by_the_command_that_is_printed_whatever_tabs_they_have(src: str, tmp_path: Path) -> None:
    for name, text in (("a.en", src), ("b.fr", "une lampe\nle chat\n")):
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=r"a\.en: expected sentence pairs") as error:
        describe([str(tmp_path / "a.en"), str(tmp_path / "b.fr")], [])
    command = str(error.value.help).partition("join any two: ")[2].partition(", and ")[0]
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    (block,) = open_file(tmp_path / "pairs.txt").pairs(("en", "fr"), ())
    assert (block.src, block.tgt) == (src.splitlines(), ["une lampe", "le chat"])


@pytest.mark.parametrize(
    ("name", "hint"),
    [("english-szl.tsv", "data.src=en data.tgt=CODE"), ("my.tsv", "data.src=en data.tgt=CODE"),
     ("en_uz.tsv", "data.src=en data.tgt=uz"), ("Zulu.tsv", "data.src=en data.tgt=zu")],
)  # fmt: skip
def test_an_unknown_second_language_is_that_of_the_name_or_left_open(name: str, hint: str, tmp_path: Path) -> None:
    rows = zip(sentences("en", 12), UNKNOWN, strict=True)
    (path := tmp_path / name).write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows))
    with pytest.raises(UsageError, match="cannot tell its two languages: found en$") as error:
        find_languages(path)
    assert str(error.value.help).endswith(hint)
