"""Documents that `mtx translate` keeps as they are but for their text: XLIFF, TMX, PO, HTML and Markdown.

Flow: bytes -> text -> segments with tags -> translations -> edits of the text -> bytes.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mtx.documents import html, markdown, po, tmx, xliff
from mtx.documents.edits import Reading, apply, decode
from mtx.documents.markup import Marked
from mtx.errors import UsageError
from mtx.files.shell import shell_command
from mtx.files.sizes import readable
from mtx.files.text_files import errors_named

MAX_BYTES = 1 << 28  # of a document, which is held in memory as a whole
_GZIP = b"\x1f\x8b"
Translate = Callable[[list[Marked]], list[Marked]]
_Read = Callable[[str], Reading]


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
    reads: dict[str, list[_Read]] = {
        "xliff": [partial(xliff.read, path, languages=languages, overwrite=overwrite)],
        "tmx": [partial(tmx.read, path, languages=languages, overwrite=overwrite)],
        "po": [partial(po.read, path, languages=languages, overwrite=overwrite)],
        "html": [partial(html.read_attributes, path), html.read_blocks],
        "markdown": [markdown.read],
    }
    for read in reads[kind]:
        segments, edits = read(text)
        text = apply(text, edits(translate(segments)))
    return encoding.encode(text)
