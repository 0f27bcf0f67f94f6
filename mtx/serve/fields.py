"""The fields of a request, from JSON, a form or its address, checked by models of pydantic.

Every fault is a `RequestError` that names the field.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, FailFast, Field, NonNegativeInt, ValidationError
from starlette.requests import Request

from mtx.files.text_files import replace_surrogates

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_MAX_FIELDS = 100


class RequestError(Exception):
    """A request that is refused: the status and the text of the answer {"error": text}."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status, self.text = status, text


def _without_surrogates(value: object) -> object:
    return replace_surrogates(value) if isinstance(value, str) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_without_surrogates), Field(description="a text")]


class Detected(BaseModel):
    """The fields of /detect."""

    q: Annotated[list[Text], FailFast(), BeforeValidator(_as_list), Field(description="a text")]


class Translated(Detected):
    """The fields of /translate."""

    source: Text
    target: Text
    format: Text = "text"
    alternatives: NonNegativeInt = Field(default=0, description="a number from 0")


class Aligned(BaseModel):
    """The fields of /align."""

    q: Text
    translation: Text
    source: Text
    target: Text


Checked = TypeVar("Checked", bound=BaseModel)


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


def check_fields(model: type[Checked], fields: Mapping[str, Any]) -> Checked:
    """The fields of a request as a model of pydantic.

    Raises:
        RequestError: 400, naming the first field that is missing or wrong.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        if first["type"] == "missing":
            raise RequestError(400, f"missing parameter {name}") from None
        raise RequestError(400, f"{name}: expected {model.model_fields[name].description}") from None
