"""The fields of a request, from JSON, a form or its address, checked.

Every fault is a `RequestError` that names the field.
"""

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from mtx.files.text_files import replace_surrogates
from mtx.serve.limits import Limits

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_MAX_FIELDS = 100


class RequestError(Exception):
    """A request that is refused: the status and the text of the answer {"error": text}."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status, self.text = status, text


async def read_fields(request: Request) -> dict[str, Any]:
    """The fields of a request's body, if that is JSON; otherwise of its address and of its form, as in LibreTranslate.

    Raises:
        RequestError: 400 if there is no field, or the body is neither a JSON object nor a form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        async with request.form(max_files=0, max_fields=_MAX_FIELDS) as form:
            return {**form, **request.query_params}
    if not kind and request.query_params:
        return dict(request.query_params)
    if kind != "application/json":
        raise RequestError(400, f"expected a body of the type application/json or {_FORMS[0]}")
    try:
        fields = json.loads(await request.body())
    except (ValueError, RecursionError):  # of json, or of the encoding
        raise RequestError(400, "the body is not valid JSON") from None
    if not isinstance(fields, dict):
        raise RequestError(400, 'expected a JSON object, such as {"q": "text", "source": "en", "target": "de"}')
    return fields


def text_field(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A field that is a text, without lone surrogates; without a default it must be there."""
    value = fields.get(name, default)
    if value is None:
        raise RequestError(400, f"missing parameter {name}")
    if not isinstance(value, str):
        raise RequestError(400, f"{name}: expected a text")
    return replace_surrogates(value)


def texts_field(fields: Mapping[str, Any], limits: Limits) -> tuple[list[str], bool]:
    """The texts of the field q, and whether it was a list.

    Raises:
        RequestError: 400 if it is missing, or more than the limits allow.
    """
    value = fields.get("q")
    if not isinstance(value, list):
        texts = [text_field(fields, "q")]
    elif len(value) > limits.texts:
        raise RequestError(400, f"q has {len(value):,} texts, more than the limit of {limits.texts:,}")
    else:
        texts = [text_field({"q": text}, "q") for text in value]
    num_chars = sum(map(len, texts))
    if num_chars > limits.chars:
        raise RequestError(400, f"q has {num_chars:,} characters, more than the limit of {limits.chars:,}")
    return texts, isinstance(value, list)


def number_field(fields: Mapping[str, Any], name: str) -> int:
    """A field that is a number from 0; 0 if it is not there."""
    value = fields.get(name, 0)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RequestError(400, f"{name}: expected a number from 0")
    return value
