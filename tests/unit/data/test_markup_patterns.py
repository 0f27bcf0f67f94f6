"""What each pattern of the tables of codes and marks takes, between « and », and what it leaves."""

import pytest

from mtx.data.markup import ADDRESSES, ELEMENTS, FORMULAS, MARKS, PATHS, SIGN_CODES, TEMPLATES, WORD_CODES
from tests.unit.patterns import growing_unit, has_unbounded_repetition, mark_matches, without_marks

TABLES = {
    "templates": TEMPLATES, "addresses": ADDRESSES, "paths": PATHS, "words": WORD_CODES, "signs": SIGN_CODES,
    "elements": ELEMENTS, "formulas": FORMULAS, "marks": MARKS,
}  # fmt: skip
PATTERNS = {(table, name): pattern for table, patterns in TABLES.items() for name, pattern in patterns.items()}
LONGEST = 1500  # characters of a pattern, with those that it holds
# By the table and the name: what the pattern takes, and what it leaves
EXAMPLES: dict[tuple[str, str], tuple[list[str], list[str]]] = {
    ("templates", "JSX, Smarty: comment"): (["a «{/* a * b { c */}» b"], ["{/* a", "{ /* a */ }", "/* a */"]),
    ("templates", "JSX, Smarty"): (
        ["«{n !== 1 && 's'}» «{n > 1 ? 'a' : 'b'}» «{f(n)}»", "«{\"key\": 1}» «{if $c}» «{a?.b}» «{() => a}»"],
        ["{see this note}", "{a} (b)", "{a = b}", "a && b", "{a < b && c}"],
    ),
    ("templates", "Template Toolkit"): (["«[% var | html %]»"], ["[50%] and [60%]", "[% a"]),
    ("templates", "Polymer"): (["«[[ name ]]»"], ["[[name]]", "[[ a [b] ]]"]),
    ("templates", "ERB"): (["«<%= name %>»"], ["a <% b", "< % a %>"]),
    ("templates", "PHP"): (["«<?php echo $a ? 1 : 2; ?>»"], ["<? a", "a <<?", "<? a <? b"]),
    ("templates", "Jinja, Liquid"): (["«{% if a %}»", "«{%- end -%}»"], ["{ % a % }", "{50%}"]),
    ("templates", "Jinja: comment"): (["«{# note #}»"], ["{#a}", "{ # a # }"]),
    ("templates", "Handlebars: raw block"): (["«{{{{raw}}}}»"], ["{{{raw}}}"]),
    ("templates", "Handlebars: HTML"): (["«{{{html}}}»"], ["{{html}}"]),
    ("templates", "Jinja, Handlebars, Hugo, i18next"): (["«{{ a|b }}» «{{#if x}}» «${{ a.b }}»"], ["{a}", "{ {a} }"]),
    ("addresses", "web"): (
        ["(«https://a.org/b?c=1»), «www.a.de/b_(c)».", "«ftp://a.b/c», «http://a.b/c»日本"], ["a.b/c", "www"],
    ),
    ("addresses", "mail"): (["to «a.b+c@d.org».", "«mailto:a@b.de»"], ["a @ b.de", "@name", "a@b"]),
    ("paths", "home or relative path"): (["in «~/.bake/oven.toml» «../../var/log» «./a»"], ["~ /a", "... /"]),
    ("paths", "path in a variable of Windows"): (["«%HOME%\\bake\\a»"], ["%HOME%", "50% \\a"]),
    ("paths", "absolute path"): (["in «/etc/hosts» «/v1/{id}/a»"], ["/a", "/ a / b"]),
    ("paths", "file"): (["«src/main.rs» «*.bak» «a.tar.gz»"], ["e.g.", "a.b", "The end.Then go", "1.2"]),
    ("paths", "call"): (["«oven.heat(a, b)» «Flour::sieve()» «run()»"], ["run(s)", "file(s)", "a (b)"]),
    ("paths", "issue of GitHub"): (["in «baker/dough#12»"], ["and/or", "a #12"]),
    ("words", "web"): (["see «http://a.b/c»."], ["a:b//c"]),
    ("words", "mail"): (["«a@b.org»"], ["@a.b"]),
    ("words", "path of Windows"): (["in «C:\\temp\\new» a"], ["C: a", "abC:\\a"]),
    ("words", "path"): (
        ["(«src/main.rs», «8af41c0»): «run()» in «a/b#1»"],
        ["and/or he/she km/h", "decade facade 1234567", "24/7", "ph.d."],
    ),
    ("words", "Python: __name__"): (["a «__name__» b"], ["__name", "_name_", "a__b__", "__a b__"]),
    ("words", "printf, emoji: after a digit"): (["«50%%» «1\ufe0f\u20e3» «0x%04X»"], ["50%", "5 %%", "0x04"]),
    ("signs", "Xcode: plural"): (["«%#@files@» in «%1$#@a@»"], ["%#@ files@", "%@", "#@a@"]),
    ("signs", "Yoast"): (["on «%%PIN%%»"], ["%%", "%%a b%%", "%PIN%"]),
    ("signs", "Drupal: name with hyphens"): (["by «%field-name»"], ["%field", "5%field-name", "%ab-c"]),
    ("signs", "Drupal, Windows, strftime"): (
        ["«%name» «%USERNAME%» «%H:%M» «%Y-%m-%d» «%-d»"], ["100% of", "50%discount", "%_a", "%(a)s"],
    ),
    ("signs", "printf"): (["«%s» «%1$s» «%5.2f» «%(name)s» «%lld» «%*d» «%%» «%@»"], ["50%d", "100 % of", "%y"]),
    ("signs", "gettext"): (["«%<PRId64>»"], ["%<a>", "<PRId64>"]),
    ("signs", "Ruby"): (["«%<a>.2f» «%<name>s»"], ["%<a>", "%count%</b> 50%<br> "]),
    ("signs", "Qt"): (["«%1» of «%12»"], ["%1a", "%123", "% 1"]),
    ("signs", "Phrase"): (["«{b>»a«<b}»"], ["{ b>", "<b>", "{b}"]),
    ("signs", "Python, Java, shell: name in braces"): (
        ["«{0}» «${name}» «#{a.b}» «%{a}» «{ $name }» «{}»"], ["{see this}", "{a", "{<b}"],
    ),
    ("signs", "Python, .NET: format in braces"): (
        ["«{0:%Y-%m-%d %H:%M}» «{name!r:>10}» «{:<10}» «{0:N2}»"], ["{note: this}", "{a b:c}", "{a}"],
    ),
    ("signs", "ICU"): (["«{count, number}» «{due, date, short}»"], ["{a, b}", "{one, numbers}", "{n, plural}"]),
    ("signs", "Fluent"): (['«{ DATETIME($d, month: "long") }»'], ["{ date(a) }", "DATETIME(a)"]),
    ("signs", "i18next: nested"): (["«$t(common.key)»"], ["$ t(a)", "t(a)"]),
    ("signs", "make"): (["in «$(NAME)»"], ["$(a b)", "$ (a)", "$(5)"]),
    ("signs", "name in doubled dollars"): (["«$$name$$»"], ["$$", "$$5$$", "$name$"]),
    ("signs", "shell, PHP, Chrome"): (["«$name» «$NAME$» «$user.name»"], ["US$5", "$5", "a$b"]),
    ("signs", "Vue I18n"): (["«@:common.key» «@.lower:a.b»"], ["@name", "a: b", "@: a"]),
    ("signs", "Mailchimp"): (["«*|FNAME|*»"], ["*|a b|*", "|*|"]),
    ("signs", "name in carets"): (["«^name^»"], ["a^b^", "^a b^", "^a^b"]),
    ("signs", "TYPO3"): (["on «###URL###»"], ["### URL ###", "a###URL###", "##URL##"]),
    ("signs", "Blade"): (["«@lang('a.b')» «@if ($a->b() && $c)»"], ["@lang(a)", "a@if($b)", "@ if($a)"]),
    ("signs", "Drupal, Laravel"): (
        ["«@count» by «!author» at «:url»", "«:attribute:» («@string/app_name»)"], ["hello! Yes:no", "a@b", "¡Hola!"],
    ),
    ("signs", "GitLab: label"): (['«~"needs review"» by «~type::bug-x»'], ["~5 minutes", "~half", "~gone~", 'a~"b"']),
    ("signs", "GitLab: milestone"): (['in «%"Release 12"»'], ['100%"x"', '% "a"']),
    ("signs", "Weblate"): (["«[X0X]»"], ["[X]", "X0X"]),
    ("signs", "Maketext"): (["«[_1]» «[quant,_2,file,files]»"], ["[1]", "[quant]", "[a,b]"]),
    ("signs", "Drupal: token"): (["«[user:name]» «[view:front=block_1]»"], ["[Anna: yes]", "[see: below]", "[12:30]"]),
    ("signs", "WordPress"): (["«[vc_row]» «[gallery-a ids]» «[/vc_row]»"], ["[note]", "[see note]", "[A_b]"]),
    ("signs", "WordPress, BBCode: with a value"): (
        ['«[gallery ids="1,2"]» «[url=https://a.b]»'], ["[a = ]b", "[see note]", "[=a]"],
    ),
    ("signs", "BBCode: end"): (["«[/url]»"], ["[url]", "[/]", "[/ url]"]),
    ("signs", "BBCode"): (["«[b]»a «[*]» «[url]»"], ["[note]", "[b]_", "[x]"]),
    ("signs", "Godot"): (["«[param a]» «[method A.b]» «[member c[]]»"], ["[param]", "[see a]", "[parameter a]"]),
    ("signs", "RST: footnote"): (["a «[1]_» «[#a]_» «[*]_»"], ["[1]", "[a b]_", "[1]_a"]),
    ("signs", "RST: mark before code"): (["code «::»", "a«::» \n"], [":: a", "a:"]),
    ("signs", "RST: substitution"): (["the «|release|» «|a b|_»"], ["a || b | c", "a|b|c", "| a |"]),
    ("signs", "Xcode: inflection"): (["«^[»%lld«](inflect: true)»"], ["^[a]", "](a)"]),
    ("signs", "Moodle"): (["«@@CAKE@@/a.png» «@@A@@»."], ["@@", "@@a b@@", "@CAKE@"]),
    ("signs", "Tracery"): (["the «#oven#»"], ["#1#", "C#a#", "#a b#", "#Oven#"]),
    ("signs", "World of Warcraft"): (["«|cff00ff00»Stop«|r»", "a«|n»B"], ["|red", "|cff", "| r"]),
    ("signs", "RPG Maker"): (["«\\c[3]»it"], ["\\c", "c[3]", "\\c[a b]"]),
    ("signs", "roff"): (["e.g.«\\&» a«\\-»b «\\,»S«\\/»"], ["\\/a", "&", "\\n"]),
    ("signs", "Symfony, Laravel: numbers of a plural"): (["«[1,19]» and «]20,Inf]»"], ["[1]", "[a,b]"]),
    ("signs", "Polyglot: between plurals"): (["a «||||» b"], ["a || b", "|||"]),
    ("signs", "Symfony, Laravel: between plurals"): (["one«|»two"], ["a | b", "a || b", "|a"]),
    ("signs", "AsciiDoc, MediaWiki: end of a heading"): (["== a «==»"], ["a == b", "a==", "== "]),
    ("signs", "JSON, Java: escaped character"): (["a«\\u00a0»b"], ["\\u00", "u00a0", "\\up"]),
    ("signs", "printf: percent"): (["50«%%»"], ["50%", "% %"]),
    ("signs", "Unicode: characters without width"): (["a«\u200b\xa0»b"], ["a\u200bb", "\xa0\u200b", "a"]),
    ("signs", "emoji"): (["«☺» «😀😀» «👩‍🔬» «#\ufe0f\u20e3»"], [":)", "a #1", "\u200d"]),
    ("elements", "HTML"): (
        ["«<b>»a«</b>» «<br/>» «<a href='{{ a > b }}'>»", "50%«<br>»"], ["a <b and c> d", "%<a>.2f", "<b c d>"],
    ),
    ("elements", "comment"): (["«<!-- a\n b -->» «<!-->»"], ["<!-- a", "<! a >", "<-- a -->"]),
    ("elements", "XML"): (['«<0>»a«</0>» «<x:y id="1">» «<size=80%>» «<note>»'], ["<a b>", "3 < 4 > 2", "<1234>"]),
    ("formulas", "TeX: display"): (["is «$$a + b$$»."], ["$$ for food and $$ for wine", "$$$a$$$", "$a$"]),
    ("formulas", "GitLab"): (["is «$`a`$»"], ["$a$", "`a`", "$``$"]),
    ("formulas", "TeX: inline"): (["«$x$» «$5 x^2$» «$\\alpha$»"], ["$5 or 10$", "costs $5 and $6", "US$a$", "$ a$"]),
    ("formulas", "LaTeX"): (["«\\(a + b\\)» «\\\\[x_1\\\\]»"], ["file\\(s\\)", "\\(a note\\)", "\\(a"]),
    ("formulas", "LaTeX: one letter"): (["«\\(x\\)»"], ["\\(xy\\)", "(x)", "a\\(x\\)"]),
    ("formulas", "HTML: index"): (["x«<sub>i</sub>»"], ["<sub>a b</sub>", "CO<sub>2</sub>H"]),
    ("formulas", "HTML: exponent"): (["y«<sup>n</sup>»"], ["1<sup>st</sup>", "<sup>n</sup>a", "<sup>1</sup>"]),
    ("formulas", "LaTeX: reference"): (
        ["«\\ref{a:b}», «\\cite[p. 3]{knuth}» «\\@ref(fig:a)» «\\texttt{a\\_b}»"], ["\\href{a}", "\\ref", "ref{a}"],
    ),
    ("formulas", "LaTeX: macro as a word"): (["«\\item» two"], ["\\nabla", "x\\times", "\\item{a}", "\\item.b"]),
    ("marks", "shell: line after a prompt"): (["«$ bake --heat 9»\nb"], ["$ per month", "a $ b-c", "$5 a-b"]),
    ("marks", "RST: field"): (["«:param str name:» The name"], ["a :param b:", ":param:a"]),
    ("marks", "RST: parameter"): (["«*on_bake*» «*args*» «*\\*\\*kwargs*»"], ["*not*", "*a b_c*", "on_bake"]),
    ("marks", "roff: sign"): (["«\\(aq».«\\(bu» a"], ["\\(a", "(aq", "\\(abc"]),
    ("marks", "HTML, BBCode: code"): (
        ["«<code>a <code-x> b</code>» «[code]<b>[/code]»", "«<kbd>A</kbd> + <kbd>B</kbd>»"],
        ["<code/> a", "<b>a</b>", "<code>a", "<code>a <code>", "[code]a</code>"],
    ),
    ("marks", "BBCode"): (["«[note]»a[/note] «[a=b c]»d[/a]"], ["[note] a", "[note]a[/b]", "[1]a[/1]"]),
    ("marks", "BBCode: end"): (["a«[/note]»"], ["[note]", "[/1]"]),
    ("marks", "RST, MyST: role with a title"): (
        ["«:ref:`the cake <a-b>`» «{doc}`the cake <c>`»"], [":ref:`cake`", ":ref:`a.b <c>`", ":ref:`cake <my-cake>`"],
    ),
    ("marks", "RST, MyST: link"): (
        ["«`the cake <http://a.b>`__» «:ref:`a_b <c>`» «{any}`a<b>`»"], ["`cake`", ":class:`a <b>`", "a`b <c>`"],
    ),
    ("marks", "RST, MyST: role with text"): (
        ["«:guilabel:`&Open`» «{strong}`a`» «:abbr:`IC (Ice Cream)`»"], [":ref:`a`", ":abbr:`IC`", "guilabel:`a`"],
    ),
    ("marks", "RST, MyST: role"): (["«:class:`a.B`» «{math}`a`»"], ["a:class:`b`", ": a:`b`", "`a`"]),
    ("marks", "RST: space that ends a mark"): (["`a`«\\ »s", "a«\\ »*b*"], ["a\\ b", "* a"]),
    ("marks", "RST, Markdown: escaped mark"): (["«\\*args» a", "«\\|»a b\\n"], ["\\a", "*", "\\+a"]),
    ("marks", "arrow"): (["a «-->» b «->» c"], ["a->b", "a - > b", "-->"]),
    ("marks", "HTML: escaped tag"): (["«&lt;b class='a'&gt;»a«&lt;/b&gt;»"], ["a &lt; b", "&lt;3 a", "&gt;"]),
    ("marks", "RST, Markdown: code"): (
        ["«`a b`» «``a`b``» «```a``b```» «_`target`» «`a's`_»", "«`a`__»"], ["a`b", "`` a``", "` a `", "a``b``"],
    ),
    ("marks", "RST: parameter at the start"): (["«**a_b** (int)» - the", "«**a**» -- b"], ["see **a** - b", "**a** b"]),
    ("marks", "RST, Markdown: strong"): (["a «**b c**» d"], ["** a **", "a**b**", "2 ** 3 ** 4", "***a***"]),
    ("marks", "RST, Markdown: emphasis"): (["a «*b c*» d"], ["a * b * c", "**a**", "*.png *.jpg", "a*b*c"]),
    ("marks", "Markdown: image"): (["«![a b](c.png)»"], ["[a](b)", "![a]", "![a](b c)"]),
    ("marks", "Markdown: link"): (
        ['«[the cake](a/b.html)» «[![a](b)](c.d "T")» «[a](#b)»'], ["[a](b)", "[a] (b.c)", "a[b](c.d)", "[a]"],
    ),
    ("marks", "GTK: keys"): (["«<Primary><Shift>s»"], ["<b>s", "<Shift> s", "<Alt>"]),
    ("marks", "C: include"): (["«#include <stdio.h>» «#include»"], ["include <a>", "#includes"]),
    ("marks", "POD: escape"): (["h«E<gt>»"], ["<gt>", "E <gt>", "E<>"]),
    ("marks", "POD: code"): (["«B<-a>» «I</etc/hosts>» «C<a b>» «B<open>(2)»"], ["B<two words>", "I<File>", "aC<b>"]),
    ("marks", "LaTeX, roff"): (["«\\textbf{Cake \\& tea}» «\\fBbold\\fR» «\\f(CWa\\fR»"], ["\\item a", "\\fB a"]),
    ("marks", "POD: font"): (["«B<two words>»"], ["aB<b>", "C<a>", "B <a>", "B<>"]),
    ("marks", "AsciiDoc: block macro"): (["«ifdef::bake[]» «image::a.png[A cake]»"], ["a::b[c]", "see: [a]"]),
    ("marks", "AsciiDoc: inline macro"): (
        ["«link:a.html[the cake]» «footnote:[A note.]»"], ["note: [yes]", "link:a[b](c)", "a:b[c]"],
    ),
}  # fmt: skip
EXAMPLES |= {("marks", name): examples for (table, name), examples in EXAMPLES.items() if table == "formulas"}


def test_each_pattern_has_examples_of_what_it_takes_and_leaves() -> None:
    assert EXAMPLES.keys() == PATTERNS.keys()
    assert all(takes and leaves for takes, leaves in EXAMPLES.values())
    assert max(map(len, PATTERNS.values())) < LONGEST


@pytest.mark.parametrize("key", PATTERNS, ids=": ".join)
def test_a_pattern_takes_and_leaves(key: tuple[str, str]) -> None:
    takes, leaves = EXAMPLES[key]
    assert [mark_matches(PATTERNS[key], without_marks(text)) for text in takes] == takes
    assert [mark_matches(PATTERNS[key], text) for text in leaves] == leaves


@pytest.mark.parametrize("key", PATTERNS, ids=": ".join)
def test_the_time_of_a_pattern_grows_with_the_text(key: tuple[str, str]) -> None:
    assert not has_unbounded_repetition(PATTERNS[key])
    tried = WORD_CODES["path"] if key[0] == "paths" else PATTERNS[key]  # those of paths only where one may begin
    assert growing_unit(tried, EXAMPLES[key][0]) is None
