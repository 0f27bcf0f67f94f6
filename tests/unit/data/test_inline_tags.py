"""Artificial tags stand at words that translate each other, and marks become ids without changing the text around."""

import io
import random
import re
import shutil
from pathlib import Path

import pytest
import sentencepiece

from mtx.config import settings
from mtx.config.schema import TokenizerConfig
from mtx.data.glossary import Glossary
from mtx.data.inline_tags import ALONE, CLOSING, MARKS, MOST_TAGS, OPENING, Mark, training_tags, with_marks
from mtx.data.preprocess import PreparedData, load_prepared, prepare
from mtx.data.sentencepiece_models import JointModel
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.errors import DamagedFileError, DataError, UsageError

WORDS = {"the": "der", "red": "rote", "dog": "Hund", "sees": "sieht", "house": "Haus", "today": "heute"}
LEXICON = Glossary(WORDS)
SRC, TGT = "the red dog sees house today .", "heute sieht der rote Hund Haus ."
ANY_MARK = re.compile(f"[{MARKS}]")


def visible(text: str) -> str:
    """Marks as digits in brackets: [0 and 0] of a pair, {0} of one that stands alone."""
    names = {mark: f"[{number}" for number, mark in enumerate(OPENING)}
    names |= {mark: f"{number}]" for number, mark in enumerate(CLOSING)}
    names |= {mark: f"{{{number}}}" for number, mark in enumerate(ALONE)}
    return "".join(names.get(character, character) for character in text)


def structure(text: str) -> dict[str, str]:
    """Around each mark the innermost pair; fails if a mark is there twice or pairs are not nested."""
    found, stack = dict[str, str](), list[str]()
    for mark in ANY_MARK.findall(text):
        assert mark not in found
        if mark in CLOSING:
            assert OPENING.index(stack.pop()) == CLOSING.index(mark)
        found[mark] = stack[-1] if stack else ""
        stack += [mark] if mark in OPENING else []
    assert not stack
    return found


def changed(seed: int) -> tuple[str, str]:
    return training_tags(LEXICON, SRC, TGT, random.Random(seed))


def test_both_sides_have_the_same_tags_once_and_nested_alike() -> None:
    counts, marks, has_replaced = set[int](), set[str](), 0
    for seed in range(500):
        src, tgt = changed(seed)
        assert structure(src) == structure(tgt)
        counts.add(len(structure(src)))
        marks |= set(structure(src))
        plain = [ANY_MARK.sub("", text).split() for text in (src, tgt)]
        lost = set(SRC.split()) - set(plain[0])
        assert {WORDS[word] for word in lost} == set(TGT.split()) - set(plain[1]), "replaced on both sides"
        has_replaced += bool(lost)
    assert counts == {1, 2, 3, 4, 5, 6} and marks == set(MARKS) and 100 < has_replaced < 400


def test_a_pair_of_tags_encloses_words_and_their_translations() -> None:
    longer = 0
    for seed in range(500):
        src, tgt = changed(seed)
        for opening, closing in zip(OPENING, CLOSING, strict=True):
            if opening not in src:
                continue
            inside = [
                {w for w in re.split(f"[{MARKS} ]+", text[text.index(opening) : text.index(closing)]) if w}
                for text in (src, tgt)
            ]
            outside = {w for w in re.split(f"[{MARKS} ]+", tgt[: tgt.index(opening)] + tgt[tgt.index(closing) :]) if w}
            assert not {WORDS[word] for word in inside[0]} & outside
            assert inside[1] <= {WORDS[word] for word in inside[0]}
            longer += len(inside[0]) > 1
    assert longer > 50


def test_tags_beside_words_stand_at_them_on_both_sides() -> None:
    seen = set[str]()
    for seed in range(500):
        src, tgt = changed(seed)
        if ANY_MARK.sub("", src) != SRC or len(ANY_MARK.findall(src)) != 1:
            continue
        before, after = ANY_MARK.split(src)
        word = WORDS[after.split()[0]] if after[:1].strip() and after[0] != "." else WORDS[before.split()[-1]]
        assert word in visible(tgt).replace("{", " ").replace("}", " ").split()
        place = ANY_MARK.split(tgt)
        assert word in (place[0].split() or [""])[-1] or word in place[1].split()[0]
        seen.add(word)
    assert len(seen) > 3


def test_the_same_seed_gives_the_same_pair() -> None:
    assert [changed(seed) for seed in range(50)] == [changed(seed) for seed in range(50)]
    assert len({changed(seed) for seed in range(50)}) > 40


@pytest.mark.parametrize(("src", "tgt"), [("a tree", "ein Baum"), ("dog and dog", "Hund"), ("dog", "Hund, Hund")])
def test_a_pair_without_clear_words_stays(src: str, tgt: str) -> None:
    assert training_tags(LEXICON, src, tgt, random.Random(1)) == (src, tgt)


def test_where_marks_go() -> None:
    marks = [Mark("around", 0, (2, 5)), Mark("around", 1, (2, 5)), Mark("beside", 0, (5, 5))]
    marks.append(Mark("instead", 1, (6, 9)))
    assert visible(with_marks("a red dog .", marks)) == "a [0[1red1]0]{0} {1} ."
    marks = [Mark("instead", 1, (4, 7)), Mark("instead", 0, (8, 9))]
    assert visible(with_marks("see the a, b", marks)) == "see{1}{0}, b", "as see, b is written"
    marks = [Mark("around", 0, (2, 3)), Mark("around", 1, (0, 5)), Mark("beside", 0, (0, 0)), Mark("around", 2, (3, 5))]
    assert visible(with_marks("abcde", marks)) == "{0}[1ab[0c0][2de2]1]"


# As token ids


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = TokenizerConfig.model_validate({"vocab_size": 330})
    return train_tokenizer([SRC, TGT] * 40, config, 80, ["BT"], has_marks=True, has_inline=True)


@pytest.mark.parametrize("target", [False, True])
def test_marks_change_no_other_token(tokenizer: Tokenizer, target: bool) -> None:
    for seed in range(100):
        text = changed(seed)[target]
        [ids], [bare] = (tokenizer.encode([t], target=target, has_inline=True) for t in (text, ANY_MARK.sub("", text)))
        inline = set(tokenizer.inline.values())
        assert [token for token in ids if token not in inline] == bare
        assert tokenizer.decode([ids]) == tokenizer.decode([bare]), "marks are no text"
        found, size = tokenizer.inline_marks(tokenizer.pieces(ids))
        places = [len("".join(ANY_MARK.sub("", text[: m.start()]).split())) for m in ANY_MARK.finditer(text)]
        assert found == list(zip(places, ANY_MARK.findall(text), strict=True)) and tokenizer.has_exact_marks(text, ids)
        assert size == len("".join(ANY_MARK.sub("", text).split()))


def test_a_mark_inside_a_piece_goes_before_it(tokenizer: Tokenizer) -> None:
    [ids] = tokenizer.encode([f"the ho{ALONE[0]}use today"], has_inline=True)
    assert not tokenizer.has_exact_marks(f"the ho{ALONE[0]}use today", ids)
    assert tokenizer.pieces(ids)[:3] == ["▁the", tokenizer.pieces([tokenizer.inline[ALONE[0]]])[0], "▁house"]


def test_text_never_becomes_a_mark(tokenizer: Tokenizer) -> None:
    every = "".join(map(chr, (*range(0x2000), *range(0xFB00, 0x10000), 0x1F600, 0x10FFFF))) + MARKS
    inline = set(tokenizer.inline.values())
    assert len(inline) == len(MARKS) == 3 * MOST_TAGS
    for text in (every, "\udcc0\udcff", "<0xC0>"):
        for target in (False, True):
            assert not inline & set(tokenizer.encode([text], target=target)[0])
    assert not inline & set(tokenizer.encode([ANY_MARK.sub("", every)], has_inline=True)[0])


def test_terms_and_tags_in_one_source(tokenizer: Tokenizer) -> None:
    annotated = LEXICON.annotate(f"the {OPENING[0]}red dog{CLOSING[0]} sees")
    [ids] = tokenizer.encode([annotated], has_inline=True)
    pieces = tokenizer.pieces(ids)
    assert pieces.count("<term-source>") == 4 and tokenizer.terms(ids) == ["der", "rote", "Hund", "sieht"]
    names = tokenizer.pieces([tokenizer.inline[OPENING[0]], tokenizer.inline[CLOSING[0]]])
    assert [pieces.count(name) for name in names] == [1, 1] and pieces.index(names[0]) < pieces.index("▁red")


def test_the_files_say_that_the_model_knows_tags(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.inline == tokenizer.inline and again.is_same(tokenizer)
    description = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(description.replace('"inline_tags": true,', ""))
    other = Tokenizer.load(tmp_path)
    assert not other.inline and other.is_same(tokenizer)
    assert not tokenizer.without_inline().inline and tokenizer.without_inline().marks == tokenizer.marks
    assert other.num_ids == tokenizer.num_ids, "marks need no more ids"


def test_a_model_without_pieces_of_bytes_knows_no_tags(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([SRC, TGT] * 40), model_writer=model, vocab_size=60, model_type="bpe", eos_id=0,
        unk_id=1, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    Tokenizer(JointModel(model.getvalue()), "none", []).save(tmp_path)
    assert not Tokenizer.load(tmp_path).inline
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace("{", '{"inline_tags": true,', 1))
    with pytest.raises(DamagedFileError, match="tags inside sentences"):
        Tokenizer.load(tmp_path)


# In the prepared data


def prepared(tmp_path: Path, *overrides: str) -> PreparedData:
    rng = random.Random(1)
    chosen = [rng.sample(sorted(WORDS), 3) for _ in range(200)]
    lines = [f"{' '.join(c)} {n}\t{' '.join(WORDS[w] for w in c)} {n}\n" for n, c in enumerate(chosen)]
    (tmp_path / "train.tsv").write_text("".join(lines))
    keys = [f"data.train={tmp_path / 'train.tsv'}", "data.src=en", "data.tgt=de", *overrides]
    prepare(settings.resolve(None, keys).config, tmp_path / "data")
    return load_prepared(tmp_path / "data")


def test_the_lexicon_lies_in_the_data(tmp_path: Path) -> None:
    data = prepared(tmp_path, "data.inline_tags=true")
    assert data.terms is not None and WORDS.items() <= data.terms.terms.items()
    assert data.tokenizer.inline and not data.tokenizer.marks


def test_what_is_refused(tmp_path: Path) -> None:
    plain = prepared(tmp_path).tokenizer
    assert not plain.inline and "inline" not in (tmp_path / "data" / "tokenizer.json").read_text()
    shutil.rmtree(tmp_path / "data")
    config = settings.resolve(None, [f"data.train={tmp_path / 'train.tsv'}", "data.inline_tags=true"]).config
    with pytest.raises(UsageError, match=r"data\.inline_tags: the tokenizer of training\.init_from has no marks"):
        prepare(config, tmp_path / "again", tokenizer=plain)
    (tmp_path / "few.tsv").write_text("".join(f"a{n} b{n}\tc{n} d{n}\n" for n in range(40)))
    with pytest.raises(DataError, match=r"data\.inline_tags: no words of the training text translate each other"):
        prepared(tmp_path, "data.inline_tags=true", f"data.train={tmp_path / 'few.tsv'}")
    with pytest.raises(DataError, match=r"data\.terms and data\.inline_tags: no words"):
        prepared(tmp_path, "data.inline_tags=true", "data.terms=auto", f"data.train={tmp_path / 'few.tsv'}")


def test_an_adapted_model_goes_on_where_little_text_teaches_no_tags(
    tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "few.tsv").write_text("".join(f"a{n} b{n}\tc{n} d{n}\n" for n in range(40)))
    keys = ["data.inline_tags=true", "training.init_from=model", "data.src=en", "data.tgt=de"]
    config = settings.resolve(None, [f"data.train={tmp_path / 'few.tsv'}", *keys]).config
    with caplog.at_level("WARNING", logger="mtx"):
        prepare(config, tmp_path / "data", tokenizer=tokenizer)
    data = load_prepared(tmp_path / "data")
    assert data.terms is None and data.tokenizer.inline and "learns nothing more of these" in caplog.text


def test_a_tokenizer_of_a_model_that_knows_tags_serves_one_that_does_not(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("".join(f"{SRC} {n}\t{TGT} {n}\n" for n in range(40)))
    config = settings.resolve(None, [f"data.train={tmp_path / 'train.tsv'}", "data.src=en", "data.tgt=de"]).config
    prepare(config, tmp_path / "data", tokenizer=tokenizer)
    found = load_prepared(tmp_path / "data").tokenizer
    assert not found.inline and found.is_same(tokenizer)
