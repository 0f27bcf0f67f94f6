"""A folder of translators' files is one corpus: what is read, in which languages, and under which name."""

import gzip
import json
import logging
import re
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from mtx.config.settings import resolve
from mtx.data.prepare import prepare
from mtx.data.sources import Corpus, find_corpora
from mtx.data.tables import log_once
from mtx.data.text_arguments import describe, describe_languages
from mtx.errors import UsageError
from mtx.storage import durable
from mtx.storage.run_files import describe_sources, find_changed_files
from tests.unit.data.corpus_files import find_languages
from tests.unit.data.sentences import sentences

ENGLISH, GERMAN = sentences("en"), sentences("de")

PO = 'msgid ""\nmsgstr "{}"\n\nmsgid "a cat"\nmsgstr "{}"\n'
XLIFF = (
    '<xliff version="1.2"><file source-language="{}" target-language="{}"><body>'
    "<trans-unit><source>{}</source><target>{}</target></trans-unit></body></file></xliff>"
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def tmx(*units: tuple[str, str], languages: tuple[str, str] = ("en", "de")) -> str:
    body = "".join(
        "<tu>"
        + "".join(f'<tuv xml:lang="{k}"><seg>{v}</seg></tuv>' for k, v in zip(languages, unit, strict=True))
        + "</tu>"
        for unit in units
    )
    return f'<tmx version="1.4"><header srclang="{languages[0]}"/><body>{body}</body></tmx>'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "memories"
    write(folder / "b/m.tmx", tmx(("a dog", "ein Hund"), ("a cow", "eine Kuh"), languages=("en-GB", "de-AT")))
    write(folder / "c/locale/de/LC_MESSAGES/app.po", PO.format("Content-Type: text/plain\\n", "eine Katze"))
    write(folder / "a.tsv", "German\tEnglish\nein Pferd\ta horse\n")
    write(folder / "j.xlf", XLIFF.format("de", "en", "ein Esel", "an ass"))
    write(folder / "train.en", "a fox\n")
    write(folder / "train.de", "ein Fuchs\n")
    write(folder / "lone.en", "alone\n")
    write(folder / "notes.docx", "notes")
    write(folder / "c/template.pot", PO.format("", ""))
    write(folder / ".git/x.tsv", "hidden\tversteckt\n")
    write(folder / "runs/memories/metrics.jsonl", '{"step": 1}\n')
    write(folder / "fr.tmx", tmx(("a dog", "un chien"), languages=("en", "fr")))
    return folder


def train(name: str = "memories", *overrides: str) -> list[Corpus]:
    settings = [*describe([name], list(overrides)), *overrides]
    languages = describe_languages(resolve("own-text", settings))
    return find_corpora(resolve("own-text", [*settings, *languages]).config.data).train


def pairs(corpus: Corpus) -> list[tuple[str, str]]:
    return [pair for block in corpus.blocks() for pair in zip(block.src, block.tgt, strict=True)]


def test_the_files_that_readers_know_are_one_corpus(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="mtx"):
        [corpus] = train()
    assert corpus.name == "6 files of memories/" and corpus.languages == ("en", "de")
    assert pairs(corpus) == [
        ("a horse", "ein Pferd"), ("a dog", "ein Hund"), ("a cow", "eine Kuh"), ("a cat", "eine Katze"),
        ("an ass", "ein Esel"), ("a fox", "ein Fuchs"),
    ]  # fmt: skip
    assert "memories: 3 other files skipped, such as template.pot" in caplog.text
    assert "memories: other languages are skipped: en-fr (1 pairs); " in caplog.text
    assert "data.directions=en-de,en-fr" in caplog.text and "6 files of memories/: en to de (from " in caplog.text
    assert "warning" not in caplog.text.lower()


def test_the_folder_may_be_named_in_any_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memories", "./memories/", str(folder)):
        assert describe([name], []) == [f"data.train={Path(name)}/", "run_dir=runs/memories"]
        assert train(name)[0].name == "6 files of memories/"
    monkeypatch.chdir(folder)
    assert describe(["."], []) == ["data.train=./", "run_dir=runs/memories"]
    assert train(".")[0].name == "6 files of memories/"
    write(folder / "config.yaml", "")
    assert describe(["."], []) == []


def test_languages_that_are_given_choose(folder: Path) -> None:
    assert [pairs(corpus) for corpus in train("memories", "data.tgt=fr")] == [[("a dog", "un chien")]]
    [german] = train("memories", "data.src=de")
    assert german.languages == ("de", "en") and pairs(german)[-1] == ("ein Fuchs", "a fox")
    both = train("memories", "data.directions=en-fr,de-en")
    assert [corpus.languages for corpus in both] == [("en", "fr"), ("de", "en")]
    assert {corpus.name for corpus in both} == {"7 files of memories/"} and len(pairs(both[1])) == 6
    with pytest.raises(UsageError, match=r"memories: .*en-de \(4 pairs\), de-en \(2 pairs\), en-fr \(1 pairs\)"):
        train("memories", "data.src=it", "data.tgt=fr")


def test_both_directions_of_two_languages_count(folder: Path) -> None:
    write(folder / "more.tmx", tmx(*((f"word {n}", f"mot {n}") for n in range(4)), languages=("en", "fr")))
    assert train()[0].languages == ("en", "de"), "of 5 pairs in French, 4 from English to German, and 2 from German"


@pytest.mark.parametrize(
    ("settings", "left", "skipped"),
    [
        (["data.test=memories/train"], 5, "1 text that data.valid or data.test names, such as train.en"),
        (
            ["data.test=memories/b/m.tmx", "data.valid=link.tsv"],
            3,
            "2 texts that data.valid or data.test names, such as a.tsv",
        ),
        (["data.test=memories/b,c"], 4, "1 text that data.valid or data.test names, such as m.tmx"),
        (
            ["data.test=memories/b", "data.directions=en-de,en-fr"],
            5,
            "1 text that data.valid or data.test names, such as m.tmx",
        ),
        (["data.test=elsewhere"], 6, ""),
    ],
)
def test_what_evaluates_is_never_training_text_of_a_folder(
    settings: list[str], left: int, skipped: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "link.tsv").symlink_to(folder / "a.tsv")
    write(tmp_path / "c" / "more.tsv", "en\tde\nfour\tvier\n")
    write(tmp_path / "elsewhere.en", "a fox\n")
    write(tmp_path / "elsewhere.de", "ein Fuchs\n")
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="mtx"):
        corpora = train("memories", *settings)
    assert sum(len(pairs(corpus)) for corpus in corpora) == left
    lines = [text for text in caplog.messages if "memories: not training on" in text]
    assert lines == ([f"memories: not training on {skipped}"] if skipped else [])


def test_a_folder_of_nothing_but_test_text(folder: Path) -> None:
    with pytest.raises(UsageError, match="memories: no text in en and de but that of data.valid or data.test; it"):
        train("memories", "data.test=memories/")


def test_text_in_unknown_languages_is_in_those_of_most(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(folder / "short.tsv", "a\tb\n")
    write(folder / "long.tsv", "".join(f"{de}\t{en}\n" for de, en in zip(GERMAN, ENGLISH, strict=False)))
    write(folder / "wide.csv", "1,2,3\n")
    write(folder / "damaged.tmx", "<tmx><body><tu>")
    [corpus] = train("memories", "data.src=en")
    assert ("a", "b") in pairs(corpus) and (ENGLISH[0], GERMAN[0]) in pairs(corpus)
    skipped = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.split(":")[0] for text in skipped] == ["skipping memories/damaged.tmx", "skipping memories/wide.csv"]


def test_a_folder_without_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "empty/notes.docx", "notes")
    with pytest.raises(UsageError, match="^empty: ") as error:
        train("empty")
    assert ".tmx" in error.value.help and "NAME.en" in error.value.help
    write(tmp_path / "empty/short.tsv", "a\tb\n")
    with pytest.raises(UsageError, match="^empty: no text in src and tgt") as error:
        train("empty")
    assert "data.src=en data.tgt=de" in error.value.help
    assert pairs(train("empty", "data.src=en", "data.tgt=de")[0]) == [("a", "b")]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "pics: no file of text (it is empty)"),
        ({".hidden.tsv": b"a\tb\n"}, "pics: no file of text (it is empty)"),
        (
            {"a.png": b"\x89PNG\r\n\x1a\n", "b/c.jpg": b"\xff\xd8\xff\xe0"},
            "no file of text (2 other files, such as a.png)",
        ),
        ({"song.mp3": b"ID3\x04\0\0\0\0\x0f\x76"}, "pics: no file of text (1 other file, such as song.mp3)"),
        (
            {"a.docx": b"PK\x03\x04" + bytes(9), "b.pdf": b"%PDF-1.7\n"},
            "no file of text (2 other files, such as a.docx)",
        ),
    ],
)
def test_a_folder_that_has_no_text_of_any_kind_is_called_so(
    files: dict[str, bytes],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pics/b").mkdir(parents=True)
    for name, data in files.items():
        (tmp_path / "pics" / name).write_bytes(data)
    for settings in ([], ["data.directions=en-de,de-en"]):
        with pytest.raises(UsageError, match=re.escape(problem) + "$") as error:
            train("pics", *settings)
        assert str(error.value.help).startswith("expected .tsv, .csv") and not caplog.messages


def test_pictures_next_to_text_that_is_none_are_not_what_is_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    write(tmp_path / "b.srt", "1\n00:00:01,000 --> 00:00:02,000\na lamp\n")
    with pytest.raises(UsageError, match="no text in src and tgt"):
        train(str(tmp_path))
    assert f"skipping {tmp_path / 'b.srt'}: expected sentence pairs, got subtitles" in caplog.text


@pytest.mark.parametrize(
    ("endings", "shown", "languages"),
    [
        (["nnh", "bbj", "txt"], ".bbj, .nnh", "data.src=bbj data.tgt=nnh"),
        (["fur", "lij_Latn"], ".fur, .lij_Latn", "data.src=fur data.tgt=lij_Latn"),
        (["ach.gz", "luo.gz", "md"], ".ach, .luo", "data.src=ach data.tgt=luo"),
    ],
)
def test_endings_that_are_no_known_language_are_named_with_what_to_type(
    endings: list[str], shown: str, languages: str, tmp_path: Path
) -> None:
    for ending in endings:
        text = b"a lamp\nthe cat\n"
        for part in ("train", "dev"):
            (tmp_path / f"{part}.{ending}").write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    with pytest.raises(UsageError, match=re.escape(f"the languages of {shown} are not all known")) as error:
        train(str(tmp_path))
    assert error.value.help == f"if they are languages: {languages}"
    [corpus] = train(str(tmp_path), *languages.split())
    assert len(pairs(corpus)) == 4


@pytest.mark.parametrize("endings", [["fr", "bbj"], ["oto", "spa", "txt"], ["en.gz", "luo.gz", "md"]])
def test_a_language_that_is_not_known_is_one_beside_one_that_is(
    endings: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for ending in endings:
        text = b"a lamp\nthe cat\n"
        (tmp_path / f"train.{ending}").write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    with caplog.at_level("INFO"):
        [corpus] = train(str(tmp_path))
    assert len(pairs(corpus)) == 2
    assert "taken for text in the language" in caplog.text


def test_json_with_a_language_that_is_not_known_is_read(tmp_path: Path) -> None:
    for part in ("train", "dev"):
        rows = [json.dumps({"translation": {"en": row["en"], "luo": row["de"]}}) for row in JSON_PAIRS[:20]]
        write(tmp_path / f"{part}.json", lines(rows))
    [corpus] = train(str(tmp_path))
    assert corpus.languages == ("en", "luo") and len(pairs(corpus)) == 40


def test_two_files_with_other_names_get_advice_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for code, lines in (("en", ENGLISH), ("de", GERMAN)):
        write(tmp_path / f"talks/talk-{code}.txt", "".join(f"{line}\n" for line in lines))
    with pytest.raises(UsageError, match="no text in src and tgt") as error:
        train("talks")
    assert "NAME.en and NAME.de (not NAME-en.txt)" in error.value.help and "data.src" not in error.value.help
    assert "paste -d '|' talks/talk-de.txt /dev/null /dev/null talks/talk-en.txt > pairs.txt" in caplog.text
    for code in ("en", "de"):
        (tmp_path / f"talks/talk-{code}.txt").rename(tmp_path / f"talks/talk.{code}")
    assert pairs(train("talks")[0])[0] == (ENGLISH[0], GERMAN[0])


def test_a_folder_of_subtitles_is_called_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.en.srt", "1\n00:00:01,000 --> 00:00:02,000\na lamp\n")
    with pytest.raises(UsageError, match="no text"):
        train(str(tmp_path))
    assert f"skipping {tmp_path / 'a.en.srt'}: expected sentence pairs, got subtitles" in caplog.text


def test_a_changed_file_of_a_folder_is_found(folder: Path) -> None:
    record = folder.parent / "sources.json"
    config = resolve("own-text", ["data.train=memories/", "data.src=en", "data.tgt=de"]).config
    durable.write_json(record, describe_sources(find_corpora(config.data).files(config.tokenizer)))
    assert find_changed_files(record) == []
    write(folder / "a.tsv", "German\tEnglish\nein Pferd\ta mare\n")
    assert find_changed_files(record) == [folder / "a.tsv"]


@pytest.mark.parametrize(
    "name, header, expected",
    [
        ("de.po", "", ("en", "de")),
        ("app-pt_BR.po", "", ("en", "pt_BR")),
        ("locale/de/LC_MESSAGES/app.po", "", ("en", "de")),
        ("locales/de/app.po", "", ("en", "de")),
        ("de.po", "Language: fr\\n", ("en", "fr")),
        ("de.po", "X-Source-Language: it\\n", ("it", "de")),
    ],
)
def test_a_catalogue_is_from_english(name: str, header: str, expected: tuple[str, str], tmp_path: Path) -> None:
    assert find_languages(write(tmp_path / name, PO.format(header, "x")))[:2] == expected


def test_the_text_of_a_catalogue_may_show_another_source(tmp_path: Path) -> None:
    messages = "".join(f'\nmsgid "{text}"\nmsgstr "x"\n' for text in GERMAN)
    assert find_languages(write(tmp_path / "fr.po", PO.format("", "x") + messages))[:2] == ("de", "fr")


def test_of_translations_in_several_files_the_report_has_the_reason(folder: Path) -> None:
    dated = [("Katze", 2019), ("Kater", 2019), ("Kater", 2021), ("Miez", 2020)]
    for number, (cat, revised) in enumerate(dated):
        write(
            folder / f"dated/{number}/de.po",
            PO.format(f"PO-Revision-Date: {revised}-01-01 10:00+0200\\n", cat) + '\nmsgid "new"\nmsgstr ""\n',
        )
    for number, cow in enumerate(["Kuh", "Kuh", "Rind", "Kuh"]):
        write(folder / f"plain/{number}.tmx", tmx(("the cow", cow), (f"word {number}", f"Wort {number}")))
    numbers = tmx(*((f"number {n}", f"Nummer {n}") for n in range(60)))
    write(folder / "numbers.tmx", numbers)
    settings = [
        "data.train=memories/",
        "data.src=en",
        "data.tgt=de",
        "tokenizer.vocab_size=300",
        "data.valid=copy/",
    ]
    shutil.copytree(folder, folder.parent / "copy")
    config = resolve("own-text", settings).config
    prepare(config, folder.parent / "data")
    report = durable.read_json(folder.parent / "data/report.json")
    [entry] = report["corpora"]
    assert entry["name"] == "15 files of memories/" and report["valid"]["pairs"] == entry["read"] - 4
    assert {reason: count for reason, count in entry["dropped"].items() if "held" not in reason} == {
        "not translated": 4,
        "older translation": 3, "duplicate": 3, "other translation": 1,
    }  # fmt: skip
    examples = {reason: each["example"] for reason, each in report["dropped"].items()}
    assert examples["other translation"] == {
        "corpus": "memories/plain/2.tmx",
        "line": 1,
        "src": "the cow",
        "tgt": "Rind",
    }
    assert examples["not translated"]["corpus"] == "memories/dated/0/de.po"
    assert examples["older translation"]["corpus"] == "memories/c/locale/de/LC_MESSAGES/app.po"


def lines(texts: list[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


PROGRAMS = {
    "sh": "#!/bin/sh\nset -e\n# where it goes\nPREFIX=${1:-/usr/local}\nmkdir -p $PREFIX\ncp a b $PREFIX\necho done\n",
    "pl": "#!/usr/bin/perl\nuse strict;\nmy $dir = shift;\nmkdir($dir);\nprint $dir;\n# that is all\nexit(0);\n",
    "cs": "using System;\nclass A {\n  static void Main() {\n    Console.Write(1);\n  }\n}\n\n",
    "ml": "open List\nlet f x = x + 1\nlet () =\n  print_int (f 1);\n  match [] with\n  | [] -> ()\n  | _ -> exit 1\n",
}


@pytest.mark.parametrize(
    "settings", [[], ["src=en"], ["src=eng"], ["tgt=deu"], ["src=en", "tgt=de"], ["src=eng", "tgt=deu"]]
)
@pytest.mark.parametrize(
    "src, tgt", [("eng", "deu"), ("en", "deu"), ("english", "german"), ("EN", "DE"), ("en-GB", "de-AT")]
)
def test_files_are_found_by_the_languages_of_their_endings(
    src: str, tgt: str, settings: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_once.cache_clear()
    caplog.set_level(logging.INFO)
    folder = tmp_path / "lafand"
    write(folder / f"train.{src}", lines(ENGLISH))
    write(folder / f"train.{tgt}", lines(GERMAN))
    write(folder / "more.tsv", "English\tGerman\na cow\teine Kuh\n")
    write(folder / "small.fra", "a\n")
    write(folder / "small.eng", "b\n")
    [corpus] = train(str(folder), *(f"data.{setting}" for setting in settings))
    assert pairs(corpus) == [("a cow", "eine Kuh"), *zip(ENGLISH, GERMAN, strict=False)]
    assert "skipped: en-fr (1 pairs); to use several: data.directions=en-de,en-fr\n" in caplog.text
    [opposite] = train(str(folder), "data.src=de", "data.tgt=en")
    assert pairs(opposite)[1:] == [*zip(GERMAN, ENGLISH, strict=False)]


def test_a_variety_that_is_given_chooses_among_files(tmp_path: Path) -> None:
    write(tmp_path / "train.eng", lines(ENGLISH))
    for ending, text in (("pt-BR", "um trem\n"), ("pt-PT", "um comboio\n")):
        write(tmp_path / f"train.{ending}", text * len(ENGLISH))
    [european] = train(str(tmp_path), "data.src=en", "data.tgt=pt-PT")
    assert {tgt for _, tgt in pairs(european)} == {"um comboio"}
    [both] = train(str(tmp_path), "data.src=en", "data.tgt=pt")
    assert {tgt for _, tgt in pairs(both)} == {"um comboio", "um trem"}


JSON_PAIRS = [{"en": en, "de": de} for en, de in zip(ENGLISH, GERMAN, strict=False)]


@pytest.mark.parametrize(
    "row",
    [
        lambda row: row, lambda row: {"id": 1, "translation": row},
        lambda row: {"src": row["en"], "tgt": row["de"]}, lambda row: {"en": row["en"], "id": "a", "de": row["de"]},
    ],
)  # fmt: skip
def test_json_lines_of_a_folder_are_read_and_other_json_is_not_mentioned(
    row: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a/train.JSON", lines([json.dumps(row(pair), separators=(",", "  :  ")) for pair in JSON_PAIRS]))
    write(tmp_path / "a/more.tsv", "English\tGerman\na cow\teine Kuh\n")
    package = {"name": "a", "version": "1", "repository": {"type": "git"}}
    others = [
        package, {"greeting": {"en": "Hi"}}, ["a"], {}, {"en": {"a": "b"}, "de": {}}, {"id": "a", "name": "b"},
        {"en": "English", "de": "Deutsch", "fr": "French"}, {"source": "a", "target": "b", "weight": 1},
        {"no": "1", "name": "thing"}, [{"source": "a", "target": "b", "weight": "c"}] * 2, [{"lo": "1", "hi": "2"}] * 2,
    ]  # fmt: skip
    for number, value in enumerate(others):
        write(tmp_path / f"a/{number}.json", json.dumps(value))
        write(tmp_path / f"a/wide-{number}.json", json.dumps(value, indent=2))
    write(tmp_path / "a/broken.json", "{")
    [corpus] = train(str(tmp_path / "a"))
    assert pairs(corpus) == [("a cow", "eine Kuh"), *zip(ENGLISH, GERMAN, strict=False)]
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(JSON_PAIRS), json.dumps(JSON_PAIRS, indent=2),
        json.dumps([{"id": 1, "translation": pair} for pair in JSON_PAIRS], indent=2),
        lines([json.dumps(pair) for pair in JSON_PAIRS]) + "{\n",
        lines([json.dumps({"translation": {"en": pair["en"], "dholuo": pair["de"]}}) for pair in JSON_PAIRS]),
    ],
)  # fmt: skip
def test_json_with_pairs_that_is_not_read_is_a_warning(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "pairs.json", text)
    write(tmp_path / "more.tsv", "English\tGerman\na cow\teine Kuh\n")
    assert pairs(train(str(tmp_path))[0]) == [("a cow", "eine Kuh")]
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1 and warnings[0].startswith(f"skipping {tmp_path / 'pairs.json'}:")


@pytest.mark.parametrize("name, separator", [("pairs.txt", "\t"), ("pairs.txt.gz", " ||| ")])
def test_text_with_pairs_that_is_not_read_is_a_warning(
    name: str, separator: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = lines([separator.join(pair) for pair in zip(ENGLISH, GERMAN, strict=False)]).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    write(tmp_path / "more.tsv", "English\tGerman\na cow\teine Kuh\n")
    for number, other in enumerate(("\tREADME\n\tRead me.\n", "a\tb\nc\n", "a b\n", "")):
        write(tmp_path / f"{number}.txt", other)
    (tmp_path / "wide.txt").write_bytes("a\tb\n".encode("utf-16"))
    assert pairs(train(str(tmp_path))[0]) == [("a cow", "eine Kuh")]
    [warning] = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert warning.startswith(f"skipping {tmp_path / name}, which looks like a table")


@pytest.mark.parametrize(
    "english, german, skipped",
    [
        ("a\n".encode("utf-16"), "b\n".encode("utf-16"), ["bad.de", "bad.en"]),
        (b"a\n", b"PK\x03\x04" + bytes(100), ["bad.de"]),
        (gzip.compress(b"a\n" * 9, mtime=0)[:-9], b"b\n" * 9, ["bad.en"]),
        (b"a\rb\rc", b"a\n", ["bad.en"]),
        (b"a\nb\n", b"a\n", ["bad.en: it has 2 lines, "]),
    ],
)
def test_files_of_lines_that_cannot_be_read_are_skipped_with_a_warning(
    english: bytes, german: bytes, skipped: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bad.en").write_bytes(english)
    (tmp_path / "bad.de").write_bytes(german)
    write(tmp_path / "good.tsv", "English\tGerman\na cow\teine Kuh\n")
    assert pairs(train(str(tmp_path))[0]) == [("a cow", "eine Kuh")]
    warnings = sorted(each.getMessage() for each in caplog.records if each.levelno == logging.WARNING)
    for warning, start in zip(warnings, skipped, strict=True):
        assert warning.startswith(f"skipping {tmp_path}/{start}")


@pytest.mark.parametrize(
    "sign", ["# A heading", "Article 3(1) applies.", "Delete %d file(s)?", "#Berlin -> here", "$a = b;"]
)
@pytest.mark.parametrize("ending", ["de", "mk", "sh"])
def test_text_with_signs_of_code_is_read(sign: str, ending: str, tmp_path: Path) -> None:
    write(tmp_path / "a.en", lines([*ENGLISH, *[sign] * len(ENGLISH)]))
    write(tmp_path / f"a.{ending}", lines([*GERMAN, *[sign] * len(GERMAN)]))
    assert len(pairs(train(str(tmp_path))[0])) == 2 * len(ENGLISH)


@pytest.mark.parametrize("one, other", [*combinations(sorted(PROGRAMS), 2)])
def test_programs_are_no_text_though_their_endings_are_languages(
    one: str, other: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for ending in (one, other):
        write(tmp_path / f"install.{ending}", PROGRAMS[ending])
    write(tmp_path / "good.tsv", "English\tGerman\na cow\teine Kuh\n")
    [corpus] = train(str(tmp_path))
    assert pairs(corpus) == [("a cow", "eine Kuh")] and corpus.languages == ("en", "de")
    assert "warning" not in caplog.text.lower()
    for ending, text in ((one, ENGLISH), (other, GERMAN)):
        write(tmp_path / f"train.{ending}", lines(text))
    assert len(pairs(train(str(tmp_path), f"data.src={one}", f"data.tgt={other}")[0])) > 1


def test_commas_in_the_names_of_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = "English\tGerman\na cow\teine Kuh\n"
    for name in ("t/en, de.tsv", "My, Folder/x, y, z.tsv", "a.tsv"):
        write(tmp_path / name, table)
    for name in ("train, 1.en", "train, 1.de"):
        write(tmp_path / "My, Folder" / name, "a\n")
    assert len(pairs(train("My, Folder")[0])) == 2 and len(pairs(train("./My, Folder/")[0])) == 2
    assert pairs(train("t/en, de.tsv")[0]) == [("a cow", "eine Kuh")]
    assert pairs(train(str(tmp_path / "t/en, de.tsv"))[0]) == [("a cow", "eine Kuh")]
    names = ["t/en, de.tsv", "a.tsv", "My, Folder"]
    setting, _ = describe(names, [])
    assert setting == 'data.train="t/en, de.tsv",a.tsv,"My, Folder/"'
    assert resolve("own-text", [setting]).config.data.train == ("t/en, de.tsv", "a.tsv", "My, Folder/")
    with pytest.raises(UsageError, match="'t/en' not found") as error:
        find_corpora(resolve("own-text", ["data.train=t/en, de.tsv"]).config.data)
    assert '"A, B.tsv"' in str(error.value.help)


@pytest.mark.parametrize(
    "name, text", [("b.po", 'msgid ""\nmsgstr "Language: de\\n"\n'), ("b.tmx", "<tmx><body/></tmx>")]
)
def test_a_file_without_units_is_no_text(name: str, text: str, tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", "English\tGerman\na dog\tein Hund\n")
    write(tmp_path / name, text)
    assert pairs(train(str(tmp_path))[0]) == [("a dog", "ein Hund")]
