"""The types of the settings' values: how each is read from text, and which values are possible.

`schema` has the settings themselves. No torch, and no file is opened.
"""

import os
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mtx.config import limits

NULL = ("null", "~", "")  # text that means null
HELD_OUT_TEST = "heldout"  # in data.test: the test set that is held out of the training text, also its name


def _read_bool(value: object) -> object:
    if isinstance(value, str):
        if value not in ("true", "false"):
            raise ValueError("expected true or false")
        return value == "true"
    return value


_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"  # with an exponent, as Python writes 1e+16 and 1e-05
_DURATION = re.compile(rf"(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?")


def _read_seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(f"{value}s" if re.fullmatch(_NUMBER, value) else value)  # a bare number is in seconds
    if not value or match is None:
        raise ValueError("expected a duration such as 2h, 90m, 1h30m or 600s")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


def matching(pattern: str, expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


def _read_path(value: str) -> str:
    """A path with a leading ~ or ~USER replaced by the home directory, which few shells do after a `=`."""
    try:
        is_possible = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise ValueError("expected a path that this system can have")
    return os.path.expanduser(value)  # noqa: PTH111  # Path would normalise the text


def two_columns(value: tuple[str, ...]) -> tuple[str, ...]:
    if value and (len(value) != 2 or value[0] == value[1] or not all(value)):
        raise ValueError("expected two different columns, SRC,TGT")
    return value


LANGUAGE = re.compile(r"[^/\\\x00-\x1f\x7f-\x9f]{1,100}")  # languages become endings of file names
TAG = re.compile("[A-Za-z0-9_]+")
Language = Annotated[str, matching(LANGUAGE.pattern, "1 to 100 characters without /")]
Licence = Annotated[str, matching(r"[^\x00-\x1f\x7f-\x9f]{1,200}", "1 to 200 characters on one line")]
PathText = Annotated[str, AfterValidator(_read_path)]
Bool = Annotated[bool, BeforeValidator(_read_bool)]
Seconds = Annotated[float, BeforeValidator(_read_seconds)]
Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1, le=limits.MAX_COUNT)]
BatchTokens = Annotated[int, Field(ge=1, le=limits.MAX_BATCH_TOKENS)]
PositiveFloat = Annotated[float, Field(gt=0)]
NumLayers = Annotated[int, Field(ge=1, le=1000)]  # the deepest Transformers trained for translation have 1000
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
