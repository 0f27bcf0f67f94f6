"""The SentencePiece models of a tokenizer, and how their pieces become ids: one joint model, or one for each side.

`mtx.data.tokenizer` puts normalization, `</s>`, tags and control characters around either kind.
"""

import reprlib
from pathlib import Path
from typing import Any

import sentencepiece

from mtx.errors import DamagedFileError
from mtx.files.durable import require_file
from mtx.run.layout import TOKENIZER_MODEL, TOKENIZER_SRC_MODEL, TOKENIZER_TGT_MODEL

EOS_ID = 0
UNK_ID = 1
EOS, UNK, PAD = "</s>", "<unk>", "<pad>"

_MAX_MODEL_BYTES = 1 << 25  # published models have about 800 kB
_MAX_PIECES = 1 << 20  # published vocabularies have about 60,000


class JointModel:
    """One SentencePiece model for both sides; the ids are its own, `</s>` 0 and `<unk>` 1.

    Raises:
        RuntimeError: where the bytes are no SentencePiece model.
    """

    num_reserved = 8  # symbols after the pieces, for tags

    def __init__(self, model: bytes):
        self.files = {TOKENIZER_MODEL: model}
        self._processor = _processor(model)
        self.num_pieces: int = self._processor.get_piece_size()

    @property
    def control_ids(self) -> tuple[int, int]:
        """What `</s>` and `<unk>` are in this model."""
        return self._processor.eos_id(), self._processor.unk_id()

    @property
    def source(self) -> bytes:
        return self.files[TOKENIZER_MODEL]

    target = source

    def encode(self, texts: list[str], target: bool, num_threads: int) -> list[list[int]]:
        """Token ids without `</s>`; both sides alike."""
        ids: list[list[int]] = self._processor.encode(texts, num_threads=num_threads)
        return ids

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Text of ids below `num_pieces`."""
        texts: list[str] = self._processor.decode(ids)
        return texts

    def piece(self, token: int) -> str:
        piece: str = self._processor.id_to_piece(token)
        return piece

    def described_pieces(self) -> dict[str, int]:
        """Piece to id, as `tokenizer.json` holds it."""
        return {self.piece(token): token for token in range(self.num_pieces)}


class SplitModel:
    """A SentencePiece model for each side and one vocabulary, piece to id, as published OPUS-MT models have them.

    The ids are those of the vocabulary and not SentencePiece's: text becomes pieces, and pieces are looked up. A piece
    that is not there is `<unk>`. A language token (`>>deu<<`) that the vocabulary holds is one id where a source begins
    with it, as transformers' MarianTokenizer has it; unlike there, the text `</s>` never becomes the id of `</s>`.

    Args:
        vocabulary: what `check_vocabulary` accepts; `<pad>` is its last entry.

    Raises:
        RuntimeError: where the bytes are no SentencePiece model.
    """

    num_reserved = 0

    def __init__(self, source: bytes, target: bytes, vocabulary: dict[str, int]):
        self.source, self.target, self.vocabulary = source, target, vocabulary
        self.files = {TOKENIZER_SRC_MODEL: source, TOKENIZER_TGT_MODEL: target}
        self._src_processor, self._tgt_processor = _processor(source), _processor(target)
        self.num_pieces = len(vocabulary) - 1
        self._pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        self._languages = {p: i for p, i in vocabulary.items() if p.startswith(">>") and p.endswith("<<")}
        self._silent = {UNK_ID, EOS_ID, *self._languages.values()}  # ids that leave no text
        self._ids = {p: i for p, i in vocabulary.items() if i not in self._silent and p != PAD}

    def encode(self, texts: list[str], target: bool, num_threads: int) -> list[list[int]]:
        """Token ids without `</s>`, by the model of the source side or of the target side."""
        starts = [[] if target else self._language(text) for text in texts]
        texts = [text.partition("<<")[2] if start else text for start, text in zip(starts, texts, strict=True)]
        processor, ids = self._tgt_processor if target else self._src_processor, self._ids
        pieces = processor.encode(texts, out_type=str, num_threads=num_threads)
        return [
            start + [ids.get(piece, UNK_ID) for piece in sentence]
            for start, sentence in zip(starts, pieces, strict=True)
        ]

    def _language(self, text: str) -> list[int]:
        """The id of the language token that the text begins with."""
        language = self._languages.get(text[: text.find("<<") + 2]) if text.startswith(">>") else None
        return [] if language is None else [language]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Text of ids below `num_pieces`, by the target side's model.

        `<unk>` leaves no trace, as with `skip_special_tokens` in transformers; neither do language tokens.
        """
        return [self._decode([self._pieces[i] for i in sentence if i not in self._silent]) for sentence in ids]

    def _decode(self, pieces: list[str]) -> str:
        # A piece that only the other side's model knows comes back as it is, with its ▁.
        return str(self._tgt_processor.decode(pieces)).replace("▁", " ").strip() if pieces else ""

    def piece(self, token: int) -> str:
        return self._pieces[token]

    def described_pieces(self) -> dict[str, int]:
        """Piece to id, as `tokenizer.json` holds it."""
        return self.vocabulary


def _processor(model: bytes) -> Any:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    if (size := processor.get_piece_size()) > _MAX_PIECES:
        raise RuntimeError(f"{size:,} pieces are too many")
    try:
        processor.id_to_piece(list(range(size)))
    except UnicodeDecodeError:
        raise RuntimeError("a piece is not UTF-8") from None
    return processor


def read_model(path: Path) -> bytes:
    """The bytes of a file that may be a SentencePiece model."""
    require_file(path)
    if path.stat().st_size > _MAX_MODEL_BYTES:
        raise DamagedFileError(f"{path}: {path.stat().st_size:,} bytes are too many for a SentencePiece model")
    return path.read_bytes()


def read_split(src_path: Path, tgt_path: Path, vocabulary: dict[str, int]) -> SplitModel:
    """The model of two files and a checked vocabulary; a file that is no SentencePiece model is refused by name."""
    source, target = read_model(src_path), read_model(tgt_path)
    for path, model in ((src_path, source), (tgt_path, target)):
        try:
            _processor(model)
        except RuntimeError as error:
            raise no_model(path, error) from None
    return SplitModel(source, target, vocabulary)


def no_model(path: Path, error: RuntimeError) -> DamagedFileError:
    return DamagedFileError(f"{path}: is not a SentencePiece model ({' '.join(str(error).split())})")


def check_vocabulary(path: Path, vocabulary: Any) -> dict[str, int]:
    """The vocabulary of a split model as it was read from `path`.

    Raises:
        DamagedFileError: where it is not a name for each id from 0 on, with `</s>` 0, `<unk>` 1 and `<pad>` last.
    """
    if not isinstance(vocabulary, dict) or not 3 <= len(vocabulary) <= _MAX_PIECES:
        raise DamagedFileError(f"{path}: its pieces are no JSON object of 3 to {_MAX_PIECES:,} ids")
    for piece, token in vocabulary.items():
        if type(token) is not int or not 0 <= token < len(vocabulary) or not _is_text(piece):
            got = f"piece {reprlib.repr(piece)} has id {reprlib.repr(token)}"
            raise DamagedFileError(f"{path}: {got}, expected text and 0 to {len(vocabulary) - 1}")
    if len(set(vocabulary.values())) < len(vocabulary):
        raise DamagedFileError(f"{path}: two of its {len(vocabulary)} pieces have the same id")
    for piece, token in ((EOS, EOS_ID), (UNK, UNK_ID), (PAD, len(vocabulary) - 1)):
        if vocabulary.get(piece) != token:
            raise DamagedFileError(f"{path}: {piece} has id {vocabulary.get(piece)}, expected {token}")
    return vocabulary


def _is_text(piece: str) -> bool:
    """Whether it has a UTF-8 form: JSON can spell lone surrogates, which have none."""
    try:
        piece.encode()
    except UnicodeEncodeError:
        return False
    return True
