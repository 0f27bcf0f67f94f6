"""Pages in Markdown: blocks and marks stay what they are, also where the translation would make others."""

import random
import re
from collections import Counter
from html import unescape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from mtx.data.markup import Marked, Tag
from mtx.decoding.translator import Hypothesis
from mtx.documents import markdown
from mtx.documents.document import translate_document
from mtx.documents.edits import apply
from tests.unit.documents.test_document import shout, translated

RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@pytest.mark.parametrize(
    "text, result",
    [
        ("---\nnot: front\n\na\n", "---\nNOT: FRONT\n\nA\n"),
        ("+++\na = 1\n+++\na\n", "+++\na = 1\n+++\nA\n"),
        ("a\n===\nb\n---\n", "A\n===\nB\n---\n"),
        ("> a\n> b\n>\n>> c\nd\n", "> A B\n>\n>> C D\n"),
        ("> a  \n> b\\\n> c\n", "> A  \n> B\\\n> C\n"),
        ("> a  \r\n> b\\\r\n> c\r\n", "> A  \r\n> B\\\r\n> C\r\n"),
        ("- a\n\n  b\n  ```\n  c\n  ```\n", "- A\n\n  B\n  ```\n  c\n  ```\n"),
        ("a | b\n---|:-:\nc \\| `d \\| e` | f\n\ng | h\n", "A | B\n---|:-:\nC \\| `d \\| e` | F\n\nG | H\n"),
        ("|a|a|\n|-|-|\n| ab | b |\n", "|A|A|\n|-|-|\n| AB | B |\n"),
        ("See [Docs][] and [MIT], [x `y`].\n\n[docs]: a\n[mit]: b\n[x `y`]: c\n",
         "SEE [DOCS][Docs] AND [MIT][MIT], [X `y`][x `y`].\n\n[docs]: a\n[mit]: b\n[x `y`]: c\n"),
        ("> [!NOTE]\n> a\n> b\n\n[!NOTE] c\n", "> [!NOTE]\n> A B\n\n[!NOTE] C\n"),
        ("a[^1] b.\n\n[^1]: http://c.d\n", "A[^1] B.\n\n[^1]: http://c.d\n"),
        ("# A :rocket: $a_1 + b$ {{ c }} {% d %} 5$ 6$\n", "# A :rocket: $a_1 + b$ {{ c }} {% d %} 5$ 6$\n"),
        ("[a](<b c> 'd \"e\"') [f][] [g][h] [i]\n\n[f]: x\n[h]: y\n[i]: z\n",
         "[A](<b c> 'd \"e\"') [F][f] [G][h] [I][i]\n\n[f]: x\n[h]: y\n[i]: z\n"),
        ("![a *b*](c) [![d](e)](f) `g` <http://h.i> a@b\n", "![a *b*](c) [![d](e)](f) `g` <http://h.i> A@B\n"),
        ("***a** b* ~~c~~ _d_e_ f\\_g &copy; x\n", "***A** B* ~~C~~ _D_E_ F_G © X\n"),
        ("<!-- a\n\nb -->\n\n<table><tr><td>a</td></tr></table>\n\nc\n",
         "<!-- a\n\nb -->\n\n<table><tr><td>A</td></tr></table>\n\nC\n"),
        ('<p align="center">\n  <img alt="a" src="b.png"> c <b>d</b>\n</p>\n',
         '<p align="center">\n  <img alt="A" src="b.png"> C <b>D</b>\n</p>\n'),
        ("<details>\n<summary>e</summary>\n\nf\n\n</details>\n",
         "<details>\n<summary>E</summary>\n\nF\n\n</details>\n"),
        ("<td>\n<pre>\na\n\n# b\n", "<td>\n<pre>\na\n\n# B\n"),
        ("`<img alt='a'>`\n\n    <img alt='b'>\n\nc\n", "`<img alt='a'>`\n\n    <img alt='b'>\n\nC\n"),
        ('<p translate="no">\na\n</p>\n\n<p>{b && <i>c</i>}</p>\n',) * 2,
        ("As @tbl:rain and @sec:a-b #42 #dry/very-dry a#b\n", "AS @tbl:rain AND @sec:a-b #42 #dry/very-dry A#B\n"),
        ("![bg fit](a.png)\n\n![h:3cm tree](a.png)\n\n![Who: bg](a.png)\n",
         "![bg fit](a.png)\n\n![h:3cm tree](a.png)\n\n![WHO: BG](a.png)\n"),
        ("a {ref}`b <c>` {func}`d` {e}`f`\n", "A {ref}`B <c>` {func}`d` {e}`f`\n"),
        ("$$\na\n$$\n\nb\n", "$$\na\n$$\n\nB\n"),
        ("- [x] a[^1]\n\n[^1]: b c\n", "- [x] A[^1]\n\n[^1]: B C\n"),
        ("a\r\nb\r\n\r\n* c\r\n", "A B\r\n\r\n* C\r\n"),
        ("# a {#b} c %s\n{: .d}\n", "# A {#b} C %s\n{: .d}\n"),
        (":::tip[a b]\nc\nd\n:::\n\n::: tip e {.f}\ng\n", ":::tip[A B]\nC D\n:::\n\n::: tip E {.f}\nG\n"),
        ("> :::note\r\n> a\r\n> :::\r\n", "> :::note\r\n> A\r\n> :::\r\n"),
        ('!!! note "a"\n    b\n\n    - c\n\n    ```\n    d\n    ```\n',
         '!!! note "A"\n    B\n\n    - C\n\n    ```\n    d\n    ```\n'),
        ('??? tip\n    a\n\n=== "b"\n\n    c\n', '??? tip\n    A\n\n=== "B"\n\n    C\n'),
        ("```\n::: tip a\n```\n\n    b\n", "```\n::: tip a\n```\n\n    b\n"),
        ("a\n: b\nc\n:   d\n", "A\n: B C\n:   D\n"),
        ("[[a|b]] [[c]] ![[d.png]]\n", "[[a|B]] [[c]] ![[d.png]]\n"),
        ("import a from 'b'\nimport {\n  c\n} from \"d\";\nexport const e = {\n  f: 1\n}\n\ng <H i={1} /> {j}\n",
         "import a from 'b'\nimport {\n  c\n} from \"d\";\nexport const e = {\n  f: 1\n}\n\nG <H i={1} /> {j}\n"),
        ("import the file\n\nof a 'b'\n" + "\nimport a.b.c\nimport d.e.f" * 20 + "\n",
         "IMPORT THE FILE\n\nOF A 'B'\n\n" + " ".join(["IMPORT A.B.C IMPORT D.E.F"] * 20) + "\n"),
        ("{{< note >}}\na\n{{< /note >}}\n{% if b %}\nc {{ d }}\n{% endif %}\n",
         "{{< note >}}\nA\n{{< /note >}}\n{% if b %}\nC {{ d }}\n{% endif %}\n"),
        ("{{< highlight md >}}\na {{< highlight />}} a\n{{< /highlight >}}\n\nb\n",
         "{{< highlight md >}}\na {{< highlight />}} a\n{{< /highlight >}}\n\nB\n"),
        ("{{< highlight go >}}\na\n{{< /highlight >}}\n\n{% highlight c %}\na {\n{% endhighlight %}\nb\n",
         "{{< highlight go >}}\na\n{{< /highlight >}}\n\n{% highlight c %}\na {\n{% endhighlight %}\nB\n"),
        ('<A b="c" d={() => { e() }}>\n  f\n</A>\n\n{/* g */}\n\nh <I j={k > 1}>l</I>\n',
         '<A b="c" d={() => { e() }}>\n  F\n</A>\n\n{/* g */}\n\nH <I j={k > 1}>L</I>\n'),
        ("a\n:   !!! tip\n\n        b\n\n[c](#d){ .e }{ f=\"g\" }\n",
         "A\n:   !!! tip\n\n        B\n\n[C](#d){ .e }{ f=\"g\" }\n"),
        ("{{ a }} is {{ b }}\n{% c %}{: .d}\n{{< e >}}f{{< /e >}}\n",
         "{{ a }} IS {{ b }}\n{% c %}{: .d}\n{{< e >}}F{{< /e >}}\n"),
        ("> [!tip]- a *b*\n> c\n> d\n", "> [!tip]- A *B*\n> C D\n"),
        ("[TOC]\n\n(a-b)=\n# c ++ctrl+d++ ==e== %%f%% ^g-h\n\n*[IJ]: k\n*[L]: m\n",
         "[TOC]\n\n(a-b)=\n# C ++ctrl+d++ ==E== %%f%% ^g-h\n\n*[IJ]: K\n*[L]: M\n"),
        ("a <kbd>b</kbd>+<kbd>c</kbd> d <code>e *f*</code>\n", "A <kbd>b</kbd>+<kbd>c</kbd> D <code>e *f*</code>\n"),
        ("a\n\\newpage\nb\n\\begin{c}[d]\ne\n\\end{c}\n", "A\n\\newpage\nB\n\\begin{c}[d]\nE\n\\end{c}\n"),
        ("$$\n\\begin{a}\nb\n\\end{a}\n$$\n\n\\begin{align}\nc \\\\ d\n\\end{align}\n",) * 2,
        (":::{figure} a.png\n:name: b\n\nc\n:::\n:::{tip} d\n:class: e\nf\n:::\n:tada: g\n",
         ":::{figure} a.png\n:name: b\n\nC\n:::\n:::{tip} D\n:class: e\nF\n:::\n:tada: G\n"),
        ("% a\n% b\n\nc\n% d\n", "% A\n% b\n\nC\n% d\n"),
        ("(@) a\n(@bcd) e [@f, p. 3]\n\ng\n~ h\n\n| i\n| j\n", "(@) A\n(@bcd) E [@f, p. 3]\n\nG\n~ H\n\n| I\n| J\n"),
        ("--8<-- \"a\"\n<<< @/b\n\n{a.map((b) => <C d={b}>{b}</C>)}\n\n[e]({{ f }}/g) ![h]({{ i }}/j.png)\n",
         "--8<-- \"a\"\n<<< @/b\n\n{a.map((b) => <C d={b}>{b}</C>)}\n\n[E]({{ f }}/g) ![h]({{ i }}/j.png)\n"),
        ("```js\n\nexport default {\n  a: 1\n}\n```\n\nb\n\n```\nc\n```\n",
         "```js\n\nexport default {\n  a: 1\n}\n```\n\nB\n\n```\nc\n```\n"),
        ("<A>\n```\nexport default a\n```\n</A>\n\nb\n", "<A>\n```\nexport default a\n```\n</A>\n\nB\n"),
        ("$$\na\n\n~~~\n$$\n~~~\n\nb\n", "$$ A\n\n~~~\n$$\n~~~\n\nB\n"),
        ("\\begin{equation}\n\na\n\n- ```\n  b\n  ```\n\nc\n", "\\begin{equation}\n\nA\n\n- ```\n  b\n  ```\n\nC\n"),
        ("import words\nof a 'b'\n\nc\nexport default d\ne\n", "IMPORT WORDS OF A 'B'\n\nC EXPORT DEFAULT D E\n"),
        ('!!! note\n    ```\n    a\n    ```\n\nb\n\n    c\n\n=== "d `e` *f*"\n\n    g\n',
         '!!! note\n    ```\n    a\n    ```\n\nB\n\n    c\n\n=== "D `e` *F*"\n\n    G\n'),
        ("````{tip} a\n---\nb: c\n---\nd\n```{note}\n:e: f\ng\n```\n````\n```{x}\nh\n```\n",
         "````{tip} A\n---\nb: c\n---\nD\n```{note}\n:e: f\nG\n```\n````\n```{x}\nh\n```\n"),
        ("<details>\n<summary>a</summary>\n<pre><code>b\n\nc\n</code></pre>\n<p>d</p>\n</details>\n",
         "<details>\n<summary>A</summary>\n<pre><code>b\n\nc\n</code></pre>\n<p>D</p>\n</details>\n"),
        ("a $b < 5\\,\\mathrm{kg}$ c $`d_e`$ \\(g^2\\) \\[h\\]\n",
         "A $b < 5\\,\\mathrm{kg}$ C $`d_e`$ \\(g^2\\) [H]\n"),
        ("$$ a $$ (eq1)\n\nb $$c = d$$\n", "$$ a $$ (eq1)\n\nB $$c = d$$\n"),
        ("[^1]: a\nb\n[^c-d]:\n    e\n\n    - f\n", "[^1]: A B\n[^c-d]:\n    E\n\n    - F\n"),
        ("a\n+++ {\"b\": 1}\nc\n+++\nd\n", "A\n+++ {\"b\": 1}\nC\n+++\nD\n"),
        ("/// a | b\n    c: d\ne\n///\n/// f\ng\n///\n", "/// a | B\n    c: d\nE\n///\n/// f\nG\n///\n"),
        ('???+ a "b \\"c\\""\n    - d\n\n!!!e\n    f\n', "???+ a \"B 'C'\"\n    - D\n\n!!!e\n    F\n"),
        ('<A\n  :b="[\'c\']"\n  @d="e"\n>\nf\n<template #g="{ h }">\n  i\n</template>\n</A>\n',
         '<A\n  :b="[\'c\']"\n  @d="e"\n>\nF\n<template #g="{ h }">\n  I\n</template>\n</A>\n'),
        ("--8<--\na.md\nb.md\n--8<--\nc\n", "--8<--\na.md\nb.md\n--8<--\nC\n"),
        ("a\n::: b.c.D\n    e: f\n", "A\n::: b.c.D\n    e: f\n"),
        ("[a][b.c] [d]{.e} ++f+\"g\"++ {++i++} 2^nd^ {--j--}\n",
         "[A][b.c] [D]{.e} ++f+\"g\"++ {++I++} 2^nd^ {--J--}\n"),
        ("![a](b.png){c=1}\n\n[![d](e)](f)\n\ng ![h](i)\n", "![A](b.png){c=1}\n\n[![D](e)](f)\n\nG ![h](i)\n"),
        ("| $a|b$ | c |\n|---|---|\n| d | e |\n",) * 2,
        ('::: {.column width="60%"}\na\n:::\n\n::: {.b c="d e" title="f g"}\nh\n:::\n',
         '::: {.column width="60%"}\nA\n:::\n\n::: {.b c="d e" title="F G"}\nH\n:::\n'),
        ("up:: [[a]]\nstate:: in b\n\n#c/d e #f\n\na:: b: `c`\n",
         "up:: [[a]]\nstate:: IN B\n\n#c/d E #f\n\na:: B: `c`\n"),
        ('[[_TOC_]]\n\na\n\n/label ~"b c" ~d\n/close\n\n::include{file=e.md}\n/or f\n',
         '[[_TOC_]]\n\nA\n\n/label ~"b c" ~d\n/close\n\n::include{file=e.md}\n/OR F\n'),
        ("[[Bake it|bake/it]] [[Bake|How-to-bake]] [[cakes/a|b c]] [[a|b]]\n",
         "[[BAKE IT|bake/it]] [[Bake|How-to-bake]] [[cakes/a|B C]] [[a|B]]\n"),
        ("see \\@ref(fig:a) b\n\n(ref:c) d\n\n(ref) e\n", "SEE \\@ref(fig:a) B\n\n(ref:c) D\n\n(REF) E\n"),
        ("is\n\\[\n\\hat a = b\n\\]\nwhere\n", "IS\n\\[\n\\hat a = b\n\\]\nWHERE\n"),
        ("1) a\n2) b\n    a) c\n    b) d\n", "1) A\n2) B\n    a) C\n    b) D\n"),
        ("*[a]: b\n^\nc\n", "*[a]: B\n^\nC\n"),
        ("![a][b]\n\n[b]: c.png 'd \"e\"'\n", "![A][b]\n\n[b]: c.png 'D ”E”'\n"),
        ('{{% notice tip "a b" %}}\nc\n{{% /notice %}}\n{{< d "e" "f=g h" >}}\n\n{% hint title="i" %}\n',
         '{{% notice tip "A B" %}}\nC\n{{% /notice %}}\n{{< d "e" "f=g h" >}}\n\n{% hint title="I" %}\n'),
        ("```{figure} a.png\n:alt: b c\n:width: d\n\ne\n```\n", "```{figure} a.png\n:alt: B C\n:width: d\n\nE\n```\n"),
        ('<button :class="a" @click="b++">c</button> d <b class={`e ${f}`}>g</b>\n',
         '<button :class="a" @click="b++">C</button> D <b class={`e ${f}`}>G</b>\n'),
        ("<A b={`c ${d}`}>e</A> <A f={() => <b>g h</b>}>i</A>\n",
         "<A b={`c ${d}`}>E</A> <A f={() => <b>g h</b>}>I</A>\n"),
        ("a[^1] [b][c]\n\n[^1]: d\n[c]: https://e.f\n[g]: https://h.i\n",
         "A[^1] [B][c]\n\n[^1]: D\n[c]: https://e.f\n[g]: https://h.i\n"),
        ("**bake.config.mjs** --heat a -b c\\*d\\*\n", "**bake.config.mjs** --heat A -b C\\*D\\*\n"),
        ("a **4 %**[^b] 2*3*4 [5](c)\n\n[^b]: d\n", "A **4 %**[^b] 2*3*4 [5](c)\n\n[^b]: D\n"),
        ("%A%\\b\\c.json is d\n", "%A%\\b\\c.json IS D\n"),
        ('![a](b.png "c %d") [e](f "5") `[g](h "i")`\n\n[j]: k "l m"\n[^n]: o "p"\n',
         '![a](b.png "C %d") [E](f "5") `[g](h "i")`\n\n[j]: k "L M"\n[^n]: O "P"\n'),
        ('{{< figure src="a.png" title="b" alt="c" >}}\n\n<i title="d">e {{< f >}}</i> title="g"\n',
         '{{< figure src="a.png" title="B" alt="C" >}}\n\n<i title="D">E {{< f >}}</i> TITLE="G"\n'),
    ],
)  # fmt: skip
def test_blocks_and_marks_stay(text: str, result: str, tmp_path: Path) -> None:
    assert translated(tmp_path / "p.md", text) == result


BLOCKS = [
    "{{< highlight c >}}\na\n{{< /highlight >}}", "{{% highlight c %}}\na\n{{% /highlight %}}",
    "{{< code-toggle a=b >}}\na: {}\n{{< /code-toggle >}}", "{{< code >}}\na\n{{</ code >}}",
    "{{<mermaid>}}\na\n{{</mermaid>}}", "{% highlight c %}\na\n{% endhighlight %}",
    "{%- comment -%}\na\n{%- endcomment -%}", "{% code %}\n    a\n{% endcode %}",
    "\\begin{align}\n\\begin{split}\na\n\\end{split}\nb\n\\end{align}",
    "\\begin{tikzpicture}[a]\nb\n\\end{tikzpicture}",
    "$$\na\n$$", "$$\na\n\nb = c\n$$", "\\[\na\n\\]",
]  # fmt: skip
OPENINGS = [
    "{{< highlight >}}", "{{% highlight c %}}", "{{< highlight />}}", '{{< highlight a="b" />}}', "{{% highlight /%}}",
    "{{< code-toggle a=b />}}", "{{< code-toggle >}}", "{{< code >}}", "{{<code/>}}", "{{< codepen a >}}",
    "{{%mermaid/%}}",
    "{% highlight c %}", "{% comment %}", "{% code a=b %}", "\\begin{align}", "\\begin{tikzpicture}", "$$", "\\[",
    "<Pre />", "<Code a={b}>", "<!-->", "<!-- a -->",
]  # fmt: skip


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("block", BLOCKS)
def test_what_has_no_end_hides_no_text_up_to_the_end_of_another(opening: str, block: str, tmp_path: Path) -> None:
    page = f"one two three\n\n{opening}\n\none two three\n\n{block}\n\none two three\n"
    assert translated(tmp_path / "p.md", page) == page.replace("one two three", "ONE TWO THREE")


@pytest.mark.parametrize("name", ["kbd", "code", "samp", "var", "pre", "tt"])
@pytest.mark.parametrize("opening", ["<{}>", "<{}/>", '<{} class="a" />', "<{} class='a'>"])
@pytest.mark.parametrize("block", ["<{}>a</{}>", '<{} class="b">*a*</{}>'])
def test_an_element_of_code_without_an_end_hides_no_text(opening: str, block: str, name: str, tmp_path: Path) -> None:
    line = f"One {opening.format(name)} two {block.format(name, name)} three\n"
    result = translated(tmp_path / "p.md", line)
    assert result == line.replace("One", "ONE").replace("two", "TWO").replace("three", "THREE")


@pytest.mark.parametrize(
    "line, result",
    [
        ("{{< code />}}\n\na\n\n{{< /code >}}\n", "{{< code />}}\n\nA\n\n{{< /code >}}\n"),
        ("{{% highlight c/%}}\n\na\n\n{{% /highlight %}}\n", "{{% highlight c/%}}\n\nA\n\n{{% /highlight %}}\n"),
        ("a <code/> b </code> c\n", "A <code/> B </code> C\n"),
        ("\\[\na\n\\[\nb\n\\]\n\nc\n", "[ A\n\\[\nb\n\\]\n\nC\n"),
    ],
)
def test_what_is_closed_itself_takes_no_end(line: str, result: str, tmp_path: Path) -> None:
    assert translated(tmp_path / "p.md", line) == result


def test_marks_of_code_in_two_paragraphs_and_a_closed_element_hide_no_text(tmp_path: Path) -> None:
    page = 'a ` b\n\n<img alt="c">\n\n`<img alt="d">` e\n'
    assert translated(tmp_path / "p.md", page) == 'A ` B\n\n<img alt="C">\n\n`<img alt="d">` E\n'
    block = '<div>\n<svg class="a"/> b\n</div>\n\nc\n'
    assert translated(tmp_path / "p.md", block) == '<div>\n<svg class="a"/> B\n</div>\n\nC\n'


@pytest.mark.parametrize(
    "table",
    ["Right  Left\n-----  -----\n12     a b\n3      c d\n", "+---+---+\n| a | b |\n+===+===+\n| c | d |\n+---+---+\n"],
)
def test_tables_of_pandoc_are_left(table: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="mtx"):
        assert translated(tmp_path / "p.md", f"a\n\n{table}\nb\n") == f"A\n\n{table}\nB\n"
    assert "paragraph" in caplog.text


def test_indented_text_of_mdx_is_no_code(tmp_path: Path) -> None:
    page = "<A>\n    <B>\n        one *two*\n    </B>\n</A>\n\n    ```js\n    a b\n    ```\n"
    assert translated(tmp_path / "p.mdx", page) == page.replace("one *two*", "ONE *TWO*")
    assert translated(tmp_path / "p.md", page) == page


def test_a_heading_with_a_component_keeps_its_link(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    page = '# a b <Badge text="c" />\n\n[d](#a-b)\n'
    assert translated(tmp_path / "p.md", page) == '# A B <Badge text="c" />\n\n[D](#a-b)\n'
    assert "nowhere" not in caplog.text


def test_links_follow_thousands_of_equal_headings(tmp_path: Path) -> None:
    text = "# a-1\n\n" + "# a\n\n" * 5000
    result = translated(tmp_path / "p.md", f"[b](#a-4999)\n\n{text}")
    assert result == f"[B](#a-4999)\n\n{text.upper()}"


@pytest.mark.parametrize(
    "text, links",
    [
        ("[a](#the-king) [`b`](#the-king)\n\n# The king\n", ["#ze-king", "#ze-king"]),
        ("[a](#the-king--co-1)\n\n# The King & Co.\n\n## The *king* & [co](x#y)!\n", ["#ze-king--co-1"]),
        ('<a href="#the-king">a</a>\n\n<p>\n<a href="#the-king">b</a></p>\n\n[c]: #the-king\n\nThe king\n===\n',
         ["#ze-king", "#ze-king", "#ze-king"]),
        ("[a](#-the-__init__) [1](#the-k%C3%B6nig)\n\n# 🚀 The `__init__`\n\n# The König\n\n![x](y)\n",
         ["#-ze-__init__", "#ze-könig"]),
        ("[a](#the-x) [b](#y) [c](#z)\n\n> ## The x\n\n- # `b` {#y}\n\n# The {/*z*/}\n", ["#ze-x", "#y", "#z"]),
        ("`[a](#the-king)`\n\n    [b](#the-king)\n\n```\n[c](#the-king)\n```\n\n# The king\n", ["#the-king"] * 3),
    ],
)  # fmt: skip
def test_a_link_inside_the_page_follows_its_heading(
    text: str, links: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def translate(segments: list[Marked]) -> list[Hypothesis]:
        texts = [[re.sub("[Tt]he", "Ze", p) if isinstance(p, str) else p for p in segment] for segment in segments]
        return [Hypothesis(text, 0.0, []) for text in texts]

    (path := tmp_path / "p.md").write_text(text, encoding="utf-8")
    result = translate_document(path, "markdown", ("en", "de"), False, translate).decode()
    assert re.findall(r"(?<=[(\" ])#[^\s#)\"]+", result.partition("\n#")[0]) == links
    assert not caplog.messages


def test_links_to_no_heading_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = '[a](#b) [c](#d) [e](#f) [g](#top)\n\n<a id="f"></a>\n\n# b\n\n# b\n'
    assert translated(tmp_path / "p.md", text).startswith("[A](#b) [C](#d) [E](#f) [G](#top)\n")
    assert [message for message in caplog.messages if "link" in message] == [
        f"{tmp_path / 'p.md'}: 1 link inside the page may lead nowhere: no heading is #d"
    ]


@pytest.mark.parametrize(
    "translation, result",
    [
        ("2. a", "2\\. a"), ("# a", "\\# a"), ("- a", "\\- a"), ("> a", "\\> a"), ("*a* b", "\\*a\\* b"),
        ("a `b`", "a \\`b\\`"), ("2 * 3 [x]", "2 * 3 [x]"), ("<b>", "\\<b>"), ("&amp;", "\\&amp;"), ("C# 2.", "C# 2."),
        ("Bugün %50 indirim.", "Bugün %50 indirim."), ("100 $US", "100 $US"), ("an a@b.org", "an a@b.org"),
        ("Array<String>", "Array\\<String>"), ("a <B/> b", "a \\<B/> b"), ("a %50 <B/>", "a %50 \\<B/>"),
    ],
)  # fmt: skip
def test_a_translation_makes_no_marks(translation: str, result: str) -> None:
    edits = list(markdown.read("word\n", Counter()))
    assert apply("word\n", edits, [[translation]]) == f"{result}\n" and [edit.segment for edit in edits] == [["word"]]


@pytest.mark.parametrize(
    "text, result", [('!!! note "a"\n', "!!! note \"b 'c' | d\"\n"), ("|a|\n|-|\n", '|b "c" \\| d|\n|-|\n')]
)
def test_a_translation_does_not_end_its_title_or_cell(text: str, result: str) -> None:
    assert apply(text, markdown.read(text, Counter()), [['b "c" | d']]) == result


@pytest.mark.parametrize(
    "text, translation, result",
    [
        ("a  \nb", ["A", Tag("  \n", is_break=True), "+ b"], "A  \n\\+ b"),
        ("> a\\\n> b", ["A", Tag("\\\n> ", is_break=True), "1. b"], "> A\\\n> 1\\. b"),
        ("*a* b", [Tag("*", "open", "em"), "(b)", Tag("*", "close", "em"), "a"], "(b)a"),
        ("a\\\nb", ["B a", Tag("\\\n", is_break=True)], "B a "),
        ("a <!-- c --> b", [Tag("<!-- c -->"), " b a"], "a <!-- c --> b"),
    ],
)
def test_what_cannot_be_written_stays_or_loses_its_emphasis(text: str, translation: Marked, result: str) -> None:
    left = Counter[str]()
    assert apply(f"{text}\n", markdown.read(f"{text}\n", left), [translation]) == f"{result}\n"
    assert left.total() == (result == text)


def unchanged(some: list[Marked]) -> list[Marked]:
    return [[re.sub(r"\s+", " ", p) if isinstance(p, str) else p for p in segment] for segment in some]


def rendered(text: str) -> str:
    page = unescape(RENDERER.render(text))
    return re.sub(r"\s*<br />\s*", "<br>", re.sub(r"\s+", " ", page)).strip()


def test_a_translation_that_changes_nothing_renders_the_same() -> None:
    marks = [
        "word ",
        "*",
        "**",
        "_",
        "`",
        "``",
        "[a](b)",
        "[x]",
        '![i](u "t")',
        "<b>",
        "</b>",
        "\\*",
        "&amp;",
        "&",
        "\n",
    ]
    marks += [
        "\n\n",
        "> ",
        "- ",
        "1. ",
        "  ",
        "    ",
        "# ",
        "#",
        "~~",
        "!",
        "[r]",
        "\n[r]: http://x\n",
        "é",
        "a_b",
        "(",
    ]
    marks += [")", "]", "[", "<", "+ ", "\n```\n"]
    rng = random.Random(1)
    for _ in range(1000):
        text = "".join(rng.choices(marks, k=rng.randint(1, 25)))
        edits = list(markdown.read(text, Counter()))
        result = apply(text, edits, unchanged([edit.segment for edit in edits]))
        assert rendered(result) == rendered(text), (text, result)


def test_every_fence_and_every_line_of_code_is_the_source_s() -> None:
    lines = ["", "a b", "export default {", "}", "$$", "\\begin{equation}", "import {", "import c from 'd'", "<Tabs>"]
    lines += ["</Tabs>", "::: tip e", ":::", '!!! note "f"', '=== "g"', ": h", "(@) i", "| j", "% k", "{", "- l", "> m"]
    lines += ["# n", "[o]: p", "<A b={", "export const q = `", "*[r]: s", "{{ t }}", "import u"]
    only_code = ["    v", "``", "~~", "{% highlight w %}", "<pre>", "<!--"]
    containers = [("", ""), ("> ", "> "), ("- ", "  "), ("1. ", "   "), ("> * ", ">   "), ("  ", "  ")]
    containers += [('!!! note "x"\n    ', "    "), ('- === "y"\n\n      ', "      ")]
    rng = random.Random(1)
    for _ in range(1000):
        text, fences = "", []
        for _ in range(rng.randint(1, 5)):
            mark = rng.choice(["```", "~~~", "````"])
            first, prefix = rng.choice(containers)
            code = rng.choices(lines + only_code, k=rng.randint(0, 6))
            fences.append(f"\n{prefix}".join([mark + rng.choice(["", "js", " md {1}"]), *code, mark]))
            text += "".join(f"{line}\n" for line in rng.choices(lines, k=rng.randint(0, 3)))
            text += f"{first}{fences[-1]}\n"
        text += "\nlast words\n"
        edits = list(markdown.read(text, Counter()))
        result = apply(text, edits, [best.marked for best in shout([edit.segment for edit in edits])])
        at = 0
        for fence in fences:
            assert fence in result[at:], (text, result)
            at = result.index(fence, at) + len(fence)
        assert result.endswith("LAST WORDS\n"), (text, result)
