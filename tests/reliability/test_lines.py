"""N lines in, N lines out, line i for line i: 100,000 hostile lines through the reader and the writer, 2,000 through a
model, in every mode."""

import json
import os
import random
import re
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from mtx import cli
from mtx.config.schema import TokenizerConfig
from mtx.data.markup import clean_text
from mtx.data.tokenizer import train_tokenizer
from mtx.decoding.options import Candidate, SearchOptions
from mtx.decoding.translator import Hypothesis, Part
from mtx.storage.text_files import replace_surrogates
from tests.integration.commands import ENVIRONMENT, MTX, mtx, pairs
from tests.reliability import fuzzed
from tests.reliability.properties import Tally
from tests.rig import PATIENCE_S
from tests.translators import FakeTranslator


class Echo(FakeTranslator):
    """In place of a model: the translation of every line is its number, a sum over its text, and what is no text."""

    HOSTILE = [
        b"\n", b"\r\n", b"\x00", b"\x1b[2J", "\x85".encode(), "\u2028".encode(), "\u2029".encode(), b"\xff", b"\x7f",
        b"\xed\xa0\x80", b"\xc2", b"\x0b\x0c\x1c\x1d\x1e\x1f", b"\xef\xbb\xbf", b"",
    ]  # fmt: skip

    def __init__(self) -> None:
        sentences = [part.decode(errors="replace") for part in fuzzed.PARTS] * 20
        tokenizer = train_tokenizer(sentences, TokenizerConfig(vocab_size=320), 1, [])
        super().__init__(tokenizer, 256, SearchOptions())
        self.num_parts: list[int] = []  # of each line so far
        self._answers: list[bytes] = []

    def hypotheses(
        self,
        lines: Sequence[str],
        prefixes: Sequence[str] | None = None,
        n_best: int | None = None,
    ) -> list[list[Hypothesis]]:
        assert prefixes is None or list(prefixes) == list(lines)
        found = super().hypotheses(lines, prefixes, n_best)
        assert len(found) == len(lines)
        return found

    def split(self, lines: Sequence[str], *others: Any) -> list[list[Part]]:
        start = len(self.num_parts)
        # each goes through the model, also what would be its own translation
        parts = [
            [part._replace(fixed_translation=None) for part in some if len(part.ids) > 1]
            for some in super().split(lines, *others)
        ]
        self.num_parts += map(len, parts)
        answers = [answer(number, line).encode() for number, line in enumerate(lines, start)]
        self._answers = [text for text, of_line in zip(answers, parts, strict=True) for _ in of_line]
        return parts

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        assert len(sources) == len(prefixes) == len(self._answers)
        assert all(0 < len(ids) <= 256 for ids in sources)
        texts = [text + b" " + self.HOSTILE[i % len(self.HOSTILE)] for i, text in enumerate(self._answers)]
        return [[Candidate([*(2 + byte for byte in text), 0], 0.0)] for text in texts]


def answer(number: int, line: str) -> str:
    return f"{number} {zlib.crc32(line.encode()):08X}"  # in capitals, as are answers to lines in capitals


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Echo:
    translator = Echo()
    monkeypatch.setattr("mtx.commands.translate.load_translator", lambda *_, **__: translator)
    # codes and bullets would not reach the model
    monkeypatch.setattr("mtx.decoding.translator.mark_up_line", lambda line, _: [replace_surrogates(clean_text(line))])
    translator._lead = re.compile("")
    return translator


@contextmanager
def pipe_with(data: bytes) -> Iterator[Path]:
    """The name of a pipe into which the data is written while somebody reads."""
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    yield Path(f"/dev/fd/{reader}")
    thread.join()
    os.close(reader)


@pytest.mark.extended
@pytest.mark.parametrize("form", ["plain", "no final LF", "gzip", "pipe"])
def test_line_i_is_for_line_i(form: str, echo: Echo, tmp_path: Path, tally: Tally) -> None:
    rng, count, path, is_ended = random.Random(form), 25_000, tmp_path / "in", form != "no final LF"
    given = [*fuzzed.lines(rng, count - 1, 160, huge=3), b"last\r"]
    given[0] = fuzzed.BOM + given[0]
    data = b"\n".join(given) + b"\n" * is_ended
    path.write_bytes(fuzzed.packed(data, rng, 9) if form == "gzip" else data)
    options = {"plain": ["--prefix", str(path)], "gzip": ["--json"]}.get(form, [])
    (model := tmp_path / "model").mkdir()
    with pipe_with(data) if form == "pipe" else nullcontext(path) as name:
        assert cli.run(["translate", str(model), str(name), "-o", str(tmp_path / "out"), *options]) == 0
    found = fuzzed.check_output((tmp_path / "out").read_bytes(), count)
    if form == "gzip":
        found = [json.loads(line)["text"] for line in found]
    expected = fuzzed.read_as(given, is_ended)
    held = [is_right(*line) for line in zip(found, range(count), expected, echo.num_parts, strict=True)]
    tally(f"lines through reader and writer, {form}", count, sum(held))


def is_right(text: str, number: int, line: str, parts: int) -> bool:
    """Whether it is the answer to this line, once for each of its parts; a line without text has an empty one."""
    has_text = re.sub(r"[\s\u2581]", "", line) != ""
    return text.count(answer(number, line)) == parts and (parts > 0) == has_text == (text != "")


# --- a model, by the command ---


@pytest.fixture(scope="module")
def text() -> bytes:
    """Hostile lines, a third of them such as the model was trained on, the first too; no LF at the end."""
    rng = random.Random(8)
    known = [src.encode() for src, _ in rng.choices(pairs(range(1000, 1400)), k=NUM_LINES // 3)]
    given = [*fuzzed.lines(rng, NUM_LINES - len(known) - 2, 60), *known]
    rng.shuffle(given)
    return b"\n".join([b"three four", *given, b"one two"])


@pytest.fixture(scope="module")
def translated(trained: Path, text: bytes) -> list[str]:
    """What the command makes of the text, read from a pipe, 2048 lines at a time."""
    result = mtx("translate", trained, *FAST, stdin=text)
    assert result.returncode == 0, result.stderr.decode()
    return fuzzed.check_output(result.stdout, text.count(b"\n") + 1)


NUM_LINES = 2000
FAST = ["--beam", "2", "--max-length", "8"]


def num_equal(found: list[str], expected: list[str]) -> int:
    return sum(a == b for a, b in zip(found, expected, strict=True))


def test_order_is_kept_by_a_model(
    trained: Path, text: bytes, translated: list[str], tmp_path: Path, tally: Tally
) -> None:
    (tmp_path / "in").write_bytes(b"\n".join(line.removesuffix(b"\r") for line in reversed(text.split(b"\n"))))
    result = mtx("translate", trained, tmp_path / "in", "-o", tmp_path / "out", *FAST)
    assert (result.returncode, result.stdout) == (0, b""), result.stderr.decode()
    found = fuzzed.check_output((tmp_path / "out").read_bytes(), len(translated))
    tally("lines through a model, in reverse", len(found), num_equal(found[::-1], translated))
    assert num_equal(translated[1:], translated[:-1]) < len(translated) / 2, "another order would be seen"


def test_best_lists_are_a_line_each(trained: Path, text: bytes, translated: list[str], tally: Tally) -> None:
    result = mtx("translate", trained, "--n-best", 2, *FAST, stdin=text)
    assert result.returncode == 0, result.stderr.decode()
    rows = [json.loads(line)["hypotheses"] for line in fuzzed.check_output(result.stdout, len(translated))]
    assert all(1 <= len(row) <= 2 for row in rows)
    tally("lines through a model, n-best", len(rows), num_equal([row[0]["text"] for row in rows], translated))


def test_a_program_that_pauses_anywhere_gets_the_same(
    trained: Path, text: bytes, translated: list[str], tally: Tally
) -> None:
    command = [*MTX, "translate", str(trained), *FAST]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    rng, stdin, rest = random.Random(9), process.stdin, text

    def write() -> None:
        nonlocal rest
        while rest:
            cut = rng.randint(1, max(2, len(text) // 30))
            stdin.write(rest[:cut])
            stdin.flush()
            rest = rest[cut:]
            time.sleep(rng.choice([0, 0.005, 0.03]))
        stdin.close()

    thread = threading.Thread(target=write)
    thread.start()
    found = fuzzed.check_output(process.stdout.read(), len(translated))
    thread.join()
    assert process.wait(PATIENCE_S) == 0
    tally("lines through a model, with pauses", len(found), num_equal(found, translated))


def test_each_pair_has_its_probability(trained: Path, text: bytes, tmp_path: Path, tally: Tally) -> None:
    valid = [line.decode("utf-8", errors="replace") for line in text.split(b"\n")]  # other text is refused
    short = [line[:10].removesuffix("\r").encode() for line in valid]  # a source must be one part
    found = []
    for src, tgt in ((short, short[::-1]), (short[::-1], short)):
        (tmp_path / "src").write_bytes(b"\n".join(src))
        (tmp_path / "tgt").write_bytes(b"\n".join(tgt) + b"\n")
        result = mtx("logprob", trained, tmp_path / "src", tmp_path / "tgt")
        assert result.returncode == 0, result.stderr.decode()
        found.append([float(line) for line in fuzzed.check_output(result.stdout, len(short))])
    held = [a < 0 and a == pytest.approx(b, abs=1e-3) for a, b in zip(found[0], found[1][::-1], strict=True)]
    tally("pairs through a model, logprob, and in reverse", len(short), sum(held))
    assert len({round(value, 3) for value in found[0]}) > len(short) / 2
