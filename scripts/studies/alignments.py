"""Compares the word alignments of a model of `mtx train demo` with those of the demo's grammar.

    python -m scripts.studies.alignments RUN [--sentences N] [--engine ENGINE]

The sentences are the first ones of the demo's test set. Content words are the nouns, adjectives, verbs, adverbs,
weekdays, months and numbers of the grammar. One counts if it occurs once in its source, and one of its translations
occurs once in what the model wrote. precision: the share of the pairs with such a word that the grammar has; a verb
also has its particle, preposition and auxiliary, as in `has bought` and `hat gekauft`. recall: the share of such words
with a pair that the grammar has.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mtx.decoding.translator import Translator
from scripts.demo_grammar import numbers, rendering, sampling
from scripts.demo_grammar.corpus import SEED, generate
from scripts.demo_grammar.lexicon import ADJECTIVES, COST, LAST, NOUNS, REPORTING, VERBS, Verb

_PHRASES = """today/heute tomorrow/morgen yesterday/gestern often/oft always/immer sometimes/manchmal now/jetzt day/Tag
    week/Woche summer/Sommer winter/Winter year/Jahr minutes/Minuten years/Jahre quarter/Viertel very/sehr"""
_AUXILIARIES = {"do", "does", "did", "has", "have"}, {"habe", "hat", "haben", "bin", "ist", "sind"}
_NUMBER = re.compile(r"\d[\d.,:]*")


class Word(NamedTuple):
    """A word of the grammar: its forms in both languages, and the words that may belong to it."""

    en: set[str]
    de: set[str]
    more_en: set[str] = set()
    more_de: set[str] = set()


def main() -> None:
    """Reads the command line, translates, and prints the shares, after each sentence with a pair that is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--engine", choices=["torch", "ctranslate2"], default="ctranslate2")
    arguments = parser.parse_args()
    translator = Translator.load(arguments.run, engine=arguments.engine)
    examples = generate(SEED).test[: arguments.sentences]
    best = translator.hypotheses([example.src for example in examples], n_best=1)
    known_words = [*_words_of_the_grammar()]
    num_pairs = num_right = num_words = num_found = 0
    for example, (hypothesis, *_), alignment in zip(examples, best, translator.align(best), strict=True):
        src, tgt = map(_forms_in, (example.src, hypothesis.text))
        pairs = [(int(i), int(j)) for i, j in (pair.split("-") for pair in alignment.split())]
        gold = set[tuple[int, int]]()
        accepted = set[tuple[int, int]]()
        for word in [*known_words, *_numbers_of(example.src)]:
            src_places, tgt_places = _places(word.en, src), _places(word.de, tgt)
            if len(src_places) == len(tgt_places) == 1:
                gold.add((src_places[0], tgt_places[0]))
                accepted |= {(place, tgt_places[0]) for place in _places(word.more_en, src)}
                accepted |= {(src_places[0], place) for place in _places(word.more_de, tgt)}
        src_content, tgt_content = {i for i, _ in gold}, {j for _, j in gold}
        counted = [(i, j) for i, j in pairs if i in src_content or j in tgt_content]
        wrong = [pair for pair in counted if pair not in gold | accepted]
        if wrong:
            print(example.src, hypothesis.text, " ".join(f"{src[i]}={tgt[j]}" for i, j in wrong), sep=" | ")
        num_pairs += len(counted)
        num_right += len(counted) - len(wrong)
        num_words += len(src_content)
        num_found += len({i for i, j in gold.intersection(pairs)})
    print(f"precision {num_right / num_pairs:.1%} of {num_pairs:,} pairs in {len(best):,} sentences")
    print(f"recall {num_found / num_words:.1%} of {num_words:,} content words")


def _forms_in(text: str) -> list[str]:
    return [word.strip(".,?").lower() for word in text.split()]


def _places(forms: set[str], words: Sequence[str]) -> list[int]:
    return [place for place, word in enumerate(words) if word in forms]


def _words_of_the_grammar() -> Iterator[Word]:
    """All content words with their forms."""
    for noun in (noun for nouns in NOUNS.values() for noun in nouns):
        german = [noun.de, noun.genitive, noun.de_plural, noun.de_plural + "n"]
        yield _word([noun.en, noun.en_plural, noun.en + "'s"], german)
    for adjective in ADJECTIVES:
        inflected = [adjective.stem + ending for ending in ("e", "er", "es", "en", "em")]
        yield _word([adjective.en, adjective.en_comparative], [adjective.de, adjective.de_comparative, *inflected])
    for verb in (*VERBS, *REPORTING, COST, LAST):
        yield _verb(verb)
    for phrase in _PHRASES.split():
        yield _word(*([side] for side in phrase.split("/")))
    for number in range(2, 100):
        yield _word(*([side] for side in numbers.cardinal(number)))
    parts = sampling._DAY_PARTS[1:]
    for day in numbers.WEEKDAYS:
        yield _word([day.en], [day.de, *(day.de + part.de for part in parts)])
    for part in parts:
        yield _word([part.en], [day.de + part.de for day in numbers.WEEKDAYS])
    for month in numbers._MONTHS:
        yield _word([month.en], [month.de])


def _word(en: Iterable[str], de: Iterable[str]) -> Word:
    return Word({form.lower() for form in en}, {form.lower() for form in de})


def _verb(verb: Verb) -> Word:
    first_person = verb.infinitive.removesuffix("n").removesuffix("e") + "e"
    german = [verb.infinitive, verb.third, first_person, verb.de_participle.lstrip("+")]
    word = _word(
        [verb.en, verb.past, verb.participle, rendering._third(verb.en)],
        [*german, *(verb.prefix + form for form in german)],
    )
    preposition = verb.governs.partition("+")[0]
    return word._replace(
        more_en={verb.rest, verb.particle} | _AUXILIARIES[0],
        more_de={verb.prefix, preposition} | _AUXILIARIES[1],
    )


def _numbers_of(text: str) -> Iterator[Word]:
    """The numbers in digits of an English text; a price has its sign, a time of day "Uhr", and a year "Jahr"."""
    words = text.split()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if not (match := _NUMBER.search(word)):
            continue
        digits = match[0].rstrip(".,")
        german = {digits, digits.translate(str.maketrans(",.", ".,"))}
        if ":" in digits:
            hour, minute = map(int, digits.split(":"))
            hour %= 12
            if following.startswith("pm"):
                hour += 12
            german = {f"{hour}.{minute:02}"}
        yield Word({word.strip(".,?").lower()}, german, {"am", "pm", "pm.", "am."}, {"uhr", "jahr", "€", "$"})


if __name__ == "__main__":
    main()
