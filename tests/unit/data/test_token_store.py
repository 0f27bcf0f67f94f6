"""The store gives back what was written, without copying it, and refuses what it did not write."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mtx.data.token_store import Side, TokenStore, store_batch, write_store
from mtx.errors import DamagedFileError


def sentences(num_pairs: int, num_ids: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*rng.integers(1, num_ids, size).tolist(), 0] for size in rng.integers(0, 6, num_pairs)]


def write(path: Path, src: list[list[int]], tgt: list[list[int]], num_ids: int, block: int) -> TokenStore:
    batches = []
    for start in range(0, len(src), block):
        rows = range(start, min(start + block, len(src)))
        part = slice(start, start + block)
        texts = [f"s{row}" for row in rows], [f"tä{row}" for row in rows]
        corpus = [start // block % 2] * len(rows)
        batches.append(store_batch(num_ids, src[part], tgt[part], np.array(rows) + 1, corpus, *texts))
    write_store(path, num_ids, [1.0, 2.5], batches)
    return TokenStore.load(path)


def read(side: Side) -> list[list[int]]:
    return side.sentences(np.arange(side.num_sentences))


@pytest.mark.parametrize("num_ids, dtype", [(300, np.uint16), (65_536, np.uint16), (65_537, np.uint32)])
def test_what_is_written_is_read(tmp_path: Path, num_ids: int, dtype: type) -> None:
    src, tgt = sentences(500, num_ids, 1), sentences(500, num_ids, 2)
    src[7], tgt[9] = [num_ids - 1, 0], [0]
    store = write(tmp_path / "a.arrow", src, tgt, num_ids, block=77)
    assert (read(store.src), read(store.tgt)) == (src, tgt)
    assert (store.num_pairs, store.num_ids, store.weights.tolist()) == (500, num_ids, [1.0, 2.5])
    assert store.src.tokens.dtype == store.tgt.tokens.dtype == dtype
    starts, lengths = store.src.locate(np.arange(500))
    assert (starts.dtype, lengths.dtype, store.weights.dtype) == (np.int64, np.int32, np.float64)
    assert store.corpus.tolist() == [row // 77 % 2 for row in range(500)]
    assert store.lines(np.arange(500)) == list(range(1, 501))
    assert store.src_texts()[499] == "s499" and store.tgt_texts()[0] == "tä0"


def test_copies_have_the_target_on_both_sides(tmp_path: Path) -> None:
    src, tgt = sentences(10, 300, 1), sentences(10, 300, 2)
    store = write(tmp_path / "a.arrow", src, tgt, 300, block=3).with_copies(0.5)
    assert (read(store.src), read(store.tgt)) == (src + tgt, tgt + tgt)
    assert store.num_pairs == 20 and np.shares_memory(store.src.tokens, store.tgt.tokens)
    assert store.weights[store.corpus].tolist() == [
        *[1.0] * 3,
        *[2.5] * 3,
        *[1.0] * 3,
        2.5,
        *[0.5] * 3,
        *[1.25] * 3,
        *[0.5] * 3,
        1.25,
    ]
    assert store.lines(np.arange(20)) == [*range(1, 11)] * 2
    assert store.texts(np.array([1, 11])) == (["s1", "tä1"], ["tä1", "tä1"])
    assert store.src_texts()[9:11] == ["s9", "tä0"]


def test_several_batches_are_one_view_without_a_copy(tmp_path: Path) -> None:
    src, tgt = sentences(1000, 5000, 1), sentences(1000, 5000, 2)
    store = write(tmp_path / "a.arrow", src, tgt, 5000, block=300)
    assert read(store.src) == src
    assert store.tgt.lengths.tolist() == [len(ids) for ids in tgt]
    assert np.shares_memory(store.src.tokens, store.tgt.tokens)
    assert not store.src.tokens.flags.owndata and not store.src.tokens.flags.writeable
    assert store.src.tokens.nbytes == (tmp_path / "a.arrow").stat().st_size // 2 * 2


def test_the_view_outlives_the_store(tmp_path: Path) -> None:
    src = sentences(10, 50, 3)
    side = write(tmp_path / "a.arrow", src, src, 50, block=3).src
    assert read(side) == src


@pytest.mark.parametrize("num_ids", [50, 70_000])
def test_no_pairs_are_legal(tmp_path: Path, num_ids: int) -> None:
    store = write(tmp_path / "a.arrow", [], [], num_ids, block=5)
    assert store.num_pairs == 0 and read(store.src) == [] and store.src_texts() == [] and store.corpus.shape == (0,)


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    good, other = tmp_path / "good.arrow", tmp_path / "other.arrow"
    src = sentences(100, 50, 1)
    write(good, src, src, 50, block=100)
    table = pa.table({"src_ids": [[1]]})
    with pa.ipc.new_file(str(tmp_path / "arrow"), table.schema) as writer:
        writer.write_table(table)
    for content in (b"", b"ARROW1\0\0", b"x" * 5000, good.read_bytes()[:-50], (tmp_path / "arrow").read_bytes()):
        other.write_bytes(content)
        with pytest.raises(DamagedFileError, match=r"other\.arrow"):
            TokenStore.load(other)
    with pytest.raises(DamagedFileError, match="missing.arrow"):
        TokenStore.load(tmp_path / "missing.arrow")


def test_every_offset_is_checked_unless_another_process_does_it(tmp_path: Path) -> None:
    path, src = tmp_path / "a.arrow", sentences(20, 50, 1)
    store = write(path, src, src, 50, block=20)
    place = int(store.src.blocks["offset_place"][0]) + 10
    content = bytearray(path.read_bytes())
    content[4 * place : 4 * place + 4] = (1 << 20).to_bytes(4, "little")  # neither the first nor the last
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="a sentence without </s>"):
        TokenStore.load(path)
    TokenStore.load(path, check_content=False)


def test_the_pairs_of_a_corpus_are_numbered_from_zero(tmp_path: Path) -> None:
    src, tgt = sentences(10, 300, 1), sentences(10, 300, 2)
    store = write(tmp_path / "a.arrow", src, tgt, 300, block=3)
    part = store.take_corpora([1])
    assert (read(part.src), read(part.tgt)) == (src[3:6] + src[9:], tgt[3:6] + tgt[9:])
    assert part.src_texts() == ["s3", "s4", "s5", "s9"] and part.texts(np.array([3, 0])) == (
        ["s9", "s3"],
        ["tä9", "tä3"],
    )
    assert part.num_pairs == 4 and part.lines(np.array([3])) == [10]
    assert store.take_corpora([]).num_pairs == 0 and store.take_corpora([]).src_texts() == []


@pytest.mark.parametrize("corpora", [[0, 1], [0, None]])
def test_a_batch_of_several_corpora_is_refused(tmp_path: Path, corpora: list[int | None]) -> None:
    batch = store_batch(9, [[1, 0]] * 2, [[1, 0]] * 2, [1, 2], corpora, ["a"] * 2, ["b"] * 2)
    write_store(tmp_path / "a.arrow", 9, [1.0, 1.0], [batch])
    with pytest.raises(DamagedFileError, match="is not a readable store of token ids"):
        TokenStore.load(tmp_path / "a.arrow")


def test_damage_never_leads_out_of_the_file(tmp_path: Path) -> None:
    """One byte after another is broken: the store is refused, or every id that it names lies inside the file."""
    path, src = tmp_path / "a.arrow", sentences(20, 50, 1)
    write(path, src, src, 50, block=20)
    good = path.read_bytes()
    for position in range(0, len(good), 7):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x81]) + good[position + 1 :])
        try:
            store = TokenStore.load(path)
        except DamagedFileError:
            continue
        for side in (store.src, store.tgt):
            starts, lengths = side.locate(np.arange(side.num_sentences))
            assert (starts >= 0).all() and (starts + lengths <= len(side.tokens)).all()
