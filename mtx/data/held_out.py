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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from mtx.config.schema import HELD_OUT_TEST, DataConfig
from mtx.data.choosing import HELD_OUT, SIDES, USED, CleanedBatch, Reasons, are_in
from mtx.data.cleaning import Hashes, clean_pair, hash_texts
from mtx.data.languages import Languages
from mtx.data.markup import clean_text
from mtx.data.sources import Corpora, Corpus
from mtx.data.tables import PairBlock
from mtx.errors import DataError
from mtx.formatting import counted
from mtx.storage.run_files import VALID_STORE, test_store
from mtx.storage.text_files import is_utf8

log = logging.getLogger(__name__)

MAX_HELD_OUT = 1000
_MIN_HELD_OUT = 120
_MANY_SOURCES = 1000


@dataclass
class EvalSet:
    """A validation or test set.

    Attributes:
        is_held_out: whether it is taken from the training text instead of being configured.
        directions: the languages of each.
        blocks: its text, with its languages.
        would_drop: the number of pairs that cleaning would drop, by reason; none is dropped.
        num_cut: sides cut to `data.max_tokens`.
        leaks: the training pairs with a match in it, as report.json has them; see `mtx.data.leaks`.
    """

    name: str
    store: str
    is_held_out: bool
    directions: list[Languages]
    blocks: list[tuple[Languages, PairBlock]] = field(default_factory=list)
    would_drop: Counter[str] = field(default_factory=Counter)
    num_cut: int = 0
    leaks: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Its name in messages."""
        return "validation" if self.store == VALID_STORE else "test"

    def texts(self) -> tuple[list[str], list[str]]:
        """All of its sources, and all of its targets."""
        blocks = [block for _, block in self.blocks]
        return [src for block in blocks for src in block.src], [tgt for block in blocks for tgt in block.tgt]

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
    sets: list[EvalSet], corpora: Corpora, data: DataConfig, cleaned: list[CleanedBatch], reasons: Reasons
) -> None:
    """Hold out the sets that are not configured: the own pairs with the chosen sources that are not repeated.

    Args:
        reasons: of `mark_repeated`; those of the held-out pairs are set.

    Raises:
        DataError: if one of several directions has too little text.
    """
    num_directions = Counter(chain(*data.language_pairs))  # of each language
    rank = {language: number for number, (language, _) in enumerate(num_directions.most_common())}
    sides = ["tgt" if rank[tgt] < rank[src] else "src" for src, tgt in data.language_pairs]  # those that count
    own_text = corpora.own_text
    own_batches = [batch for batch in cleaned if corpora.train[batch.corpus] in own_text]
    smallest, largest = _choose_hashes(batch.hashes(sides[batch.direction]) for batch in own_batches)
    for eval_set in sets:
        if not eval_set.is_held_out:
            continue
        if eval_set.directions[0] == own_text[0].languages:
            names = ", ".join(dict.fromkeys(corpus.name for corpus in own_text))
            log.info(f"no {eval_set.kind} set configured: holding out {smallest.size:,} source sentences of {names}")
        chosen_hashes = largest if eval_set.store == VALID_STORE else smallest
        for pair in eval_set.directions:
            direction = data.language_pairs.index(pair)
            batches = [batch for batch in own_batches if batch.direction == direction]
            block = _take_pairs(batches, sides[direction], chosen_hashes, reasons)
            if data.directions and not block.src:
                raise DataError(f"too little text is {'-'.join(pair)} to hold out a part")
            eval_set.blocks.append((pair, block))


def _take_pairs(batches: list[CleanedBatch], side: str, hashes: Hashes, reasons: Reasons) -> PairBlock:
    """Hold out the pairs with these hashes on a side that are not repeated; returns their text."""
    lines, src, tgt = list[int](), list[str](), list[str]()
    for batch in batches:
        is_in_set = np.isin(reasons[batch.rows], [USED, HELD_OUT]) & are_in(batch.hashes(side), hashes)
        if is_in_set.any():
            reasons[batch.rows][is_in_set] = HELD_OUT
            in_set = batch.read().filter(pa.array(is_in_set))
            lines += in_set["line"].to_pylist()
            src += in_set["src"].to_pylist()
            tgt += in_set["tgt"].to_pylist()
    return PairBlock(lines, src, tgt)


def _choose_hashes(own_hashes: Iterable[Any]) -> tuple[Hashes, Hashes]:
    """The smallest and the largest hashes of the own text, as many as each held-out set gets."""
    smallest = largest = np.empty(0, np.uint64)
    for hashes in own_hashes:
        smallest = np.unique(np.append(smallest, hashes))[: 20 * MAX_HELD_OUT]  # more do not change the size
        largest = np.unique(np.append(largest, hashes))[-MAX_HELD_OUT:]
    size = held_out_size(smallest.size)
    return smallest[:size], largest[-size:]


def drop_shared_sides(sets: list[EvalSet], data: DataConfig, cleaned: list[CleanedBatch], reasons: Reasons) -> None:
    """Drop the training pairs that share a side with a held-out set.

    Args:
        reasons: after `hold_out`; those of the dropped pairs are set.
    """
    held_out_hashes = _hash_sides([eval_set for eval_set in sets if eval_set.is_held_out], data)
    for batch in cleaned:
        batch_reasons = reasons[batch.rows]  # a view
        for side, reason in SIDES.items():
            is_dropped = (batch_reasons == USED) & are_in(batch.hashes(side), held_out_hashes[side])
            batch_reasons[is_dropped] = reason


def _hash_sides(sets: list[EvalSet], data: DataConfig) -> dict[str, Hashes]:
    """For each side of training pairs, the hashes of the texts of these sets that it may not share."""
    src = list[str]()
    tgt = list[str]()
    for eval_set in sets:
        set_src, set_tgt = eval_set.texts()
        src += set_src
        tgt += set_tgt
    src_hashes = hash_texts(map(clean_text, src))
    tgt_hashes = hash_texts(map(clean_text, tgt))
    if data.directions:
        src_hashes = tgt_hashes = np.append(src_hashes, tgt_hashes)
    return {"src": src_hashes, "tgt": tgt_hashes}
