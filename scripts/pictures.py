"""Makes the pictures of the README and the guide: parts of a report as Chromium shows them, and attention of one head.

    mtx train demo run_dir=RUN training.validate_every=110
    python scripts/pictures.py RUN docs/images

It needs playwright, and Chromium or Chrome.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

_SENTENCE = "On Thursday the young doctor has to wait for the train."


def main() -> None:
    """Writes report.png, curves.png and attention.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of the run")
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory for the pictures")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for part, name, height in (("overview", "report", 778), ("curves", "curves", 735)):
            page = browser.new_page(viewport={"width": 1180, "height": height})
            page.goto(f"{(arguments.run / 'report.html').resolve().as_uri()}#{part}")
            page.screenshot(path=str(arguments.directory / f"{name}.png"))
        browser.close()
    picture = ["-o", str(arguments.directory / "attention.png"), "--layer", "2", "--head", "1"]
    subprocess.run([sys.executable, "-m", "mtx", "attention", str(arguments.run), _SENTENCE, *picture], check=True)


if __name__ == "__main__":
    main()
