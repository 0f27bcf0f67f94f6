"""Translates lines of text with any engine: clean, encode, search, decode, in the order of the input.

Each input line gives exactly one output line: line breaks inside a line become spaces, an empty line stays empty, and a
line that is longer than the model's limit, or has several sentences where the model knows only single ones, is
translated in parts. A sentence in capitals or in title case is translated as it is usually written, if the tokenizer
knows it better so, and its translation gets that case (`mtx.data.letter_case`). A sentence without a letter is its own
translation (`mtx.data.inline_codes.needs_no_translation`). This module imports no engine.
"""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from unicodedata import category, is_normalized

import numpy as np

from mtx.data.cleaning import clean_text
from mtx.data.glossary import Glossary, num_used
from mtx.data.inline_codes import needs_no_translation
from mtx.data.letter_case import Case, case_of, in_case, truecase
from mtx.data.sentence_splitter import MOSTLY_SINGLE, joined_sentences, sentence_splitter
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding.options import (
    EXTRA_LENGTH,
    Candidate,
    Engine,
    EngineName,
    Placement,
    Precision,
    Sampling,
    SearchOptions,
)
from mtx.errors import DataError, MtxError, UsageError
from mtx.formatting import install_command
from mtx.storage.text_files import replace_surrogates

if TYPE_CHECKING:
    from mtx.decoding.scoring import AttentionMaps, ForcedScore
    from mtx.decoding.torch_engine import TorchEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hypothesis:
    """One translation: text without line breaks, score, and pieces.

    Attributes:
        score: the log-probability after the length penalty; with `Sampling.mbr` the mean chrF against all samples.
        num_missing: the number of glossary terms that it should use and does not.
        is_cut: whether a sentence was too long for the model and was translated in parts.
    """

    text: str
    score: float
    pieces: list[str]
    num_missing: int = 0
    is_cut: bool = False


@dataclass(frozen=True)
class Part:
    """A unit of translation, a sentence or a part of it.

    Attributes:
        ids: its token ids, with `</s>`.
        case: the letter case of its translation.
        prefix: the target ids that its translations must begin with, without `</s>`.
        is_cut: whether it is a part of a sentence that is too long for the model.
        own: its translation, if it is the sentence itself.
    """

    ids: list[int]
    case: Case | None
    prefix: list[int] = field(default_factory=list)
    is_cut: bool = False
    own: str | None = None


class LoadOptions(TypedDict, total=False):
    """What `Translator.load` takes: the fields of `SearchOptions` and of `Placement`."""

    engine: EngineName
    device: str
    precision: Precision | None
    threads: int | None
    beam_size: int | None
    length_penalty: float | None
    max_length: int | None
    sampling: Sampling | None
    batch_tokens: int | None
    split_sentences: bool | None


class Translator:
    """Translates lines of text with one model or an ensemble, by an engine; see `load`. Thread-safe.

    Args:
        info: of the model's directory: src, tgt, max_tokens, and perhaps beam_size, length_penalty and
            multi_sentence_share. An imported model without the last one counts as trained on single sentences,
            like nearly all parallel text.
        load_torch: loads the same model for torch, which computes log-probabilities and attention maps; None if that
            is the engine.

    Attributes:
        src, tgt: the languages.
        max_tokens: the longest source, in pieces with `</s>`, that is translated as a whole.
        splitter: splits a line into sentences, whose translations are joined again; None leaves lines whole. If the
            model decided for it (`split_sentences=None`), splitting is logged once, and a line with a
            prefix, which may be that of several sentences, stays whole.
        glossary: whose terms the translations use; see `use_glossary`.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        info: Mapping[str, Any],
        options: SearchOptions | None = None,
        load_torch: "Callable[[], TorchEngine] | None" = None,
    ):
        self.engine, self.tokenizer = engine, tokenizer
        self.options = (options or SearchOptions()).of_model(info)
        self.src, self.tgt = str(info["src"]), str(info["tgt"])
        self.max_tokens = int(info["max_tokens"])
        is_split = self.options.split_sentences
        if is_split is None:
            is_split = info.get("multi_sentence_share", 0.0) < MOSTLY_SINGLE
        self.splitter = sentence_splitter(self.src) if is_split else None
        self.glossary: Glossary | None = None
        self._load_torch = load_torch
        self._has_logged_split = self._has_logged_cut = False
        if self.options.sampling is not None and self.options.sampling.mbr:
            pairwise_chrf()  # if it is missing, that is known before anything is translated

    @classmethod
    def load(cls, model: str | Path, **options: Unpack[LoadOptions]) -> "Translator":
        """Loads a model directory, the model of a run directory, an export, or an ensemble A+B of several models.

        The options are the fields of `SearchOptions` and of `Placement`.

        Raises:
            UsageError: there is no such model, engine, device or precision.
            TypeError, ValueError: another argument is unknown, of another type, or out of its range.
            DamagedFileError: a file of the model is missing or damaged.
        """
        from mtx.decoding.load import load

        place: dict[str, Any] = dict(options)
        search = {name: place.pop(name) for name in SearchOptions.__dataclass_fields__ if name in place}
        return load(model, SearchOptions(**search), Placement(**place))

    @functools.cached_property
    def torch(self) -> "TorchEngine":
        """The model for torch."""
        engine: Any = self.engine
        return engine if self._load_torch is None else self._load_torch()

    def use_glossary(self, glossary: Glossary | None) -> None:
        """Use the terms of a glossary from now on; None uses none.

        Raises:
            UsageError: if the model has not learned terms.
        """
        if glossary is not None and not self.tokenizer.marks:
            raise UsageError(
                "this model cannot use a glossary, because it has not learned terms", "mtx train ... data.terms=auto"
            )
        self.glossary = glossary

    def translate(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[str]:
        """Returns one translation per line, in order; an empty line gives an empty line.

        Raises:
            TypeError, ValueError, DataError: see `hypotheses`.
        """
        return [hypotheses[0].text for hypotheses in self.hypotheses(lines, prefixes, n_best=1)]

    def hypotheses(
        self, lines: Sequence[str], prefixes: Sequence[str] | None = None, n_best: int | None = None
    ) -> list[list[Hypothesis]]:
        """Returns the finished hypotheses of each line: one to beam_size, best first, or the samples.

        Those of a line that is translated in parts are the best combinations of the hypotheses of its parts; a sample
        is the samples of its parts with the same number. Its score is the sum of the scores of the parts, and with
        `Sampling.mbr`, which leaves each part one hypothesis, their mean. Score and pieces of a sentence in capitals or
        in title case are those of the sentence as it is usually written.
        With a glossary, those that use more of its terms come first, whatever their scores.

        Args:
            prefixes: for each line the text that its translations must begin with.
            n_best: the number of hypotheses that the caller needs; there may be more. None: all.

        Raises:
            TypeError: `lines` or `prefixes` is no list of str.
            ValueError: there are not as many prefixes as lines.
            DataError: a prefix is too long for the model; nothing was translated.
        """
        require_lines(lines, prefixes)
        parts = self.split(lines, prefixes)
        return self.join_parts(parts, self.decode_parts([part for some in parts for part in some], n_best))

    def split(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[list[Part]]:
        """Returns the parts of each line, of at most max_tokens; an empty line has none. See `hypotheses`.

        The language token of a line (`>>fra<<`, of imported multilingual models) goes before each of its parts.
        """
        pairs = zip(lines, prefixes or [""] * len(lines), strict=True)
        sentences = [self._sentences(line, has_prefix=bool(prefix)) for line, prefix in pairs]
        is_split = any(len(of_line) > 1 for of_line in sentences)
        if is_split and self.options.split_sentences is None and not self._has_logged_split:
            self._has_logged_split = True
            logger.info(
                "translating the sentences of a line one by one, since this model was trained on single sentences "
                "(--no-split-sentences keeps lines whole)"
            )
        ids = iter(self.tokenizer.encode([language + text for of_line in sentences for language, text, _ in of_line]))
        prefix_ids = [[EOS_ID]] * len(lines)
        if prefixes:
            prefix_ids = self._ids("prefix", prefixes, self.engine.num_tgt_positions, is_target=True)
        by_line = []
        for of_line, prefix in zip(sentences, prefix_ids, strict=True):
            parts = list[Part]()
            for language, text, case in of_line:
                cuts = self._cut(next(ids), bool(language))
                if len(prefix) == 1 and self._is_own_translation(text):
                    own = "".join(c for c in text if category(c) != "Cc")
                    parts.append(Part(cuts[0] if cuts else [], None, own=own))
                else:
                    parts += [Part(cut, case, is_cut=len(cuts) > 1) for cut in cuts]
            by_line.append([replace(part, prefix=prefix[:-1]) for part in parts[:1]] + parts[1:])
        if not self._has_logged_cut and any(part.is_cut for parts in by_line for part in parts):
            self._has_logged_cut = True
            logger.warning("a sentence has more than %d subwords and is translated in parts", self.max_tokens)
        return by_line

    def _is_own_translation(self, text: str) -> bool:
        is_term = self.glossary is not None and bool(self.glossary.matches(text))
        return text != "" and needs_no_translation(text) and not is_term

    def _sentences(self, line: str, has_prefix: bool) -> list[tuple[str, str, Case | None]]:
        """The language token, the text as the model reads it, and the case of each sentence of a line."""
        text = replace_surrogates(clean_text(line))
        language = self.tokenizer.language_token(text)
        text = text.removeprefix(language)
        stays_whole = has_prefix and self.options.split_sentences is None
        sentences = self.splitter(text) if self.splitter and text and not stays_whole else [text]
        # a prefix is part of the translation as it is, so its line keeps its case
        cased = (
            (sentence, None)
            if has_prefix or self._is_own_translation(sentence)
            else self.truecase(self._visible(sentence))
            for sentence in sentences
        )
        annotate = str if self.glossary is None else self.glossary.annotate
        return [(language, annotate(usual), case) for usual, case in cased]

    def _visible(self, text: str) -> str:
        """A text without joiners, marks and spaces that no piece of the model has: spaces become plain ones."""
        text = text.replace("\u034f", "\u200b")  # another joiner, though a mark by its category
        if text.isprintable():
            return text
        known, space = self._known_characters, {"Zs": " ", "Cf": ""}
        return "".join(c if c in known else space.get(category(c), c) for c in text).strip()

    @functools.cached_property
    def _known_characters(self) -> frozenset[str]:
        return frozenset("".join(self.tokenizer.vocabulary())) | {" "}

    def truecase(self, sentence: str) -> tuple[str, Case | None]:
        """The sentence that the model translates, and the case that its translation gets; None: that of the model."""
        case = case_of(sentence)
        if case is None:
            return sentence, None
        terms = self.glossary.matches(sentence) if self.glossary is not None and is_normalized("NFC", sentence) else []
        kept = [(term.start, term.end) for term in terms]
        usual = truecase(sentence, case, self.src, self._count_tokens, kept)
        return (sentence, None) if usual is None else (usual, case)

    def _count_tokens(self, texts: list[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer.encode(texts, num_threads=1)]

    def _cut(self, ids: list[int], has_language: bool) -> list[list[int]]:
        """Returns parts of at most max_tokens, each with the language token; none ends within a term that fits."""
        start = ids[:1] if has_language else []
        body, parts = ids[len(start) : -1], list[list[int]]()
        opening, *_, closing = [*self.tokenizer.marks.values()] or (None, None)
        while body:
            size = self.max_tokens - 1 - len(start)
            if size < len(body):
                last_mark = next((n for n in reversed(range(size)) if body[n] in (opening, closing)), 0)
                size = last_mark if last_mark and body[last_mark] == opening else size
            parts.append(start + body[:size] + ids[-1:])
            body = body[size:]
        return parts

    def decode_parts(self, parts: Sequence[Part], n_best: int | None = None) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each part of `split`: those with the most terms first, and samples as drawn.

        Args:
            n_best: see `hypotheses`. The texts of the others are not made where none of them can become the best.
        """
        sampling = self.options.sampling
        searched = [part for part in parts if part.own is None]
        found = self.engine.search([part.ids for part in searched], [part.prefix for part in searched], self.options)
        terms = [self.tokenizer.terms(part.ids) for part in searched]
        if sampling is None:  # parts have equally many samples, which are joined by their numbers
            found = [some if expected else some[:n_best] for some, expected in zip(found, terms, strict=True)]
        texts = iter(self.tokenizer.decode([candidate.ids for candidates in found for candidate in candidates]))
        results = []
        for part, candidates, expected in zip(searched, found, terms, strict=True):
            hypotheses = [self._hypothesis(next(texts), each, part, expected) for each in candidates]
            if sampling is None:
                hypotheses.sort(key=lambda h: h.num_missing)
            elif sampling.mbr:
                scores = mean_chrf([h.text for h in hypotheses])
                scored = [replace(h, score=score) for h, score in zip(hypotheses, scores, strict=True)]
                hypotheses = [min(scored, key=lambda h: (h.num_missing, -h.score))]
            results.append(hypotheses)
        rest = iter(results)
        copies = 1 if sampling is None or sampling.mbr else sampling.num_samples
        return [next(rest) if part.own is None else [Hypothesis(part.own, 0.0, [])] * copies for part in parts]

    def _hypothesis(self, text: str, candidate: Candidate, part: Part, terms: list[str]) -> Hypothesis:
        num_missing = len(terms) - num_used(terms, text) if terms else 0
        cased = text if part.case is None else in_case(text, part.case, self.tgt)
        return Hypothesis(cased, candidate.score, self.tokenizer.pieces(candidate.ids), num_missing, part.is_cut)

    def join_parts(
        self, lines: Sequence[Sequence[Part]], by_part: Iterable[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each line of `split` from those of all parts, in order; see `hypotheses`."""
        rest, sampling = iter(by_part), self.options.sampling
        results = []
        for line in lines:
            parts = [next(rest) for _ in line]
            if not parts or sampling is None:
                joined = best_combinations(parts, self.options.num_beams)
            else:
                joined = [_join(samples) for samples in zip(*parts, strict=True)]
                if sampling.mbr:
                    joined = [replace(h, score=h.score / len(parts)) for h in joined]
            results.append(joined)
        return results

    def log_probs(self, src: Sequence[str], tgt: Sequence[str]) -> "list[ForcedScore]":
        """Scores each line of `tgt` as a translation of the same line of `src`, on torch.

        Raises:
            TypeError: `src` or `tgt` is no list of str.
            ValueError: they have different numbers of lines.
            DataError: a source has more than max_tokens pieces, or a target more pieces than learned positions.
        """
        require_lines(src, tgt)
        src_ids = self._ids("line", src, self.max_tokens)
        tgt_ids = self._ids("target", tgt, self.torch.num_tgt_positions, is_target=True)
        return self.torch.log_probs(src_ids, tgt_ids, self.options.alpha)

    def attention_maps(self, src: Sequence[str], tgt: Sequence[str] | None = None) -> "list[AttentionMaps]":
        """Returns the attention weights of each line of `src` and its translation `tgt`, by default the model's own.

        Raises:
            TypeError: `src` or `tgt` is no list of str.
            ValueError: they have different numbers of lines.
            DataError: a source has more than max_tokens pieces, or a target more than the model can write.
        """
        require_lines(src, tgt)
        src_ids = self._ids("line", src, self.max_tokens)
        if tgt is None:
            found = self.torch.search(src_ids, [[] for _ in src_ids], self.options)
            tgt_ids = [candidates[0].ids for candidates in found]
        else:
            limit = min(self.max_tokens + EXTRA_LENGTH, self.torch.num_tgt_positions)
            tgt_ids = self._ids("target", tgt, limit, is_target=True)
        return self.torch.attention_maps(src_ids, tgt_ids)

    def _ids(self, name: str, lines: Sequence[str], limit: int, is_target: bool = False) -> list[list[int]]:
        """Encodes lines; raises a DataError with the beginning of the first line of more than `limit` pieces."""
        encoded = self.tokenizer.encode([clean_text(line) for line in lines], target=is_target, num_threads=1)
        for line, ids in zip(lines, encoded, strict=True):
            if len(ids) > limit:
                raise DataError(f"{name} {line[:40]!r} … has {len(ids)} subwords, the model supports {limit}")
        return encoded


def require_lines(lines: Sequence[str], others: Sequence[str] | None = None) -> None:
    """Checks that an argument is a list of lines, and `others` as many.

    Raises:
        TypeError: one of them is no list of str, or a single str or bytes, whose characters would count as lines.
        ValueError: there are not as many others as lines.
    """
    for argument in (lines, others or []):
        if isinstance(argument, str | bytes):
            raise TypeError(f"expected a list of lines, got a single {type(argument).__name__}: {argument[:20]!r}")
        for number, line in enumerate(argument, start=1):
            if not isinstance(line, str):
                raise TypeError(f"line {number} is of the type {type(line).__name__}, expected str")
    if others is not None and len(others) != len(lines):
        raise ValueError(f"expected {len(lines)} lines, got {len(others)}")


def best_combinations(parts: Iterable[Sequence[Hypothesis]], size: int) -> list[Hypothesis]:
    """Joins one hypothesis of each part; returns the `size` best, best first.

    The best one lacks the fewest terms, and then has the largest sum of scores.
    """
    best = [Hypothesis("", 0.0, [])]
    for part in parts:
        longer = [_join([before, hypothesis]) for before in best for hypothesis in part]
        best = sorted(longer, key=lambda joined: (joined.num_missing, -joined.score))[:size]
    return best


def _join(parts: Sequence[Hypothesis]) -> Hypothesis:
    text = joined_sentences([part.text for part in parts])
    score, num_missing = sum(part.score for part in parts), sum(part.num_missing for part in parts)
    pieces, is_cut = [piece for part in parts for piece in part.pieces], any(part.is_cut for part in parts)
    return Hypothesis(text, score, pieces, num_missing, is_cut)


def pairwise_chrf() -> Any:
    """Imports and returns fastchrf's function: [hypotheses], [references] -> [chrF of each with each], 0 to 100.

    Raises:
        MtxError: fastchrf is not installed.
    """
    try:
        import fastchrf
    except ImportError:
        raise MtxError("Minimum Bayes risk decoding: fastchrf is not installed", install_command("fastchrf")) from None
    return fastchrf.pairwise_chrf


def mean_chrf(samples: Sequence[str]) -> list[float]:
    """Returns for each sample its mean chrF, 0 to 100, with all samples as references, itself included.

    This is the utility of Minimum Bayes risk decoding (`Sampling.mbr`): the samples represent the model's
    distribution, and the one with the highest mean utility against all of them has the least expected loss under the
    model (Kumar & Byrne 2004; with samples Eikema & Aziz 2020). The utility is chrF2 of sentences, as sacreBLEU
    computes it by default; fastchrf (Vamvas & Sennrich 2024) does so faster. Equal samples are compared once, and count
    as often as they were drawn.
    """
    counts = Counter(samples)
    (chrf,) = pairwise_chrf()([[*counts]], [[*counts]])
    means = np.array(chrf) @ [*counts.values()] / len(samples)
    by_text = dict(zip(counts, means.tolist(), strict=True))
    return [by_text[sample] for sample in samples]
