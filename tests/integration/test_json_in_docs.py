"""docs/reference/json.md names every field that files of a run and commands with --json have, and no other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import mtx

pytestmark = pytest.mark.extended

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all values that are no container, such as `corpora[].name`."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from _paths(inner, f"{path}.{key}" if path else key)
    for inner in value if isinstance(value, list) else ():
        yield from _paths(inner, f"{path}[]")
    if not isinstance(value, dict | list):
        yield path


def check(section: str, value: Any) -> None:
    rows = re.findall(r"^\| (`.+?) \| (.*) \|$", SECTIONS[section], re.MULTILINE)
    fields = {
        field: " only " in f" {text} ".replace(";", " ")
        for names, text in rows
        for field in re.findall(r"`([^`]+)`", names)
    }
    patterns = {field: re.escape(field).replace("NAME", ".+") for field in fields}
    real = {*_paths(value)}
    unknown = [path for path in real if not any(re.fullmatch(pattern, path) for pattern in patterns.values())]
    assert unknown == [], section
    gone = [name for name, pattern in patterns.items() if not any(re.fullmatch(pattern, path) for path in real)]
    assert [name for name in gone if not fields[name]] == [], section


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def printed(*arguments: object) -> list[Any]:
    result = mtx(*arguments)
    assert result.returncode == 0, result.stderr.decode()
    return [json.loads(line) for line in result.stdout.decode().splitlines()]


def test_every_section_is_checked() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in SECTIONS if f'check("{name}"' not in source] == ["mtx distil --json"]


@pytest.mark.seconds
def test_files_of_a_run(trained: Path) -> None:
    check("status.json", json.loads((trained / "status.json").read_text()))
    events = [{event.pop("event"): event} for event in lines(trained / "metrics.jsonl") if event.pop("time")]
    check("metrics.jsonl", [*events][0] | {name: value for event in events for name, value in event.items()})
    check("data/report.json", json.loads((trained / "data" / "report.json").read_text()))
    check("scores.json", json.loads((trained / "model" / "scores.json").read_text()))


@pytest.mark.seconds
def test_commands(trained: Path, settings: list[str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one two\n", encoding="utf-8")
    check("mtx status RUN --json", *printed("status", trained, "--json"))
    check("mtx translate MODEL FILE --json", *printed("translate", trained, text, "--json", "--alignment"))
    check("mtx translate MODEL FILE --n-best N", *printed("translate", trained, text, "--n-best", 2, "--alignment"))
    check("mtx evaluate --json", *printed("evaluate", trained, "--json"))
    check("mtx compare --json", *printed("compare", trained, trained, "--json"))
    check("mtx logprob MODEL SRC TGT --json", *printed("logprob", trained, text, text, "--json"))
    check("mtx encode MODEL FILE", *printed("encode", trained, text))
    check("mtx doctor --json", *printed("doctor", "--json"))
    exported = printed("export", trained, "--to", "ctranslate2", "-o", tmp_path / "exported", "--json")
    check("mtx export MODEL --json", *exported)
    (dry,) = printed("train", *settings, f"run_dir={tmp_path / 'dry'}", "--dry-run", "--json")
    check("data/report.json", dry.pop("data"))
    check("mtx train CONFIG --dry-run --json", {**dry, "data": 1})
