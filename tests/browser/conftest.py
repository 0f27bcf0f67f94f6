"""Chromium, started once for each test process. Opening a page must cause no error and no network request."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip

Open = Callable[..., Any]  # (path or address, options of a browser context) -> playwright's Page


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Playwright's Browser; without one the tests are skipped, or fail if MTX_BROWSER=required."""
    path = next((executable for name in _NAMES if (executable := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        missing = f"no playwright, or none of {', '.join(_NAMES)} on the PATH"
        (pytest.fail if os.environ.get("MTX_BROWSER") == "required" else pytest.skip)(missing)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a file or an address. At the end of the test, fails if a page logged, failed, or requested anything else.

    A page at an address may request what is below it.
    """
    contexts, problems = [], []

    def open_file(path: Path | str, **options: Any) -> Any:
        address = path.as_uri() if isinstance(path, Path) else path
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: is_late(message.text) or problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: is_own(request.url, address) or problems.append(f"request: {request.url}"))
        page.goto(address)
        return page

    def is_own(url: str, address: str) -> bool:
        return url == address or (address.startswith("http:") and url.startswith(address)) or url.startswith("data:")

    def is_late(text: str) -> bool:
        return "net::ERR_CONNECTION_REFUSED" in text  # the server of the test has ended; requests are judged above

    yield open_file
    for context in contexts:
        context.close()
    assert problems == []
