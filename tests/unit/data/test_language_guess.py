"""A text is told to be in another language, or exchanged with its translation, only where that is clear."""

import pytest

from mtx.data.language_guess import Profile, are_exchanged, name_of, rank_languages
from mtx.data.languages import KNOWN, code_of, languages_named, script_of
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


@pytest.mark.parametrize("text", ["names", "numbers", "yo", "ka"])
def test_what_looks_like_no_language_of_the_table_is_not_judged(text: str) -> None:
    assert [PROFILES[text].other_language(language) for language in ("en", "yo", "src", "es")] == [None] * 4


def test_a_related_language_is_not_called_another() -> None:
    assert PROFILES["da"].likeness("da") > PROFILES["da"].likeness("nb") > 0.3  # type: ignore[operator]
    assert PROFILES["da"].other_language("no") is None


def test_a_language_without_words_or_script_of_its_own_is_not_judged() -> None:
    assert PROFILES["en"].other_language("yo") is None and PROFILES["en"].likeness("yo") is None


@pytest.mark.parametrize("texts", [[], sentences("fr", 49), sentences("fr", 1) * 1000, ["le", "la"] * 100])
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


def test_the_table_has_words_and_names_that_tell_languages_apart() -> None:
    lists = [known.words.split() for known in KNOWN.values() if known.words]
    assert all(len(words) == len(set(words)) >= 12 for words in lists)
    assert all(word == word.lower() for words in lists for word in words)
    assert languages_named("FRANÇAIS") == languages_named("French") == {"fr"} and languages_named("anglais") == {"en"}
    assert (name_of("fra"), name_of("sr-Latn"), name_of("yo")) == ("French", "Croatian", "")


@pytest.mark.parametrize(
    "text, best",
    [("Das ist nicht mein Haus", "de"), ("Where is the dog?", "en"), ("C'est un chien et une maison", "fr"),
     ("Где моя собака", "ru"), ("犬はどこですか", "ja"), ("狗在哪里", "zh"), ("THE DOG IS IN THE HOUSE", "en")],
)  # fmt: skip
def test_a_short_text_is_likeliest_in_its_own_language(text: str, best: str) -> None:
    ranked = rank_languages(text, ["fr", "de", "ru", "zh", "ja", "en"])
    assert ranked[0][0] == best and ranked[0][1] > 50 and ranked[0][1] > ranked[1][1]
    assert sum(share for _, share in ranked) == pytest.approx(100, abs=0.5)


def test_shares_of_a_short_text_by_hand() -> None:
    assert rank_languages("Das ist Otto", ["en", "de"]) == [("de", 90.0), ("en", 10.0)]  # 1 + 4 * 2 to 1
    assert rank_languages("Otto", ["en", "de"]) == [("en", 50.0), ("de", 50.0)]
    assert rank_languages("12 + 3", ["en", "de"]) == [("en", 0.0), ("de", 0.0)]
    assert rank_languages("Otto", ["xx-unknown", "ru"]) == [("xx-unknown", 100.0), ("ru", 0.0)]
