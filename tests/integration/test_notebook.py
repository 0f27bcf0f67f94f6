"""The notebook for a class runs from top to bottom, with less training, and its stored outputs are of its cells."""

import gzip
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from mtx.data.sources import DEMO
from scripts.docs import notebook as program

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "class.ipynb"
MAX_BYTES = 250_000
# `mtx` on a part of the demo's text: how much there is of it does not change what the cells do.
PROGRAM = """#!{python}
from pathlib import Path
from mtx import cli
from mtx.data import sources
sources.DEMO = Path({demo!r})
cli.main()
"""


@pytest.fixture
def notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.mark.seconds
def test_all_cells_run(notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = gzip.decompress(DEMO.read_bytes()).splitlines(keepends=True)
    demo = tmp_path / "demo.tsv.gz"
    demo.write_bytes(gzip.compress(b"".join(lines[::6])))
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "mtx").write_text(PROGRAM.format(python=sys.executable, demo=str(demo)), encoding="utf-8")
    (commands / "mtx").chmod(0o755)
    monkeypatch.setattr(program, "COMMANDS", commands)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    [setting] = [cell for cell in notebook.cells if cell.source.startswith("steps = 400")]
    setting.source = "steps = 20"
    program.execute(notebook, tmp_path)
    printed = {
        cell.source: "".join(output.get("text", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    assert [source for source, text in printed.items() if "error:" in text] == []  # a `!` that fails raises nothing
    [training] = [text for source, text in printed.items() if "runs/first" in source and "mtx train" in source]
    assert "grammar BLEU" in training and len(training.splitlines()) < 60, "a bar is one line"
    [comparison] = [text for source, text in printed.items() if "mtx compare" in source]
    assert "runs/second" in comparison
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert sum("image/png" in data for data in shown) == 2
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert len(pages) == 2 and all("Content-Security-Policy" in page for page in pages)


def test_the_stored_outputs_are_of_the_cells(notebook: Any) -> None:
    assert notebook.metadata["executed_sources"] == program.digest_of(notebook), "python -m scripts.docs.notebook"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs and all(output.output_type != "error" for output in outputs)
    assert NOTEBOOK.stat().st_size < MAX_BYTES
