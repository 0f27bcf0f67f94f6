"""Checks of a table of patterns: what each takes, what it leaves, and how its time grows."""

import gc
import random
import re
import time
from re import _constants, _parser  # type: ignore[attr-defined]

SHORT = 4000
LONG = 16_000
MOST_TIMES = 7  # quadratic growth would be sixteen times the time
LEAST_S = 0.03


def mark_matches(pattern: str, text: str) -> str:
    """The text with « and » around each match of the pattern."""
    marked = ""
    position = 0
    for match in re.finditer(pattern, text):
        marked += f"{text[position : match.start()]}«{match[0]}»"
        position = match.end()
    return marked + text[position:]


def without_marks(text: str) -> str:
    return text.replace("«", "").replace("»", "")


def has_unbounded_repetition(pattern: str) -> bool:
    def is_unbounded(node: object) -> bool:
        if isinstance(node, tuple) and len(node) == 3 and node[1] is _constants.MAXREPEAT:
            return True
        return isinstance(node, (tuple, list, _parser.SubPattern)) and any(map(is_unbounded, node))

    return is_unbounded(_parser.parse(pattern))


def growing_unit(pattern: str, examples: list[str]) -> str | None:
    """A part of the examples whose repetition takes the pattern more than proportional time; None if there is none."""
    rng = random.Random(76)
    compiled = re.compile(pattern)
    codes: list[str] = [code for example in examples for code in re.findall("(?s)«(.*?)»", example)]
    units = [*codes]
    for code in codes:
        start, end = sorted(rng.choices(range(len(code) + 1), k=2))
        units += [code[start:end] or code, code[: end or 1], code[start:] + rng.choice(" \na")]
        units.append("".join(rng.choices(code, k=rng.randint(1, 4))))
    for unit in units:
        for num_times in (1, 3):  # three are seldom needed
            long = _seconds(compiled, unit, LONG, num_times)
            if long <= LEAST_S or long <= MOST_TIMES * _seconds(compiled, unit, SHORT, num_times):
                break
        else:
            return unit
    return None


def _seconds(pattern: re.Pattern[str], unit: str, length: int, num_times: int) -> float:
    """The least time; garbage of other tests does not count."""
    text = unit * (length // len(unit))
    least_s = float("inf")
    gc.disable()
    for _ in range(num_times):
        start = time.process_time()
        for _ in pattern.finditer(text):
            pass
        least_s = min(least_s, time.process_time() - start)
    gc.enable()
    return least_s
