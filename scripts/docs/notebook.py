"""Runs notebooks/class.ipynb and stores its outputs in it: `.venv/bin/python -m scripts.docs.notebook`.

Run it after each change of a cell; tests/integration/test_notebook.py compares the sources with those that were run.
Stored are text and pictures. The pages in frames are not: GitHub does not show them, and they are large.
"""

import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "class.ipynb"
COMMANDS = Path(sys.executable).parent  # where the cells find `mtx`
_ANSI = re.compile(r"\x1b\[[\d;]*m")


def execute(notebook: Any, directory: Path, startup_s: float = 600) -> None:
    """Run all cells in a directory, with the `mtx` of this environment; raises CellExecutionError if a cell raises."""
    path = f"{COMMANDS}{os.pathsep}{os.environ['PATH']}"
    client = NotebookClient(
        notebook, kernel_name="python3", coalesce_streams=True, record_timing=False, startup_timeout=startup_s,
        resources={"metadata": {"path": str(directory)}},
    )  # fmt: skip
    client.execute(env={**os.environ, "PATH": path})


def shown(output: Any) -> bool:
    """Whether an output is stored, which a page in a frame is not."""
    return "text/html" not in output.get("data", {})


def digest_of(notebook: Any) -> str:
    """The sha256 of the sources of all cells with code."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()


def main() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as directory:
        execute(notebook, Path(directory))
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = _ANSI.sub("", output.text).replace("\r\n", "\n")
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if shown(output)]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "executed_sources": digest_of(notebook),
    }
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
