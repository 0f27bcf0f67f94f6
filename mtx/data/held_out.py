"""The validation and test sets: those that the user configures, and those held out of the training text.

A configured set is used unchanged and never filtered. If a set is not configured, the pairs of the own text
(`Corpora.own_text`) whose source has one of the k smallest (test) or k largest (validation) hashes are held out. Equal
sources therefore stay together, and if the corpus changes, no sentence moves from the validation set to the test set or
back. Training text loses all pairs that share a side with them: back-translated text has their targets with other
sources. k is a twentieth of the number of different sources, at most MAX_HELD_OUT, and from `_MANY_SOURCES` sources on
at least `_MIN_HELD_OUT`, with which a few dropped pairs leave the 100 lines that the estimate of quality needs. If the
corpus grows beyond that limit, sentences with smaller or larger hashes enter these sets, and the displaced ones become
training text.
With several directions, the side that counts is in the language that most directions share, so that the translations of
a sentence fall into the sets of their directions together. Training text then loses every pair that has a side of any
held-out pair on any of its sides: the source of one direction is the target of another.
Flow: corpora -> `EvalSet` -> `prepare`, which removes the held-out pairs from the training text.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtx.config.schema import HELD_OUT_TEST, DataConfig
from mtx.data.cleaning import Mask, clean_pair, hash_texts
from mtx.data.languages import Languages
from mtx.data.markup import clean_text
from mtx.data.sources import Corpora, Corpus
from mtx.data.tables import PairBlock, PairGroup
from mtx.errors import DataError
from mtx.formatting import counted
from mtx.storage.run_files import VALID_STORE, test_store
from mtx.storage.text_files import is_utf8

log = logging.getLogger(__name__)

MAX_HELD_OUT = 1000
_MIN_HELD_OUT = 120
_MANY_SOURCES = 1000
SIDES = {"src": "source held out", "tgt": "target held out"}  # and why a pair is dropped that shares it
HELD_OUT = "held out"  # the pairs of a set


@dataclass
class EvalSet:
    """A validation or test set.

    Attributes:
        is_held_out: whether it is taken from the training text instead of being configured.
        directions: the languages of each.
        blocks: its text, with its languages.
        would_drop: the number of pairs that cleaning would drop, by reason; none is dropped.
        num_cut: sides cut to `data.max_tokens`.
        leaks: the number of training pairs with a source or target of a configured set, and the first as an example.
    """

    name: str
    store: str
    is_held_out: bool
    directions: list[Languages]
    blocks: list[tuple[Languages, PairBlock]] = field(default_factory=list)
    would_drop: Counter[str] = field(default_factory=Counter)
    num_cut: int = 0
    leaks: dict[str, Any] = field(default_factory=lambda: {"train_pairs": 0, "example": None})

    @property
    def kind(self) -> str:
        """Its name in messages."""
        return "validation" if self.store == VALID_STORE else "test"

    def report(self) -> dict[str, Any]:
        """The set's entry in report.json."""
        return {
            "pairs": sum(len(block.src) for _, block in self.blocks),
            "held_out": self.is_held_out,
            "cut_to_max_tokens": self.num_cut,
            "would_drop": dict(self.would_drop.most_common()),
            "leaks": self.leaks,
        }


def held_out_size(num_sources: int) -> int:
    """The number of sources that each held-out set gets from a text with this many different ones."""
    fewest = _MIN_HELD_OUT if num_sources >= _MANY_SOURCES else 1
    return min(MAX_HELD_OUT, max(fewest, num_sources // 20))


def read_sets(corpora: Corpora, data: DataConfig) -> Iterator[EvalSet]:
    """The validation set, then the test sets, one for each direction; those that are not configured are still empty.

    Raises:
        DataError: if a configured set is empty or not UTF-8.
    """
    empty = {corpus.languages: list[Corpus]() for corpus in corpora.own_text}
    yield _read_set("valid", VALID_STORE, [*empty], corpora.valid, data)
    for name, text in (corpora.tests or {HELD_OUT_TEST: []}).items():
        by_direction = {corpus.languages: [corpus] for corpus in text} or empty
        for languages, direction_text in by_direction.items():
            key = f"{name}.{'-'.join(languages)}" if data.directions else name
            yield _read_set(key, test_store(key), [languages], direction_text, data)


def _read_set(name: str, store: str, directions: list[Languages], text: list[Corpus], data: DataConfig) -> EvalSet:
    """A set with its configured text, unchanged."""
    eval_set = EvalSet(name, store, not text, directions)
    for corpus in text:
        skipped = Counter[str]()
        for block in corpus.blocks():
            skipped.update({reason: group.count for reason, group in block.skipped.items()})
            for line, src, tgt in zip(block.lines, block.src, block.tgt, strict=True):
                if not (is_utf8(src) and is_utf8(tgt)):
                    raise corpus.not_utf8(line)
                if isinstance(outcome := clean_pair(src, tgt, data), str):
                    eval_set.would_drop[outcome] += 1
            eval_set.blocks.append((corpus.languages, block))
        for reason, count in skipped.items():
            log.info(f"the {eval_set.kind} set {corpus.name}: {counted(count, 'unit')} skipped, {reason}")
        if not any(block.src for languages, block in eval_set.blocks if languages == corpus.languages):
            raise DataError(f"the {eval_set.kind} set {corpus.name!r} has no pairs")
    return eval_set


def hold_out(
    sets: list[EvalSet], corpora: Corpora, data: DataConfig, pairs: Any, directions: Any, is_own: Mask, is_left: Mask
) -> dict[str, Mask]:
    """Choose the held-out pairs; returns their mask, and those of the training pairs that share a side with one.

    They are the own pairs with the chosen sources. A pair that shares a side with a configured set is only counted.

    Args:
        pairs: a table of `prepare.CLEANED`.
        directions: the number of the direction of each.
        is_own: its pairs of `Corpora.own_text`.
        is_left: its pairs that are neither older translations nor duplicates.
    """
    num_directions = Counter(chain(*data.language_pairs))  # of each language
    rank = {language: number for number, (language, _) in enumerate(num_directions.most_common())}
    is_by_target = np.array([rank[tgt] < rank[src] for src, tgt in data.language_pairs])
    hashes = pc.if_else(pa.array(is_by_target[directions]), pairs["tgt_hash"], pairs["src_hash"])
    unique_hashes = np.unique(hashes.to_numpy()[is_own])
    size = held_out_size(unique_hashes.size)
    is_held_out = {reason: np.zeros(pairs.num_rows, np.bool_) for reason in (HELD_OUT, *SIDES.values())}
    for eval_set in sets:
        if eval_set.is_held_out:
            if eval_set.directions[0] == corpora.own_text[0].languages:
                names = ", ".join(dict.fromkeys(corpus.name for corpus in corpora.own_text))
                log.info(f"no {eval_set.kind} set configured: holding out {size:,} source sentences of {names}")
            chosen_hashes = unique_hashes[-size:] if eval_set.store == VALID_STORE else unique_hashes[:size]
            is_chosen = is_own & is_left & pc.is_in(hashes, pa.array(chosen_hashes)).to_numpy()
            for pair in eval_set.directions:
                is_in_set = is_chosen & (directions == data.language_pairs.index(pair))
                if data.directions and not is_in_set.any():
                    raise DataError(f"too little text is {'-'.join(pair)} to hold out a part")
                is_held_out[HELD_OUT] |= is_in_set
                in_set = pairs.select(["line", *SIDES]).filter(pa.array(is_in_set))
                eval_set.blocks.append((pair, PairBlock(*(column.to_pylist() for column in in_set.columns))))
        is_leak = np.zeros(pairs.num_rows, np.bool_)
        for side, reason in SIDES.items():
            texts = list[str]()
            for set_side in SIDES if data.directions else (side,):
                for _, block in eval_set.blocks:
                    texts += getattr(block, set_side)
            set_hashes = pa.array(hash_texts(map(clean_text, texts)))
            shares_side = is_left & pc.is_in(pairs[f"{side}_hash"], set_hashes).to_numpy()
            if eval_set.is_held_out:
                is_held_out[reason] |= shares_side
            else:
                is_leak |= shares_side
        if is_leak.any():
            leaks = PairGroup.of(pairs, is_leak)
            corpus = corpora.train[pairs["corpus"][int(is_leak.argmax())].as_py()]
            eval_set.leaks = {"train_pairs": leaks.count, "example": corpus.example(leaks)}
    return is_held_out
