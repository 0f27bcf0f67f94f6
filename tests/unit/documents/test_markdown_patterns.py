"""What each pattern of the tables of Markdown takes, between « and », and what it leaves."""

import time
from collections import Counter

import pytest

from mtx.data.markup import FORMULAS, raw
from mtx.documents import markdown
from mtx.documents.markdown import CODE_LINES, CONTAINERS, MODULE_LINES, UNTRANSLATED
from tests.unit.patterns import growing_unit, has_unbounded_repetition, mark_matches, without_marks

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


LINE_PATTERNS = CONTAINERS | CODE_LINES | MODULE_LINES
LINE_EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "MyST: directive": (
        ["«:::{tip} A title»\na", "«:::{figure} a.png\n:name: b»\nc", "«:::{tip}\n---\nclass: a\n---»\nb"],
        ["::: tip", "::{tip} a", "a :::{tip}"],
    ),
    "Pandoc: title": (["«% The title»\na"], ["a\n% b", "%a", "50% a"]),
    "Pandoc: line of verse": (["«| The cake»\na"], ["| a | b |", "|a", "a | b"]),
    "MyST: between parts": (["a\n«+++ {\"a\": 1}»\n«+++»"], ["++", "+++ a", "a+++"]),
    "PyMdown": (["«/// tip | Title\n    type: a»\nb\n«///»", "«/// html | div»"], ["// tip | a", "/// a b", "a ///"]),
    "Docusaurus, VitePress, Pandoc": (
        ["«:::tip[Title]»\na\n«:::»", "«::: tip Title {.x}»", "«:::: {.note}»"], [":: tip", "a ::: b", ":::a]"],
    ),
    "abbreviation": (["«*[HTML]: Words»"], ["*[HTML]", "*[a]:b", "[a]: b"]),
    "field": (["«date:: Today»"], ["a: b", "a::b", "a b:: c"]),
    "TeX: display": (["«$$\na + b\n$$ (eq)»\nc", "«$$a$$»"], ["$$ a", "$$a$$ b", "$$\n\nMany words follow\n$$"]),
    "HTML: pre": (["«<pre class='a'>\nb < c\n</pre>»\nd"], ["<pre/>", "<pre>a", "<pre>a</pre> b", "<pre>a<pre>"]),
    "LaTeX: environment": (
        ["«\\begin{align*}\na \\\\ b\n\\end{align*} c»\nd"],
        ["\\begin{itemize}a\\end{itemize}", "\\begin{align}"],
    ),
    "LaTeX: display": (["«\\[\na + b\n\\]»\nc"], ["\\[ a \\]", "\\[\na", "\\[\na\n\\] b"]),
    "Jinja, Liquid, Hugo: block of code": (
        ["«{{< highlight go >}}\na {{ b }}\n{{< /highlight >}}»\nc", "«{% comment %}a{% endcomment %} b»"],
        ["{% comment %}a", "{% note %}a{% endnote %}", "{{< code a />}}b", "{% code-a %}{% endcode-b %}"],
    ),
    "Jinja, Liquid, Hugo, kramdown, ERB: templates": (
        ["«{% a %} {{ b }}»", "«{:.note}»\na", "«<%= a %>»", "«{{< b >}}»"], ["{a}", "{% a %} b", "{% a"],
    ),
    "MyST: label": (["«(the-label)=»\na"], ["(a)", "(a b)=", "(a)=b"]),
    "GitLab: table of contents": (["«[[_TOC_]]»"], ["[[TOC]]", "[[_TOC_]] a"]),
    "GitLab: quick action": (["«/label ~bug and more»\n«/close»"], ["/a/b", "/close it", "a /close"]),
    "directive": (["«::youtube{#id a=b}»"], [":a{b}", "::a", "::a{b} c"]),
    "caret": (["a\n«^»\nb"], ["^a", "a ^"]),
    "MkDocs: included files": (["«--8<--\na.md\nb.md\n--8<--»\nc"], ["--8<-- a", "--8<--\na"]),
    "MkDocs, VitePress, TeX: line": (["«--8<-- 'a.md'»\n«<<< @/a.js{2}»\n«% note»"], ["<< a", "%a", "8<--"]),
    "LaTeX: macro": (["«\\newpage»\n«\\vspace*{1cm}[a]»"], ["\\item a", "\\Big", "a \\newpage"]),
    "MDX: expression": (["«{/* a\n b */}»\n«{f({a: {b}})}»"], ["{a", "{a} b", "a {b}"]),
    "MDX, Vue: components": (["«<Tabs><Tab a={b}>»\nc\n«</Tab></Tabs>»"], ["<Tab>a", "<b>", "a <Tab>"]),
    "import": (
        ["«import a, { b,\n c } from 'd';»\n«import \"e\"»\nf"],
        ["import it from a", "imports 'a'", "a import 'b'"],
    ),
    "export": (["«export const a = 1\nb\n»\nc", "a;\n«export default b»"], ["export it", "a word\nexport const b"]),
}  # fmt: skip


def test_each_pattern_has_examples_of_what_it_takes_and_leaves() -> None:
    assert EXAMPLES.keys() == PATTERNS.keys()
    assert all(takes and leaves for takes, leaves in EXAMPLES.values())


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_takes_and_leaves(name: str) -> None:
    takes, leaves = EXAMPLES[name]
    assert [mark_matches(PATTERNS[name], without_marks(text)) for text in takes] == takes
    assert [mark_matches(PATTERNS[name], text) for text in leaves] == leaves


@pytest.mark.parametrize("name", PATTERNS)
def test_the_time_of_a_pattern_grows_with_the_text(name: str) -> None:
    assert not has_unbounded_repetition(PATTERNS[name])
    assert growing_unit(PATTERNS[name], EXAMPLES[name][0]) is None


def at_start_of_line(name: str) -> str:
    return f"(?m){LINE_PATTERNS[name]}" if name in MODULE_LINES else f"(?m)^(?:{LINE_PATTERNS[name]})"


def test_each_pattern_of_a_line_has_examples_of_what_it_takes_and_leaves() -> None:
    assert LINE_EXAMPLES.keys() == LINE_PATTERNS.keys()
    assert all(takes and leaves for takes, leaves in LINE_EXAMPLES.values())


@pytest.mark.parametrize("name", LINE_PATTERNS)
def test_a_pattern_of_a_line_takes_and_leaves(name: str) -> None:
    takes, leaves = LINE_EXAMPLES[name]
    assert [mark_matches(at_start_of_line(name), without_marks(text)) for text in takes] == takes
    assert [mark_matches(at_start_of_line(name), text) for text in leaves] == leaves


@pytest.mark.parametrize("name", LINE_PATTERNS)
def test_the_time_of_a_pattern_of_a_line_grows_with_the_text(name: str) -> None:
    assert not has_unbounded_repetition(LINE_PATTERNS[name])
    assert growing_unit(at_start_of_line(name), LINE_EXAMPLES[name][0]) is None


@pytest.mark.parametrize(
    "code",
    ["{/* " + "a word " * 1000 + "*/}", "{{ " + "a word " * 1000 + "}}", "<% " + "a word " * 1000 + "%>"],
    ids=["MDX", "Jinja", "ERB"],
)
def test_long_code_is_no_text(code: str) -> None:
    edits = markdown.read(f"Before.\n\n{code}\n\nBehind.\n", Counter())
    assert [raw(edit.segment) for edit in edits if edit.segment] == ["Before.", "Behind."]


@pytest.mark.parametrize(
    "line", [":::BLANKS{", ":::{tip}BLANKSTitle {x", "::: tipBLANKS{", "| BLANKS| x", "///BLANKSx| x"]
)
def test_the_time_of_a_line_of_a_container_grows_with_its_blanks(line: str) -> None:
    """A title that is tried at each blank, with the blanks behind it tried in turn, took seconds for 1,000 of them."""
    seconds = []
    for num_blanks in (250, 1000):
        text = line.replace("BLANKS", " " * num_blanks)
        start = time.process_time()
        list(markdown.read(text, Counter()))
        seconds.append(time.process_time() - start)
    assert seconds[1] < 0.1 or seconds[1] < 16 * seconds[0]
