"""Whether the model of a run is usable, in words, and what to do next. Flow: `RunSummary`, scores -> `Advice`.

The words follow a rule of thumb for BLEU (https://cloud.google.com/translate/automl/docs/evaluate#bleu): below 10
almost useless, below 20 hard to get the gist, below 30 the gist with many errors, from 30 understandable, from 40 of
high quality. They apply to text like the test set, not to other text.
"""

from collections import Counter

from mtx.decoding.metrics import normalize_lines, too_short_for_bleu
from mtx.errors import Advice
from mtx.evaluation.suspicion import suspicion
from mtx.evaluation.test_set_scores import advice
from mtx.report import collapse
from mtx.report.run_history import RunSummary, improvement
from mtx.storage import text_files
from mtx.storage.run_files import HYPOTHESIS_TEXT, REFERENCE_TEXT, SOURCE_TEXT, stored_scores

_WORDS = (
    "good: on text like this, most translations need few corrections",
    "usable as a draft: understandable on text like this, but needs correction",
    "usable for the gist only: on text like this, the meaning is mostly clear, but the grammar is often wrong",
    "hardly usable: even on text like this, the meaning is often lost",
    "not usable: it has not learned enough",
)
# the lowest score of each description; on Multi30k en-de a BLEU of 21 corresponds to a chrF2 of 45
_LIMITS = {"BLEU": (40.0, 30.0, 20.0, 10.0, 0.0), "chrF2": (65.0, 55.0, 45.0, 35.0, 0.0)}
_SYNTHETIC_LIMITS = (95.0, 80.0, 60.0, 30.0, 0.0)  # of BLEU on text of a grammar, which can be learned perfectly
_GIST = 2  # the place of a description in `_WORDS`
_POOR = 3
_USELESS = 4
_FAULTY, _MOST_FAULTY = 0.1, 0.3  # shares of faulty translations that make a model hardly usable, or useless
_MENTIONED = 0.02  # the smallest share of faulty translations to mention
_FAULTS = {
    "repetition": "repeat themselves",
    "copy": "are copies of the source",
    "short": "are too short",
    "numbers": "lack a number of the source",
    "empty": "are empty",
}
_FEW_EPOCHS = 5  # with fewer, a useless model simply needs more training
_ENOUGH_PAIRS = 20_000
_RISE = 0.02  # nats per token by which the validation nll rises if a model overfits


def usability(run: RunSummary) -> Advice | None:
    """The verdict on the model of a run, by its first test set, and what to do next, if anything.

    Returns:
        The description, with the score and the shares of faulty translations; None before the run is scored.

    Raises:
        DamagedFileError: if a file of the run has unexpected content.
    """
    paths, config = run.paths, run.config
    if not (scores := stored_scores(paths)):
        return None
    name, score = next(iter(scores.items()))
    files = [paths.evaluation / name / file for file in (SOURCE_TEXT, HYPOTHESIS_TEXT, REFERENCE_TEXT)]
    has_texts = all(file.is_file() for file in files)  # unless the user removed them
    sources, hypotheses, references = (list(text_files.read_lines(file)) if has_texts else [] for file in files)
    sources = normalize_lines(sources, config.tokenizer.normalization)  # as the others are
    faults = Counter[str]()
    for src, hyp, ref in zip(sources, hypotheses, references, strict=True):
        fault = suspicion(src, hyp) if hyp.strip() else "empty"
        if hyp != ref and fault and fault != suspicion(src, ref):
            faults[fault] += 1
    lines = max(1, len(hypotheses))
    metric, value = "BLEU", score["bleu"]["score"]
    if too_short_for_bleu(references, config.data.tgt):
        metric, value = "chrF2", score["chrf"]["score"]
    limits = _SYNTHETIC_LIMITS if config.data.generator and metric == "BLEU" else _LIMITS[metric]
    level = next(number for number, limit in enumerate(limits) if value >= limit)
    words, best, faulty = _WORDS[level], 0, faults.total()
    is_alike = collapse.are_alike(hypotheses, references)
    if is_alike or faulty >= _MOST_FAULTY * lines:
        best = _USELESS
    elif faulty >= _FAULTY * lines:
        best = _POOR
    if level < best:
        level, words = best, f"{_WORDS[best].split(':')[0]}: too many of its translations are faulty"
    measured = [f"{value:.1f} {metric} on {name}"]
    for kind, what in _FAULTS.items():
        if faults[kind] >= _MENTIONED * lines:
            measured.append(f"{faults[kind] / lines:.0%} of the translations {what}")
    if is_alike and faulty < lines / 2:
        measured.append(f"only {len({*hypotheses}):,} of the {lines:,} translations are distinct")
    problems = advice(run.gains)
    measured += [problem.text for problem in problems]
    help = _help(run, level)
    remedy = collapse.remedy(config)
    if level == _USELESS and any(remedy in hint["text"] for hint in run.hints()):
        help = f"training collapsed; {remedy}"
    if problems:  # longer training would not solve them
        help = f"in another run_dir, {', and '.join(dict.fromkeys(problem.help for problem in problems))}"
    return Advice(f"{words} ({', '.join(measured)})", help)


def _help(run: RunSummary, level: int) -> str:
    """What to do next; empty for nothing."""
    if level == 0:
        return ""
    reason = next((str(event.get("reason")) for event in reversed(run.history.of("end"))), "")
    if reason in ("max_steps", "max_epochs", "time_limit") and run.step:
        help = f"increase training.{reason} to train further"
        gained = improvement(run.history, before_cooldown=True)
        if gained is not None and gained.is_worthwhile and gained.is_last_best:
            return f"training ended while it was still improving; {help}"
        few = max(_FEW_EPOCHS, (run.config.training.max_epochs or 0) / 2)  # of the epochs planned, too
        if level >= _POOR and (improvement(run.history) is None or run.history.epochs < few):
            return f"it was hardly trained; {help}"
    if level < _GIST:
        return ""
    pairs, nll = run.data_report.get("kept", 0), run.history.curve("validation", "nll").values
    ended = "more steps on this text would help little"
    if run.config.training.init_from:
        return f"{ended}; more text, or a lower training.learning_rate in another run_dir, may help"
    if nll and nll[-1] > min(nll) + _RISE and run.config.model.dropout < 0.3:
        return f"it overfits its {pairs:,} pairs; more text helps most, or model.dropout=0.3 in another run_dir"
    if pairs < _ENOUGH_PAIRS:
        return (
            f"{ended}: it has only {pairs:,} pairs; more text helps most, or training.init_from=MODEL in another "
            "run_dir, with a published model of these languages (mtx import)"
        )
    return f"{ended}; check the text with --dry-run, or use a larger model.preset in another run_dir"
