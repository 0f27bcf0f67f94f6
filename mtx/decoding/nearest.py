"""Finds the training sentences that are nearest to a line, with their translations: fuzzy matches by meaning.

The vectors of the training sources are made once and kept in `RUN/vectors`, as .npy files that other programs read as
well. They are the means of `sentence_vectors`, scaled and of length 1, so that an inner product is a similarity:

    vector = (mean over the pieces - mean.npy) @ scaling.npy, then divided by its length

scaling.npy is the inverse fourth root of the vectors' covariance, which makes directions in which all sentences differ
much count less, and those in which they differ little count more (measured in docs/decisions.md).
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtx.data.blocks import progress_bar
from mtx.data.cleaning import clean_text
from mtx.data.preprocess import load_prepared
from mtx.data.token_store import TokenStore
from mtx.decoding.sentence_vectors import SentenceEncoder
from mtx.errors import DamagedFileError
from mtx.files import disk, durable
from mtx.files.arrays import Floats, open_rows, write_rows
from mtx.model_directory.storage import LoadedModel
from mtx.run.directory import refuse_foreign
from mtx.run.layout import TRAIN_VECTORS, VECTORS_MEAN, VECTORS_ORIGIN, VECTORS_SCALING, RunLayout
from mtx.run.lock import hold_lock, write_owner

logger = logging.getLogger(__name__)

_FILES = (TRAIN_VECTORS, VECTORS_MEAN, VECTORS_SCALING, VECTORS_ORIGIN)
_UNSCALED = "unscaled.npy"
_PAIRS_AT_ONCE = 4096
_SCORES_AT_ONCE = 1 << 24  # similarities in memory
_LEAST_VARIANCE = 1e-6  # of a direction, relative to the largest; layer norm leaves some with none but rounding


@dataclass(frozen=True)
class Neighbour:
    """A training sentence near to a line.

    Attributes:
        similarity: the cosine of the scaled vectors, at most 1, to six places.
        translations: those of its pairs in the training text, the most frequent first.
    """

    similarity: float
    source: str
    translations: list[str]


class TrainingSentences:
    """The sources of a run's training text, in which `nearest` searches.

    Args:
        vectors, mean, scaling: see the module.
    """

    def __init__(self, encoder: SentenceEncoder, store: TokenStore, vectors: Floats, mean: Floats, scaling: Floats):
        self._encoder, self._store = encoder, store
        self._vectors, self._mean, self._scaling = vectors, mean, scaling
        self._numbers = store.source_numbers()
        _, firsts = np.unique(self._numbers, return_index=True)
        self._is_repeated = np.ones(store.num_pairs, dtype=bool)
        self._is_repeated[firsts] = False
        self._num_sources = len(firsts)

    @classmethod
    def open(cls, paths: RunLayout, encoder: SentenceEncoder) -> "TrainingSentences":
        """The training sentences of a prepared run, whose vectors are made now if they are missing or outdated.

        Raises:
            MtxError: if another process works on the run while they have to be made.
            DamagedFileError: if the prepared data is damaged.
        """
        data, translator = load_prepared(paths.data), encoder.translator
        weights = LoadedModel(translator.model, translator.tokenizer, {}).sha256
        origin = {"weights": weights, "data": data.sha256}
        if not _is_made_from(paths.vectors, origin):
            refuse_foreign(paths)
            with hold_lock(paths):
                write_owner(paths.lock)
                durable.remove_temporaries(paths.root)
                _make_vectors(paths.vectors, origin, encoder, data.train)
        vectors, mean, scaling = (open_rows(paths.vectors / name) for name in _FILES[:3])
        return cls(encoder, data.train, vectors, mean, scaling)

    def nearest(self, lines: Sequence[str], count: int) -> list[list[Neighbour]]:
        """Returns the `count` nearest sentences of each line, or all if there are fewer, nearest first.

        A sentence that the text has several times is one neighbour, with at most `count` translations. A line that is
        itself among its neighbours is the first. An empty line has none.
        """
        count = min(count, self._num_sources)
        found = list[list[Neighbour]]()
        for start in range(0, len(lines), size := max(1, _SCORES_AT_ONCE // max(count, _PAIRS_AT_ONCE))):
            found += self._nearest(lines[start : start + size], count)
        return found

    def _nearest(self, lines: Sequence[str], count: int) -> list[list[Neighbour]]:
        means = self._encoder.means(lines)
        scores, pairs = self._search(_scaled(means, self._mean, self._scaling), count)
        neighbours = self._neighbours(scores.ravel(), pairs.ravel(), count)
        found = [list(islice(neighbours, count)) for _ in lines]
        for own, line in zip(found, map(clean_text, lines), strict=True):
            own.sort(key=lambda neighbour: neighbour.source != line)  # noqa: B023  # others can have the same vector
        return [own if mean.any() else [] for own, mean in zip(found, means, strict=True)]

    def _search(self, queries: Floats, count: int) -> tuple[Floats, NDArray[np.int64]]:
        """The similarities of the nearest sentences of each query, and the first pairs that have them, [L, count]."""
        scores: Any = np.empty((len(queries), 0), np.float32)
        pairs: Any = np.empty((len(queries), 0), np.int64)
        size = _SCORES_AT_ONCE // len(queries)
        for start in range(0, len(self._vectors), size):
            new = queries @ self._vectors[start : start + size].T
            new[:, self._is_repeated[start : start + size]] = -np.inf
            columns = _largest(new, count)
            scores = np.concatenate([scores, np.take_along_axis(new, columns, 1)], 1)
            pairs = np.concatenate([pairs, start + columns], 1)
            columns = _largest(scores, count)
            scores, pairs = (np.take_along_axis(values, columns, 1) for values in (scores, pairs))
        order = np.argsort(-scores, 1, kind="stable")
        return np.take_along_axis(scores, order, 1), np.take_along_axis(pairs, order, 1)

    def _neighbours(self, scores: Floats, pairs: NDArray[np.int64], most: int) -> Iterator[Neighbour]:
        """The sentences of some pairs with at most `most` translations of all their pairs."""
        all_pairs = [np.flatnonzero(self._numbers == number) for number in self._numbers[pairs]]
        src, tgt = map(iter, self._store.texts(np.concatenate(all_pairs)))
        for score, same in zip(scores.tolist(), all_pairs, strict=True):
            [source] = {*islice(src, len(same))}
            translations = [text for text, _ in Counter(islice(tgt, len(same))).most_common(most)]
            yield Neighbour(min(round(score, 6), 1.0), source, translations)


def _largest(scores: Floats, count: int) -> NDArray[np.int64]:
    """The columns of the `count` largest scores of each row, in any order; all if there are fewer."""
    count = min(count, scores.shape[1])
    return np.argpartition(scores, -count, axis=1)[:, -count:]


def _is_made_from(directory: Path, origin: dict[str, str]) -> bool:
    """Whether a directory has whole vectors of these weights and this data."""
    if not directory.exists():
        return False
    try:
        durable.verify(directory, _FILES)
        stored = durable.read_json(directory / VECTORS_ORIGIN)
    except DamagedFileError as error:
        logger.warning("%s; the vectors are made again", error)
        return False
    return all(stored.get(key) == value for key, value in origin.items())


def _make_vectors(directory: Path, origin: dict[str, str], encoder: SentenceEncoder, store: TokenStore) -> None:
    started = perf_counter()
    logger.info("%s: encoding the %s training sentences, which is done once", directory, f"{store.num_pairs:,}")
    with durable.new_directory(directory, replace=True) as new:
        _write(new / _UNSCALED, _means(encoder, store), encoder.size)
        means = open_rows(new / _UNSCALED)
        mean, scaling = _scaling(means)
        scaled = (_scaled(block, mean, scaling) for block in _blocks(means))
        for name, blocks in ((TRAIN_VECTORS, scaled), (VECTORS_MEAN, [mean]), (VECTORS_SCALING, [scaling])):
            _write(new / name, blocks, encoder.size)
        disk.unlink(new / _UNSCALED)
        durable.write_json(new / VECTORS_ORIGIN, origin)
    logger.info("%s: done in %.1f s", directory, perf_counter() - started)


def _write(path: Path, blocks: "Iterator[Floats] | list[Floats]", num_columns: int) -> None:
    with disk.create(path) as file:
        write_rows(file, blocks, num_columns)


def _means(encoder: SentenceEncoder, store: TokenStore) -> Iterator[Floats]:
    with progress_bar("encoding", store.num_pairs) as bar:
        for start in range(0, store.num_pairs, _PAIRS_AT_ONCE):
            src, _ = store.texts(np.arange(start, min(start + _PAIRS_AT_ONCE, store.num_pairs)))
            yield encoder.means(src)
            bar.update(len(src))


def _blocks(rows: Floats) -> Iterator[Floats]:
    return (rows[start : start + _PAIRS_AT_ONCE] for start in range(0, len(rows), _PAIRS_AT_ONCE))


def _scaling(means: Floats) -> tuple[Floats, Floats]:
    """The mean of the vectors, [1, D], and the inverse fourth root of their covariance, [D, D]."""
    mean = np.sum([block.sum(0, dtype=np.float64) for block in _blocks(means)], 0, keepdims=True) / len(means)
    centred = (block - mean for block in _blocks(means))
    covariance = sum(block.T @ block for block in centred) / len(means)
    variances, directions = np.linalg.eigh(covariance)
    variances = np.maximum(variances, max(_LEAST_VARIANCE * variances[-1], np.finfo(np.float32).tiny))
    return mean.astype(np.float32), (directions * variances**-0.25 @ directions.T).astype(np.float32)


def _scaled(means: Floats, mean: Floats, scaling: Floats) -> Floats:
    """The vectors of length 1 in which sentences are compared."""
    vectors = (means - mean) @ scaling
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled
