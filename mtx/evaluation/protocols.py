"""BLEU as two publications computed it, for comparison with their numbers: Moses tokenization, no smoothing.

Flow: hypotheses and references -> `Protocol.tokenized` -> `TokenizedText`, which sacreBLEU scores without tokenizing it
again. These scores are printed beside sacreBLEU's own and never replace them, because BLEU depends on the tokenizer.
sacremoses replaces Moses's Perl scripts of 2017.

- `aiayn`: Vaswani et al. 2017, by tensor2tensor's get_ende_bleu.sh: Unicode punctuation made ASCII, tokenizer.perl,
  German compounds split at hyphens, multi-bleu.perl. Lower quotes („) are replaced
  too, as they had been in the reference translations that the scores of the paper come from.
- `multi30k-lc`: Elliott et al. 2016 and Wu et al. 2021: lowercase.perl, normalize-punctuation.perl, tokenizer.perl,
  multi-bleu.perl.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mtx.data.languages import code_of
from mtx.errors import UsageError
from mtx.formatting import install_command

LANGUAGES = {"aiayn": ("de", "fr"), "multi30k-lc": ("de", "en", "fr", "cs")}  # with published scores

# The Perl script reads bytes. Matches do not overlap, so every second hyphen stays between one-byte parts (a-b-c), but
# not in ä-ö-ü, whose letters have two bytes.
_COMPOUND = re.compile(rb"(\S)-(\S)")
_PUNCTUATION = re.compile(r"[^\w\s]")
# Undoes tokenizer.perl's escapes, & last: `it &apos;s` comes from it's, and `l&apos; homme` from l'homme.
_UNESCAPE = [
    (r"(\w) &apos;(?=\w)", r"\1'"),
    (r"(\w)&apos; (?=\w)", r"\1'"),
    ("&apos;", "'"),
    ("&quot;", '"'),
    ("&lt;", "<"),
    ("&gt;", ">"),
    (r"&#124;", "|"),
    (r"&#91;", "["),
    (r"&#93;", "]"),
    ("&amp;", "&"),
]


@dataclass(frozen=True)
class TokenizedText:
    """References and hypotheses, tokenized by a protocol.

    Attributes:
        systems: the hypotheses of each system.
        tokenization: the steps that were applied, as they stand in a signature.
    """

    references: list[str]
    systems: list[list[str]]
    tokenization: str

    def signature(self, sacrebleu_signature: str) -> str:
        """sacreBLEU's signature of a score of this text, completed by the tokenization."""
        return sacrebleu_signature.replace("tok:none", f"tok:{self.tokenization}")


@dataclass(frozen=True)
class Protocol:
    """One published way to compute BLEU, for one target language.

    Attributes:
        tokenize: turns a raw line into tokens, separated by single spaces.
        tokenization: the name of these steps in a signature.
        splits_compounds: whether tokens are then split at hyphens.
    """

    name: str
    is_cased: bool
    tokenize: Callable[[str], str]
    tokenization: str
    splits_compounds: bool

    def metric(self) -> Any:
        """sacreBLEU's BLEU set up like multi-bleu.perl: no tokenization, and 0 if no 4-gram matches."""
        from sacrebleu.metrics import BLEU

        return BLEU(tokenize="none", smooth_method="none", lowercase=not self.is_cased, force=True)

    def tokenized(self, references: Sequence[str], systems: Sequence[Sequence[str]]) -> TokenizedText:
        """Tokenize references and hypotheses, unless most references with punctuation are tokenized already.

        So a test set of the recipe multi30k-en-de-lc keeps its own tokens, and `&quot;` is not escaped again.
        """
        punctuated = [line for line in references if _PUNCTUATION.search(line)]  # tokenization changes only these
        is_tokenized = 2 * sum(map(self._is_tokenized, punctuated)) > len(punctuated)
        texts = [[line if is_tokenized else self.tokenize(line) for line in text] for text in (references, *systems)]
        if self.splits_compounds:
            texts = [[split_compounds(line) for line in text] for text in texts]
        steps = ["none" if is_tokenized else self.tokenization, *(["compound-split"] if self.splits_compounds else [])]
        return TokenizedText(texts[0], texts[1:], "+".join(steps))

    def _is_tokenized(self, line: str) -> bool:
        raw = line
        for escaped, plain in _UNESCAPE:
            raw = re.sub(escaped, plain, raw)
        return self.tokenize(raw) == " ".join(line.split())


def find(name: str, tgt: str) -> Protocol:
    """The protocol with this name, for a target language.

    Raises:
        UsageError: if no scores by this protocol are published for the language, or sacremoses is not installed.
    """
    given, tgt = tgt, code_of(tgt)
    if tgt not in LANGUAGES[name]:
        got = f"got {given}" if given else "got files, whose language is unknown"
        raise UsageError(
            f"--protocol {name}: expected the target language {' or '.join(LANGUAGES[name])}, {got}",
            None if tgt else f"--direction en-{LANGUAGES[name][0]}",
        )
    try:
        import sacremoses
    except ImportError:
        raise UsageError("--protocol: sacremoses is not installed", install_command("sacremoses")) from None
    moses = sacremoses.MosesTokenizer(tgt)
    # With `perl_parity` the normalizer replaces ’ as the Perl script does; without it, differently.
    normalizer = sacremoses.MosesPunctNormalizer(tgt, perl_parity=True)
    tokenizer = f"moses-{tgt}-sacremoses-{sacremoses.__version__}"

    def tokens(line: str) -> str:
        return " ".join(moses.tokenize(line))

    def aiayn(line: str) -> str:
        return tokens(normalizer.replace_unicode_punct(line).replace("„", '"'))

    def multi30k(line: str) -> str:
        # In Perl the line includes its line feed, and the rule for `."` needs a character after it.
        return tokens(normalizer.normalize(f"{line.lower()}\n"))

    if name == "aiayn":
        return Protocol(name, True, aiayn, f"ascii-punctuation+{tokenizer}", tgt == "de")
    return Protocol(name, False, multi30k, f"normalize-punctuation+{tokenizer}", False)


def split_compounds(line: str) -> str:
    """Split German compounds as the Perl script does: `rich-text format` -> `rich ##AT##-##AT## text format`."""
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()
