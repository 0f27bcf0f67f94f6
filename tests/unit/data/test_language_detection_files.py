"""The languages of a file are those that its header names, else those that its text is clearly in."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtx.data.language_detection import language_of
from mtx.data.languages import code_of
from mtx.errors import DataError, MtxError, UsageError
from tests.unit.data.corpus_files import find_languages, open_file
from tests.unit.data.sentences import sentences

PAIRS = list(zip(sentences("en"), sentences("de"), strict=True))
COLUMNS = "".join(f"{number},{src},{tgt}\n" for number, (src, tgt) in enumerate(PAIRS))
TSV = "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS)
SAME = "".join(f"{src}\t{src}\n" for src, _ in PAIRS)
PO = "".join(f'\nmsgid "{src}"\nmsgstr "{tgt}"\n' for src, tgt in PAIRS)
XLIFF = '<xliff version="1.2"><file source-language="de-CH" target-language="it"><body>{}</body></file></xliff>'
TUVS = "".join(f'<tuv xml:lang="{tag}"><seg>a</seg></tuv>' for tag in ("de-DE", "en-US"))
TMX = f'<tmx><header srclang="{{}}"/><body><tu>{TUVS}</tu></body></tmx>'
UNIT = '<trans-unit id="1"><source>ja</source><target>sì</target></trans-unit>'


def objects(src: str, tgt: str) -> str:
    return "".join(json.dumps({"id": 1, src: pair[0], tgt: pair[1]}) + "\n" for pair in PAIRS)


@pytest.mark.parametrize(
    "name, text, found",
    [
        ("t.tsv", TSV, "en de text"), ("t.txt", TSV, "en de text"), ("t", TSV, "en de text"),
        ("t.tsv", "German\tEnglish (US)\n", "de en header"), ("t.tsv", "fr-FR\tpt_BR\n", "fr pt header"),
        ("t.csv", f"no,source,target\n{COLUMNS}", "en de text"), ("t.csv", "ID;en;de\n1;a;b\n", "en de header"),
        ("t.jsonl", objects("nb", "fi"), "nb fi header"), ("t.jsonl", objects("src", "tgt"), "en de text"),
        ("t.jsonl", objects("English", "Deutsch"), "en de header"), ("t.jsonl", objects("eng", "deu"), "en de header"),
        ("t.jsonl", '{"translation": {"de": "ja", "en": "yes"}}\n', "de en header"),
        ("t.po", 'msgid ""\nmsgstr "Language: sv\\n"\n' + PO, "en sv text"), ("t.po", PO, "en de text"),
        ("t.po", 'msgid ""\nmsgstr "X-Source-Language: fr\\nLanguage: sv\\n"\n' + PO, "fr sv header"),
        ("t.xlf", XLIFF.format(UNIT), "de it header"),
        ("t.tmx", TMX.format("en"), "en de header"), ("t.tmx", TMX.format("fr"), "de en first unit"),
        ("t.tmx", TMX.format("*all*"), "de en first unit"),
    ],
)  # fmt: skip
def test_what_a_file_says_of_its_languages(name: str, text: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    src, tgt, origin = found.split(maxsplit=2)
    assert find_languages(path) == (src, tgt, f"its {origin}")


def test_columns_that_are_chosen_count(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"number,one,German\n{COLUMNS}", encoding="utf-8")
    for columns, expected in ((("2", "3"), "en de"), (("German", "one"), "de en")):
        assert find_languages(path, columns)[:2] == tuple(expected.split())
    with pytest.raises(DataError, match="cannot find the columns of src and tgt"):
        find_languages(path)


def test_the_columns_of_parquet(tmp_path: Path) -> None:
    path, side = tmp_path / "t.parquet", pa.array(["a"])
    pq.write_table(pa.table({"id": side, "sv": side, "en": side}), path)
    assert find_languages(path) == ("sv", "en", "its header")
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="invalid Parquet file"):
        find_languages(path)


@pytest.mark.parametrize("name, text, known", [
    ("t.tsv", "a\tb\n", "CODE CODE"), ("t.tsv", "a\t\n", "CODE CODE"), ("t.csv", "en,de,fr\na,b,c\n", "en de"),
    ("t.tsv", SAME, "en CODE"),
    ("t.jsonl", '{"src": "a", "tgt": "b"}\n', "CODE CODE"), ("t.po", 'msgid "a"\nmsgstr "b"\n', "en CODE"),
])  # fmt: skip
def test_the_error_has_the_command_that_names_them(name: str, text: str, known: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match="cannot tell its two languages") as error:
        find_languages(path)
    assert error.value.help is not None and error.value.help.endswith(
        "train {} data.src={} data.tgt={}".format(path, *known.split())
    )


@pytest.mark.parametrize("name, command", [("t.txt", "src=CODE data.tgt=de"), ("de-zu.txt", "src=zu data.tgt=de")])
def test_the_command_has_a_language_on_its_side(name: str, command: str, tmp_path: Path) -> None:
    rows = (f"{number} ||| {text}\n" for number, text in enumerate(sentences("de", 12)))
    (path := tmp_path / name).write_text("".join(rows))
    with pytest.raises(UsageError, match="cannot tell its two languages: found de$") as error:
        find_languages(path)
    assert str(error.value.help).endswith(command)


def test_a_text_that_is_unclear_for_its_encoding_is_refused_for_that(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes("Grüße\tgreetings\nSchön\tbeautiful\nKäse\tcheese\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"t\.tsv:1: not UTF-8") as error:
        find_languages(path)
    assert str(error.value.help).startswith("iconv -f ")


def test_the_command_keeps_the_columns(tmp_path: Path) -> None:
    (path := tmp_path / "t.csv").write_text("Begriff;Term;Note\nDach;roof;\n")
    with pytest.raises(UsageError) as error:
        find_languages(path, ("2", "1"))
    assert str(error.value.help).endswith(f"train {path} data.columns=2,1 data.src=CODE data.tgt=CODE")


@pytest.mark.parametrize(
    "name, text", [("t.jsonl", "[1]\n"), ("t.jsonl", "{\n"), ("t.tsv", "a\n"), ("t.po", "msgid 1\n")]
)
def test_a_damaged_file_is_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(MtxError):
        find_languages(tmp_path / name)


@pytest.mark.parametrize(
    "tags, languages",
    [
        (["en-US", "de-DE"], "en de"), (["de", "en", "EN-gb"], "de en"), (["en-US", "en-GB"], "en-US en-GB"),
        (["en", "de", "fr"], None), (["en"], None),
    ],
)  # fmt: skip
def test_the_two_languages_of_a_memory(tags: list[str], languages: str | None, tmp_path: Path) -> None:
    units = "".join(f'<tu><tuv xml:lang="{tag}"><seg>x</seg></tuv></tu>' for tag in tags)
    (tmp_path / "a.tmx").write_text(f"<tmx>{units}</tmx>")
    if languages:
        assert find_languages(tmp_path / "a.tmx")[:2] == tuple(languages.split())
    else:
        with pytest.raises(UsageError, match="a.tmx: cannot tell its two languages: found "):
            find_languages(tmp_path / "a.tmx")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.tmx", "<tmx><tu></tu></tmx>", "<tu> without <tuv>"),
        ("a.tmx", "<tmx></tmx>", "no units"),
        ("a.tmx", "<tmx><tu><tuv><seg>a lamp</seg></tuv></tu></tmx>", "<tuv> without xml:lang"),
        ("a.tmx", "<tmx><tu><tuv>a</tuv><tuv>b</tuv></tu></tmx>", "<tuv> without <seg>"),
        (
            "a.xliff",
            XLIFF.format("<trans-unit id='1'><target>x</target></trans-unit>"),
            "<trans-unit> without <source>",
        ),
        ("a.xliff", XLIFF.format(""), "no units"),
        (
            "a.xliff",
            '<xliff version="2.0" srcLang="en" trgLang="de"><file><unit><segment><target>x</target></segment></unit>'
            "</file></xliff>",
            "<segment> without <source>",
        ),
    ],
)
def test_units_without_text_are_called_so_before_their_languages(
    name: str, text: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    place = name if problem == "no units" else f"{name}:1"
    with pytest.raises(DataError, match=f"{place}: {problem}$"):
        find_languages(tmp_path / name)


def test_the_keys_of_two_languages_need_only_one_that_is_known(tmp_path: Path) -> None:
    for src, tgt in (("en", "luo"), ("bbj", "fra"), ("eng_Latn", "luo_Latn")):
        rows = [{"id": number, "translation": {src: f"a lamp {number}", tgt: f"taa {number}"}} for number in range(3)]
        (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
        (tmp_path / "flat.jsonl").write_text("".join(json.dumps(row["translation"]) + "\n" for row in rows))
        for name in ("a.json", "a.parquet", "flat.jsonl"):
            *pair, _ = find_languages(tmp_path / name)
            assert pair == [code_of(src), code_of(tgt)], name
            (block,) = open_file(tmp_path / name).pairs(tuple(pair), ())
            assert block.tgt == ["taa 0", "taa 1", "taa 2"]


@pytest.mark.parametrize("keys", [("fur", "lij"), ("en", "dholuo"), ("id", "doc"), ("en", "key"), ("url", "de")])
def test_other_keys_are_shown_with_the_settings_that_name_them(keys: tuple[str, str], tmp_path: Path) -> None:
    row = {"number": 1, "translation": dict.fromkeys(keys, "a")}
    (tmp_path / "a.json").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=f"an object with 'number', 'translation.{keys[0]}'") as error:
        find_languages(tmp_path / "a.json")
    assert str(error.value.help).endswith("or name the languages: data.src={} data.tgt={}".format(*keys))


@pytest.mark.parametrize("language", ["en", "fr", "de", "es", "ru", "ja", "zh"])
def test_the_language_of_a_text(language: str) -> None:
    assert language_of(sentences(language)) == language
    assert language_of(sentences(language)[:9]) is None
