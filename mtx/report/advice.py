"""Everything that mtx advises: about a text and a plan, during training, about adaptation, and about the model.

Flow: prepared data and settings -> `warnings`; steps and validations -> `Hints`; a scored run -> `usability`.
The limits are rules of thumb: beyond them a figure is unusual, but training works. Nothing is dropped or changed here.
"""

import logging
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtx.config.schema import TEACHER_TEST, Config, DataConfig, TrainingConfig
from mtx.data.language_detection import Profile
from mtx.data.languages import name_of, writes_spaces
from mtx.data.sources import show_example
from mtx.data.tables import join_names
from mtx.data.token_store import PreparedData, Side, TokenStore
from mtx.data.tokenizer import Tokenizer
from mtx.evaluation.significance import SIGNIFICANCE_LEVEL
from mtx.evaluation.test_set_scores import FORMS, SUBWORDS, Gain
from mtx.formatting import counted, format_duration
from mtx.model.translation_model import TranslationModel
from mtx.report.run_history import RunSummary, improvement
from mtx.scoring.metrics import METRICS, Band, Scores, find_band, normalize_lines, parts_of
from mtx.scoring.suspicion import suspicion
from mtx.storage import text_files
from mtx.storage.run_files import (
    HYPOTHESIS_TEXT,
    REFERENCE_TEXT,
    SOURCE_TEXT,
    RunLayout,
    find_changed_files,
    stored_scores,
)
from mtx.training.events import Run, Validation
from mtx.training.hooks import Hook
from mtx.training.schedule import highest_rate, planned_end, steps_per_epoch

logger = logging.getLogger(__name__)


class Advice(NamedTuple):
    """A probable mistake, or a result that could be better, and what to do about it; it is not an error."""

    text: str
    hint: str

    def __str__(self) -> str:
        return f"{self.text}: {self.hint}"


_LARGE = 20_000  # sentences of a set whose words and lengths are inspected, evenly spread
_DOUBTFUL_SHARE = 0.02  # of training pairs, for a warning
_CHECK_LINES = "check that line n of one side translates line n of the other"

# What to do about dropped pairs, by the reason from `mtx.data.cleaning`. Duplicates, older translations and held-out
# sentences need no action.
_ABOUT_DROPPED = {
    "empty": f"some lines have no translation: {_CHECK_LINES}",
    "too long": "increase data.max_tokens to keep them; one sentence per line trains better",
    "length ratio": f"{_CHECK_LINES}; increase data.max_length_ratio to keep them",
    "identical": "check that the target column or file is the translation",
    "control characters": "the text is damaged: it has control characters, or U+FFFD in place of unreadable bytes",
    "not UTF-8": "convert the text, for example with iconv",
}


def changed_text(record: Path) -> list[Advice]:
    """A warning if a text file or a model of `tokenizer.model` has changed since the data was prepared."""
    return [
        Advice(
            f"{path} has changed since this run prepared its data; the run keeps its prepared text",
            "use a new run_dir=DIR to train on the new text",
        )
        for path in find_changed_files(record)[:1]
    ]


def warnings(data: PreparedData, config: Config, last_step: int | None = None) -> Iterator[Advice]:
    """All warnings about prepared data and the settings, those about the text first.

    Args:
        last_step: the forecast of the last step; None: from max_steps or max_epochs.
    """
    for reason, dropped in data.report["dropped"].items():
        share = dropped["pairs"] / data.report["read"]
        if share >= 0.05 and reason in _ABOUT_DROPPED:
            problem = "are the source copied as the target" if reason == "identical" else f"are dropped: {reason}"
            yield Advice(
                f"{share:.0%} of the pairs {problem}, such as {show_example(dropped['example'])}",
                _ABOUT_DROPPED[reason],
            )
    cells = data.report.get("missing_values", {"pairs": 0})  # earlier versions did not count them
    if (share := cells["pairs"] / data.report["read"]) >= 0.005:
        yield Advice(
            f"{share:.1%} of the pairs have a missing value, such as {show_example(cells['example'])}",
            "export such cells as empty; mtx then drops their pairs",
        )
    has_subwords = FORMS[SUBWORDS]
    sources, targets = data.train.texts(spread(data.train.num_pairs))
    num_with_subwords = sum(
        1 for src, tgt in zip(sources, targets, strict=True) if has_subwords(src) or has_subwords(tgt)
    )
    share = num_with_subwords / len(sources)
    if share >= 0.01:
        yield Advice(
            f"{share:.0%} of the training pairs are {SUBWORDS}",
            "train on the text as people write it: mtx splits it into subwords itself",
        )
    # 0.1% of the targets in Multi30k, 5% in news in Yoruba, which often writes numbers as words
    if sum(data.report.get("suspicious", {}).values()) >= _DOUBTFUL_SHARE:
        yield Advice(
            next(set_lines(data.report)),
            "check that line n of one side translates all of line n of the other, with its numbers",
        )
    for text in _about_other_language(data.report, _DOUBTFUL_SHARE):
        yield Advice(text, "remove them, or set the right languages if the text has others: a model learns them too")
    problems_by_hint = defaultdict[str, dict[str, str]](dict)  # problems of the same kind, by the names of their sets
    for name, problem, hint in _find_set_problems(data, config.data):
        problems_by_hint[hint].setdefault(name, problem)
    for hint, problems in problems_by_hint.items():
        (name, problem), *other_sets = problems.items()
        likewise = f"; likewise {join_names(other_name for other_name, _ in other_sets)}" if other_sets else ""
        yield Advice(f"{name}: {problem}{likewise}", hint)
    training = config.training
    yield from _few_pairs_warning(data.report["kept"], training)
    end_step = last_step or planned_end(training, steps_per_epoch(data.train, training))[0]
    if end_step <= training.warmup_steps:
        yield Advice(
            f"training ends at step {end_step:,}, but the warmup lasts until step {training.warmup_steps:,}",
            "train longer; fewer training.batch_tokens make more steps of an epoch; a shorter warmup ruins a model",
        )


def _few_pairs_warning(num_pairs: int, training: TrainingConfig) -> Iterator[Advice]:
    if num_pairs < 3_000 and not training.init_from:
        yield Advice(
            f"only {num_pairs:,} pairs: training from scratch needs a few thousand",
            "add text, or use training.init_from=MODEL with a model of these languages (mtx import)",
        )


def _find_set_problems(data: PreparedData, config: DataConfig) -> Iterator[tuple[str, str, str]]:
    """Problems of the training text and each set, in its sides, or in how far its scores can be trusted.

    Yields:
        The name of the set, the problem, and the hint; sets with the same problem, such as those of several directions,
        have the same hint.
    """
    entries: list[tuple[str, dict[str, Any] | None]] = [("training text", None), *sets_of(data.report).items()]
    stores = (data.train, data.valid, *data.tests.values())
    for (name, entry), store in zip(entries, stores, strict=True):
        is_held_out = False
        if entry is None:  # the training text, whose rows have the numbers of corpora
            corpora = data.report["corpora"]
            directions = [(corpus.get("src", config.src), corpus.get("tgt", config.tgt)) for corpus in corpora]
        else:  # a set, whose rows have the numbers of directions
            yield from _find_doubts(name, entry)
            is_held_out = entry["held_out"]
            directions = config.language_pairs
        for languages in dict.fromkeys(directions):
            part = store.take_corpora([number for number, pair in enumerate(directions) if pair == languages])
            texts = part.texts(spread(part.num_pairs, 2_000))
            for key, language, lines in zip(("src", "tgt"), languages, texts, strict=True):
                if not is_held_out and (actual_language := Profile.of(lines).other_language(language)):
                    setting = f"data.{key}={actual_language}"
                    if config.directions:
                        setting = f"{actual_language} for {language} in data.directions"
                    yield (
                        name,
                        f"the {language} side looks like {name_of(actual_language)}",
                        f"set {setting} if it is; otherwise check that the right file or column is read",
                    )
                share = unknown_share(getattr(part, key), data.tokenizer)
                if share >= 0.02 and writes_spaces(language, lines):
                    yield (
                        name,
                        f"{share:.0%} of the {language} words have unknown characters",
                        f"check that the text is {language}, and that training.init_from or tokenizer.model has it",
                    )
        # 0.9 in Multi30k, about 0 if a side is shifted by a line; a few pairs show nothing
        if store.num_pairs >= 500 and (correlation := length_correlation(store)) < 0.3:
            yield (
                name,
                f"long sentences do not have long translations (correlation of lengths {correlation:.2f})",
                _CHECK_LINES,
            )


def _find_doubts(name: str, entry: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What makes the scores on a set doubtful, by its entry in report.json; see `_find_set_problems`."""
    num_pairs = entry["pairs"]
    num_damaged = sum(entry["would_drop"].values())
    hint = ""
    if entry["leaks"]["train_pairs"] >= max(1, 0.01 * num_pairs):
        hint = "remove them from the training text: scores on sentences seen in training are too high"
    elif len(entry["leaks"].get("lines", [])) >= max(1, 0.2 * num_pairs):
        hint = "scores on other text may be lower; mtx evaluate RUN --without-leaks scores the other lines of test sets"
    if hint and not entry["held_out"]:
        yield name, leaks(entry), hint
    if num_pairs < 200:  # two equally good models may then differ by a few BLEU points
        key = "data.valid=FILE" if name == "validation set" else "data.test=FILE"
        yield (
            name,
            f"only {num_pairs:,} sentences; its BLEU will fluctuate",
            f"set {key} to at least a few hundred sentences that are not in the training text",
        )
    if num_damaged >= max(1, 0.05 * num_pairs):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in entry["would_drop"].items())
        yield (
            name,
            f"{num_damaged:,} of {num_pairs:,} pairs look damaged ({reasons})",
            f"it is used unchanged; {_CHECK_LINES}",
        )


def length_correlation(store: TokenStore) -> float:
    """The correlation of the lengths of both sides in subwords; 1 if the lengths of a side hardly vary."""
    rows = spread(store.num_pairs)
    lengths = store.src.locate(rows)[1], store.tgt.locate(rows)[1]
    return 1.0 if min(map(np.std, lengths)) < 1 else float(np.corrcoef(*lengths)[0, 1])


def spread(number: int, max_rows: int = _LARGE) -> NDArray[np.int64]:
    """At most `max_rows` of the numbers 0 to `number` - 1, evenly spread."""
    size = min(number, max_rows)
    return np.arange(size) * number // max(size, 1)


def unknown_share(side: Side, tokenizer: Tokenizer) -> float:
    """The share of the words of a side with `<unk>` or a byte-fallback piece; spaces separate words."""
    pieces = tokenizer.vocabulary()[: tokenizer.num_pieces]  # without tags
    sentences = side.sentences(spread(side.num_sentences))
    texts = list[str]()
    for ids in sentences:
        texts.append("".join(pieces[piece_id] for piece_id in ids[:-1] if piece_id < len(pieces)))
    words = [word for word in "▁".join(texts).split("▁") if word]
    num_unknown = sum(1 for word in words if "<0x" in word or "<unk>" in word)
    return num_unknown / max(1, len(words))


def sets_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of report.json for the validation and test sets, by the names that messages use."""
    return {"validation set": report["valid"], **{f"test set {name}": entry for name, entry in report["tests"].items()}}


def set_lines(report: dict[str, Any]) -> Iterator[str]:
    """Lines about the training text, and about each set: its size, and whether training text contains its sentences."""
    if "suspicious" in report:  # earlier versions did not count them
        shares = [f"{share:.2%} {kind}" for kind, share in report["suspicious"].items()]
        yield f"suspicious training targets: {', '.join(shares) or 'none'}"
    yield from _about_other_language(report, 0.0)
    for name, entry in sets_of(report).items():
        held_out = ", held out" if entry["held_out"] else ""
        yield f"{name}: {entry['pairs']:,} pairs{held_out}; {leaks(entry)}"
        for example in entry["leaks"].get("near_examples", []):
            yield f"  near match: {show_example(example)}, like: {example['like']}"


def _about_other_language(report: dict[str, Any], limit: float) -> Iterator[str]:
    """A line about the pairs with a side in another language, if their share is above a limit."""
    entry = report.get("other_language")  # earlier versions did not count them
    if entry and entry["share"] > limit:
        example = f"{name_of(entry['example']['language'])} in {show_example(entry['example'])}"
        yield f"{entry['share']:.2%} of the training pairs have a side in another language, such as {example}"


def leaks(entry: dict[str, Any]) -> str:
    """In words: how many training pairs have, or nearly have, a source or a target of a validation or test set.

    Args:
        entry: the part of report.json about the set.
    """
    number = entry["leaks"]["train_pairs"]
    text = "none of its sentences is in the training text"
    if number:
        subject = "1 training pair has" if number == 1 else f"{number:,} training pairs have"
        text = f"{subject} a source or target of it, such as {show_example(entry['leaks']['example'])}"
    if num_near := entry["leaks"].get("near_pairs"):  # earlier versions did not count them
        num_free = entry["pairs"] - len(entry["leaks"]["lines"])
        verb = "has" if num_near == 1 else "have"
        text += f"; {counted(num_near, 'training pair')} {verb} a near match; {num_free:,} of its lines have neither"
    return text


def are_alike(hypotheses: list[str], references: list[str]) -> bool:
    """Whether translations are nearly all the same, although their references are not: the model ignores its source."""
    return len({*hypotheses}) < 0.2 * len({*references})


def unigram_nll(tgt: Side) -> float:
    """The nll per token of a model that knows only how frequent each token is: the entropy, in nats."""
    ids = np.concatenate(tgt.sentences(spread(tgt.num_sentences)))
    shares = np.unique(ids, return_counts=True)[1] / len(ids)
    return float(-shares @ np.log(shares))


def ramp_steps(config: Config) -> int:
    """The steps after which a healthy model's translations differ: the warmup that Eq. 3 has for the learning rate.

    A low learning rate needs more steps than training.warmup_steps, and a high one fewer.
    """
    rate = config.training.learning_rate
    return round(rate**-2 / config.model.d_model) if rate else config.training.warmup_steps


def remedy(config: Config) -> str:
    """The settings that prevent a collapse of this run."""
    warmup = config.training.warmup_steps
    paper_rate = highest_rate(config.model.d_model, warmup)
    rate = config.training.learning_rate or paper_rate
    if rate > 1.01 * paper_rate:
        return (
            f"in another run_dir, set training.learning_rate={paper_rate:.2g} (the paper's for this warmup), "
            f"not {rate:g}"
        )
    longer_warmup = max(2 * warmup, min(ramp_steps(config), 4000))  # the warmup of the paper (5.3)
    return f"in another run_dir, set training.learning_rate={rate / 2:.2g} or training.warmup_steps={longer_warmup}"


_WINDOW = 50  # steps whose nll is averaged to one value


def explain_short_limit(training: TrainingConfig, least_s: float) -> Advice:
    """What to do about a time limit that cannot be kept; `least_s` is the least one that can, in whole minutes."""
    return Advice(
        f"training.time_limit: {format_duration(training.time_limit or 0)} is too short, since preparation and "
        "scoring take more than half of it",
        f"set training.time_limit={least_s / 60:.0f}m or more, or use smaller validation and test sets",
    )


class Hints(Hook):
    """Watches the text and the figures of one start of a run; only the first sign of a collapse is a hint."""

    _has_hinted = False
    _has_warned = False  # about the time limit
    _window: tuple[float, ...] = ()
    _mean = math.inf  # of the last window
    _lowest = math.inf, 0  # mean of a window, and its last step

    def on_prepared(self, config: Config, paths: RunLayout, data: PreparedData | None) -> None:
        for advice in changed_text(paths.sources) if data is None else warnings(data, config):
            logger.warning("%s\n  help: %s", *advice)

    def on_start(self, run: Run) -> None:
        if not run.state.step:
            self._check_limit(run, run.elapsed_s())

    def _check_limit(self, run: Run, begun_s: float) -> None:
        least_s = run.schedule.least_limit_s(run.state, begun_s)
        if least_s and not self._has_warned:
            self._has_warned = True
            logger.warning("%s\n  help: %s", *explain_short_limit(run.config.training, least_s))

    def on_step(self, run: Run, figures: Mapping[str, Any]) -> None:
        self._window = (*self._window, figures["nll"])
        if len(self._window) < _WINDOW:
            return
        self._mean = statistics.fmean(self._window)
        self._window = ()
        self._lowest = min(self._lowest, (self._mean, figures["step"]))
        lowest, step = self._lowest
        if self._mean > lowest + 0.3:  # nats per token
            self._record_hint(
                run,
                f"the training nll rose from {lowest:.2f} (step {step:,}) to {self._mean:.2f}: the learning rate "
                "may be too high",
            )

    def on_validation(self, run: Run, validation: Validation, model: TranslationModel) -> None:
        hypotheses = validation.hypotheses
        self._check_limit(run, 0.0)
        if run.state.step > ramp_steps(run.config):
            unigram = unigram_nll(run.training_text.tgt)
            # Only a collapsed model is near a unigram model after the warmup, in training and validation.
            if are_alike(hypotheses, run.data.valid.tgt_texts()) or min(validation.nll, self._mean) > 0.9 * unigram:
                self._record_hint(
                    run,
                    f"training collapsed: {len({*hypotheses}) / len(hypotheses):.1%} of the validation translations "
                    f"are distinct, and the nll is {validation.nll:.2f} (unigram model: {unigram:.2f})",
                )

    def _record_hint(self, run: Run, text: str) -> None:
        if not self._has_hinted:
            hint = str(Advice(text, remedy(run.config)))
            logger.info(f"hint: {hint}")
            run.record("hint", step=run.state.step, text=hint)
        self._has_hinted = True


def advise_on_gains(gains: Sequence[Gain]) -> list[Advice]:
    """What to change: own text should gain significantly, and no test set should fall by more than a point."""
    problems = []
    for gain in gains:
        change = gain.changes[0]
        if change.points < -1:
            hint = "keep the original model" if gain.is_own else "add more general text to data.train"
            hint += ", or try a third of training.learning_rate or fewer epochs"
            problems.append(Advice(f"{gain.test} falls by {-change.points:.1f} {change.metric}", hint))
        elif gain.is_own and not (change.points > 0 and change.p_value < SIGNIFICANCE_LEVEL):
            hint = "use more epochs, a higher training.learning_rate or more text"
            problems.append(Advice(f"{gain.test} does not improve significantly", hint))
    return problems


_VERDICTS = {  # for text like the test set
    Band.GOOD: "good: on text like this, most translations need few corrections",
    Band.DRAFT: "usable as a draft: understandable on text like this, but needs correction",
    Band.GIST: (
        "usable for the gist only: on text like this, the meaning is mostly clear, but the grammar is often wrong"
    ),
    Band.POOR: "hardly usable: even on text like this, the meaning is often lost",
    Band.USELESS: "not usable: it has not learned enough",
}
_FAULTS = {
    "repetition": "repeat themselves",
    "copy": "are copies of the source",
    "short": "are too short",
    "numbers": "lack a number of the source",
    "empty": "are empty",
}


def usability(run: RunSummary) -> Advice | None:
    """The verdict on the model of a run, by its first test set, and what to do next, if anything.

    Returns:
        The description, with the score and the shares of faulty translations; None before the run is scored.

    Raises:
        DamagedFileError: if a file of the run has unexpected content.
    """
    paths = run.paths
    config = run.config
    if not (scores := stored_scores(paths)):
        return None
    name, parts = next(iter(parts_of(scores, config.data.language_pairs).items()))
    texts = list[list[list[str]]]()
    for part in parts:
        files = [paths.evaluation / part / file for file in (SOURCE_TEXT, HYPOTHESIS_TEXT, REFERENCE_TEXT)]
        has_texts = all(file.is_file() for file in files)  # unless the user removed them
        texts.append([list(text_files.read_lines(file)) if has_texts else [] for file in files])
    sources = normalize_lines([line for src, _, _ in texts for line in src], config.tokenizer.normalization)
    hypotheses = [line for _, hyp, _ in texts for line in hyp]
    references = [line for _, _, ref in texts for line in ref]
    faults = Counter[str]()
    for src, hyp, ref in zip(sources, hypotheses, references, strict=True):
        fault = suspicion(src, hyp) if hyp.strip() else "empty"
        if fault and fault != suspicion(src, ref) and hyp != ref:
            faults[fault] += 1
    num_lines = max(1, len(hypotheses))
    num_faulty = faults.total()
    is_alike = are_alike(hypotheses, references)
    part_texts = [
        (src, ref, *config.data.language_pair(part)) for part, (src, _, ref) in zip(parts, texts, strict=True)
    ]
    band, reason = find_band(scores[name], part_texts, "synthetic" if config.data.generator else "bleu")
    metric = "chrf" if reason else "bleu"
    highest_band = Band.GOOD  # the best that the share of faulty translations allows
    if is_alike or num_faulty >= 0.3 * num_lines:
        highest_band = Band.USELESS
    elif num_faulty >= 0.1 * num_lines:
        highest_band = Band.POOR
    verdict = _VERDICTS[band]
    if band > highest_band:
        band = highest_band
        verdict = f"{_VERDICTS[band].split(':')[0]}: too many of its translations are faulty"
    if name == TEACHER_TEST and band > Band.USELESS:
        verdict = "of unknown quality: the score shows how near it comes to its teacher"
    shares = {fault: faults[kind] / num_lines for kind, fault in _FAULTS.items()}
    facts = [f"{scores[name][metric]['score']:.1f} {METRICS[metric]} on {name}"]
    facts += [f"{scores[part][metric]['score']:.1f} on {part}" for part in parts if part != name]
    if reason and reason.bleu_is_a_bound:
        facts.append(f"{reason.text}, so the verdict follows chrF2, at most one level above BLEU's")
    facts += [f"{share:.0%} of the translations {fault}" for fault, share in shares.items() if share >= 0.02]
    if is_alike and num_faulty < num_lines / 2:
        facts.append(f"only {len({*hypotheses}):,} of the {num_lines:,} translations are distinct")
    problems = advise_on_gains(run.gains)
    facts += [problem.text for problem in problems]
    hint = _next_step(run, band)
    prevention = remedy(config)
    if problems:  # longer training would not solve them
        hint = f"in another run_dir, {', and '.join(dict.fromkeys(problem.hint for problem in problems))}"
    elif band == Band.USELESS and any(prevention in hint["text"] for hint in run.hints):
        hint = f"training collapsed; {prevention}"
    return Advice(f"{verdict} ({', '.join(facts)})", hint)


def count_by_quality(scores: Mapping[str, Scores]) -> list[str]:
    """How many translations of each test set have which advice, and their chrF2, if the model estimates quality."""
    return [
        f"{name} "
        + ", ".join(f"{kind} {group['lines']:,} (chrF2 {group['score']:.1f})" for kind, group in kinds.items())
        for name, entries in scores.items()
        if (kinds := entries.get("advice"))
    ]


def _next_step(run: RunSummary, band: Band) -> str:
    """What to do next; empty for nothing."""
    if band == Band.GOOD:
        return ""
    pairs = run.data_report.get("kept", 0)
    reason = (run.history.events_of("end") or [{}])[-1].get("reason")
    development = improvement(run.history)
    if reason in ("max_steps", "max_epochs", "time_limit") and run.history.last_value("step"):
        hint = f"increase training.{reason} to train further"
        if development and development.is_still_improving:
            return f"training ended while it was still improving; {hint}"
        few_epochs = max(5, (run.config.training.max_epochs or 0) / 2)  # a useless model then needs more training
        if band <= Band.POOR and (development is None or run.history.last_value("epochs") < few_epochs):
            sentences = [f"it was hardly trained; {hint}"]
            for warning in _few_pairs_warning(pairs, run.config.training):
                sentences += [warning.text, warning.hint]
            return "; ".join(sentences)
    if band > Band.GIST:
        return ""
    nll = run.history.curve("validation", "nll").values
    ended = "more steps on this text would help little"
    if run.config.training.init_from:
        return f"{ended}; more text, or a lower training.learning_rate in another run_dir, may help"
    if nll and nll[-1] > min(nll) + 0.02 and run.config.model.dropout < 0.3:
        return f"it overfits its {pairs:,} pairs; more text helps most, or model.dropout=0.3 in another run_dir"
    if pairs < 20_000:
        return f"{ended}: it has only {pairs:,} pairs; more text helps most, or training.init_from=MODEL (mtx import)"
    return (
        f"{ended}; adapt a published model (mtx import, mtx train adapt), translate text of the target language back "
        "(mtx back-translate), or add more text of this kind"
    )
