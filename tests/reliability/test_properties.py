"""Laws of text and of steps, tried on generated examples: tokenizer, line reader, pair filter, packing, sampler."""

import gzip
import io
import os
import re
import unicodedata
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mtx.commands import translate
from mtx.config import settings
from mtx.config.schema import DataConfig, TokenizerConfig
from mtx.data import prepare as preparing
from mtx.data import tables
from mtx.data.cleaning import clean_pair
from mtx.data.markup import clean_text, strip_codes
from mtx.data.packing import assign, load_steps, micro_batch_shape, pack
from mtx.data.prepare import prepare
from mtx.data.sampler import SamplerState, steps
from mtx.data.token_store import load_prepared
from mtx.data.tokenizer import EOS_ID, Form, Tokenizer, train_tokenizer
from mtx.storage import durable, text_files
from mtx.storage.text_files import kind_of, replace_invalid, wide_encoding
from mtx.training.checkpoint import State
from tests.models import random_ids, side
from tests.reliability.properties import Tally, hold
from tests.samplers import epoch_order, sampler_of
from tests.unit.data.test_packing import check_batch, unpack

BREAKS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"  # where str.splitlines breaks
NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]")
WORDS = [
    "a dog runs",
    "ein Hund läuft",
    "два пса",
    "犬が走る",
    "m² ½ ﬁ",
    "e\u0301té",
    "\U0001f469\u200d\U0001f680",
    "</s>",
]

HOSTILE = [*BREAKS, *"\x00\x1b\x7f\x9f\ufeff\u200b\u202e\u3000\u2581 \ud800\udfff", *WORDS]
TEXTS = st.lists(st.text(max_size=30) | st.sampled_from(HOSTILE), max_size=8).map("".join)


# --- the tokenizer ---


@pytest.fixture(scope="module", params=["nfc", "nmt_nfkc", "none"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return learn(request.param)


def learn(form: Form) -> Tokenizer:
    return train_tokenizer(WORDS * 40, TokenizerConfig(vocab_size=330, normalization=form), 40, ["BT"])


def one_line(text: str) -> bool:
    """Whether the text has a UTF-8 form, and no controls, U+FFFD or what some program takes for the end of a line."""
    text.encode()
    return not NO_TEXT.search(text)


def test_text_comes_back_from_its_ids(tokenizer: Tokenizer, tally: Tally) -> None:
    def check(text: str) -> None:
        ids = tokenizer.encode([text, text], tokenizer.frame("", "", "BT"))
        assert ids == [ids[0]] * 2 and ids[0][0] == tokenizer.tags["BT"] and ids[0][-1] == EOS_ID
        assert all(1 < token < tokenizer.num_pieces for token in ids[0][1:-1])
        decoded = tokenizer.decode(ids)[0]
        assert one_line(decoded)
        if tokenizer.normalization != "nmt_nfkc" and "\u2581" not in text:
            given = re.sub("[\ud800-\udfff]", "\ufffd", text)
            given = unicodedata.normalize("NFC", given) if tokenizer.normalization == "nfc" else given
            assert decoded == NO_TEXT.sub(" ", re.sub(" +", " ", given).strip(" "))

    hold(tally, f"text through the tokenizer, {tokenizer.normalization}", check, TEXTS)


def test_any_ids_are_one_line_of_text(tokenizer: Tokenizer, tally: Tally) -> None:
    def check(ids: list[int]) -> None:
        assert one_line(tokenizer.decode([ids])[0]) and len(tokenizer.pieces(ids)) == len(ids)

    ids = st.lists(st.integers(0, tokenizer.pad_id) | st.integers(2, 257), max_size=30)
    hold(tally, f"any ids to text, {tokenizer.normalization}", check, ids)


# --- the line reader ---

PARTS = [b"\n", b"\r", b"\r\n", b"\xef\xbb\xbf", b"\x00", b"\xff", b"\xed\xa0\x80", *(c.encode() for c in BREAKS), b"a"]
BYTES = st.lists(st.sampled_from(PARTS) | st.binary(max_size=12), max_size=25).map(b"".join)
CUTS = st.lists(st.integers(0, 80), max_size=6).map(sorted)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data in pieces, of which some may be empty."""
    return [data[start:stop] for start, stop in pairwise((0, *cuts, len(data)))]


def lines_of(data: bytes) -> list[bytes]:
    """The lines by the rule: LF ends a line, one CR before it is part of the end, as is a BOM of the beginning."""
    *ended, rest = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    last = [rest] if rest or data == b"\xef\xbb\xbf" else []
    return [line.removesuffix(b"\r") for line in ended] + last


class Dripping(io.RawIOBase):
    """A stream that gives one piece a read, as pipes and sockets do."""

    def __init__(self, pieces: list[bytes]):
        self._pieces = [piece for piece in pieces if piece]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._pieces.pop(0) if self._pieces else b""
        buffer[: len(piece)] = piece[: len(buffer)]
        if len(piece) > len(buffer):
            self._pieces.insert(0, piece[len(buffer) :])
        return min(len(piece), len(buffer))


def test_the_line_reader_conserves_bytes(tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "BLOCK_LINES", 3)

    def check(data: bytes, cuts: list[int], buffer_size: int) -> None:
        assume(not data.startswith(b"\x1f\x8b"))  # which says that what follows is gzip
        assume(kind_of(data) is None)  # a file of a known kind is refused
        assume(wide_encoding(data) is None and (b"\n" in data or data.count(b"\r") < 2))  # such text is refused
        expected = lines_of(data)
        (tmp_path / "plain").write_bytes(data)
        (tmp_path / "packed").write_bytes(b"".join(gzip.compress(piece) for piece in cut(data, cuts)))
        dripping = io.BufferedReader(Dripping(cut(data, cuts)), buffer_size)
        assert list(text_files.byte_lines(dripping)) == expected
        text = [line.decode(errors="replace") for line in expected]
        for name in ("plain", "packed"):
            path = tmp_path / name
            assert list(text_files.read_lines(path)) == text, name
            with text_files.open_bytes(path, is_plain=True) as file:
                blocks = [[replace_invalid(line) for (line,) in block] for block in translate.blocks(file, path)]
            assert [line for block in blocks for line in block] == text and all(len(block) <= 3 for block in blocks)
        reader, writer = os.pipe()
        os.write(writer, data)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            assert [replace_invalid(line) for block in translate.blocks(file, None) for (line,) in block] == text

    hold(tally, "bytes through the line reader", check, BYTES, CUTS, st.integers(1, 40))


# --- the pair filter ---

SIDES = st.sampled_from(["a dog", "a cat", "", " ", "\u200b", "a\x00", "\ufffd", "x" * 200, "a" * 60, "犬" * 17])
PAIRS = st.lists(st.tuples(SIDES | TEXTS, SIDES | TEXTS), max_size=12)


def test_the_filter_keeps_order_and_pairing_and_counts_the_rest(tmp_path: Path, tally: Tally) -> None:
    tokenizer, limits = learn("nfc"), DataConfig(max_tokens=12, max_length_ratio=4.0)
    for side_number, language in enumerate(("xx", "yy")):
        (tmp_path / f"dev.{language}").write_text(f"{side_number} given\n")
    keys = [f"data.dir={tmp_path}", "data.src=xx", "data.tgt=yy", "data.valid=dev", "data.test=dev", "data.train=t"]
    config = settings.resolve(None, [*keys, "data.max_tokens=12"]).config

    def check(first: list[tuple[str, str]], second: list[tuple[str, str]]) -> None:
        pairs = [("a b", "c d"), *first, *second, *first]
        pairs = [(src.replace("\n", " "), tgt.replace("\n", " ")) for src, tgt in pairs]
        for number, language in enumerate(("xx", "yy")):
            lines = [pair[number].encode(errors="surrogatepass") + b"\n" for pair in pairs]
            (tmp_path / f"t.{language}").write_bytes(b"".join(lines))
            assume(wide_encoding(b"".join(lines)) is None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "BLOCK_PAIRS", 5)
            patch.setattr(preparing, "_FEW_NOT_UTF8", len(pairs))  # otherwise the corpus is refused
            out = tmp_path / "out"
            prepare(config, out, tokenizer)
        data = load_prepared(out)
        durable.remove_directory(out)
        (told,) = data.report["corpora"]
        expected, dropped = expected_of(pairs, limits, tokenizer)
        found = list(
            zip(
                data.train.lines(np.arange(data.train.num_pairs)),
                data.train.src_texts(),
                data.train.tgt_texts(),
                strict=True,
            )
        )
        assert found == expected
        assert told["dropped"] == dropped and told["read"] == len(pairs) == told["kept"] + sum(dropped.values())

    hold(tally, "pairs through the filter", check, PAIRS, PAIRS, push=100)


def expected_of(
    pairs: list[tuple[str, str]], limits: DataConfig, tokenizer: Tokenizer
) -> tuple[list[tuple[int, str, str]], Counter[str]]:
    """The pairs that are kept, with their lines, and how many are dropped for which reason; one pair at a time."""
    kept: list[tuple[int, str, str]] = []
    dropped: Counter[str] = Counter()
    seen = set()
    for line, (src, tgt) in enumerate(pairs, 1):
        src, tgt = ((text.removeprefix("\ufeff") if line == 1 else text).removesuffix("\r") for text in (src, tgt))
        cleaned = clean_pair(*(text_files.escaped(text.encode(errors="surrogatepass")) for text in (src, tgt)), limits)
        if isinstance(cleaned, str):
            dropped[cleaned] += 1
        elif cleaned in seen:
            dropped["duplicate"] += 1
        elif max(map(len, tokenizer.encode(learned := [strip_codes(text).strip() or text for text in cleaned]))) > (
            limits.max_tokens
        ):
            dropped["too long"] += 1
        else:
            kept.append((line, learned[0], learned[1]))
        if not isinstance(cleaned, str):
            seen.add(cleaned)
    return kept, dropped


def test_clean_text_is_one_line_and_clean(tally: Tally) -> None:
    def check(text: str) -> None:
        cleaned = clean_text(text)
        assert clean_text(cleaned) == cleaned and len(f"{cleaned}.".splitlines()) == 1

    hold(tally, "text is clean once it is cleaned", check, TEXTS)


# --- steps ---

PAD = 50
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)
WEIGHTS = st.none() | st.lists(st.floats(0, 3) | st.just(1.0), min_size=60, max_size=60)


def sides_of(sizes: list[tuple[int, int]], seed: int) -> Any:
    """A store of random sentences of such lengths."""
    src, tgt = (side(random_ids(column, PAD, seed + i)) for i, column in enumerate(zip(*sizes, strict=True)))
    return SimpleNamespace(src=src, tgt=tgt, num_ids=PAD)


def weights_of(weights: list[float] | None, num_pairs: int) -> Any:
    """As many weights, the last of which is at least 1: an epoch holds something."""
    return None if weights is None else np.array([*weights[: num_pairs - 1], 1.0])


def test_packing_conserves_pairs_and_keeps_to_the_budgets(tally: Tally) -> None:
    def check(
        sizes: list[tuple[int, int]], weights: Any, batch_tokens: int, ks: list[int], seed: int, is_narrow: bool
    ) -> None:
        store = sides_of(sizes, seed)
        weights = weights_of(weights, len(sizes))
        plan = sampler_of(store.src.lengths, store.tgt.lengths, weights, seed, batch_tokens)
        src_budget = max(round(batch_tokens * plan.ratio), int(store.src.lengths.max()))
        for step in steps(plan, SamplerState(), 3):
            assert len(step.pairs) >= 1
            assert step.tgt_lengths.sum() <= batch_tokens and step.src_lengths.sum() <= src_budget
            given = sorted((tokens(store.src, pair), tokens(store.tgt, pair)) for pair in step.pairs)
            for wanted in ks:
                mean = plan.tokens_per_sentence if is_narrow else None
                k, shape = micro_batch_shape(batch_tokens, -(-batch_tokens // wanted), plan.ratio, 40, mean)
                groups = assign(store.src.lengths[step.pairs], store.tgt.lengths[step.pairs], k, shape)
                batches = [pack(store.src, store.tgt, step.pairs[group], shape, PAD) for group in groups]
                for batch in batches:
                    check_batch(batch, shape)
                assert sorted(pair for batch in batches for pair in unpack(batch)) == given

    ks = st.lists(st.integers(1, 6), min_size=1, max_size=3)
    hold(tally, "steps packed", check, LENGTHS, WEIGHTS, st.integers(40, 400), ks, st.integers(0, 99), st.booleans())


def tokens(ids: Any, pair: int) -> list[int]:
    [sentence] = ids.sentences(np.array([pair]))
    return sentence  # type: ignore[no-any-return]


@pytest.mark.extended
def test_every_epoch_is_whole_however_often_training_resumes(tally: Tally) -> None:
    def check(sizes: list[tuple[int, int]], weights: Any, parts: list[int], batch_tokens: int, seed: int) -> None:
        store = sides_of(sizes, seed)
        weights = weights_of(weights, len(sizes))
        make = partial(sampler_of, store.src.lengths, store.tgt.lengths, weights, seed, batch_tokens)
        whole = [step.pairs.tolist() for step in steps(make(), SamplerState(), sum(parts))]
        position, taken = SamplerState(), []
        for num_steps in parts:
            sampler = make()
            _, shape = micro_batch_shape(batch_tokens, batch_tokens, sampler.ratio, 40, sampler.tokens_per_sentence)
            ahead = steps(sampler, position, num_steps + 3)  # 3 are lost
            with closing(load_steps(store, ahead, 1, shape)) as loaded:
                for number, step in zip(range(num_steps), loaded, strict=False):
                    planned = make().step(position)
                    given = sorted((tokens(store.src, pair), tokens(store.tgt, pair)) for pair in planned.pairs)
                    assert sorted(p for batch in step.micro_batches for p in unpack(batch)) == given, number
                    taken.append(planned.pairs.tolist())
                    position = TypeAdapter(State).validate_python(asdict(State(position=step.position_after))).position
                    assert position == planned.position_after
        assert taken == whole
        check_epochs([pair for step in taken for pair in step], position, weights, len(sizes), seed)

    parts = st.lists(st.integers(1, 6), min_size=2, max_size=5)
    hold(
        tally,
        "epochs with 1-4 resumes",
        check,
        LENGTHS,
        WEIGHTS,
        parts,
        st.integers(40, 300),
        st.integers(0, 99),
        push=80,
    )


def check_epochs(taken: list[int], position: SamplerState, weights: Any, num_pairs: int, seed: int) -> None:
    """Every epoch that is over holds each pair once, or as often as its weight allows; the last is as far as told."""
    for epoch in range(position.epoch):
        size = len(epoch_order(seed, epoch, num_pairs, weights))
        counts = np.bincount(taken[:size], minlength=num_pairs)
        wanted = np.ones(num_pairs) if weights is None else weights
        assert (np.floor(wanted) <= counts).all() and (counts <= np.ceil(wanted)).all(), epoch
        del taken[:size]
    assert len(taken) == position.index
