"""Fitting the estimate of quality: it finds what is there, and says so where nothing is."""

import random
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx.config.schema import Config, TokenizerConfig
from mtx.data.tokenizer import train_tokenizer
from mtx.decoding.options import Candidate, SearchOptions, penalty
from mtx.errors import DataError, MtxError
from mtx.evaluation.quality_fit import FitQuality, fit, fit_isotonic, fit_quality, rank_correlation
from mtx.report.advice import count_by_quality
from mtx.runs.run_directory import hold_lock
from mtx.scoring.quality import load, score_by_advice
from mtx.storage import durable
from mtx.storage.run_files import RunLayout, find_model
from mtx.training import run
from mtx.training.ranks import Ranks
from tests.translators import FakeTranslator

RNG = random.Random(1)
NAMES = ["".join(letters) for letters in product("abcdefgh", "abcdefgh", "abcdefg")]
LINES = [" ".join([name, *RNG.choices(["abc", "cab"], k=5)]) for name in NAMES]
REVERSED = [" ".join(line.split()[::-1]) for line in LINES]
WORSE = ["".join(RNG.choices("opqrstuv", k=len(line))) for line in LINES]


class Sure(FakeTranslator):
    """Reverses the words; the log-probability of a token is what `of_line` says for the source's number."""

    def __init__(self, of_line: Callable[[int], float]):
        super().__init__(train_tokenizer(LINES, TokenizerConfig(vocab_size=300), 1, []), 99, SearchOptions())
        self._of_line = of_line

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        numbers = [LINES.index(text) for text in self.tokenizer.decode(list(sources))]
        targets = self.tokenizer.encode([REVERSED[number] for number in numbers], target=True)
        log_probs = (self._of_line(number) * len(ids) for number, ids in zip(numbers, targets, strict=True))
        pairs = zip(targets, log_probs, strict=True)
        return [[Candidate(ids, log_prob / penalty(len(ids), options.alpha))] for ids, log_prob in pairs]


def references(number: int) -> str:
    """Half of the references equal the translation, the others share nothing with it."""
    return REVERSED[number] if number % 2 else WORSE[number]


def test_a_fitted_map_tells_good_translations_from_bad_ones() -> None:
    translator = Sure(lambda number: -0.1 if number % 2 else -2.0)
    quality_map = fit(translator, LINES, [references(number) for number in range(len(LINES))])
    assert quality_map
    translator.quality_maps = {"src-tgt": quality_map}
    found = [line[0] for line in translator.hypotheses(LINES)]
    assert min(line.quality for line in found[1::2] if line.quality is not None) > 80
    assert max(line.quality for line in found[::2] if line.quality is not None) < 20
    right = [line for line in found[1::2] if line.quality is not None]
    assert {line.advice for line in right} == {"use"}
    assert len(right) >= 0.98 * len(found[1::2]), "few of the lines on which the map was fitted are unlike them"


def test_text_unlike_the_validation_text_has_no_estimate() -> None:
    """Nearly all lines are right and sure, as with the demo: the map alone would expect much of whatever it gets."""
    noise = random.Random(1)
    sure = []
    for _ in LINES:
        log_prob = -0.1 - 0.02 * noise.random()
        if noise.random() < 0.05:
            log_prob -= 0.3
        sure.append(log_prob)
    translator = Sure(lambda number: sure[number])
    unsure = [log_prob < -0.2 and noise.random() < 0.7 for log_prob in sure]
    targets = [(WORSE if is_wrong else REVERSED)[number] for number, is_wrong in enumerate(unsure)]
    quality_map = fit(translator, LINES, targets)
    assert quality_map and quality_map.region
    translator.quality_maps = {"src-tgt": quality_map}
    at_home = [line[0].quality for line in translator.hypotheses(LINES)]
    assert at_home.count(None) <= 0.01 * len(LINES)
    foreign = Sure(lambda number: -1.5 - sure[number])
    foreign.quality_maps = translator.quality_maps
    for [best, *_] in foreign.hypotheses(LINES):
        assert best.quality is None and best.advice in ("look", "redo")


@pytest.mark.parametrize(("share", "weak"), [(0.05, (True, True)), (0.16, (False, True)), (0.5, (False, False))])
def test_no_translation_of_a_weak_model_is_to_be_used(share: float, weak: tuple[bool, bool]) -> None:
    """BLEU is about 110 times the share of the lines that are right: below 10, 10 to 20, and above."""
    right = [number % 100 < 100 * share for number in range(len(LINES))]
    wrong = [" ".join(line[place : place + 5] for place in range(0, len(line), 5)) for line in WORSE]
    translator = Sure(lambda number: -0.1 if right[number] else -2.0)
    quality_map = fit(
        translator, LINES, [(REVERSED if right[number] else wrong)[number] for number in range(len(LINES))]
    )
    assert quality_map and (quality_map.redo_below == 100, quality_map.look_below == 100) == weak


def test_a_model_into_long_words_is_weak_by_the_band_of_its_verdict() -> None:
    """Its BLEU is near 0 and its chrF2 good, so it is hardly usable."""
    wrong = [" ".join(line[place : place + 6] for place in range(0, len(line), 6)) for line in WORSE]
    long = [line.replace(" ", "", 2) for line in REVERSED]  # four words of six
    targets = [(long if number % 2 else wrong)[number] for number in range(len(LINES))]
    quality_map = fit(Sure(lambda number: -0.1 if number % 2 else -2.0), LINES, targets)
    assert quality_map and quality_map.redo_below < 100 == quality_map.look_below


def test_a_translation_that_is_surely_good_is_to_be_used() -> None:
    """Whatever the quartiles of a model that makes hardly a mistake: from 90 on nothing is to be looked at."""
    words = [line.split() for line in REVERSED]
    wrong = [" ".join(["x", *line[1:]]) for line in words]  # one of six words
    translator = Sure(lambda number: -0.1 - number % 5)
    targets = [(REVERSED if number % 5 < 4 else wrong)[number] for number in range(len(LINES))]
    quality_map = fit(translator, LINES, targets)
    assert quality_map and (quality_map.redo_below, quality_map.look_below) == (70, 90)


def test_no_map_where_the_search_knows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    noise = random.Random(2)
    targets = [noise.choice([REVERSED[number], WORSE[number]]) for number in range(len(LINES))]
    assert fit(Sure(lambda number: -1.0), LINES, targets) is None
    assert "it would follow chrF2 by" in caplog.text
    assert fit(Sure(lambda number: -1.0), LINES[:99], LINES[:99]) is None
    assert "it needs 100 lines of validation text" in caplog.text


def test_the_time_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    targets = [references(number) for number in range(len(LINES))]
    assert fit(Sure(lambda number: -0.1 if number % 2 else -2.0), LINES, targets, seconds=0) is None
    assert "it needs 100 lines of validation text" in caplog.text


def test_a_model_directory_gets_its_map_whole(tmp_path: Path) -> None:
    durable.write_text(tmp_path / "weights", "w")
    durable.write_manifest(tmp_path)
    translator = Sure(lambda number: -0.1 if number % 2 else -2.0)
    with pytest.raises(DataError, match="no estimate of quality was fitted"):
        fit_quality(translator, tmp_path, LINES[:9], LINES[:9])
    assert not load(tmp_path)
    fit_quality(translator, tmp_path, LINES, [references(number) for number in range(len(LINES))])
    assert [*load(tmp_path)] == ["src-tgt"]
    durable.verify(tmp_path, ("weights", "quality.json"))


def fit_with_beam(beam_size: int, model: Path) -> None:
    translator = Sure(lambda number: -0.1 if number % 2 else -2.0)
    translator.options = SearchOptions(beam_size=beam_size, length_penalty=1.0)
    translator.quality_maps = load(model)
    fit_quality(translator, model, LINES, [references(number) for number in range(len(LINES))])


def test_an_estimate_for_another_search_is_not_replaced_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    durable.write_text(tmp_path / "weights", "w")
    durable.write_manifest(tmp_path)
    for _ in range(2):
        fit_with_beam(4, tmp_path)
    assert not caplog.messages, "there was none, or one for the same search"
    for beam_size, replaced in ((1, 4), (4, 1)):
        fit_with_beam(beam_size, tmp_path)
        [message] = caplog.messages
        assert message.startswith("src-tgt: this replaces the estimate of quality for")
        assert f"beam size {replaced}, length penalty 1; translations with that search have none now" in message
        assert load(tmp_path)["src-tgt"].beam_size == beam_size
        caplog.clear()


def test_a_model_of_a_run_is_not_changed_while_another_process_works_on_the_run(tmp_path: Path) -> None:
    model = RunLayout(tmp_path / "run").model
    with durable.new_directory(model) as new:
        durable.write_text(new / "weights", "w")
    durable.write_text(tmp_path / "run" / "config.yaml", "")
    with hold_lock(RunLayout(tmp_path / "run")):
        for argument in (tmp_path / "run", model):
            with pytest.raises(MtxError, match="run: in use by another process"):
                fit_with_beam(4, find_model(argument))
    assert not load(model)
    fit_with_beam(4, find_model(model))
    assert [*load(model)] == ["src-tgt"]


def test_training_fits_before_the_test_sets_are_translated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable.write_text(tmp_path / "weights", "w")
    durable.write_manifest(tmp_path)
    translator = Sure(lambda number: -0.1 if number % 2 else -2.0)
    monkeypatch.setattr("mtx.decoding.translator.Translator.load", lambda *_, **__: translator)
    targets = [references(number) for number in range(len(LINES))]
    test: Any = SimpleNamespace(num_pairs=len(LINES), src_texts=lambda: LINES, tgt_texts=lambda: targets)
    sets: Any = SimpleNamespace(take_corpora=lambda numbers: test)
    ended: Any = SimpleNamespace(
        paths=SimpleNamespace(model=tmp_path),
        runtime=SimpleNamespace(device="cpu", threads=1),
        config=Config.model_validate({"run_dir": str(tmp_path), "data": {"src": "src", "tgt": "tgt"}}),
        data=SimpleNamespace(valid=sets, tests={"t": test}, report={}, tokenizer=None),
        state=SimpleNamespace(step=1),
        deferred_errors=None,
    )
    for name in ("write_status", "info_of"):
        monkeypatch.setattr(run, name, lambda *_, **__: {})
    for module, name in ((run.averaging, "choose"), (run.averaging, "average"), (run.averaging, "in_words")):
        monkeypatch.setattr(module, name, lambda *_: [])
    monkeypatch.setattr(run.model_directory, "write", lambda *_: None)
    run._write_model(ended, [FitQuality()])
    assert [*load(tmp_path)] == ["src-tgt"]
    translator.quality_maps = load(tmp_path)
    found = list[tuple[str, str]]()
    monkeypatch.setattr(run, "_finish", lambda run, hooks, translator, tests: found.extend(tests[0][1]))
    run._score(ended, Ranks(), [])
    assert [text for text, _ in found] == REVERSED
    of_right = [advice for _, advice in found[1::2]]
    num_used = of_right.count("use")
    assert num_used >= 0.98 * len(of_right) and num_used + of_right.count("look") == len(of_right)
    scores = score_by_advice(REVERSED, targets, [advice for _, advice in found])  # type: ignore[misc]
    assert scores["advice"]["use"]["score"] == 100
    assert count_by_quality({"t": scores, "u": {}})[0].startswith(f"t use {num_used:,} (chrF2 100.0), ")


def test_isotonic_regression_pools_what_falls() -> None:
    predicted = np.arange(400.0)
    knots, values = fit_isotonic(predicted, np.where(predicted < 200, 50 - predicted / 10, predicted / 4))
    assert knots == sorted({*knots}) and values == sorted({*values})
    assert values[0] == pytest.approx(40.05) and values[-1] == pytest.approx(94.875)
    assert fit_isotonic(predicted, -predicted) == [[199.5], [-199.5]]


def test_rank_correlation_is_spearmans() -> None:
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([1.0, 4, 9, 16])) == pytest.approx(1)
    assert rank_correlation(np.array([1.0, 2, 2, 4]), np.array([4.0, 3, 3, 1])) == pytest.approx(-1)
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([5.0, 5, 5])) == 0
