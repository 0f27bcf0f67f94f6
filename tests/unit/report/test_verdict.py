"""Judgements of runs whose files are written by hand: scores, translations, and the validations of their training."""

import json
import re
from pathlib import Path

import pytest

from mtx.config.schema import Config
from mtx.report.advice import Advice, usability
from mtx.report.run_history import RunSummary, training_history
from mtx.storage.run_files import RunLayout

_GOOD = [f"Der Mann {n} liest ein Buch über {n} Bäume ." for n in range(50)]
_SOURCES = [f"A man {n // 10} reads {n % 10} trees ." for n in range(50)]


def _judged(
    root: Path, bleu: float, validations: list[float], hypotheses: list[str] | None = None, *,
    reason: str = "max_steps", steps: int = 1000, pairs: int = 5000, epochs: float = 5.0,
    nll: list[float] | None = None, references: list[str] | None = None, generator: str | None = None,
    hint: str = "", sources: list[str] | None = None, chrf: float = 60.0, languages: str = "en de", **training: object,
) -> Advice:  # fmt: skip
    """The judgement of a run of an hour that ended for `reason`, with these validations at even distances."""
    scores = {"bleu": {"score": bleu}, "chrf": {"score": chrf}}
    (root / "model").mkdir(parents=True)
    (root / "model" / "scores.json").write_text(json.dumps({"format": 2, "test": scores}))
    texts = {
        "src": sources or _SOURCES,
        "hyp": hypotheses or _GOOD,
        "ref": references or _GOOD,
    }
    for name, lines in texts.items():
        path = root / "evaluation" / "test" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
    events: list[dict[str, object]] = [{"event": "start", "step": 0, "time": 0.0}]
    for n, score in enumerate(validations, 1):
        at = n / len(validations)
        loss = (nll or [3.0] * len(validations))[n - 1]
        events.append(
            {"event": "validation", "step": round(steps * at), "time": 3600.0 * at, "bleu": score, "nll": loss}
        )
    events.append({"event": "hint", "step": steps, "time": 3600.0, "text": hint})
    events.append({"event": "train", "step": steps, "time": 3600.0, "epochs": epochs})
    events.append({"event": "end", "step": steps, "time": 3600.0, "reason": reason})
    src, tgt = languages.split()
    config = Config.model_validate(
        {
            "training": {"batch_tokens": 1000, "max_steps": steps, **training},
            "model": {"dropout": 0.1},
            "data": {"generator": generator, "src": src, "tgt": tgt},
        }
    )
    report = {"kept": pairs}
    judgement = usability(
        RunSummary(RunLayout(root), config, training_history(events), report, {}, [], True, "finished")
    )
    assert judgement is not None
    return judgement


@pytest.mark.parametrize(
    ("bleu", "words"),
    [
        (4.1, "not usable"),
        (15.0, "hardly usable"),
        (25.0, "usable for the gist"),
        (34.0, "usable as a draft"),
        (97.0, "good"),
    ],
)
def test_the_score_decides_the_words(tmp_path: Path, bleu: float, words: str) -> None:
    judgement = _judged(tmp_path, bleu, [1.0, bleu, bleu, bleu])
    assert judgement.text.startswith(words) and f"({bleu:.1f} BLEU on test)" in judgement.text


def test_a_good_model_needs_no_advice(tmp_path: Path) -> None:
    judgement = _judged(tmp_path, 97.0, [10.0, 40.0, 97.0])
    assert judgement.hint == ""


@pytest.mark.parametrize(
    ("change", "words", "beginning"),
    [
        (lambda line: "so so so so", "100% of the translations repeat themselves", "not usable"),
        (lambda line: "" if line in _GOOD[:8] else line, "16% of the translations are empty", "hardly usable"),
        (lambda line: "Ein Mann .", "only 1 of the 50 translations are distinct", "not usable"),
    ],
)
def test_faulty_translations_make_a_score_worth_less(tmp_path: Path, change, words: str, beginning: str) -> None:  # type: ignore[no-untyped-def]
    judgement = _judged(tmp_path, 35.0, [30.0, 35.0, 35.0], [change(line) for line in _GOOD])
    assert words in judgement.text and judgement.text.startswith(beginning)


def test_references_that_are_alike_too_are_no_fault(tmp_path: Path) -> None:
    references = [f"Der Mann {n % 2} liest ." for n in range(50)]
    assert "distinct" not in _judged(tmp_path, 35.0, [35.0, 35.0], references, references=references).text


def test_a_collapsed_run_is_told_the_setting_that_causes_it_and_not_to_train_longer(tmp_path: Path) -> None:
    rates = {"learning_rate": 3.0, "warmup_steps": 400}
    remedy = "in another run_dir, set training.learning_rate=0.0022 (the paper's for this warmup), not 3"
    for number, (bleu, epochs) in enumerate([(0.2, 1.0), (0.2, 9.0)]):
        hint = {"hint": f"training collapsed: {remedy}", "epochs": epochs, **rates}
        judgement = _judged(tmp_path / f"{number}", bleu, [0.1, 0.2], ["Ein Mann ."] * 50, **hint)  # type: ignore[arg-type]
        assert judgement.text.startswith("not usable") and judgement.hint == f"training collapsed; {remedy}"
    recovered = _judged(tmp_path / "recovered", 25.0, [0.1, 25.0], hint=f"the nll rose: {remedy}", **rates)
    assert "learning_rate" not in recovered.hint
    assert "learning_rate" not in _judged(tmp_path / "other", 0.2, [0.1, 0.2], hint="it overfits", **rates).hint


def test_copies_of_the_source_are_counted(tmp_path: Path) -> None:
    copies = _SOURCES[:25] + _GOOD[25:]
    assert "50% of the translations are copies of the source" in _judged(tmp_path, 35.0, [35.0, 35.0], copies).text


def test_what_is_equal_to_the_reference_is_no_fault(tmp_path: Path) -> None:
    repeated = [f"nein nein nein {n}" for n in range(50)]
    judgement = _judged(tmp_path, 35.0, [35.0, 35.0], repeated, references=repeated)
    assert judgement.text.startswith("usable as a draft") and "repeat" not in judgement.text


def test_omissions_are_counted_unless_the_reference_has_them_too(tmp_path: Path) -> None:
    sources = [f"In {1950 + n} a man read a book about {n} trees ." for n in range(50)]
    references = [f"{1950 + n} las ein Mann ein Buch über {n} Bäume ." for n in range(50)]
    without = [f"Damals las ein Mann das Buch {n} ." for n in range(50)]
    short = ["." if n < 10 else f"{1950 + n} Mann {n}" for n in range(50)]
    lacking = _judged(tmp_path / "1", 35.0, [35.0], without, sources=sources, references=references).text
    assert lacking.startswith("not usable") and "100% of the translations lack a number of the source" in lacking
    alike = _judged(tmp_path / "2", 35.0, [35.0], without[::-1], sources=sources, references=without).text
    assert alike.startswith("usable as a draft") and "lack" not in alike
    assert "20% of the translations are too short" in _judged(tmp_path / "3", 35.0, [35.0], short, sources=sources).text


def test_chrf_decides_where_references_are_too_short_for_bleu(tmp_path: Path) -> None:
    words = [f"Wort{n}" for n in range(50)]
    judgement = _judged(tmp_path, 0.0, [0.0, 0.0], words, references=words)
    assert "60.0 chrF2" in judgement.text and judgement.text.startswith("usable as a draft")


def _of_words(num_words: int) -> list[str]:
    """50 lines with these many different words in all."""
    return [" ".join(f"kelime{n}" for n in range(line, num_words, 50)) for line in range(50)]


@pytest.mark.parametrize(
    ("bleu", "chrf", "by_bleu", "by_chrf"),
    [
        (15.0, 47.0, "hardly usable", "usable for the gist"),
        (15.0, 36.0, "hardly usable", "hardly usable"),
        (15.0, 70.0, "hardly usable", "usable for the gist"),  # one above, not three
        (4.0, 60.0, "not usable", "hardly usable"),
        (45.0, 70.0, "good", "good"),
        (33.0, 46.0, "usable as a draft", "usable for the gist"),
    ],
)
def test_chrf_decides_where_the_references_have_few_words(
    tmp_path: Path, bleu: float, chrf: float, by_bleu: str, by_chrf: str
) -> None:
    lines = {"chrf": chrf, "languages": "en tr", "sources": _of_words(2000)}
    few, enough = _of_words(1700), _of_words(1701)
    judgement = _judged(tmp_path / "few", bleu, [bleu], few, references=few, **lines)  # type: ignore[arg-type]
    assert judgement.text.startswith(by_chrf) and f"({chrf:.1f} chrF2 on test, " in judgement.text
    assert "the references have 0.85 words for each word of the source, so the verdict follows chrF2" in judgement.text
    judgement = _judged(tmp_path / "enough", bleu, [bleu], enough, references=enough, **lines)  # type: ignore[arg-type]
    assert judgement.text.startswith(by_bleu) and judgement.text.endswith(f"({bleu:.1f} BLEU on test)")


@pytest.mark.parametrize(
    ("languages", "line", "reference"),
    [
        ("en zh", "The red book lies on the table number {}.", "红色的书放在第{}张桌子上。"),
        ("en ja", "The red book lies on the table number {}.", "赤い本は{}番のテーブルの上にあります。"),
        ("en th", "The red book lies on the table number {}.", "หนังสือสีแดงวางอยู่บนโต๊ะ {}"),
        ("src tgt", "The red book lies on the table number {}.", "หนังสือสีแดงวางอยู่บนโต๊ะ {}"),  # known by its letters
        ("zh en", "红 色 的 书 放 在 第 {} 张 桌 子 上 。", "The red book lies on table {}."),
    ],
)
def test_words_are_not_counted_where_a_language_has_no_spaces(
    tmp_path: Path, languages: str, line: str, reference: str
) -> None:
    sources, references = ([form.format(n) for n in range(100, 150)] for form in (line, reference))
    assert sum(len(line.split()) for line in references) < 0.85 * sum(len(line.split()) for line in sources)
    lines = {"sources": sources, "references": references, "languages": languages, "chrf": 50.0}
    judgement = _judged(tmp_path, 15.0, [15.0], references, **lines)  # type: ignore[arg-type]
    assert judgement.text.startswith("hardly usable") and "(15.0 BLEU on test)" in judgement.text


def test_a_run_that_was_still_improving_is_told_so(tmp_path: Path) -> None:
    rising = [1.0, 5.0, 10.0, 15.0]
    improving = "training ended while it was still improving; increase training."
    assert _judged(tmp_path, 15.0, rising).hint == f"{improving}max_steps to train further"
    limited = _judged(tmp_path / "limited", 15.0, rising, reason="time_limit", time_limit="1h", max_steps=9000)
    assert limited.hint == f"{improving}time_limit to train further"
    assert "still improving" not in _judged(tmp_path / "patient", 15.0, rising, reason="patience").hint


def test_words_for_synthetic_text_ask_for_more(tmp_path: Path) -> None:
    assert _judged(tmp_path, 52.0, [52.0, 52.0], generator="grammar").text.startswith("hardly usable")


def test_a_useless_model_after_one_validation_or_few_epochs_was_hardly_trained(tmp_path: Path) -> None:
    hardly = "it was hardly trained; increase training.max_steps to train further"
    ended_early = {"reason": "time_limit", "time_limit": "8m", "max_epochs": 120, "epochs": 18.0}
    early = _judged(tmp_path / "early", 3.0, [3.0, 3.0, 3.0], **ended_early)  # type: ignore[arg-type]
    assert early.hint == hardly.replace("max_steps", "time_limit")
    assert _judged(tmp_path, 2.0, [2.0]).hint == hardly
    judgement = _judged(tmp_path / "few", 0.0, [0.0, 0.0, 0.0], [""] * 50, epochs=1.5)
    assert judgement.hint == hardly and "100% of the translations are empty)" in judgement.text
    adapt = "only 1,788 pairs: training from scratch needs a few thousand; add text, or use training.init_from=MODEL"
    assert _judged(tmp_path / "small", 2.0, [2.0], pairs=1788).hint.startswith(f"{hardly}; {adapt}")
    assert _judged(tmp_path / "2999", 2.0, [2.0], pairs=2999).hint.startswith(f"{hardly}; only 2,999 pairs")
    assert _judged(tmp_path / "3000", 2.0, [2.0], pairs=3000).hint == hardly
    assert _judged(tmp_path / "adapted", 2.0, [2.0], pairs=1788, init_from="models/en-de").hint == hardly


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nll": [2.0, 2.5, 3.0]}, "pairs; more text helps most, or model.dropout=0.3"),
        ({"init_from": "models/en-de"}, "a lower training.learning_rate"),
        ({"pairs": 19_999}, "it has only 19,999 pairs; more text helps most, or training.init_from=MODEL (mtx import)"),
        ({"pairs": 20_000}, "adapt a published model (mtx import, mtx train adapt)"),
        ({"pairs": 100_000}, "(mtx back-translate), or add more text of this kind"),
    ],
)
def test_a_run_that_learns_nothing_more_is_told_what_else_may_help(tmp_path: Path, values, words: str) -> None:  # type: ignore[no-untyped-def]
    judgement = _judged(tmp_path, 12.0, [12.0, 12.0, 12.0], reason="patience", **values)
    assert words in judgement.hint and "model.preset" not in judgement.hint


def test_a_run_without_scores_is_not_judged(tmp_path: Path) -> None:
    config = Config.model_validate({})
    assert usability(RunSummary(RunLayout(tmp_path), config, training_history([]), {}, {}, [], False, "new")) is None


def test_the_page_about_the_report_has_the_same_limits_and_words(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/howto/read-the-report.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:below (\d+)|(\d+) (?:to \d+|or more)) \|[^|]*\|[^|]*\| ([\w ]+)", page, re.MULTILINE)
    assert len(rows) == 5
    for number, (below, lowest, words) in enumerate(rows):
        bleu = float(lowest or int(below) - 1)
        assert _judged(tmp_path / str(number), bleu, [1.0, 2.0]).text.startswith(words.strip())
        if not below:
            assert not _judged(tmp_path / f"less-{number}", bleu - 0.1, [1.0, 2.0]).text.startswith(words.strip())


def test_the_mean_of_all_directions_of_the_first_set_decides(tmp_path: Path) -> None:
    """The faults of all are counted; BLEU says nothing if it says nothing about one."""
    (tmp_path / "model").mkdir()
    values = {"t.en-de": 50.0, "t.de-en": 14.0, "u.en-de": 90.0, "t": 32.0, "u": 90.0}
    scores = {name: {"bleu": {"score": value}, "chrf": {"score": value + 20}} for name, value in values.items()}
    (tmp_path / "model" / "scores.json").write_text(json.dumps({"format": 2, **scores}))
    texts = {"src": _SOURCES, "hyp": _GOOD, "ref": _GOOD}

    def write(name: str, **others: list[str]) -> None:
        for file, lines in {**texts, **others}.items():
            path = tmp_path / "evaluation" / name / f"{file}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines))

    def judge() -> str:
        config = Config.model_validate({"data": {"directions": ["en-de", "de-en"]}, "training": {"max_steps": 9}})
        history = training_history([])
        judgement = usability(RunSummary(RunLayout(tmp_path), config, history, {}, {}, [], True, "finished"))
        assert judgement is not None
        return judgement.text

    write("t.en-de")
    write("t.de-en")
    assert judge().startswith("usable as a draft")
    assert judge().endswith("(32.0 BLEU on t, 50.0 on t.en-de, 14.0 on t.de-en)")
    write("t.de-en", hyp=["so so so so"] * 10 + _GOOD[10:])
    assert judge().startswith("hardly usable") and "10% of the translations repeat themselves" in judge()
    write("t.de-en", ref=["ja"] * 50, hyp=["ja"] * 50)
    assert "52.0 chrF2 on t, 70.0 on t.en-de" in judge()
