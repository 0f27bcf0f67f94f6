"""What each pattern of the table of Markdown takes, between « and », and what it leaves."""

import pytest

from mtx.data.markup import FORMULAS
from mtx.documents.markdown import UNTRANSLATED
from tests.unit.patterns import growing_unit, has_unbounded_repetition, taken, without_marks

PATTERNS = {name: pattern for name, pattern in UNTRANSLATED.items() if name not in FORMULAS}  # which have their tests
EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "GitHub: box of a task, name of an alert": (["«[x]» a", "«[!NOTE]-» a"], ["[xx] a", "[x]a", "see [x] a"]),
    "Pandoc: citation": (["so «[@knuth, p. 3]»", "«[see @a]»"], ["[a b]", "@a", "[a @ b]"]),
    "footnote": (["a«[^1]»"], ["[1]", "[^a b]", "^1"]),
    "table of contents": (["«[TOC]» «[toc]»"], ["toc", "[tocs]"]),
    "bookdown: reference": (["«(ref:a-b)»"], ["(a:b)", "(ref: a)"]),
    "directive in a line": (["«:math{x^2}» «::video{a=b}»"], ["a: {b}", ":a b"]),
    "keys": (['«++ctrl+alt+"a b"++»'], ["C++", "++ a ++", "a ++b"]),
    "CriticMarkup": (["«{++»a«++}» «{~~»b«~>»c«~~}» «{>>»d«<<}»"], ["{a}", "a ++ b", "{+a+}"]),
    "superscript mark": (["x«^^»2«^^»"], ["a^b^c"]),
    "Pandoc: subscript, superscript": (["H«~2~»O and x«^2^»"], ["~2~", "a ~b c~", "x^2"]),
    "Obsidian: comment": (["a «%%b c%%»"], ["50%% a", "%% a\n%%"]),
    "highlight": (["«==»a b«==» c"], ["a = b", "a === b"]),
    "Obsidian: name of a block": (["a «^b-1»", "a «^b»\nc"], ["a^b", "^b c", "a ^b c"]),
    "emoji by its name": (["a «:cat_face:»"], [":cat face:", "a: b:", ":a:b"]),
    "hashtag": (["a «#tag/b-c» «#é»"], ["a#b", "# a", "#1"]),
    "Vue, Angular: tag": (["«<a-b :c='d' e>» «<li @click='f()'>»"], ["<a b='c'>", "<:a=b>", "a :b=c"]),
    "attributes": (["a«{.b #c}» «{ .d }» «{e=f}»"], ["{a}", "{a b}", "{ }"]),
    "wiki link: words and their target": (["«[[the cake|a/b]]»"], ["[[cake|a/b]]", "[[the cake|b]]", "[[a b]]"]),
    "wiki link: picture with its size or place": (["«[[a.png|align-left]]»"], ["[[a|b c]]", "[[a|b]]", "[a|b-c]"]),
    "wiki link: target and its words": (["«[[cake|the cake]]»"], ["[[cake]]", "[cake|a]", "[[a|b|c]"]),
    "wiki link": (["«[[the cake]]» «![[a.png]]»"], ["[cake]", "[[]]", "[[a\nb]]"]),
    "words with a target or attributes": (["«[the cake][a:b]» «[red]{.x}»"], ["[a] [b]", "[a](b)", "[a]{b}"]),
    "MDX, Vue: component": (
        ["«<Cake.Icing a=\"b\" {...c} d={{e: f}}>»a«</Cake.Icing>» «<img src={a} />»", "«<template v-if='a'>»"],
        ["<b>", "<img src='a'>", "<Cake a='b", "a < B"],
    ),
}  # fmt: skip


def test_each_pattern_has_examples_of_what_it_takes_and_leaves() -> None:
    assert EXAMPLES.keys() == PATTERNS.keys()
    assert all(takes and leaves for takes, leaves in EXAMPLES.values())


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_takes_and_leaves(name: str) -> None:
    takes, leaves = EXAMPLES[name]
    assert [taken(PATTERNS[name], without_marks(text)) for text in takes] == takes
    assert [taken(PATTERNS[name], text) for text in leaves] == leaves


@pytest.mark.parametrize("name", PATTERNS)
def test_the_time_of_a_pattern_grows_with_the_text(name: str) -> None:
    assert not has_unbounded_repetition(PATTERNS[name])
    assert growing_unit(PATTERNS[name], EXAMPLES[name][0]) is None
