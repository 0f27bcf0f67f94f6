"""SentencePiece: text to token ids and back. The only module that knows the layout of the ids.

    0 </s> | 1 <unk> | the other pieces | 8 reserved symbols | <pad>
    |------------ num_pieces -----------|
    |--------------- num_ids = rows of the output layer ----| pad_id

Each tag of the configuration (such as BT) takes one reserved symbol. Published models that come with a SentencePiece
model for each side have none (`sentencepiece_models`). Text never becomes a control id: `</s>` typed in a sentence is
five characters. NFC is applied here and not inside SentencePiece, whose own rules rewrite m² to m2.
"""

import io
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import sentencepiece

from mtx.config.schema import TAG, TokenizerConfig
from mtx.data import sentencepiece_models
from mtx.data.sentencepiece_models import PAD, JointModel, SplitModel
from mtx.errors import DamagedFileError, DataError, UsageError
from mtx.files.durable import read_json, write_bytes, write_json
from mtx.run.layout import TOKENIZER_JSON, TOKENIZER_MODEL, TOKENIZER_SRC_MODEL, TOKENIZER_TGT_MODEL

EOS_ID, UNK_ID = sentencepiece_models.EOS_ID, sentencepiece_models.UNK_ID
NUM_RESERVED = JointModel.num_reserved

Form = Literal["nfc", "nmt_nfkc", "none"]

# `vocab_size: auto`: the pieces of a corpus that has at least so many pairs (DESIGN 4).
_AUTO_SIZES = {0: 2_000, 20_000: 8_000, 500_000: 16_000, 5_000_000: 32_000}
# What SentencePiece says when training fails.
_TOO_LARGE = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_SMALL = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")
_NO_TEXT = re.compile(r"!sentences_\.empty\(\)|all_chars_count\) > \(0\)")
_SURROGATES = re.compile("[\ud800-\udfff]")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def normalize(text: str, form: Form) -> str:
    """The text in the Unicode form that mtx itself applies; `nmt_nfkc` is SentencePiece's part, not done here."""
    return unicodedata.normalize("NFC", text) if form == "nfc" else text


def replace_surrogates(text: str) -> str:
    """Put U+FFFD for lone surrogates, which have no UTF-8 form: SentencePiece and Arrow refuse them."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


class Tokenizer:
    """SentencePiece models with mtx's ids around them; safe to use from several threads.

    Attributes:
        num_pieces: pieces of the vocabulary, `</s>` and `<unk>` among them.
        num_ids: pieces and reserved symbols, the rows of the output layer.
        pad_id: the row after those.
        tags: the reserved id of each tag.
        models: the joint model, or those of the two sides.
    """

    def __init__(self, models: JointModel | SplitModel, normalization: Form, tags: list[str]):
        self.models = models
        self.normalization: Form = normalization
        self.num_pieces = models.num_pieces
        self.num_ids = self.num_pieces + models.num_reserved
        self.pad_id = self.num_ids
        self.tags = {tag: self.num_pieces + number for number, tag in enumerate(tags)}
        reserved = [*tags, *(f"reserved_{number}" for number in range(len(tags), models.num_reserved))]
        self._symbols = [*(f"<{name}>" for name in reserved), PAD]

    def encode(
        self, texts: list[str], tag: str | None = None, num_threads: int = -1, *, target: bool = False
    ) -> list[list[int]]:
        """Normalised token ids of any text, each list ending in `</s>`; a tag's id stands in front.

        By default SentencePiece uses a thread a core. `target` takes the target side's model; a joint one serves both.
        """
        if tag is not None and tag not in self.tags:
            raise UsageError(f"the tokenizer knows no tag {tag!r}, only {', '.join(self.tags) or 'none'}")
        start = [] if tag is None else [self.tags[tag]]
        texts = [normalize(replace_surrogates(text), self.normalization) for text in texts]
        return [[*start, *ids, EOS_ID] for ids in self.models.encode(texts, target, num_threads)]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Text of token ids, each on one line; `</s>`, reserved symbols and padding leave no trace.

        Byte fallback can produce line breaks and other controls: each becomes a space.
        """
        pieces = [[token for token in sentence if token < self.num_pieces] for sentence in ids]
        return [_CONTROLS.sub(" ", text) for text in self.models.decode(pieces)]

    def pieces(self, ids: list[int]) -> list[str]:
        """How each token id reads: `▁the`, `</s>`, `<BT>`, `<pad>`."""
        return [
            self.models.piece(token) if token < self.num_pieces else self._symbols[token - self.num_pieces]
            for token in ids
        ]

    def vocabulary(self) -> list[str]:
        """How the ids from 0 to `num_ids` - 1 read, reserved symbols among them, pad not."""
        return self.pieces(list(range(self.num_ids)))

    @property
    def file_names(self) -> tuple[str, ...]:
        """The files that `save` writes."""
        return (*self.models.files, TOKENIZER_JSON)

    @staticmethod
    def file_names_in(directory: Path) -> tuple[str, ...]:
        """The files that a tokenizer in `directory` should consist of, by what lies there."""
        split = (TOKENIZER_SRC_MODEL, TOKENIZER_TGT_MODEL)
        is_split = any((directory / name).is_file() for name in split) and not (directory / TOKENIZER_MODEL).is_file()
        return (*split, TOKENIZER_JSON) if is_split else (TOKENIZER_MODEL, TOKENIZER_JSON)

    def save(self, directory: Path) -> None:
        """Write the models and `tokenizer.json` into `directory`."""
        for name, model in self.models.files.items():
            write_bytes(directory / name, model)
        write_json(directory / TOKENIZER_JSON, self._description())

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Read what `save` wrote.

        Raises:
            DamagedFileError: where a file is missing or damaged, or they do not belong together.
        """
        json_path, names = directory / TOKENIZER_JSON, cls.file_names_in(directory)
        description = read_json(json_path)
        normalization: Any = description.get("normalization")
        tags = description.get("tags")
        if normalization not in get_args(Form) or not isinstance(tags, dict) or not _are_tags(tags):
            raise DamagedFileError(f"{json_path}: has no known normalization or no list of at most {NUM_RESERVED} tags")
        models: JointModel | SplitModel
        if TOKENIZER_MODEL in names:
            models = _load_joint(directory)
        elif tags or normalization != "none":
            raise DamagedFileError(f"{json_path}: models of two sides go with normalization none and no tags")
        else:
            pieces = sentencepiece_models.check_vocabulary(json_path, description.get("pieces"))
            models = sentencepiece_models.read_split(
                directory / TOKENIZER_SRC_MODEL, directory / TOKENIZER_TGT_MODEL, pieces
            )
        tokenizer = cls(models, normalization, list(tags))
        if any(description.get(key) != value for key, value in tokenizer._description().items()):
            raise DamagedFileError(f"{json_path}: its pieces or tags are not those of {names[0]}")
        return tokenizer

    def _description(self) -> dict[str, Any]:
        return {"normalization": self.normalization, "tags": self.tags, "pieces": self.models.described_pieces()}


def _are_tags(names: Collection[str]) -> bool:
    return len(names) <= NUM_RESERVED and all(TAG.fullmatch(name) for name in names)


def _load_joint(directory: Path) -> JointModel:
    path = directory / TOKENIZER_MODEL
    for other in (directory / TOKENIZER_SRC_MODEL, directory / TOKENIZER_TGT_MODEL):
        if other.exists():
            raise DamagedFileError(f"{other}: does not belong beside {TOKENIZER_MODEL}")
    try:
        model = JointModel(sentencepiece_models.read_model(path))
    except RuntimeError as error:
        raise sentencepiece_models.no_model(path, error) from None
    if model.control_ids != (EOS_ID, UNK_ID):
        eos_id, unk_id = model.control_ids
        raise DamagedFileError(f"{path}: </s> is id {eos_id} and <unk> id {unk_id}, expected {EOS_ID} and {UNK_ID}")
    return model


def train_tokenizer(sentences: Iterable[str], config: TokenizerConfig, num_pairs: int, tags: list[str]) -> Tokenizer:
    """Learn joint BPE pieces with byte fallback; the same sentences give the same bytes on every machine.

    Args:
        sentences: both languages, in any order; gone through again where `auto` meets more characters than pieces.
        config: number of pieces and normalization.
        num_pairs: size of the corpus, from which `vocab_size: auto` chooses.
        tags: names that get a reserved symbol each, in this order.

    Raises:
        DataError: where there is no text, or it cannot fill `vocab_size` or needs more for its characters.
    """
    tags = list(dict.fromkeys(tags))
    if len(tags) > NUM_RESERVED:
        raise UsageError(f"data.train has {len(tags)} tags ({', '.join(tags)}), at most {NUM_RESERVED} are possible")
    if config.vocab_size == "auto":
        least = max(pairs for pairs in _AUTO_SIZES if num_pairs >= pairs)
        sizes = [size for pairs, size in _AUTO_SIZES.items() if pairs >= least]
    else:
        sizes = [config.vocab_size]
    model = _train(sentences, sizes, exact=config.vocab_size != "auto", normalization=config.normalization)
    return Tokenizer(JointModel(model), config.normalization, tags)


def _train(sentences: Iterable[str], sizes: list[int], exact: bool, normalization: Form) -> bytes:
    """A model of the first of the ascending `sizes` with room for every character; of fewer pieces unless `exact`."""
    model, failed = io.BytesIO(), list[BaseException]()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_training_text(sentences, normalization, failed),
            model_writer=model,
            model_type="bpe",
            vocab_size=sizes[0],
            hard_vocab_limit=exact,
            character_coverage=0.9995,
            byte_fallback=True,
            normalization_rule_name="nmt_nfkc" if normalization == "nmt_nfkc" else "identity",
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        if failed:
            raise failed[0] from None
        too_small = _TOO_SMALL.search(str(error))
        larger = [size for size in sizes if too_small and size >= int(too_small[1])]
        if larger:
            return _train(sentences, larger, exact, normalization)
        raise _training_error(error, sizes[-1]) from None
    return model.getvalue()


def _training_text(sentences: Iterable[str], normalization: Form, failed: list[BaseException]) -> Iterator[str]:
    """The sentences as they are learned from; an error goes into `failed`, for SentencePiece tells its text only."""
    try:
        for sentence in sentences:
            yield _CONTROLS.sub(" ", normalize(replace_surrogates(sentence), normalization))
    except (Exception, KeyboardInterrupt) as error:
        failed.append(error)
        raise


def _training_error(error: RuntimeError, vocab_size: int) -> DataError:
    """SentencePiece's complaint in the words of the configuration."""
    message = str(error)
    if match := _TOO_LARGE.search(message):
        largest = f"tokenizer.vocab_size {vocab_size} is more than this corpus can fill; the largest is {match[1]}"
        return DataError(largest, f"tokenizer.vocab_size={match[1]}, or auto, which takes what the corpus can fill")
    if match := _TOO_SMALL.search(message):
        needed = f"tokenizer.vocab_size {vocab_size} is less than the {match[1]} that this corpus's characters need"
        return DataError(needed, f"tokenizer.vocab_size={match[1]} is the least, or auto")
    if _NO_TEXT.search(message):
        return DataError("there is no text to learn a tokenizer from")
    return DataError(f"SentencePiece cannot learn a tokenizer from this text: {_reason(error)}")


def _reason(error: RuntimeError) -> str:
    return " ".join(str(error).split())
