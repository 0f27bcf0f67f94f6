"""What `mtx train --dry-run` tells, as data and as lines for a person.

Text of corpora and names of files stand in it: what a terminal would not show as it is is escaped, line by line.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mtx.dry_run.estimate import Estimate
from mtx.dry_run.memory import Memory
from mtx.dry_run.text import SideFigures, TextFigures, length_labels
from mtx.files.durations import format_duration
from mtx.files.text_files import printable

_BAR = 20  # characters of the longest bar


@dataclass(frozen=True)
class Advice:
    """Something that is probably not as it was meant, and what to do about it."""

    text: str
    help: str


@dataclass(frozen=True)
class Run:
    """What is trained, on what, and for how long.

    Attributes:
        exports: what the model cannot be exported to; None where nothing stands in its way.
        steps_done: by an earlier start.
        epochs: that all its steps are.
    """

    device: str
    precision: str
    threads: int
    micro_steps: int
    parameters: int
    pieces: int
    exports: str | None
    batch_tokens: int
    steps_done: int
    max_steps: int
    steps_per_epoch: float
    epochs: float


@dataclass(frozen=True)
class Disk:
    """Bytes that the run will write and keep at once, and those that are free."""

    needed: int
    free: int


@dataclass(frozen=True)
class Report:
    """All that a dry run found.

    Attributes:
        was_prepared: the run's own data was used, and none made.
        data: what `mtx.data.preprocess` reported.
        text: figures of each set, by the name of its store: train, valid, test.NAME.
    """

    src: str
    tgt: str
    was_prepared: bool
    data: dict[str, Any]
    text: dict[str, TextFigures]
    run: Run
    memory: Memory
    disk: Disk
    time: Estimate
    warnings: list[Advice]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: numbers in bytes, seconds and shares."""
        value = asdict(self)
        value["memory"]["needed"] = self.memory.needed
        return value

    def lines(self) -> list[str]:
        """For a person, every line safe for a terminal."""
        parts = (_data, _words, _lengths, _model, _memory, _time, _warnings)
        return [printable(line) for part in parts for line in part(self)]


def _data(report: Report) -> Iterator[str]:
    data = report.data
    how = "as this run has prepared them" if report.was_prepared else f"in {format_duration(report.time.prepare_s)}"
    num_dropped = sum(dropped["pairs"] for dropped in data["dropped"].values())
    counts = f"{data['kept']:,} kept, {num_dropped:,} dropped, {data['held_out']:,} held out"
    yield f"pairs:    {data['read']:,} read, {counts} ({how})"
    for reason, dropped in data["dropped"].items():
        yield f"  {dropped['pairs']:,} {reason}, such as {example(dropped['example'])}"
    for name, told in sets_of(data).items():
        held_out = ", held out" if told["held_out"] else ""
        yield f"  {name}: {told['pairs']:,} pairs{held_out}; {leaks(told)}"


def example(value: dict[str, Any]) -> str:
    """A pair with its place."""
    return f"{value['corpus']}:{value['line']}: {value['src']} -> {value['tgt']}"


def sets_of(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was reported of the validation and test sets, by the names that people read."""
    return {"validation set": data["valid"], **{f"test set {name}": told for name, told in data["tests"].items()}}


def leaks(told: dict[str, Any]) -> str:
    """Which training pairs are also in a set."""
    found = told["leaks"]
    if not found["train_pairs"]:
        return "none of its sources is in the training text"
    which = "1 training pair has" if found["train_pairs"] == 1 else f"{found['train_pairs']:,} training pairs have"
    return f"{which} a source of it, such as {example(found['example'])}"


def _words(report: Report) -> Iterator[str]:
    yield f"{'words:':27} {'pieces a word':>13} {'in bytes or unknown':>20}"
    for name, found in report.text.items():
        for language, side in ((report.src, found.src), (report.tgt, found.tgt)):
            yield f"  {f'{name} {language}':25} {side.pieces_per_word:13.2f} {side.unknown_words:20.2%}"


def _lengths(report: Report) -> Iterator[str]:
    train = report.text["train"]
    labels = length_labels(max(len(train.src.lengths), len(train.tgt.lengths)))
    yield f"{'lengths:':12} {f'{report.src} in pieces':{_BAR + 7}} {report.tgt} in pieces"
    for label, src, tgt in zip(labels, _bars(train.src, len(labels)), _bars(train.tgt, len(labels)), strict=True):
        yield f"  {label:10} {src:{_BAR + 7}} {tgt}".rstrip()


def _bars(side: SideFigures, number: int) -> list[str]:
    """A bar with its share for each of `number` lengths."""
    counts = side.lengths + [0] * (number - len(side.lengths))
    return [f"{count / sum(counts):4.0%} {'#' * round(_BAR * count / max(counts))}" for count in counts]


def _model(report: Report) -> Iterator[str]:
    run, time = report.run, report.time
    yield f"model:    {run.parameters:,} parameters, {run.pieces:,} pieces, trained on {run.device} in {run.precision}"
    if run.exports:
        yield f"  note: {run.exports}"
    done = f"{run.steps_done:,} are done, " if run.steps_done else ""
    end = "" if time.ends_by == "max_steps" else f", of which the time limit allows {time.steps:,} more"
    yield f"steps:    {done}{run.max_steps:,} of {run.batch_tokens:,} target tokens{end}"
    yield f"  an epoch is {run.steps_per_epoch:,.1f} steps; the run sees the training text {run.epochs:,.1f} times"


def _memory(report: Report) -> Iterator[str]:
    memory, disk = report.memory, report.disk
    activations = "activations not measured" if memory.activations is None else f"activations {_mb(memory.activations)}"
    has = "" if memory.device is None else f" of {_mb(memory.device)}"
    yield f"memory:   {_mb(memory.needed)}{has} on {report.run.device}"
    program = f"program {_mb(memory.program)}, " if memory.program else ""
    yield (
        f"  {program}weights {_mb(memory.weights)}, gradients {_mb(memory.gradients)}, Adam {_mb(memory.adam)}, "
        f"copy for a checkpoint {_mb(memory.checkpoint_copy)}, {activations}"
    )
    yield f"disk:     {_mb(disk.needed)} of {_mb(disk.free)} that are free"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _time(report: Report) -> Iterator[str]:
    time = report.time
    sooner = ", or sooner by training.patience" if time.may_end_sooner else ""
    yield f"time:     about {format_duration(time.total_s)} to the end{sooner}"
    yield (
        f"  {time.steps:,} steps of {time.step_s:.3g} s ({time.tgt_tokens_per_s:,.0f} target tokens/s): "
        f"{format_duration(time.steps_s)}; "
        f"validations ({time.validations:,} of {time.validation_s:,.1f} s): {format_duration(time.validations_s)}; "
        f"checkpoints ({time.saves:,}): {format_duration(time.saves_s)}; "
        f"scoring {format_duration(time.scoring_s)}; before them {format_duration(time.prepare_s + time.start_s)}"
    )


def _warnings(report: Report) -> Iterator[str]:
    for advice in report.warnings:
        yield f"warning: {advice.text}"
        yield f"  help: {advice.help}"
