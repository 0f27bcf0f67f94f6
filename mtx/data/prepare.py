"""Prepares the data directory: reads and cleans the text, learns the tokenizer, encodes, and writes a report.

    corpora -> `clean_block` -> temporary file -> `_choose` -> tokenizer -> `encode_kept` -> token stores, report.json

The training text is read once, in blocks. `workers` clean and encode the blocks; this process collects the results in
order, so the data does not depend on the number of workers. Between cleaning and encoding, the pairs are in a temporary
Arrow file with their 64-bit hashes, by which `choosing` finds older translations, duplicates and held-out sentences.
The data directory appears as a whole or not at all, and training needs nothing else afterwards (`token_store`).
"""

import logging
from collections import ChainMap, Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mtx.config.schema import Config, DataConfig, pairs_of
from mtx.config.settings import fixed_settings
from mtx.data.blocks import MISSING_VALUES, NOTICED, UNREAD_DATES, clean_block, encode_kept, find_long, texts_of
from mtx.data.choosing import CLEANED, HELD_OUT, REASONS, SIDES, USED, CleanedBatch, mark_repeated
from mtx.data.cleaning import (
    NOT_UTF8,
    TOO_LONG,
    omission,
)
from mtx.data.glossary import learn_lexicon
from mtx.data.held_out import EvalSet, drop_shared_sides, hold_out, read_sets
from mtx.data.language_detection import find_other_language
from mtx.data.languages import Languages
from mtx.data.leaks import Leaks, find_matches
from mtx.data.markup import codes_of, strip_codes
from mtx.data.sentence_splitter import multi_sentence_share
from mtx.data.shards import CleanedBlock, read_blocks, read_encoded, read_shards, write_shard
from mtx.data.sources import Corpora, Corpus, find_corpora, show_example
from mtx.data.tables import BLOCK_PAIRS, PairGroup, log_once
from mtx.data.token_store import Batch, TokenStore, store_batch, write_store
from mtx.data.tokenizer import EOS_ID, PLAIN, Tokenizer, given_tokenizer, train_tokenizer
from mtx.data.workers import map_in_workers
from mtx.errors import DataError, UsageError
from mtx.formatting import counted, divide_up
from mtx.storage import disk, durable
from mtx.storage.run_files import REPORT, SETTINGS, TERMS, TRAIN_STORE, describe_sources
from mtx.storage.streams import progress

log = logging.getLogger(__name__)

MAX_TOKENIZER_PAIRS = 500_000
_FEW_PAIRS = 100_000  # up to this size, this process encodes the text and trains the tokenizer
_SAMPLE_LINES = 10_000  # of the training text, in which sentences, codes and omissions are counted
_DETECTED_PAIRS = 3_000  # of the training text, whose languages are detected; it takes half a second
_DETECTED_CHARS = 400  # of a side, with its tags
_LEARNED_CODE_PAIRS = 20  # pairs of these whose sides both have a code, which a model then learns like a word
WINDOW_PAIRS = 1 << 24  # of a window, in text with more pairs in an epoch; its order takes 270 MB
# Bytes on the disk for each byte of text, of pairs with 145 bytes: while it is cleaned, and of the training store
_CLEANING_BYTES = 1.65
_STORE_BYTES = 1.85
_GZIP_RATIO = 3  # bytes of text for each byte of a gzip file
_LARGE_BYTES = 1e10  # on the disk, from which on the need is logged
_MAX_REPEATS = 10.0  # of a pair in an epoch, unless its corpus has a weight
# A corpus is refused if more pairs, and a larger share, are not UTF-8
_FEW_NOT_UTF8 = 10
_SHARE_NOT_UTF8 = 0.01


@dataclass
class Tally:
    """Counts of one corpus's training pairs: num_read = num_kept + num_held_out + the sum of dropped, by reason.

    Attributes:
        is_own: whether the corpus is one of `Corpora.own_text`.
        weight: how often each pair is used per epoch; `_choose_weights` sets it if the corpus has none.
        noticed: pairs with one of `NOTICED`, dropped or not.
    """

    corpus: Corpus
    is_own: bool
    weight: float
    num_read: int = 0
    num_held_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, durable.Json] = field(default_factory=dict)

    @property
    def num_kept(self) -> int:
        """Pairs that are neither held out nor dropped, so far."""
        return self.num_read - self.num_held_out - self.dropped.total()

    def count(self, reason: str, pairs: PairGroup) -> None:
        """Count pairs that are dropped or noticed; the first pair for each reason becomes its example."""
        if pairs.count:
            counts = self.noticed if reason in NOTICED else self.dropped
            counts[reason] += pairs.count
            self.examples.setdefault(reason, self.corpus.example(pairs))

    def report(self) -> durable.Json:
        """The corpus's entry in report.json."""
        return {
            "name": self.corpus.name,
            "weight": self.weight,
            "tag": self.corpus.tag,
            "read": self.num_read,
            "kept": self.num_kept,
            "held_out": self.num_held_out,
            "dropped": dict(self.dropped.most_common()),
        }


def prepare(
    config: Config, data_dir: Path, tokenizer: Tokenizer | None = None, shards: Path | None = None
) -> durable.Json:
    """Make `data_dir` from the text that the configuration names, as a whole or not at all.

    Args:
        tokenizer: used unchanged; None: the one of `tokenizer.model`, or a new one trained on the training text.
        shards: a directory of shards to join, which have the cleaned and encoded text; None: there are none.

    Returns:
        The content of sources.json.

    Raises:
        UsageError: if text is missing or its sides are surely swapped, `data_dir` is not empty, the tokenizer lacks a
            tag or the marks of terms, or the weights make an epoch too small.
        DataError: if text cannot be read or much of it is not UTF-8, a set is empty, or nothing is left to train on.
    """
    if data_dir.exists() and any(data_dir.iterdir()):
        raise UsageError(f"{data_dir}: not empty", "delete it to prepare the data again")
    data = config.data
    corpora, tokenizer = _find_text(config, tokenizer)
    sources = describe_sources(corpora.files(config.tokenizer))  # first: what changes after it has changed
    tallies = [
        Tally(corpus, is_own=corpus in corpora.own_text, weight=corpus.weight or 1.0) for corpus in corpora.train
    ]
    with durable.new_directory(data_dir) as directory:
        needs = {} if shards else {"cleaning": _CLEANING_BYTES}
        _log_disk_need({**needs, "the store": _STORE_BYTES}, corpora, directory)
        cleaned_path = directory / f"{durable.TEMPORARY_PREFIX}cleaned.arrow"
        reasons_path = directory / f"{durable.TEMPORARY_PREFIX}reasons"
        sets = list(read_sets(corpora, data))
        if shards:
            cleaned = _count_cleaned(read_shards(shards, config, corpora, tokenizer), tallies, data)
        else:
            with closing(_clean(corpora.train, data, cleaned_path)) as blocks:
                cleaned = _count_cleaned(blocks, tallies, data)
        _choose(cleaned, tallies, sets, corpora, data, reasons_path)
        _log_kept("cleaning", tallies)
        _require_directions({tally.corpus.languages for tally in tallies if tally.num_kept}, data)
        _choose_weights(tallies, data)
        weights = np.array([tally.weight if data.directions else 1.0 for tally in tallies])
        num_kept = [tally.num_kept for tally in tallies]
        shares = weights * min(1.0, MAX_TOKENIZER_PAIRS / (weights @ num_kept))
        text = ChosenText(cleaned, reasons_path, sum(num_kept), shares, config.seed)
        _find_leaks(text, sets, corpora.train, bool(data.directions))
        tokenizer = tokenizer or _learn_tokenizer(config, text, _tags_of(corpora))
        tokenizer.save(directory)
        terms = _write_terms(text, directory / TERMS, config)
        other_language = _find_other_languages(text, corpora.train)
        _encode_train(text, tokenizer, tallies, data, directory / TRAIN_STORE, shards is not None)
        _check_weights(tallies)
        if not shards:
            disk.unlink(cleaned_path)
        disk.unlink(reasons_path)
        for eval_set in sets:
            encoded = _encode_set(eval_set, tokenizer, data)
            write_store(directory / eval_set.store, tokenizer.num_ids, [1.0] * len(data.language_pairs), encoded)
        figures = _describe_text(TokenStore.load(directory / TRAIN_STORE), data.src)
        report = _report(tallies, sets, data) | figures | other_language | {"pieces": tokenizer.num_pieces} | terms
        durable.write_json(directory / SETTINGS, {"settings": fixed_settings(config), "undecided": config.undecided})
        durable.write_json(directory / REPORT, report)
    return sources


def prepare_shard(
    config: Config, directory: Path, number: int, num_shards: int, tokenizer: Tokenizer | None = None
) -> None:
    """Make a shard of the training text in a folder of them; see `shards`, and `prepare` for the tokenizer.

    Raises:
        UsageError: if no tokenizer is given.
    """
    corpora, tokenizer = _find_text(config, tokenizer)
    if not tokenizer:
        raise UsageError(
            "--shard needs a given tokenizer, the same for all shards: tokenizer.model is not set",
            "learn one on a part of the text: mtx prepare CONFIG data.train=PART run_dir=DIR; "
            "then tokenizer.model=DIR/data/tokenizer.model",
        )
    durable.make_directories(directory)
    _log_disk_need({"the text in shards": _CLEANING_BYTES + _STORE_BYTES}, corpora, directory)
    write_shard(config, corpora, tokenizer, directory, number, num_shards)


def _log_disk_need(needs: dict[str, float], corpora: Corpora, directory: Path) -> None:
    """Log how much disk large text will take, before hours of work.

    Args:
        needs: for each purpose, how many bytes it takes for each byte of text.
        directory: on the disk.
    """
    files = [path for corpus in corpora.train for path in corpus.files]  # a file again in each of its directions
    num_bytes = sum(path.stat().st_size * (_GZIP_RATIO if path.suffix == ".gz" else 1) for path in files)
    needed_bytes = num_bytes * sum(needs.values())
    if needed_bytes < _LARGE_BYTES:
        return
    sizes = ", ".join(f"{purpose} needs about {num_bytes * factor / 1e9:,.0f} GB" for purpose, factor in needs.items())
    free_bytes = disk.free_bytes(directory)
    level = logging.WARNING if needed_bytes > free_bytes else logging.INFO
    log.log(level, f"{sizes}; {free_bytes / 1e9:,.0f} GB are free")


def _find_text(config: Config, tokenizer: Tokenizer | None) -> tuple[Corpora, Tokenizer | None]:
    """The text, and the given tokenizer, if any, both checked; see `prepare`."""
    corpora = replace(find_corpora(config.data), is_adaptation=config.training.init_from is not None)
    _require_directions({corpus.languages for corpus in corpora.train}, config.data)
    tokenizer = tokenizer or given_tokenizer(config.tokenizer)
    if tokenizer:
        _check_given(tokenizer, _tags_of(corpora), config)
    return corpora, tokenizer


def _tags_of(corpora: Corpora) -> list[str]:
    return [corpus.tag for corpus in corpora.train if corpus.tag]


def _require_directions(present: set[Languages], data: DataConfig) -> None:
    """Refuse directions in which there is no training text, or in which cleaning has left none."""
    if missing := [pair for pair in data.directions if pairs_of([pair])[0] not in present]:
        hint = f"data.directions={','.join(pair for pair in data.directions if pair not in missing)}"
        raise DataError(f"data.directions: no training text is {' or '.join(missing)}", hint)


def _check_given(tokenizer: Tokenizer, tags: list[str], config: Config) -> None:
    """Refuse a tokenizer that lacks a tag, term marks or merges that the settings need."""
    log.info(f"using the tokenizer of {', '.join(config.tokenizer.model) or config.training.init_from}")
    origin = "tokenizer.model" if config.tokenizer.model else "training.init_from"
    for tag in tags:
        if tag not in tokenizer.tags:
            raise UsageError(f"data.train: the tag {tag} is not in the tokenizer of {origin}")
    for pair in pairs_of(config.data.directions):
        if tokenizer.frame(*pair) == PLAIN:
            raise UsageError(f"data.directions: the tokenizer of {origin} has no token for {pair[1]}")
    if config.data.terms is not None and not tokenizer.marks:
        raise UsageError(f"data.terms: the tokenizer of {origin} has no marks for terms", "set data.terms=null")
    if config.training.bpe_dropout and not all(tokenizer.models.merges(side)[1] for side in (False, True)):
        raise UsageError(
            f"training.bpe_dropout needs a BPE model, but {origin} has another kind", "training.bpe_dropout=0"
        )


def _clean(train: list[Corpus], data: DataConfig, path: Path) -> Generator[CleanedBlock, None, None]:
    """Write the pairs that pass every filter to `path`, a batch for each block."""
    with (
        closing(map_in_workers(partial(clean_block, data=data), read_blocks(train))) as results,
        disk.create(path) as file,
        pa.ipc.new_file(file, CLEANED) as writer,
    ):
        for number, (_, corpus, groups, batch) in enumerate(_show_progress(results, "cleaning")):
            writer.write_batch(batch)
            yield CleanedBlock(corpus, groups, batch.num_rows, path, number)


def _count_cleaned(blocks: Iterable[CleanedBlock], tallies: list[Tally], data: DataConfig) -> list[CleanedBatch]:
    """Count the pairs of the blocks; returns the batches of those that are left.

    Raises:
        DataError: if many pairs of a corpus are not UTF-8.
    """
    cleaned = list[CleanedBatch]()
    num_pairs = 0
    for block in blocks:
        tally = tallies[block.corpus]
        direction = data.language_pairs.index(tally.corpus.languages)
        rows = slice(num_pairs, num_pairs + block.num_pairs)
        cleaned.append(CleanedBatch(block.path, block.batch, block.corpus, direction, rows))
        num_pairs += block.num_pairs
        tally.num_read += block.num_pairs
        for reason, group in block.groups.items():
            tally.count(reason, group)
    for tally in tallies:
        tally.num_read += tally.dropped.total()
        if count := tally.dropped[NOT_UTF8]:
            error = tally.corpus.not_utf8(tally.examples[NOT_UTF8]["line"])
            pairs = f"{count:,} of the {tally.num_read:,} pairs"
            if count > max(_FEW_NOT_UTF8, _SHARE_NOT_UTF8 * tally.num_read):
                raise DataError(f"{error}; nor are {pairs}", error.help)
            log_once(f"{error}; dropping {pairs}", logging.WARNING)  # in each direction of the file
    if count := sum(tally.noticed[UNREAD_DATES] for tally in tallies):
        example = show_example(ChainMap(*(tally.examples for tally in tallies))[UNREAD_DATES])
        log.warning(
            f"{counted(count, 'unit')} with a date that cannot be read count as undated, such as {example}; "
            "expected dates such as 20250131T093000Z or 2025-01-31 10:30+0100"
        )
    return cleaned


def _show_progress(results: Iterator[Any], description: str) -> Iterable[Any]:
    """The results for blocks of pairs, whose progress is shown."""
    with progress(description, unit=f"blocks of at most {BLOCK_PAIRS:,} pairs") as update:
        for result in results:
            yield result
            update(1)


def _choose(
    cleaned: list[CleanedBatch],
    tallies: list[Tally],
    sets: list[EvalSet],
    corpora: Corpora,
    data: DataConfig,
    path: Path,
) -> None:
    """Write the reason why each cleaned pair is not used for training, a byte a pair, to `path`.

    Counts the pairs that are not used, and adds held-out pairs to their sets.
    """
    reasons = mark_repeated(cleaned, data.duplicates, path)
    hold_out(sets, corpora, data, cleaned, reasons)
    drop_shared_sides(sets, data, cleaned, reasons)
    for batch in cleaned:
        tallies[batch.corpus].num_held_out += int((reasons[batch.rows] == HELD_OUT).sum())
    for reason, name in REASONS.items():
        for batch in cleaned:
            tally = tallies[batch.corpus]
            has_reason = reasons[batch.rows] == reason
            if name in tally.examples:  # the text of others is not read
                tally.dropped[name] += int(has_reason.sum())
            elif has_reason.any():
                tally.count(name, PairGroup.of(batch.read(), has_reason))


def _choose_weights(tallies: list[Tally], data: DataConfig) -> None:
    """Set missing weights: for small directions above 1, for general text at most 1.

    The pairs n of a direction are drawn in proportion to n^(1 / temperature), from 1 to `_MAX_REPEATS` times each per
    epoch (Arivazhagan et al. 2019, arXiv 1907.05019, section 4.2). General text is used at most as often as own text.
    """
    own_tallies = [tally for tally in tallies if tally.is_own]
    num_own = Counter[Any]()  # of each direction
    for tally in own_tallies:
        num_own[tally.corpus.languages] += tally.num_kept
    num_largest = max(num_own.values())
    for tally in tallies:
        if tally.corpus.weight is not None:
            continue
        num_pairs = num_own[tally.corpus.languages]
        if tally.is_own:
            tally.weight = min(_MAX_REPEATS, (num_largest / max(1, num_pairs)) ** (1 - 1 / data.temperature))
            if tally.weight >= 1.01:
                direction = "-".join(tally.corpus.languages)
                log.info(
                    f"{tally.corpus.name}: its {tally.num_kept:,} pairs {direction} get the weight {tally.weight:.3g}"
                )
        else:
            num_pairs = num_pairs or num_largest
            tally.weight = min(1.0, num_pairs / max(1, tally.num_kept))
            log.info(
                f"{tally.corpus.name}: its {tally.num_kept:,} pairs get the weight {tally.weight:.3g}, so that they "
                f"are used at most as often as the {num_pairs:,} of {own_tallies[0].corpus.name}"
            )


def _check_weights(tallies: list[Tally]) -> None:
    """Refuse weights that make an epoch shorter than one sentence: a step could then span any number of epochs."""
    num_pairs = sum(tally.weight * tally.num_kept for tally in tallies)
    if num_pairs < 1:
        weights = ", ".join(f"{tally.weight:g} for the {tally.num_kept:,} of {tally.corpus.name}" for tally in tallies)
        raise UsageError(
            f"data.train: with the weights {weights} an epoch would have {num_pairs:.3g} pairs; expected at least 1"
        )


@dataclass(frozen=True)
class ChosenText:
    """The training pairs in the file of cleaned pairs. Iterating yields the sentences of a sample of them.

    Tokenizer and terms are learned from the sample: both sides of all pairs, or of some that are drawn. Every iteration
    yields the same sentences.

    Attributes:
        reasons_path: the file of `_choose`.
        shares: an array, how often the sample has a pair of each corpus, on average.
    """

    cleaned: list[CleanedBatch]
    reasons_path: Path
    num_pairs: int
    shares: Any
    seed: int

    def rows(self, numbers: Any = None) -> Iterator[tuple[CleanedBatch, Any]]:
        """The batches with training pairs, each with the rows of these.

        Args:
            numbers: only of the pairs with these numbers, from 0, of an array in ascending order.
        """
        reasons = np.memmap(self.reasons_path, mode="r")
        num_before = 0
        for batch in self.cleaned:
            rows = np.flatnonzero(reasons[batch.rows] == USED)
            num_before += rows.size
            if numbers is not None:
                of_batch = numbers - (num_before - rows.size)
                rows = rows[of_batch[(of_batch >= 0) & (of_batch < rows.size)]]
            if rows.size:
                yield batch, pa.array(rows)

    def batches(self, numbers: Any = None) -> Iterator[Batch]:
        """The training pairs, or some of them, in record batches without dates and hashes; see `rows`."""
        for batch, rows in self.rows(numbers):
            yield batch.read().take(rows)

    def sample(self) -> Iterator[tuple[list[str], list[str]]]:
        """The source and the target texts of the sample, in blocks."""
        rng = np.random.default_rng(self.seed)
        for batch in self.batches():
            counts = np.ceil(self.shares[batch["corpus"][0].as_py()] - rng.random(batch.num_rows)).astype(np.int64)
            yield texts_of(batch.take(np.repeat(range(batch.num_rows), counts)))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(chain(*self.sample()))


def _find_leaks(text: ChosenText, sets: list[EvalSet], corpora: list[Corpus], has_directions: bool) -> None:
    """Describe in each set the training pairs with a match in it."""
    leaks = [Leaks(*eval_set.texts(), has_directions) for eval_set in sets]
    indexes = [(each.ends, each.rests) for each in leaks]
    find = partial(find_matches, sides=leaks[0].sides, indexes=indexes)
    with closing(map_in_workers(find, text.batches())) as results:
        for matches in _show_progress(results, "looking for leaks"):
            for number, corpus, pair, rests in matches:
                leaks[number].count(corpora[corpus], pair, rests)
    for eval_set, each in zip(sets, leaks, strict=True):
        eval_set.leaks = each.report()


def _find_other_languages(text: ChosenText, corpora: list[Corpus]) -> durable.Json:
    """The entry of report.json about pairs with a side in another language than the direction of their corpus has.

    They are counted in pairs drawn at random: at even distances, all could be of one kind in a text with two by turns.
    """
    rng = np.random.default_rng(text.seed)
    drawn = rng.choice(text.num_pairs, min(_DETECTED_PAIRS, text.num_pairs), replace=False)
    numbers, places = np.unique(drawn, return_inverse=True)
    pairs = pa.Table.from_batches(text.batches(numbers))
    count = 0
    example = None
    for place in places.tolist():
        pair = PairGroup.of(pairs[place : place + 1], np.array([True]))
        corpus = corpora[pairs["corpus"][place].as_py()]
        sides = (strip_codes(side[:_DETECTED_CHARS]) for side in (pair.src, pair.tgt))
        other_language = next(filter(None, map(find_other_language, sides, corpus.languages)), None)
        if other_language:
            count += 1
            example = example or corpus.example(pair) | {"language": other_language}
    return {"other_language": {"share": count / len(drawn), "example": example}}


def _learn_tokenizer(config: Config, text: ChosenText, tags: list[str]) -> Tokenizer:
    """Train the tokenizer, on large text in another process: SentencePiece ignores signals and keeps all of it."""
    learn = partial(
        train_tokenizer,
        config=config.tokenizer,
        num_pairs=text.num_pairs,
        tags=tags,
        has_marks=config.data.terms is not None,
        languages=[tgt for _, tgt in pairs_of(config.data.directions)],
    )
    if text.num_pairs <= _FEW_PAIRS:
        tokenizer = learn(text)
    else:
        [tokenizer] = map_in_workers(learn, [text], num_workers=2, few_items=0)
    log.info(f"tokenizer: {tokenizer.num_pieces:,} subwords")
    return tokenizer


def _write_terms(text: ChosenText, path: Path, config: Config) -> dict[str, int]:
    """Write the terms that a model learns from; returns their number for the report, or nothing."""
    if config.data.terms is None:
        return {}
    terms = learn_lexicon(text.sample())
    if not terms.terms:
        problem = "data.terms: no word pairs in the training text are frequent enough"
        if not config.training.init_from:
            raise DataError(problem, "data.terms=null")
        log.warning(f"{problem}; skipping term training")
        return {}
    durable.write_text(path, "".join(terms.lines()))
    log.info(f"terms: {len(terms.terms):,}")
    return {"terms": len(terms.terms)}


def _encode_train(
    text: ChosenText, tokenizer: Tokenizer, tallies: list[Tally], data: DataConfig, path: Path, has_shards: bool
) -> None:
    """Write the training store without the pairs that are too long; those of shards are encoded already."""
    frames = [tally.corpus.frame(tokenizer) for tally in tallies]
    threads = -1 if text.num_pairs <= _FEW_PAIRS else 1  # workers encode large text
    encode = partial(encode_kept, max_tokens=data.max_tokens, tokenizer=tokenizer, frames=frames, num_threads=threads)

    def kept_pairs(results: Iterator[Any]) -> Iterator[Any]:
        for number, pairs, too_long in _show_progress(results, "encoding"):
            tallies[number].count(TOO_LONG, too_long)
            yield pairs

    def take_encoded() -> Generator[tuple[int, Batch, PairGroup], None, None]:
        for batch, rows in text.rows():
            encoded = read_encoded(batch).take(rows)
            is_long = find_long(encoded, data.max_tokens)
            too_long = PairGroup.of(batch.read().take(rows), is_long) if is_long.any() else PairGroup(0, 0, "", "")
            yield batch.corpus, encoded.filter(pa.array(~is_long)), too_long

    with closing(take_encoded() if has_shards else map_in_workers(encode, text.batches())) as results:
        weights = [tally.weight for tally in tallies]
        num_pairs = sum(tally.weight * tally.num_kept for tally in tallies)  # of an epoch
        window = WINDOW_PAIRS if num_pairs > WINDOW_PAIRS else None
        write_store(path, tokenizer.num_ids, weights, kept_pairs(results), window)
    _log_kept("encoding", tallies)


def _encode_set(eval_set: EvalSet, tokenizer: Tokenizer, data: DataConfig) -> Iterator[Any]:
    """Encode a validation or test set. Ids beyond the maximum are cut: only the loss uses ids; BLEU uses the text."""
    for languages, block in eval_set.blocks:
        frame = tokenizer.frame(*languages)
        src_ids = tokenizer.encode(block.src, frame)
        tgt_ids = tokenizer.encode(block.tgt, frame, target=True)
        for ids in (*src_ids, *tgt_ids):
            if len(ids) > data.max_tokens:
                ids[data.max_tokens - 1 :] = [EOS_ID]
                eval_set.num_cut += 1
        corpus = [data.language_pairs.index(languages)] * len(block.src)  # in these stores it is the direction
        yield store_batch(tokenizer.num_ids, src_ids, tgt_ids, block.lines, corpus, block.src, block.tgt)


def _describe_text(store: TokenStore, language: str) -> durable.Json:
    """The entry of report.json about the text in the training store.

    Args:
        language: the source language, or the first of several: the sentences of German are 1% more by English rules.
    """
    src_tokens, tgt_tokens = (int(side.block_tokens.sum()) for side in (store.src, store.tgt))
    interval = divide_up(store.num_pairs, _SAMPLE_LINES)
    src, tgt = store.texts(np.arange(0, store.num_pairs, interval))
    codes = Counter[str]()
    for src_text, tgt_text in zip(src, tgt, strict=True):
        codes.update({*codes_of(src_text)} & {*codes_of(tgt_text)})
    omissions = Counter(filter(None, map(omission, src, tgt)))
    return {
        "src_tokens": src_tokens,
        "tgt_tokens": tgt_tokens,
        "src_tgt_ratio": src_tokens / tgt_tokens,
        "multi_sentence_share": multi_sentence_share(src, language),
        "codes": sorted(code for code, count in codes.items() if count >= _LEARNED_CODE_PAIRS),
        "suspicious": {kind: number / len(src) for kind, number in omissions.items()},
    }


def _report(tallies: list[Tally], sets: list[EvalSet], data: DataConfig) -> durable.Json:
    """The entry of report.json about the pairs that were read."""
    sides = {pair: dict(zip(SIDES, pair, strict=True)) for pair in pairs_of(data.directions)}
    examples = ChainMap(*(tally.examples for tally in tallies))  # the first of each reason
    dropped = _count_dropped(tallies).most_common()
    return {
        "read": sum(tally.num_read for tally in tallies),
        "kept": sum(tally.num_kept for tally in tallies),
        "held_out": sum(tally.num_held_out for tally in tallies),
        "dropped": {reason: {"pairs": count, "example": examples[reason]} for reason, count in dropped},
        MISSING_VALUES: {
            "pairs": sum(tally.noticed[MISSING_VALUES] for tally in tallies),
            "example": examples.get(MISSING_VALUES),
        },
        "corpora": [tally.report() | sides.get(tally.corpus.languages, {}) for tally in tallies],
        "valid": sets[0].report(),
        "tests": {test.name: test.report() | sides.get(test.directions[0], {}) for test in sets[1:]},
        **({"directions": data.directions} if sides else {}),
    }


def _count_dropped(tallies: list[Tally]) -> Counter[str]:
    return sum((tally.dropped for tally in tallies), Counter[str]())


def _describe_counts(tallies: list[Tally]) -> str:
    """For example `29,000 read (12 duplicate, 3 empty)`."""
    counts = _count_dropped(tallies).most_common()
    counts.append(("held out", sum(tally.num_held_out for tally in tallies)))
    text = f"{sum(tally.num_read for tally in tallies):,} read"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts if count)
    return f"{text} ({reasons})" if reasons else text


def _log_kept(stage: str, tallies: list[Tally]) -> None:
    """Log how many pairs a stage has kept; raises DataError if none of the own text is left."""
    log.info(f"{stage}: {sum(tally.num_kept for tally in tallies):,} pairs kept of {_describe_counts(tallies)}")
    own_tallies = [tally for tally in tallies if tally.is_own]
    if not any(tally.num_kept for tally in own_tallies):
        raise DataError(f"{own_tallies[0].corpus.name}: no pairs left to train on: {_describe_counts(own_tallies)}")
