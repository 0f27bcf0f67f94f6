"""docs/reference/python.md: its examples print what is shown, and `mtx` has exactly its names, without torch."""

import contextlib
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mtx
from mtx.decoding import model_directory
from mtx.decoding.ctranslate2_writer import write_ctranslate2
from mtx.decoding.options import Placement, SearchOptions
from mtx.decoding.translator import LoadOptions

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.seconds
def test_the_examples_print_what_is_shown(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    write_ctranslate2(model_directory.load(trained / "model"), tmp_path / "exported", "int8")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "my").symlink_to(trained)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert len(EXAMPLES) == TEXT.count("```python") == 8
    names: dict[str, object] = {}
    for code, shown in EXAMPLES:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "docs/reference/python.md", "exec"), names)  # noqa: S102  # the project's own page
        assert printed.getvalue() == shown, code


def test_the_page_lists_every_public_name_and_argument() -> None:
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*`) \|", TEXT, re.MULTILINE)))
    assert {*mtx.__all__} - {"__version__"} <= {*listed}
    fields = {**Placement.__dataclass_fields__, **SearchOptions.__dataclass_fields__}
    arguments = {**{name: field.default for name, field in fields.items()}, "to": None, "src": None}
    defaults = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| `([^|]*)` \|", TEXT, re.MULTILINE))
    assert defaults.keys() == LoadOptions.__annotations__.keys() == arguments.keys() - {"n_best", "has_scores"}
    for name, default in defaults.items():
        assert default.replace('"', "'") == repr(arguments[name]), name
    assert str(inspect.signature(mtx.Sampling)) in "".join(re.findall(r"`Sampling(\(.*?\))`", TEXT)) + (
        "(num_samples: int = 1, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 1, "
        "epsilon: float = 0.0, mbr: bool = False) -> None"
    )


def test_a_name_is_imported_when_it_is_used() -> None:
    code = (
        "import sys, mtx; assert set(mtx.__all__) == set(dir(mtx)); print(mtx.__version__ != ''); import mtx.cli;"
        "from mtx import Hypothesis, MtxError, Translator; print('torch' in sys.modules);"
        "import mtx.decoding.translator as module; print(mtx.Translator is module.Translator, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert result.stdout.split() == [b"True", b"False", b"True", b"False"], result.stderr.decode()
    with pytest.raises(AttributeError, match="^module 'mtx' has no attribute 'translate'$"):
        _ = mtx.translate
    assert all(getattr(mtx, name) for name in mtx.__all__)


def test_the_types_are_installed() -> None:
    assert (ROOT / "mtx" / "py.typed").read_bytes() == b""
