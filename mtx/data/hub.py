"""Loads a dataset of the Hugging Face hub with `datasets`: its splits as corpora."""

import logging
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from mtx.config import DataConfig, HubConfig
from mtx.data import formats
from mtx.data.corpora import Corpora, Corpus, PairBlock, name_test_sets
from mtx.errors import DataError, MtxError

log = logging.getLogger(__name__)

_CONVERTED = "refs/convert/parquet"  # the branch where the hub keeps a Parquet copy, in one folder for each subset


def find_hub_corpora(data: DataConfig, hub: HubConfig) -> Corpora:
    """The splits that `hub` names; downloads what is not in the cache. Test sets go by their local names where given.

    Raises:
        MtxError: where the dataset cannot be loaded.
        DataError: where it has no columns for the two languages.
    """
    languages = data.src, data.tgt
    splits = [hub.train, *([hub.valid] if hub.valid is not None else []), *hub.test]
    found = []
    for split, dataset in zip(splits, _load_splits(hub, splits), strict=True):
        name = f"{hub.name} {split}"
        columns = formats.find_columns(name, dataset.features.arrow_schema, languages)
        found.append(Corpus(name, 1.0, None, partial(_read_dataset, name, dataset, columns)))
    names = [*data.test[: len(hub.test)], *hub.test[len(data.test) :]]
    tests = zip(name_test_sets(names), found[len(found) - len(hub.test) :], strict=True)
    return Corpora(found[:1], found[1] if hub.valid is not None else None, {key: test for (key, _), test in tests})


def _load_splits(hub: HubConfig, splits: list[str]) -> list[Any]:
    import datasets  # takes seconds, which local files need not wait for

    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # what it logs as an error it also raises
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        subset = {"data_dir": hub.subset} if hub.revision == _CONVERTED else {"name": hub.subset}
        builder = datasets.load_dataset_builder(hub.name, revision=hub.revision, **subset)
        size = builder.info.download_size
        amount = f"{size / 1e6:,.1f} MB" if size else "an unknown amount"
        log.info("%s: %s to download, unless it is in the cache", hub.name, amount)
        builder.download_and_prepare()
        return list(builder.as_dataset(split=splits))
    except Exception as error:  # `datasets` lets through whatever its parsers, file systems and HTTP clients raise
        cause = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else None
        raise MtxError(
            f"data.hub: {hub.name} cannot be loaded: {formats.short(cause or error)}",
            "local files need no hub: data.dir=DIR data.train=NAME for DIR/NAME.LANG, or data.train=corpus.tsv",
        ) from error


def _read_dataset(name: str, dataset: Any, columns: list[list[str]]) -> Iterator[PairBlock]:
    try:
        yield from formats.column_blocks(name, dataset.with_format("arrow").iter(formats.BLOCK_PAIRS), columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: cannot be read: {formats.short(error)}") from None
