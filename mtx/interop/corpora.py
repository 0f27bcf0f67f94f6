"""Puts text from outside into folders of plain files, which `mtx train` reads: of OPUS, sacreBLEU and the hub.

Flow: a corpus -> FOLDER/NAME-VERSION with two files of lines, its terms and origin.json, which appears as a whole.
"""

import datetime
import fcntl
import logging
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from mtx.config.schema import DataConfig, HubConfig
from mtx.data.folders import count_lines
from mtx.data.languages import Languages, key_of
from mtx.data.sources import find_split, load_builder, open_hub
from mtx.data.tables import PairBlock
from mtx.errors import DamagedFileError, DataError, MtxError, UsageError, first_line
from mtx.evaluation.test_sets import sacrebleu_test_set
from mtx.formatting import counted, format_size, mtx_command
from mtx.interop.download import download
from mtx.interop.opus import OpusCorpus, show_number, show_size
from mtx.storage import disk, durable
from mtx.storage.streams import progress
from mtx.storage.text_files import printable

log = logging.getLogger(__name__)

_LARGE_BYTES = 10**9
_ORIGIN = "origin.json"
_LICENCE = "LICENSE"
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError, OSError, MemoryError)


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold a folder, which is created if it is missing, against other commands that download to it.

    Raises:
        MtxError: if another process holds it.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"-o {folder}: expected a folder, got a file")
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    durable.make_directories(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of the folder itself: FileLock leaves a file behind
        yield
    except BlockingIOError:
        raise MtxError(f"{folder}: another process downloads to it", "wait for it, or choose another -o") from None
    finally:
        for path in new_folders:
            if not any(path.iterdir()):
                disk.remove_directory(path)
        os.close(descriptor)


def require_confirmation(sizes: Iterable[int | None], is_confirmed: bool) -> None:
    """Refuse a download of more than 1 GB, or of unknown size, that the user has not confirmed.

    Args:
        sizes: in bytes; None if unknown.
    """
    sizes = [*sizes]
    total = sum(filter(None, sizes))
    if (total > _LARGE_BYTES or None in sizes) and not is_confirmed:
        amount = "an unknown amount" if None in sizes else format_size(total)
        raise UsageError(f"{amount} would be downloaded", "add --yes to download it")


def announce(name: str, num_pairs: int | None, num_bytes: int | None, page: str) -> None:
    """Print what is about to be downloaded, and where its terms are."""
    log.info("%s: %s pairs, %s; terms: %s", name, show_number(num_pairs), show_size(num_bytes), page)


def fetch_opus(corpus: OpusCorpus, languages: Languages, folder: Path) -> None:
    """Download a corpus of OPUS, or what is missing of its zip.

    Raises:
        DataError: if the zip is damaged, or does not have one text in each language, with equally many lines.
        MtxError: if it cannot be downloaded, or the disk is too small for it.
    """
    directory = folder / f"{corpus.corpus}-{corpus.version}"
    archive = folder / f".{directory.name}.{corpus.source}-{corpus.target}.zip"
    if not _is_downloaded(directory, languages):
        if not archive.exists():
            download(corpus.url, archive)
        try:
            num_pairs, terms = _unpack(archive, corpus, languages, directory)
        except DataError:
            disk.unlink(archive)
            raise
        log.info("%s: %s; terms: %s", directory, counted(num_pairs, "pair"), terms)
    if archive.exists():
        disk.unlink(archive)


def _unpack(path: Path, corpus: OpusCorpus, languages: Languages, directory: Path) -> tuple[int, str]:
    """Write the folder of a corpus from its zip; returns its number of pairs and its terms."""
    facts = {"sha256": durable.sha256(path), "size": path.stat().st_size}
    try:
        with zipfile.ZipFile(path) as archive, _new_folder(directory) as new:
            _extract(archive, corpus.corpus, languages, new)
            num_pairs, num_targets = (count_lines(new / f"{corpus.corpus}.{language}") for language in languages)
            if num_pairs != num_targets or num_pairs == 0:
                raise DataError(f"{directory.name}: expected two texts with equally many lines")
            about_terms = _first_line(new / _LICENCE), corpus.page
            terms = _write_origin(new, languages, about_terms, url=corpus.url, version=corpus.version, **facts)
    except _ZIP_ERRORS as error:
        if isinstance(error, OSError) and error.filename:  # of the disk
            raise
        problem = f"{corpus.url} is damaged ({first_line(error)})"
        raise DataError(problem, "the same command downloads it again") from None
    return num_pairs, terms


def _extract(archive: zipfile.ZipFile, name: str, languages: Languages, directory: Path) -> None:
    """Extract both texts as NAME.LANG, and the terms. No name of the zip becomes a path."""
    members = archive.infolist()
    wanted = {member.filename: member for member in members if member.filename in (_LICENCE, "README")}
    for language in languages:
        texts = [member for member in members if member.filename.endswith(f".{language}")]
        if len(texts) != 1:
            shown = printable(", ".join(member.filename for member in members[:10]))
            raise DataError(f"{name}: expected one text in {language}, got {len(texts)}; its zip has {shown}")
        wanted[f"{name}.{language}"] = texts[0]
    needed = sum(member.file_size for member in wanted.values())
    hint = f"free some and repeat the command; if that number cannot be right, remove {archive.filename}"
    durable.require_space(directory.parent, needed, name, hint)
    with progress(f"unpacking {name}", needed, "bytes") as update:
        for file, member in wanted.items():
            with archive.open(member) as source, disk.create(directory / file) as target:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
                    update(len(chunk))


def fetch_test_set(name: str, languages: Languages, folder: Path) -> Path:
    """Write a test set of sacreBLEU, which downloads it; more references are in files of their own.

    Raises:
        UsageError: if sacreBLEU has no such test set in this direction.
        MtxError: if it cannot be downloaded.
    """
    import sacrebleu

    test_set = sacrebleu_test_set(name, "-".join(languages))
    directory = folder / test_set.name
    if _is_downloaded(directory, languages, is_directed=True):
        return directory
    src, tgt = languages
    with _new_folder(directory) as new:
        texts = {f"{test_set.name}.{src}": test_set.sources, f"{test_set.name}.{tgt}": test_set.references}
        for number, references in enumerate(test_set.more_references, 2):
            texts[f"{test_set.name}-{number}.{tgt}"] = references
        for file, lines in texts.items():
            with disk.create(new / file) as output:
                output.write(_lines(lines))
        url = sacrebleu.DATASETS[name].data[0]
        terms = _write_origin(new, languages, (), url=url, version=f"sacrebleu {sacrebleu.__version__}")
    log.info("%s: %s; terms: %s", directory, counted(len(test_set.sources), "pair"), terms)
    return directory


def fetch_dataset(name: str, subset: str, languages: Languages, folder: Path, is_confirmed: bool) -> Path:
    """Write the splits of a dataset of the hub, each as two files of lines.

    Args:
        subset: empty: the one of the two languages, or the only one.

    Raises:
        UsageError: if it is not clear which subset has the languages.
        MtxError: if it cannot be loaded.
        DataError: if it has no columns for the two languages.
    """
    with open_hub(name) as problem:
        if problem:
            raise MtxError(problem, "HTTPS_PROXY=URL sets a proxy")
        import datasets
        from huggingface_hub import HfApi, HfFileSystem, constants

        subsets = datasets.get_dataset_config_names(name)
        subset = subset or _choose_subset(name, subsets, languages)
        info = HfApi().dataset_info(name)
        directory = folder / re.sub(r"[^\w.-]", "_", f"{name.rpartition('/')[2]}-{subset}-{info.sha[:8]}")
        if _is_downloaded(directory, languages):
            return directory
        builder = load_builder(HubConfig(name=name, subset=subset, revision=info.sha))
        known_splits = (builder.info.splits or {}).values()  # its card may name them
        num_pairs = sum(split.num_examples for split in known_splits) if known_splits else None
        num_bytes = sum(HfFileSystem().sizes([*chain.from_iterable(builder.config.data_files.values())]))
        page = f"{constants.ENDPOINT}/datasets/{name}"
        announce(directory.name, num_pairs, num_bytes, page)
        require_confirmation([num_bytes], is_confirmed)
        builder.download_and_prepare()
    data = DataConfig.model_validate({"src": languages[0], "tgt": languages[1]})
    written = list[str]()
    with _new_folder(directory) as new:
        for split in builder.info.splits:
            [corpus] = find_split(data, name, builder, split)
            num_written = _write_pairs(corpus.blocks(), *(new / f"{split}.{language}" for language in languages))
            written.append(f"{split} {counted(num_written, 'pair')}")
        licences = [tag.partition(":")[2] for tag in info.tags if tag.startswith("license:")]
        terms = _write_origin(new, languages, (*licences, page), url=page, version=info.sha)
    log.info("%s: %s; terms: %s", directory, ", ".join(written), terms)
    return directory


def _write_pairs(blocks: Iterable[PairBlock], src: Path, tgt: Path) -> int:
    """Write two files of lines; returns the number of pairs."""
    num_pairs = 0
    with disk.create(src) as src_file, disk.create(tgt) as tgt_file:
        for block in blocks:
            src_file.write(_lines(block.src))
            tgt_file.write(_lines(block.tgt))
            num_pairs += len(block.src)
    return num_pairs


def _choose_subset(name: str, subsets: list[str], languages: Languages) -> str:
    """The subset that has the name of two languages in any order and spelling, such as de-en; or the only one."""
    keys = {*map(key_of, languages)}
    matching = [subset for subset in subsets if {*map(key_of, re.split("[-_]", subset))} == keys]
    if len(subsets) > 1 and len(matching) != 1:
        problem = f"{name}: it has the subsets {', '.join(subsets)}"
        raise UsageError(problem, mtx_command("corpora", "-".join(languages), "SUBSET", "--hub", name))
    return (matching or subsets)[0]


def _new_folder(directory: Path) -> AbstractContextManager[Path]:
    """The folder of a corpus, which appears as a whole."""
    return durable.new_directory(directory, f".{directory.name}.new")


def _is_downloaded(directory: Path, languages: Languages, is_directed: bool = False) -> bool:
    """Whether the folder of a corpus is there, unchanged.

    Args:
        is_directed: whether its text in the opposite direction is another text.

    Raises:
        UsageError: if it has text in other languages.
        DamagedFileError: if it has changed.
    """
    if not os.path.lexists(directory):
        return False
    try:
        durable.verify(directory)
    except DamagedFileError as error:
        error.help = f"remove {directory} to download it again"
        raise
    known = durable.read_json(directory / _ORIGIN)["languages"]
    if known != [*languages] and (is_directed or {*known} != {*languages}):
        problem = f"{directory} already exists, with text from {known[0]} to {known[1]}"
        raise UsageError(problem, "choose another -o FOLDER")
    log.info("%s: already downloaded", directory)
    return True


def _first_line(path: Path) -> str:
    """The first line of a file that is not empty, at most 200 characters of it; empty if there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
    return printable(next(filter(None, map(str.strip, head.split("\n"))), "")[:200])


def _lines(texts: Iterable[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogateescape")


def _write_origin(directory: Path, languages: Languages, about_terms: Iterable[str], **origin: Any) -> str:
    """Write where the text in a folder is from.

    Args:
        about_terms: what is known of its licence, and its page.

    Returns:
        Its terms.
    """
    terms = "; ".join(filter(None, about_terms)) or "unknown"
    date = datetime.date.today().isoformat()
    durable.write_json(directory / _ORIGIN, {"languages": languages, "date": date, **origin, "terms": terms})
    return terms
