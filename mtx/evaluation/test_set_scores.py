"""Evaluation: models translate test sets, and the hypotheses are scored.

Flow: `TestSet` and translator -> `translate` -> `score_translations` -> `Scores`. For the test sets of a run,
both are also written to evaluation/NAME.
`evaluate_run` does this for the test sets of a run, and the hook `ScoresBefore` for the model that a run starts from.
After training, `measure_gains` compares the two: before/NAME and evaluation/NAME -> `Gain` -> scores.json.
`score_with_glossary` also counts the terms that a model uses.
For `mtx compare`, `system_outputs` collects the hypotheses of several systems, which `comparison.py` then compares.
"""

import logging
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from mtx.config.schema import Config, DataConfig
from mtx.data.glossary import Glossary, missing_terms
from mtx.data.language_detection import Profile, language_of
from mtx.data.languages import IDEOGRAPHS
from mtx.data.token_store import PreparedData, load_prepared
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, DataError, UsageError
from mtx.evaluation.comparison import compare
from mtx.evaluation.metric_process import CommandMetric, score_by_command, stored_entries
from mtx.evaluation.protocols import LANGUAGES, Protocol
from mtx.evaluation.significance import SentenceMean, System, p_text, score_with_interval
from mtx.evaluation.test_sets import load_lines
from mtx.runs.run_directory import hold_lock, load_config
from mtx.scoring.metrics import (
    DEFAULT_METRICS,
    METRICS,
    Scores,
    TestSet,
    mean_scores,
    metric_line,
    normalize_lines,
    parts_of,
    score,
    score_line,
    warn_about_bleu,
    write_test_set,
)
from mtx.storage import durable, text_files
from mtx.storage.run_files import HYPOTHESIS_TEXT, REFERENCE_TEXT, RunLayout, is_run
from mtx.training.events import Run
from mtx.training.hooks import Hook
from mtx.training.validation import tests_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChosenMetrics:
    """The metrics that `mtx evaluate` computes.

    Attributes:
        own: some of `METRICS`; the default ones are always stored with a run.
        by_command: those that programs outside mtx compute.
        protocol: a published way to compute BLEU.
    """

    own: Collection[str] = DEFAULT_METRICS
    by_command: Sequence[CommandMetric] = ()
    protocol: Protocol | None = None


DEFAULT = ChosenMetrics()


def translate(translator: Translator, test_set: TestSet) -> TestSet:
    """The test set as a translator has `translated` it, in the direction of the test set if it has that."""
    if (test_set.src, test_set.tgt) in translator.directions:
        translator = translator.to(test_set.tgt, test_set.src)
    return test_set.translated(translator.translate(test_set.sources), translator.tokenizer.normalization)


def score_file(path: Path, test_set: TestSet, metrics: ChosenMetrics = DEFAULT) -> Scores:
    """Score a file of hypotheses against the references of a test set.

    Raises:
        DataError: if the file has more or fewer lines than the test set, or is not UTF-8.
    """
    hypotheses = list(text_files.read_lines(path, "strict"))
    if len(hypotheses) != len(test_set.references):
        raise DataError(f"{path} has {len(hypotheses)} lines, {test_set.name} has {len(test_set.references)}")
    for form, has_form in FORMS.items():
        num_hypotheses = sum(1 for line in hypotheses if has_form(line))
        num_references = sum(1 for line in test_set.references if has_form(line))
        if abs(num_hypotheses - num_references) >= max(1, 0.1 * len(hypotheses)):
            logger.warning(
                f"{path}: {num_hypotheses / len(hypotheses):.0%} of its lines are {form}, but "
                f"{num_references / len(hypotheses):.0%} of the references; "
                "scores are valid only if both have the same form"
            )
    return score_translations(test_set.translated(hypotheses, "none"), metrics)


# Forms that lower the scores if only the hypotheses or only the references have them
SUBWORDS = "split into subwords (▁, @@ or ##)"
FORMS: dict[str, Callable[[str], object]] = {
    SUBWORDS: re.compile(r"▁|@@(?:\s|$)|(?:^|\s)##\w").search,
    "tokenised": re.compile(rf"\s[.,](?:\s|$)|@-@|&(?:apos|quot|amp|#91);|[{IDEOGRAPHS}]\s[{IDEOGRAPHS}]").search,
    "not in NFC": lambda line: not unicodedata.is_normalized("NFC", line),
}


def score_translations(test_set: TestSet, metrics: ChosenMetrics = DEFAULT) -> Scores:
    """The scores of a test set that was `translated`."""
    references = test_set.references
    warn_about_bleu(test_set.name, references, test_set.tgt, test_set.sources, test_set.src)
    tgt = test_set.tgt or language_of(references)
    for side, lines in (("references", references), ("translations", test_set.translations)):
        if tgt and (actual_language := Profile.of(map(str.lower, lines)).other_language(tgt)):
            logger.warning(
                "%s: the %s are in %s, not %s; are sides swapped?", test_set.name, side, actual_language, tgt
            )
    more_references = test_set.more_references
    scores = score(test_set.translations, references, test_set.tgt, more_references, score_with_interval, metrics.own)
    if protocol := metrics.protocol:
        scores[protocol.name] = protocol.score(test_set.translations, references, *more_references)
    for metric in metrics.by_command:
        name, entry = score_by_command(metric, test_set)
        if name in scores:
            raise DataError(f"{metric.command}: another metric has its name too, {name}")
        scores[name] = entry
    return scores


def score_lines(name: str, scores: Scores, are_chosen: bool = False) -> list[str]:
    """What `mtx evaluate` prints: the scores, those of published protocols, and how many terms were used.

    Args:
        are_chosen: whether -m has chosen the metrics of mtx; then each has a line of its own.
    """
    lines = [] if are_chosen else [score_line(name, scores)]
    in_other_lines = {*LANGUAGES, "terms"} if are_chosen else {*LANGUAGES, "terms", *METRICS}
    lines += [metric_line(name, metric, entry) for metric, entry in scores.items() if metric not in in_other_lines]
    for protocol in LANGUAGES:
        if bleu := scores.get(protocol):
            lines.append(f"{name} {protocol} BLEU {bleu['score']:.2f}  {bleu['signature']}")
    if terms := scores.get("terms"):
        num_terms = terms["num_terms"]
        text = "the glossary terms do not occur"
        if num_terms:
            text = (
                f"{terms['used'] / num_terms:.1%} of {num_terms:,} terms used, "
                f"{terms['used_without'] / num_terms:.1%} without the glossary"
            )
        lines.append(f"{name}: {text}")
    return lines


def system_outputs(
    test_set: TestSet, paths: Sequence[Path], translators: Mapping[Path, Translator]
) -> tuple[list[System], list[str]]:
    """The hypotheses of all systems on one test set, in the order of `paths`, and the references.

    All text is normalised to NFC if any of the models or runs normalises.

    Args:
        translators: a translator for each of `paths` without hypotheses in the test set.
    """
    hypotheses = dict(test_set.hypotheses)
    for path, translator in translators.items():
        logger.info("translating %s by %s: %s sentences", test_set.name, path, f"{len(test_set.sources):,}")
        hypotheses[path] = translate(translator, test_set).translations  # the form below is the same or stricter
    forms: set[str] = {translator.tokenizer.normalization for translator in translators.values()}
    forms |= {load_config(RunLayout(path)).tokenizer.normalization for path in paths if is_run(path)}
    normalization = "nfc" if forms - {"none"} else "none"
    systems = [System(str(path), normalize_lines(hypotheses[path], normalization)) for path in paths]
    return systems, normalize_lines(test_set.references, normalization)


def measure(system: System, references: list[str], test_set: TestSet, metrics: Sequence[CommandMetric]) -> System:
    """A system with its scores by metrics of commands; what is stored for the same text is not computed again."""
    translated = replace(test_set, translations=system.hypotheses, references=references)
    stored = stored_entries(RunLayout(Path(system.name)).evaluation / test_set.name, translated).values()
    entries = {entry["command"]: entry for entry in stored}
    measured = {}
    for metric in metrics:
        entry = entries.get(metric.command) or score_by_command(metric, translated)[1]
        measured[metric.command] = SentenceMean(entry["sentences"], entry["signature"])
    return replace(system, measured=measured)


class ScoresBefore(Hook):
    """Scores the initial model of a run into before/NAME before training, and the changes at the end."""

    def on_start(self, run: Run) -> None:
        config = run.config
        if run.state.init_sha256 and not run.state.step:
            from mtx.training import init_from

            logger.info("scoring %s before training", config.training.init_from)
            initial_translator = init_from.translator(config, run.runtime.device)
            evaluate_tests(initial_translator, run.data, config, run.paths.before)

    def on_scores(self, run: Run, scores: dict[str, Any], files: dict[str, str]) -> None:
        if run.state.init_sha256:
            gains = measure_gains(run.paths, run.data.report["tests"], run.config.data)
            scores["run"]["gains"] = list(map(asdict, gains))


def evaluate_tests(
    translator: Translator,
    data: PreparedData,
    config: Config,
    directory: Path,
    metrics: ChosenMetrics = DEFAULT,
    without_leaks: bool = False,
) -> dict[str, Scores]:
    """Translate and score every test set of a run, into `directory` with the run's own search options.

    Args:
        without_leaks: whether to score the lines without a match in the training text, too; see `mtx.data.leaks`.

    Raises:
        UsageError: if an earlier version of mtx has prepared the data without looking for near matches.
    """
    leaks = {name: entry["leaks"].get("lines") for name, entry in data.report["tests"].items()}
    if without_leaks and None in leaks.values():
        raise UsageError(
            f"{directory.parent}: an earlier version of mtx has prepared its data without looking for near matches",
            "train a new run with the settings of its config.yaml",
        )
    scores = dict[str, Scores]()
    other_scores = dict[str, Scores]()
    options = translator.options
    search = config.decoding
    is_run_search = (options.beam_size, options.length_penalty) == (search.beam_size, search.length_penalty)
    for test_set in tests_of(data, config, options.beam_size):
        name = test_set.name
        test_set = translate(translator, test_set)
        scores[name] = score_translations(test_set, replace(metrics, own={*DEFAULT_METRICS, *metrics.own}))
        if is_run_search:
            write_test_set(directory / name, test_set, stored_entries(directory / name, test_set) | scores[name])
        if without_leaks:
            rest = _skip_lines(test_set, leaks[name])
            num_lines, num_left = len(test_set.sources), len(rest.sources)
            logger.info("%s: %s of %s lines have no match in the training text", name, num_left, num_lines)
            if num_left:
                other_scores[f"{name}, without leaks"] = score_translations(rest, metrics)
    return scores | mean_scores(scores, config.data.language_pairs) | other_scores


def _skip_lines(test_set: TestSet, skipped: list[int]) -> TestSet:
    """A translated test set with one reference, without some lines, which are numbered from 1."""
    lines = sorted({*range(1, len(test_set.sources) + 1)} - {*skipped})
    texts = (test_set.sources, test_set.references, test_set.translations)
    sources, references, translations = ([text[line - 1] for line in lines] for text in texts)
    return replace(test_set, sources=sources, references=references, translations=translations)


def evaluate_run(
    translator: Translator, root: Path, metrics: ChosenMetrics = DEFAULT, without_leaks: bool = False
) -> dict[str, Scores]:
    """`evaluate_tests` for a run directory; its model directory does not change.

    Raises:
        MtxError: if another process works on the run.
    """
    paths = RunLayout(root)
    config = load_config(paths)
    with hold_lock(paths):
        durable.remove_temporaries(paths.evaluation)
        data = load_prepared(paths.data)
        return evaluate_tests(translator, data, config, paths.evaluation, metrics, without_leaks)


def score_with_glossary(
    translator: Translator, test_set: TestSet, metrics: ChosenMetrics = DEFAULT
) -> tuple[Scores, Scores]:
    """Translate a test set without and with the translator's glossary, and score both; the second counts used terms."""
    glossary = translator.glossary
    assert glossary is not None
    results = []
    for terms in (None, glossary):
        translator.use_glossary(terms)
        translated = translate(translator, test_set)
        used = count_used(glossary, translated.sources, translated.translations)
        results.append({**score_translations(translated, metrics), "terms": used})
    without_glossary, with_glossary = results
    with_glossary["terms"]["used_without"] = without_glossary.pop("terms")["used"]
    return without_glossary, with_glossary


def count_used(glossary: Glossary, sources: Sequence[str], translations: Sequence[str]) -> dict[str, int]:
    """`num_terms` in the sources, and how many are `used`: their translation occurs in the line's translation."""
    num_terms = 0
    num_missing = 0
    for source, translation in zip(*(normalize_lines(side, "nfc") for side in (sources, translations)), strict=True):
        expected = [match.tgt for match in glossary.matches(source)]
        num_terms += len(expected)
        num_missing += len(missing_terms(expected, translation))
    return {"num_terms": num_terms, "used": num_terms - num_missing}


@dataclass(frozen=True)
class Change:
    """The score of a test set by one metric before and after, and the p-value of the difference (paired bootstrap)."""

    metric: str
    before: float
    after: float
    p_value: float

    @property
    def points(self) -> float:
        """The improvement of the score."""
        return self.after - self.before

    def __str__(self) -> str:
        change = f"{self.metric} {self.before:.1f} before, {self.after:.1f} after: {self.points:+.1f}"
        return f"{change} (p {p_text(self.p_value)})"


@dataclass(frozen=True)
class Gain:
    """The changes on one test set by training.

    Attributes:
        is_own: whether it is text to adapt to: held out of the own text, or else the first test set.
        changes: in BLEU and in chrF2; the first decides, which is chrF2 where BLEU is not informative.
    """

    test: str
    is_own: bool
    changes: Annotated[list[Change], Field(min_length=1)]

    def line(self) -> str:
        """The line of `mtx train` after the scores."""
        return f"{self.test} {'; '.join(map(str, self.changes))}"


def measure_gains(paths: RunLayout, tests: Mapping[str, Any], data: DataConfig) -> list[Gain]:
    """The gains on all test sets that a run has translated before and after training.

    Args:
        tests: the entries of the test sets in report.json.
    """
    first_set, *_ = parts_of(tests, data.language_pairs).values()  # of several directions, all of their parts
    adapted_tests = [name for name, entry in tests.items() if entry["held_out"]] or first_set
    gains = []
    for name in tests:
        try:
            [hypotheses_before] = load_lines(paths.before / name, HYPOTHESIS_TEXT)
            hypotheses_after, references = load_lines(paths.evaluation / name, HYPOTHESIS_TEXT, REFERENCE_TEXT)
        except DamagedFileError as error:
            logger.warning("%s; the effect of training on %s is unknown", error, name)
            continue
        systems = [System("before", hypotheses_before), System("after", hypotheses_after)]
        result = compare(systems, references, ("bleu", "chrf"), data.language_pair(name)[1])
        changes = []
        deciding = [metric for metric in result.metrics if metric.name == result.decided_by]
        others = [metric for metric in result.metrics if metric.name != result.decided_by]
        for metric in deciding + others:
            score_before, score_after = metric.groups
            assert score_after.p_value is not None
            changes.append(Change(metric.name, score_before.mean, score_after.mean, score_after.p_value))
        gains.append(Gain(name, name in adapted_tests, changes))
    return gains


def stored_gains(run: Mapping[str, Any], path: Path) -> list[Gain]:
    """The gains in the entry `run` of a scores.json; empty for a run that did not start from a model.

    Raises:
        DamagedFileError: with `path`, if the entry has unexpected content.
    """
    try:
        return TypeAdapter(list[Gain]).validate_python(run.get("gains", []))
    except (AttributeError, ValidationError):
        raise DamagedFileError(f"{path}: run.gains: unexpected content") from None
