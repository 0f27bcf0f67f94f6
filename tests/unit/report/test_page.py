"""Untrusted values stand in a page as text, whatever they hold."""

import json
import re

import pytest
from jinja2 import UndefinedError

from mtx.report import page

HOSTILE = "</script><script>alert(1)</script><!-- & \u2028\u2029 ]]> \x00 '\""


def test_data_cannot_end_its_element() -> None:
    element = str(page.embedded({"token": HOSTILE}))
    inside = re.fullmatch(r'<script type="application/json">([^<>&\u2028\u2029]*)</script>', element)
    assert inside and json.loads(inside[1]) == {"token": HOSTILE}


def test_numbers_that_json_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        page.embedded(float("nan"))


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        page.render("page.html")
