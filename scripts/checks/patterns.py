"""Finds the patterns of the package, for `plain_code.py`.

A pattern is a string that reaches a function of `re` or `regex`, by itself or through the names of variables, also
those of other modules and those of a loop over a table. The parameters of functions are not followed. The length of a
pattern is that of its whole literal, with all parts of a concatenation and the text of an f-string.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LIBRARIES = {"re", "regex"}
FUNCTIONS_OF_PATTERNS = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Pattern:
    """A literal that is used as a regular expression, or as a part of one."""

    path: str
    line: int
    length: int


class Module:
    """The variables of a module: what it assigns to them, or where it imports them from."""

    def __init__(self, source: str):
        self.tree = ast.parse(source)
        self._values: dict[tuple[str, str], list[ast.expr]] = {}  # by scope and name
        self._origins: dict[str, tuple[str, str]] = {}  # path of a module, and the name there
        for scope, node in self.nodes():
            value = getattr(node, "iter", None) or getattr(
                node, "value", None
            )  # a loop assigns parts of what it runs over
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.expr) and isinstance(value, ast.expr):
                    for part in ast.walk(target):
                        if isinstance(part, ast.Name):
                            self._values.setdefault((scope, part.id), []).append(value)
            if isinstance(node, ast.ImportFrom):
                folder = (node.module or "").replace(".", "/")
                for alias in node.names:
                    self._origins[alias.asname or alias.name] = (folder, alias.name)

    def nodes(self) -> Iterator[tuple[str, ast.AST]]:
        """Yields all nodes, each with its scope: the name of the function or class of the module, or nothing."""
        for statement in self.tree.body:
            scope = statement.name if isinstance(statement, SCOPES) else ""
            for node in ast.walk(statement):
                yield scope, node

    def values(self, scope: str, name: str) -> list[ast.expr]:
        """Returns what is assigned to a name that a scope uses."""
        return self._values.get((scope, name)) or self._values.get(("", name), [])

    def origin(self, node: ast.expr) -> tuple[str, str] | None:
        """Returns the path of the module from which a name comes, or `module.name`, and its name there."""
        if isinstance(node, ast.Name) and node.id in self._origins:
            folder, name = self._origins[node.id]
            return f"{folder}.py", name
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self._origins:
            folder, module = self._origins[node.value.id]
            return f"{folder}/{module}.py", node.attr
        return None


def find_patterns(sources: Mapping[str, str]) -> list[Pattern]:
    """Returns the literals of these modules, by path, that reach a function of `re` or `regex`; the longest is last."""
    modules = {path: Module(source) for path, source in sources.items()}
    waiting = [(path, scope, node.args[0]) for path in modules for scope, node in _pattern_calls(modules[path])]
    patterns = set[Pattern]()
    resolved = set[tuple[str, str, str]]()
    while waiting:
        path, scope, node = waiting.pop()
        if _is_text(node):
            patterns.add(Pattern(path, node.lineno, _text_length(node)))
        else:
            waiting += [(path, scope, child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        for part in ast.walk(node):
            place = (path, scope, part.id) if isinstance(part, ast.Name) else None
            if isinstance(part, ast.Name | ast.Attribute) and (origin := modules[path].origin(part)):
                place = (origin[0], "", origin[1])
            if place and place not in resolved and place[0] in modules:
                resolved.add(place)
                waiting += [(place[0], place[1], value) for value in modules[place[0]].values(place[1], place[2])]
    return sorted(patterns, key=lambda pattern: pattern.length)


def _pattern_calls(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Yields the calls of functions of `re` and `regex`, with their scopes."""
    for scope, node in module.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            library = node.func.value
            if isinstance(library, ast.Name) and library.id in LIBRARIES and node.func.attr in FUNCTIONS_OF_PATTERNS:
                yield scope, node


def _is_text(node: ast.AST) -> bool:
    """Returns whether a node is a string, an f-string or a concatenation with one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _text_length(node: ast.AST) -> int:
    """Returns the number of characters that a string literal has, without what its names stand for."""
    if isinstance(node, ast.BinOp):
        return _text_length(node.left) + _text_length(node.right)
    if isinstance(node, ast.JoinedStr):
        return sum(map(_text_length, node.values))
    return len(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) else 0
