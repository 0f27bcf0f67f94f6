"""Counts how many invented terms a model uses that it has never seen.

    python -m scripts.studies.terms RUN --terms 100

RUN is a finished run with `data.terms`, into German or another language that writes nouns with a capital. For each
term, a noun for which the training text tells one translation (`mtx.data.glossary`) is replaced by an invented word in
up to ten test sentences, and its translation in their references by another invented word. The glossary has these
invented pairs. Printed are the scores without the glossary and with it, and the share of the terms used.
"""

import argparse
import random
from pathlib import Path

from mtx.data.glossary import Glossary, find_words, learn_lexicon
from mtx.data.token_store import load_prepared
from mtx.decoding.translator import Translator
from mtx.evaluation.test_set_scores import score_lines, score_with_glossary
from mtx.scoring.metrics import TestSet
from mtx.storage.run_files import RunLayout

SYLLABLES = (
    "ba", "ke", "lo", "ri", "mu", "tan", "vor", "fel", "zin", "gra", "dop", "sil", "ner", "qua", "ost", "plu", "wex",
)  # fmt: skip
MOST_SENTENCES = 10  # of a term


def main() -> None:
    """Reads the command line, makes the test, and prints the scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--terms", type=int, default=100, help="at most")
    parser.add_argument("--test", help="the test set; default: the first")
    arguments = parser.parse_args()
    data = load_prepared(RunLayout(arguments.run).data)
    translator = Translator.load(arguments.run, engine="torch")
    name = arguments.test or next(iter(data.tests))
    src = data.train.src_texts()
    tgt = data.train.tgt_texts()
    store = data.tests[name]
    lexicon = learn_lexicon([(src, tgt)]).terms
    training_text = "\n".join([*src, *tgt]).lower()
    rng = random.Random(7)
    nouns = [
        word for word, translation in lexicon.items() if word.islower() and translation[0].isupper() and len(word) > 3
    ]
    rng.shuffle(nouns)
    pairs = list(zip(store.src_texts(), store.tgt_texts(), strict=True))
    used_rows = set[int]()
    terms = dict[str, str]()
    sources = list[str]()
    references = list[str]()
    for noun in nouns:
        sides = noun, lexicon[noun]
        rows = [
            row for row, pair in enumerate(pairs)
            if row not in used_rows
            and all(len(find_words(word, text)) == 1 for word, text in zip(sides, pair, strict=True))
        ]  # fmt: skip
        if rows and len(terms) < arguments.terms:
            term = _invented(training_text, rng)
            translation = _invented(training_text, rng).capitalize()
            terms[term] = translation
            used_rows.update(rows[:MOST_SENTENCES])
            sources += [_replaced(noun, term, pairs[row][0]) for row in rows[:MOST_SENTENCES]]
            references += [_replaced(sides[1], translation, pairs[row][1]) for row in rows[:MOST_SENTENCES]]
    test = TestSet(f"{len(terms)} made-up terms", translator.tgt, sources, references)
    translator.use_glossary(Glossary(terms))
    before, after = score_with_glossary(translator, test)
    print("\n".join([*score_lines(f"{test.name}, without the glossary", before), *score_lines(test.name, after)]))


def _invented(training_text: str, rng: random.Random) -> str:
    while True:
        word = "".join(rng.choices(SYLLABLES, k=rng.randint(2, 3))) + rng.choice(["", "n", "t", "k"])
        if word not in training_text:
            return word


def _replaced(word: str, replacement: str, text: str) -> str:
    [(start, stop)] = find_words(word, text)
    return text[:start] + replacement + text[stop:]


if __name__ == "__main__":
    main()
