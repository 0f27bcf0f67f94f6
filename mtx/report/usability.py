"""Whether the model of a run is of use, in words, and what to do next. Flow: `RunSummary`, scores -> `Usability`.

The words follow a rule of thumb for BLEU (https://cloud.google.com/translate/automl/docs/evaluate#bleu): below 10
almost useless, below 20 hardly the gist, below 30 the gist with many errors, from 30 understandable, from 40 of high
quality. They hold for text like the test text, and say nothing about other text.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from mtx.config.schema import Config
from mtx.evaluation.gains import advice as advice_on_gains
from mtx.evaluation.metrics import normalize_lines, too_short_for_bleu
from mtx.evaluation.traits import ALIKE, Traits
from mtx.files import text_files
from mtx.files.durations import format_duration
from mtx.report.run_summary import RunSummary
from mtx.report.training_history import MIN_GAIN, TrainingHistory, improvement
from mtx.run.contents import stored_scores
from mtx.run.layout import HYPOTHESIS_TEXT, REFERENCE_TEXT, SOURCE_TEXT, RunLayout

_WORDS = (
    "good: on text like this, most translations need few corrections",
    "usable as a draft: understandable on text like this, but to be corrected",
    "usable for the gist only: on text like this, the meaning is mostly clear, the grammar often wrong",
    "hardly usable: even on text like this, the meaning is often lost",
    "not usable: it has learned too little",
)
# the scores from which each description holds; on Multi30k en-de a BLEU of 21 goes with a chrF2 of 45
_LIMITS = {"BLEU": (40.0, 30.0, 20.0, 10.0, 0.0), "chrF2": (65.0, 55.0, 45.0, 35.0, 0.0)}
_SYNTHETIC_LIMITS = (95.0, 80.0, 60.0, 30.0, 0.0)  # of BLEU where a grammar makes the text: it can all be learned
_DRAFT, _GIST, _POOR, _USELESS = 1, 2, 3, 4  # in `_WORDS`
_FAULTY, _MOST_FAULTY = 0.1, 0.3  # shares of faulty translations that make a model hardly usable, or useless
_MENTIONED = 0.02  # the smallest share of faulty translations that is worth a word
_MOST_EPOCHS = 100  # after that many, more training on the same text gains nothing
_LEAST_FACTOR, _MOST_FACTOR = 1.5, 8.0  # by which more training is proposed
_FEW_EPOCHS = 5  # before which a useless model has simply not been trained
_ENOUGH_PAIRS = 20_000
_RISE = 0.02  # nats per token by which the validation nll rises if a model learns its text by heart


@dataclass(frozen=True)
class Usability:
    """What to think of a trained model, in words.

    Attributes:
        level: index of the description, 0 for the best.
        text: the description, with the score and the shares of faulty translations.
        advice: what to do next; empty if there is nothing to do.
        settings: the `key=value`s with which `mtx train RUN` follows the advice; empty without any.
    """

    level: int
    text: str
    advice: str
    settings: list[str]

    @property
    def is_of_use(self) -> bool:
        """Whether the model translates anything at all."""
        return self.level < _USELESS


def usability(run: RunSummary) -> Usability | None:
    """What to think of the model of a run, by its first test set; None before it is scored, and of a language model.

    Raises:
        DamagedFileError: if a file of the run does not hold what mtx writes into it.
    """
    paths = RunLayout(Path(run.name))
    scores = stored_scores(paths)
    if not scores:
        return None
    name, score = next(iter(scores.items()))
    if "perplexity" in score:  # what is a good one depends on the tokenizer
        return None
    traits, is_short = _traits(paths.evaluation / name, run.config)
    metric, value = ("chrF2", score["chrf"]["score"]) if is_short else ("BLEU", score["bleu"]["score"])
    limits = _SYNTHETIC_LIMITS if run.config.data.generator and metric == "BLEU" else _LIMITS[metric]
    level = next(number for number, limit in enumerate(limits) if value >= limit)
    faults = _faults(traits) if traits else []
    words, limit = _WORDS[level], _level_of_faults(traits) if traits else 0
    if limit > level:
        level, words = limit, f"{_WORDS[limit].split(':')[0]}: too many of its translations are faulty"
    problems = advice_on_gains(run.gains)
    measured = ", ".join([f"{value:.1f} {metric} on {name}", *faults, *(problem.text for problem in problems)])
    advice, more = _advice(run, level, limits[_DRAFT])
    if problems:  # more of the same training would not solve them
        helps = dict.fromkeys(problem.help for problem in problems)
        advice, more = f"in another run_dir, {', and '.join(helps)}", []
    return Usability(level, f"{words} ({measured})", advice, more)


def _level_of_faults(traits: Traits) -> int:
    """The best level that a model with so many faulty translations can have."""
    lines = max(1, traits.lines)
    if traits.faulty >= _MOST_FAULTY * lines or traits.distinct < ALIKE * lines:
        return _USELESS
    return _POOR if traits.faulty >= _FAULTY * lines else 0


def _traits(directory: Path, config: Config) -> tuple[Traits | None, bool]:
    """The traits of the translations of a test set, and whether its references are too short for BLEU."""
    paths = [directory / name for name in (SOURCE_TEXT, HYPOTHESIS_TEXT, REFERENCE_TEXT)]
    if not all(path.is_file() for path in paths):
        return None, False  # the user removed them
    sources, hypotheses, references = (list(text_files.read_lines(path)) for path in paths)
    sources = normalize_lines(sources, config.tokenizer.normalization)  # as the others are
    traits = Traits.of(sources, hypotheses, references, config.data.tgt)
    return traits, too_short_for_bleu(references, config.data.tgt)


def _faults(traits: Traits) -> list[str]:
    shares = {"repeat themselves": traits.repeating, "are the source": traits.copied, "are empty": traits.empty}
    lines = max(1, traits.lines)
    faults = [f"{count / lines:.0%} of the translations {what}" for what, count in shares.items()
              if count >= _MENTIONED * lines]  # fmt: skip
    if traits.distinct < ALIKE * traits.lines and traits.faulty < traits.lines / 2:
        faults.append(f"only {traits.distinct / lines:.0%} of them differ from each other")
    return faults


def _advice(run: RunSummary, level: int, goal: float) -> tuple[str, list[str]]:
    """What to do next, and the settings that do it.

    Args:
        goal: the score at which a model is usable as a draft.
    """
    if level == 0:
        return "", []
    if more := _more_training(run, level, goal):
        return more
    if level < _GIST:
        return "", []
    pairs, nll = run.data_report.get("kept", 0), run.history.curve("validation", "nll").values
    ended = "more steps on this text would gain little"
    if run.config.training.init_from:
        return f"{ended}; more text, or a smaller training.learning_rate in another run_dir, may help", []
    if nll and nll[-1] > min(nll) + _RISE and run.config.model.dropout < 0.3:
        return (
            f"it learns its {pairs:,} pairs by heart; more text helps most, or model.dropout=0.3 in another run_dir",
            [],
        )
    if pairs < _ENOUGH_PAIRS:
        return (
            f"{ended}: {pairs:,} pairs are few; more text helps most, or training.init_from=MODEL in another run_dir, "
            "with a published model of these languages (mtx import)"
        ), []
    return f"{ended}; see what --dry-run says about the text, or take a larger model.preset in another run_dir", []


def _more_training(run: RunSummary, level: int, goal: float) -> tuple[str, list[str]] | None:
    """The advice to train longer and its settings; None if training ended because it gained nothing any more."""
    gained, training = improvement(run.history, before_cooldown=True), run.config.training
    reason = next((str(event.get("reason")) for event in reversed(run.history.of("end"))), "")
    if reason not in ("max_steps", "max_epochs", "time_limit") or not run.step:
        return None
    is_rising = gained is not None and gained.gain > MIN_GAIN[gained.key] and gained.since == 0
    epochs = run.history.epochs
    is_young = level >= _POOR and (improvement(run.history) is None or epochs < _FEW_EPOCHS)
    if not (is_rising or is_young):
        return None
    factor = _factor(run.history, goal)
    if 0 < epochs < _FEW_EPOCHS:  # the curve says nothing yet; 0 means unknown
        factor = max(factor, _FEW_EPOCHS / epochs)
    factor = min(factor, _MOST_EPOCHS / max(epochs, 1.0))
    if factor < _LEAST_FACTOR:
        return None
    more_s = 3600 * run.history.hours * (factor - 1)
    # Where training is by now, and where each of the limits has to be
    done = {"max_steps": run.step, "max_epochs": epochs, "time_limit": 3600 * run.history.hours}
    wanted = {key: value * factor for key, value in done.items()}
    if training.time_limit is not None and reason == "time_limit":  # which also holds the time of scoring
        wanted["time_limit"] = training.time_limit + more_s
    limits = {key: value for key in done if (value := getattr(training, key)) is not None}
    settings = [f"training.{key}={_rounded(key, wanted[key])}" for key in limits if limits[key] < wanted[key]]
    state = "training ended while it was still learning" if is_rising else "it has hardly been trained"
    if gained and is_rising:
        change = -gained.last_gain if gained.key == "nll" else gained.last_gain
        state += f" ({gained.metric} {change:+.{2 if gained.key == 'nll' else 1}f} at the last validation)"
    return f"{state}; about {format_duration(more_s)} more may bring it further", settings


def _factor(history: TrainingHistory, goal: float) -> float:
    """By how much longer to train in all, if each doubling of the steps gains as many points as the last one did."""
    metric = improvement(history, before_cooldown=True)
    curve = history.curve("validation", "chrf" if metric and metric.key == "chrf" else "bleu")
    if metric is None or metric.gain <= MIN_GAIN[metric.key]:  # too early to tell
        return _MOST_FACTOR / 2
    half = max((n for n, step in enumerate(curve.steps) if step <= curve.steps[-1] / 2), default=0)
    doublings = math.log2(curve.steps[-1] / max(1.0, curve.steps[half]))
    gain = (curve.values[-1] - curve.values[half]) / doublings if doublings > 0 else 0.0
    if gain <= 0:
        return 2.0
    return float(min(_MOST_FACTOR, max(2.0, math.exp2(min(9.0, (goal - curve.values[-1]) / gain)))))


def _rounded(key: str, value: float) -> str:
    """A value of a setting that ends training, rounded up: to minutes or to two digits."""
    if key == "time_limit":
        return f"{math.ceil(value / 60)}m"
    more = math.ceil(value)
    unit = 10 ** max(0, len(str(more)) - 2)
    return str(-(-more // unit) * unit)
