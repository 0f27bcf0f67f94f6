"""With a glossary, the best hypothesis is the one with the most of its terms, then the one with the best score."""

from collections.abc import Sequence

import pytest

from mtx.config.schema import TokenizerConfig
from mtx.data.glossary import Glossary
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.decoding.options import Candidate, Sampling, SearchOptions
from tests.translators import FakeTranslator

GLOSSARY = Glossary({"two": "zwo", "five": "fünf"})
BEAM = 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    lines = [" ".join(words) for words in [["one", "two", "four", "five"], ["ein", "zwo", "vier", "fünf"]] * 200]
    return train_tokenizer(iter(lines), TokenizerConfig(vocab_size=300), 400, [], has_marks=True)


class Fixed(FakeTranslator):
    """Each part has the same hypotheses, the scores of which fall by one."""

    def __init__(self, tokenizer: Tokenizer, texts: list[str], options: SearchOptions):
        super().__init__(tokenizer, 40, options)
        self.splitter = lambda line: line.split("§")
        self.candidates = [Candidate(ids, -float(n)) for n, ids in enumerate(tokenizer.encode(texts, target=True), 1)]

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        return [self.candidates for _ in sources]


def order(
    tokenizer: Tokenizer, texts: list[str], line: str, glossary: Glossary | None = GLOSSARY,
    sampling: Sampling | None = None,
) -> list[str]:  # fmt: skip
    translator = Fixed(tokenizer, texts, SearchOptions(BEAM, sampling=sampling))
    translator.use_glossary(glossary)
    return [hypothesis.text for hypothesis in translator.hypotheses([line])[0]]


def test_more_terms_come_first_and_then_the_better_score(tokenizer: Tokenizer) -> None:
    texts = ["ein", "ein zwo", "zwo fünf"]
    assert order(tokenizer, texts, "one two") == ["ein zwo", "zwo fünf", "ein"]
    assert order(tokenizer, texts, "two five") == ["zwo fünf", "ein zwo", "ein"]
    assert order(tokenizer, texts, "one") == texts
    assert order(tokenizer, texts, "two five", None) == texts


def test_a_term_counts_as_a_whole_word_and_as_often_as_it_stands_there(tokenizer: Tokenizer) -> None:
    assert order(tokenizer, ["einzwo", "ein", "Zwo ein"], "two") == ["Zwo ein", "einzwo", "ein"]
    assert order(tokenizer, ["zwo", "zwo zwo", "zwo"], "two, two") == ["zwo zwo", "zwo", "zwo"]


def test_a_sentence_in_capitals_has_its_terms_too(tokenizer: Tokenizer) -> None:
    assert order(tokenizer, ["ein", "ein zwo"], "ONE TWO")[0] == "EIN ZWO"


def test_a_line_in_parts_has_the_most_terms_of_all_combinations(tokenizer: Tokenizer) -> None:
    assert order(tokenizer, ["ein", "ein zwo"], "one two§four")[0] == "ein zwo ein"


def test_samples_stay_in_their_order(tokenizer: Tokenizer) -> None:
    texts = ["ein", "zwo"]
    assert order(tokenizer, texts, "two", sampling=Sampling(num_samples=2)) == texts


def test_whoever_reads_one_hypothesis_gets_the_best(tokenizer: Tokenizer) -> None:
    for texts, line in ((["ein", "ein zwo", "zwo fünf"], "two five§one"), (["ein", "vier", "zwo"], "one§four§one")):
        translator = Fixed(tokenizer, texts, SearchOptions(BEAM))
        translator.use_glossary(GLOSSARY)
        (found,), (best, *rest) = translator.hypotheses([line], n_best=1), translator.hypotheses([line])[0]
        assert found[0] == best
        assert len(rest) == BEAM - 1
        assert [len(some) for some in translator.decode_parts(translator.split(["one", "two"])[0], n_best=1)] == [1]


def test_the_best_of_samples_is_chosen_among_all(tokenizer: Tokenizer) -> None:
    sampling = Sampling(num_samples=3, mbr=True)
    translator = Fixed(tokenizer, ["fünf", "ein zwo", "ein zwo"], SearchOptions(BEAM, sampling=sampling))
    assert translator.translate(["one"]) == ["ein zwo"]


def test_samples_of_parts_with_and_without_terms_go_together(tokenizer: Tokenizer) -> None:
    translator = Fixed(tokenizer, ["ein", "zwo", "vier"], SearchOptions(BEAM, sampling=Sampling(num_samples=3)))
    translator.use_glossary(GLOSSARY)
    assert translator.translate(["one§two"]) == ["ein ein"]
