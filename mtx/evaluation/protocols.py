"""BLEU as two publications computed it, so that their numbers can be compared with: tokenised by Moses, no smoothing.

Flow: hypotheses and references, with a `Protocol` -> `tokenized` -> `Tokenized`, whose lines sacreBLEU then takes as
they are. These scores stand beside sacreBLEU's own and never for it: another tokenizer gives other points. sacremoses
stands in for Moses's Perl scripts, as they were in 2017.

- `aiayn`: Vaswani et al. 2017, by tensor2tensor's get_ende_bleu.sh: Unicode punctuation made ASCII, tokenizer.perl,
  German compounds split at hyphens, multi-bleu.perl. Their reference had its lower quotes („) replaced, too.
- `multi30k-lc`: Elliott et al. 2016 and Wu et al. 2021: lowercase.perl, normalize-punctuation.perl, tokenizer.perl,
  multi-bleu.perl.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mtx.errors import UsageError

LANGUAGES = {"aiayn": ("de", "fr"), "multi30k-lc": ("de", "en", "fr", "cs")}  # for which there are published scores

# Perl reads the lines as bytes here, so that of one-letter parts (a-b-c) every second hyphen stays, but not in ä-ö-ü.
_COMPOUND = re.compile(rb"(\S)-(\S)")
# What tokenizer.perl writes, & last: `it &apos;s` comes from it's, and `l&apos; homme` from l'homme.
_MARK = re.compile(r"[^\w\s]")
_WRITTEN = [
    (r"(\w) &apos;(?=\w)", r"\1'"), (r"(\w)&apos; (?=\w)", r"\1'"), ("&apos;", "'"), ("&quot;", '"'), ("&lt;", "<"),
    ("&gt;", ">"), (r"&#124;", "|"), (r"&#91;", "["), (r"&#93;", "]"), ("&amp;", "&"),
]  # fmt: skip


@dataclass(frozen=True)
class Tokenized:
    """Text in the protocol's form.

    Attributes:
        systems: the hypotheses of each system.
        tokenization: how it was made, for a signature.
    """

    references: list[str]
    systems: list[list[str]]
    tokenization: str

    def signature(self, of_sacrebleu: str) -> str:
        """sacreBLEU's signature of a score of this text, with how it was tokenised."""
        return of_sacrebleu.replace("tok:none", f"tok:{self.tokenization}")


@dataclass(frozen=True)
class Protocol:
    """One published way to BLEU in one language.

    Attributes:
        tokenize: raw line -> tokens, separated by single spaces.
        tokenization: the same in words, for a signature.
        splits_compounds: whether tokens are split at hyphens afterwards.
    """

    name: str
    is_cased: bool
    tokenize: Callable[[str], str]
    tokenization: str
    splits_compounds: bool

    def metric(self) -> Any:
        """sacreBLEU's BLEU that computes what multi-bleu.perl does: lines as they are, 0 where no 4-gram matches."""
        from sacrebleu.metrics import BLEU

        return BLEU(tokenize="none", smooth_method="none", lowercase=not self.is_cased, force=True)

    def tokenized(self, references: Sequence[str], systems: Sequence[Sequence[str]]) -> Tokenized:
        """Tokenise references and hypotheses; all are left as they are where most references with marks are tokenised.

        So a test set of the recipe multi30k-en-de-lc is scored on its own tokens, and `&quot;` is not escaped again.
        """
        telling = [line for line in references if _MARK.search(line)]  # words alone look the same either way
        given = 2 * sum(map(self._is_tokenized, telling)) > len(telling)
        texts = [[line if given else self.tokenize(line) for line in text] for text in (references, *systems)]
        if self.splits_compounds:
            texts = [[split_compounds(line) for line in text] for text in texts]
        parts = ["none" if given else self.tokenization, *(["compound-split"] if self.splits_compounds else [])]
        return Tokenized(texts[0], texts[1:], "+".join(parts))

    def _is_tokenized(self, line: str) -> bool:
        raw = line
        for written, read in _WRITTEN:
            raw = re.sub(written, read, raw)
        return self.tokenize(raw) == " ".join(line.split())


def find(name: str, tgt: str) -> Protocol:
    """A protocol by its name, for a target language.

    Raises:
        UsageError: where the language has no scores by this protocol, or sacremoses is not installed.
    """
    if tgt not in LANGUAGES[name]:
        got = f"not {tgt}" if tgt else "and of files it is not known"
        raise UsageError(
            f"--protocol {name}: expected the target language {' or '.join(LANGUAGES[name])}, {got}",
            None if tgt else f"--direction en-{LANGUAGES[name][0]}",
        )
    try:
        import sacremoses
    except ImportError:
        raise UsageError("--protocol: sacremoses is not installed", 'pip install "mtx-translate[protocols]"') from None
    moses = sacremoses.MosesTokenizer(tgt)
    # With `perl_parity` the normalizer replaces ’ as the Perl script does, in another way than its own.
    normalizer = sacremoses.MosesPunctNormalizer(tgt, perl_parity=True)
    tokenizer = f"moses-{tgt}-sacremoses-{sacremoses.__version__}"

    def tokens(line: str) -> str:
        return " ".join(moses.tokenize(line))

    def aiayn(line: str) -> str:
        return tokens(normalizer.replace_unicode_punct(line).replace("„", '"'))

    def multi30k(line: str) -> str:
        # The line feed belongs to the line in Perl: one of the rules puts `."` in order only where something follows.
        return tokens(normalizer.normalize(f"{line.lower()}\n"))

    if name == "aiayn":
        return Protocol(name, True, aiayn, f"ascii-punctuation+{tokenizer}", tgt == "de")
    return Protocol(name, False, multi30k, f"normalize-punctuation+{tokenizer}", False)


def split_compounds(line: str) -> str:
    """`rich-text format` -> `rich ##AT##-##AT## text format`, as the Perl script for German does."""
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()
