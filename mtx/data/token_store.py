"""Token ids on disk: an uncompressed Arrow IPC file, memory-mapped, that numpy reads without a copy.

Its record batches hold src_ids and tgt_ids (uint16, or uint32 above 65,536 ids, `</s>` included), the line
and the corpus that each pair came from, and its text. All pairs of a batch are of one corpus. Flat arrays over the
mapped file reach every id and every offset, so that a store takes no memory for each pair (see `Side`). This module
does not know what an id means; `tokenizer` does.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mtx.data.glossary import Glossary
from mtx.data.sampler import BLOCK, EpochOrder, Ints
from mtx.data.sampler import Side as Side
from mtx.data.tokenizer import Tokenizer
from mtx.errors import DamagedFileError
from mtx.storage import disk, durable
from mtx.storage.model_description import tokenizer_files
from mtx.storage.run_files import REPORT, SETTINGS, TERMS, TRAIN_STORE, VALID_STORE, test_store

_METADATA = b"mtx"
_MAX_VALID_BYTES = 1 << 29
_NUM_OPEN_BATCHES = 2048  # a window of the sampler has about 1,000, and as many with copies of the targets
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


def write_store(
    path: Path, num_ids: int, weights: list[float], batches: Iterable[Batch], window: int | None = None
) -> None:
    """Write pairs to a new file, in their order.

    Args:
        num_ids: every id is below this number.
        weights: the weight of each corpus, in the order of the corpus numbers in the batches.
        batches: made by `store_batch` with the same `num_ids`, each of one corpus.
        window: see `TokenStore`; None: all pairs.
    """
    metadata: durable.Json = {"format": durable.FORMAT, "num_ids": num_ids, "weights": weights}
    if window:
        metadata["window"] = window
    schema = _schema(num_ids).with_metadata({_METADATA: json.dumps(metadata)})
    with disk.create(path) as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


@dataclass(frozen=True)
class TokenStore:
    """A file of `write_store`, mapped into memory, or some of its blocks; a block is a record batch.

    Attributes:
        weights: of each corpus, how often its pairs occur in an epoch.
        window: about how many pairs a window of an epoch has, see `EpochOrder`.
        corpora: the number of the corpus of each block.
        read_block: reads the record batch of a block.
    """

    num_ids: int
    weights: NDArray[np.float64]
    window: int
    corpora: NDArray[np.uint16]
    src: Side
    tgt: Side
    read_block: Callable[[int], Batch]

    @classmethod
    def load(cls, path: Path, check_content: bool = True) -> "TokenStore":
        """Map a store.

        Args:
            check_content: whether to check every offset, so that no sentence leads out of the file or is empty.

        Raises:
            DamagedFileError: if the file is missing, damaged or of another kind.
        """
        try:
            file = pa.memory_map(os.fsencode(path)).read_buffer()
            reader = pa.ipc.open_file(file)
            metadata = json.loads(reader.schema.metadata[_METADATA])
            num_ids = int(metadata["num_ids"])
            weights = np.array(metadata["weights"], dtype=np.float64)
            window = int(metadata.get("window", sys.maxsize))  # missing in smaller stores, and in those of mtx 1.0
            if metadata["format"] != durable.FORMAT or reader.schema != _schema(num_ids) or window < 1:
                raise ValueError("another format or other columns")
            numbers = list[int]()
            corpora = list[int]()
            src_blocks = list[tuple[int, int, int]]()
            tgt_blocks = list[tuple[int, int, int]]()
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                if batch.num_rows:
                    corpus = batch["corpus"].to_numpy()
                    if check_content:
                        batch.validate()
                        if (corpus != corpus[0]).any():
                            raise ValueError("a batch of several corpora")
                    numbers.append(number)
                    corpora.append(corpus[0])
                    src_blocks.append(_find_block(file, batch["src_ids"], check_content))
                    tgt_blocks.append(_find_block(file, batch["tgt_ids"], check_content))
            id_type = np.dtype(reader.schema.field("src_ids").type.value_type.to_pandas_dtype())
            tokens = np.frombuffer(file, id_type, file.size // id_type.itemsize)
            offsets = np.frombuffer(file, np.int32, file.size // 4)
            src = Side(tokens, offsets, np.array(src_blocks, BLOCK))
            tgt = Side(tokens, offsets, np.array(tgt_blocks, BLOCK))
        except (OSError, ValueError, LookupError, TypeError, OverflowError, pa.ArrowException) as error:
            raise DamagedFileError(f"{path}: is not a readable store of token ids ({error})") from None

        read_block = lru_cache(_NUM_OPEN_BATCHES)(lambda block: reader.get_batch(numbers[block]))
        return cls(num_ids, weights, window, np.array(corpora, np.uint16), src, tgt, read_block)

    @property
    def num_pairs(self) -> int:
        """The number of pairs."""
        return self.src.num_sentences

    @property
    def corpus(self) -> NDArray[np.uint16]:
        """The number of the corpus of every pair, as a new array."""
        return self.corpora.repeat(self.src.blocks["size"])

    def src_texts(self) -> list[str]:
        """The source text of every pair, as a new list."""
        return self._column("src_text")

    def tgt_texts(self) -> list[str]:
        """The target text of every pair, as a new list."""
        return self._column("tgt_text")

    def _column(self, name: str) -> list[str]:
        blocks = map(self.read_block, range(len(self.corpora)))
        return [text for block in blocks for text in block[name].to_pylist()]

    def texts(self, pairs: Ints) -> tuple[list[str], list[str]]:
        """The source and target texts of the pairs with these numbers."""
        src = [block["src_text"][row].as_py() for block, row in self._rows(pairs)]
        tgt = [block["tgt_text"][row].as_py() for block, row in self._rows(pairs)]
        return src, tgt

    def lines(self, pairs: Ints) -> list[int]:
        """The lines of the pairs with these numbers in the files of their corpora."""
        return [block["line"][row].as_py() for block, row in self._rows(pairs)]

    def _rows(self, pairs: Ints) -> Iterator[tuple[Batch, int]]:
        """The block of each pair, and its row in the block."""
        blocks = self.src.blocks_of(pairs)
        rows = pairs - self.src.first_sentences[blocks]
        return zip(map(self.read_block, blocks.tolist()), rows.tolist(), strict=True)

    def take_corpora(self, corpora: Collection[int]) -> "TokenStore":
        """The pairs of some corpora, numbered from 0 in their order; nothing is copied."""
        blocks = np.flatnonzero(np.isin(self.corpora, [*corpora]))
        return replace(
            self,
            corpora=self.corpora[blocks],
            src=replace(self.src, blocks=self.src.blocks[blocks]),
            tgt=replace(self.tgt, blocks=self.tgt.blocks[blocks]),
            read_block=lambda block: self.read_block(int(blocks[block])),
        )

    def with_copies(self, weight: float) -> "TokenStore":
        """These pairs, followed by a copy of each with the target also as source; nothing is copied.

        Args:
            weight: of a copy, relative to its pair; the copies of a corpus form another corpus.
        """
        num_blocks = len(self.corpora)

        def read_block(block: int) -> Batch:
            if block < num_blocks:
                return self.read_block(block)
            batch = self.read_block(block - num_blocks)
            names = batch.schema.names
            columns = [batch[name.replace("src_", "tgt_")] for name in names]
            return pa.RecordBatch.from_arrays(columns, names)

        return replace(
            self,
            weights=np.append(self.weights, weight * self.weights),
            corpora=np.append(self.corpora, self.corpora + np.uint16(len(self.weights))),
            src=replace(self.src, blocks=np.append(self.src.blocks, self.tgt.blocks)),
            tgt=replace(self.tgt, blocks=np.append(self.tgt.blocks, self.tgt.blocks)),
            read_block=read_block,
        )

    def epoch_order(self, seed: int) -> EpochOrder:
        """The order of the pairs in each epoch."""
        return EpochOrder(self.src, self.tgt, self.weights[self.corpora], seed, self.window)


def _find_block(file: Any, ids: Any, check_content: bool) -> tuple[int, int, int]:
    """The BLOCK of a column of ids, which lies in the mapped file."""
    offsets = ids.offsets
    if check_content and np.diff(offsets.to_numpy()).min() < 1:  # `validate` checks only the first and the last offset
        raise ValueError("a sentence without </s>")
    id_size = ids.type.value_type.bit_width // 8
    return len(ids), _find_place(file, ids.values.buffers()[1], id_size), _find_place(file, offsets.buffers()[1], 4)


def _find_place(file: Any, part: Any, item_size: int) -> int:
    """Where a part of the mapped file begins in an array of the whole file."""
    place, rest = divmod(part.address - file.address, item_size)
    if rest or place < 0 or item_size * place + part.size > file.size:
        raise ValueError("ids outside the file")
    return int(place)


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
        check_content: whether to verify the content of the files and every offset; if another process does it, False:
            compare sizes.

    Raises:
        DamagedFileError: with the file, if one is missing or changed.
    """
    needed = [TRAIN_STORE, VALID_STORE, REPORT, SETTINGS, *tokenizer_files(data_dir)]
    durable.verify(data_dir, needed, only_sizes=not check_content)
    report = durable.read_json(data_dir / REPORT)
    terms = Glossary.read(data_dir / TERMS) if "terms" in report else None
    load = partial(TokenStore.load, check_content=check_content)
    tests = {name: load(data_dir / test_store(name)) for name in report["tests"]}
    entries = durable.read_manifest(data_dir)
    del entries[SETTINGS]
    sha256 = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    return PreparedData(
        train=load(data_dir / TRAIN_STORE),
        valid=load(data_dir / VALID_STORE),
        tests=tests,
        tokenizer=Tokenizer.load(data_dir),
        report=report,
        sha256=sha256,
        terms=terms,
    )


def load_valid(data_dir: Path) -> TokenStore:
    """Verify and open only the validation set, also of an untrusted run; raises DamagedFileError."""
    durable.verify(data_dir, {VALID_STORE: _MAX_VALID_BYTES}, only_needed=True)
    return TokenStore.load(data_dir / VALID_STORE)
