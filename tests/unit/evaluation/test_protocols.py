"""Published protocols give the tokens of Moses's Perl scripts and the scores of multi-bleu.perl."""

import sys

import pytest

from mtx.errors import UsageError
from mtx.evaluation import protocols
from mtx.evaluation.protocols import Protocol, split_compounds
from mtx.evaluation.test_set_scores import ChosenMetrics, score_lines, score_translations
from mtx.formatting import install_command
from mtx.scoring.metrics import Scores, TestSet


def score(hypothesis: str, reference: str, name: str) -> Scores:
    """The scores of a German translation, with that of a protocol."""
    test_set = TestSet("t", "de", [], [reference]).translated([hypothesis], "none")
    return score_translations(test_set, ChosenMetrics(protocol=Protocol(name, "de")))


def tokens(name: str, tgt: str, *lines: str) -> list[str]:
    """A protocol's tokens of raw lines."""
    [_, tokenized], _ = Protocol(name, tgt).tokenized(["Ein Satz."], lines)
    return tokenized


@pytest.mark.parametrize(
    "line, split",
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # the b is used up by the first hyphen
        ("ä-ö-ü", "ä ##AT##-##AT## ö ##AT##-##AT## ü"),  # Perl sees two bytes
        ("E-Mail-Adresse", "E ##AT##-##AT## Mail ##AT##-##AT## Adresse"),
        ("-a- b --", "-a- b --"),
        ("---", "- ##AT##-##AT## -"),
    ],
)
def test_compounds_are_split_as_perl_splits_them(line: str, split: str) -> None:
    assert split_compounds(line) == split


def test_aiayn_in_german() -> None:
    lines = tokens("aiayn", "de", "Er sagt: „Das ist z.B. O’Hara-Text…“", "5.000,5 m² & <b>[1]</b> usw.", "")
    assert lines == [
        "Er sagt : &quot; Das ist z.B. O &apos; Hara ##AT##-##AT## Text ... &quot;",
        "5.000,5 m ² &amp; &lt; b &gt; &#91; 1 &#93; &lt; / b &gt; usw.",
        "",
    ]


def test_aiayn_in_french_splits_contractions_and_no_compounds() -> None:
    assert tokens("aiayn", "fr", "L'homme, « là-bas ».") == ["L&apos; homme , « là-bas » ."]


@pytest.mark.parametrize(
    "tgt, line, expected",
    [
        ("de", "Auf dem Schild steht: „Fabrik.“", "auf dem schild steht : &quot; fabrik &quot; ."),
        ("de", "Das „Hook ’em“-Zeichen (rot).", "das &quot; hook &quot; em &quot; -zeichen ( rot ) ."),
        ("de", "Levi‘s ÜBER-Hose", "levi &apos; s über-hose"),
        ("en", "It's a man's \"hat\".", "it &apos;s a man &apos;s &quot; hat . &quot;"),
        ("en", "A Q&amp;A in the 1990's .`", "a q &amp; amp ; a in the 1990 &apos;s . &apos;"),
        ("fr", "L'HOMME d’un d’à côté", "l&apos; homme d&apos; un d &quot; à côté"),  # à is no [a-z] to Perl
    ],
)
def test_multi30k_tokens(tgt: str, line: str, expected: str) -> None:
    assert tokens("multi30k-lc", tgt, line) == [expected]


@pytest.mark.parametrize("tgt", ["de", "en", "fr"])
def test_tokenised_text_is_not_tokenised_again(tgt: str) -> None:
    raw = ["Ein Mann's \"Hut\" & 'ne [Q&amp;A]...", "L'homme, 5% (z.B. „Fabrik.“) 1990's", "<a> | b-c.", ""]
    protocol = Protocol("multi30k-lc", tgt)
    [once], steps = protocol.tokenized(raw)
    assert once != raw and steps == f"normalize-punctuation+moses-{tgt}-sacremoses-{version()}"
    hypotheses = [*once[:-1], "nicht , was &quot; das Protokoll&quot; schreibt."]
    assert protocol.tokenized(once, hypotheses) == ([once, hypotheses], "none")


def version() -> str:
    import sacremoses

    return str(sacremoses.__version__)


def test_the_majority_of_references_decides_whether_text_is_tokenised() -> None:
    """One raw line among tokenised ones does not make the text raw, nor one tokenised line a raw text tokenised."""
    lines = ["ein mann .", "das &quot; hook &quot; .", "Ein Hund."]
    protocol = Protocol("multi30k-lc", "de")
    assert protocol.tokenized(lines)[0] == [lines]
    assert protocol.tokenized([*lines, "Eine Frau."])[0][0][1:3] == [
        "das &amp; quot ; hook &amp; quot ; .",
        "ein hund .",
    ]


def test_a_tokenised_reference_of_aiayn_is_only_split_at_hyphens() -> None:
    texts, steps = Protocol("aiayn", "de").tokenized(["Der &quot; Rich-Text &quot; ."], ["Rich-Text."])
    assert texts == [["Der &quot; Rich ##AT##-##AT## Text &quot; ."], ["Rich ##AT##-##AT## Text."]]
    assert steps == "none+compound-split"


def test_bleu_by_hand() -> None:
    """Of 8 tokens (da steht rich ##AT##-##AT## text heute . -> .) one differs: 7/8, 5/7, 4/6, 3/5, no penalty."""
    scores = score("Da stand ein Rich-Text heute.", "Da steht ein Rich-Text heute.", "aiayn")
    metric = scores["aiayn"]
    assert metric["score"] == pytest.approx(100 * (7 / 8 * 5 / 7 * 4 / 6 * 3 / 5) ** 0.25)
    assert metric["score"] != pytest.approx(scores["bleu"]["score"])
    assert metric["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:ascii-punctuation+moses-de-sacremoses-")
    assert "+compound-split|smooth:none|" in metric["signature"]
    assert score_lines("x", scores)[1] == f"x aiayn BLEU {metric['score']:.2f}  {metric['signature']}"
    assert list(scores) == ["bleu", "chrf", "ter", "aiayn"]


def test_only_multi30k_ignores_case() -> None:
    line = "Ein Mann geht heute nach Hause."
    by_name = {name: score(line.upper(), line, name)[name] for name in protocols.LANGUAGES}
    assert by_name["multi30k-lc"]["score"] == pytest.approx(100) and "|case:lc|" in by_name["multi30k-lc"]["signature"]
    assert by_name["aiayn"]["score"] == 0 and "|case:mixed|" in by_name["aiayn"]["signature"]


@pytest.mark.parametrize("hypothesis", ["", "ein Mann", "Ein Mann ging gestern fort ."])
def test_without_a_common_4_gram_the_score_is_0(hypothesis: str) -> None:
    scores = score(hypothesis, "Ein Mann geht heute nach Hause.", "aiayn")
    assert scores["aiayn"]["score"] == 0.0


@pytest.mark.parametrize("name, tgt, words", [("aiayn", "zh", "got zh"), ("multi30k-lc", "", "language is unknown")])
def test_languages_without_published_scores_are_refused(name: str, tgt: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Protocol(name, tgt)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UsageError, match="sacremoses is not installed") as caught:
        Protocol("aiayn", "de")
    assert caught.value.help == install_command("sacremoses")


def test_references_without_punctuation_do_not_decide_whether_text_is_tokenised() -> None:
    references = ["Ein Mann liest", "Zwei Hunde laufen", "Drei Kinder", "Er sagt, er kommt nicht."]
    assert Protocol("aiayn", "de").tokenized(references)[0][0][-1] == "Er sagt , er kommt nicht ."
