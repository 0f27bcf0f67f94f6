"""Tags that the model carries: marked where they stand, and taken as it places them if they are whole and nested."""

from collections.abc import Sequence

import numpy as np
import pytest

from mtx.config.schema import TokenizerConfig
from mtx.data.glossary import Glossary
from mtx.data.inline_tags import ALONE, CLOSING, MARKS, MOST_TAGS, OPENING
from mtx.data.sentence_splitter import sentence_splitter
from mtx.data.tokenizer import train_tokenizer
from mtx.decoding.options import Candidate, SearchOptions
from mtx.decoding.text_translator import Attention, TextTranslator
from mtx.documents.carrying import plan
from mtx.documents.markup import Marked, Tag, bare, element_tag, raw, with_placeholders
from mtx.documents.translate import translate_segments

LINES = ["a red dog sees two houses.", "zwei Häuser sieht ein roter Hund.", "A Red Dog", "Ein Roter Hund", "''"]
NAMES = {mark: f"[{n}" for n, mark in enumerate(OPENING)} | {mark: f"{n}]" for n, mark in enumerate(CLOSING)}
NAMES |= {mark: f"{{{n}}}" for n, mark in enumerate(ALONE)}


def with_marks(text: str) -> str:
    for mark, name in NAMES.items():
        text = text.replace(name, mark)
    return text


def visible(text: str) -> str:
    return "".join(NAMES.get(character, character) for character in text)


class Scripted(TextTranslator):
    """Translates each source as a table says, whose keys and values show marks as in [0red0] and {0}.

    Attributes:
        asked: the sources, by their pieces.
        attended: the number of sentences whose attention was looked at.
    """

    def __init__(self, table: dict[str, str | list[str]], has_inline: bool = True) -> None:
        tokenizer = train_tokenizer(
            LINES * 50, TokenizerConfig(vocab_size=340), 1, [], has_marks=True, has_inline=has_inline
        )
        super().__init__(tokenizer, 40, SearchOptions(), num_tgt_positions=None)
        self.table = dict[tuple[int, ...], list[list[int]]]()
        for src, tgt in table.items():
            self.add(src, [tgt] if isinstance(tgt, str) else tgt)
        self.asked = list[str]()
        self.attended = 0

    def add(self, src: str, tgt: Sequence[str]) -> None:
        """Add hypotheses of a source; the best one without marks is that of the bare source, unless a table has it."""
        encode = self.tokenizer.encode
        source, hypotheses = encode([with_marks(src)], has_inline=True)[0], [with_marks(text) for text in tgt]
        self.table[tuple(source)] = encode(hypotheses, target=True, has_inline=True)
        plain = [
            [token for token in ids if token not in self.tokenizer.inline.values()]
            for ids in (source, self.table[tuple(source)][0])
        ]
        self.table.setdefault(tuple(plain[0]), [plain[1]])

    def decode(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> list[list[Candidate]]:
        self.asked += ["".join(self.tokenizer.pieces(ids)) for ids in sources]
        return [[Candidate(ids, -number) for number, ids in enumerate(self.table[tuple(source)])] for source in sources]

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        self.attended += len(sources)
        return [np.eye(len(tgt), len(src), dtype=np.float32) for src, tgt in zip(sources, targets, strict=True)]


def segment(text: str) -> Marked:
    """Text with elements and placeholders as tags."""
    parts, rest = Marked(), text
    while "<" in rest:
        before, _, rest = rest.partition("<")
        inner, _, rest = rest.partition(">")
        parts += [before, element_tag(f"<{inner}>")]
    return with_placeholders([part for part in [*parts, rest] if part != ""])


def translated(table: dict[str, str | list[str]], text: str) -> tuple[str, Scripted]:
    translator = Scripted(table)
    [result] = translate_segments(translator, [segment(text)])
    return raw(result), translator


def test_the_model_carries_a_pair_where_it_says() -> None:
    result, translator = translated({"a [0red0] dog": "ein Hund [0roter0]"}, "a <b>red</b> dog")
    assert result == "ein Hund <b>roter</b>" and not translator.attended
    assert [name in asked for asked in translator.asked for name in ("<0xC0>", "dog")] == [False, True, True, True]


@pytest.mark.parametrize(
    ("source", "target", "text", "result"),
    [
        ("a [0red0] dog.", "ein [0roter0] Hund.", "a <b>red</b> dog.", "ein <b>roter</b> Hund."),
        ("a red [0dog0].", "ein roter [0Hund0].", "a red <b>dog</b>.", "ein roter <b>Hund</b>."),
        ("a [0red [1dog1]0].", "ein [0[1Hund1] roter0].", "a <b>red <i>dog</i></b>.", "ein <b><i>Hund</i> roter</b>."),
        ("a [0red0] [1dog1].", "ein [1Hund1] [0roter0].", "a <b>red</b> <i>dog</i>.", "ein <i>Hund</i> <b>roter</b>."),
        ("a {0} dog.", "ein Hund{0}.", "a %s dog.", "ein Hund %s."),
        ("a dog{0}.", "ein {0} Hund.", "a dog %s.", "ein %s Hund."),
        ("a dog sees{0}, two", "ein Hund sieht{0}, zwei", "a dog sees {x}, two", "ein Hund sieht {x}, zwei"),
        ("a [0{0}0] dog.", "ein [0{0}0] Hund.", "a <b>{name}</b> dog.", "ein <b>{name}</b> Hund."),
        ("a dog {0} sees.", "sieht {0} ein Hund.", "a dog<br/>sees.", "sieht<br/>ein Hund."),
    ],
)
def test_spaces_are_as_in_the_source(source: str, target: str, text: str, result: str) -> None:
    found, translator = translated({source: target}, text)
    assert found == result and not translator.attended


def test_what_stands_at_the_ends_needs_no_model() -> None:
    text = "{0} <b>a <i>red</i> dog</b><x/>"
    result, _ = translated({"a [0red0] dog": "ein [0roter0] Hund"}, text)
    assert result == "{0} <b>ein <i>roter</i> Hund</b><x/>"
    result, translator = translated({"a red dog": "ein roter Hund"}, "<b>a red dog</b>")
    assert result == "<b>ein roter Hund</b>" and not translator.attended and len(translator.asked) == 1


@pytest.mark.parametrize(
    ("marked", "plain", "result"),
    [
        ("ein großer [0roter0] Hund", "Hund, ein roter", "Hund, ein <b>roter</b>"),
        ("roter [0Hund0] sieht", "ein Hund.", "ein <b>Hund</b>."),
        ("ein [0roter Hund0]", "ein roter, großer Hund", None),  # another word stands between
        ("ein [0rote0] Hund", "ein roter Hund", None),
    ],
)
def test_the_bare_translation_counts_and_tags_go_to_the_same_words(marked: str, plain: str, result: str | None) -> None:
    table: dict[str, str | list[str]] = {"a [0red0] dog": marked, "a red dog": plain}
    found, translator = translated(table, "a <b>red</b> dog")
    assert translator.attended == (result is None) and found.replace("<b>", "").replace("</b>", "") == plain
    assert result in (None, found)


def test_a_placeholder_goes_beside_the_word_on_either_side() -> None:
    for marked, plain, result in (
        ("ein {0} Hund", "sieht ein Hund", "sieht ein {x} Hund"),
        ("der {0} Hund", "ein Hund", "ein {x} Hund"),
        ("ein {0} Dackel", "ein Hund", "ein {x} Hund"),
    ):
        table: dict[str, str | list[str]] = {"a {0} dog": marked, "a dog": plain}
        found, translator = translated(table, "a {x} dog")
        assert found == result and not translator.attended


def test_the_best_hypothesis_with_all_tags_counts() -> None:
    hypotheses = ["ein [0 Hund", "ein Hund", "der [0rote0] Hund", "der [0roter0] Hund", "[0ein0] Hund"]
    table: dict[str, str | list[str]] = {"a [0red0] dog": hypotheses, "a red dog": "ein Hund roter"}
    result, translator = translated(table, "a <b>red</b> dog")
    assert result == "ein Hund <b>roter</b>" and not translator.attended


@pytest.mark.parametrize(
    "wrong",
    [
        "ein roter Hund",  # lost
        "ein [0roter Hund",  # not closed
        "ein [0roter0] [0Hund0]",  # twice
        "ein 0]roter[0 Hund",  # the wrong way round
        "ein [1roter1] Hund",  # another
        "ein [0roter1] Hund",  # crossed
        "ein [0roter0] Hund {0}",  # one more
        "ein roter [00] Hund",  # empty
    ],
)
def test_what_the_model_does_not_carry_is_placed_by_attention(wrong: str) -> None:
    result, translator = translated({"a [0red0] dog": wrong, "a red dog": "ein roter Hund"}, "a <b>red</b> dog")
    assert result == "ein <b>roter</b> Hund" and translator.attended == 1


def test_a_tag_does_not_leave_the_pair_around_it() -> None:
    table: dict[str, str | list[str]] = {
        "a [0red [1dog1]0].": "ein [0roter0] [1Hund1].",
        "a red dog.": "ein roter Hund.",
    }
    result, translator = translated(table, "a <b>red <i>dog</i></b>.")
    assert result == "ein <b>roter <i>Hund</i></b>." and translator.attended == 1


def test_an_empty_pair_may_stay_empty() -> None:
    result, translator = translated({"a [00] dog": "ein [00] Hund"}, "a <b></b> dog")
    assert result == "ein <b></b> Hund" and not translator.attended


def test_a_sentence_in_capitals() -> None:
    result, _ = translated({"A [0red0] dog": "Ein [0roter0] Hund"}, "A <b>RED</b> DOG")
    assert result == "EIN <b>ROTER</b> HUND"


def test_sentences_are_carried_one_by_one_and_a_segment_as_a_whole() -> None:
    def both(second: str) -> tuple[str, Scripted]:
        table: dict[str, str | list[str]] = {
            "A [0red0] dog.": "Ein [0roter0] Hund.", "A {0} dog.": second, "A dog.": "Ein Hund.",
        }  # fmt: skip
        translator = Scripted(table)
        translator.splitter = sentence_splitter("en")
        [result] = translate_segments(translator, [segment("A <b>red</b> dog. A {x} dog. <i>A dog.</i>")])
        return raw(result), translator

    result, translator = both("Ein Hund{0}.")
    assert result == "Ein <b>roter</b> Hund. Ein Hund {x}. <i>Ein Hund.</i>" and not translator.attended
    result, translator = both("Ein Hund.")
    assert result == "Ein <b>roter</b> Hund. Ein {x} Hund. <i>Ein Hund.</i>" and translator.attended == 3


def test_a_pair_around_all_sentences_is_no_hindrance() -> None:
    translator = Scripted({"A [0red0] dog.": "Ein [0roter0] Hund.", "A dog.": "Ein Hund."})
    translator.splitter = sentence_splitter("en")
    [result] = translate_segments(translator, [segment("<b><x/>A <i>red</i> dog. A dog.</b>")])
    assert raw(result) == "<b><x/>Ein <i>roter</i> Hund. Ein Hund.</b>" and not translator.attended


def test_a_pair_over_two_sentences_is_placed_by_attention() -> None:
    translator = Scripted({"A dog.": "Ein Hund."})
    translator.splitter = sentence_splitter("en")
    [result] = translate_segments(translator, [segment("A <b>dog. A</b> dog.")])
    assert raw(result) == "Ein <b>Hund. Ein</b> Hund." and translator.attended


def test_a_tag_inside_a_piece_is_placed_by_attention() -> None:
    result, translator = translated({"a '' dog": "ein '' Hund"}, "a '%s' dog")
    assert result == "ein '%s' Hund" and translator.asked == ["▁a▁''▁dog</s>"]


def test_terms_are_used_beside_tags() -> None:
    translator = Scripted({})
    translator.use_glossary(Glossary({"red": "roter"}))
    encode = translator.tokenizer.encode
    assert translator.glossary is not None
    for text in ("a red dog", "a [0red0] dog"):
        [source] = encode([translator.glossary.annotate(with_marks(text))], has_inline=True)
        hypotheses = [text.replace("a", "ein").replace("red", word).replace("dog", "Hund") for word in ("rot", "roter")]
        translator.table[tuple(source)] = encode(list(map(with_marks, hypotheses)), target=True, has_inline=True)
    [result] = translate_segments(translator, [segment("a <b>red</b> dog")])
    assert raw(result) == "ein <b>roter</b> Hund"


def test_a_model_that_did_not_learn_tags_gets_none() -> None:
    translator = Scripted({"a red dog": "ein roter Hund"}, has_inline=False)
    [result] = translate_segments(translator, [segment("a <b>red</b> dog")])
    assert raw(result) == "ein <b>roter</b> Hund" and translator.attended == 1


def test_bytes_that_are_not_those_of_the_text() -> None:
    """In Turkish capitals words have other bytes, so that it is not clear where the marks are."""
    translator = Scripted({"A [0red0] dog": "Ein [0iki0] Hund"})
    translator.tgt = "tr"
    [result] = translate_segments(translator, [segment("A <b>RED</b> DOG")])
    assert bare(result)[0] == "EİN İKİ HUND" and translator.attended == 1


def test_long_sentences_of_few_words_take_no_time() -> None:
    table: dict[str, str | list[str]] = {"a [0red0] dog": " ".join(["[0ein0]", *["ein"] * 1000]), "a red dog": "ein"}
    result, translator = translated(table, "a <b>red</b> dog")
    assert result == "<b>ein</b>" and translator.attended == 1


def planned(*texts: str) -> list[str] | None:
    text, tags = bare([part for text in texts for part in segment(text)])
    made = plan(tags, [(0, text)])
    return None if made is None else [visible(carrying.marked(text)) for carrying in made]


def test_what_cannot_be_marked() -> None:
    assert planned("a <b>red</b> dog") == ["a [0red0] dog"]
    assert planned("a red dog") is None
    assert planned("a <b>red <i>dog</b> sees</i> two") is None, "pairs that overlap"
    many = " ".join("<b>a</b>" for _ in range(MOST_TAGS))
    assert planned(f"a {many} dog") is not None and planned(f"a {many} <b>a</b> dog") is None
    assert planned("a " + "{x} a " * (MOST_TAGS + 1)) is None
    assert planned("a </b> red <b> dog") == ["a {0}red {1}dog"], "without partners"


def test_every_mark_comes_out_once_whatever_the_model_writes() -> None:
    rng = np.random.default_rng(1)
    words = ["ein", "roter", "Hund", "sieht"]
    text = "a <b>red {x} <i>dog</i></b> sees %s two"
    tags = sorted(part.raw for part in segment(text) if isinstance(part, Tag))
    for _ in range(200):
        some = [str(rng.choice([*words, *map(visible, MARKS[: rng.integers(1, 13)])])) for _ in range(12)]
        table: dict[str, str | list[str]] = {
            "a [0red {0} [1dog1]0] sees {1} two": " ".join(some), "a red dog sees two": "ein roter Hund sieht",
        }  # fmt: skip
        result, _ = translated(table, text)
        assert sorted(part.raw for part in segment(result) if isinstance(part, Tag)) == tags
        assert result.index("<b>") < result.index("<i>") < result.index("</i>") < result.index("</b>")


TAGS = ["<b>", "</b>", "<i>", "</i>", "{x}", "%s", "<x/>", "<br/>"]


def test_the_text_is_always_that_of_the_bare_translation() -> None:
    rng = np.random.default_rng(2)
    src, tgt, num_carried = ["a", "red", "dog", "sees", "two"], ["ein", "roter", "Hund", "sieht", "zwei"], 0
    for _ in range(300):
        words = list(src)
        for tag in rng.choice(TAGS, rng.integers(1, 6)):
            words.insert(int(rng.integers(len(words) + 1)), str(tag))
        text = "".join(word + " " * int(rng.integers(2)) if word in TAGS else f"{word} " for word in words).strip()
        text_of, tags = bare(segment(text))
        carried = plan(tags, [(0, text_of)])
        if carried is None or not carried[0].marks:
            continue
        marked = visible(carried[0].marked(text_of))
        moved = dict(zip(src, map(str, rng.permutation(tgt)), strict=True))  # with marks the words have another order
        with_words = marked
        for word in src:
            with_words = with_words.replace(word, moved[word].upper())
        table: dict[str, str | list[str]] = {marked: with_words.lower().replace("hund", "Hund"), text_of: " ".join(tgt)}
        result, translator = translated(table, text)
        num_carried += not translator.attended
        assert "".join(bare(segment(result))[0].split()) == "".join(tgt), (text, table, result)
        assert sorted(p.raw for p in segment(result) if isinstance(p, Tag)) == sorted(p.raw for p in tags_of(text))
    assert num_carried > 20


def tags_of(text: str) -> list[Tag]:
    return [part for part in segment(text) if isinstance(part, Tag)]
