"""`mtx translate --review`: the segments of a text or a document by their expected quality, the worst first."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mtx import cli
from mtx.commands import translate
from mtx.decoding.options import Candidate
from mtx.decoding.torch_engine import TorchEngine
from mtx.errors import UsageError
from tests.unit.decoding.test_translator_directions import LINES
from tests.unit.scoring.test_quality import model_with_map

SOURCES = [*LINES, "", "7", LINES[0]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_with_map(tmp_path_factory.mktemp("review") / "m", knots=[-5.0, 0.0])


def run(model: Path, *words: object) -> Result:
    words = ("translate", model, "--from", "en", "--to", "de", "--engine", "torch", "--threads", 1, *words)
    return CliRunner().invoke(cli.app, list(map(str, words)))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, dialect="excel-tab"))


def copy(engine: TorchEngine, sources: list[list[int]], prefixes: list[list[int]], _: object) -> list[list[Candidate]]:
    """A search that finds the source, without its language, with a score by its first piece."""
    return [
        [Candidate([*prefix, *ids[1:]], -0.1 * (ids[1] % 19))] for ids, prefix in zip(sources, prefixes, strict=True)
    ]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TorchEngine, "search", copy)
    Path("in.txt").write_text("".join(f"{line}\n" for line in SOURCES))
    return tmp_path


def test_lines_are_in_the_table_as_they_are_translated(model: Path, place: Path) -> None:
    assert run(model, "in.txt", "-o", "plain.txt").exit_code == 0
    assert run(model, "in.txt", "-o", "out.txt", "--review", "r.tsv").exit_code == 0
    assert Path("out.txt").read_text() == Path("plain.txt").read_text() == Path("in.txt").read_text()
    rows = table(Path("r.tsv"))
    assert sorted(row["source"] for row in rows) == sorted([*LINES, LINES[0]]), "without what is not translated"
    qualities = [float(row["quality"]) for row in rows]
    assert qualities == sorted(qualities) and len({*qualities}) > 2
    values = [json.loads(line) for line in run(model, "in.txt", "--json").stdout_bytes.splitlines()]
    expected = {(each["text"], str(each["quality"]), each["advice"]) for each in values if "quality" in each}
    assert {(row["translation"], row["quality"], row["advice"]) for row in rows} == expected
    piped = run(model, "in.txt", "--review", "piped.tsv")
    assert piped.stdout_bytes == Path("plain.txt").read_bytes() and table(Path("piped.tsv")) == rows


def test_a_resumed_translation_has_the_whole_table(model: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "BLOCK_LINES", 2)
    assert run(model, "in.txt", "-o", "whole.txt", "--review", "whole.tsv").exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(translate.Review, "write", lambda review: 1 / 0)
        assert run(model, "in.txt", "-o", "out.txt", "--review", "r.tsv").exit_code
    assert Path("out.txt.part").exists() and not Path("r.tsv").exists()
    for words in ([], ["--review", "r.tsv", "--look-below", 50]):
        with pytest.raises(UsageError, match="was started with another"):
            raise run(model, "in.txt", "-o", "out.txt", *words).exception or AssertionError
    assert run(model, "in.txt", "-o", "out.txt", "--review", "r.tsv").exit_code == 0
    assert Path("r.tsv").read_text() == Path("whole.tsv").read_text()
    assert Path("out.txt").read_text() == Path("whole.txt").read_text() and not Path("out.txt.part").exists()


def test_a_document_has_a_table_with_its_codes(model: Path, place: Path) -> None:
    Path("a.po").write_text('msgid ""\nmsgstr "Language: de\\n"\n\nmsgid "abc %s de"\nmsgstr ""\n')
    assert run(model, "a.po", "-o", "out.po", "--review", "r.tsv").exit_code == 0
    [row] = table(Path("r.tsv"))
    assert row["source"] == "abc %s de" and "%s" in row["translation"]
    assert f"# mtx: quality {float(row['quality']):g}, {row['advice']}\n" in Path("out.po").read_text()


def test_segments_unlike_the_validation_text_come_first_and_are_counted(
    tmp_path: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    region = {"means": [-0.5, *[0.0] * 6], "deviations": [1.0] * 7, "max_distance": 4.0}
    model = model_with_map(tmp_path / "m", knots=[-5.0, 0.0], region=region)
    assert run(model, "in.txt", "-o", "out.txt", "--review", "r.tsv").exit_code == 0
    rows = table(Path("r.tsv"))
    unlike = [row for row in rows if not row["quality"]]
    assert 0 < len(unlike) < len(rows) and rows[: len(unlike)] == unlike
    assert {row["advice"] for row in unlike} <= {"look", "redo"}
    unlike_text = "unlike the validation text of this model, and have no estimate of quality"
    message = f"{len(unlike)} of {len(rows)} lines are {unlike_text}"
    assert message in caplog.messages
    values = [json.loads(line) for line in run(model, "in.txt", "--json").stdout_bytes.splitlines()]
    assert sum("advice" in each and each["quality"] is None for each in values) == len(unlike)
    Path("a.po").write_text('msgid ""\nmsgstr "Language: de\\n"\n\nmsgid "abc %s de"\nmsgstr ""\n')
    assert (
        run(model_with_map(tmp_path / "n", region={**region, "max_distance": 0.0}), "a.po", "-o", "out.po").exit_code
        == 0
    )
    assert "mtx: quality" not in Path("out.po").read_text()
    assert (
        "1 of 1 segment are unlike the validation text of this model, and have no estimate of quality"
        in caplog.messages
    )


def test_look_below_sets_the_advice(model: Path, place: Path) -> None:
    for limit, advice in ((0, {"use"}), (100, {"look", "redo"})):
        assert run(model, "in.txt", "-o", f"{limit}.txt", "--review", "r.tsv", "--look-below", limit).exit_code == 0
        rows = table(Path("r.tsv"))
        assert {row["advice"] for row in rows if not row["suspicion"]} <= advice
        assert {row["advice"] for row in rows if row["suspicion"]} <= {"look", "redo"}
        assert any(row["suspicion"] for row in rows) and not all(row["suspicion"] for row in rows)
    assert Path("0.txt").read_text() == Path("100.txt").read_text()
    assert run(model, "in.txt", "--look-below", 101).exit_code == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--review", "r.tsv", "--beam", 2], "has no estimate of quality for this search"),
        (["--review", "r.tsv", "-o", "r.tsv"], "written to the same file"),
        (["--review", "in.txt"], "would overwrite it"),
    ],
)
def test_what_cannot_be_reviewed_is_refused_before_it_begins(
    model: Path, place: Path, words: list[object], problem: str
) -> None:
    result = run(model, "in.txt", *words)
    assert isinstance(result.exception, UsageError) and problem in str(result.exception) and not result.stdout_bytes
    assert [*map(str, Path().iterdir())] == ["in.txt"]
