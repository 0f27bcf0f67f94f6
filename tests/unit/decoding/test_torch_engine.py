"""N lines in give N lines out, whatever the lines hold and whatever lines stand beside them."""

import itertools
import logging
import math
import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mtx.config.schema import TokenizerConfig
from mtx.data.sentencepiece_models import SplitModel
from mtx.data.tokenizer import EOS_ID, Frame, Tokenizer, train_tokenizer
from mtx.decoding import torch_engine as module
from mtx.decoding import torch_engine as scoring
from mtx.decoding.beam_search import Request, RequestQueue
from mtx.decoding.options import Candidate, Placement, Sampling, SearchOptions
from mtx.decoding.translator import Hypothesis, Part, Translator, best_combinations
from mtx.errors import DataError, UsageError
from mtx.storage import streams
from tests.models import tiny_model
from tests.translators import torch_translator
from tests.unit.data.test_tokenizer import PIECES, side_model

MAX_TOKENS = 24
EN_DE = {"src": "en", "tgt": "de", "max_tokens": MAX_TOKENS}
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
    return torch_translator(model, tokenizer, MAX_TOKENS, SearchOptions(2), Placement(batch_tokens=2000))


def sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdefgh  ", k=rng.randint(0, 25))) for _ in range(count)]


def one_line(text: str) -> bool:
    return len(f"a{text}a".splitlines()) == 1 and "\x00" not in text


@pytest.mark.seconds
def test_as_many_lines_come_out_as_go_in(translator: Translator) -> None:
    out = translator.translate(NASTY)
    assert len(out) == len(NASTY)
    assert [out[NASTY.index(line)] for line in ("", " ", "\r")] == ["", "", ""]
    assert all(map(one_line, out))
    for line, text in list(zip(NASTY, out, strict=True))[-6:]:  # in their order: each is what it is alone
        assert translator.translate([line]) == [text]


def test_no_lines_give_no_lines(translator: Translator) -> None:
    assert translator.translate([]) == []
    assert translator.translate(["", ""]) == ["", ""]


@pytest.mark.seconds
@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.extended), 3])
def test_batches_and_order_change_nothing(translator: Translator, tokenizer: Tokenizer, beam_size: int) -> None:
    lines = sentences(30, seed=5)
    shuffled = random.Random(2).sample(range(30), 30)
    large, small, alone = (
        torch_translator(
            translator.torch.model,
            tokenizer,
            MAX_TOKENS,
            SearchOptions(beam_size),
            Placement(batch_tokens=n, threads=threads),
        )
        for n, threads in ((2000, 1), (1, 1), (100, 3))
    )
    expected = large.translate(lines)
    assert len(set(expected)) > 5, "the outputs differ, or this would show nothing"
    assert large.translate([lines[i] for i in shuffled]) == [expected[i] for i in shuffled]
    assert small.translate(lines) == alone.translate(lines) == expected
    assert [large.translate([line])[0] for line in lines] == expected


def test_groups_stay_within_their_budget_of_tokens(translator: Translator) -> None:
    requests = [Request(n, [1] * n, 60, []) for n in (30, 20, 16, 15, 8, 4, 3, 2, 2, 1)]
    small = torch_translator(
        translator.torch.model, translator.tokenizer, MAX_TOKENS, placement=Placement(batch_tokens=64, threads=1)
    )
    groups = list(small.torch._groups(requests))
    # 2 slots of 30, until sentences are half as long; 4 of 15; then short ones, which count as 8
    assert [[request.number for request in group.waiting] for group in groups] == [
        [30, 20, 16],
        [15, 8, 4, 3],
        [2, 2, 1],
    ]
    assert [group.num_slots for group in groups] == [2, 4, 3]


def test_hypotheses_are_at_most_beam_size_and_best_first(translator: Translator, tokenizer: Tokenizer) -> None:
    for line in translator.hypotheses(["abc de", "", "fgh a b c"]):
        assert 1 <= len(line) <= 2
        assert all(a.score >= b.score for a, b in zip(line, line[1:], strict=False))
        for hypothesis in line:
            ids = [tokenizer.vocabulary().index(piece) for piece in hypothesis.pieces]
            assert hypothesis.text == tokenizer.decode([ids])[0]


def test_an_empty_line_has_one_empty_hypothesis(translator: Translator) -> None:
    assert translator.hypotheses(["  "]) == [[Hypothesis([], 0.0, [])]]


def test_a_long_line_is_translated_in_parts(translator: Translator, tokenizer: Tokenizer) -> None:
    line = " ".join(sentences(12, seed=9))
    ids = tokenizer.encode([line])[0]
    assert len(ids) > 2 * MAX_TOKENS
    parts = translator.split([line])[0]
    assert all(1 < len(part.ids) <= MAX_TOKENS and part.ids[-1] == EOS_ID for part in parts)
    assert [i for part in parts for i in part.ids[:-1]] == ids[:-1]
    best = [found[0] for found in translator.decode_parts(parts)]
    got, *_ = translator.hypotheses([line])[0]
    assert got.text == " ".join(h.text for h in best if h.text)
    assert got.score == pytest.approx(sum(h.score for h in best))
    assert got.pieces == [piece for h in best for piece in h.pieces]


def test_the_longest_line_that_is_one_part(translator: Translator) -> None:
    pieces = translator.tokenizer.encode(["ab " * 60])[0]
    for count, parts in ((MAX_TOKENS - 1, 1), (MAX_TOKENS, 2)):
        text = translator.tokenizer.decode([pieces[:count]])[0]
        assert len(translator.tokenizer.encode([text])[0]) == count + 1
        assert len(translator.split([text])[0]) == parts


def test_a_sentence_in_capitals_is_translated_as_it_is_usually_written(translator: Translator) -> None:
    lines = [" ".join(line.split()).capitalize() for line in sentences(30, seed=3) if len(line) > 12]
    usual, capitals = translator.hypotheses(lines), translator.hypotheses([line.upper() for line in lines])
    assert any(h.text != h.text.upper() for found in usual for h in found)
    for of_usual, of_capitals in zip(usual, capitals, strict=True):
        assert [(h.text.upper(), h.score, h.pieces) for h in of_usual] == [
            (h.text, pytest.approx(h.score, abs=1e-5), h.pieces) for h in of_capitals
        ]
    [with_prefix] = translator.translate(["ABC DFG HA"], ["abc"])
    assert with_prefix.startswith("abc")


def test_each_sentence_of_a_line_has_its_case(translator: Translator, tokenizer: Tokenizer) -> None:
    split = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, SearchOptions(2))
    split.splitter = lambda line: line.split(".")
    assert [part.case for part in split.split(["ABC DFG. abc dfg"])[0]] == ["upper", None]


def test_a_prefix_is_what_the_translation_begins_with(translator: Translator) -> None:
    lines = ["abc de", "fgh a b c", "ab " * 60, "ha"]
    prefixes = ["cafe dead", "", "bad", "gh " * 20]
    got = translator.translate(lines, prefixes)
    for text, prefix in zip(got, prefixes, strict=True):
        assert text.startswith(prefix.strip())
    assert got[1] == translator.translate(lines[1:2])[0]
    assert len(got[0]) > len(prefixes[0])


def test_sentences_of_a_line_are_translated_one_by_one(translator: Translator, tokenizer: Tokenizer) -> None:
    split = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, SearchOptions(2))
    split.splitter = lambda text: text.split("§")
    assert split.translate(["abc§de§fgh", "ab", ""]) == [
        " ".join(translator.translate(["abc", "de", "fgh"])), *translator.translate(["ab", ""])
    ]  # fmt: skip


def test_a_language_token_goes_before_each_sentence_and_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    models = SplitModel(side_model("ab"), side_model("xy"), {piece: i for i, piece in enumerate(PIECES)})
    multilingual = Tokenizer(models, "none", [])
    language = PIECES.index(">>fr<<")
    split = torch_translator(tiny_model(multilingual.num_ids, seed=4), multilingual, 8, SearchOptions(2))
    split.splitter = lambda text: text.split("§")
    [parts] = split.split([">>fr<< ab§a§" + "ab" * 20])
    assert len(parts) > 4 and all(part.ids[0] == language and len(part.ids) <= 8 for part in parts)
    [plain] = split.split(["ab§a"])
    assert [part.ids[1:] for part in parts[:2]] == [part.ids for part in plain]
    assert split.translate([">>fr<<"]) == [""]
    asked, search = list[list[int]](), split.engine.search
    monkeypatch.setattr(split.engine, "search", lambda sources, *rest: asked.extend(sources) or search(sources, *rest))
    split.translate_marked([[">>fr<< ab§a"]])
    assert asked == [part.ids for part in parts[:2]]


def test_a_frame_stands_around_each_part_and_before_each_translation(
    translator: Translator, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    framed = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, SearchOptions(2))
    framed.splitter = lambda text: text.split("§")
    framed.frame = Frame((320, 321), (EOS_ID, 322), (323,))
    asked, search = list[tuple[list[int], list[int]]](), framed.engine.search

    def searched(sources: list[list[int]], prefixes: list[list[int]], options: SearchOptions) -> list[list[Candidate]]:
        asked.extend(zip(sources, prefixes, strict=True))
        return search(sources, prefixes, options)

    monkeypatch.setattr(framed.engine, "search", searched)
    lines = ["abc§de", "ab " * 60]
    found = framed.hypotheses(lines, ["gh", ""])
    assert found[0][0].pieces[0] == "<reserved_3>" and found[0][0].text.startswith("gh")
    assert len(asked) > 3 and all(len(source) <= MAX_TOKENS for source, _ in asked)
    assert all(source[:2] == [320, 321] and source[-2:] == [EOS_ID, 322] for source, _ in asked)
    [first, *others] = [prefix for _, prefix in asked]
    assert first == [323, *tokenizer.encode_text(["gh"], target=True)[0]] and others == [[323]] * len(others)
    plain = translator.log_probs(["abc"], ["de"])[0].num_tokens
    assert framed.log_probs(["abc"], ["de"])[0].num_tokens == plain + 1


@pytest.mark.parametrize("size", [1, 3, 10])
def test_the_best_combinations_are_those_of_all(size: int) -> None:
    rng = random.Random(size)
    parts = [
        sorted(
            (Hypothesis([str(n)], -rng.randint(0, 9) / 8, []) for n in range(rng.randint(1, 4))), key=lambda h: -h.score
        )
        for _ in range(4)
    ]
    sums = sorted((sum(h.score for h in line) for line in itertools.product(*parts)), reverse=True)
    best = best_combinations([Part([], None, follows_sentence=True)] * 4, parts, size)
    assert [h.score for h in best] == sums[:size]
    assert best[0].text == " ".join(part[0].text for part in parts)
    assert len({h.text for h in best}) == len(best)


def test_a_line_in_parts_has_as_many_hypotheses_and_samples_as_another(
    translator: Translator, tokenizer: Tokenizer
) -> None:
    split = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, SearchOptions(2))
    split.splitter = lambda text: text.split("§")
    (parts,), alone = split.hypotheses(["abc§de"]), translator.hypotheses(["abc", "de"])
    sums = sorted((a.score + b.score for a, b in itertools.product(*alone)), reverse=True)
    assert [h.score for h in parts] == pytest.approx(sums[:2]) and parts[0].text != parts[1].text
    split.options = translator_options = SearchOptions(1, sampling=Sampling(num_samples=3))
    sampler = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, translator_options)
    drawn = zip(*sampler.hypotheses(["abc", "de"]), strict=True)
    assert [h.text for h in split.hypotheses(["abc§de"])[0]] == [" ".join(h.text for h in s) for s in drawn]


@pytest.mark.parametrize(
    "share, asked, is_split",
    [
        (0.0, None, True),
        (0.09, None, True),
        (0.1, None, False),
        (None, None, True),
        (0.9, True, True),
        (0.0, False, False),
    ],
)
def test_lines_are_split_where_the_model_knows_single_sentences(
    translator: Translator, tokenizer: Tokenizer, share: float | None, asked: bool | None, is_split: bool
) -> None:
    info = EN_DE if share is None else {**EN_DE, "multi_sentence_share": share}
    automatic = Translator(translator.engine, tokenizer, info, SearchOptions(2, split_sentences=asked))
    assert [len(parts) for parts in automatic.split(["ab cd. Dr. Ab", "ab", ""])] == [2 if is_split else 1, 1, 0]


def test_what_the_model_decides_is_told_once(
    translator: Translator, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mtx")
    automatic = Translator(translator.engine, tokenizer, EN_DE, SearchOptions(2))
    one = ["ab cd.", "Dr. Ab", "", "1. ab"]
    assert automatic.translate(one) == translator.translate(one) and not caplog.messages
    alone = automatic.translate(["Ab.", "Cd."])
    assert automatic.hypotheses(["ab", "Ab. Cd."])[1][0].text == " ".join(filter(None, alone))
    automatic.translate(["Ab. Cd."])
    assert [message.partition(",")[0] for message in caplog.messages] == [
        "translating the sentences of a line one by one"
    ]
    prefix = ["ha. Ba"]  # it may be that of both sentences
    assert automatic.hypotheses(["Ab. Cd."], prefix) == translator.hypotheses(["Ab. Cd."], prefix)
    automatic.options = SearchOptions(2, split_sentences=True)
    assert automatic.hypotheses(["Ab. Cd."], prefix) != translator.hypotheses(["Ab. Cd."], prefix)


def test_a_single_line_is_no_list_of_lines(translator: Translator) -> None:
    wrong = "^expected a list of lines, got a single str: 'I work.'$"
    for name in ("translate", "hypotheses", "attention_maps"):
        with pytest.raises(TypeError, match=wrong):
            getattr(translator, name)("I work.")
    for arguments in (("I work.", ["a"]), (["a"], "I work.")):
        with pytest.raises(TypeError, match=wrong):
            translator.log_probs(*arguments)
    with pytest.raises(TypeError, match="got a single bytes"):
        translator.translate(["a"], b"I")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        translator.translate(None)  # type: ignore[arg-type]
    for lines in (["a", None], ["a", 1], ["a", ["b"]]):
        for call in (lambda lines: translator.translate(["a", "b"], lines), translator.translate):
            with pytest.raises(TypeError, match=r"^line 2 is of the type (int|NoneType|list), expected str$"):
                call(lines)
    assert translator.attention_maps([]) == []
    for call in (translator.translate, translator.log_probs, translator.attention_maps):
        with pytest.raises(ValueError, match="expected 2 lines, got 1"):
            call(["a", "b"], ["c"])


@pytest.mark.parametrize("arguments, error, message", [
    ({"beam_size": 0}, ValueError, "beam_size=0: expected a whole number from 1 to 100"),
    ({"beam_size": 101}, ValueError, "beam_size=101: expected a whole number from 1 to 100"),
    ({"beam_size": True}, TypeError, "beam_size=True: expected a whole number from 1 to 100"),
    ({"length_penalty": math.nan}, ValueError, "length_penalty=nan: expected a number from 0 to 50.0"),
    ({"max_length": 0}, ValueError, "max_length=0: expected a whole number from 1 to 10000"),
    ({"threads": 0}, ValueError, "threads=0: expected a whole number from 1"),
    ({"threads": -1}, ValueError, "threads=-1: expected a whole number from 1"),
    ({"batch_tokens": 0}, ValueError, "batch_tokens=0: expected a whole number from 1 to 10000000"),
    ({"device": None}, UsageError, "device=None: expected auto, cpu, cuda, cuda:1 or mps"),
])  # fmt: skip
def test_arguments_out_of_their_range_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str, trained: Path
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        Translator.load(trained, engine="torch", **arguments)


@pytest.mark.parametrize("wrong, expected", [
    ({"temperature": 0}, "number from 0.01 to 1000.0"), ({"top_p": 0}, "number from 0.01 to 1.0"),
    ({"top_k": -1}, "whole number from 0"), ({"num_samples": 0}, "whole number from 1 to 1000"),
    ({"seed": None}, "whole number"), ({"epsilon": -0.1}, "number from 0 to 1"),
    ({"epsilon": 1.1}, "number from 0 to 1"),
])  # fmt: skip
def test_samples_of_no_distribution_are_refused(wrong: dict[str, Any], expected: str) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises((TypeError, ValueError), match=f"^{name}={value}: expected a {expected}$"):
        Sampling(**wrong)


def test_samples_are_repeatable_and_differ(translator: Translator, tokenizer: Tokenizer) -> None:
    options = SearchOptions(4, sampling=Sampling(num_samples=5, seed=3))
    sampler = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, options)
    lines = sentences(6, seed=1)
    first = sampler.hypotheses(lines)
    assert [[h.text for h in found] for found in first] == [
        [h.text for h in found] for found in sampler.hypotheses(lines)
    ]
    assert [h.pieces for h in first[2]] == [h.pieces for h in sampler.hypotheses([lines[2]])[0]]
    assert [len(found) for found in first] == [5 if line.strip() else 1 for line in lines]
    assert len({h.text for h in first[0]}) > 1


def test_no_translation_is_longer_than_the_longest(translator: Translator, tokenizer: Tokenizer) -> None:
    short = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, SearchOptions(2, max_length=3))
    assert max(len(h.pieces) for found in short.hypotheses(sentences(9, seed=2)) for h in found) == 3


def test_scores_are_the_same_with_logits_of_few_positions_at_once(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    src = [part.ids for line in sentences(9, seed=2) if line.strip() for part in translator.split([line])[0]]
    expected = translator.torch.log_probs(src, src[::-1], 0.6)
    rows: list[int] = []
    cross_entropy = torch.nn.functional.cross_entropy

    def counted(logits: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        rows.append(len(logits))
        return cross_entropy(logits, *arguments, **named)

    monkeypatch.setattr(scoring, "_MAX_LOGITS", 7 * len(translator.torch.model.output_weight))
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", counted)
    got = translator.torch.log_probs(src, src[::-1], 0.6)
    assert max(rows) == 7 and sum(rows) == sum(map(len, src))
    assert [s.log_prob for s in got] == pytest.approx([s.log_prob for s in expected], abs=1e-4)


@pytest.mark.seconds
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_a_batch_is_halved_while_memory_runs_out(
    translator: Translator, tokenizer: Tokenizer, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, short = sentences(80, seed=3), SearchOptions(2, max_length=6)
    whole = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, short, Placement(batch_tokens=2000))
    expected = [hypotheses[0].score for hypotheses in whole.hypotheses(lines)]
    searched = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, short, Placement(threads=threads))
    original, room, tried = module.search, 5, list[int]()

    def short_of_memory(
        engine: Any, group: RequestQueue, options: SearchOptions, *rest: Any
    ) -> dict[int, list[Candidate]]:
        tried.append(group.num_slots)
        if group.num_slots > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return original(engine, group, options, *rest)

    monkeypatch.setattr(module, "search", short_of_memory)
    found = [hypotheses[0].score for hypotheses in searched.hypotheses(lines)]
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(tried) > 4 * room and tried[-1] <= room
    num_tried = len(tried)
    searched.hypotheses(lines)
    assert max(tried[num_tried:]) <= room, "the next call begins with the smaller batch"

    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        searched.hypotheses(lines)
    assert tried[-1] == 1


def test_kept_slots_are_given_up_before_the_batch_is_halved(
    translator: Translator, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, placement = sentences(20, seed=3), Placement(threads=1)
    searched = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, translator.options, placement)
    engine, original, num_failures = searched.torch, module.search, 0

    def short_of_memory(models: Any, group: RequestQueue, options: SearchOptions, kept: Any, *rest: Any) -> Any:
        nonlocal num_failures
        if kept or num_failures < 0:
            num_failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return original(models, group, options, kept, *rest)

    monkeypatch.setattr(module, "search", short_of_memory)
    size, slots = engine.batch_tokens, object()
    engine._kept_slots["earlier"] = slots  # type: ignore[assignment]
    found = searched.hypotheses(lines)
    assert (engine.batch_tokens, num_failures, engine._kept_slots) == (size, 1, {})
    assert [each[0].text for each in found] == [each[0].text for each in translator.hypotheses(lines)]
    engine._kept_slots["earlier"], num_failures = slots, -2  # type: ignore[assignment]  # the second failure has no slots left
    searched.hypotheses(lines)
    assert engine.batch_tokens == size // 2


def test_other_errors_are_not_tried_again(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(*_: Any) -> None:
        calls.append(1)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(module, "search", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        torch_translator(
            translator.torch.model, translator.tokenizer, MAX_TOKENS, placement=Placement(threads=1)
        ).hypotheses(["ab"])
    assert len(calls) == 1


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_scores_are_forced_scores(translator: Translator, tokenizer: Tokenizer, alpha: float) -> None:
    searched = torch_translator(translator.torch.model, tokenizer, MAX_TOKENS, SearchOptions(3, alpha))
    sources = [searched.split([line])[0][0].ids for line in sentences(12, seed=8) if line.strip()]
    found = searched.engine.search(sources, [[] for _ in sources], searched.options)
    pairs = [(source, c) for source, candidates in zip(sources, found, strict=True) for c in candidates]
    forced = searched.torch.log_probs([source for source, _ in pairs], [c.ids for _, c in pairs], alpha)
    assert [c.score for _, c in pairs] == pytest.approx([f.score for f in forced], abs=1e-4)
    assert [f.score for f in forced] == pytest.approx(
        [f.log_prob / ((5 + len(c.ids)) / 6) ** alpha for f, (_, c) in zip(forced, pairs, strict=True)]
    )
    lines = searched.log_probs(["abc de", ""], ["fgh", "a"])
    assert lines[0].log_prob < 0 and lines[0].num_tokens == len(tokenizer.encode(["fgh"])[0])
    assert lines[1].log_prob < 0


def test_a_target_beyond_the_learned_positions_is_refused(tokenizer: Tokenizer) -> None:
    model = tiny_model(tokenizer.num_ids, dtype=torch.float32, positions="learned")
    translator = torch_translator(model, tokenizer, MAX_TOKENS)
    ids = tokenizer.encode(["ab " * 2000])[0]
    longest, longer = (tokenizer.decode([ids[:count]])[0] for count in (1023, 1024))
    assert [len(tokenizer.encode([text])[0]) for text in (longest, longer)] == [1024, 1025], "</s> included"
    assert translator.log_probs(["ab"], [longest])[0].num_tokens == 1024
    with pytest.raises(DataError, match="^target 'ab .*' … has 1025 subwords, the model supports 1024$"):
        translator.log_probs(["ab", "ab"], ["ab", longer])


def test_a_prefix_beyond_the_learned_positions_is_refused(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tokenizer.num_ids, dtype=torch.float32, positions="learned")
    translator = torch_translator(model, tokenizer, MAX_TOKENS, SearchOptions(beam_size=1))
    ids = tokenizer.encode(["ab " * 2000])[0]
    longest, longer = (tokenizer.decode([ids[:count]])[0] for count in (1023, 1024))
    assert translator.hypotheses(["ab"], [longest])[0][0].text == longest
    monkeypatch.setattr(translator.engine, "search", None)  # nothing of the block is translated
    with pytest.raises(DataError, match="^prefix 'ab .*' … has 1025 subwords, the model supports 1024$"):
        translator.translate(["ab"], [longer])


@pytest.mark.seconds
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


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_search_shows_how_far_it_is(
    threads: int, translator: Translator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "LINE_EVERY_S", 0.0)
    caplog.set_level(logging.INFO, "mtx")
    placement = Placement(threads=threads, batch_tokens=100)
    torch_translator(translator.torch.model, translator.tokenizer, MAX_TOKENS, placement=placement).translate(
        [f"ab cd {'ef ' * (number % 5)}" for number in range(30)]
    )
    shown = [re.fullmatch(r"translating: (\d+) of 30 sentences, about \d+ s left", text) for text in caplog.messages]
    assert len(shown) > 3 and all(shown)


def test_a_path_that_is_no_directory_is_refused() -> None:
    with pytest.raises(UsageError, match="/no/such/model"):
        Translator.load("/no/such/model", engine="torch")
