"""The fields of a request, from JSON, a form or its address, checked by models of pydantic.

Every fault is an answer with the status 400 that names the field.
"""

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mtx.storage.text_files import replace_surrogates

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_MAX_FIELDS = 100


def _without_surrogates(value: object) -> object:
    return replace_surrogates(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_without_surrogates)]


class Detected(BaseModel):
    """The fields of /detect."""

    q: Text | Annotated[list[Text], Field(fail_fast=True)]

    @property
    def texts(self) -> list[str]:
        """The texts, also of a single one."""
        return [self.q] if isinstance(self.q, str) else self.q


class Translated(Detected):
    """The fields of /translate."""

    source: Text
    target: Text
    format: Literal["text", "html"] = "text"
    alternatives: NonNegativeInt = 0


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
        HTTPException: 400 if there is no field, or the body is neither a JSON object nor a form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        async with request.form(max_files=0, max_fields=_MAX_FIELDS) as form:
            return {**form, **request.query_params}
    if not kind and request.query_params:
        return dict(request.query_params)
    if kind != "application/json":
        raise HTTPException(400, f"expected a body of the type application/json or {_FORMS[0]}")
    try:
        fields = json.loads(await request.body())
    except (ValueError, RecursionError):  # of json, or of the encoding
        raise HTTPException(400, "the body is not valid JSON") from None
    if not isinstance(fields, dict):
        raise HTTPException(400, 'expected a JSON object, such as {"q": "text", "source": "en", "target": "de"}')
    return fields


def check_fields(model: type[Checked], fields: dict[str, Any]) -> Checked:
    """The fields of a request as a model of pydantic.

    Raises:
        HTTPException: 400, naming the first field that is missing or wrong.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise HTTPException(400, f"{first['loc'][0]}: {first['msg']}") from None
