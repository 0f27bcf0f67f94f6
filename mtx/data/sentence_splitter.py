"""Splits a line of running text into sentences, with the library sentencex."""

from collections.abc import Callable

from mtx.errors import MtxError
from mtx.files.text_files import replace_surrogates


def sentence_splitter(language: str) -> Callable[[str], list[str]]:
    """A function that splits a line into its sentences, without the spaces between them.

    Args:
        language: a code such as en; for a code that the library does not have, its general rules apply.

    Raises:
        MtxError: if the library is not installed.
    """
    try:
        from sentencex import segment
    except ImportError:
        raise MtxError("sentencex is not installed", 'pip install "mtx-translate[sentences]"') from None

    def split(text: str) -> list[str]:
        sentences = [sentence.strip() for sentence in segment(language, replace_surrogates(text))]
        return [sentence for sentence in sentences if sentence] or [text]

    return split
