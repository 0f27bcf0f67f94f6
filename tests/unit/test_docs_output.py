"""What the pages show as printed is printed: how blocks are paired and compared, and the quick ones."""

import ast
import re
from pathlib import Path

import pytest

from scripts.docs import output as script
from tests.rig import PATIENCE_S

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
BLOCKS = {page: script.blocks(page) for page in script.PAGES}


@pytest.mark.parametrize("page", script.PAGES)
def test_every_block_of_output_has_commands_or_a_reason(page: str) -> None:
    for number, block in enumerate(BLOCKS[page]):
        if block.language in script.OUTPUT and not script.reason_not_to_run(block):
            origin = script.source(block, BLOCKS[page][:number])
            assert origin.language == "python" or origin.commands, block.name


@pytest.mark.parametrize("page", script.PAGES)
def test_a_block_without_a_language_is_what_a_reader_types(page: str) -> None:
    """Otherwise it is output, and would not be compared."""
    results = ("BLEU ", "verdict: ", "advice: ", "cleaning: ", "error: ", "warning: ")
    typed = [line for block in BLOCKS[page] if block.language in script.COMMANDS for line in block.lines]
    assert [line for line in typed if line.startswith(results) or " BLEU " in line] == []
    assert [block.name for block in BLOCKS[page] if block.language == "text" and block.lines[0].startswith("$ ")] == []


@pytest.mark.parametrize("name", ["NOT_OUTPUT", "NOT_RUN", "PRINTED_BY", "FILES"])
def test_every_entry_of_a_table_is_about_one_block(name: str) -> None:
    for page, beginning in getattr(script, name):
        found = [block for block in BLOCKS[page] if block.lines[0].startswith(beginning)]
        assert len(found) == 1, (page, beginning)
        assert name == "FILES" or found[0].language in script.OUTPUT


def test_the_tests_that_compare_a_page_exist() -> None:
    for page, test in script.IN_TESTS.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "shown, printed",
    [
        ("time: about 42 min, 0.275 s (3,654 target tokens/s)", "time: about 1 h 36 min, 1.5 s (20 target tokens/s)"),
        ("grammar BLEU 96.43 [95.5, 97.3]  TER 2.0", "grammar BLEU 8.1 [7.0, 9.2]  TER 70.1"),
        ("step 159 of 800: loss 2.716, lr 4.86e-03", "step 7 of 800: loss 9.1, lr 1.00e-06"),
        ("    -> Dieser Mann Mann", "    -> Dieser junge Mann"),
        ("a      1.25", "a  1.5"),
        ('[{"text": "A", "score": -0.7}, {"text": "B", "score": -2.6}]',
         '[{"text": "A", "score": -0.8}, {"text": "C", "score": -3.1}]'),
        ("packages: torch 2.13, ..., transformers missing", "packages: torch 2.14, transformers 5.0"),
        ("the model is step 800 97.1, by BLEU (the average of 3 checkpoints, steps 700 to 800 97.0)",
         "the model is the average of 5 checkpoints, steps 600 to 800 97.1, by BLEU (step 800 97.0)"),
        ("best:      97.13 at step 800 (validation BLEU)", "best:      97.2 at step 700 (validation BLEU)"),
        ("a/bt.tsv: 100 pairs of 100 lines", "a/bt.tsv: 75 pairs of 100 lines (numbers 24, repetition 1)"),
        ("tokenizer: ... subwords", "tokenizer: 4,000 subwords"),
    ],
)  # fmt: skip
def test_what_depends_on_the_machine_may_differ(shown: str, printed: str) -> None:
    assert script.missing([shown], ["before", printed, "after"]) == []


@pytest.mark.parametrize(
    "shown, printed",
    [
        ("verdict: good: 96.4 BLEU on grammar", "verdict: hardly usable: 96.4 BLEU on grammar"),
        ("cleaning: 6,300 pairs kept of 7,000 read", "cleaning: 6,301 pairs kept of 7,000 read"),
        ("step 200 of 800: validation nll 1.2", "step 300 of 800: validation nll 1.2"),
        ("tok:13a|version:2.6.0", "tok:13a|version:2.7.0"),
        ("Am Donnerstag muss der Arzt warten.", "Am Donnerstag muss der Arzt wartet."),
        ('[{"text": "A", "score": -0.7}]', '[{"text": "B", "score": -0.7}]'),
        ("time: about 42 min to the end", "time: about 42 min to go"),
        ("sizes=5000: 120 epochs", "sizes=5000: 80 epochs"),
    ],
)
def test_words_and_counts_may_not(shown: str, printed: str) -> None:
    assert script.missing([shown], ["before", printed, "after"]) == [(shown, printed)]


def test_lines_are_printed_in_their_order() -> None:
    assert script.missing(["one", "three"], ["one", "two", "three"]) == []
    assert [line for line, _ in script.missing(["three", "one"], ["one", "two", "three"])] == ["one"]


@pytest.mark.seconds
@pytest.mark.parametrize(
    "page, beginning",
    [
        ("docs/install.md", "mtx "),
        ("README.md", "my.tsv"),
        ("docs/howto/train.md", "  vocab_size"),
    ],
)
def test_a_block_is_printed(page: str, beginning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "LIMIT_S", PATIENCE_S)  # a training whose lines differ would not end
    compared = script.compared(page, script.Shared(tmp_path, None), beginning)
    found = [result for block, *result in compared if block.lines[0].startswith(beginning)]
    assert found == [["", []]]


def _messages() -> list[tuple[str, str]]:
    """What the tables of problems quote from mtx: a page and a message. install.md quotes other programs."""
    found = []
    for page in script.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for section in re.findall(r"^## What can go wrong\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
            cells = " ".join(re.findall(r"^\| (.*?) \|", section, re.MULTILINE))
            quoted = [message for message in re.findall(r"`([^`]+)`", cells) if " " in message]
            found += [(page, message) for message in quoted if not message.startswith("mtx ")]
    return [(page, message) for page, message in found if page != "docs/install.md"]


def test_the_messages_in_the_tables_of_problems_are_those_of_mtx() -> None:
    pieces = set()
    for path in (ROOT / "mtx").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                pieces |= {piece.strip() for piece in re.split(r"%[.\d,]*[sdfr]|\{[^}]*\}", node.value)}
    messages = _messages()
    assert len(messages) > 8
    for page, message in messages:
        known = any(message in piece or (len(piece) >= 12 and piece in message) for piece in pieces)
        assert known, f"{page}: {message}"
