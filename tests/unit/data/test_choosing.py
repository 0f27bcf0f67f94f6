"""The choice among the cleaned pairs is the same in one part and in eight, and takes little memory."""

import hashlib
import json
import random
import subprocess
import sys
import unicodedata
from collections import defaultdict
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtx.config.schema import Config, DataConfig, TokenizerConfig
from mtx.config.settings import resolve
from mtx.data import choosing, prepare, workers
from mtx.data.choosing import CLEANED, REASONS, CleanedBatch
from mtx.data.held_out import read_sets
from mtx.data.sources import Corpora, Corpus
from mtx.data.tables import BLOCK_PAIRS, PairBlock
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.errors import DataError

# What `all_outcomes` returned for commit b0209e6c, the same as `prepare._choose` gave with all hashes in memory
OUTCOMES = """
8cbca9f2 ff1281e2 18f075f8 8d2ab49c bca8efd5 538f82cf d7a17a9b a4637a98 2102c8a0 b591c087 8fc9a316 59fa8eb6
49b49689 e521844c 58793285 2633c11a be3ba50c 5001b981 c0f1859f c642c2b2 a325755d 7ec5a1bd 997d7cce 8aab617f
"""


def new_tokenizer() -> Tokenizer:
    lines = [f"{word} {number}" for number in range(500) for word in ("source", "target", "café", "other")]
    return train_tokenizer(lines, TokenizerConfig(vocab_size=300), 500, ["BT"], languages=["de", "en"])


def made_case(seed: int) -> tuple[Config, Corpora]:
    """Text with repeated sources and pairs, in units or not, of several corpora, files and directions, and its sets."""
    rng = random.Random(seed)
    directions = rng.choice([[], [], ["en-de", "fr-de", "de-en"]])
    keys = ["data.directions=" + ",".join(directions)] if directions else ["data.src=en", "data.tgt=de"]
    config = resolve(None, [*keys, f"data.duplicates={rng.choice(['auto', 'auto', 'newest', 'all'])}"]).config
    if rng.random() < 0.3:
        config = config.model_copy(update={"training": config.training.model_copy(update={"init_from": "model"})})
    languages = config.data.language_pairs
    num_sources = rng.choice([1, 30, 200, 200, 1200])
    train = []
    for number in range(rng.randint(len(languages), 5)):
        blocks = made_blocks(rng, num_sources, rng.random() < 0.5, rng.randint(1, 3))
        tag = "BT" if number and rng.random() < 0.3 else None
        pair = languages[number % len(languages)]
        files = tuple(Path(f"{each}.tsv") for each in range(3))
        corpus = Corpus(f"corpus {rng.randrange(2)}", partial(iter, blocks), files, tag=tag, languages=pair)
        train.append(corpus)
    given = [
        [Corpus(name, partial(iter, made_blocks(rng, num_sources, False, 1)), languages=pair) for pair in languages]
        for name in ("valid", "one", "two")
    ]
    valid, one, two = (text if rng.random() < 0.5 else [] for text in given)
    return config, Corpora(train, valid, {name: text for name, text in (("one", one), ("two", two)) if text})


def made_blocks(rng: random.Random, num_sources: int, has_units: bool, num_files: int) -> list[PairBlock]:
    blocks = []
    for file in range(num_files):
        for _ in range(rng.randint(1, 3)):
            size = rng.randint(1, 2 * num_sources)
            numbers = [rng.randrange(num_sources) for _ in range(size)]
            src = [respelled(rng, f"source café {number}") for number in numbers]
            tgt = [respelled(rng, f"target café {number % 150} {rng.randrange(3)}") for number in numbers]
            if rng.random() < 0.1:
                src = [""] * size  # none is left after cleaning
            elif rng.random() < 0.3:
                src, tgt = tgt, src
            dates = [rng.randint(11, 14) for _ in range(size)] if has_units else ()
            blocks.append(PairBlock(range(1, size + 1), src, tgt, dates, file=file))
    return blocks


def respelled(rng: random.Random, text: str) -> str:
    """The text, or one of equal hash."""
    return unicodedata.normalize("NFD", text) if rng.random() < 0.1 else text


def outcome(seed: int, tokenizer: Tokenizer, directory: Path, patch: pytest.MonkeyPatch) -> str:
    """A digest of what is prepared: the pairs of all sets, the counts, the examples; or the error."""
    config, corpora = made_case(seed)
    patch.setattr(prepare, "find_corpora", lambda _: corpora)
    patch.setattr(prepare, "describe_sources", lambda _: {})
    patch.setattr(prepare, "_log_disk_need", lambda *_: None)
    patch.setattr(prepare, "find_other_language", lambda text, _: "it" if "7" in text else None)
    patch.setattr(prepare, "_DETECTED_PAIRS", 40)
    patch.setattr(workers, "num_cores", lambda: 1)
    try:
        prepare.prepare(config, directory, tokenizer)
    except DataError as error:
        return hashlib.sha256(str(error).encode()).hexdigest()[:8]
    content = list[Any]()
    for path in sorted(directory.glob("*.arrow")):
        with pa.OSFile(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        content.append([path.name, table.select(["line", "corpus", "src_text", "tgt_text"]).to_pydict()])
    report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    for entry in (report["valid"], *report["tests"].values()):
        del entry["leaks"]
    names = ["read", "kept", "held_out", "dropped", "corpora", "valid", "tests", "other_language"]
    content += [list(report[name].items()) if name == "dropped" else report[name] for name in names]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]


def all_outcomes(directory: Path) -> str:
    tokenizer = new_tokenizer()
    with pytest.MonkeyPatch.context() as patch:
        return " ".join(outcome(seed, tokenizer, directory / str(seed), patch) for seed in range(len(OUTCOMES.split())))


def set_parts(patch: pytest.MonkeyPatch, num_parts: int) -> None:
    patch.setattr(choosing, "_PART_PAIRS", 1)
    patch.setattr(choosing, "_MAX_PARTS", num_parts)


@pytest.mark.seconds
@pytest.mark.parametrize("num_parts", [1, 8])
def test_the_choice_is_that_of_the_whole_table(num_parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_parts(monkeypatch, num_parts)
    assert all_outcomes(tmp_path).split() == OUTCOMES.split()


# Units: corpus, file, source, target, date. The last two corpora have one direction, so their sources are compared.
UNITS = st.lists(st.tuples(*(st.integers(0, most) for most in (2, 1, 3, 2, 2))), max_size=40).map(sorted)
LANGUAGES = [("de", "en"), ("en", "de"), ("en", "de")]


def repeated(units: list[tuple[int, ...]], duplicates: str) -> list[str | None]:
    """Why each unit is not used, by dictionaries."""
    is_compared = {"newest": lambda date: True, "auto": lambda date: date > 0, "all": lambda date: False}[duplicates]
    files = defaultdict[Any, set[Any]](set)
    best = dict[Any, Any]()
    for corpus, file, src, tgt, date in units:
        if is_compared(date):
            files[LANGUAGES[corpus], src, tgt].add((corpus, file))
    for row, (corpus, _, src, tgt, date) in enumerate(units):
        if is_compared(date):
            key = LANGUAGES[corpus], src
            best[key] = max(best.get(key, (0,)), (date, len(files[*key, tgt]), row))
    reasons = list[str | None]()
    learned = set[Any]()
    for row, (corpus, file, src, tgt, date) in enumerate(units):
        chosen = best[LANGUAGES[corpus], src][-1] if is_compared(date) else row
        chosen_corpus, chosen_file, _, chosen_tgt, chosen_date = units[chosen]
        if chosen == row:
            reasons.append("duplicate" if (LANGUAGES[corpus], src, tgt) in learned else None)
            learned.add((LANGUAGES[corpus], src, tgt))
        elif (chosen_corpus, chosen_file) == (corpus, file) or (date < chosen_date and tgt != chosen_tgt):
            reasons.append("older translation")
        else:
            reasons.append("duplicate" if tgt == chosen_tgt else "other translation")
    return reasons


def clean(tallies: list[prepare.Tally], data: DataConfig, path: Path) -> list[choosing.CleanedBatch]:
    return prepare._count_cleaned(prepare._clean([tally.corpus for tally in tallies], data, path), tallies, data)


@given(UNITS, st.sampled_from(["auto", "newest", "all"]))
@settings(deadline=None)
def test_repeated_units_are_those_of_a_plain_count(units: list[tuple[int, ...]], duplicates: str) -> None:
    data = DataConfig(directions=["en-de", "de-en"], duplicates=duplicates)  # type: ignore[arg-type]
    blocks: list[list[PairBlock]] = [[], [], []]
    for (corpus, file), group in groupby(units, key=itemgetter(0, 1)):
        src, tgt, dates = zip(*(unit[2:] for unit in group), strict=True)
        text = [f"source {each}" for each in src], [f"target {each}" for each in tgt]
        blocks[corpus].append(PairBlock(range(len(src)), *text, [date and 10 + date for date in dates], file=file))
    corpora = [Corpus("a", partial(iter, each), languages=pair) for each, pair in zip(blocks, LANGUAGES, strict=True)]
    found = []
    for num_parts in (1, 8):
        with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
            set_parts(patch, num_parts)
            tallies = [prepare.Tally(corpus, True, 1.0) for corpus in corpora]
            cleaned = clean(tallies, data, Path(name) / "cleaned")
            reasons = choosing.mark_repeated(cleaned, duplicates, Path(name) / "reasons")
            found.append([REASONS.get(reason) for reason in reasons[: len(units)].tolist()])
            assert not any(Path(name).glob("reasons-*"))
    assert found[0] == found[1] == repeated(units, duplicates)


def test_equal_counts_are_in_the_order_of_the_reasons(tmp_path: Path) -> None:
    blocks = [
        PairBlock([1, 2], ["one source"] * 2, ["one target"] * 2),
        PairBlock([3, 4], ["other source"] * 2, ["old target", "new target"], [11, 12]),
    ]
    corpora = Corpora([Corpus("own", partial(iter, blocks), languages=("en", "de"))], [], {})
    data = DataConfig(src="en", tgt="de")
    [tally] = tallies = [prepare.Tally(corpora.train[0], True, 1.0)]
    cleaned = clean(tallies, data, tmp_path / "cleaned")
    prepare._choose(cleaned, tallies, [], corpora, data, tmp_path / "reasons")
    assert [*tally.dropped.items()] == [("older translation", 1), ("duplicate", 1)]
    assert [example["line"] for example in tally.examples.values()] == [3, 2]


def write_rows(path: Path, num_batches: int) -> list[CleanedBatch]:
    """Cleaned text without sentences, in batches of the usual size; a tenth of the pairs are copies."""
    rng = np.random.default_rng(1)
    cleaned = list[CleanedBatch]()
    size = BLOCK_PAIRS
    text, zeros = pa.array(["a"] * size, pa.large_string()), np.zeros(size, np.uint64)
    first = rng.integers(2**64, size=size, dtype=np.uint64)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, CLEANED) as writer:
        for number in range(num_batches):
            src = np.where(rng.random(size) < 0.1, first, rng.integers(2**64, size=size, dtype=np.uint64))
            columns = [np.arange(size), zeros.astype(np.uint16), zeros.astype(np.uint32), text, text, zeros, src, ~src]
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=CLEANED))
            cleaned.append(CleanedBatch(path, number, 0, 0, slice(number * size, (number + 1) * size)))
    return cleaned


def choose_within(limit_mb: int, num_batches: int, directory: Path) -> None:
    """The choice with a limit on the anonymous memory, above that of this process."""
    import resource

    cleaned = write_rows(directory / "cleaned", num_batches)
    corpora = Corpora([Corpus("own", lambda: iter(()), languages=("en", "de"))], [], {})
    data = DataConfig(src="en", tgt="de")
    tally = prepare.Tally(corpora.train[0], True, 1.0, num_read=num_batches * BLOCK_PAIRS)
    sets = list(read_sets(corpora, data))
    [used_kb] = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line]
    resource.setrlimit(resource.RLIMIT_DATA, (int(used_kb) * 1024 + limit_mb * 2**20,) * 2)
    prepare._choose(cleaned, [tally], sets, corpora, data, directory / "reasons")
    assert tally.num_held_out == 2000 and 0.08 < tally.dropped["duplicate"] / tally.num_read < 0.11


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the anonymous memory")
@pytest.mark.parametrize(
    ("num_pairs", "limit_mb"),
    [pytest.param(1_000_000, 80, marks=pytest.mark.seconds), pytest.param(100_000_000, 300, marks=pytest.mark.slow)],
)
def test_the_memory_does_not_grow_with_the_pairs(num_pairs: int, limit_mb: int) -> None:
    """All hashes at once took 130 bytes a pair."""
    with TemporaryDirectory() as name:  # of up to 10 GB, which pytest would keep
        call = f"choose_within({limit_mb}, {num_pairs // BLOCK_PAIRS}, Path({name!r}))"
        code = f"from pathlib import Path; from {__name__} import choose_within; {call}"
        subprocess.run([sys.executable, "-c", code], check=True)
