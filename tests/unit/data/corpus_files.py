"""Small corpora in every form that mtx reads, and how tests look them up and read them."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mtx.config.schema import DataConfig
from mtx.data.readers import PairFile, open_pairs
from mtx.data.sources import Corpora, Corpus, find_corpora
from mtx.data.tables import Columns

Pairs = list[tuple[str, str]]
PAIRS = [("a dog", "ein Hund"), ("a cat", "eine Katze"), ("", "leer")]


def find(directory: Path | None = None, **keys: Any) -> Corpora:
    values = {"src": "en", "tgt": "de", "dir": str(directory) if directory else None, **keys}
    return find_corpora(DataConfig.model_validate(values))


def open_file(path: Path) -> PairFile:
    file = open_pairs(path)
    assert file, "it has single sentences"
    return file


def find_languages(path: Path, columns: Columns = ()) -> tuple[str, str, str]:
    return open_file(path).find_languages(columns)


def pairs_of(corpus: Corpus | list[Corpus]) -> Pairs:
    if isinstance(corpus, list):
        (corpus,) = corpus
    pairs, line = Pairs(), None
    for block in corpus.blocks():
        assert line is None or block.lines == range(line, line + len(block.src))
        line = block.lines[-1] + 1
        pairs += zip(block.src, block.tgt, strict=True)
    return pairs


def write(path: Path, text: str | bytes) -> Path:
    """Write bytes as they stand, compressed where the name says so."""
    data = text.encode() if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_sides(directory: Path, name: str, pairs: Pairs = PAIRS, ending: str = "") -> None:
    for side, language in enumerate(("en", "de")):
        write(directory / f"{name}.{language}{ending}", "".join(pair[side] + "\n" for pair in pairs))


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def keyed(src: str, tgt: str, nested: bool) -> Callable[[str, str], dict[str, Any]]:
    return lambda a, b: {"id": 1, "translation": {src: a, tgt: b}} if nested else {tgt: b, src: a, "id": 1}


SHAPES = [keyed("src", "tgt", False), keyed("en", "de", False), keyed("en", "de", True), keyed("src", "tgt", True)]
