"""UTF-16 and UTF-32 are known with and without a byte order mark, other encodings mostly, and no text in UTF-8 is."""

import random
from types import SimpleNamespace

import pytest

from mtx.storage.text_files import likely_encoding, wide_encoding
from tests.reliability import fuzzed

TEXTS = {
    "de": "Das kleine Mädchen läuft über die Straße.", "fr": "Le garçon a mangé une pêche à l’école.",
    "cs": "Žluťoučký kůň úpěl ďábelské ódy.", "ru": "Собака лает на луну.", "el": "Ο σκύλος γαβγίζει.",
    "ja": "今日は天気がいいですね。", "zh": "今天天气很好。", "ko": "오늘 날씨가 좋네요.", "th": "วันนี้อากาศดีมาก",
    "hi": "मुझे हिन्दी आती है।", "en": "A dog barks at the moon.",
}  # fmt: skip
WIDE = {
    "utf-16": "UTF-16", "utf-16-le": "UTF-16LE", "utf-16-be": "UTF-16BE",
    "utf-32": "UTF-32", "utf-32-le": "UTF-32LE", "utf-32-be": "UTF-32BE",
}  # fmt: skip


@pytest.mark.parametrize("codec", WIDE)
@pytest.mark.parametrize("size", [8191, 8192])
def test_wide_encodings_are_known(codec: str, size: int) -> None:

    cut = {name: wide_encoding((f"{text}\n" * 300).encode(codec)[:size]) for name, text in TEXTS.items()}
    assert cut == dict.fromkeys(TEXTS, WIDE[codec])


def test_utf_8_and_damaged_text_are_not_wide() -> None:
    rng = random.Random(3)
    texts = [f"{text}\n".encode() * number for text in TEXTS.values() for number in (1, 200)]
    texts += [text[:-1] for text in texts] + [text.replace(b" ", b"\0") for text in texts]
    texts += [b"\n".join(fuzzed.lines(rng, 30, 60)) for _ in range(50)]
    texts += [b"", b"\0", b"a\0", b"\0\0\0", b"a d\xffog\0 barks\n" * 30, b"PAR1\x15\0\x15\x10,", b"\xff\xfe\x01"]
    assert [text for text in texts if wide_encoding(text[:8192])] == []


@pytest.mark.parametrize(
    "language, codec, name",
    [
        ("de", "cp1252", "WINDOWS-1252"), ("fr", "latin-1", "WINDOWS-1252"), ("cs", "cp1250", "WINDOWS-1250"),
        ("ru", "cp1251", "WINDOWS-1251"), ("ru", "koi8-r", "KOI8-R"), ("el", "cp1253", "WINDOWS-1253"),
        ("ja", "cp932", "CP932"), ("ja", "euc_jp", "EUC-JP"), ("zh", "gb18030", "GB18030"), ("ko", "cp949", "CP949"),
        ("th", "cp874", "CP874"),
    ],
)  # fmt: skip
def test_a_few_lines_show_the_encoding(language: str, codec: str, name: str) -> None:
    sample = "\n".join([TEXTS[language].replace("’", "'")] * 5).encode(codec)
    assert likely_encoding(sample) == name


@pytest.mark.parametrize(
    "language, codec, lines",
    [
        ("hu", "cp1250", ["Hol voltál egész nap?", "Nem tudom, talán később.", "Őrült vagy."]),
        ("cs", "cp1250", ["Kde jsi byl celý den?", "Nevím, možná později.", "Děkuji, příteli."]),
        ("hr", "cp1250", ["Gdje si bio? Zašto?", "Ne znam, možda kasnije."]),
        ("lt", "cp1257", ["Kur buvai visą dieną?", "Nežinau, gal vėliau."]),
        ("he", "cp1255", ["איפה היית כל היום?", "אני לא יודע."]),
        ("tr", "cp1254", ["Bütün gün neredeydin?", "Işık."]),
        ("ru", "cp1251", ["Где ты был весь день?", "Не знаю."]),
        ("fr", "cp1252", ["Où étais-tu ?", "Ça va, garçon ?"]),
    ],
)
def test_the_language_shows_the_encoding_of_short_texts(language: str, codec: str, lines: list[str]) -> None:
    name = codec.replace("cp", "WINDOWS-")
    sample = "\n".join(lines).encode(codec)
    assert likely_encoding(sample, language) == name


def test_few_letters_with_accents_are_not_east_asian(monkeypatch: pytest.MonkeyPatch) -> None:
    likely = [SimpleNamespace(chaos=chaos, coherence=1, could_be_from_charset=[name])
              for name, chaos in (("cp932", 0.0), ("cp1252", 0.1))]  # fmt: skip
    monkeypatch.setattr("charset_normalizer.from_bytes", lambda sample, cp_isolation: likely)
    assert likely_encoding("El niño está cerca del río.".encode("latin-1")) == "WINDOWS-1252"
    assert likely_encoding("犬が大きい。".encode("cp932")) == "CP932"


def test_bytes_of_no_encoding_are_not_named() -> None:
    assert likely_encoding(bytes(range(256)) * 4) is None
