"""Two files of sentences, NAME.en and NAME.sw, are what people have: they are named themselves, or by NAME."""

import gzip
import logging
import shlex
from itertools import permutations
from pathlib import Path

import pytest

from mtx import cli
from mtx.commands import train as commands
from mtx.config.schema import Config
from mtx.data import folders
from mtx.data.folders import pair_sides
from mtx.data.sources import find_corpora
from mtx.data.tables import log_once
from mtx.errors import DataError, MtxError, UsageError
from tests.unit.data.sentences import sentences

LINES = {"en": sentences("en"), "de": sentences("de")}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    monkeypatch.chdir(tmp_path)
    log_once.cache_clear()
    folders.count_lines.cache_clear()
    caplog.set_level(logging.INFO, logger="mtx")
    return tmp_path


def write(*names: str, text: str = "en", count: int | None = None) -> None:
    for name in names:
        content = "".join(f"{line}\n" for line in LINES[text][:count]).encode()
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def resolve(*words: str) -> Config:
    return commands.resolve([*words]).config


def first(config: Config) -> tuple[str, str]:
    block = next(find_corpora(config.data).train[0].blocks())
    return block.src[0], block.tgt[0]


@pytest.mark.parametrize(
    "src, tgt",
    [
        *permutations(["my.en", "my.de"]),
        *permutations(["my.eng.gz", "my.deu.gz"]),
        ("data/my.en", "data/my.de.gz"),
        ("./a, b/my text.EN", "a, b/my text.de-AT"),
        ("corpus.de-en.en", "corpus.de-en.de"),
    ],
)
def test_two_files_are_source_and_target_in_the_order_in_which_they_are_named(
    src: str, tgt: str, caplog: pytest.LogCaptureFixture
) -> None:
    german = [name for name in (src, tgt) if ".de" in name[-7:]]
    write(*{src, tgt}.difference(german))
    write(*german, text="de")
    write(str(Path(src).with_name("my.fr")))  # is not asked for
    config = resolve(src, tgt)
    languages = ("de", "en") if german == [src] else ("en", "de")
    assert config.data.languages == languages
    assert first(config) == tuple(LINES[language][0] for language in languages)
    opposite = f"data.src={languages[1]} data.tgt={languages[0]}"
    direction = f"{languages[0]} to {languages[1]} (from the names of its files)"
    assert f"{direction}; for the opposite direction: {opposite}" in caplog.text
    [command] = [text for text in caplog.messages if text.startswith("this is short for: ")]
    words = shlex.split(command.removeprefix("this is short for: "))
    assert resolve(*words[words.index("train") + 1 :]) == config, "it works when pasted"
    assert resolve(src, tgt, *opposite.split()).data.languages == languages[::-1]


def test_a_folder_or_a_recipe_of_that_name_does_not_replace_two_files_that_are_named() -> None:
    write("my.en", "demo.en")
    write("my.de", "demo.de", text="de")
    write("my/other.en", "my/other.de", "demo/other.en", text="de")
    assert first(resolve("my.en", "my.de")) == first(resolve("demo.en", "demo.de")) == (LINES["en"][0], LINES["de"][0])
    assert resolve("my").data.train == ("my/",)
    assert resolve("demo").data.generator, "it is the recipe"


@pytest.mark.parametrize("name", ["my", "./my", "a b/my.text"])
@pytest.mark.parametrize("endings", [("en", "de"), ("eng.gz", "deu"), ("en", "de.gz")])
def test_a_name_of_files_in_two_languages_is_a_text(
    name: str, endings: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    write(f"{name}.{endings[0]}")
    write(f"{name}.{endings[1]}", text="de")
    write(f"{name}.txt", f"{name}.more.fr", f"{name}-2.fr")
    config = resolve(name)
    assert config.data.languages == ("en", "de") and first(config) == (LINES["en"][0], LINES["de"][0])
    assert config.run_dir == f"runs/{Path(name).name}"
    assert "for the opposite direction: data.src=de data.tgt=en" in caplog.text
    for opposite in (["data.src=de"], ["data.tgt=en"], ["data.src=deu", "data.tgt=eng"]):
        assert first(resolve(name, *opposite)) == (LINES["de"][0], LINES["en"][0])
    with pytest.raises(UsageError, match="data.src=fr: .*my.* has en and de"):
        resolve(name, "data.src=fr")


def test_of_three_languages_two_must_be_chosen() -> None:
    write("my.en", "my.fr", "my.deu")
    with pytest.raises(UsageError, match="my: expected text in two languages, got en, deu, fr") as error:
        resolve("my")
    assert error.value.help == "choose two: data.src=en data.tgt=de"
    assert resolve("my", "data.src=en", "data.tgt=de").data.languages == ("en", "de")
    assert resolve("my", "data.directions=en-de,fr-en").data.directions == ("en-de", "fr-en")


def test_a_variety_is_never_replaced_by_another_one() -> None:
    write("my.eng")
    write("my.pt-PT", text="de")
    write("my.pt-BR")
    assert first(resolve("my", "data.src=en", "data.tgt=pt-PT")) == (LINES["en"][0], LINES["de"][0])
    assert resolve("my.pt-BR", "my.pt-PT").data.languages == ("pt-BR", "pt-PT")
    with pytest.raises(UsageError, match=r"there is no my.en\[.gz\] and no my.pt\[.gz\]"):
        resolve("my", "data.src=en", "data.tgt=pt")


UNKNOWN = ["bbj", "luo", "fon", "BBJ", "bbj_Latn", "wo"]


@pytest.mark.parametrize("words", [["my.fr", "my.{}"], ["my"], ["folder"]])
@pytest.mark.parametrize("ending", UNKNOWN)
def test_a_code_that_mtx_does_not_know_is_a_language_beside_one_that_it_knows(
    ending: str, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = "folder/" if words == ["folder"] else ""
    write(f"{folder}my.fr", f"{folder}my.{ending}")
    config = resolve(*(word.format(ending) for word in words))
    code = ending.lower().partition("_")[0]
    assert {*config.data.languages} == {"fr", code} and find_corpora(config.data).train
    [guess] = [text for text in caplog.messages if "taken for" in text]
    start = f"{folder}my.{ending}: taken for text in the language '{ending}'; if it is not: mv "
    assert guess.startswith(start)
    _, path, other = shlex.split(guess.rpartition(": ")[2])
    Path(path).rename(other)
    with pytest.raises(MtxError):
        resolve(*(word.format(ending) for word in words))


def test_languages_that_are_given_are_not_guessed(caplog: pytest.LogCaptureFixture) -> None:
    write("my.bbj", "my.nnh")
    for words in (["my.bbj", "my.nnh"], ["my"]):
        config = resolve(*words, "data.src=bbj", "data.tgt=nnh")
        assert config.data.languages == ("bbj", "nnh") and config.data.train == ("my",)
    assert "taken for" not in caplog.text
    with pytest.raises(UsageError, match="my.bbj: expected sentence pairs") as error:
        resolve("my.bbj", "my.nnh")
    assert "data.src=en data.tgt=de if mtx does not know a language" in str(error.value.help)


@pytest.mark.parametrize(
    "ending",
    [
        "txt",
        "md",
        "py",
        "json",
        "log",
        "html",
        "zip",
        "bak",
        "orig",
        "xml",
        "csv",
        "srt",
        "TXT",
        "pos",
        "dev",
        "ids",
        "",
    ],
)
def test_another_kind_of_file_is_no_language(ending: str) -> None:
    write("my.en", f"my.{ending}")
    assert pair_sides(Path().glob("*"), ("src", "tgt")) == []
    with pytest.raises(UsageError):
        resolve("my.en", f"my.{ending}")
    write("my.de")
    assert len(pair_sides(Path().glob("*"), ("src", "tgt"))) == 1


def test_lines_decide_whether_a_code_is_a_language() -> None:
    write("my.en", "other.en", "other.bbj", "three.en", "three.de", "three.bbj")
    write("my.bbj", count=3)
    found = pair_sides(Path().glob("*"), ("src", "tgt"))
    assert found == [(Path("other.en"), Path("other.bbj")), (Path("three.en"), Path("three.de"))]


@pytest.mark.parametrize(
    "names", [*permutations(["my.en-GB", "my.de"]), *permutations(["my.eng", "my.de"]), ("my.en-US", "my.en-GB")]
)
def test_the_file_that_is_named_is_read_beside_another_spelling(names: tuple[str, str]) -> None:
    write("my.en", "my.eng", "my.en-US", "my.en-GB", "my.de")
    [corpus] = find_corpora(resolve(*names).data).train
    assert corpus.files == (Path(names[0]), Path(names[1]))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["a.en.gz", "a.de.gz"], "a.en.gz and a.de.gz: no text in en and de, which is in a.en and a.de"),
        (["a.en", "a.de", "data.src=fr", "data.tgt=en"], "a.en and a.de: no text in fr and en, which is in a.fr"),
        (["a.en", "a.de", "data.src=sw", "data.tgt=en"], "a.en and a.de: no text in sw and en"),
        (["a.en", "a.ef"], "a.ef: no such file, did you mean a.en?"),
        (["A.EN", "a.de"], "A.EN: no such file"),
        (["none.en", "none.de"], "none.en: no such file"),
    ],
)
def test_other_files_than_those_that_are_named_are_never_read(words: list[str], problem: str) -> None:
    write("a.en", "a.en.gz", "a.eng", "a.de", "a.de.gz", "a.fr")
    with pytest.raises(UsageError) as error:
        resolve(*words)
    assert str(error.value) == problem


def test_a_name_and_settings_may_come_in_any_order() -> None:
    write("my.en", "my.de")
    assert resolve("seed=5", "my", "data.src=de").seed == 5


def test_a_name_may_end_like_that_of_a_table() -> None:
    write("corpus.tsv.en", "corpus.tsv.de")
    for words in (["corpus.tsv.en", "corpus.tsv.de"], ["corpus.tsv"]):
        assert find_corpora(resolve(*words).data).train[0].files == (Path("corpus.tsv.en"), Path("corpus.tsv.de"))


def test_of_three_languages_one_may_be_given() -> None:
    write("my.en", "my.fr", "my.de")
    with pytest.raises(UsageError) as error:
        resolve("my", "data.src=fr")
    assert error.value.help == "choose two: data.src=en data.tgt=fr"


def test_unequal_lines_of_a_language_that_mtx_does_not_know_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    write("d/my.en")
    write("d/my.bbj", count=3)
    for words in (["d/my.en", "d/my.bbj"], ["d/my"], ["d"]):
        log_once.cache_clear()
        caplog.clear()
        with pytest.raises(MtxError):
            resolve(*words)
        assert f"skipping d/my.bbj: it has 3 lines, d/my.en has {len(LINES['en'])}" in caplog.messages


def test_programs_of_different_names_are_no_text() -> None:
    write("d/main.py", "d/run.sh")
    with pytest.raises(UsageError, match="no text in"):
        resolve("d")


def test_what_is_no_text_in_two_languages_is_refused() -> None:
    write("my.en", "my.eng", "b.en", "a.en", "short.en")
    write("short.de", count=3)
    for names in (["my.en", "my.en"], ["my.en", "my.eng"], ["a.en", "b.en"]):
        with pytest.raises(UsageError, match=f"^{names[0]} and {names[1]} are in one language, en$"):
            resolve(*names)
    with pytest.raises(UsageError, match="^my.sw: no such file"):
        resolve("my.en", "my.sw")
    with pytest.raises(DataError, match="^short.en has .* lines, short.de has 3$"):
        resolve("short.en", "short.de")


def test_validation_text_is_in_the_languages_of_the_training_text() -> None:
    write("my.en", "dev.en", "dev.fr")
    write("my.de", "dev.deu", text="de")
    Path("my.tsv").write_text("English\tGerman\n" + "a dog\tein Hund\n" * 9)
    for words in (["my"], ["my.tsv"]):
        valid = find_corpora(resolve(*words, "data.valid=dev").data).valid
        assert [(block.src[0], block.tgt[0]) for corpus in valid for block in corpus.blocks()] == [
            (LINES["en"][0], LINES["de"][0])
        ]


def test_a_configuration_of_two_files_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    write("my.en", "train.en")
    write("my.de", "train.de", text="de")
    for words in (["my.de", "my.en"], ["my", "data.src=de"], ["train", "data.src=de"]):
        assert cli.run(["config", *words]) == 0
        assert "  src: de " in capsys.readouterr().out
    assert cli.run(["config", "train"]) == 0 and "  src: en " in capsys.readouterr().out
    Path("train.de").unlink()
    assert cli.run(["config", "train"]) == 0 and "data.train: training corpora" in capsys.readouterr().out
