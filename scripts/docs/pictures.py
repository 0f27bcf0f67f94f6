"""Makes the pictures of the documents.

    mtx train demo run_dir=RUN
    python -m scripts.docs.pictures report RUN docs/images
    python -m scripts.docs.pictures paper docs/images

`report` makes those of the README and the guide: parts of a report as Chromium shows them, and attention of one head.
It needs playwright, and Chromium or Chrome. `paper` makes those of docs/tutorials/paper.md from the examples above
them, in seconds and without a run, but for what is measured.
"""

import argparse
import code
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure

_SENTENCE = "On Thursday the young doctor has to wait for the train."
_PAPER = Path(__file__).parents[2] / "docs" / "tutorials" / "paper.md"
# The colours of the report's pages, light.
BLUE = "#0b5cad"
ORANGE = "#c2410c"
GREY = "#5b6670"
_MAX_WEIGHT = 0.5  # where the colours end, so that small weights are seen; those of a narrow kernel are larger
_MEASURED = {"architectures.png"}  # which compare_architectures.py draws
_QUERY = 5.4  # the one that the examples print
LOOKS = {
    "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "grid.color": "#d9dee3", "grid.linewidth": 0.6,
}  # fmt: skip


def main() -> None:
    """Writes report.png, curves.png and attention.png, or the pictures of docs/tutorials/paper.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    report = kinds.add_parser("report")
    paper = kinds.add_parser("paper")
    report.add_argument("run", type=Path, metavar="RUN", help="directory of the run")
    for kind in (report, paper):
        kind.add_argument("directory", type=Path, metavar="DIR", help="directory for the pictures")
    arguments = parser.parse_args()
    if arguments.kind == "report":
        _picture_report(arguments.run, arguments.directory)
    else:
        _picture_paper(arguments.directory)


def _picture_report(run: Path, directory: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for part, name, height in (("overview", "report", 900), ("curves", "curves", 735)):
            page = browser.new_page(viewport={"width": 1180, "height": height})
            page.goto(f"{(run / 'report.html').resolve().as_uri()}#{part}")
            page.screenshot(path=str(directory / f"{name}.png"))
        with tempfile.TemporaryDirectory() as temporary:
            file = Path(temporary, "attention.html")
            subprocess.run([sys.executable, "-m", "mtx", "attention", str(run), _SENTENCE, "-o", str(file)], check=True)
            page = browser.new_page()
            page.goto(file.as_uri())
            page.get_by_role("button", name="layer 2 head 1").click()
            with page.expect_download() as saved:
                page.get_by_role("button", name="Save picture").click()
            saved.value.save_as(directory / "attention.png")
        browser.close()


def _picture_paper(directory: Path) -> None:
    """Draws for each picture of docs/tutorials/paper.md what the last example above it computes."""
    text = _PAPER.read_text(encoding="utf-8")
    imports, *examples = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    for picture in re.finditer(r"!\[.*?\]\(\.\./images/([\w-]+\.png)\)", text):
        if picture[1] in _MEASURED:
            continue
        example = [match[1] for match in examples if match.end() < picture.start()][-1]
        console = code.InteractiveConsole()
        for line in [*imports[1].splitlines(), *example.splitlines(), ""]:
            console.push(line)
        _draw(directory / picture[1], console.locals)


def _draw(path: Path, example: Mapping[str, Any]) -> None:
    """Draws the estimate of an example next to the map of its weights, whose columns are at the places of the keys."""
    queries = example["queries"].numpy()
    keys = example["keys"].numpy()
    with style.context(["default", LOOKS]):
        figure = Figure(figsize=(8, 3.5), layout="constrained")
        fit, heat = figure.subplots(1, 2, width_ratios=(1.12, 1))
        fit.plot(queries, example["curve"], "--", color=GREY, linewidth=1.2, label="curve")
        fit.plot(keys, example["values"], "o", color=ORANGE, markersize=3.5, label="measurements")
        fit.plot(queries, example["estimate"], color=BLUE, linewidth=1.8, label="estimate")
        fit.set(title="Estimate", xlabel="place", ylabel="value", xlim=(-0.2, 10.2), ylim=(-2, 1.3))
        fit.grid()
        fit.axvline(_QUERY, color=ORANGE, linewidth=0.8, linestyle=":")
        fit.text(_QUERY + 0.12, -1.9, f"query {_QUERY}", color=ORANGE)
        fit.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)

        places = np.arange(50) / 5
        columns = np.full((len(queries), len(places)), np.nan)
        columns[:, np.searchsorted(places, keys)] = example["weights"]
        heat.set_facecolor("#e3e7ea")
        image = heat.pcolormesh(places, queries, columns, cmap="Blues", vmin=0, vmax=_MAX_WEIGHT, shading="nearest")
        heat.axhline(_QUERY, color=ORANGE, linewidth=0.8, linestyle=":")
        heat.text(4.9, _QUERY - 0.15, str(_QUERY), color=ORANGE, ha="center")
        heat.text(4.9, 9.6, "no keys", ha="center")
        heat.set(title="Weights", xlabel="key", ylabel="query")
        heat.invert_yaxis()
        figure.colorbar(image, ax=heat, label="weight", extend="max", shrink=0.9)
        save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as a PNG that is the same bytes for the same figure."""
    figure.savefig(path, dpi=120, metadata={"Software": None}, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main()
