"""The spine names nothing of what is around it, also not by a string; imports are for import-linter."""

import ast
import re
from pathlib import Path

MTX = Path(__file__).parents[2] / "mtx"
SPINE = ("config", "data", "model", "training", "decoding", "storage")
AROUND = re.compile(r"\bmtx\.(evaluation|report|interop|documents|serve|synthesis|architectures|commands|cli)\b")
TABLE = "model/architectures.py"  # of architectures, whose modules are imported when one of them is asked for


def test_no_string_of_the_spine_names_a_module_around_it() -> None:
    found = set()
    for path in sorted(path for folder in SPINE for path in (MTX / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documents = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documents
            if is_text and AROUND.search(node.value):  # type: ignore[attr-defined]
                found.add(path.relative_to(MTX).as_posix())
    assert found == {TABLE}
