"""The check of plain code finds each fault in a made example, and leaves what reads well."""

import pytest

from scripts.checks import plain_code
from scripts.checks.plain_code import ARITHMETIC, BUILTIN, INDEX, find_faults, find_patterns


@pytest.mark.parametrize(
    "source, kind",
    [
        ("x = 's' * (n != 1)", ARITHMETIC),
        ("x = bool(a) * 's'", ARITHMETIC),
        ("x = [a] * (not b)", ARITHMETIC),
        ("x = 's' * (a and b > 1)", ARITHMETIC),
        ("x *= isinstance(a, b)", ARITHMETIC),
        ("x = 1 + (a == b)", ARITHMETIC),
        ("x = (a > b) - (a < b)", ARITHMETIC),
        ("x = 1 - any(a)", ARITHMETIC),
        ("x = [a, b][c > d]", INDEX),
        ("x = ('a', 'b')[not c]", INDEX),
        ("x = 'ab'[bool(c)]", INDEX),
        ("x = _SIZES[device == 'cpu']", INDEX),
        ("help = 1", BUILTIN),
        ("for id in x: pass", BUILTIN),
        ("x = [bin for bin in y]", BUILTIN),
        ("x = lambda input: 1", BUILTIN),
        ("def f(*, format): pass", BUILTIN),
        ("def open(): pass", BUILTIN),
        ("with a as file, b as dir: pass", BUILTIN),
        ("try: pass\nexcept E as all: pass", BUILTIN),
        ("from a import b as type", BUILTIN),
        ("match a:\n    case [max, *min]: pass", BUILTIN),
        ("class A:\n    def f(self):\n        set = 1", BUILTIN),
    ],
)
def test_a_fault_is_found(source: str, kind: str) -> None:
    assert {fault.kind for fault in find_faults(source)} == {kind}


@pytest.mark.parametrize(
    "source",
    [
        "x = 's' if n != 1 else ''",
        "x += a == b",  # a count
        "x = sum(a == b for a in c)",
        "x = share * (limit or inf)",
        "x = a[a == b] * c[d > 0]",  # a mask
        "x = (a != b) | (c != d)",
        "x = {}[a or b]",
        "class A:\n    id: int\n    format = 1\n    def open(self): pass",
        "f(help=1, type=int)",
        "x.input = 1",
        "import re",
    ],
)
def test_what_reads_well_is_left(source: str) -> None:
    assert find_faults(source) == []


@pytest.mark.parametrize(
    "source, length",
    [
        ("x = r'[^a]'", 4),
        ("x = rb'(?:a)'", 5),
        ("x = r'\\d' 'abc'", 5),
        ("x = rf'(?:{A})c{{2}}'", 8),
        ("x = {'a': r'\\w', 'b': 'text'}", 2),
        ("x = 'text [a] (b)'", 0),
        ('def f():\n    r"""Takes [^a]."""', 0),
    ],
)
def test_the_longest_pattern_is_found(source: str, length: int) -> None:
    assert max((pattern.length for pattern in find_patterns(source)), default=0) == length


@pytest.mark.parametrize(
    "source, printed",
    [
        ("x = r'[^" + "a" * 1497 + "]'", None),
        ("x = r'[^" + "a" * 1498 + "]'", "error: a pattern has more than 1,500 characters"),
        ("x = r'[^a]'\nx = 2 * (a == b)", "mtx/a.py:2: arithmetic with a condition: 2 * (a == b)\n"),
        ("x = r'[^a]'\nid = 2", "mtx/a.py:2: a builtin as a name: id\n"),
    ],
)
def test_a_fault_or_a_long_pattern_ends_the_check(
    source: str, printed: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plain_code, "read_sources", lambda folder: {"mtx/a.py": source} if folder == "mtx" else {})
    assert plain_code.main() == (0 if printed is None else 1)
    output = capsys.readouterr().out
    assert printed is None or printed in output
    assert "the longest pattern" in output
