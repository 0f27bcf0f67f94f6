"""Where parallel text comes from: local files, a dataset on the hub, or the grammar, as blocks of pairs.

For: finding all that the configuration names, before anything is started, and streaming it. Not for: judging text.
Flow: files/hub/grammar -> `PairBlock` -> cleaning -> tokenizer -> store.

Every text is one line that UTF-8 can express: it holds no LF and no lone surrogate, wherever it came from.
"""

import json
import logging
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtx.config import DataConfig, HubConfig, TrainText
from mtx.data import grammar
from mtx.errors import DataError, MtxError, UsageError
from mtx.files import open_binary, read_lines

log = logging.getLogger(__name__)

BLOCK_PAIRS = 65_536
VALID_NAMES = ("val", "validation", "valid", "dev")
_PLAIN_KEYS = ("src", "tgt")  # column names that stand for any two languages
_FILE_ENDING = re.compile(r"\.(tsv|jsonl|parquet)(\.gz)?$", re.IGNORECASE)
_LINE_BREAK = re.compile("\r?\n")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class PairBlock:
    """A run of consecutive pairs of one corpus; `first_line` is the 1-based line or record of the first."""

    first_line: int
    src: list[str]
    tgt: list[str]


@dataclass(frozen=True)
class Corpus:
    """Parallel text under the name that the user gave it; `weight` and `tag` matter for training text only."""

    name: str
    weight: float
    tag: str | None
    read: Callable[[], Iterator[PairBlock]]

    def blocks(self) -> Iterator[PairBlock]:
        """Stream the pairs, from the first on at each call.

        Raises:
            DataError: at the line or record that is no pair, or where the sides turn out to differ in length.
        """
        return self.read()


@dataclass(frozen=True)
class Corpora:
    """The text of a run. Where `valid` is None or `tests` is empty, a part of `train` is to be held out."""

    train: list[Corpus]
    valid: Corpus | None
    tests: dict[str, Corpus]


def find_corpora(data: DataConfig, seed: int) -> Corpora:
    """Find all text that the configuration names; downloads what is on the hub, opens every local file once.

    Raises:
        UsageError: where nothing is configured, or a file is missing or cannot be read.
        MtxError: where the hub's dataset cannot be loaded.
    """
    if data.generator == "grammar":
        parts = ("train", "valid", "test")
        train, valid, test = (Corpus("grammar", 1.0, None, partial(_read_grammar, seed, part)) for part in parts)
        return Corpora([train], valid, {"grammar": test})
    if data.hub is not None and data.dir is None:
        return _hub_corpora(data, data.hub)
    if not data.train:
        raise UsageError(
            "nothing to train on: data.train is not set",
            "data.train=corpus.tsv, or data.train=train data.dir=DIR data.src=en data.tgt=de for DIR/train.en and .de",
        )
    if data.dir is not None and not stat.S_ISDIR(_mode(Path(data.dir)) or 0):
        raise UsageError(f"data.dir: {data.dir} is not a directory")
    texts = [text if isinstance(text, TrainText) else TrainText.model_validate({"name": text}) for text in data.train]
    return Corpora(
        train=[Corpus(text.name, text.weight, text.tag, _find(data, text.name, "train")) for text in texts],
        valid=None if data.valid is None else Corpus(data.valid, 1.0, None, _find(data, data.valid, "valid")),
        tests={key: Corpus(name, 1.0, None, _find(data, name, "test")) for key, name in _test_names(data.test)},
    )


def _test_names(names: Iterable[str]) -> list[tuple[str, str]]:
    """Each name with what the test set is called in file names and in scores.json."""
    taken = {"run", "format"}  # the other keys of scores.json
    keys = []
    for name in names:
        base = _FILE_ENDING.sub("", Path(name).name)
        key = stem = re.sub(r"[^A-Za-z0-9._-]", "_", base).lstrip(".")[:100] or "test"
        number = 1
        while key.lower() in taken:  # not every file system tells A from a
            number += 1
            key = f"{stem}-{number}"
        taken.add(key.lower())
        keys.append((key, name))
    return keys


def _find(data: DataConfig, name: str, key: str) -> Callable[[], Iterator[PairBlock]]:
    """How to read what `data.train`, `data.valid` or `data.test` (the `key`) calls `name`."""
    ending = _FILE_ENDING.search(name)
    if ending is None:
        return partial(_read_text, *_find_sides(data, name, key))
    read = {"tsv": _read_tsv, "jsonl": _read_jsonl, "parquet": _read_parquet}[ending[1].lower()]
    candidates = [Path(name)] if data.dir is None else [Path(data.dir, name), Path(name)]
    path = next((path for path in candidates if _is_file(path)), None)
    return partial(read, path or _refuse(key, name, " or ".join(map(str, candidates))), (data.src, data.tgt))


def _find_sides(data: DataConfig, name: str, key: str) -> tuple[Path, Path]:
    """The two files of a local name; a validation set with a usual name is also found under the other usual names."""
    given = Path(data.dir or ".", name)
    aliases = [other for other in VALID_NAMES if key == "valid" and given.name in VALID_NAMES and other != given.name]
    missing = []
    for stem in (given.name, *aliases):
        plain = [given.parent / f"{stem}.{language}" for language in (data.src, data.tgt)]
        src, tgt = (next((p for p in (path, Path(f"{path}.gz")) if _is_file(p)), None) for path in plain)
        if src and tgt:
            return src, tgt
        missing.append([f"{path}[.gz]" for path, found in zip(plain, (src, tgt), strict=True) if found is None])
    also = f" (nor as {', '.join(aliases)})" if aliases else ""
    return _refuse(key, name, " and no ".join(missing[0]) + also)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except PermissionError:
        raise UsageError(f"{path}: cannot be read: Permission denied") from None
    except (OSError, ValueError):  # not there, or no possible path: too long, or with a NUL
        return None


def _is_file(path: Path) -> bool:
    """Whether there is such a file; what is there but cannot be read, and more than once, is an error at once."""
    mode = _mode(path)
    if mode is None:
        return False
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device (a corpus is read more than once)"
        raise UsageError(f"{path}: expected a file, this is {kind}")
    open_binary(path).close()
    return True


def _refuse(key: str, name: str, missing: str) -> NoReturn:
    help = (
        "a name means DIR/NAME.LANG[.gz] of data.dir, data.src, data.tgt; a single file ends in .tsv, .jsonl, .parquet"
    )
    if key != "train":
        help = f"without data.{key} a part of the training text is held out (data.valid=null); {help}"
    raise UsageError(f"data.{key}: {name!r} was not found: there is no {missing}", help)


def _read_text(src_path: Path, tgt_path: Path) -> Iterator[PairBlock]:
    # Not zipped: `zip` drops the extra lines of either side, and `strict` cannot say how many lines there are.
    src_lines, tgt_lines = read_lines(src_path), read_lines(tgt_path)
    first_line = 1
    while True:
        src, tgt = list(islice(src_lines, BLOCK_PAIRS)), list(islice(tgt_lines, BLOCK_PAIRS))
        if len(src) != len(tgt):
            num_src = first_line - 1 + len(src) + sum(1 for _ in src_lines)
            num_tgt = first_line - 1 + len(tgt) + sum(1 for _ in tgt_lines)
            raise DataError(
                f"{src_path} has {num_src} lines, {tgt_path} has {num_tgt}",
                "line n of one file must be the translation of line n of the other",
            )
        if not src:
            return
        yield PairBlock(first_line, src, tgt)
        first_line += len(src)


def _read_tsv(path: Path, languages: tuple[str, str]) -> Iterator[PairBlock]:
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        return
    header = tuple(first.split("\t"))
    if header in (languages[::-1], _PLAIN_KEYS[::-1]):
        raise DataError(f"{path}:1: columns {header[0]} TAB {header[1]}, expected {languages[0]} TAB {languages[1]}")
    start = 2 if header in (languages, _PLAIN_KEYS) else 1
    rest = chain([first], lines) if start == 1 else lines
    yield from _in_blocks((_tsv_pair(path, number, line) for number, line in enumerate(rest, start)), start)


def _tsv_pair(path: Path, number: int, line: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        help = "the two sides are separated by one TAB; there is none in this line" if len(columns) == 1 else None
        raise DataError(f"{path}:{number}: {len(columns)} column{'s'[: len(columns) > 1]}, expected src TAB tgt", help)
    return columns[0], columns[1]


def _read_jsonl(path: Path, languages: tuple[str, str]) -> Iterator[PairBlock]:
    lines = enumerate(read_lines(path), 1)
    return _in_blocks(_json_pair(f"{path}:{number}", line, languages) for number, line in lines)


def _json_pair(where: str, line: str, languages: tuple[str, str]) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a JSON object ({error})") from None
    for holder in (row, row.get("translation")) if isinstance(row, dict) else ():
        for src, tgt in (languages, _PLAIN_KEYS):
            if isinstance(holder, dict) and src in holder and tgt in holder:
                return _json_text(where, src, holder[src]), _json_text(where, tgt, holder[tgt])
    found = f"an object with {_shown(row)}" if isinstance(row, dict) else type(row).__name__
    raise DataError(f"{where}: {found}, {_expected(languages)}")


def _json_text(where: str, key: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: {key} is {type(value).__name__}, expected text")
    return _one_line(_SURROGATE.sub("\ufffd", value))


def _in_blocks(pairs: Iterator[tuple[str, str]], first_line: int = 1) -> Iterator[PairBlock]:
    while block := list(islice(pairs, BLOCK_PAIRS)):
        yield PairBlock(first_line, [src for src, _ in block], [tgt for _, tgt in block])
        first_line += len(block)


def _one_line(text: str) -> str:
    return _LINE_BREAK.sub(" ", text) if "\n" in text else text


def _shown(names: Iterable[str]) -> str:
    names = [repr(name)[:40] for name in names]
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "nothing in it"


def _expected(languages: tuple[str, str]) -> str:
    return f"expected {languages[0]} and {languages[1]}, or src and tgt, or translation: {{...}} with either"


def _read_parquet(path: Path, languages: tuple[str, str]) -> Iterator[PairBlock]:
    try:
        with pq.ParquetFile(path) as file:
            columns = _find_columns(str(path), file.schema_arrow, languages)
            batches = file.iter_batches(BLOCK_PAIRS, columns=sorted({column[0] for column in columns}))
            yield from _column_blocks(str(path), batches, columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {_short(error)}") from None


def _find_columns(where: str, schema: Any, languages: tuple[str, str]) -> list[list[str]]:
    """The column of each side, as names from the outermost on."""
    # get_field_index gives -1 where there is no such name, or two
    outer = schema.field("translation").type if schema.get_field_index("translation") >= 0 else None
    inner = outer if outer is not None and pa.types.is_struct(outer) else pa.struct([])
    for fields, prefix in ((schema, []), (inner, ["translation"])):
        for keys in (languages, _PLAIN_KEYS):
            if all(fields.get_field_index(key) >= 0 for key in keys):
                return [[*prefix, key] for key in keys]
    raise DataError(f"{where}: has the columns {_shown(schema.names)}, {_expected(languages)}")


def _column_blocks(where: str, tables: Iterable[Any], columns: list[list[str]]) -> Iterator[PairBlock]:
    first_line = 1
    for table in tables:
        src, tgt = (_column_texts(where, table, column) for column in columns)
        if src:
            yield PairBlock(first_line, src, tgt)
        first_line += len(src)


def _column_texts(where: str, table: Any, column: list[str]) -> list[str]:
    values = table.column(column[0])
    for name in column[1:]:
        values = pc.struct_field(values, [values.type.get_field_index(name)])
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_null(values.type):
        return [""] * len(values)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise DataError(f"{where}: column {'.'.join(column)} holds {values.type}, expected text")
    try:
        return [_one_line(text or "") for text in values.to_pylist()]
    except UnicodeDecodeError:
        raw = values.cast(pa.large_binary()).to_pylist()
        return [_one_line((text or b"").decode("utf-8", errors="replace")) for text in raw]


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _hub_corpora(data: DataConfig, hub: HubConfig) -> Corpora:
    languages = data.src, data.tgt
    splits = [hub.train, *([hub.valid] if hub.valid is not None else []), *hub.test]
    found = []
    for split, dataset in zip(splits, _load_splits(hub, splits), strict=True):
        name = f"{hub.name} {split}"
        columns = _find_columns(name, dataset.features.arrow_schema, languages)
        found.append(Corpus(name, 1.0, None, partial(_read_dataset, name, dataset, columns)))
    names = [*data.test[: len(hub.test)], *hub.test[len(data.test) :]]
    tests = zip(_test_names(names), found[len(found) - len(hub.test) :], strict=True)
    return Corpora(found[:1], found[1] if hub.valid is not None else None, {key: test for (key, _), test in tests})


def _load_splits(hub: HubConfig, splits: list[str]) -> list[Any]:
    import datasets  # takes seconds, which local files need not wait for

    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # what it logs as an error it also raises
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(hub.name, hub.subset, revision=hub.revision)
        size = builder.info.download_size
        amount = f"{size / 1e6:,.1f} MB" if size else "an unknown amount"
        log.info("%s: %s to download, unless it is in the cache", hub.name, amount)
        builder.download_and_prepare()
        return list(builder.as_dataset(split=splits))
    except Exception as error:  # `datasets` lets through whatever its parsers, file systems and HTTP clients raise
        cause = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else None
        raise MtxError(
            f"data.hub: {hub.name} cannot be loaded: {_short(cause or error)}",
            "local files need no hub: data.dir=DIR data.train=NAME for DIR/NAME.LANG, or data.train=corpus.tsv",
        ) from error


def _read_dataset(name: str, dataset: Any, columns: list[list[str]]) -> Iterator[PairBlock]:
    try:
        yield from _column_blocks(name, dataset.with_format("arrow").iter(BLOCK_PAIRS), columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: cannot be read: {_short(error)}") from None


@lru_cache(maxsize=1)
def _generate(seed: int) -> grammar.GeneratedCorpus:
    return grammar.generate(seed)


def _read_grammar(seed: int, part: str) -> Iterator[PairBlock]:
    examples = getattr(_generate(seed), part)
    return _in_blocks((example.src, example.tgt) for example in examples)
