"""Makes the data directory: reads and cleans the text, learns the tokenizer, encodes, and writes a report.

    sources -> clean -> temporary text -> hold out, drop duplicates -> tokenizer -> token stores, report.json

The training text is read once, in blocks. `workers` clean and encode the blocks (`blocks`); this process collects the
results in order, so the data does not depend on the number of workers. Only 64-bit hashes of the text, and its dates,
stay in memory.
The data directory appears as a whole or not at all, and training needs nothing else afterwards.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mtx.config.fixed import fixed_settings
from mtx.config.limits import MAX_EPOCH_PAIRS
from mtx.config.schema import Config
from mtx.data.blocks import TEXT, CleanBlock, clean_block, encode_block, group_of, progress_bar, read_batches
from mtx.data.cleaning import DUPLICATE, HELD_OUT, NOT_UTF8, OLDER, TOO_LONG, Limits, first_of_each, newest
from mtx.data.corpora import Corpus, PairGroup
from mtx.data.glossary import Glossary, find_terms, glossary_file
from mtx.data.sentence_splitter import multi_sentence_share
from mtx.data.sources import find_corpora
from mtx.data.splits import EvalSet, configured_sets, held_out_sets, hold_out
from mtx.data.token_store import StoreWriter, TokenStore, store_batch
from mtx.data.tokenizer import EOS_ID, Tokenizer, given_tokenizer, train_tokenizer
from mtx.data.workers import Workers
from mtx.errors import DamagedFileError, DataError, UsageError
from mtx.storage import disk, durable
from mtx.storage.run_files import REPORT, SETTINGS, TERMS, TRAIN_STORE, VALID_STORE, test_store

log = logging.getLogger(__name__)

MAX_TOKENIZER_PAIRS = 500_000
_SPLIT_LINES = 10_000  # of the training text, in which sentences are counted
_FEW_NOT_UTF8, _SHARE_NOT_UTF8 = 10, 0.01  # pairs of a corpus; with more, and a larger share, it is refused
_MAX_VALID_BYTES = 1 << 29


@dataclass(frozen=True)
class PreparedData:
    """What training and evaluation need: token ids, their tokenizer, and the report on the preparation.

    Attributes:
        sha256: of the SHA-256 of every file but that of the run's settings, so it stands for all of the data.
        terms: words and terms that translate each other, from which the model learns to use a glossary (`terms`); None
            without data.terms.
    """

    train: TokenStore
    valid: TokenStore
    tests: dict[str, TokenStore]
    tokenizer: Tokenizer
    report: dict[str, Any]
    sha256: str
    terms: Glossary | None = None


@dataclass
class Tally:
    """Counts of one corpus's training pairs: read = kept + held out + the sum of dropped, by reason.

    Attributes:
        is_own: whether the corpus is one of `Corpora.own`.
        keeps_newest: whether of several translations of a source only the newest is learned.
        weight: how often each pair is used per epoch; `_choose_weights` sets it where the corpus has none.
    """

    corpus: Corpus
    is_own: bool
    keeps_newest: bool
    weight: float
    read: int = 0
    kept: int = 0
    held_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def num_left(self) -> int:
        """Pairs that are neither held out nor dropped, so far."""
        return self.read - self.held_out - self.dropped.total()

    def drop(self, reason: str, pairs: PairGroup) -> None:
        """Count dropped pairs; the first pair for each reason becomes its example."""
        self.dropped[reason] += pairs.count
        self.examples.setdefault(reason, pairs.example(self.corpus.name))

    def keep(self, is_kept: NDArray[np.bool_], batch: Any, reason: str | None) -> Any:
        """The pairs of a batch that are kept; the others are dropped for the reason, or held out if it is None."""
        if reason is None:
            self.held_out += int((~is_kept).sum())
        elif not is_kept.all():
            self.drop(reason, group_of(batch, np.flatnonzero(~is_kept)))
        return batch.filter(pa.array(is_kept))

    def report(self) -> dict[str, Any]:
        """The corpus's entry in report.json."""
        counts = {"read": self.read, "kept": self.kept, "held_out": self.held_out}
        names = {"name": self.corpus.name, "weight": self.weight, "tag": self.corpus.tag}
        return {**names, **counts, "dropped": dict(self.dropped.most_common())}


def load_prepared(data_dir: Path) -> PreparedData:
    """Verify and open what `prepare` wrote.

    Raises:
        DamagedFileError: if a file is missing or changed; the message names it.
    """
    tokenizer_files = Tokenizer.file_names_in(data_dir)
    durable.verify(data_dir, [TRAIN_STORE, VALID_STORE, REPORT, SETTINGS, *tokenizer_files])
    report = durable.read_json(data_dir / REPORT)
    tokenizer = Tokenizer.load(data_dir)
    terms = Glossary.read(data_dir / TERMS) if "terms" in report else None

    def open_store(name: str) -> TokenStore:
        store = TokenStore.open(data_dir / name)
        if store.num_ids != tokenizer.num_ids:
            raise DamagedFileError(f"{data_dir / name}: {store.num_ids} ids, the tokenizer has {tokenizer.num_ids}")
        return store

    tests = {name: open_store(test_store(name)) for name in report["tests"]}
    entries = durable.read_manifest(data_dir)
    del entries[SETTINGS]
    sha256 = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    return PreparedData(open_store(TRAIN_STORE), open_store(VALID_STORE), tests, tokenizer, report, sha256, terms)


def load_valid(data_dir: Path) -> TokenStore:
    """Verify and open the validation set alone, also that of a stranger's run; raises DamagedFileError."""
    durable.verify(data_dir, [VALID_STORE], only_needed=True, limits={VALID_STORE: _MAX_VALID_BYTES})
    return TokenStore.open(data_dir / VALID_STORE)


def prepare(config: Config, data_dir: Path, num_workers: int | None = None, tokenizer: Tokenizer | None = None) -> None:
    """Make `data_dir` from the text that the configuration names, as a whole or not at all.

    Args:
        num_workers: see `Workers`.
        tokenizer: used unchanged; None means that of `tokenizer.model`, or a new one from the training text.

    Raises:
        UsageError: if text is missing, `data_dir` is not empty, the tokenizer lacks a tag or the marks of terms, or
            the weights make an epoch too small or too large.
        DataError: if text cannot be read or much of it is not UTF-8, a set is empty, or nothing is left to train on.
    """
    if data_dir.exists() and any(data_dir.iterdir()):
        raise UsageError(f"{data_dir}: holds files already", "remove it to prepare the data anew")
    corpora = replace(find_corpora(config.data), is_adaptation=config.training.init_from is not None)
    tags = [corpus.tag for corpus in corpora.train if corpus.tag is not None]
    glossary, has_terms = glossary_file(config.data), config.data.terms is not None
    tokenizer = tokenizer or given_tokenizer(config.tokenizer)
    if tokenizer is not None:
        _check_given(tokenizer, tags, config)
    limits = Limits(config.data.max_tokens, config.data.max_length_ratio)
    with durable.new_directory(data_dir) as directory, Workers(num_workers) as workers:
        duplicates = config.data.duplicates
        tallies = [
            Tally(
                corpus,
                is_own=corpus in corpora.own,
                keeps_newest=duplicates == "newest" or (duplicates == "auto" and corpus.is_memory),
                weight=corpus.weight or 1.0,
            )
            for corpus in corpora.train
        ]
        cleaned, text = (directory / f"{durable.TEMPORARY_PREFIX}{name}.arrow" for name in ("cleaned", "text"))
        sets = configured_sets(corpora, limits)
        started = perf_counter()
        blocks = _clean(tallies, limits, cleaned, workers)
        own = (block.src_hashes for block in blocks if tallies[block.corpus].is_own)
        sets += held_out_sets(corpora, np.concatenate([np.empty(0, np.uint64), *own]))
        stores = [VALID_STORE, *map(test_store, corpora.test_sets)]
        sets.sort(key=lambda eval_set: stores.index(eval_set.store))
        _choose(cleaned, blocks, tallies, sets, text)
        disk.unlink(cleaned)
        num_cleaned = sum(map(_check_encoding, tallies))
        if not num_cleaned:
            raise _nothing_left(tallies)
        seconds = perf_counter() - started
        log.info("cleaning: %s pairs left of %s (%.1f s)", f"{num_cleaned:,}", _counts(tallies), seconds)
        _choose_weights(tallies)
        sample = Sample(text, num_cleaned, MAX_TOKENIZER_PAIRS, config.seed)
        tokenizer = tokenizer or _learn_tokenizer(config, sample, tags, workers)
        tokenizer.save(directory)
        num_terms = _write_terms(sample, glossary, directory / TERMS, config) if has_terms else None
        num_tokens, lines = _encode_train(sample, tokenizer, tallies, limits, directory / TRAIN_STORE, workers)
        _check_weights(tallies)
        disk.unlink(text)
        for eval_set in sets:
            _encode_set(eval_set, tokenizer, limits, directory / eval_set.store)
        share = multi_sentence_share(lines, config.data.languages[0])
        report = _report(tallies, sets, tokenizer, num_tokens, share)
        report |= {} if num_terms is None else {"terms": num_terms}
        durable.write_json(directory / SETTINGS, {"settings": fixed_settings(config)})
        durable.write_json(directory / REPORT, report)


def _check_given(tokenizer: Tokenizer, tags: list[str], config: Config) -> None:
    """Refuse a tokenizer without a tag, the marks of terms or the merges that the settings need."""
    log.info("using the tokenizer of %s", ", ".join(config.tokenizer.model) or config.training.init_from)
    origin = "tokenizer.model" if config.tokenizer.model else "training.init_from"
    if missing := [tag for tag in tags if tag not in tokenizer.tags]:
        others = f"only {', '.join(tokenizer.tags)}" if tokenizer.tags else "which has none"
        raise UsageError(f"data.train: the tag {missing[0]} is not in the tokenizer of {origin}, {others}")
    if config.data.terms is not None and not tokenizer.marks:
        raise UsageError(f"data.terms: the tokenizer of {origin} has no marks for terms", "data.terms=null")
    if config.training.bpe_dropout and not all(tokenizer.models.merges(side).ranks for side in (False, True)):
        text = f"training.bpe_dropout needs a BPE model, and that of {origin} is another"
        raise UsageError(text, "training.bpe_dropout=0")


def _clean(tallies: list[Tally], limits: Limits, path: Path, workers: Workers) -> list[CleanBlock]:
    """Write the pairs that pass every filter to `path`, a batch for each block."""
    items = ((number, block) for number, tally in enumerate(tallies) for block in tally.corpus.blocks())
    blocks = list[CleanBlock]()
    with disk.create(path) as file, pa.ipc.new_file(file, TEXT) as writer, progress_bar("cleaning") as bar:
        for block, batch in workers.map(partial(clean_block, limits=limits), items):
            writer.write_batch(batch)
            blocks.append(block)
            bar.update(block.num_read)
    return blocks


def _choose(cleaned: Path, blocks: list[CleanBlock], tallies: list[Tally], sets: list[EvalSet], path: Path) -> None:
    """Write the cleaned pairs that are no older translations, duplicates or held out to `path`; counts the others."""
    none = np.empty(0, np.uint64)
    dates, src_hashes, pair_hashes = (
        np.concatenate([none, *(getattr(block, name) for block in blocks)])
        for name in ("dates", "src_hashes", "pair_hashes")
    )
    keep_newest = [tallies[block.corpus].keeps_newest for block in blocks]
    has_older = np.repeat(np.array(keep_newest, np.bool_), [block.dates.size for block in blocks])
    is_newest = ~has_older
    is_newest[has_older] = newest(src_hashes[has_older], dates[has_older])
    is_first = is_newest.copy()
    is_first[is_newest] = first_of_each(pair_hashes[is_newest])
    stop = 0
    with disk.create(path) as file, pa.ipc.new_file(file, TEXT) as writer:
        for block, batch in zip(blocks, read_batches(cleaned), strict=True):
            rows = slice(stop, stop + batch.num_rows)
            stop = rows.stop
            tally = tallies[block.corpus]
            tally.read += block.num_read
            for reason, group in block.dropped.items():
                tally.drop(reason, group)
            batch = tally.keep(is_newest[rows], batch, OLDER)
            batch = tally.keep(is_first[rows][is_newest[rows]], batch, DUPLICATE)
            stays = hold_out(batch, block.src_hashes[is_first[rows]], sets, tally.corpus.name, tally.is_own)
            batch = tally.keep(stays, batch, None if tally.is_own else HELD_OUT)
            if batch.num_rows:
                writer.write_batch(batch)


def _check_encoding(tally: Tally) -> int:
    """Warn of dropped pairs that are not UTF-8, or refuse the corpus if they are many; returns the number left."""
    if count := tally.dropped[NOT_UTF8]:
        error = tally.corpus.not_utf8(tally.examples[NOT_UTF8]["line"])
        pairs = f"{count:,} of the {tally.read:,} pairs"
        if count > max(_FEW_NOT_UTF8, _SHARE_NOT_UTF8 * tally.read):
            raise DataError(f"{error}; so are {pairs}", error.help)
        log.warning("%s; %s are dropped for that", error, pairs)
    return tally.num_left


def _choose_weights(tallies: list[Tally]) -> None:
    """Give text beside the own one, where it has no weight, the largest up to 1 with which it is used no more often.

    Raises:
        DataError: if nothing is left of the own text.
    """
    own = [tally for tally in tallies if tally.is_own]
    if not (num_own := sum(tally.num_left for tally in own)):
        raise DataError(f"{own[0].corpus.name}: {_nothing_left(own)}")
    for tally in tallies:
        if not tally.is_own and tally.corpus.weight is None:
            tally.weight = min(1.0, num_own / max(1, tally.num_left))
            text = "%s: its %s pairs have the weight %.3g, so that they are used no more often than the %s of %s"
            sizes = f"{tally.num_left:,}", f"{num_own:,}"
            log.info(text, tally.corpus.name, sizes[0], tally.weight, sizes[1], own[0].corpus.name)


def _check_weights(tallies: list[Tally]) -> None:
    """Refuse weights with which an epoch has less than one sentence, or more than the memory of its order allows.

    With less, a step could span any number of epochs.
    """
    num_pairs = sum(tally.weight * tally.num_left for tally in tallies)
    if not 1 <= num_pairs <= MAX_EPOCH_PAIRS:
        weights = ", ".join(f"{tally.weight:g} for the {tally.num_left:,} of {tally.corpus.name}" for tally in tallies)
        raise UsageError(
            f"data.train: with the weights {weights} an epoch would have {num_pairs:.3g} pairs; "
            f"expected 1 to {MAX_EPOCH_PAIRS:,}"
        )


@dataclass(frozen=True)
class Sample:
    """The sentences that tokenizer and terms are learned from: both sides of about `max_pairs` or fewer cleaned pairs.

    The pairs are drawn evenly. Every iteration gives the same sentences.
    """

    cleaned: Path
    num_cleaned: int
    max_pairs: int
    seed: int

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(chain(*self.pairs()))

    def pairs(self) -> Iterator[tuple[list[str], list[str]]]:
        """The source and the target texts, in blocks."""
        rng = np.random.default_rng(self.seed)
        for batch in read_batches(self.cleaned):
            if self.num_cleaned > self.max_pairs:
                batch = batch.filter(pa.array(rng.random(batch.num_rows) < self.max_pairs / self.num_cleaned))
            yield batch["src"].to_pylist(), batch["tgt"].to_pylist()


def _learn_tokenizer(config: Config, sample: Sample, tags: list[str], workers: Workers) -> Tokenizer:
    """Learn in a worker if workers run: SentencePiece ignores signals and holds the whole sample in memory."""
    started = perf_counter()
    learn = partial(
        train_tokenizer,
        config=config.tokenizer,
        num_pairs=sample.num_cleaned,
        tags=tags,
        has_marks=config.data.terms is not None,
    )
    tokenizer = workers.run(learn, sample)
    log.info("tokenizer: %s pieces (%.1f s)", f"{tokenizer.num_pieces:,}", perf_counter() - started)
    return tokenizer


def _write_terms(sample: Sample, glossary: Path | None, path: Path, config: Config) -> int | None:
    """Write the terms that a model learns from; returns their number, None if there are none to go on with."""
    started = perf_counter()
    terms = find_terms(sample.pairs(), glossary)
    if not terms.terms:
        problem = "data.terms: no words of the training text translate each other often enough"
        if config.training.init_from is None:
            raise DataError(problem, "data.terms=null")
        log.warning("%s; the model learns no more terms", problem)
        return None
    durable.write_text(path, "".join(terms.lines()))
    log.info("terms: %s (%.1f s)", f"{len(terms.terms):,}", perf_counter() - started)
    return len(terms.terms)


def _encode_train(
    sample: Sample, tokenizer: Tokenizer, tallies: list[Tally], limits: Limits, path: Path, workers: Workers
) -> tuple[tuple[int, int], list[str]]:
    """Write the training store without the pairs that are too long.

    Returns:
        The token counts of both sides, and evenly drawn source lines.
    """
    started = perf_counter()
    num_src_tokens = num_tgt_tokens = 0
    lines = list[str]()
    distance = -(-sample.num_cleaned // _SPLIT_LINES)  # of one drawn line from the next
    weights, tags = [tally.weight for tally in tallies], [tally.corpus.tag for tally in tallies]
    threads = 1 if workers.are_started else -1
    encode = partial(encode_block, tokenizer=tokenizer, tags=tags, max_tokens=limits.max_tokens, num_threads=threads)
    with StoreWriter(path, tokenizer.num_ids, weights) as writer, progress_bar("encoding", sample.num_cleaned) as bar:
        for block in workers.map(encode, read_batches(sample.cleaned)):
            tally = tallies[block.corpus]
            if block.too_long:
                tally.drop(TOO_LONG, block.too_long)
            writer.add(block.pairs)
            tally.kept += block.pairs.num_rows
            num_src_tokens += block.num_src_tokens
            num_tgt_tokens += block.num_tgt_tokens
            lines += (
                block.pairs["src_text"].take(pa.array(range(0, block.pairs.num_rows, distance), pa.int64())).to_pylist()
            )
            bar.update(block.num_read)
    num_kept = sum(tally.kept for tally in tallies)
    if not num_kept:
        raise _nothing_left(tallies)
    log.info("encoding: %s pairs kept of %s (%.1f s)", f"{num_kept:,}", _counts(tallies), perf_counter() - started)
    return (num_src_tokens, num_tgt_tokens), lines


def _encode_set(eval_set: EvalSet, tokenizer: Tokenizer, limits: Limits, path: Path) -> None:
    """Write a validation or test set. Ids beyond `max_tokens` are cut: only the loss uses ids, BLEU uses the text."""
    with StoreWriter(path, tokenizer.num_ids, [1.0]) as writer:
        for batch in eval_set.batches:
            lines, src, tgt, _ = batch.columns
            src_ids = tokenizer.encode(src.to_pylist())
            tgt_ids = tokenizer.encode(tgt.to_pylist(), target=True)
            for ids in (*src_ids, *tgt_ids):
                if len(ids) > limits.max_tokens:
                    ids[limits.max_tokens - 1 :] = [EOS_ID]
                    eval_set.num_cut += 1
            corpus = np.zeros(batch.num_rows)  # these stores have a single corpus
            writer.add(store_batch(tokenizer.num_ids, src_ids, tgt_ids, lines, corpus, src, tgt))


def _report(
    tallies: list[Tally], sets: list[EvalSet], tokenizer: Tokenizer, num_tokens: tuple[int, int], share: float
) -> dict[str, Any]:
    """The content of report.json, from the token counts of both sides and the share of lines of several sentences."""
    num_src_tokens, num_tgt_tokens = num_tokens
    examples = {reason: example for tally in reversed(tallies) for reason, example in tally.examples.items()}
    dropped = _dropped(tallies).most_common()
    return {
        **{count: sum(getattr(tally, count) for tally in tallies) for count in ("read", "kept", "held_out")},
        "dropped": {reason: {"pairs": count, "example": examples[reason]} for reason, count in dropped},
        "pieces": tokenizer.num_pieces,
        "src_tokens": num_src_tokens,
        "tgt_tokens": num_tgt_tokens,
        "src_tgt_ratio": num_src_tokens / num_tgt_tokens,
        "multi_sentence_share": share,
        "corpora": [tally.report() for tally in tallies],
        "valid": next(eval_set.report() for eval_set in sets if eval_set.store == VALID_STORE),
        "tests": {eval_set.name: eval_set.report() for eval_set in sets if eval_set.store != VALID_STORE},
    }


def _dropped(tallies: list[Tally]) -> Counter[str]:
    return sum((tally.dropped for tally in tallies), Counter[str]())


def _counts(tallies: list[Tally]) -> str:
    """For example `29,000 read (12 duplicate, 3 empty)`."""
    num_read, num_held_out = sum(tally.read for tally in tallies), sum(tally.held_out for tally in tallies)
    counts = [*_dropped(tallies).most_common(), *([("held out", num_held_out)] if num_held_out else [])]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts)
    return f"{num_read:,} read" + (f" ({reasons})" if reasons else "")


def _nothing_left(tallies: list[Tally]) -> DataError:
    return DataError(f"nothing is left to train on: {_counts(tallies)}")
