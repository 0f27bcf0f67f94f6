"""The words of the demo's grammar: English and German nouns, adjectives, verbs and pronouns with their forms.

For: `rendering`, which puts them into sentences, and `sampling`, which chooses them. A noun, an
adjective and a verb (with its particle: look for, look at) have one German word each, so that the English determines
the German.
"""

import re
from typing import NamedTuple

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
GROUPS = {
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
        return join(self.en, self.rest, self.particle)


class Phrase(NamedTuple):
    """A piece of meaning that reads the same in any place."""

    en: str
    de: str


class Pronoun(NamedTuple):
    """A subject pronoun: `person` is 0 for I, 1 for the third singular, 2 for a plural."""

    en: str
    de: str
    person: int
    possessive: str


def join(*words: str) -> str:
    """The words that are not empty, with spaces between."""
    return " ".join(word for word in words if word)


def expand(kinds: str) -> list[str]:
    """The kinds of noun that kinds and groups (`GROUPS`) name."""
    return [kind for name in kinds.split() for kind in GROUPS.get(name, name).split()]


def _read_noun(kind: str, entry: str) -> Noun:
    en, en_plural, gender, de, *genitive, de_plural = entry.split()
    sex = gender[-1].strip("n") if kind in expand("people") else ""
    return Noun(en, en_plural, gender[0], sex, de, (genitive or [de])[0], de_plural, kind)


def _read_adjective(entry: str) -> Adjective:
    words, kinds = entry.split("|")
    en, en_comparative, de, stem, de_comparative = words.split()
    return Adjective(en, en_comparative, de, stem, de_comparative, expand(kinds))


def nouns_of(kinds: str) -> tuple[Noun, ...]:
    """The nouns of these kinds and groups."""
    return tuple(noun for kind in expand(kinds) for noun in NOUNS[kind])


def _read_verb(entry: str) -> Verb:
    english, german, governs, *kinds = (column.strip() for column in entry.split("|"))
    base, *irregular = english.split()
    base, _, particle = base.partition("/")
    base, _, rest = base.partition("_")
    regular = base + "d" if base[-1] == "e" else re.sub(r"([^aeiou])y$", r"\1i", base) + "ed"
    past, participle = irregular or (regular, regular)
    infinitive, third, de_participle = german.split()
    prefix, _, infinitive = infinitive.rpartition("-")
    nouns = nouns_of(" ".join(kinds))
    return Verb(base, past, participle, rest, particle, prefix, infinitive, third, de_participle, governs, nouns)


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
NONE = Phrase("", "")
