"""docs/paper.md: its links name the lines of code that they lead to, and its examples print what it shows."""

import code
import re

import pytest

from scripts.paper_links import LINK, PAPER, refreshed

TEXT = PAPER.read_text(encoding="utf-8")
IMPORTS, *EXAMPLES = re.finditer(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", TEXT, re.DOTALL)


def test_every_link_into_the_code_names_what_is_defined_in_its_lines() -> None:
    wrong = [
        f"docs/paper.md:{number}: {link[0]} is now {refreshed(link)}"
        for number, line in enumerate(TEXT.splitlines(), start=1)
        for link in LINK.finditer(line)
        if link[0] != refreshed(link)
    ]
    assert not wrong, "\n".join(["python scripts/paper_links.py puts these right:", *wrong])


def test_no_link_leads_nowhere() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#\s]*)(#[^)]*)?\)", TEXT)
    assert [path for path, _ in targets if not (PAPER.parent / path).is_file()] == []
    assert sum(bool(lines) for _, lines in targets) == len(LINK.findall(TEXT)), "a range goes with a name in backquotes"


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
