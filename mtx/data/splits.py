"""The validation and test sets: those that the user configures, and those held out of the training text.

A configured set is used exactly as it is and never filtered. If one is not configured, the pairs of the own text
(`Corpora.own`) whose source has one of the k smallest (test) or k largest (validation) hashes are held out, and other
training text loses the pairs with these sources. Equal sources therefore stay together, and if the corpus changes, no
sentence moves from the validation set to the test set or back. k is a twentieth of the
number of different sources, but at most MAX_HELD_OUT. Once it is at that limit and the corpus grows, sentences with
smaller or larger hashes enter these sets, and those that they displace become training text.
Flow: corpora -> `EvalSet` -> `preprocess`, which removes the held-out pairs from the training text.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mtx.data.blocks import group_of, text_batch
from mtx.data.cleaning import Limits, clean_pair, clean_text, text_hashes
from mtx.data.corpora import Corpora
from mtx.errors import DataError
from mtx.formatting import counted
from mtx.storage.run_files import VALID_STORE, test_store

log = logging.getLogger(__name__)

MAX_HELD_OUT = 1000


@dataclass
class EvalSet:
    """A validation or test set.

    Attributes:
        batches: its text, record batches of `blocks.TEXT`.
        is_held_out: whether it is taken from the training text; else it is configured.
        src_hashes: the hashes of its sources, sorted.
        would_drop: the number of pairs that cleaning would drop, for each reason; none is dropped.
        num_cut: sides cut to `data.max_tokens`.
        num_leaks: training pairs whose source is in a configured set; `leak` is the first of them.
    """

    name: str
    store: str
    batches: list[Any] = field(default_factory=list)
    is_held_out: bool = False
    src_hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    would_drop: Counter[str] = field(default_factory=Counter)
    num_cut: int = 0
    num_leaks: int = 0
    leak: dict[str, Any] | None = None

    def report(self) -> dict[str, Any]:
        """The set's entry in report.json."""
        return {
            "pairs": sum(batch.num_rows for batch in self.batches),
            "held_out": self.is_held_out,
            "cut_to_max_tokens": self.num_cut,
            "would_drop": dict(self.would_drop.most_common()),
            "leaks": {"train_pairs": self.num_leaks, "example": self.leak},
        }


def configured_sets(corpora: Corpora, limits: Limits) -> list[EvalSet]:
    """Read the validation and test sets that the user configured, exactly as they are.

    Raises:
        DataError: if a set is empty or not UTF-8.
    """
    sets = [("validation", EvalSet("valid", VALID_STORE), corpora.valid)] if corpora.valid else []
    sets += [("test", EvalSet(name, test_store(name)), corpus) for name, corpus in corpora.tests.items() if corpus]
    for kind, eval_set, corpus in sets:
        hashes, left_out = [eval_set.src_hashes], Counter[str]()
        for block in corpus.blocks():
            left_out.update({reason: group.count for reason, group in block.left_out.items()})
            if (line := block.first_not_utf8()) is not None:
                raise corpus.not_utf8(line)
            eval_set.batches.append(text_batch(block.lines, block.src, block.tgt, 0))
            hashes.append(text_hashes(map(clean_text, block.src)))
            outcomes = (clean_pair(*pair, limits) for pair in zip(block.src, block.tgt, strict=True))
            eval_set.would_drop.update(outcome for outcome in outcomes if isinstance(outcome, str))
        for reason, count in left_out.items():
            log.info("the %s set %s: %s left out, %s", kind, corpus.name, counted(count, "unit"), reason)
        eval_set.src_hashes = np.unique(np.concatenate(hashes))
        if not eval_set.src_hashes.size:
            raise DataError(f"the {kind} set {corpus.name!r} holds no pairs")
    return [eval_set for _, eval_set, _ in sets]


def held_out_sets(corpora: Corpora, src_hashes: NDArray[np.uint64]) -> list[EvalSet]:
    """The sets that are not configured, still empty, with the hashes of the sources that they hold out.

    Args:
        src_hashes: those of the cleaned own text.
    """
    sets = [] if corpora.valid else [("validation", "valid", VALID_STORE)]
    sets += [("test", name, test_store(name)) for name, corpus in corpora.test_sets.items() if corpus is None]
    text = "the training text" if corpora.own == corpora.train else ", ".join(corpus.name for corpus in corpora.own)
    sources = np.unique(src_hashes)
    size = min(MAX_HELD_OUT, max(1, sources.size // 20))
    held_out = list[EvalSet]()
    for kind, name, store in sets:
        log.info("no %s set is given: %s source sentences are held out of %s", kind, f"{size:,}", text)
        hashes = sources[-size:] if store == VALID_STORE else sources[:size]
        held_out.append(EvalSet(name, store, is_held_out=True, src_hashes=hashes))
    return held_out


def hold_out(
    batch: Any, hashes: NDArray[np.uint64], sets: list[EvalSet], corpus: str, is_own: bool
) -> NDArray[np.bool_]:
    """Put held-out pairs of a training batch into their sets; returns which pairs stay in the training text.

    A pair whose source is in a configured set stays and is counted as a leak.

    Args:
        batch: record batch of `blocks.TEXT`.
        hashes: the hash of each source.
        corpus: the name of the batch's corpus.
        is_own: whether it is a part of `Corpora.own`; else a pair with a held-out source goes into no set.
    """
    for_training = np.ones(len(hashes), np.bool_)
    for eval_set in sets:
        in_set = np.isin(hashes, eval_set.src_hashes)
        if eval_set.is_held_out:
            for_training &= ~in_set
            if is_own:
                eval_set.batches.append(batch.filter(pa.array(in_set)))
        elif (leaks := np.flatnonzero(in_set)).size:
            eval_set.num_leaks += leaks.size
            eval_set.leak = eval_set.leak or group_of(batch, leaks).example(corpus)
    return for_training
