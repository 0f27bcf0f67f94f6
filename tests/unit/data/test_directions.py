"""Several directions in one model: what each text has, what is held out, how often a pair is used, and its ids."""

import json
import random
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtx.config import settings
from mtx.config.schema import Config, DataConfig, TokenizerConfig, pairs_of
from mtx.data import prepare as module
from mtx.data.augmentation import epoch_text
from mtx.data.prepare import prepare
from mtx.data.sources import Corpora, find_corpora
from mtx.data.token_store import PreparedData, TokenStore, load_prepared
from mtx.data.tokenizer import Frame, Tokenizer, train_tokenizer
from mtx.errors import DamagedFileError, DataError, UsageError
from mtx.storage.run_files import describe_sources

from .corpus_files import write, write_parquet
from .sentences import sentences

SIX = "en-de,en-fr,en-it,de-en,fr-en,it-en"
WORDS = ["".join(random.Random(n).choices("abcdefghijklmnop", k=3 + n % 5)) for n in range(200)]


def line(number: int, language: str) -> str:
    """Sentence `number` in a made-up language."""
    return " ".join(f"{word}{language}" for word in random.Random(number).choices(WORDS, k=6))


def write_lines(directory: Path, name: str, languages: str, numbers: range) -> None:
    for language in languages.split():
        write(directory / f"{name}.{language}", "".join(f"{line(number, language)}\n" for number in numbers))


def make_config(directory: Path, directions: str, *overrides: str, train: Any = "train") -> Config:
    keys = [f"data.dir={directory}", f"data.directions={directions}", "tokenizer.vocab_size=400", *overrides]
    config = settings.resolve(None, keys).config
    data = config.data.model_dump() | {"train": train}
    return config.model_copy(update={"data": DataConfig.model_validate(data)})


def run(directory: Path, directions: str, *overrides: str, train: Any = "train") -> PreparedData:
    prepare(make_config(directory, directions, *overrides, train=train), directory / "out")
    return load_prepared(directory / "out")


def find(directory: Path, directions: str, train: Any, **keys: Any) -> Corpora:
    return find_corpora(
        DataConfig.model_validate({"dir": str(directory), "directions": directions, "train": train, **keys})
    )


def texts(store: TokenStore) -> set[str]:
    return {*store.src_texts(), *store.tgt_texts()}


ROWS = {"en": "a dog", "de": "ein Hund", "fr": "un chien"}
UNIT = "".join(f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in ROWS.items())


def test_each_text_is_read_in_every_direction_that_it_has(tmp_path: Path) -> None:
    for language, text in ROWS.items():
        write(tmp_path / f"sides.{language}", f"{text}\n")
    write(tmp_path / "of.en-de.tsv", "a dog\tein Hund\n")
    write(tmp_path / "of.fr-en.tsv", "un chien\ta dog\n")
    write(tmp_path / "memory.tmx", f'<tmx version="1.4"><header/><body><tu>{UNIT}</tu></body></tmx>')
    write(tmp_path / "table.tsv", "id\tfr\ten\n1\tun chien\ta dog\n")
    write(tmp_path / "table.jsonl", json.dumps({"translation": ROWS}) + "\n")
    write_parquet(tmp_path / "table.parquet", {language: [text] for language, text in ROWS.items()})
    all_three = [("en", "de"), ("en", "fr"), ("fr", "en")]
    expected = {
        "sides": all_three,
        "of.{src}-{tgt}.tsv": all_three,
        "memory.tmx": all_three,
        "table.tsv": [("en", "fr"), ("fr", "en")],
        "table.jsonl": all_three,
        "table.parquet": all_three,
    }
    corpora = find(tmp_path, "en-de,en-fr,fr-en", list(expected), valid="sides", test=["sides", "of.{src}-{tgt}.tsv"])
    assert [(corpus.name, corpus.languages) for corpus in corpora.train] == [
        (name, languages) for name, of_name in expected.items() for languages in of_name
    ]
    assert [corpus.languages for corpus in corpora.valid] == all_three
    assert {name: [corpus.languages for corpus in of_name] for name, of_name in corpora.tests.items()} == {
        "sides": all_three,
        "of": all_three,
    }
    for corpus in corpora.all_corpora():
        src, tgt = corpus.languages
        assert [(block.src, block.tgt) for block in corpus.blocks()] == [([ROWS[src]], [ROWS[tgt]])], corpus.name


def write_each(directory: Path, src: str, tgt: str, pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Write the pairs in every form whose name can have two languages; the name of each form with its placeholders."""
    memory = "".join(
        f'<tu><tuv xml:lang="{tgt}"><seg>{two}</seg></tuv><tuv xml:lang="{src}"><seg>{one}</seg></tuv></tu>'
        for one, two in pairs
    )
    forms = {
        "tsv": "".join(f"{one}\t{two}\n" for one, two in pairs),
        "tsv.gz": "".join(f"{one}\t{two}\n" for one, two in pairs),
        "csv": f"{tgt},{src}\n" + "".join(f"{two},{one}\n" for one, two in pairs),
        "jsonl": "".join(json.dumps({"src": one, "tgt": two}) + "\n" for one, two in pairs),
        "txt": "".join(f"{one} ||| {two}\n" for one, two in pairs),
        "tmx": f'<tmx version="1.4"><header/><body>{memory}</body></tmx>',
        "po": "".join(f'msgid "{one}"\nmsgstr "{two}"\n\n' for one, two in pairs),
    }
    for ending, text in forms.items():
        write(directory / f"of.{src}-{tgt}.{ending}", text)
    write_parquet(
        directory / f"of.{src}-{tgt}.parquet", {side: [p[n] for p in pairs] for n, side in enumerate((src, tgt))}
    )
    for place in (f"two.{src}-{tgt}", f"{src}-{tgt}/in"):
        for side, language in enumerate((src, tgt)):
            write(directory / f"{place}.{language}", "".join(f"{pair[side]}\n" for pair in pairs))
    endings = [*forms, "parquet"]
    return {ending: f"of.{{src}}-{{tgt}}.{ending}" for ending in endings} | {
        "two files": "two.{src}-{tgt}",
        "folder": "{src}-{tgt}",
    }


FORMS = ["tsv", "tsv.gz", "csv", "jsonl", "txt", "tmx", "po", "parquet", "two files", "folder"]
HOMES = [(f"the house {n}", f"das Haus {n}") for n in range(3)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["train", "valid", "test"])
def test_a_text_of_the_other_order_is_read_from_its_other_side(key: str, form: str, tmp_path: Path) -> None:
    write_lines(tmp_path, "train", "en de", range(20))
    name = write_each(tmp_path, "en", "de", HOMES)[form]
    corpora = find(tmp_path, "en-de,de-en", **{"train": "train", key: [name] if key == "test" else name})
    texts = {"train": corpora.train, "valid": corpora.valid, "test": [*corpora.tests.values()][:1] or [[]]}[key]
    first, second = texts[0] if key == "test" else texts
    assert (first.languages, second.languages) == (("en", "de"), ("de", "en"))
    assert {*first.files} == {*second.files} and first.name == second.name
    for corpus in (first, second):
        pairs = [pair for block in corpus.blocks() for pair in zip(block.src, block.tgt, strict=True)]
        assert pairs == (HOMES if corpus is first else [(tgt, src) for src, tgt in HOMES])


@pytest.mark.parametrize("form", FORMS)
def test_each_direction_reads_its_own_text_if_both_have_one(form: str, tmp_path: Path) -> None:
    name = write_each(tmp_path, "en", "de", HOMES)[form]
    other = [("ein Hund", "a dog")]
    write_each(tmp_path, "de", "en", other)
    first, second = find(tmp_path, "en-de,de-en", name).train
    assert [[*zip(block.src, block.tgt, strict=True)] for block in first.blocks()] == [HOMES]
    assert [[*zip(block.src, block.tgt, strict=True)] for block in second.blocks()] == [other]


def test_one_direction_too_is_read_from_the_other_side(tmp_path: Path) -> None:
    write(tmp_path / "of.en-de.tsv", "a dog\tein Hund\n")
    [corpus] = find(tmp_path, "de-en", "of.{src}-{tgt}.tsv").train
    assert [(block.src, block.tgt) for block in corpus.blocks()] == [(["ein Hund"], ["a dog"])]
    with pytest.raises(UsageError, match=r"of.\{src\}-\{tgt\}.tsv' not found: .*of.en-fr.tsv or .*of.fr-en.tsv"):
        find(tmp_path, "en-fr", "of.{src}-{tgt}.tsv")


def test_columns_and_a_table_in_the_wrong_order_are_those_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its other side is read after its own order is known."""
    rows = [*zip(sentences("de"), sentences("en"), strict=False)]
    write(tmp_path / "of.en-de.tsv", "".join(f"{de}\t{en}\n" for de, en in rows))
    write(tmp_path / "wide.en-de.tsv", "".join(f"{de}\t1\t{en}\n" for de, en in rows))
    caplog.set_level("INFO")
    for name, columns in (("of", ()), ("wide", ("3", "1"))):
        corpora = find(tmp_path, "en-de,de-en", f"{name}.{{src}}-{{tgt}}.tsv", columns=columns).train
        assert len(corpora) == 2
        for corpus in corpora:
            [block] = corpus.blocks()
            assert (block.tgt[0], block.src[0]) == (rows[0] if corpus.languages[0] == "en" else rows[0][::-1])
    assert [record.getMessage() for record in caplog.records if "second text" in record.getMessage()] == [
        "of.{src}-{tgt}.tsv: the second text of each pair is en, so it is the source"
    ]


@pytest.mark.parametrize("columns", [("bbj", "nnh"), ("2", "1")])
def test_columns_are_those_of_source_and_target_in_a_table_that_is_read_from_its_target(
    columns: tuple[str, str], tmp_path: Path
) -> None:
    write(tmp_path / "of.nnh-bbj.tsv", "nnh\tbbj\n" + "".join(f"two {n}\tone {n}\n" for n in range(9)))
    data = {"dir": str(tmp_path), "src": "bbj", "tgt": "nnh", "train": "of.{src}-{tgt}.tsv", "columns": columns}
    [corpus] = find_corpora(DataConfig.model_validate(data)).train
    block = next(corpus.blocks())
    assert (block.src[-1], block.tgt[-1]) == ("one 8", "two 8")


@pytest.mark.parametrize("form", ["tsv", "tmx", "two files", "folder"])
def test_what_is_held_out_of_one_text_is_held_out_in_both_directions(form: str, tmp_path: Path) -> None:
    """A second text has the same pairs in one order only."""
    pairs = [(line(number, "en"), line(number, "de")) for number in range(400)]
    name = write_each(tmp_path, "en", "de", pairs)[form]
    write(tmp_path / "again.de-en.tsv", "".join(f"{tgt}\t{src}\n" for src, tgt in pairs[:200]))
    data = run(tmp_path, "en-de,de-en", train=(name, "again.{src}-{tgt}.tsv"))
    assert leaks(data) == 0 and data.report["read"] == 1200
    assert data.report["dropped"]["duplicate"]["pairs"] == 400
    first, second = (
        {*zip(store.src_texts(), store.tgt_texts(), strict=True)}
        for store in (data.tests["heldout.en-de"], data.tests["heldout.de-en"])
    )
    assert first and second == {(tgt, src) for src, tgt in first}
    trained = {*zip(data.train.src_texts(), data.train.tgt_texts(), strict=True)}
    assert len(trained) == data.train.num_pairs == data.report["kept"] == 2 * (400 - 2 * len(first))


def test_a_text_may_name_its_own_languages(tmp_path: Path) -> None:
    write(tmp_path / "one.tsv", "a dog\tein Hund\n")
    write(tmp_path / "two.tsv", "un chien\ta dog\n")
    train = [{"name": "one.tsv", "src": "en"}, {"name": "two.tsv", "src": "fr", "tgt": "en", "weight": 3.0}]
    corpora = find(tmp_path, "en-de,fr-en", train)
    assert [(corpus.languages, corpus.weight) for corpus in corpora.train] == [
        (("en", "de"), None),
        (("fr", "en"), 3.0),
    ]


PO = 'msgid ""\nmsgstr ""\n"Language: de\\n"\n\nmsgid "a dog"\nmsgstr "ein Hund"\n'
XLIFF = """<xliff version="1.2"><file source-language="en" {}original="a" datatype="plaintext"><body><trans-unit id="1">
<source>a dog</source><target>ein Hund</target></trans-unit></body></file></xliff>"""


@pytest.mark.parametrize(
    ("name", "text", "directions"),
    [
        ("a.po", PO, "en-de,fr-de"),  # its sources could be either
        ("a.po", PO.replace("Language: de", "X: y"), "en-de,en-fr"),
        ("a.xliff", XLIFF.format(""), "en-de,en-fr"),
    ],
)
def test_an_unnamed_language_is_not_guessed(name: str, text: str, directions: str, tmp_path: Path) -> None:
    write(tmp_path / name, text)
    with pytest.raises(UsageError, match="no unit is in both") as caught:
        find(tmp_path, directions, name)
    assert caught.value.help and "src: en, tgt: de" in caught.value.help
    (corpus,) = find(tmp_path, directions, [{"name": name, "src": "en", "tgt": "de"}]).train
    assert [(block.src, block.tgt) for block in corpus.blocks()] == [(["a dog"], ["ein Hund"])]


def test_units_that_name_both_languages_have_both_directions(tmp_path: Path) -> None:
    write(tmp_path / "a.xliff", XLIFF.format('target-language="de-DE" '))
    write(tmp_path / "a.po", PO.replace("Language: de", 'Language: de\\n"\n"X-Source-Language: en_US'))
    for corpus in find(tmp_path, "en-de,de-en,en-fr", ["a.xliff", "a.po"]).train:
        assert [(block.src, block.tgt) for block in corpus.blocks()] == [
            tuple([ROWS[side]] for side in corpus.languages)
        ]


def test_a_damaged_pair_of_files_is_no_missing_direction(tmp_path: Path) -> None:
    write_lines(tmp_path, "train", "en de fr", range(100))
    for language, text in {"en": "a\nb\n", "de": "c\n", "fr": "d\ne\n"}.items():
        write(tmp_path / f"more.{language}", text)
    with pytest.raises(DataError, match="more.en has 2 lines, .*more.de has 1$"):
        run(tmp_path, "en-de,en-fr", train=("train", "more"))


def test_a_file_of_several_directions_is_recorded_once(tmp_path: Path) -> None:
    write_lines(tmp_path, "train", "en de fr", range(10))
    files = describe_sources(find(tmp_path, "en-de,en-fr,de-en", "train").files(TokenizerConfig()))["files"]
    assert [Path(file["path"]).name for file in files] == ["train.en", "train.de", "train.fr"]


def test_a_direction_whose_text_is_empty_or_dropped(tmp_path: Path) -> None:
    """It would be trained without a word; its sets are configured, so that none is held out."""
    given = ("data.valid=dev", "data.test=dev")
    write_lines(tmp_path, "train", "en de", range(100))
    write_lines(tmp_path, "dev", "en de fr", range(500, 510))
    write(tmp_path / "same.en-fr.tsv", "".join(f"{line(number, 'en')}\t{line(number, 'en')}\n" for number in range(50)))
    write(tmp_path / "empty.en-fr.tsv", "")
    write(tmp_path / "empty.en-de.tsv", "a dog\tein Hund\n")
    empty = "empty.en-fr.tsv: the file is empty$"
    for name, error, problem in (
        ("same", DataError, "^data.directions: no training text is en-fr$"),
        ("empty", UsageError, empty),
    ):
        with pytest.raises(error, match=problem):
            run(tmp_path, "en-de,en-fr", *given, train=("train", f"{name}.{{src}}-{{tgt}}.tsv"))
        assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match=empty):
        find(tmp_path, "en-de,en-fr", "train", valid="empty.{src}-{tgt}.tsv")
    with pytest.raises(UsageError, match=empty):
        find(tmp_path, "en-de,en-fr", "train", test=["empty.en-fr.tsv"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.tsv", "The bridge was built in the year 1893, they say\tDie Brücke ist von 1893\n"),
        ("plain.csv", "The bridge was built; they say, in 1893;Die Brücke ist von 1893\n" * 2),
        ("plain.txt", "The bridge was built in the year 1893, they say ||| Die Brücke ist von 1893\n"),
    ],
)
def test_a_table_without_a_header_says_how_to_name_its_languages(name: str, text: str, tmp_path: Path) -> None:
    write(tmp_path / name, text)
    with pytest.raises(
        UsageError, match=r": no header names the column '..'; its first line has . cells: 1 'The"
    ) as error:
        find(tmp_path, "en-de,de-en", name)
    assert "by a first line such as en TAB de" in error.value.help and "NAME.{src}-{tgt}.tsv" in error.value.help


def test_a_direction_without_any_text_is_named_before_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path, "train", "en de fr", range(10))
    write(tmp_path / "more.tsv", "en\tfr\na dog\tun chien\n")
    monkeypatch.setattr(module, "_clean", None)  # it would take minutes
    with pytest.raises(DataError, match="^data.directions: no training text is en-it or it-de$") as error:
        run(tmp_path, "fr-en,en-it,en-de,it-de", train=("train", "more.tsv"))
    assert error.value.help == "data.directions=fr-en,en-de"


def test_a_missing_text_of_several_directions_is_not_about_languages(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'no.tsv' not found") as error:
        find(tmp_path, "en-de,de-en", "no.tsv")
    assert str(error.value.help).startswith("give a file with its extension")


@pytest.mark.parametrize(
    ("directions", "train", "message"),
    [
        (
            "en-de-fr",
            "a",
            r"data.directions.0.: expected two languages and one hyphen, such as en-de or en-zh_Hans, got 'en-de-fr'",
        ),
        ("en-de,en-de", "a", "data.directions: en-de,en-de has a direction twice"),
        ("en-en", "a", r"data.directions.0.: expected two languages and one hyphen, .* got 'en-en'"),
        (
            "en-de,en-fr",
            "plain.tsv",
            "plain.tsv: no header names the column 'en'; its first line has 2 cells: 1 'a",
        ),
        (
            "en-de,en-fr",
            "half.tsv",
            "half.tsv: no header names the column 'fr'; its first line has 2 cells: 1 'en', 2 'it'$",
        ),
        ("en-de,en-fr", "no", "^data.train: 'no' not found"),
        ("en-de,en-fr", [{"name": "a", "src": "it"}], "its src and tgt are not among en-de.en-fr$"),
    ],
)
def test_wrong_directions_and_a_text_without_one(directions: str, train: Any, message: str, tmp_path: Path) -> None:
    for language, text in ROWS.items():
        write(tmp_path / f"a.{language}", f"{text}\n")
    write(tmp_path / "plain.tsv", "a dog\tein Hund\n")
    write(tmp_path / "half.tsv", "en\tit\na dog\tun cane\n")
    with pytest.raises(UsageError, match=message):
        config = settings.resolve(None, [f"data.directions={directions}"]).config  # its messages have the key
        find(tmp_path, ",".join(config.data.directions), train)


def test_one_direction_is_the_source_and_the_target(tmp_path: Path) -> None:
    write_lines(tmp_path, "train", "en de", range(200))
    one = run(tmp_path, "en-de")
    prepare(make_config(tmp_path, "", "data.src=en", "data.tgt=de"), tmp_path / "usual")
    assert one.sha256 == load_prepared(tmp_path / "usual").sha256
    assert not one.tokenizer.languages and "directions" not in one.report and "src" not in one.report["corpora"][0]


def leaks(data: PreparedData) -> int:
    """Lines of validation and test sets on any side of the training text."""
    return len(texts(data.train) & {text for store in (data.valid, *data.tests.values()) for text in texts(store)})


def test_a_held_out_target_is_not_the_source_of_another_direction(tmp_path: Path) -> None:
    """No language is in all directions, and none is reversed."""
    write_lines(tmp_path, "train", "en de fr it", range(400))
    assert leaks(run(tmp_path, "en-de,de-fr,fr-it")) == 0


def test_no_line_that_is_held_out_is_on_any_side_of_the_training_text(tmp_path: Path) -> None:
    """Some lines are equal in two languages, so that they are sides of other pairs too."""
    write_lines(tmp_path, "train", "en de fr it", range(400))
    shared = "".join(f"{line(number, 'x')}\n" for number in range(1000, 1200))
    others = {"en": "".join(f"{line(number, 'en')}\n" for number in range(2000, 2200)), "de": shared, "fr": shared}
    for language, text in others.items():
        write(tmp_path / f"more.{language}", text)
    data = run(tmp_path, SIX, train=("train", "more"))
    assert leaks(data) == 0
    assert list(data.tests) == [f"heldout.{direction}" for direction in SIX.split(",")]
    assert data.report["kept"] >= 0.88 * data.report["read"]
    pairs = {name: {*zip(s.src_texts(), s.tgt_texts(), strict=True)} for name, s in data.tests.items()}
    for direction in ("en-de", "en-fr", "en-it"):
        reverse = "-".join(direction.split("-")[::-1])
        assert pairs[f"heldout.{direction}"] == {(src, tgt) for tgt, src in pairs[f"heldout.{reverse}"]}
    valid = [*zip(data.valid.corpus.tolist(), data.valid.src_texts(), data.valid.tgt_texts(), strict=True)]
    for number, (src, tgt) in enumerate(pairs_of(data.report["directions"])):
        of_direction = [(s, t) for n, s, t in valid if n == number]
        assert all(s.endswith((src, "x")) and t.endswith((tgt, "x")) for s, t in of_direction)
        assert len(of_direction) >= 20
        starts = {
            ids[0]
            for ids, n in zip(data.valid.src.sentences(np.arange(len(valid))), data.valid.corpus, strict=True)
            if n == number
        }
        assert starts == {data.tokenizer.languages[tgt]}
        corpora = [corpus for corpus in data.report["corpora"] if (corpus["src"], corpus["tgt"]) == (src, tgt)]
        assert sum(corpus["held_out"] for corpus in corpora) == len(of_direction) + len(pairs[f"heldout.{src}-{tgt}"])
        entry = data.report["tests"][f"heldout.{src}-{tgt}"]
        assert (entry["src"], entry["tgt"], entry["held_out"]) == (src, tgt, True)


def test_a_side_in_another_language_is_counted_in_each_direction_of_its_file(tmp_path: Path) -> None:
    """The sides of one pair are swapped, in markup of the right language. A duplicate is no training pair."""
    lines = [f"{en}\t{de}\n" for en, de in zip(sentences("en", 70), sentences("de", 70), strict=True)]
    en, de = lines[49].strip().split("\t")
    titles = '<b title="the film and the end of the story is">', '<b title="der Film und das Ende von der">'
    swapped = f"{titles[0]}{de}</b>\t{titles[1]}{en}</b>\n"
    write(tmp_path / "texts" / "a.tsv", "".join(["en\tde\n", *lines[:49], swapped, lines[0]]))
    write(tmp_path / "dev.tsv", "".join(["en\tde\n", *lines[50:]]))
    train = [str(tmp_path / "texts")]
    report = run(tmp_path, "en-de,de-en", "data.valid=dev.tsv", "data.test=dev.tsv", train=train).report
    example = report["other_language"]["example"]
    assert report["kept"] == 100 and report["other_language"]["share"] == 0.02
    assert (Path(example["corpus"]).name, example["line"]) == ("a.tsv", 51)
    assert example["language"] in ("en", "de")


def test_leaks_of_configured_sets_are_counted_on_both_sides(tmp_path: Path) -> None:
    write_lines(tmp_path, "train", "en de fr", range(100))
    write_lines(tmp_path, "dev", "en de", range(500, 510))
    write(tmp_path / "dev.fr", "".join(f"{line(number, 'en')}\n" for number in range(10)))  # the sources of ten pairs
    data = run(tmp_path, "en-de,en-fr", "data.valid=dev", "data.test=dev")
    assert data.report["valid"]["leaks"]["train_pairs"] == 20
    of_test = {name: entry["leaks"]["train_pairs"] for name, entry in data.report["tests"].items()}
    assert of_test == {"dev.en-de": 0, "dev.en-fr": 20} and data.report["kept"] == 200


def test_equal_pairs_of_two_directions_both_stay(tmp_path: Path) -> None:
    """Neither a duplicate nor an older translation is one of another direction."""
    write_lines(tmp_path, "train", "en de", range(100))
    write(tmp_path / "train.fr", (tmp_path / "train.de").read_bytes())
    write_lines(tmp_path, "dev", "en de fr", range(500, 510))
    given = ("data.valid=dev", "data.test=dev", "data.duplicates=newest")
    data = run(tmp_path, "en-de,en-fr", *given)
    assert data.report["kept"] == data.train.num_pairs == 200 and not data.report["dropped"]


def test_a_direction_with_too_little_text_to_hold_out(tmp_path: Path) -> None:
    write_lines(tmp_path, "train", "en de", range(300))
    write_lines(tmp_path, "few", "en fr", range(600, 602))
    with pytest.raises(DataError, match="^too little text is en-fr to hold out a part$"):
        run(tmp_path, "en-de,en-fr", train=("train", "few"))


def test_small_directions_are_drawn_more_often(tmp_path: Path) -> None:
    for language, size in {"de": 900, "fr": 100, "it": 10}.items():
        write_lines(tmp_path, language, f"en {language}", range(size))
    write_lines(tmp_path, "own", "en fr", range(2000, 2050))
    write_lines(tmp_path, "dev", "en de", range(5000, 5010))
    given = ("data.valid=dev", "data.test=dev")
    own = {"name": "own", "weight": 0.5}
    data = run(tmp_path, "en-de,en-fr,en-it", *given, "data.temperature=2", train=("de", "fr", "it", own))
    assert data.train.weights.tolist() == [1.0, pytest.approx(6**0.5), pytest.approx(90**0.5), 0.5]
    assert [corpus["weight"] for corpus in data.report["corpora"]] == data.train.weights.tolist()
    config = make_config(tmp_path, "en-de,en-fr,en-it", *given, train=("de", "fr", "it"))
    prepare(config, tmp_path / "five")  # 100 pairs 9^0.8 times, 10 pairs not 90^0.8 times
    assert load_prepared(tmp_path / "five").train.weights.tolist() == [1.0, pytest.approx(9**0.8), 10.0]
    prepare(
        make_config(tmp_path, "en-de,en-fr,en-it", *given, "data.temperature=2", train=("de", "fr", "it")),
        tmp_path / "two",
    )
    store = load_prepared(tmp_path / "two").train
    order = store.epoch_order(1)
    drawn = np.concatenate([store.corpus[order.rows(epoch, 0, 10_000)["pair"]] for epoch in range(20)])
    sizes = np.array([900, 100, 10]) ** 0.5
    np.testing.assert_allclose(np.bincount(drawn) / drawn.size, sizes / sizes.sum(), rtol=0.01)


def test_the_tokenizer_learns_from_a_weighted_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for language, size in {"de": 900, "fr": 100}.items():
        write_lines(tmp_path, language, f"en {language}", range(size))
    write_lines(tmp_path, "dev", "en de", range(5000, 5010))
    learned = list[str]()

    def learn(sentences: Any, *arguments: Any, **options: Any) -> Tokenizer:
        learned[:] = sentences
        return train_tokenizer(iter(learned), *arguments, **options)

    monkeypatch.setattr(module, "train_tokenizer", learn)
    given = ("data.valid=dev", "data.test=dev", "data.temperature=2")
    run(tmp_path, "en-de,en-fr", *given, train=("de", "fr"))
    assert [sum(text.endswith(language) for text in learned) for language in ("de", "fr")] == [900, 300]
    monkeypatch.setattr(module, "MAX_TOKENIZER_PAIRS", 400)  # a third of the weighted pairs
    prepare(make_config(tmp_path, "en-de,en-fr", *given, train=("de", "fr")), tmp_path / "few")
    assert [sum(text.endswith(language) for text in learned) for language in ("de", "fr")] == [
        pytest.approx(300, abs=40),
        100,
    ]


def test_copies_of_the_target_have_no_direction() -> None:
    with pytest.raises(UsageError, match="^training.copied_target_ratio is for one direction"):
        settings.resolve(None, ["data.directions=en-de,en-fr", "training.copied_target_ratio=0.5"])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    lines = [line(number, language) for number in range(300) for language in ("en", "de")]
    return train_tokenizer(lines, TokenizerConfig(vocab_size=300), 300, ["BT"], languages=["de", "fr", "de"])


def test_a_direction_is_a_control_symbol_before_the_source(tokenizer: Tokenizer, tmp_path: Path) -> None:
    de, fr = tokenizer.languages["de"], tokenizer.languages["fr"]
    assert tokenizer.pieces([de, fr]) == [">>de<<", ">>fr<<"] and tokenizer.num_pieces == 300
    assert tokenizer.frame("en", "fr", "BT") == Frame((tokenizer.tags["BT"], fr))
    text = f">>fr<< {line(1, 'en')}"
    (ids,) = tokenizer.encode([text], tokenizer.frame("en", "de"))
    assert ids[0] == de and not {de, fr} & {*ids[1:]} and tokenizer.decode([ids]) == [text]
    with pytest.raises(UsageError, match="^the model has no language it; it has de, fr$"):
        tokenizer.frame("en", "it")
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).is_same(tokenizer)


def name_both(tokenizer: Tokenizer) -> Tokenizer:
    """The same pieces, by the rule of M2M-100 and NLLB."""
    return Tokenizer(tokenizer.models, "nfc", ["BT"], languages=tokenizer.languages, rule="both")


def test_the_other_rule_names_both_sides(tokenizer: Tokenizer, tmp_path: Path) -> None:
    both, de, fr = name_both(tokenizer), tokenizer.languages["de"], tokenizer.languages["fr"]
    assert both.frame("fr", "de", "BT") == Frame((both.tags["BT"], fr), before_tgt=(de,))
    assert not both.is_same(tokenizer)
    for name in (("it", "de"), ("de", "it")):
        with pytest.raises(UsageError, match="no language it"):
            both.frame(*name)
    both.save(tmp_path)
    assert Tokenizer.load(tmp_path).frame("fr", "de") == both.frame("fr", "de")


@pytest.mark.parametrize(
    "languages",
    [
        [],
        {},
        {"rule": "both", "ids": {}},
        {"rule": "x", "ids": {"de": 2}},
        {"rule": "target"},
        {"rule": "target", "ids": {"de": 0}},
        {"rule": "target", "ids": {"de": 300}},
        {"rule": "target", "ids": {"de": "2"}},
        {"rule": "target", "ids": {"d e": 2}},
        {"rule": ["target"], "ids": {"de": 2}},
    ],
)
def test_wrong_languages_of_a_tokenizer_are_damage(languages: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"languages": languages}))
    with pytest.raises(DamagedFileError, match="languages or pieces do not match"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("rule", ["target", "both"])
def test_changed_text_keeps_its_direction(rule: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_lines(tmp_path, "train", "en de fr", range(200))
    write_lines(tmp_path, "dev", "en de fr", range(500, 510))
    directions = list(permutations(("de", "fr"), 2))
    names = ",".join(map("-".join, directions))
    overrides = ("data.valid=dev", "data.test=dev", "training.upper_case=0.5", "training.bpe_dropout=0.3")
    config = make_config(tmp_path, names, *overrides).model_copy(update={"tokenizer": TokenizerConfig()})
    of_rule = name_both(tokenizer) if rule == "both" else tokenizer
    prepare(config, tmp_path / "out", of_rule)
    data = load_prepared(tmp_path / "out")
    encode = epoch_text(config, data.train, data.tokenizer, None)
    assert encode is not None
    pairs = np.arange(data.train.num_pairs)
    usual = zip(data.train.src.sentences(pairs), data.train.tgt.sentences(pairs), strict=True)
    new = encode(1, 0, pairs)
    changed = zip(*(side.sentences(pairs) for side in new), strict=True)
    assert sum(before != after for before, after in zip(usual, changed, strict=True)) > 150
    for ids, number in zip(zip(*(side.sentences(pairs) for side in new), strict=True), data.train.corpus, strict=True):
        assert data.tokenizer.frame_of(*ids) == of_rule.frame(*directions[number])


def test_the_own_text_of_an_adaptation_is_all_directions_of_its_first_item(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    for name, languages, numbers in (("own", "en de fr", range(100)), ("general", "en de fr", range(1000, 1500))):
        write_lines(tmp_path, name, languages, numbers)
    config = make_config(tmp_path, "en-de,en-fr", train=("own", "general"))
    tree = config.model_dump() | {"tokenizer": {}}
    tree["training"]["init_from"] = "model"
    prepare(Config.model_validate(tree), tmp_path / "out", tokenizer)
    data = load_prepared(tmp_path / "out")
    assert [entry["held_out"] for entry in data.report["corpora"]] == [10, 10, 0, 0]
    assert data.train.weights.tolist() == [1.0, 1.0, 0.18, 0.18]


def test_a_given_tokenizer_needs_the_languages(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_lines(tmp_path, "train", "en de fr", range(200))
    plain = Tokenizer(tokenizer.models, "nfc", [])
    with pytest.raises(UsageError, match="^data.directions: the tokenizer of training.init_from has no token for de$"):
        prepare(make_config(tmp_path, "en-de,en-fr"), tmp_path / "out", plain)


def test_columns_named_as_the_languages_leave_unnamed_units_their_only_direction(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("en,de\n" + "".join(f"dog {n},Hund {n}\n" for n in range(30)))
    (tmp_path / "some.po").write_text("".join(f'msgid "cat {n}"\nmsgstr "Katze {n}"\n\n' for n in range(30)))
    data = {"dir": str(tmp_path), "train": ["table.csv", "some.po"], "columns": ["en", "de"], "src": "en", "tgt": "de"}
    texts = [text for corpus in find_corpora(DataConfig.model_validate(data)).train for text in corpus.blocks()]
    assert [len(block.src) for block in texts] == [30, 30]
