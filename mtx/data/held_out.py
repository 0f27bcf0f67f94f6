"""The validation and test sets: those that the user configures, and those held out of the training text.

A configured set is used unchanged and never filtered. If a set is not configured, the pairs of the own text
(`Corpora.own`) whose source has one of the k smallest (test) or k largest (validation) hashes are held out, and other
training text loses the pairs with these sources. Equal sources therefore stay together, and if the corpus changes, no
sentence moves from the validation set to the test set or back. k is a twentieth of the number of different sources, at
most MAX_HELD_OUT. If the corpus grows beyond that limit, sentences with smaller or larger hashes enter these sets, and
the displaced ones become training text.
Flow: corpora -> `EvalSet` -> `prepare`, which removes the held-out pairs from the training text.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mtx.config.schema import DataConfig
from mtx.data.cleaning import clean_pair, clean_text, hash_texts
from mtx.data.sources import Corpora, Corpus
from mtx.data.tables import PairBlock, PairGroup
from mtx.errors import DataError
from mtx.formatting import counted
from mtx.storage.run_files import VALID_STORE, test_store
from mtx.storage.text_files import is_utf8

log = logging.getLogger(__name__)

MAX_HELD_OUT = 1000


@dataclass
class EvalSet:
    """A validation or test set.

    Attributes:
        is_held_out: whether it is taken from the training text instead of being configured.
        blocks: its text.
        src_hashes: the hashes of its sources, sorted.
        would_drop: the number of pairs that cleaning would drop, by reason; none is dropped.
        num_cut: sides cut to `data.max_tokens`.
        num_leaks: training pairs whose source is in a configured set; `leak` is the first of them.
    """

    name: str
    store: str
    is_held_out: bool
    blocks: list[PairBlock] = field(default_factory=list)
    src_hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    would_drop: Counter[str] = field(default_factory=Counter)
    num_cut: int = 0
    num_leaks: int = 0
    leak: dict[str, Any] | None = None

    @property
    def kind(self) -> str:
        """Its name in messages."""
        return "validation" if self.store == VALID_STORE else "test"

    def report(self) -> dict[str, Any]:
        """The set's entry in report.json."""
        return {
            "pairs": sum(len(block.src) for block in self.blocks),
            "held_out": self.is_held_out,
            "cut_to_max_tokens": self.num_cut,
            "would_drop": dict(self.would_drop.most_common()),
            "leaks": {"train_pairs": self.num_leaks, "example": self.leak},
        }


def read_sets(corpora: Corpora, data: DataConfig) -> Iterator[EvalSet]:
    """The validation set, then the test sets; those that are not configured are still empty.

    Raises:
        DataError: if a configured set is empty or not UTF-8.
    """
    tests = ((name, test_store(name), corpus) for name, corpus in corpora.test_sets.items())
    for name, store, corpus in (("valid", VALID_STORE, corpora.valid), *tests):
        eval_set = EvalSet(name, store, is_held_out=corpus is None)
        if corpus is not None:
            _read(eval_set, corpus, data)
        yield eval_set


def _read(eval_set: EvalSet, corpus: Corpus, data: DataConfig) -> None:
    """Fill a configured set, unchanged."""
    left_out = Counter[str]()
    for block in corpus.blocks():
        left_out.update({reason: group.count for reason, group in block.left_out.items()})
        for line, src, tgt in zip(block.lines, block.src, block.tgt, strict=True):
            if not (is_utf8(src) and is_utf8(tgt)):
                raise corpus.not_utf8(line)
            if isinstance(outcome := clean_pair(src, tgt, data), str):
                eval_set.would_drop[outcome] += 1
        eval_set.blocks.append(block)
        eval_set.src_hashes = np.union1d(eval_set.src_hashes, hash_texts(map(clean_text, block.src)))
    for reason, count in left_out.items():
        log.info("the %s set %s: %s skipped, %s", eval_set.kind, corpus.name, counted(count, "unit"), reason)
    if not eval_set.src_hashes.size:
        raise DataError(f"the {eval_set.kind} set {corpus.name!r} has no pairs")


def choose_sources(sets: list[EvalSet], corpora: Corpora, src_hashes: NDArray[np.uint64]) -> None:
    """Choose the held-out sources of each set that is not configured.

    Args:
        src_hashes: the hashes of the sources of the cleaned own text.
    """
    src_hashes = np.unique(src_hashes)
    text = ", ".join(corpus.name for corpus in corpora.own)
    size = min(MAX_HELD_OUT, max(1, src_hashes.size // 20))
    for eval_set in sets:
        if eval_set.is_held_out:
            kind = eval_set.kind
            log.info("no %s set configured: holding out %s source sentences of %s", kind, f"{size:,}", text)
            eval_set.src_hashes = src_hashes[-size:] if eval_set.store == VALID_STORE else src_hashes[:size]


def hold_out(
    pairs: Any, is_left: NDArray[np.bool_], sets: list[EvalSet], corpus: str, is_own: bool
) -> NDArray[np.bool_]:
    """Add held-out pairs of a training corpus to their sets; returns the mask of pairs with held-out sources.

    A pair whose source is in a configured set is kept and counted as a leak.

    Args:
        pairs: a table of `prepare.CLEANED`.
        is_left: the pairs to consider.
        corpus: the name of the corpus.
        is_own: whether it is a part of `Corpora.own`; otherwise pairs with held-out sources are added to no set.
    """
    is_held_out = np.zeros(pairs.num_rows, np.bool_)
    for eval_set in sets:
        in_set = is_left & pc.is_in(pairs["src_hash"], pa.array(eval_set.src_hashes)).to_numpy()
        if not eval_set.is_held_out:
            leaks = PairGroup.of(pairs, in_set)
            eval_set.num_leaks += leaks.count
            eval_set.leak = eval_set.leak or (leaks.example(corpus) if leaks.count else None)
            continue
        is_held_out |= in_set
        if is_own:
            lines, src, tgt = (pairs[name].filter(pa.array(in_set)).to_pylist() for name in ("line", "src", "tgt"))
            eval_set.blocks.append(PairBlock(lines, src, tgt))
    return is_held_out
