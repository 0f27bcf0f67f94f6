"""Warnings about the training text and the settings: what is probably wrong, in plain words, and what to do.

The limits are rules of thumb: beyond them a value is unusual, but training still works. This module only reports;
`mtx.data.cleaning` drops pairs. Flow: prepared data + configuration -> figures of the text -> `Advice`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtx.config.schema import Config
from mtx.data.language_detection import Profile
from mtx.data.languages import name_of, writes_spaces
from mtx.data.sources import find_changed_files
from mtx.data.token_store import PreparedData, Side, TokenStore
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.metrics import TOO_SHORT, too_short_for_bleu
from mtx.errors import Advice
from mtx.evaluation.test_set_scores import FORMS, SUBWORDS
from mtx.training.schedule import planned_end, steps_per_epoch

_DROPPED = 0.05  # share of the pairs that are dropped for one reason
_LEAKS = 0.01  # training pairs with a source or target of the set, for each pair of the set
_SUBWORDS = 0.01
_SUSPICIOUS = 0.02  # share of the targets: 0.1% in Multi30k, 5% in news in Yoruba, which often writes numbers as words
_UNKNOWN_WORDS = 0.02
_ENOUGH_PAIRS, _ALIKE = 500, 0.3  # pairs; correlation: 0.9 in Multi30k, about 0 if a side is shifted by a line
_FEW_SENTENCES = 200  # with fewer, two equally good models may differ by a few BLEU points
_FEW_PAIRS = 3_000
_MANY_EPOCHS, _ENOUGH_EPOCHS = 100, 40  # of a run
_GUESS_PAIRS = 2_000  # of a set, evenly spread, for language detection
_MAX_PAIRS = 20_000  # of a set, evenly spread, for checks of its words and lengths
_SPREAD = 1.0  # subwords; if the lengths of a side vary less, their correlation is not informative

# What to do about dropped pairs, by the reason from `mtx.data.cleaning`. Duplicates, older translations and held-out
# sentences need no action.
_ABOUT_DROPPED = {
    "empty": "some lines have no translation: check that line n of one side translates line n of the other",
    "too long": "increase data.max_tokens to keep them; one sentence per line trains better",
    "length ratio": "check that line n of one side translates line n of the other; increase data.max_length_ratio to "
    "keep them",
    "identical": "check that the target column or file is the translation",
    "control characters": "the text is damaged: it has control characters, or U+FFFD in place of unreadable bytes",
    "not UTF-8": "convert the text, for example with iconv",
}


def changed_text(record: Path, config: Config) -> list[Advice]:
    """A warning if a text file or a model of `tokenizer.model` has changed since the data was prepared."""
    if not (paths := find_changed_files(record)):
        return []
    text = f"{paths[0]} has changed since this run prepared its data; the run keeps its prepared text"
    return [Advice(text, "use a new run_dir=DIR to train on the new text")]


def warnings(data: PreparedData, config: Config, last_step: int | None = None) -> list[Advice]:
    """All warnings about prepared data and the settings, those about the text first.

    Args:
        last_step: the forecast of the last step; None: from max_steps or max_epochs.
    """
    text = (*_dropped(data), *_sets(data), *_short_references(data, config), *_sides(data, config))
    return [*text, *_form(data), *_unknown_words(data, config), *_plan(data, config, last_step)]


def _dropped(data: PreparedData) -> Iterator[Advice]:
    for reason, dropped in data.report["dropped"].items():
        share = dropped["pairs"] / data.report["read"]
        if share >= _DROPPED and reason in _ABOUT_DROPPED:
            what = "are the source copied as the target" if reason == "identical" else f"are dropped: {reason}"
            text = f"{share:.0%} of the pairs {what}, such as {example(dropped['example'])}"
            yield Advice(text, _ABOUT_DROPPED[reason])


def _sets(data: PreparedData) -> Iterator[Advice]:
    for name, held in sets_of(data.report).items():
        if held["leaks"]["train_pairs"] >= max(1, _LEAKS * held["pairs"]):
            help = "remove them from the training text: scores on sentences seen in training are too high"
            yield Advice(f"{name}: {leaks(held)}", help)
        if held["pairs"] < _FEW_SENTENCES:
            key = "data.valid=FILE" if name == "validation set" else "data.test=FILE"
            help = f"set {key} to at least a few hundred sentences that are not in the training text"
            yield Advice(f"{name}: only {held['pairs']:,} sentences; its BLEU will fluctuate", help)
        if (damaged := sum(held["would_drop"].values())) >= max(1, _DROPPED * held["pairs"]):
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in held["would_drop"].items())
            help = "it is used unchanged; check that line n of one side translates line n of the other"
            yield Advice(f"{name}: {damaged:,} of {held['pairs']:,} pairs look damaged ({reasons})", help)


def _short_references(data: PreparedData, config: Config) -> Iterator[Advice]:
    if config.training.best_metric == "auto" and too_short_for_bleu(data.valid.tgt_texts(), config.data.tgt):
        help = "no action needed: chrF2 selects the best checkpoint and controls early stopping"
        yield Advice(f"validation set: {TOO_SHORT}", help)


def _sides(data: PreparedData, config: Config) -> Iterator[Advice]:
    """Warnings about sides that are in another language, or not parallel; language detection comes first."""
    for name, sides in _profiles(data).items():
        for key, language, side in zip(("src", "tgt"), config.data.languages, sides, strict=True):
            if other := side.other_language(language):
                help = f"set data.{key}={other} if it is; otherwise check that the right file or column is read"
                yield Advice(f"{name}: the {language} side looks like {name_of(other)}", help)
    for name, store in _stores(data).items():
        if store.num_pairs >= _ENOUGH_PAIRS and (alike := length_correlation(store)) < _ALIKE:
            text = f"{name}: long sentences do not have long translations (correlation of lengths {alike:.2f})"
            yield Advice(text, "check that line n of one side translates line n of the other")


def _stores(data: PreparedData) -> dict[str, TokenStore]:
    """The store of each set, by the name that warnings use: train, valid, test.NAME."""
    return {"train": data.train, "valid": data.valid, **{f"test.{name}": store for name, store in data.tests.items()}}


def length_correlation(store: TokenStore) -> float:
    """The correlation of the lengths of both sides in subwords; 1 if the lengths of a side hardly vary."""
    rows = spread(store.num_pairs, _MAX_PAIRS)
    src, tgt = store.src.lengths[rows], store.tgt.lengths[rows]
    return 1.0 if min(src.std(), tgt.std()) < _SPREAD else float(np.corrcoef(src, tgt)[0, 1])


def spread(number: int, most: int) -> NDArray[np.int64]:
    """At most `most` of the numbers 0 to `number` - 1, evenly spread."""
    size = min(number, most)
    return np.arange(size) * number // max(size, 1)


def _profiles(data: PreparedData) -> dict[str, tuple[Profile, Profile]]:
    """The profiles of both sides of the training text, and of each set that was not held out of it."""
    held_out = {"valid"} if data.report["valid"]["held_out"] else set()
    held_out |= {f"test.{name}" for name in data.tests if data.report["tests"][name]["held_out"]}
    profiles = {}
    for name, store in _stores(data).items():
        if name not in held_out:
            src, tgt = store.texts(spread(store.num_pairs, _GUESS_PAIRS))
            profiles[name] = Profile.of(src), Profile.of(tgt)
    return profiles


def _unknown_words(data: PreparedData, config: Config) -> Iterator[Advice]:
    help = "check the language of the text, and that training.init_from or tokenizer.model supports it"
    texts = data.valid.src_texts(), data.valid.tgt_texts()
    has_words = [*map(writes_spaces, config.data.languages, texts)]
    for name, store in _stores(data).items():
        for language, side, is_counted in zip(config.data.languages, (store.src, store.tgt), has_words, strict=True):
            if is_counted and (share := unknown_share(side, data.tokenizer)) >= _UNKNOWN_WORDS:
                yield Advice(f"{name}: {share:.0%} of the {language} words have unknown characters", help)


def unknown_share(side: Side, tokenizer: Tokenizer) -> float:
    """The share of the words of a side with `<unk>` or a byte-fallback piece; spaces separate words."""
    pieces = tokenizer.vocabulary()[: tokenizer.num_pieces]  # without tags
    sentences = side.sentences(spread(len(side.lengths), _MAX_PAIRS))
    texts = ("".join(pieces[id] for id in ids[:-1] if id < len(pieces)) for ids in sentences)
    words = [word for text in texts for word in text.split("▁") if word]
    return sum("<0x" in word or "<unk>" in word for word in words) / max(1, len(words))


def _form(data: PreparedData) -> Iterator[Advice]:
    pairs = list(zip(*data.train.texts(spread(data.train.num_pairs, _MAX_PAIRS)), strict=True))
    share = sum(any(map(FORMS[SUBWORDS], pair)) for pair in pairs) / max(1, len(pairs))
    if share >= _SUBWORDS:
        help = "train on the text as people write it: mtx splits it into subwords itself"
        yield Advice(f"{share:.0%} of the training pairs are {SUBWORDS}", help)
    if sum(data.report.get("suspicious", {}).values()) >= _SUSPICIOUS:
        help = "check that line n of one side translates all of line n of the other, with its numbers"
        yield Advice(_suspicious(data.report), help)


def _suspicious(report: dict[str, Any]) -> str:
    """The shares of training targets that omit something, by `mtx.data.cleaning.omission`."""
    shares = [f"{share:.2%} {kind}" for kind, share in report["suspicious"].items()]
    return f"suspicious training targets: {', '.join(shares) or 'none'}"


def _plan(data: PreparedData, config: Config, last_step: int | None) -> Iterator[Advice]:
    training, num_pairs = config.training, data.report["kept"]
    if num_pairs < _FEW_PAIRS and not training.init_from:
        help = "add text, or use training.init_from=MODEL with a model of these languages (mtx import)"
        yield Advice(f"only {num_pairs:,} pairs: training from scratch needs a few thousand", help)
    epoch = steps_per_epoch(data.train, training)
    planned, ends_by = planned_end(training, epoch)
    last = planned if last_step is None else last_step
    ends_sooner = training.patience is not None or (last_step is None and training.time_limit is not None)
    if last > _MANY_EPOCHS * epoch and ends_by == "max_steps" and not ends_sooner:
        text = f"{last:,} steps are {last / epoch:,.0f} epochs of your {num_pairs:,} pairs; the last ones rarely help"
        help = f"set training.max_epochs={_ENOUGH_EPOCHS}, or training.patience=6 for early stopping"
        yield Advice(text, help)
    if last <= training.warmup_steps:
        help = "train longer, or use fewer training.batch_tokens; a shorter warmup at the same peak ruins a model"
        text = f"training ends at step {last:,}, but the warmup lasts until step {training.warmup_steps:,}"
        yield Advice(text, help)


def example(value: dict[str, Any]) -> str:
    """An example pair of report.json as text: corpus, line, source and target."""
    return f"{value['corpus']}:{value['line']}: {value['src']} -> {value['tgt']}"


def sets_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of report.json for the validation and test sets, by the names that messages use."""
    return {"validation set": report["valid"], **{f"test set {name}": held for name, held in report["tests"].items()}}


def set_lines(report: dict[str, Any]) -> Iterator[str]:
    """Lines about the training text, and about each set: its size, and whether training text contains its sentences."""
    if "suspicious" in report:  # earlier versions did not count them
        yield _suspicious(report)
    for name, held in sets_of(report).items():
        yield f"{name}: {held['pairs']:,} pairs{', held out' * held['held_out']}; {leaks(held)}"


def leaks(held: dict[str, Any]) -> str:
    """In words: how many training pairs have a source or a target of a validation or test set, with one of them.

    Args:
        held: the part of report.json about the set.
    """
    number = held["leaks"]["train_pairs"]
    if not number:
        return "none of its sentences is in the training text"
    which = "1 training pair has" if number == 1 else f"{number:,} training pairs have"
    return f"{which} a source or target of it, such as {example(held['leaks']['example'])}"
