"""The SentencePiece models of a tokenizer: one joint model for both languages, or one for each side.

They turn text into pieces and pieces into ids. `tokenizer` uses either kind and handles normalization, `</s>`, tags and
control characters.
"""

import re
from pathlib import Path
from typing import Any

import sentencepiece

from mtx.config.limits import MAX_PIECES
from mtx.errors import DamagedFileError
from mtx.storage.durable import require_file, require_size
from mtx.storage.model_description import MAX_TOKENIZER_BYTES
from mtx.storage.run_files import TOKENIZER_MODEL, TOKENIZER_SRC_MODEL, TOKENIZER_TGT_MODEL

EOS_ID = 0
UNK_ID = 1
EOS = "</s>"
UNK = "<unk>"
PAD = "<pad>"
Encoded = list[list[int]]  # the token ids of sentences
SPACE = "▁"  # SentencePiece's sign before a word
BYTE = re.compile("<0x[0-9A-F]{2}>")  # the name of a byte piece
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can hold them, UTF-8 cannot
_MANY = 100  # texts that SentencePiece encodes faster as a list than one by one


def piece_bytes(piece: str) -> bytes:
    """The text of a piece in UTF-8, with a space before a word, and `?` for `<unk>`."""
    if BYTE.fullmatch(piece):
        return bytes.fromhex(piece[3:5])
    return b"?" if piece == UNK else piece.replace(SPACE, " ").encode()


def _encoded(processor: Any, texts: list[str], num_threads: int, **options: Any) -> list[list[Any]]:
    """Ids or pieces of texts; a few texts are encoded one by one, since SentencePiece starts threads for every list."""
    if len(texts) < _MANY:
        return [processor.encode(text, **options) for text in texts]
    return list(processor.encode(texts, num_threads=num_threads, **options))


class JointModel:
    """One SentencePiece model for both sides, with its own ids, `</s>` 0 and `<unk>` 1.

    Attributes:
        pieces: the piece of each id.
        vocabulary: the id of each piece.
        languages: the ids of the pieces that name the language to translate into, such as `>>deu<<`.

    Raises:
        RuntimeError: if the bytes are not a SentencePiece model.
    """

    num_reserved = 8  # symbols after the pieces, for tags

    def __init__(self, model: bytes):
        self.source = self.target = model
        self.files = {TOKENIZER_MODEL: model}
        processor = _processor(model)
        self._src_processor = self._tgt_processor = processor
        self.pieces: list[str] = processor.id_to_piece(list(range(len(processor))))
        self.vocabulary = self._ids = {piece: token for token, piece in enumerate(self.pieces)}
        self.languages = dict[str, int]()

    def _processor(self, target: bool) -> Any:
        return self._tgt_processor if target else self._src_processor

    def split(self, texts: list[str], target: bool = False, num_threads: int = -1) -> list[list[str]]:
        """The pieces of texts; what no piece has is itself."""
        processor = self._processor(target)
        return _encoded(processor, texts, num_threads, out_type=str)

    def encode(self, texts: list[str], target: bool, num_threads: int) -> Encoded:
        """Token ids without `</s>`, by the model of the source or target side."""
        processor = self._processor(target)
        return _encoded(processor, texts, num_threads)

    def decode(self, ids: Encoded) -> list[str]:
        """The text of ids below `num_pieces`."""
        return [self._tgt_processor.decode(sentence) for sentence in ids]

    def merges(self, target: bool) -> tuple[dict[int, str], dict[str, int]]:
        """The merges of a BPE model: the text of each piece id, and the rank of each merged text.

        The lower the rank, the earlier the merge. Other models have no merges.
        """
        processor = self._processor(target)
        texts = dict[int, str]()
        scores = dict[str, float]()
        for number in range(len(processor)):
            piece = processor.id_to_piece(number)
            no_text = processor.is_control(number) or processor.is_unknown(number) or processor.is_byte(number)
            if piece in self._ids and not no_text:
                texts[self._ids[piece]] = piece
                if len(piece) > 1:
                    scores[piece] = processor.get_score(number)
        is_bpe = all(map(float.is_integer, scores.values()))  # a unigram model has logarithms of probabilities
        return texts, {piece: -round(score) for piece, score in scores.items() if is_bpe}


class SplitModel(JointModel):
    """A SentencePiece model for each side and one vocabulary, piece to id, as in published OPUS-MT models.

    The ids are those of the vocabulary, not SentencePiece's: text becomes pieces, and the pieces are looked up. A piece
    that is missing there becomes `<unk>`. Unlike in transformers' MarianTokenizer, the text `</s>` never becomes
    `</s>`'s id.

    Args:
        vocabulary: in the order of the ids, see `read_split`; `<pad>` is its last entry.

    Raises:
        RuntimeError: if the bytes are not a SentencePiece model.
    """

    num_reserved = 0

    def __init__(self, source: bytes, target: bytes, vocabulary: dict[str, int]):
        self.source = source
        self.target = target
        self.vocabulary = vocabulary
        self.files = {TOKENIZER_SRC_MODEL: source, TOKENIZER_TGT_MODEL: target}
        self._src_processor = _processor(source)
        self._tgt_processor = _processor(target)
        self.pieces = [*vocabulary][:-1]
        self.languages = {p: i for p, i in vocabulary.items() if p.startswith(">>") and p.endswith("<<")}
        self._silent = {UNK_ID, EOS_ID, *self.languages.values()}  # ids that are not part of the text
        self._ids = {p: i for p, i in vocabulary.items() if i not in self._silent and p != PAD}

    def encode(self, texts: list[str], target: bool, num_threads: int) -> Encoded:
        """Token ids without `</s>`, by the model of the source or target side."""
        sentences = self.split(texts, target, num_threads)
        return [[self._ids.get(piece, UNK_ID) for piece in sentence] for sentence in sentences]

    def decode(self, ids: Encoded) -> list[str]:
        """The text of ids below `num_pieces`, by the model of the target side.

        `<unk>` and language tokens are skipped, as with `skip_special_tokens` in transformers.
        """
        pieces = ([self.pieces[token] for token in sentence if token not in self._silent] for sentence in ids)
        # SentencePiece returns a piece of the source model only unchanged, with its ▁.
        return [self._tgt_processor.decode(sentence).replace(SPACE, " ").strip() for sentence in pieces]


def _processor(model: bytes) -> Any:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    if (size := len(processor)) > MAX_PIECES:
        raise RuntimeError(f"too many pieces: {size:,}")
    try:
        processor.id_to_piece(list(range(size)))
    except UnicodeDecodeError:
        raise RuntimeError("a piece is not UTF-8") from None
    return processor


def read_joint(path: Path) -> JointModel:
    """Read a joint model.

    Raises:
        DamagedFileError: if it is missing, damaged or has other control ids.
    """
    model, processor = read_model(path)
    if (processor.eos_id(), processor.unk_id()) != (EOS_ID, UNK_ID):
        raise DamagedFileError(f"{path}: the ids of </s> and <unk> are not {EOS_ID} and {UNK_ID}")
    return JointModel(model)


def read_split(src_path: Path, tgt_path: Path, path: Path, vocabulary: Any) -> SplitModel:
    """Read the models of the two sides, which share the vocabulary from `path`, with mtx's ids for its pieces.

    Those are the file's ids in their order, but `</s>` is 0, `<unk>` 1 and `<pad>` last.

    Raises:
        DamagedFileError: if a file is missing or not a SentencePiece model, or the vocabulary does not name each id
            from 0 on, or lacks one of these three.
    """
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if (
        not 3 <= len(ids) <= MAX_PIECES
        or any(type(token) is not int for token in ids)
        or sorted(ids) != list(range(len(ids)))
        or not {EOS, UNK, PAD} <= vocabulary.keys()
        or _SURROGATE.search("".join(vocabulary))
    ):
        raise DamagedFileError(
            f"{path}: expected 3 to {MAX_PIECES:,} pieces with ids from 0, of </s>, <unk>, <pad> too"
        )
    places = {**vocabulary, EOS: -2, UNK: -1, PAD: len(ids)}
    ordered = {piece: token for token, piece in enumerate(sorted(places, key=places.__getitem__))}
    return SplitModel(read_model(src_path)[0], read_model(tgt_path)[0], ordered)


def read_as_one(src_path: Path, tgt_path: Path) -> SplitModel:
    """Read the models of the two sides, or one for both, of any program, and assign mtx's ids to their pieces.

    Control symbols and unused pieces get no id. Pieces of only the target side follow the pieces of the source side.

    Raises:
        DamagedFileError: if a file is not a SentencePiece model, or they are too large.
    """
    vocabulary = {EOS: EOS_ID, UNK: UNK_ID}
    for path in dict.fromkeys((src_path, tgt_path)):
        _, model = read_model(path)
        for token in range(len(model)):
            if not (model.is_control(token) or model.is_unknown(token) or model.is_unused(token)):
                vocabulary.setdefault(model.id_to_piece(token), len(vocabulary))
    vocabulary[PAD] = len(vocabulary)
    return read_split(src_path, tgt_path, tgt_path, vocabulary)


def read_model(path: Path) -> tuple[bytes, Any]:
    """The bytes of a file that SentencePiece accepts as a model, and the model."""
    require_file(path)
    require_size(path, MAX_TOKENIZER_BYTES)
    model = path.read_bytes()
    try:
        return model, _processor(model)
    except RuntimeError as error:
        raise DamagedFileError(f"{path}: not a SentencePiece model ({' '.join(str(error).split())})") from None
