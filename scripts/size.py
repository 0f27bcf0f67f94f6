"""Counts the Python tokens of a package by folder: names, numbers, strings and operators, without docstrings.

    python scripts/size.py [DIRECTORY]

The budgets of the folders of mtx are in pyproject.toml, under [tool.budget]; a folder above its own ends this with 1.
Comments, white space and line breaks count nothing, so that cramming lines does not make code smaller. Figures are
comparable under one version of Python only: from 3.12 on, an f-string is several tokens. The project counts with 3.11.
"""

import ast
import io
import sys
import token
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

SPINE = (
    "config",
    "data",
    "model",
    "training",
    "decoding",
    "storage",
    "errors.py",
)  # of which docs/architecture.md tells
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
    """Prints a line for each folder and one for all; a folder above its budget is an error."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "mtx")
    project = root.resolve().parent / "pyproject.toml"
    budgets = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["budget"] if project.is_file() else {}
    sizes, modules = Counter[str](), Counter[str]()
    for path in root.rglob("*.py"):
        folder = path.relative_to(root).parts[0] if path.parent != root else "."
        tokens = count_tokens(path.read_text(encoding="utf-8"))
        places = {folder, "all"} | ({"spine"} if {folder, path.name} & set(SPINE) else set())
        sizes.update(dict.fromkeys(places, tokens))
        modules.update(places)
    for folder, size in sizes.most_common():
        number = modules[folder]
        budget = f" of {budgets[folder]:,}" if folder in budgets else ""
        print(f"{folder:16} {size:8,}{budget:10} tokens {number:4} modules")
    if above := [folder for folder, budget in budgets.items() if sizes[folder] > budget]:
        sys.exit(f"error: above the budget in pyproject.toml: {', '.join(above)}; take something out")


if __name__ == "__main__":
    main()
