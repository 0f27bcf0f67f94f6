"""Codes inside text: placeholders, addresses, emoji, markup, entities and escaped line breaks.

One table for training, which removes markup, and for translation, which keeps each code and restores it once
(`markup`). If several codes start at the same character, the first (longest) one here counts.
"""

import html
import re
from itertools import pairwise

from mtx.data.languages import IDEOGRAPHS

_EAST_ASIAN = f"{IDEOGRAPHS}\u3000-\u303f\uff00-\uffef"  # with punctuation
# A web address without trailing punctuation, or a mail address. Text in scripts without spaces ends it.
ADDRESS = (
    r"(?i:(?<![a-z0-9_])(?:(?:https?|ftp|file)://|www\.))"
    rf"(?:\([^\s()<>\"'{_EAST_ASIAN}]{{0,200}}\)|[^\s()<>\"'…—“”»{_EAST_ASIAN}]){{1,2000}}(?<![.,;:!?\]}}’])"
    r"|(?:mailto:)?(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}\w{2,63}"
)
TEMPLATE = (  # of ERB, PHP, Jinja, Liquid, Handlebars, i18next, Hugo, Template Toolkit; JSX and Smarty
    r"\{/\*(?:[^*]|\*(?!/)){0,1000}\*/\}"
    r"|\{[^{}<]{0,200}?(?:[=!]==|&&|\|\|| \? |=>|\?[?.]|\w\(|\"\s*:| \$[a-z])[^{}]{0,200}\}"
    r"|\[%[^%]{0,1000}%\]|\[\[ [^\[\]]{1,100} \]\]"
    r"|<%[^%]{0,1000}%>|<\?(?:[^?]|\?(?!>)){0,1000}\?>|\{%[^%]{0,1000}%\}|\{\#[^#{}]{0,1000}\#\}"
    r"|\{{4}[^{}]{0,1000}\}{4}|\{{3}[^{}]{0,1000}\}{3}|\$?\{\{[^{}]{0,1000}\}\}"
)
_PATH = r"(?<!\w)[A-Za-z]:\\[^\s\"'<>|]*+"  # of Windows
_NAME = "[A-Za-z_][A-Za-z0-9_]*+"
EMOJI = "\u2600-\u27bf\U0001f000-\U0001faff"
_CODES = "|".join(
    [
        ADDRESS,
        TEMPLATE,
        _PATH,
        rf"%(?:\d+\$)?\#@{_NAME}@",  # Xcode
        # Drupal, the shell of Windows, and dates as strftime writes them; letters behind belong to the name
        rf"%%{_NAME}%%|(?<!\d)%(?!ll)[a-z_]{{3,}}(?:-[a-z]+)+(?!\w)"
        rf"|(?<!\d)%[-#]?(?!_){_NAME}(?:%(?![%\w(.]))?(?:[-/:.]%[-#]?[A-Za-z](?!\w))*",
        r"(?<!\d)%(?:\([^()\s]{1,100}\)|\d{1,2}\$)?[-+#0']*+(?:\d{1,5}|\*)?(?:\.(?:\d{1,5}|\*))?"
        r"(?:hh|h|ll|l|L|q|j|z|t)?[diouxXeEfFgGcrsapn@%]",  # C, Python, Perl, Objective-C
        r"%<\w{1,100}>[\d.]*+[a-z]|%\d{1,2}(?!\w)",  # Ruby, Qt
        r"\{\w{1,20}>|<\w{1,20}\}",  # Phrase
        r"[$%#]?\{ ?[^{}\s<]{0,100} ?\}",
        r"\{\w*[!:](?!\s)[^{}]{0,100}\}",  # Python and .NET, with a format
        r"\{\s*\w+\s*,\s*(?:number|date|time|duration|ordinal|spellout|list)\b[^{}]{0,200}\}",  # ICU
        r"\{\s*[A-Z]+\([^{}]{0,200}\)\s*\}",  # Fluent
        rf"\$t\([^()]{{0,100}}\)|\$\({_NAME}\)|\$\${_NAME}\$\$|(?<!\w)\${_NAME}(?:\$(?!\w)|(?:\.[a-z]\w*+)*+)|@(?:\.\w+)?:[\w.]+\w|\*\|[\w:]+\|\*",
        rf"(?<!\w)(?:__{_NAME}(?<=__)|\^{_NAME}\^|###{_NAME}###)(?!\w)",
        r"(?<!\w)@[a-z]{2,20} ?\([$'\"][^()]{0,200}\)",  # Blade
        rf"(?<![^\s(\"'>])[@:!]{_NAME}(?:[-./][A-Za-z]\w*)*:?(?!\w)",  # Drupal, Laravel; the names of emoji
        # Weblate, Maketext, shortcodes of WordPress
        r"\[(?:X\d+X|_\d+|(?:quant|numf|[*#]),[^\[\]]{1,100})\]",
        r"\[/?[a-z][a-z0-9]*[_-][\w-]*(?:\s[^\[\]]{0,500})?\]|\[[a-z]\w*\s[^\[\]=]{1,100}=[^\[\]]{0,500}\]"
        r"|\[/[a-z]\w*\]|\[(?:[bius*]|url|img|quote|code|list)\]|\[(?:url|color|size|quote|img)=[^\[\]]{1,500}\]",
        r"\^\[(?=[^\[\]]*\]\(inflect:)|\]\(inflect: \w+\)",  # Xcode
        # Plural forms of Polyglot, Symfony and Laravel, and for which numbers they are
        r"[\[\]](?:-?Inf|\d+),(?:\d+|\*|Inf)[\[\]]|\|{4}|(?<=[^\s|])\|(?=[^\s|])",
        r"\\u[0-9a-fA-F]{4}|(?:\d[\d.,]{0,30})?%%",
        rf"[{EMOJI}][{EMOJI}\u200d\ufe0e\ufe0f]*|[\d\#*]\ufe0f\u20e3",
    ]
)
CODE = re.compile(rf"(?:{_CODES})(?:[-/.:](?:{_CODES}))*+")  # codes joined by a sign alone are one
# An ICU message with texts for several numbers or cases
CHOICE = re.compile(r"\{\s*\w+\s*,\s*(?:plural|select|selectordinal|choice)\s*,")
# An escaped line break or tab, but not the \\name of a macro
BREAK = re.compile(r"(?<!\\)(?:\\r)?\\[nt](?![a-z])|(?<=[^\s\\:])(?:\\r)?\\n")
_PATH_OR_BREAK = re.compile(f"({_PATH})|{BREAK.pattern}")
# Elements, and comments. Markup with a space inside may be text, unless it is an HTML element or has an attribute.
_LESS = r"(?!(?<=%)<\w{1,100}>[\d.]{0,9}[a-z](?!\w))</?"  # but not a Ruby placeholder, as in %<name>s
_INSIDE = rf"(?>[^<>{{\[$]|{TEMPLATE}|[{{\[$])"  # a template does not end it
ELEMENT = re.compile(
    rf"{_LESS}(?:a|abbr|b|big|br|code|del|div|em|font|h[1-6]|hr|i|img|ins|kbd|li|mark|ol|p|q|s|small|span|strong|sub|sup"
    rf"|td|th|tr|tt|u|ul|var|wbr)(?:\s(?!\w+ \w+>){_INSIDE}{{0,1000}})?/?>|<!--.{{0,2000}}?-->"
    rf"|{_LESS}(?:[a-z][\w.:-]{{0,50}}(?:\s[^<>=]{{0,100}}={_INSIDE}{{0,1000}}|\s*)|\d{{1,3}})/?>",
    re.IGNORECASE | re.DOTALL,
)
ENTITY = re.compile(r"&(?:[A-Za-z]\w{1,9}|#\d{1,6}|#x[0-9a-fA-F]{1,5});")
_DECIMAL = re.compile("&#0*([0-9]{1,8})[0-9]*")
_WHITE_SPACE = re.compile(
    r"(?:\w+[:-])*(?:br|lb|lf|pb|tab|nbsp|space|new[ _-]?line|(?:line|soft)[ _-]?(?:break|return))"
    r"|(?:\s|[<\[]/?(?:\w+:)?(?:br|p|li|div|hr|tab|line-break)\b[^<>\[\]]*[>\]]|<mq:ch val=\"\s+\" ?/>"
    r"|\{?\\(?:line|par|tab|u00a0|[nrt~])(?: ?\})?|[\u21b5\u23ce\xb6])+",
    re.IGNORECASE,
)
LETTER = rf"[^\W\d_{IDEOGRAPHS}]"  # of a script with spaces
ALONE = "\x03"  # a code without text
SEAM = re.compile(rf"(?<=[.!?…]|{LETTER}){ALONE}+(?={LETTER})")  # a code in place of a space: between words


SIGN = re.compile(rf"[{{%$@<\[\\^*_&#|\u20e3{EMOJI}]|[:!]\w|/|www", re.IGNORECASE)  # a text without one is read faster


def unescape(text: str) -> str:
    """The text with its character references decoded; `html.unescape` fails for one with thousands of digits."""
    return html.unescape(_DECIMAL.sub(r"&#\1", text))


def is_white_space(text: str) -> bool:
    """Whether a code of another program with this name, display text or content is a line break or other space."""
    return _WHITE_SPACE.fullmatch(unescape(text)) is not None


def needs_no_translation(text: str) -> bool:
    """Whether a text is its own translation: it has no letter, or is one word of digits and letters such as A4.

    Letters of a script without case count as words, and so do two small letters in a row (2nd).
    """
    letters = list(filter(str.isalpha, text))
    is_one_word = len(text.split()) == 1 and any(map(str.isdigit, text))
    is_code = is_one_word and all(letter.isupper() or letter.islower() for letter in letters)
    return not letters or (is_code and not any(one.islower() and two.islower() for one, two in pairwise(text)))


# The mark before the letter of an accelerator, not the & of AT&T; both in parentheses behind a text in other scripts
_ACCELERATOR = re.compile(r" ?\([&_]\w\)|(?!&\w+;)(?:(?<![^\W_])_|(?<![A-Z])&|&(?![A-Z]))([^\W\d_])")


def accelerator(text: str) -> re.Match[str] | None:
    """The mark of an accelerator with its letter, as in &File and _File."""
    return _ACCELERATOR.search(text) if text.count("&") + text.count("_") == 1 else None


def strip_codes(text: str) -> str:
    """Removes the markup of training text: drops elements and escaped line breaks, and decodes entities.

    Placeholders are kept: they are words of the sentence.
    """
    if "\\" in text:
        text = _PATH_OR_BREAK.sub(lambda match: match[1] or " ", text)
    if "<" in text:
        text = ELEMENT.sub(lambda match: " " * match[0].lower().startswith(("<br", "<p", "</p")), text)
    return ENTITY.sub(lambda match: html.unescape(match[0]).replace("\n", " "), text) if "&" in text else text
