"""YAML becomes text, lists and sections, and never objects."""

from pathlib import Path

import pytest

from mtx.config.settings import read_yaml
from tests.unit.config.helpers import problems, write


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed: 1\ndata:\n  src: a\n  tgt: b\n  src: c\n", ":5: duplicate key 'src'"),
        ("seed: 1\n\nseed: 1\n", ":3: duplicate key 'seed'"),
        ("data: &a\n  src: x\nmodel: *a\n", ":1: YAML aliases (*name) are not supported"),
        ("data: &a [*a]\n", ":1: YAML aliases (*name) are not supported"),
        ("training:\n\tmax_steps: 1\n", ":2: "),
        ("seed: [1\n", ":1: expected ',' or ']', but got '<stream end>'"),
        ("seed: 1\n---\nseed: 2\n", ":2: but found another document"),
        ("? [a]\n: b\n", ":1: expected a key, got a list"),
        ("just words\n", ": expected sections with keys, got 'just words'"),
        ("- a\n", ": expected sections with keys, got a list"),
        ("a: \x07\n", ": invalid YAML: "),
        ("[" * 3000, ": invalid YAML: "),
    ],
)
def test_wrong_yaml_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path / "c.yaml", text)
    assert problems(path).startswith(f"{path}{problem}")


def test_yaml_constructs_no_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "a: !!python/object/apply:os.getcwd []\nb: !!int 3\nc: !!float x\nd: 0x10\n")
    assert read_yaml(path)[0] == {"a": [], "b": "3", "c": "x", "d": "0x10"}
