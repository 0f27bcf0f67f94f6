"""Measures `mtx serve` on loopback: many clients at once, and then hostile requests and one well-behaved client.

    python -m scripts.benchmarks.serve MODEL --text FILE [--clients 64] [--seconds 300] [--hostile 10000]

FILE has one source sentence a line. Texts of one to three of its sentences are translated by `mtx translate`, before
and after, and by the server, each in a request of its own. A client asks again as soon as it has its answer, over the
same connection; figures begin after a warm-up. The rate of `mtx translate` is without the time that it takes for a
single line. Server and clients share the cores, so the clients do as little as they can. `serve_hostile.py` has
the hostile requests; for the most text that a request may have, also 503 and 504 are as expected.
Memory and open files are read from /proc, so this runs on Linux only.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mtx.storage import model_description
from mtx.storage.run_files import find_model
from mtx.storage.text_files import read_lines
from scripts.benchmarks.serve_hostile import KINDS, Beside, attack, request

MTX = [sys.executable, "-m", "mtx"]
WARM_UP_S = 15.0
START_LIMIT_S = 120.0  # of the start and of the end of the server
TRANSLATE_LIMIT_S = 3600.0
REST_S = 25.0  # after the hostile requests: longer than the server keeps any connection
PERCENTILES = (50, 95, 99, 100)


@dataclass
class Load:
    """What the clients have seen: the seconds of each request, sentences, and whatever was not a translation."""

    times: list[float] = field(default_factory=list)
    num_sentences: int = 0
    num_same: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Text:
    """A text of a request: the request's bytes, its sentences, and the translation of `mtx translate`."""

    request: bytes
    num_sentences: int
    translation: str


class Server:
    """The running `mtx serve`: its port, process and log."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path):
        self.process = process
        self._log = log
        deadline = time.monotonic() + START_LIMIT_S
        while not (line := self._line("serving ")):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"error: the server did not start: {log.read_text()}")
            time.sleep(0.05)
        self.port = int(line["message"].rstrip("/").rpartition(":")[2])

    def _line(self, beginning: str) -> dict[str, str] | None:
        lines = self._log.read_text().split("\n")[:-1]
        return next((line for line in map(json.loads, lines) if line["message"].startswith(beginning)), None)

    def memory(self) -> float:
        """Its memory (RSS) in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.split("\n") if line.startswith("VmRSS")) / 1024

    def num_files(self) -> int:
        """How many files and connections it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def num_errors(self) -> int:
        """How many lines of its log are errors."""
        return self._log.read_text().count('"level": "error"')


@contextlib.contextmanager
def served(model: Path, log: Path) -> Iterator[Server]:
    """Starts the server, and ends it."""
    with log.open("wb") as stderr, subprocess.Popen([*MTX, "serve", model, "--port", "0"], stderr=stderr) as process:
        try:
            yield Server(process, log)
        finally:
            process.terminate()
            try:
                process.wait(START_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def make_texts(path: Path, num_sentences: int) -> list[tuple[str, int]]:
    """Returns texts of one to three sentences, in a random order that is always the same, and the sentences of each."""
    sentences = list(filter(None, map(str.strip, read_lines(path))))
    rng = random.Random(1)
    rng.shuffle(sentences)
    remaining = iter(sentences[:num_sentences])
    texts = list[tuple[str, int]]()
    while group := list(itertools.islice(remaining, rng.choice((1, 1, 2, 3)))):
        texts.append((" ".join(group), len(group)))
    return texts


def translate_file(model: Path, lines: Sequence[str], directory: Path) -> tuple[float, list[str]]:
    """Returns the seconds that `mtx translate FILE -o OUT` takes, and the translations."""
    source = directory / "source"
    target = directory / "target"
    source.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    started = time.perf_counter()
    command = [*MTX, "translate", model, source, "-o", target]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=TRANSLATE_LIMIT_S)
    return time.perf_counter() - started, target.read_text("utf-8").split("\n")[:-1]


class Client(asyncio.Protocol):
    """A client that asks for the translation of one text after the other, over one connection."""

    def __init__(self, texts: Iterator[Text], load: Load):
        self._texts = texts
        self._load = load
        self._answer = b""
        self.is_ending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, separator, body = self._answer.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not separator or len(body) < int(length):
            return
        self._load.times.append(time.perf_counter() - self._started)
        self._load.num_sentences += self._text.num_sentences
        self._check(head, body)
        self._answer = b""
        if self.is_ending:
            self._transport.close()
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_ending:
            self._load.errors["connection lost"] += 1

    def _ask(self) -> None:
        self._text = next(self._texts)
        self._started = time.perf_counter()
        self._transport.write(self._text.request)

    def _check(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"HTTP/1.1 200 "):
            if json.loads(body)["translatedText"] == self._text.translation:
                self._load.num_same += 1
        else:
            self._load.errors[head[9:12].decode()] += 1


async def run_load(server: Server, texts: Sequence[Text], num_clients: int, seconds: float) -> tuple[Load, list[float]]:
    """Lets the clients ask for some time, after a warm-up; returns what they saw, and the memory each second."""
    load = Load()
    endless_texts = itertools.cycle(texts)
    memory = list[float]()
    loop = asyncio.get_running_loop()
    connections = [
        await loop.create_connection(lambda: Client(endless_texts, load), "127.0.0.1", server.port)
        for _ in range(num_clients)
    ]
    await asyncio.sleep(WARM_UP_S)
    load.times.clear()
    load.num_sentences = 0
    load.num_same = 0
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        memory.append(server.memory())
        await asyncio.sleep(min(1.0, max(0.0, deadline - time.perf_counter())))
    measured = Load(load.times.copy(), load.num_sentences, load.num_same, load.errors)
    for _, client in connections:
        client.is_ending = True
    await asyncio.sleep(2)  # for the last answers
    return measured, memory


def percentiles(times: Sequence[float]) -> str:
    """Returns the median and others in milliseconds."""
    return " / ".join(f"{value * 1000:,.0f}" for value in np.percentile(times, PERCENTILES))


def fifths(memory: Sequence[float]) -> str:
    """Returns the median memory of each fifth of the time."""
    return " ".join(f"{np.median(part):,.1f}" for part in np.array_split(memory, 5)) + " MB"


def report_load(load: Load, memory: Sequence[float], seconds: float, rates: Sequence[float]) -> None:
    """Prints the figures of the load."""
    rate = load.num_sentences / seconds
    file_rate = sum(rates) / len(rates)
    rows = {
        "mtx translate, before and after": " and ".join(f"{number:,.1f}" for number in rates) + " sentences/s",
        "the server": f"{rate:,.1f} sentences/s, {len(load.times) / seconds:,.1f} requests/s",
        "of mtx translate": f"{rate / file_rate:.3f}",
        "errors": ", ".join(f"{name}: {number}" for name, number in load.errors.items()) or "none",
        "translated as by mtx translate": f"{load.num_same / max(1, len(load.times)):.2%} of {len(load.times):,}",
        "latency, p50 / p95 / p99 / most": f"{percentiles(load.times)} ms",
        "memory, median of each fifth": fifths(memory),
        "memory, first / last / most": f"{memory[0]:,.1f} / {memory[-1]:,.1f} / {max(memory):,.1f} MB",
    }
    for name, figure in rows.items():
        print(f"{name:34} {figure}", flush=True)


def report_hostile(answers: dict[str, Counter[str]], beside: Beside, quiet: Sequence[float]) -> bool:
    """Prints the answers of each kind; returns whether all are as they should be."""
    is_good = True
    print(f"\n{'hostile requests':34} {'number':>6} {'as expected':>11}  answers")
    for name, kind in KINDS.items():
        counts = answers[name]
        number = sum(counts[answer] for answer in kind.expected)
        if number != counts.total():
            is_good = False
        text = ", ".join(f"{answer}: {count:,}" for answer, count in counts.most_common())
        print(f"{name:34} {counts.total():6,} {number:11,}  {text}")
    print(f"{'all':34} {sum(map(Counter.total, answers.values())):6,}")
    print(f"\n{'beside them, a well-behaved client':34} {len(beside.times):,} answers, other than 200: {beside.errors}")
    print(f"{'latency, p50 / p95 / p99 / most':34} {percentiles(beside.times)} ms; alone: {percentiles(quiet)} ms")
    return is_good and not beside.errors


async def attacked(
    server: Server, number: int, languages: dict[str, str]
) -> tuple[dict[str, Counter[str]], list[float]]:
    """Sends the hostile requests; returns the answers, and the server's memory each second."""
    attacking = asyncio.ensure_future(attack(server.port, number, languages))
    memory = list[float]()
    while not attacking.done():
        memory.append(server.memory())
        await asyncio.wait([attacking], timeout=1)
    return attacking.result(), memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="source sentences, one a line")
    parser.add_argument("--sentences", type=int, default=5000, help="at most")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300.0, help="0 leaves the load out")
    parser.add_argument("--hostile", type=int, default=10_000, help="number of hostile requests; 0 leaves them out")
    arguments = parser.parse_args()
    info = model_description.read(find_model(arguments.model)).info
    languages = {"source": info["src"], "target": info["tgt"]}
    is_good = True
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with served(arguments.model, directory / "log") as server:
            print(f"{'memory of the server at its start':34} {server.memory():,.1f} MB", flush=True)
            if arguments.seconds:
                is_good = measure_load(arguments, languages, server, directory)
            if arguments.hostile:
                is_good &= measure_hostile(arguments.hostile, languages, server)
            is_alive = server.process.poll() is None
            print(f"{'the server is':34} {'alive' if is_alive else 'dead'}; errors in its log: {server.num_errors()}")
    if not (is_good and is_alive):
        sys.exit("error: not all is as it should be")


def measure_load(
    arguments: argparse.Namespace, languages: dict[str, str], server: Server, directory: Path
) -> bool:  # fmt: skip
    """Measures the load, and `mtx translate` before and after; returns whether there was no error."""
    texts = make_texts(arguments.text, arguments.sentences)
    lines = [text for text, _ in texts]
    num_sentences = sum(number for _, number in texts)
    about = f"{len(texts):,} of {num_sentences:,} sentences, {sum(map(len, lines)):,} characters"
    print(f"{'texts, one a request':34} {about}; {arguments.clients} clients", flush=True)

    def file_rate() -> tuple[float, list[str]]:
        loading_s, _ = translate_file(arguments.model, lines[:1], directory)
        whole_s, translations = translate_file(arguments.model, lines, directory)
        return num_sentences / (whole_s - loading_s), translations

    rate_before, translations = file_rate()
    requests = [
        Text(request("POST", "/translate", json.dumps({"q": text, **languages}).encode()), number, translation)
        for (text, number), translation in zip(texts, translations, strict=True)
    ]
    load, memory = asyncio.run(run_load(server, requests, arguments.clients, arguments.seconds))
    rate_after, _ = file_rate()
    report_load(load, memory, arguments.seconds, [rate_before, rate_after])
    return not load.errors


def measure_hostile(number: int, languages: dict[str, str], server: Server) -> bool:
    """Sends the hostile requests; returns whether each got the answer that it should get."""
    with Beside(server.port, languages) as quiet:
        time.sleep(5)
    memory = server.memory()
    num_files = server.num_files()
    started = time.perf_counter()
    with Beside(server.port, languages) as beside:
        answers, during = asyncio.run(attacked(server, number, languages))
    seconds = time.perf_counter() - started
    time.sleep(REST_S)
    with Beside(server.port, languages):
        time.sleep(1)
    is_good = report_hostile(answers, beside, quiet.times)
    print(f"{'seconds':34} {seconds:,.0f}")
    print(f"{'memory, median of each fifth':34} {fifths(during)}")
    print(f"{'memory, before / most / at rest':34} {memory:,.1f} / {max(during):,.1f} / {server.memory():,.1f} MB")
    print(f"{'open files, before / at rest':34} {num_files} / {server.num_files()}")
    return is_good


if __name__ == "__main__":
    main()
