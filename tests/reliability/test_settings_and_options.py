"""Any value of any setting and any option: it works, or one line says why not, and nothing is left behind.

Settings and options are found by looking at the schema and at the command line, so a new one is tried as well. What is
drawn runs in a fork of a process that holds mtx: a training of one or two steps and a translation, or the command of
the option. The parent watches its time and its memory.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from typer.main import get_command

from mtx import cli
from mtx.config.schema import TrainText, fields
from tests.integration import commands
from tests.integration.commands import ENVIRONMENT, MTX, check_error, tree, write_tsv
from tests.reliability.conftest import NIGHTLY, size
from tests.reliability.marks import confine
from tests.rig import PATIENCE_S, Rig, Start

Tally = Callable[[str, int, int], None]

_SECONDS, _STOPPING_S = 20.0, 200.0  # then it is asked to stop, and has time to
_FREE_BYTES = 2 << 30  # what mtx takes for free memory
_MOST_BYTES = 4 << 30  # what it may take
_WHOLE = [
    *map(str, (-(10**20), -1, 0, 1, 2, 3, 10, 64, 300, 1000, 10**5, 10**9, 2**31 - 1, 2**31, 2**32, 2**63, 10**20)),
    "9" * 400,
]  # fmt: skip
_REAL = [
    *_WHOLE, "0.1", "0.5", "1.5", "-0.5", "1e-9", "1e-320", "0." + "0" * 400 + "1", "1e30", "1e308", "1e309", "-1e308",
    "nan", "inf", "-inf",
]  # fmt: skip
_ODD = [
    "", " ", "\t", "-0", "NaN", "Infinity", "٣", "１２", "²", "0x10", "1_000", "1,000", "+5", "1e2", "null", "~",
    "None", "true", "yes", "auto", "[]", "{}", "[1, 2]", "é", "\u202e", "\x1b[31m", "\u2028", "a" * 300, "=", "-", "--",
    "-" + "9" * 400,
]  # fmt: skip
_MANY_LAYERS = re.compile("(?<=_layers)=(300|999|1000)$")  # work, but a step of them takes half a minute here
_SETTINGS = [
    "data.src=en", "data.tgt=de", "data.max_tokens=32", "tokenizer.vocab_size=290", "model.preset=tiny",
    "model.d_model=16", "model.d_ff=16", "model.num_heads=2", "model.num_encoder_layers=1",
    "model.num_decoder_layers=1", "training.batch_tokens=256", "training.max_steps=2", "training.warmup_steps=2",
]  # fmt: skip
# A command line that works, for each command; RUN, TEXT, REF and OUT stand for paths.
_COMMANDS: dict[str, list[str]] = {
    "train": ["DATA", "run_dir=OUT"],
    "prepare": ["DATA", "run_dir=OUT"],
    "translate": ["RUN", "TEXT"],
    "back-translate": ["RUN", "TEXT", "-o", "OUT"],
    "logprob": ["RUN", "TEXT", "REF"],
    "encode": ["RUN", "TEXT"],
    "evaluate": ["RUN"],
    "compare": ["TEXT", "REF", "--ref", "REF"],
    "export": ["RUN", "--to", "ctranslate2"],
    "attention": ["RUN", "one two"],
    "report": ["RUN"],
    "doctor": [],
    "status": ["RUN"],
}
# Their arguments are settings, tried here, and files, tried elsewhere; corpora asks servers.
_OTHERS = {"config", "corpora", "distil", "import", "serve"}
_TOGETHER = {"--seed": ["--temperature", "1"], "--top-k": [], "--n-best": ["--beam", "9"]}


def _limits(metadata: Sequence[Any]) -> list[str]:
    """The values at the limits of a number, and just beyond them."""
    found = [getattr(item, name) for item in metadata for name in ("ge", "gt", "le", "lt") if hasattr(item, name)]
    return [str(limit + step) for limit in found for step in (-1, 0, 1)]


def _choices(annotation: Any) -> list[str]:
    """The words that a setting takes."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _choices(part)]


def _metadata(annotation: Any) -> list[Any]:
    inner = [item for part in get_args(annotation) for item in _metadata(part)]
    return [*getattr(annotation, "__metadata__", ()), *inner]


@dataclass(frozen=True)
class Values:
    """What is drawn for a setting or an option: what may fit it, numbers if it takes numbers, and anything else."""

    fitting: list[str]
    numbers: list[str]

    def draw(self, rng: random.Random, *more: str) -> str:
        kinds = [self.fitting + list(more)] * 3 + [self.numbers] * 5 + [[*_REAL, *_ODD]] * 2
        return rng.choice(rng.choice([values for values in kinds if values]))


def _numbers(annotation: Any) -> list[str]:
    kinds = {annotation, *(kind for part in get_args(annotation) for kind in (part, *get_args(part)))}
    return _REAL if float in kinds else _WHOLE if int in kinds else []


def _values(field: Any) -> Values:
    outer = [*field.metadata, *_metadata(field.annotation)]
    limits = _limits([item for data in outer for item in (data, *getattr(data, "metadata", ()))])
    default = [] if field.is_required() or field.default is None else [str(field.default)]
    return Values([*limits, *_choices(field.annotation), *default], _numbers(field.annotation))


_KEYS = {key: _values(field) for key, field in fields().items()}
_PART_KEYS = {name: _values(field) for name, field in TrainText.model_fields.items()}


@dataclass(frozen=True)
class Option:
    """An option of a command: how it is written, and its values."""

    names: tuple[str, ...]
    is_flag: bool
    values: Values
    takes_file: bool


def _option(parameter: Any) -> Option:
    """The option that a parameter of a command is."""
    kind = parameter.type_descriptor.annotation
    limits = [limit + step for limit in (parameter.min, parameter.max) if limit is not None for step in (-1, 0, 1)]
    names = (*parameter.opts, *parameter.secondary_opts)
    return Option(names, parameter.is_flag, Values([*map(str, limits), *_choices(kind)], _numbers(kind)), kind is Path)


def _options() -> dict[str, list[Option]]:
    """The options of each command."""
    group: Any = get_command(cli.app)
    found = {
        name: [_option(each) for each in command.params if each.param_type_name == "option"]
        for name, command in group.commands.items()
    }
    assert set(found) == {*_COMMANDS, *_OTHERS}, "a new command is tried here too"
    return {name: options for name, options in found.items() if options and name in _COMMANDS}


class Place:
    """A tiny text and a tiny run, and the directory of each draw beside them."""

    def __init__(self, root: Path, rig: Rig):
        self.root, self.rig, self.number = root, rig, 0
        self.data = write_tsv(root / "train.tsv", range(1000, 1060))
        valid, self.text, self.ref = write_tsv(root / "valid.tsv", range(20, 24)), root / "text", root / "ref"
        self.text.write_text("one two\nthree\n", encoding="utf-8")
        self.ref.write_text("eins zwei\ndrei\n", encoding="utf-8")
        self.settings = [f"data.train={self.data}", f"data.valid={valid}", f"data.test={valid}", *_SETTINGS]
        self.run = root / "run"
        assert rig.run("train", *self.settings, f"run_dir={self.run}").code == 0
        rig.run("translate", self.run, self.text, "--engine", "ctranslate2")  # keeps its export, where there is one

    def try_settings(self, rng: random.Random) -> str:
        """Train with one or two drawn settings, and translate with what came of it; returns what went wrong, or ""."""
        here, out = self._new_directory(), "out"
        keys = rng.sample(sorted(_KEYS), rng.choice((1, 1, 2)))
        drawn = [f"{key}={_KEYS[key].draw(rng)}" for key in keys]
        drawn = [_MANY_LAYERS.sub("=1001", word) for word in drawn]
        arguments = ["train", *self.settings, f"run_dir={out}", *drawn]
        if rng.random() < 0.15:  # the keys of one part of the text, which only a file has
            part = {"name": str(self.data), **{name: _PART_KEYS[name].draw(rng) for name in ("weight", "tag")}}
            part = {name: part[name] for name in ("name", rng.choice(("weight", "tag")))}
            (here / "own.yaml").write_text(f"data: {{train: [{json.dumps(part)}]}}\n", encoding="utf-8")
            arguments = ["train", "./own.yaml", *self.settings[1:], f"run_dir={out}"]
            drawn = [str(part)]
        start, problem = self._start(here, arguments)
        if not problem and start.code == 0 and (here / out).is_dir():
            start, problem = self._start(here, ["translate", out, str(self.text)])
            arguments = ["translate after", *drawn]
            problem = problem or ("" if start.code == 0 and start.out().count("\n") == 2 else "no translation")
        return self._told(here, arguments, start, problem or _left_behind(here, start.code))

    def try_options(self, rng: random.Random) -> str:
        """Run a command with one or two drawn options; returns what went wrong, or ""."""
        here, options = self._new_directory(), _options()
        command = rng.choice([name for name in sorted(options) for _ in options[name]])
        found = rng.sample(options[command], min(len(options[command]), rng.choice((1, 1, 2))))
        names = {"DATA": self.settings[0], "RUN": "run", "TEXT": self.text.name, "REF": self.ref.name}
        base = [names.get(word, word).replace("OUT", "out") for word in _COMMANDS[command]]
        base += self.settings[1:] if "DATA" in _COMMANDS[command] else []
        drawn = [word for option in found for word in self._written(rng, option)]
        drawn += ["--engine", "ctranslate2"] if command == "translate" and rng.random() < 0.3 else []
        if "run" in base:
            shutil.copytree(self.run, here / "run")
        before = tree(here)
        arguments = [command, *base, *drawn]
        start, problem = self._start(here, arguments, {3} if "--fail-if-worse" in drawn else set())
        if not problem and start.code in (1, 2) and tree(here) != before:
            problem = f"left behind: {sorted(set(tree(here)) ^ set(before))}"
        return self._told(here, arguments, start, problem or _left_behind(here, start.code))

    def _written(self, rng: random.Random, option: Option) -> list[str]:
        name = rng.choice(option.names)
        if option.is_flag:
            return [name]
        files = [self.text.name, self.ref.name, "new.html"] if option.takes_file else []
        with_it = _TOGETHER.get(name, []) if rng.random() < 0.7 else []
        return [*with_it, name, option.values.draw(rng, *files)]

    def _new_directory(self) -> Path:
        self.number += 1
        here = self.root / f"{self.number:05d}"
        (here / "tmp").mkdir(parents=True)
        for path in (self.text, self.ref):
            shutil.copy(path, here)
        return here

    def _start(self, here: Path, arguments: list[str], also: set[int] = frozenset()) -> tuple[Start, str]:  # type: ignore[assignment]
        """Run a command to its end; the problem with how it ended, or ""."""
        start = self.rig.start(*arguments, first=partial(confine, here / "tmp", _FREE_BYTES), cwd=here)
        problem = _watched(start)
        try:
            if problem or start.code == 0:
                assert problem or not [line for line in start.err().split("\n") if line.startswith("error: ")]
            elif start.code not in also:
                check_error(start.code, start.err(), start.code if start.code in (1, 2, 143) else 2)
        except AssertionError:
            problem = "not one line of error"
        return start, problem

    def _told(self, here: Path, arguments: list[str], start: Start, problem: str) -> str:
        shutil.rmtree(here)
        shown = [
            word if len(word) < 60 else f"{word[:30]}…({len(word)})" for word in arguments if word not in self.settings
        ]
        end = start.err()[-600:] if problem else ""
        return f"{problem}: {shown} ended with {start.code}: {end}" if problem else ""


def _watched(start: Start) -> str:
    """Wait for the end of a command; the problem with its time or its memory, or ""."""
    asked = 0.0
    while not start.ended():
        time.sleep(0.004)
        is_too_large = _resident_bytes(start.pid) > _MOST_BYTES
        if is_too_large or (asked and time.monotonic() > asked + _STOPPING_S):
            start.send(signal.SIGKILL)
            start.wait()
            return "too much memory" if is_too_large else "it does not stop"
        if not asked and time.monotonic() > start.began + _SECONDS:
            asked = time.monotonic()
            start.send(signal.SIGTERM)  # a long training is no mistake if it can be stopped
    return ""


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):  # it has just ended, or this is not Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _left_behind(here: Path, code: int | None) -> str:
    """What a command left that it should not have, or ""."""
    left = list((here / "tmp").iterdir())
    left += [path for path in here.rglob("*") if path.name.startswith(".tmp-")]
    for run in here.glob("*/config.yaml"):
        if code == 2 and run.parent.name != "run" and not (run.parent / "data" / "manifest.json").exists():
            left.append(run)
    return f"left behind: {[str(path.relative_to(here)) for path in left]}" if left else ""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("place"), commands.rig())


def _hold(tally: Tally, what: str, number: int, attempt: Callable[[random.Random], str]) -> None:
    """Try draws and report all that did not hold."""
    seed = int(os.environ.get("MTX_DRAWS_SEED", random.randrange(10**9) if NIGHTLY else 1))
    problems = [problem for draw in range(number) if (problem := attempt(random.Random(f"{seed} {draw}")))]
    for problem in problems:
        print(problem)
    tally(f"{what}, seed {seed}", number, number - len(problems))


@pytest.mark.seconds
def test_any_setting(place: Place, tally: Tally) -> None:
    _hold(tally, "drawn settings through training and translation", size(10, 3000), place.try_settings)


@pytest.mark.seconds
def test_any_option(place: Place, tally: Tally) -> None:
    _hold(tally, "drawn options through their commands", size(15, 2000), place.try_options)


@pytest.mark.extended
@pytest.mark.seconds
def test_any_environment(place: Place, tally: Tally, tmp_path: Path) -> None:
    """Numbers that the libraries read for themselves when a process begins."""

    def attempt(rng: random.Random) -> str:
        name = rng.choice(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_STACKSIZE", "GOMP_SPINCOUNT", "COLUMNS"))
        value = rng.choice([*_REAL, *_ODD])
        done = subprocess.run(
            [*MTX, "translate", str(place.run), str(place.text)], env={**ENVIRONMENT, name: value}, cwd=tmp_path,
            capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        held = done.returncode == 0 and done.stdout.count(b"\n") == 2
        return "" if held else f"{name}={value[:40]}: {done.returncode} {done.stderr[-300:]!r}"

    _hold(tally, "drawn numbers in the environment", size(1, 30), attempt)
