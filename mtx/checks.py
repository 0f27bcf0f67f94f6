"""Warnings about a text and the plan to train on it: what is probably wrong, in plain words, and what to do.

The limits are rules of thumb: beyond them a value is unusual, but training still works. This module only reports;
`mtx.data.cleaning` is what drops pairs. Flow: prepared data + configuration -> figures of the text -> `Advice`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtx.config.schema import Config
from mtx.data.languages import writes_spaces
from mtx.data.preprocess import PreparedData
from mtx.data.source_record import changed_files
from mtx.data.token_store import Side, TokenStore
from mtx.data.tokenizer import UNK_ID, Tokenizer
from mtx.evaluation.metrics import TOO_SHORT, too_short_for_bleu

_MAX_PAIRS = 20_000  # a larger set is judged by this number of its pairs, evenly spread
_DROPPED = 0.05  # share of the pairs that are dropped for one reason
_LEAKS = 0.01  # training pairs with a source of the set, for each pair of the set
_UNKNOWN_WORDS = 0.02
_SWAPPED, _MARGIN = 0.02, 5.0  # share of the pairs; nats by which each side looks more like the other language
_ENOUGH_PAIRS, _ALIKE = 500, 0.3  # pairs; correlation: 0.9 in Multi30k, about 0 if a side is shifted by a line
_SPREAD = 1.0  # pieces; if the lengths of a side vary less, their correlation tells nothing
_FEW_SENTENCES = 200  # with fewer, the BLEU of two equally good models may differ by a few points
_FEW_PAIRS = 3_000
_FEW_STEPS, _MANY_EPOCHS = 10, 200  # steps of an epoch, epochs of a run
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")

# what to do about dropped pairs, by the reason that `mtx.data.cleaning` gives
_ABOUT_DROPPED = {
    "empty": "a line without its translation: see that both sides have the same lines",
    "too long": "a larger data.max_tokens keeps them; one sentence per line trains better",
    "length ratio": "see that both sides have the same lines; a larger data.max_length_ratio keeps them",
    "identical": "see that the target column or file is the translation",
    "control characters": "the text is damaged: it has control characters, or U+FFFD where bytes could not be read",
    "not UTF-8": "convert the text, for instance with iconv",
    "duplicate": "nothing, if the text repeats itself; one copy of each pair is kept",
}


@dataclass(frozen=True)
class Advice:
    """A probable mistake in the text or the plan, and what to do about it."""

    text: str
    help: str


def changed_text(record: Path, config: Config, is_finished: bool) -> list[Advice]:
    """A warning if a file of text or a model of `tokenizer.model` is not the one that the run was prepared from."""
    if not (paths := changed_files(record, config.data, config.tokenizer)):
        return []
    others = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    state = "is finished" if is_finished else "goes on"
    text = f"{paths[0]}{others} has changed since this run prepared its data; it {state} with the text that it prepared"
    return [Advice(text, "another run_dir=DIR trains on the new text")]


def warnings(data: PreparedData, config: Config, last_step: int | None = None) -> list[Advice]:
    """All warnings about prepared data and the plan to train on it; those about the text come first.

    Args:
        last_step: the step at which training will end, if a forecast exists; None means `training.max_steps`.
    """
    figures = text_figures(data)
    text = (*_dropped(data), *_sets(data), *_short_references(data, config), *_sides(figures, config))
    return [*text, *_unknown_words(figures, data, config), *_plan(data, config, last_step)]


def _dropped(data: PreparedData) -> Iterator[Advice]:
    for reason, dropped in data.report["dropped"].items():
        share = dropped["pairs"] / data.report["read"]
        if share >= _DROPPED:
            what = "are the source copied as the target" if reason == "identical" else f"are dropped: {reason}"
            help = _ABOUT_DROPPED.get(reason, "see data/report.json of the run")
            yield Advice(f"{share:.0%} of the pairs {what}, such as {example(dropped['example'])}", help)


def _sets(data: PreparedData) -> Iterator[Advice]:
    for name, held in sets_of(data.report).items():
        if held["leaks"]["train_pairs"] >= max(1, _LEAKS * held["pairs"]):
            help = "take them out of the training text: scores on sentences that were learned by heart are too good"
            yield Advice(f"{name}: {leaks(held)}", help)
        if held["pairs"] < _FEW_SENTENCES:
            key = "data.valid=FILE" if name == "validation set" else "data.test=FILE"
            help = f"{key} with a few hundred sentences or more, which are not in the training text"
            yield Advice(f"{name}: {held['pairs']:,} sentences are few; its BLEU will jump", help)
        if (damaged := sum(held["would_drop"].values())) >= max(1, _DROPPED * held["pairs"]):
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in held["would_drop"].items())
            help = "it is used as it is; see that both sides have the same lines"
            yield Advice(f"{name}: {damaged:,} of {held['pairs']:,} pairs look damaged ({reasons})", help)


def _short_references(data: PreparedData, config: Config) -> Iterator[Advice]:
    if too_short_for_bleu(data.valid.tgt_texts(), config.data.tgt):
        help = "nothing: chrF2 decides which validation is the best and when training.patience ends training"
        yield Advice(f"validation set: {TOO_SHORT}", help)


def _sides(figures: "dict[str, TextFigures]", config: Config) -> Iterator[Advice]:
    for name, text in figures.items():
        if text.swapped >= _SWAPPED:
            order = f"the first must be {config.data.src}, the second {config.data.tgt}"
            help = f"{order}: see that the columns or files are in order"
            yield Advice(f"{name}: in {text.swapped:.0%} of the pairs the sides look exchanged", help)
        if text.pairs >= _ENOUGH_PAIRS and text.alike < _ALIKE:
            correlation = f"correlation of lengths {text.alike:.2f}"
            help = "see that line n of one side is the translation of line n of the other"
            yield Advice(f"{name}: long sentences do not have long translations ({correlation})", help)


def _unknown_words(figures: "dict[str, TextFigures]", data: PreparedData, config: Config) -> Iterator[Advice]:
    languages = (config.data.src, data.valid.src_texts()), (config.data.tgt, data.valid.tgt_texts())
    src_has_words, tgt_has_words = (writes_spaces(*language) for language in languages)
    if config.training.init_from:
        help = "the tokenizer of training.init_from does not know this text; start from a model of these languages"
    elif config.tokenizer.model:
        help = "tokenizer.model does not know this text; name models of these languages, or none"
    else:
        help = "see that the text is in the right language; a larger tokenizer.vocab_size may help"
    for name, text in figures.items():
        sides = (config.data.src, text.src, src_has_words), (config.data.tgt, text.tgt, tgt_has_words)
        for language, side, has_words in sides:
            if side.unknown_words >= _UNKNOWN_WORDS and has_words:
                share = f"{side.unknown_words:.0%} of the {language} words"
                yield Advice(f"{name}: {share} are spelled in bytes or unknown", help)


def _plan(data: PreparedData, config: Config, last_step: int | None) -> Iterator[Advice]:
    training, num_pairs = config.training, data.report["kept"]
    if num_pairs < _FEW_PAIRS and not training.init_from:
        help = "more text, or training.init_from=MODEL with a model of these languages (mtx import)"
        yield Advice(f"{num_pairs:,} pairs are few: a translator that starts from nothing needs some thousand", help)
    epoch = steps_per_epoch(data.train, training.batch_tokens)
    if epoch < _FEW_STEPS:
        help = "a smaller training.batch_tokens makes more steps of the same text"
        yield Advice(f"an epoch has only {epoch:.1f} steps", help)
    last = training.max_steps if last_step is None else last_step
    ends_sooner = training.patience is not None or (last_step is None and training.time_limit is not None)
    if last > _MANY_EPOCHS * epoch and not ends_sooner:
        help = "a smaller training.max_steps, or training.patience=6, which ends training when BLEU no longer rises"
        yield Advice(f"{last:,} steps are {last / epoch:,.0f} epochs of your {num_pairs:,} pairs", help)
    if last <= training.warmup_steps:
        help = f"a smaller training.warmup_steps, for instance {max(1, last // 10)}"
        text = f"training ends at step {last:,}, and its learning rate rises until step {training.warmup_steps:,}"
        yield Advice(text, help)


def steps_per_epoch(train: TokenStore, batch_tokens: int) -> float:
    """The number of steps in an epoch, which has each pair as often as its corpus's weight says."""
    if (train.weights == 1).all():  # a large corpus then needs no arrays of weights
        return int(train.tgt.lengths.sum()) / batch_tokens
    return float((train.weights[train.corpus] * train.tgt.lengths).sum()) / batch_tokens


def example(value: dict[str, Any]) -> str:
    """An example pair of report.json as text: corpus, line, source and target."""
    return f"{value['corpus']}:{value['line']}: {value['src']} -> {value['tgt']}"


def sets_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of report.json for the validation and test sets, by the names that messages use."""
    return {"validation set": report["valid"], **{f"test set {name}": held for name, held in report["tests"].items()}}


def leaks(held: dict[str, Any]) -> str:
    """In words: how many training pairs have the source of a pair in a validation or test set, and an example.

    Args:
        held: the part of report.json about the set.
    """
    number = held["leaks"]["train_pairs"]
    if not number:
        return "none of its sources is in the training text"
    which = "1 training pair has" if number == 1 else f"{number:,} training pairs have"
    return f"{which} a source of it, such as {example(held['leaks']['example'])}"


@dataclass(frozen=True)
class SideFigures:
    """One language of a set.

    Attributes:
        pieces_per_word: without `</s>`; words are separated by spaces.
        unknown_words: share of the words with a piece that is `<unk>` or a single byte.
        mean_length, max_length: pieces of a sentence, `</s>` included.
    """

    pieces_per_word: float
    unknown_words: float
    mean_length: float
    max_length: int


@dataclass(frozen=True)
class TextFigures:
    """Both languages of a set.

    Attributes:
        swapped: share of the pairs whose sides look exchanged, by the pieces of the training text's sides.
        alike: correlation of the two sides' lengths in pieces; 1 if the lengths of a side hardly vary.
    """

    pairs: int
    src: SideFigures
    tgt: SideFigures
    swapped: float
    alike: float


def text_figures(data: PreparedData) -> dict[str, TextFigures]:
    """The figures of each set, by the name of its store: train, valid, test.NAME."""
    stores = {"train": data.train, "valid": data.valid}
    stores |= {f"test.{name}": store for name, store in data.tests.items()}
    src_log, tgt_log = (_log_frequencies(side, data.train) for side in (data.train.src, data.train.tgt))
    return {name: _figures(store, data.tokenizer, tgt_log - src_log) for name, store in stores.items()}


def _figures(store: TokenStore, tokenizer: Tokenizer, log_odds: NDArray[np.float64]) -> TextFigures:
    """The figures of a set.

    Args:
        log_odds: for each id, the log of how much likelier it is in the target than in the source of the training text.
    """
    rows = spread(store.num_pairs, _MAX_PAIRS)
    src, tgt = (_side_figures(side, rows, tokenizer) for side in (store.src, store.tgt))
    src_odds, tgt_odds = (_sums(side, rows, log_odds) for side in (store.src, store.tgt))
    swapped = float(((src_odds > _MARGIN) & (tgt_odds < -_MARGIN)).mean())
    src_lengths, tgt_lengths = (side.lengths[rows].astype(np.float64) for side in (store.src, store.tgt))
    is_even = min(src_lengths.std(), tgt_lengths.std()) < _SPREAD
    alike = 1.0 if is_even else float(np.corrcoef(src_lengths, tgt_lengths)[0, 1])
    return TextFigures(store.num_pairs, src, tgt, swapped, alike)


def spread(number: int, most: int) -> NDArray[np.int64]:
    """At most `most` of the numbers 0 to `number` - 1, evenly spread."""
    size = min(number, most)
    return np.arange(size) * number // max(size, 1)


def _side_figures(side: Side, rows: NDArray[np.int64], tokenizer: Tokenizer) -> SideFigures:
    """The figures of one side; those about words are estimated from the sentences `rows` alone."""
    pieces = tokenizer.vocabulary()
    begins_word = np.array([piece.startswith("▁") for piece in pieces])
    is_unknown = np.array([bool(_BYTE_PIECE.fullmatch(piece)) for piece in pieces])
    is_unknown[UNK_ID] = True
    ids, first = _ids(side, rows)
    is_text = ids < tokenizer.num_pieces  # without tags
    ids, first = ids[is_text], first[is_text]
    word = (begins_word[ids] | first).cumsum()
    num_words = max(1, int(word[-1]) if len(word) else 0)
    share = len(np.unique(word[is_unknown[ids]])) / num_words
    return SideFigures(len(ids) / num_words, share, float(side.lengths.mean()), int(side.lengths.max()))


def _ids(side: Side, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The ids of these sentences end to end, without `</s>`, and for each id whether a sentence begins with it."""
    lengths = side.lengths[rows].astype(np.int64) - 1
    starts = lengths.cumsum() - lengths
    index = (side.starts[rows] - starts).repeat(lengths) + np.arange(lengths.sum())
    first = np.zeros(len(index), np.bool_)
    first[starts[lengths > 0]] = True
    return side.tokens[index].astype(np.int64), first


def _log_frequencies(side: Side, train: TokenStore) -> NDArray[np.float64]:
    """The log of each id's share of a side of the training text; each id counts once more, so that no share is zero."""
    counts = np.bincount(_ids(side, spread(train.num_pairs, _MAX_PAIRS))[0], minlength=train.num_ids) + 1
    shares: NDArray[np.float64] = np.log(counts / counts.sum())
    return shares


def _sums(side: Side, rows: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each sentence, the sum of the values of its ids."""
    ids, _ = _ids(side, rows)
    sentence = np.arange(len(rows)).repeat(side.lengths[rows] - 1)
    return np.bincount(sentence, values[ids], minlength=len(rows)).astype(np.float64)
