"""What a file is, and the settings that follow from it, are known without a command."""

import gzip
import logging
from pathlib import Path

import pytest

from mtx.config.settings import resolve
from mtx.data.sources import find_corpora
from mtx.data.text_arguments import describe, describe_languages, holds_pairs
from mtx.errors import UsageError


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("a.tsv", "dog", True),
        ("a.TSV.gz", "dog", True),
        ("a", "dog\tHund\n", True),
        ("a.txt", '<?xml version="1.0"?><tmx version="1.4">', True),
        ("a", "# dog\tHund\n", True),
        ("a.txt", "dog\n", False),
        ("a.yaml", "dog\tHund\n", None),
        ("a", "seed: 1\n", None),
        ("a", "# a comment\n", None),
        ("a", "#\n# a comment\n", None),
        ("a.txt", "#separator:tab\ndog\tHund\n", False),
    ],
)
def test_what_holds_pairs(name: str, text: str, expected: bool | None, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert holds_pairs(str(path)) is expected


@pytest.mark.parametrize("text", ["", " \n\n", "\ufeff\n", "\t\n" * 50_000])
@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a.txt",
        "a.tsv",
        "a.csv",
        "a.json",
        "a.jsonl",
        "a.tmx",
        "a.xliff",
        "a.po",
        "a.parquet",
        "a.md",
        "a.docx",
        "a.en",
    ],
)
def test_an_empty_file_is_called_so(name: str, text: str, tmp_path: Path) -> None:
    data = text.encode()
    for language in ("en", "de"):
        (tmp_path / f"demo.{language}").write_text("a\n")
    for path, content in ((tmp_path / name, data), (tmp_path / f"{name}.gz", gzip.compress(data))):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=f"{path.name}: the file is empty$"):
            describe([str(path)], [])
        for key in ("train", "valid", "test"):
            with pytest.raises(UsageError, match=f"{path.name}: the file is empty$"):
                languages = ["data.src=en", "data.tgt=de"]
                resolved = resolve("own-text", [f"data.train={tmp_path}/demo", f"data.{key}={path}", *languages])
                find_corpora(resolved.config.data)


def test_text_after_much_white_space_is_no_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("\n" * 200_000 + "dog\tHund\n")
    assert holds_pairs(str(tmp_path / "a.tsv")) is True


def test_what_is_no_file_holds_no_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("dog\tHund\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("")
    for name in ("run", "missing", "a\0b", "a" * 5000, "demo"):
        assert holds_pairs(name) is None and describe([name], []) == [], "the last one is a recipe"
    with pytest.raises(UsageError, match=r"missing.tsv: no such file"):
        describe(["missing.tsv"], [])
    assert describe([], []) == [] and holds_pairs("./demo")


def test_files_of_pairs_are_settings_of_own_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, other = tmp_path / "my.text.tsv.gz", tmp_path / "other.csv"
    file.write_bytes(gzip.compress(b"German\tEnglish\nHund\tdog\n"))
    other.write_text("Hund,dog\n")
    names = [str(file), str(other)]
    settings = describe(names, [])
    assert settings == [f"data.train={file},{other}", "run_dir=runs/my.text"]
    assert describe(names, ["run_dir=x"]) == settings[:1] and describe([*names, "missing"], []) == []
    with pytest.raises(UsageError, match="expected one of them"):
        describe(names, ["data.train=x"])
    with caplog.at_level(logging.INFO, logger="mtx"):
        languages = describe_languages(resolve("own-text", settings))
    assert languages == ["data.src=de", "data.tgt=en"] and "de to en (from its header)" in caplog.text
    corpora = find_corpora(resolve("own-text", [*settings, *languages]).config.data)
    assert [(corpus.files, next(corpus.blocks()).src) for corpus in corpora.train][0] == ((file,), ["Hund"])


def test_a_language_that_is_given_decides_the_direction(tmp_path: Path) -> None:
    file = tmp_path / "my.tsv"
    file.write_text("German\tEnglish\nHund\tdog\n")
    settings = describe([str(file)], [])
    for given, expected in (("src=en", ["data.tgt=de"]), ("tgt=de-AT", ["data.src=en"]), ("tgt=en", ["data.src=de"])):
        assert describe_languages(resolve("own-text", [*settings, f"data.{given}"])) == expected
    with pytest.raises(UsageError, match="my.tsv has de and en "):
        describe_languages(resolve("own-text", [*settings, "data.src=fr"]))
    assert describe_languages(resolve("own-text", [*settings, "data.src=fr", "data.tgt=it"])) == []
