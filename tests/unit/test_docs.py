"""The pages of docs/: links and anchors are right, the navigation has every page, the references name everything."""

import html
import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from mtx import cli
from mtx.config import limits, schema, settings
from mtx.data import choosing, cleaning, model_sizes, tokenizer
from mtx.errors import STOPPING_SIGNALS
from mtx.serve.server import Limits
from scripts.docs import hooks, references

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = (".github", "configs", "deploy", "docs", "mtx", "scripts", "tests")
PAGES = sorted([*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md"))])
ARCHIVE = DOCS / "archive"  # not on the site


def _prose(path: Path) -> str:
    """A page without blocks of code."""
    parts: list[str] = []
    hooks.outside_code(path.read_text(encoding="utf-8"), lambda part: parts.append(part) or "")
    return "".join(parts)


def _anchors(path: Path) -> set[str]:
    """The anchors of a page, as GitHub and the site make them."""
    prose, found = _prose(path), set()
    for title in re.findall(r"^#{1,6} +(.+?)\s*#*$", prose, re.MULTILINE):
        words = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found.add(next(name for name in [slug, *(f"{slug}-{n}" for n in range(1, 99))] if name not in found))
    return found | set(re.findall(r"\bid=\"([^\"]+)\"", prose))


ANCHORS = {path: _anchors(path) for path in PAGES}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_anchors_are_right(path: Path) -> None:
    prose = re.sub(r"(?<!`)`[^`\n]+`(?!`)", "", _prose(path))  # as in code
    for target in re.findall(r"\]\(([^()\s]+)\)", prose):
        name, _, anchor = target.partition("#")
        if re.match(r"(https?|mailto):", name):
            assert not re.match(r"https://github\.com/[^/]+/mtx\b", name), f"{target}: a relative link is checked"
            continue
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), target
        assert not anchor or found.suffix != ".md" or anchor in ANCHORS.get(found, _anchors(found)), target


def test_the_navigation_has_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- [^:\n]+: (\S+\.md)$", text, re.MULTILINE)
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent != ARCHIVE]
    assert sorted([*listed, "results-log.md"]) == sorted(pages)
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert [page for page in listed if page != "index.md" and f"]({page})" not in index] == []


def test_no_page_of_the_navigation_links_the_diary() -> None:
    linking = [path for path in PAGES if re.search(r"\]\([^)]*results-log\.md", path.read_text(encoding="utf-8"))]
    assert [path for path in linking if path.parent != ARCHIVE and path.name != "results-log.md"] == []


def test_a_search_of_the_site_does_not_find_the_diary() -> None:
    text = (DOCS / "results-log.md").read_text(encoding="utf-8")
    assert text.startswith("---\nsearch:\n  exclude: true\n---\n")


def test_the_site_has_no_archive() -> None:
    assert "\nexclude_docs: |\n  archive/\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_every_page_that_code_names_exists() -> None:
    files = [path for name in ("configs", "mtx", "scripts") for path in (ROOT / name).rglob("*") if path.is_file()]
    named = {
        (path.name, name)
        for path in files
        if path.suffix in (".py", ".yaml", ".jinja", ".sh")
        for name in re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert [(file, name) for file, name in sorted(named) if not (ROOT / name).is_file()] == []


def test_the_settings_reference_has_every_key_with_its_default() -> None:
    rows = dict(re.findall(r"^\| <a id=\"([\w.]+)\"></a>(.*)$", references.settings_reference(), re.MULTILINE))
    assert sorted(rows) == sorted([*schema.key_names(), *schema.fields(schema.TrainText, "data.train.")])
    for key in schema.key_names():
        assert f"| `{settings.describe_key(key)[1]}` |" in rows[key], key
    assert "| integer from 1 to 100 | `4` |" in rows["decoding.beam_size"]
    assert "| number from 0 to below 1 |" in rows["model.dropout"]
    assert "| duration or `null` |" in rows["training.time_limit"]
    assert "| `auto` or integer from 270 to " in rows["tokenizer.vocab_size"]


def test_the_command_reference_has_every_command_argument_and_option() -> None:
    group: Any = typer.main.get_command(cli.app)
    text = html.unescape(references.command_reference().replace("<code>", "`"))
    sections = dict(re.findall(r"^### mtx (\S+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert {*sections} == {*group.commands}
    for name, command in group.commands.items():
        for parameter in command.params:
            names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name]
            for one in names:
                assert one == "--help" or re.search(rf"^\| `[^`]*{re.escape(one)}", sections[name], re.MULTILINE), one
        hidden = sum(getattr(parameter, "hidden", False) for parameter in command.params)
        assert sections[name].count("Not in `--help`.") == hidden


def test_the_recipe_reference_has_every_recipe() -> None:
    text = references.recipe_reference()
    assert re.findall(r"^## (\S+)$", text, re.MULTILINE) == settings.recipe_names()
    for name in settings.recipe_names():
        for fact in settings.recipe_facts(name):
            assert references._cell(fact) in text
    assert "[Adapt a model to your text](../howto/adapt.md)" in text and "docs/howto" not in text


def test_the_references_are_as_they_would_be_generated() -> None:
    for path, text in references.references().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs-references`"
        assert text.count("\n| ") > 15


def test_a_reference_keeps_what_is_written_by_hand() -> None:
    page = "# a\n<!-- generated: recipes -->\nold\n<!-- /generated -->\nb\n"
    before, after = references.filled_in(page).split(references.recipe_reference().rstrip())
    assert before == "# a\n<!-- generated: recipes -->\n\n" and after == "\n\n<!-- /generated -->\nb\n"


def test_code_in_a_table_does_not_end_its_cell() -> None:
    assert references._cell("a|b `c|<d>` `e`") == r"a\|b <code>c&#124;&lt;d&gt;</code> `e`"


def test_links_that_leave_the_pages_lead_to_the_repository_or_name_the_file() -> None:
    page = (
        "[a](../../mtx/cli.py#L1) [b](../results.md#x) `c`\n```\n[d](../../mtx/cli.py)\n```\n"
        "[e](../../configs) [f](../archive/decisions-2026.md)\n"
    )
    place, address = DOCS / "reference" / "page.md", "https://example.org/mtx"
    assert hooks.relinked(page, place, address) == (
        f"[a]({address}/blob/main/mtx/cli.py#L1) [b](../results.md#x) `c`\n```\n[d](../../mtx/cli.py)\n```\n"
        f"[e]({address}/tree/main/configs) [f]({address}/blob/main/docs/archive/decisions-2026.md)\n"
    )
    assert hooks.relinked(page, place, None) == (
        '<abbr title="mtx/cli.py">a</abbr> [b](../results.md#x) `c`\n```\n[d](../../mtx/cli.py)\n```\n'
        '<abbr title="configs">e</abbr> <abbr title="docs/archive/decisions-2026.md">f</abbr>\n'
    )


def test_no_file_has_an_address_that_is_yet_to_be_filled_in() -> None:
    known = re.findall(r"github\.com/([\w-]+)/mtx$", hooks.project_urls().get("Repository", ""))
    named = ["CITATION.cff", "pyproject.toml", "mkdocs.yml", "mtx/**/*.py", "configs/*.yaml", "deploy/*"]
    for path in [*PAGES, *(path for form in named for path in ROOT.glob(form) if path.is_file())]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bOWNE[R]\b|github\.com/(?i:user|your)", text), path
        assert {*re.findall(r"github\.com/([\w-]+)/mtx\b", text)} <= {*known}, path


@pytest.mark.parametrize("name", ["results.md", "benchmarks.md"])
def test_every_table_of_evidence_has_its_conditions_and_a_meaning(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^\|---.*\n(?:\|.*\n)+\n((?:(?![#|]).*\n)*)", text, re.MULTILINE)
    assert len(blocks) == text.count("\n|---") > 10
    form = r"Conditions: (\d{4}-\d\d-\d\d|date in the table)[^·]* · [^·]+ · [^·]+ · [^·]+( · [^·]+ · commit [^·]+)?"
    for block in blocks:
        (conditions,) = re.findall(r"^Conditions: .*", block, re.MULTILINE)
        assert re.match(form, conditions), conditions
        assert re.search(rf"{re.escape(conditions)}\n\n[\w`]", block), f"no sentence of meaning: {conditions}"


def test_the_sizes_are_those_that_are_chosen() -> None:
    text = (DOCS / "explanation" / "sizes.md").read_text(encoding="utf-8").replace(",", "")
    rows = re.findall(r"^\| (\d+) \| (\d)\+(\d) \|(.*)\|$", text, re.MULTILINE)
    shown = {int(row[0]): (float(row[1]), float(row[2]), *map(float, row[3].split("|"))) for row in rows}
    values = {row: model_sizes.row_values(row) for row in model_sizes._ROWS}
    assert shown == {row: tuple(float(values[row][key]) for key in model_sizes._VALUES) for row in values}
    for key, value in model_sizes._FIXED_VALUES.items():
        assert value is None or f"`{key}={value}`" in text, key
    assert dict(re.findall(r"^\| (\d+|more) \| (\d+) \|$", text, re.MULTILINE)) == {
        "more" if math.isinf(pairs) else str(pairs): str(size) for size, pairs in tokenizer._AUTO_SIZES.items()
    }


def test_the_reasons_to_drop_a_pair_are_all_named() -> None:
    text = (DOCS / "reference" / "text-formats.md").read_text(encoding="utf-8")
    reasons = {getattr(cleaning, name) for name in vars(cleaning) if name.isupper() and not name.startswith("_")}
    reasons |= set(re.findall(r'return "([^"]+)"', inspect.getsource(cleaning.clean_pair)))
    reasons |= {*choosing.REASONS.values()}
    assert {reason for reason in reasons if isinstance(reason, str)} == set(
        re.findall(r"^\| `([^`]+)` \|", text.split("## What cleaning drops")[1].split("\n## ")[0], re.MULTILINE)
    )


def test_the_tables_of_limits_have_the_numbers_of_the_server_and_the_settings() -> None:
    text = (DOCS / "reference" / "limits.md").read_text(encoding="utf-8").replace(",", "")
    server, settings_table = re.findall(r"^\|---\|---\|\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    server_limits = {name: int(limit) for name, limit in vars(Limits()).items()}
    server_limits["body_bytes"] //= 1024  # the page has KiB
    shown = re.findall(r"\| (\d+)(?: s| KiB)? \|$", server, re.MULTILINE)
    assert sorted(map(int, shown)) == sorted(server_limits.values())
    settings_limits = [int(limit) for name, limit in vars(limits).items() if name.startswith("MAX_")]
    shown = re.findall(r"\| (\d+) \|$", settings_table, re.MULTILINE)
    assert sorted(map(int, shown)) == sorted(settings_limits)


def test_exit_codes_and_environment_variables_are_all_named() -> None:
    text = (DOCS / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "mtx").rglob("*.py")))
    read = set(re.findall(r"environ(?:\.get)?[(\[]\"([A-Z]\w+)\"", code)) - {"SYSTEMROOT"}  # which Windows has
    assert "MTX_DEBUG" in read and sorted(name for name in read if f"`{name}" not in text) == []
    codes = {0, 1, 2, 3, 128 + 13, *(128 + number for number in STOPPING_SIGNALS)}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == codes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_advice_that_a_page_shows_is_that_of_its_quality(page: Path) -> None:
    """From 90 on a translation is to be used, from 70 on it is not to be redone."""
    shown = re.findall(r'"quality": ([\d.]+), "advice": "(\w+)"', page.read_text(encoding="utf-8"))
    assert all(advice == "use" for quality, advice in shown if float(quality) >= 90)
    assert all(advice != "redo" for quality, advice in shown if float(quality) >= 70)


def test_the_scores_of_the_page_about_time_are_in_the_results() -> None:
    page = (DOCS / "howto" / "how-much-time.md").read_text(encoding="utf-8")
    results = re.findall(r"(?<![\w.])\d+\.\d\d(?![\w.])", (DOCS / "results.md").read_text(encoding="utf-8"))
    known = {*map(float, results)}
    scores = re.findall(r"(?<=\| )\d+\.\d(?= \|)", page)
    assert len(scores) > 10
    assert [score for score in scores if not any(abs(float(score) - number) < 0.0501 for number in known)] == []


def test_the_figures_of_user_pages_are_those_of_the_evidence() -> None:
    """A score or a factor of speed, rounded as the page has it, is in results, benchmarks or the archive."""
    names = ("results.md", "benchmarks.md", "archive/decisions-2026.md")
    evidence = "".join((DOCS / name).read_text(encoding="utf-8") for name in names)
    known = [float(number.replace(",", "")) for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", evidence)]
    pages = [
        page for page in PAGES if page.name == "README.md" or page.parent.name in ("howto", "tutorials", "explanation")
    ]
    found = 0
    for page in pages:
        for number in re.findall(r"(?<![\w.,/-])(\d+\.\d+(?= ?(?:BLEU|chrF|%))|[\d.]+(?= times as))", _prose(page)):
            digits = len(number.partition(".")[2])
            assert any(round(other, digits) == float(number) for other in known), f"{page.name}: {number}"
            found += 1
    assert found > 5
