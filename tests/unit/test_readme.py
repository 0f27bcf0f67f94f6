"""README.md is short, its numbers are those of the evidence, and its commands are understood."""

import re
from pathlib import Path

import pytest

from mtx.config.settings import recipe_facts
from tests.unit.test_commands_in_docs import test_a_command_is_understood as check_command

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INLINE = sorted({*re.findall(r"`(mtx [a-z][a-z-]*(?: (?!KEY)[^`\n]+)?)`", README)})


def test_it_is_read_in_five_minutes() -> None:
    assert len(README.splitlines()) <= 165
    assert len(README.encode()) <= 10_500


@pytest.mark.parametrize("recipe", ["demo", "multi30k-en-de"])
def test_it_gives_the_scores_of_the_recipes(recipe: str) -> None:
    score = float(recipe_facts(recipe)[3].split()[0])
    paragraph = README.rpartition(f"\nmtx train {recipe}")[0].rpartition("\n**")[2]
    assert f"{score:.1f} BLEU" in paragraph or f"about {score:.0f} BLEU" in paragraph


def test_its_table_is_that_of_the_results() -> None:
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    scores = re.findall(r"\| (\d?\d\.\d\d)(?: [(\[][\d., ]+[)\]])? (?=\|)", results)
    measured = {f"{float(score):.1f}" for score in scores}
    rows = re.findall(
        r"^\| [\d,]+ (?:pairs|photo captions).* \| \**([\d.]+)\** \| ([\d.]+|not measured) \|$", README, re.MULTILINE
    )
    assert len(rows) == 8
    assert {number for row in rows for number in row} - {"not measured"} <= measured


@pytest.mark.extended
@pytest.mark.parametrize("line", INLINE)
def test_a_command_in_its_text_is_understood(line: str) -> None:
    check_command(line)
