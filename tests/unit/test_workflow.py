"""The workflow on GitHub runs the targets of the Makefile, and on Windows the commands of these targets."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))


def commands(job: str) -> list[str]:
    steps: list[dict[str, Any]] = WORKFLOW["jobs"][job]["steps"]
    return [step["run"] for step in steps if "run" in step]


def recipe(target: str) -> list[str]:
    """The commands of a target as one types them without `make`."""
    lines = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert lines is not None, target
    return [re.sub(r"^OMP_NUM_THREADS=1 |\$\(BIN\)/", "", line) for line in lines[1].replace("\t", "").splitlines()]


def test_make_is_given_targets() -> None:
    targets = ["setup", "check", "test", "test-wheel"]
    assert commands("make") == [f"make {target}" for target in targets]
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)


def test_windows_runs_the_same_commands() -> None:
    install, *checks, tests, wheel = commands("windows")
    assert install in recipe(".venv/installed")
    assert checks == recipe("check")
    assert tests.split()[0] == "pytest" and all((ROOT / path).is_dir() for path in tests.split()[1:])
    assert [wheel] == recipe("test-wheel")
