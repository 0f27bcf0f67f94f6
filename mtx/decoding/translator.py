"""Translates lines of text with any engine, in the order of the input: the only way from text to its translation.

Codes out -> sentences -> case and terms -> token ids -> search -> text -> codes back into each part -> joined.
Each input line gives exactly one output line: line breaks inside a line become spaces, an empty line stays empty, and a
line that is longer than the model's limit, or has several sentences where the model knows only single ones, is
translated in parts. Placeholders, addresses, markup and emoji of a line (`mtx.data.inline_codes`), its indentation,
bullet and number are in its translation too, each once. A sentence in capitals or in title case is translated as it is
usually written, if the tokenizer knows it better so, and its translation gets that case (`mtx.data.letter_case`). A
sentence without a letter is its own translation (`needs_no_translation`). This module imports no engine.
"""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from unicodedata import category, is_normalized

import numpy as np

from mtx.data.cleaning import clean_text
from mtx.data.glossary import Glossary, num_used
from mtx.data.inline_codes import needs_no_translation
from mtx.data.letter_case import Case, case_of, in_case, truecase
from mtx.data.markup import Marked, Placed, Tag, bare, codes_of, has_letters, is_choice, mark_up, raw, text_of
from mtx.data.sentence_splitter import MOSTLY_SINGLE, lead_pattern, sentence_splitter, space_between
from mtx.data.tokenizer import EOS_ID, UNK_ID, Tokenizer
from mtx.decoding.codes import divided, link_pieces, mark_up_line, sentences, units
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
from mtx.decoding.placing import Link, put_back
from mtx.errors import DataError, MtxError, UsageError
from mtx.formatting import install_command

if TYPE_CHECKING:
    from mtx.decoding.scoring import AttentionMaps, ForcedScore
    from mtx.decoding.torch_engine import TorchEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hypothesis:
    """One translation: text without line breaks, score, and pieces.

    Attributes:
        marked: the text, and the codes in it.
        score: the log-probability after the length penalty; with `Sampling.mbr` the mean chrF against all samples.
        num_missing: the number of glossary terms that it should use and does not.
        is_cut: whether a sentence was too long for the model and was translated in parts.
    """

    marked: Marked
    score: float
    pieces: list[str]
    num_missing: int = 0
    is_cut: bool = False

    @property
    def text(self) -> str:
        """The text with its codes."""
        return raw(self.marked)


@dataclass(frozen=True)
class Part:
    """A unit of translation, a sentence or a part of it, or what separates them.

    Attributes:
        ids: its token ids, with `</s>`.
        case: the letter case of its translation.
        prefix: the target ids that its translations must begin with, without `</s>`.
        is_cut: whether it is a part of a sentence that is too long for the model.
        own: its translation, if it is itself.
        text: its text without codes.
        tags: its codes.
        is_next: whether it follows a sentence, from which a space separates it in most languages.
        read: its text as the model reads it, without terms of a glossary.
    """

    ids: list[int]
    case: Case | None
    prefix: list[int] = field(default_factory=list)
    is_cut: bool = False
    own: Marked | None = None
    text: str = ""
    tags: Sequence[Placed] = ()
    is_next: bool = False
    read: str = ""


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
        codes: what the model has learned to read and write like words; it does not see other codes.
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
        self._lead = lead_pattern(self.src)
        self.codes = frozenset(info.get("codes", ()))
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
        return self._hypotheses(lines, prefixes, n_best)

    def translate_marked(self, segments: Sequence[Marked]) -> list[Marked]:
        """Returns the translations of segments of documents, each with all tags of its source."""
        return [hypotheses[0].marked for hypotheses in self._hypotheses(segments, n_best=1)]

    def _hypotheses(
        self, lines: Sequence[str | Marked], prefixes: Sequence[str] | None = None, n_best: int | None = None
    ) -> list[list[Hypothesis]]:
        parts = self.split(lines, prefixes)
        return self.join_parts(parts, self.decode_parts([part for line in parts for part in line], n_best))

    def split(self, lines: Sequence[str | Marked], prefixes: Sequence[str] | None = None) -> list[list[Part]]:
        """Returns the parts of each line or segment, of at most max_tokens; an empty line has none. See `hypotheses`.

        The language token of a line (`>>fra<<`, of imported multilingual models) goes before each of its parts.
        """
        prefix_ids = [[EOS_ID]] * len(lines)
        if prefixes:
            prefix_ids = self._ids("prefix", prefixes, self.engine.num_tgt_positions, is_target=True)
        by_line = [self._sentences(line, len(prefix) > 1) for line, prefix in zip(lines, prefix_ids, strict=True)]
        is_split = any(part.is_next for _, parts in by_line for part in parts)
        if is_split and self.options.split_sentences is None and not self._has_logged_split:
            self._has_logged_split = True
            logger.info(
                "translating the sentences of a line one by one, since this model was trained on single sentences "
                "(--no-split-sentences keeps lines whole)"
            )
        annotate = str if self.glossary is None else self.glossary.annotate
        texts = [language + annotate(part.read) for language, parts in by_line for part in parts]
        ids = iter(self.tokenizer.encode(texts))
        results = []
        for (language, of_line), prefix in zip(by_line, prefix_ids, strict=True):
            parts = [part for whole in of_line for part in self._parts(whole, next(ids), bool(language))]
            results.append([replace(part, prefix=prefix[:-1]) for part in parts[:1]] + parts[1:])
        if not self._has_logged_cut and any(part.is_cut for parts in results for part in parts):
            self._has_logged_cut = True
            logger.warning("a sentence has more than %d subwords and is translated in parts", self.max_tokens)
        return results

    def _is_own_translation(self, text: str) -> bool:
        is_term = self.glossary is not None and bool(self.glossary.matches(text))
        return needs_no_translation(text) and not is_term

    def _sentences(self, line: str | Marked, has_prefix: bool) -> tuple[str, list[Part]]:
        """The language token of a line, and its parts, still without ids.

        A prefix is part of the translation as it is, so its line keeps its codes and its case.
        """
        marked = mark_up_line(line, has_prefix) if isinstance(line, str) else line
        language = ""
        if isinstance(first := marked[0], str):
            language = self.tokenizer.language_token(first.lstrip())
            marked = [first.lstrip().removeprefix(language).lstrip(), *marked[1:]] if language else marked
        may_split = not has_prefix or self.options.split_sentences
        split = self.splitter if self.splitter and may_split else lambda text: [text]
        parts = list[Part]()
        is_kept = not has_prefix and is_choice(marked)
        for unit in [marked] if has_prefix or is_kept else units(marked, self._lead):
            if self.codes and has_letters(unit):
                unit = [part.raw if isinstance(part, Tag) and part.raw in self.codes else part for part in unit]
            text, tags = bare(unit) if any(isinstance(part, Tag) for part in unit) else (clean_text(raw(unit)), [])
            if is_kept or not text.strip():
                parts += [Part([], None, own=unit)] * bool(raw(unit))
                continue
            for number, (sentence, codes) in enumerate(sentences(text, tags, split)):
                read, case, own = sentence, None, None
                if not has_prefix and self._is_own_translation(sentence):
                    own = unit if sentence == text else put_back(codes, sentence, sentence, ())
                elif not has_prefix:
                    read, case = self.truecase(self._visible(sentence))
                parts.append(Part([], case, own=own, text=sentence, tags=codes, is_next=number > 0, read=read))
        return language, parts

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

    def _parts(self, whole: Part, ids: list[int], has_language: bool) -> list[Part]:
        """The parts of a sentence: several, with a share of its text and codes each, if it is too long."""
        cuts = [ids[: self.max_tokens]] if whole.own else self._cut(ids, has_language)
        starts = [len(whole.text) * done // len(ids) for done in accumulate(map(len, cuts[:-1]), initial=0)]
        texts = [whole.text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
        return [
            replace(whole, ids=cut, is_cut=len(cuts) > 1, text=text, tags=tags, is_next=whole.is_next or start > 0)
            for cut, start, (text, tags) in zip(cuts, starts, divided(texts, starts, whole.tags), strict=True)
        ]

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
        searched = [part for part in parts if not part.own]
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
        rest = iter(self._put_back(searched, results))
        copies = 1 if sampling is None or sampling.mbr else sampling.num_samples
        return [[Hypothesis(part.own, 0.0, [])] * copies if part.own else next(rest) for part in parts]

    def _put_back(self, parts: Sequence[Part], found: Sequence[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """The hypotheses of parts with their codes, at the words that the cross attention links."""
        pairs = [(part, each) for part, hypotheses in zip(parts, found, strict=True) for each in hypotheses]
        rows = [
            row
            for row, (part, each) in enumerate(pairs)
            if any(0 < tag.at < len(part.text) for tag in part.tags)
            and part.text != each.text != ""
            and not part.is_cut
        ]
        src = self.tokenizer.encode([pairs[row][0].read for row in rows])
        ids = self.tokenizer.models.vocabulary
        tgt = [[ids.get(piece, UNK_ID) for piece in pairs[row][1].pieces] for row in rows]
        links = dict[int, list[Link]]()
        attentions = self.engine.cross_attention(src, tgt) if rows else []
        for row, read, attention in zip(rows, src, attentions, strict=True):
            part, each = pairs[row]
            links[row] = link_pieces(attention, (self.tokenizer.pieces(read), part.text), (each.pieces, each.text))
        whole = (
            replace(each, marked=self._marked(part, each, links.get(row, ()))) for row, (part, each) in enumerate(pairs)
        )
        return [[next(whole) for _ in hypotheses] for hypotheses in found]

    def _marked(self, part: Part, hypothesis: Hypothesis, links: Sequence[Link]) -> Marked:
        """A translation with all codes of its source; where it lacks a learned one, they are placed in proportion."""
        src, tags, tgt = part.text, part.tags, hypothesis.text
        if self.codes and not (part.prefix or part.is_cut) and codes_of(src) != codes_of(tgt):
            src, tags = bare(mark_up(put_back(tags, src, src, ())))
            tgt, links = bare(mark_up([tgt]))[0], ()
        marked = put_back(tags, src, tgt, links)
        return mark_up(marked) if self.codes else marked

    def _hypothesis(self, text: str, candidate: Candidate, part: Part, terms: list[str]) -> Hypothesis:
        num_missing = len(terms) - num_used(terms, text) if terms else 0
        cased = text if part.case is None else in_case(text, part.case, self.tgt)
        return Hypothesis([cased], candidate.score, self.tokenizer.pieces(candidate.ids), num_missing, part.is_cut)

    def join_parts(
        self, lines: Sequence[Sequence[Part]], by_part: Iterable[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each line of `split` from those of all parts, in order; see `hypotheses`."""
        rest, sampling = iter(by_part), self.options.sampling
        results = []
        for line in lines:
            parts = [next(rest) for _ in line]
            if not parts or sampling is None:
                joined = best_combinations(line, parts, self.options.num_beams)
            else:
                joined = [best_combinations(line, [[each] for each in some], 1)[0] for some in zip(*parts, strict=True)]
                if sampling.mbr:
                    num_texts = sum(part.text != "" for part in line) or 1
                    joined = [replace(h, score=h.score / num_texts) for h in joined]
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


def best_combinations(parts: Sequence[Part], found: Sequence[Sequence[Hypothesis]], size: int) -> list[Hypothesis]:
    """Joins one hypothesis of each part; returns the `size` best, best first.

    The best one lacks the fewest terms, and then has the largest sum of scores.
    """
    best = [Hypothesis([], 0.0, [])]
    for part, hypotheses in zip(parts, found, strict=True):
        longer = [_join(before, hypothesis, part.is_next) for before in best for hypothesis in hypotheses]
        best = sorted(longer, key=lambda joined: (joined.num_missing, -joined.score))[:size]
    return best


def _join(one: Hypothesis, other: Hypothesis, is_next: bool) -> Hypothesis:
    space = space_between(text_of(one.marked), text_of(other.marked)) if is_next else ""
    return Hypothesis(
        [*one.marked, space, *other.marked],
        one.score + other.score,
        one.pieces + other.pieces,
        one.num_missing + other.num_missing,
        one.is_cut or other.is_cut,
    )


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
