"""Counts the Python tokens of a package by folder: names, numbers, strings and operators, without docstrings.

    python scripts/size.py [DIRECTORY]

Comments, white space and line breaks count nothing, so that cramming lines does not make code smaller. Figures are
comparable under one version of Python only: from 3.12 on, an f-string is several tokens. The project counts with 3.11.
"""

import ast
import io
import sys
import token
import tokenize
from collections import Counter
from pathlib import Path

COUNTED = {token.NAME, token.NUMBER, token.STRING, token.OP}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count_tokens(source: str) -> int:
    """Returns the number of tokens of a module."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(each.type in COUNTED and each.start not in docstrings for each in tokens)


def main() -> None:
    """Prints a line for each folder and one for all."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "mtx")
    sizes, modules = Counter[str](), Counter[str]()
    for path in root.rglob("*.py"):
        folder = path.relative_to(root).parts[0] if path.parent != root else "."
        sizes[folder] += count_tokens(path.read_text(encoding="utf-8"))
        modules[folder] += 1
    for folder, size in [*sizes.most_common(), ("all", sizes.total())]:
        number = modules[folder] if folder in modules else modules.total()
        print(f"{folder:16} {size:8,} tokens {number:4} modules")


if __name__ == "__main__":
    main()
