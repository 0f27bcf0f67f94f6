"""Translates lines of text with any engine, in the order of the input: the only way from text to its translation.

Codes out -> sentences -> case and terms -> token ids -> search -> text -> codes back into each part -> joined.
Each input line gives exactly one output line: line breaks inside a line become spaces, an empty line stays empty, and a
line that is longer than the model's limit, or has several sentences where the model knows only single ones, is
translated in parts. Placeholders, addresses, markup and emoji of a line (`mtx.data.markup`), its indentation,
bullet and number are in its translation too, each once. A sentence in capitals or in title case is translated as it is
usually written, if the tokenizer knows it better so, and its translation gets that case (`mtx.data.letter_case`). A
sentence without a letter is its own translation (`needs_no_translation`). This module imports no engine.
"""

import copy
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, chain, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack
from unicodedata import category, is_normalized, normalize

import numpy as np

from mtx.data.glossary import Glossary, Match, missing_terms
from mtx.data.letter_case import Case, case_of, in_case, truecase
from mtx.data.markup import (
    Marked,
    Tag,
    Tags,
    bare,
    clean_text,
    codes_of,
    has_letters,
    is_choice,
    mark_up,
    needs_no_translation,
    raw,
    text_of,
)
from mtx.data.sentence_splitter import MOSTLY_SINGLE, lead_pattern, sentence_splitter, space_between
from mtx.data.sentencepiece_models import Encoded
from mtx.data.tokenizer import PLAIN, UNK_ID, Frame, Tokenizer
from mtx.decoding.options import (
    EXTRA_LENGTH,
    Candidate,
    Engine,
    EngineName,
    Placement,
    Precision,
    Sampling,
    SearchOptions,
    penalty,
)
from mtx.decoding.tag_placement import divided, mark_up_line, put_back, sentences, units
from mtx.decoding.word_alignment import Link, join_links, link_pieces, with_spaces, word_numbers
from mtx.errors import DataError, MtxError, UsageError
from mtx.formatting import install_command
from mtx.machine import num_cores
from mtx.storage.model_description import language_pairs
from mtx.storage.run_files import find_model, require_models
from mtx.storage.text_files import Lines, unlike_lines

if TYPE_CHECKING:
    from mtx.decoding.torch_engine import AttentionMaps, ForcedScore, TorchEngine
    from mtx.scoring.quality import Advice, QualityMap

logger = logging.getLogger(__name__)
_ALIGNED_AT_ONCE = 256  # parts whose attention is in memory


@dataclass(frozen=True)
class Hypothesis:
    """One translation: text without line breaks, score, and pieces.

    Attributes:
        marked: the text, and the codes in it.
        score: the log-probability after the length penalty; with `Sampling.mbr` the mean chrF against all samples.
        num_missing: the number of glossary terms that it should use and does not.
        is_cut: whether a sentence was too long for the model and was translated in parts.
        parts: the parts of the line, each with its own hypothesis.
        translator: that of the line; None for one of its parts.
    """

    marked: Marked
    score: float
    pieces: list[str]
    num_missing: int = 0
    is_cut: bool = False
    parts: "tuple[tuple[Part, Hypothesis], ...]" = field(default=(), repr=False)
    translator: "Translator | None" = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The text with its codes."""
        return raw(self.marked)

    @property
    def source(self) -> "Sequence[str | Tag]":
        """The line with its codes; empty if its words cannot be numbered."""
        return self.parts[0][0].line if self.parts else ()

    @property
    def quality(self) -> float | None:
        """The expected chrF2, 0 to 100; None without a map for this search, or for text unlike that of the map."""
        return self._estimate[0]

    @property
    def advice(self) -> "Advice | None":
        """What to do with it: use, look or redo, by the quality of the worst part; look, not use, if suspicious."""
        return self._estimate[1]

    @cached_property
    def _estimate(self) -> "tuple[float | None, Advice | None]":
        translator = self.translator
        parts = [part for part, _ in self.parts if not part.fixed_translation]
        is_searched = parts and not any(part.prefix for part in parts)
        quality_map = translator.quality_map if translator and is_searched else None
        if not translator or not quality_map:
            return None, None
        from mtx.scoring.suspicion import suspicion

        quality, advice = quality_map.estimate(translator.features(self))
        source = " ".join(part.text for part in parts)
        if advice == "use" and suspicion(source, self.text):
            advice = "look"
        return quality, advice


Hypotheses = list[Hypothesis]  # of a line or a part, best first


class Part(NamedTuple):
    """A unit of translation, a sentence or a part of it, or what separates them.

    Attributes:
        ids: its token ids, in its frame.
        case: the letter case of its translation.
        frame: the ids around its text.
        prefix: the ids of the text that its translations must begin with.
        is_cut: whether it is a part of a sentence that is too long for the model.
        fixed_translation: its translation, if it needs no search.
        text: its text without codes.
        tags: its codes.
        follows_sentence: whether it follows a sentence, from which a space separates it in most languages.
        model_text: its text as the model reads it, without terms of a glossary.
        line: the line that it is a part of, with its codes; empty if its words cannot be numbered.
    """

    ids: list[int]
    case: Case | None
    frame: Frame = PLAIN
    prefix: Sequence[int] = ()
    is_cut: bool = False
    fixed_translation: Marked | None = None
    text: str = ""
    tags: Tags = ()
    follows_sentence: bool = False
    model_text: str = ""
    line: Sequence[str | Tag] = ()


class LoadOptions(TypedDict, total=False):
    """What `Translator.load` takes: a direction, and the fields of `SearchOptions` and of `Placement`."""

    to: str | None
    src: str | None
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
        info: of the model's directory: src and tgt, or directions, max_tokens, and perhaps beam_size, length_penalty
            and multi_sentence_share. An imported model without the last one counts as trained on single sentences, like
            nearly all parallel text.
        load_torch: opens the same model with torch, which computes log-probabilities and attention maps; None if that
            is the engine.

    Attributes:
        directions: source and target of each.
        is_multilingual: whether one of them must be chosen, see `to`; pieces such as >>deu<< may add others to the one
            direction of a published model.
        max_tokens: the longest source, in pieces with `</s>`, that is translated as a whole.
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
        self.engine = engine
        self.tokenizer = tokenizer
        self.options = (options or SearchOptions()).with_model_defaults(info)
        pairs = language_pairs(info)
        self.is_multilingual = len(pairs) > 1
        self._languages = None if self.is_multilingual else pairs[0]
        named_directions = [(pairs[0][0], name.strip("<>")) for name in tokenizer.models.languages]
        self.directions = [*dict.fromkeys([*pairs, *named_directions])]
        self.max_tokens: int = info["max_tokens"]
        self._is_split = self.options.split_sentences
        if self._is_split is None:
            self._is_split = info.get("multi_sentence_share", 0.0) < MOSTLY_SINGLE
        self.glossary: Glossary | None = None
        self._directory: Path | None = None
        self._load_torch = load_torch
        self._opening = threading.Lock()
        self.codes = frozenset(info.get("codes", ()))
        self._known_characters = {" ", *"".join(tokenizer.vocabulary())}
        self._log_once = cache(logger.log)
        if self.options.sampling and self.options.sampling.mbr:
            pairwise_chrf()  # if it is missing, that is known before anything is translated

    @classmethod
    def load(cls, model: str | Path, **options: Unpack[LoadOptions]) -> "Translator":
        """Loads a model directory, the model of a run directory, an export, or an ensemble A+B of several models.

        The options are those of `to`, and the fields of `SearchOptions` and of `Placement`; `mtx.decoding.load` chooses
        the engine.

        Raises:
            UsageError: there is no such model, direction, engine, device or precision.
            TypeError, ValueError: another argument is unknown, of another type, or out of its range.
            DamagedFileError: a file of the model is missing or damaged.
        """
        from mtx.decoding.load import open_engine, open_torch

        values: dict[str, Any] = dict(options)
        tgt = values.pop("to", None)
        src = values.pop("src", None)
        search = SearchOptions(**{name: values.pop(name) for name in vars(SearchOptions()) if name in values})
        placement = Placement(**values)
        placement = replace(placement, threads=placement.threads and min(placement.threads, num_cores()))
        engine = open_engine(model, search, placement)
        load_torch = cache(lambda: open_torch(model, replace(placement, engine="torch", precision="tf32")))
        translator = cls(engine, engine.tokenizer, engine.info, search, None if engine.name == "torch" else load_torch)
        models = require_models(model)
        if len(models) == 1:
            translator._directory = find_model(models[0])
        return translator.to(tgt, src) if tgt or src else translator

    def to(self, tgt: str | None, src: str | None = None) -> "Translator":
        """This translator for one of its directions, with the same engine and glossary.

        Args:
            src: may be None if only one language translates into `tgt`.

        Raises:
            UsageError: there is no such direction, or several.
        """
        matching = [pair for pair in self.directions if tgt in (None, pair[1]) and src in (None, pair[0])]
        if len(matching) != 1:
            arguments = []
            if src:
                arguments.append(f"--from {src}")
            if tgt:
                arguments.append(f"--to {tgt}")
            problem = "several directions" if matching else "no such direction"
            choices = matching or self.directions
            raise UsageError(
                f"{' '.join(arguments)}: {problem}; the model has {in_words(choices)}",
                f"--from {choices[0][0]} --to {choices[0][1]}",
            )
        if matching[0] == self._languages:
            return self
        view = copy.copy(self)
        view._languages = matching[0]
        for name in ("frame", "splitter"):
            view.__dict__.pop(name, None)
        return view

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target; UsageError if the model has several directions and none was chosen."""
        if not self._languages:
            src, tgt = self.directions[0]
            raise UsageError(
                f"choose a direction of the model; it has {in_words(self.directions)}",
                f"--to {tgt} --from {src}, or in Python to={tgt!r}, src={src!r}",
            )
        return self._languages

    @property
    def src(self) -> str:
        """The source language."""
        return self.languages[0]

    @property
    def tgt(self) -> str:
        """The target language."""
        return self.languages[1]

    @cached_property
    def frame(self) -> Frame:
        """The ids around a source and before a target of these languages."""
        return self.tokenizer.frame(*self.languages)

    @cached_property
    def splitter(self) -> Callable[[str], list[str]] | None:
        """Splits a line into sentences, whose translations are joined again; None leaves lines whole.

        If the model decided for it (`split_sentences=None`), splitting is logged once, and a line with a prefix, which
        may be that of several sentences, stays whole.
        """
        return sentence_splitter(self.src) if self._is_split else None

    @cached_property
    def torch(self) -> "TorchEngine":
        """The model for torch; all views share it, since `load_torch` opens it once."""
        with self._opening:
            return self._load_torch() if self._load_torch else self.engine  # type: ignore[return-value]

    def use_glossary(self, glossary: Glossary | None) -> None:
        """Use the terms of a glossary from now on; None uses none.

        Raises:
            UsageError: if the model has not learned terms.
        """
        if glossary and not self.tokenizer.marks:
            raise UsageError(
                "this model cannot use a glossary, because it has not learned terms", "mtx train ... data.terms=auto"
            )
        self.glossary = glossary

    def translate(self, lines: Lines, prefixes: Lines | None = None) -> list[str]:
        """Returns one translation per line, in order; an empty line gives an empty line.

        Raises:
            TypeError, ValueError, DataError: see `hypotheses`.
        """
        unscored = copy.copy(self)
        unscored.options = replace(self.options, has_scores=False)
        return [hypotheses[0].text for hypotheses in unscored.hypotheses(lines, prefixes, n_best=1)]

    def hypotheses(self, lines: Lines, prefixes: Lines | None = None, n_best: int | None = None) -> list[Hypotheses]:
        """Returns the finished hypotheses of each line: up to beam_size, best first.

        With `Sampling` they are the samples. Those of a line that is translated in parts are the best combinations of
        the hypotheses of its parts; a sample is the samples of its parts with the same number. Its score is the sum of
        the scores of the parts, and with `Sampling.mbr`, which leaves each part one hypothesis, their mean. Score and
        pieces of a sentence in capitals or in title case are those of the sentence as it is usually written.
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
        if problem := unlike_lines(lines):
            self._log_once(logging.WARNING, problem)
        return self._hypotheses(lines, prefixes, n_best)

    @cached_property
    def quality_maps(self) -> "Mapping[str, QualityMap]":
        """Those of the model directory, by direction; plain text does not need them."""
        from mtx.scoring import quality

        return quality.load(self._directory) if self._directory else {}

    @property
    def quality_map(self) -> "QualityMap | None":
        """What estimates the quality of translations in this direction; None without one for these search options."""
        quality_map = self.quality_maps.get("-".join(self.languages))
        if not quality_map:
            return None
        options = self.options
        is_fitted = (options.num_beams, options.alpha) == (quality_map.beam_size, quality_map.length_penalty)
        if is_fitted and not (options.sampling or self.glossary):
            if not quality_map.region:
                self._log_once(
                    logging.WARNING,
                    "the estimate of quality is too high for text unlike the validation text, as an earlier mtx fitted "
                    "it; fit it again: mtx evaluate MODEL --src FILE --ref FILE --fit-quality",
                )
            return quality_map
        self._log_once(
            logging.INFO,
            f"no quality: it is known for beam size {quality_map.beam_size}, length penalty "
            f"{quality_map.length_penalty:g}, without sampling and glossary",
        )
        return None

    def features(self, hypothesis: Hypothesis) -> list[tuple[int, list[float]]]:
        """The number of target tokens and the features of each searched part of a hypothesis, see `QualityMap`."""
        from mtx.scoring.quality import features

        rows = []
        for part, result in hypothesis.parts:
            if part.fixed_translation:
                continue
            pieces = result.pieces[self.tokenizer.num_forced :]
            log_prob = result.score * penalty(len(pieces), self.options.alpha)
            rows.append((len(pieces), features(part.model_text, len(part.ids), pieces, log_prob)))
        return rows

    def translate_marked(self, segments: Sequence[Marked]) -> Hypotheses:
        """Returns the best hypothesis of each segment of a document, with all tags of its source."""
        return [hypotheses[0] for hypotheses in self._hypotheses(segments, None, 1)]

    def _hypotheses(
        self, lines: Sequence[str | Marked], prefixes: Lines | None, n_best: int | None
    ) -> list[Hypotheses]:
        parts_by_line = self.split(lines, prefixes)
        parts = [part for line_parts in parts_by_line for part in line_parts]
        return self.join_parts(parts_by_line, self.decode_parts(parts, n_best))

    def split(self, lines: Sequence[str | Marked], prefixes: Lines | None = None) -> list[list[Part]]:
        """Returns the parts of each line or segment, of at most max_tokens; an empty line has none. See `hypotheses`.

        A line of an imported model may name its language at its start (`>>fra<<`); it then has the frame of that.
        """
        prefix_ids: Sequence[Sequence[int]] = [()] * len(lines)
        if prefixes:
            encoded = self._ids("prefix", prefixes, self.engine.num_tgt_positions, is_target=True)
            prefix_ids = [ids[len(self.frame.before_tgt) : -1] for ids in encoded]
        sentences_by_line = list(map(self._sentences, lines, prefix_ids))
        all_sentences = [sentence for line_sentences in sentences_by_line for sentence in line_sentences]
        if self.options.split_sentences is None and any(sentence.follows_sentence for sentence in all_sentences):
            self._log_once(
                logging.INFO,
                "translating the sentences of a line one by one, since this model was trained on single sentences "
                "(--no-split-sentences keeps lines whole)",
            )
        annotate = self.glossary.annotate if self.glossary else str
        ids_of_sentences = iter(self.tokenizer.encode_text(annotate(sentence.model_text) for sentence in all_sentences))
        parts_by_line = []
        for line_sentences in sentences_by_line:
            line_parts = list[Part]()
            for sentence in line_sentences:
                line_parts += self._parts(sentence, next(ids_of_sentences))
            parts_by_line.append(line_parts)
        if any(part.is_cut for line_parts in parts_by_line for part in line_parts):
            self._log_once(
                logging.WARNING, f"a sentence has more than {self.max_tokens} subwords and is translated in parts"
            )
        return parts_by_line

    def _terms(self, text: str) -> list[Match]:
        return self.glossary.matches(text) if self.glossary else []

    def _sentences(self, line: str | Marked, prefix: Sequence[int]) -> list[Part]:
        """The parts of a line, still without ids.

        A prefix is part of the translation as it is, so its line keeps its codes and its case.
        """
        lead = lead_pattern(self.src)
        marked = source = mark_up_line(line, None if prefix else lead) if isinstance(line, str) else line
        if isinstance(line, str) and len(line.split()) != len(raw(marked).split()):
            source = []  # words cannot be numbered: some control characters have become spaces
        frame = self.frame
        if isinstance(marked[0], str):
            frame, text = self.tokenizer.named_frame(marked[0].lstrip(), frame)
            if frame is not self.frame:
                source = [Tag(marked[0].removesuffix(text)), text, *marked[1:]]
                marked = [text.lstrip(), *marked[1:]]
        split = self.splitter if not prefix or self.options.split_sentences else None
        parts = list[Part]()
        is_copied = not prefix and is_choice(marked)
        for unit in [marked] if prefix or is_copied else units(marked, lead):
            if self.codes and has_letters(unit):
                unit = self._as_read(unit)
            unit_text = raw(unit)
            if not unit_text:
                continue
            if any(isinstance(part, Tag) for part in unit):
                text, tags = bare(unit)
            else:
                text = clean_text(unit_text)
                tags = []
            if is_copied or not text.strip() or lead.fullmatch(unit_text):
                parts.append(Part([], None, frame, fixed_translation=unit, line=source))
                continue
            for number, (sentence, sentence_tags) in enumerate(sentences(text, tags, split)):
                model_text = sentence
                case = None
                fixed_translation = None
                if not prefix and needs_no_translation(sentence) and not self._terms(sentence):
                    is_whole_unit = sentence == text
                    fixed_translation = unit if is_whole_unit else put_back(sentence_tags, sentence, sentence, ())
                elif not prefix:
                    model_text, case = self.truecase(self._visible(sentence))
                part = Part(
                    [],
                    case,
                    frame,
                    prefix=prefix if number == 0 else (),
                    fixed_translation=fixed_translation,
                    text=sentence,
                    tags=sentence_tags,
                    follows_sentence=number > 0,
                    model_text=model_text,
                    line=source,
                )
                parts.append(part)
        return parts

    def _as_read(self, marked: Sequence[str | Tag]) -> Marked:
        """What the model reads: the codes that it has learned are text."""
        return [part.raw if isinstance(part, Tag) and part.raw in self.codes else part for part in marked]

    def _visible(self, text: str) -> str:
        """A text without joiners, marks and spaces that no piece of the model has: spaces become plain ones."""
        text = text.replace("\u034f", "\u200b")  # another joiner, though a mark by its category
        if text.isprintable():
            return text
        replacements = {"Zs": " ", "Cf": ""}  # by the category of Unicode
        return "".join(c if c in self._known_characters else replacements.get(category(c), c) for c in text).strip()

    def truecase(self, sentence: str) -> tuple[str, Case | None]:
        """The sentence that the model translates, and the case that its translation gets; None: that of the model."""
        case = case_of(sentence)
        if not case:
            return sentence, None
        terms = self._terms(sentence) if is_normalized("NFC", sentence) else []
        unchanged = [term[:2] for term in terms]
        usual = truecase(
            sentence, case, self.src, lambda texts: list(map(len, self.tokenizer.encode(texts))), unchanged
        )
        return (sentence, None) if usual is None else (usual, case)

    def count_terms(self, source: str, translation: str) -> tuple[int, list[str]]:
        """The number of glossary terms in a source, and those of their translations that `translation` does not use."""
        usual, case = self.truecase(source)
        terms = [match.tgt for match in self._terms(normalize("NFC", clean_text(usual)))]
        expected = [in_case(term, case, self.tgt) for term in terms] if case else terms
        return len(terms), missing_terms(expected, clean_text(translation))

    def _parts(self, sentence: Part, ids: list[int]) -> list[Part]:
        """The parts of a sentence: several, with a share of its text and codes each, if it is too long."""
        frame = sentence.frame
        num_frame_ids = len(frame.before_src) + len(frame.after_src)
        max_size = self.max_tokens - num_frame_ids
        cuts = [ids[:max_size]] if sentence.fixed_translation else self._cut(ids, max_size)
        sizes = (len(cut) + num_frame_ids for cut in cuts[:-1])
        starts = [
            len(sentence.text) * num_preceding // (len(ids) + num_frame_ids)
            for num_preceding in accumulate(sizes, initial=0)
        ]
        texts = [sentence.text[start:stop] for start, stop in pairwise([*starts, None])]
        return [
            sentence._replace(
                ids=[*frame.before_src, *part_ids, *frame.after_src],
                is_cut=len(cuts) > 1,
                text=text,
                tags=tags,
                follows_sentence=sentence.follows_sentence or start > 0,
                prefix=() if start else sentence.prefix,
            )
            for part_ids, start, (text, tags) in zip(cuts, starts, divided(texts, starts, sentence.tags), strict=True)
        ]

    def _cut(self, ids: list[int], size: int) -> Encoded:
        """Returns parts of at most `size` ids of text; none ends within a term that fits."""
        parts = Encoded()
        opening, *_, closing = [*self.tokenizer.marks.values()] or (None, None)
        while len(ids) > size:
            last_mark = next((n for n in reversed(range(size)) if ids[n] in (opening, closing)), 0)
            is_within_term = ids[last_mark] == opening
            num_ids = last_mark if is_within_term and last_mark > 0 else size  # a term from the start on does not fit
            parts.append(ids[:num_ids])
            ids = ids[num_ids:]
        return [*parts, ids]

    def decode_parts(self, parts: Sequence[Part], n_best: int | None = None) -> list[Hypotheses]:
        """Returns the hypotheses of each part of `split`: those with the most terms first, and samples as drawn.

        Args:
            n_best: see `hypotheses`. The texts of the others are not made where none of them can become the best.
        """
        searched = [part for part in parts if not part.fixed_translation]
        prefixes = [[*part.frame.before_tgt, *part.prefix] for part in searched]
        candidates_by_part = self.engine.search([part.ids for part in searched], prefixes, self.options)
        without_codes = [
            self._hypotheses_without_codes(part, candidates, n_best)
            for part, candidates in zip(searched, candidates_by_part, strict=True)
        ]
        searched_hypotheses = iter(self._put_back(searched, without_codes))
        sampling = self.options.sampling
        num_copies = sampling.num_samples if sampling and not sampling.mbr else 1
        return [
            [Hypothesis(part.fixed_translation, 0.0, [])] * num_copies
            if part.fixed_translation
            else next(searched_hypotheses)
            for part in parts
        ]

    def _hypotheses_without_codes(self, part: Part, candidates: Sequence[Candidate], n_best: int | None) -> Hypotheses:
        """The hypotheses of a part that was searched, without its codes."""
        sampling = self.options.sampling
        terms = self.tokenizer.terms(part.ids)
        if not (sampling or terms):  # parts have equally many samples, which are joined by their numbers
            candidates = candidates[:n_best]
        texts = self.tokenizer.decode([candidate.ids for candidate in candidates])
        hypotheses = [
            Hypothesis(
                [in_case(text, part.case, self.tgt) if part.case else text],
                candidate.score,
                self.tokenizer.pieces(candidate.ids),
                len(missing_terms(terms, text)) if terms else 0,
                part.is_cut,
            )
            for text, candidate in zip(texts, candidates, strict=True)
        ]
        if not sampling:
            hypotheses.sort(key=lambda hypothesis: hypothesis.num_missing)
        elif sampling.mbr:
            scores = mean_chrf([hypothesis.text for hypothesis in hypotheses])
            scored = [replace(hypothesis, score=score) for hypothesis, score in zip(hypotheses, scores, strict=True)]
            return [min(scored, key=lambda hypothesis: (hypothesis.num_missing, -hypothesis.score))]
        return hypotheses

    def _put_back(self, parts: Sequence[Part], by_part: Sequence[Hypotheses]) -> list[Hypotheses]:
        """The hypotheses of parts with their codes, at the words that the cross attention links."""
        pairs = [
            (part, hypothesis) for part, hypotheses in zip(parts, by_part, strict=True) for hypothesis in hypotheses
        ]
        rows = [
            row
            for row, (part, hypothesis) in enumerate(pairs)
            if any(0 < tag.at < len(part.text) for tag in part.tags)
            and part.text != hypothesis.text != ""
            and not part.is_cut
        ]
        links = dict(zip(rows, self._links([pairs[row] for row in rows]), strict=True))
        results = []
        row = 0
        for part, hypotheses in zip(parts, by_part, strict=True):
            with_codes = []
            for hypothesis in hypotheses:
                with_codes.append(self._with_codes(part, hypothesis, links.get(row, ())))
                row += 1
            results.append(with_codes)
        return results

    def _links(self, pairs: Sequence[tuple[Part, Hypothesis]]) -> list[list[Link]]:
        """The links of parts and their translations without codes, by the cross attention."""
        encoded = self.tokenizer.encode_text("" if part.is_cut else part.model_text for part, _ in pairs)
        src = [
            part.ids if part.is_cut else [*part.frame.before_src, *ids, *part.frame.after_src]
            for (part, _), ids in zip(pairs, encoded, strict=True)
        ]
        vocabulary = self.tokenizer.models.vocabulary
        tgt = [[vocabulary.get(piece, UNK_ID) for piece in hypothesis.pieces] for _, hypothesis in pairs]
        attentions = self.engine.cross_attention(src, tgt) if pairs else []
        links = []
        for (part, hypothesis), src_ids, attention in zip(pairs, src, attentions, strict=True):
            start = len(part.frame.before_src)
            tgt_start = len(part.frame.before_tgt)
            sides = (
                (self.tokenizer.pieces(src_ids[start:]), part.text),
                (hypothesis.pieces[tgt_start:], hypothesis.text),
            )
            links.append(link_pieces(attention[tgt_start:, start:], *sides))
        return links

    def _with_codes(self, part: Part, hypothesis: Hypothesis, links: Sequence[Link]) -> Hypothesis:
        """A hypothesis with all codes of its source; where it lacks a learned one, they are placed in proportion."""
        src = part.text
        tags = part.tags
        if not (tags or self.codes):
            return hypothesis
        tgt = hypothesis.text
        if self.codes and not (part.prefix or part.is_cut) and codes_of(src) != codes_of(tgt):
            src, tags = bare(mark_up(put_back(tags, src, src, ())))
            tgt = bare(mark_up([tgt]))[0]
            links = ()
        marked = put_back(tags, src, tgt, links)
        return replace(hypothesis, marked=mark_up(marked) if self.codes else marked)

    def join_parts(self, lines: Sequence[Sequence[Part]], by_part: Iterable[Hypotheses]) -> list[Hypotheses]:
        """Returns the hypotheses of each line of `split` from those of all parts, in order; see `hypotheses`."""
        hypotheses_of_parts = iter(by_part)
        sampling = self.options.sampling
        results = []
        for parts in lines:
            by_line_part = [next(hypotheses_of_parts) for _ in parts]
            if not (parts and sampling):
                joined = best_combinations(parts, by_line_part, self.options.num_beams)
            else:
                joined = []
                for sample in zip(*by_line_part, strict=True):
                    joined += best_combinations(parts, [[hypothesis] for hypothesis in sample], 1)
                if sampling.mbr:
                    num_texts = sum(part.text != "" for part in parts) or 1
                    joined = [replace(hypothesis, score=hypothesis.score / num_texts) for hypothesis in joined]
            results.append([replace(hypothesis, translator=self) for hypothesis in joined])
        return results

    def align(self, texts: Sequence[Hypotheses]) -> list[str]:
        """Returns for each text which words of it and of its translation belong together, such as "0-0 1-1 2-3".

        The numbers are those of `word_numbers`. A translation that is a copy has all words, any other one those with a
        letter or digit outside of tags.

        Args:
            texts: a hypothesis for each line of a text.
        """
        pairs_by_text = [[self._bare(*pair) for line in text for pair in line.parts] for text in texts]
        searched = [pair for pairs in pairs_by_text for pair in pairs if pair[0].text != pair[1].text]
        blocks = (searched[start : start + _ALIGNED_AT_ONCE] for start in range(0, len(searched), _ALIGNED_AT_ONCE))
        links = chain.from_iterable(map(self._links, blocks))
        alignments = []
        for text, pairs in zip(texts, pairs_by_text, strict=True):
            src_numbers = word_numbers(map(self._as_read, [line.source for line in text]), self.src)
            tgt_numbers = word_numbers(map(self._as_read, [line.marked for line in text]), self.tgt)
            alignment = set[tuple[int, int]]()
            for part, result in pairs:
                src = with_spaces(part.text, src_numbers)
                tgt = with_spaces(result.text, tgt_numbers)
                if part.text == result.text:
                    alignment.update(zip(src, tgt, strict=False))
                    continue
                for link in join_links(result.text, next(links)):
                    if link.is_word and src:
                        src_number = src[min(int(link.src), len(src) - 1)]
                        alignment.update((src_number, tgt_number) for tgt_number in tgt[link.start : link.end])
            if not all(line.source for line in text if line.parts):
                alignment.clear()
            alignments.append(" ".join(f"{src}-{tgt}" for src, tgt in sorted(alignment)))
        return alignments

    def _bare(self, part: Part, hypothesis: Hypothesis) -> tuple[Part, Hypothesis]:
        """A part and its hypothesis with the text that the model reads and writes, as long as its pieces."""
        sides = hypothesis.marked if part.fixed_translation else [part.text], hypothesis.marked
        src, tgt = (normalize("NFC", bare(self._as_read(marked))[0]) for marked in sides)
        return part._replace(text=src), replace(hypothesis, marked=[tgt])

    def log_probs(self, src: Lines, tgt: Lines) -> "list[ForcedScore]":
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

    def attention_maps(self, src: Lines, tgt: Lines | None = None) -> "list[AttentionMaps]":
        """Returns the attention weights of each line of `src` and its translation `tgt`, by default the model's own.

        Raises:
            TypeError: `src` or `tgt` is no list of str.
            ValueError: they have different numbers of lines.
            DataError: a source has more than max_tokens pieces, or a target more than the model can write.
        """
        require_lines(src, tgt)
        src_ids = self._ids("line", src, self.max_tokens)
        if tgt is None:
            by_source = self.torch.search(src_ids, [[*self.frame.before_tgt]] * len(src_ids), self.options)
            tgt_ids = [candidates[0].ids for candidates in by_source]
        else:
            limit = min(self.max_tokens + EXTRA_LENGTH, self.torch.num_tgt_positions)
            tgt_ids = self._ids("target", tgt, limit, is_target=True)
        return self.torch.attention_maps(src_ids, tgt_ids)

    def _ids(self, name: str, lines: Lines, limit: int, is_target: bool = False) -> Encoded:
        """Encodes lines; raises a DataError with the beginning of the first line of more than `limit` pieces."""
        encoded = self.tokenizer.encode([clean_text(line) for line in lines], self.frame, target=is_target)
        for line, ids in zip(lines, encoded, strict=True):
            if len(ids) > limit:
                raise DataError(f"{name} {line[:40]!r} … has {len(ids)} subwords, the model supports {limit}")
        return encoded


def in_words(directions: Sequence[tuple[str, str]]) -> str:
    """Directions in words, such as en-de, en-fr."""
    return ", ".join(map("-".join, directions))


def require_lines(lines: Lines, counterparts: Lines | None = None) -> None:
    """Checks that an argument is a list of lines, and that `counterparts` has as many: their prefixes or translations.

    Raises:
        TypeError: one of them is no list of str, or a single str or bytes, whose characters would count as lines.
        ValueError: there are not as many counterparts as lines.
    """
    for argument in (lines, counterparts or []):
        if isinstance(argument, str | bytes):
            raise TypeError(f"expected a list of lines, got a single {type(argument).__name__}: {argument[:20]!r}")
        for number, line in enumerate(argument, start=1):
            if not isinstance(line, str):
                raise TypeError(f"line {number} is of the type {type(line).__name__}, expected str")
    if counterparts is not None and len(counterparts) != len(lines):
        raise ValueError(f"expected {len(lines)} lines, got {len(counterparts)}")


def best_combinations(parts: Sequence[Part], by_part: Sequence[Sequence[Hypothesis]], size: int) -> Hypotheses:
    """Joins one hypothesis of each part; returns the `size` best, best first.

    The best one lacks the fewest terms, and then has the largest sum of scores.
    """
    best = [Hypothesis([], 0.0, [])]
    for part, hypotheses in zip(parts, by_part, strict=True):
        joined = []
        for beginning, hypothesis in product(best, hypotheses):
            last_item = beginning.marked[-1] if beginning.marked else ""
            ends_in_break = isinstance(last_item, Tag) and last_item.is_break
            space = ""
            if part.follows_sentence and not ends_in_break:
                space = space_between(text_of(beginning.marked), text_of(hypothesis.marked))
            longer = Hypothesis(
                [*beginning.marked, space, *hypothesis.marked],
                beginning.score + hypothesis.score,
                beginning.pieces + hypothesis.pieces,
                beginning.num_missing + hypothesis.num_missing,
                beginning.is_cut or hypothesis.is_cut,
                (*beginning.parts, (part, hypothesis)),
            )
            joined.append(longer)
        best = sorted(joined, key=lambda hypothesis: (hypothesis.num_missing, -hypothesis.score))[:size]
    return best


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


def mean_chrf(samples: Lines) -> list[float]:
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
    mean_of_text = dict(zip(counts, means.tolist(), strict=True))
    return [mean_of_text[sample] for sample in samples]
