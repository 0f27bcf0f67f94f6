"""BLEU's tokenizer follows from a language code in any spelling, and from the references where a code says nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtx.data.languages import code_of, script_of, tokenizer_of, writes_spaces
from mtx.scoring.metrics import score

CODES = {
    "zh": "zh zho chi cmn zh-CN ZH-cn zh_Hans zho_Hant zh-Hant-TW yue zh-yue wuu nan lzh hak gan und-Hani",
    "char": "ja jpn JA ja-JP jpn_Jpan th tha tha_Thai und-Thai xx_Thai lo lao lao_Laoo km khm khm_Khmr my mya bur "
    "my-MM mya_Mymr bo bod tib bod_Tibt dz dzo",
    "13a": "en eng de_DE ko kor ko-KR vi sr-Cyrl zh-Latn bos fr-CA i-klingon",
}


@pytest.mark.parametrize("tokenizer", CODES)
def test_every_spelling_of_a_code_has_the_same_tokenizer(tokenizer: str) -> None:
    assert {code: tokenizer_of(code, []) for code in CODES[tokenizer].split()} == dict.fromkeys(
        CODES[tokenizer].split(), tokenizer
    )


TEXTS = {
    "zh": ["今天天气很好。", "我们去 IBM 工作8年"],
    "char": ["今日は天気がいいですね。"],
    "13a": ["The word 天气 is Chinese", "오늘 날씨가 좋네요.", "Собака лает", "", "123 !"],
}
MORE = {"char": ["วันนี้อากาศดีมาก", "ໄປໃສ", "ទៅណា", "ဘယ်သွားမလဲ", "ང་ཚོ་", "カタカナ"]}


@pytest.mark.parametrize("code", ["tgt", "target", "x", "", "jp", "cn", "en", "a" * 500])
def test_where_a_code_says_nothing_the_references_decide(code: str) -> None:
    for tokenizer, texts in TEXTS.items():
        assert tokenizer_of(code, texts) == tokenizer
        assert writes_spaces(code, texts) is (tokenizer == "13a")
    for tokenizer, texts in MORE.items():
        assert {text: tokenizer_of(code, [text]) for text in texts} == dict.fromkeys(texts, tokenizer)


def test_a_name_says_as_much_as_a_code() -> None:
    assert [tokenizer_of(name, []) for name in ("Chinese", "thai", "日本語", "German")] == ["zh", "char", "char", "13a"]


def test_a_script_in_the_code_counts() -> None:
    assert (tokenizer_of("en-Thai", []), tokenizer_of("ja-Latn", ["kyou wa"])) == ("char", "13a")


@pytest.mark.seconds
@given(st.text(max_size=30) | st.from_regex(r"[a-zA-Z]{1,8}([-_][a-zA-Z0-9]{1,8}){0,4}", fullmatch=True))
def test_any_text_may_stand_for_a_language(text: str) -> None:
    assert tokenizer_of(text, ["a text"]) in ("13a", "zh", "char")
    assert isinstance(code_of(text), str) and isinstance(script_of(text), str)


@pytest.mark.parametrize("code", ["de", "deu", "ger", "de-AT", "DE_de", "deu_Latn"])
def test_the_code_without_script_and_region(code: str) -> None:
    assert code_of(code) == "de"


def test_a_score_is_the_same_for_all_codes_of_a_language() -> None:
    codes = ("zh", "zho", "zh-CN", "tgt", "")
    scores = {score(["今天天气很好"], ["今天天气很坏"], code)["bleu"]["score"] for code in codes}
    assert len(scores) == 1 and scores.pop() > 50
