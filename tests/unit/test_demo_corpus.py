"""The demo's corpus: hand-checked sentences for each phenomenon, formats, the split, held-out triples, and its file."""

import gzip
import itertools
import re
from collections import Counter
from random import Random

import pytest

from mtx.data.sources import DEMO
from scripts.demo_grammar.corpus import NUM_TEST, NUM_TRAIN, NUM_VALID, SEED, GeneratedCorpus, generate
from scripts.demo_grammar.lexicon import ADJECTIVES, BE, COST, HAVE, NOUNS, PRONOUNS, REPORTING, VERBS, Phrase
from scripts.demo_grammar.numbers import cardinal, clock, date, digits, price, spoken_clock
from scripts.demo_grammar.rendering import (
    NP,
    Clause,
    Example,
    coordinated,
    german_np,
    german_pp,
    question,
    statement,
    subordinate,
)
from scripts.demo_grammar.sampling import examples

pytestmark = pytest.mark.extended

NOUN = {noun.en: noun for nouns in NOUNS.values() for noun in nouns}
ADJ = {adjective.en: adjective for adjective in ADJECTIVES}
VERB = {verb.name: verb for verb in VERBS}
ICH, HE, SHE, WE, THEY = PRONOUNS
TODAY, YESTERDAY = Phrase("today", "heute"), Phrase("yesterday", "gestern")


def np(noun: str, det: str = "the", plural: bool = False, adj: str | None = None, owner: NP | None = None) -> NP:
    return NP(NOUN[noun], det, plural, ADJ[adj] if adj else None, owner=owner)


@pytest.fixture(scope="module")
def corpus() -> GeneratedCorpus:
    return generate(SEED)


SENTENCES = [
    # the first person
    (
        statement(Clause(ICH, VERB["feed"], np("bird", "my"))),
        "I feed my bird.",
        "Ich füttere meinen Vogel.",
    ),
    # verb second, also after a fronted time
    (
        statement(Clause(np("teacher"), VERB["buy"], np("apple", "a", adj="green"), time=TODAY, fronted=True)),
        "Today the teacher buys a green apple.",
        "Heute kauft der Lehrer einen grünen Apfel.",
    ),
    (
        statement(Clause(np("girl"), VERB["read"], np("book", "this"), adverb=Phrase("often", "oft"))),
        "The girl often reads this book.",
        "Das Mädchen liest oft dieses Buch.",
    ),
    # separable verbs: prefix last, glued in a subordinate clause and an infinitive, -ge- in the participle
    (
        statement(Clause(HE, VERB["call up"], np("brother", "his"))),
        "He calls his brother up.",
        "Er ruft seinen Bruder an.",
    ),
    (
        subordinate(Clause(SHE, VERB["laugh"]), Phrase("because", "weil"), Clause(HE, VERB["call up"], np("boy"))),
        "She laughs because he calls the boy up.",
        "Sie lacht, weil er den Jungen anruft.",
    ),
    (
        statement(Clause(ICH, VERB["tidy up"], np("kitchen"), tense="must")),
        "I must tidy the kitchen up.",
        "Ich muss die Küche aufräumen.",
    ),
    # perfect with haben and sein; the simple past is a German perfect too
    (
        statement(Clause(WE, VERB["throw away"], np("bottle", plural=True, adj="dirty"), tense="perfect")),
        "We have thrown the dirty bottles away.",
        "Wir haben die schmutzigen Flaschen weggeworfen.",
    ),
    (
        statement(Clause(np("nurse"), VERB["arrive"], tense="past", time=date(3, 5, 2021))),
        "The nurse arrived on 3 May 2021.",
        "Die Krankenschwester ist am 3. Mai 2021 angekommen.",
    ),
    (
        subordinate(
            Clause(np("queen"), VERB["write"], np("letter", "a"), tense="past", time=YESTERDAY),
            Phrase("although", "obwohl"),
            Clause(SHE, VERB["walk into"], np("garden"), tense="past", time=YESTERDAY),
            opens_sentence=True,
        ),
        "Although she walked into the garden yesterday, the queen wrote a letter yesterday.",
        "Obwohl sie gestern in den Garten gegangen ist, hat die Königin gestern einen Brief geschrieben.",
    ),
    # modals: infinitive last, before the modal in a subordinate clause
    (
        statement(Clause(np("farmer", plural=True), VERB["feed"], np("cow", "their", True), tense="want to")),
        "The farmers want to feed their cows.",
        "Die Bauern wollen ihre Kühe füttern.",
    ),
    (
        subordinate(
            Clause(np("doctor"), REPORTING[0]),
            Phrase("that", "dass"),
            Clause(np("son", "my"), VERB["eat"], np("egg", "a"), tense="allowed to"),
        ),
        "The doctor says that my son is allowed to eat an egg.",
        "Der Arzt sagt, dass mein Sohn ein Ei essen darf.",
    ),
    # negation: kein for an indefinite object, else nicht after it and before a prepositional one
    (
        statement(Clause(np("baker"), VERB["buy"], np("car", "no", adj="expensive"), negated=True)),
        "The baker does not buy an expensive car.",
        "Der Bäcker kauft kein teures Auto.",
    ),
    (
        statement(Clause(np("boy"), VERB["listen to"], np("queen"), tense="past", negated=True, time=YESTERDAY)),
        "The boy did not listen to the queen yesterday.",
        "Der Junge hat gestern der Königin nicht zugehört.",
    ),
    (
        statement(Clause(THEY, VERB["close"], np("window", plural=True), negated=True)),
        "They do not close the windows.",
        "Sie machen die Fenster nicht zu.",
    ),
    (
        statement(Clause(ICH, VERB["wait for"], np("bus"), tense="can", negated=True)),
        "I cannot wait for the bus.",
        "Ich kann nicht auf den Bus warten.",
    ),
    # questions
    (
        question(Clause(np("student"), VERB["look at"], np("picture", "a", adj="old"))),
        "Does the student look at an old picture?",
        "Sieht der Student ein altes Bild an?",
    ),
    (
        question(Clause(np("friend", "our", True), VERB["help"], np("neighbour")), Phrase("why", "warum")),
        "Why do our friends help the neighbour?",
        "Warum helfen unsere Freunde dem Nachbarn?",
    ),
    # dative recipient, dative plural, weak noun, genitive
    (
        statement(Clause(np("king"), VERB["give"], np("hat", "a", adj="blue"), np("child", "our", True))),
        "The king gives our children a blue hat.",
        "Der König gibt unseren Kindern einen blauen Hut.",
    ),
    (
        statement(Clause(np("woman", "every"), VERB["dream of"], np("house", owner=np("student")))),
        "Every woman dreams of the student's house.",
        "Jede Frau träumt vom Haus des Studenten.",
    ),
    # when / if / before, the reduced main clause after it
    (
        subordinate(
            Clause(np("uncle", "her"), VERB["get up"]),
            Phrase("when", "wenn"),
            Clause(np("train"), VERB["leave"]),
            opens_sentence=True,
        ),
        "When the train leaves, her uncle gets up.",
        "Wenn der Zug abfährt, steht ihr Onkel auf.",
    ),
    (
        coordinated(
            Clause(HE, VERB["sleep"]), Phrase("but", ", aber"), Clause(np("actress"), VERB["work"], time=TODAY)
        ),
        "He sleeps, but the actress works today.",
        "Er schläft, aber die Schauspielerin arbeitet heute.",
    ),
    # numbers, prices, times
    (
        statement(Clause(np("farmer"), HAVE, NP(NOUN["cow"], "a", True, number=cardinal(21)))),
        "The farmer has twenty-one cows.",
        "Der Bauer hat einundzwanzig Kühe.",
    ),
    (
        statement(Clause(np("coat", adj="black"), COST, price(1250, "€"))),
        "The black coat costs €12.50.",
        "Der schwarze Mantel kostet 12,50 €.",
    ),
    (
        statement(Clause(np("concert"), VERB["begin"], tense="will", time=clock(19, 45))),
        "The concert will begin at 7:45 pm.",
        "Das Konzert wird um 19.45 Uhr anfangen.",
    ),
    (
        statement(Clause(ICH, BE, Phrase("very tired", "sehr müde"), tense="past", negated=True, time=YESTERDAY)),
        "I was not very tired yesterday.",
        "Ich war gestern nicht sehr müde.",
    ),
]


@pytest.mark.parametrize(("example", "src", "tgt"), SENTENCES, ids=[src for _, src, _ in SENTENCES])
def test_sentence(example: Example, src: str, tgt: str) -> None:
    assert (example.src, example.tgt) == (src, tgt)


@pytest.mark.parametrize(
    ("phrase", "forms"),
    [
        (np("hat", "the", adj="new"), "der neue Hut|den neuen Hut|dem neuen Hut|des neuen Hutes"),
        (np("hat", "a", adj="new"), "ein neuer Hut|einen neuen Hut|einem neuen Hut|eines neuen Hutes"),
        (np("lamp", "no", adj="new"), "keine neue Lampe|keine neue Lampe|keiner neuen Lampe|keiner neuen Lampe"),
        (np("bed", "my", adj="new"), "mein neues Bett|mein neues Bett|meinem neuen Bett|meines neuen Bettes"),
        (np("bed", "a", True, "new"), "neue Betten|neue Betten|neuen Betten|neuer Betten"),
        (
            np("bed", "our", True, "new"),
            "unsere neuen Betten|unsere neuen Betten|unseren neuen Betten|unserer neuen Betten",
        ),
        (np("radio", "the", True), "die Radios|die Radios|den Radios|der Radios"),
        (np("boy", "every"), "jeder Junge|jeden Jungen|jedem Jungen|jedes Jungen"),
    ],
)
def test_declension(phrase: NP, forms: str) -> None:
    assert [german_np(phrase, case) for case in ("nom", "acc", "dat", "gen")] == forms.split("|")


def test_contraction_only_before_the_article() -> None:
    assert german_pp("in", "dat", np("garden", adj="old")) == "im alten Garten"
    assert german_pp("in", "acc", np("village")) == "ins Dorf"
    assert german_pp("in", "dat", np("garden", "this")) == "in diesem Garten"


@pytest.mark.parametrize(
    ("phrase", "en", "de"),
    [
        (cardinal(12), "twelve", "zwölf"),
        (cardinal(17), "seventeen", "siebzehn"),
        (cardinal(30), "thirty", "dreißig"),
        (cardinal(99), "ninety-nine", "neunundneunzig"),
        (digits(250), "250", "250"),
        (digits(1500), "1,500", "1.500"),
        (price(120_000, "$"), "$1,200", "1.200 $"),
        (price(105, "€"), "€1.05", "1,05 €"),
        (date(28, 3), "on 28 March", "am 28. März"),
        (clock(7, 5), "at 7:05 am", "um 7.05 Uhr"),
        (clock(0, 15), "at 12:15 am", "um 0.15 Uhr"),
        (clock(12, 0), "at 12:00 pm", "um 12.00 Uhr"),
        (spoken_clock(3, 30), "at half past three", "um halb vier"),
        (spoken_clock(12, 30), "at half past twelve", "um halb eins"),
        (spoken_clock(1, 0), "at one o'clock", "um ein Uhr"),
        (spoken_clock(3, 15), "at quarter past three", "um Viertel nach drei"),
        (spoken_clock(3, 45), "at quarter to four", "um Viertel vor vier"),
        (spoken_clock(12, 50), "at ten to one", "um zehn vor eins"),
        (spoken_clock(6, 20), "at twenty past six", "um zwanzig nach sechs"),
    ],
)
def test_format(phrase: Phrase, en: str, de: str) -> None:
    assert phrase == (en, de)


def test_the_package_holds_this_corpus(corpus: GeneratedCorpus) -> None:
    """So its seed determines it."""
    assert gzip.decompress(DEMO.read_bytes()) == corpus.tsv()


def test_sizes_and_no_source_twice(corpus: GeneratedCorpus) -> None:
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (NUM_TRAIN, NUM_VALID, NUM_TEST)
    sources = [example.src for part in (corpus.train, corpus.valid, corpus.test) for example in part]
    assert len(set(sources)) == len(sources)


def test_a_third_of_the_test_needs_a_new_combination(corpus: GeneratedCorpus) -> None:
    shown = {triple for example in corpus.train + corpus.valid for triple in example.triples}
    novel = [example for example in corpus.test if example.triple is not None and example.triple not in shown]
    assert len(novel) >= NUM_TEST / 3
    held_out = [example for example in corpus.test if not shown.issuperset(example.triples)]
    assert len(held_out) == NUM_TEST // 2


def test_words_of_the_test_are_common_in_training(corpus: GeneratedCorpus) -> None:
    for side in ("src", "tgt"):
        counts = Counter(word for example in corpus.train for word in re.findall(r"\w+", getattr(example, side)))
        words = {word for example in corpus.test for word in re.findall(r"\w+", getattr(example, side))}
        assert min(counts[word] for word in words) >= 10


def test_an_english_sentence_has_one_translation() -> None:
    targets: dict[str, str] = {}
    for example in itertools.islice(examples(Random(3)), 40_000):
        assert targets.setdefault(example.src, example.tgt) == example.tgt
    assert len(targets) < 40_000  # some came twice, so the check had work to do


def test_sentences_are_well_formed(corpus: GeneratedCorpus) -> None:
    for example in corpus.train + corpus.valid + corpus.test:
        assert 4 <= len(example.src.split()) <= 20
        for text in (example.src, example.tgt):
            assert text[0].isupper()
            assert text[-1] in ".?"
            assert "  " not in text
            assert " ," not in text
            assert "_" not in text


def test_an_english_noun_is_not_two_words_of_the_lexicon() -> None:
    lemmas = [noun.en for noun in NOUN.values()] + list(ADJ)
    assert len(lemmas) == len(set(lemmas))
    assert sum(map(len, NOUNS.values())) == len(NOUN)
    assert not set(lemmas) & {verb.en for verb in VERBS}
