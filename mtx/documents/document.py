"""Documents that `mtx translate` keeps as they are but for their text: XLIFF, TMX, PO, HTML and Markdown.

Flow: bytes -> text -> segments with tags -> translations -> edits of the text -> bytes.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from mtx.documents import bilingual_documents, html, markdown
from mtx.documents.edits import Edit, apply, decode, segments
from mtx.documents.markup import Marked
from mtx.errors import UsageError
from mtx.formatting import readable, shell_command
from mtx.storage.text_files import errors_named

MAX_BYTES = 1 << 28  # of a document, which is held in memory as a whole
_GZIP = b"\x1f\x8b"
Translate = Callable[[list[Marked]], list[Marked]]


def translate_document(
    path: Path, kind: str, languages: tuple[str, str], overwrite: bool, translate: Translate
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
        raise UsageError(f"{path}: is larger than {readable(MAX_BYTES)}", "divide it")
    text, encoding = decode(path, data)
    bilingual = {
        "xliff": bilingual_documents.edit_xliff,
        "tmx": bilingual_documents.edit_tmx,
        "po": bilingual_documents.edit_po,
    }
    if kind in bilingual:
        reads: list[Callable[[str], Iterable[Edit]]] = [partial(bilingual[kind], path, languages, overwrite)]
    else:
        reads = [partial(html.read_attributes, path), html.read_blocks] if kind == "html" else [markdown.read]
    for read in reads:
        edits = list(read(text))
        text = apply(text, edits, translate(segments(edits)))
    return encoding.encode(text)
