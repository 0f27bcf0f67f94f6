"""The sets that a model is judged by: those that are given, and those that are held out of the training text.

A given set is used exactly as it is, never filtered. A held-out one is the pairs whose source has one of the k smallest
(test) or k largest (validation) hashes: equal sources stay together, and in another corpus no sentence moves from one
set to the other. As k is at most MAX_HELD_OUT, fewer of the old test sentences stay held out in a larger corpus; the
rest goes into its training text.
Flow: corpora -> `EvalSet` -> `prepare`, which takes its pairs out of the training text.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mtx.data.cleaning import Limits, SeenHashes, clean_pair, clean_text, text_hashes
from mtx.data.corpora import Corpora, Corpus
from mtx.data.preprocess_blocks import source_hashes
from mtx.data.text_batches import example_of, progress_bar, text_batch
from mtx.data.workers import Workers
from mtx.errors import DataError
from mtx.run.layout import VALID_STORE, test_store

log = logging.getLogger(__name__)

HELD_OUT_TEST = "heldout"  # the name of a test set that is taken from the training text
MAX_HELD_OUT = 1000
_MAX_HASH = np.uint64(2**64 - 1)


@dataclass
class EvalSet:
    """A validation or test set: given, or else the training pairs with a source hash within `bounds`, held out."""

    name: str
    store: str
    batches: list[Any] = field(default_factory=list)
    bounds: tuple[np.uint64, np.uint64] | None = None
    src_hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    would_drop: Counter[str] = field(default_factory=Counter)  # what cleaning would say; nothing is dropped
    num_cut: int = 0
    num_leaks: int = 0  # training pairs whose source stands in this set
    leak: dict[str, Any] | None = None

    def report(self) -> dict[str, Any]:
        """What report.json tells of the set."""
        return {
            "pairs": sum(batch.num_rows for batch in self.batches),
            "held_out": self.bounds is not None,
            "cut_to_max_tokens": self.num_cut,
            "would_drop": dict(self.would_drop.most_common()),
            "leaks": {"train_pairs": self.num_leaks, "example": self.leak},
        }


def given_sets(corpora: Corpora, limits: Limits) -> list[EvalSet]:
    """The validation and test sets that are given, exactly as they are."""
    given = [("validation", EvalSet("valid", VALID_STORE), corpora.valid)] if corpora.valid else []
    given += [("test", EvalSet(name, test_store(name)), corpus) for name, corpus in corpora.tests.items()]
    for kind, held, corpus in given:
        hashes = [held.src_hashes]
        for block in corpus.blocks():
            held.batches.append(text_batch(np.arange(len(block.src)) + block.first_line, block.src, block.tgt, 0))
            hashes.append(text_hashes(map(clean_text, block.src)))
            said = (clean_pair(*pair, limits) for pair in zip(block.src, block.tgt, strict=True))
            held.would_drop.update(reason for reason in said if isinstance(reason, str))
        held.src_hashes = np.unique(np.concatenate(hashes))
        if not held.src_hashes.size:
            raise DataError(f"the {kind} set {corpus.name!r} holds no pairs")
    return [held for _, held, _ in given]


def held_out_sets(corpora: Corpora, limits: Limits, workers: Workers) -> list[EvalSet]:
    """The sets that are not given, still empty: a test set takes the smallest source hashes, validation the largest."""
    needed = [] if corpora.valid else [("validation", EvalSet("valid", VALID_STORE))]
    needed += [] if corpora.tests else [("test", EvalSet(HELD_OUT_TEST, test_store(HELD_OUT_TEST)))]
    if not needed:
        return []
    num_sources, smallest, largest = _extreme_hashes(corpora.train, limits, workers)
    size = min(MAX_HELD_OUT, max(1, num_sources // 20))
    if 0 < num_sources <= size * len(needed):
        raise DataError(
            f"the training text has {num_sources} different source sentences, too few to hold some out and still train",
            "data.valid and data.test name other text",
        )
    for kind, held in needed if num_sources else []:
        held.bounds = (largest[-size], _MAX_HASH) if held.store == VALID_STORE else (np.uint64(0), smallest[size - 1])
        log.info("no %s set is given: %s source sentences are held out of the training text", kind, f"{size:,}")
    return [held for _, held in needed]


def _extreme_hashes(
    train: list[Corpus], limits: Limits, workers: Workers
) -> tuple[int, NDArray[np.uint64], NDArray[np.uint64]]:
    """How many different sources pass cleaning, and the MAX_HELD_OUT smallest and largest of their hashes."""
    sources, smallest, largest = SeenHashes(), np.empty(0, np.uint64), np.empty(0, np.uint64)
    with progress_bar("holding out") as bar:
        blocks = (block for corpus in train for block in corpus.blocks())
        for num_pairs, hashes in workers.map(partial(source_hashes, limits=limits), blocks):
            sources.add(hashes)
            smallest = np.unique(np.concatenate([smallest, hashes]))[:MAX_HELD_OUT]
            largest = np.unique(np.concatenate([largest, hashes]))[-MAX_HELD_OUT:]
            bar.update(num_pairs)
    return len(sources), smallest, largest


def take_out(batch: Any, hashes: NDArray[np.uint64], sets: list[EvalSet], corpus: str) -> Any:
    """The pairs of a training batch that no set holds out; those whose source a given set has stay, counted there.

    Args:
        batch: of `TEXT`.
        hashes: of its sources.
        sets: which take what they hold out.
        corpus: the name of the batch's corpus.
    """
    trains = np.ones(len(hashes), np.bool_)
    for held in sets:
        if held.bounds is not None:
            taken = (held.bounds[0] <= hashes) & (hashes <= held.bounds[1])
            held.batches.append(batch.filter(pa.array(taken)))
            trains &= ~taken
        elif (leaks := np.flatnonzero(np.isin(hashes, held.src_hashes))).size:
            held.num_leaks += leaks.size
            line, src, tgt, _ = (column[leaks[0]].as_py() for column in batch.columns)
            held.leak = held.leak or example_of(corpus, line, src, tgt)
    return batch.filter(pa.array(trains))
