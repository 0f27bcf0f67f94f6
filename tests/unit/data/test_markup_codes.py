"""Codes inside of text are found whole: the longest match, and no words."""

import re

import pytest

from mtx.data.markup import (
    BREAK,
    CODE,
    ELEMENT,
    codes_of,
    element_tag,
    is_white_space,
    mark_up,
    needs_no_translation,
    strip_codes,
    text_of,
)


@pytest.mark.parametrize(
    "text",
    [
        "%#@files@ in %1$#@files@", "%name wrote %-d %s %1$s %5.2f %(name)s %lld %*d %'d %@ %1$@",
        "@count by !author at :url and :attribute:", "{count, number} {0, number, #.##} {due, date, short}",
        "%H:%M on %Y-%m-%d", "{0:%Y-%m-%d %H:%M} {name!r:>10} {:<10} {0:N2}", "%USERNAME% and %i%",
        "{{ count|intcomma }} {{#if x}} {{{html}}} {% if a %} {# note #} <%= name %> <?php echo $a; ?> {{< note >}}",
        "$name ${name} $(NAME) %{name} #{name} {$name} $$name$$ __name__ ^name^ *|FNAME|* @:common.key $t(common.key)",
        "{ $name } { -brand } { DATETIME($d, month: \"long\") }", "[X0X] [_1] [quant,_2,file,files]",
        "[vc_row] [vc_column width=\"1/2\"] [gallery ids=\"1,2\"] [/vc_row]", "{b> <b} {1> <1} {2}",
        "https://example.org/a?b={0}&c=%s user@example.org C:\\temp\\new", "☺ 😀😀 👩‍🔬",
        "@entity-type at :entity-url by %field-name", "$NAME$ and %%PIN%% on ###URL###",
        "[% var | html %] [[ name ]] in {/* a * b */}",
        "{n !== 1 && 's'} and {n > 1 ? 'a' : 'b'} at {format(n, 'x')} by {\"key\": \"value\"}",
        "[b] [url=https://a.b] [/url] [*]", "ftp://a.b/c and 1️⃣ at \\u00a0", "{a?.b ?? 'c'} by @Model.Name",
        "^[%lld](inflect: true)", "{0}|%count%|{1} |||| {2}", "[1,19] and ]20,Inf]",
        "@lang('a.b') and @if ($a->b() && $c) by @foreach ($a as $b) in {if $c} at @string/app_name",
        "[user:name] at [node:field_a:entity:url] on [view:front=block_1] by /var/data/in.csv and /usr/bin",
        '~"bug" and ~"needs review" by ~type::bug-x in %"Release 12"',
        "{{{{raw}}}} at ${{ a.b }} and $user.name and @.lower:a.b by mailto:a@b.org",
    ],
)  # fmt: skip
def test_codes_are_found_whole(text: str) -> None:
    around = re.sub(CODE, "", text)
    assert set(around.split()) <= {"in", "wrote", "by", "at", "and", "on"}
    assert not set("%$@{}[]<>:!^*|\\").intersection(around)


@pytest.mark.parametrize(
    "text",
    [
        "100% of users, 50%discount, 50 % of", "see [1], [note] and [see note]", "He said: hello! Yes:no",
        "{see this note}", "AT&T costs US$5", "a * b ^ c", "3 < 4 > 2", "a<b and c>d", "\\nabla", "¡Hola! (so: so)",
        "costs $5", "a || b | c", "x\\times y", "[Anna: yes] [see: below] [12:30]",
        "~5 minutes, ~half, ~approx ten, ~thirty, ~gone~ ~~gone~~ H~2~O a~b ~Anna ~ 'x' 100%\"x\"",
        "and/or/not, 5 km/h /s/ (he)/she/they",
    ],
)  # fmt: skip
def test_words_are_no_codes(text: str) -> None:
    assert not re.search(CODE, text) and not BREAK.search(text) and not re.search(ELEMENT, text)


def test_a_line_break_of_subtitles_is_no_word() -> None:
    assert [element_tag(tag).is_break for tag in (r"\N", r"\h", "<br>", "<n>")] == [True, False, True, False]


def test_elements_behind_a_percent_sign_are_none_of_ruby() -> None:
    assert re.findall(ELEMENT, "<b>%count%</b> 50%<br> %<name>s %<a>.2f") == ["<b>", "</b>", "<br>"]


@pytest.mark.parametrize("code", ["{{ a }}/{{ b }}", "{0}-{1}.{2}", "%s:%s", "%1$s.%2$s"])
def test_placeholders_that_only_a_sign_joins_are_one(code: str) -> None:
    assert [match[0] for match in re.finditer(CODE, f"see {code}. {code}: {code}")] == [code] * 3


@pytest.mark.parametrize("tag", ['<h1 class="<?= $a > 1 ?>">', '<a href="{{ a > b }}">', '<x-y a="{% if b > 1 %}">'])
def test_a_template_in_an_attribute_is_no_end_of_the_element(tag: str) -> None:
    assert re.findall(ELEMENT, f"a {tag}b</a>") == [tag, "</a>"]


@pytest.mark.parametrize(
    "opening, block",
    [
        *((f"<{name}{rest}", f"<{name}>a</{name}>") for name in ("code", "pre", "tt", "KBD", "style") for rest in "/>"),
        ("<code class='b' />", "<code class='b'>a</code>"), ("[code]", "[code]a[/code]"), ("[pre]", "<pre>a</pre>"),
        ("<!-->", "<!--a-->"), ("<!--->", "<!--a-->"), ("{/* b", "{/* a */}"), ("<?b", "<?php a ?>"),
        ("```b", "```a```"), ("[note]", "[note]a[/note]"), ("<code/>", "</code>"),
    ],
)  # fmt: skip
def test_what_has_no_end_is_no_code_up_to_the_end_of_another(opening: str, block: str) -> None:
    text = text_of(mark_up([f"{opening} one two {block} three"]))
    assert "one two" in text and "three" in text


def test_marks_of_rst_are_codes() -> None:
    assert codes_of("a ::") == codes_of("a::") == ["::"] and "-->" in codes_of(":menuselection:`a --> b`")


def test_an_escaped_line_break_is_one() -> None:
    assert [match[0] for match in BREAK.finditer(r"a.\nB \r\nC\nd \\name x \n")] == [r"\n", r"\r\n", r"\n", r"\n"]
    assert [match[0] for match in BREAK.finditer(r"a\r\nb")] == [r"\r\n"]
    assert BREAK.findall(r"one\tTwo \theta") == [r"\t"]


def test_markup_leaves_the_text_to_train_on() -> None:
    text = r'<p class="a">Q&amp;A&nbsp;<b>now</b>: it&#8217;s<br/>%s<!-- so --></p> 3 < 4\nEnd <0>a</0><x:y id="1"/>'
    assert strip_codes(text).split() == ["Q&A", "now:", "it’s", "%s", "3", "<", "4", "End", "a"]
    assert strip_codes("a&#10;b") == "a b"
    assert strip_codes("R&amp;D, AT&T, a_b, &Open") == "R&D, AT&T, a_b, &Open"
    assert strip_codes(r"One\nTwo C:\dir\name") == r"One Two C:\dir\name"


@pytest.mark.parametrize(
    "text, is_space", [(f"&#{'0' * 5000}10;", True), (f"&#{'9' * 5000};", False), ("&#xA0;", True)]
)
def test_a_character_reference_may_have_thousands_of_digits(text: str, is_space: bool) -> None:
    assert is_white_space(text) == is_space


@pytest.mark.parametrize(
    "text", ["12 kB", "3.5 GHz", "12 kB / 4.6 kB", "1920 × 1080 px", "-5 °C", "~12ms", "5 min", "(100 Mbit/s)", "5 m²"]
)
def test_a_quantity_needs_no_translation(text: str) -> None:
    assert needs_no_translation(text)


@pytest.mark.parametrize("text", ["5 dogs", "7 pm", "2nd", "12 kB free", "in 5 min", "1 1, " * 10_000 + "x y"])
def test_other_numbers_with_words_do(text: str) -> None:
    assert not needs_no_translation(text)


@pytest.mark.parametrize(
    "text",
    ["Cheap ($) or dear ($$$) food.", "From $$ (cheap) to $$$ (dear).", "Rated $$ for food and $$$ for wine.",
     "Rated $$ for food and $$ for wine.",
     "It costs $5 or 10$ more."],
)  # fmt: skip
def test_signs_of_dollars_are_no_formula(text: str) -> None:
    assert text_of(mark_up([text])) == text


@pytest.mark.parametrize("formula", ["$$a + b$$", "$$ x $$", "$x$", "$5 x^2$", "$a$", "$2.5$", "$\\alpha$"])
def test_a_formula_is_code(formula: str) -> None:
    assert text_of(mark_up([f"Here {formula} is"])).split() == ["Here", "is"]


def test_an_index_of_a_formula_is_code() -> None:
    text = "x<sub>i</sub> V<sub>out</sub> y<sup>n</sup> 1<sup>st</sup> CO<sub>x</sub>H <sub>see note</sub>"
    ends = ["<sup>", "</sup>", "<sub>", "</sub>", "<sub>", "</sub>"]
    assert codes_of(text) == sorted(["<sub>i</sub>", "<sub>out</sub>", "<sup>n</sup>", *ends])


@pytest.mark.parametrize(
    "text, codes",
    [
        ("(src/main.rs), ../../var/log; *.bak: /etc/hosts ~/.bake/oven.toml. %HOME%\\bake\\a",
         ["src/main.rs", "../../var/log", "*.bak", "/etc/hosts", "~/.bake/oven.toml", "%HOME%\\bake\\a"]),
        ("See bake.config.mjs: POST /v1/cakes/{id}/icing", ["bake.config.mjs", "/v1/cakes/{id}/icing"]),
        ("at 8af41c0 in baker/dough#12 (oven.heat(a, b)) Flour::sieve() run()",
         ["8af41c0", "baker/dough#12", "oven.heat(a, b)", "Flour::sieve()", "run()"]),
        ("http:// or https://, cake://a.png", ["http://", "https://", "cake://a.png"]),
        (r"\ref{a:b}, \cite[p. 3]{knuth} \(a + b\) \(x\) \item two \@ref(fig:a)",
         [r"\ref{a:b}", r"\cite[p. 3]{knuth}", r"\(a + b\)", r"\(x\)", r"\item", r"\@ref(fig:a)"]),
        (r"a \textbf{Cake \& tea} \texttt{a\_b} \emph{is} \href{https://a.b}{good}",
         [r"\textbf{", r"\&", "}", r"\texttt{a\_b}", r"\emph{", "}", r"\href{https://a.b}{", "}"]),
        (r"\fBbold\fR \f(CWcode\fR \(aq.\(bu \[ba] e.g.\& a\-b",
         [r"\fB", r"\fR", r"\f(CW", r"\fR", r"\(aq", r"\(bu", r"\&", r"\-"]),
        ("B<-a>, I</etc/hosts> B<open>(2): E<lt>hE<gt> C<a b> I<\\,SIZE\\/>",
         ["B<-a>", "I</etc/hosts>", "B<open>(2)", "E<lt>", "E<gt>", "C<a b>", "I<\\,SIZE\\/>"]),
        ("B<two words> I<File>", ["B<", ">", "I<", ">"]),
        ("link:a.html[the cake], footnote:[A note.] ifdef::bake[]",
         ["link:a.html[", "]", "footnote:[", "]", "ifdef::bake[]"]),
        ("#include <stdio.h> *on_bake* *args* *\\*\\*kwargs* *not*",
         ["#include <stdio.h>", "*on_bake*", "*args*", "*\\*\\*kwargs*", "*", "*"]),
        (":param str name: The name", [":param str name:"]),
        ("$ bake cake --heat 9", ["$ bake cake --heat 9"]),
        ("@@CAKE@@/a.png [cake:baker] #oven# \\c[3]it |cff00ff00Stop|r",
         ["@@CAKE@@/a.png", "[cake:baker]", "#oven#", "\\c[3]", "|cff00ff00", "|r"]),
        ("<color=#FFAA00>sun</color> <size=80%>", ["<color=#FFAA00>", "</color>", "<size=80%>"]),
        ("0x%04X in &Cake; &amp; (*.png *.jpg);;", ["0x%04X", "&Cake;", "&amp;", "*.png", "*.jpg"]),
        ("<script>a('b c')</script> <literal>A B</literal>", ["<script>a('b c')</script>", "<literal>A B</literal>"]),
    ],
)  # fmt: skip
def test_names_of_programs_are_codes(text: str, codes: list[str]) -> None:
    assert codes_of(text) == sorted(codes)


@pytest.mark.parametrize(
    "text",
    [
        "and/or he/she/they km/h Inc. e.g. i.e. 3.5 24/7 A/B 1/2 w/o TCP/IP U.S.C. red/green/blue s/he",
        "The end.Then go. Files: a(s), file(s) and ph.d. theses; so/as well... 12.5 kB",
        "§5 BGB and §433, $ per month, $5",
        "file\\(s\\) \\(a note\\) costs 100 - 200 a", "note: [yes] and see: it", "a < b and B > c",
        "decade facade 1234567",
    ],
)  # fmt: skip
def test_words_with_signs_are_no_codes(text: str) -> None:
    assert codes_of(text) == []


@pytest.mark.parametrize(
    "code",
    ["<command>npm help [command] now</command>", "<code>a <code-x> some words</code>",
     "<literal>my [literal words</literal>", "[code]print <code words>[/code]", "[img=http://a.b/]some words[/img]"],
)  # fmt: skip
def test_code_may_hold_its_name_in_other_brackets(code: str) -> None:
    assert text_of(mark_up([f"Run {code} twice."])).split() == ["Run", "twice."]
