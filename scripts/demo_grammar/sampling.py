"""Chooses what the sentences of the demo's grammar say, so that they make sense in both languages.

For: a stream of examples from a random generator. Flow: words of `lexicon` -> meaning -> `rendering`.
"""

from collections.abc import Callable, Iterator
from random import Random

from .lexicon import (
    ADJECTIVES,
    BE,
    COST,
    GROUPS,
    HAVE,
    LAST,
    NONE,
    NOUNS,
    PRONOUNS,
    REPORTING,
    VERBS,
    Noun,
    Phrase,
    Pronoun,
    Verb,
    expand,
    join,
    nouns_of,
)
from .numbers import WEEKDAYS, cardinal, clock, date, digits, price, spoken_clock
from .rendering import (
    MODALS,
    NP,
    Clause,
    Example,
    coordinated,
    english_np,
    example_of,
    german_np,
    german_pp,
    question,
    statement,
    subordinate,
)

_FITTING = {kind: [adjective for adjective in ADJECTIVES if kind in adjective.kinds] for kind in NOUNS}
PEOPLE = nouns_of("people")
_PLACES = nouns_of("room town spot")
ACTIONS = [verb for verb in VERBS if verb.governs != "s"]
_EVENTS = [verb for verb in VERBS if verb.governs == "s"]
_PLAIN = ("present", "present", "present", "past", "past", "perfect")
_TENSES = (*_PLAIN, *_PLAIN, *MODALS)
_QUESTION_TENSES = ("present", "present", "present", "perfect", "can", "want to", "have to", "should")
_PREPOSITIONS = {"market": Phrase("at", "auf"), "station": Phrase("at", "an")}
_FOR_SOMEONE = ("buy", "cook", "bake", "build", "look for")
_WITH_SOMEONE = ("work", "sing", "dance", "laugh", "arrive", "come back")
_TODAY = Phrase("today", "heute")
_TOMORROW = Phrase("tomorrow", "morgen")
_YESTERDAY = Phrase("yesterday", "gestern")
_ADVERBS = (Phrase("often", "oft"), Phrase("always", "immer"), Phrase("sometimes", "manchmal"))
_NOWADAYS = (
    _TODAY, Phrase("now", "jetzt"), Phrase("every day", "jeden Tag"), Phrase("every week", "jede Woche"),
    Phrase("in the summer", "im Sommer"), Phrase("in the winter", "im Winter"),
)  # fmt: skip
_PAST_TIMES = (_YESTERDAY, Phrase("last week", "letzte Woche"), Phrase("last year", "letztes Jahr"))
_FUTURE_TIMES = (_TOMORROW, Phrase("next week", "nächste Woche"), Phrase("next year", "nächstes Jahr"))
_DAY_PARTS = (NONE, Phrase("morning", "morgen"), Phrase("afternoon", "nachmittag"), Phrase("evening", "abend"))
_BECAUSE = (Phrase("because", "weil"), Phrase("although", "obwohl"))
_PRESENT_CONJUNCTIONS = (
    Phrase("if", "wenn"), Phrase("when", "wenn"), Phrase("before", "bevor"), Phrase("while", "während"),
)  # fmt: skip
_ROUND_NUMBERS = (100, 120, 150, 200, 250, 300, 400, 500, 1_000, 1_200, 1_500, 2_500)
_COORDINATIONS = (Phrase("and", " und"), Phrase("but", ", aber"))
_QUESTION_WORDS = (NONE, NONE, Phrase("why", "warum"), Phrase("when", "wann"), Phrase("where", "wo"))


def _chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def _joined(left: Phrase, right: Phrase) -> Phrase:
    return Phrase(join(left.en, right.en), join(left.de, right.de))


def _any_clock(rng: Random) -> Phrase:
    if _chance(rng, 0.5):
        return clock(rng.randrange(24), rng.randrange(0, 60, 5))
    return spoken_clock(rng.randint(1, 12), rng.choice((0, 5, 10, 15, 20, 30, 40, 45, 50, 55)))


def _any_date(rng: Random, with_year: bool) -> Phrase:
    return date(rng.randint(1, 28), rng.randint(1, 12), rng.randint(1990, 2024) if with_year else None)


def _weekday(rng: Random) -> Phrase:
    day = rng.choice(WEEKDAYS)
    part = rng.choice(_DAY_PARTS)
    return Phrase(join("on", day.en, part.en), f"am {day.de}{part.de}")


def _time(rng: Random, tense: str) -> Phrase | None:
    """Chooses a time that goes with the tense in both languages."""
    pick = rng.randrange(5)
    if tense == "perfect":
        return _TODAY if pick == 0 else None
    if tense == "present":
        return _any_clock(rng) if pick == 0 else rng.choice(_NOWADAYS)
    if pick == 0:
        return _weekday(rng)
    if tense != "past":
        return _joined(_TOMORROW, _any_clock(rng)) if pick == 1 else rng.choice(_FUTURE_TIMES)
    year = rng.randint(1990, 2024)
    past_times = (_any_date(rng, True), Phrase(f"in {year}", f"im Jahr {year}"), _joined(_YESTERDAY, _any_clock(rng)))
    return rng.choice(past_times) if pick < 3 else rng.choice(_PAST_TIMES)


def _noun_phrase(rng: Random, noun: Noun, dets: str, possessive: str = "my", plural: float = 0.25) -> NP:
    """Chooses a phrase around the noun; `possessive` is what "own" among `dets` stands for."""
    det = rng.choice(dets.split())
    if noun.kind == "kin":
        det = rng.choice((possessive, "my", "our"))
    elif det in ("own", "my") and noun.kind in GROUPS["people"]:
        det = "the"
    is_plural = noun.en_plural != "-" and det != "every" and _chance(rng, plural)
    adjective = rng.choice(_FITTING[noun.kind]) if _FITTING[noun.kind] and _chance(rng, 0.3) else None
    number = cardinal(rng.randint(2, 12)) if is_plural and det == "a" and _chance(rng, 0.5) else None
    return NP(noun, possessive if det == "own" else det, is_plural, adjective, number)


def _subject(rng: Random, first_subject: NP | Pronoun | None = None) -> NP | Pronoun:
    """Chooses a subject, one not about the noun of the first clause."""
    if _chance(rng, 0.3):
        return rng.choice((*PRONOUNS, PRONOUNS[0]))
    people = [noun for noun in PEOPLE if noun != getattr(first_subject, "noun", None)]
    possessive = rng.choice(("his", "her", "their"))
    np = _noun_phrase(rng, rng.choice(people), "the the the the a this every", possessive)
    return np._replace(det="the") if np.plural and np.det == "a" else np


def _possessive_of(subject: NP | Pronoun) -> str:
    if isinstance(subject, Pronoun):
        return subject.possessive
    return "their" if subject.plural else {"m": "his", "f": "her", "": "our"}[subject.noun.sex]


def _pronoun(subject: NP | Pronoun) -> Pronoun | None:
    """Gives the pronoun for a subject, or None where the sex is not known."""
    if isinstance(subject, Pronoun):
        return subject
    possessive = _possessive_of(subject)
    if possessive == "our":
        return None
    return next((pronoun for pronoun in PRONOUNS if pronoun.possessive == possessive), None)


def _object(rng: Random, subject: NP | Pronoun, verb: Verb, negated: bool) -> NP | None:
    if not verb.nouns:
        return None
    noun = rng.choice([noun for noun in verb.nouns if noun != getattr(subject, "noun", None)])
    np = _noun_phrase(
        rng, noun, "the the the a a a this own", "the" if verb.name == "steal" else _possessive_of(subject)
    )
    if negated and np.det == "a":
        return np._replace(det="no" if verb.governs in ("acc", "2") else "the", number=None)
    if np.det == "the" and noun.kind not in GROUPS["people"] and _chance(rng, 0.2):
        return np._replace(owner=_noun_phrase(rng, rng.choice(PEOPLE), "the", plural=0)._replace(adjective=None))
    return np


def _place(rng: Random, subject: NP | Pronoun, verb: Verb) -> Phrase | None:
    """Chooses a place, a company or someone to benefit, where the verb can take one."""
    person = _noun_phrase(rng, rng.choice(PEOPLE), "the the this own", _possessive_of(subject))
    if person.noun == getattr(subject, "noun", None) or verb.governs not in ("acc", "dat", "0"):
        return None
    if verb.name in _FOR_SOMEONE and _chance(rng, 0.5):
        return Phrase(f"for {english_np(person)}", german_pp("für", "acc", person))
    if verb.name in _WITH_SOMEONE and _chance(rng, 0.5):
        if _chance(rng, 0.5):
            return Phrase(f"with {english_np(person)}", german_pp("mit", "dat", person))
        return Phrase(f"without {english_np(person)}", german_pp("ohne", "acc", person))
    if verb.name in ("come back", "get up") or (verb.nouns and verb.nouns[-1].kind in expand("places opening")):
        return None
    np = _noun_phrase(rng, rng.choice(_PLACES), "the the the this", plural=0)
    preposition = _PREPOSITIONS.get(np.noun.en, Phrase("in", "in"))
    return Phrase(f"{preposition.en} {english_np(np)}", german_pp(preposition.de, "dat", np))


def _clause(rng: Random, tenses: tuple[str, ...], subject: NP | Pronoun | None = None, main: bool = True) -> Clause:
    """Chooses a clause with an action; only a main clause may be fronted, or negated with a time."""
    verb = rng.choice(ACTIONS)
    subject = subject or _subject(rng)
    tense = rng.choice(tenses)
    every = isinstance(subject, NP) and subject.det == "every"
    negated = tense != "must" and not every and (main or tense != "past") and _chance(rng, 0.15)
    clause = Clause(subject, verb, _object(rng, subject, verb, negated), tense=tense, negated=negated)
    if verb.governs == "2":
        recipient = rng.choice([noun for noun in PEOPLE if noun != getattr(subject, "noun", None)])
        clause = clause._replace(recipient=_noun_phrase(rng, recipient, "the the this own", _possessive_of(subject)))
    if _chance(rng, 0.3):
        clause = clause._replace(place=_place(rng, subject, verb))
    if tense == "present" and not negated and _chance(rng, 0.2):
        return clause._replace(adverb=rng.choice(_ADVERBS))
    if tense == "past" or (_chance(rng, 0.4) and (main or not negated)):
        time = _time(rng, tense)
        return clause._replace(time=time, fronted=time is not None and main and (negated or _chance(rng, 0.4)))
    return clause


def _predication(rng: Random, subject: NP | Pronoun | None = None, main: bool = True) -> Clause:
    """Chooses a clause with to be and an adjective; some main clauses compare."""
    if subject is None:
        kind = rng.choice([kind for kind, adjectives in _FITTING.items() if adjectives])
        subject = _noun_phrase(rng, rng.choice(NOUNS[kind]), "the the this my")._replace(adjective=None)
    adjective = rng.choice(_FITTING["men" if isinstance(subject, Pronoun) else subject.noun.kind])
    tense = rng.choice(("present", "present", "past"))
    complement = Phrase(adjective.en, adjective.de)
    if main and isinstance(subject, NP) and adjective.en_comparative != "-" and _chance(rng, 0.4):
        compared = rng.choice([noun for noun in NOUNS[subject.noun.kind] if noun != subject.noun])
        than = _noun_phrase(rng, compared, "the this")
        en = f"{adjective.en_comparative} than {english_np(than)}"
        de = german_np(than, "nom")
        complement = Phrase(en, f"{adjective.de_comparative} als {de}")
    elif _chance(rng, 0.4):
        complement = _joined(Phrase("very", "sehr"), complement)
    time = rng.choice(_PAST_TIMES) if tense == "past" else None
    return Clause(subject, BE, complement, tense=tense, negated=_chance(rng, 0.2), time=time)


def _event(rng: Random) -> Clause:
    verb = rng.choice(_EVENTS)
    subject = _noun_phrase(rng, rng.choice(verb.nouns), "the the this", plural=0.15)
    tense = rng.choice(("present", "past", "will"))
    if tense == "present":
        time = _any_clock(rng)
    elif tense == "past":
        time = rng.choice((_joined(_YESTERDAY, _any_clock(rng)), _any_date(rng, True), _weekday(rng)))
    else:
        time = rng.choice((_joined(_TOMORROW, _any_clock(rng)), _any_date(rng, False), _weekday(rng)))
    return Clause(subject, verb, tense=tense, time=time, fronted=_chance(rng, 0.3))


def _any_price(rng: Random, noun: Noun) -> Phrase:
    sign = rng.choice("€$")
    if noun.kind in ("vehicle", "device", "furniture"):
        return price(rng.randint(1, 99) * 10_000, sign)
    return price(rng.randint(1, 99) * 100 + rng.choice((20, 50, 75, 95, 99)), sign)


def _priced(rng: Random) -> Example:
    if _chance(rng, 0.5):
        np = _noun_phrase(rng, rng.choice(COST.nouns), "the this my", plural=0)
        return statement(Clause(np, COST, _any_price(rng, np.noun)))
    subject = _subject(rng)
    verb = VERBS[rng.randrange(2)]
    noun = rng.choice([noun for noun in verb.nouns if noun.kind not in ("animal", "building")])
    np = _noun_phrase(rng, noun, "the a own", _possessive_of(subject))
    amount = _any_price(rng, np.noun)
    time = _time(rng, "past")
    place = Phrase(f"for {amount.en}", f"für {amount.de}")
    return statement(Clause(subject, verb, np, tense="past", time=time, place=place, fronted=_chance(rng, 0.4)))


def _counted(rng: Random) -> Example:
    """Chooses a sentence about a number: an age, a duration, a possession, or what there is."""
    number = cardinal(rng.randint(2, 99))
    match rng.randrange(4):
        case 0:
            return statement(Clause(_subject(rng), BE, _joined(number, Phrase("years old", "Jahre alt"))))
        case 1:
            event = _noun_phrase(rng, rng.choice(LAST.nouns), "the the this", plural=0)
            return statement(Clause(event, LAST, _joined(number, Phrase("minutes", "Minuten"))))
        case 2:
            np = NP(rng.choice(HAVE.nouns), "a", True, number=number)
            return statement(Clause(_subject(rng), HAVE, np, tense=rng.choice(("present", "want to", "will"))))
    places, things = rng.choice((("room", "furniture press"), ("town", "animal building")))
    place = _noun_phrase(rng, rng.choice(nouns_of(places)), "the the this", plural=0)
    number = number if _chance(rng, 0.5) else digits(rng.choice(_ROUND_NUMBERS))
    counted = NP(rng.choice(nouns_of(things)), "a", True, number=number)
    en = f"there are {english_np(counted)} in {english_np(place)}."
    de = german_pp("in", "dat", place)
    return example_of(en, f"{de} gibt es {german_np(counted, 'acc')}.")


def _question(rng: Random) -> Example:
    clause = _clause(rng, _QUESTION_TENSES, main=False)
    word = rng.choice(_QUESTION_WORDS[:3] if clause.negated else _QUESTION_WORDS)
    if word.en == "when":
        clause = clause._replace(time=None, adverb=None)
    if word.en == "where" and clause.verb.governs == "in+acc":
        word = NONE
    if word.en == "where":
        clause = clause._replace(place=None)
    return question(clause, word)


def _complex(rng: Random) -> Example:
    """Chooses a main clause with a subordinate one."""
    causal = _chance(rng, 0.5)
    opens_sentence = _chance(rng, 0.35)
    main = _clause(rng, _PLAIN if causal else ("present",), main=not opens_sentence)
    subject = _pronoun(main.subject) if _chance(rng, 0.6) else None
    if causal and _chance(rng, 0.4):
        return subordinate(main, rng.choice(_BECAUSE), _predication(rng, subject, main=False), opens_sentence)
    tenses: tuple[str, ...] = ("past",) if main.tense == "past" else _TENSES if causal else ("present",)
    clause = _clause(rng, tenses, subject or _subject(rng, main.subject), main=False)
    if causal:
        return subordinate(main, rng.choice(_BECAUSE), clause, opens_sentence)
    conjunction = rng.choice(_PRESENT_CONJUNCTIONS[: 2 if clause.negated else 4])
    return subordinate(main, conjunction, clause._replace(time=None, adverb=None), opens_sentence)


def _reported(rng: Random) -> Example:
    main = Clause(_subject(rng), rng.choice(REPORTING))
    return subordinate(main, Phrase("that", "dass"), _clause(rng, _TENSES, _subject(rng, main.subject), main=False))


def _coordinated(rng: Random) -> Example:
    first = _clause(rng, _PLAIN)
    second = _clause(rng, _PLAIN, _subject(rng, first.subject), main=False)
    return coordinated(first, rng.choice(_COORDINATIONS), second)


def examples(rng: Random) -> Iterator[Example]:
    """Yields sentence pairs of 4 to 20 English words without end; a pair may come twice."""
    kinds: dict[Callable[[Random], Example], int] = {
        lambda rng: statement(_clause(rng, _TENSES)): 45, _question: 10, _complex: 15, _reported: 6, _coordinated: 4,
        lambda rng: statement(_predication(rng)): 5, lambda rng: statement(_event(rng)): 6, _priced: 5, _counted: 6,
    }  # fmt: skip
    while True:
        (kind,) = rng.choices(list(kinds), list(kinds.values()))
        example = kind(rng)
        if 4 <= len(example.src.split()) <= 20:
            yield example
