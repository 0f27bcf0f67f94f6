"""What is said of a text and of a plan, and the figures that it rests on, by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx.config.schema import Config, TrainingConfig
from mtx.data.token_store import TokenStore, store_batch, write_store
from mtx.report import advice as checks
from mtx.report.advice import length_correlation, spread, unknown_share
from mtx.training.schedule import steps_per_epoch
from tests.unit.data.sentences import sentences

# </s> 0, <unk> 1, pieces from 2 on, a tag that is no piece
PIECES = ["</s>", "<unk>", "▁a", "b", "▁", "<0xE1>", "▁c", "<BT>"]
TOKENIZER: Any = SimpleNamespace(vocabulary=lambda: PIECES, num_pieces=7)
Ids = list[list[int]]


def store(
    path: Path, src: Ids, tgt: Ids, weight: float = 1.0, tgt_text: str = "a text of words", languages: str = ""
) -> TokenStore:
    """A store of these ids, with a text that stays the same or with sentences of two languages such as en-de."""
    number = len(src)
    texts = ["s"] * number, [tgt_text] * number
    if languages:
        src_language, tgt_language = languages.split("-")
        texts = sentences(src_language, number), sentences(tgt_language, number)
    write_store(
        path, len(PIECES), [weight], [store_batch(len(PIECES), src, tgt, np.arange(number), np.zeros(number), *texts)]
    )
    return TokenStore.load(path)


def pairs(number: int) -> tuple[Ids, Ids]:
    """Pairs of two languages whose sentences are long together; 600 have 11,100 target tokens."""
    lengths = [3 + 7 * place % 30 for place in range(number)]
    return [[2] * n + [0] for n in lengths], [[6] * n + [0] for n in lengths]


def held(pairs: int, leaked: int = 0, **would_drop: int) -> dict[str, Any]:
    example = {"corpus": "train.tsv", "line": 7, "src": "one", "tgt": "eins"}
    leaks = {"train_pairs": leaked, "example": example if leaked else None}
    return {"pairs": pairs, "held_out": False, "would_drop": would_drop, "leaks": leaks}


def prepared(train: TokenStore, held_out: TokenStore, **report: Any) -> Any:
    """Prepared data with a clean report, but for what is told otherwise."""
    clean = {"read": 10_000, "kept": 10_000, "dropped": {}, "corpora": [{}], "valid": held(500), "tests": {}}
    tests = dict.fromkeys(report.get("tests", ()), held_out)
    return SimpleNamespace(train=train, valid=held_out, tests=tests, tokenizer=TOKENIZER, report={**clean, **report})


@pytest.fixture
def clean(tmp_path: Path) -> TokenStore:
    return store(tmp_path / "clean.arrow", *pairs(600))


def told(data: Any, last_step: int | None = None, **training: Any) -> str:
    values = {"max_steps": 1000, "batch_tokens": 370, "warmup_steps": 100, **training}
    terms = values.pop("terms", None)
    config = Config.model_validate({"data": {"src": "en", "tgt": "de", "terms": terms}, "training": values})
    advice = list(checks.warnings(data, config, last_step))
    assert all(each.text and each.hint for each in advice)
    return "\n".join(each.text for each in advice)


def test_nothing_is_said_of_clean_text_and_a_usual_plan(clean: TokenStore) -> None:
    assert told(prepared(clean, clean)) == ""


@pytest.mark.parametrize(
    "report, text",
    [
        ({"dropped": {"empty": {"pairs": 600, "example": held(1, 1)["leaks"]["example"]}}},
         "6% of the pairs are dropped: empty, such as train.tsv:7: one -> eins"),
        ({"dropped": {"identical": {"pairs": 9000, "example": held(1, 1)["leaks"]["example"]}}},
         "90% of the pairs are the source copied as the target, such as train.tsv:7: one -> eins"),
        ({"dropped": {"empty": {"pairs": 400, "example": None}}}, ""),
        ({"valid": held(500, leaked=4)}, ""),
        ({"valid": held(500, leaked=5)},
         "validation set: 5 training pairs have a source or target of it, such as train.tsv:7: one -> eins"),
        ({"suspicious": {"numbers": 0.01}}, ""),
        ({"suspicious": {"numbers": 0.02, "short": 0.015}}, "suspicious training targets: 2.00% numbers, 1.50% short"),
        ({"other_language": {"share": 0.02, "example": None}}, ""),
        ({"other_language": {"share": 0.021, "example": {**held(1, 1)["leaks"]["example"], "language": "de"}}},
         "2.10% of the training pairs have a side in another language, such as German in train.tsv:7: one -> eins"),
        ({"missing_values": {"pairs": 49, "example": held(1, 1)["leaks"]["example"]}}, ""),
        ({"missing_values": {"pairs": 50, "example": held(1, 1)["leaks"]["example"]}},
         "0.5% of the pairs have a missing value, such as train.tsv:7: one -> eins"),
        ({"tests": {"news": held(100)}}, "test set news: only 100 sentences; its BLEU will fluctuate"),
        ({"valid": held(500, empty=20, identical=5)},
         "validation set: 25 of 500 pairs look damaged (20 empty, 5 identical)"),
        ({"kept": 2000}, "only 2,000 pairs: training from scratch needs a few thousand"),
    ],
)  # fmt: skip
def test_what_a_report_gives_reason_to_say(report: dict[str, Any], text: str, clean: TokenStore) -> None:
    assert told(prepared(clean, clean, **report)) == text


@pytest.mark.parametrize(
    "training, last_step, text",
    [
        ({"max_steps": 10_000}, None, ""),
        ({"max_steps": 100}, None, "training ends at step 100, but the warmup lasts until step 100"),
        ({}, 50, "training ends at step 50, but the warmup lasts until step 100"),
    ],
)
def test_what_a_plan_gives_reason_to_say(
    training: dict[str, Any], last_step: int | None, text: str, clean: TokenStore
) -> None:
    assert told(prepared(clean, clean), last_step, **training) == text


def test_sides_that_are_shifted_or_of_another_language(tmp_path: Path, clean: TokenStore) -> None:
    src, tgt = pairs(600)
    shifted = store(tmp_path / "shifted.arrow", src[1:], tgt[:-1])
    assert told(prepared(clean, shifted)).startswith(
        "validation set: long sentences do not have long translations (corr"
    )
    foreign = store(tmp_path / "foreign.arrow", [[4, *[5] * len(ids), 0] for ids in src], tgt)
    assert told(prepared(clean, foreign)) == "validation set: 100% of the en words have unknown characters"


@pytest.mark.parametrize(
    "train, valid, test, text, hint",
    [
        ("en-de", "en-de", "en-de", "", ""),
        ("en-fr", "en-de", "en-de", "training text: the de side looks like French",
         "set data.tgt=fr if it is; otherwise check that the right file or column is read"),
    ],
)  # fmt: skip
def test_the_languages_of_the_sides(train: str, valid: str, test: str, text: str, hint: str, tmp_path: Path) -> None:
    ids = dict(zip(("en", "de", "fr"), (*pairs(600), pairs(600)[1]), strict=True))
    stores = [
        store(tmp_path / str(place), *(ids[language] for language in languages.split("-")), languages=languages)
        for place, languages in enumerate((train, valid, test))
    ]
    data = prepared(stores[0], stores[1], tests={"news": held(500)})
    data.tests = {"news": stores[2]}
    training = {"batch_tokens": 370, "warmup_steps": 100}
    config = Config.model_validate({"data": {"src": "en", "tgt": "de", "train": "my.tsv"}, "training": training})
    advice = [(each.text, each.hint) for each in checks.warnings(data, config, 1000)]
    assert advice == ([(text, hint)] if text else [])


def test_a_set_that_was_held_out_is_not_named_again(tmp_path: Path) -> None:
    other = store(tmp_path / "store", *pairs(600), languages="en-fr")
    assert (
        told(prepared(other, other, valid={**held(500), "held_out": True}))
        == "training text: the de side looks like French"
    )


def of_directions(directions: str, train: TokenStore, held_out: TokenStore, **report: Any) -> list[tuple[str, str]]:
    """The advice about a text of several directions, with a test set of each; the sets have the same text."""
    pairs = [dict(zip(("src", "tgt"), direction.split("-"), strict=True)) for direction in directions.split(",")]
    report = {"tests": {f"news.{name}": held(500) for name in directions.split(",")}, "corpora": pairs, **report}
    values = {"max_steps": 1000, "batch_tokens": 370, "warmup_steps": 100}
    config = Config.model_validate({"data": {"directions": directions, "train": "my.tsv"}, "training": values})
    return [tuple(each) for each in checks.warnings(prepared(train, held_out, **report), config, 1000)]


FOUR = "en-lij,lij-en,en-lmo,lmo-en"
OTHERS = "test set news.lij-en, test set news.en-lmo, test set news.lmo-en"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (held(24), "only 24 sentences; its BLEU will fluctuate"),
        (held(500, leaked=9), "9 training pairs have a source or target of it, such as train.tsv:7: one -> eins"),
        (held(500, empty=30), "30 of 500 pairs look damaged (30 empty)"),
    ],
)
def test_what_the_sets_of_four_directions_share_is_said_once(
    entry: dict[str, Any], problem: str, clean: TokenStore
) -> None:
    tests = {f"news.{direction}": entry for direction in FOUR.split(",")}
    [(text, _)] = of_directions(FOUR, clean, clean, tests=tests)
    assert text == f"test set news.en-lij: {problem}; likewise {OTHERS}"
    [(text, _)] = of_directions(FOUR, clean, clean, tests={**tests, "news.en-lij": held(500)})
    assert text.startswith(f"test set news.lij-en: {problem}; likewise test set news.en-lmo")
    found = of_directions(FOUR, clean, clean, tests=tests, valid=entry)
    assert len(found) == (2 if "sentences" in problem else 1), "data.valid and data.test are two settings"


def test_what_is_wrong_with_the_text_is_said_once_for_each_language(tmp_path: Path, clean: TokenStore) -> None:
    src, tgt = pairs(600)
    strange = store(tmp_path / "strange", [[4, *[5] * len(ids), 0] for ids in src], tgt, languages="fr-de")
    found = [text for text, _ in of_directions("en-lij,lij-en", clean, strange)]
    sets = "test set news.en-lij, test set news.lij-en"
    assert found == [
        f"validation set: the en side looks like French; likewise {sets}",
        f"validation set: 100% of the en words have unknown characters; likewise {sets}",
        f"validation set: the lij side looks like German; likewise {sets}",
    ]
    (_, hint), *_ = of_directions("en-lij,lij-en", clean, strange)
    assert hint.startswith("set fr for en in data.directions if it is")


def test_sides_that_are_shifted_in_several_sets_are_named_together(tmp_path: Path, clean: TokenStore) -> None:
    src, tgt = pairs(600)
    [(text, _)] = of_directions(FOUR, clean, store(tmp_path / "shifted", src[1:], tgt[:-1]))
    assert text.startswith("validation set: long sentences") and text.endswith("news.en-lij, " + OTHERS)


def test_an_epoch_counts_a_corpus_as_often_as_its_weight(tmp_path: Path) -> None:
    train = store(tmp_path / "train.arrow", [[2, 0]] * 10, [[6, 6, 6, 0]] * 10, weight=2.0)
    for copies in (0, 0.5):
        training = TrainingConfig(batch_tokens=16, copied_target_ratio=copies)
        assert steps_per_epoch(train, training) == (1 + copies) * 2 * 10 * 4 / 16


@pytest.mark.parametrize("text, is_told", [("ein H@@ und", True), ("▁ein ▁Hund", True), ("me@@work", False)])
def test_training_text_that_is_split_into_subwords(text: str, is_told: bool, tmp_path: Path, clean: TokenStore) -> None:
    split = store(tmp_path / "split.arrow", *pairs(600), tgt_text=text)
    problem = "100% of the training pairs are split into subwords (▁, @@ or ##)"
    assert told(prepared(split, clean)) == (problem if is_told else "")


def test_the_lines_of_the_report_have_the_omissions() -> None:
    other_language = {"share": 0.001, "example": {**held(1, 1)["leaks"]["example"], "language": "de"}}
    report = {"suspicious": {"short": 0.001}, "other_language": other_language, "valid": held(500), "tests": {}}
    assert list(checks.set_lines(report)) == [
        "suspicious training targets: 0.10% short",
        "0.10% of the training pairs have a side in another language, such as German in train.tsv:7: one -> eins",
        "validation set: 500 pairs; none of its sentences is in the training text",
    ]


def test_near_leaks_are_shown_and_warned_of_where_they_are_many(clean: TokenStore) -> None:
    example = {**held(1, 1)["leaks"]["example"], "like": "one"}
    for num_lines, leaked in ((99, 0), (100, 0), (100, 9)):
        entry = held(500, leaked)
        entry["leaks"] |= {"near_pairs": 30, "near_examples": [example] * 3, "lines": [*range(num_lines)]}
        line, *examples = checks.set_lines({"valid": entry, "tests": {}})
        assert line == f"validation set: 500 pairs; {checks.leaks(entry)}"
        assert line.endswith(f"; 30 training pairs have a near match; {500 - num_lines} of its lines have neither")
        assert examples == ["  near match: train.tsv:7: one -> eins, like: one"] * 3
        problem = f"validation set: {checks.leaks(entry)}"
        assert told(prepared(clean, clean, valid=entry)) == (problem if num_lines == 100 else "")
        assert told(prepared(clean, clean, valid=entry | {"held_out": True})) == ""


def test_words_that_are_unknown(tmp_path: Path) -> None:
    src = [
        [7, 2, 3, 6, 0],  # tag, ab c: two words of three pieces
        [4, 5, 5, 2, 0],  # bytes, a: two words of four pieces, one in bytes
        [3, 1, 0],  # goes on without a space, and is unknown: one word of two pieces
        [0],
    ]
    four = store(tmp_path / "a.arrow", src, src)
    assert unknown_share(four.src, TOKENIZER) == pytest.approx(2 / 5)
    empty = store(tmp_path / "b.arrow", [[0]], [[0]])
    assert unknown_share(empty.src, TOKENIZER) == 0


def test_spread_is_even_and_without_repetition() -> None:
    assert spread(10, 5).tolist() == [0, 2, 4, 6, 8]
    assert spread(3, 5).tolist() == [0, 1, 2] and spread(0, 5).tolist() == []


def test_lengths_of_pairs_that_belong_together_go_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(3, 40, 600)
    src = [[2] * n + [0] for n in lengths]
    tgt = [[6] * max(1, n + int(rng.integers(-2, 3))) + [0] for n in lengths]
    aligned = store(tmp_path / "aligned", src, tgt)
    shifted = store(tmp_path / "shifted", src[1:], tgt[:-1])
    equal = store(tmp_path / "equal", [[2, 0]] * 600, tgt)
    alike = [length_correlation(each) for each in (aligned, shifted, equal)]
    assert alike[0] > 0.9 and abs(alike[1]) < 0.2 and alike[2] == 1
