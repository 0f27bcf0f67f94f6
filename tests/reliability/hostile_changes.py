"""Ways in which a stranger can change a model directory; those that write the manifest themselves return True."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import sentencepiece
import torch

from mtx.storage import durable
from mtx.storage.durable import MANIFEST
from mtx.storage.run_files import MODEL_CONFIG, TOKENIZER_JSON, TOKENIZER_MODEL, WEIGHTS
from tests.reliability.hostile_files import header_of, torch_pickle, with_pieces
from tests.reliability.hostile_files import safetensors as safetensors_file

Change = Callable[[Path], Any]


def put(name: str, content: bytes) -> Change:
    """A file with this content."""
    return lambda directory: (directory / name).write_bytes(content) and None


def weights(change: Callable[[dict[str, torch.Tensor]], Any], name: str = WEIGHTS) -> Change:
    """Other tensors, in a file as it should be."""

    def write(directory: Path) -> None:
        tensors = safetensors.torch.load((directory / name).read_bytes())
        change(tensors)
        (directory / name).write_bytes(safetensors.torch.save(tensors))

    return write


def header(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Another header before the same bytes."""

    def write(directory: Path) -> None:
        values, data = header_of(directory / WEIGHTS)
        change(values)
        (directory / WEIGHTS).write_bytes(safetensors_file(values, data))

    return write


def embedding(**values: Any) -> Change:
    return header(lambda tensors: tensors["embedding"].update(values))


def extra(shape: list[int], dtype: str = "F32") -> Change:
    """One more tensor, of no bytes."""
    return header(lambda tensors: tensors.update(x={"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}))


def text(name: str, old: str, new: str) -> Change:
    """Other JSON text."""

    def write(directory: Path) -> None:
        found = json.dumps(json.loads((directory / name).read_text()))
        assert old in found, found[:500]
        (directory / name).write_text(found.replace(old, new, 1))

    return write


def config(**values: Any) -> Change:
    """Other values in config.json, of the model or beside it."""

    def write(directory: Path) -> None:
        found = json.loads((directory / MODEL_CONFIG).read_text())
        for key, value in values.items():
            (found["model"] if key in found["model"] else found)[key] = value
        (directory / MODEL_CONFIG).write_text(json.dumps(found))

    return write


def model_text(new: str) -> Change:
    return text(MODEL_CONFIG, '"d_model": 16', new)


def sentencepiece_model(change: Callable[[bytes], bytes]) -> Change:
    return lambda directory: put(TOKENIZER_MODEL, change((directory / TOKENIZER_MODEL).read_bytes()))(directory)


def known_pieces(pieces: bytes) -> Change:
    """More pieces, of which every other file knows."""

    def write(directory: Path) -> None:
        sentencepiece_model(lambda model: with_pieces(model, pieces))(directory)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / TOKENIZER_MODEL))
        size = processor.get_piece_size()
        known = json.loads((directory / TOKENIZER_JSON).read_text())
        known |= {"pieces": {processor.id_to_piece(i): i for i in range(size)}, "tags": {"BT": size}}
        (directory / TOKENIZER_JSON).write_text(json.dumps(known))
        config(num_ids=size + 8)(directory)
        weights(lambda tensors: tensors.update(embedding=torch.ones(size + 9, 16)))(directory)

    return write


def manifest(change: Callable[[dict[str, Any]], Any]) -> Change:
    """A manifest that says something else; True keeps the caller from making it right again."""

    def write(directory: Path) -> bool:
        durable.write_manifest(directory)
        values = json.loads((directory / MANIFEST).read_text())
        result = change(values)
        content = result if isinstance(result, bytes) else json.dumps(values).encode()
        content = content if content.endswith(b"\n") else content + b"\n"  # as a manifest must end
        (directory / MANIFEST).write_bytes(content)
        return True

    return write


def listed(name: str) -> Change:
    """One more name in the manifest."""
    entry = {"bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    return manifest(lambda values: values["files"].update({name: entry}))


def gone(directory: Path, name: str) -> Path:
    (directory / name).unlink(missing_ok=True)
    return directory / name


def link(name: str, target: str, list_it: bool = False) -> Change:
    """A link under the name of a file."""

    def write(directory: Path) -> Any:
        gone(directory, name).symlink_to(target)
        return listed(name)(directory) if list_it else name == MANIFEST

    return write


def outside(name: str) -> Change:
    """The honest file, but outside, with a link to it."""

    def write(directory: Path) -> bool:
        durable.write_manifest(directory)
        secret = directory.parent.parent / f"secret-{name}"
        shutil.move(directory / name, secret)
        (directory / name).symlink_to(secret)
        return True

    return write


def pipe(name: str) -> Change:
    def write(directory: Path) -> Any:
        os.mkfifo(gone(directory, name))
        return name == MANIFEST or listed(name)(directory)

    return write


def instead(name: str) -> Change:
    """A pickle under another name than that of the weights, which are not there."""
    return lambda directory: (gone(directory, WEIGHTS), put(name, torch_pickle())(directory), None)[-1]


def overlap(tensors: dict[str, Any]) -> None:
    first, second = sorted(tensors.values(), key=lambda tensor: tensor["data_offsets"])[:2]
    second.update(data_offsets=first["data_offsets"], shape=first["shape"])


def twice(directory: Path) -> None:
    values, data = header_of(directory / WEIGHTS)
    same = f', "embedding": {json.dumps(values["embedding"])}}}'
    (directory / WEIGHTS).write_bytes(safetensors_file((json.dumps(values)[:-1] + same).encode(), data))


def huge(name: str, size: int = 10 << 40) -> Change:
    """A file that takes no room and hours to read, rightly listed but for its hash."""

    def write(directory: Path) -> bool:
        path = directory / name
        if not (path.parent / MANIFEST).exists():
            durable.write_manifest(path.parent)
        path.touch()
        os.truncate(path, size)
        values = json.loads((path.parent / MANIFEST).read_text())
        values["files"][path.name] = {"bytes": size, "sha256": "0" * 64}
        (path.parent / MANIFEST).write_text(json.dumps(values) + "\n")
        return True

    return write


def braces(size: int) -> Change:
    """So many bytes of JSON that take the most memory."""
    return manifest(lambda values: b'{"format": 2, "files": [' + b"{}," * (size // 3) + b"{}]}")
