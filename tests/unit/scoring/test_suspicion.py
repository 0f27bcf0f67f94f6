"""Repetitions, copies and omissions are noted, and ordinary text is not."""

import pytest

from mtx.scoring.suspicion import suspicion


@pytest.mark.parametrize(
    "src, translation, noted",
    [
        ("a dog runs", "ein Hund Hund Hund läuft", "repetition"),
        ("cart.empty.title", "cart.empty.title", None),
        ("no", "ich weiß nicht, ich weiß nicht, ich weiß nicht.", "repetition"),
        ("no", "und und", None),
        ("no", "auf einem Trampolin auf einem Trampolin", "repetition"),
        ("no", "Hand in Hand in Hand", None),
        ("no", "a b c a b c", None),
        ("no", "200 mm x 200 mm x 200 mm", None),
        ("ha ha ha ha ha", "Hahahahahaha", None),
        ("a", "ọ́jọ́ kan ni ọ́jọ́ kan ni", "repetition"),
        ("in a row in a row", "in einer Reihe in einer Reihe", None),
        ("no no no", "nein nein nein", None),
        ("no no no", "nein nein nein nein", "repetition"),
        ("a", "狗很大狗很大狗很大", "repetition"),
        ("a", "ไปไหนไปไหนไปไหน", "repetition"),
        ("a", "ໄປໃສໄປໃສໄປໃສ", "repetition"),
        ("ha", "哈哈哈哈", None),
        ("ha", "哈哈哈哈哈", "repetition"),
        ("a", "Schifffahrt, www, 1,000,000,000 und 7 7 7 ...", None),
        ("York", "Yorkorkorkorkork", "repetition"),
        ("Brrrrrr", "Brrrrrrr", None),
        ("a", "Blablabla", None),
        ("a", "ó kọ́kọ́ kọ kọ́", None),
        ("the big  dog", "the big dog", "copy"),
        ("the big dog", "The big dog", None),
        ("New York 7", "New York 7", None),
        ("https://example.org/a/b/c", "https://example.org/a/b/c", None),
        ("", "", None),
        ("it has twelve words, and the answer to all of them is a point", ".", "short"),
        ("it has twelve words, and the answer to all of them is a point", "zwölf Wörter", None),
        ("Are you sure?", "OK", None),
        ("in 1987", "im Jahr 1978", "numbers"),
        ("1,000 dogs and 2.5 cats in 1987", "1 000 Hunde und 2,5 Katzen, 1987", None),
        ("2024, 35", "٢٠٢٤ و ٣٥", None),
        ("a dog of 7", "ein siebenjähriger Hund", None),
        ("the 19th century, the 1980s", "das neunzehnte Jahrhundert, die Achtziger", None),
    ],
)
def test_suspicion(src: str, translation: str, noted: str | None) -> None:
    assert suspicion(src, translation) == noted
