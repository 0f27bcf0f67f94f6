"""BLEU as two publications computed it, for comparison with their numbers: Moses tokenization, no smoothing.

Flow: hypotheses and references -> `Protocol.tokenized` -> sacreBLEU, which does not tokenize them again. These scores
are printed in addition to sacreBLEU's own and never replace them, because BLEU depends on the tokenizer. sacremoses
replaces Moses's Perl scripts of 2017.

- `aiayn`: Vaswani et al. 2017, by tensor2tensor's get_ende_bleu.sh: Unicode punctuation made ASCII, tokenizer.perl,
  German compounds split at hyphens, multi-bleu.perl. Lower quotes („) are also replaced, as in the reference
  translations of the paper's scores.
- `multi30k-lc`: Elliott et al. 2016 and Wu et al. 2021: lowercase.perl, normalize-punctuation.perl, tokenizer.perl,
  multi-bleu.perl.
"""

import re
from collections.abc import Sequence
from typing import Any

from mtx.data.languages import code_of
from mtx.errors import UsageError
from mtx.formatting import install_command
from mtx.scoring.metrics import corpus_score

LANGUAGES = {"aiayn": ("de", "fr"), "multi30k-lc": ("de", "en", "fr", "cs")}  # with published scores

# The Perl script reads bytes. Matches do not overlap, so every second hyphen stays between one-byte parts (a-b-c), but
# not in ä-ö-ü, whose letters have two bytes.
_COMPOUND = re.compile(rb"(\S)-(\S)")
# The end of a sentence or clause, and one attached to a word; a tokenizer puts a space between them.
_END = re.compile(r"[.,!?]+(?=\s|$)")
_ATTACHED_END = re.compile(r"[^\s.,!?][.,!?]+(?=\s|$)")


class Protocol:
    """One published way to compute BLEU, for one target language.

    Raises:
        UsageError: if this protocol has no published scores for the language, or sacremoses is not installed.
    """

    def __init__(self, name: str, tgt: str):
        got = tgt or "files, whose language is unknown"
        tgt = code_of(tgt)
        if tgt not in LANGUAGES[name]:
            expected = " or ".join(LANGUAGES[name])
            hint = None if tgt else f"--direction en-{LANGUAGES[name][0]}"
            raise UsageError(f"--protocol {name}: expected the target language {expected}, got {got}", hint)
        try:
            import sacremoses
        except ImportError:
            raise UsageError("--protocol: sacremoses is not installed", install_command("sacremoses")) from None
        self.name = name
        self._tgt = tgt
        self._is_cased = name == "aiayn"
        self._moses = sacremoses.MosesTokenizer(tgt)
        # With `perl_parity` the normalizer replaces ’ as the Perl script does; without it, differently.
        self._normalizer = sacremoses.MosesPunctNormalizer(tgt, perl_parity=True)
        steps = "ascii-punctuation" if self._is_cased else "normalize-punctuation"
        self._tokenization = f"{steps}+moses-{tgt}-sacremoses-{sacremoses.__version__}"

    def _tokenize(self, line: str) -> str:
        """The tokens of a raw line, separated by single spaces."""
        if self._is_cased:
            line = self._normalizer.replace_unicode_punct(line).replace("„", '"')
        else:  # in Perl the line includes its line feed, and the rule for `."` needs a character after it
            line = self._normalizer.normalize(f"{line.lower()}\n")
        return " ".join(self._moses.tokenize(line))

    def score(self, hypotheses: Sequence[str], *references: Sequence[str]) -> dict[str, Any]:
        """BLEU as multi-bleu.perl computes it, 0 if no 4-gram matches; its signature names the tokenization."""
        from sacrebleu.metrics import BLEU

        [*tokenized_references, tokenized_hypotheses], tokenization = self.tokenized(*references, hypotheses)
        metric = BLEU(tokenize="none", smooth_method="none", lowercase=not self._is_cased, force=True)
        bleu = corpus_score(metric, tokenized_hypotheses, *tokenized_references)
        return {**bleu, "signature": bleu["signature"].replace("tok:none", f"tok:{tokenization}")}

    def tokenized(self, references: Sequence[str], *more_texts: Sequence[str]) -> tuple[list[list[str]], str]:
        """Tokenize all texts, unless most references with punctuation are already tokenized.

        This keeps the tokens of the recipe multi30k-en-de-lc, and does not escape `&quot;` again.

        Returns:
            The texts, and the steps that were applied.
        """
        num_ends = sum(1 for line in references if _END.search(line))
        num_attached = sum(1 for line in references if _ATTACHED_END.search(line))
        is_tokenized = 2 * num_attached < num_ends
        texts = [
            [line if is_tokenized else self._tokenize(line) for line in text] for text in (references, *more_texts)
        ]
        steps = "none" if is_tokenized else self._tokenization
        if self._is_cased and self._tgt == "de":
            return [list(map(split_compounds, text)) for text in texts], f"{steps}+compound-split"
        return texts, steps


def split_compounds(line: str) -> str:
    """Split German compounds as the Perl script does: `rich-text format` -> `rich ##AT##-##AT## text format`."""
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()
