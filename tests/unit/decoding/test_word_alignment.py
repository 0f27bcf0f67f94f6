"""Which words belong together: an engine that writes the words of its source in reverse tells which ones it reads."""

import random
import re
from collections.abc import Sequence
from itertools import accumulate
from unicodedata import normalize

import numpy as np
import pytest

from mtx.config.schema import TokenizerConfig
from mtx.data.tokenizer import train_tokenizer
from mtx.decoding.options import Attention, Candidate, SearchOptions
from tests.translators import FakeTranslator

WORDS = ["a", "red", "dog", "runs", "A", "Dog", "It's", "ice-cream", "café"]
NAME = ">>fra<<"
NAME_ID = 9


class Reversing(FakeTranslator):
    """Writes the words of a source in reverse; each piece of the translation attends to the same piece of its word."""

    def __init__(self, max_tokens: int = 60, split_sentences: bool = True):
        tokenizer = train_tokenizer(
            [" ".join(WORDS), " ".join(WORDS).upper()] * 50, TokenizerConfig(vocab_size=310), 1, []
        )
        super().__init__(tokenizer, max_tokens, SearchOptions(split_sentences=split_sentences))
        self.num_attended = 0

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        texts = self.tokenizer.decode([ids[ids[:1] == [NAME_ID] :] for ids in sources])
        targets = self.tokenizer.encode([" ".join(reversed(text.split())) for text in texts], target=True)
        return [[Candidate([*prefix, *ids], 0.0)] for prefix, ids in zip(prefixes, targets, strict=True)]

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        self.num_attended += len(sources)
        return [self._attention(src, tgt) for src, tgt in zip(sources, targets, strict=True)]

    def _attention(self, src: list[int], tgt: list[int]) -> Attention:
        attention = np.full((len(tgt), len(src)), 1e-3, np.float32)
        src_words, tgt_words = map(self._words, (src, tgt))
        for src_word, tgt_word in zip(src_words, reversed(tgt_words), strict=False):
            for column, row in zip(src_word, tgt_word, strict=False):
                attention[row, column] = 1
        return attention

    def _words(self, ids: list[int]) -> list[list[int]]:
        """The places of the pieces of each word; the name of a language belongs to none."""
        pieces = self.tokenizer.pieces(ids)[:-1]
        numbers = accumulate(piece.startswith("▁") for piece in pieces)
        words: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            if ids[place] != NAME_ID:
                words.setdefault(number, []).append(place)
        return list(words.values())

    def aligned(self, line: str, prefixes: list[str] | None = None) -> tuple[str, str]:
        """The translation of a line and its alignment."""
        [[best]] = self.hypotheses([line], prefixes)
        [alignment] = self.align([[best]])
        return best.text, alignment


@pytest.mark.parametrize(
    "line, translation, alignment",
    [
        ("a red dog", "dog red a", "0-2 1-1 2-0"),
        ("a red dog. Dog runs.", "dog. red a runs. Dog", "0-2 1-1 2-0 3-4 4-3"),
        ("  - a dog", "  - dog a", "0-0 1-2 2-1"),
        ("1. a dog", "1. dog a", "0-0 1-2 2-1"),
        ("12 kB", "12 kB", "0-0 1-1"),
        ("", "", ""),
        ("🎉", "🎉", ""),
        ("a <b>red</b> dog", "dog <b>red</b> a", "0-2 1-1 2-0"),
        ('a <a href="x y">red</a> dog', 'dog <a href="x y">red</a> a', "0-4 3-3 4-0"),
        ("a dog &eacute; runs", "runs é dog a", "0-3 1-2 2-1 3-0"),
        ("A RED DOG", "DOG RED A", "0-2 1-1 2-0"),
        ("a ice-cream dog", "dog ice-cream a", "0-2 1-1 2-0"),
        ("a\u200b dog", "dog a", "0-1 1-0"),
        ("cafe\u0301 cafe\u0301 red a", "a red café café", "0-3 1-2 2-1 3-0"),
        ("a     red dog", "dog red a", "0-2 1-1 2-0"),
        ("a dog – runs", "runs – dog a", "0-3 1-2 3-0"),
        ("a\tdog\tred runs", "a\tdog\truns red", "0-0 1-1 2-3 3-2"),
        ("{0,choice,0#no dog|1#a dog}", "{0,choice,0#no dog|1#a dog}", "0-0 1-1 2-2"),
    ],
)  # fmt: skip
def test_words_have_their_numbers_in_the_line_and_in_what_is_returned(
    line: str, translation: str, alignment: str
) -> None:
    assert Reversing().aligned(line) == (translation, alignment)


def test_a_line_whose_words_cannot_be_numbered_has_none() -> None:
    assert Reversing().aligned("a dog it\x92s red") == ("red s it dog a", "")


def test_the_words_of_a_text_are_counted_over_its_lines() -> None:
    translator = Reversing()
    lines = ["a red", "", "<p>a</p> dog runs"]
    best = [hypotheses[0] for hypotheses in translator.hypotheses(lines)]
    assert translator.align([best, best[:1], []]) == ["0-1 1-0 2-2 3-4 4-3", "0-1 1-0", ""]
    broken = [translator.hypotheses(["it\x92s"])[0][0]]
    assert translator.align([broken + best]) == [""], "the numbers of the other lines are unknown"


def test_a_language_without_spaces_has_the_numbers_of_characters() -> None:
    translator = Reversing()
    translator._languages = "zh", "en"
    assert translator.aligned("a red") == ("red a", "0-1 3-0"), "the middle of re, the first piece"
    [[first], [second]] = translator.hypotheses(["a", "red a"])
    assert translator.align([[first, second]]) == ["0-0 3-2 6-1"], "a line end counts as a character"
    translator._languages = "en", "ja_XX"
    assert translator.aligned("a <b>red</b>") == ("<b>red</b> a", "0-11 1-3 1-4 1-5")


def test_a_sentence_that_is_too_long_is_aligned_in_its_parts() -> None:
    line = " ".join(["a", "red", "dog", "runs"] * 30)
    translation, alignment = Reversing(max_tokens=21).aligned(line)
    pairs = [tuple(map(int, pair.split("-"))) for pair in alignment.split()]
    assert len({tgt for _, tgt in pairs}) > 0.95 * len(translation.split())
    assert all(0 <= src < 120 and abs(src - tgt) < 21 for src, tgt in pairs)


def test_a_prefix_is_a_part_of_the_translation() -> None:
    translation, alignment = Reversing().aligned("a {0} dog", ["red runs"])
    assert translation == "red runs dog {0} a"
    assert {int(pair.split("-")[1]) for pair in alignment.split()} <= {*range(5)} and alignment


def test_the_name_of_a_language_is_a_word_of_the_line() -> None:
    translator = Reversing()
    translator.tokenizer.models.languages = {NAME: NAME_ID}
    assert translator.aligned(f"{NAME} a red dog") == ("dog red a", "1-2 2-1 3-0")


def test_a_learned_code_is_a_word() -> None:
    translator = Reversing()
    translator.codes = frozenset(["%s"])
    assert translator.aligned("a %s red {0} dog") == ("dog red {0} %s a", "0-4 1-3 2-1 4-0")


@pytest.mark.parametrize("codes", [[], ["%s"]])
def test_each_word_of_any_line_is_linked_to_its_own(codes: list[str]) -> None:
    """A word of the translation with a letter outside of tags has a pair, and the word in the line has its letters."""
    rng = random.Random(1)
    translator = Reversing()
    translator.codes = frozenset(codes)
    signs = ["<b>", "</b>", "<br/>", "<i class='x y'>", "{0}", "https://a.b/c", "🎉", "!", "\t", "- ", "%s", "1 ", "  "]
    lines = [
        "".join(rng.choice([" ", " ", ". "]) + rng.choice(WORDS + signs) for _ in range(rng.randrange(12)))
        for _ in range(500)
    ]
    best = translator.hypotheses(lines, n_best=1)
    alignments = translator.align(best)
    assert alignments == [translator.align([each])[0] for each in best], "together as one by one"
    for line, [hypothesis], alignment in zip(lines, best, alignments, strict=True):
        src, tgt = map(_letters, (line, hypothesis.text))
        pairs = [(int(src), int(tgt)) for src, tgt in (pair.split("-") for pair in alignment.split())]
        assert all(src[i] in tgt[j] or tgt[j] in src[i] for i, j in pairs), (line, hypothesis.text, alignment)
        assert {j for j, letters in enumerate(tgt) if letters} <= {j for _, j in pairs}, (
            line,
            hypothesis.text,
            alignment,
        )


def _letters(text: str) -> list[str]:
    """The letters of each word outside of tags, in small letters."""
    hidden = re.sub(r"<[^>]*>|\{0\}|https:\S+|%s", lambda tag: re.sub(r"\S", "\0", tag[0]), text)
    return ["".join(filter(str.isalpha, normalize("NFD", word))).lower() for word in hidden.split()]


def test_nobody_asks_for_the_attention_of_plain_text() -> None:
    translator = Reversing()
    translator.hypotheses(["a red dog", "a {0} dog"])
    assert translator.num_attended == 1, "that of a line with a code"
