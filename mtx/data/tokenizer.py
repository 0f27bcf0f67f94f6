"""Text to token ids and back, by SentencePiece. Only this module knows the layout of the ids.

    0 </s> | 1 <unk> | the other pieces | 8 reserved symbols | <pad>
    |------------ num_pieces -----------|
    |--------------- num_ids = rows of the output layer ----| pad_id

A `Frame` has the ids around a pair, which follow from its languages and its tag. A tag marks the source sentences of
one training corpus (`tag` in data.train, such as BT for back-translated text); each tag uses one reserved symbol,
starting with the first. The marks around terms (`glossary`) use the last three, if the model learns them. Published
models with one SentencePiece model for each side have no reserved symbols (`sentencepiece_models`), but perhaps pieces
that name the language to translate into, such as `>>deu<<`. In a model of several directions, each target language has
a control symbol of SentencePiece. Text never becomes a control id: `</s>` typed in a sentence is ordinary text. NFC is
applied here and not in SentencePiece, whose own rules rewrite m² to m2.
"""

import hashlib
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import sentencepiece

from mtx.config.limits import MAX_PIECES
from mtx.config.schema import TAG, TokenizerConfig
from mtx.data.glossary import TERM_MARKS
from mtx.data.sentencepiece_models import EOS_ID as EOS_ID
from mtx.data.sentencepiece_models import (
    PAD,
    Encoded,
    JointModel,
    read_as_one,
    read_joint,
    read_split,
)
from mtx.data.sentencepiece_models import UNK_ID as UNK_ID
from mtx.errors import DamagedFileError, DataError, UsageError
from mtx.formatting import did_you_mean
from mtx.storage.durable import Json, json_bytes, read_json, write_bytes, write_json
from mtx.storage.model_description import tokenizer_files
from mtx.storage.run_files import TOKENIZER_JSON
from mtx.storage.text_files import replace_surrogates

NUM_RESERVED = JointModel.num_reserved

Form = Literal["nfc", "nmt_nfkc", "none"]
Rule = Literal["target", "both"]  # which languages a frame names: see `Tokenizer.frame`

# SentencePiece's messages about more pieces than a text can fill, and about fewer than its characters need.
_WRONG_SIZE = re.compile(
    r"Vocabulary size (?:too high .* a value <= (\d+)|is smaller than required_chars\. \d+ vs (\d+))"
)
# Vocabulary sizes for `vocab_size: auto`, each with its maximum number of pairs (docs/explanation/sizes.md).
_AUTO_SIZES = {4_000: 17_000, 8_000: 400_000, 16_000: 2_236_000, 32_000: math.inf}
_MARK = re.compile(f"([{TERM_MARKS}])")
_MARK_NAMES = ("term-source", "term-target", "term-end")  # no tag can have such a name
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]")


def normalize(text: str, form: Form) -> str:
    """Text without surrogates, in the Unicode form nfc. The form nmt_nfkc is applied by SentencePiece, not here."""
    text = replace_surrogates(text)
    return unicodedata.normalize("NFC", text) if form == "nfc" else text


class Frame(NamedTuple):
    """The ids around the text of a pair: before and after its source, and before its target, which ends in `</s>`."""

    before_src: tuple[int, ...] = ()
    after_src: tuple[int, ...] = (EOS_ID,)
    before_tgt: tuple[int, ...] = ()


PLAIN = Frame()


class Tokenizer:
    """SentencePiece models with mtx's ids; thread-safe.

    Args:
        num_reserved: symbols after the pieces, for tags and marks; None: the usual number of such models.
        languages: the id of each language of a model of several directions; empty: the model has one, or the names of
            its pieces are all that is known.
        rule: how its frames name them.

    Attributes:
        num_pieces: pieces of the vocabulary, including `</s>` and `<unk>`.
        num_ids: pieces and reserved symbols, which are the rows of the output layer.
        pad_id: the last id, equal to `num_ids`.
        tags: the reserved id of each tag.
        marks: the reserved id of each of `TERM_MARKS`; empty if the model does not learn terms.
        models: the joint model, or the models of the two sides.
        num_forced: ids at the start of a target that name its language; a model does not choose them.
    """

    def __init__(
        self,
        models: JointModel,
        normalization: Form,
        tags: list[str],
        has_marks: bool = False,
        num_reserved: int | None = None,
        languages: dict[str, int] | None = None,
        rule: Rule = "target",
    ):
        self.models = models
        self.normalization = normalization
        self.num_pieces = len(models.pieces)
        num_reserved = models.num_reserved if num_reserved is None else num_reserved
        self.pad_id = self.num_ids = self.num_pieces + num_reserved
        reserved = [*tags, *(f"reserved_{number}" for number in range(len(tags), num_reserved))]
        if has_marks:
            reserved[-len(_MARK_NAMES) :] = _MARK_NAMES
        self.tags = {tag: self.num_pieces + number for number, tag in enumerate(tags)}
        self.languages = languages or {}
        self.rule = rule
        self.num_forced = 1 if rule == "both" else 0
        self._starts = {**self.tags, **models.languages, **{f">>{name}<<": i for name, i in self.languages.items()}}
        marks = TERM_MARKS if has_marks else ""
        self.marks = {mark: token for token, mark in enumerate(marks, self.num_ids - len(marks))}
        self._names = [*models.pieces, *(f"<{name}>" for name in reserved), PAD]

    def is_same(self, other: "Tokenizer") -> bool:
        """Whether another tokenizer encodes every text to the same token ids."""
        return self.models.files == other.models.files and self._description() == other._description()

    def frame(self, src: str, tgt: str, tag: str | None = None) -> Frame:
        """The ids around the pairs of a direction, or of a corpus of it with a tag.

        By the rule "target", the language `tgt` is before the source, if the model has ids of languages (mtx, OPUS-MT).
        By "both", `src` is before the source, and `tgt` before the target (M2M-100, NLLB).

        Raises:
            UsageError: if a model of several directions does not have the language.
        """
        frame_languages = (src, tgt) if self.rule == "both" else (tgt,)
        for name in frame_languages:
            if self.languages and name not in self.languages:
                raise UsageError(f"the model has no language {name}; it has {', '.join(self.languages)}")
        before_src = tuple(
            self._starts[name] for name in (tag or "", f">>{frame_languages[0]}<<") if name in self._starts
        )
        return Frame(before_src, before_tgt=tuple(self.languages[name] for name in frame_languages[1:]))

    def named_frame(self, source: str, frame: Frame) -> tuple[Frame, str]:
        """The frame of a source and its text: `frame`, unless the source begins with the name of a language."""
        name = source[: source.find("<<") + 2]
        if name not in self.models.languages:
            return frame, source
        return frame._replace(before_src=(self.models.languages[name],)), source.removeprefix(name)

    def frame_of(self, src_ids: Sequence[int], tgt_ids: Sequence[int]) -> Frame:
        """The frame of an encoded pair: the ids at the start of each side that are not text."""
        starts = {*self._starts.values()}
        before_src, before_tgt = (tuple(takewhile(starts.__contains__, ids)) for ids in (src_ids, tgt_ids))
        return Frame(before_src, before_tgt=before_tgt)

    def encode(self, texts: list[str], frame: Frame = PLAIN, num_threads: int = -1, *, target: bool = False) -> Encoded:
        """Normalised token ids of texts, in their frame.

        Args:
            frame: that of all texts, but of sources that begin with the name of a language (`named_frame`).
            num_threads: threads of SentencePiece; -1 is one per core.
            target: use the model of the target side. A joint model serves both sides.
        """
        if target:
            return [[*frame.before_tgt, *ids, EOS_ID] for ids in self.encode_text(texts, num_threads, target=True)]
        framed = [self.named_frame(text, frame) for text in texts]
        ids = iter(self.encode_text((text for _, text in framed), num_threads))
        return [[*frame.before_src, *next(ids), *frame.after_src] for frame, _ in framed]

    def encode_text(self, texts: Iterable[str], num_threads: int = -1, *, target: bool = False) -> Encoded:
        """Normalised token ids of texts without a frame; see `encode`.

        The characters of `TERM_MARKS` in a source become `marks`, if the tokenizer has them.
        """
        texts = [normalize(text, self.normalization) for text in texts]
        if target or not self.marks:
            return self.models.encode(texts, target, num_threads)
        texts_in_parts = [_MARK.split(text) for text in texts]  # text, mark, text, mark, ..., text
        parts_without_marks = [part for parts in texts_in_parts for part in parts[::2]]
        part_ids = iter(self.models.encode(parts_without_marks, target, num_threads))
        encoded = list[list[int]]()
        for parts in texts_in_parts:
            ids = list[int]()
            for part in parts:
                if part in self.marks:
                    ids.append(self.marks[part])
                else:
                    ids += next(part_ids)
            encoded.append(ids)
        return encoded

    def decode(self, ids: Encoded) -> list[str]:
        """The text of token ids, one line each, without `</s>`, reserved symbols and padding.

        Byte pieces (for characters without a piece) can form line breaks and other control characters, or none; each of
        those becomes a space.
        """
        pieces = [[token for token in sentence if token < self.num_pieces] for sentence in ids]
        return [_CONTROLS.sub(" ", text) for text in self.models.decode(pieces)]

    def terms(self, ids: list[int]) -> list[str]:
        """The translations given after the terms of a source."""
        if not self.marks:
            return []
        _, translation_mark, end_mark = self.marks.values()
        starts = [place + 1 for place, token in enumerate(ids) if token == translation_mark]
        return self.decode([ids[start : ids.index(end_mark, start)] for start in starts if end_mark in ids[start:]])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The name of each token id, such as `▁the`, `</s>`, `<BT>`, `<pad>`."""
        return list(map(self._names.__getitem__, ids))

    def vocabulary(self) -> list[str]:
        """The names of the ids from 0 to `num_ids` - 1: with the reserved symbols, without `<pad>`."""
        return self._names[:-1]

    def save(self, directory: Path) -> None:
        """Write the models and `tokenizer.json` into `directory`."""
        for name, model in self.models.files.items():
            write_bytes(directory / name, model)
        write_json(directory / TOKENIZER_JSON, self._description())

    def sha256(self) -> str:
        """A hash of what `save` writes."""
        content = b"".join([*self.models.files.values(), json_bytes(self._description())])
        return hashlib.sha256(content).hexdigest()

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Read the files of `save`.

        Raises:
            DamagedFileError: if a file is missing or damaged, or the files do not belong together.
        """
        model_path, *tgt_paths, json_path = (directory / name for name in tokenizer_files(directory))
        description = read_json(json_path)
        pieces = description.get("pieces")
        if tgt_paths:
            models: JointModel = read_split(model_path, tgt_paths[0], json_path, pieces)
        else:
            models = read_joint(model_path)
        tokenizer = cls._from_description(models, description)
        if tokenizer is None:
            raise DamagedFileError(
                f"{json_path}: its normalization, tags, languages or pieces do not match {model_path.name}"
            )
        return tokenizer

    @classmethod
    def _from_description(cls, models: JointModel, description: Json) -> "Tokenizer | None":
        """The tokenizer with these models that `_description` describes; None if it is impossible or has others."""
        form: Any = description.get("normalization")
        tags: Any = description.get("tags")
        if form not in get_args(Form) or not _has_names(tags):
            return None
        num_reserved = description.get("reserved", models.num_reserved)
        if type(num_reserved) is not int:
            return None
        has_marks = "marks" in description
        most_tags = num_reserved - len(TERM_MARKS) if has_marks else num_reserved
        if not len(tags) <= most_tags <= MAX_PIECES:
            return None
        rule: Any = "target"
        ids: Any = {}
        if "languages" in description:
            languages = description["languages"]
            if not isinstance(languages, dict):
                return None
            rule = languages.get("rule")
            ids = languages.get("ids")
            if rule not in get_args(Rule) or not _has_names(ids) or not ids:
                return None
        for token in ids.values():
            if type(token) is not int or not UNK_ID < token < len(models.pieces):
                return None
        tokenizer = cls(models, form, list(tags), has_marks, num_reserved, ids, rule)
        for key, value in tokenizer._description().items():
            if description.get(key) != value:
                return None
        return tokenizer

    def _description(self) -> Json:
        num_reserved = self.num_ids - self.num_pieces
        reserved = {"reserved": num_reserved} if num_reserved != self.models.num_reserved else {}
        marks = {"marks": dict(zip(_MARK_NAMES, self.marks.values(), strict=True))} if self.marks else {}
        languages = {"languages": {"rule": self.rule, "ids": self.languages}} if self.languages else {}
        return {
            "normalization": self.normalization,
            "tags": self.tags,
            **marks,
            **reserved,
            **languages,
            "pieces": self.models.vocabulary,
        }


def _has_names(value: Any) -> bool:
    """Whether part of a description is a mapping from names of tags or languages."""
    return isinstance(value, dict) and all(map(TAG.fullmatch, value))


def given_models(config: TokenizerConfig) -> list[Path]:
    """The files of `tokenizer.model` with links resolved; raises UsageError if one is missing."""
    for name in config.model:
        if not Path(name).is_file():
            raise UsageError(f"tokenizer.model {name}: no such file{did_you_mean(Path(name))}")
    return [Path(name).resolve() for name in config.model]


def given_tokenizer(config: TokenizerConfig) -> Tokenizer | None:
    """The tokenizer of `tokenizer.model`, with the models' own normalization; None if the setting is not used.

    For the files of an mtx model it is that model's tokenizer, with its tags and marks.

    Raises:
        UsageError: if a file is missing, or mtx cannot use its pieces.
        DamagedFileError: if a file is not a SentencePiece model, or too large.
    """
    paths = given_models(config)
    if not paths:
        return None
    directory = paths[0].parent
    *models, description = (directory / name for name in tokenizer_files(directory))
    if paths == models and description.is_file():
        return Tokenizer.load(directory)
    return Tokenizer(read_as_one(paths[0], paths[-1]), "none", [])


def auto_vocab_sizes(num_pairs: int) -> list[int]:
    """The vocabulary size of `vocab_size: auto` for a number of pairs, followed by the larger ones."""
    return [size for size, most_pairs in _AUTO_SIZES.items() if num_pairs <= most_pairs]


def train_tokenizer(
    sentences: Iterable[str],
    config: TokenizerConfig,
    num_pairs: int,
    tags: list[str],
    has_marks: bool = False,
    languages: Iterable[str] = (),
) -> Tokenizer:
    """Train a joint BPE model with byte fallback; the same sentences give the same bytes on every machine.

    With `vocab_size: auto`, the size is the first that has room for every character, and a text that is too small for
    it gives a model with fewer pieces.

    Args:
        sentences: of all languages, in any order; kept in memory.
        config: the vocabulary size and the normalization.
        num_pairs: the size of the corpus, which determines the vocabulary size with `vocab_size: auto`.
        tags: names that get a reserved symbol each, in this order.
        has_marks: whether the model learns terms, whose marks use three reserved symbols.
        languages: those that get a control symbol each, which count as pieces.

    Raises:
        DataError: if there is no text, or it has too few pieces or too many characters for `vocab_size`.
    """
    tags = list(dict.fromkeys(tags))
    room = NUM_RESERVED - len(TERM_MARKS) if has_marks else NUM_RESERVED
    if len(tags) > room:
        raise UsageError(f"data.train: expected at most {room} tags, got {len(tags)} ({', '.join(tags)})")
    ids = {name: token for token, name in enumerate(dict.fromkeys(languages), UNK_ID + 1)}  # as SentencePiece does
    vocab_sizes = auto_vocab_sizes(num_pairs) if config.vocab_size == "auto" else [config.vocab_size]
    text = [_CONTROLS.sub(" ", normalize(line, config.normalization)) for line in sentences]
    for vocab_size in vocab_sizes:
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(text),
                model_writer=model,
                model_type="bpe",
                vocab_size=vocab_size,
                hard_vocab_limit=config.vocab_size != "auto",
                character_coverage=0.9995,
                byte_fallback=True,
                normalization_rule_name="nmt_nfkc" if config.normalization == "nmt_nfkc" else "identity",
                eos_id=EOS_ID,
                unk_id=UNK_ID,
                bos_id=-1,
                pad_id=-1,
                control_symbols=[f">>{name}<<" for name in ids],
                minloglevel=2,
            )
        except RuntimeError as error:
            message = " ".join(str(error).split())
            if not (wrong_size := _WRONG_SIZE.search(message)):
                raise DataError(f"SentencePiece cannot train a tokenizer on this text: {message}") from None
            maximum, minimum = wrong_size.groups()
        else:
            return Tokenizer(JointModel(model.getvalue()), config.normalization, tags, has_marks, languages=ids)
    problem = f"is too large for this corpus; the maximum is {maximum}"
    if minimum:
        problem = f"is too small for its characters; the minimum is {minimum}"
    raise DataError(
        f"tokenizer.vocab_size {vocab_size} {problem}", f"tokenizer.vocab_size={maximum or minimum}, or auto"
    )
