"""The words of pages, messages and docstrings are the field's, and the sentences of user pages are short."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
_NOTES = ("decisions-2026.md", "results-log.md")  # dated entries stay as they were written


def _files(*patterns: str) -> list[str]:
    paths = (path for pattern in patterns for path in REPOSITORY.glob(pattern) if path.name not in _NOTES)
    return sorted(path.relative_to(REPOSITORY).as_posix() for path in paths)


TEXTS = _files(
    "README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "configs/*.yaml",
    "mtx/**/*.py", "mtx/**/*.html", "mtx/**/*.js", "mtx/**/*.jinja",
)  # fmt: skip
USER_PAGES = _files(
    "README.md", "docs/index.md", "docs/install.md", "docs/faq.md", "docs/tutorials/*.md", "docs/howto/*.md"
)
USER_PAGES = [page for page in USER_PAGES if page != "docs/tutorials/paper.md"]

# What reads like another language, each with the word that is wanted.
UNWANTED = {
    r"go(es|ing)? on|went on|gone on": "continue, resume",
    r"anew|once more": "again, from scratch",
    r"beside": "next to, compared with, in addition to",
    r"(on|for|of|in|after|with|to|than) so (many|much)": "N, or the number itself",
    r"(says?|said|tells?|told|asks?) so": "warns, prints, reports",
    r"(mtx|command|error|message|warning|log|report|page|\.md|README) (says?|tells?|asks?)": "prints, reports",
    r"exchanged|exchanges": "swapped",
    r"(left|leaves?|leaving) out": "skipped, dropped, omitted",
    r"puts? aside|putting aside": "held out",
    r"made[ -](up )?(pairs|text|sentences)": "synthetic",
    r"(stands?|stood) (in|at|on|there|twice|once|behind|before|after|side|as|as they|as it)": "is, appears",
    r"stands? (alone|first|last)": "is alone, is first",
    r"(the|other|these|those|all|such|both|two|three|four|which|what|tried) means": "methods, techniques",
    r"of one's own": "your own X",
    r"(gives?|give) way": "is overridden",
    r"(does not|do not|cannot|not|would|can|hardly) pay": "is not worth it",
    r"(is|are) meant to": "should",
    r"(?<!there )(is|are|was|were) no (?!longer|more|less|other|better|worse|later|earlier|smaller|larger|further)":
    "is not a X, has no X",
    r"(that|those) of ([\w'`]+ ){1,6}(that|those) of": "repeat the noun",
    r"behind (it|them|each|every|text|words?|the (text|words?|names?|last|first|source|translation|values?))": "after",
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_the_words_are_the_fields(name: str) -> None:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    text = re.sub(r"""["']?\n\s*(#|f?["'])?\s*""", " ", text)  # a phrase may cross lines of a comment or a string
    found = [
        f"{match[0]!r} in {text[max(0, match.start() - 40) : match.end() + 30]!r}: {wanted}"
        for form, wanted in UNWANTED.items()
        for match in re.finditer(rf"(?<![\w-])({form})(?![\w-])", text, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", USER_PAGES)
def test_sentences_are_short(page: str) -> None:
    """17 words at most on average. A list item, a heading and a line before a block end a sentence too."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    text = re.sub(r"^( *)(```|~~~).*?^\1\2|^( {4}|\t).*?$|^ *[|<#].*?$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])|`[^`]*`", lambda found: found[1] or "code", text)
    blocks = re.split(r"\n\s*\n|^\s*(?:[-*+]|\d+\.) ", text, flags=re.MULTILINE)
    parts = [part.split() for block in blocks for part in re.split(r"[.!?]+(?=[\s)*\"]|$)", block)]
    mean = sum(map(len, parts)) / max(1, sum(map(bool, parts)))
    assert mean <= 17, f"{mean:.1f} words"
