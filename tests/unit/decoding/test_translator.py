"""N lines in, N lines out, whatever they hold, in whatever company."""

import random
import threading

import pytest
import torch

from mtx.config import TokenizerConfig
from mtx.data.tokenizer import EOS_ID, Tokenizer, train_tokenizer
from mtx.decoding.translator import Hypothesis, Translator, pack_sentences
from mtx.errors import UsageError
from tests.models import tiny_model

MAX_TOKENS = 24
NASTY = [
    "", " ", "   \t ", "\x00", "a\x00b", "one\u2028two", "one\u2029two", "one\x85two", "one\rtwo", "\r", "one\ntwo\r\n",
    "a\x0bb\x0cc\x1cd\x1ee", "x" * 20_000, "\ud800", "a\udfffb", "</s> <unk> <pad>", "\U0001f468\u200d\U0001f469",
    "\ufeffa", "ab cd", "\u3000", "ef",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(80)]
    lines = [" ".join(rng.choices(words, k=8)) for _ in range(200)]
    return train_tokenizer(iter(lines), TokenizerConfig(vocab_size=320), 200, [])


@pytest.fixture(scope="module")
def translator(tokenizer: Tokenizer) -> Translator:
    """A random model that ends its sentences soon."""
    model = tiny_model(tokenizer.num_ids, seed=4, dtype=torch.float32, output_bias=True, dropout=0.3)
    with torch.no_grad():
        assert model.output_bias is not None
        model.output_bias[EOS_ID] += 2
    return Translator(model, tokenizer, MAX_TOKENS, beam_size=2, batch_tokens=2000)


def sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdefgh  ", k=rng.randint(0, 25))) for _ in range(count)]


def one_line(text: str) -> bool:
    return len(f"a{text}a".splitlines()) == 1 and "\x00" not in text


def test_as_many_lines_come_out_as_go_in(translator: Translator) -> None:
    out = translator.translate(NASTY)
    assert len(out) == len(NASTY)
    assert [out[NASTY.index(line)] for line in ("", " ", "\r")] == ["", "", ""]
    assert all(map(one_line, out))
    for line, text in list(zip(NASTY, out, strict=True))[-6:]:  # in their order: each is what it is alone
        assert translator.translate([line]) == [text]


def test_no_lines_are_no_lines(translator: Translator) -> None:
    assert translator.translate([]) == []
    assert translator.translate(["", ""]) == ["", ""]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_batches_and_order_change_nothing(translator: Translator, tokenizer: Tokenizer, beam_size: int) -> None:
    lines = sentences(30, seed=5)
    shuffled = random.Random(2).sample(range(30), 30)
    large, small = (
        Translator(translator.model, tokenizer, MAX_TOKENS, beam_size=beam_size, batch_tokens=n) for n in (2000, 1)
    )
    expected = large.translate(lines)
    assert len(set(expected)) > 5, "the outputs differ, or this would show nothing"
    assert large.translate([lines[i] for i in shuffled]) == [expected[i] for i in shuffled]
    assert small.translate(lines) == expected


def test_batches_keep_to_their_budget(translator: Translator) -> None:
    sources = [[1] * n for n in (3, 9, 1, 30, 8, 2, 2)]
    small = Translator(translator.model, translator.tokenizer, MAX_TOKENS, batch_tokens=24)
    batches = list(small._batches(sources))
    assert batches == [[3], [1, 4], [0, 5, 6], [2]]  # 30 alone; 2 * 9, as 27 is too much; short ones count as 8


def test_hypotheses_are_at_most_beam_size_and_best_first(translator: Translator, tokenizer: Tokenizer) -> None:
    for line in translator.hypotheses(["abc de", "", "fgh a b c"]):
        assert 1 <= len(line) <= 2
        assert all(a.score >= b.score for a, b in zip(line, line[1:], strict=False))
        for hypothesis in line:
            ids = [tokenizer._processor.piece_to_id(piece) for piece in hypothesis.pieces]
            assert hypothesis.text == tokenizer.decode([ids])[0]


def test_an_empty_line_has_one_empty_hypothesis(translator: Translator) -> None:
    assert translator.hypotheses(["  "]) == [[Hypothesis("", 0.0, [])]]


def test_a_long_line_is_translated_in_parts(translator: Translator, tokenizer: Tokenizer) -> None:
    line = " ".join(sentences(12, seed=9))
    ids = tokenizer.encode([line])[0]
    assert len(ids) > 2 * MAX_TOKENS
    parts = translator._split(line)
    assert all(1 < len(part) <= MAX_TOKENS and part[-1] == EOS_ID for part in parts)
    assert [i for part in parts for i in part[:-1]] == ids[:-1]
    best = [found[0] for found in translator._decode(parts)]
    (got,) = translator.hypotheses([line])[0]
    assert got.text == " ".join(h.text for h in best if h.text)
    assert got.score == pytest.approx(sum(h.score for h in best))
    assert got.pieces == [piece for h in best for piece in h.pieces]


def test_the_longest_line_that_is_one_part(translator: Translator) -> None:
    pieces = translator.tokenizer.encode(["ab " * 60])[0]
    for count, parts in ((MAX_TOKENS - 1, 1), (MAX_TOKENS, 2)):
        text = translator.tokenizer.decode([pieces[:count]])[0]
        assert len(translator.tokenizer.encode([text])[0]) == count + 1
        assert len(translator._split(text)) == parts


def test_several_threads_get_what_one_gets(translator: Translator) -> None:
    lines = [sentences(8, seed) for seed in range(4)]
    expected = [translator.translate(part) for part in lines]
    results: list[list[str] | None] = [None] * 4

    def work(number: int) -> None:
        results[number] = translator.translate(lines[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == expected


def test_the_model_is_left_in_the_mode_in_which_it_was(translator: Translator) -> None:
    expected = translator.translate(["abc"])
    translator.model.train()
    assert translator.translate(["abc"]) == expected
    assert translator.model.training
    translator.model.eval()


def test_a_batch_of_sentences_is_exactly_these() -> None:
    batch = pack_sentences([[5, 6, 0], [0]], [[0], [7, 0]], pad_id=9)
    assert batch.src_ids.tolist() == [5, 6, 0, 0]
    assert batch.src_offsets.tolist() == [0, 3, 4]
    assert batch.tgt_in_ids.tolist() == [9, 9, 7]
    assert (batch.num_sentences, batch.max_tokens) == (2, 3)


def test_a_path_that_is_no_directory_is_refused() -> None:
    with pytest.raises(UsageError, match="/no/such/model"):
        Translator.load("/no/such/model")
