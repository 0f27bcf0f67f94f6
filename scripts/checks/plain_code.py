"""Finds arithmetic with conditions and builtins as variables, and measures the longest pattern of the package.

    python -m scripts.checks.plain_code

A condition is a comparison, `not`, a call of `bool`, `isinstance`, `any` or `all`, or `and` and `or` with one of them.
It must not be a factor, a term of a sum or a difference, or the index of a table: an `if` says what is meant. Arrays of
conditions are combined by `&` and `|`. Counting with `+=` or `sum` is allowed, and so is an array as the index of an
array; a table is a list or a tuple in place, or a name in capitals.

No variable, parameter, function or import has the name of a builtin. Attributes and methods of a class may have one.

A pattern is a string literal of the package with signs of a regular expression, such as `(?:` and `[^`. Its length is
that of the whole literal, with the text of an f-string.

The exit code is 1 if there is a fault, or a pattern of more than 1,500 characters.
"""

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("mtx", "scripts", "tests")
MAX_PATTERN_LENGTH = 1500
BUILTINS = {name for name in dir(builtins) if not name.startswith("_")}
PATTERN_SIGN = re.compile(r"\(\?|\[\^|\\[dswDSWbB]")
CONDITION_CALLS = {"bool", "isinstance", "any", "all"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

ARITHMETIC = "arithmetic with a condition"
INDEX = "a table indexed by a condition"
BUILTIN = "a builtin as a name"


@dataclass(frozen=True)
class Pattern:
    """A string literal that is a regular expression, or a part of one."""

    line: int
    length: int


@dataclass(frozen=True)
class Fault:
    """A place that should be written out."""

    kind: str
    line: int
    code: str


def find_faults(source: str) -> list[Fault]:
    """Returns the arithmetic with conditions and the builtins as names of a module."""
    tree = ast.parse(source)
    class_members = {member for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for member in _members(node)}
    faults = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add | ast.Sub):
            if is_condition(node.left) or is_condition(node.right):
                faults.append(Fault(ARITHMETIC, node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
            if is_condition(node.value):
                faults.append(Fault(ARITHMETIC, node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.Subscript):
            if is_condition(node.slice) and _is_table(node.value):
                faults.append(Fault(INDEX, node.lineno, ast.unparse(node)))
        elif node not in class_members:
            for name in _defined_names(node):
                if name in BUILTINS:
                    faults.append(Fault(BUILTIN, getattr(node, "lineno", 0), name))
    return faults


def is_condition(node: ast.expr) -> bool:
    """Returns whether an expression is true or false by its form."""
    if isinstance(node, ast.BoolOp):
        return any(map(is_condition, node.values))
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in CONDITION_CALLS
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _is_table(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id.isupper()
    return isinstance(node, ast.List | ast.Tuple | ast.Constant)


def _members(node: ast.ClassDef) -> Iterator[ast.AST]:
    """Yields what defines the attributes and methods of a class."""
    for statement in node.body:
        if isinstance(statement, FUNCTIONS):
            yield statement
        elif isinstance(statement, ast.Assign):
            yield from statement.targets
        elif isinstance(statement, ast.AnnAssign):
            yield statement.target


def _defined_names(node: ast.AST) -> Iterator[str]:
    """Yields the names that a node gives to variables, parameters, functions, classes or imports."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (*FUNCTIONS, ast.ClassDef)) or (isinstance(node, ast.ExceptHandler) and node.name):
        yield node.name or ""
    elif isinstance(node, ast.alias):
        yield node.asname or node.name
    elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name


def find_patterns(source: str) -> list[Pattern]:
    """Returns the patterns of a module."""
    tree = ast.parse(source)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    patterns = []
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and node not in docstrings:
            if isinstance(node.value, str):
                text = node.value
            elif isinstance(node.value, bytes):
                text = node.value.decode("latin-1")
        if PATTERN_SIGN.search(text):
            patterns.append(Pattern(node.lineno, len(text)))
    return patterns


def read_sources(folder: str) -> dict[str, str]:
    """Returns the text of the modules of a folder of the project, by path."""
    paths = sorted((PROJECT / folder).rglob("*.py"))
    return {path.relative_to(PROJECT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def main() -> int:
    """Prints a line for each fault and for each kind, and one for the longest pattern."""
    sources = {folder: read_sources(folder) for folder in FOLDERS}
    faults = [
        (path, fault)
        for modules in sources.values()
        for path, source in modules.items()
        for fault in find_faults(source)
    ]
    for path, fault in faults:
        print(f"{path}:{fault.line}: {fault.kind}: {fault.code}")
    for kind in (ARITHMETIC, INDEX, BUILTIN):
        print(f"{kind:30} {sum(fault.kind == kind for _, fault in faults):5}")
    patterns = [(pattern, path) for path, source in sources["mtx"].items() for pattern in find_patterns(source)]
    longest, longest_path = max(patterns, key=lambda place: place[0].length)
    print(f"{'the longest pattern':30} {longest.length:5,} characters, {longest_path}:{longest.line}")
    if longest.length > MAX_PATTERN_LENGTH:
        print(f"error: a pattern has more than {MAX_PATTERN_LENGTH:,} characters; make it a table of small ones")
    return 1 if faults or longest.length > MAX_PATTERN_LENGTH else 0


if __name__ == "__main__":
    sys.exit(main())
