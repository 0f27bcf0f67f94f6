"""Translates lines of text with any engine: clean, encode, search, decode, in the order of the input.

Each input line gives exactly one output line: line breaks inside a line become spaces, an empty line stays empty, and a
line that is longer than the model's limit, or has several sentences where the model knows only single ones, is
translated in parts. A sentence in capitals or in title case is translated as it is usually written, if the tokenizer
knows it better so, and its translation gets that case (`mtx.data.letter_case`). This module does not need torch; the
engines are `mtx.decoding.torch_engine` (torch) and `mtx.decoding.ctranslate2_engine`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unicodedata import is_normalized

import numpy as np
import numpy.typing as npt

from mtx.data.cleaning import clean_text
from mtx.data.glossary import Glossary, num_used
from mtx.data.letter_case import Case, case_of, in_case, usual_case
from mtx.data.sentence_splitter import MOSTLY_SINGLE, joined_sentences, sentence_splitter
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.minimum_bayes_risk import mean_chrf, pairwise_chrf
from mtx.decoding.options import Candidate, SearchOptions
from mtx.errors import DataError, UsageError

logger = logging.getLogger(__name__)

Splitter = Callable[[str], list[str]]
Attention = npt.NDArray[np.float32]  # [T, S]


@dataclass(frozen=True)
class Hypothesis:
    """One translation: text without line breaks, score, and pieces.

    Attributes:
        score: the log-probability after the length penalty; with `Sampling.mbr` the mean chrF against all samples.
        num_missing: how many terms of the glossary it should use and does not.
    """

    text: str
    score: float
    pieces: list[str]
    num_missing: int = 0


@dataclass(frozen=True)
class Part:
    """What is translated at once, a sentence or a part of it: token ids, and the case that its translation gets."""

    ids: list[int]
    case: Case | None


class TextTranslator(ABC):
    """Translates lines of text; a subclass, the engine, implements `decode` on token ids.

    Args:
        max_tokens: the longest source, in pieces with `</s>`, that is translated as a whole.
        src, tgt: the languages, for messages and scores.
        num_tgt_positions: the most tokens of a translation, `</s>` included; None means any number.
        splitter: splits a line into sentences, whose translations are joined again; None leaves lines whole.

    Attributes:
        glossary: whose terms the translations use; see `use_glossary`.
        is_automatic: whether the model, not the caller, decided for the splitter. The first line that is split is then
            logged, and a line with a prefix, which may be that of several sentences, stays whole.
    """

    _draws_by_line = True  # a sample depends on the seed, its line and its number alone
    is_automatic = False

    def __init__(
        self, tokenizer: Tokenizer, max_tokens: int, options: SearchOptions, *, num_tgt_positions: int | None,
        src: str = "src", tgt: str = "tgt", splitter: Splitter | None = None,
    ):  # fmt: skip
        self.tokenizer, self.max_tokens, self.options = tokenizer, max_tokens, options
        self.num_tgt_positions = num_tgt_positions
        self.src, self.tgt, self.splitter = src, tgt, splitter
        self.glossary: Glossary | None = None
        self._has_told = False
        if options.sampling is not None and options.sampling.mbr:
            pairwise_chrf()  # if it is missing, that is known before anything is translated

    def use_glossary(self, glossary: Glossary | None) -> None:
        """Use the terms of a glossary from now on; None uses none.

        Raises:
            UsageError: if the model did not learn terms.
        """
        if glossary is not None and not self.tokenizer.marks:
            raise UsageError(
                "this model did not learn terms, so it cannot use a glossary", "mtx train ... data.terms=auto"
            )
        self.glossary = glossary

    def choose_splitter(self, split_sentences: bool | None, info: Mapping[str, Any]) -> None:
        """Split lines into sentences or not; None means as the model was trained, by the `info` of its directory.

        A model without a record, which was imported, counts as trained on single sentences, which nearly all parallel
        text consists of.
        """
        if not isinstance(split_sentences, bool | None):
            raise TypeError(f"split_sentences={split_sentences!r}: expected True, False or None")
        knows_single_ones = info.get("multi_sentence_share", 0.0) < MOSTLY_SINGLE
        is_split = knows_single_ones if split_sentences is None else split_sentences
        self.splitter = sentence_splitter(self.src) if is_split else None
        self.is_automatic = split_sentences is None

    @property
    def is_repeatable(self) -> bool:
        """Whether a block of lines is translated in the same way whatever was translated before."""
        return self._draws_by_line or self.options.sampling is None

    def share_workers(self) -> int:
        """Let each call use one worker of the engine from now on; returns how many calls at once use them all."""
        return 1

    @abstractmethod
    def decode(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> list[list[Candidate]]:
        """Returns the hypotheses of each source, at least one, best first; samples are in the order of drawing.

        Args:
            sources: token ids, each ending in `</s>`, at most max_tokens.
            prefixes: for each source the target ids that its translations must begin with, without `</s>`.
        """

    @abstractmethod
    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        """Returns for each pair of ids, both ending in `</s>`, from which source tokens each target token comes.

        Each row is a distribution: the attention of the last layer, averaged over its heads. Rows and columns of
        `</s>` may be missing. The caller passes sources of at most max_tokens, and targets that the model can write.
        """

    def translate(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[str]:
        """Returns one translation per line, in order; an empty line gives an empty line.

        Raises:
            TypeError, ValueError, DataError: see `hypotheses`.
        """
        require_lines(lines, "translate", prefixes)
        return [hypotheses[0].text for hypotheses in self.hypotheses(lines, prefixes, n_best=1)]

    def hypotheses(
        self, lines: Sequence[str], prefixes: Sequence[str] | None = None, first: int = 1, name: str = "prefix",
        n_best: int | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        """Returns the finished hypotheses of each line: one to beam_size, best first, or the samples.

        Those of a line that is translated in parts are the best combinations of the hypotheses of its parts; a sample
        is the samples of its parts with the same number. Its score is the sum of the scores of the parts, and with
        `Sampling.mbr`, which leaves each part one hypothesis, their mean. Score and pieces of a sentence in capitals or
        in title case are those of the sentence as it is usually written.
        With a glossary, those that use more of its terms come first, whatever their scores.

        Args:
            prefixes: for each line the text that its translations must begin with.
            first: number of the first line, for messages.
            name: how messages call a prefix, before its number.
            n_best: how many hypotheses the caller reads; there may be more. None means all.

        Raises:
            TypeError: `lines` or `prefixes` is no list of str.
            ValueError: there are not as many prefixes as lines.
            DataError: the model has no positions for a prefix and a token after it; nothing was translated.
        """
        require_lines(lines, "hypotheses", prefixes)
        parts = self.split(lines, prefixes, first)
        prefix_ids = self._prefix_ids([len(line_parts) for line_parts in parts], prefixes, first, name)
        by_part = self.decode_parts([part for line_parts in parts for part in line_parts], prefix_ids, n_best)
        return self.join_parts(parts, by_part)

    def split(self, lines: Sequence[str], prefixes: Sequence[str] | None = None, first: int = 1) -> list[list[Part]]:
        """Returns the parts of each line, of at most max_tokens; an empty line has none.

        The language token of a line (`>>fra<<`, of imported multilingual models) goes before each of its parts.
        """
        whole = [clean_text(line) for line in lines]
        languages = [self.tokenizer.language_token(text) for text in whole]
        texts = [text.removeprefix(language) for text, language in zip(whole, languages, strict=True)]
        prefixes = prefixes or [""] * len(texts)
        stays_whole = [self.is_automatic and bool(prefix) for prefix in prefixes]
        sentences = [
            self.splitter(text) if self.splitter and text and not is_whole else [text]
            for text, is_whole in zip(texts, stays_whole, strict=True)
        ]
        self._tell_once([len(line_sentences) for line_sentences in sentences], first)
        flat = [  # a prefix stands in the translation as it is, so its line keeps its case
            (sentence, None) if prefix else self.usual_case(sentence)
            for line_sentences, prefix in zip(sentences, prefixes, strict=True)
            for sentence in line_sentences
        ]
        usual = [text if self.glossary is None else self.glossary.annotate(text) for text, _ in flat]
        starts = [language for language, some in zip(languages, sentences, strict=True) for _ in some]
        sources = [language + text for language, text in zip(starts, usual, strict=True)]
        ids = self.tokenizer.encode(sources)
        rows = zip(ids, starts, flat, strict=True)
        parts = ([Part(part, case) for part in self._cut(row, bool(start))] for row, start, (_, case) in rows)
        return [[part for _ in line_sentences for part in next(parts)] for line_sentences in sentences]

    def usual_case(self, sentence: str) -> tuple[str, Case | None]:
        """The sentence that the model translates, and the case that its translation gets; None: that of the model."""
        case = case_of(sentence)
        if case is None:
            return sentence, None
        terms = self.glossary.matches(sentence) if self.glossary is not None and is_normalized("NFC", sentence) else []
        kept = [(term.start, term.end) for term in terms]
        usual = usual_case(sentence, case, self.src, self._count_tokens, kept)
        return (sentence, None) if usual is None else (usual, case)

    def _count_tokens(self, texts: list[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer.encode(texts, num_threads=1)]

    def _tell_once(self, num_sentences: list[int], first: int) -> None:
        """Logs the first line that is split because of the model, with its number if the first one is `first`."""
        number = next((number for number, count in enumerate(num_sentences, first) if count > 1), None)
        if self.is_automatic and number is not None and not self._has_told:
            self._has_told = True
            logger.info(
                "line %d has %d sentences: each is translated alone, as this model learned from single sentences "
                "(--no-split-sentences leaves lines whole)", number, num_sentences[number - first],
            )  # fmt: skip

    def _combined(self, parts: list[list[Hypothesis]]) -> list[Hypothesis]:
        """Returns the hypotheses of a line from those of its parts; an empty one if it has no parts."""
        if parts and self.options.sampling is not None:
            joined = [_join(samples) for samples in zip(*parts, strict=True)]
            is_mean = self.options.sampling.mbr
            return [replace(h, score=h.score / len(parts)) for h in joined] if is_mean else joined
        return [_join(hypotheses) for hypotheses in best_combinations(parts, self.options.beam_size)]

    def _cut(self, ids: list[int], has_language: bool) -> list[list[int]]:
        start = ids[:1] if has_language else []
        body, end, parts = ids[len(start) : -1], ids[-1:], list[list[int]]()
        while body:
            size = self._part_size(body, self.max_tokens - 1 - len(start))
            parts.append(start + body[:size] + end)
            body = body[size:]
        return parts

    def _part_size(self, body: list[int], most: int) -> int:
        """As many ids as fit, without the beginning of a term that would be cut."""
        size = min(len(body), most)
        if size == len(body) or not self.tokenizer.marks:
            return size
        first, *_, last = self.tokenizer.marks.values()
        start = next((place for place in reversed(range(size)) if body[place] in (first, last)), 0)
        return start if start and body[start] == first else size

    def _prefix_ids(
        self, num_parts: list[int], prefixes: Sequence[str] | None, first: int, name: str
    ) -> list[list[int]]:
        """Returns the prefix of every part in target ids: only the first part of a line has one."""
        texts = ["" for _ in num_parts] if prefixes is None else [clean_text(prefix) for prefix in prefixes]
        ids = self.tokenizer.encode(texts, target=True, num_threads=1) if any(texts) else [[] for _ in texts]
        check_lengths(ids, self.num_tgt_positions, name, first)
        return [
            line_ids[:-1] if number == 0 else []
            for count, line_ids in zip(num_parts, ids, strict=True)
            for number in range(count)
        ]

    def decode_parts(
        self, parts: Sequence[Part], prefixes: Sequence[list[int]] | None = None, n_best: int | None = None
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each part of `split`, best first; with prefixes as in `decode`.

        Args:
            n_best: see `hypotheses`. The texts of the others are not made where none of them can become the best.
        """
        decoded = self.decode([part.ids for part in parts], prefixes or [[] for _ in parts])
        terms = [self.tokenizer.terms(part.ids) for part in parts]
        if self.options.sampling is None:  # parts have equally many samples, which are joined by their numbers
            decoded = [found if some else found[:n_best] for found, some in zip(decoded, terms, strict=True)]
        texts = iter(self.tokenizer.decode([candidate.ids for candidates in decoded for candidate in candidates]))
        return [
            self._ranked([self._hypothesis(next(texts), candidate, part.case, some) for candidate in candidates])
            for part, candidates, some in zip(parts, decoded, terms, strict=True)
        ]

    def join_parts(
        self, lines: Sequence[Sequence[Part]], by_part: Iterable[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each line of `split` from those of all parts, in order; see `hypotheses`."""
        rest = iter(by_part)
        by_line = [[next(rest) for _ in line_parts] for line_parts in lines]
        return [found[0] if len(found) == 1 else self._combined(found) for found in by_line]

    def _ranked(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Those of a part, with the most terms first; samples as they were drawn, or the one that they make best."""
        sampling = self.options.sampling
        if sampling is None:
            return sorted(hypotheses, key=lambda h: h.num_missing)
        if not sampling.mbr:
            return hypotheses
        scores = mean_chrf([h.text for h in hypotheses])
        scored = [replace(h, score=score) for h, score in zip(hypotheses, scores, strict=True)]
        return [min(scored, key=lambda h: (h.num_missing, -h.score))]

    def _hypothesis(self, text: str, candidate: Candidate, case: Case | None, terms: list[str]) -> Hypothesis:
        num_missing = len(terms) - num_used(terms, text)
        cased = text if case is None else in_case(text, case, self.tgt)
        return Hypothesis(cased, candidate.score, self.tokenizer.pieces(candidate.ids), num_missing)


def check_lengths(sentences: Sequence[list[int]], limit: int | None, name: str, first: int = 1) -> None:
    """Raises a DataError that names the first sentence of more than `limit` pieces; `first` is the first number."""
    for number, ids in enumerate(sentences, start=first):
        if limit is not None and len(ids) > limit:
            raise DataError(f"{name} {number} has {len(ids)} pieces, the model takes {limit}")


def require_lines(lines: Sequence[str], method: str, others: Sequence[str] | None = None) -> None:
    """Checks the arguments of a method that takes lines, and perhaps as many `others`.

    Raises:
        TypeError: one of them is no list of str, or a single str or bytes, whose characters would count as lines.
        ValueError: there are not as many others as lines.
    """
    for argument in (lines, [] if others is None else others):
        if isinstance(argument, str | bytes):
            example = f"{method}([{argument[:20]!r}])[0]"
            raise TypeError(
                f"expected a list of lines, got a single {type(argument).__name__}; for one line: {example}"
            )
        if not isinstance(argument, Collection):
            raise TypeError(f"{method}: expected a list of lines, got {type(argument).__name__}")
        for number, line in enumerate(argument, start=1):
            if not isinstance(line, str):
                raise TypeError(f"{method}: line {number} is of the type {type(line).__name__}, expected str")
    if others is not None and len(others) != len(lines):
        raise ValueError(f"there are {len(lines)} lines, but {len(others)} to go with them")


def best_combinations(parts: Sequence[list[Hypothesis]], size: int) -> list[list[Hypothesis]]:
    """Returns the `size` best combinations of one hypothesis from each part, best first.

    The best one lacks the fewest terms, and then has the largest sum of scores.

    Args:
        parts: the hypotheses of each part, best first. So only the first size / n can follow the n-th combination.
    """
    best: list[tuple[int, float, Any]] = [(0, 0.0, None)]  # missing terms, minus the sum, the last and what is before
    for part in parts:
        longer = [
            (num_missing + hypothesis.num_missing, cost - hypothesis.score, (hypothesis, before))
            for number, (num_missing, cost, before) in enumerate(best, start=1)
            for hypothesis in part[: max(1, size // number)]
        ]
        best = sorted(longer, key=lambda combination: combination[:2])[:size]
    return [_unwound(chain) for *_, chain in best]


def _unwound(chain: Any) -> list[Hypothesis]:
    hypotheses = []
    while chain is not None:
        hypothesis, chain = chain
        hypotheses.append(hypothesis)
    return hypotheses[::-1]


def _join(parts: Sequence[Hypothesis]) -> Hypothesis:
    text = joined_sentences([part.text for part in parts])
    score, num_missing = sum(part.score for part in parts), sum(part.num_missing for part in parts)
    return Hypothesis(text, score, [piece for part in parts for piece in part.pieces], num_missing)
