"""Counts how often tags come out whole, at the translation of their words, and what that costs in BLEU.

    python -m scripts.studies.tags RUN [--test NAME]

RUN is a finished run. The first line is about sentences with a pair of tags around one word. The words are those for
which the training text tells one translation (`mtx.data.glossary`) that occurs once in the model's own translation of a
test sentence, as the word does in its source. exact: the tags enclose its translation alone; more: other words too;
elsewhere: it is outside. The second line is about all test sentences, each with tags at random words: how many have all
tags once and pairs nested as in the source, and BLEU of their text next to BLEU without tags.
"""

import argparse
import random
from collections import Counter
from pathlib import Path

import sacrebleu

from mtx.data.glossary import find_words, learn_lexicon
from mtx.data.markup import Marked, Tag, bare, raw
from mtx.data.token_store import load_prepared
from mtx.decoding.translator import Translator
from mtx.storage.run_files import RunLayout

OPEN = Tag("<b>", "open", "b")
CLOSE = Tag("</b>", "close", "b")
_CODES = Tag('<bpt i="1"/>', "open", "1"), Tag('<ept i="1"/>', "close", "1")
_CLOSES = {OPEN.raw: CLOSE.raw, _CODES[0].raw: _CODES[1].raw}


def main() -> None:
    """Reads the command line, translates, and prints the shares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--test", help="a test set of the run; the first one by default")
    parser.add_argument("--segments", type=int, default=2000, help="at most; drawn with a seed")
    arguments = parser.parse_args()
    data = load_prepared(RunLayout(arguments.run).data)
    translator = Translator.load(arguments.run, engine="torch")
    test = data.tests[arguments.test or next(iter(data.tests))]
    tests = list[tuple[Marked, str]]()
    lexicon = learn_lexicon([(data.train.src_texts(), data.train.tgt_texts())]).terms
    lines = test.src_texts()
    plain = translator.translate(lines)
    for line, translation in zip(lines, plain, strict=True):
        for word in dict.fromkeys(line.split()):
            places = find_words(word, line)
            if word in lexicon and len(places) == 1 and len(find_words(lexicon[word], translation)) == 1:
                [(start, stop)] = places
                parts = [line[:start], OPEN, word, CLOSE, line[stop:]]
                tests.append(([part for part in parts if part != ""], lexicon[word]))
    tests = random.Random(1).sample(tests, min(arguments.segments, len(tests)))
    results = [best.marked for best in translator.translate_marked([segment for segment, _ in tests])]
    kinds = Counter(_kind(result, word) for result, (_, word) in zip(results, tests, strict=True))
    counts = ", ".join(f"{kind} {number / len(tests):.1%}" for kind, number in kinds.most_common())
    print(f"{len(tests):,} words: {counts}")

    rng = random.Random(1)
    references = test.tgt_texts()
    segments = [_with_tags(line, rng) for line in lines]
    results = [best.marked for best in translator.translate_marked(segments)]
    num_whole = sum(_nesting(result) == _nesting(segment) for result, segment in zip(results, segments, strict=True))
    texts = [bare(result)[0] for result in results]
    bleu = [sacrebleu.corpus_bleu(outputs, [references]).score for outputs in (texts, plain)]
    print(f"{num_whole:,} of {len(segments):,} sentences have all tags once and nested")
    print(f"BLEU with tags {bleu[0]:.2f}, without {bleu[1]:.2f}")


def _with_tags(line: str, rng: random.Random) -> Marked:
    """A sentence with a pair of elements or of codes, a placeholder in a pair, or a placeholder alone."""
    words = line.split()
    kind = rng.randrange(4)
    start = rng.randrange(len(words))
    stop = rng.randint(start + 1, len(words))
    before, inner, after = (" ".join(part) for part in (words[:start], words[start:stop], words[stop:]))
    if kind == 3:
        parts: Marked = [before, " ", Tag("{0}"), " ", inner, " ", after]
    else:
        open_tag, close_tag = _CODES if kind == 1 else (OPEN, CLOSE)
        placeholder: Marked = [Tag('<ph id="2"/>'), " "] if kind == 2 else []
        parts = [before, " ", open_tag, *placeholder, inner, close_tag, " ", after]
    return [part for part in parts if part != ""]


def _nesting(segment: Marked) -> list[tuple[str, str]] | None:
    """Each tag with the pair around it, sorted; None if pairs are not nested."""
    parents = list[tuple[str, str]]()
    stack = list[str]()
    for tag in (part for part in segment if isinstance(part, Tag)):
        if tag.kind == "close" and (not stack or tag.raw != _CLOSES[stack.pop()]):
            return None
        parents.append((tag.raw, stack[-1] if stack else ""))
        stack += [tag.raw] if tag.kind == "open" else []
    return None if stack else sorted(parents)


def _kind(translation: Marked, word: str) -> str:
    inner = raw(translation).split(OPEN.raw)[1].split(CLOSE.raw)[0].strip()
    return "exact" if inner == word else "more" if find_words(word, inner) else "elsewhere"


if __name__ == "__main__":
    main()
