"""Prepares a text in shards, on several machines: each shard cleans and encodes a part of it, and a join completes it.

A shard is a directory such as `shards/0007-of-0064` of the run. Its cleaned.arrow and encoded.arrow have the same pairs
in the same batches, and its blocks.jsonl has what was counted in each block. What needs the whole text is left to the
join. It takes the blocks in the order of the text, so its data is that of one machine, byte for byte.
Flow: corpora -> `write_shard` on each machine -> `read_shards` -> `prepare`.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from filelock import FileLock, Timeout

from mtx.config import settings
from mtx.config.schema import Config, leaves
from mtx.data.blocks import Place, clean_and_encode
from mtx.data.choosing import CLEANED, CleanedBatch
from mtx.data.sources import Corpora, Corpus
from mtx.data.tables import BLOCK_PAIRS, PairBlock, PairGroup, join_names
from mtx.data.token_store import Batch, write_store
from mtx.data.tokenizer import Tokenizer
from mtx.data.workers import map_in_workers
from mtx.errors import DamagedFileError, UsageError
from mtx.machine import package_version
from mtx.storage import disk, durable
from mtx.storage.run_files import size_and_time
from mtx.storage.streams import progress

_NAME = re.compile(r"\d{4,9}-of-(\d{4,9})")
_CLEANED = "cleaned.arrow"
_ENCODED = "encoded.arrow"
_BLOCKS = "blocks.jsonl"
_ORIGIN = "origin.json"
# Settings that only the join uses; a file of a set that is also training text is found by the text files
_JOINING = ("data.valid", "data.test", "data.duplicates", "data.temperature", "data.terms")


class CleanedBlock(NamedTuple):
    """What is left of a block of the text.

    Attributes:
        corpus: the number of its corpus.
        groups: the pairs that are dropped or noticed, by reason.
        num_pairs: those that are left: the batch `batch` of the Arrow file `path`.
    """

    corpus: int
    groups: dict[str, PairGroup]
    num_pairs: int
    path: Path
    batch: int


def shard_path(directory: Path, number: int, num_shards: int) -> Path:
    """The directory of a shard."""
    return directory / f"{number:04}-of-{num_shards:04}"


def read_blocks(train: list[Corpus], number: int = 1, num_shards: int = 1) -> Iterator[tuple[Place, int, PairBlock]]:
    """Read the training text, or the part of a shard: every Nth file, or if there are fewer files, every Nth block.

    Yields:
        The place of a block, the number of its corpus, and the block.
    """
    files = [(corpus, part) for corpus, whole in enumerate(train) for part in whole.parts or [whole]]
    is_by_file = len(files) >= num_shards
    for file_number, (corpus, file) in enumerate(files):
        if is_by_file and file_number % num_shards != number - 1:
            continue
        for block_number, block in enumerate(file.blocks()):
            if is_by_file or block_number % num_shards == number - 1:
                yield (file_number, block_number), corpus, block


def write_shard(
    config: Config, corpora: Corpora, tokenizer: Tokenizer, directory: Path, number: int, num_shards: int
) -> None:
    """Clean and encode a shard into `directory`, as a whole or not at all, unless it is there.

    Raises:
        UsageError: if the one that is there is of other text or settings.
    """
    path = shard_path(directory, number, num_shards)
    origin = _describe_origin(config, corpora, tokenizer)  # before reading, so that a change meanwhile is noticed
    work = partial(
        clean_and_encode,
        data=config.data,
        tokenizer=tokenizer,
        frames=[corpus.frame(tokenizer) for corpus in corpora.train],
    )
    lines = list[str]()
    try:
        lock = FileLock(directory / f"{path.name}.lock").acquire(timeout=0)
    except Timeout:
        raise UsageError(f"{path}: another process is making this shard", "wait for it") from None
    with lock:
        if path.exists():
            _check_shard(path, origin)
            return
        with (
            durable.new_directory(path, f"{durable.TEMPORARY_PREFIX}{path.name}") as shard,
            closing(map_in_workers(work, read_blocks(corpora.train, number, num_shards))) as results,
            disk.create(shard / _CLEANED) as file,
            pa.ipc.new_file(file, CLEANED) as writer,
            progress("preparing the shard", unit=f"blocks of at most {BLOCK_PAIRS:,} pairs") as update,
        ):

            def encoded_batches() -> Iterator[Batch]:
                for place, corpus, groups, cleaned, encoded in results:
                    counts = {reason: vars(group) for reason, group in groups.items()}
                    lines.append(json.dumps([place, corpus, counts, cleaned.num_rows]) + "\n")
                    writer.write_batch(cleaned)
                    yield encoded
                    update(1)

            write_store(shard / _ENCODED, tokenizer.num_ids, [], encoded_batches())
            durable.write_text(shard / _BLOCKS, "".join(lines))
            durable.write_json(shard / _ORIGIN, origin)


def _describe_origin(config: Config, corpora: Corpora, tokenizer: Tokenizer | None) -> durable.Json:
    """What all shards of a text have in common, by the names that messages use."""
    fixed = dict(leaves(settings.fixed_settings(config)))
    return {
        "version of mtx": package_version(),
        **{key: fixed[key] for key in fixed if key.startswith(("data.", "tokenizer.")) and key not in _JOINING},
        "text files": {str(path): size_and_time(path) for corpus in corpora.train for path in corpus.files},
        "tokenizer": tokenizer.sha256() if tokenizer else None,
    }


def read_shards(
    directory: Path, config: Config, corpora: Corpora, tokenizer: Tokenizer | None
) -> Iterator[CleanedBlock]:
    """The blocks of all shards, in the order of the text.

    Raises:
        UsageError: if shards are missing, or are of other text or settings.
        DamagedFileError: if a file of one is missing or damaged.
    """
    divisions = {int(match[1]) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))}
    if len(divisions) != 1:
        found = " and ".join(f"some of {num_shards}" for num_shards in sorted(divisions)) or "none"
        raise UsageError(
            f"{directory}: expected the shards of one N, got {found}",
            "mtx prepare CONFIG --shard K/N makes one; delete those of another N, or all to prepare here",
        )
    [num_shards] = divisions
    paths = [shard_path(directory, number, num_shards) for number in range(1, num_shards + 1)]
    if missing := [number for number, path in enumerate(paths, 1) if not path.is_dir()]:
        raise UsageError(
            f"{directory}: {num_shards - len(missing)} of {num_shards} shards; missing {', '.join(map(str, missing))}",
            f"mtx prepare CONFIG --shard {missing[0]}/{num_shards}; without the folder, the text is prepared here",
        )
    origin = _describe_origin(config, corpora, tokenizer)
    for path in paths:
        _check_shard(path, origin)
    blocks = sorted(chain.from_iterable(map(_read_blocks, paths)), key=itemgetter(0))
    return (block for _, block in blocks)


def remove_shards(directory: Path) -> None:
    """Remove all shards, their locks and what killed ones have left; other files stay."""
    for path in directory.iterdir():
        if _NAME.fullmatch(path.name.removeprefix(durable.TEMPORARY_PREFIX).removesuffix(".lock")):
            durable.remove_tree(path)
    with contextlib.suppress(OSError):  # not empty
        disk.remove_directory(directory)


def _check_shard(path: Path, origin: durable.Json) -> None:
    """Check that a shard is whole, and of this origin; see `read_shards`."""
    number, num_shards = map(int, path.name.split("-of-"))
    hint = f"delete it, then mtx prepare CONFIG --shard {number}/{num_shards}"
    try:
        durable.verify(path, [_CLEANED, _ENCODED, _BLOCKS, _ORIGIN])
    except DamagedFileError as error:
        error.help = hint
        raise
    shard_origin = durable.read_json(path / _ORIGIN)
    if different := [name for name, value in origin.items() if shard_origin.get(name) != value]:
        raise UsageError(f"{path}: was made with a different {join_names(different)}", hint)


def _read_blocks(shard: Path) -> Iterator[tuple[Place, CleanedBlock]]:
    """The blocks of a shard, each after its place."""
    with (shard / _BLOCKS).open(encoding="ascii", newline="\n") as file:
        for number, line in enumerate(file):
            place, corpus, groups, num_pairs = json.loads(line)
            groups = {reason: PairGroup(**group) for reason, group in groups.items()}
            yield place, CleanedBlock(corpus, groups, num_pairs, shard / _CLEANED, number)


def read_encoded(batch: CleanedBatch) -> Batch:
    """The pairs of a batch of a shard with their ids."""
    with pa.OSFile(os.fsencode(batch.path.with_name(_ENCODED))) as file:
        return pa.ipc.open_file(file).get_batch(batch.number)
