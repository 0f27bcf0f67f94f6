"""`--glossary` of translate and evaluate with a tiny model that learned terms, and with one that did not."""

import json
from pathlib import Path
from typing import Any

import pytest

from mtx.commands.train import resolve
from mtx.data.glossary import TERM_MARKS, Glossary
from mtx.data.token_store import load_prepared
from mtx.decoding.translator import Translator
from tests.integration.commands import mtx

TERMS = "two\tzwo\nthree four\tdrei vier\n"


@pytest.fixture(scope="module")
def model(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("terms") / "run"
    result = mtx("train", *settings, "data.terms=auto", f"run_dir={run}")
    assert result.returncode == 0 and b"terms: " in result.stderr, result.stderr.decode()
    return run


@pytest.fixture
def glossary(tmp_path: Path) -> Path:
    path = tmp_path / "terms.tsv"
    path.write_text(TERMS)
    return path


def ids_of(translator: Translator, line: str) -> list[list[int]]:
    [parts] = translator.split([line])
    return [part.ids for part in parts]


def test_a_run_learns_terms_of_its_text(model: Path) -> None:
    terms = load_prepared(model / "data").terms
    assert terms is not None and terms.terms["two"] == "zwei"


def test_the_model_reads_the_translation_beside_the_term(model: Path) -> None:
    translator = Translator.load(model, engine="torch", device="cpu")
    plain = ids_of(translator, "one two")
    translator.use_glossary(Glossary({"two": "zwo"}))
    marks, encode = list(translator.tokenizer.marks.values()), translator.tokenizer.encode
    [one, two, zwo] = (ids[:-1] for ids in encode(["one", "two", "zwo"]))
    assert ids_of(translator, "one two") == [[*one, marks[0], *two, marks[1], *zwo, marks[2], 0]]
    assert ids_of(translator, f"one {TERM_MARKS}two") == [[*one, marks[0], *two, marks[1], *zwo, marks[2], 0]]
    translator.use_glossary(None)
    assert ids_of(translator, "one two") == plain


def test_a_long_line_is_not_cut_inside_a_term(model: Path) -> None:
    translator = Translator.load(model, engine="torch", device="cpu", split_sentences=False)
    translator.use_glossary(Glossary({"two": "zwo"}))
    first, _, last = translator.tokenizer.marks.values()
    parts = ids_of(translator, "two " * 40)
    assert len(parts) > 1 and max(map(len, parts)) <= translator.max_tokens
    assert all(part.count(first) == part.count(last) > 0 for part in parts)
    whole = [token for part in parts for token in part[:-1]]
    assert whole == translator.tokenizer.encode([translator.glossary.annotate("two " * 40)])[0][:-1]  # type: ignore[union-attr]


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_lines_are_translated_with_either_engine(model: Path, glossary: Path, engine: str) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    lines = b"one two\n\nthree four five\nno term\n"
    options = ["--engine", engine, "--precision", "fp32"]
    plain = mtx("translate", model, *options, stdin=lines)
    result = mtx("translate", model, "--glossary", glossary, *options, stdin=lines)
    assert result.returncode == 0, result.stderr.decode()
    assert b" of 2 terms of the glossary used" in result.stderr and b"of the glossary" not in plain.stderr
    rows, before = result.stdout.decode().split("\n"), plain.stdout.decode().split("\n")
    assert len(rows) == len(before) == 5 and rows[1] == "" and rows[3] == before[3], "only lines with terms can change"
    assert rows[0] != before[0] or rows[2] != before[2]
    assert not any(mark in result.stdout.decode() for mark in (*TERM_MARKS, "<term"))


def test_documents_are_translated(model: Path, glossary: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<p>one <b>two</b> three</p>")
    result = mtx("translate", model, page, "--glossary", glossary)
    assert result.returncode == 0 and result.stdout.count(b"<b>") == result.stdout.count(b"</b>") == 1


def test_a_model_that_is_trained_on_keeps_to_glossaries(model: Path, corpus: Path, refused: Any) -> None:
    text = f"data.train={corpus}"
    adapted = [f"training.init_from={model}", text]
    assert resolve(["adapt", *adapted]).config.data.terms == "auto"
    assert resolve(["adapt", *adapted, "data.terms=null"]).config.data.terms is None
    refused(1, ["config.json", "missing file"], "import", model, "-o", "nowhere")


def test_evaluate_tells_the_share_of_terms_used(model: Path, glossary: Path) -> None:
    result = mtx("evaluate", model, "--glossary", glossary, "--json")
    assert result.returncode == 0, result.stderr.decode()
    [name, with_terms] = scores = json.loads(result.stdout)
    assert with_terms == f"{name}, {glossary}"
    terms = scores[with_terms]["terms"]
    assert terms["num_terms"] >= terms["used"] >= 0 and terms["num_terms"] > 0
    assert {"bleu", "chrf"} <= scores[name].keys() & scores[with_terms].keys()
    lines = mtx("evaluate", model, "--glossary", glossary).stdout.decode().split("\n")
    assert f"of {terms['num_terms']} terms used" in lines[2]


def test_what_is_refused(model: Path, trained: Path, glossary: Path, tmp_path: Path, refused: Any) -> None:
    source = tmp_path / "in.txt"
    source.write_text("one\n")
    refused(2, ["has not learned terms", "data.terms=auto"], "translate", trained, source, "--glossary", glossary)
    refused(2, ["has not learned terms", "data.terms=auto"], "evaluate", trained, "--glossary", glossary)
    refused(2, ["nothing.tsv: no such file"], "translate", model, source, "--glossary", tmp_path / "nothing.tsv")
    refused(
        2,
        ["-o", "also reads the file"],
        "translate",
        model,
        source,
        "--glossary",
        glossary,
        "-o",
        glossary,
    )
    assert glossary.read_text() == TERMS
    files = ("--hyp", source, "--ref", source)
    refused(2, ["--glossary need MODEL"], "evaluate", *files, "--glossary", glossary)
    refused(2, ["--robust and --glossary"], "evaluate", model, "--glossary", glossary, "--robust")
    glossary.write_text("two zwo\n")
    refused(1, ["terms.tsv:1: expected source term TAB target term"], "evaluate", model, "--glossary", glossary)


def test_a_model_without_marks_is_no_start_for_terms(
    settings: list[str], trained: Path, tmp_path: Path, refused: Any
) -> None:
    keep = [key for key in settings if key.startswith("data.")]
    options = [*keep, "data.terms=auto", f"training.init_from={trained}", f"run_dir={tmp_path / 'run'}"]
    refused(2, ["data.terms: the tokenizer of training.init_from has no marks for terms"], "train", *options)
