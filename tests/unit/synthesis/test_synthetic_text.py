"""Synthetic pairs: what is left out, and a process that is killed goes on where it was."""

import io
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mtx.errors import DamagedFileError, UsageError
from mtx.storage.resumable import ResumableRows
from mtx.storage.text_files import read_lines
from mtx.synthesis.synthetic_text import KEPT, SyntheticText, described, write_pairs


class _Stopped(Exception):
    pass


def work(directory: Path, lines: list[str], last: int = 1000, about: str = "a") -> SyntheticText:
    """The translation of a line is the line in other letters, with its number; the process dies after `last`."""
    (directory / "mono").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def translate(block: list[str], first: int) -> list[str]:
        if first > last:
            raise _Stopped
        return [f"{line.swapcase()} {number}" for number, line in enumerate(block, first)]

    kept = ResumableRows(directory / "part", {"model": about}, 3)
    return SyntheticText(partial(read_lines, directory / "mono"), kept, translate)


def test_a_killed_process_goes_on_with_whole_blocks(tmp_path: Path) -> None:
    lines = [f"line {'ab'[n % 2]}" for n in range(8)]
    done = list[int]()
    with pytest.raises(_Stopped):
        work(tmp_path, lines, last=4).run(done.append)
    part = tmp_path / "part"
    for cut in (b"", b'["half'):
        part.write_bytes(part.read_bytes() + cut)
        done.clear()
        with pytest.raises(_Stopped):
            work(tmp_path, lines, last=6).run(done.append)
        assert done == [6]
    whole, sink, direct = work(tmp_path, lines), io.BytesIO(), io.BytesIO()
    whole.run(done.append)
    assert write_pairs(whole, sink, drop_worst=False) == Counter({KEPT: 8})
    assert sink.getvalue().decode() == "".join(f"{line.swapcase()} {n}\t{line}\n" for n, line in enumerate(lines, 1))
    part.unlink()
    whole.run(done.append)
    write_pairs(whole, direct, drop_worst=False)
    assert direct.getvalue() == sink.getvalue()


def test_a_process_that_was_killed_while_it_began(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b'{"form')
    whole, sink = work(tmp_path, ["a b"]), io.BytesIO()
    whole.run(lambda number: None)
    assert write_pairs(whole, sink, drop_worst=False) == Counter({KEPT: 1})
    (tmp_path / "part").unlink()
    nothing = work(tmp_path, [])
    nothing.run(lambda number: None)
    assert write_pairs(nothing, sink, drop_worst=True) == Counter() and not nothing.kept.path.exists()


def test_other_translations_are_not_continued(tmp_path: Path) -> None:
    work(tmp_path, ["a b"]).run(lambda number: None)
    with pytest.raises(UsageError, match="part: was begun with another model, text or search"):
        work(tmp_path, ["a b"], about="b").run(lambda number: None)
    (tmp_path / "part").write_bytes((tmp_path / "part").read_bytes()[:-5] + b"\n")
    with pytest.raises(DamagedFileError, match="part: its row 1 is damaged"):
        write_pairs(work(tmp_path, ["a b"]), io.BytesIO(), drop_worst=False)


def test_what_is_left_out(tmp_path: Path) -> None:
    lines = ["ein Hund läuft", "no no no", "Haus", "", "das ist gut", "c\td"]
    translations = ["a dog runs", "ja ja ja ja", "x" * 60, "", "das ist gut", "a b"]
    made = SyntheticText(lambda: lines, ResumableRows(tmp_path / "part", {}, 9), lambda *_: translations)
    made.run(lambda number: None)
    sink = io.BytesIO()
    counts = write_pairs(made, sink, drop_worst=True)
    assert counts == Counter({KEPT: 2, "repetition": 1, "length ratio": 1, "empty": 1, "identical": 1})
    assert sink.getvalue().decode() == "a dog runs\tein Hund läuft\na b\tc d\n"
    for_student, sink = replace(made, side="src"), io.BytesIO()
    assert write_pairs(for_student, sink) == counts
    assert sink.getvalue().decode() == "ein Hund läuft\ta dog runs\nc d\ta b\n"
    told = "2 pairs of 6 lines (repetition 1, length ratio 1, empty 1, identical 1)"
    assert sorted(described(counts)) == sorted(told)


def test_the_worst_by_a_forward_model_are_left_out(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(40)]
    made = SyntheticText(
        lambda: lines, ResumableRows(tmp_path / "part", {}, 50), lambda block, _: [f"x {line}" for line in block],
        lambda translations, block: [None if line == "line 7" else -float(line.split()[1]) for line in block],
    )  # fmt: skip
    made.run(lambda number: None)
    for drop_worst, missing in ((True, {"line 39"}), (False, set())):
        sink = io.BytesIO()
        counts = write_pairs(made, sink, drop_worst)
        kept = {line.split("\t")[1] for line in sink.getvalue().decode().split("\n")[:-1]}
        assert set(lines) - kept == missing and counts["improbable"] == len(missing)
