"""Says a meaning in English and in German: the two renderings of each sentence of the demo's grammar.

For: turning a `Clause` into an `Example`. Not for: choosing what is said, which `sampling` does.
A sentence is one meaning (`Clause`, `NP`, `Phrase`), so the English determines the German. To keep that so, the grammar
has no "you", no object pronouns, and no simple past without a past time.
"""

import re
from typing import NamedTuple

from .lexicon import BE, NONE, Adjective, Noun, Phrase, Pronoun, Verb, join

Triple = tuple[str, str, str]

_THE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den", "gen": "des der des der"}
_ENDING = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "es er es er"}  # of dieser, by m f n p
_DETERMINERS = {
    "a": "ein", "no": "kein", "my": "mein", "our": "unser", "his": "sein", "her": "ihr", "their": "ihr",
    "this": "dies", "every": "jed",
}  # fmt: skip
_CONTRACTIONS = {"in dem ": "im ", "an dem ": "am ", "von dem ": "vom ", "in das ": "ins "}
_BE_FORMS = {"present": ("am is are", "bin ist sind"), "past": ("was was were", "war war waren")}
MODALS = {
    "can": "kann kann können", "should": "sollte sollte sollten", "must": "muss muss müssen",
    "have to": "muss muss müssen", "want to": "will will wollen", "allowed to": "darf darf dürfen",
    "will": "werde wird werden",
}  # fmt: skip


class NP(NamedTuple):
    """A noun phrase: `det` is "the" or of `_DETERMINERS` (plural "a": no article); an `owner` is a genitive."""

    noun: Noun
    det: str = "the"
    plural: bool = False
    adjective: Adjective | None = None
    number: Phrase | None = None
    owner: "NP | None" = None


class Clause(NamedTuple):
    """What one clause says. `tense` is present, past, perfect or a key of `MODALS`."""

    subject: NP | Pronoun
    verb: Verb
    direct_object: NP | Phrase | None = None
    recipient: NP | None = None
    tense: str = "present"
    negated: bool = False
    adverb: Phrase | None = None  # English puts it before the verb
    time: Phrase | None = None
    place: Phrase | None = None
    fronted: bool = False  # the time opens the sentence


class Example(NamedTuple):
    """A sentence pair and its clauses' (subject noun, verb, object noun), as English lemmas."""

    src: str
    tgt: str
    triples: tuple[Triple, ...] = ()

    @property
    def triple(self) -> Triple | None:
        """The first triple, or None in a sentence without one."""
        return self.triples[0] if self.triples else None


def english_np(np: NP) -> str:
    """Gives the English noun phrase."""
    det = {"no": "any", "a": "", "this": "these"}.get(np.det, np.det) if np.plural else np.det
    noun = np.noun.en_plural if np.plural else np.noun.en
    words = join(np.number.en if np.number else "", np.adjective.en if np.adjective else "", noun)
    if np.owner:
        det = english_np(np.owner) + "'s"
    if det in ("a", "no"):
        det = "an" if words[0] in "aeiou" else "a"
    return join(det, words)


def german_np(np: NP, case: str) -> str:
    """Gives the German noun phrase in a case: nom, acc, dat or gen."""
    column = 3 if np.plural else "mfn".index(np.noun.gender)
    strong = _ENDING[case].split()[column]
    if np.det == "the":
        det = shown = _THE[case].split()[column]
    elif np.det == "a" and np.plural:
        det = shown = ""
    else:
        bare = np.det not in ("this", "every") and (column, case) in ((0, "nom"), (2, "nom"), (2, "acc"))
        shown = "" if bare else strong
        det = _DETERMINERS[np.det] + shown
    # The adjective takes the strong ending only where the determiner does not show it.
    weak = "e" if column < 3 and (case == "nom" or (case == "acc" and column > 0)) else "en"
    adjective = np.adjective.stem + (weak if shown else strong) if np.adjective else ""
    owner = german_np(np.owner, "gen") if np.owner else ""
    return join(det, np.number.de if np.number else "", adjective, _german_noun(np, case), owner)


def _german_noun(np: NP, case: str) -> str:
    noun = np.noun
    if np.plural:
        return noun.de_plural + ("n" if case == "dat" and noun.de_plural[-1] not in "ns" else "")
    weak = noun.gender == "m" and noun.genitive.endswith("n")
    return noun.genitive if case == "gen" or (weak and case != "nom") else noun.de


def german_pp(preposition: str, case: str, np: NP) -> str:
    """Gives the German prepositional phrase, contracted where usage contracts it (im, am, vom, ins)."""
    words = f"{preposition} {german_np(np, case)}"
    for long, short in _CONTRACTIONS.items():
        if words.startswith(long):
            return short + words.removeprefix(long)
    return words


def _person(subject: NP | Pronoun) -> int:
    if isinstance(subject, Pronoun):
        return subject.person
    return 2 if subject.plural else 1


def _third(en: str) -> str:
    if en == "have":
        return "has"
    return re.sub(r"([^aeiou])y$", r"\1ie", en) + ("es" if en.endswith(("s", "sh", "ch", "x", "o")) else "s")


def _english_verb(clause: Clause, inverted: bool) -> tuple[str, str]:
    """Gives the auxiliary ("" where there is none) and the rest of the verb."""
    verb = clause.verb
    tense = clause.tense
    person = _person(clause.subject)
    if verb is BE:
        return _BE_FORMS[tense][0].split()[person], ""
    if tense == "perfect":
        return "has" if person == 1 else "have", join(verb.participle, verb.rest)
    if tense == "allowed to":
        return _BE_FORMS["present"][0].split()[person], join("allowed to", verb.en, verb.rest)
    if tense in MODALS and not tense.endswith(" to"):
        return tense, join(verb.en, verb.rest)
    base, _, following = join(tense if tense in MODALS else "", verb.en, verb.rest).partition(" ")
    if inverted or clause.negated:
        return "did" if tense == "past" else "does" if person == 1 else "do", join(base, following)
    return "", join(verb.past if tense == "past" else _third(base) if person == 1 else base, following)


def english_clause(clause: Clause, inverted: bool = False) -> str:
    """Gives the English clause; `inverted` puts the auxiliary first, as questions do."""
    auxiliary, verb = _english_verb(clause, inverted)
    subject = clause.subject.en if isinstance(clause.subject, Pronoun) else english_np(clause.subject)
    direct_object = ""
    if isinstance(clause.direct_object, NP):
        direct_object = english_np(clause.direct_object)
    elif clause.direct_object:
        direct_object = clause.direct_object.en
    time = clause.time.en if clause.time else ""
    words = join(
        time if clause.fronted else "",
        *((auxiliary, subject) if inverted else (subject, auxiliary)),
        "not" if clause.negated else "",
        clause.adverb.en if clause.adverb else "",
        verb,
        english_np(clause.recipient) if clause.recipient else "",
        direct_object,
        clause.verb.particle,
        clause.place.en if clause.place else "",
        "" if clause.fronted else time,
    )
    return words.replace(" can not ", " cannot ")


def _german_verb(clause: Clause) -> tuple[str, str]:
    """Gives the finite verb and what is at the clause's end: participle, infinitive or separable prefix."""
    verb = clause.verb
    tense = clause.tense
    person = _person(clause.subject)
    if verb is BE:
        return _BE_FORMS[tense][1].split()[person], ""
    if tense in MODALS:
        return MODALS[tense].split()[person], verb.prefix + verb.infinitive
    if tense in ("past", "perfect"):
        forms = "bin ist sind" if verb.de_participle[0] == "+" else "habe hat haben"
        return forms.split()[person], verb.de_participle.lstrip("+")
    first_person = verb.infinitive.removesuffix("n").removesuffix("e") + "e"  # kaufen, füttern: kaufe, füttere
    return (first_person, verb.third, verb.infinitive)[person], verb.prefix


def _german_object(clause: Clause) -> tuple[str, str]:
    """Gives the object as a noun phrase (before nicht and the place) and as a complement (after them)."""
    if clause.direct_object is None:
        return "", ""
    if isinstance(clause.direct_object, Phrase):
        return "", clause.direct_object.de
    preposition, _, case = clause.verb.governs.rpartition("+")
    if preposition:
        return "", german_pp(preposition, case, clause.direct_object)
    return german_np(clause.direct_object, case.replace("2", "acc")), ""


def german_clause(clause: Clause, order: str = "second") -> str:
    """Gives the German clause with its finite verb "second", "first" (question) or "last" (subordinate)."""
    finite, verb_end = _german_verb(clause)
    noun_phrase, complement = _german_object(clause)
    subject = clause.subject.de if isinstance(clause.subject, Pronoun) else german_np(clause.subject, "nom")
    time = clause.time.de if clause.time else ""
    has_no = isinstance(clause.direct_object, NP) and clause.direct_object.det == "no"
    negation = "nicht" if clause.negated and not has_no else ""
    middle = join(
        "" if clause.fronted else time,
        clause.adverb.de if clause.adverb else "",
        german_np(clause.recipient, "dat") if clause.recipient else "",
        noun_phrase,
        negation,
        clause.place.de if clause.place else "",
        complement,
    )
    if order == "last":
        return join(subject, middle, verb_end + finite if verb_end == clause.verb.prefix else f"{verb_end} {finite}")
    if order == "first":
        return join(finite, subject, middle, verb_end)
    return join(*((time, finite, subject) if clause.fronted else (subject, finite)), middle, verb_end)


def _triples(*clauses: Clause) -> tuple[Triple, ...]:
    return tuple(
        (clause.subject.noun.en, clause.verb.name, clause.direct_object.noun.en)
        for clause in clauses
        if isinstance(clause.subject, NP) and isinstance(clause.direct_object, NP)
    )


def example_of(en: str, de: str, *clauses: Clause) -> Example:
    """The pair with capital first letters, and the triples of the clauses that it says."""
    return Example(en[0].upper() + en[1:], de[0].upper() + de[1:], _triples(*clauses))


def statement(clause: Clause) -> Example:
    """Gives a main clause: verb second."""
    return example_of(english_clause(clause) + ".", german_clause(clause) + ".", clause)


def question(clause: Clause, word: Phrase = NONE) -> Example:
    """Gives a question, with or without a question word."""
    en = english_clause(clause, inverted=True)
    de = german_clause(clause, "first")
    return example_of(join(word.en, en) + "?", join(word.de, de) + "?", clause)


def subordinate(main: Clause, conjunction: Phrase, clause: Clause, opens_sentence: bool = False) -> Example:
    """Gives a main and a subordinate clause (verb last); with `opens_sentence` the subordinate one comes first."""
    en = f"{conjunction.en} {english_clause(clause)}"
    de = f"{conjunction.de} {german_clause(clause, 'last')}"
    if opens_sentence:
        return example_of(f"{en}, {english_clause(main)}.", f"{de}, {german_clause(main, 'first')}.", main, clause)
    return example_of(f"{english_clause(main)} {en}.", f"{german_clause(main)}, {de}.", main, clause)


def coordinated(first_clause: Clause, conjunction: Phrase, second_clause: Clause) -> Example:
    """Gives two main clauses; the German conjunction carries its own comma."""
    en = f"{english_clause(first_clause)}, {conjunction.en} {english_clause(second_clause)}."
    de = f"{german_clause(first_clause)}{conjunction.de} {german_clause(second_clause)}."
    return example_of(en, de, first_clause, second_clause)
