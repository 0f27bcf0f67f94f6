"""Codes inside text: placeholders, addresses, emoji, markup, entities and escaped line breaks; the text without them.

The same tables serve training, which removes markup, and translation, which keeps each code and restores it once.
Each code and mark has a pattern in a table, by where it comes from. The patterns built from the tables are strings,
which `re` compiles, and keeps, when a text with a sign needs them.
If several codes start at the same character, the first (longest) one here counts.
Flow: `mark_up` -> `Marked` -> `bare` -> a translation -> `mtx.decoding.tag_placement` puts the tags in -> `Marked`.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Literal

from mtx.data.languages import IDEOGRAPHS

# White space that is not text: all characters that some programs treat as line ends, TAB and US.
_SEPARATORS = re.compile("[\t-\r\x1c-\x1f\x85\u2028\u2029]")
_EAST_ASIAN = f"{IDEOGRAPHS}\u3000-\u303f\uff00-\uffef"  # with punctuation
EMOJI = "\u2600-\u27bf\U0001f000-\U0001faff"
_NAME = "[A-Za-z_][A-Za-z0-9_]{0,200}+"

# The tables of patterns, by where their codes come from. Their order counts: of the patterns that match at a character,
# the first one is used. Every repetition has a bound, so that no text takes long.
TEMPLATES = {
    "JSX, Smarty: comment": r"\{/\*(?:[^*{]|\*(?!/)|\{(?!/\*)){0,1000}\*/\}",
    # Braces with a comparison, a condition, a function, a call, an object or a variable
    "JSX, Smarty": (r"\{[^{}<]{0,200}?(?:[=!]==|&&|\|\|| \? |=>|\?[?.]|\w\(|\"\s{0,100}:| \$[a-z])[^{}]{0,200}\}"),
    "Template Toolkit": r"\[%[^%]{0,1000}%\]",
    "Polymer": r"\[\[ [^\[\]]{1,100} \]\]",
    "ERB": r"<%[^%]{0,1000}%>",
    "PHP": r"<\?(?:[^?<]|\?(?!>)|<(?!\?)){0,1000}\?>",
    "Jinja, Liquid": r"\{%[^%]{0,1000}%\}",
    "Jinja: comment": r"\{\#[^#{}]{0,1000}\#\}",
    "Handlebars: raw block": r"\{{4}[^{}]{0,1000}\}{4}",
    "Handlebars: HTML": r"\{{3}[^{}]{0,1000}\}{3}",
    "Jinja, Handlebars, Hugo, i18next": r"\$?\{\{[^{}]{0,1000}\}\}",
}
ADDRESSES = {
    # Without trailing punctuation; text in scripts without spaces ends it
    "web": (
        r"(?i:(?<![a-z0-9_])(?:[a-z][a-z0-9+-]{1,20}://|www\.))"
        rf"(?:\([^\s()<>\"'{_EAST_ASIAN}]{{0,200}}\)|[^\s()<>\"'…—“”»{_EAST_ASIAN}]){{0,2000}}(?<![.,;:!?\]}}’])"
    ),
    "mail": r"(?:mailto:)?(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}\w{2,63}",
}
_WINDOWS_PATH = r"(?<!\w)[A-Za-z]:\\[^\s\"'<>|]{0,1000}+"
_FILE_ENDINGS = (
    "[ch]|md|mdx|txt|rst|html?|xml|json|ya?ml|toml|ini|cfg|conf|log|[ct]sv|pdf|png|jpe?g|gif|svg|webp|ico|mp[34]|wav|zip"
    "|tar|t?gz|jar|exe|dll|so|pyc?|ipynb|[cm]?jsx?|[cm]?tsx?|css|s[ac]ss|vue|php|rb|rs|java|kt|swift|cc|[ch]pp|cs|sh|bat"
    "|ps1|sql|db|tex|bib|docx?|xlsx?|pptx?|od[tsp]|po|pot|xlf|tmx|srt|vtt|deb|rpm|iso|bin|bak|tmp|ttf|woff2?|wasm"
    "|[RqQ]md|epub"
)
_SEGMENT = r"[\w.*@+~{}-]"  # of a path
_PATH_END = r"(?<![.+-])(?!\w)"
PATHS = {
    "home or relative path": rf"(?:~|\.\.?)/(?:{_SEGMENT}|/){{0,1000}}{_PATH_END}",
    "path in a variable of Windows": rf"%\w{{1,100}}%(?:\\[\w.-]{{1,200}}){{1,50}}{_PATH_END}",
    "absolute path": rf"(?:/{_SEGMENT}{{1,200}}){{2,50}}/?{_PATH_END}",
    "file": (
        rf"(?:/?{_SEGMENT}{{1,80}}/){{0,20}}(?:[\w@+~-]|\*(?!\*)|\.(?!\.)){{0,80}}(?:(?<=\w\w)|(?<=\*))"
        rf"\.(?:{_FILE_ENDINGS}){_PATH_END}"
    ),
    "call": r"(?=[\w.:]{1,100}+\()[a-zA-Z_](?:[\w.]|::){0,100}(?:[._:]\w{2,100}\([^()\n]{0,200}\)|\(\))",
    "issue of GitHub": r"[\w.-]{1,200}/[\w./-]{1,200}\#\d{1,20}",
}
_COMMIT = r"(?=\d{0,40}[a-f])(?=[a-f]{0,40}\d)[\da-f]{7,40}(?!\w)"
# Begin with any character
WORD_CODES = {
    **ADDRESSES,
    "path of Windows": _WINDOWS_PATH,
    # Tried only before a sign of a path, which saves most of the time
    "path": rf"(?<![\w/.~<>)\]\\-])(?:(?=[\w*@+~{{}}%-]{{0,100}}+[./\\(:]\S)(?:{'|'.join(PATHS.values())})|{_COMMIT})",
    "Python: __name__": rf"(?<!\w)__{_NAME}(?<=__)(?!\w)",
    # 50%%, a digit in a box, and 0x%04X: one pattern, as three take time at each character
    "printf, emoji: after a digit": r"\d(?:[\d.,]{0,30}%%|\ufe0f\u20e3|[xX]%\d{0,9}[xX])",
}
# Begin with a sign
SIGN_CODES = {
    "Xcode: plural": rf"%(?:\d{{1,9}}\$)?\#@{_NAME}@",
    "Yoast": rf"%%{_NAME}%%",
    "Drupal: name with hyphens": r"(?<!\d)%(?!ll)[a-z_]{3,100}(?:-[a-z]{1,100}){1,20}(?!\w)",
    # All letters that follow belong to the name, also in %i. What is not a name is left to "printf".
    "Drupal, Windows, strftime": (rf"(?<!\d)%[-#]?(?!_){_NAME}(?:%(?![%\w(.]))?(?:[-/:.]%[-#]?[A-Za-z](?!\w)){{0,20}}"),
    "printf": (  # of C, Python, Perl and Objective-C
        r"(?<!\d)%(?:\([^()\s]{1,100}\)|\d{1,2}\$)?[-+#0']{0,9}+(?:\d{1,5}|\*)?(?:\.(?:\d{1,5}|\*))?"
        r"(?:hh|h|ll|l|L|q|j|z|t)?[diouxXeEfFgGcrsapn@%]"
    ),
    "gettext": r"%<PRI\w{1,20}>",
    "Ruby": r"%<\w{1,100}>[\d.]{0,20}+[a-z]",
    "Qt": r"%\d{1,2}(?!\w)",
    "Phrase": r"\{\w{1,20}>|<\w{1,20}\}",
    "Python, Java, shell: name in braces": r"[$%#]?\{ ?[^{}\s<]{0,100} ?\}",
    "Python, .NET: format in braces": r"\{\w{0,100}[!:](?!\s)[^{}]{0,100}\}",
    "ICU": (
        r"\{\s{0,100}\w{1,100}\s{0,100},\s{0,100}(?:number|date|time|duration|ordinal|spellout|list)\b[^{}]{0,200}\}"
    ),
    "Fluent": r"\{\s{0,100}[A-Z]{1,50}\([^{}]{0,200}\)\s{0,100}\}",
    "i18next: nested": r"\$t\([^()]{0,100}\)",
    "make": rf"\$\({_NAME}\)",
    "name in doubled dollars": rf"\$\${_NAME}\$\$",
    "shell, PHP, Chrome": rf"(?<!\w)\${_NAME}(?:\$(?!\w)|(?:\.[a-z]\w{{0,200}}+){{0,20}}+)",
    "Vue I18n": r"@(?:\.\w{1,50})?:[\w.]{1,200}\w",
    "Mailchimp": r"\*\|[\w:]{1,200}\|\*",
    "name in carets": rf"(?<!\w)\^{_NAME}\^(?!\w)",
    "TYPO3": rf"(?<!\w)###{_NAME}###(?!\w)",
    "Blade": r"(?<!\w)@[a-z]{2,20} ?\([$'\"](?:[^()]|\([^()]{0,100}\)){0,200}\)",
    # Also emoji by their names, and references to figures
    "Drupal, Laravel": rf"(?<![^\s(\"'>])[@:!]{_NAME}(?:[-./:][A-Za-z]\w{{0,200}}){{0,20}}:?(?!\w)",
    "GitLab: label": r"(?<![\w~/\"'])~(?:[a-z][\w-]{0,200}+::[\w-]{1,200}+|\"[^\"\n]{1,60}\")",
    "GitLab: milestone": r"(?<!\S)%\"[A-Za-z0-9][^\"\n]{1,60}\"",
    "Weblate": r"\[X\d{1,9}X\]",
    "Maketext": r"\[(?:_\d{1,9}|(?:quant|numf|[*#]),[^\[\]]{1,100})\]",
    "Drupal: token": r"\[[a-z][\w-]{0,200}:[^\s\[\]]{1,200}\]",
    "WordPress": r"\[/?[a-z][a-z0-9]{0,200}[_-][\w-]{0,200}(?:\s[^\[\]]{0,500})?\]",
    "WordPress, BBCode: with a value": r"\[[a-z]\w{0,200}(?:\s[^\[\]=]{1,100})?=[^\[\]]{1,500}\]",
    "BBCode: end": r"\[/[a-z]\w{0,200}\]",
    "BBCode": r"\[(?:[bius*]|url|img|quote|code|list|[lr]b|br|hr|p|next)\](?!_)",
    "Godot": (
        r"\[(?:param|method|member|signal|constant|enum|annotation|constructor|operator|theme_item)"
        r" [^\[\]]{1,200}(?:\[\])?\]"
    ),
    "RST: footnote": r"\[(?:\#?[\w.-]{1,100}|[\#*])\]_(?!\w)",
    "RST: mark before code": r"::(?=\s{0,100}\Z)",
    "RST: substitution": r"(?<![\w|])\|(?![\s|])[^|\n]{1,100}(?<![\s|])\|_{0,2}(?![\w|])",
    "Xcode: inflection": r"\^\[(?=[^\[\]]{0,1000}\]\(inflect:)|\]\(inflect: \w{1,20}\)",
    "Moodle": rf"@@{_NAME}@@(?:/\S{{0,500}}\w)?",
    "Tracery": r"(?<!\w)\#[a-z]\w{0,200}\#(?!\w)",
    "World of Warcraft": r"\|(?:c[0-9a-fA-F]{8}|[rn](?![a-z]))",
    "RPG Maker": r"\\[a-zA-Z]{1,20}\[\w{1,20}\]",
    "roff": r"\\(?:[,&-]|/(?!\w))",
    "Symfony, Laravel: numbers of a plural": r"[\[\]](?:-?Inf|\d{1,20}),(?:\d{1,20}|\*|Inf)[\[\]]",
    "Polyglot: between plurals": r"\|{4}",
    "Symfony, Laravel: between plurals": r"(?<=[^\s|])\|(?=[^\s|])",
    "AsciiDoc, MediaWiki: end of a heading": r"(?<=\s)={2,6}(?=\s{0,9}\Z)",
    "JSON, Java: escaped character": r"\\u[0-9a-fA-F]{4}",
    "printf: percent": r"%%",
    "Unicode: characters without width": r"[\u200b\u200c\u2060][\u200b\u200c\u2060\xa0]{1,1000}",
    "emoji": rf"[{EMOJI}][{EMOJI}\u200d\ufe0e\ufe0f]{{0,1000}}|[\#*]\ufe0f\u20e3",
}
# Most characters begin no code: the tables of those that begin with a sign are not tried for them
_CODES = (
    rf"{'|'.join(WORD_CODES.values())}"
    rf"|(?=[^\w\s.,;'\"()?/-])(?:{'|'.join([*TEMPLATES.values(), *SIGN_CODES.values()])})"
)
CODE = rf"(?:{_CODES})(?:[-/.:](?:{_CODES})){{0,100}}+"  # codes joined by a sign alone are one
OPTION = (  # of a command
    r"(?<![\w/.-])(?!\A-[AI]\b)-(?:[a-zA-Z]|[a-z]?[A-Z]{1,2}|-[a-zA-Z][\w-]{0,100}(?:\[?=[\w\]]{0,100})?)(?![\w-])"
)
# An ICU message with texts for several numbers or cases
CHOICE = re.compile(r"\{\s{0,100}\w{1,100}\s{0,100},\s{0,100}(?:plural|select|selectordinal|choice)\s{0,100},")
# An escaped line break or tab, but not the \\name of a macro
BREAK = re.compile(r"(?<!\\)(?:\\r)?\\[nt](?![a-z])|(?<=[^\s\\:])(?:\\r)?\\n")
_PATH_OR_BREAK = re.compile(f"({_WINDOWS_PATH})|{BREAK.pattern}")
_LESS = r"(?!(?<=%)<(?:PRI\w{1,20}>|\w{1,100}>[\d.]{0,9}[a-z](?!\w)))</?"  # not of a placeholder, as in %<name>s
_TEMPLATE = "|".join(TEMPLATES.values())
_INSIDE_TAG = rf"(?>[^<>{{\[$]|{_TEMPLATE}|[{{\[$])"  # a template does not end it
# Elements, and comments. Markup with a space inside may be text, unless it is an HTML element or has an attribute.
ELEMENTS = {
    "HTML": (
        rf"(?is:{_LESS}(?:a|abbr|b|big|br|code|del|div|em|font|h[1-6]|hr|i|img|ins|kbd|li|mark|ol|p|q|s|small|span|strong"
        rf"|sub|sup|td|th|tr|tt|u|ul|var|wbr)(?:\s(?!\w{{1,100}} \w{{1,100}}>){_INSIDE_TAG}{{0,1000}})?/?>)"
    ),
    "comment": r"(?s:<!--(?:-?>|.{0,2000}?-->))",
    "XML": (
        rf"(?is:{_LESS}(?:[a-z][\w.:-]{{0,50}}(?:\s[^<>=]{{0,100}}={_INSIDE_TAG}{{0,1000}}|=[^<>\s=]{{1,100}}|\s{{0,100}})"
        r"|\d{1,3})/?>)"
    ),
}
ELEMENT = rf"(?=<)(?:{'|'.join(ELEMENTS.values())})"
ENTITY = re.compile(r"&(?:[A-Za-z]\w{1,9}|#\d{1,6}|#x[0-9a-fA-F]{1,5});")
_DECIMAL = re.compile("&#0*([0-9]{1,8})[0-9]*")
_WHITE_SPACE = re.compile(
    r"(?:\w{1,100}[:-]){0,20}(?:br|lb|lf|pb|tab|nbsp|space|new[ _-]?line|(?:line|soft)[ _-]?(?:break|return))"
    r"|(?:\s|[<\[]/?(?:\w{1,100}:)?(?:br|p|li|div|hr|tab|line-break)\b[^<>\[\]]{0,1000}[>\]]"
    r"|<mq:ch val=\"\s{1,100}\" ?/>|\{?\\(?:line|par|tab|u00a0|[nrt~])(?: ?\})?|[\u21b5\u23ce\xb6])+",
    re.IGNORECASE,
)
LETTER = rf"[^\W\d_{IDEOGRAPHS}]"  # of a script with spaces
ALONE = "\x03"  # a code without text
SEAM = re.compile(rf"(?<=[.!?…]|{LETTER}){ALONE}+(?={LETTER})")  # a code in place of a space: between words


_SIGNS = rf"~{{=%$@</\[\\^*_&#|`\u20e3{EMOJI}"
# What may begin a code next to another character. Each looks back at that one, the last also at the one before it.
_SIGN_PAIRS = {
    "file, name after a sign": r"(?<=[:!.])\w",
    "RST: mark before code": r"(?<=:):",
    "call": r"(?<=\()\)",
    "web address": r"(?<=[wW])[wW]{2}",
    "commit: letter after a digit": r"(?<=\d)[a-fA-F]",
    "commit: digit after a letter": r"(?<=[a-fA-F]\d)",
}
# A text without a sign is read faster. One set for all first characters takes a third of the time of an alternation.
SIGN = re.compile(rf"[{_SIGNS}:!.(wW\d](?:(?<=[{_SIGNS}])|{'|'.join(_SIGN_PAIRS.values())})")


def clean_text(text: str) -> str:
    """Replace line separators and control white space by spaces, and strip spaces from both ends.

    All other characters are kept: joiners, no-break spaces, direction marks, emoji, and damage.
    """
    if not text.isprintable():  # printable text has no separators; this test is several times faster
        text = _SEPARATORS.sub(" ", text)
    return text.strip(" ")


def unescape(text: str) -> str:
    """The text with its character references decoded; `html.unescape` fails for one with thousands of digits."""
    return html.unescape(_DECIMAL.sub(r"&#\1", text))


def is_white_space(text: str) -> bool:
    """Whether a code of another program with this name, display text or content is a line break or other space."""
    return _WHITE_SPACE.fullmatch(unescape(text)) is not None


# Numbers with their units, such as 12 kB / 4.6 kB, 1920 × 1080 px and -5 °C; and an identifier, but not e.g. or ph.d
_QUANTITY_OR_NAME = re.compile(
    r"(?:[\s<>≤≥≈~±+−–/×x()-]{0,1000}+\d[\d.,\s]{0,1000}+(?:[°º][CF]|K|px|pt|em|rem|dpi|fps|rpm|dB|bar|min|%|[kKMGTPE]?i?(?:bit|bps|B|b)"
    r"|[kMGmµμncd]?(?:Hz|Wh|Ah|Pa|[mglLshWVAJNFΩ]))?(?:/s|/h|[²³])?)++[\s)]*"
    "|[a-z][a-zA-Z0-9]{1,1000}(?:[._][a-zA-Z0-9]{2,1000}){1,100}"
)


def needs_no_translation(text: str) -> bool:
    """Whether a text is its own translation: it has no letter, or is one word of digits and letters such as A4.

    So is a quantity with its unit, such as 12 kB, and a name such as menu.save_as or www.example.org.

    Letters of a script without case count as words, and so do two small letters in a row (2nd).
    """
    if not any(map(str.isalpha, text)) or _QUANTITY_OR_NAME.fullmatch(text):
        return True
    is_code = (
        len(text.split()) == 1
        and any(map(str.isdigit, text))
        and all(letter.isupper() or letter.islower() for letter in filter(str.isalpha, text))
    )
    return is_code and not any(letter.islower() and following.islower() for letter, following in pairwise(text))


_LABEL_CHARS = 80
# The mark before the letter of an accelerator, not the & of AT&T; both in parentheses behind a text in other scripts
_ACCELERATOR = re.compile(r" ?\([&_]\w\)|(?!&\w+;)(?:(?<![^\W_])(?<!\*)_|(?<![A-Z])&|&(?![A-Z]))([^\W\d_])")


def accelerator(text: str) -> re.Match[str] | None:
    """The mark of an accelerator with its letter, as in &File and _File; sentences longer than a label have none."""
    return _ACCELERATOR.search(text) if text.count("&") + text.count("_") == 1 and len(text) <= _LABEL_CHARS else None


def strip_codes(text: str) -> str:
    """Removes the markup of training text: drops elements and escaped line breaks, and decodes entities.

    Placeholders are kept: they are words of the sentence.
    """
    if "\\" in text:
        text = _PATH_OR_BREAK.sub(lambda match: match[1] or " ", text)
    if "<" in text:
        text = re.sub(ELEMENT, _space_for_element, text)
    return ENTITY.sub(lambda match: html.unescape(match[0]).replace("\n", " "), text) if "&" in text else text


def _space_for_element(match: re.Match[str]) -> str:
    """A space for a line break or a paragraph, which separates words; nothing for another element."""
    return " " if match[0].lower().startswith(("<br", "<p", "</p")) else ""


_VOID = "area base br col embed hr img input link meta param source track wbr"
VOID = frozenset(_VOID.split())  # elements of HTML without an end
_SPACES = re.compile(r"\s+")
# Tags as characters
_BREAK = "\x00"
_OPEN = "\x01"
_CLOSE = "\x02"
_SIGN = re.compile("[\x00-\x03]")
# The content of an element that is a code: of any element, of <sub>, and of <sup>
_WITHOUT_LETTERS = re.compile(r"(?:[^\x00-\x02\w]|[\d_²³])+")
_INDEX = re.compile(r"[^\s\x00-\x03]+")
_EXPONENT = re.compile("[ijkmnxyz]")
_RUN = re.compile("[\x00-\x03 ]*[\x00-\x03][\x00-\x03 ]*")
_GROUP = re.compile("\x03+|[\x00-\x02]")
_BEFORE_END = re.compile(r"\x03[,.;:!?…]+(?![^\s\x00-\x03])")  # punctuation after a word, unlike in .txt or .50
# Entities whose characters could be markup or be lost; others are characters of a word
_LETTER_ENTITY = re.compile(f"(?!&(?:amp|lt|gt|quot|apos|nbsp|lrm|rlm);){ENTITY.pattern}")
_CODE = f"{CODE}|{BREAK.pattern}|{ENTITY.pattern}"
FORMULAS = {
    # Not sums of money, as in `$5 or 10$`, nor prices, as in `$$ for food and $$$ for wine`
    "TeX: display": r"(?<!\$)\$\$(?!\s?[a-z]{2,20} [a-z]{2,20}\b)[^$]{1,1000}\$\$(?!\$)",
    "GitLab": r"\$`[^`$\n]{1,200}`\$",
    "TeX: inline": (r"(?<![\w%#{$])\$(?!\d[\d.,]{0,20} [a-z]{2,20} )[^\s$`](?:[^$`\n]{0,200}[^\s$`])?\$(?![\w({$])"),
    "LaTeX": r"\\{1,2}[(\[](?=[^\\\n]{0,300}(?:[\^_=+<>]|\\[a-z]))(?:[^\n\\]|\\[a-z,;!]){1,300}\\{1,2}[)\]]",
    "LaTeX: one letter": r"(?<![\w\\])\\{1,2}\(\w\\{1,2}\)",
    "HTML: index": r"<sub>[^<>\s]{1,30}</sub>(?!\w)",
    "HTML: exponent": r"<sup>[ijkmnxyz]</sup>(?!\w)",
    "LaTeX: reference": (
        r"\\(?!href)@?(?:[a-z]{0,50}ref|[a-zA-Z]{0,50}cite[a-z]{0,50}|label|texttt|begin|end|includegraphics|input|include"
        r"|usepackage|url|gls|[hv]space)\*?(?:\[[^\[\]\n]{0,200}\]|\{[^{}\n]{0,200}\}|\([\w:-]{1,100}\)){1,20}"
    ),
    "LaTeX: macro as a word": r"(?<![^\s{}(])\\(?![nrt])[a-zA-Z]{2,20}(?![\w\\{.\[])",
}
FORMULA = "|".join(FORMULAS.values())
_ROLE = r"(?:(?<!\w):[\w:+.-]{1,60}:|\{[\w:+.-]{1,60}\})`"
# Marks in any text that shows them: code, tags, and pairs in three groups without names, which are an opening mark, its
# words and the closing mark.
MARKS = {
    **FORMULAS,
    "shell: line after a prompt": r"(?<![^\n])\$ [a-z.][^\n]{0,1000}[-/._=|>]\w[^\n]{0,1000}",
    "RST: field": r"(?<![^\n]):[a-z]{2,20}(?: [\w.,\[\]| ]{1,100})?:(?=\s)",
    "RST: parameter": r"\*(?:\\\*){0,2}(?:[a-z]\w{0,100}_\w{0,100}|(?:kw)?args)\*",
    "roff: sign": r"\\\(\w\w(?=\W|\Z)",
    "HTML, BBCode: code": (
        r"(?P<open>[<\[])(?P<code>(?i:code(?:blocks?)?|kbd|samp|var|pre|tt|img|script|style|literal|command|filename"
        r"|varname|userinput))\b[^<>\[\]]{0,200}(?:(?<!/)>|\])"
        r"(?:[^<\[]{1,5000}+|(?!(?P=open)/?(?P=code)[\s>\]])[<\[]){0,2000}+(?P=open)/(?P=code)[>\]]"
        r"(?: ?\+ ?<(?P=code)>[^<]{1,50}</(?P=code)>){0,20}"
    ),
    "BBCode": (  # with its end
        r"\[(?P<tag>[a-z]\w{0,20})(?:[= ][^\[\]]{1,500})?\]"
        r"(?=(?:[^\[]{1,5000}+|\[(?!/(?P=tag)\])){0,100}+\[/(?P=tag)\])"
    ),
    "BBCode: end": r"\[/[a-z]\w{0,200}\]",
    # The title of a role is text, unless it names the object
    "RST, MyST: role with a title": (
        rf"({_ROLE})(?P<title>(?![^`<>]{{0,500}}(?:[_.(]|[a-z][A-Z]))[^`<>]{{1,500}}?)"
        r"(\s{1,100}<(?![^<>`]{0,1000}(?P=title))[^<>`]{1,1000}>`)"
    ),
    "RST, MyST: link": (
        r"([:{](?:\w{1,9}:)?(?:ref|doc|any|term|download|numref)[:}]`|(?<![\w`}:])`)([^`<>]{1,500}?)"
        r"(\s{0,100}<[^<>`]{1,1000}>`_{0,2})"
    ),
    "RST, MyST: role with text": (
        r"([:{](?:guilabel|menuselection|dfn|strong|emphasis)[:}]`&?|[:{]abbr[:}]`[^`()]{1,50}\()([^`()]{1,500})(\)?`)"
    ),
    "RST, MyST: role": rf"{_ROLE}[^`]{{1,1000}}`",
    "RST: space that ends a mark": r"(?<=[`*|_])\\ |\\ (?=[`*|:])",
    "RST, Markdown: escaped mark": r"(?:\\[`*|]){1,100}(?:\w{1,200}+(?![\w ]{0,1000}\\))?",
    "arrow": r"(?<=\s)--?>(?=\s)",
    "HTML: escaped tag": r"&lt;/?\w[^&<>]{0,100}&gt;",
    "RST, Markdown: code": (
        r"(?<![\w`])_?(?:```(?:[^`]{1,5000}+|`(?!``)){1,1000}+```|``(?!\s)(?:(?!``(?!`)).){1,1000}(?<!\s)``"
        r"|`(?!\s)[^`\n]{1,1000}(?<!\s)`(?=_)|`(?!\s)[^`'\n]{1,1000}(?<!\s)`)(?!`)_{0,2}(?!\w)"
    ),
    "RST: parameter at the start": r"\A\*\*[a-z_]\w{0,200}\*\*(?: \([^()]{1,200}\))?(?= --? )",
    "RST, Markdown: strong": r"((?<![\w*])\*\*)((?!\s)[^*]{1,500}(?<!\s))(\*\*(?![\w*]))",
    "RST, Markdown: emphasis": r"((?<![\w*])\*)((?!\s|\.\w)[^*\n]{1,500}(?<!\s))(\*(?![\w*]))",
    "Markdown: image": r"!\[[^\[\]]{0,500}\]\([^()\s]{1,1000}\)",
    "Markdown: link": (
        r"((?<![\w\]!])\[)((?:[^\[\]]|!\[[^\[\]]{0,500}\]\([^()\s]{1,1000}\)){1,500})"
        r"(\]\((?=[^()\s]{0,1000}[/.\#:])(?:[^()\s]|\([^()\s]{0,200}\)){1,1000}(?:\s{1,100}\"[^\"]{0,200}\")?\))"
    ),
    "GTK: keys": r"(?:<(?:Primary|Control|Ctrl|Alt|Shift|Super|Meta)>){1,4}\w{1,100}",
    "C: include": r"\#include\b(?: [<\"]\S{1,100}[>\"])?",
    "POD: escape": r"E<[^<>]{1,200}>",
    "POD: code": (r"(?<!\w)(?:[CFLXZ]<[^<>]{1,200}>|[BI]<(?:\\,[^<>]{0,100}|[^\sA-Z<>]{1,100})>(?:\(\d\w{0,3}\))?)"),
    "LaTeX, roff": (  # a macro with text, or a font
        r"(\\(?:[a-zA-Z]{1,100}\*?(?:\{[^{}]{0,500}\})?\{|f(?:[A-Z]|\(\w\w)))"
        r"((?:[^{}\\]|\\[^a-zA-Z]){1,500})(\}|\\f[A-Z])"
    ),
    "POD: font": r"((?<!\w)[BIS]<)([^<>]{1,500})(>)",
    "AsciiDoc: block macro": r"(?<![\w:])[a-z]{3,20}::[^\s\[\]:]{0,500}\[[^\[\]]{0,200}\]",
    "AsciiDoc: inline macro": r"((?<![\w:])[a-z]{3,20}:[^\s\[\]:]{0,500}\[)([^\[\]]{1,500})(\](?!\())",
}
MARKUP = rf"(?=[:{{`*\\!\[<&_$\#-]|E<|\b(?:[A-Z]<|[a-z]{{3,20}}+:\S))(?:{'|'.join(MARKS.values())})"
Kind = Literal["open", "close", "alone"]
Escape = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag inside a sentence.

    Attributes:
        raw: the tag as written in the document, with all its code.
        pair: the common identifier of an opening and its closing tag; None for a single tag.
        is_break: whether it is a line break or a space, so that it separates words.
    """

    raw: str
    kind: Kind = "alone"
    pair: str | None = None
    is_break: bool = False


def element_tag(markup: str) -> Tag:
    """The tag of markup such as <b>, </b>, <br/> or [b]; comments and tags without an end are single tags."""
    slash, name = re.findall(r"\A(?:[<\[](/?)(\w*))?", markup.lower())[0]
    if not name or markup.endswith("/>") or name in VOID or re.search(r"(?s).[<\[]/", markup):
        return Tag(markup, is_break=(name or markup) in ("br", "nl", r"\N"))
    return Tag(markup, "close" if slash else "open", name)


Marked = list[str | Tag]  # the text and the tags of a segment, in their order


@dataclass(frozen=True, slots=True)
class Placed:
    """A tag at a character of the bare text.

    Attributes:
        tags: the tag and the single tags directly after it, as in `%d%%`: they stay together.
        before, after: the neighbouring characters; a space at an end, empty next to another tag.
        ends_word: whether it ended a word without a space: a line break, or the first of two elements.
        is_word: whether it replaces a word.
    """

    tags: tuple[Tag, ...]
    at: int
    before: str = ""
    after: str = ""
    ends_word: bool = False
    is_word: bool = False


Tags = Sequence[Placed]


def bare(marked: Marked) -> tuple[str, list[Placed]]:
    """The text without its tags, and the tags with their positions; runs of white space become one space."""
    tags = [part for part in marked if isinstance(part, Tag)]
    num_ends = Counter[str | None](tag.pair for tag in tags if tag.pair)
    remaining_tags = iter(tags)
    signs = (_SIGN.sub(" ", part) if isinstance(part, str) else _sign(part) for part in marked)
    text_with_signs = f" {_SPACES.sub(' ', ''.join(signs)).strip(' ')} "
    text = ""
    placed = list[Placed]()
    run_end = 1
    for run in _RUN.finditer(text_with_signs, 1):
        text += text_with_signs[run_end : run.start()]
        run_start, run_end = run.span()
        word_end = _word_end(text_with_signs, run_start, run_end, text[-1:])
        # a full stop after a placeholder follows the word before it, as without the placeholder
        has_space = (
            word_end is not None
            and text != ""
            and run_end < len(text_with_signs)
            and not _BEFORE_END.match(text_with_signs, run_end - 1)
        )
        space_at = word_end if has_space else None
        for group in _GROUP.finditer(text_with_signs, run_start, run_end):
            start, end = group.span()
            before = _SIGN.sub("", text_with_signs[start - 1])
            after = _SIGN.sub("", text_with_signs[end])
            position = len(text)
            if space_at is not None and start > space_at:
                position += 1
            group_tags = tuple(islice(remaining_tags, end - start))
            is_alone = num_ends[group_tags[0].pair] < 2  # also a tag without its other end
            is_word = group[0] != _BREAK and is_alone
            placed.append(Placed(group_tags, position, before, after, start == word_end, is_word))
        if has_space:
            text += " "
    return (text + text_with_signs[run_end:]).rstrip(" "), placed


def _word_end(text: str, start: int, end: int, preceding: str) -> int | None:
    """Where a word ends in a run of tags and spaces: at a seam, else a line break, else a space, else between elements.

    Tags before a line break belong to the word. Two elements are words of their own if letters are on both sides.
    """
    if SEAM.match(text, start):
        return start
    for sign in (_BREAK, " "):
        place = text.find(sign, start, end)
        if place >= 0:
            return place
    if preceding.isalnum() and text[end].isalnum():
        last_opening = text.rfind(_OPEN, start, end)
        place = text.find(_CLOSE, start, max(start, last_opening))
        if place >= 0:
            return place
    return None


def _sign(tag: Tag) -> str:
    return _BREAK if tag.is_break else {"open": _OPEN, "close": _CLOSE, "alone": ALONE}[tag.kind]


def is_blank(marked: Marked) -> bool:
    """Whether a segment has no text but white space around its tags."""
    return not bare(marked)[0]


def has_letters(marked: Marked) -> bool:
    """Whether a segment has text to translate."""
    return any(map(str.isalpha, bare(marked)[0]))


def text_of(marked: Marked) -> str:
    """The text around the tags, unchanged."""
    return "".join(part for part in marked if isinstance(part, str))


def raw(marked: Marked, escape: Escape = str) -> str:
    """Text and tags as written in the document; `escape` is for the text."""
    return "".join(escape(part) if isinstance(part, str) else part.raw for part in marked)


def mark_up(marked: Marked, escape: Escape = str) -> Marked:
    """The parts of a segment; elements written as text, and all other codes, become tags.

    Args:
        escape: escapes text for the document; tags are already escaped.
    """
    if not SIGN.search(text_of(marked)):
        return marked
    parts = [
        part if isinstance(part, Tag) else _LETTER_ENTITY.sub(lambda entity: html.unescape(entity[0]), part)
        for part in with_tags(marked, MARKUP, element_tag, escape)
    ]
    return with_codes(with_tags(parts, ELEMENT, element_tag, escape), escape)


def codes_of(text: str) -> list[str]:
    """The codes in a text, in the order of their characters."""
    return sorted(part.raw for part in mark_up([text]) if isinstance(part, Tag))


def with_codes(marked: Marked, escape: Escape = str) -> Marked:
    """The parts of a segment; placeholders, addresses and the like become tags, see `mark_up`.

    So does an element that holds no letter, such as <sup>[1]</sup>, or an index, as a whole.
    """
    parts = with_tags(marked, _CODE, _code_tag, escape)
    result = Marked()
    for number, part in enumerate(parts):
        result.append(part)
        last_parts = result[-3:]
        if _is_code_element(last_parts):
            following = raw(parts[number + 1 : number + 2])
            if not following[:1].isalnum():  # unlike H<sub>2</sub>O
                del result[-3:]
                result.append(Tag(raw(last_parts, escape)))
    return result


def _is_code_element(parts: Marked) -> bool:
    """Whether these are an opening tag, a code or content that is not words, and the closing tag."""
    if len(parts) != 3:
        return False
    opening, content, closing = parts
    if isinstance(opening, str) or isinstance(closing, str):
        return False
    if opening.kind != "open" or closing.kind != "close" or opening.pair != closing.pair:
        return False
    if isinstance(content, Tag):
        return content.kind == "alone" and not content.is_break
    content = content.strip()
    if opening.pair == "sub" and _INDEX.fullmatch(content):
        return True
    if opening.pair == "sup" and _EXPONENT.fullmatch(content):
        return True
    return _WITHOUT_LETTERS.fullmatch(content) is not None


def _code_tag(text: str) -> Tag:
    """The tag of a code: an escaped line break, one end of a pair of Phrase ({b>words<b}), or a single tag."""
    if re.fullmatch(r"\{\w+>|<\w+\}", text):
        return Tag(text, "open" if text.startswith("{") else "close", f"code {text[1:-1]}")
    return Tag(text, is_break=text.endswith(("\\n", "|n")))


def with_tags(
    marked: Marked, pattern: str | re.Pattern[str], tag_of: Callable[[str], Tag], escape: Escape = str
) -> Marked:
    """The parts of a segment; matches of a pattern become tags, see `mark_up`.

    If a match has groups without names, they are an opening mark, text, and a closing mark.
    """
    parts = Marked()
    for part in marked:
        if isinstance(part, Tag):
            parts.append(part)
            continue
        position = 0
        for match in re.finditer(pattern, part):
            parts.append(part[position : match.start()])
            position = match.end()
            if match.lastindex and not match.lastgroup:
                opening, text, closing = filter(None, match.groups())
                words = with_tags([text], pattern, tag_of, escape)
                parts += [Tag(escape(opening), "open", closing), *words, Tag(escape(closing), "close", closing)]
            else:
                parts.append(replace(tag_of(match[0]), raw=escape(match[0])))
        parts.append(part[position:])
    return list(filter(None, parts))


def is_choice(marked: Marked) -> bool:
    """Whether a segment is an ICU message with texts for several numbers or cases, which is partly code."""
    return CHOICE.search(text_of(marked)) is not None
