"""Files as no honest program writes them: safetensors and SentencePiece models from raw bytes, and pickles that act."""

import io
import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Unpickled, it makes a file: os.system("touch canary") in protocol 0.
PICKLE = b"cposix\nsystem\n(S'touch canary'\ntR."
_LENGTH_DELIMITED = 2


def torch_pickle() -> bytes:
    """The same as torch.save would wrap it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", PICKLE)
        archive.writestr("archive/version", b"3\n")
    return file.getvalue()


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header, as it is where it is bytes, and this for its length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file and the bytes behind it."""
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:end]), content[end:]


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(value)) + value


def piece(text: bytes, kind: int = 1, score: float = 0.0) -> bytes:
    """A piece of a SentencePiece model."""
    return field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + field(3, kind))


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a SentencePiece model, all of which have a length."""
    place = 0

    def varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            byte = message[place]
            place, number, shift = place + 1, number | (byte & 127) << shift, shift + 7
            if byte < 128:
                return number

    while place < len(message):
        key, length = varint(), varint()
        assert key & 7 == _LENGTH_DELIMITED
        yield key >> 3, message[place : place + length]
        place += length


def with_pieces(model: bytes, pieces: bytes) -> bytes:
    """A SentencePiece model with these pieces behind its own."""
    old = [(number, value) for number, value in fields(model)]
    own = b"".join(field(number, value) for number, value in old if number == 1)
    return own + pieces + b"".join(field(number, value) for number, value in old if number != 1)


def with_charsmap(model: bytes, charsmap: bytes) -> bytes:
    """A SentencePiece model that normalizes by this table."""
    rest = b"".join(field(number, value) for number, value in fields(model) if number != 3)
    return rest + field(3, field(1, b"x") + field(2, charsmap) + field(3, 1) + field(4, 1) + field(5, 1))
