"""Pages as people write them: what is no text to translate stays as it is, byte for byte."""

from pathlib import Path

import pytest

from tests.unit.documents.test_document import translated


@pytest.mark.parametrize(
    "page, result",
    [
        ("<p>a <span translate=no>Keep <b>it</b></span> dog", "<p>A <span translate=no>Keep <b>it</b></span> DOG"),
        ('<div class="x notranslate">a<p translate="yes">b</p>c</div>d',
         '<div class="x notranslate">a<p translate="yes">B</p>c</div>D'),
        ("<img alt=dog><img translate='no' alt='dog'>", "<img alt=\"DOG\"><img translate='no' alt='dog'>"),
        ("<p data-x=' alt=\"a\"' TITLE='a > b'>", "<p data-x=' alt=\"a\"' TITLE=\"A &gt; B\">"),
        ("&nbsp;a &copy; &eacute; &lt;i> &#x41;", "&#160;A © É &lt;I&gt; A"),
        ("<b>a &#foo; &#bar; <i>b</i></b>", "<b>A &amp;#FOO; &amp;#BAR; <i>B</i></b>"),
        ("one <b>two</b <p>three</p> a <b", "ONE <b>TWO</b <p>THREE</p> a <b"),
        ("<p>one <!-- no", "<p>one <!-- no"),
        ("a</>b", "a</>b"),
        ("<pre>a <b>dog</b></pre><pre>b", "<pre>a <b>dog</b></pre><pre>B"),
        ("<script>a</scripty>b</script>c", "<script>a</scripty>b</script>C"),
        ("<script>a < b", "<script>a < b"),
        ("<p>a<a id=x />b</p>", "<p>A<a id=x />B</p>"),
        ("<b>a<i>b</b>c</i>", "<b>A<i>B</b>C</i>"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_stays(page: str, result: str, tmp_path: Path) -> None:
    assert translated(tmp_path / "p.html", page) == result


def test_a_page_of_many_tags_takes_no_time_at_all(tmp_path: Path) -> None:
    page = "<b>" * 5000 + "a" + "</b>" * 5000
    assert translated(tmp_path / "p.html", page) == page.replace("a", "A")
