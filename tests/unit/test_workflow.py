"""The workflow on GitHub runs the targets of the Makefile."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_make_is_given_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    steps = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))["jobs"]["make"]["steps"]
    targets = [step["run"].removeprefix("make ") for step in steps if "run" in step]
    assert targets == ["setup", "check", "test", "test-wheel"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
