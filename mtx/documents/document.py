"""Documents that `mtx translate` keeps as they are but for their text: XLIFF, TMX, PO, HTML and Markdown.

Flow: bytes -> text -> segments with tags -> translations -> edits of the text -> bytes. The parsers are loaded for a
document only: lines of text do not wait for them.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from mtx.data.bilingual import BilingualReader
from mtx.data.readers import READERS
from mtx.documents.edits import Edit, apply, decode, segments
from mtx.documents.markup import Marked
from mtx.errors import UsageError
from mtx.formatting import format_size, shell_command
from mtx.storage.text_files import bilingual_form, errors_named

MAX_BYTES = 1 << 28  # of a document, which is held in memory as a whole
BILINGUAL = frozenset(["xliff", "tmx", "po"])  # they hold the source and its translation
_BY_ENDING = {**dict.fromkeys(["html", "htm", "xhtml", "xht"], "html"), "md": "markdown", "markdown": "markdown"}
_GZIP = b"\x1f\x8b"


def kind_of_document(path: Path) -> str | None:
    """What a file is: xliff, tmx, po, html or markdown; None for lines of text.

    Raises:
        UsageError: if it is missing, or something else.
    """
    ending = Path(path.name.lower().removesuffix(".gz")).suffix[1:]
    reader = READERS.get(ending)
    named = reader.form if isinstance(reader, BilingualReader) else _BY_ENDING.get(ending)
    return named if named == "html" else bilingual_form(path) or named


def translate_document(
    path: Path,
    kind: str,
    languages: tuple[str, str],
    overwrite: bool,
    translate: Callable[[list[Marked]], list[Marked]],
) -> bytes:
    """The bytes of a document whose text is translated.

    Args:
        kind: what `kind_of_document` found.
        languages: those of the model.
        overwrite: whether existing translations are replaced.
        translate: gives the translations of segments.

    Raises:
        UsageError: if it is too large, or compressed.
        DataError: if it is damaged.
    """
    with errors_named(path), path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if data.startswith(_GZIP):
        raise UsageError(f"{path}: is compressed", shell_command("gzip", "-dk", path))
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: is larger than {format_size(MAX_BYTES)}", "divide it")
    text, encoding = decode(path, data)
    from mtx.documents import bilingual_documents, html, markdown

    reads: list[Callable[[str], Iterable[Edit]]] = [markdown.read]
    if kind == "html":
        reads = [partial(html.read_attributes, path), html.read_blocks]
    elif kind != "markdown":
        reads = [partial(bilingual_documents.EDITS[kind], path, languages, overwrite)]
    for read in reads:
        edits = list(read(text))
        text = apply(text, edits, translate(segments(edits)))
    return encoding.encode(text)
