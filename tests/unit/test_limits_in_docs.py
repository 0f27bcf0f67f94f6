"""docs/reference/limits.md has the numbers of the server's `Limits` and of mtx/config/limits.py."""

import re
from pathlib import Path

from mtx.config import limits
from mtx.serve.server import Limits

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")


def test_the_tables_have_every_limit() -> None:
    server, settings = re.findall(r"^\|---\|---\|\n(.*?)\n\n", TEXT, re.MULTILINE | re.DOTALL)
    values = [int(value) for value in re.findall(r"\| (\d+)(?: s| KiB)? \|$", server.replace(",", ""), re.MULTILINE)]
    assert sorted(values) == sorted(v // 1024 if n == "body_bytes" else int(v) for n, v in vars(Limits()).items())
    shown = [int(value) for value in re.findall(r"\| (\d+) \|$", settings.replace(",", ""), re.MULTILINE)]
    assert sorted(shown) == sorted(int(value) for name, value in vars(limits).items() if name.startswith("MAX_"))
