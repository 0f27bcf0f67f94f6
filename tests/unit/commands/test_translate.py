"""A file that is translated into another one: what is written goes on after a kill, and parts make up the whole."""

import gzip
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mtx.commands import translate
from mtx.config.schema import TokenizerConfig
from mtx.data.tokenizer import train_tokenizer
from mtx.decoding.options import Candidate, SearchOptions
from mtx.errors import DataError, UsageError
from mtx.storage.text_files import decoded_lines
from tests.translators import FakeTranslator

SEARCH = SearchOptions()
LINES = [f"{n % 7} a {n}" for n in range(23)]


class Copying(FakeTranslator):
    """Writes the prefix and the source; a call is made with the number of lines of each block."""

    def __init__(self, called: Callable[[int], object]):
        tokenizer = train_tokenizer(LINES * 20, TokenizerConfig(vocab_size=300), 1, [])
        super().__init__(tokenizer, 40, SEARCH)
        self.called = called

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        self.called(len(sources))
        return [[Candidate([*prefix, *ids], 0.0)] for ids, prefix in zip(sources, prefixes, strict=True)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(translate, "BLOCK_LINES", 5)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "manifest.json").write_text("{}")
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path


def run(
    place: Path, name: str = "out.txt", called: Callable[[int], object] = bool, shard: str | None = None,
    prefix: Path | None = None, search: str = "",
) -> list[str]:  # fmt: skip
    work = translate.LineWork(Copying(called), False, prefix, translate.Review(None))
    translate.translate_file(
        work,
        place / "in.txt",
        place / name,
        shard,
        {"engine": search, "model": str(place / "model")},
        [prefix] if prefix else [],
    )
    assert not (place / f"{name}.part").exists()
    return (place / name).read_text().splitlines()


def killed(place: Path, blocks: int) -> None:
    sizes = list[int]()

    def end(size: int) -> None:
        sizes.append(size)
        if len(sizes) > blocks:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(place, called=end)
    assert not (place / "out.txt").exists()


def test_a_killed_one_goes_on_where_it_was(place: Path) -> None:
    killed(place, 2)
    killed(place, 1)
    with (place / "out.txt.part").open("a") as file:
        file.write("half a li")
    sizes = list[int]()
    assert run(place, called=sizes.append) == LINES
    assert sizes == [5, 3]


def test_alignments_are_the_same_after_a_kill(place: Path) -> None:
    def run_aligned(called: Callable[[int], object] = bool) -> None:
        work = translate.LineWork(Copying(called), True, None, translate.Review(None), True)
        translate.translate_file(work, place / "in.txt", place / "out.txt", None, {"model": str(place / "model")}, [])

    def stop(_: int) -> None:
        sizes.append(0)
        if len(sizes) > 2:
            raise KeyboardInterrupt

    sizes = list[int]()
    with pytest.raises(KeyboardInterrupt):
        run_aligned(stop)
    assert len((place / "out.txt.part").read_text().splitlines()) == 1 + 2 * 5
    run_aligned()
    rows = [json.loads(line) for line in (place / "out.txt").read_text().splitlines()]
    assert [row["text"] for row in rows] == LINES and {row["alignment"] for row in rows} == {"0-0 1-1 2-2"}


def test_what_was_begun_otherwise_is_refused_until_it_is_removed(place: Path) -> None:
    killed(place, 2)
    with pytest.raises(UsageError, match=r"out\.txt\.part: was started with another model, text or search"):
        run(place, search="other")
    (place / "in.txt").write_text("a\n")
    with pytest.raises(UsageError, match="was started with another"):
        run(place)
    (place / "out.txt.part").unlink()
    assert run(place) == ["a"]


@pytest.mark.parametrize("total", [1, 3, 16, 30])
def test_the_shards_make_up_the_whole(place: Path, total: int) -> None:
    parts = [run(place, f"{number}.txt", shard=f"{number}/{total}") for number in range(1, total + 1)]
    assert [line for part in parts for line in part] == LINES
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", ""])
def test_what_is_no_shard_is_refused(place: Path, shard: str) -> None:
    with pytest.raises(UsageError, match=f"--shard {shard}: expected K/N"):
        run(place, shard=shard)


def test_each_line_has_its_prefix_also_in_a_shard_and_after_a_kill(place: Path) -> None:
    prefix = place / "prefix.txt"
    prefix.write_text("".join(f"{n % 5}\n" for n in range(23)))
    expected = [f"{n % 5} {line}" for n, line in enumerate(LINES)]
    assert run(place, prefix=prefix) == expected
    assert run(place, prefix=prefix, shard="2/2") == expected[11:]
    for lines, message in (("a\n", "has fewer lines than the text"), ("a\n" * 24, "has more lines than the text")):
        prefix.write_text(lines)
        with pytest.raises(DataError, match=message):
            run(place, "other.txt", prefix=prefix)
    assert not (place / "other.txt.part").exists()


def test_lines_before_an_error_of_the_text_are_still_a_block() -> None:
    def lines() -> Iterator[str]:
        yield from "abc"
        raise DataError("no more")

    blocks = list[list[str]]()
    with pytest.raises(DataError):
        blocks.extend(translate.in_blocks(lines()))
    assert blocks == [["a", "b", "c"]]
    blocks.clear()
    with pytest.raises(DataError):
        blocks.extend(translate.in_blocks(iter(translate.pair_lines(["a"], Path(os.devnull)))))
    assert not blocks


def test_a_file_of_somebody_else_is_not_replaced(place: Path) -> None:
    part = place / "out.txt.part"
    part.write_text("my notes\n")
    with pytest.raises(UsageError, match=r"out\.txt\.part: .* is not a file of mtx"):
        run(place)
    assert part.read_text() == "my notes\n"
    part.unlink()
    part.symlink_to(place / "nowhere")
    with pytest.raises(UsageError, match=r"out\.txt\.part: .* is not a file of mtx"):
        run(place)
    assert part.is_symlink() and not (place / "nowhere").exists()
    part.unlink()
    part.mkdir()
    with pytest.raises(UsageError, match=r"out\.txt\.part: .* is not a file of mtx"):
        run(place)
    part.rmdir()
    (place / "in.txt").rename(part)
    with pytest.raises(UsageError, match="is not a file of mtx"):
        translate.translate_file(
            translate.LineWork(Copying(bool), False, None, translate.Review(None)), part, place / "out.txt", None,
            {"model": str(place / "model")}, [],
        )  # fmt: skip
    assert part.read_text().splitlines() == LINES


def test_one_process_writes_an_output(place: Path) -> None:
    def second(_: int) -> None:
        with pytest.raises(UsageError, match="another process is writing it"):
            run(place)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(place, called=second)
    assert run(place) == LINES
    assert {path.name for path in place.iterdir()} == {"in.txt", "model", "out.txt"}


def test_the_rows_have_the_permissions_of_the_output(place: Path) -> None:
    (place / "out.txt").touch(mode=0o600)

    def look(_: int) -> None:
        modes.extend(path.stat().st_mode & 0o777 for path in place.glob("out.txt.part"))

    modes = list[int]()
    run(place, called=look)
    assert modes and {*modes} == {0o600}


def test_another_search_is_another_translation(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(place, 2)
    monkeypatch.setattr("tests.unit.commands.test_translate.SEARCH", SearchOptions(2))
    with pytest.raises(UsageError, match="was started with another"):
        run(place)


def test_a_line_of_a_pipe_without_an_end_is_refused() -> None:
    source = io.BufferedReader(io.BytesIO(b"a dog\n" + b"a" * 2**25))
    arriving: Any = translate.ArrivingLines(source)
    lines = decoded_lines(arriving, Path("/dev/stdin"))
    assert next(lines) == "a dog"
    with pytest.raises(DataError, match="^/dev/stdin:2: the line has more than 16 MiB$"):
        next(lines)
    assert source.tell() < 2**25, "the rest is not read"


@pytest.mark.parametrize("text", [b"", b"\n \n", gzip.compress(b"", mtime=0), gzip.compress(b"\n", mtime=0)])
def test_an_empty_file_of_a_kind_that_cannot_be_empty_is_called_so(text: bytes, tmp_path: Path) -> None:
    """Lines, pages, catalogues and subtitles may be empty."""
    for name in (
        "a.tsv",
        "a.csv",
        "a.jsonl",
        "a.json",
        "a.docx",
        "a.tmx",
        "a.xliff",
        "a.parquet",
        "a.ipynb",
        "a.tsv.gz",
    ):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(UsageError, match=f"{name}: the file is empty$"):
            translate.kind_of_document(tmp_path / name)
    for name in ("a.txt", "a", "a.en", "a.html", "a.md", "a.po", "a.srt"):
        (tmp_path / name).write_bytes(text)
        translate.kind_of_document(tmp_path / name)


def test_the_text_itself_is_no_output(place: Path) -> None:
    with pytest.raises(UsageError, match="this command also reads the file"):
        run(place, "in.txt")
    assert (place / "in.txt").read_text().splitlines() == LINES


def test_a_whole_line_does_not_wait_for_the_rest_of_the_next_one() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)  # to wait for more would be an error
    with os.fdopen(reader, "rb") as source:
        blocks = translate.blocks(source, None)
        for text, lines in ((b"one\ntw", ["one"]), (b"o\nthree\nfo", ["two", "three"]), (b"ur", ["four"])):
            os.write(writer, text)
            if text == b"ur":
                os.close(writer)
            assert next(blocks) == [(line,) for line in lines]
        assert list(blocks) == []
