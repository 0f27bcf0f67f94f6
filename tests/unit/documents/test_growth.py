"""The time of a text grows with its length, whatever its signs: strangers' texts reach these patterns.

Quadratic growth would be sixteen times the time for four times the text.
"""

import gc
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from mtx.data.cleaning import omission
from mtx.data.glossary import word_spans
from mtx.data.letter_case import case_of
from mtx.data.markup import accelerator, bare, needs_no_translation, strip_codes
from mtx.data.sentence_splitter import lead_pattern, sentence_splitter
from mtx.decoding.tag_placement import mark_up_line, sentences, units
from mtx.documents import html, markdown, subtitles
from mtx.documents.bilingual_documents import EDITS
from mtx.documents.edits import Edit, apply
from mtx.errors import DataError
from mtx.scoring.suspicion import suspicion

SHORT, LONG, MOST_TIMES, LEAST_S = 2500, 10_000, 6, 0.02
LEAD, SPLIT = lead_pattern("en"), sentence_splitter("en")


def read_line(text: str) -> None:
    """What a request does with a line, but for the search and for the places of its tags."""
    for unit in units(mark_up_line(text, LEAD), LEAD):
        bare_text, tags = bare(unit)
        if bare_text.strip():
            for sentence, _ in sentences(bare_text, tags, SPLIT):
                case_of(sentence)
                needs_no_translation(sentence)
                accelerator(sentence)
                word_spans(sentence)
    strip_codes(text)
    omission(text, text)
    suspicion(text[:200], text[:200] + "b")


def read_html(text: str) -> None:
    list(html.read_blocks(Path("p.html"), text))
    list(html.read_attributes(text, ("en", "ar")))


def write(text: str, edits: Iterable[Edit]) -> None:
    """Each translation is its source."""
    edits = list(edits)
    apply(text, edits, [edit.segment for edit in edits if edit.segment])


def read_markdown(text: str) -> None:
    write(text, markdown.read(text, Counter()))
    list(markdown.read_rest(Path("p.md"), text, text))


def read_subtitles(text: str) -> None:
    for start in ("", "1\n00:00:01,000 --> 00:00:02,000\n"):
        write(start + text, subtitles.read(Path("a.srt"), start + text, Counter()))


def read_messages(form: str, kind: str, escaped: Callable[[str], str], text: str) -> None:
    text = form.format(escaped(text))
    write(text, EDITS[kind](Path("a"), ("en", "de"), False, text, Counter(), {}))


def in_strings(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", '\\n"\n"').replace("\t", "\\t")


PO = 'msgid ""\n"{}"\nmsgstr ""\n'
XLIFF = '<xliff version="1.2"><file source-language="en"><trans-unit><source>{}</source></trans-unit></file></xliff>'
READERS = {
    "line": read_line,
    "HTML": read_html,
    "Markdown": read_markdown,
    "subtitles": read_subtitles,
    "PO": partial(read_messages, PO, "po", in_strings),
    "RST in PO": partial(read_messages, f"#, rst-text\n{PO}", "po", in_strings),
    "XLIFF": partial(read_messages, XLIFF, "xliff", escape),
}
WORDS = "a ab A1 é 中 1 1. kB www. http:// a@b a.b a/b .txt a.b( 12:00 alt=\" title=' href=# lang= import from export"
MARKS = (
    ". , : ; - _ * ` ' \" ( ) [ ] { } < > / \\ | & % $ # @ ! ? = ~ ^ + // -- -> !! .. && ?. ** __ `` ``` $$ %% ||"
    " ::: !!! /// {{ }} {% %} {# #} <% %> <? ?> [[ ]] \\( \\) \\[ \\] [a]( ](a) [a]: [^a]: \\a{ \\begin{align} \\end{"
    " {{< >}} {{<code>}} {%raw%} <a </a> <b> <!-- --> <pre> </pre> <code> </code> <svg/> <script> [code] [/code] [b]"
    ' :a:` {a}` {a: {a&& {/* */} ={ }} b=c &lt; &#1; ```{note} --8<-- @if( @let ‘ “ « B< -1 |a| #a \\~" %"'
)
SPACES = [" ", "\n", "\n\n", "\t", "\xa0", "\u200b", "  "]
# Some that grew, and what else is long
KNOWN = [
    "+a/", "+a/b@}", "a/b@", "b", " ", "\n", "/", ":", "`", "‘`` ", "[a]", "[code] ", "<code>", "``` a ", "{{", "<a b ",
    'alt="a', '"a a ', "[a](|", "*$", "alt=' ", "<b c=[[/ a ", "<% ", "={", "@if((", "<!--", "- ", "> ", "|a", "a.b",
    "NOTE\n", "-->\n", "00:00:01 > ", "1\n", "\u200f1:", "--&gt;", "1:_",
]  # fmt: skip


def mixtures() -> list[tuple[str, str, str]]:
    """A start, what is repeated, and an end."""
    rng = random.Random(74)
    atoms = [*WORDS.split(" "), *MARKS.split(" "), *SPACES]

    def some(least: int, most: int) -> str:
        return "".join(rng.choice(atoms) + rng.choice(["", "", " "]) for _ in range(rng.randint(least, most)))

    known = [("", unit, "}}/ y") for unit in KNOWN]
    known += [("<a ", "alt= ", ""), ("", "\n'{{'={", ""), ('x title="', "a", ""), ('x "', "a ", "")]
    return known + [(some(0, 2), some(1, 4), some(0, 2)) for _ in range(15)]


def seconds(read: Callable[[str], None], text: str, num_times: int) -> float:
    """The least time; garbage of other tests does not count."""
    least = float("inf")
    gc.disable()
    for _ in range(num_times):
        start = time.process_time()
        try:
            read(text)
        except DataError as error:
            assert "unclosed tags" in str(error)
        least = min(least, time.process_time() - start)
    gc.enable()
    return least


def text_of(start: str, unit: str, end: str, length: int) -> str:
    rest = length - len(start + end) - 1
    return start + unit * (rest // len(unit)) + "\n" * (rest % len(unit)) + end + "z"


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_time_grows_with_the_length(read: Callable[[str], None]) -> None:
    for mixture in mixtures():
        short, long = (text_of(*mixture, length) for length in (SHORT, LONG))
        for num_times in (1, 3):  # three are seldom needed
            times = seconds(read, long, num_times), seconds(read, short, num_times)
            if max(LEAST_S, MOST_TIMES * times[1]) >= times[0]:
                break
        else:
            pytest.fail(f"{mixture}: {times[1]:.3f} s for {SHORT} characters, {times[0]:.3f} s for {LONG}")
