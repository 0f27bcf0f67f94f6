"""Nothing in mtx may run what a file says, or end lines where no line ends: what ruff does not refuse is found here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mtx

ROOT = Path(mtx.__file__).parent
MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "joblib", "codecs", "ctypes", "runpy", "tarfile"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
METHODS = {"splitlines", "expandvars", "extractall", "import_module", "system", "popen", "Popen", "check_output", "run"}
FUNCTIONS = {
    "torch.load", "torch.save", "torch.jit.load", "torch.hub.load", "np.load", "numpy.load", "np.loadtxt",
    "np.fromregex", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load",
}  # fmt: skip
# Loaders of PyYAML that build no objects.
SAFE_LOADERS = {"yaml.SafeLoader", "yaml.CSafeLoader"}
# What is used all the same, as file:what, and why it is harmless.
ALLOWED = {
    "__init__.py:importlib.import_module": "modules of mtx, from a table",
    "commands/train.py:importlib.import_module": "hooks of mtx, from a table",
    "data/workers.py:subprocess.Popen": "this program's own module, by a list of arguments",
    "storage/programs.py:subprocess.Popen": "a program that the user names, by a list of arguments",
    "interop/export.py:importlib.import_module": "transformers, by name",
    "training/ranks.py:Popen": "this program itself, by a list of arguments",
    "model/device.py:import ctypes": "settings of the C library's memory",
}


def name_of(node: ast.expr) -> str:
    """A dotted name, or what there is of it."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def keywords(call: ast.Call) -> dict[str | None, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords}


def reads_text_without_newline(call: ast.Call, name: str) -> bool:
    """Whether `open` or its like reads text without `newline=`: lines would end at a CR too."""
    last = name.rpartition(".")[2]
    if last not in ("open", "fdopen", "TextIOWrapper") or "newline" in keywords(call) or name == "os.open":
        return False
    if last == "TextIOWrapper":
        return True
    is_function = name in ("open", "io.open", "os.fdopen", "gzip.open") and (
        isinstance(call.func, ast.Name) or "." in name
    )
    mode = keywords(call).get("mode", next(iter(call.args[is_function : is_function + 1]), None))
    if mode is None:
        return name != "gzip.open"
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and not set(mode.value) & set("bwax")


def problems_of_call(call: ast.Call) -> Iterator[str]:
    name = name_of(call.func)
    given, last = keywords(call), name.rpartition(".")[2]
    if name in FUNCTIONS or (name in BUILTINS and isinstance(call.func, ast.Name)):
        yield name
    if last in METHODS and (last != "run" or name == "subprocess.run"):
        yield name
    if name in ("yaml.compose", "yaml.parse", "yaml.scan") and name_of(given.get("Loader", call)) not in SAFE_LOADERS:
        yield f"{name} without a safe loader"
    if {"shell", "allow_pickle", "trust_remote_code"} & given.keys():
        yield f"{name} with shell, allow_pickle or trust_remote_code"
    if reads_text_without_newline(call, name):
        yield f"{name} of text without newline="


def problems(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield from problems_of_call(node)
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (f"import {name}" for name in names if name.split(".")[0] in MODULES)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_banned_is_used(path: Path) -> None:
    where = path.relative_to(ROOT).as_posix()
    found = [what for what in problems(path.read_text(encoding="utf-8")) if f"{where}:{what}" not in ALLOWED]
    assert not found, f"{where}: {', '.join(found)}"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import tarfile", "eval('1')", "exec('1')", "torch.load(path)",
        "compile('1', '', 'eval')", "np.load(path)", "np.load(path, allow_pickle=True)", "yaml.load(text)",
        "yaml.compose(text)", "Path(name).open()", "Path(name).read_text().splitlines()",
        "yaml.compose(text, Loader=yaml.Loader)", "text.splitlines()", "path.read_text().splitlines()", "open(path)",
        "path.open()", "path.open(encoding='utf-8')", "open(path, 'r', encoding='utf-8')", "io.TextIOWrapper(file)",
        "os.path.expandvars(text)", "archive.extractall()", "subprocess.run(x, shell=True)", "os.system(x)",
        "subprocess.Popen(x)", "importlib.import_module(x)", "load_dataset(x, trust_remote_code=True)", "__import__(x)",
        "codecs.open(path)\nimport codecs",
    ],
)  # fmt: skip
def test_what_is_banned_is_found(source: str) -> None:
    assert list(problems(source))


@pytest.mark.parametrize(
    "source",
    [
        "open(path, 'rb')", "path.open('rb')", "path.open(newline='\\n')", "re.compile('a')", "path.open('wb')",
        "yaml.compose(text, Loader=yaml.SafeLoader)", "gzip.open(file, 'rb')", "model.load(path)", "os.open(path, 0)",
        "model.eval()", "Path(name).open('rb')", "Store.open(path)",
    ],
)  # fmt: skip
def test_what_is_not_banned_is_not_found(source: str) -> None:
    assert not list(problems(source))
