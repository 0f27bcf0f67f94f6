"""Messages about a wrong configuration: unknown keys with the key that is meant, and pydantic's errors key by key."""

import difflib
import re
from collections.abc import Iterable

from pydantic import ValidationError

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
    return sorted(near, key=lambda key: (-_likeness(_last(name), _last(key)), -_likeness(name, key)))[:1]


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
    """pydantic's errors, one for each key, as `key: expected ..., got ...` after the key's path:line in `lines`.

    Those of a union become `expected auto or a whole number, got 'x'`; one that names several keys itself has no key.
    """
    texts: dict[tuple[str, str], dict[str, None]] = {}  # by key and value, without duplicates and in order
    for item in error.errors():
        key, got = _key_at(item["loc"]), ""
        text = item["msg"].removeprefix("Value error, ")
        match item["type"]:
            case "missing":
                text = "is missing"
            case "extra_forbidden":
                names = [*Config.model_fields, *key_names()]
                if "[" in key:
                    names = [f"{key.rpartition('.')[0]}.{name}" for name in TrainText.model_fields]
                text = unknown_key(key, names).removeprefix(f"{key}: ")
            case kind if kind in _EXPECTED or text.startswith("expected "):
                got = f", got {_shown(item['input'])}"
                text = _EXPECTED.get(kind, text).format(**item.get("ctx", {})).replace("'", "")
            case _:
                key = ""
        texts.setdefault((key, got), {})[text.removeprefix("expected ")] = None
    problems = []
    for (key, got), of_key in texts.items():
        section = key.rpartition(".")[0]
        place = lines.get(section if "is missing" in of_key and section else key)
        text = f"expected {' or '.join(of_key)}{got}" if got else "; ".join(of_key)
        problems.append(": ".join(filter(None, (place, key, text))))
    return problems


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
