"""The page needs nothing from elsewhere, and no text of a model can become a part of it."""

import base64
import hashlib
import re

from mtx.serve.page import render

LANGUAGES: list[dict[str, object]] = [{"code": "en", "name": "</script><b>&", "targets": ["de"]}]


def test_the_policy_names_the_script_and_the_styles_of_the_page() -> None:
    text, policy = render(LANGUAGES, {})
    for tag in ("script", "style"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")


def test_everything_is_inside() -> None:
    text, _ = render(LANGUAGES, {})
    assert "{{" not in text
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    assert set(re.findall(r"https?://[^'\"\s]+", text)) == {"http://www.w3.org/2000/svg"}, "a namespace, no address"


def test_a_name_of_a_model_stays_text() -> None:
    text, _ = render(LANGUAGES, {})
    assert r'"\u003c/script\u003e\u003cb\u003e\u0026"' in text and "<b>" not in text
