"""A translator has one direction of its model; both engines force its tokens, which cost nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mtx.config.schema import TokenizerConfig
from mtx.data.sentencepiece_models import SplitModel
from mtx.data.tokenizer import EOS_ID, Rule, Tokenizer, train_tokenizer
from mtx.decoding import model_directory
from mtx.decoding.options import penalty
from mtx.decoding.translator import Translator
from mtx.errors import UsageError
from tests.models import tiny_model
from tests.translators import torch_translator
from tests.unit.data.test_tokenizer import PIECES, side_model

DIRECTIONS = ["en-de", "en-fr", "de-en", "fr-en"]
LINES = ["abc de fgh", "cab fad", "gab", "ha ha ce", "dead cafe bad bag"]


def multilingual(directory: Path, rule: Rule, directions: list[str] = DIRECTIONS) -> Path:
    """A model directory with random weights and several directions."""
    lines = [f"{a}{b} {b}a{c}" for a in "abcdefgh" for b in "abcdefgh" for c in "abcd"]
    trained = train_tokenizer(lines, TokenizerConfig(vocab_size=300), 200, [], languages=["de", "en", "fr"])
    tokenizer = Tokenizer(trained.models, "nfc", [], languages=trained.languages, rule=rule)
    model = tiny_model(tokenizer.num_ids, seed=3, dtype=torch.float32, output_bias=True)
    with torch.no_grad():
        for layer in model.decoder:
            layer.cross_attention.output.weight.mul_(6)
        model.output_weight.mul_(2)
        model.output_bias[EOS_ID] += 6
    info = {"directions": directions, "max_tokens": 24, "beam_size": 4, "length_penalty": 0.6}
    model_directory.write(directory, model.state_dict(), model.config, tokenizer, info)
    return directory


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return multilingual(tmp_path_factory.mktemp("both") / "model", "both")


def test_a_direction_is_a_view_of_the_same_engine(both: Path) -> None:
    model = Translator.load(both, engine="torch", threads=1)
    assert model.directions == [("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "en")]
    french, german = model.to("fr"), model.to("de").to("en", "de")
    assert (french.languages, german.src, german.tgt) == (("en", "fr"), "de", "en")
    assert french.engine is german.engine is model.engine and french.torch is model.torch
    ids = model.tokenizer.languages
    assert french.frame.before_src == (ids["en"],) and french.frame.before_tgt == (ids["fr"],)
    back = french.to("en", "de").frame
    assert (back.before_src, back.before_tgt) == ((ids["de"],), (ids["en"],))
    fast = Translator.load(both, engine="ctranslate2", threads=1)
    assert fast.to("fr").torch is fast.to("de").torch
    texts = [view.translate(LINES) for view in (french, model.to("de"))]
    assert texts[0] != texts[1] and texts[0] == Translator.load(both, to="fr", engine="torch").translate(LINES)
    for use in (lambda: model.translate(LINES), lambda: model.src, lambda: model.log_probs(LINES, LINES)):
        with pytest.raises(UsageError, match="choose a direction of the model; it has en-de, en-fr, de-en, fr-en"):
            use()


@pytest.mark.parametrize(
    "to, src, problem",
    [
        ("it", None, "--to it: no such direction; the model has en-de, en-fr, de-en, fr-en"),
        ("de", "fr", "--from fr --to de: no such direction; the model has en-de, en-fr, de-en, fr-en"),
        ("en", None, "--to en: several directions; the model has de-en, fr-en"),
        (None, "en", "--from en: several directions; the model has en-de, en-fr"),
    ],
)
def test_a_direction_must_be_one_of_the_model(both: Path, to: str | None, src: str | None, problem: str) -> None:
    with pytest.raises(UsageError, match=f"^{problem}$"):
        Translator.load(both, to=to, src=src, engine="torch")


def test_one_direction_may_be_named() -> None:
    models = SplitModel(side_model("ab"), side_model("xy"), {piece: i for i, piece in enumerate(PIECES)})
    one = torch_translator(tiny_model(len(PIECES) + 1), Tokenizer(models, "none", []), 24)
    assert one.to("tgt").languages == one.to("tgt", "src").languages == one.languages == ("src", "tgt")
    french = one.to("fr")  # a published model that names its targets by pieces
    assert french.languages == ("src", "fr") and french.frame.before_src == (PIECES.index(">>fr<<"),)
    with pytest.raises(UsageError, match="--to src: no such direction; the model has src-tgt, src-"):
        one.to("src")


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_forced_languages_do_not_count(both: Path, engine: Any, beam_size: int) -> None:
    translator = Translator.load(both, to="fr", engine=engine, beam_size=beam_size, length_penalty=1.0, threads=1)
    language = translator.tokenizer.languages["fr"]
    sources = translator.tokenizer.encode(LINES, translator.frame)
    found = translator.engine.search(sources, [[language]] * len(LINES), translator.options)
    for source, candidates in zip(sources, found, strict=True):
        for candidate in candidates:
            assert candidate.ids[0] == language
            [whole] = translator.torch.log_probs([source], [candidate.ids], 1.0)
            assert whole.num_tokens == len(candidate.ids) - 1
            assert candidate.score == pytest.approx(whole.score, abs=2e-4)
            assert whole.score == pytest.approx(whole.log_prob / penalty(len(candidate.ids) - 1, 1.0))


def test_a_forced_language_is_the_only_prefix_that_needs_no_second_scoring(
    both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator.load(both, to="fr", engine="ctranslate2", beam_size=1, threads=1)
    engine: Any = translator.engine
    runtime, scored = engine.runtime, list[int]()

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(runtime, name)

        def score_batch(self, src: list[Any], *rest: Any, **options: Any) -> Any:
            scored.append(len(src))
            return runtime.score_batch(src, *rest, **options)

    monkeypatch.setattr(engine, "runtime", Counting())
    [found] = zip(*translator.hypotheses(LINES), strict=True)
    num_whole = sum(len(hypothesis.pieces) < 20 for hypothesis in found)
    assert num_whole == 3 and sum(scored) == len(LINES) - num_whole
    scored.clear()
    hypotheses = translator.hypotheses(LINES, ["ab"] * len(LINES))
    assert sum(scored) == sum(map(len, hypotheses)) > 0
    exact = Translator.load(both, to="fr", engine="torch", beam_size=1, threads=1).hypotheses(
        LINES, ["ab"] * len(LINES)
    )
    assert [h[0].text for h in hypotheses] == [h[0].text for h in exact]
    assert [h[0].score for h in hypotheses] == pytest.approx([h[0].score for h in exact], abs=2e-4)


@pytest.mark.parametrize("rule", ["target", "both"])
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_each_sentence_of_a_line_has_its_languages(
    tmp_path: Path, rule: Rule, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = multilingual(tmp_path / "model", rule)
    translator = Translator.load(model, to="fr", engine=engine, split_sentences=True, threads=1)
    asked, search = list[tuple[list[int], list[int]]](), translator.engine.search

    def searched(sources: Any, prefixes: Any, options: Any) -> Any:
        asked.extend(zip(sources, prefixes, strict=True))
        return search(sources, prefixes, options)

    monkeypatch.setattr(translator.engine, "search", searched)
    [text] = translator.translate(["Abc de. Fgh ab. Cab fad. Gab ha. Dead cafe."])
    ids = translator.tokenizer.languages
    expected = (ids["fr"], []) if rule == "target" else (ids["en"], [ids["fr"]])
    assert [(source[0], prefix) for source, prefix in asked] == [expected] * 5
    assert ">>" not in text
