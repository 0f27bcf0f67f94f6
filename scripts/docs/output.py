"""Prints again what README.md and docs/ show as printed, and compares it.

    python -m scripts.docs.output [PAGE ...] [--data DIR] [--write]

A block of the language `text`, `console` or `json` is output. Its commands are those of the nearest block of commands
or Python above it, or the one in `PRINTED_BY`. The commands run in a temporary folder for each page. A file or a run
that a command names is made before (`MATERIAL`). The lines of a block must be among the printed ones, in their order.
When the last one has come, a training is stopped, and the rest of the commands is skipped. `MASKS` has what depends on
the machine; all other words and numbers count. A block in `FILES` is the content of a file: it is written, or compared
if a command has made the file.

`--data DIR` is a folder with Multi30k (`train.en.gz` and so on); blocks about it are skipped without one. `--write`
puts what was printed into the pages. The exit code is 1 if a block differs.
"""

import argparse
import contextlib
import difflib
import functools
import gzip
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs").rglob("*.md")
    if path.name != "results-log.md" and path.parent.name != "archive"  # printed then, not now
)]  # fmt: skip
COMMANDS = ("", "bash", "sh")
OUTPUT = ("text", "console", "json")
PROGRAMS = ("mtx ", "echo ", "cat ")  # the commands of a page that run; others install or download
LIMIT_S = 2700
HOME = "/home/you"  # how the pages call the folder in which the commands run
SHARED = ("mtx train demo", "mtx train multi30k-en-de data.dir=dataset/data/task1/raw")  # each is trained once

# A page, how the first line of a block begins, and why it is not compared here.
NOT_OUTPUT = {
    ("docs/howto/glossary.md", "brake shoe"): "the content of a file",
    ("docs/howto/prepare-text.md", "Two dogs"): "the content of a file",
    ("docs/howto/read-the-report.md", "runs/my/report.html"): "a path",
    ("docs/reference/run-directory.md", "runs/my/"): "the content of a folder",
    ("docs/tutorials/first-model.md", "Two young"): "the content of a corpus",
}
IN_TESTS = {"docs/tutorials/paper.md": "tests/unit/test_paper.py", "docs/reference/python.md": "tests/unit/test_api.py"}
PRINTED_BY = {
    ("README.md", "verdict: hardly usable"): "mtx train captions.tsv training.max_steps=600",
    ("docs/explanation/final-weights.md", "the model is"): "mtx train demo",
    ("docs/howto/improve-a-weak-model.md", "test_2016"): "mtx evaluate runs/multi30k-en-de --robust",
    ("docs/howto/train.md", "step 159"): "mtx train demo",
    ("docs/howto/train.md", "test_2016"): SHARED[1],
    ("docs/howto/translate-text.md", '{"text": "Am'): "mtx translate runs/demo input.txt --json",
    ("docs/reference/http-api.md", '{"time"'): "cat server.log",
}
FILES = {
    ("docs/howto/documents-and-tags.md", '<html lang="en">'): "page.html",
    ("docs/howto/documents-and-tags.md", '<html lang="de">'): "page.de.html",
}
NOT_RUN = {
    ("docs/explanation/sizes.md", "sizes for about"): "the choice depends on the speed of the machine",
    ("docs/howto/find-text.md", "name     version"): "needs OPUS, or a server that answers like it",
    ("docs/howto/find-text.md", "Tatoeba v2023"): "needs OPUS, or a server that answers like it",
    ("docs/howto/gpus-and-clusters.md", "error: rank 8"): "needs two machines",
    ("docs/howto/past-one-machine.md", "error: rank 8"): "needs two machines",
    ("docs/tutorials/translators.md", "heldout BLEU"): "a training of four minutes on a translation memory",
}

# What other machines do not print: mtx doctor names missing optional packages, and the example of a test set is the
# sentence whose score is in the middle.
ELSEWHERE = "missing:  ", "  These four people "

# What depends on the machine, or on the weights of a model that was trained on it.
MASKS = [
    (r"(?<![\w-])[\d.]+ (h|min|s)\b( \d+ min)?", "#:##"),
    (r"^step \d+(?= of [\d,]+: loss)", "step #"),
    (r"[\d,]+(?= target tokens/s)", "#"),
    (r"(?<![\w.,:])[-+]?\d+\.\d+(e[-+]\d+)?(?![\w.])", "#"),
    (r"(?<!\w)(\d+|#)%", "#%"),
    (r"(step \d+|the average of \d+ checkpoints, steps \d+ to \d+) #(?=[,;)])", "CANDIDATE #"),  # for the final weights
    (r"(?<= # at step )\d+(?= \(validation)", "#"),
    (r"^( +-> ).*", r"\1…"),  # what a model translates during its training
    (r"^    reference: .*", "    reference: …"),
    (r"^(translations to use, .*: \w+) use .*", r"\1 …"),
    (r'(?<=\}, )\{"text": "[^"]*"', '{"text": "…"'),  # what a search ranks second
    (r'(?<="alternatives":\[)"[^"]*"', '"…"'),
    (r'"advice": "(use|look|redo)"', '"advice": "…"'),
    (r"^(\S+: )\d+( pairs of \d+ lines).*", r"\1#\2"),  # what back-translation keeps
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "#"),
    (r"^(mtx|packages|CPU|GPU|memory|disk|device):( {2,}| (?=torch )).*", r"\1: …"),  # mtx doctor
    (r" {2,}", "  "),
]  # fmt: skip


class NotRun(Exception):
    """Why a block cannot be printed here."""


@dataclass
class Block:
    """A fenced block of a page."""

    page: str
    number: int
    language: str
    lines: list[str]

    @property
    def name(self) -> str:
        return f"{self.page}:{self.number}"

    @property
    def commands(self) -> list[str]:
        """What a reader types, one command each."""
        lines = re.sub(r" *\\\n *", " ", "\n".join(self.lines)).split("\n")
        if self.language == "console":
            return [line[2:] for line in lines if line.startswith("$ ")]
        return [line.partition("  #")[0] for line in lines if line.startswith(PROGRAMS)]

    @property
    def shown(self) -> list[str]:
        """What the page shows as printed."""
        hidden = "$ " if self.language == "console" else ELSEWHERE
        return [line for line in self.lines if line and not line.startswith(hidden)]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    fenced = []
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    number = 0
    while number < len(lines):
        if fence := re.fullmatch(r"( *)```(\w*)", lines[number]):
            stop = lines.index(f"{fence[1]}```", number + 1)
            fenced.append(Block(page, number + 1, fence[2], lines[number + 1 : stop]))
            number = stop
        number += 1
    return fenced


def entry(table: dict[tuple[str, str], str], block: Block) -> str:
    """What a table has for a block, or nothing."""
    return next(
        (value for (page, start), value in table.items() if page == block.page and block.lines[0].startswith(start)), ""
    )


def reason_not_to_run(block: Block) -> str:
    """Why a block is not compared here, or nothing."""
    tested = f"compared by {IN_TESTS[block.page]}" if block.page in IN_TESTS else ""
    return entry(NOT_OUTPUT, block) or entry(NOT_RUN, block) or tested


def source(block: Block, blocks_above: list[Block]) -> Block:
    """The block whose commands print `block`."""
    if command := entry(PRINTED_BY, block):
        return Block(block.page, block.number, "", [command])
    if block.language == "console":
        return block
    return next(candidate for candidate in reversed(blocks_above) if candidate.language in (*COMMANDS, "python"))


def masked(line: str) -> str:
    """A line without what depends on the machine."""
    for form, replacement in MASKS:
        line = re.sub(form, replacement, line)
    return line


def missing(shown: list[str], printed: list[str]) -> list[tuple[str, str]]:
    """The shown lines that were not printed in this order, each with the printed line that is nearest."""
    remaining = list(printed)
    differences = []
    for line in shown:
        form = re.compile(re.escape(masked(line)).replace(re.escape("..."), ".*"))
        place = next((number for number, candidate in enumerate(remaining) if form.fullmatch(masked(candidate))), None)
        if place is None:
            near = difflib.get_close_matches(masked(line), [masked(candidate) for candidate in remaining], 1, 0.0)
            nearest = ""
            if near:
                nearest = next(candidate for candidate in remaining if masked(candidate) == near[0])
            differences.append((line, nearest))
        else:
            remaining = remaining[place + 1 :]
    return differences


@dataclass
class Workplace:
    """Where the commands of a page run."""

    page: str
    folder: Path
    shared: "Shared"
    port: int = 5000
    ending: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def printed(self, commands: list[str], shown: list[str]) -> list[str]:
        """What commands print until all that is shown has come."""
        lines: list[str] = []
        for command in commands:
            if missing(shown, lines) or not lines:
                self.make_material(command)
                lines += self.shared.printed(command, self) if command in SHARED else self.run(command, lines, shown)
        return lines

    def make_material(self, text: str) -> None:
        """Makes the files and runs that a command or an example names."""
        text = re.sub(r"(run_dir=|-o )\S+", "", text)
        for name, make in {**MATERIAL, **OF_PAGE.get(self.page, {})}.items():
            if re.search(rf"(?<=[ =,+\"\n]){re.escape(name)}(?![\w-])", text) and not (self.folder / name).exists():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                make(self, self.folder / name)

    def run(self, command: str, lines_before: list[str], shown: list[str]) -> list[str]:
        """What one command prints; a training is stopped when all that is shown has come."""
        words = ["bash", "-c", command.replace("127.0.0.1:5000", f"127.0.0.1:{self.port}")]
        lines: list[str] = []
        with subprocess.Popen(
            words, cwd=self.folder, env=self.shared.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, encoding="utf-8", start_new_session=True,
        ) as process:  # fmt: skip
            stop = functools.partial(os.killpg, process.pid, signal.SIGTERM)
            timer = threading.Timer(LIMIT_S, stop)
            timer.start()
            assert process.stdout
            for line in process.stdout:
                lines.append(line.rstrip("\n").replace(str(self.folder.resolve()), HOME))
                if command.startswith("mtx train") and shown and not missing(shown, [*lines_before, *lines]):
                    stop()
                    process.stdout.read()
            timer.cancel()
        return lines

    def quietly(self, command: str) -> None:
        """Runs a command that makes material."""
        self.make_material(command)
        lines = self.run(command, [], [])
        if not any((self.folder / name).exists() for name in re.findall(r"(?:run_dir=|-o |> )(\S+)", command)):
            raise RuntimeError("\n".join([command, *lines]))


class Shared:
    """The environment of all commands, and the trainings that several pages show."""

    def __init__(self, folder: Path, data: Path | None) -> None:
        self.folder = folder
        self.data = data
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.lines: dict[str, list[str]] = {}

    def printed(self, command: str, place: Workplace) -> list[str]:
        """What a shared training printed; its run is copied."""
        name = f"runs/{command.split()[2]}"
        if command not in self.lines:
            workplace = Workplace(place.page, self.folder, self)
            workplace.make_material(command)
            self.lines[command] = workplace.run(command, [], [])
        if not (place.folder / name).exists():
            shutil.copytree(self.folder / name, place.folder / name)
        return self.lines[command]


def demo_pairs(part: str) -> Iterator[tuple[str, str]]:
    """The pairs of the demo's grammar."""
    with gzip.open(ROOT / "mtx" / "data" / "demo.tsv.gz", "rt", encoding="utf-8") as file:
        for line in file:
            name, src, tgt = line.rstrip("\n").split("\t")
            if name == part:
                yield src, tgt


def _pairs(start: int, stop: int, form: str = "{0}\t{1}\n") -> Callable[[Workplace, Path], None]:
    def make(_place: Workplace, path: Path) -> None:
        pairs = list(demo_pairs("train"))[start:stop]
        path.write_text("".join(form.format(*pair) for pair in pairs), encoding="utf-8")

    return make


def _memory(start: int, stop: int) -> Callable[[Workplace, Path], None]:
    unit = '<tu><tuv xml:lang="en"><seg>{0}</seg></tuv><tuv xml:lang="de"><seg>{1}</seg></tuv></tu>\n'

    def make(place: Workplace, path: Path) -> None:
        _pairs(start, stop, unit)(place, path)
        body = path.read_text(encoding="utf-8")
        path.write_text(f'<tmx version="1.4"><header srclang="en"/><body>\n{body}</body></tmx>\n', encoding="utf-8")

    return make


def _text(text: str) -> Callable[[Workplace, Path], None]:
    return lambda _place, path: path.write_text(text, encoding="utf-8") and None


def _demo(place: Workplace, path: Path) -> None:
    place.shared.printed("mtx train demo", place)
    if path.name != "demo":
        shutil.copytree(place.folder / "runs" / "demo", path)


def _multi30k(place: Workplace, path: Path) -> None:
    if place.shared.data is None:
        raise NotRun("needs Multi30k (--data DIR)")
    path.symlink_to(place.shared.data.resolve())


def _captions(num_pairs: int) -> Callable[[Workplace, Path], None]:
    def make(place: Workplace, path: Path) -> None:
        _multi30k(place, path.with_name("corpus"))
        corpus = path.with_name("corpus")
        sides = (gzip.decompress((corpus / f"train.{code}.gz").read_bytes()).decode() for code in ("en", "de"))
        pairs = [f"{src}\t{tgt}\n" for src, tgt in zip(*(side.splitlines() for side in sides), strict=True)]
        path.write_text("".join(pairs[:num_pairs]), encoding="utf-8")

    return make


def _made_by(command: str) -> Callable[[Workplace, Path], None]:
    return lambda place, _path: place.quietly(command)


def _server(place: Workplace, path: Path) -> None:
    """Starts a server for the rest of the page."""
    path.touch()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place.port = free.getsockname()[1]
    command = ["mtx", "serve", "runs/demo", "--port", str(place.port)]
    place.make_material(" ".join(command))
    log = place.ending.enter_context(path.with_name("server.log").open("w"))
    process = subprocess.Popen(command, cwd=place.folder, env=place.shared.environment, stdout=log, stderr=log)
    place.ending.callback(process.wait)
    place.ending.callback(process.terminate)
    for _ in range(LIMIT_S):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{place.port}/health"):
            return
        time.sleep(1)


SENTENCE = "On Thursday the young doctor has to wait for the train."
MATERIAL: dict[str, Callable[[Workplace, Path], None]] = {
    "my.tsv": _pairs(0, 7000),
    "captions.tsv": _captions(7000),
    "dataset/data/task1/raw": _multi30k,
    "input.txt": _text(f"Where did the young actress lose the beautiful key?\n{SENTENCE}\n"),
    "output.txt": _made_by("mtx translate runs/demo input.txt -o output.txt"),
    "runs/demo": _demo,
    "runs/my": _demo,
    "runs/multi30k-en-de": lambda place, _: place.shared.printed(SHARED[1], place) and None,
    "vectors.npy": _made_by("mtx encode runs/my input.txt -o vectors.npy"),
    "127.0.0.1:5000": _server,
}
OF_PAGE: dict[str, dict[str, Callable[[Workplace, Path], None]]] = {
    "docs/howto/adapt.md": {
        "models/en-de": _demo,
        "memory.tmx": _memory(0, 600),
        "general.tsv": _pairs(600, 1200),
        "general-test.tsv": _pairs(1200, 1300),
    },
    "docs/howto/back-translation.md": {
        "corpus/own.tsv": _pairs(0, 7000),
        "more.de": _pairs(7000, 7100, "{1}\n"),
        "runs/de-en": _made_by(
            "mtx train own-text data.train=corpus/own.tsv data.src=de data.tgt=en data.columns=2,1 run_dir=runs/de-en"
            " training.max_steps=400 model.preset=tiny training.rdrop_alpha=0"
        ),
    },
    "docs/howto/prepare-text.md": {"my.tsv": _pairs(0, 5000)},
    "docs/howto/train.md": {"my.tsv": _pairs(0, 5000)},
    "docs/tutorials/translators.md": {"memory.tmx": _memory(0, 3000)},
}


def compared(page: str, shared: Shared, only: str = "") -> Iterator[tuple[Block, str, list[tuple[str, str]]]]:
    """Each block of output with the reason why it was not run, or with its lines that were not printed.

    Args:
        only: how the first line of a block begins; all blocks without it
    """
    place = Workplace(page, Path(tempfile.mkdtemp(dir=shared.folder)), shared)
    blocks_above: list[Block] = []
    with place.ending:
        for block in blocks(page):
            reason = reason_not_to_run(block)
            if name := entry(FILES, block):
                file = place.folder / name
                if file.exists():
                    yield block, "", missing(block.shown, file.read_text(encoding="utf-8").split("\n"))
                else:
                    file.write_text("".join(f"{line}\n" for line in block.lines), encoding="utf-8")
            elif block.language in OUTPUT and reason:
                yield block, reason, []
            elif block.language in OUTPUT and block.lines[0].startswith(only):
                try:
                    yield block, "", missing(block.shown, _printed(block, blocks_above, place))
                except NotRun as error:
                    yield block, str(error), []
            blocks_above.append(block)


def _printed(block: Block, blocks_above: list[Block], place: Workplace) -> list[str]:
    origin = source(block, blocks_above)
    if origin.language != "python":
        return place.printed(origin.commands, block.shown)
    code = "\n".join(line for candidate in blocks_above if candidate.language == "python" for line in candidate.lines)
    place.make_material(code)
    (place.folder / "example.py").write_text(code, encoding="utf-8")
    return place.run("python example.py", [], [])


def write(block: Block, differences: list[tuple[str, str]]) -> None:
    """Puts the printed lines into the page."""
    path = ROOT / block.page
    lines = path.read_text(encoding="utf-8").split("\n")
    for shown, printed in differences:
        lines[lines.index(shown, block.number)] = printed
    path.write_text("\n".join(lines), encoding="utf-8")


def main() -> int:
    """Compares pages, and prints the differences and a count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", default=PAGES)
    parser.add_argument("--data", type=Path, help="a folder with Multi30k")
    parser.add_argument("--write", action="store_true", help="puts what was printed into the pages")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        shared = Shared(Path(folder), arguments.data)
        for page in arguments.pages:
            for block, reason, differences in compared(page, shared):
                counts[reason or ("different" if differences else "the same")] += 1
                print(f"{block.name}: {reason or ('DIFFERENT' if differences else 'the same')}", flush=True)
                for shown, printed in differences:
                    print(f"  - {shown}\n  + {printed}", flush=True)
                if arguments.write:
                    write(block, differences)
    print(f"{counts.total()} blocks of output: {', '.join(f'{n} {name}' for name, n in counts.most_common())}")
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
