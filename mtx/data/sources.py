"""Finds the parallel text of the configuration: local files, a dataset on the hub, or the demo's file.

Everything is found before any work starts.
`readers` chooses the reader of a file; the splits of a dataset are read here, by the `datasets` library.
Flow: files, hub or demo -> `Corpora` -> blocks of pairs -> cleaning -> tokenizer -> token store.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from mtx.config.schema import HELD_OUT_TEST, DataConfig, HubConfig, TokenizerConfig, TrainText
from mtx.config.settings import exists, is_dir
from mtx.data.bilingual import match_rank
from mtx.data.folders import EXPECTED, ending_of, files_of, find_sides, find_texts, language_codes
from mtx.data.language_detection import Profile, are_exchanged
from mtx.data.languages import Languages, code_of, tag_of
from mtx.data.readers import FILE_ENDING, ITS_TEXT, PairFile, no_pairs, open_pairs
from mtx.data.tables import (
    BLOCK_PAIRS,
    PLAIN_NAMES,
    Columns,
    PairBlock,
    PairGroup,
    column_blocks,
    find_columns,
    in_blocks,
    join_names,
    log_once,
    read_text,
)
from mtx.data.tokenizer import Frame, Tokenizer, given_models
from mtx.errors import DataError, MtxError, UsageError, first_line
from mtx.formatting import counted, did_you_mean
from mtx.storage import durable
from mtx.storage.streams import shows_progress
from mtx.storage.text_files import printable, read_lines, replace_invalid, unlike_lines

log = logging.getLogger(__name__)

_SIDE = re.compile(r"[-._]?\{(?:src|tgt)\}")  # in the name of a text that has a file for each direction
VALID_NAMES = ("valid", "val", "validation", "dev")  # each is also found under the other names
DEMO = Path(__file__).with_name("demo.tsv.gz")  # lines of part TAB source TAB target; scripts/demo_grammar writes it


@dataclass(frozen=True)
class Corpus:
    """Parallel text of one direction, under its name in the configuration; `weight` and `tag` are for training only.

    Attributes:
        blocks: streams the pairs; every call starts from the first. It raises a DataError at a line or record that is
            not a pair, or if the sides have different lengths.
        files: the local files that it is read from.
        pair_file: its file, if it is one.
        parts: the texts of a folder, whose blocks it has one after the other.
        weight: None is 1, or with several directions the weight of its direction, or with `training.init_from` the one
            that keeps it from outweighing the own text.
        languages: its direction, one of `DataConfig.language_pairs`.
    """

    name: str
    blocks: Callable[[], Iterator[PairBlock]]
    files: tuple[Path, ...] = ()
    pair_file: PairFile | None = None
    parts: tuple["Corpus", ...] = ()
    weight: float | None = 1.0
    tag: str | None = None
    languages: Languages = PLAIN_NAMES

    @property
    def is_folder(self) -> bool:
        """Whether it is the text of a folder."""
        return bool(self.parts)

    def frame(self, tokenizer: Tokenizer) -> Frame:
        """The ids around its pairs."""
        return tokenizer.frame(*self.languages, self.tag)

    def example(self, pairs: PairGroup) -> durable.Json:
        """The first of some pairs as report.json shows it, safe to print on a terminal; in a folder, with its file."""
        corpus = str(self.files[pairs.file - 1]) if pairs.file else self.name
        src, tgt = (printable(replace_invalid(text)[:80]) for text in (pairs.src, pairs.tgt))
        return {"corpus": corpus, "line": pairs.line, "src": src, "tgt": tgt}

    def not_utf8(self, line: int) -> DataError:
        """The error for a corpus that is not UTF-8, with the first such line of its files, or `line` of a table."""
        for file in self.files:
            try:
                for _ in read_lines(file, "strict"):
                    pass
            except DataError as error:
                return error
            except UsageError:  # it has no lines: its rows or units are counted
                continue
        return DataError(f"{self.name}:{line}: not UTF-8")


def show_example(value: durable.Json) -> str:
    """An example pair of report.json as text: corpus, line, source and target."""
    return f"{value['corpus']}:{value['line']}: {value['src']} -> {value['tgt']}"


@dataclass(frozen=True)
class Corpora:
    """The text of a run, in each direction that it has. For a set without text, a part of `own_text` will be held out.

    Attributes:
        tests: if empty, the only test set is held out.
        is_adaptation: whether a model is adapted to the first corpus; the others only preserve its general quality.
    """

    train: list[Corpus]
    valid: list[Corpus]
    tests: Mapping[str, list[Corpus]]
    is_adaptation: bool = False

    @property
    def own_text(self) -> list[Corpus]:
        """The training text that translations should resemble: corpora without a tag; in an adaptation the first."""
        untagged = [corpus for corpus in self.train if corpus.tag is None] or self.train
        return [corpus for corpus in untagged if not self.is_adaptation or corpus.name == untagged[0].name]

    def all_corpora(self) -> list[Corpus]:
        """Every corpus: of training, validation and test text."""
        return [*self.train, *self.valid, *chain.from_iterable(self.tests.values())]

    def files(self, tokenizer: TokenizerConfig) -> list[Path]:
        """The local files of the data: text, and the SentencePiece models of `tokenizer.model`."""
        return [*chain.from_iterable(corpus.files for corpus in self.all_corpora()), *given_models(tokenizer)]


def find_corpora(data: DataConfig) -> Corpora:
    """Find all text that the configuration names. Downloads a dataset from the hub.

    Raises:
        UsageError: if no training text is configured, a file is missing or of another kind, or a text has none of the
            directions.
        MtxError: if the hub's dataset cannot be loaded.
        DataError: if it has no columns for the two languages.
    """
    if data.generator:
        train, valid, test = (
            [Corpus("grammar", partial(_read_demo, part), languages=data.languages)]
            for part in ("train", "valid", "test")
        )
        return Corpora(train, valid, {"grammar": test})
    if data.hub is not None and data.dir is None:
        return _find_hub_corpora(data, data.hub)
    if not data.train:
        raise UsageError(
            "nothing to train on: data.train is not set",
            "mtx train own-text data.train=my.tsv data.src=en data.tgt=de, "
            "or data.train=train data.dir=DIR for DIR/train.en and DIR/train.de",
        )
    if data.dir is not None and not is_dir(data.dir):
        raise UsageError(f"data.dir: {data.dir} is not a directory")
    valid = [] if data.valid is None else _find_directions(data, "valid", data.valid)
    tests = {
        key: [] if name == HELD_OUT_TEST else _find_directions(data, "test", name)
        for key, name in _name_test_sets(data.test)
    }
    eval_files = {file.resolve() for corpus in chain(valid, *tests.values()) for file in corpus.files}
    train = [corpus for text in data.train for corpus in _find_directions(data, "train", text, eval_files=eval_files)]
    corpora = Corpora(train, valid, tests)
    if data.columns and not any(
        corpus.pair_file.is_table if corpus.pair_file else corpus.is_folder for corpus in corpora.all_corpora()
    ):
        raise UsageError("data.columns: none of these files is a table")
    return corpora


def _name_test_sets(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of a key and a name: file names and scores.json refer to the test set by its key."""
    used_keys = {"run", "format"}  # the other keys of scores.json
    for name in names:
        base = FILE_ENDING.sub("", Path(_SIDE.sub("", name)).name)
        key = stem = re.sub(r"[^A-Za-z0-9._-]", "_", base).lstrip(".")[:100] or "test"
        number = 1
        while key.lower() in used_keys:  # some file systems ignore case
            number += 1
            key = f"{stem}-{number}"
        used_keys.add(key.lower())
        yield key, name


def _find_directions(
    data: DataConfig,
    key: str,
    text: TrainText | str,
    find: Callable[[Languages, bool], Corpus] | None = None,
    eval_files: Set[Path] = frozenset(),
) -> list[Corpus]:
    """An entry of data.train, data.valid or data.test (the `key`), or a split of the hub, in each direction it has.

    Two files have the direction of their names. So has a name with `{src}` and `{tgt}`; it also has the opposite one if
    no text is named by that. In another file, columns or units must name both languages, unless the entry can have only
    one direction.

    Args:
        find: finds the text of two languages; its other argument is `must_name_languages` of `_find`. None: `_find`.
        eval_files: the files of data.valid and data.test, which are not training text of a folder.
    """
    text = TrainText(name=text, weight=None) if isinstance(text, str) else text
    find = find or partial(_find, data, text.name, key, eval_files=eval_files)
    possible_pairs = [pair for pair in data.language_pairs if (text.src or pair[0], text.tgt or pair[1]) == pair]
    has_one_direction = len(possible_pairs) == 1
    is_named = has_one_direction or ("{src}" in text.name and "{tgt}" in text.name)
    corpora = list[Corpus]()
    problem: MtxError = DataError(f"data.{key}: {text.name}: its src and tgt are not among {data.direction}")
    for pair in possible_pairs:
        try:
            corpus = find(pair, not is_named)
            if is_named or len(corpus.files) == 2 or any(block.src for block in corpus.blocks()):
                if not corpus.is_folder:
                    corpus = _in_order(corpus, data.columns)
                if corpus.languages != pair and corpus.languages == pair[::-1]:
                    corpus = _opposite(corpus)
                corpora.append(replace(corpus, weight=text.weight, tag=text.tag))
        except (UsageError, DataError) as error:
            if has_one_direction or (is_named and not isinstance(error, _MissingTextError)):
                raise
            problem = error
    if not corpora:
        if isinstance(problem, UsageError):  # such as a file that is missing or empty
            raise problem
        src, tgt = data.language_pairs[0]
        raise UsageError(
            str(problem),
            f"name its languages: by a first line such as {src} TAB {tgt}, by its units, by {{src}} and {{tgt}} in its "
            f"name ('NAME.{{src}}-{{tgt}}.tsv'), or in a recipe as {{name: NAME, src: {src}, tgt: {tgt}}}",
        )
    num_files = len({file for corpus in corpora for file in corpus.files})
    return [
        replace(corpus, name=f"{counted(num_files, 'file')} of {corpus.name}/") if corpus.is_folder else corpus
        for corpus in corpora
    ]


class _MissingTextError(UsageError):
    """No text has the name of an entry."""


def _opposite(corpus: Corpus) -> Corpus:
    """The corpus in its opposite direction."""
    return replace(
        corpus,
        blocks=lambda: map(_swap_sides, corpus.blocks()),
        parts=tuple(map(_opposite, corpus.parts)),
        languages=corpus.languages[::-1],
    )


def _swap_sides(block: PairBlock) -> PairBlock:
    return replace(block, src=block.tgt, tgt=block.src)


def _find(
    data: DataConfig,
    name: str,
    key: str,
    languages: Languages,
    must_name_languages: bool,
    eval_files: Set[Path] = frozenset(),
) -> Corpus:
    """The text of `name`, an entry of data.train, data.valid or data.test (the `key`), in two languages.

    Without one of the usual extensions it is two files, or else a folder, or a file whose first line shows its format.
    With `{src}` and `{tgt}` in its name, it may be a file or folder that is named, and read, in the opposite direction.

    Args:
        must_name_languages: whether columns or units must name both languages; data.columns then does not count.

    Raises:
        UsageError: if there is no such file, or it is not text.
    """
    names = {name.replace("{src}", languages[0]).replace("{tgt}", languages[1]): languages}
    if "{src}" in name and "{tgt}" in name:
        names[name.replace("{src}", languages[1]).replace("{tgt}", languages[0])] = languages[::-1]
    candidates = {
        Path(folder, full_name): pair
        for full_name, pair in names.items()
        for folder in (data.dir, ".")
        if folder and name  # an empty one is not the current folder
    }
    if not FILE_ENDING.search(name) or not any(map(_is_file, candidates)):
        if corpus := find_two_files(data.dir or ".", name, [*names], key, languages):
            return corpus
        if folder := next(filter(is_dir, candidates), None):
            return _find_in_folder(data, folder, key, candidates[folder], eval_files)
    path = next(filter(_is_file, candidates), None)
    if path is None:
        if FILE_ENDING.search(name):
            missing = f"{' or '.join(map(str, candidates))}{did_you_mean(next(iter(candidates)))}"
        else:
            expected = [_side(data.dir or ".", next(iter(names)), language) for language in languages]
            missing = " and no ".join(f"{side}[.gz]" for side in expected if not _plain_or_gzip(side))
        hint = (
            "give a file with its extension, '\"A, B.tsv\"' if its name has a comma, or NAME for DIR/NAME.LANG[.gz] "
            "with data.dir, data.src and data.tgt"
        )
        if key != "train":
            default = "null" if key == "valid" else HELD_OUT_TEST
            hint = f"data.{key}={default} holds out a part of the training text; {hint}"
        raise _MissingTextError(f"data.{key}: {name!r} not found: there is no {missing}", hint)
    if not (file := open_pairs(path)):
        sides = [Path(data.dir or ".", text) for text in data.train if isinstance(text, str)]
        paths = sides[:2] if path in sides else [path]
        raise no_pairs(*paths)
    columns: Columns = ()
    if must_name_languages:
        columns = languages
    elif file.is_table:
        columns = data.columns
    if candidates[path] != languages and not data.directions:
        columns = columns[::-1]  # they are those of the source and the target, and the file is read from its target
    languages = candidates[path]
    return Corpus(name, partial(file.pairs, languages, columns), (path,), file, languages=languages)


def _side(folder: str, stem: str, language: str) -> Path:
    return Path(folder, f"{stem}.{language}")


def _plain_or_gzip(path: Path) -> Path | None:
    """A file, or it with .gz; None if there is neither."""
    return next(filter(_is_file, (path, Path(f"{path}.gz"))), None)


def find_two_files(folder: str, name: str, stems: list[str], key: str, languages: Languages) -> Corpus | None:
    """The text of two files STEM.LANG or STEM.LANG.gz in two languages; None if there are none.

    Args:
        stems: what `name` stands for.

    Raises:
        UsageError: if both sides are one file, or the languages are not known and there are more than two.
    """
    usual = VALID_NAMES if key == "valid" and name in VALID_NAMES else ()
    for stem in (*stems, *usual):
        src, tgt = (_plain_or_gzip(_side(folder, stem, language)) for language in languages)
        if src and src == tgt:
            raise UsageError(f"data.src and data.tgt are both {languages[0]!r}: {src} would be both sides of each pair")
        if src and tgt:
            return Corpus(name, partial(read_text, src, tgt), (src, tgt), languages=languages)
    pairs = [pair for stem in stems if stem for pair in find_sides(_side(folder, stem, "*"), languages)]
    if pairs and not {*languages}.isdisjoint(PLAIN_NAMES):  # not known yet
        known_codes = {*map(code_of, languages)} - {*PLAIN_NAMES}
        present = join_names(dict.fromkeys(map(ending_of, chain(*pairs))))
        pairs = [pair for pair in pairs if known_codes <= {code_of(ending_of(side)) for side in pair}] or pairs
        languages = language_codes(*map(ending_of, pairs[0]))
        if len(pairs) > 1:
            hint = f"choose two: data.src={languages[0]} data.tgt={languages[1]}"
            raise UsageError(f"{name}: expected text in two languages, got {present}", hint)
    matching = [sides for pair in pairs for sides in (pair, pair[::-1]) if _are_in(sides, languages)]
    if len(matching) == 1:
        return Corpus(name, partial(read_text, *matching[0]), matching[0], languages=languages)
    return None


def _find_in_folder(data: DataConfig, folder: Path, key: str, languages: Languages, eval_files: Set[Path]) -> Corpus:
    """The text of a folder in two languages, or in those of most pairs if they are not known; logs its other languages.

    Texts of `eval_files` are skipped.

    Raises:
        UsageError: if it has none, or its languages are not known.
    """
    all_texts = find_texts(folder, languages, data.columns)
    texts = {
        text: directions
        for text, directions in all_texts.items()
        if eval_files.isdisjoint(file.resolve() for file in files_of(text))
    }
    if len(texts) < len(all_texts):
        example = files_of(next(text for text in all_texts if text not in texts))[0].name
        number = counted(len(all_texts) - len(texts), "text")
        log_once(f"{folder}: not training on {number} that data.valid or data.test names, such as {example}")
    counts = sum(texts.values(), Counter[Languages]())
    directions = [pair for pair in counts if all(pair)]
    directions.sort(key=lambda pair: (counts[pair] + counts[pair[::-1]], counts[pair]), reverse=True)
    known_codes = {*map(code_of, languages)} - {*PLAIN_NAMES}
    if len(known_codes) < 2:
        languages = next((pair for pair in directions if known_codes <= {*pair}), languages)
    codes = language_codes(*languages)
    other_directions = [pair for pair in directions if {*pair} != {*codes}]
    shown = join_names(f"{'-'.join(pair)} ({counts[pair]:,} pairs)" for pair in other_directions)
    if other_directions and not data.directions:
        setting = f"data.directions={'-'.join(codes)},{'-'.join(other_directions[0])}"
        log_once(f"{folder}: other languages are skipped: {shown}; to use several: {setting}")
    possible_codes = {*codes} if data.directions else {"", *codes}
    unnamed = data.model_copy(update={"dir": None})  # the names are whole
    parts = list[Corpus]()
    for text, text_directions in texts.items():
        if isinstance(text, Path):
            # Its reader then takes the regions that are asked for
            if any({*pair} <= possible_codes for pair in text_directions):
                parts.append(_find(unnamed, str(text), key, languages, must_name_languages=False))
            continue
        for sides in (text, text[::-1]):
            if _are_in(sides, languages):  # of pt-PT and pt-BR, the one that is asked for
                parts.append(Corpus(folder.name, partial(read_text, *sides), sides, languages=languages))
    if not parts or not (directions or len(known_codes) == 2):
        problem = f"{folder}: no text in {' and '.join(languages)}"
        hint = EXPECTED
        if len(texts) < len(all_texts):
            problem += " but that of data.valid or data.test"
            hint = "without these settings, mtx holds out a part of the text for each"
        elif texts:
            hint += "; or name the languages: data.src=en data.tgt=de"
        raise UsageError(f"{problem}; it has {shown}", hint)
    files = tuple(chain.from_iterable(part.files for part in parts))

    def add_number(part: Corpus) -> Corpus:
        file = files.index(part.files[0]) + 1
        ordered = _in_order(part, data.columns)
        return replace(part, blocks=lambda: (replace(block, file=file) for block in ordered.blocks()))

    numbered = tuple(map(add_number, parts))

    def blocks() -> Iterator[PairBlock]:
        return chain.from_iterable(part.blocks() for part in numbered)

    return Corpus(folder.resolve().name, blocks, files, parts=numbered, languages=languages)


def _are_in(sides: tuple[Path, Path], languages: Languages) -> bool:
    """Whether the endings of two files are two languages, in any spelling."""
    return None not in map(match_rank, (tag_of(ending_of(side)) for side in sides), languages)


def _in_order(corpus: Corpus, columns: Columns) -> Corpus:
    """The corpus; if its first pairs are surely swapped, all are yielded with their sides swapped.

    If data.columns, the names of two files, columns or units name the sides, it raises a UsageError instead.
    """

    languages = corpus.languages

    def blocks() -> Iterator[PairBlock]:
        is_swapped = None
        for block in corpus.blocks():
            if is_swapped is None:
                if problem := unlike_lines(block.src):
                    log_once(f"{corpus.name}: {problem}", logging.WARNING)
                is_swapped = are_exchanged(Profile.of(block.src), Profile.of(block.tgt), languages)
                if is_swapped:
                    if columns or not corpus.pair_file or corpus.pair_file.languages()[1] != ITS_TEXT:
                        hint = "correct the names of its files, or the languages that its columns or units name"
                        if columns:
                            hint = f"data.columns={','.join(columns[::-1])}"
                        raise UsageError(f"{corpus.name}: source and target are swapped", hint)
                    log_once(f"{corpus.name}: the second text of each pair is {languages[0]}, so it is the source")
            yield _swap_sides(block) if is_swapped else block

    return replace(corpus, blocks=blocks)


def _is_file(path: Path) -> bool:
    """Whether the file exists; raises an error if it is not a regular file."""
    is_there = exists(path)
    if is_there and not path.is_file():
        kind = "a directory" if path.is_dir() else "a pipe or a device (a corpus is read more than once)"
        raise UsageError(f"{path}: expected a file, got {kind}")
    return is_there


def _read_demo(part: str) -> Iterator[PairBlock]:
    rows = (line.split("\t") for line in read_lines(DEMO))
    return in_blocks((src, tgt) for name, src, tgt in rows if name == part)


def unreachable() -> str | None:
    """The reason why the hub cannot be reached; None if it can.

    A single request is enough; `datasets` itself would retry for half a minute to two minutes.
    """
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # of requests or httpx, depending on the installed version
        return f"{constants.ENDPOINT} cannot be reached ({first_line(error)})"
    return None


@contextmanager
def open_hub(name: str) -> Iterator[str | None]:
    """Prepare the `datasets` library to load a dataset of the hub, and turn its errors into ours.

    Yields:
        The reason why the hub cannot be reached, so that only the cache is read; None if it can.

    Raises:
        MtxError: if the dataset cannot be loaded.
    """
    problem = None if Path(name).is_dir() else unreachable()
    import datasets  # the import takes seconds, which local files do not need

    if problem:
        datasets.config.HF_HUB_OFFLINE = True  # makes `datasets` read the cache without trying to connect many times
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # `datasets` also raises the errors that it logs
    if not shows_progress():
        datasets.disable_progress_bars()
    try:
        yield problem
    except MtxError:
        raise
    except Exception as error:  # `datasets` passes on the errors of its parsers, file systems and HTTP clients
        cause = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else None
        reason = first_line(cause or error)
        hint = "to use local files: data.dir=DIR data.train=NAME for DIR/NAME.LANG, or data.train=corpus.tsv"
        if problem and isinstance(error, ConnectionError):
            reason = f"{problem}, and it is not in the cache"
            hint += "; HTTPS_PROXY=URL sets a proxy, HF_HOME=DIR sets the cache"
        raise MtxError(f"{name} cannot be loaded from the hub: {reason}", hint) from error


def load_builder(hub: HubConfig) -> Any:
    """The `DatasetBuilder` of a dataset of the hub, which has its files and splits."""
    import datasets

    # The branch of the hub's own Parquet copies has a folder for each subset
    subset = "data_dir" if hub.revision == "refs/convert/parquet" else "name"
    return datasets.load_dataset_builder(hub.name, revision=hub.revision, **{subset: hub.subset})


def find_split(data: DataConfig, name: str, builder: Any, split: str) -> list[Corpus]:
    """A split of a dataset that is downloaded, in each of its directions.

    Args:
        name: of the dataset.
        builder: its `DatasetBuilder`.

    Raises:
        DataError: if it has no columns for the two languages.
    """
    name = f"{name} {split}"
    rows = builder.as_dataset(split=split).with_format("arrow")

    def find_corpus(languages: Languages, must_name_languages: bool) -> Corpus:
        columns = languages if must_name_languages else data.columns
        sides = find_columns(name, rows.features.arrow_schema, languages, columns)
        return Corpus(name, lambda: column_blocks(name, rows.iter(BLOCK_PAIRS), sides), languages=languages)

    return _find_directions(data, "hub", name, find_corpus)


def _find_hub_corpora(data: DataConfig, hub: HubConfig) -> Corpora:
    """The splits that `hub` names, downloaded unless they are in the cache.

    The entries of `data.test`, if any, name the test splits in order. If the hub cannot be reached, only the cache is
    read.
    """
    with open_hub(hub.name) as problem:
        builder = load_builder(hub)
        log.info(f"{hub.name}: reading from the cache; {problem or 'missing files are downloaded'}")
        builder.download_and_prepare()
        find = partial(find_split, data, hub.name, builder)
        names = _name_test_sets([*data.test[: len(hub.test)], *hub.test[len(data.test) :]])
        return Corpora(
            find(hub.train),
            [] if hub.valid is None else find(hub.valid),
            {key: find(split) for (key, _), split in zip(names, hub.test, strict=True)},
        )
