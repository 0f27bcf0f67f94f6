"""What OPUS (opus.nlpl.eu) has in two languages.

Flow: two codes of languages -> a request -> `OpusCorpus`, or an error that names the nearest that OPUS has.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from mtx.data.languages import Languages, key_of
from mtx.errors import MtxError, UsageError
from mtx.formatting import mtx_command
from mtx.interop.download import fetch_json

API = "https://opus.nlpl.eu/opusapi/"
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)  # of a corpus or a version, which becomes a part of a path

_Number = Annotated[int | None, BeforeValidator(lambda value: None if value == "" else value)]  # "": unknown


class OpusCorpus(BaseModel):
    """A corpus of OPUS in two languages, as OPUS describes it.

    Attributes:
        source: the first of its languages in alphabetical order.
        size: of its zip in KiB.
    """

    corpus: str
    version: str
    source: str
    target: str
    url: str
    alignment_pairs: _Number
    size: _Number

    @property
    def num_bytes(self) -> int | None:
        """The size of its zip; None if it is unknown."""
        return None if self.size is None else self.size * 1024

    @property
    def page(self) -> str:
        """The address of its page, which has its terms."""
        return f"https://opus.nlpl.eu/{self.corpus}/{self.source}&{self.target}/{self.version}/{self.corpus}"


def show_number(number: int | None) -> str:
    """A number that may be unknown."""
    return "?" if number is None else f"{number:,}"


def show_size(num_bytes: int | None) -> str:
    """A size that may be unknown, in millions of bytes."""
    return "?" if num_bytes is None else f"{num_bytes / 1e6:,.1f} MB"


class _Corpora(BaseModel):
    corpora: list[OpusCorpus]


class _Languages(BaseModel):
    languages: list[str]


_Kind = TypeVar("_Kind", bound=BaseModel)


def list_corpora(languages: Languages, corpus: str = "", version: str = "latest") -> list[OpusCorpus]:
    """The corpora of OPUS in two languages, the largest first.

    Args:
        corpus: only this one.
        version: only this one; empty: all versions.

    Raises:
        MtxError: if OPUS cannot be asked, or gives another answer.
    """
    src, tgt = languages
    corpora = _ask(_Corpora, source=src, target=tgt, corpus=corpus, version=version).corpora
    corpora = [found for found in corpora if {found.source, found.target} == {src, tgt}]
    return sorted(corpora, key=lambda found: (-(found.alignment_pairs or 0), found.corpus, found.version))


def find_corpus(languages: Languages, corpus: str, version: str) -> OpusCorpus:
    """A corpus of OPUS; with an empty version, its latest.

    Raises:
        UsageError: if there is none; it names the nearest that there are.
        MtxError: if OPUS cannot be asked, or gives another answer.
    """
    if not _NAME.fullmatch(corpus):
        hint = f"{mtx_command('corpora', '-'.join(languages))} lists them"
        raise UsageError(f"{corpus!r}: expected the name of a corpus", hint)
    for found in list_corpora(languages, corpus, version or "latest"):
        if found.corpus == corpus and _NAME.fullmatch(found.version) and version in ("", found.version):
            return found
    raise nothing_found(languages, corpus, version)


def nothing_found(languages: Languages, corpus: str = "", version: str = "") -> UsageError:
    """The error for a request that OPUS cannot meet, with what it has instead, the nearest first."""
    name = f"{corpus}@{version}" if version else corpus or "text"
    problem = f"OPUS has no {name} in {' and '.join(languages)}"
    for there, replaced, names in _alternatives(languages, corpus, version):
        if names:
            nearest = list[str]()
            for wanted in replaced:
                same = [code for code in names if key_of(code) == key_of(wanted)]  # a language in another spelling
                nearest += same or difflib.get_close_matches(wanted, names)
            hint = f"{there} {', '.join(sorted({*names}))}"
            return UsageError(problem, f"nearest: {', '.join(nearest)}; {hint}" if nearest else hint)
    return UsageError(problem)


def _alternatives(languages: Languages, corpus: str, version: str) -> Iterator[tuple[str, Sequence[str], list[str]]]:
    """What OPUS may have near a request: a text about it, what it replaces in the request, and the names."""
    src, tgt = languages
    if corpus:
        yield f"the versions of {corpus} are", [version], [it.version for it in list_corpora(languages, corpus, "")]
        yield f"in {corpus}, {src} is paired with", [tgt], _list_languages(source=src, corpus=corpus)
        yield f"in {corpus}, {tgt} is paired with", [src], _list_languages(source=tgt, corpus=corpus)
        yield f"{src} and {tgt} are in", [corpus], [it.corpus for it in list_corpora(languages)]
    yield f"{src} is paired with", [tgt], _list_languages(source=src)
    yield f"{tgt} is paired with", [src], _list_languages(source=tgt)
    yield "its languages include", languages, _list_languages()


def _list_languages(**query: str) -> list[str]:
    """The codes of all languages of OPUS, or of those that a `source` language or a corpus has."""
    return _ask(_Languages, languages="True", **query).languages


def _ask(kind: type[_Kind], **query: str) -> _Kind:
    """OPUS's answer about plain text, one sentence a line; empty values of the query are dropped."""
    query = {key: value for key, value in query.items() if value}
    answer = fetch_json(API, {**query, "preprocessing": "moses"})
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise MtxError(f"{API}: unexpected answer ({place}: {problem['msg']})", "try again later") from None
