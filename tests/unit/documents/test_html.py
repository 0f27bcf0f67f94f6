"""Pages as people write them: what is no text to translate stays as it is, byte for byte."""

from pathlib import Path

import pytest

from mtx.data.languages import tag_of
from mtx.data.markup import Marked, Tag
from mtx.documents.html import _write_block
from mtx.errors import DataError
from tests.unit.documents.test_document import translated


@pytest.mark.parametrize(
    "page, result",
    [
        ("<p>a <span translate=no>Keep <b>it</b></span> dog", "<p>A <span translate=no>Keep <b>it</b></span> DOG"),
        ('<div class="x notranslate">a<p translate="yes">b</p>c</div>d',
         '<div class="x notranslate">a<p translate="yes">B</p>c</div>D'),
        ("<img alt=dog><img translate='no' alt='dog'>", "<img alt=\"DOG\"><img translate='no' alt='dog'>"),
        ("<p data-x=' alt=\"a\"' TITLE='a > b'>", "<p data-x=' alt=\"a\"' TITLE='A &gt; B'>"),
        ('<html lang="en" class="x"><p lang="en">a', '<html lang="de" class="x"><p lang="en">A'),
        ('<meta name="description" content="a"><meta name="viewport" content="a"><meta property=og:title content=a>',
         '<meta name="description" content="A"><meta name="viewport" content="a"><meta property=og:title content="A">'),
        ('<input type="submit" value="a"><input type="text" value="a">',
         '<input type="submit" value="A"><input type="text" value="a">'),
        ("<ruby>a<rp>(</rp><rt>b</rt><rp>)</rp></ruby> c", "<ruby>A<rp>(</rp><rt>b</rt><rp>)</rp></ruby> C"),
        ("---\ntitle: a\n---\n<p>a</p>", "---\ntitle: a\n---\n<p>A</p>"),
        ("{% for a in b %}\n<p>a {{ b|c('<p>') }}</p>\n{% endfor %}",
         "{% for a in b %}\n<p>A {{ b|c('<p>') }}</p>\n{% endfor %}"),
        ("<?php if ($a > 1) { echo '<p>b</p>'; } ?><p <% if a %>class='b'<% end %>>c</p>",
         "<?php if ($a > 1) { echo '<p>b</p>'; } ?><p <% if a %>class='b'<% end %>>C</p>"),
        ("<img alt='a {{ b[\"c\"] }}'> {{ a", "<img alt='A {{ b[\"c\"] }}'> {{ A"),
        ("&nbsp;a &copy; &eacute; &lt;i> &#x41;", "&#160;A © É &lt;i&gt; A"),
        (f"<p title='a &#{'9' * 5000}; b'>a &#{'9' * 5000}; &#{'0' * 5000}65; &#0; &#10000000; b</p>",
         "<p title='A \ufffd B'>A \ufffd A \ufffd \ufffd B</p>"),
        ("<b>a &#foo; &#bar; <i>b</i></b>", "<b>A &amp;#FOO; &amp;#BAR; <i>B</i></b>"),
        ("one <b>two</b <p>three</p> a <b", "ONE <b>TWO</b <p>THREE</p> a <b"),
        ("<p>one <!-- no", "<p>one <!-- no"),
        ("a</>b", "a</>b"),
        ("<pre>a <b>dog</b></pre><pre>b", "<pre>a <b>dog</b></pre><pre>B"),
        ("<script>a</scripty>b</script>c", "<script>a</scripty>b</script>C"),
        ("<script>a < b", "<script>a < b"),
        ("<p>a<a id=x />b</p>", "<p>A<a id=x />B</p>"),
        ("<b>a<i>b</b>c</i>", "<b>A<i>B</b>C</i>"),
        ("<p>a<br/>b<br>c</p>", "<p>A<br/>B<br>C</p>"),
        ('<ul><li translate="no">a<ul><li>b</ul><li>c</ul>d', '<ul><li translate="no">a<ul><li>b</ul><li>C</ul>D'),
        ("<p translate=no>a <b>b</b><p>c", "<p translate=no>a <b>b</b><p>C"),
        ("<tr><td translate=no>a<td>b", "<tr><td translate=no>a<td>B"),
        ("<html translate=no><p>a</p>", "<html translate=no><p>a</p>"),
        ('<img src="a" alt="b" />', '<img src="a" alt="B" />'),
        ("<p>a <![ b</p>c", "<p>A <![ b</p>C"),
        ("a <![if x]>b<![endif]> <![x[y]]> <![CDATA[<i>c</i>]]> d",
         "A <![if x]>B<![endif]> <![x[y]]> <![CDATA[<i>c</i>]]> D"),
        ("<p>The x<sub>i</sub> is CO<sub>2</sub> H<sub>2</sub>O</p>",
         "<p>THE X<sub>i</sub> IS CO<sub>2</sub> H<sub>2</sub>O</p>"),
        ("@if (a.length > 5) { <b>c</b> } @else if (b) { <i>d</i> }@for (e of f; track e.id) {<li>{{e}} g</li>}",
         "@if (a.length > 5) { <b>C</b> } @else if (b) { <i>D</i> }@for (e of f; track e.id) {<li>{{e}} G</li>}"),
        ("@let a = b.c; <p>d</p>@defer (on viewport) {<p>e</p>}@switch (a) {@case ('b') {<p>c</p>}}",
         "@let a = b.c; <p>D</p>@defer (on viewport) {<p>E</p>}@switch (a) {@case ('b') {<p>C</p>}}"),
        ("<p>write to if or for you (see {0}) at for@if.de</p>",
         "<p>WRITE TO IF OR FOR YOU (SEE {0}) AT for@if.de</p>"),
        ('<mat-icon>menu</mat-icon> a <i class="x material-icons">home</i><i class="material-symbols-outlined">b</i>',
         '<mat-icon>menu</mat-icon> A <i class="x material-icons">home</i><i class="material-symbols-outlined">b</i>'),
        ('<p lang="de">Haus</p><p>a <i lang="fr-FR" title="b">c</i></p><p lang="en-GB">d</p>',
         '<p lang="de">Haus</p><p>A <i lang="fr-FR" title="b">c</i></p><p lang="en-GB">D</p>'),
        ('<p>a</p><div translate="no"><p lang="en">c</p></div><p lang="fr" translate="yes">d</p>',
         '<p>A</p><div translate="no"><p lang="en">c</p></div><p lang="fr" translate="yes">D</p>'),
        ('<html lang="fr"><body><p>a</p><p lang="{{ b }}">c</p></body>',
         '<html lang="de"><body><p>A</p><p lang="{{ b }}">C</p></body>'),
        ('<meta http-equiv="Content-Language" content="en"><p aria-description="a" aria-valuetext="b" data-alt="c">d',
         '<meta http-equiv="Content-Language" content="de"><p aria-description="A" aria-valuetext="B" data-alt="c">D'),
        ("<p>see https://a.b/?x=1&amp;y=2 a</p>", "<p>SEE https://a.b/?x=1&amp;y=2 A</p>"),
        ("<p>{{ name }} a {0}</p>", "<p>{{ name }} A {0}</p>"),
        ("<p onClick={() => go(1)} style={{a: 1}}>a</p>", "<p onClick={() => go(1)} style={{a: 1}}>A</p>"),
        ("<p>a {{{b}}}</p><p {{{b}}}>c</p>", "<p>A {{{b}}}</p><p {{{b}}}>C</p>"),
        ("a {% schema %}{\"b\": {}}{% endschema %}{%- comment -%}<p>b</p>{%- endcomment %}",
         "A {% schema %}{\"b\": {}}{% endschema %}{%- comment -%}<p>b</p>{%- endcomment %}"),
        ("<p>a</p><?php if ($b->c > 1) { echo 'd'; }", "<p>A</p><?php if ($b->c > 1) { echo 'd'; }"),
        ("<noscript>a</noscript><template><p>b</p></template><textarea>c d</textarea>",
         "<noscript>A</noscript><template><p>B</p></template><textarea>C D</textarea>"),
        ("<p>a `b` **c**</p>", "<p>A `b` **C**</p>"),
        ("<p>a &lt;b c=d&gt; <tt>e</tt></p><optgroup label=f>",
         "<p>A &lt;b c=d&gt; <tt>e</tt></p><optgroup label=\"F\">"),
        ('<dt class="sig sig-object py" id=a><span class="sig-name descname">a</span>(<em>b</em>)</dt><dd>c</dd>',
         '<dt class="sig sig-object py" id=a><span class="sig-name descname">a</span>(<em>b</em>)</dt><dd>C</dd>'),
        ('<h1>a <span class="element-name">b</span></h1><div class="type-signature">c <a href="d">e</a></div><p>f</p>',
         '<h1>A <span class="element-name">b</span></h1><div class="type-signature">c <a href="d">e</a></div><p>F</p>'),
        ('<div class="memproto"><table><tr><td>a</td></tr></table></div><h4 class="code-header">b</h4>c',
         '<div class="memproto"><table><tr><td>a</td></tr></table></div><h4 class="code-header">b</h4>C'),
        ('<div class="tsd-signature">a</div><p class="phpdocumentor-signature">b</p><td class="paramname">c</td>d',
         '<div class="tsd-signature">a</div><p class="phpdocumentor-signature">b</p><td class="paramname">c</td>D'),
        ("<label>a</label>\n  <input>\n\t<input> b  c\n  <input> d <b>e</b>\n<i>f</i>",
         "<label>A</label>\n  <input>\n\t<input> B C\n  <input> D <b>E</b>\n<i>F</i>"),
        ("{% if a %}\n  <a>b</a>\n{% else %}\n  <p>c</p>", "{% if a %}\n  <a>B</a>\n{% else %}\n  <p>C</p>"),
        ("{{ $a := dict \"b\" `{{ c }} d` \"}}\" }}<p>e</p>", "{{ $a := dict \"b\" `{{ c }} d` \"}}\" }}<p>E</p>"),
        ("{{ '{{' }}a{{ '}}' }} {{ b | c: '</p>' }}", "{{ '{{' }}A{{ '}}' }} {{ b | c: '</p>' }}"),
        (f"<p>a {{{{ b</p><p>c</p>{'d' * 3000}<script>e={{f:{{}}}}</script>",
         f"<p>A {{{{ B</p><p>C</p>{'D' * 3000}<script>e={{f:{{}}}}</script>"),
        ("<p>a @let us b; c</p>@let d = e; f", "<p>A @let US B; C</p>@let d = e; F"),
        (f"{{{{- /* {'a ' * 2000} {{{{ b }}}} */}}}}<p>c</p>", f"{{{{- /* {'a ' * 2000} {{{{ b }}}} */}}}}<p>C</p>"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_stays(page: str, result: str, tmp_path: Path) -> None:
    assert translated(tmp_path / "p.html", page) == result


BLOCKS = [
    "{{ a }}", "{{{a}}}", "{% if a %}", "{# a #}", "<% a %>", "<?= $a ?>", "<![CDATA[a]]>", "<p b={a}></p>",
    "@let a = b;",
    "{% raw %}a{% endraw %}", "{%- comment -%}a{%- endcomment -%}", "{% style %}a{% endstyle %}", "<!-- a -->", "<!-->",
    "<code>a</code>", "<pre>a</pre>", "<script>a</script>", "<svg><text>a</text></svg>", "<i translate=no>a</i>",
    "{{/* {{ a }} a */}}", "{{- /* a {{ b }} a */ -}}", "{{!-- a {{ b }} a --}}", "<%-- a <%= b %> a --%>", "@if (a) {",
]  # fmt: skip
OPENINGS = [
    "{{", "{{{", "{%", "{#", "<% ", "<?a>", "<![CDATA[>", "={", "@let", "@let a = b", "{% raw %}", "{%- comment -%}",
    "{% style a.css %}", "{% stylesheet 'a' %}", "<!-->", "<!--->", "<code>", "<code/>", "<pre />", "<script src=a />",
    "<svg/>", "<%--", '<svg a="b" />', "<i translate=no />", '<i class="notranslate"/>', "@if (a)", "{{/*", "{{!--",
]  # fmt: skip


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("block", BLOCKS)
def test_what_has_no_end_hides_no_text_up_to_the_end_of_another(opening: str, block: str, tmp_path: Path) -> None:
    page = f"<p>one</p><div>{opening}</div><p>one</p><div>{block}</div><p>one</p>"
    assert translated(tmp_path / "p.html", page).count("ONE") == 3


TEMPLATES = [
    "{{ page.lang }}", "{{ a | default: 'b' }}", "{{ a | default: \"b\" }}", "<?php echo $lang ?>", "<?= $lang ?>",
    "<%= lang %>", "{% block a %}b{% endblock %}", "{%a%}", "{{{a}}}", "{a}", "${a}", "#{a}", "%lang%", "@a", "[[a]]",
    "__LANG__", "en-{{ a }}", "$LANG",
]  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "page",
    [
        '<html class="b" lang="{}" dir="ltr">', "<html lang='{}' xml:lang='{}'>",
        '<meta content="{}" http-equiv="content-language">',
        '<html lang="{}" dir="{}">', "<html lang={} dir='ltr'>",
        '<html :lang="a" [lang]="b" v-bind:lang="{}" data-lang="fr">',
    ],
)  # fmt: skip
def test_a_template_in_the_place_of_a_language_stays(page: str, template: str, tmp_path: Path) -> None:
    if '{}"' in page:
        template = template.replace('"', "'")  # else the attribute would end there
    page = page.replace("{}", template)
    expected = page.replace('dir="ltr"', 'dir="rtl"').replace("dir='ltr'", "dir='rtl'")
    assert translated(tmp_path / "p.html", f"{page}<p>a</p>", ("en", "ar")) == f"{expected}<p>A</p>"


RIGHT_TO_LEFT = ["ar", "he", "fa", "ur", "yi", "ps", "sd", "ug", "ckb", "dv", "syr", "az-Arab", "uz_Arab", "arb", "nqo"]
LEFT_TO_RIGHT = ["de", "en", "az", "tr", "zh", "ja", "pt-BR", "he-Latn"]


@pytest.mark.parametrize(
    "language, direction",
    [*((code, "rtl") for code in RIGHT_TO_LEFT), *((code, "ltr") for code in LEFT_TO_RIGHT)],
)
def test_a_plain_direction_follows_the_target_language(language: str, direction: str, tmp_path: Path) -> None:
    for of_page in ("ltr", "rtl"):
        body = f'<body class=a dir="{of_page.upper()}"><p dir={of_page}>a <i dir=auto>b</i>'
        page = f"<html dir='{of_page}' lang=fr>{body}"
        result = translated(tmp_path / "p.html", page, ("fr", language))
        expected = page.replace("a <i", "A <i").replace("b<", "B<")
        if of_page != direction:
            expected = expected.replace(f"dir='{of_page}'", f"dir='{direction}'")
            expected = expected.replace(f'"{of_page.upper()}"', f'"{direction}"')
        assert result.replace(f'lang="{tag_of(language)}"', "lang=fr") == expected


@pytest.mark.parametrize("page", ["<html dir=ltr>", "<body dir=ltr>", "<html lang='{{ a }}' dir=' LTR '>"])
def test_a_direction_without_a_language_follows(page: str, tmp_path: Path) -> None:
    result = translated(tmp_path / "p.html", f"{page}<p>a</p>", ("en", "ar"))
    assert result.replace('"', "").replace("'", "").replace("dir=rtl", "dir=ltr") == (
        f"{page}<p>A</p>".replace("'", "").replace(" LTR ", "ltr")
    )
    assert "rtl" in result


@pytest.mark.parametrize("page", ["<html dir='{{ a }}'>", "<html>", "<html dir=auto>", "<p dir=ltr>"])
def test_other_directions_stay(page: str, tmp_path: Path) -> None:
    assert translated(tmp_path / "p.html", f"{page}<p>a</p>", ("en", "ar")) == f"{page}<p>A</p>"


@pytest.mark.parametrize("code", ["en ", " en", "i-default", "en-US"])
def test_the_language_of_a_page_may_have_spaces_around_it(code: str, tmp_path: Path) -> None:
    assert translated(tmp_path / "p.html", f'<html lang="{code}"><p>a</p>', ("en", "ar")) == '<html lang="ar"><p>A</p>'


@pytest.mark.parametrize(
    "page, number",
    [
        ("{{-- <h1>a</h1>\n<p>a</p> --}}", 0), ("{{! <p>a</p> }}", 0), ("{{!-- <p>a }} a</p> --}}", 0),
        ("{{! the ` b }}\n<p>a</p>\n{{! the ` b }}", 1), ('{{! say "a }}<p>a</p>{{! say "a }}', 1),
        ("{{ b ` }}\n<p>a</p>\n{{ b ` }}", 1), ("<p>a {{ b" + "<br>a" * 900 + "<p>a</p>\n}} b", 1),
    ],
)  # fmt: skip
def test_comments_of_templates_are_whole_and_hide_nothing_behind_them(page: str, number: int, tmp_path: Path) -> None:
    assert translated(tmp_path / "p.html", page).count("<p>A</p>") == number


def test_white_space_of_a_tag_moves_with_it_only_where_there_is_some() -> None:
    first, second = Tag("<a>"), Tag("<b>")
    source: Marked = ["x\n ", first, " ", second]
    assert _write_block(source, [second, " Y ", first, "<"]) == "<b> Y\n <a>&lt;"
    assert _write_block(source, [first, "Y ", second]) == "<a>Y <b>"
    assert _write_block(["5\xa0", first, "x"], ["5 ", first, "x"]) == "5&#160;<a>x"


@pytest.mark.parametrize(
    "page, result",
    [
        ("<HTML><p title='&copy; b'>a &copy;</p></HTML>", "<HTML><p title='&#169; B'>A &#169;</p></HTML>"),
        ("<html><meta charset=utf-8><p>a &copy;", "<html><meta charset=utf-8><p>A ©"),
        ("<html><p>ä &copy;", "<html><p>Ä ©"),
        ("<p>a &copy;</p>", "<p>A ©</p>"),  # a part of a page, whose encoding another file declares
    ],
)
def test_a_page_of_unknown_encoding_stays_ascii(page: str, result: str, tmp_path: Path) -> None:
    assert translated(tmp_path / "p.html", page) == result


def test_a_page_of_many_tags_takes_no_time_at_all(tmp_path: Path) -> None:
    page = "<b>" * 5000 + "a" + "</b>" * 5000
    assert translated(tmp_path / "p.html", page) == page.replace("a", "A")


@pytest.mark.parametrize("part", ["<a b='c' ", "<!--", "<p", '<p title="'])
def test_many_tags_that_do_not_end_are_refused(part: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"p.html:2: unclosed tags; expected > after <"):
        translated(tmp_path / "p.html", "<p>\n" + part * 2000)
