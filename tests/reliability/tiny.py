"""The run that the reliability tests interrupt, and the log of what its steps learned from.

Two seconds long: 2+2 layers, 300 pieces, 400 pairs, 60 steps in about three epochs, a checkpoint every 3 steps.
"""

import functools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.integration.commands import write_tsv

MAX_STEPS = 60
MICRO_BATCH_TOKENS = 120 if os.environ.get("MTX_RELIABILITY") == "nightly" else 240  # two a step, or one
_SETTINGS = [
    "data.src=en", "data.tgt=de", "data.max_tokens=32", "tokenizer.vocab_size=300", "precision=fp32",
    "model.preset=tiny", "model.d_model=32", "model.d_ff=64", "model.num_heads=2", "model.dropout=0.1",
    "model.num_encoder_layers=2", "model.num_decoder_layers=2",
    "training.batch_tokens=240", f"training.micro_batch_tokens={MICRO_BATCH_TOKENS}", "training.warmup_steps=20",
    "training.learning_rate=0.01", f"training.max_steps={MAX_STEPS}", "training.checkpoint_every=3",
    "training.validate_every=15", "training.average_last=3",
]  # fmt: skip
WEIGHTS = Path("model", "model.safetensors")
_LAST = Path("checkpoints", f"step-{MAX_STEPS:08d}")
COMPARED = (WEIGHTS, _LAST / "model.safetensors", _LAST / "optimizer.safetensors")


@dataclass(frozen=True)
class Whole:
    """A run that nothing interrupted.

    Attributes:
        settings: of any run on its text, without run_dir.
        ends: seconds from its start to each step's end.
        epochs: the epoch that each step began in.
        duration_s: of all of it.
    """

    run: Path
    settings: list[str]
    ends: list[float]
    epochs: list[int]
    duration_s: float


def write_text(directory: Path) -> list[str]:
    """Write the corpus, and return the settings of a run on it."""
    train = write_tsv(directory / "train.tsv", range(1000, 1400))
    valid, test = (write_tsv(directory / f"{name}.tsv", range(n, n + 12)) for name, n in (("valid", 20), ("test", 60)))
    return [f"data.train={train}", f"data.valid={valid}", f"data.test={test}", *_SETTINGS]


def same_bits(run: Path, other: Path) -> list[str]:
    """The files of two finished runs that differ; they should not."""
    return [str(name) for name in COMPARED if (run / name).read_bytes() != (other / name).read_bytes()]


def left_over(run: Path) -> list[str]:
    """Temporary files and directories anywhere in a run."""
    return [str(path.relative_to(run)) for path in run.rglob("*") if path.name.startswith(".tmp-")]


@dataclass(frozen=True)
class Done:
    """One update as it was done: when, of which step, and the sentences it learned from as tuples of ids."""

    time: float
    start: int
    step: int
    epoch: int
    sentences: tuple[Any, ...]


def log_steps(log: Path, is_begun: bool = False) -> None:
    """In a new process: append each update that is done, or begun, to `log`, before anything can be saved of it."""
    from mtx.training.trainer import Trainer

    original = Trainer.update

    @functools.wraps(original)
    def update(self: Any, loaded: Any, step: int, rate: float) -> Any:
        figures = None if is_begun else original(self, loaded, step, rate)
        if is_begun or figures is not None:
            sentences = [pair for batch in loaded.micro_batches for pair in _sentences(batch)]
            line = json.dumps([time.monotonic(), os.getpid(), step, self.state.position.epoch, sentences])
            os.write(fd, f"{line}\n".encode())
        return original(self, loaded, step, rate) if is_begun else figures

    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    Trainer.update = update  # type: ignore[method-assign]


def _sentences(batch: Any) -> Iterator[list[list[int]]]:
    for i in range(batch.num_sentences):
        yield [
            ids[offsets[i] : offsets[i + 1]].tolist()
            for ids, offsets in ((batch.src_ids, batch.src_offsets), (batch.tgt_out_ids, batch.tgt_offsets))
        ]


def steps_done(log: Path) -> list[Done]:
    """What `log_steps` wrote, in order; a line that is half there counts as not done."""
    if not log.exists():
        return []
    lines = log.read_bytes().split(b"\n")[:-1]
    return [
        Done(*head, tuple((tuple(src), tuple(tgt)) for src, tgt in pairs))
        for *head, pairs in (json.loads(line) for line in lines)
    ]


def count_steps(log: Path) -> int:
    """The last step in a log, cheaply; 0 where there is none."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        lines = file.read().split(b"\n")[:-1]
    return int(lines[-1].split(b",", 3)[2]) if lines else 0


def check_lineage(log: Path, run: Path) -> None:
    """Every step learned from the same sentences whenever it was done, and each epoch from every pair exactly once."""
    check_steps(((done.step, done.sentences) for done in steps_done(log)), run)


def check_steps(taken: Iterable[tuple[int, tuple[Any, ...]]], run: Path) -> None:
    """See `check_lineage`; `taken` has steps and their sentences, a step as often as it was taken."""
    by_step: dict[int, tuple[Any, ...]] = {}
    for step, sentences in taken:
        assert by_step.setdefault(step, sentences) == sentences, f"step {step} differs"
    assert sorted(by_step) == list(range(1, MAX_STEPS + 1))
    everything = all_pairs(run)
    missing = Counter(everything)
    num_epochs = 0
    for step in range(1, MAX_STEPS + 1):
        found = Counter(by_step[step])
        if found.total() >= missing.total():  # the epoch ends within this step, or with it
            assert not missing - found, f"an epoch ends at step {step} without {missing - found}"
            found, missing = found - missing, Counter(everything)
            num_epochs += 1
        assert not found - missing, f"step {step} takes again {found - missing}"
        missing -= found
    assert num_epochs >= 2


def all_pairs(run: Path) -> list[Any]:
    """Every training pair of a run as tuples of ids."""
    from mtx.data.token_store import TokenStore

    store = TokenStore.load(run / "data" / "train.arrow")
    sides = [map(tuple, side.sentences(np.arange(store.num_pairs))) for side in (store.src, store.tgt)]
    pairs = list(zip(*sides, strict=True))
    assert len(set(pairs)) == len(pairs)
    return pairs
