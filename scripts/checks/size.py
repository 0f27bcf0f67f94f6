"""Counts the Python tokens of mtx by folder, and those of its scripts and tests.

    python -m scripts.checks.size

A name, a number and an operator are one token each. A string is one for every eight characters, so that a table in a
string counts like one in code, and so is a table in a file of the package (.txt, .tsv, .csv). Docstrings, comments,
white space and line breaks count nothing, so that cramming lines does not make code smaller.

pyproject.toml has a budget for the package, for scripts and for tests, under [tool.budget]; one that is exceeded ends
this with 1. The folders and the spine are printed for information. Figures are comparable under one version of Python
only: from 3.12 on, an f-string is several tokens. The project counts with 3.11.
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
    "scoring",
    "runs",
    "storage",
    "errors.py",
)  # see docs/architecture.md
COUNTED = {token.NAME, token.NUMBER, token.STRING, token.OP}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
TABLES = (".txt", ".tsv", ".csv")
CHARACTERS_PER_TOKEN = 8  # of a string
PROJECT = Path(__file__).resolve().parents[2]


def count_string(text: str) -> int:
    """Returns the number of tokens for which a string or a table counts."""
    return max(1, len(text) // CHARACTERS_PER_TOKEN)


def count_tokens(source: str) -> int:
    """Returns the number of tokens of a module."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
    }
    size = 0
    for part in tokenize.generate_tokens(io.StringIO(source).readline):
        if part.type in COUNTED and part.start not in docstrings:
            size += count_string(part.string) if part.type == token.STRING else 1
    return size


def measure(directory: str) -> tuple[Counter[str], Counter[str]]:
    """Returns the tokens and the number of files of a directory: of each folder, of the spine, and of "all"."""
    root = PROJECT / directory
    sizes = Counter[str]()
    files = Counter[str]()
    for path in root.rglob("*"):
        if path.suffix == ".py":
            tokens = count_tokens(path.read_text(encoding="utf-8"))
        elif path.suffix in TABLES and directory == "mtx":  # elsewhere they are what tests read
            tokens = count_string(path.read_text(encoding="utf-8"))
        else:
            continue
        folder = path.relative_to(root).parts[0] if path.parent != root else "."
        places = {folder, "all"}
        if folder in SPINE or path.name in SPINE:
            places.add("spine")
        sizes.update(dict.fromkeys(places, tokens))
        files.update(places)
    return sizes, files


def main() -> None:
    """Prints a line for each folder of the package and one for each budget; an exceeded budget is an error."""
    budgets = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["budget"]
    sizes, files = measure("mtx")
    for folder, size in sizes.most_common():
        if folder != "all":
            print(f"{folder:16} {size:8,} tokens {files[folder]:4} files")
    exceeded = []
    for directory, budget in budgets.items():
        size = measure(directory)[0]["all"]
        print(f"{directory:16} {size:8,} of {budget:,} tokens")
        if size > budget:
            exceeded.append(directory)
    if exceeded:
        sys.exit(f"error: above the budget in pyproject.toml: {', '.join(exceeded)}; take a concept out")


if __name__ == "__main__":
    main()
