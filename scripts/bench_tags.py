"""Counts how often a pair of tags around a word encloses that word's translation in the end.

    python scripts/bench_tags.py RUN

RUN is a finished run. The words are those for which the training text tells one translation (`mtx.data.lexicon`) that
stands once in the model's own translation of a test sentence, as the word does in its source. Each test is a sentence
with a pair of tags around one such word. exact: the tags enclose its translation alone; more: other words too;
elsewhere: it is outside.
"""

import argparse
import random
from collections import Counter
from pathlib import Path

from mtx.data.glossary import occurrences
from mtx.data.lexicon import Words, learn_lexicon
from mtx.data.preprocess import load_prepared
from mtx.decoding.torch_engine import TorchTranslator
from mtx.documents.markup import Marked, Tag, raw
from mtx.documents.translate import translate_segments
from mtx.run.layout import RunLayout

OPEN, CLOSE = Tag("<b>", "open", "b"), Tag("</b>", "close", "b")


def main() -> None:
    """Reads the command line, translates, and prints the shares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--segments", type=int, default=2000, help="at most; drawn with a seed")
    arguments = parser.parse_args()
    data = load_prepared(RunLayout(arguments.run).data)
    translator = TorchTranslator.load(arguments.run)
    (test, *_) = data.tests.values()
    words = Words(), Words()
    for side, texts in zip(words, (data.train.src_texts(), data.train.tgt_texts()), strict=True):
        side.add(texts)
    tests = list[tuple[Marked, str]]()
    lexicon, lines = learn_lexicon(*words), test.src_texts()
    for line, translation in zip(lines, translator.translate(lines), strict=True):
        for word in dict.fromkeys(line.split()):
            places = occurrences(word, line)
            if word in lexicon and len(places) == 1 and len(occurrences(lexicon[word], translation)) == 1:
                [(start, end)] = places
                parts = [line[:start], OPEN, word, CLOSE, line[end:]]
                tests.append(([part for part in parts if part != ""], lexicon[word]))
    tests = random.Random(1).sample(tests, min(arguments.segments, len(tests)))
    results = translate_segments(translator, [segment for segment, _ in tests])
    kinds = Counter(_kind(result, word) for result, (_, word) in zip(results, tests, strict=True))
    print(f"{len(tests):,} segments:", ", ".join(f"{kind} {n / len(tests):.1%}" for kind, n in kinds.most_common()))


def _kind(translation: Marked, word: str) -> str:
    inner = raw(translation).split(OPEN.raw)[1].split(CLOSE.raw)[0].strip()
    return "exact" if inner == word else "more" if occurrences(word, inner) else "elsewhere"


if __name__ == "__main__":
    main()
