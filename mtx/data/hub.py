"""Loads a dataset of the Hugging Face hub with `datasets`; its splits become corpora. Called by `sources`."""

import logging
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from mtx.config.schema import DataConfig, HubConfig
from mtx.data import tables
from mtx.data.corpora import Corpora, Corpus, PairBlock, name_test_sets
from mtx.errors import DataError, MtxError

log = logging.getLogger(__name__)

_CONVERTED = "refs/convert/parquet"  # the branch with the hub's Parquet copy, one folder per subset


def find_hub_corpora(data: DataConfig, hub: HubConfig) -> Corpora:
    """The splits that `hub` names, downloaded unless they are in the cache.

    The entries of `data.test`, as far as there are any, name the test splits in order. If the hub cannot be reached,
    only the cache is read.

    Raises:
        MtxError: if the dataset cannot be loaded.
        DataError: if it has no columns for the two languages.
    """
    languages = data.languages
    splits = [split for split in (hub.train, hub.valid, *hub.test) if split is not None]
    corpora = []
    for split, dataset in zip(splits, _load_splits(hub, splits), strict=True):
        name = f"{hub.name} {split}"
        columns = tables.find_columns(name, dataset.features.arrow_schema, languages, data.columns)
        corpora.append(Corpus(name, partial(_read_dataset, name, dataset, columns)))
    names = [*data.test[: len(hub.test)], *hub.test[len(data.test) :]]
    train, *others = corpora
    valid = None if hub.valid is None else others.pop(0)
    return Corpora([train], valid, dict(zip((key for key, _ in name_test_sets(names)), others, strict=True)))


def _unreachable(hub: HubConfig) -> str | None:
    """The reason why the hub cannot be reached; None if it can, or if `hub` names a local folder.

    A single request is enough. `datasets` itself would try for half a minute to two minutes.
    """
    if Path(hub.name).is_dir():
        return None
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # of requests or httpx, depending on the installed version
        return f"{constants.ENDPOINT} cannot be reached ({tables.short(error)})"
    return None


def _load_splits(hub: HubConfig, splits: list[str]) -> list[Any]:
    unreachable = _unreachable(hub)
    import datasets  # the import takes seconds, so local files do without it

    if unreachable:
        datasets.config.HF_HUB_OFFLINE = True  # makes `datasets` read the cache without trying to connect many times
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # `datasets` also raises the errors that it logs
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        subset = {"data_dir": hub.subset} if hub.revision == _CONVERTED else {"name": hub.subset}
        builder = datasets.load_dataset_builder(hub.name, revision=hub.revision, **subset)
        if unreachable:
            log.info("%s: read from the cache; %s", hub.name, unreachable)
        else:
            size = builder.info.download_size
            amount = f"{size / 1e6:,.1f} MB" if size else "an unknown amount"
            log.info("%s: %s to download, unless it is in the cache", hub.name, amount)
        builder.download_and_prepare()
        return list(builder.as_dataset(split=splits))
    except Exception as error:  # `datasets` passes on the errors of its parsers, file systems and HTTP clients
        cause = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else None
        reason = tables.short(cause or error)
        help = "local files need no hub: data.dir=DIR data.train=NAME for DIR/NAME.LANG, or data.train=corpus.tsv"
        if unreachable and isinstance(error, ConnectionError):
            reason = f"{unreachable}, and it is not in the cache"
            help += "; HTTPS_PROXY=URL sets a proxy, HF_HOME=DIR another cache"
        raise MtxError(f"data.hub: {hub.name} cannot be loaded: {reason}", help) from error


def _read_dataset(name: str, dataset: Any, columns: list[list[str]]) -> Iterator[PairBlock]:
    try:
        yield from tables.column_blocks(name, dataset.with_format("arrow").iter(tables.BLOCK_PAIRS), columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: cannot be read: {tables.short(error)}") from None
