"""Token ids on disk: an uncompressed Arrow IPC file, memory-mapped, that numpy reads without a copy.

Its record batches hold src_ids and tgt_ids (uint16, or uint32 above 65,536 ids, `</s>` included), the line
and the corpus that each pair came from, and its text. One flat array over the mapped file reaches every id, and a
sentence is a start and a length in that array. This module does not know what an id means; `tokenizer` does.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mtx.data.glossary import Glossary
from mtx.data.sampler import Ids, Ints
from mtx.data.sampler import Side as Side
from mtx.data.tokenizer import Tokenizer
from mtx.errors import DamagedFileError
from mtx.storage import disk, durable
from mtx.storage.model_description import tokenizer_files
from mtx.storage.run_files import REPORT, SETTINGS, TERMS, TRAIN_STORE, VALID_STORE, test_store

_METADATA = b"mtx"
_MAX_VALID_BYTES = 1 << 29
Batch: TypeAlias = pa.RecordBatch


def _schema(num_ids: int) -> Any:
    ids = pa.list_(pa.uint16() if num_ids <= 65_536 else pa.uint32())
    text = pa.large_string()
    columns = {"src_ids": ids, "tgt_ids": ids, "line": pa.int64(), "corpus": pa.uint16()}
    return pa.schema(columns | {"src_text": text, "tgt_text": text})


def store_batch(num_ids: int, *columns: Any) -> Batch:
    """A record batch for `write_store`.

    Args:
        columns: lists or arrays with an item a pair: ids of source and target, line, corpus, source and target text.
    """
    return pa.RecordBatch.from_arrays(list(columns), schema=_schema(num_ids))


def write_store(path: Path, num_ids: int, weights: list[float], batches: Iterable[Batch]) -> None:
    """Write pairs to a new file, in their order.

    Args:
        num_ids: every id is below this number.
        weights: the weight of each corpus, in the order of the corpus numbers in the batches.
        batches: made by `store_batch` with the same `num_ids`.
    """
    metadata = {"format": durable.FORMAT, "num_ids": num_ids, "weights": weights}
    schema = _schema(num_ids).with_metadata({_METADATA: json.dumps(metadata)})
    with disk.create(path) as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


@dataclass(frozen=True)
class TokenStore:
    """A file of `write_store`, mapped into memory; `corpus` and both sides have one item a pair."""

    num_pairs: int
    num_ids: int
    weights: NDArray[np.float64]
    corpus: NDArray[np.uint16]
    src: Side
    tgt: Side
    _table: Any

    @classmethod
    def load(cls, path: Path) -> "TokenStore":
        """Map a store.

        Raises:
            DamagedFileError: if the file is missing, damaged or of another kind.
        """
        try:
            file = pa.memory_map(os.fsencode(path)).read_buffer()
            reader = pa.ipc.open_file(file)
            metadata = json.loads(reader.schema.metadata[_METADATA])
            num_ids = int(metadata["num_ids"])
            weights = np.array(metadata["weights"], dtype=np.float64)
            if metadata["format"] != durable.FORMAT or reader.schema != _schema(num_ids):
                raise ValueError("another format or other columns")
            table = reader.read_all()
            table.validate()
            id_type = np.dtype(reader.schema.field("src_ids").type.value_type.to_pandas_dtype())
            tokens = np.frombuffer(file, id_type, file.size // id_type.itemsize)
            src, tgt = (_view(tokens, table[column].chunks) for column in ("src_ids", "tgt_ids"))
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
            raise DamagedFileError(f"{path}: is not a readable store of token ids ({error})") from None
        return cls(table.num_rows, num_ids, weights, table["corpus"].to_numpy(), src, tgt, table)

    def src_texts(self) -> list[str]:
        """The source text of every pair, as a new list."""
        return list(self._table["src_text"].to_pylist())

    def tgt_texts(self) -> list[str]:
        """The target text of every pair, as a new list."""
        return list(self._table["tgt_text"].to_pylist())

    def texts(self, pairs: Ints) -> tuple[list[str], list[str]]:
        """The source and target texts of the pairs with these numbers."""
        texts = self._table["src_text"], self._table["tgt_text"]  # whose `take` would copy all texts
        src, tgt = ([text[pair].as_py() for pair in pairs.tolist()] for text in texts)
        return src, tgt

    def with_copies(self, weight: float) -> "TokenStore":
        """These pairs, followed by a copy of each with the target also as source; the ids are not copied.

        Args:
            weight: of a copy, relative to its pair; the copies of a corpus form another corpus.
        """
        tgt = self.tgt
        src_twice, tgt_twice = (
            Side(tgt.tokens, np.append(side.starts, tgt.starts), np.append(side.lengths, tgt.lengths))
            for side in (self.src, tgt)
        )
        corpus = np.append(self.corpus, self.corpus + np.uint16(len(self.weights)))
        weights = np.append(self.weights, weight * self.weights)
        names = self._table.column_names
        copies = self._table.select([name.replace("src_", "tgt_") for name in names]).rename_columns(names)
        table = pa.concat_tables([self._table, copies])
        return TokenStore(table.num_rows, self.num_ids, weights, corpus, src_twice, tgt_twice, table)

    def lines(self) -> Ints:
        """For each pair, its line in the file of its corpus."""
        return np.asarray(self._table["line"])


def _view(tokens: Ids, chunks: Iterable[Any]) -> Side:
    """View the ids of a column in place, by the offset of each chunk's values in the mapped file."""
    starts = [np.empty(0, np.int64)]
    lengths = [np.empty(0, np.int32)]
    for ids in chunks:
        offsets = ids.offsets.to_numpy()
        distance = ids.values.buffers()[1].address - tokens.ctypes.data  # of a batch that is read whole
        starts.append(offsets[:-1] + np.int64(distance // tokens.itemsize))
        lengths.append(np.diff(offsets))
    side = Side(tokens, np.concatenate(starts), np.concatenate(lengths))
    if side.lengths.min(initial=1) < 1:  # `validate` has checked only the first and the last offset
        raise ValueError("a sentence without </s>")
    return side


@dataclass(frozen=True)
class PreparedData:
    """What training and evaluation need: token ids, their tokenizer, and the report on the preparation.

    Attributes:
        sha256: of the SHA-256 of every file except the run's settings; it identifies the data.
        terms: word pairs from which the model learns to use a glossary; None without data.terms.
    """

    train: TokenStore
    valid: TokenStore
    tests: dict[str, TokenStore]
    tokenizer: Tokenizer
    report: durable.Json
    sha256: str
    terms: Glossary | None = None


def load_prepared(data_dir: Path, check_content: bool = True) -> PreparedData:
    """Verify and open what `prepare` wrote.

    Args:
        check_content: whether to verify the content of the files; if another process does it, False: compare sizes.

    Raises:
        DamagedFileError: with the file, if one is missing or changed.
    """
    needed = [TRAIN_STORE, VALID_STORE, REPORT, SETTINGS, *tokenizer_files(data_dir)]
    durable.verify(data_dir, needed, only_sizes=not check_content)
    report = durable.read_json(data_dir / REPORT)
    terms = Glossary.read(data_dir / TERMS) if "terms" in report else None
    train, valid = (TokenStore.load(data_dir / name) for name in (TRAIN_STORE, VALID_STORE))
    tests = {name: TokenStore.load(data_dir / test_store(name)) for name in report["tests"]}
    entries = durable.read_manifest(data_dir)
    del entries[SETTINGS]
    sha256 = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    return PreparedData(train, valid, tests, Tokenizer.load(data_dir), report, sha256, terms)


def load_valid(data_dir: Path) -> TokenStore:
    """Verify and open only the validation set, also of an untrusted run; raises DamagedFileError."""
    durable.verify(data_dir, {VALID_STORE: _MAX_VALID_BYTES}, only_needed=True)
    return TokenStore.load(data_dir / VALID_STORE)
