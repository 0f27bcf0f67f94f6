"""A text in Markdown as a document: headings, paragraphs, items and cells. See `documents.document`.

Emphasis and links are tags of a sentence; code, addresses, HTML and templates are kept. The lines of a paragraph become
one line. markdown-it-py finds the blocks, by their lines, and their content; rules of this module note the position of
each part in the text. It supports CommonMark with tables; for lines of the dialects of documentation sites
(admonitions, containers, attributes, imports of MDX) it gets blank lines, and only their titles are translated.
An admonition becomes an item, whose text is indented. Fences are found before lines that may take others with them.
"""

import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from unicodedata import category
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from mtx.data.markup import (
    CODE,
    FORMULA,
    FORMULAS,
    MARKUP,
    OPTION,
    Marked,
    Tag,
    element_tag,
    has_letters,
    is_blank,
    raw,
    with_tags,
)
from mtx.documents import html
from mtx.documents.edits import Edit, moved, replace_text
from mtx.formatting import counted

logger = logging.getLogger(__name__)

_BRACES = r"\{(?:[^{}]{1,5000}+|\{(?:[^{}]{1,5000}+|\{[^{}]{0,50000}+\}){0,5000}+\}){0,5000}+\}"
_COMPONENT = (  # a tag of MDX or Vue, whose attributes may be code
    rf"</?(?:[A-Z][\w.]{{0,200}}+|template\b|[a-z]{{1,50}}(?=\s[^<>]{{0,1000}}=\{{))"
    rf"(?:\s{{1,500}}(?:[\w:@.\#-]{{1,200}}(?:=(?:\"[^\"]{{0,50000}}+\"|'[^']{{0,50000}}+'|{_BRACES}))?|{_BRACES})){{0,200}}+"
    r"\s{0,500}/?>"
)
# What is not translated inside a paragraph, by where it comes from, like the tables of `mtx.data.markup`. Three groups
# are an opening mark, words, and the closing mark: only the words are translated.
UNTRANSLATED = {
    "GitHub: box of a task, name of an alert": r"\A\[(?:[ xX/><!?*-]\](?=\s)|!\w{1,20}\][+-]?)",
    "Pandoc: citation": r"\[[^\[\]\n@]{0,100}@\w[^\[\]\n]{0,200}\]",
    "footnote": r"\[\^[^\]\s]{1,100}\]",
    "table of contents": r"\[(?i:toc)\]",
    "bookdown: reference": r"\(ref:[\w:-]{1,100}\)",
    "directive in a line": r":{1,2}\w{1,40}\{[^{}\n]{0,200}\}",
    "keys": r"\+\+\w[\w+-]{0,100}(?:\"[^\"\n]{1,100}\")?\+\+",
    "CriticMarkup": r"\{(?:\+\+|--|~~|==|>>)|(?:\+\+|--|~~|==|<<)\}|~>",
    "superscript mark": r"\^\^",
    "Pandoc: subscript, superscript": r"(?<=\w)(?:~\w{1,20}~|\^\w{1,20}\^)",
    "Obsidian: comment": r"%%[^%\n]{1,1000}%%",
    "highlight": r"(?<!=)==(?!=)",
    "Obsidian: name of a block": r"(?<=\s)\^[\w-]{1,100}(?=\n|\Z)",
    "emoji by its name": r":[a-z0-9_+-]{1,40}:(?!\w)",
    "hashtag": r"(?<!\S)\#[^\W\d][\w/-]{0,200}",
    **FORMULAS,
    "Vue, Angular: tag": r"<[a-z][\w-]{0,100}\s[^<>\n]{0,1000}?[@:#][\w.:-]{1,200}=[^<>\n]{0,1000}>",
    "attributes": r"\{ ?(?:[\#.:]|[\w-]{1,100}=)[^{}\n]{1,200}\}",
    "wiki link: words and their target": (
        r"(\[\[)([^\[\]|/\n]{1,200} [^\[\]|/\n]{1,200})(\|[^\[\]|\s/]{1,100}/[^\[\]|\s]{1,100}\]\])"
    ),
    "wiki link: picture with its size or place": r"\[\[[^\[\]|/\n]{1,200}\|[^\[\]|\s]{0,100}-[^\[\]|\s]{1,100}\]\]",
    "wiki link: target and its words": r"(\[\[[^\[\]|\n]{1,200}\|)([^\[\]\n]{1,200})(\]\])",
    "wiki link": r"!?\[\[[^\[\]\n]{1,200}\]\]",
    "words with a target or attributes": (
        r"(\[)([^\[\]\n]{1,200})(\](?:\[[\w.:-]{1,200}\]|\{ ?[\#.:][^{}\n]{0,200}\}))"
    ),
    "MDX, Vue: component": _COMPONENT,
}
_UNTRANSLATED = re.compile(rf"(?=[^\w\s])(?:{'|'.join(UNTRANSLATED.values())})|{OPTION}|{CODE}")
# What the parser would divide: formulas, elements of code, roles of MyST
_UNDIVIDED = re.compile(
    rf"(?=[$\\<{{])(?:{FORMULA}|{_COMPONENT}"
    r"|<(kbd|code|samp|var|pre|tt)\b[^<>]*(?<!/)>(?:[^<]|<(?!/?\1\b)){0,500}</\1>"
    r"(?: ?\+ ?<\1>[^<]{1,50}</\1>)*|\{[\w:+.-]{1,60}\}`[^`]{1,1000}`)"
)
_WHOLE = re.compile(f"{_COMPONENT}|{MARKUP}")
_IMAGE = re.compile(  # and nothing else; the text of one on a slide of Marp may be its size or its place
    r"(\[?!\[)(?!bg\b|(?:w|h|width|height):\d)([^\[\]`*<>]+)(\](?:\([^()]*\)|\[[^\[\]]+\])"
    r"(?:\]\([^()]*\))?(?:\{[^{}]*\})?)\Z"
)
# HTML in quotations, of JSX, with a part of an element of code, and after an inline tag, which must keep its own line
_KEPT_HTML = re.compile(
    rf"\A[^<\n]*>|=\{{(?!\{{)|\{{[^{{}}]*<|\A\s*</?(?:{html.PHRASE.pattern}|br|img)\b[^<>]*>[ \t\r]*\n"
    r"|<(pre|code|script|style|svg)\b(?![^<>]*/>|.*</\1\b)|\A(?:(?!<(?:pre|code|script|style|svg)\b).)*</(?:pre|code|script|style|svg)\b",
    re.DOTALL | re.IGNORECASE,
)
_CODE_SPAN = re.compile(r"(?<!`)(`{1,2}|`{3,}(?!\{))(?!`)(?:.|\n(?![ \t>]*\n)){1,1000}?(?<!`)\1(?!`)")
_SHOWN = re.compile(  # tags with visible attributes, or a title: of a link, an address, and a shortcode of Hugo
    r"<[a-z](?=[^<>]*\s(?:alt|title|placeholder|aria-label)=)[^<>]*+>"
    r"|(?:\]\(\S{1,1000}+\s++|^ {0,3}\[[^\]^\n]+\]:[ \t]*\S+[ \t]+|[\s{](?:alt|title|caption)=)"
    r"([\"'])((?:(?![\n\"'])[\W\d_]|(?!\1)[\"'])*+[^\W\d_](?:(?!\1)[^\n])*+)\1(?=\)|\s*$|[^{}\n]{0,300}(?:[>%]\}|\}(?!\})))"
    r"|(?<=\s)\"(?=[^\"/=\n]*[^\W\d_] )([^\"/=\n]*+)\"(?=[^{}\n]{0,300}[>%]\}\})"
    r"|^[ \t>]*:(?:alt|caption):[ \t]+([^\n]*[^\W\d_][^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_QUOTES = str.maketrans("\"'", "”’")  # which would end a title
_LINK = re.compile(r"(?:\]\(|\bhref=[\"']|^[ \t>]*\[[^\]\n]{1,200}\]:[ \t]*)#([^\s)\"'<>]+)", re.MULTILINE)
_ID = re.compile(r"(?:\{[^{}\n]*?#|\{/\*\s*|<[^<>]*\b(?:id|name)=[\"']?|^\()([\w.:-]+)", re.MULTILINE)
_NOT_SHOWN = re.compile(
    r"!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)|\]\[[^\]]*\]|</?\w[^<>]*>|&\w+;|(?<![\w_])_(?!_)|(?<!_)_(?![\w_])"
)
_SPECIAL = re.compile(r"([\\`*\[\]<~&!]|(?<!\w)_|_(?!\w))")
_WORDS = re.compile(r"[^\W\d_](?:[^\W_]|[ ,.;'’…-])*")  # and no marks
Parse = Callable[[str], list[Token]]
_FENCES = MarkdownIt("commonmark").disable(["html_block", "inline"])  # in MDX a fence may follow a tag directly
_BLANKS = r"[ \t]{0,50000}+"
_PREFIX = r"[ \t>]{0,50000}"  # of a line
_LINE_END = r"[ \t\r]{0,50000}+$"
_REST_OF_LINE = r"[^\n]{0,50000}"
_TITLE = r"[ \t]{1,50000}+([^\n]{0,50000}?)"
_TITLE_BEFORE_BRACE = r"[ \t]{1,50000}+([^\n{]{0,50000}?)"
# Lines of dialects that may have a title, after their prefix; the last group is the title, if it has no name
CONTAINERS = {
    # `:::{tip} Title`, with lines of options `:name: value` or between `---`; a figure and the like have no title
    "MyST: directive": (
        rf":{{3,100}}{_BLANKS}"
        rf"(?:\{{[\w:-]{{0,100}}(?:figure|image|video|code|include|toc|math|plot|graph|mermaid){_REST_OF_LINE}"
        rf"|\{{[\w:-]{{1,100}}\}}(?:{_TITLE_BEFORE_BRACE})?)"
        rf"(?:[ \t\r]{{0,1000}}\n{_PREFIX}:[\w-]{{1,100}}:{_REST_OF_LINE}){{0,1000}}"
        rf"(?:\n{_PREFIX}---(?:\n{_PREFIX}\w{_REST_OF_LINE}){{0,1000}}\n{_PREFIX}---)?{_LINE_END}"
    ),
    "Pandoc: title": rf"\A%{_TITLE}{_LINE_END}",
    "Pandoc: line of verse": rf"\|[ \t]{{1,50000}}+([^\n|]{{0,50000}}?){_LINE_END}",
    "MyST: between parts": rf"\+{{3}}(?:[ \t]{{1,1000}}\{{{_REST_OF_LINE})?{_LINE_END}",
    # `/// tip | Title`, with lines of options below
    "PyMdown": (
        rf"/{{3,1000}}+{_BLANKS}(?:html{_REST_OF_LINE}"
        rf"|[\w-]{{0,100}}(?:{_BLANKS}\|{_BLANKS}([^\n]{{0,50000}}?)|{_BLANKS}/{{3,1000}})?)"
        rf"(?:\n[ \t>]{{4,1000}}\w{{1,100}}:{_REST_OF_LINE}){{0,1000}}{_LINE_END}"
    ),
    # `:::tip[Title]` and `::: tip Title {.x}`
    "Docusaurus, VitePress, Pandoc": (
        r":{3,100}[ \t]{0,50000}(?:\{[\w.-]{1,100}\}|[\w.-]{1,100})?"
        rf"(?:\[([^\]\n]{{0,1000}})\]|{_TITLE_BEFORE_BRACE})?{_BLANKS}(?:\{{{_REST_OF_LINE}\}})?{_LINE_END}"
    ),
    "abbreviation": rf"\*\[[^\]\n]{{1,100}}\]:{_TITLE}{_LINE_END}",
    "field": rf"\w[\w-]{{0,100}}::{_TITLE}{_LINE_END}",
}
_CONTAINER = re.compile(rf"^({_PREFIX})(?:{'|'.join(CONTAINERS.values())})", re.MULTILINE)
# Admonitions and tabs, whose text is indented: `!!! note "Title"`
_ADMONITION = re.compile(
    r"^([ \t>]*(?:[-*+:][ \t]+)?)"
    r"(?:(?:!!!|\?\?\?\+?)[ \t]*[\w-][^\"\n]*(?:\"(.*?)\")?|===[+!]?[ \t]+\"([^\"\n]*)\")[ \t\r]*$",
    re.MULTILINE,
)
_TEMPLATE_START = r"\{(?:%-?|\{[<%])\s{0,100}"  # of Jinja, Liquid or Hugo
# Lines and blocks of code, after the prefix of their line, by where they come from
CODE_LINES = {
    "TeX: display": (  # a blank line ends it if a heading or words follow
        rf"\$\$(?:[^$\n]|\$(?!\$)|\n(?!{_PREFIX}\n{_PREFIX}"
        r"(?:\#|[^\W\d_]{1,100} [^\W\d_]{1,100} [^\W\d_]))){0,5000}\$\$"
        rf"(?:{_BLANKS}\([\w:-]{{1,200}}\))?{_LINE_END}"
    ),
    "HTML: pre": rf"<pre\b(?![^<>]{{0,1000}}/>)(?:[^<]|<(?!/?pre\b)){{0,5000}}</pre>{_LINE_END}",
    "LaTeX: environment": (
        r"\\begin\{(?P<environment>(?:equation|align|gather|multline|eqnarray|tabular|verbatim|tikz)[^{}\n]{0,20})\}"
        r"(?:[^\\]|\\(?!(?:begin|end)\{(?P=environment)\})){0,5000}"
        rf"\\end\{{(?P=environment)\}}{_REST_OF_LINE}"
    ),
    "LaTeX: display": (rf"\\\[{_BLANKS}\n(?:(?!{_PREFIX}\\\[)[^\n]{{1,50000}}\n){{1,50}}?{_PREFIX}\\\]{_LINE_END}"),
    "Jinja, Liquid, Hugo: block of code": (
        rf"{_TEMPLATE_START}(?P<shortcode>highlight|code[\w-]{{0,50}}|mermaid|comment)(?![\w-]|[^{{}}]{{0,1000}}/[>%]\}}\}})"
        rf"(?:[^{{]{{1,5000}}+"
        rf"|\{{(?!(?:%-?|\{{[<%])\s{{0,100}}(?:end|/\s{{0,100}})?(?P=shortcode)(?![\w-]|[^{{}}]{{0,1000}}/[>%]\}}\}}))){{0,500}}+"
        rf"\{{(?:%-?\s{{0,100}}end|\{{[<%]\s{{0,100}}/\s{{0,100}})(?P=shortcode)(?![\w-]){_REST_OF_LINE}"
    ),
    "Jinja, Liquid, Hugo, kramdown, ERB: templates": (
        r"(?:(?:\{(?:[:%\#][^{}\n]{0,50000}+|\{[^{}\n]{0,50000}+\})\}[ \t]{0,1000}+"
        rf"|<%[^%\n]{{0,50000}}+%>[ \t]{{0,1000}}+){{1,1000}}+){_LINE_END}"
    ),
    "MyST: label": rf"\([\w-]{{1,200}}\)={_LINE_END}",
    "GitLab: table of contents": rf"\[\[_\w{{1,50}}_\]\]{_LINE_END}",
    "GitLab: quick action": rf"/[a-z_]{{1,50}}(?:[ \t]{{1,1000}}[~%@\#&\"]{_REST_OF_LINE})?{_LINE_END}",
    "directive": rf"::\w{{1,50}}\{{{_REST_OF_LINE}\}}{_LINE_END}",
    "caret": rf"\^{_LINE_END}",
    "MkDocs: included files": rf"--8<--{_BLANKS}\n(?:[^\n]{{1,50000}}\n){{1,50}}?--8<--{_LINE_END}",
    "MkDocs, VitePress, TeX: line": rf"(?:--8<--|<<< |%[ \t]){_REST_OF_LINE}{_LINE_END}",
    "LaTeX: macro": rf"\\[a-z]{{1,50}}\*?(?:\[[^\[\]\n]{{0,1000}}\]|\{{[^{{}}\n]{{0,1000}}\}}){{0,20}}{_LINE_END}",
    "MDX: expression": rf"{_BRACES}{_LINE_END}",
    "MDX, Vue: components": rf"(?:{_COMPONENT}){{1,1000}}{_LINE_END}",
}
# Of MDX, at the start of a line; an export is not a line of a paragraph
MODULE_LINES = {
    "import": (
        r"^import\s(?:(?:[\w$*{}, \t]{1,1000}+\r?\n){0,50}?[\w$*{}, \t]{0,1000}?\bfrom\s{0,100})?"
        rf"[\"'][^\"'\n]{{1,1000}}[\"'];?{_LINE_END}"
    ),
    "export": (
        r"(?<![^\s;\"']\n)(?<![^\s;\"']\r\n)^export\s(?:const|let|default|function|async)\b(?:.{1,50000}\n?){0,10000}"
    ),
}
_CODE_LINE = re.compile(
    rf"^({_PREFIX})(?:{'|'.join(CODE_LINES.values())})|{'|'.join(MODULE_LINES.values())}", re.MULTILINE
)
_CODE_START = re.compile(r"(?m)^[ \t>]*(?:[${(%\\/:^-]|\[\[_|<<<|</?(?:[A-Z]|template|pre\b)|<%|import\s|export\s)")
_LINK_TEMPLATE = re.compile(r"(?<=\]\()[^()\s]*(?:\{\{[^{}()\n]*\}\}|\{%[^%()\n]*%\})[^()\s]*(?=\))")
_DELIMITERS = re.compile(r"\n[ \t>]*\|?[ \t]*:?-+:?[ \t]*\||\A\+-+[-+=:]*\+\n")  # of a table that is none
_RULE = re.compile(r" *-{2,1000}(?: {1,1000}-{2,1000}){1,200}[ \r]*")  # of a simple table of Pandoc
_SPACE = "\ue000"  # replaces a space in the address of a link
_DEFINITION = re.compile(r"(?m)^([ \t>]*)((?:[:~]|[a-z]\)|\(@[\w-]{0,7}\))(?=[ \t]+\S)|\[\^[^\]\s]{1,100}\]:(?=\s))")
# A link directly behind a footnote, whose line it would continue
_AFTER_FOOTNOTE = re.compile(
    r"(?<=\n)(\[\^[^\]\s]{1,100}\]:[^\n]*(?:\n[ \t]{1,1000}[^\n]{1,50000}){0,1000})"
    r"\n\[[^\]^\n]{1,200}\]:[ \t]+\S+[^\n]*"
)
_DIRECTIVE = re.compile(  # of MyST, with text
    r"^([ \t>]*)(`{3,})(?=\{(?:note|tip|hint|important|attention|caution|warning|danger|error|seealso|figure|details"
    r"|admonition|dropdown|margin|sidebar|topic|epigraph|deprecated|list-table|exercise|(?:tab|grid|card|version)[\w-]*)\})"
    r"(?s:.){1,20000}?\n\1\2(?=[ \t\r]*$)",
    re.MULTILINE,
)


def read(text: str, untranslated: Counter[str], is_mdx: bool = False) -> Iterator[Edit]:
    """The edits that translate a text; counts in `untranslated` what stays in the source language, by its kind.

    In MDX an indented text is no code.
    """
    masked = _mask_dialects(text)
    lines = masked.split("\n")
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    parse = partial(_parser(is_mdx).parse, env={})  # which keeps the addresses that a text defines for its links
    row = -1
    column = 0
    for opening, token in pairwise([Token("", "", 0), *parse(masked)]):
        if token.type == "html_block" and token.map:
            start, end = (starts[line] for line in token.map)
            block = text[start:end].rstrip()
            edits = list(moved(html.read_blocks(Path("HTML block"), block), start))
            if _KEPT_HTML.search(block):
                if edits:
                    untranslated["HTML block"] += 1
            else:
                yield from edits
        if token.type != "inline" or not token.map:
            continue
        is_cell = opening.type in ("th_open", "td_open")
        first_row = token.map[0]
        if row != first_row:  # the start of a line, and not the next cell of a row
            column = 0
        row = first_row
        parts = token.content.split("\n")
        places = [_place(lines[row + number], part, column if number == 0 else 0) for number, part in enumerate(parts)]
        around = lines[max(0, row - 1) : row + len(parts) + 1]
        if min(places) < (0, 0) or _DELIMITERS.search(token.content) or any(map(_RULE.fullmatch, around)):
            untranslated["paragraph"] += 1
            continue
        start_column, column = places[0]
        prefix_end, end_column = places[-1]
        last_row = row + len(parts) - 1
        prefix = lines[last_row][:prefix_end] if len(parts) > 1 else ""  # the prefix of each line except the first
        start = starts[row] + start_column
        end = starts[last_row] + end_column
        segment = _mark_up(token, prefix)
        if has_letters(segment):
            opening_mark = "|" if is_cell else text[start - 1 : start]
            write = partial(_write, parse, untranslated, text[start:end], prefix, opening_mark)
            yield Edit(start, end, segment, write)


def read_rest(path: Path, source: str, text: str) -> Iterator[Edit]:
    """The edits of a page with translated text: visible attributes and titles, and links to its headings, as these are.

    Warns of links that lead nowhere.
    """
    if not (_SHOWN.search(text) or _LINK.search(text)):
        return
    text_without_code = _without_code(text)
    edits = list[Edit]()
    dead_links = list[str]()
    for shown in _SHOWN.finditer(text_without_code):
        if group := shown.lastindex:
            segment = with_tags([shown[group]], CODE, Tag)
            edits.append(Edit(*shown.span(group), segment, partial(raw, escape=lambda text: text.translate(_QUOTES))))
        else:
            edits += moved(html.read_attributes(shown[0]), shown.start())
    slugs = dict(zip(_slugs(source), _slugs(text), strict=False))
    ids = {"top", *_ID.findall(source)}
    for link in _LINK.finditer(text_without_code):
        slug = unquote(link[1])
        if slug in slugs:
            edits.append(replace_text(*link.span(1), slugs[slug]))
        elif slug not in ids:
            dead_links.append(slug)
    if dead_links:
        links = counted(len(dead_links), "link")
        logger.warning("%s: %s inside the page may lead nowhere: no heading is #%s", path, links, dead_links[0])
    yield from sorted(edits, key=lambda edit: edit.start)


def _slugs(text: str) -> list[str]:
    """The names of the headings for links, as GitHub makes them: of equal ones, all but the first have a number."""
    numbers = dict[str, int]()
    for opening, token in pairwise(_FENCES.parse(text)):
        if opening.type == "heading_open":
            shown = _NOT_SHOWN.sub("", token.content.lower()).strip()
            slug = name = "".join(c for c in shown if c in " -_" or category(c)[0] in "LMN").replace(" ", "-")
            while name in numbers:
                numbers[slug] += 1
                name = f"{slug}-{numbers[slug]}"
            numbers[name] = 0
    return list(numbers)


def _without_code(text: str) -> str:
    """The text with blanks in place of its code; the first mark of a span stays."""
    pieces = _divide(text, _mask_dialects(text), ["fence", "code_block"])
    pieces[1::2] = [re.sub(r"[^\n]", " ", piece) for piece in pieces[1::2]]
    return _CODE_SPAN.sub(_mask, "".join(pieces))


def _divide(text: str, masked: str, kinds: list[str]) -> list[str]:
    """The pieces of a text before, in and between its blocks of these kinds of tokens, by its masked form."""
    rows = [row for token in _FENCES.parse(masked) if token.type in kinds for row in token.map or ()]
    lines = re.split(r"(?<=\n)", text)
    return ["".join(lines[start:end]) for start, end in pairwise([0, *rows, len(lines)])]


def _mask_dialects(text: str) -> str:
    """The text as CommonMark of the same length, in which lines of dialects are blank, or a heading with their title.

    An admonition becomes an item, as its text is indented. So does a definition, a footnote, and an example of Pandoc,
    `(@) Words`. The fences of a directive with text become a container.
    """
    while "`{" in text and _DIRECTIVE.search(text):
        text = _DIRECTIVE.sub(lambda match: match[0].replace(match[2], ":" * len(match[2])), text)
    text = _LINK_TEMPLATE.sub(lambda match: match[0].replace(" ", _SPACE), re.sub(r"\r(?!\n)", " ", text))
    text = _CONTAINER.sub(_mask, _AFTER_FOOTNOTE.sub(_mask, text))
    text = _ADMONITION.sub(partial(_mask, mark="- #"), text)
    text = _DEFINITION.sub(_as_item, text)
    if not _CODE_START.search(text):
        return text
    pieces = _divide(text, text, ["fence"])  # first: what follows could take one with it
    pieces[::2] = [_CODE_LINE.sub(_mask, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _as_item(match: re.Match[str]) -> str:
    """The prefix of a line, and marks of items as long as the mark of a definition, a footnote or an example."""
    length = len(match[2])
    if length % 2:
        return match[1] + "+" + " +" * (length // 2)
    return match[1] + "1)" + " +" * (length // 2 - 1)


def _mask(match: re.Match[str], mark: str = "") -> str:
    """The prefix of a line, a mark of CommonMark, and blanks; the last group is the title, if it has no name."""
    prefix = match[1] or ""
    group = match.lastindex or 0
    blanks = re.sub(r"[^\r\n]", " ", match[0])
    if group > 1 and not match.lastgroup and match[group]:
        mark = mark or "#"
        start = match.start(group) - match.start()
        end = match.end(group) - match.start()
        blanks = blanks[:start] + match[group] + blanks[end:]
    return prefix + mark + blanks[len(prefix + mark) :]


def _place(line: str, part: str, start: int) -> tuple[int, int]:
    """The span of a part of a text in its line; negative if it is not in the line."""
    for text in (part.strip().replace("|", r"\|"), part.strip()):  # as a cell writes it
        if (position := line.find(text, start)) >= 0:
            return position, position + len(text)
    return -1, -1


def _mark_up(token: Token, prefix: str = "") -> Marked:
    """The text and tags inside a block."""
    content = token.content
    if _IMAGE.match(content):
        return with_tags([content], _IMAGE, Tag)
    undivided = deque(_UNDIVIDED.finditer(content))
    parts = Marked()
    position = 0
    is_title = content.startswith("[!")  # of an alert: its line ends with a break
    for child in token.children or []:
        if "span" not in child.meta:
            continue
        start, end = child.meta["span"]
        while undivided and undivided[0].end() <= start:
            undivided.popleft()
        if child.type == "text" or start < position or (child.info, child.content) == ("escape", content[start:end]):
            continue  # an empty mark, a mark inside another tag, or a backslash that is text
        if child.type == "strong_open":
            start -= 1
        elif child.type == "strong_close":
            end += 1
        elif child.type.endswith("break"):
            start = len(content[:start].rstrip(" ")) if child.type == "hardbreak" else start
        elif undivided and position <= undivided[0].start() <= start:
            code = undivided[0]
            parts += [content[position : code.start()], *with_tags([code[0]], _WHOLE, Tag)]
            position = code.end()
            continue
        if child.type != "softbreak" or is_title:
            is_title = is_title and child.type != "softbreak"
            is_text = child.type == "text_special"  # an escaped character
            parts += [content[position:start], child.content if is_text else _tag(child, content[start:end], prefix)]
            position = end
    parts.append(content[position:])
    return with_tags(parts, _UNTRANSLATED, Tag)


def _tag(token: Token, content: str, prefix: str) -> Tag:
    if token.type.endswith("break"):
        return Tag(content.rstrip(" ") + prefix if content.endswith("\n") else content, is_break=True)
    if token.type == "html_inline":
        return element_tag(content)
    if token.type.endswith("_open") and token.markup != "autolink":
        return Tag(content, "open", token.tag)
    if token.type == "link_close" and content in ("]", "][]"):  # it finds its address by its text
        content = f"][{' '.join(token.meta['label'].split())}]"
    return Tag(content, "close", token.tag) if token.type.endswith("_close") else Tag(content)


def _write(
    parse: Parse, untranslated: Counter[str], source: str, prefix: str, opening_mark: str, translation: Marked
) -> str:
    """A translation as Markdown that parses to these words and tags, escaped if necessary; the source if impossible.

    Emphasis that would not be recognised, as around some parts of a word, is dropped, and so are line breaks.
    """
    if _WORDS.fullmatch(raw(translation)):
        return raw(translation)
    plain = [part for part in translation if isinstance(part, str) or part.pair not in ("em", "strong", "s")]
    lines_joined = [" " if isinstance(part, Tag) and part.is_break else part for part in plain]
    for simplified in (translation, plain, lines_joined):
        for parts in (simplified, _escape(simplified)):
            text = raw(parts)
            if _is_read_as(parse, text, prefix, simplified):
                text = text.replace(_SPACE, " ")
                if opening_mark == "|":
                    text = re.sub(r"(?<!\\)\|", r"\|", text)
                elif opening_mark == '"':  # of a title
                    text = text.replace('"', "'")
                return text.replace("\n", "\r\n") if "\r\n" in source else text
    if not is_blank(translation):  # an empty one is counted already, and written if its PO message has others
        untranslated["paragraph"] += 1
    return source


def _escape(translation: Marked) -> Marked:
    """A translation whose text forms no marks, nor blocks at the start of a line."""
    parts = Marked()
    is_at_start = True
    for part in translation:
        if isinstance(part, str):
            part = _SPECIAL.sub(r"\\\1", part)
            if is_at_start:
                part = re.sub(r"^(\s*+\d*+)(?=[!-/:-@\[\]-`{-~])", r"\1\\", part)
        parts.append(part)
        is_at_start = (is_at_start and part == "") or (isinstance(part, Tag) and part.is_break)
    return parts


def _is_read_as(parse: Parse, text: str, prefix: str, translation: Marked) -> bool:
    """Whether a text is a paragraph with these words and tags."""
    tokens = parse(text.replace(f"\n{prefix}", "\n"))
    if [token.type for token in tokens] != ["paragraph_open", "inline", "paragraph_close"]:
        return False
    # text of a translation may look like a code, such as %50 in Turkish
    forms = [translation, with_tags(translation, CODE, Tag)]
    return _texts_and_kinds(_mark_up(tokens[1])) in map(_texts_and_kinds, forms)


def _texts_and_kinds(marked: Marked) -> list[str]:
    """The words, and the kind of each tag, in their order."""
    text = "".join(part if isinstance(part, str) else f" \0{part.kind}{part.pair} " for part in marked)
    return text.split()


@cache
def _parser(is_mdx: bool) -> MarkdownIt:
    """A parser whose tokens inside blocks have their spans (`meta["span"]`)."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.disable(["fragments_join", "text_join"])
    if is_mdx:
        parser.disable("code")
    ruler = parser.inline.ruler
    for name, rule in zip(ruler.get_active_rules(), ruler.getRules(""), strict=True):
        ruler.at(name, _note_spans(name, rule))
    return parser


def _note_spans(name: str, rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
    """A rule that also notes the spans of its tokens."""

    def noted(state: StateInline, silent: bool) -> bool:
        start = state.pos
        num_tokens = len(state.tokens)
        num_texts = 1 if state.pending else 0  # of the new tokens, before the first one of the rule
        is_match = rule(state, silent)
        tokens = state.tokens[num_tokens:]
        if name in ("emphasis", "strikethrough"):
            for token in tokens[num_texts:]:
                token.meta["span"] = start, start + len(token.content)
                start += len(token.content)
        elif name == "link" and tokens:
            label_end = state.md.helpers.parseLinkLabel(state, start, True)
            tokens[num_texts].meta["span"] = start, start + 1
            tokens[-1].meta["span"] = label_end, state.pos
            tokens[-1].meta["label"] = state.src[start + 1 : label_end]
        else:
            for token in tokens:
                if token.type != "text":
                    token.meta["span"] = start, state.pos
        return is_match

    return noted
