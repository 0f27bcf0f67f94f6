"""A text is told to be in another language, or exchanged with its translation, only where that is clear."""

import itertools

import pytest

from mtx.data.language_detection import (
    Profile,
    are_exchanged,
    find_other_language,
    is_surely_in,
    language_of,
    rank_languages,
)
from mtx.data.languages import KNOWN, code_of, name_of, script_of, tag_of
from tests.unit.data.sentences import TEMPLATES, sentences

PROFILES = {language: Profile.of(sentences(language)) for language in TEMPLATES}


@pytest.mark.parametrize("language", ["en", "fr", "de", "es", "ru", "ja", "zh"])
def test_a_text_is_most_like_its_own_language(language: str) -> None:
    likeness = {key: PROFILES[language].likeness(key) or 0 for key in KNOWN}
    assert max(likeness, key=lambda key: likeness[key]) == language
    for code in (language, f"{language}-XX"):
        assert PROFILES[language].other_language(code) is None


@pytest.mark.parametrize(
    "text, language, other",
    [("fr", "en", "fr"), ("en", "fra", "en"), ("de", "ru", "de"), ("ja", "zh", "ja"), ("zh", "ja", "zh"),
     ("ru", "en", "ru"), ("en", "ka", "en"), ("fr", "es", "fr")],
)  # fmt: skip
def test_another_language_is_named(text: str, language: str, other: str) -> None:
    assert PROFILES[text].other_language(language) == other


@pytest.mark.parametrize("text", ["names", "numbers"])
def test_what_looks_like_no_language_of_the_table_is_not_judged(text: str) -> None:
    assert [PROFILES[text].other_language(language) for language in ("en", "yo", "src", "es")] == [None] * 4


@pytest.mark.parametrize("text", ["yo", "ka"])
def test_a_language_of_the_table_is_recognised(text: str) -> None:
    judged = [PROFILES[text].other_language(language) for language in ("en", text, "es")]
    assert judged == [text, None, text] and language_of(sentences(text, 12)) == text


# Real sentences of related languages: each beginning with each middle and each end.
RELATED = {
    "da": (["Min søster har", "Vores nabo har", "Den gamle mand har", "Ingen har"],
           ["glemt sin paraply", "købt en ny cykel", "spist morgenmad", "skrevet et brev"],
           ["i går aftes.", "hjemme hos os.", "før det begyndte at regne.", "uden at sige noget."]),
    "nb": (["Søsteren min har", "Naboen vår har", "Den gamle mannen har", "Ingen har"],
           ["glemt paraplyen sin", "kjøpt en ny sykkel", "spist frokost", "skrevet et brev"],
           ["i går kveld.", "hjemme hos oss.", "før det begynte å regne.", "uten å si noe."]),
    "cs": (["Moje sestra", "Náš soused", "Starý pán", "Nikdo"],
           ["si včera zapomněl deštník", "už dlouho nečetl noviny", "by rád koupil nové kolo", "ještě nepsal dopis"],
           ["a šel domů.", "protože venku pršelo.", "než jsme přijeli.", "i když měl dost času."]),
    "sk": (["Moja sestra", "Náš sused", "Starý pán", "Nikto"],
           ["si včera zabudol dáždnik", "už dlho nečítal noviny", "by rád kúpil nový bicykel", "ešte nepísal list"],
           ["a išiel domov.", "pretože vonku pršalo.", "než sme prišli.", "aj keď mal dosť času."]),
    "es": (["Mi hermana", "Nuestro vecino", "El hombre viejo", "Nadie"],
           ["ha olvidado su paraguas", "quiere comprar una bicicleta", "lee el periódico", "escribió una carta"],
           ["esta mañana en la cocina.", "porque llovía mucho.", "antes de salir de casa.", "sin decir nada."]),
    "pt": (["A minha irmã", "O nosso vizinho", "O homem velho", "Ninguém"],
           ["esqueceu o seu guarda-chuva", "quer comprar uma bicicleta", "lê o jornal", "escreveu uma carta"],
           ["esta manhã na cozinha.", "porque chovia muito.", "antes de sair de casa.", "sem dizer nada."]),
}  # fmt: skip


@pytest.mark.parametrize("one, other", [("da", "nb"), ("cs", "sk"), ("es", "pt")])
def test_related_languages_are_told_apart(one: str, other: str) -> None:
    src, tgt = (Profile.of(map(" ".join, itertools.product(*RELATED[language]))) for language in (one, other))
    for profile, own, related in ((src, one, other), (tgt, other, one)):
        assert profile.other_language(own) is None and profile.other_language(f"{own}-XX") is None
        assert profile.other_language(related) == profile.other_language("en") == own
    assert are_exchanged(tgt, src, (one, other)) and not are_exchanged(src, tgt, (one, other))


def test_languages_that_are_written_alike_count_as_one() -> None:
    profile = Profile.of(map(" ".join, itertools.product(*RELATED["nb"])))
    assert profile.likeness("no") == profile.likeness("nn") == profile.likeness("Norwegian") > 0.9  # type: ignore[operator]


def test_a_language_that_the_detector_does_not_know_is_judged_by_its_script_or_not() -> None:
    assert PROFILES["en"].likeness("hsb") is None and PROFILES["en"].other_language("hsb") is None
    tigrinya = Profile.of(f"እዚ ገዛ ናይ ሓወይ እዩ {number}" for number in range(100))
    assert tigrinya.likeness("ti") == 1.0 and PROFILES["en"].other_language("ti") == "en"
    assert are_exchanged(PROFILES["en"], tigrinya, ("ti", "en")) and not are_exchanged(
        tigrinya, tigrinya, ("ti", "hsb")
    )


@pytest.mark.parametrize("texts", [[], sentences("fr", 9), sentences("fr", 1) * 1000, ["le", "la"] * 100])
def test_a_small_text_tells_nothing(texts: list[str]) -> None:
    profile = Profile.of(texts)
    assert profile.likeness("fr") is None and profile.other_language("en") is None
    assert not are_exchanged(profile, PROFILES["en"], ("en", "fr"))


@pytest.mark.parametrize(
    "src, tgt",
    [("en", "fr"), ("en", "ru"), ("en", "ja"), ("zh", "ja"), ("ka", "ja"), ("ka", "fr"), ("en", "yo"), ("yo", "fr")],
)
def test_exchanged_sides(src: str, tgt: str) -> None:
    """One language of which something is known is enough."""
    assert are_exchanged(PROFILES[tgt], PROFILES[src], (src, tgt))
    assert not are_exchanged(PROFILES[src], PROFILES[tgt], (src, tgt))


def test_languages_may_be_given_by_their_names() -> None:
    assert are_exchanged(PROFILES["fr"], PROFILES["en"], ("English", "français"))
    assert [script_of(name) for name in ("Chinese", "Japanese", "zh-Hant", "Klingon")] == ["Hans", "Jpan", "Hant", ""]
    assert (code_of("German"), code_of("deu"), code_of("de-AT")) == ("de", "de", "de")


def test_what_is_not_exchanged() -> None:
    assert not are_exchanged(PROFILES["fr"], PROFILES["fr"], ("en", "fr"))  # one side is in a wrong language
    assert not are_exchanged(PROFILES["fr"], PROFILES["en"], ("en", "en-GB"))
    assert not are_exchanged(PROFILES["fr"], PROFILES["en"], ("src", "tgt"))
    assert not are_exchanged(PROFILES["names"], PROFILES["names"], ("en", "nl"))


def test_the_table_has_names_that_tell_languages_apart() -> None:
    assert [tag_of(name) for name in ("FRANÇAIS", "French", "anglais", "fr-CA")] == ["fr", "fr", "en", "fr-CA"]
    assert (name_of("fra"), name_of("sr-Latn"), name_of("szl")) == ("French", "Croatian", "")


@pytest.mark.parametrize(
    "text, best",
    [("Das ist nicht mein Haus", "de"), ("Where is the dog?", "en"), ("C'est un chien et une maison", "fr"),
     ("Где моя собака", "ru"), ("犬はどこですか", "ja"), ("狗在哪里", "zh"), ("THE DOG IS IN THE HOUSE", "en")],
)  # fmt: skip
def test_a_short_text_is_likeliest_in_its_own_language(text: str, best: str) -> None:
    ranked = rank_languages(text, ["fr", "de", "ru", "zh", "ja", "en"])
    assert ranked[0][0] == best and ranked[0][1] > 50 and ranked[0][1] > ranked[1][1]
    assert sum(share for _, share in ranked) == pytest.approx(100, abs=0.5)


def test_shares_of_a_short_text_that_tells_little_or_nothing() -> None:
    assert rank_languages("Otto", ["en", "de"])[0][1] < 75
    assert rank_languages("12 + 3", ["en", "de"]) == [("en", 0.0), ("de", 0.0)]
    assert rank_languages("", ["de"]) == [("de", 0.0)]
    shares = dict(rank_languages("Otto", ["ru", "xx-unknown", "ti"]))
    assert shares["xx-unknown"] > 90 and shares["ti"] == 0.0
    assert dict(rank_languages("እዚ ገዛ ናይ ሓወይ", ["en", "ti", "xx-unknown"]))["ti"] > 40


@pytest.mark.parametrize(
    "text, language, others, is_sure",
    [
        ("Dieser Film dauert neununddreißig Minuten.", "de", ["en", "fr"], True),
        ("Dieser Film dauert lange", "de", ["en"], False),
        ("This film lasts thirty-nine minutes.", "de", ["en"], False),
        ("这部电影三十九分钟", "zh", ["en"], True),
        ("Der Film ist sehr lang.\nDieser Film dauert neununddreißig Minuten.\nNein.", "de", ["en"], True),
        ("The film is very long.\n" + "Dieser Film dauert neununddreißig Minuten.\n" * 9, "de", ["en"], False),
        ("Jeg har en ny bil og en hund", "da", ["en"], True),
        ("Jeg har en ny bil og en hund", "da", ["en", "no"], False),
        ("Ten film jest bardzo długi i nudny.", "pl", ["en"], True),
        ("Ten film jest bardzo długi i nudny.", "pl", ["en", "szl"], False),
        ("Ten film jest bardzo długi i nudny.", "szl", ["en"], False),
        ("", "de", ["en"], False),
    ],
)
def test_a_short_text_is_surely_in_a_language(text: str, language: str, others: list[str], is_sure: bool) -> None:
    assert is_surely_in(text, language, others) == is_sure


@pytest.mark.parametrize(
    "text, language, other",
    [
        ("Der Film ist sehr lang und nicht gut.", "en", "de"),
        ("Der Film ist sehr lang und nicht gut, und das Ende. " + "The end of the film is good. " * 9, "en", "de"),
        ("Film ist nicht gut.", "en", None),  # four words
        ("Tento film byl moc dlouhý", "sk", None),  # Czech, but a Slovak word more or less would do
        ("Ovaj film je vrlo dug i dosadan.", "en", "hr"),  # by the shares of Croatian, Bosnian and Serbian
        ("Ovaj film je vrlo dug i dosadan.", "sr", None),
        ("这部电影三十九分钟", "en", None),  # Chinese, Wu or Cantonese
        ("A1 B2 C3 D4 E5 F6", "en", None),  # in no language
        ("Ten film jest bardzo długi i nudny.", "szl", None),  # unknown to the detector
    ],
)
def test_a_text_that_is_certainly_in_another_language(text: str, language: str, other: str | None) -> None:
    assert find_other_language(text, language) == other
