"""Faults put into mtx's own code, one at a time, each of which other tests must notice. At night only.

A fault names its place: a function, and a call, a name or a comparison in it. How the code is written does not matter.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.conftest import NIGHTLY
from tests.reliability.test_banned import name_of

Tally = Callable[[str, int, int], None]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """One fault in a function: the first piece of it that `is_place` finds is replaced, and one of `tests` must fail.

    Attributes:
        path: the module, below mtx/.
        function: a method has its class before it, as in `Trainer.update`.
        is_place: whether a piece of the function is of the kind that the fault replaces.
        fault: makes the code that replaces the piece.
        num_places: how many pieces of that kind the function has.
    """

    what: str
    path: str
    function: str
    is_place: Callable[[ast.AST], bool]
    fault: Callable[[ast.AST], str]
    tests: str
    num_places: int = 1


def call_of(name: str) -> Callable[[ast.AST], bool]:
    """Finds the calls of a function; a method of what another call returned has only its last name."""
    return lambda piece: isinstance(piece, ast.Call) and name_of(piece.func) == name


def use_of(name: str) -> Callable[[ast.AST], bool]:
    """Finds the uses of a name."""
    return lambda piece: isinstance(piece, ast.Attribute) and name_of(piece) == name


def piece_of(kind: type[ast.AST]) -> Callable[[ast.AST], bool]:
    """Finds what is of a kind of `ast`."""
    return lambda piece: isinstance(piece, kind)


def comparison(operator: type[ast.cmpop], call: str = "") -> Callable[[ast.AST], bool]:
    """Finds the comparisons by an operator, those that begin with the call of a function if one is named."""
    return lambda piece: (
        isinstance(piece, ast.Compare)
        and isinstance(piece.ops[0], operator)
        and (not call or call_of(call)(piece.left))
    )


def becomes(code: str) -> Callable[[ast.AST], str]:
    return lambda piece: code


nothing = becomes("None")


def removed_at_once(rename: ast.AST) -> str:
    assert isinstance(rename, ast.Call)
    return f"remove_tree({ast.unparse(rename.args[0])})"


def sizes_alone(membership: ast.AST) -> str:
    """In place of `_entry(path) in ENTRIES`."""
    assert isinstance(membership, ast.Compare) and isinstance(membership.left, ast.Call)
    entries = ast.unparse(membership.comparators[0])
    path = ast.unparse(membership.left.args[0])
    return f"{entries}[0]['bytes'] == {path}.stat().st_size"


def lines_of_any_kind(line: ast.AST) -> str:
    assert isinstance(line, ast.Yield) and line.value
    return f"(yield from {ast.unparse(line.value)}.splitlines() or [''])"


def without_keywords(call: ast.AST) -> str:
    assert isinstance(call, ast.Call) and call.keywords
    return ast.unparse(ast.Call(call.func, call.args, []))


CRASHES = "tests/reliability/test_crashes.py"
KILLS = "tests/reliability/test_kills.py"
CHECKPOINT = "tests/unit/training/test_checkpoint.py"

MUTANTS = [
    Mutant(
        "a new file is not synced", "storage/durable.py", "new_file",
        call_of("disk.sync"), nothing, CRASHES, num_places=2,
    ),
    Mutant(
        "a rename is not synced", "storage/durable.py", "replace_directory",
        call_of("disk.sync"), nothing, CRASHES,
    ),
    Mutant(
        "the files of a checkpoint are not synced", "storage/durable.py", "write_manifest",
        call_of("disk.sync"), nothing, CRASHES,
    ),
    Mutant(
        "the old is removed before the new is there", "storage/durable.py", "replace_directory",
        call_of("disk.rename"), removed_at_once, CRASHES, num_places=2,
    ),
    Mutant(
        "sha256 is not compared", "storage/durable.py", "verify",
        comparison(ast.In, "_entry"), sizes_alone, "tests/reliability/test_damage.py",
    ),
    Mutant(
        "a damaged checkpoint is the end", "training/checkpoint.py", "load_newest",
        piece_of(ast.Continue), becomes("break"), f"tests/reliability/test_machine.py {CHECKPOINT}",
    ),
    Mutant(
        "random numbers are not seeded anew", "training/trainer.py", "Trainer.update",
        call_of("seed_micro_step"), nothing, KILLS,
    ),
    Mutant(
        "a resume begins the epoch anew", "training/trainer.py", "Trainer.load",
        use_of("self.state.position"), becomes("replace(self.state.position, index=0)"), KILLS,
    ),
    Mutant(
        "lines end at U+2028 too", "storage/text_files.py", "decoded_lines",
        piece_of(ast.Yield), lines_of_any_kind, "tests/reliability/test_lines.py",
    ),
    Mutant(
        "the longer side is cut", "data/tables.py", "read_text",
        call_of("zip"), without_keywords, "tests/reliability/test_hygiene.py",
    ),
    Mutant(
        "numbers are not looked at before the update", "training/strategy.py", "WeightUpdate._apply",
        call_of("torch.maximum"), nothing, "tests/reliability/test_numbers.py",
    ),
    Mutant(
        "what is not finite is saved", "training/checkpoint.py", "save",
        call_of("np.isfinite"), becomes("np.True_"), f"{CHECKPOINT} tests/reliability/test_numbers.py",
    ),
    Mutant(
        "no lock", "runs/run_directory.py", "_take_lock",
        call_of("acquire"), becomes("contextlib.nullcontext()"), "tests/reliability/test_owner.py", num_places=2,
    ),
    Mutant(
        "messages go to stdout", "cli.py", "_set_up_logging",
        use_of("sys.stderr"), becomes("sys.stdout"), "tests/reliability/test_pipes.py",
    ),
    Mutant(
        "signals are not looked at", "training/trainer.py", "Trainer.update",
        use_of("self._signals.stop"), becomes("False"), "tests/unit/training/test_step_memory.py",
    ),
    Mutant(
        "a failed save is not told", "training/checkpoint.py", "AsyncCheckpointer.settle",
        call_of("self.deferred_errors.add"), nothing, "tests/reliability/test_disk.py",
    ),
    Mutant(
        "weights of any shape are taken", "decoding/model_directory.py", "load_tensors",
        comparison(ast.NotEq), becomes("False"), "tests/unit/decoding/test_model_directory.py",
    ),
]  # fmt: skip


class _Replacement(ast.NodeTransformer):
    def __init__(self, place: ast.AST, new: ast.AST):
        self.place = place
        self.new = new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.place else self.generic_visit(node)


def definition(tree: ast.Module, path: str) -> ast.AST | None:
    """The function or method of a module that is called so, if there is one."""
    scopes: list[Any] = [tree]
    for part in path.split("."):
        inner = [node for scope in scopes for node in scope.body]
        scopes = [node for node in inner if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part]
    return scopes[0] if len(scopes) == 1 else None


def with_fault(source: str, mutant: Mutant) -> str:
    """The source of a module with a fault in it. Fails unless its place is there as often as it should be."""
    where = f"{mutant.what}: {mutant.path}, {mutant.function}"
    tree = ast.parse(source)
    function = definition(tree, mutant.function)
    assert function, f"{where}: there is no such function"
    places: list[Any] = [piece for piece in ast.walk(function) if mutant.is_place(piece)]
    assert len(places) == mutant.num_places, f"{where}: {len(places)} places, expected {mutant.num_places}"
    place = min(places, key=lambda piece: (piece.lineno, piece.col_offset))
    new: Any = ast.parse(mutant.fault(place)).body[0]
    if isinstance(place, ast.expr):
        new = new.value
    return ast.unparse(_Replacement(place, new).visit(tree))


def run_tests(copy: Path, tests: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("MTX_RELIABILITY", None)
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False, timeout=900)


@pytest.mark.skipif(not NIGHTLY, reason="runs other tests many times")
def test_every_fault_is_noticed(tmp_path: Path, tally: Tally) -> None:
    copy = tmp_path / "mtx"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", "runs", ".*_cache"))
    sources = {mutant.path: (copy / "mtx" / mutant.path).read_text(encoding="utf-8") for mutant in MUTANTS}
    for path, source in sources.items():  # without comments, as with a fault
        (copy / "mtx" / path).write_text(ast.unparse(ast.parse(source)), encoding="utf-8")
    sound = run_tests(copy, " ".join(sorted({path for mutant in MUTANTS for path in mutant.tests.split()})))
    assert sound.returncode == 0, sound.stdout.decode()[-2000:]
    missed = []
    for mutant in MUTANTS:
        module = copy / "mtx" / mutant.path
        module.write_text(with_fault(sources[mutant.path], mutant), encoding="utf-8")
        result = run_tests(copy, mutant.tests)
        if result.returncode != 1:  # 1: tests ran, and one failed
            missed.append(f"{mutant.what}: {result.stdout.decode()[-300:]}")
        module.write_text(sources[mutant.path], encoding="utf-8")
    print(*missed, sep="\n")
    tally("faults put into mtx's own code", len(MUTANTS), len(MUTANTS) - len(missed))


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.what for mutant in MUTANTS])
def test_the_place_is_there(mutant: Mutant) -> None:
    """In every run: the code has the place of each fault, which changes it, and its tests exist."""
    source = (ROOT / "mtx" / mutant.path).read_text(encoding="utf-8")
    changed = with_fault(source, mutant)
    compile(changed, mutant.path, "exec")
    assert changed != ast.unparse(ast.parse(source))
    assert all((ROOT / path).is_file() for path in mutant.tests.split())


@pytest.mark.parametrize(
    "source",
    ["def write():\n    sync(a)\n", "def save():\n    pass\n", "def save():\n    sync(a)\n    sync(b)\n"],
    ids=["no function", "no place", "two places"],
)
def test_a_place_that_is_gone_is_an_error(source: str) -> None:
    mutant = Mutant("x", "a.py", "save", call_of("sync"), nothing, "")
    assert with_fault("def save():\n    sync(a)\n", mutant) == "def save():\n    None"
    with pytest.raises(AssertionError, match=r"^x: a\.py"):
        with_fault(source, mutant)
