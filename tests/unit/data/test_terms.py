"""What a model learns terms from: a lexicon of the text, and pairs whose terms have their translations beside them."""

import random
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from mtx.config import settings
from mtx.data.augmentation import Terms, make_up
from mtx.data.glossary import TERM_MARKS, Glossary, find_words, learn_lexicon, word_spans
from mtx.data.prepare import prepare
from mtx.data.token_store import PreparedData, load_prepared
from mtx.errors import DamagedFileError, DataError, UsageError

WORDS = {
    "building": "Gebäude",
    "truck": "Lkw",
    "river": "Fluss",
    "cloud": "Wolke",
    "forest": "Tannen",
    "stone": "Stein",
}
MARKED = re.compile(f"{TERM_MARKS[0]}([^{TERM_MARKS}]+){TERM_MARKS[1]}([^{TERM_MARKS}]+){TERM_MARKS[2]}")
ALL = (" ".join(WORDS), " ".join(WORDS.values()))


def text(number: int = 200) -> tuple[list[str], list[str]]:
    rng = random.Random(1)
    chosen = [rng.sample(sorted(WORDS), 3) for _ in range(number)]
    return [f"the {' and '.join(c)} ." for c in chosen], [f"das {' und '.join(WORDS[w] for w in c)} ." for c in chosen]


def test_the_lexicon_has_the_words_that_translate_each_other() -> None:
    lexicon = learn_lexicon([text()]).terms
    assert WORDS.items() <= lexicon.items()
    assert len(set(lexicon.values())) == len(lexicon), "one to one"
    assert "." not in lexicon
    src, tgt = text()
    halves = [(src[:100], tgt[:100]), (src[100:], tgt[100:])]
    assert learn_lexicon(halves).terms == lexicon, "blocks do not matter"


def test_rare_words_and_words_without_a_partner_are_left_out() -> None:
    src = ["rare x"] * 2 + ["often x"] * 3 + [f"lonely x{n}" for n in range(9)]
    tgt = ["selten"] * 2 + ["oft"] * 3 + [f"y{n}" for n in range(9)]
    assert learn_lexicon([(src, tgt)]).terms == {"often": "oft"}


def test_of_two_words_with_one_partner_the_better_one_has_it() -> None:
    src, tgt = ["big"] * 6 + ["large"] * 3 + ["tree"] * 3, ["groß"] * 9 + ["Baum"] * 3
    assert learn_lexicon([(src, tgt)]).terms == {"big": "groß", "tree": "Baum"}


def test_scripts_without_spaces_have_pairs_of_letters() -> None:
    assert learn_lexicon([(["car"] * 3 + ["tree"] * 3, ["汽车"] * 3 + ["树木"] * 3)]).terms == {
        "car": "汽车",
        "tree": "树木",
    }


def changed(seed: int) -> tuple[str, str]:
    return Terms(Glossary(WORDS))(*ALL, random.Random(seed))


def test_the_same_seed_gives_the_same_pair() -> None:
    assert [changed(seed) for seed in range(50)] == [changed(seed) for seed in range(50)]
    assert len({changed(seed) for seed in range(50)}) > 40


def test_the_translation_beside_a_term_stands_in_the_target() -> None:
    numbers, made, both = list[int](), 0, 0
    for seed in range(600):
        src, tgt = changed(seed)
        terms = MARKED.findall(src)
        numbers.append(len(terms))
        places = [find_words(target, tgt)[0] for _, target in terms]
        assert all(a < b for a, b in pairwise(places)), "in the order of the source"
        for _, target in terms:
            made += target not in WORDS.values()
        both += sum(source not in WORDS for source, _ in terms)
        plain = MARKED.sub(r"\1", src).split()
        assert [word for word in plain if word in WORDS] == [word for word in WORDS if word in plain]
        untouched = [t for s, t in WORDS.items() if s in plain and s not in dict(terms)]
        assert all(word in tgt.split() for word in untouched)
    assert set(numbers) == {1, 2, 3}
    assert 0.65 < made / sum(numbers) < 0.75
    assert 0.25 < both / made < 0.35


def test_all_occurrences_of_a_term_change() -> None:
    glossary = Glossary({"house": "Haus"})
    for seed in range(20):
        src, tgt = Terms(glossary)("House and house", "Haus und Haus", random.Random(seed))
        (_, first), (_, second) = MARKED.findall(src)
        assert first == second and tgt == f"{first} und {first}"


def test_a_pair_without_terms_stays() -> None:
    glossary, rng = Glossary({"house": "Haus", "car": "Auto"}), random.Random(1)
    assert Terms(glossary)("a tree", "ein Baum", rng) == ("a tree", "ein Baum")
    assert Terms(glossary)("a house", "ein Hausboot", rng) == ("a house", "ein Hausboot")
    assert Terms(Glossary({"9": "10"}))("9", "10", rng)[1] == "10", "no letters to make words of"


def test_made_up_words_are_diverse_and_written_like_the_term() -> None:
    rng, letters = random.Random(1), ["haus", "feuerwehr", "baum"]
    words = [make_up("haus", letters, rng) for _ in range(500)]
    assert len(set(words)) > 450
    assert all(4 <= len(part) <= 12 for word in words for part in word.split())
    assert {len(word.split()) for word in words} == {1, 2}
    assert set("".join(words)) <= set("hausfeuerwehrbaum ")
    assert make_up("Haus", letters, rng)[0].isupper() and make_up("AG", letters, rng).isupper()
    assert len(make_up("ein Haus", letters, rng).split()) in (2, 3)
    chinese = [make_up("汽车", ["汽车", "树木"], rng) for _ in range(100)]
    assert not any(" " in word for word in chinese) and len(word_spans(chinese[0])) >= 4


# In the prepared data


def prepared(tmp_path: Path, *overrides: str) -> PreparedData:
    lines = zip(*text(), strict=True)
    (tmp_path / "train.tsv").write_text("".join(f"{src} {n}\t{tgt} {n}\n" for n, (src, tgt) in enumerate(lines)))
    keys = [f"data.train={tmp_path / 'train.tsv'}", "data.src=en", "data.tgt=de", *overrides]
    prepare(settings.resolve(None, keys).config, tmp_path / "data")
    return load_prepared(tmp_path / "data")


def test_terms_lie_in_the_data_and_marks_in_the_tokenizer(tmp_path: Path) -> None:
    data = prepared(tmp_path, "data.terms=auto")
    assert data.terms is not None and WORDS.items() <= data.terms.terms.items()
    assert data.report["terms"] == len(data.terms.terms)
    tokenizer, (first, second, last) = data.tokenizer, TERM_MARKS
    [ids] = tokenizer.encode([f"the {first}river{second}Fluss{last} ."])
    pieces = [tokenizer.encode([part])[0][:-1] for part in ("the", "river", "Fluss", ".")]
    marks = list(tokenizer.marks.values())
    assert ids == [*pieces[0], marks[0], *pieces[1], marks[1], *pieces[2], marks[2], *pieces[3], 0]
    assert tokenizer.pieces(marks) == ["<term-source>", "<term-target>", "<term-end>"]
    assert marks == [tokenizer.pad_id - 3, tokenizer.pad_id - 2, tokenizer.pad_id - 1]
    assert tokenizer.decode([ids]) == ["the river Fluss ."], "marks are no text"
    assert not set(marks) & set(tokenizer.encode(["<term-source> <term>"])[0])
    assert not set(marks) & set(tokenizer.encode([f"x{first}y"], target=True)[0])


def test_changed_terms_are_found_out(tmp_path: Path) -> None:
    prepared(tmp_path, "data.terms=auto")
    with (tmp_path / "data" / "terms.tsv").open("a") as file:
        file.write("a\tb\n")
    with pytest.raises(DamagedFileError, match=r"terms\.tsv"):
        load_prepared(tmp_path / "data")


def test_without_the_setting_there_are_no_marks(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    assert data.terms is None and not data.tokenizer.marks and not (tmp_path / "data" / "terms.tsv").exists()
    assert "marks" not in (tmp_path / "data" / "tokenizer.json").read_text()


def test_what_is_refused(tmp_path: Path) -> None:
    plain = prepared(tmp_path).tokenizer
    shutil.rmtree(tmp_path / "data")
    config = settings.resolve(None, [f"data.train={tmp_path / 'train.tsv'}", "data.terms=auto"]).config
    with pytest.raises(UsageError, match=r"data\.terms: the tokenizer of training\.init_from has no marks for terms"):
        prepare(config, tmp_path / "again", tokenizer=plain)
    (tmp_path / "few.tsv").write_text("".join(f"a{n} b{n}\tc{n} d{n}\n" for n in range(40)))
    with pytest.raises(DataError, match=r"data\.terms: no word pairs in the training text"):
        prepared(tmp_path, "data.terms=auto", f"data.train={tmp_path / 'few.tsv'}")


def test_an_adapted_model_goes_on_where_little_text_teaches_no_terms(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = prepared(tmp_path, "data.terms=auto").tokenizer
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "few.tsv").write_text("".join(f"a{n} b{n}\tc{n} d{n}\n" for n in range(40)))
    keys = ["data.terms=auto", "training.init_from=model", "data.src=en", "data.tgt=de"]
    config = settings.resolve(None, [f"data.train={tmp_path / 'few.tsv'}", *keys]).config
    with caplog.at_level("WARNING", logger="mtx"):
        prepare(config, tmp_path / "data", tokenizer=tokenizer)
    data = load_prepared(tmp_path / "data")
    assert data.terms is None and data.tokenizer.marks and "skipping term training" in caplog.text
