"""Whether the model of a run is of use, in words, and what to do next. Flow: `RunSummary`, scores -> `Usability`.

The words follow a rule of thumb for BLEU (https://cloud.google.com/translate/automl/docs/evaluate#bleu): below 10
almost useless, below 20 hardly the gist, below 30 the gist with many errors, from 30 understandable, from 40 of high
quality. They hold for text like the test text, and say nothing about other text.
"""

from dataclasses import dataclass
from pathlib import Path

from mtx.config.schema import Config
from mtx.evaluation.gains import advice as advice_on_gains
from mtx.evaluation.metrics import normalize_lines, too_short_for_bleu
from mtx.evaluation.traits import ALIKE, Traits
from mtx.files import text_files
from mtx.report.run_summary import RunSummary
from mtx.report.training_history import MIN_GAIN, improvement
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
_GIST, _POOR, _USELESS = 2, 3, 4  # in `_WORDS`
_FAULTY, _MOST_FAULTY = 0.1, 0.3  # shares of faulty translations that make a model hardly usable, or useless
_MENTIONED = 0.02  # the smallest share of faulty translations that is worth a word
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
    """

    level: int
    text: str
    advice: str

    @property
    def is_of_use(self) -> bool:
        """Whether the model translates anything at all."""
        return self.level < _USELESS


def usability(run: RunSummary) -> Usability | None:
    """What to think of the model of a run, by its first test set; None before it is scored.

    Raises:
        DamagedFileError: if a file of the run does not hold what mtx writes into it.
    """
    paths = RunLayout(Path(run.name))
    scores = stored_scores(paths)
    if not scores:
        return None
    name, score = next(iter(scores.items()))
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
    advice = _advice(run, level)
    if problems:  # more of the same training would not solve them
        helps = dict.fromkeys(problem.help for problem in problems)
        advice = f"in another run_dir, {', and '.join(helps)}"
    return Usability(level, f"{words} ({measured})", advice)


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
    traits = Traits.of(sources, hypotheses, references)
    return traits, too_short_for_bleu(references, config.data.tgt)


def _faults(traits: Traits) -> list[str]:
    shares = {"repeat themselves": traits.repeating, "are the source": traits.copied, "are empty": traits.empty}
    lines = max(1, traits.lines)
    faults = [f"{count / lines:.0%} of the translations {what}" for what, count in shares.items()
              if count >= _MENTIONED * lines]  # fmt: skip
    if traits.distinct < ALIKE * traits.lines and traits.faulty < traits.lines / 2:
        faults.append(f"only {traits.distinct / lines:.0%} of them differ from each other")
    return faults


def _advice(run: RunSummary, level: int) -> str:
    """What to do next; empty if there is nothing to do."""
    if level == 0:
        return ""
    if more := _more_training(run, level):
        return more
    if level < _GIST:
        return ""
    pairs, nll = run.data_report.get("kept", 0), run.history.curve("validation", "nll").values
    ended = "more steps on this text would gain little"
    if run.config.training.init_from:
        return f"{ended}; more text, or a smaller training.learning_rate in another run_dir, may help"
    if nll and nll[-1] > min(nll) + _RISE and run.config.model.dropout < 0.3:
        return f"it learns its {pairs:,} pairs by heart; more text helps most, or model.dropout=0.3 in another run_dir"
    if pairs < _ENOUGH_PAIRS:
        return (
            f"{ended}: {pairs:,} pairs are few; more text helps most, or training.init_from=MODEL in another run_dir, "
            "with a published model of these languages (mtx import)"
        )
    return f"{ended}; see what --dry-run says about the text, or take a larger model.preset in another run_dir"


def _more_training(run: RunSummary, level: int) -> str | None:
    """The advice to train longer; None if training ended because it gained nothing any more."""
    reason = next((str(event.get("reason")) for event in reversed(run.history.of("end"))), "")
    if reason not in ("max_steps", "max_epochs", "time_limit") or not run.step:
        return None
    help, gained = f"a larger training.{reason} continues it", improvement(run.history, before_cooldown=True)
    if gained is not None and gained.gain > MIN_GAIN[gained.key] and gained.since == 0:
        change = f"{-gained.last_gain:+.2f}" if gained.key == "nll" else f"{gained.last_gain:+.1f}"
        return f"training ended while it was still improving ({gained.metric} {change} at the last validation); {help}"
    if level >= _POOR and (improvement(run.history) is None or run.history.epochs < _FEW_EPOCHS):
        return f"it has hardly been trained; {help}"
    return None
