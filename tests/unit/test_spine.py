"""The shape of the house: what names, imports and runs what. Which room may import which is for import-linter."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.integration.commands import ENVIRONMENT, TINY, mtx, write_tsv

MTX = Path(__file__).parents[2] / "mtx"
SPINE = ("config", "data", "model", "training", "decoding", "scoring", "runs", "storage")
AROUND = re.compile(r"\bmtx\.(evaluation|report|interop|documents|serve|synthesis|architectures|commands|cli)\b")
# What knows that a model may have several directions; and what reads the two languages of one
DIRECTIONS = {"config/schema.py", "decoding/translator.py", "storage/model_description.py", "training/validation.py"}
DIRECTIONS |= {"training/init_from.py"}  # inherits those of the model
DIRECTIONS |= {f"data/{name}.py" for name in ("held_out", "prepare", "sources", "tokenizer")}
READERS = {f"data/{name}.py" for name in ("bilingual", "folders", "language_detection", "readers", "tables")}
READERS |= {f"data/{name}.py" for name in ("text_arguments", "translation_memories")}
READERS |= {"data/sentencepiece_models.py"}  # reads the language tokens of published models
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


def test_only_some_modules_of_the_spine_know_directions() -> None:
    where: dict[str, set[str]] = {"directions": set(), "languages": set()}
    for path in sorted(path for folder in SPINE for path in (MTX / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for field in ("id", "attr", "arg", "name", "asname", "value"):  # identifiers and strings, not prose
                word = getattr(node, field, None)
                if isinstance(word, str) and word in where:
                    where[word].add(path.relative_to(MTX).as_posix())
    assert where["directions"] <= DIRECTIONS and where["languages"] <= DIRECTIONS | READERS


@cache
def imports() -> dict[str, set[str]]:
    """The modules of mtx that hold code, and what each imports: also in a function, and only for its types."""
    trees = {}
    for path in MTX.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(not isinstance(node, ast.Expr) for node in tree.body):
            trees[".".join(("mtx", *path.relative_to(MTX).with_suffix("").parts)).removesuffix(".__init__")] = tree
    imported = {}
    for name, tree in trees.items():
        names = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        imported[name] = names & trees.keys() - {name}
    return imported


@cache
def reached(name: str) -> frozenset[str]:
    """What a module imports, and what that imports, and so on."""
    names, rest = set(), [name]
    while rest:
        rest += imports()[rest.pop()] - names
        names |= set(rest)
    return frozenset(names)


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert not [name for name in imports() if name in reached(name)]


def test_the_trainer_needs_few_modules() -> None:
    assert len(reached("mtx.training.trainer")) <= 50


# Prints the modules of mtx that run a function until the command ends, or a training first updates its weights; imports
# are not counted.
TRACE = """
import os, sys, threading
seen = set()
def end(code):
    sys.setprofile(None)
    threading.setprofile(None)
    print(code, len(seen), *sorted(seen), flush=True)
    os._exit(0)
def is_import(frame):
    while frame and not (frame.f_code.co_name == "<module>" and frame.f_globals["__name__"].startswith("mtx.")):
        frame = frame.f_back
    return frame
def profile(frame, event, argument):
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith("mtx.") and name not in seen and not is_import(frame):
        seen.add(name)
    elif event == "call" and frame.f_code.co_name == "step" and name.startswith("torch.optim"):
        end(0)
sys.setprofile(profile)
threading.setprofile(profile)
from mtx import cli
end(cli.run(sys.argv[1:]))
"""


def modules_run(*arguments: object, stdin: bytes = b"") -> int:
    command = [sys.executable, "-c", TRACE, *map(str, arguments)]
    result = subprocess.run(command, input=stdin, capture_output=True, check=True, env=ENVIRONMENT)
    code, number, *names = result.stdout.decode().splitlines()[-1].split()
    assert code == "0", result.stderr.decode()
    print(*names)  # pytest shows them if there are too many
    return int(number)


@pytest.mark.seconds
def test_a_pair_and_a_line_pass_through_few_modules(tmp_path: Path, trained: Path) -> None:
    corpus = write_tsv(tmp_path / "my.tsv", range(1000, 1200))
    assert 20 < modules_run("train", corpus, *TINY, "training.max_steps=1", f"run_dir={tmp_path / 'run'}") <= 59
    mtx("translate", trained, stdin=b"one two\n")  # converts the model
    assert 10 < modules_run("translate", trained, stdin=b"one two\n") <= 23
