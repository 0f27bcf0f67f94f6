"""Tags go to the words that the attention links, also if some pieces draw the attention of others."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mtx.commands.translate import Review, translate_document
from mtx.config.schema import TokenizerConfig
from mtx.data.glossary import Glossary
from mtx.data.markup import Tag, bare, mark_up, raw
from mtx.data.tokenizer import train_tokenizer
from mtx.decoding.options import Attention, Candidate, SearchOptions
from mtx.decoding.tag_placement import divided, put_back
from mtx.decoding.translator import Hypothesis, Part, best_combinations
from mtx.decoding.word_alignment import _balance
from mtx.documents.bilingual_documents import with_lines
from tests.translators import FakeTranslator

SRC, TGT = ["a", "red", "dog"], ["un", "chien", "rouge"]
ATTENTION = [[0.3, 0.1, 0.6, 0.0], [0.1, 0.1, 0.8, 0.0], [0.1, 0.4, 0.5, 0.0]]  # the noun draws all


class Fixed(FakeTranslator):
    """Translates SRC into TGT; the attention is that of whole words, in any case."""

    def __init__(self) -> None:
        lines = [" ".join(words) for words in (SRC, TGT, ["A", "Un"])] * 50
        super().__init__(train_tokenizer(lines, TokenizerConfig(vocab_size=305), 1, []), 20, SearchOptions())
        self.attended: list[list[str]] = []

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        [ids] = self.tokenizer.encode([" ".join(TGT)], target=True)
        return [[Candidate(ids, 0.0)] for _ in sources]

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        self.attended += [self.tokenizer.pieces(ids) for ids in (*sources, *targets)]
        return [np.array(ATTENTION, np.float32) for _ in sources]


def test_balanced_attention_gives_each_source_piece_as_much() -> None:
    balanced = _balance(np.array(ATTENTION, np.float32)[:, :3])
    assert balanced.sum(0) == pytest.approx([1, 1, 1]) and balanced.sum(1) == pytest.approx([1, 1, 1], abs=0.05)
    assert [int(row.argmax()) for row in balanced] == [0, 2, 1]
    assert np.isfinite(_balance(np.zeros((2, 3), np.float32))).all() and _balance(np.empty((0, 3))).shape == (0, 3)


def test_each_word_keeps_its_tags_though_one_draws_all_attention() -> None:
    bold = [Tag("<b>", "open", "b"), "red", Tag("</b>", "close", "b")]
    [translation] = [each.marked for each in Fixed().translate_marked([["a ", *bold, " dog"]])]
    assert "".join(part if isinstance(part, str) else part.raw for part in translation) == "un chien <b>rouge</b>"


def test_attention_is_that_of_a_sentence_in_capitals_as_it_was_translated() -> None:
    translator = Fixed()
    bold = [Tag("<b>", "open", "b"), "RED", Tag("</b>", "close", "b")]
    [translation] = [each.marked for each in translator.translate_marked([["A ", *bold, " DOG"]])]
    assert "".join(part if isinstance(part, str) else part.raw for part in translation) == "UN CHIEN <b>ROUGE</b>"
    assert translator.attended == [["▁A", "▁red", "▁dog", "</s>"], [f"▁{word}" for word in TGT] + ["</s>"]]


@pytest.mark.parametrize(
    "source",
    ["<p>{}</p><p>{}</p>", " {}\n\n{} ", "{}|{}", "<li>{}</li> <li>{}</li>", "{}\n- {}",
     "- {}\n  -x, --all  {}", "<para>{}</para><para>{}</para>"],
)  # fmt: skip
def test_blocks_are_translated_one_by_one(source: str) -> None:
    parts = with_lines(mark_up([source.format("a red dog", "a dog")]))
    [translation] = [each.marked for each in Fixed().translate_marked([parts])]
    assert raw(translation) == source.format(*[" ".join(TGT)] * 2)


@pytest.mark.parametrize(
    "source, num_parts",
    [("A dog<br/>A dog", 2), ("A dog\nA dog", 2), ("A dog<nl/>%s dog", 2), ("A dog|nA dog", 2), ("A dog\na dog", 1),
     ("A&nbsp;Dog", 1), (" " * 40 + "A dog\nA dog", 1)],
)  # fmt: skip
def test_a_break_behind_a_short_line_ends_it(source: str, num_parts: int) -> None:
    [translation] = [each.marked for each in Fixed().translate_marked([with_lines(mark_up([source]))])]
    assert raw(translation).count("chien") == num_parts


def test_a_line_with_texts_for_several_numbers_stays() -> None:
    line = "You have {n, plural, one {# dog} other {# dogs}}"
    lines = [line, "{0,choice,0#no dog|1#a dog}", "a red dog %d"]
    assert Fixed().translate(lines) == [*lines[:2], "un chien rouge %d"]


class Noting(Fixed):
    """Notes what the model reads, and writes `text`."""

    text = "un %s chien rouge"

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        self.read = self.tokenizer.decode([*sources])
        return [[Candidate(ids, 0.0)] for ids in self.tokenizer.encode([self.text] * len(sources), target=True)]


def test_a_learned_code_goes_through_the_model_and_others_do_not() -> None:
    translator = Noting()
    translator.codes = frozenset(["%s"])
    assert translator.translate(["a red %s dog {n}", "%s"]) == ["un %s chien rouge {n}", "%s"]
    assert translator.read == ["a red %s dog"]


@pytest.mark.parametrize("text", ["un chien rouge", "un chien %s rouge %s", "un chien %d rouge"])
def test_a_learned_code_is_placed_if_the_model_has_not_written_it_once(text: str) -> None:
    translator = Noting()
    translator.codes, translator.text = frozenset(["%s"]), text
    assert translator.translate(["a red dog %s", "a red dog"]) == ["un chien rouge %s", "un chien rouge"]
    assert translator.translate(["a red dog %s"], ["un"]) == [text], "a prefix is part of it as it is"


def test_the_terms_that_a_document_uses_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def load() -> Fixed:
        translator = Fixed()
        translator.glossary = Glossary({"red": "rouge", "dog": "loup", "cat": "chat"})
        return translator

    page = tmp_path / "a.html"
    page.write_text("<p>a red dog</p><p>a <b>red</b> one</p>")
    with caplog.at_level(logging.INFO, logger="mtx"):
        translate_document(page, "html", tmp_path / "out.html", False, load(), Review(None))
    told = [record.getMessage() for record in caplog.records]
    assert "2 of 3 terms of the glossary used; missing:" in told
    assert "  loup in the translation of: a red dog" in told


def test_terms_of_a_sentence_in_capitals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def load() -> Fixed:
        translator = Fixed()
        translator.glossary = Glossary({"red": "rouge", "DOG": "loup"})
        return translator

    assert load().truecase("A RED DOG") == ("A red DOG", "upper"), "a term stays as it is"
    page = tmp_path / "a.html"
    page.write_text("<p>A RED DOG</p>")
    with caplog.at_level(logging.INFO, logger="mtx"):
        translate_document(page, "html", tmp_path / "out.html", False, load(), Review(None))
    assert "1 of 2 terms of the glossary used" in caplog.text


class Copying(Fixed):
    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        return [[Candidate(ids, 0.0)] for ids in sources]


def test_suspicious_translations_of_a_document_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    page, out = tmp_path / "a.html", tmp_path / "out.html"
    page.write_text("<p>a red dog</p><p>dog</p>")
    with caplog.at_level(logging.INFO, logger="mtx"):
        translate_document(page, "html", out, False, Copying(), Review(None))
    assert out.read_text() == page.read_text() and "2 segments translated" in caplog.text
    assert "suspicious translations to check: 1, such as: a red dog" in caplog.text


def test_no_space_begins_a_line_of_the_translation() -> None:
    parts = [Part([], None), Part([], None, follows_sentence=True)]
    second = [Hypothesis([Tag("[b]", "open", "b"), "Zwei."], 0, [])]
    for mark, expected in (
        (Tag("\n", "alone", is_break=True), "Eins.\n[b]Zwei."),
        (Tag("[i]", "alone"), "Eins.[i] [b]Zwei."),
    ):
        [joined] = best_combinations(parts, [[Hypothesis(["Eins.", mark], 0, [])], second], 1)
        assert joined.text == expected


def test_the_ends_of_a_pair_between_its_sentences_are_not_written() -> None:
    line = Tag("<br/>", is_break=True)
    text, tags = bare([Tag("<b>", "open", "b"), "Eins.", line, "Zwei.", Tag("</b>", "close", "b")])
    assert text == "Eins. Zwei."
    (first, its_tags), _ = divided(["Eins.", "Zwei."], [0, 6], tags)
    assert put_back(its_tags, first, first, ()) == [Tag("<b>", "open", "b"), "Eins.", line]


def test_an_empty_translation_is_left_and_no_example_of_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(Copying):
        def search(
            self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
        ) -> list[list[Candidate]]:
            [end] = self.tokenizer.encode([""], target=True)
            return [[Candidate(end if len(ids) > 10 else ids, 0.0)] for ids in sources]

    long = " ".join(["a red dog"] * 6)
    page, out = tmp_path / "a.html", tmp_path / "out.html"
    with caplog.at_level(logging.INFO, logger="mtx"):
        page.write_text(f"<p>{long}</p>")
        translate_document(page, "html", out, False, Silent(), Review(None))
        assert out.read_text() == page.read_text() and "1 left (1 empty translation)" in caplog.text
        assert "suspicious" not in caplog.text
        page.write_text(f"<p>{long}</p><p>a red dog</p>")
        translate_document(page, "html", out, False, Silent(), Review(None))
    assert "suspicious translations to check: 1, such as: a red dog" in caplog.text
    assert Silent().translate([long, "dog"]) == ["", "dog"], "lines keep what the model writes"
