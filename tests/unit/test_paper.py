"""docs/tutorials/paper.md: each link leads to a file that defines the linked name; the examples print what is shown."""

import ast
import code
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

PAPER = Path(__file__).parents[2] / "docs" / "tutorials" / "paper.md"
TEXT = PAPER.read_text(encoding="utf-8")
LINKS = re.findall(r"\[`([\w.]+)`\]\((\.\./\.\./[\w./]+\.py)\)", TEXT)
IMPORTS, *EXAMPLES = re.finditer(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", TEXT, re.DOTALL)


def defined_names(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """The functions, classes, methods and variables that statements define, as `Class.method`."""
    names = set()
    for node in body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        flat = (name for target in targets for name in getattr(target, "elts", [target]))
        names |= {prefix + target.id for target in flat if isinstance(target, ast.Name)}
        if name := getattr(node, "name", None):
            names |= {prefix + name, *defined_names(getattr(node, "body", []), f"{prefix}{name}.")}
    return names


def test_every_linked_name_is_defined_in_the_file_that_the_link_leads_to() -> None:
    assert len(LINKS) > 50
    files = {path: ast.parse((PAPER.parent / path).read_text(encoding="utf-8")) for _, path in LINKS}
    assert [(name, path) for name, path in LINKS if name not in defined_names(files[path].body)] == []


def test_no_link_leads_nowhere() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#[^)]*)?\)", TEXT)
    assert [path for path in targets if not (PAPER.parent / path).is_file()] == []


@pytest.mark.seconds
def test_the_pictures_of_the_page_can_be_drawn_from_its_examples(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.docs.pictures", "paper", tmp_path]
    subprocess.run(command, cwd=PAPER.parents[2], check=True, stdout=subprocess.DEVNULL)
    shown = re.findall(r"!\[[^]]+\.\]\(\.\./images/([\w-]+\.png)\)", TEXT)
    assert len(shown) == TEXT.count("!["), "each with a sentence for those who do not see it"
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert len(drawn) == 3 and drawn == sorted({*shown} - {"architectures.png"}), "which is measured"


@pytest.mark.seconds
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda found: f"line {TEXT[: found.start()].count(chr(10)) + 1}")
def test_an_example_pasted_into_a_prompt_prints_what_is_shown(
    example: re.Match[str], capsys: pytest.CaptureFixture[str]
) -> None:
    console = code.InteractiveConsole()
    for line in IMPORTS[1].splitlines():
        console.push(line)
    imported = dict(console.locals)
    waits = [console.push(line) for line in [*example[1].splitlines(), ""]]
    out, err = capsys.readouterr()
    assert out == example[2], err
    assert not waits[-1], "the example is not complete"
    hidden = [name for name, value in imported.items() if console.locals[name] is not value]
    assert not hidden, "names of the imports, which the next example needs"
