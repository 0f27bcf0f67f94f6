"""Messages about a wrong configuration: unknown keys with the key that is meant, and pydantic's errors key by key."""

import difflib
import re
from collections.abc import Iterable

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mtx.config.other_names import KEYS_FOR, NOT_THERE
from mtx.config.schema import NAME_ONLY, WITH_KEYS, Config, TrainText, key_names

_NEAR = 0.75  # likeness of names that differ in one letter of four


def nearest(name: str, names: list[str]) -> str | None:
    """The most similar of `names`; None if none is similar."""
    close = difflib.get_close_matches(name, names, 1, 0.6)
    return close[0] if close else None


def keys_meant(name: str, names: Iterable[str]) -> list[str]:
    """The keys among `names` that an unknown key means: what other programs call so, else the nearest in spelling.

    Sections do not count, since a long one makes any two keys look alike: `training.lr` is read as `lr`.
    """
    keys = [key for key in KEYS_FOR.get(_without_section(name), []) if key in names]
    if keys or _without_section(name) in NOT_THERE:
        return keys
    near = [key for key in names if _likeness(_last(name), _last(key)) >= _NEAR or name.partition(".")[0] == key]
    return sorted(near, key=lambda key: -_likeness(name, key))[:1]


def about_unknown(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown key: the key that may be meant, or what mtx has instead; may be empty."""
    if instead := NOT_THERE.get(_without_section(name)):
        return f"; {instead}"
    meant = keys_meant(name, names)
    unit = "; mtx counts target tokens, not sentences" if meant == ["training.batch_tokens"] else ""
    return f"{did_you_mean(' and '.join(meant))}{unit}"


def unknown_key(key: str, names: list[str] | None = None) -> str:
    """The message that `key` is not one of `names`, which are by default all keys of the configuration."""
    return f"{key}: unknown key{about_unknown(key, names or key_names())}"


def did_you_mean(near: str | None) -> str:
    """The end of a message about an unknown name, if there is a similar one."""
    return f", did you mean {near}?" if near else ""


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _without_section(name: str) -> str:
    return _last(name).lower().replace("-", "_")


def _likeness(name: str, key: str) -> float:
    return difflib.SequenceMatcher(None, key, name).ratio()


# What was expected, for each type of pydantic error; limits come from the context of the error.
_EXPECTED = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "string_too_short": "at least {min_length} character",
    "tuple_type": "a list",
    "too_long": "at most {max_length} items",
    "greater_than": "more than {gt:.15g}",
    "greater_than_equal": "at least {ge:.15g}",
    "less_than": "less than {lt:.15g}",
    "less_than_equal": "at most {le:.15g}",
    "literal_error": "{expected}",
}


def describe_problems(error: ValidationError, lines: dict[str, str]) -> list[str]:
    """pydantic's errors, one for each key, as `key: expected ..., got ...` after the key's path:line in `lines`."""
    texts: dict[str, dict[str, None]] = {}  # by key, without duplicates and in order
    for item in error.errors():
        key, text = _describe(item)
        texts.setdefault(key, {})[text] = None
    return [_with_place(key, _merge(list(of_key)), lines) for key, of_key in texts.items()]


def _describe(item: ErrorDetails) -> tuple[str, str]:
    """The key of an error ("" if its text names several keys) and the problem."""
    key, kind = _key_at(item["loc"]), item["type"]
    if kind == "extra_forbidden":
        names = [*Config.model_fields, *key_names()]
        if "[" in key:
            names = [f"{key.rpartition('.')[0]}.{name}" for name in TrainText.model_fields]
        return key, unknown_key(key, names).removeprefix(f"{key}: ")
    if kind == "missing":
        return key, "is missing"
    text = item["msg"].removeprefix("Value error, ")
    if kind in _EXPECTED:
        text = "expected " + _EXPECTED[kind].format(**item.get("ctx", {})).replace("'", "")
    elif not text.startswith("expected "):
        return "", text
    return key, f"{text}, got {_shown(item['input'])}"


def _merge(texts: list[str]) -> str:
    """One text for the errors of a key; those of a union become `expected auto or a whole number, got 'x'`."""
    if len(texts) == 1 or not all(text.startswith("expected ") for text in texts):
        return "; ".join(texts)
    got = texts[0].rpartition(", got ")[2]
    alternatives = [text.removeprefix("expected ").removesuffix(f", got {got}") for text in texts]
    return f"expected {' or '.join(alternatives)}, got {got}"


def _with_place(key: str, text: str, lines: dict[str, str]) -> str:
    section = key.rpartition(".")[0]
    place = lines.get(section if text == "is missing" and section else key)
    return (f"{place}: " if place else "") + (f"{key}: " if key else "") + text


def _key_at(location: Iterable[str | int]) -> str:
    """The key of a pydantic location, such as `data.train[0].weight`; parts after it name members of a union."""
    keys, key = key_names(), ""
    for part in location:
        if isinstance(part, int):
            key += f"[{part}]"
        elif part not in (NAME_ONLY, WITH_KEYS):
            if key in keys:
                break
            key = f"{key}.{part}" if key else part
    return key


def _shown(value: object) -> str:
    """A value in a message: numbers as they were written, other text in quotes."""
    if not isinstance(value, str):
        return kind_of(value)
    return value if re.fullmatch(r"[+-]?[\d.]+([eE][+-]?\d+)?", value) else repr(value)


def kind_of(value: object) -> str:
    """A value in a message: a section, a list, or the text itself in quotes."""
    return "a section" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
