"""Draws the demo's corpus: synthetic English-German sentence pairs from a small hand-written grammar.

For: a demo and end-to-end tests that need parallel text offline, with known phenomena and a test set that measures
generalisation. Not for: training a translator of real text; about a hundred nouns and sixty verbs are not a language.
Flow: `lexicon` and `numbers` (words) -> `sampling` (meanings) -> `rendering` (sentences) -> the three parts, here.
"""

import re
from collections import Counter
from dataclasses import dataclass
from random import Random

from .rendering import Example
from .sampling import ACTIONS, PEOPLE, examples

SEED = 1  # of the corpus that mtx is shipped with
NUM_TRAIN = 24_000
NUM_VALID = 500
NUM_TEST = 600
NUM_HELD_OUT = NUM_TEST // 2  # test sentences with a triple that training never shows
MIN_TRAIN_COUNT = 10  # each word of a test sentence is at least this often in the training text


@dataclass(frozen=True)
class GeneratedCorpus:
    """The three parts; no source is there twice, in one part or in two."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]

    def tsv(self) -> bytes:
        """Gives the corpus as `mtx.data.sources` reads it: lines of part TAB source TAB target, in UTF-8."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        lines = (f"{part}\t{pair.src}\t{pair.tgt}\n" for part, pairs in parts.items() for pair in pairs)
        return "".join(lines).encode()


def _words(example: Example) -> list[str]:
    return re.findall(r"\w+", example.src) + ["de " + word for word in re.findall(r"\w+", example.tgt)]


def generate(seed: int) -> GeneratedCorpus:
    """Gives the corpus for a seed: 24,000 training, 500 validation and 600 test pairs.

    A tenth of all (subject, verb, object) triples is held out: half of the test sentences contain one of them, and no
    training or validation sentence does. The other half are new sentences over triples of the training text.
    """
    rng = Random(seed)
    triples = [(person.en, verb.name, noun.en) for person in PEOPLE for verb in ACTIONS for noun in verb.nouns]
    held_out = set(rng.sample(triples, len(triples) // 10))
    targets: dict[str, str] = {}
    familiar: list[Example] = []
    novel: list[Example] = []
    for example in examples(rng):
        if example.src in targets:
            assert targets[example.src] == example.tgt, f"two translations of {example.src!r}"
            continue
        targets[example.src] = example.tgt
        (familiar if held_out.isdisjoint(example.triples) else novel).append(example)
        if len(familiar) == NUM_TRAIN + NUM_VALID + 5 * NUM_TEST:
            break
    train = familiar[:NUM_TRAIN]
    valid = familiar[NUM_TRAIN:][:NUM_VALID]
    remaining = familiar[NUM_TRAIN + NUM_VALID :]
    counts = Counter(word for example in train for word in _words(example))
    shown = {triple for example in train for triple in example.triples}
    over_known_triples = [
        example for example in remaining if shown.issuperset(example.triples) and _common(example, counts)
    ]
    over_new_triples = [example for example in novel if _common(example, counts)]
    test = over_new_triples[:NUM_HELD_OUT] + over_known_triples[: NUM_TEST - NUM_HELD_OUT]
    rng.shuffle(test)
    return GeneratedCorpus(train, valid, test)


def _common(example: Example, counts: Counter[str]) -> bool:
    return all(counts[word] >= MIN_TRAIN_COUNT for word in _words(example))
