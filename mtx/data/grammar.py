"""Writes the demo's corpus: synthetic English-German sentence pairs from a small hand-written grammar.

For: a demo and end-to-end tests that need parallel text offline, with known phenomena and a test set that measures
generalisation. Not for: training a translator of real text; about a hundred nouns and sixty verbs are no language.
Flow: one of three sources of pairs (files / hub / grammar -> pairs -> cleaning -> tokenizer).

A sentence is one meaning (`Clause`, `NP`, `Phrase`) with two renderings, so the English determines the German. To keep
that so, the grammar has no "you", no object pronouns, no simple past without a past time, and one German word for each
noun, adjective and verb (the verb with its particle: look for, look at).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

NUM_TRAIN, NUM_VALID, NUM_TEST = 24_000, 500, 600
NUM_HELD_OUT = NUM_TEST // 2  # test sentences with a triple that training never shows
MIN_TRAIN_COUNT = 10  # each word of a test sentence stands at least this often in the training text

Triple = tuple[str, str, str]

# Nouns by kind: English, its plural ("-": none), gender (and sex where they differ), German, genitive (not for
# feminines), plural. A masculine genitive in -n marks a weak noun.
_NOUNS = {
    "men": """man men m Mann Mannes Männer; teacher teachers m Lehrer Lehrers Lehrer;
        doctor doctors m Arzt Arztes Ärzte; neighbour neighbours m Nachbar Nachbarn Nachbarn;
        student students m Student Studenten Studenten; farmer farmers m Bauer Bauern Bauern;
        baker bakers m Bäcker Bäckers Bäcker; boy boys m Junge Jungen Jungen; king kings m König Königs Könige""",
    "women": """woman women f Frau Frauen; girl girls nf Mädchen Mädchens Mädchen; queen queens f Königin Königinnen;
        nurse nurses f Krankenschwester Krankenschwestern; actress actresses f Schauspielerin Schauspielerinnen""",
    "kin": """mother - f Mutter -; father - m Vater Vaters -; sister sisters f Schwester Schwestern;
        brother brothers m Bruder Bruders Brüder; daughter daughters f Tochter Töchter; son sons m Sohn Sohnes Söhne;
        aunt aunts f Tante Tanten; uncle uncles m Onkel Onkels Onkel; friend friends m Freund Freundes Freunde;
        colleague colleagues m Kollege Kollegen Kollegen; child children n Kind Kindes Kinder""",
    "fruit": """apple apples m Apfel Apfels Äpfel; banana bananas f Banane Bananen; tomato tomatoes f Tomate Tomaten;
        potato potatoes f Kartoffel Kartoffeln""",
    "baked": """cake cakes m Kuchen Kuchens Kuchen; biscuit biscuits m Keks Kekses Kekse; pizza pizzas f Pizza Pizzen;
        roll rolls n Brötchen Brötchens Brötchen""",
    "dish": "soup soups f Suppe Suppen; egg eggs n Ei Eis Eier; sausage sausages f Wurst Würste",
    "text": """letter letters m Brief Briefes Briefe; poem poems n Gedicht Gedichts Gedichte;
        story stories f Geschichte Geschichten; report reports m Bericht Berichts Berichte""",
    "press": "book books n Buch Buches Bücher; newspaper newspapers f Zeitung Zeitungen",
    "clothes": """coat coats m Mantel Mantels Mäntel; shirt shirts n Hemd Hemdes Hemden; hat hats m Hut Hutes Hüte;
        dress dresses n Kleid Kleides Kleider; jacket jackets f Jacke Jacken""",
    "item": """lamp lamps f Lampe Lampen; key keys m Schlüssel Schlüssels Schlüssel; cup cups f Tasse Tassen;
        ring rings m Ring Ringes Ringe; picture pictures n Bild Bildes Bilder; camera cameras f Kamera Kameras;
        umbrella umbrellas m Regenschirm Regenschirms Regenschirme; knife knives n Messer Messers Messer""",
    "container": """box boxes f Kiste Kisten; bottle bottles f Flasche Flaschen; bag bags f Tasche Taschen;
        suitcase suitcases m Koffer Koffers Koffer""",
    "furniture": """table tables m Tisch Tisches Tische; chair chairs m Stuhl Stuhls Stühle;
        cupboard cupboards m Schrank Schranks Schränke; bed beds n Bett Bettes Betten""",
    "device": """computer computers m Computer Computers Computer; radio radios n Radio Radios Radios;
        television televisions m Fernseher Fernsehers Fernseher""",
    "vehicle": """car cars n Auto Autos Autos; bicycle bicycles n Fahrrad Fahrrads Fahrräder;
        boat boats n Boot Bootes Boote""",
    "opening": "door doors f Tür Türen; window windows n Fenster Fensters Fenster",
    "animal": """dog dogs m Hund Hundes Hunde; cat cats f Katze Katzen; horse horses n Pferd Pferdes Pferde;
        bird birds m Vogel Vogels Vögel; cow cows f Kuh Kühe""",
    "building": "house houses n Haus Hauses Häuser; bridge bridges f Brücke Brücken",
    "room": """kitchen kitchens f Küche Küchen; garden gardens m Garten Gartens Gärten;
        office offices n Büro Büros Büros; room rooms n Zimmer Zimmers Zimmer;
        museum museums n Museum Museums Museen""",
    "town": """city cities f Stadt Städte; village villages n Dorf Dorfes Dörfer; forest forests m Wald Waldes Wälder;
        park parks m Park Parks Parks""",
    "spot": "market markets m Markt Marktes Märkte; station stations m Bahnhof Bahnhofs Bahnhöfe",
    "transport": "train trains m Zug Zuges Züge; bus buses m Bus Busses Busse",
    "event": """film films m Film Films Filme; concert concerts n Konzert Konzerts Konzerte;
        course courses m Kurs Kurses Kurse; meeting meetings f Sitzung Sitzungen""",
}
_GROUPS = {
    "people": "men women kin",
    "food": "fruit baked dish",
    "goods": "clothes item container furniture device vehicle",
    "places": "building room town spot",
}

# English, comparative ("-": none), German, stem before an ending, German comparative | kinds it fits.
_ADJECTIVES = """old older alt alt älter | people animal goods places text;
young younger jung jung jünger | people animal; big bigger groß groß größer | animal food goods places;
small smaller klein klein kleiner | animal food goods places; new newer neu neu neuer | goods text press places event;
beautiful - schön schön - | clothes places item animal; expensive - teuer teur - | goods;
cheap cheaper billig billig billiger | goods; modern - modern modern - | device places;
long longer lang lang länger | text event; short shorter kurz kurz kürzer | text event;
interesting - interessant interessant - | text event press; boring - langweilig langweilig - | text event press;
red - rot rot - | goods; blue - blau blau - | goods; green - grün grün - | goods;
black - schwarz schwarz - | goods animal; white - weiß weiß - | goods animal;
heavy heavier schwer schwer schwerer | container furniture;
dirty dirtier schmutzig schmutzig schmutziger | goods animal;
fresh fresher frisch frisch frischer | food;
cold colder kalt kalt kälter | dish room; warm warmer warm warm wärmer | dish; famous - berühmt berühmt - | people;
rich richer reich reich reicher | people; poor poorer arm arm ärmer | people;
friendly friendlier freundlich freundlich freundlicher | people; clever cleverer klug klug klüger | people animal;
happy happier glücklich glücklich glücklicher | people; strong stronger stark stark stärker | people animal;
tired - müde müd - | people animal; sick - krank krank - | people animal; quiet - ruhig ruhig - | people room town"""

# English base (+ past, participle where irregular; "_" joins words, "/" sets off a particle that follows the object)
# | German infinitive ("-" after a separable prefix), third person, participle ("+": perfect with sein) | case or
# preposition+case ("2": dative recipient and accusative; "0": no object; "s": no object, kinds of subject) | kinds.
_VERBS = """buy bought bought | kaufen kauft gekauft | acc | food press goods animal;
sell sold sold | verkaufen verkauft verkauft | acc | fruit baked goods animal building;
eat ate eaten | essen isst gegessen | acc | food; cook | kochen kocht gekocht | acc | dish;
bake | backen backt gebacken | acc | baked; read read read | lesen liest gelesen | acc | text press;
write wrote written | schreiben schreibt geschrieben | acc | text;
translate | übersetzen übersetzt übersetzt | acc | text;
find found found | finden findet gefunden | acc | item container animal press;
lose lost lost | verlieren verliert verloren | acc | item container;
look_for | suchen sucht gesucht | acc | item container animal people;
see saw seen | sehen sieht gesehen | acc | people animal building vehicle;
visit | besuchen besucht besucht | acc | people town; meet met met | treffen trifft getroffen | acc | people;
carry | tragen trägt getragen | acc | item container furniture; wear wore worn | tragen trägt getragen | acc | clothes;
wash | waschen wäscht gewaschen | acc | clothes vehicle fruit;
repair | reparieren repariert repariert | acc | vehicle device furniture;
clean | putzen putzt geputzt | acc | opening vehicle; open | öffnen öffnet geöffnet | acc | opening container;
close | zu-machen macht zugemacht | acc | opening container;
build built built | bauen baut gebaut | acc | furniture building;
need | brauchen braucht gebraucht | acc | item device vehicle furniture clothes;
feed fed fed | füttern füttert gefüttert | acc | animal;
steal stole stolen | stehlen stiehlt gestohlen | acc | item vehicle device;
invite | ein-laden lädt eingeladen | acc | people; call/up | an-rufen ruft angerufen | acc | people;
pick/up | ab-holen holt abgeholt | acc | people;
throw/away threw thrown | weg-werfen wirft weggeworfen | acc | clothes press container;
bring/back brought brought | zurück-bringen bringt zurückgebracht | acc | item container vehicle press;
turn/on | ein-schalten schaltet eingeschaltet | acc | device;
turn/off | aus-schalten schaltet ausgeschaltet | acc | device; tidy/up | auf-räumen räumt aufgeräumt | acc | room;
try/on | an-probieren probiert anprobiert | acc | clothes;
look_at | an-sehen sieht angesehen | acc | animal building press; help | helfen hilft geholfen | dat | people;
thank | danken dankt gedankt | dat | people; follow | folgen folgt +gefolgt | dat | people vehicle animal;
answer | antworten antwortet geantwortet | dat | people; listen_to | zu-hören hört zugehört | dat | people;
wait_for | warten wartet gewartet | auf+acc | people transport;
look_after | auf-passen passt aufgepasst | auf+acc | people animal;
think_of thought thought | denken denkt gedacht | an+acc | people;
talk_to | sprechen spricht gesprochen | mit+dat | people;
play_with | spielen spielt gespielt | mit+dat | people animal;
dream_of | träumen träumt geträumt | von+dat | vehicle building animal;
walk_into | gehen geht +gegangen | in+acc | room town;
drive_into drove driven | fahren fährt +gefahren | in+acc | town;
give gave given | geben gibt gegeben | 2 | item text clothes press;
show showed shown | zeigen zeigt gezeigt | 2 | item text press animal building;
send sent sent | schicken schickt geschickt | 2 | item text press; sleep slept slept | schlafen schläft geschlafen | 0;
work | arbeiten arbeitet gearbeitet | 0; sing sang sung | singen singt gesungen | 0; dance | tanzen tanzt getanzt | 0;
laugh | lachen lacht gelacht | 0; arrive | an-kommen kommt +angekommen | 0;
come_back came come | zurück-kommen kommt +zurückgekommen | 0; get_up got got | auf-stehen steht +aufgestanden | 0;
leave left left | ab-fahren fährt +abgefahren | s | transport; arrive | an-kommen kommt +angekommen | s | transport;
begin began begun | an-fangen fängt angefangen | s | event; end | enden endet geendet | s | event;
take_place took taken | statt-finden findet stattgefunden | s | event"""

_THE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den", "gen": "des der des der"}
_ENDING = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "es er es er"}  # of dieser, by m f n p
_DETERMINERS = {
    "a": "ein", "no": "kein", "my": "mein", "our": "unser", "his": "sein", "her": "ihr", "their": "ihr",
    "this": "dies", "every": "jed",
}  # fmt: skip
_CONTRACTIONS = {"in dem ": "im ", "an dem ": "am ", "von dem ": "vom ", "in das ": "ins "}
_WORDS = {  # English and German words by number
    "ones": """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
        seventeen eighteen nineteen | null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn
        vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn""",
    "tens": """- - twenty thirty forty fifty sixty seventy eighty ninety
        | - - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig""",
    "months": """January February March April May June July August September October November December
        | Januar Februar März April Mai Juni Juli August September Oktober November Dezember""",
    "days": """Monday Tuesday Wednesday Thursday Friday Saturday Sunday
        | Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag""",
}


class Noun(NamedTuple):
    """One noun: `gender` is m, f or n; `sex` is m, f or "" (English his, her); `genitive` is singular."""

    en: str
    en_plural: str
    gender: str
    sex: str
    de: str
    genitive: str
    de_plural: str
    kind: str


class Adjective(NamedTuple):
    """One adjective; a comparative that the grammar does not use is "-"."""

    en: str
    en_comparative: str
    de: str
    stem: str
    de_comparative: str
    kinds: list[str]


class Verb(NamedTuple):
    """One verb; `rest` follows it at once (look *at*), `particle` follows its object (call him *up*)."""

    en: str
    past: str
    participle: str
    rest: str
    particle: str
    prefix: str
    infinitive: str
    third: str
    de_participle: str
    governs: str
    nouns: tuple[Noun, ...]

    @property
    def name(self) -> str:
        """The English lemma with all its parts."""
        return _join(self.en, self.rest, self.particle)


class Phrase(NamedTuple):
    """A piece of meaning that reads the same wherever it stands."""

    en: str
    de: str


class Pronoun(NamedTuple):
    """A subject pronoun: `person` is 0 for I, 1 for the third singular, 2 for a plural."""

    en: str
    de: str
    person: int
    own: str


class NP(NamedTuple):
    """A noun phrase: `det` is "the" or of `_DETERMINERS` (plural "a": no article); an `owner` is a genitive."""

    noun: Noun
    det: str = "the"
    plural: bool = False
    adjective: Adjective | None = None
    number: Phrase | None = None
    owner: "NP | None" = None


class Clause(NamedTuple):
    """What one clause says. `tense` is present, past, perfect or a key of `_MODALS`."""

    subject: NP | Pronoun
    verb: Verb
    object: NP | Phrase | None = None
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


@dataclass(frozen=True)
class GeneratedCorpus:
    """The three parts; no source stands twice, in one part or in two."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


def _expand(kinds: str) -> list[str]:
    return [kind for name in kinds.split() for kind in _GROUPS.get(name, name).split()]


def _read_noun(kind: str, entry: str) -> Noun:
    en, en_plural, gender, de, *genitive, de_plural = entry.split()
    sex = gender[-1].strip("n") if kind in _expand("people") else ""
    return Noun(en, en_plural, gender[0], sex, de, (genitive or [de])[0], de_plural, kind)


def _read_adjective(entry: str) -> Adjective:
    words, kinds = entry.split("|")
    en, en_comparative, de, stem, de_comparative = words.split()
    return Adjective(en, en_comparative, de, stem, de_comparative, _expand(kinds))


def _nouns(kinds: str) -> tuple[Noun, ...]:
    return tuple(noun for kind in _expand(kinds) for noun in NOUNS[kind])


def _read_verb(entry: str) -> Verb:
    english, german, governs, *kinds = (column.strip() for column in entry.split("|"))
    base, *irregular = english.split()
    base, _, particle = base.partition("/")
    base, _, rest = base.partition("_")
    regular = base + "d" if base[-1] == "e" else re.sub(r"([^aeiou])y$", r"\1i", base) + "ed"
    past, participle = irregular or (regular, regular)
    infinitive, third, de_participle = german.split()
    prefix, _, infinitive = infinitive.rpartition("-")
    nouns = _nouns(" ".join(kinds))
    return Verb(base, past, participle, rest, particle, prefix, infinitive, third, de_participle, governs, nouns)


_ONES, _TENS, _MONTHS, _DAYS = (
    [Phrase(*words) for words in zip(*(column.split() for column in table.split("|")), strict=True)]
    for table in _WORDS.values()
)
NOUNS = {kind: [_read_noun(kind, entry) for entry in table.split(";")] for kind, table in _NOUNS.items()}
ADJECTIVES = [_read_adjective(entry) for entry in _ADJECTIVES.split(";")]
VERBS = [_read_verb(entry) for entry in _VERBS.split(";")]
PRONOUNS = [Pronoun("I", "ich", 0, "my"), Pronoun("he", "er", 1, "his"), Pronoun("she", "sie", 1, "her"),
            Pronoun("we", "wir", 2, "our"), Pronoun("they", "sie", 2, "their")]  # fmt: skip
BE = _read_verb("be was been | sein ist +gewesen | 0")
HAVE = _read_verb("have had had | haben hat gehabt | acc | item animal vehicle furniture")
COST = _read_verb("cost cost cost | kosten kostet gekostet | acc | goods press fruit")
LAST = _read_verb("last | dauern dauert gedauert | acc | event")
REPORTING = [_read_verb("say said said | sagen sagt gesagt | 0"), _read_verb("hope | hoffen hofft gehofft | 0"),
             _read_verb("believe | glauben glaubt geglaubt | 0")]  # fmt: skip
_NONE = Phrase("", "")
_BE_FORMS = {"present": ("am is are", "bin ist sind"), "past": ("was was were", "war war waren")}
_MODALS = {
    "can": "kann kann können", "should": "sollte sollte sollten", "must": "muss muss müssen",
    "have to": "muss muss müssen", "want to": "will will wollen", "allowed to": "darf darf dürfen",
    "will": "werde wird werden",
}  # fmt: skip


def english_np(np: NP) -> str:
    """Gives the English noun phrase."""
    det = {"no": "any", "a": "", "this": "these"}.get(np.det, np.det) if np.plural else np.det
    noun = np.noun.en_plural if np.plural else np.noun.en
    words = _join(np.number.en if np.number else "", np.adjective.en if np.adjective else "", noun)
    if np.owner:
        det = english_np(np.owner) + "'s"
    if det in ("a", "no"):
        det = "an" if words[0] in "aeiou" else "a"
    return _join(det, words)


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
    return _join(det, np.number.de if np.number else "", adjective, _german_noun(np, case), owner)


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


def cardinal(number: int) -> Phrase:
    """Gives 2 to 99 in words: twenty-one, einundzwanzig."""
    if number < 20:
        return _ONES[number]
    tens, ones = divmod(number, 10)
    if ones == 0:
        return _TENS[tens]
    unit = "ein" if ones == 1 else _ONES[ones].de
    return Phrase(f"{_TENS[tens].en}-{_ONES[ones].en}", f"{unit}und{_TENS[tens].de}")


def digits(number: int) -> Phrase:
    """Gives a number in digits: 1,500 and 1.500."""
    return Phrase(f"{number:,}", f"{number:,}".replace(",", "."))


def price(cents: int, sign: str) -> Phrase:
    """Gives an amount: €12.50 and 12,50 €; whole hundreds without the cents."""
    units, rest = divmod(cents, 100)
    number = digits(units)
    if rest:
        number = Phrase(f"{number.en}.{rest:02}", f"{number.de},{rest:02}")
    return Phrase(sign + number.en, f"{number.de} {sign}")


def date(day: int, month: int, year: int | None = None) -> Phrase:
    """Gives a date: on 3 May 2021, am 3. Mai 2021."""
    tail = str(year) if year else ""
    name = _MONTHS[month - 1]
    return Phrase(_join(f"on {day} {name.en}", tail), _join(f"am {day}. {name.de}", tail))


def clock(hour: int, minute: int) -> Phrase:
    """Gives a time of the 24-hour clock in digits: at 7:45 pm, um 19.45 Uhr."""
    return Phrase(f"at {(hour + 11) % 12 + 1}:{minute:02} {'pm' if hour >= 12 else 'am'}", f"um {hour}.{minute:02} Uhr")


def spoken_clock(hour: int, minute: int) -> Phrase:
    """Gives a time in words, `hour` 1 to 12 and `minute` 0, 5, 10, 15, 20, 30, 40, 45, 50 or 55."""
    now, following = _ONES[hour], _ONES[hour % 12 + 1]
    if minute == 0:
        return Phrase(f"at {now.en} o'clock", f"um {'ein' if hour == 1 else now.de} Uhr")
    if minute == 30:
        return Phrase(f"at half past {now.en}", f"um halb {following.de}")
    distance = min(minute, 60 - minute)
    words = Phrase("quarter", "Viertel") if distance == 15 else cardinal(distance)
    if minute < 30:
        return Phrase(f"at {words.en} past {now.en}", f"um {words.de} nach {now.de}")
    return Phrase(f"at {words.en} to {following.en}", f"um {words.de} vor {following.de}")


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
    verb, tense, person = clause.verb, clause.tense, _person(clause.subject)
    if verb is BE:
        return _BE_FORMS[tense][0].split()[person], ""
    if tense == "perfect":
        return "has" if person == 1 else "have", _join(verb.participle, verb.rest)
    if tense == "allowed to":
        return _BE_FORMS["present"][0].split()[person], _join("allowed to", verb.en, verb.rest)
    if tense in _MODALS and not tense.endswith(" to"):
        return tense, _join(verb.en, verb.rest)
    first, _, rest = _join(tense if tense in _MODALS else "", verb.en, verb.rest).partition(" ")
    if inverted or clause.negated:
        return "did" if tense == "past" else "does" if person == 1 else "do", _join(first, rest)
    return "", _join(verb.past if tense == "past" else _third(first) if person == 1 else first, rest)


def english_clause(clause: Clause, inverted: bool = False) -> str:
    """Gives the English clause; `inverted` puts the auxiliary first, as questions do."""
    auxiliary, verb = _english_verb(clause, inverted)
    subject = clause.subject.en if isinstance(clause.subject, Pronoun) else english_np(clause.subject)
    time = clause.time.en if clause.time else ""
    words = _join(
        time if clause.fronted else "",
        *((auxiliary, subject) if inverted else (subject, auxiliary)),
        "not" if clause.negated else "",
        clause.adverb.en if clause.adverb else "",
        verb,
        english_np(clause.recipient) if clause.recipient else "",
        english_np(clause.object) if isinstance(clause.object, NP) else clause.object.en if clause.object else "",
        clause.verb.particle,
        clause.place.en if clause.place else "",
        "" if clause.fronted else time,
    )
    return words.replace(" can not ", " cannot ")


def _german_verb(clause: Clause) -> tuple[str, str]:
    """Gives the finite verb and what stands at the clause's end: participle, infinitive or separable prefix."""
    verb, tense, person = clause.verb, clause.tense, _person(clause.subject)
    if verb is BE:
        return _BE_FORMS[tense][1].split()[person], ""
    if tense in _MODALS:
        return _MODALS[tense].split()[person], verb.prefix + verb.infinitive
    if tense in ("past", "perfect"):
        forms = "bin ist sind" if verb.de_participle[0] == "+" else "habe hat haben"
        return forms.split()[person], verb.de_participle.lstrip("+")
    first = verb.infinitive.removesuffix("n").removesuffix("e") + "e"  # kaufen, füttern: kaufe, füttere
    return (first, verb.third, verb.infinitive)[person], verb.prefix


def _german_object(clause: Clause) -> tuple[str, str]:
    """Gives the object as a noun phrase (before nicht and the place) and as a complement (after them)."""
    if clause.object is None:
        return "", ""
    if isinstance(clause.object, Phrase):
        return "", clause.object.de
    preposition, _, case = clause.verb.governs.rpartition("+")
    if preposition:
        return "", german_pp(preposition, case, clause.object)
    return german_np(clause.object, case.replace("2", "acc")), ""


def german_clause(clause: Clause, order: str = "second") -> str:
    """Gives the German clause with its finite verb "second", "first" (question) or "last" (subordinate)."""
    finite, end = _german_verb(clause)
    noun_phrase, complement = _german_object(clause)
    subject = clause.subject.de if isinstance(clause.subject, Pronoun) else german_np(clause.subject, "nom")
    time = clause.time.de if clause.time else ""
    negation = "nicht" if clause.negated and not (isinstance(clause.object, NP) and clause.object.det == "no") else ""
    middle = _join(
        "" if clause.fronted else time,
        clause.adverb.de if clause.adverb else "",
        german_np(clause.recipient, "dat") if clause.recipient else "",
        noun_phrase,
        negation,
        clause.place.de if clause.place else "",
        complement,
    )
    if order == "last":
        return _join(subject, middle, end + finite if end == clause.verb.prefix else f"{end} {finite}")
    if order == "first":
        return _join(finite, subject, middle, end)
    return _join(*((time, finite, subject) if clause.fronted else (subject, finite)), middle, end)


def _triples(*clauses: Clause) -> tuple[Triple, ...]:
    return tuple(
        (clause.subject.noun.en, clause.verb.name, clause.object.noun.en)
        for clause in clauses
        if isinstance(clause.subject, NP) and isinstance(clause.object, NP)
    )


def _example(en: str, de: str, *clauses: Clause) -> Example:
    return Example(en[0].upper() + en[1:], de[0].upper() + de[1:], _triples(*clauses))


def statement(clause: Clause) -> Example:
    """Gives a main clause: verb second."""
    return _example(english_clause(clause) + ".", german_clause(clause) + ".", clause)


def question(clause: Clause, word: Phrase = _NONE) -> Example:
    """Gives a question, with or without a question word."""
    en, de = english_clause(clause, inverted=True), german_clause(clause, "first")
    return _example(_join(word.en, en) + "?", _join(word.de, de) + "?", clause)


def subordinate(main: Clause, conjunction: Phrase, clause: Clause, first: bool = False) -> Example:
    """Gives a main and a subordinate clause (verb last); with `first` the subordinate one opens the sentence."""
    en, de = f"{conjunction.en} {english_clause(clause)}", f"{conjunction.de} {german_clause(clause, 'last')}"
    if first:
        return _example(f"{en}, {english_clause(main)}.", f"{de}, {german_clause(main, 'first')}.", main, clause)
    return _example(f"{english_clause(main)} {en}.", f"{german_clause(main)}, {de}.", main, clause)


def coordinated(left: Clause, conjunction: Phrase, right: Clause) -> Example:
    """Gives two main clauses; the German conjunction carries its own comma."""
    en = f"{english_clause(left)}, {conjunction.en} {english_clause(right)}."
    return _example(en, f"{german_clause(left)}{conjunction.de} {german_clause(right)}.", left, right)


# The sampler: from here on a random generator chooses the meanings.

_FITTING = {kind: [adjective for adjective in ADJECTIVES if kind in adjective.kinds] for kind in NOUNS}
_PEOPLE, _PLACES = _nouns("people"), _nouns("room town spot")
_ACTIONS = [verb for verb in VERBS if verb.governs != "s"]
_EVENTS = [verb for verb in VERBS if verb.governs == "s"]
_PLAIN = ("present", "present", "present", "past", "past", "perfect")
_TENSES = (*_PLAIN, *_PLAIN, *_MODALS)
_QUESTION_TENSES = ("present", "present", "present", "perfect", "can", "want to", "have to", "should")
_PREPOSITIONS = {"market": Phrase("at", "auf"), "station": Phrase("at", "an")}
_FOR_SOMEONE = ("buy", "cook", "bake", "build", "look for")
_WITH_SOMEONE = ("work", "sing", "dance", "laugh", "arrive", "come back")
_TODAY, _TOMORROW, _YESTERDAY = Phrase("today", "heute"), Phrase("tomorrow", "morgen"), Phrase("yesterday", "gestern")
_ADVERBS = (Phrase("often", "oft"), Phrase("always", "immer"), Phrase("sometimes", "manchmal"))
_NOWADAYS = (
    _TODAY, Phrase("now", "jetzt"), Phrase("every day", "jeden Tag"), Phrase("every week", "jede Woche"),
    Phrase("in the summer", "im Sommer"), Phrase("in the winter", "im Winter"),
)  # fmt: skip
_PAST_TIMES = (_YESTERDAY, Phrase("last week", "letzte Woche"), Phrase("last year", "letztes Jahr"))
_FUTURE_TIMES = (_TOMORROW, Phrase("next week", "nächste Woche"), Phrase("next year", "nächstes Jahr"))
_DAY_PARTS = (_NONE, Phrase("morning", "morgen"), Phrase("afternoon", "nachmittag"), Phrase("evening", "abend"))
_BECAUSE = (Phrase("because", "weil"), Phrase("although", "obwohl"))
_PRESENT_CONJUNCTIONS = (
    Phrase("if", "wenn"), Phrase("when", "wenn"), Phrase("before", "bevor"), Phrase("while", "während"),
)  # fmt: skip
_ROUND_NUMBERS = (100, 120, 150, 200, 250, 300, 400, 500, 1_000, 1_200, 1_500, 2_500)
_COORDINATIONS = (Phrase("and", " und"), Phrase("but", ", aber"))
_QUESTION_WORDS = (_NONE, _NONE, Phrase("why", "warum"), Phrase("when", "wann"), Phrase("where", "wo"))


def _chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def _both(left: Phrase, right: Phrase) -> Phrase:
    return Phrase(_join(left.en, right.en), _join(left.de, right.de))


def _any_clock(rng: Random) -> Phrase:
    if _chance(rng, 0.5):
        return clock(rng.randrange(24), rng.randrange(0, 60, 5))
    return spoken_clock(rng.randint(1, 12), rng.choice((0, 5, 10, 15, 20, 30, 40, 45, 50, 55)))


def _any_date(rng: Random, with_year: bool) -> Phrase:
    return date(rng.randint(1, 28), rng.randint(1, 12), rng.randint(1990, 2024) if with_year else None)


def _weekday(rng: Random) -> Phrase:
    day, part = rng.choice(_DAYS), rng.choice(_DAY_PARTS)
    return Phrase(_join("on", day.en, part.en), f"am {day.de}{part.de}")


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
        return _both(_TOMORROW, _any_clock(rng)) if pick == 1 else rng.choice(_FUTURE_TIMES)
    year = rng.randint(1990, 2024)
    others = (_any_date(rng, True), Phrase(f"in {year}", f"im Jahr {year}"), _both(_YESTERDAY, _any_clock(rng)))
    return rng.choice(others) if pick < 3 else rng.choice(_PAST_TIMES)


def _noun_phrase(rng: Random, noun: Noun, dets: str, own: str = "my", plural: float = 0.25) -> NP:
    """Chooses a phrase around the noun; `own` is the possessive that "own" among `dets` stands for."""
    det = rng.choice(dets.split())
    if noun.kind == "kin":
        det = rng.choice((own, "my", "our"))
    elif det in ("own", "my") and noun.kind in _GROUPS["people"]:
        det = "the"
    many = noun.en_plural != "-" and det != "every" and _chance(rng, plural)
    adjective = rng.choice(_FITTING[noun.kind]) if _FITTING[noun.kind] and _chance(rng, 0.3) else None
    number = cardinal(rng.randint(2, 12)) if many and det == "a" and _chance(rng, 0.5) else None
    return NP(noun, own if det == "own" else det, many, adjective, number)


def _subject(rng: Random, other: NP | Pronoun | None = None) -> NP | Pronoun:
    """Chooses a subject, one not about the `other` clause's noun."""
    if _chance(rng, 0.3):
        return rng.choice((*PRONOUNS, PRONOUNS[0]))
    people = [noun for noun in _PEOPLE if noun != getattr(other, "noun", None)]
    possessive = rng.choice(("his", "her", "their"))
    np = _noun_phrase(rng, rng.choice(people), "the the the the a this every", possessive)
    return np._replace(det="the") if np.plural and np.det == "a" else np


def _own(subject: NP | Pronoun) -> str:
    if isinstance(subject, Pronoun):
        return subject.own
    return "their" if subject.plural else {"m": "his", "f": "her", "": "our"}[subject.noun.sex]


def _pronoun(subject: NP | Pronoun) -> Pronoun | None:
    """Gives the pronoun for a subject, or None where the sex is not known."""
    if isinstance(subject, Pronoun):
        return subject
    own = _own(subject)
    return next((pronoun for pronoun in PRONOUNS if pronoun.own == own != "our"), None)


def _object(rng: Random, subject: NP | Pronoun, verb: Verb, negated: bool) -> NP | None:
    if not verb.nouns:
        return None
    noun = rng.choice([noun for noun in verb.nouns if noun != getattr(subject, "noun", None)])
    np = _noun_phrase(rng, noun, "the the the a a a this own", "the" if verb.name == "steal" else _own(subject))
    if negated and np.det == "a":
        return np._replace(det="no" if verb.governs in ("acc", "2") else "the", number=None)
    if np.det == "the" and noun.kind not in _GROUPS["people"] and _chance(rng, 0.2):
        return np._replace(owner=_noun_phrase(rng, rng.choice(_PEOPLE), "the", plural=0)._replace(adjective=None))
    return np


def _place(rng: Random, subject: NP | Pronoun, verb: Verb) -> Phrase | None:
    """Chooses a place, a company or someone to benefit, where the verb can take one."""
    person = _noun_phrase(rng, rng.choice(_PEOPLE), "the the this own", _own(subject))
    if person.noun == getattr(subject, "noun", None) or verb.governs not in ("acc", "dat", "0"):
        return None
    if verb.name in _FOR_SOMEONE and _chance(rng, 0.5):
        return Phrase(f"for {english_np(person)}", german_pp("für", "acc", person))
    if verb.name in _WITH_SOMEONE and _chance(rng, 0.5):
        if _chance(rng, 0.5):
            return Phrase(f"with {english_np(person)}", german_pp("mit", "dat", person))
        return Phrase(f"without {english_np(person)}", german_pp("ohne", "acc", person))
    if verb.name in ("come back", "get up") or (verb.nouns and verb.nouns[-1].kind in _expand("places opening")):
        return None
    np = _noun_phrase(rng, rng.choice(_PLACES), "the the the this", plural=0)
    preposition = _PREPOSITIONS.get(np.noun.en, Phrase("in", "in"))
    return Phrase(f"{preposition.en} {english_np(np)}", german_pp(preposition.de, "dat", np))


def _clause(rng: Random, tenses: tuple[str, ...], subject: NP | Pronoun | None = None, main: bool = True) -> Clause:
    """Chooses a clause with an action; only a main clause may be fronted, or negated with a time."""
    verb, subject, tense = rng.choice(_ACTIONS), subject or _subject(rng), rng.choice(tenses)
    every = isinstance(subject, NP) and subject.det == "every"
    negated = tense != "must" and not every and (main or tense != "past") and _chance(rng, 0.15)
    clause = Clause(subject, verb, _object(rng, subject, verb, negated), tense=tense, negated=negated)
    if verb.governs == "2":
        recipient = rng.choice([noun for noun in _PEOPLE if noun != getattr(subject, "noun", None)])
        clause = clause._replace(recipient=_noun_phrase(rng, recipient, "the the this own", _own(subject)))
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
        other = rng.choice([noun for noun in NOUNS[subject.noun.kind] if noun != subject.noun])
        than = _noun_phrase(rng, other, "the this")
        en, de = f"{adjective.en_comparative} than {english_np(than)}", german_np(than, "nom")
        complement = Phrase(en, f"{adjective.de_comparative} als {de}")
    elif _chance(rng, 0.4):
        complement = _both(Phrase("very", "sehr"), complement)
    time = rng.choice(_PAST_TIMES) if tense == "past" else None
    return Clause(subject, BE, complement, tense=tense, negated=_chance(rng, 0.2), time=time)


def _event(rng: Random) -> Clause:
    verb = rng.choice(_EVENTS)
    subject = _noun_phrase(rng, rng.choice(verb.nouns), "the the this", plural=0.15)
    tense = rng.choice(("present", "past", "will"))
    if tense == "present":
        time = _any_clock(rng)
    elif tense == "past":
        time = rng.choice((_both(_YESTERDAY, _any_clock(rng)), _any_date(rng, True), _weekday(rng)))
    else:
        time = rng.choice((_both(_TOMORROW, _any_clock(rng)), _any_date(rng, False), _weekday(rng)))
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
    subject, verb = _subject(rng), VERBS[rng.randrange(2)]
    noun = rng.choice([noun for noun in verb.nouns if noun.kind not in ("animal", "building")])
    np = _noun_phrase(rng, noun, "the a own", _own(subject))
    amount = _any_price(rng, np.noun)
    time, place = _time(rng, "past"), Phrase(f"for {amount.en}", f"für {amount.de}")
    return statement(Clause(subject, verb, np, tense="past", time=time, place=place, fronted=_chance(rng, 0.4)))


def _counted(rng: Random) -> Example:
    """Chooses a sentence about a number: an age, a duration, a possession, or what there is."""
    number = cardinal(rng.randint(2, 99))
    match rng.randrange(4):
        case 0:
            return statement(Clause(_subject(rng), BE, _both(number, Phrase("years old", "Jahre alt"))))
        case 1:
            event = _noun_phrase(rng, rng.choice(LAST.nouns), "the the this", plural=0)
            return statement(Clause(event, LAST, _both(number, Phrase("minutes", "Minuten"))))
        case 2:
            np = NP(rng.choice(HAVE.nouns), "a", True, number=number)
            return statement(Clause(_subject(rng), HAVE, np, tense=rng.choice(("present", "want to", "will"))))
    places, things = rng.choice((("room", "furniture press"), ("town", "animal building")))
    place = _noun_phrase(rng, rng.choice(_nouns(places)), "the the this", plural=0)
    number = number if _chance(rng, 0.5) else digits(rng.choice(_ROUND_NUMBERS))
    counted = NP(rng.choice(_nouns(things)), "a", True, number=number)
    en, de = f"there are {english_np(counted)} in {english_np(place)}.", german_pp("in", "dat", place)
    return _example(en, f"{de} gibt es {german_np(counted, 'acc')}.")


def _question(rng: Random) -> Example:
    clause = _clause(rng, _QUESTION_TENSES, main=False)
    word = rng.choice(_QUESTION_WORDS[:3] if clause.negated else _QUESTION_WORDS)
    if word.en == "when":
        clause = clause._replace(time=None, adverb=None)
    if word.en == "where" and clause.verb.governs == "in+acc":
        word = _NONE
    if word.en == "where":
        clause = clause._replace(place=None)
    return question(clause, word)


def _complex(rng: Random) -> Example:
    """Chooses a main clause with a subordinate one."""
    causal, first = _chance(rng, 0.5), _chance(rng, 0.35)
    main = _clause(rng, _PLAIN if causal else ("present",), main=not first)
    subject = _pronoun(main.subject) if _chance(rng, 0.6) else None
    if causal and _chance(rng, 0.4):
        return subordinate(main, rng.choice(_BECAUSE), _predication(rng, subject, main=False), first)
    tenses: tuple[str, ...] = ("past",) if main.tense == "past" else _TENSES if causal else ("present",)
    clause = _clause(rng, tenses, subject or _subject(rng, main.subject), main=False)
    if causal:
        return subordinate(main, rng.choice(_BECAUSE), clause, first)
    conjunction = rng.choice(_PRESENT_CONJUNCTIONS[: 2 if clause.negated else 4])
    return subordinate(main, conjunction, clause._replace(time=None, adverb=None), first)


def _reported(rng: Random) -> Example:
    main = Clause(_subject(rng), rng.choice(REPORTING))
    return subordinate(main, Phrase("that", "dass"), _clause(rng, _TENSES, _subject(rng, main.subject), main=False))


def _coordinated(rng: Random) -> Example:
    left = _clause(rng, _PLAIN)
    right = _clause(rng, _PLAIN, _subject(rng, left.subject), main=False)
    return coordinated(left, rng.choice(_COORDINATIONS), right)


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


def _words(example: Example) -> list[str]:
    return re.findall(r"\w+", example.src) + ["de " + word for word in re.findall(r"\w+", example.tgt)]


def generate(seed: int) -> GeneratedCorpus:
    """Gives the corpus for a seed: 24,000 training, 500 validation and 600 test pairs.

    A tenth of all (subject, verb, object) triples is held out: half of the test sentences contain one of them, and no
    training or validation sentence does. The other half are new sentences over triples of the training text.
    """
    rng = Random(seed)
    triples = [(person.en, verb.name, noun.en) for person in _PEOPLE for verb in _ACTIONS for noun in verb.nouns]
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
    train, valid, rest = familiar[:NUM_TRAIN], familiar[NUM_TRAIN:][:NUM_VALID], familiar[NUM_TRAIN + NUM_VALID :]
    counts = Counter(word for example in train for word in _words(example))
    shown = {triple for example in train for triple in example.triples}
    old = [example for example in rest if shown.issuperset(example.triples) and _common(example, counts)]
    new = [example for example in novel if _common(example, counts)]
    test = new[:NUM_HELD_OUT] + old[: NUM_TEST - NUM_HELD_OUT]
    rng.shuffle(test)
    return GeneratedCorpus(train, valid, test)


def _common(example: Example, counts: Counter[str]) -> bool:
    return all(counts[word] >= MIN_TRAIN_COUNT for word in _words(example))
