"""What the text of translations tells: BLEU and chrF2 against references, and what is suspicious without any.

`mtx.decoding.scores` has the scores of a test set, with their signatures.
"""

import re
import statistics
import unicodedata
from collections.abc import Sequence
from typing import Literal

from mtx.data.cleaning import clean_text
from mtx.data.languages import WITHOUT_SPACES, tokenizer_of

_LONGEST_NGRAM = 4  # of BLEU
TOO_SHORT = "half of the references have fewer than four words or characters, so BLEU is nearly always 0"

Suspicion = Literal["repetition", "copy"]

# A letter of a script that puts no spaces between words, or a word
_TOKEN = re.compile(rf"[{WITHOUT_SPACES}]|[^\W_](?:[^\W_]|[\u0300-\u036f])*")
_STUTTER = re.compile(r"([^\W\d_]{1,10}?)\1{4}")
_LONGEST_UNIT = 20  # tokens of what is repeated
_FEWEST_TIMES, _FEWEST_OF_ONE_LETTER = 3, 5
_PHRASE_WORDS, _PHRASE_CHARS = 3, 6  # at least; ideographs are words of one character
_FEWEST_WORDS = 3  # of a copy: names and numbers are copied with good reason


def too_short_for_bleu(references: Sequence[str], tgt: str) -> bool:
    """Whether BLEU is nearly always 0: half of the references have fewer than four tokens, so no 4-gram can match."""
    from sacrebleu.metrics import BLEU

    tokenize = BLEU(tokenize=tokenizer_of(tgt, references)).tokenizer
    return bool(references) and statistics.median(len(tokenize(line).split()) for line in references) < _LONGEST_NGRAM


def normalize_lines(lines: Sequence[str], normalization: str) -> list[str]:
    """Text in the form in which it is scored: without line breaks inside a line, and in NFC if the model normalises.

    Args:
        normalization: the tokenizer's, `nfc`, `nmt_nfkc` or `none`.
    """
    cleaned = [clean_text(line) for line in lines]
    return [unicodedata.normalize("NFC", line) for line in cleaned] if normalization != "none" else cleaned


def bleu(hypotheses: Sequence[str], references: Sequence[str], tgt: str = "", tokenizer: str | None = None) -> float:
    """Corpus BLEU alone.

    Args:
        tokenizer: for a part of a test set, the tokenizer of the whole; by default that of these references.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=tokenizer or tokenizer_of(tgt, references))
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus chrF2 alone."""
    from sacrebleu.metrics import CHRF

    return float(CHRF().corpus_score(list(hypotheses), [list(references)]).score)


def suspicion(src: str, translation: str) -> Suspicion | None:
    """What is suspicious of a translation; None if nothing is.

    repetition: some words stand at least three times in a row, or a phrase twice, and more often than any in the
    source. Or some letters stand at least five times in a row in a word, and nothing so often in the source.
    copy: it is the source, which has at least three words.
    """
    of_src = _repetitions(src)
    stutters = _STUTTER.search(translation) and not _STUTTER.search(src) and of_src < _FEWEST_OF_ONE_LETTER
    if stutters or _repetitions(translation) > of_src:
        return "repetition"
    words = [word for word in _TOKEN.findall(src) if word.isalpha()]
    return "copy" if len(words) >= _FEWEST_WORDS and translation.split() == src.split() else None


def _repetitions(text: str) -> int:
    """How often some words stand in a row, at most; 0 if not often. Twice is often for a phrase."""
    tokens, most = _TOKEN.findall(text), 0
    for length in range(1, min(_LONGEST_UNIT, len(tokens) // 2) + 1):
        run, fewest = 0, 2 if length >= _PHRASE_WORDS else _FEWEST_TIMES
        for number in range(length, len(tokens)):
            run = run + 1 if tokens[number] == tokens[number - length] else 0
            times = run // length + 1
            if times >= max(fewest, most + 1):
                unit = "".join(tokens[number - length + 1 : number + 1])
                is_often = len(unit) > 1 or times >= _FEWEST_OF_ONE_LETTER
                is_often &= times >= _FEWEST_TIMES or (len(unit) >= _PHRASE_CHARS and not any(map(str.isdigit, unit)))
                most = times if is_often and not unit.isdigit() else most
    return most
