"""Which documents there are, by name and content. Their parsers are not loaded: lines of text do not wait for them."""

from pathlib import Path

from mtx.storage.text_files import bilingual_form

KINDS_WITH_TARGETS = frozenset(["xliff", "tmx", "po"])  # they hold the source and its translation
_BY_NAME = {
    **dict.fromkeys([".html", ".htm", ".xhtml", ".xht"], "html"),
    **dict.fromkeys([".md", ".markdown"], "markdown"),
    **dict.fromkeys([".xlf", ".xliff", ".sdlxliff", ".mqxliff", ".mxliff"], "xliff"),
    **dict.fromkeys([".po", ".pot"], "po"),
    ".tmx": "tmx",
}


def kind_of_document(path: Path) -> str | None:
    """What a file is: xliff, tmx, po, html or markdown; None for lines of text.

    Raises:
        UsageError: if it is missing, or something else.
    """
    named = _BY_NAME.get(Path(path.name.lower().removesuffix(".gz")).suffix)
    return named if named == "html" else bilingual_form(path) or named
